/* albert.c - ALBERT: BERT with few parameters, as all layers of a group are one.
 *
 *     x = mapping(norm(words + types + positions));
 *     for each layer i: the inner layers of group floor(i * groups / layers), one after the other
 *
 * Embeddings have a width of their own, as ELECTRA's; here they are always mapped to the layers'.
 * Only what attention adds has dropout, not the feed-forward part.
 *
 * Paper: Lan et al. 2020 (arXiv:1909.11942). Its second task is the order of two segments (sop),
 * where BERT asks whether the second follows the first at all. Names are those of transformers'
 * AlbertModel: albert_layer_groups.G.albert_layers.I, with the norm of the feed-forward part
 * named full_layer_layer_norm. */
#include <stddef.h>
#include <stdio.h>

#include "model/bert.h"

static const fv_family_head heads[] = {
    {"AlbertModel", .job = FV_HEAD_BASE},
    {"AlbertForPreTraining", FV_HEAD_PRETRAINING, .base = "AlbertModel"},
    {"AlbertForMaskedLM", FV_HEAD_MASKED_LM, .base = "AlbertModel"},
    {"AlbertForSequenceClassification", FV_HEAD_CLASSIFY, .base = "AlbertModel"},
    {"AlbertForTokenClassification", FV_HEAD_TAG, .base = "AlbertModel"},
    {"AlbertForQuestionAnswering", FV_HEAD_ANSWER, .base = "AlbertModel"},
    {"AlbertForMultipleChoice", FV_HEAD_CHOICE, .base = "AlbertModel"},
    {0},
};

typedef struct config {
    fv__bert_config bert;
    int embedding_size, num_hidden_groups, inner_group_num;
} config;

enum { GELU_NEW = 4 }; /* of fv_act_words */

static const fv_field fields[] = {
    FV_INT(fv__bert_config, vocab_size, 1, 30000, 1 << 24, "tokens"),
    FV_INT(config, embedding_size, 1, 128, 1 << 16, "width of the embeddings"),
    FV_INT(config, num_hidden_groups, 1, 1, 256, "groups of layers with parameters of their own"),
    FV_INT(config, inner_group_num, 1, 1, 256, "layers that one step through a group runs"),
    FV_INT(fv__bert_config, max_position_embeddings, 1, 512, 1 << 20, "longest sequence"),
    FV_INT(fv__bert_config, pad_token_id, 0, 0, 1 << 24, "padding"),
    FV__ENCODER_FIELDS(4096, 12, 64, 16384, GELU_NEW, 0, 1e-12),
    FV__TYPES_FIELD,
    FV_FLOAT_KEY("classifier_dropout_prob", fv__bert_config, classifier_dropout, 0, 0.1, 0.99,
                 "before the classifier"),
    {0},
};

static const fv_key_rule rules[] = {
    {"position_embedding_type", "\"absolute\""},
    {"down_scale_factor", NULL}, /* these five stand in the first checkpoints and were never read */
    {"gap_size", NULL},
    {"net_structure_type", NULL},
    {"num_memory_blocks", NULL},
    {"layers_to_keep", NULL},
    {NULL, NULL},
};

static const fv_input inputs[] = {
    FV__ENCODER_INPUTS,
    {"token_type_ids", FV_I32, false},
    {"sentence_order_label", FV_I32, false},
    {"next_sentence_label", FV_I32, false}, /* the same, as BERT calls it */
    {0},
};

/* Parameters of all layers of a group are one set of blocks: twelve layers of albert-base are one
 * block used twelve times, and its gradient is the sum over them. */
typedef struct albert {
    config cfg;
    fv_head_job job;
    fv__bert_emb emb;
    fv_lin mapping;
    fv__bert_block *blocks;         /* inner_group_num of each group */
    fv_lin pooler, classifier, sop; /* sop: whether two segments stand in their order */
    fv__word_head masked;
} albert;

static fv_status check(const void *config_, fv_err *e)
{
    return fv__bert_check(&((const config *)config_)->bert, e);
}

/* Blocks that have parameters, which are fewer than the layers that are computed. */
static int n_blocks(const config *k) { return k->num_hidden_groups * k->inner_group_num; }

/* ---- parameters ---- */

/* Below `at`, "albert.encoder.albert_layer_groups.0.albert_layers.0". */
static void block_init(fv_params *p, fv__bert_block *b, const fv__bert_config *k, const char *at)
{
    fv_norm_opt norm = {.eps = k->layer_norm_eps};
    b->attn_dropout = k->hidden_dropout_prob;
    fv_lin_opt proj = {.std = k->initializer_range};
    fv_mha_init(p, &b->attn, k->hidden_size, k->num_attention_heads,
                (fv_mha_opt){.in = proj, .out = proj, .names = "query key value dense"},
                "%s.attention", at);
    b->attn.dropout = k->attention_probs_dropout_prob;
    fv_norm_init(p, &b->attn_norm, k->hidden_size, norm, "%s.attention.LayerNorm", at);
    fv_mlp_init(p, &b->mlp, k->hidden_size, k->intermediate_size,
                (fv_mlp_opt){.act = fv_act_of(k->hidden_act),
                             .lin = {.std = k->initializer_range},
                             .names = "ffn ffn_output"},
                "%s", at);
    fv_norm_init(p, &b->mlp_norm, k->hidden_size, norm, "%s.full_layer_layer_norm", at);
}

/* A pooler is declared where a head reads it: not for words, tags and spans. */
static void declare_head(albert *m, fv_params *p)
{
    const fv__bert_config *k = &m->cfg.bert;
    fv_lin_opt lin = {.std = k->initializer_range};
    int64_t D = k->hidden_size;
    if (m->job != FV_HEAD_MASKED_LM && m->job != FV_HEAD_TAG && m->job != FV_HEAD_ANSWER)
        fv_lin_init(p, &m->pooler, D, D, lin, "%spooler", m->job == FV_HEAD_BASE ? "" : "albert.");
    if (m->job == FV_HEAD_PRETRAINING || m->job == FV_HEAD_MASKED_LM)
        fv__word_head_init(p, &m->masked, k, m->emb.words.table, "predictions.dense",
                           "predictions.LayerNorm", "predictions");
    if (m->job == FV_HEAD_PRETRAINING)
        fv_lin_init(p, &m->sop, D, k->num_labels, lin, "sop_classifier.classifier");
    if (m->job == FV_HEAD_CLASSIFY || m->job == FV_HEAD_TAG)
        fv_lin_init(p, &m->classifier, D, k->num_labels, lin, "classifier");
    if (m->job == FV_HEAD_CHOICE) fv_lin_init(p, &m->classifier, D, 1, lin, "classifier");
    if (m->job == FV_HEAD_ANSWER) fv_lin_init(p, &m->classifier, D, 2, lin, "qa_outputs");
}

/* Embeddings of embedding_size are mapped to the layers' width once, in front of the first. */
static void declare(void *self, const fv_setup *s)
{
    albert *m = self;
    fv_params *p = s->params;
    m->cfg = *(const config *)s->config;
    m->job = s->head->job;
    const fv__bert_config *k = &m->cfg.bert;
    const char *at = m->job == FV_HEAD_BASE ? "" : "albert.";
    fv__bert_emb_init(p, &m->emb, k, m->cfg.embedding_size, at);
    fv_lin_init(p, &m->mapping, m->cfg.embedding_size, k->hidden_size,
                (fv_lin_opt){.std = k->initializer_range}, "%sencoder.embedding_hidden_mapping_in",
                at);
    m->blocks = fv_params_scratch(p, (size_t)n_blocks(&m->cfg) * sizeof *m->blocks);
    for (int i = 0; m->blocks && i < n_blocks(&m->cfg); i++) {
        char path[96];
        snprintf(path, sizeof path, "%sencoder.albert_layer_groups.%d.albert_layers.%d", at,
                 i / m->cfg.inner_group_num, i % m->cfg.inner_group_num);
        block_init(p, &m->blocks[i], k, path);
    }
    declare_head(m, p);
}

static fv_load_opt load(const void *self)
{
    static const fv_tie ties[] = {{"predictions.decoder.bias", "predictions.bias"},
                                  {"predictions.decoder.weight",
                                   "albert.embeddings.word_embeddings.weight"},
                                  {NULL, NULL}};
    static const fv_tie bias_alone[] = {{"predictions.decoder.bias", "predictions.bias"},
                                        {NULL, NULL}};
    /* Heads a checkpoint was pre-trained with and this one does not use. */
    static const char *const unused[] = {"*embeddings.position_ids", "*pooler.*",
                                         "sop_classifier.*", NULL};
    static const char *const all[] = {"*embeddings.position_ids",
                                      "*pooler.*",
                                      "predictions.*",
                                      "sop_classifier.*",
                                      "classifier.*",
                                      "qa_outputs.*",
                                      NULL};
    static const char *const pooler[] = {"pooler.*", NULL};
    const albert *m = self;
    bool words = m->job == FV_HEAD_PRETRAINING || m->job == FV_HEAD_MASKED_LM;
    return (fv_load_opt){.prefix = "albert.",
                         .ties = m->cfg.bert.tie_word_embeddings ? ties : bias_alone,
                         .fresh = pooler,
                         .ignore = words ? unused : all};
}

static fv_status ready(void *self, fv_params *p, fv_err *e)
{
    albert *m = self;
    return m->job == FV_HEAD_BASE ? fv__bert_pooler_ready(p, &m->pooler, e) : FV_OK;
}

/* Classifiers stay as they are: they are small. */
static void pack(void *self, fv_params *p, fv_dtype dtype)
{
    albert *m = self;
    fv_lin_pack(p, &m->mapping, dtype);
    fv__bert_pack(p, m->blocks, n_blocks(&m->cfg), dtype);
    fv__word_head_pack(p, &m->masked, dtype);
}

static int64_t longest(const void *self)
{
    return ((const albert *)self)->cfg.bert.max_position_embeddings;
}

/* ---- forward ---- */

/* The group of layer i, in the floating-point arithmetic that published models use. */
static int group_of(const config *k, int i)
{
    double layers_per_group = (double)k->bert.num_hidden_layers / (double)k->num_hidden_groups;
    int group = (int)((double)i / layers_per_group);
    return group < k->num_hidden_groups ? group : k->num_hidden_groups - 1;
}

/* hidden_states has an entry for each layer that is computed, not for each that has parameters. */
static fv_tensor *encode(fv_ctx *c, const albert *m, const fv_items *in)
{
    const config *k = &m->cfg;
    fv__layers_arg arg = {.self = fv_masked(c, fv_items_get(in, "attention_mask"))};
    fv_tensor *x = fv__bert_embed(c, &m->emb, &k->bert, in, "albert");
    x = fv_lin_fwd(c, &m->mapping, x);
    for (int i = 0; i < k->bert.num_hidden_layers; i++)
        x = fv__layers_run(c, fv__bert_block_fwd, m->blocks + group_of(k, i) * k->inner_group_num,
                           sizeof *m->blocks, k->inner_group_num, x, arg, "hidden_states");
    fv_tap(c, "hidden", "hidden_states", x);
    return x;
}

/* The second task's label is called sentence_order_label; BERT's name for it is taken too. */
static void forward(fv_ctx *c, const void *self, const fv_items *in, fv_items *out)
{
    const albert *m = self;
    const fv__bert_config *k = &m->cfg.bert;
    fv_items flat = fv__flat_choices(c, in, m->job);
    fv_tensor *pooled = NULL, *x = encode(c, m, &flat);
    fv_tensor *order = fv_items_get(in, "sentence_order_label");
    if (!order) order = fv_items_get(in, "next_sentence_label");
    if (m->pooler.w) pooled = fv_lin_act(c, &m->pooler, fv_first(c, x), FV_TANH);
    if (m->job == FV_HEAD_PRETRAINING) {
        pooled = fv_dropout(c, pooled, k->classifier_dropout);
        fv__put_pretraining(c, in, out, fv__word_head_fwd(c, &m->masked, x),
                            fv_lin_fwd(c, &m->sop, pooled), "sop_logits", order);
        return;
    }
    fv__put_encoded(c, in, out,
                    (fv__encoder_head){m->job, &m->classifier, &m->masked,
                                       fv__bert_dropout(k, m->job), k->problem_type},
                    x, pooled);
}

const fv_family fv__family_albert = {
    FV__FAMILY_PARTS(albert),
    .type = "albert",
    .longest = longest,
    .ready = ready,
};
