/* roberta.c - RoBERTa, XLM-R and CamemBERT: BERT's encoder without sentence pairs, positions
 * counted behind the padding id.
 *
 *     position of a token = pad_token_id + how many that are no padding stand up to it; padding has
 *     pad_token_id
 *
 * The masked-word head and the two-layer classifier have names of their own.
 *
 * Papers: Liu et al. 2019 (arXiv:1907.11692), Conneau et al. 2020 (arXiv:1911.02116), Martin et
 * al. 2020 (arXiv:1911.03894). All three model types have the names of transformers'
 * RobertaModel, whatever the class is called. */
#include <stddef.h>

#include "model/bert.h"

static const fv_family_head heads[] = {
    {"RobertaModel", FV_HEAD_BASE, .type = "roberta"},
    {"RobertaForMaskedLM", FV_HEAD_MASKED_LM, .base = "RobertaModel", .type = "roberta"},
    {"RobertaForSequenceClassification", FV_HEAD_CLASSIFY, .base = "RobertaModel",
     .type = "roberta"},
    {"RobertaForTokenClassification", FV_HEAD_TAG, .base = "RobertaModel", .type = "roberta"},
    {"RobertaForQuestionAnswering", FV_HEAD_ANSWER, .base = "RobertaModel", .type = "roberta"},
    {"RobertaForMultipleChoice", FV_HEAD_CHOICE, .base = "RobertaModel", .type = "roberta"},
    {"XLMRobertaModel", FV_HEAD_BASE, .type = "xlm-roberta"},
    {"XLMRobertaForMaskedLM", FV_HEAD_MASKED_LM, .base = "XLMRobertaModel", .type = "xlm-roberta"},
    {"XLMRobertaForSequenceClassification", FV_HEAD_CLASSIFY, .base = "XLMRobertaModel",
     .type = "xlm-roberta"},
    {"XLMRobertaForTokenClassification", FV_HEAD_TAG, .base = "XLMRobertaModel",
     .type = "xlm-roberta"},
    {"XLMRobertaForQuestionAnswering", FV_HEAD_ANSWER, .base = "XLMRobertaModel",
     .type = "xlm-roberta"},
    {"XLMRobertaForMultipleChoice", FV_HEAD_CHOICE, .base = "XLMRobertaModel",
     .type = "xlm-roberta"},
    {"CamembertModel", FV_HEAD_BASE, .type = "camembert"},
    {"CamembertForMaskedLM", FV_HEAD_MASKED_LM, .base = "CamembertModel", .type = "camembert"},
    {"CamembertForSequenceClassification", FV_HEAD_CLASSIFY, .base = "CamembertModel",
     .type = "camembert"},
    {"CamembertForTokenClassification", FV_HEAD_TAG, .base = "CamembertModel", .type = "camembert"},
    {"CamembertForQuestionAnswering", FV_HEAD_ANSWER, .base = "CamembertModel",
     .type = "camembert"},
    {"CamembertForMultipleChoice", FV_HEAD_CHOICE, .base = "CamembertModel", .type = "camembert"},
    {0},
};
/* trained on more languages; else the same */
static const char *const others[] = {"xlm-roberta", "camembert", NULL};

typedef fv__bert_config config;

static const fv_field fields[] = {
    FV_INT(config, vocab_size, 1, 50265, 1 << 24, "tokens"),
    FV_INT(config, max_position_embeddings, 1, 512, 1 << 20,
           "rows of the position table: the longest sequence and the padding id"),
    FV_INT(config, pad_token_id, 0, 1, 1 << 24, "padding"),
    FV__ENCODER_FIELDS(768, 12, 12, 3072, 0, 0.1, 1e-12),
    FV__BERT_FIELDS,
    {0},
};

static const fv_key_rule rules[] = {
    {"position_embedding_type", "\"absolute\""},
    {NULL, NULL},
};

static const fv_input inputs[] = {FV__ENCODER_INPUTS, {"token_type_ids", FV_I32, false}, {0}};

typedef struct roberta {
    config cfg;
    fv_head_job job;
    fv_emb words, types, positions;
    fv_norm norm;
    fv__bert_block *blocks;
    fv_lin dense, classifier; /* dense: the pooler, or the first layer of a classifier */
    fv__word_head masked;
} roberta;

/* Positions begin behind the padding id, so it takes rows of the position table: 2 of 514 in
 * published files. */
static fv_status check(const void *config_, fv_err *e)
{
    const config *k = config_;
    if (k->pad_token_id >= k->vocab_size || k->pad_token_id + 1 >= k->max_position_embeddings)
        return fv_fail(e, FV_EFORMAT,
                       "pad_token_id %d does not fit vocab_size %d and max_position_embeddings %d",
                       k->pad_token_id, k->vocab_size, k->max_position_embeddings);
    return fv__bert_check(k, e);
}

/* ---- parameters ---- */

/* The classifier of sequences is two layers on the first token (classifier.dense, out_proj), where
 * BERT has pooler and classifier. */
static void declare_head(roberta *m, fv_params *p)
{
    const config *k = &m->cfg;
    fv_lin_opt lin = {.std = k->initializer_range};
    int64_t D = k->hidden_size;
    switch (m->job) {
    case FV_HEAD_BASE: fv_lin_init(p, &m->dense, D, D, lin, "pooler.dense"); break;
    case FV_HEAD_CHOICE:
        fv_lin_init(p, &m->dense, D, D, lin, "roberta.pooler.dense");
        fv_lin_init(p, &m->classifier, D, 1, lin, "classifier");
        break;
    case FV_HEAD_MASKED_LM:
        fv__word_head_init(p, &m->masked, k, m->words.table, "lm_head.dense", "lm_head.layer_norm",
                           "lm_head");
        m->masked.act = FV_GELU; /* always by erf, whatever hidden_act is */
        break;
    case FV_HEAD_CLASSIFY: fv__two_layers_init(p, &m->dense, &m->classifier, k); break;
    case FV_HEAD_TAG: fv_lin_init(p, &m->classifier, D, k->num_labels, lin, "classifier"); break;
    default: fv_lin_init(p, &m->classifier, D, 2, lin, "qa_outputs"); break;
    }
}

/* The two rows in front of the first position are the padding's and one that nothing uses. */
static void declare(void *self, const fv_setup *s)
{
    roberta *m = self;
    fv_params *p = s->params;
    m->cfg = *(const config *)s->config;
    m->job = s->head->job;
    const config *k = &m->cfg;
    const char *at = m->job == FV_HEAD_BASE ? "" : "roberta.";
    float std = k->initializer_range;
    fv_emb_init(p, &m->words, k->vocab_size, k->hidden_size, std, "%sembeddings.word_embeddings",
                at);
    fv_emb_init(p, &m->positions, k->max_position_embeddings, k->hidden_size, std,
                "%sembeddings.position_embeddings", at);
    fv_emb_init(p, &m->types, k->type_vocab_size, k->hidden_size, std,
                "%sembeddings.token_type_embeddings", at);
    m->words.skip = m->positions.skip = k->pad_token_id; /* positions count on from it */
    fv_norm_init(p, &m->norm, k->hidden_size, (fv_norm_opt){.eps = k->layer_norm_eps},
                 "%sembeddings.LayerNorm", at);
    m->blocks = fv__bert_blocks(p, k, at);
    declare_head(m, p);
}

/* The bias of the scores stands under two names in files. */
static fv_load_opt load(const void *self)
{
    static const fv_tie ties[] = {{"lm_head.decoder.bias", "lm_head.bias"},
                                  {"lm_head.decoder.weight",
                                   "roberta.embeddings.word_embeddings.weight"},
                                  {NULL, NULL}};
    static const fv_tie bias_alone[] = {{"lm_head.decoder.bias", "lm_head.bias"}, {NULL, NULL}};
    const roberta *m = self;
    /* of the bare encoder, which some leave out */
    static const char *const pooler[] = {"pooler.dense.*", NULL};
    return (fv_load_opt){.prefix = "roberta.",
                         .ties = m->cfg.tie_word_embeddings ? ties : bias_alone,
                         .ignore = m->job == FV_HEAD_MASKED_LM ? fv__roberta_unread_words
                                                               : fv__roberta_unread,
                         .fresh = pooler};
}

static fv_status ready(void *self, fv_params *p, fv_err *e)
{
    roberta *m = self;
    return m->job == FV_HEAD_BASE ? fv__bert_pooler_ready(p, &m->dense, e) : FV_OK;
}

/* The last layer of a classifier stays as it is: it is small. */
static void pack(void *self, fv_params *p, fv_dtype dtype)
{
    roberta *m = self;
    fv__bert_pack(p, m->blocks, m->cfg.num_hidden_layers, dtype);
    if (m->dense.w) fv_lin_pack(p, &m->dense, dtype);
    fv__word_head_pack(p, &m->masked, dtype);
}

/* Tokens that have a position: 512 of 514 rows. */
static int64_t longest(const void *self)
{
    const config *k = &((const roberta *)self)->cfg;
    return k->max_position_embeddings - k->pad_token_id - 1;
}

/* ---- forward ---- */

/* (B,T) -> (B,T,D).  Positions are counted from the ids, so padding in front of a text moves
 * nothing. */
static fv_tensor *embed(fv_ctx *c, const roberta *m, const fv_items *in)
{
    const config *k = &m->cfg;
    fv_tensor *ids = fv_items_get(in, "input_ids"), *types = fv_items_get(in, "token_type_ids");
    fv_tensor *position_ids = fv_items_get(in, "position_ids");
    if (!position_ids && fv_dim(ids, 1) > longest(m))
        return fv_raise(
            c, FV_ESHAPE,
            "roberta: input_ids %s, but max_position_embeddings %d leaves room for %lld tokens",
            fv_desc(ids).s, k->max_position_embeddings, (long long)longest(m));
    if (!position_ids) position_ids = fv_positions_unpadded(c, ids, k->pad_token_id);
    if (!position_ids) return NULL;
    fv_some_rows of[] = {
        {m->words.table, .ids = ids, .skip = m->words.skip},
        {m->types.table, .ids = types, .count = 1, .skip = -1},
        {m->positions.table, .ids = position_ids, .skip = m->positions.skip},
    };
    fv_tensor *x = fv__embed(c, of, 3, m->norm.gain, m->norm.bias, m->norm.eps);
    return fv_dropout(c, x, k->hidden_dropout_prob);
}

/* What a classifier of sequences reads: the pooler's output or, under names of its own, the same of
 * a dense layer behind dropout. */
static fv_tensor *pool(fv_ctx *c, const roberta *m, fv_tensor *x)
{
    x = fv_first(c, x);
    if (m->job == FV_HEAD_CLASSIFY) x = fv_dropout(c, x, fv__bert_dropout(&m->cfg, m->job));
    return fv_lin_act(c, &m->dense, x, FV_TANH);
}

/* A choice among texts is a batch of B * choices texts. */
static void forward(fv_ctx *c, const void *self, const fv_items *in, fv_items *out)
{
    const roberta *m = self;
    const config *k = &m->cfg;
    fv_items flat = fv__flat_choices(c, in, m->job);
    fv_tensor *x = fv__bert_encode(c, m->blocks, k->num_hidden_layers, embed(c, m, &flat),
                                   fv_items_get(&flat, "attention_mask"));
    fv__put_encoded(c, in, out,
                    (fv__encoder_head){m->job, &m->classifier, &m->masked,
                                       fv__bert_dropout(k, m->job), k->problem_type},
                    x, m->dense.w ? pool(c, m, x) : NULL);
}

const fv_family fv__family_roberta = {
    FV__FAMILY_PARTS(roberta), .type = "roberta", .also = others,
    .longest = longest,        .ready = ready,
};
