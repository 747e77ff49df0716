/* deberta_v2.c - DeBERTa v2 and v3: BERT's layers with disentangled attention.
 *
 *     score_ij = (q_i.k_j + q_i.pk_d + k_j.pq_d) / sqrt(W (1 + terms by distance)),  d = i - j
 *
 * pk and pq are keys and queries made of one table of distances, shared by all layers: "c2p" and
 * "p2c". Distances beyond half of position_buckets fall into buckets that widen like a logarithm.
 *
 * Both terms by distance are products of all queries (keys) with all distances, shifted so that
 * column j of row i is the distance between them, and enter the operator as its bias: gradients
 * come back the same way, and exact weights are recomputed from it.  Gathering columns of the
 * products with the 2S rows of the table, as the published code does, would need an op of its own
 * and saves only where T > S.
 *
 * A padded query attends to all keys alike, as published: its scores are zero, and padding is taken
 * from the other rows by the bias.  deberta-v2-xlarge and larger have a convolution beside the
 * first layer.
 *
 * Papers: He et al. 2021 (arXiv:2006.03654) and, of v3, arXiv:2111.09543. Names are those of
 * transformers' DebertaV2Model; the masked-word head has BERT's names where `legacy` is true,
 * and of its own otherwise. */
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "model/bert.h"
#include "nn/part.h"

#define FAR_BELOW (-1e30f) /* a score whose weight is zero */

static const fv_family_head heads[] = {
    {"DebertaV2Model", .job = FV_HEAD_BASE},
    {"DebertaV2ForMaskedLM", FV_HEAD_MASKED_LM, .base = "DebertaV2Model"},
    {"DebertaV2ForSequenceClassification", FV_HEAD_CLASSIFY, .base = "DebertaV2Model"},
    {"DebertaV2ForTokenClassification", FV_HEAD_TAG, .base = "DebertaV2Model"},
    {"DebertaV2ForQuestionAnswering", FV_HEAD_ANSWER, .base = "DebertaV2Model"},
    {"DebertaV2ForMultipleChoice", FV_HEAD_CHOICE, .base = "DebertaV2Model"},
    {0},
};

typedef struct config {
    fv__bert_config bert;
    bool relative_attention, share_att_key, position_biased_input, legacy;
    int max_relative_positions, position_buckets, norm_rel_ebd, attention_head_size;
    int conv_kernel_size, conv_groups, conv_act, pooler_hidden_act;
    float pooler_dropout;
    char pos_att_type[64];
} config;

enum { NO_NORM, LAYER_NORM };
static const char *const rel_norms[] = {"none", "layer_norm", NULL};
enum { TANH = 8 }; /* of fv_act_words */

static const fv_field fields[] = {
    FV_INT(fv__bert_config, vocab_size, 1, 128100, 1 << 24, "tokens"),
    FV_INT(fv__bert_config, max_position_embeddings, 1, 512, 1 << 20, "longest sequence"),
    FV_INT(fv__bert_config, pad_token_id, 0, 0, 1 << 24, "padding"),
    FV__ENCODER_FIELDS(1536, 24, 24, 6144, 0, 0.1, 1e-7),
    FV_INT(fv__bert_config, type_vocab_size, 0, 0, 1 << 16, "kinds of token; 0: none"),
    FV_FLOAT_KEY("cls_dropout", fv__bert_config, classifier_dropout, 0, -1, 0.99,
                 "before the classifier of a sequence; not given: hidden_dropout_prob"),
    FV_BOOL(config, relative_attention, false, "scores by distance"),
    FV_WORDS(config, pos_att_type, "which: c2p, content to position; p2c, position to content"),
    FV_BOOL(config, share_att_key, false, "distances are projected by the weights of q and k"),
    FV_INT(config, max_relative_positions, -1, -1, 1 << 20,
           "farthest distance told apart; below 1: max_position_embeddings"),
    FV_INT(config, position_buckets, -1, -1, 1 << 20,
           "buckets of distances to either side; below 1: each distance is one"),
    FV_CHOICE(config, norm_rel_ebd, NO_NORM, rel_norms, "a norm on the table of distances"),
    FV_BOOL(config, position_biased_input, true, "positions are added to the embeddings too"),
    FV_INT(config, attention_head_size, 1, 0, 4096, "width of a head; not given: what heads leave"),
    FV_INT(config, conv_kernel_size, 0, 0, 1 << 10, "width of the convolution; 0: none"),
    FV_INT(config, conv_groups, 1, 1, 1 << 16, "its groups"),
    FV_CHOICE(config, conv_act, TANH, fv_act_words, "its activation"),
    FV_FLOAT(config, pooler_dropout, 0, 0, 0.99, "before the pooler"),
    FV_CHOICE(config, pooler_hidden_act, 0, fv_act_words, "of the pooler"),
    FV_BOOL(config, legacy, true, "the masked-word head has BERT's names"),
    {0},
};

static const fv_key_rule rules[] = {
    {"embedding_size", "=hidden_size"},
    {"pooler_hidden_size", "=hidden_size"},
    {"padding_idx", NULL},
    {NULL, NULL},
};

static const fv_input inputs[] = {FV__ENCODER_INPUTS, {"token_type_ids", FV_I32, false}, {0}};

typedef struct block {
    fv__bert_block base;
    fv_lin pos_key, pos_query; /* of distances; those of k and q where they are shared */
    const config *cfg;
} block;

typedef struct deberta {
    config cfg;
    fv_head_job job;
    fv__bert_emb emb; /* types and positions: where there are such */
    fv_tensor *rel;   /* (2S,D): the table of distances, or NULL */
    fv_norm rel_norm, conv_norm;
    fv_conv conv;
    block *blocks;
    fv_lin pooler, classifier;
    fv__word_head masked;
} deberta;

/* S: half of the table of distances has as many rows. */
static int span(const config *k) /* S */
{
    if (k->position_buckets > 0) return k->position_buckets;
    return k->max_relative_positions > 0 ? k->max_relative_positions
                                         : k->bert.max_position_embeddings;
}

/* Distances from there on share the last row. */
static int farthest(const config *k)
{
    return k->max_relative_positions > 0 ? k->max_relative_positions
                                         : k->bert.max_position_embeddings;
}

static bool has_c2p(const config *k) { return strstr(k->pos_att_type, "c2p") != NULL; }
static bool has_p2c(const config *k) { return strstr(k->pos_att_type, "p2c") != NULL; }

/* A convolution of even width would shorten the sequence, and buckets must leave room for a
 * logarithm. */
static fv_status check(const void *config_, fv_err *e)
{
    const config *k = config_;
    const fv__bert_config *b = &k->bert;
    if (k->attention_head_size && k->attention_head_size * b->num_attention_heads != b->hidden_size)
        return fv_fail(e, FV_EFORMAT, "attention_head_size %d times %d heads is not hidden_size %d",
                       k->attention_head_size, b->num_attention_heads, b->hidden_size);
    if (k->conv_kernel_size && k->conv_kernel_size % 2 == 0)
        return fv_fail(e, FV_EFORMAT, "conv_kernel_size %d is even: it would shorten a sequence",
                       k->conv_kernel_size);
    if (k->conv_kernel_size && b->hidden_size % k->conv_groups)
        return fv_fail(e, FV_EFORMAT, "conv_groups %d do not divide hidden_size %d", k->conv_groups,
                       b->hidden_size);
    if (k->relative_attention && k->position_buckets > 0 &&
        (k->position_buckets < 2 || farthest(k) - 1 <= k->position_buckets / 2))
        return fv_fail(e, FV_EFORMAT,
                       "position_buckets %d: half of them must be at least 1, and less than "
                       "max_relative_positions %d less 1",
                       k->position_buckets, farthest(k));
    return fv__bert_check(b, e);
}

/* ---- parameters ---- */

/* Below `at`, "deberta.encoder.layer.0". */
static void block_init(fv_params *p, block *l, const config *k, const char *at)
{
    const fv__bert_config *b = &k->bert;
    fv_lin_opt lin = {.std = b->initializer_range};
    int64_t D = b->hidden_size, W = D / b->num_attention_heads;
    l->cfg = k;
    l->base.attn_dropout = l->base.mlp_dropout = b->hidden_dropout_prob;
    fv_lin_opt proj = {.std = b->initializer_range};
    fv_mha_init(p, &l->base.attn, D, b->num_attention_heads,
                (fv_mha_opt){.in = proj,
                             .out = proj,
                             .names = "self.query_proj self.key_proj self.value_proj output.dense"},
                "%s.attention", at);
    l->base.attn.dropout = b->attention_probs_dropout_prob;
    l->base.attn.scale = 1 / sqrtf((float)(W * (1 + has_c2p(k) + has_p2c(k))));
    if (k->relative_attention && !k->share_att_key && has_c2p(k))
        fv_lin_init(p, &l->pos_key, D, D, lin, "%s.attention.self.pos_key_proj", at);
    if (k->relative_attention && !k->share_att_key && has_p2c(k))
        fv_lin_init(p, &l->pos_query, D, D, lin, "%s.attention.self.pos_query_proj", at);
    fv_norm_init(p, &l->base.attn_norm, D, (fv_norm_opt){.eps = b->layer_norm_eps},
                 "%s.attention.output.LayerNorm", at);
    fv__bert_mlp_init(p, &l->base, b, at);
}

/* Positions are added to the input only where position_biased_input says so; v3 has none there. */
static void declare_embeddings(deberta *m, fv_params *p, const char *at)
{
    const fv__bert_config *b = &m->cfg.bert;
    float std = b->initializer_range;
    int64_t D = b->hidden_size;
    fv_emb_init(p, &m->emb.words, b->vocab_size, D, std, "%sembeddings.word_embeddings", at);
    m->emb.words.skip = b->pad_token_id;
    if (m->cfg.position_biased_input)
        fv_pos_init(p, &m->emb.positions, b->max_position_embeddings, D, FV_POS_LEARNED, 0, std,
                    "%sembeddings.position_embeddings", at);
    if (b->type_vocab_size)
        fv_emb_init(p, &m->emb.types, b->type_vocab_size, D, std,
                    "%sembeddings.token_type_embeddings", at);
    fv_norm_init(p, &m->emb.norm, D, (fv_norm_opt){.eps = b->layer_norm_eps},
                 "%sembeddings.LayerNorm", at);
}

/* The table of distances has 2 S rows, its norm is an option, and the convolution stands beside the
 * first layer alone. */
static void declare_encoder(deberta *m, fv_params *p, const char *at)
{
    const config *k = &m->cfg;
    int64_t D = k->bert.hidden_size;
    fv_norm_opt norm = {.eps = k->bert.layer_norm_eps};
    m->blocks = fv_params_scratch(p, (size_t)k->bert.num_hidden_layers * sizeof *m->blocks);
    for (int i = 0; m->blocks && i < k->bert.num_hidden_layers; i++) {
        char path[64];
        snprintf(path, sizeof path, "%sencoder.layer.%d", at, i);
        block_init(p, &m->blocks[i], k, path);
    }
    if (k->relative_attention)
        m->rel = fv_param(p, fv__weight(k->bert.initializer_range), FV_SHAPE(2 * span(k), D),
                          "%sencoder.rel_embeddings.weight", at);
    if (k->norm_rel_ebd == LAYER_NORM)
        fv_norm_init(p, &m->rel_norm, D, norm, "%sencoder.LayerNorm", at);
    if (!k->conv_kernel_size) return;
    fv_conv_init(p, &m->conv, D, D, k->conv_kernel_size,
                 (fv_conv_layer_opt){.dims = 1,
                                     .conv = {.pad = (k->conv_kernel_size - 1) / 2,
                                              .groups = k->conv_groups},
                                     .std = k->bert.initializer_range},
                 "%sencoder.conv.conv", at);
    fv_norm_init(p, &m->conv_norm, D, norm, "%sencoder.conv.LayerNorm", at);
}

/* Two sets of names for one head: BERT's (legacy) and those of the authors' own code. */
static void declare_head(deberta *m, fv_params *p)
{
    fv__bert_config b = m->cfg.bert;
    fv_lin_opt lin = {.std = b.initializer_range};
    int64_t D = b.hidden_size;
    const char *const names[2][3] = {{"lm_predictions.lm_head.dense",
                                      "lm_predictions.lm_head.LayerNorm", "lm_predictions.lm_head"},
                                     {"cls.predictions.transform.dense",
                                      "cls.predictions.transform.LayerNorm", "cls.predictions"}};
    const char *const *of = names[m->cfg.legacy];
    if (!m->cfg.legacy) b.tie_word_embeddings = true; /* it has no weight of its own */
    if (m->job == FV_HEAD_MASKED_LM)
        fv__word_head_init(p, &m->masked, &b, m->emb.words.table, of[0], of[1], of[2]);
    if (m->job == FV_HEAD_CLASSIFY || m->job == FV_HEAD_CHOICE)
        fv_lin_init(p, &m->pooler, D, D, lin, "pooler.dense");
    if (m->job == FV_HEAD_CLASSIFY || m->job == FV_HEAD_TAG)
        fv_lin_init(p, &m->classifier, D, b.num_labels, lin, "classifier");
    if (m->job == FV_HEAD_CHOICE) fv_lin_init(p, &m->classifier, D, 1, lin, "classifier");
    if (m->job == FV_HEAD_ANSWER) fv_lin_init(p, &m->classifier, D, 2, lin, "qa_outputs");
}

static void declare(void *self, const fv_setup *s)
{
    deberta *m = self;
    m->cfg = *(const config *)s->config;
    m->job = s->head->job;
    const char *at = m->job == FV_HEAD_BASE ? "" : "deberta.";
    declare_embeddings(m, s->params, at);
    declare_encoder(m, s->params, at);
    declare_head(m, s->params);
}

static fv_load_opt load(const void *self)
{
    static const fv_tie ties[] = {{"cls.predictions.decoder.bias", "cls.predictions.bias"},
                                  {"cls.predictions.decoder.weight",
                                   "deberta.embeddings.word_embeddings.weight"},
                                  {NULL, NULL}};
    static const fv_tie bias_alone[] = {{"cls.predictions.decoder.bias", "cls.predictions.bias"},
                                        {NULL, NULL}};
    /* Heads of pre-training, and a table of positions that the configuration leaves unused. */
    static const char *const words[] = {"*embeddings.position_ids", "mask_predictions.*", NULL};
    static const char *const unplaced[] = {"*embeddings.position_embeddings.weight",
                                           "*embeddings.position_ids",
                                           "mask_predictions.*",
                                           "lm_predictions.*",
                                           "cls.*",
                                           "pooler.*",
                                           "classifier.*",
                                           "qa_outputs.*",
                                           NULL};
    const deberta *m = self;
    bool placed = m->cfg.position_biased_input;
    return (fv_load_opt){.prefix = "deberta.",
                         .ties = m->cfg.bert.tie_word_embeddings ? ties : bias_alone,
                         .ignore = m->job == FV_HEAD_MASKED_LM && placed ? words
                                   : placed                              ? unplaced + 1
                                                                         : unplaced};
}

/* q, k and v stay apart: distances go through the weights of q and k too. */
static void pack(void *self, fv_params *p, fv_dtype dtype)
{
    deberta *m = self;
    for (int i = 0; i < m->cfg.bert.num_hidden_layers; i++) {
        block *l = &m->blocks[i];
        fv_mha_pack(p, &l->base.attn, dtype, false);
        if (l->pos_key.w) fv_lin_pack(p, &l->pos_key, dtype);
        if (l->pos_query.w) fv_lin_pack(p, &l->pos_query, dtype);
        fv_mlp_pack(p, &l->base.mlp, dtype);
    }
    fv__word_head_pack(p, &m->masked, dtype);
}

static int64_t longest(const void *self)
{
    return ((const deberta *)self)->cfg.bert.max_position_embeddings;
}

/* ---- distances ---- */

typedef struct {
    int64_t T, span, buckets, farthest, mirrored;
} ruler;

/* The bucket of a distance, in the floating-point arithmetic of the published models: a distance on
 * an edge belongs where they put it. */
static int64_t bucket_of(const ruler *r, int64_t d)
{
    int64_t mid = r->buckets / 2, far = d < 0 ? -d : d;
    if (r->buckets <= 0 || far <= mid) return d;
    float steps = logf((float)far / (float)mid) /
                  logf((float)((double)(r->farthest - 1) / (double)mid)) * (float)(mid - 1);
    int64_t bucket = (int64_t)ceilf(steps) + mid;
    return d < 0 ? -bucket : bucket;
}

/* Rows of the table for the distances T-1, .., -(T-1), or the other way round where mirrored. */
static void rows_of(void *out, const void *user, int64_t from, int64_t n)
{
    const ruler *r = user;
    int32_t *y = out;
    for (int64_t i = from; i < from + n; i++) {
        int64_t d = r->mirrored ? i - (r->T - 1) : r->T - 1 - i, row = bucket_of(r, d) + r->span;
        *y++ = (int32_t)(row < 0 ? 0 : row < 2 * r->span ? row : 2 * r->span - 1);
    }
}

/* x (B,T,H*W) by each distance, scaled, (B,H,T,T): element i,j is x_i . pos[distance].  pos
 * (2S,H*W); mirrored: rows are keys and columns queries. */
static fv_tensor *by_distance(fv_ctx *c, const block *l, fv_tensor *x, fv_tensor *pos,
                              bool mirrored)
{
    const config *k = l->cfg;
    const fv_mha *a = &l->base.attn;
    if (!x || !pos) return NULL;
    int64_t B = fv_dim(x, 0), T = fv_dim(x, 1), L = 2 * T - 1, H = a->n_head, W = a->head;
    ruler r = {T, span(k), k->position_buckets, farthest(k), mirrored};
    fv_tensor *rows = fv__table(c, FV_I32, FV_SHAPE(L), rows_of, &r, sizeof r);
    pos = fv_reshape(c, fv_gather(c, pos, rows, -1), FV_SHAPE(L, H, W));
    pos = fv_permute(c, pos, (int[]){1, 0, 2});
    x = fv_permute(c, fv_reshape(c, x, FV_SHAPE(B, T, H, W)), (int[]){2, 0, 1, 3});
    x = fv_reshape(c, x, FV_SHAPE(H, B * T, W));
    fv_tensor *s = fv_matmul(c, x, pos, (fv_mm){.tb = true, .alpha = a->scale});
    s = fv_slice(c, fv_rel_shift(c, fv_reshape(c, s, FV_SHAPE(H, B, T, L))), -1, 0, T);
    return fv_permute(c, s, (int[]){1, 0, 2, 3});
}

/* ---- forward ---- */

static fv_tensor *plus(fv_ctx *c, fv_tensor *a, fv_tensor *b) { return a ? fv_add(c, a, b) : b; }

/* arg.memory: the table of distances (2S,D) or NULL; arg.key_mask (B,T): whose queries are no
 * padding; arg.bias (B,1,T,T): what takes padding from their keys.  (B,T,D) -> (B,T,D), before the
 * last product. */
static fv_tensor *attend(fv_ctx *c, const block *l, fv_tensor *x, fv_mha_arg arg)
{
    const config *k = l->cfg;
    const fv_mha *a = &l->base.attn;
    fv_tensor *q = fv_lin_fwd(c, &a->q, x), *key = fv_lin_fwd(c, &a->k, x), *bias = NULL;
    fv_tensor *mask = arg.key_mask, *rel = NULL;
    if (!q || !key) return NULL;
    int64_t B = fv_dim(q, 0), T = fv_dim(q, 1);
    if (mask) q = fv_masked_fill(c, q, fv_reshape(c, mask, FV_SHAPE(B, T, 1)), 0);
    if (arg.memory) rel = fv_dropout(c, arg.memory, k->bert.hidden_dropout_prob);
    if (rel && has_p2c(k)) {
        const fv_lin *made = k->share_att_key ? &a->q : &l->pos_query;
        bias = fv_transpose(c, by_distance(c, l, key, fv_lin_fwd(c, made, rel), true));
        if (mask) bias = fv_masked_fill(c, bias, fv_reshape(c, mask, FV_SHAPE(B, 1, T, 1)), 0);
    }
    if (rel && has_c2p(k)) {
        const fv_lin *made = k->share_att_key ? &a->k : &l->pos_key;
        bias = plus(c, bias, by_distance(c, l, q, fv_lin_fwd(c, made, rel), false));
    }
    if (arg.bias) bias = plus(c, bias, arg.bias);
    return fv_attention(c, q, key, fv_lin_fwd(c, &a->v, x),
                        (fv_attn){.n_head = a->n_head,
                                  .scale = a->scale,
                                  .dropout = a->dropout,
                                  .bias = bias,
                                  .name = a->name});
}

/* x = norm(x + out(attend(x)));  x = norm(x + mlp(x)) */
static fv_tensor *block_fwd(fv_ctx *c, const void *self, fv_tensor *x, fv_mha_arg arg,
                            fv_mha_arg none)
{
    (void)none;
    const block *l = self;
    const fv__bert_block *b = &l->base;
    fv_tensor *a = fv_lin_fwd(c, &b->attn.out, attend(c, l, x, arg));
    x = fv_norm_add(c, &b->attn_norm, NULL, x, fv_dropout(c, a, b->attn_dropout));
    return fv_mlp_norm(c, &b->mlp, x, b->mlp_dropout, &b->mlp_norm);
}

/* norm(words [+ positions] [+ types]), zero where there is padding; column: the mask (B,T,1). */
static fv_tensor *embed(fv_ctx *c, const deberta *m, const fv_items *in, fv_tensor *column)
{
    const config *k = &m->cfg;
    fv_tensor *ids = fv_items_get(in, "input_ids");
    int n = 0;
    fv_some_rows of[FV_EMBED_MAX_TABLES];
    if (k->position_biased_input && fv_dim(ids, 1) > k->bert.max_position_embeddings)
        return fv_raise(c, FV_ESHAPE, "deberta-v2: input_ids %s, but max_position_embeddings is %d",
                        fv_desc(ids).s, k->bert.max_position_embeddings);
    of[n++] = (fv_some_rows){m->emb.words.table, .ids = ids, .skip = m->emb.words.skip};
    if (k->position_biased_input)
        of[n++] = (fv_some_rows){m->emb.positions.table, .ids = fv_items_get(in, "position_ids"),
                                 .count = fv_dim(ids, 1), .skip = -1};
    if (k->bert.type_vocab_size)
        of[n++] = (fv_some_rows){m->emb.types.table, .ids = fv_items_get(in, "token_type_ids"),
                                 .count = 1, .skip = -1};
    fv_tensor *x = fv__embed(c, of, n, m->emb.norm.gain, m->emb.norm.bias, m->emb.norm.eps);
    if (column) x = fv_masked_fill(c, x, column, 0);
    return fv_dropout(c, x, k->bert.hidden_dropout_prob);
}

/* norm(x + act(conv(first))), zero where there is padding: beside the first layer, which made x. */
static fv_tensor *convolve(fv_ctx *c, const deberta *m, fv_tensor *first, fv_tensor *x,
                           fv_tensor *column)
{
    fv_tensor *y = fv_transpose(c, fv_conv_fwd(c, &m->conv, fv_transpose(c, first)));
    if (column) y = fv_masked_fill(c, y, column, 0);
    y = fv_activate(c, fv_dropout(c, y, m->cfg.bert.hidden_dropout_prob),
                    fv_act_of(m->cfg.conv_act));
    y = fv_norm_add(c, &m->conv_norm, NULL, x, y);
    return column ? fv_masked_fill(c, y, column, 0) : y;
}

/* (B,1,T,T): far below zero for a padded key of a query that is none, else 0. */
static fv_tensor *without_padding(fv_ctx *c, fv_tensor *mask)
{
    int64_t B = fv_dim(mask, 0), T = fv_dim(mask, 1);
    fv_tensor *one = fv_masked_fill(c, fv_full(c, FV_SHAPE(B, T), 1), mask, 0);
    fv_tensor *padded = fv_affine(c, one, -FAR_BELOW, FAR_BELOW);
    return fv_mul(c, fv_reshape(c, one, FV_SHAPE(B, 1, T, 1)),
                  fv_reshape(c, padded, FV_SHAPE(B, 1, 1, T)));
}

/* (B,T) -> (B,T,D).  The first layer is run by itself: the convolution reads what entered it. */
static fv_tensor *encode(fv_ctx *c, const deberta *m, const fv_items *in)
{
    fv_tensor *mask = fv_items_get(in, "attention_mask"), *column = NULL;
    fv__layers_arg arg = {.self = {.key_mask = mask, .memory = m->rel}};
    if (mask && mask->shape.n != 2)
        return fv_raise(c, FV_ESHAPE, "deberta-v2: attention_mask %s, expected (B,T)",
                        fv_desc(mask).s);
    if (mask) {
        column = fv_reshape(c, mask, FV_SHAPE(fv_dim(mask, 0), fv_dim(mask, 1), 1));
        arg.self.bias = without_padding(c, mask);
    }
    if (m->rel && m->rel_norm.gain) arg.self.memory = fv_norm_fwd(c, &m->rel_norm, m->rel);
    fv_tensor *first = embed(c, m, in, column);
    fv_tensor *x = fv__layers_run(c, block_fwd, m->blocks, sizeof *m->blocks, 1, first, arg,
                                  "hidden_states");
    if (m->conv.w) x = convolve(c, m, first, x, column);
    x = fv__layers_run(c, block_fwd, m->blocks + 1, sizeof *m->blocks,
                       m->cfg.bert.num_hidden_layers - 1, x, arg, "hidden_states");
    fv_tap(c, "hidden", "hidden_states", x);
    return x;
}

static void forward(fv_ctx *c, const void *self, const fv_items *in, fv_items *out)
{
    const deberta *m = self;
    const config *k = &m->cfg;
    fv_tensor *pooled = NULL, *labels = fv_items_get(in, "labels");
    fv_items flat = fv__flat_choices(c, in, m->job);
    fv_tensor *x = encode(c, m, &flat);
    /* The published code takes floats without a problem_type for probabilities of the labels. */
    if (m->job == FV_HEAD_CLASSIFY && labels && labels->dtype != FV_I32 && !k->bert.problem_type &&
        k->bert.num_labels > 1) {
        fv_raise(c, FV_EDTYPE, "deberta-v2: labels of floats need a problem_type in config.json");
        return;
    }
    if (m->pooler.w)
        pooled = fv_lin_act(c, &m->pooler, fv_dropout(c, fv_first(c, x), k->pooler_dropout),
                            fv_act_of(k->pooler_hidden_act));
    fv__put_encoded(c, in, out,
                    (fv__encoder_head){m->job, &m->classifier, &m->masked,
                                       m->job == FV_HEAD_TAG ? k->bert.hidden_dropout_prob
                                                             : fv__bert_dropout(&k->bert, m->job),
                                       k->bert.problem_type},
                    x, pooled);
}

const fv_family fv__family_deberta_v2 = {
    FV__FAMILY_PARTS(deberta),
    .type = "deberta-v2",
    .longest = longest,
};
