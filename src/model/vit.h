/* vit.h - what ViT and its kin share: the keys of config.json, the layers, positions of a grid. */
#ifndef FV_MODEL_VIT_H
#define FV_MODEL_VIT_H

#include "model/part.h"

typedef struct fv__vit_config {
    int hidden_size, num_hidden_layers, num_attention_heads, intermediate_size, hidden_act;
    int num_channels, num_labels, problem_type;
    fv_int_list image_size, patch_size; /* one number for a square, or height and width */
    float hidden_dropout_prob, attention_probs_dropout_prob, initializer_range, layer_norm_eps;
    bool qkv_bias;
    int encoder_stride;                 /* of masked images: pixels of a patch */
    int pooler_act, pooler_output_size; /* of the pooler on the first token */
} fv__vit_config;

#define FV__VIT_FIELDS                                                                             \
    FV_INT(fv__vit_config, hidden_size, 1, 768, 1 << 16, "model width"),                           \
        FV_INT(fv__vit_config, num_hidden_layers, 1, 12, 256, "layers"),                           \
        FV_INT(fv__vit_config, num_attention_heads, 1, 12, 1024, "attention heads"),               \
        FV_INT(fv__vit_config, intermediate_size, 1, 3072, 1 << 18,                                \
               "width of the feed-forward part"),                                                  \
        FV_CHOICE(fv__vit_config, hidden_act, 0, fv_act_words,                                     \
                  "activation of the feed-forward part"),                                          \
        FV_FLOAT(fv__vit_config, hidden_dropout_prob, 0, 0, 0.99,                                  \
                 "on what each part of a layer adds, and on the embeddings"),                      \
        FV_FLOAT(fv__vit_config, attention_probs_dropout_prob, 0, 0, 0.99,                         \
                 "on the attention weights"),                                                      \
        FV_FLOAT(fv__vit_config, initializer_range, 0, 0.02, 10,                                   \
                 "standard deviation of first values; 0: Xavier"),                                 \
        FV_FLOAT(fv__vit_config, layer_norm_eps, 1e-20, 1e-12, 1,                                  \
                 "under the square root of each norm"),                                            \
        FV_INT(fv__vit_config, num_channels, 1, 3, 1024, "channels of an image"),                  \
        FV_BOOL(fv__vit_config, qkv_bias, true, "queries, keys and values have biases"),           \
        FV_CHOICE(fv__vit_config, problem_type, 0, fv_problem_words,                               \
                  "what the labels of an image are; not given: as they look"),                     \
        FV_INT(fv__vit_config, num_labels, 1, 2, 1 << 20, "labels")

/* That the heads divide the width, and that the sizes are squares or rectangles that hold a
 * patch. */
fv_status fv__vit_check(const fv__vit_config *k, fv_err *e);

/* Height (axis 0) or width (1) of a list of one or two numbers. */
static inline int64_t fv__side(const fv_int_list *size, int axis)
{
    return size->at[axis < size->n ? axis : 0];
}
/* Rows (axis 0) or columns (1) of the grid of patches of an image as configured. */
static inline int64_t fv__vit_grid(const fv__vit_config *k, int axis)
{
    return fv__side(&k->image_size, axis) / fv__side(&k->patch_size, axis);
}

/* One layer: a norm before attention and one before the feed-forward part. */
typedef struct fv__vit_block {
    fv_norm attn_norm, mlp_norm;
    fv_mha attn;
    fv_mlp mlp;
    float dropout;
} fv__vit_block;

/* One of them on x, for fv_layer_run. */
fv_tensor *fv__vit_block_fwd(fv_ctx *c, const void *self, fv_tensor *x, fv_mha_arg arg,
                             fv_mha_arg none);
/* Declares the layers encoder.layer.N below `at`, which is empty or ends in a dot. */
fv__vit_block *fv__vit_blocks(fv_params *p, const fv__vit_config *k, const char *at);
/* All of them on x (B,T,D); hidden states are shown to the tap. */
fv_tensor *fv__vit_encode(fv_ctx *c, const fv__vit_block *b, const fv__vit_config *k, fv_tensor *x);
/* The same for blocks of any names, under masks, with the name that hidden states are shown by. */
fv_tensor *fv__vit_run(fv_ctx *c, const fv__vit_block *b, int layers, fv_tensor *x, fv_mha_arg arg,
                       const char *hidden);
void fv__vit_pack(fv_params *p, fv__vit_block *b, int layers, fv_dtype dtype);

/* The rows of a table (1,special + h*w,D) for a grid of rows by cols patches: as it is where that
 * is h by w, else the positions of the patches resized; those of the first `special` tokens
 * stay. */
fv_tensor *fv__vit_positions(fv_ctx *c, fv_tensor *table, int64_t special, int64_t h, int64_t w,
                             int64_t rows, int64_t cols);
/* (1,1,D) or (1,n,D), in front of every sequence of x (B,T,D): (B,n+T,D). */
fv_tensor *fv__prepend(fv_ctx *c, fv_tensor *token, fv_tensor *x);
/* x (B,N,D) with the token (1,1,D) where hidden (B,N), U8, is 1. */
fv_tensor *fv__hide_patches(fv_ctx *c, fv_tensor *x, fv_tensor *hidden, fv_tensor *token);
/* Puts the "reconstruction" (B,C,H,W) made from x (B,N,C*p*p) and, where patches are hidden (B,N),
 * the "loss": the mean distance of their pixels to the image's. */
void fv__put_pixels(fv_ctx *c, const fv_items *in, fv_items *out, fv_tensor *x, int64_t p);
/* An image (B,channels,H,W) in the context's dtype: batches are uploaded in f32.  Raises and is
 * NULL where it has another shape. */
fv_tensor *fv__image(fv_ctx *c, const char *family, fv_tensor *image, int channels);

#endif
