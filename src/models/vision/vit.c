/* vit.c - ViT: an image as a sequence of patches, with a token in front that stands for all of it.
 *
 *     x = [class token, patches] + positions;   layers, each x + attn(norm(x)), x + mlp(norm(x))
 *
 * An image of another size than image_size gets its positions interpolated.  Hidden patches
 * (bool_masked_pos) are replaced by a mask token, and their pixels predicted by the masked-image
 * head.
 *
 * Paper: Dosovitskiy et al. 2021 (arXiv:2010.11929). The block, the grid of positions and the
 * masked-image loss are shared with DeiT, YOLOS and models of video (model/vit.h). Names are
 * those of transformers' ViTModel: encoder.layer.N.attention.attention.query. */
#include <stddef.h>

#include "model/vit.h"

static const fv_family_head heads[] = {
    {"ViTModel", .job = FV_HEAD_BASE},
    {"ViTForImageClassification", FV_HEAD_CLASSIFY, .base = "ViTModel"},
    {"ViTForMaskedImageModeling", FV_HEAD_MASKED_IMAGE, .base = "ViTModel"},
    {0},
};

typedef fv__vit_config config;

typedef struct vit {
    config cfg;
    fv_head_job job;
    fv_tensor *class_token, *mask_token, *positions; /* (1,1,D), (1,1,D), (1,1+N,D) */
    fv_conv patches, decoder;
    fv__vit_block *blocks;
    fv_norm norm;
    fv_lin pooler, classifier;
} vit;

static fv_status check(const void *config_, fv_err *e) { return fv__vit_check(config_, e); }

/* ---- parameters ---- */

/* Positions: one row for the class token, then the grid of an image of image_size, row by row. */
static void declare(void *self, const fv_setup *s)
{
    vit *m = self;
    fv_params *p = s->params;
    m->cfg = *(const config *)s->config;
    m->job = s->head->job;
    const config *k = &m->cfg;
    const char *at = m->job == FV_HEAD_BASE ? "" : "vit.";
    int64_t D = k->hidden_size, N = fv__vit_grid(k, 0) * fv__vit_grid(k, 1);
    fv_init normal = {.kind = FV_INIT_NORMAL, .scale = k->initializer_range};
    fv_lin_opt lin = {.std = k->initializer_range};
    m->class_token = fv_param(p, normal, FV_SHAPE(1, 1, D), "%sembeddings.cls_token", at);
    if (m->job == FV_HEAD_MASKED_IMAGE)
        m->mask_token = fv_param(p, (fv_init){.kind = FV_INIT_ZERO}, FV_SHAPE(1, 1, D),
                                 "%sembeddings.mask_token", at);
    m->positions = fv_param(p, normal, FV_SHAPE(1, 1 + N, D), "%sembeddings.position_embeddings",
                            at);
    fv__vit_patches_init(p, &m->patches, k, at);
    m->blocks = fv__vit_blocks(p, k, at);
    fv_norm_init(p, &m->norm, D, (fv_norm_opt){.eps = k->layer_norm_eps}, "%slayernorm", at);
    /* an encoder from under another head has none in its file: nothing comes out for it then */
    if (m->job == FV_HEAD_BASE && fv__file_has(s, "vit.", "pooler.dense.weight"))
        fv_lin_init(p, &m->pooler, D, k->pooler_output_size ? k->pooler_output_size : D, lin,
                    "pooler.dense");
    if (m->job == FV_HEAD_CLASSIFY)
        fv_lin_init(p, &m->classifier, D, k->num_labels, lin, "classifier");
    if (m->job == FV_HEAD_MASKED_IMAGE) fv__vit_decoder_init(p, &m->decoder, k);
}

static fv_load_opt load(const void *self)
{
    (void)self;
    static const char *const others[] = {"*pooler.dense.*", "*embeddings.mask_token",
                                         "classifier.*", "decoder.*", NULL};
    return (fv_load_opt){.prefix = "vit.", .ignore = others};
}

static void pack(void *self, fv_params *p, fv_dtype dtype)
{
    vit *m = self;
    fv__vit_pack(p, m->blocks, m->cfg.num_hidden_layers, dtype);
}

/* ---- forward ---- */

/* (B,C,H,W) -> (B,1+N,D). */
static fv_tensor *embed(fv_ctx *c, const vit *m, const fv_items *in)
{
    const config *k = &m->cfg;
    fv_tensor *image = fv_items_get(in, "pixel_values"),
              *hidden = fv_items_get(in, "bool_masked_pos");
    image = fv__image(c, "vit", image, k->num_channels);
    if (!image) return NULL;
    if (hidden && !m->mask_token)
        return fv_raise(c, FV_EARG, "vit: bool_masked_pos needs ViTForMaskedImageModeling");
    int64_t size = fv__side(&k->patch_size, 0);
    fv_tensor *x = fv__hide_patches(c, fv_conv_patches(c, &m->patches, image), hidden,
                                    m->mask_token);
    fv_tensor *at = fv__vit_positions(c, m->positions, 1, fv__vit_grid(k, 0), fv__vit_grid(k, 1),
                                      fv_dim(image, 2) / size, fv_dim(image, 3) / size);
    return fv_dropout(c, fv_add(c, fv__prepend(c, m->class_token, x), at), k->hidden_dropout_prob);
}

/* Pixels of each patch by one product, as the published 1 x 1 convolution and pixel shuffle do. */
static void masked_image(fv_ctx *c, const vit *m, fv_tensor *x, const fv_items *in, fv_items *out)
{
    int64_t size = fv__side(&m->cfg.patch_size, 0);
    if (m->cfg.encoder_stride != size) {
        fv_raise(c, FV_EARG, "vit: patch_size %lld, encoder_stride %d: they must be equal",
                 (long long)size, m->cfg.encoder_stride);
        return;
    }
    fv_tensor *w = fv_reshape(c, m->decoder.w, FV_SHAPE(fv_dim(m->decoder.w, 0), -1)),
              *patches = fv_slice(c, x, 1, 1, fv_dim(x, 1));
    fv__put_pixels(c, in, out, fv_linear(c, patches, w, m->decoder.b, FV_ACT_NONE), size);
}

static void forward(fv_ctx *c, const void *self, const fv_items *in, fv_items *out)
{
    const vit *m = self;
    const config *k = &m->cfg;
    fv_tensor *x = fv_norm_fwd(c, &m->norm, fv__vit_encode(c, m->blocks, k, embed(c, m, in)));
    switch (m->job) {
    case FV_HEAD_CLASSIFY:
        fv__put_classes(c, in, out, fv_lin_fwd(c, &m->classifier, fv_first(c, x)), k->problem_type);
        return;
    case FV_HEAD_MASKED_IMAGE: masked_image(c, m, x, in, out); return;
    default: fv__vit_put_base(c, out, x, &m->pooler, k); return;
    }
}

const fv_family fv__family_vit = {
    .type = "vit",
    .heads = heads,
    .config = fv__vit_fields,
    .inputs = fv__masked_image_inputs,
    .config_size = sizeof(config),
    .size = sizeof(vit),
    .check = check,
    .declare = declare,
    .load = load,
    .pack = pack,
    .forward = forward,
};
