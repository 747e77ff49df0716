/* bert.c - BERT: an encoder that sees both sides, with the heads it is pre-trained and fine-tuned
 * with.
 *
 *     x = norm(words + types + positions);   layers, each norm(x + attention(x)), norm(x + mlp(x))
 *
 * The pooler is a dense layer with tanh on the first token; the masked-word head scores words with
 * the input table.
 *
 * Paper: Devlin et al. 2019 (arXiv:1810.04805). Its variants differ in little - RoBERTa counts
 * positions otherwise, ELECTRA and ALBERT have embeddings of another width, MPNet a bias by
 * distance - and share model/bert.h. Names are those of transformers' BertModel; files of the
 * first release call the norms' parameters gamma and beta, which load accepts. */
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
    {"BertForMultipleChoice", FV_HEAD_CHOICE, .base = "BertModel"},
    {0},
};

typedef fv__bert_config config;

static const fv_field fields[] = {
    FV_INT(config, vocab_size, 1, 30522, 1 << 24, "tokens"),
    FV_INT(config, max_position_embeddings, 1, 512, 1 << 20, "longest sequence"),
    FV_INT(config, pad_token_id, 0, 0, 1 << 24, "padding"),
    FV__ENCODER_FIELDS(768, 12, 12, 3072, 0, 0.1, 1e-12),
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
    FV__ENCODER_INPUTS,
    {"token_type_ids", FV_I32, false},
    {"next_sentence_label", FV_I32, false},
    {0},
};

typedef struct bert {
    config cfg;
    fv_head_job job;
    fv__bert_emb emb;
    fv__bert_block *blocks;
    fv_lin pooler, classifier, relation; /* relation: is the second sentence the next one */
    fv__word_head masked;
} bert;

static fv_status check(const void *config_, fv_err *e) { return fv__bert_check(config_, e); }

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
        fv__word_head_init(p, &m->masked, k, m->emb.words.table, "cls.predictions.transform.dense",
                           "cls.predictions.transform.LayerNorm", "cls.predictions");
    if (m->job == FV_HEAD_PRETRAINING || m->job == FV_HEAD_NEXT_SENTENCE)
        fv_lin_init(p, &m->relation, D, 2, lin, "cls.seq_relationship");
    if (m->job == FV_HEAD_CLASSIFY || m->job == FV_HEAD_TAG)
        fv_lin_init(p, &m->classifier, D, k->num_labels, lin, "classifier");
    if (m->job == FV_HEAD_CHOICE) fv_lin_init(p, &m->classifier, D, 1, lin, "classifier");
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
    fv__bert_emb_init(p, &m->emb, k, k->hidden_size, at);
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
    fv__bert_pack(p, m->blocks, m->cfg.num_hidden_layers, dtype);
    fv__word_head_pack(p, &m->masked, dtype);
}

static int64_t longest(const void *self)
{
    return ((const bert *)self)->cfg.max_position_embeddings;
}

/* ---- forward ---- */

static void forward(fv_ctx *c, const void *self, const fv_items *in, fv_items *out)
{
    const bert *m = self;
    const config *k = &m->cfg;
    fv_items flat = fv__flat_choices(c, in, m->job);
    fv_tensor *pooled = NULL, *x = fv__bert_embed(c, &m->emb, k, &flat, "bert");
    x = fv__bert_encode(c, m->blocks, k->num_hidden_layers, x,
                        fv_items_get(&flat, "attention_mask"));
    if (m->pooler.w) pooled = fv_lin_act(c, &m->pooler, fv_first(c, x), FV_TANH);
    if (m->job == FV_HEAD_PRETRAINING)
        fv__put_pretraining(c, in, out, fv__word_head_fwd(c, &m->masked, x),
                            fv_lin_fwd(c, &m->relation, pooled), "seq_relationship_logits",
                            fv_items_get(in, "next_sentence_label"));
    else if (m->job == FV_HEAD_NEXT_SENTENCE)
        fv__put_classes(c, in, out, fv_lin_fwd(c, &m->relation, pooled), FV_PROBLEM_SINGLE);
    else
        fv__put_encoded(c, in, out,
                        (fv__encoder_head){m->job, &m->classifier, &m->masked,
                                           fv__bert_dropout(k, m->job), k->problem_type},
                        x, pooled);
}

const fv_family fv__family_bert = {
    FV__FAMILY_PARTS(bert),
    .type = "bert",
    .longest = longest,
    .ready = ready,
};
