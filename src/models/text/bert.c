/* bert.c - BERT: an encoder that sees both sides, with the heads it is pre-trained and fine-tuned
 * with.
 *
 *     x = norm(words + types + positions);   layers, each norm(x + attention(x)), norm(x + mlp(x))
 *
 * The pooler is a dense layer with tanh on the first token; the masked-word head scores words with
 * the input table. */
#include <stddef.h>

#include "model/bert.h"

static const fv_family_head heads[] = {
    {"BertModel", .job = FV_HEAD_BASE},
    {"BertForPreTraining", FV_HEAD_PRETRAINING, .base = "BertModel"},
    {"BertForMaskedLM", FV_HEAD_MASKED_LM, .base = "BertModel"},
    {"BertForNextSentencePrediction", FV_HEAD_NEXT_SENTENCE, .base = "BertModel"},
    {"BertForSequenceClassification", FV_HEAD_CLASSIFY, .base = "BertModel"},
    {"BertForTokenClassification", FV_HEAD_TAG, .base = "BertModel"},
    {"BertForQuestionAnswering", FV_HEAD_ANSWER, .base = "BertModel"},
    {0},
};

typedef fv__bert_config config;

static const fv_field fields[] = {
    FV_INT(config, vocab_size, 1, 30522, 1 << 24, "tokens"),
    FV_INT(config, max_position_embeddings, 1, 512, 1 << 20, "longest sequence"),
    FV_INT(config, pad_token_id, 0, 0, 1 << 24, "padding"),
    FV__BERT_FIELDS,
    {0},
};

static const fv_key_rule rules[] = {
    {"position_embedding_type", "\"absolute\""},
    {"directionality", NULL}, /* these six stand in the first checkpoints and were never read */
    {"pooler_fc_size", NULL},
    {"pooler_num_attention_heads", NULL},
    {"pooler_num_fc_layers", NULL},
    {"pooler_size_per_head", NULL},
    {"pooler_type", NULL},
    {NULL, NULL},
};

static const fv_input inputs[] = {
    {"input_ids", FV_I32, true},
    {"attention_mask", FV_U8, false},
    {"token_type_ids", FV_I32, false},
    {"position_ids", FV_I32, false},
    {"labels", FV_I32, false},
    {"next_sentence_label", FV_I32, false},
    {"start_positions", FV_I32, false},
    {"end_positions", FV_I32, false},
    {0},
};

typedef struct bert {
    config cfg;
    fv_head_job job;
    fv_emb words, types;
    fv_pos positions;
    fv_norm norm;
    fv__bert_block *blocks;
    fv_lin pooler, classifier, relation; /* relation: is the second sentence the next one */
    fv__word_head masked;
} bert;

static fv_status check(const void *config_, fv_err *e)
{
    const config *k = config_;
    if (k->pad_token_id >= k->vocab_size)
        return fv_fail(e, FV_EFORMAT, "pad_token_id %d is outside the vocabulary of %d",
                       k->pad_token_id, k->vocab_size);
    return fv__bert_check(k, e);
}

/* ---- parameters ---- */

static void declare_head(bert *m, fv_params *p)
{
    const config *k = &m->cfg;
    fv_lin_opt lin = {.std = k->initializer_range};
    int64_t D = k->hidden_size;
    if (m->job != FV_HEAD_MASKED_LM && m->job != FV_HEAD_TAG && m->job != FV_HEAD_ANSWER)
        fv_lin_init(p, &m->pooler, D, D, lin, "%spooler.dense",
                    m->job == FV_HEAD_BASE ? "" : "bert.");
    if (m->job == FV_HEAD_PRETRAINING || m->job == FV_HEAD_MASKED_LM)
        fv__word_head_init(p, &m->masked, k, m->words.table, "cls.predictions.transform.dense",
                           "cls.predictions.transform.LayerNorm", "cls.predictions");
    if (m->job == FV_HEAD_PRETRAINING || m->job == FV_HEAD_NEXT_SENTENCE)
        fv_lin_init(p, &m->relation, D, 2, lin, "cls.seq_relationship");
    if (m->job == FV_HEAD_CLASSIFY || m->job == FV_HEAD_TAG)
        fv_lin_init(p, &m->classifier, D, k->num_labels, lin, "classifier");
    if (m->job == FV_HEAD_ANSWER) fv_lin_init(p, &m->classifier, D, 2, lin, "qa_outputs");
}

static void declare(void *self, const fv_setup *s)
{
    bert *m = self;
    fv_params *p = s->params;
    m->cfg = *(const config *)s->config;
    m->job = s->head->job;
    const config *k = &m->cfg;
    const char *at = m->job == FV_HEAD_BASE ? "" : "bert.";
    fv_emb_opt words = {.has_pad = true, .pad = k->pad_token_id, .std = k->initializer_range};
    fv_emb_init(p, &m->words, k->vocab_size, k->hidden_size, words, "%sembeddings.word_embeddings",
                at);
    fv_pos_init(p, &m->positions, k->max_position_embeddings, k->hidden_size, FV_POS_LEARNED, 0,
                k->initializer_range, "%sembeddings.position_embeddings", at);
    fv_emb_init(p, &m->types, k->type_vocab_size, k->hidden_size,
                (fv_emb_opt){.std = k->initializer_range}, "%sembeddings.token_type_embeddings",
                at);
    fv_norm_init(p, &m->norm, k->hidden_size, (fv_norm_opt){.eps = k->layer_norm_eps},
                 "%sembeddings.LayerNorm", at);
    m->blocks = fv__bert_blocks(p, k, at);
    declare_head(m, p);
}

static fv_load_opt load(const void *self)
{
    static const fv_tie ties[] = {{"cls.predictions.decoder.bias", "cls.predictions.bias"},
                                  {"cls.predictions.decoder.weight",
                                   "bert.embeddings.word_embeddings.weight"},
                                  {NULL, NULL}};
    static const fv_tie bias_alone[] = {{"cls.predictions.decoder.bias", "cls.predictions.bias"},
                                        {NULL, NULL}};
    static const fv_tie endings[] = {{".LayerNorm.weight", ".LayerNorm.gamma"},
                                     {".LayerNorm.bias", ".LayerNorm.beta"},
                                     {NULL, NULL}};
    /* Heads a checkpoint was pre-trained with and this one does not use. */
    static const char *const others[] = {"*embeddings.position_ids", "*pooler.dense.*",
                                         "cls.seq_relationship.*", NULL};
    static const char *const all[] = {"*embeddings.position_ids",
                                      "*pooler.dense.*",
                                      "cls.*",
                                      "classifier.*",
                                      "qa_outputs.*",
                                      NULL};
    const bert *m = self;
    bool words = m->job == FV_HEAD_PRETRAINING || m->job == FV_HEAD_MASKED_LM;
    /* of the bare encoder, which some leave out */
    static const char *const pooler[] = {"pooler.dense.*", NULL};
    return (fv_load_opt){.prefix = "bert.",
                         .fresh = pooler,
                         .ties = m->cfg.tie_word_embeddings ? ties : bias_alone,
                         .endings = endings,
                         .ignore = words ? others : all};
}

static fv_status ready(void *self, fv_params *p, fv_err *e)
{
    bert *m = self;
    return m->job == FV_HEAD_BASE ? fv__bert_pooler_ready(p, &m->pooler, e) : FV_OK;
}

/* Classifiers stay as they are: they are small. */
static void pack(void *self, fv_params *p, fv_dtype dtype)
{
    bert *m = self;
    fv__bert_pack(p, m->blocks, &m->cfg, dtype);
    fv__word_head_pack(p, &m->masked, dtype);
}

static int64_t longest(const void *self)
{
    return ((const bert *)self)->cfg.max_position_embeddings;
}

/* ---- forward ---- */

static fv_tensor *embed(fv_ctx *c, const bert *m, const fv_items *in)
{
    fv_tensor *ids = fv_items_get(in, "input_ids"), *types = fv_items_get(in, "token_type_ids");
    if (fv_dim(ids, 1) > m->cfg.max_position_embeddings)
        return fv_raise(c, FV_ESHAPE, "bert: input_ids %s, but max_position_embeddings is %d",
                        fv_desc(ids).s, m->cfg.max_position_embeddings);
    fv_some_rows of[] = {
        {m->words.table, .ids = ids, .skip = m->words.skip},
        {m->types.table, .ids = types, .count = 1, .skip = -1},
        {m->positions.table, .ids = fv_items_get(in, "position_ids"), .count = fv_dim(ids, 1),
         .skip = -1},
    };
    fv_tensor *x = fv__embed(c, of, 3, m->norm.gain, m->norm.bias, m->norm.eps);
    return fv_dropout(c, x, m->cfg.hidden_dropout_prob);
}

static void pretraining(fv_ctx *c, const bert *m, fv_tensor *x, fv_tensor *pooled,
                        const fv_items *in, fv_items *out)
{
    fv_tensor *labels = fv_items_get(in, "labels"), *next = fv_items_get(in, "next_sentence_label");
    fv_tensor *words = fv__word_head_fwd(c, &m->masked, x),
              *relation = fv_lin_fwd(c, &m->relation, pooled);
    fv_items_put(out, "prediction_logits", words);
    fv_items_put(out, "seq_relationship_logits", relation);
    if (!labels || !next) return;
    fv_items rows = {.n_labels = in->n_rows > 0 ? in->n_rows : (double)fv_len(next),
                     .smooth = in->smooth,
                     .per_label = in->per_row};
    fv_items_put(out, "loss",
                 fv_add(c, fv_loss_tokens(c, words, labels, in),
                        fv_loss_tokens(c, relation, next, &rows)));
}

static void forward(fv_ctx *c, const void *self, const fv_items *in, fv_items *out)
{
    const bert *m = self;
    const config *k = &m->cfg;
    fv_tensor *logits = NULL, *pooled = NULL;
    float dropout = fv__bert_dropout(k);
    fv_tensor *x = fv__bert_encode(c, m->blocks, k, embed(c, m, in),
                                   fv_items_get(in, "attention_mask"));
    if (m->pooler.w) pooled = fv_lin_act(c, &m->pooler, fv_first(c, x), FV_TANH);
    switch (m->job) {
    case FV_HEAD_BASE:
        fv_items_put(out, "last_hidden_state", x);
        fv_items_put(out, "pooler_output", pooled);
        return;
    case FV_HEAD_PRETRAINING: pretraining(c, m, x, pooled, in, out); return;
    case FV_HEAD_ANSWER: fv_put_spans(c, fv_lin_fwd(c, &m->classifier, x), in, out); return;
    case FV_HEAD_MASKED_LM: logits = fv__word_head_fwd(c, &m->masked, x); break;
    case FV_HEAD_NEXT_SENTENCE: logits = fv_lin_fwd(c, &m->relation, pooled); break;
    case FV_HEAD_CLASSIFY:
        logits = fv_lin_fwd(c, &m->classifier, fv_dropout(c, pooled, dropout));
        break;
    default: logits = fv_lin_fwd(c, &m->classifier, fv_dropout(c, x, dropout)); break;
    }
    fv__put_classes(c, in, out, logits,
                    m->job == FV_HEAD_CLASSIFY ? k->problem_type : FV_PROBLEM_SINGLE);
}

const fv_family fv__family_bert = {
    .type = "bert",
    .heads = heads,
    .config = fields,
    .rules = rules,
    .inputs = inputs,
    .config_size = sizeof(config),
    .size = sizeof(bert),
    .check = check,
    .declare = declare,
    .longest = longest,
    .load = load,
    .ready = ready,
    .pack = pack,
    .forward = forward,
};
