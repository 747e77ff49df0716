/* patchtst.c - PatchTST: a time series as a sequence of patches, each channel by itself (Nie et al.
 * 2023).
 *
 *     x = (past - loc) / scale;   patches of x, each a vector of the model's width, + positions
 *     layers on (B*C,N,D), each x + attn(norm(x)), x + mlp(norm(x)), or with the norm behind
 *     forecast: y = scale (W [pooled or all patches] + b) + loc
 *
 * Channels never see each other: they are part of the batch.  The norm is a batch norm over all
 * tokens of the batch, as in the paper, or a layer norm.  Patches may overlap; the values at the
 * beginning that fill none do not count.
 * Classification and regression take `labels`, as all heads do, where transformers has
 * target_values; pre-training takes the hidden patches as bool_masked_pos (B,C,N), which
 * transformers draws itself.  With loss "nll" forecasts and regressions are distributions
 * (model/distribution.h): parameters are "prediction_outputs.0" and so on, "prediction_outputs" is
 * the mean.  Refused: attention across channels. */
#include <stddef.h>
#include <stdio.h>

#include "base/base.h"
#include "core/params.h"
#include "model/distribution.h"
#include "model/series.h"
#include "nn/part.h"

static const fv_family_head heads[] = {
    {"PatchTSTForPrediction", FV_HEAD_FORECAST, .base = "PatchTSTModel"},
    {"PatchTSTForClassification", FV_HEAD_CLASSIFY, .base = "PatchTSTModel"},
    {"PatchTSTForRegression", FV_HEAD_REGRESS, .base = "PatchTSTModel"},
    {"PatchTSTForPretraining", FV_HEAD_MASKED_SERIES, .base = "PatchTSTModel"},
    {"PatchTSTModel", .job = FV_HEAD_BASE},
    {0},
};

enum { POOL_MEAN, POOL_MAX, POOL_NONE };
static const char *const poolings[] = {"mean", "max", "", NULL};
/* true is transformers' other word for mean, false and null its others for none */
static const char *const scalings[] = {"std", "mean", "true", "none", "false", NULL};
static const char *const norms[] = {"batchnorm", "layernorm", NULL};
enum { POS_SINCOS, POS_RANDOM };
static const char *const positions[] = {"sincos", "random", NULL};
enum { LOSS_MSE, LOSS_NLL };
static const char *const losses[] = {"mse", "nll", NULL};

typedef struct config {
    int num_input_channels, context_length, prediction_length, patch_length, patch_stride;
    int num_hidden_layers, d_model, num_attention_heads, ffn_dim, num_targets, distribution_output;
    int norm_type, activation_function, positional_encoding_type, scaling, pooling_type, loss;
    float norm_eps, attention_dropout, positional_dropout, path_dropout, ff_dropout, head_dropout;
    float init_std, mask_value;
    bool share_embedding, share_projection, bias, pre_norm, use_cls_token;
} config;

static const fv_field fields[] = {
    FV_INT(config, num_input_channels, 1, 1, 1 << 16, "channels of the series"),
    FV_INT(config, context_length, 2, 32, 1 << 20, "values of a channel that are read"),
    FV_INT(config, prediction_length, 1, 24, 1 << 16, "values that are forecast"),
    FV_INT(config, patch_length, 1, 1, 1 << 16, "values of a patch"),
    FV_INT(config, patch_stride, 1, 1, 1 << 16, "values from one patch to the next"),
    FV_INT(config, num_hidden_layers, 1, 3, 256, "layers"),
    FV_INT(config, d_model, 1, 128, 1 << 16, "model width"),
    FV_INT(config, num_attention_heads, 1, 4, 1024, "attention heads"),
    FV_INT(config, ffn_dim, 1, 512, 1 << 18, "width of the feed-forward part"),
    FV_INT(config, num_targets, 1, 1, 1 << 20, "classes, or numbers of a regression"),
    FV_CHOICE(config, norm_type, 0, norms, "over the tokens of a batch, or over each token"),
    FV_FLOAT(config, norm_eps, 1e-20, 1e-5, 1, "under the square root of each norm"),
    FV_BOOL(config, pre_norm, true, "norms stand before a layer's parts, else behind"),
    FV_CHOICE(config, activation_function, 0, fv_act_words, "of the feed-forward part"),
    FV_BOOL(config, bias, true, "the feed-forward part has biases"),
    FV_CHOICE(config, positional_encoding_type, POS_SINCOS, positions,
              "sinusoids, or a table that is trained"),
    FV_BOOL(config, use_cls_token, false, "a token in front, which heads read"),
    FV_BOOL(config, share_embedding, true, "channels share the weight that reads patches"),
    FV_BOOL(config, share_projection, true, "channels share the weight that makes forecasts"),
    FV_CHOICE(config, scaling, 0, scalings, "of a window by its own values"),
    FV_CHOICE(config, pooling_type, POOL_MEAN, poolings,
              "of the patches, before a head; empty: a forecast reads all of them"),
    FV_CHOICE(config, loss, LOSS_MSE, losses,
              "of forecasts and regressions: mean square, or a distribution's log-likelihood"),
    FV_CHOICE(config, distribution_output, FV__STUDENT_T, fv__distribution_words,
              "of each value, with the loss nll"),
    FV_FLOAT(config, attention_dropout, 0, 0, 0.99, "on the attention weights"),
    FV_FLOAT(config, positional_dropout, 0, 0, 0.99, "on what enters the first layer"),
    FV_FLOAT(config, path_dropout, 0, 0, 0.99, "on what each part of a layer adds"),
    FV_FLOAT(config, ff_dropout, 0, 0, 0.99, "inside the feed-forward part"),
    FV_FLOAT(config, head_dropout, 0, 0, 0.99, "on what enters the head"),
    FV_FLOAT(config, init_std, 0, 0.02, 10, "standard deviation of first values; 0: Xavier"),
    FV_FLOAT(config, mask_value, -1e6, 0, 1e6, "what stands in hidden patches"),
    {0},
};

static const fv_key_rule rules[] = {
    {"channel_attention", "false"},
    /* how transformers draws hidden patches and samples */
    {"do_mask_input", NULL},
    {"mask_type", NULL},
    {"random_mask_ratio", NULL},
    {"num_forecast_mask_patches", NULL},
    {"channel_consistent_masking", NULL},
    {"unmasked_channel_indices", NULL},
    {"num_parallel_samples", NULL},
    {"output_range", NULL}, /* read by declare */
    {NULL, NULL},
};

static const fv_input inputs[] = {
    {"past_values", FV_F32, true},     {"past_observed_mask", FV_U8, false},
    {"future_values", FV_F32, false},  {"labels", FV_I32, false},
    {"bool_masked_pos", FV_U8, false}, {0},
};

/* One of the two kinds. */
typedef struct norm {
    fv_norm layer;
    fv_bn batch;
} norm;

typedef struct block {
    norm attn_norm, mlp_norm;
    fv_mha attn;
    fv_mlp mlp;
    bool pre_norm;
    float dropout;
} block;

typedef struct patchtst {
    config cfg;
    fv_head_job job;
    int64_t patches;
    bool fresh; /* positions are computed, not read */
    bool ranged;
    double range[2]; /* output_range of a regression */
    fv_lin *embed;   /* one, or one for each channel */
    fv_tensor *positions, *class_token;
    block *blocks;
    /* likewise; of a distribution one for each of its parameters */
    fv_lin *head[FV__DISTRIBUTION_MOST];
    int parts; /* how many */
} patchtst;

static fv_status check(const void *config_, fv_err *e)
{
    const config *k = config_;
    if (k->d_model % k->num_attention_heads)
        return fv_fail(e, FV_EFORMAT, "d_model %d is no multiple of num_attention_heads %d",
                       k->d_model, k->num_attention_heads);
    if (k->context_length <= k->patch_length)
        return fv_fail(e, FV_EFORMAT, "context_length %d is not above patch_length %d",
                       k->context_length, k->patch_length);
    if (k->loss == LOSS_NLL && !k->share_projection)
        return fv_fail(e, FV_EMISSING, "loss \"nll\" needs share_projection");
    return FV_OK;
}

static int scaling_of(const config *k)
{
    static const fv__scaling as[] = {FV__SCALE_STD, FV__SCALE_MEAN, FV__SCALE_MEAN, FV__SCALE_NONE,
                                     FV__SCALE_NONE};
    return as[k->scaling];
}

/* ---- parameters ---- */

static void norm_init(fv_params *p, norm *l, const config *k, const char *at, const char *name)
{
    if (k->norm_type)
        fv_norm_init(p, &l->layer, k->d_model, (fv_norm_opt){.eps = k->norm_eps}, "%s.%s", at,
                     name);
    else
        fv_bn_init(p, &l->batch, k->d_model, (fv_bn_opt){.eps = k->norm_eps}, "%s.%s.batchnorm", at,
                   name);
}

static void block_init(fv_params *p, block *b, const config *k, const char *at)
{
    b->pre_norm = k->pre_norm;
    b->dropout = k->path_dropout;
    fv_lin_opt proj = {.std = k->init_std};
    fv_mha_init(p, &b->attn, k->d_model, k->num_attention_heads,
                (fv_mha_opt){.in = proj, .out = proj}, "%s.self_attn", at);
    b->attn.dropout = k->attention_dropout;
    norm_init(p, &b->attn_norm, k, at, "norm_sublayer1");
    fv_mlp_init(p, &b->mlp, k->d_model, k->ffn_dim,
                (fv_mlp_opt){.act = fv_act_of(k->activation_function),
                             .lin = {.no_bias = !k->bias, .std = k->init_std},
                             .names = "0 3"},
                "%s.ff", at);
    b->mlp.dropout = k->ff_dropout;
    norm_init(p, &b->mlp_norm, k, at, "norm_sublayer3");
}

static fv_lin *lins(fv_params *p, const patchtst *m, bool shared, int64_t in, int64_t out,
                    const char *path)
{
    int n = shared ? 0 : m->cfg.num_input_channels;
    return fv__channel_lins(p, n, in, out, m->cfg.init_std, path);
}

/* The projection of a forecast or a regression, or those of a distribution's parameters. */
static void projection_init(fv_params *p, patchtst *m, int64_t in, int64_t out)
{
    const config *k = &m->cfg;
    bool shared = k->share_projection || m->job == FV_HEAD_REGRESS;
    if (k->loss == LOSS_MSE) {
        m->head[0] = lins(p, m, shared, in, out, shared ? "head.projection" : "head.projections");
        return;
    }
    m->parts = fv__distribution_count(k->distribution_output);
    for (int i = 0; i < m->parts; i++) {
        char path[40];
        snprintf(path, sizeof path, "head.projection.proj.%d", i);
        m->head[i] = lins(p, m, true, in, out, path);
    }
}

static void head_init(fv_params *p, patchtst *m)
{
    const config *k = &m->cfg;
    int64_t D = k->d_model, all = D * k->num_input_channels,
            wide = k->pooling_type == POOL_NONE && !k->use_cls_token ? D * m->patches : D;
    m->parts = 1;
    if (m->job == FV_HEAD_FORECAST)
        projection_init(p, m, wide, k->prediction_length);
    else if (m->job == FV_HEAD_MASKED_SERIES)
        m->head[0] = lins(p, m, true, D, k->patch_length, "head.linear");
    else if (m->job == FV_HEAD_REGRESS)
        projection_init(p, m, all, k->num_targets);
    else if (m->job == FV_HEAD_CLASSIFY)
        m->head[0] = lins(p, m, true, all, k->num_targets, "head.linear");
}

/* transformers' bare model hides patches by drawing where do_mask_input is true, in inference too;
 * its other heads set it themselves. */
static void refuse_random_masks(const fv_setup *s)
{
    bool hides = false;
    fv_err e;
    if (!s->json || !fv_json_bool(s->json, "do_mask_input", &hides) || !hides) return;
    fv_fail(&e, FV_EMISSING, "do_mask_input: patches of this head are not hidden at random");
    fv__params_fail(s->params, &e);
}

/* Patches of stride s over a context of L: (L - length) / s + 1; values that fill none are those at
 * the beginning. */
static void declare(void *self, const fv_setup *s)
{
    patchtst *m = self;
    fv_params *p = s->params;
    m->cfg = *(const config *)s->config;
    config *k = &m->cfg;
    m->job = s->head->job;
    m->fresh = !s->file;
    m->patches = (k->context_length - k->patch_length) / k->patch_stride + 1;
    if (m->job == FV_HEAD_BASE) refuse_random_masks(s);
    if (fv__series_null(s->json, "pooling_type")) k->pooling_type = POOL_NONE;
    if (fv__series_null(s->json, "scaling")) k->scaling = 3;
    m->ranged = s->json && fv_json_number(s->json, "output_range.0", &m->range[0]) &&
                fv_json_number(s->json, "output_range.1", &m->range[1]);
    const char *at = m->job == FV_HEAD_BASE ? "" : "model.";
    int64_t D = k->d_model, rows = m->patches + k->use_cls_token;
    char one[64];
    snprintf(one, sizeof one, "%sencoder.embedder.input_embedding", at);
    m->embed = lins(p, m, k->share_embedding, k->patch_length, D, one);
    if (k->use_cls_token)
        m->class_token = fv_param(p, (fv_init){.kind = FV_INIT_NORMAL, .scale = 0.02f},
                                  FV_SHAPE(1, 1, 1, D), "%sencoder.positional_encoder.cls_token",
                                  at);
    bool fixed = k->positional_encoding_type == POS_SINCOS;
    m->positions = fv_param(p, (fv_init){.kind = FV_INIT_NORMAL, .scale = 1, .buffer = fixed},
                            FV_SHAPE(rows, D), "%sencoder.positional_encoder.position_enc", at);
    m->blocks = fv_params_scratch(p, (size_t)k->num_hidden_layers * sizeof *m->blocks);
    for (int i = 0; m->blocks && i < k->num_hidden_layers; i++) {
        fv_path path;
        snprintf(path.s, sizeof path.s, "%sencoder.layers.%d", at, i);
        block_init(p, &m->blocks[i], k, path.s);
    }
    head_init(p, m);
}

static fv_status ready(void *self, fv_params *p, fv_err *e)
{
    patchtst *m = self;
    if (!m->fresh || m->cfg.positional_encoding_type != POS_SINCOS) return FV_OK;
    int64_t n = fv_len(m->positions);
    size_t bytes = (size_t)n * sizeof(float);
    float *host = fv__alloc(NULL, bytes);
    if (!host) return fv_fail(e, FV_ENOMEM, "patchtst: out of memory for its positions");
    fv__series_sinusoids(host, fv_dim(m->positions, 0), fv_dim(m->positions, 1));
    fv_status st = fv_params_set(p, m->positions, host, n, e);
    fv__free(NULL, host, bytes);
    return st;
}

static fv_load_opt load(const void *self)
{
    (void)self;
    static const char *const others[] = {"*num_batches_tracked", "head.*", NULL};
    return (fv_load_opt){.prefix = "model.", .ignore = others};
}

static void pack(void *self, fv_params *p, fv_dtype dtype)
{
    patchtst *m = self;
    const config *k = &m->cfg;
    for (int i = 0; i < k->num_hidden_layers; i++) {
        fv_mha_pack(p, &m->blocks[i].attn, dtype, true);
        fv_mlp_pack(p, &m->blocks[i].mlp, dtype);
    }
}

/* ---- patches ---- */

/* (B,C,N,P) -> (B,C,N,D), with the class token in front where there is one. */
static fv_tensor *embed(fv_ctx *c, const patchtst *m, fv_tensor *x)
{
    const config *k = &m->cfg;
    int64_t B = fv_dim(x, 0), C = k->num_input_channels, D = k->d_model;
    fv_tensor *y = fv__by_channel(c, m->embed, k->share_embedding, x);
    if (!k->use_cls_token) return fv_dropout(c, fv_add(c, y, m->positions), k->positional_dropout);
    fv_tensor *at = fv_slice(c, m->positions, 0, 1, m->patches + 1),
              *first = fv_add(c, m->class_token, fv_slice(c, m->positions, 0, 0, 1));
    y = fv_dropout(c, fv_add(c, y, at), k->positional_dropout);
    first = fv_expand(c, first, FV_SHAPE(B, C, 1, D));
    return fv_concat(c, (fv_tensor *[]){first, y}, 2, 2);
}

/* ---- layers ---- */

static fv_tensor *normed(fv_ctx *c, const norm *l, fv_tensor *x)
{
    if (l->layer.gain || !x) return fv_norm_fwd(c, &l->layer, x);
    /* (tokens,D): statistics are over all tokens of the batch */
    fv_tensor *rows = fv_reshape(c, x, FV_SHAPE(-1, fv_dim(x, -1)));
    return fv_reshape(c, fv_bn_fwd(c, &l->batch, rows), x->shape);
}

static fv_tensor *block_fwd(fv_ctx *c, const void *self, fv_tensor *x, fv_mha_arg arg,
                            fv_mha_arg none)
{
    const block *b = self;
    (void)none;
    fv_tensor *h = fv_mha_fwd(c, &b->attn, b->pre_norm ? normed(c, &b->attn_norm, x) : x, arg);
    x = fv_add(c, x, fv_dropout(c, h, b->dropout));
    if (!b->pre_norm) x = normed(c, &b->attn_norm, x);
    h = fv_mlp_fwd(c, &b->mlp, b->pre_norm ? normed(c, &b->mlp_norm, x) : x);
    x = fv_add(c, x, fv_dropout(c, h, b->dropout));
    return b->pre_norm ? x : normed(c, &b->mlp_norm, x);
}

/* (B,C,N,D) -> the same. */
static fv_tensor *encode(fv_ctx *c, const patchtst *m, fv_tensor *x)
{
    fv_shape s = fv_shape_of(x);
    x = fv_reshape(c, x, FV_SHAPE(-1, fv_dim(x, 2), fv_dim(x, 3)));
    for (int i = 0; x && i < m->cfg.num_hidden_layers; i++) {
        fv_tap(c, "hidden", "hidden_states", fv_reshape(c, x, s));
        x = fv_layer_run(c, block_fwd, &m->blocks[i], x, (fv_mha_arg){0}, (fv_mha_arg){0});
    }
    x = fv_reshape(c, x, s);
    fv_tap(c, "hidden", "hidden_states", x);
    return x;
}

/* ---- heads ---- */

/* (B,C,N,D) -> (B,C,D), or (B,C,N*D) where nothing is pooled. */
static fv_tensor *pooled(fv_ctx *c, const config *k, fv_tensor *x)
{
    int64_t B = fv_dim(x, 0), C = fv_dim(x, 1);
    if (k->use_cls_token)
        x = fv_slice(c, x, 2, 0, 1);
    else if (k->pooling_type == POOL_MEAN)
        x = fv_mean(c, x, 2);
    else if (k->pooling_type == POOL_MAX)
        x = fv_max(c, x, 2);
    return fv_dropout(c, fv_reshape(c, x, FV_SHAPE(B, C, -1)), k->head_dropout);
}

/* (B,C,N,D) -> (B,C*D): all channels side by side. */
static fv_tensor *side_by_side(fv_ctx *c, const patchtst *m, fv_tensor *x)
{
    const config *k = &m->cfg;
    if (k->pooling_type == POOL_NONE && !k->use_cls_token)
        return fv_raise(c, FV_EARG, "patchtst: pooling_type must be mean or max for this head");
    return fv_reshape(c, pooled(c, k, x), FV_SHAPE(fv_dim(x, 0), -1));
}

static const char *const forecasts[] = {"prediction_outputs", "prediction_outputs.0",
                                        "prediction_outputs.1", "prediction_outputs.2"};
static const char *const numbers[] = {"regression_outputs", "regression_outputs.0",
                                      "regression_outputs.1", "regression_outputs.2"};

/* (B,C,N,D) -> forecasts (B,H,C), or the distribution of each. */
static void forecast(fv_ctx *c, const patchtst *m, const fv__scaled *s, fv_tensor *x,
                     const fv_items *in, fv_items *out)
{
    const config *k = &m->cfg;
    fv_tensor *y[FV__DISTRIBUTION_MOST];
    fv_items_put(out, "loc", s->loc);
    fv_items_put(out, "scale", s->scale);
    x = pooled(c, k, x);
    for (int i = 0; i < m->parts; i++)
        y[i] = fv_transpose(c, fv__by_channel(c, m->head[i], k->share_projection, x));
    if (k->loss == LOSS_MSE)
        fv__put_forecast(c, in, out, fv__series_restore(c, s, y[0]));
    else
        fv__put_distribution(c, in, out, fv__distribution_of(c, k->distribution_output, y, s),
                             forecasts, fv_items_get(in, "future_values"));
}

/* (B,C,N,D) -> numbers (B,targets), or the distribution of each. */
static void regress(fv_ctx *c, const patchtst *m, fv_tensor *x, const fv_items *in, fv_items *out)
{
    const config *k = &m->cfg;
    fv_tensor *y[FV__DISTRIBUTION_MOST], *labels = fv_items_get(in, "labels");
    x = side_by_side(c, m, x);
    for (int i = 0; i < m->parts; i++) y[i] = fv_lin_fwd(c, m->head[i], x);
    if (k->loss == LOSS_NLL) {
        fv__put_distribution(c, in, out, fv__distribution_of(c, k->distribution_output, y, NULL),
                             numbers, labels);
        return;
    }
    if (m->ranged)
        y[0] = fv_affine(c, fv_sigmoid(c, y[0]), (float)(m->range[1] - m->range[0]),
                         (float)m->range[0]);
    fv_items_put(out, numbers[0], y[0]);
    fv_items_put(out, "loss", fv_loss_classes(c, y[0], labels, FV_PROBLEM_REGRESSION, in));
}

/* loss = the mean over hidden patches, of the step where they are counted, of their mean square */
static void masked_patches(fv_ctx *c, const patchtst *m, fv_tensor *x, fv_tensor *patches,
                           const fv_items *in, fv_items *out)
{
    fv_tensor *hidden = fv_items_get(in, "bool_masked_pos");
    fv_tensor *y = fv_lin_fwd(c, m->head[0], fv_dropout(c, x, m->cfg.head_dropout));
    if (m->cfg.use_cls_token) y = fv_slice(c, y, 2, 1, m->patches + 1);
    fv_items_put(out, "prediction_output", y);
    if (!hidden || !y) return;
    fv_tensor *w = fv__mask_floats(c, hidden, hidden->shape);
    fv_tensor *off = fv_mean(c, fv_square(c, fv_sub(c, y, patches)), 3);
    fv_tensor *sum = fv_sum_all(c, fv_mul(c, off, w)), *n = fv_sum_all(c, w);
    bool counted = in->n_labels > 0 || in->per_label;
    fv_items_put(out, "loss",
                 counted ? fv__per_label(c, sum, in) : fv_div(c, sum, fv_affine(c, n, 1, 1e-10f)));
}

/* value where hidden (B,C,N) is 1 */
static fv_tensor *hide(fv_ctx *c, const patchtst *m, fv_tensor *x, fv_tensor *hidden)
{
    fv_shape s = FV_SHAPE(fv_dim(x, 0), m->cfg.num_input_channels, m->patches);
    if (!hidden || !x) return x;
    if (m->job != FV_HEAD_MASKED_SERIES)
        return fv_raise(c, FV_EARG, "patchtst: bool_masked_pos needs PatchTSTForPretraining");
    if (!fv_shape_same(hidden->shape, s))
        return fv_raise(c, FV_ESHAPE, "patchtst: bool_masked_pos %s, expected (B,%lld,%lld)",
                        fv_desc(hidden).s, (long long)s.d[1], (long long)s.d[2]);
    s.d[s.n++] = 1;
    fv_tensor *w = fv__mask_floats(c, hidden, s);
    return fv_add(c, fv_mul(c, x, fv_affine(c, w, -1, 1)), fv_scale(c, w, m->cfg.mask_value));
}

static void put_base(fv_items *out, const fv__scaled *s, fv_tensor *x, fv_tensor *patches)
{
    fv_items_put(out, "last_hidden_state", x);
    fv_items_put(out, "loc", s->loc);
    fv_items_put(out, "scale", s->scale);
    fv_items_put(out, "patch_input", patches);
}

static void forward(fv_ctx *c, const void *self, const fv_items *in, fv_items *out)
{
    const patchtst *m = self;
    const config *k = &m->cfg;
    fv_tensor *past = fv_items_get(in, "past_values"),
              *observed = fv_items_get(in, "past_observed_mask"),
              *hidden = fv_items_get(in, "bool_masked_pos");
    if (!fv__is_window(c, "patchtst", past, observed, k->context_length, k->num_input_channels))
        return;
    fv__scaled s = fv__series_scale(c, scaling_of(k), past, observed);
    fv_tensor *patches = fv__series_patches(c, s.x, k->patch_length, k->patch_stride),
              *x = encode(c, m, embed(c, m, hide(c, m, patches, hidden)));
    if (m->job == FV_HEAD_BASE) {
        put_base(out, &s, x, patches);
    } else if (m->job == FV_HEAD_FORECAST) {
        forecast(c, m, &s, x, in, out);
    } else if (m->job == FV_HEAD_MASKED_SERIES) {
        masked_patches(c, m, x, patches, in, out);
    } else if (m->job == FV_HEAD_REGRESS) {
        regress(c, m, x, in, out);
    } else {
        fv_tensor *y = fv_lin_fwd(c, m->head[0], side_by_side(c, m, x));
        fv_items_put(out, "prediction_logits", y);
        fv__put_classes(c, in, out, y, FV_PROBLEM_SINGLE);
    }
}

const fv_family fv__family_patchtst = {
    .type = "patchtst",
    .ready = ready,
    FV__FAMILY_PARTS(patchtst),
};
