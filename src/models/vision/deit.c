/* deit.c - DeiT: ViT with a second token in front, which learns from a teacher.
 *
 *     x = [class token, distillation token, patches] + positions;   layers as in ViT
 *
 * A model that was distilled has a classifier on each of the two tokens and answers with the mean
 * of their logits.
 *
 * Paper: Touvron et al. 2021 (arXiv:2012.12877). Everything but the second token and its
 * classifier is ViT's (model/vit.h). Names are those of transformers' DeiTModel. */
#include <stddef.h>
#include <string.h>

#include "model/vit.h"

static const fv_family_head heads[] = {
    {"DeiTModel", .job = FV_HEAD_BASE},
    {"DeiTForImageClassification", FV_HEAD_CLASSIFY, .base = "DeiTModel"},
    {"DeiTForImageClassificationWithTeacher", FV_HEAD_CLASSIFY, .base = "DeiTModel"},
    {"DeiTForMaskedImageModeling", FV_HEAD_MASKED_IMAGE, .base = "DeiTModel"},
    {0},
};

typedef fv__vit_config config;

typedef struct deit {
    config cfg;
    fv_head_job job;
    fv_tensor *class_token, *distillation_token, *mask_token; /* (1,1,D) each */
    fv_tensor *positions;                                     /* (1,2+N,D) */
    fv_conv patches, decoder;
    fv__vit_block *blocks;
    fv_norm norm;
    fv_lin pooler, classifier, teacher; /* teacher: of the distillation token */
} deit;

static fv_status check(const void *config_, fv_err *e) { return fv__vit_check(config_, e); }

/* ---- parameters ---- */

/* Two tokens in front of the patches, so the table of positions has 2 + N rows. */
static void declare(void *self, const fv_setup *s)
{
    deit *m = self;
    fv_params *p = s->params;
    m->cfg = *(const config *)s->config;
    m->job = s->head->job;
    const config *k = &m->cfg;
    const char *at = m->job == FV_HEAD_BASE ? "" : "deit.";
    int64_t D = k->hidden_size, N = fv__vit_grid(k, 0) * fv__vit_grid(k, 1);
    fv_init normal = {.kind = FV_INIT_NORMAL, .scale = k->initializer_range};
    fv_lin_opt lin = {.std = k->initializer_range};
    m->class_token = fv_param(p, normal, FV_SHAPE(1, 1, D), "%sembeddings.cls_token", at);
    m->distillation_token = fv_param(p, normal, FV_SHAPE(1, 1, D),
                                     "%sembeddings.distillation_token", at);
    if (m->job == FV_HEAD_MASKED_IMAGE)
        m->mask_token = fv_param(p, (fv_init){.kind = FV_INIT_ZERO}, FV_SHAPE(1, 1, D),
                                 "%sembeddings.mask_token", at);
    m->positions = fv_param(p, normal, FV_SHAPE(1, 2 + N, D), "%sembeddings.position_embeddings",
                            at);
    fv__vit_patches_init(p, &m->patches, k, at);
    m->blocks = fv__vit_blocks(p, k, at);
    fv_norm_init(p, &m->norm, D, (fv_norm_opt){.eps = k->layer_norm_eps}, "%slayernorm", at);
    /* an encoder from under another head has none in its file: nothing comes out for it then */
    if (m->job == FV_HEAD_BASE && fv__file_has(s, "deit.", "pooler.dense.weight"))
        fv_lin_init(p, &m->pooler, D, k->pooler_output_size ? k->pooler_output_size : D, lin,
                    "pooler.dense");
    if (m->job == FV_HEAD_CLASSIFY) {
        bool both = !strcmp(s->head->name, "DeiTForImageClassificationWithTeacher");
        fv_lin_init(p, &m->classifier, D, k->num_labels, lin,
                    both ? "cls_classifier" : "classifier");
        if (both) fv_lin_init(p, &m->teacher, D, k->num_labels, lin, "distillation_classifier");
    }
    if (m->job == FV_HEAD_MASKED_IMAGE) fv__vit_decoder_init(p, &m->decoder, k);
}

static fv_load_opt load(const void *self)
{
    (void)self;
    static const char *const others[] = {"*pooler.dense.*", "*embeddings.mask_token",
                                         "*classifier.*", "decoder.*", NULL};
    return (fv_load_opt){.prefix = "deit.", .ignore = others};
}

static void pack(void *self, fv_params *p, fv_dtype dtype)
{
    deit *m = self;
    fv__vit_pack(p, m->blocks, m->cfg.num_hidden_layers, dtype);
}

/* ---- forward ---- */

/* (B,C,H,W) -> (B,2+N,D), the class token first and the distillation token second. */
static fv_tensor *embed(fv_ctx *c, const deit *m, const fv_items *in)
{
    const config *k = &m->cfg;
    fv_tensor *image = fv_items_get(in, "pixel_values"),
              *hidden = fv_items_get(in, "bool_masked_pos");
    image = fv__image(c, "deit", image, k->num_channels);
    if (!image) return NULL;
    if (hidden && !m->mask_token)
        return fv_raise(c, FV_EARG, "deit: bool_masked_pos needs DeiTForMaskedImageModeling");
    int64_t size = fv__side(&k->patch_size, 0);
    fv_tensor *x = fv__hide_patches(c, fv_conv_patches(c, &m->patches, image), hidden,
                                    m->mask_token);
    fv_tensor *at = fv__vit_positions(c, m->positions, 2, fv__vit_grid(k, 0), fv__vit_grid(k, 1),
                                      fv_dim(image, 2) / size, fv_dim(image, 3) / size);
    x = fv__prepend(c, m->class_token, fv__prepend(c, m->distillation_token, x));
    return fv_dropout(c, fv_add(c, x, at), k->hidden_dropout_prob);
}

/* The decoder is a 1 x 1 convolution to encoder_stride^2 pixels of each patch and a pixel shuffle:
 * one product and a reshape. */
static void masked_image(fv_ctx *c, const deit *m, fv_tensor *x, const fv_items *in, fv_items *out)
{
    int64_t size = fv__side(&m->cfg.patch_size, 0);
    if (m->cfg.encoder_stride != size) {
        fv_raise(c, FV_EARG, "deit: patch_size %lld, encoder_stride %d: they must be equal",
                 (long long)size, m->cfg.encoder_stride);
        return;
    }
    fv_tensor *w = fv_reshape(c, m->decoder.w, FV_SHAPE(fv_dim(m->decoder.w, 0), -1)),
              *patches = fv_slice(c, x, 1, 2, fv_dim(x, 1));
    fv__put_pixels(c, in, out, fv_linear(c, patches, w, m->decoder.b, FV_ACT_NONE), size);
}

/* With a teacher's head, which is for inference alone as in transformers: the mean of what the
 * class token and the distillation token say. */
static void classify(fv_ctx *c, const deit *m, fv_tensor *x, const fv_items *in, fv_items *out)
{
    fv_tensor *logits = fv_lin_fwd(c, &m->classifier, fv_first(c, x));
    if (!m->teacher.w) {
        fv__put_classes(c, in, out, logits, m->cfg.problem_type);
        return;
    }
    if (fv_items_get(in, "labels")) {
        fv_raise(c, FV_EARG,
                 "deit: a head with a teacher takes no labels; "
                 "DeiTForImageClassification is the one to train");
        return;
    }
    fv_tensor *taught = fv_lin_fwd(c, &m->teacher, fv_first(c, fv_slice(c, x, 1, 1, 2)));
    fv_items_put(out, "logits", fv_scale(c, fv_add(c, logits, taught), 0.5f));
    fv_items_put(out, "cls_logits", logits);
    fv_items_put(out, "distillation_logits", taught);
}

static void forward(fv_ctx *c, const void *self, const fv_items *in, fv_items *out)
{
    const deit *m = self;
    const config *k = &m->cfg;
    fv_tensor *x = fv_norm_fwd(c, &m->norm, fv__vit_encode(c, m->blocks, k, embed(c, m, in)));
    switch (m->job) {
    case FV_HEAD_CLASSIFY: classify(c, m, x, in, out); return;
    case FV_HEAD_MASKED_IMAGE: masked_image(c, m, x, in, out); return;
    default: fv__vit_put_base(c, out, x, &m->pooler, k); return;
    }
}

const fv_family fv__family_deit = {
    .type = "deit",
    .heads = heads,
    .config = fv__vit_fields,
    .inputs = fv__masked_image_inputs,
    .config_size = sizeof(config),
    .size = sizeof(deit),
    .check = check,
    .declare = declare,
    .load = load,
    .pack = pack,
    .forward = forward,
};
