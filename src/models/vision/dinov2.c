/* dinov2.c - DINOv2: ViT whose layers scale what they add, by a factor for each channel.
 *
 *     x = x + scale1 * attn(norm1(x));   x = x + scale2 * mlp(norm2(x))
 *
 * The feed-forward part is an MLP or, in the largest model, gated by SiLU with both halves in one
 * weight.  Positions are interpolated for every image of another size than image_size; hidden
 * patches (bool_masked_pos) are replaced by a mask token.
 *
 * Paper: Oquab et al. 2023 (arXiv:2304.07193). The factors of a channel begin at
 * layerscale_value; in training whole images may skip a part (drop path). Names are those of
 * transformers' Dinov2Model: layer_scale1.lambda1. */
#include <stddef.h>

#include "model/vit.h"

static const fv_family_head heads[] = {
    {"Dinov2Model", .job = FV_HEAD_BASE},
    {"Dinov2ForImageClassification", FV_HEAD_CLASSIFY, .base = "Dinov2Model"},
    {0},
};

typedef struct config {
    fv__vit_config vit;
    float mlp_ratio, layerscale_value, drop_path_rate;
    bool use_swiglu_ffn, use_mask_token;
} config;

static const fv_field fields[] = {
    FV__VIT_STACK_FIELDS,
    FV_FLOAT(config, mlp_ratio, 0.01, 4, 64, "width of the feed-forward part, in model widths"),
    FV__VIT_FIELD(FV_FLOAT, hidden_dropout_prob, 0, 0, 0.99, "on the embeddings"),
    FV__VIT_FIELD(FV_FLOAT, layer_norm_eps, 1e-20, 1e-6, 1, "under the square root of each norm"),
    FV__IMAGE_FIELDS(config, vit., "14"),
    FV__VIT_FIELD(FV_INT, num_channels, 1, 3, 1024, "channels of an image"),
    FV__VIT_FIELD(FV_BOOL, qkv_bias, true, "queries, keys and values have biases"),
    FV_FLOAT(config, layerscale_value, -100, 1, 100, "first value of the scales"),
    FV_FLOAT(config, drop_path_rate, 0, 0, 0.99, "share of images that skip a part of a layer"),
    FV_BOOL(config, use_swiglu_ffn, false, "the feed-forward part is gated"),
    FV_BOOL(config, use_mask_token, true, "there is a token for hidden patches"),
    FV__VIT_FIELD(FV_CHOICE, problem_type, 0, fv_problem_words,
                  "what the labels of an image are; not given: as they look"),
    FV__VIT_FIELD(FV_INT, num_labels, 1, 2, 1 << 20, "labels"),
    {0},
};

typedef struct block {
    fv_norm norm1, norm2;
    fv_mha attn;
    fv_mlp mlp;
    fv_tensor *scale1, *scale2; /* (D) */
    float drop_path;
} block;

typedef struct dinov2 {
    config cfg;
    fv_head_job job;
    fv_tensor *class_token, *mask_token, *positions; /* (1,1,D), (1,D), (1,1+N,D) */
    fv_conv patches;
    block *blocks;
    fv_norm norm;
    fv_lin classifier; /* of the class token and the mean of the patches, side by side */
} dinov2;

static fv_status check(const void *config_, fv_err *e)
{
    return fv__vit_check(&((const config *)config_)->vit, e);
}

/* ---- parameters ---- */

/* Two thirds of an MLP's width where it is gated, in steps of eight. */
static int64_t mlp_width(const config *k)
{
    int64_t width = (int64_t)((double)k->vit.hidden_size * (double)k->mlp_ratio);
    return k->use_swiglu_ffn ? ((int64_t)((double)width * 2 / 3) + 7) / 8 * 8 : width;
}

/* "encoder.layer.0" below `at`; the factors scale1 and scale2 begin at layerscale_value, so a new
 * model's layers begin near the identity where that is small. */
static void block_init(fv_params *p, block *b, const config *k, const char *at, int i)
{
    const fv__vit_config *v = &k->vit;
    fv_norm_opt norm = {.eps = v->layer_norm_eps};
    /* the scale of the first values: ones are multiplied */
    fv_init scale = {.kind = FV_INIT_ONE, .scale = k->layerscale_value};
    b->drop_path = k->drop_path_rate;
    fv_norm_init(p, &b->norm1, v->hidden_size, norm, "%sencoder.layer.%d.norm1", at, i);
    fv_mha_init(p, &b->attn, v->hidden_size, v->num_attention_heads,
                (fv_mha_opt){.in = {.no_bias = !v->qkv_bias, .std = v->initializer_range},
                             .out = {.std = v->initializer_range},
                             .names = "attention.query attention.key attention.value output.dense"},
                "%sencoder.layer.%d.attention", at, i);
    b->attn.dropout = v->attention_probs_dropout_prob;
    b->scale1 = fv_param(p, scale, FV_SHAPE(v->hidden_size),
                         "%sencoder.layer.%d.layer_scale1.lambda1", at, i);
    fv_norm_init(p, &b->norm2, v->hidden_size, norm, "%sencoder.layer.%d.norm2", at, i);
    fv_mlp_opt plain = {.act = fv_act_of(v->hidden_act), .lin = {.std = v->initializer_range}};
    fv_mlp_opt gated = {.act = FV_SILU,
                        .packed = true,
                        .lin = plain.lin,
                        .names = "weights_in weights_out"};
    fv_mlp_init(p, &b->mlp, v->hidden_size, mlp_width(k), k->use_swiglu_ffn ? gated : plain,
                "%sencoder.layer.%d.mlp", at, i);
    b->scale2 = fv_param(p, scale, FV_SHAPE(v->hidden_size),
                         "%sencoder.layer.%d.layer_scale2.lambda1", at, i);
}

/* A classifier reads 2 D numbers: the class token beside the mean of the patches. */
static void declare(void *self, const fv_setup *s)
{
    dinov2 *m = self;
    fv_params *p = s->params;
    m->cfg = *(const config *)s->config;
    m->job = s->head->job;
    const fv__vit_config *v = &m->cfg.vit;
    const char *at = m->job == FV_HEAD_BASE ? "" : "dinov2.";
    int64_t D = v->hidden_size, size = fv__side(&v->patch_size, 0),
            N = fv__vit_grid(v, 0) * fv__vit_grid(v, 1);
    fv_init normal = {.kind = FV_INIT_NORMAL, .scale = v->initializer_range};
    m->class_token = fv_param(p, normal, FV_SHAPE(1, 1, D), "%sembeddings.cls_token", at);
    if (m->cfg.use_mask_token)
        m->mask_token = fv_param(p, (fv_init){.kind = FV_INIT_ZERO}, FV_SHAPE(1, D),
                                 "%sembeddings.mask_token", at);
    m->positions = fv_param(p, normal, FV_SHAPE(1, 1 + N, D), "%sembeddings.position_embeddings",
                            at);
    fv_conv_init(p, &m->patches, v->num_channels, D, size,
                 (fv_conv_layer_opt){.conv = {.stride = size}, .std = v->initializer_range},
                 "%sembeddings.patch_embeddings.projection", at);
    m->blocks = fv_params_scratch(p, (size_t)v->num_hidden_layers * sizeof *m->blocks);
    for (int i = 0; m->blocks && i < v->num_hidden_layers; i++)
        block_init(p, &m->blocks[i], &m->cfg, at, i);
    fv_norm_init(p, &m->norm, D, (fv_norm_opt){.eps = v->layer_norm_eps}, "%slayernorm", at);
    if (m->job == FV_HEAD_CLASSIFY)
        fv_lin_init(p, &m->classifier, 2 * D, v->num_labels,
                    (fv_lin_opt){.std = v->initializer_range}, "classifier");
}

/* A published file may lack the mask token or hold one that a model without use_mask_token leaves
 * unread. */
static fv_load_opt load(const void *self)
{
    (void)self;
    static const char *const others[] = {"*embeddings.mask_token", "classifier.*", NULL};
    return (fv_load_opt){.prefix = "dinov2.", .ignore = others};
}

static void pack(void *self, fv_params *p, fv_dtype dtype)
{
    dinov2 *m = self;
    for (int i = 0; i < m->cfg.vit.num_hidden_layers; i++) {
        fv_mha_pack(p, &m->blocks[i].attn, dtype, true);
        fv_mlp_pack(p, &m->blocks[i].mlp, dtype);
    }
}

/* ---- forward ---- */

/* x += scale1 * attn(norm1 x);  x += scale2 * mlp(norm2 x); each may be skipped for whole images in
 * training. */
static fv_tensor *block_fwd(fv_ctx *c, const void *self, fv_tensor *x, fv_mha_arg arg,
                            fv_mha_arg none)
{
    (void)none;
    const block *b = self;
    fv_tensor *a = fv_mha_fwd(c, &b->attn, fv_norm_fwd(c, &b->norm1, x), arg);
    a = fv_drop_path(c, fv_mul(c, a, b->scale1), b->drop_path);
    fv_tensor *h = fv_norm_add(c, &b->norm2, &x, x, a);
    h = fv_mul(c, fv_mlp_fwd(c, &b->mlp, h), b->scale2);
    return fv_add(c, x, fv_drop_path(c, h, b->drop_path));
}

/* (B,C,H,W) -> (B,1+N,D).  Positions are a grid resized to the image's own number of patches. */
static fv_tensor *embed(fv_ctx *c, const dinov2 *m, const fv_items *in)
{
    const fv__vit_config *v = &m->cfg.vit;
    fv_tensor *image = fv_items_get(in, "pixel_values"),
              *hidden = fv_items_get(in, "bool_masked_pos");
    image = fv__image(c, "dinov2", image, v->num_channels);
    if (!image) return NULL;
    if (hidden && !m->mask_token)
        return fv_raise(c, FV_EARG, "dinov2: bool_masked_pos, but use_mask_token is false");
    int64_t size = fv__side(&v->patch_size, 0);
    fv_tensor *x = fv__hide_patches(c, fv_conv_patches(c, &m->patches, image), hidden,
                                    m->mask_token);
    fv_tensor *at = fv__vit_positions(c, m->positions, 1, fv__vit_grid(v, 0), fv__vit_grid(v, 1),
                                      fv_dim(image, 2) / size, fv_dim(image, 3) / size);
    return fv_dropout(c, fv_add(c, fv__prepend(c, m->class_token, x), at), v->hidden_dropout_prob);
}

/* The last norm is over all tokens: unlike CLIP's, patches are read behind it too. */
static fv_tensor *encode(fv_ctx *c, const dinov2 *m, fv_tensor *x)
{
    fv_mark mark = fv_mark_here(c);
    for (int i = 0; i < m->cfg.vit.num_hidden_layers; i++) {
        fv_tap(c, "hidden", "hidden_states", x);
        x = fv_layer_run(c, block_fwd, &m->blocks[i], x, (fv_mha_arg){0}, (fv_mha_arg){0});
        x = fv_keep(c, mark, x);
    }
    fv_tap(c, "hidden", "hidden_states", x);
    return fv_norm_fwd(c, &m->norm, x);
}

/* pooler_output is the class token as it is, there is no pooler. */
static void forward(fv_ctx *c, const void *self, const fv_items *in, fv_items *out)
{
    const dinov2 *m = self;
    fv_tensor *x = encode(c, m, embed(c, m, in)), *first = fv_first(c, x);
    if (m->job == FV_HEAD_BASE) {
        fv_items_put(out, "last_hidden_state", x);
        fv_items_put(out, "pooler_output", first);
        return;
    }
    fv_tensor *patches = fv_mean(c, fv_slice(c, x, 1, 1, fv_dim(x, 1)), 1);
    fv_tensor *both = fv_concat(c, (fv_tensor *[]){first, patches}, 2, 1);
    fv__put_classes(c, in, out, fv_lin_fwd(c, &m->classifier, both), m->cfg.vit.problem_type);
}

const fv_family fv__family_dinov2 = {
    .type = "dinov2",
    .heads = heads,
    .config = fields,
    .inputs = fv__masked_image_inputs,
    .config_size = sizeof(config),
    .size = sizeof(dinov2),
    .check = check,
    .declare = declare,
    .load = load,
    .pack = pack,
    .forward = forward,
};
