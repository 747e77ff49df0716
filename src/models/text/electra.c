/* electra.c - ELECTRA: BERT's layers on embeddings of a width of their own, and two heads to train
 * them with.
 *
 *     x = project(norm(words + types + positions));   layers as BERT's
 *
 * The generator fills masks; the discriminator tells of every token whether the generator put it
 * there, by the sign of one score.  Its loss is the binary cross-entropy over what is no padding.
 * Where both widths are equal there is no projection.
 *
 * Paper: Clark et al. 2020 (arXiv:2003.10555). Published generators and discriminators are files
 * apart, each opened here as a model of its own. Names are those of transformers' ElectraModel. */
#include <stddef.h>

#include "model/bert.h"

static const fv_family_head heads[] = {
    {"ElectraModel", .job = FV_HEAD_BASE},
    {"ElectraForPreTraining", FV_HEAD_REPLACED, .base = "ElectraModel"},
    {"ElectraForMaskedLM", FV_HEAD_MASKED_LM, .base = "ElectraModel"},
    {"ElectraForSequenceClassification", FV_HEAD_CLASSIFY, .base = "ElectraModel"},
    {"ElectraForTokenClassification", FV_HEAD_TAG, .base = "ElectraModel"},
    {"ElectraForQuestionAnswering", FV_HEAD_ANSWER, .base = "ElectraModel"},
    {0},
};

typedef struct config {
    fv__bert_config bert;
    int embedding_size;
} config;

static const fv_field fields[] = {
    FV_INT(fv__bert_config, vocab_size, 1, 30522, 1 << 24, "tokens"),
    FV_INT(config, embedding_size, 1, 128, 1 << 16, "width of the embeddings"),
    FV_INT(fv__bert_config, max_position_embeddings, 1, 512, 1 << 20, "longest sequence"),
    FV_INT(fv__bert_config, pad_token_id, 0, 0, 1 << 24, "padding"),
    FV__ENCODER_FIELDS(256, 12, 4, 1024, 0, 0.1, 1e-12),
    FV__BERT_FIELDS,
    {0},
};

static const fv_key_rule rules[] = {
    {"position_embedding_type", "\"absolute\""},
    {"summary_type", NULL}, /* these four belong to the head for multiple choice */
    {"summary_use_proj", NULL},
    {"summary_activation", NULL},
    {"summary_last_dropout", NULL},
    {NULL, NULL},
};

static const fv_input inputs[] = {FV__ENCODER_INPUTS, {"token_type_ids", FV_I32, false}, {0}};

typedef struct electra {
    config cfg;
    fv_head_job job;
    fv__bert_emb emb;
    fv_lin project; /* embeddings to layers; none where both are of one width */
    fv__bert_block *blocks;
    fv_lin dense, classifier; /* dense: the first layer of a classifier and of the discriminator */
    fv__word_head masked;
} electra;

static fv_status check(const void *config_, fv_err *e)
{
    return fv__bert_check(&((const config *)config_)->bert, e);
}

/* ---- parameters ---- */

/* The discriminator asks of each token whether it was replaced; the generator is a small masked
 * language model. */
static void declare_head(electra *m, fv_params *p)
{
    const fv__bert_config *k = &m->cfg.bert;
    fv_lin_opt lin = {.std = k->initializer_range};
    int64_t D = k->hidden_size;
    switch (m->job) {
    case FV_HEAD_REPLACED:
        fv_lin_init(p, &m->dense, D, D, lin, "discriminator_predictions.dense");
        fv_lin_init(p, &m->classifier, D, 1, lin, "discriminator_predictions.dense_prediction");
        break;
    case FV_HEAD_MASKED_LM:
        fv__word_head_plain(p, &m->masked, k, m->emb.words.table, "generator_predictions.dense",
                            "generator_predictions.LayerNorm", "generator_lm_head");
        m->masked.act = FV_GELU; /* always by erf, whatever hidden_act is */
        break;
    case FV_HEAD_CLASSIFY: fv__two_layers_init(p, &m->dense, &m->classifier, k); break;
    case FV_HEAD_TAG: fv_lin_init(p, &m->classifier, D, k->num_labels, lin, "classifier"); break;
    case FV_HEAD_ANSWER: fv_lin_init(p, &m->classifier, D, 2, lin, "qa_outputs"); break;
    default: break;
    }
}

/* The map from the embeddings' width to the layers' is there only where they differ. */
static void declare(void *self, const fv_setup *s)
{
    electra *m = self;
    fv_params *p = s->params;
    m->cfg = *(const config *)s->config;
    m->job = s->head->job;
    const fv__bert_config *k = &m->cfg.bert;
    const char *at = m->job == FV_HEAD_BASE ? "" : "electra.";
    fv__bert_emb_init(p, &m->emb, k, m->cfg.embedding_size, at);
    if (m->cfg.embedding_size != k->hidden_size)
        fv_lin_init(p, &m->project, m->cfg.embedding_size, k->hidden_size,
                    (fv_lin_opt){.std = k->initializer_range}, "%sembeddings_project", at);
    m->blocks = fv__bert_blocks(p, k, at);
    declare_head(m, p);
}

static fv_load_opt load(const void *self)
{
    static const fv_tie ties[] = {{"generator_lm_head.weight",
                                   "electra.embeddings.word_embeddings.weight"},
                                  {NULL, NULL}};
    /* Heads a checkpoint was pre-trained with and this one does not use. */
    static const char *const own[] = {"*embeddings.position_ids", NULL};
    static const char *const others[] = {"*embeddings.position_ids",
                                         "discriminator_predictions.*",
                                         "generator_predictions.*",
                                         "generator_lm_head.*",
                                         "classifier.*",
                                         "qa_outputs.*",
                                         NULL};
    const electra *m = self;
    bool pretrained = m->job == FV_HEAD_MASKED_LM || m->job == FV_HEAD_REPLACED;
    return (fv_load_opt){.prefix = "electra.",
                         .ties = m->cfg.bert.tie_word_embeddings ? ties : NULL,
                         .ignore = pretrained ? own : others};
}

/* The last layer of a classifier stays as it is: it is small. */
static void pack(void *self, fv_params *p, fv_dtype dtype)
{
    electra *m = self;
    fv__bert_pack(p, m->blocks, m->cfg.bert.num_hidden_layers, dtype);
    if (m->project.w) fv_lin_pack(p, &m->project, dtype);
    if (m->dense.w) fv_lin_pack(p, &m->dense, dtype);
    fv__word_head_pack(p, &m->masked, dtype);
}

static int64_t longest(const void *self)
{
    return ((const electra *)self)->cfg.bert.max_position_embeddings;
}

/* ---- forward ---- */

/* A score z for each token, (B,T).  The binary cross-entropy of z is the cross-entropy of (0, z),
 * so the loss over labels that count is that of two classes; labels of padding count for nothing.
 * */
static void tell_replaced(fv_ctx *c, const electra *m, const fv_items *in, fv_items *out,
                          fv_tensor *x)
{
    fv_tensor *mask = fv_items_get(in, "attention_mask"), *labels = fv_items_get(in, "labels");
    x = fv_lin_act(c, &m->dense, x, fv_act_of(m->cfg.bert.hidden_act));
    fv_tensor *z = fv_lin_fwd(c, &m->classifier, x); /* (B,T,1) */
    if (!z) return;
    fv_shape rows = FV_SHAPE(fv_dim(z, 0), fv_dim(z, 1));
    fv_items_put(out, "logits", fv_reshape(c, z, rows));
    if (!labels) return;
    fv_tensor *of = fv_cross_entropy(c, fv_pad(c, z, -1, 1, 0, 0), labels,
                                     (fv_ce_opt){.ignore = -100});
    if (mask && mask->shape.n == 2) of = fv_masked_fill(c, fv_reshape(c, of, rows), mask, 0);
    fv_items_put(out, "loss", fv__per_label(c, fv_sum_all(c, of), in));
}

static void forward(fv_ctx *c, const void *self, const fv_items *in, fv_items *out)
{
    const electra *m = self;
    const fv__bert_config *k = &m->cfg.bert;
    float dropout = fv__bert_dropout(k, m->job);
    fv_tensor *pooled = NULL, *x = fv__bert_embed(c, &m->emb, k, in, "electra");
    if (m->project.w) x = fv_lin_fwd(c, &m->project, x);
    x = fv__bert_encode(c, m->blocks, k->num_hidden_layers, x, fv_items_get(in, "attention_mask"));
    if (m->job == FV_HEAD_REPLACED) {
        tell_replaced(c, m, in, out, x);
        return;
    }
    if (m->job == FV_HEAD_CLASSIFY)
        pooled = fv_lin_act(c, &m->dense, fv_dropout(c, fv_first(c, x), dropout), FV_GELU);
    fv__put_encoded(c, in, out,
                    (fv__encoder_head){m->job, &m->classifier, &m->masked, dropout,
                                       k->problem_type},
                    x, pooled);
}

const fv_family fv__family_electra = {
    FV__FAMILY_PARTS(electra),
    .type = "electra",
    .longest = longest,
};
