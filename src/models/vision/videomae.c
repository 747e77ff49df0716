/* videomae.c - VideoMAE: a ViT over a clip, whose tokens are tubes of a few frames.
 *
 *     x = tubes + sinusoids;   layers as in ViT, whose keys have no bias;   the mean of all tokens
 *
 * A tube is tubelet_size frames deep and a patch wide and high; tokens are counted frame by frame,
 * row by row.
 *
 * Paper: Tong et al. 2022 (arXiv:2203.12602). Queries and values have biases and keys none,
 * which are stored apart from the weights (q_bias, v_bias). Names are those of transformers'
 * VideoMAEModel. */
#include <math.h>
#include <stddef.h>
#include <stdio.h>

#include "core/core.h"
#include "model/vit.h"
#include "nn/part.h"

static const fv_family_head heads[] = {
    {"VideoMAEModel", .job = FV_HEAD_BASE},
    {"VideoMAEForVideoClassification", FV_HEAD_CLASSIFY, .base = "VideoMAEModel"},
    {0},
};

typedef struct config {
    fv__vit_config vit;
    int num_frames, tubelet_size;
    bool qv_bias, use_mean_pooling;
} config;

static const fv_field fields[] = {
    FV__VIT_STACK_FIELDS,
    FV__VIT_FIELD(FV_INT, intermediate_size, 1, 3072, 1 << 18, "width of the feed-forward part"),
    FV__VIT_FIELD(FV_FLOAT, hidden_dropout_prob, 0, 0, 0.99, "on what each part of a layer adds"),
    FV__VIT_FIELD(FV_FLOAT, layer_norm_eps, 1e-20, 1e-12, 1, "under the square root of each norm"),
    FV__IMAGE_FIELDS(config, vit., "16"),
    FV__VIT_FIELD(FV_INT, num_channels, 1, 3, 1024, "channels of a frame"),
    FV_INT(config, num_frames, 1, 16, 1 << 16, "frames of a clip"),
    FV_INT(config, tubelet_size, 1, 2, 1 << 10, "frames of a tube"),
    FV_BOOL(config, qv_bias, true, "queries and values have biases"),
    FV_BOOL(config, use_mean_pooling, true, "the mean of all tokens is classified, else the first"),
    FV__VIT_FIELD(FV_CHOICE, problem_type, 0, fv_problem_words,
                  "what the labels of a clip are; not given: as they look"),
    FV__VIT_FIELD(FV_INT, num_labels, 1, 2, 1 << 20, "labels"),
    {0},
};

static const fv_key_rule rules[] = {
    {"norm_pix_loss", NULL}, /* of pre-training, whose decoder is not here */
    {NULL, NULL},
};

static const fv_input inputs[] = {
    {"pixel_values", FV_F32, true},
    {"labels", FV_I32, false},
    {0},
};

/* The tube's weight is a 3-D convolution whose stride is its size, so it is kept with the published
 * five axes and applied as one product. */
typedef struct videomae {
    config cfg;
    fv_head_job job;
    fv_tensor *tubes, *tubes_bias; /* (D,C,frames,p,p), (D) */
    fv__vit_block *blocks;
    fv_norm norm, pooled;
    fv_lin classifier;
} videomae;

/* A clip of fewer frames than a tube would have no token. */
static fv_status check(const void *config_, fv_err *e)
{
    const config *k = config_;
    fv_status st = fv__vit_check(&k->vit, e);
    if (!st && k->num_frames < k->tubelet_size)
        st = fv_fail(e, FV_EFORMAT, "num_frames %d are less than tubelet_size %d", k->num_frames,
                     k->tubelet_size);
    return st;
}

/* ---- parameters ---- */

/* Mean pooling has its norm behind the mean (fc_norm); without it the stack ends in one. */
static void declare(void *self, const fv_setup *s)
{
    videomae *m = self;
    fv_params *p = s->params;
    m->cfg = *(const config *)s->config;
    m->job = s->head->job;
    const config *k = &m->cfg;
    fv__vit_config v = k->vit;
    const char *at = m->job == FV_HEAD_BASE ? "" : "videomae.";
    int64_t D = v.hidden_size, size = fv__side(&v.patch_size, 0);
    fv_init zero = {.kind = FV_INIT_ZERO};
    m->tubes = fv_param(p, fv__weight(v.initializer_range),
                        FV_SHAPE(D, v.num_channels, k->tubelet_size, size, size),
                        "%sembeddings.patch_embeddings.projection.weight", at);
    m->tubes_bias = fv_param(p, zero, FV_SHAPE(D), "%sembeddings.patch_embeddings.projection.bias",
                             at);
    v.qkv_bias = false; /* q and v have theirs under names of their own */
    m->blocks = fv__vit_blocks(p, &v, at);
    for (int i = 0; m->blocks && k->qv_bias && i < v.num_hidden_layers; i++) {
        fv_mha *a = &m->blocks[i].attn;
        a->q.b = fv_param(p, zero, FV_SHAPE(D), "%sencoder.layer.%d.attention.attention.q_bias", at,
                          i);
        a->v.b = fv_param(p, zero, FV_SHAPE(D), "%sencoder.layer.%d.attention.attention.v_bias", at,
                          i);
    }
    if (!k->use_mean_pooling)
        fv_norm_init(p, &m->norm, D, (fv_norm_opt){.eps = v.layer_norm_eps}, "%slayernorm", at);
    if (m->job == FV_HEAD_BASE) return;
    if (k->use_mean_pooling) fv_norm_init(p, &m->pooled, D, (fv_norm_opt){0}, "fc_norm");
    fv_lin_init(p, &m->classifier, D, v.num_labels, (fv_lin_opt){.std = v.initializer_range},
                "classifier");
}

static fv_load_opt load(const void *self)
{
    (void)self;
    /* what a model was pre-trained with */
    static const char *const others[] = {"decoder.*",  "encoder_to_decoder.*",
                                         "mask_token", "classifier.*",
                                         "fc_norm.*",  NULL};
    return (fv_load_opt){.prefix = "videomae.", .ignore = others};
}

static void pack(void *self, fv_params *p, fv_dtype dtype)
{
    videomae *m = self;
    fv__vit_pack(p, m->blocks, m->cfg.vit.num_hidden_layers, dtype);
}

/* ---- forward ---- */

/* What fill_waves needs to know; positions are computed, no file holds them. */
typedef struct waves {
    int64_t width;
} waves;

/* sin and cos of position / 10000^(2i/width), side by side */
static void fill_waves(void *out, const void *user, int64_t from, int64_t n)
{
    int64_t width = ((const waves *)user)->width;
    for (int64_t i = from; i < from + n; i++) {
        int64_t j = i % width;
        double angle = (double)(i / width) / pow(10000, 2.0 * (double)(j / 2) / (double)width);
        ((float *)out)[i - from] = (float)(j % 2 ? cos(angle) : sin(angle));
    }
}

/* (B,frames,C,H,W) -> (B,tokens,D) */
static fv_tensor *embed(fv_ctx *c, const videomae *m, fv_tensor *clip)
{
    const config *k = &m->cfg;
    const fv__vit_config *v = &k->vit;
    if (!clip) return NULL;
    int64_t B = fv_dim(clip, 0), F = k->num_frames, h = fv__side(&v->image_size, 0),
            w = fv__side(&v->image_size, 1), p = fv__side(&v->patch_size, 0),
            deep = k->tubelet_size, C = v->num_channels, D = v->hidden_size,
            n = fv__vit_grid(v, 0) * fv__vit_grid(v, 1);
    if (!fv_shape_same(clip->shape, FV_SHAPE(B, F, C, h, w)))
        return fv_raise(c, FV_ESHAPE, "videomae: pixel_values %s, expected (B,%lld,%lld,%lld,%lld)",
                        fv_desc(clip).s, (long long)F, (long long)C, (long long)h, (long long)w);
    int64_t tubes = F / deep;
    if (F % deep) clip = fv_slice(c, clip, 1, 0, tubes * deep);
    clip = fv_cast(c, clip, c->dtype); /* batches are uploaded in f32 */
    static const int by_tube[] = {0, 1, 3, 4, 2, 5};
    fv_tensor *x = fv_patchify(c, fv_reshape(c, clip, FV_SHAPE(B * tubes * deep, C, h, w)), p);
    x = fv_permute(c, fv_reshape(c, x, FV_SHAPE(B, tubes, deep, n, C, p * p)), by_tube);
    x = fv_linear(c, fv_reshape(c, x, FV_SHAPE(B, tubes * n, C * deep * p * p)),
                  fv_reshape(c, m->tubes, FV_SHAPE(D, -1)), m->tubes_bias, FV_ACT_NONE);
    waves of = {D};
    fv_tensor *at = fv__table(c, FV_F32, FV_SHAPE(1, tubes * n, D), fill_waves, &of, sizeof of);
    return fv_add(c, x, x ? fv_cast(c, at, x->dtype) : NULL);
}

/* pixel_values (B,frames,C,H,W) of exactly the configured size: the sinusoids are not
 * interpolated. */
static void forward(fv_ctx *c, const void *self, const fv_items *in, fv_items *out)
{
    const videomae *m = self;
    const config *k = &m->cfg;
    fv_tensor *x = fv__vit_encode(c, m->blocks, &k->vit,
                                  embed(c, m, fv_items_get(in, "pixel_values")));
    if (!k->use_mean_pooling) x = fv_norm_fwd(c, &m->norm, x);
    if (m->job == FV_HEAD_BASE) {
        fv_items_put(out, "last_hidden_state", x);
        return;
    }
    x = k->use_mean_pooling ? fv_norm_fwd(c, &m->pooled, fv_mean(c, x, 1)) : fv_first(c, x);
    fv__put_classes(c, in, out, fv_lin_fwd(c, &m->classifier, x), k->vit.problem_type);
}

const fv_family fv__family_videomae = {
    .type = "videomae",
    .heads = heads,
    .config = fields,
    .rules = rules,
    .inputs = inputs,
    .config_size = sizeof(config),
    .size = sizeof(videomae),
    .check = check,
    .declare = declare,
    .load = load,
    .pack = pack,
    .forward = forward,
};
