/* vit.c - the block of ViT, which DeiT, YOLOS and models of video have too, and the grid of
 * positions of all of them.
 *
 *     x = x + attn(norm(x));   x = x + mlp(norm(x))
 *
 * Images of another size than the configured one get the table of positions resized to their grid,
 * which transformers does where it is asked to (interpolate_pos_encoding) and refuses otherwise. */
#include "model/vit.h"

#include <stdio.h>

#include "core/core.h"
#include "ops/stat.h"

const fv_field fv__vit_fields[] = {
    FV__VIT_FIELDS,
    FV__IMAGE_FIELDS(fv__vit_config, , "16"),
    FV__VIT_HEAD_FIELDS,
    {0},
};

fv_status fv__vit_check(const fv__vit_config *k, fv_err *e)
{
    fv_status st = fv__heads_check(k->hidden_size, k->num_attention_heads, e);
    if (st) return st;
    if (k->image_size.n > 2 || k->patch_size.n > 2)
        return fv_fail(e, FV_EFORMAT, "image_size and patch_size have a height and a width");
    if (fv__side(&k->patch_size, 0) != fv__side(&k->patch_size, 1))
        return fv_fail(e, FV_EMISSING, "patch_size: patches that are no squares");
    if (fv__vit_grid(k, 0) < 1 || fv__vit_grid(k, 1) < 1)
        return fv_fail(e, FV_EFORMAT, "image_size %lldx%lld holds no patch of %lld pixels",
                       (long long)fv__side(&k->image_size, 0),
                       (long long)fv__side(&k->image_size, 1),
                       (long long)fv__side(&k->patch_size, 0));
    return FV_OK;
}

/* ---- layers ---- */

/* Below `at`, "vit.encoder.layer.0". */
static void block_init(fv_params *p, fv__vit_block *b, const fv__vit_config *k, const char *at)
{
    fv_norm_opt norm = {.eps = k->layer_norm_eps};
    b->dropout = k->hidden_dropout_prob;
    fv_mha_init(p, &b->attn, k->hidden_size, k->num_attention_heads,
                (fv_mha_opt){.in = {.no_bias = !k->qkv_bias, .std = k->initializer_range},
                             .out = {.std = k->initializer_range},
                             .names = "attention.query attention.key attention.value output.dense"},
                "%s.attention", at);
    b->attn.dropout = k->attention_probs_dropout_prob;
    fv_mlp_init(p, &b->mlp, k->hidden_size, k->intermediate_size,
                (fv_mlp_opt){.act = fv_act_of(k->hidden_act),
                             .lin = {.std = k->initializer_range},
                             .names = "intermediate.dense output.dense"},
                "%s", at);
    fv_norm_init(p, &b->attn_norm, k->hidden_size, norm, "%s.layernorm_before", at);
    fv_norm_init(p, &b->mlp_norm, k->hidden_size, norm, "%s.layernorm_after", at);
}

/* Below `at`: encoder.layer.N. */
fv__vit_block *fv__vit_blocks(fv_params *p, const fv__vit_config *k, const char *at)
{
    fv__vit_block *b = fv_params_scratch(p, (size_t)k->num_hidden_layers * sizeof *b);
    for (int i = 0; b && i < k->num_hidden_layers; i++) {
        char path[64];
        snprintf(path, sizeof path, "%sencoder.layer.%d", at, i);
        block_init(p, &b[i], k, path);
    }
    return b;
}

fv_tensor *fv__vit_run(fv_ctx *c, const fv__vit_block *b, int layers, fv_tensor *x, fv_mha_arg arg,
                       const char *hidden)
{
    fv_mark mark = fv_mark_here(c);
    for (int i = 0; i < layers; i++) {
        fv_tap(c, "hidden", hidden, x);
        x = fv_layer_run(c, fv__pre_norm_fwd, &b[i], x, arg, (fv_mha_arg){0});
        x = fv_keep(c, mark, x);
    }
    fv_tap(c, "hidden", hidden, x);
    return x;
}

fv_tensor *fv__vit_encode(fv_ctx *c, const fv__vit_block *b, const fv__vit_config *k, fv_tensor *x)
{
    return fv__vit_run(c, b, k->num_hidden_layers, x, (fv_mha_arg){0}, "hidden_states");
}

void fv__vit_pack(fv_params *p, fv__vit_block *b, int layers, fv_dtype dtype)
{
    for (int i = 0; i < layers; i++) {
        fv_mha_pack(p, &b[i].attn, dtype, true);
        fv_mlp_pack(p, &b[i].mlp, dtype);
    }
}

/* ---- embeddings ---- */

const fv_input fv__masked_image_inputs[] = {{"pixel_values", FV_F32, true},
                                            {"bool_masked_pos", FV_U8, false},
                                            {"labels", FV_I32, false},
                                            {0}};

void fv__vit_patches_init(fv_params *p, fv_conv *l, const fv__vit_config *k, const char *at)
{
    int64_t size = fv__side(&k->patch_size, 0);
    fv_conv_init(p, l, k->num_channels, k->hidden_size, size,
                 (fv_conv_layer_opt){.conv = {.stride = size}, .std = k->initializer_range},
                 "%sembeddings.patch_embeddings.projection", at);
}

/* (B,channels,height,width), in the arithmetic of the context. */
fv_tensor *fv__image(fv_ctx *c, const char *family, fv_tensor *image, int channels)
{
    if (!image) return NULL;
    if (image->shape.n == 4 && fv_dim(image, 1) == channels) return fv_cast(c, image, c->dtype);
    return fv_raise(c, FV_ESHAPE, "%s: pixel_values %s, expected (B,%d,height,width)", family,
                    fv_desc(image).s, channels);
}

/* Rows of special tokens stay; the h x w grid of the rest is resized to rows x cols. */
fv_tensor *fv__vit_positions(fv_ctx *c, fv_tensor *table, int64_t special, int64_t h, int64_t w,
                             int64_t rows, int64_t cols)
{
    if (rows == h && cols == w) return table;
    int64_t D = fv_cols(table);
    fv_tensor *grid = fv_grid_resize(c, fv_slice(c, table, 1, special, special + h * w), h, w, rows,
                                     cols);
    grid = fv_reshape(c, grid, FV_SHAPE(1, rows * cols, D));
    if (!special) return grid;
    return fv_concat(c, (fv_tensor *[]){fv_slice(c, table, 1, 0, special), grid}, 2, 1);
}

/* token (1,n,D) before each sequence of x (B,N,D). */
fv_tensor *fv__prepend(fv_ctx *c, fv_tensor *token, fv_tensor *x)
{
    if (!x || !token) return NULL;
    fv_shape s = FV_SHAPE(fv_dim(x, 0), fv_dim(token, 1), fv_dim(x, 2));
    return fv_concat(c, (fv_tensor *[]){fv_expand(c, token, s), x}, 2, 1);
}

/* (B,N,1): 1 where a patch is hidden. */
static fv_tensor *hidden_as_float(fv_ctx *c, fv_tensor *hidden)
{
    fv_shape s = FV_SHAPE(fv_dim(hidden, 0), fv_dim(hidden, 1), 1);
    return fv_masked_fill(c, fv_full(c, s, 1), fv_reshape(c, hidden, s), 0);
}

/* x where hidden is 0, token where it is 1; hidden (B,N). */
fv_tensor *fv__hide_patches(fv_ctx *c, fv_tensor *x, fv_tensor *hidden, fv_tensor *token)
{
    if (!x || !hidden) return x;
    if (hidden->shape.n != 2 || fv_dim(hidden, 0) != fv_dim(x, 0) ||
        fv_dim(hidden, 1) != fv_dim(x, 1))
        return fv_raise(c, FV_ESHAPE, "bool_masked_pos %s for patches %s", fv_desc(hidden).s,
                        fv_desc(x).s);
    fv_tensor *m = hidden_as_float(c, hidden);
    return fv_add(c, fv_mul(c, x, fv_affine(c, m, -1, 1)), fv_mul(c, token, m));
}

/* ---- heads ---- */

void fv__vit_put_base(fv_ctx *c, fv_items *out, fv_tensor *x, const fv_lin *pooler,
                      const fv__vit_config *k)
{
    fv_items_put(out, "last_hidden_state", x);
    if (!pooler->w) return;
    fv_items_put(out, "pooler_output",
                 fv_lin_act(c, pooler, fv_first(c, x), fv_act_of(k->pooler_act)));
}

void fv__vit_decoder_init(fv_params *p, fv_conv *l, const fv__vit_config *k)
{
    int64_t pixels = (int64_t)k->encoder_stride * k->encoder_stride * k->num_channels;
    fv_conv_init(p, l, k->hidden_size, pixels, 1, (fv_conv_layer_opt){.std = k->initializer_range},
                 "decoder.0");
}

/* x (B,N,p*p*C): the image made of its patches and, where some were hidden, the mean absolute
 * difference in them. */
void fv__put_pixels(fv_ctx *c, const fv_items *in, fv_items *out, fv_tensor *x, int64_t p)
{
    fv_tensor *image = fv_items_get(in, "pixel_values"),
              *hidden = fv_items_get(in, "bool_masked_pos");
    int64_t channels = fv_dim(image, 1);
    fv_items_put(out, "reconstruction",
                 fv_unpatchify(c, x, channels, p, fv_dim(image, 2) / p, fv_dim(image, 3) / p));
    if (!hidden) return;
    fv_tensor *m = fv__widen(c, hidden_as_float(c, hidden)), *wide = fv__widen(c, x),
              *pixels = fv_cast(c, fv_patchify(c, image, p), m ? m->dtype : FV_F32),
              *off = fv_mul(c, fv_abs(c, fv_sub(c, pixels, wide)), m),
              *sum = fv_scale(c, fv_sum_all(c, off), 1 / (float)channels);
    /* 1e-5 as in transformers, so that nothing hidden is a loss of 0 */
    fv_tensor *count = fv_affine(c, fv_sum_all(c, m), (float)(p * p), 1e-5f);
    if (in->n_labels > 0)
        sum = fv__per_label(c, fv_scale(c, sum, 1 / (float)(p * p)), in);
    else
        sum = fv_div(c, sum, count);
    fv_items_put(out, "loss", sum);
}
