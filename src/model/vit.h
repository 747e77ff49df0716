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

/* One of these fields in a config whose member `vit` is an fv__vit_config. */
#define FV__VIT_FIELD(kind_, member_, ...) kind_##_KEY(#member_, config, vit.member_, __VA_ARGS__)
/* The sizes of the stack; square images of 224 pixels in patches of `patch`. */
#define FV__VIT_STACK_FIELDS                                                                       \
    FV__VIT_FIELD(FV_INT, hidden_size, 1, 768, 1 << 16, "model width"),                            \
        FV__VIT_FIELD(FV_INT, num_hidden_layers, 1, 12, 256, "layers"),                            \
        FV__VIT_FIELD(FV_INT, num_attention_heads, 1, 12, 1024, "attention heads"),                \
        FV__VIT_FIELD(FV_CHOICE, hidden_act, 0, fv_act_words,                                      \
                      "activation of the feed-forward part"),                                      \
        FV__VIT_FIELD(FV_FLOAT, attention_probs_dropout_prob, 0, 0, 0.99,                          \
                      "on the attention weights"),                                                 \
        FV__VIT_FIELD(FV_FLOAT, initializer_range, 0, 0.02, 10,                                    \
                      "standard deviation of first values; 0: Xavier")
/* What most add to it: AST, YOLOS. */
#define FV__VIT_LAYER_FIELDS                                                                       \
    FV__VIT_FIELD(FV_INT, intermediate_size, 1, 3072, 1 << 18, "width of the feed-forward part"),  \
        FV__VIT_FIELD(FV_FLOAT, hidden_dropout_prob, 0, 0, 0.99,                                   \
                      "on what each part of a layer adds, and on the embeddings"),                 \
        FV__VIT_FIELD(FV_FLOAT, layer_norm_eps, 1e-20, 1e-12, 1,                                   \
                      "under the square root of each norm")
#define FV__IMAGE_FIELDS(config, member, patch)                                                    \
    FV_INTS_KEY("image_size", config, member image_size, 1, "224", 1 << 14,                        \
                "pixels of a side; or height and width"),                                          \
        FV_INTS_KEY("patch_size", config, member patch_size, 1, patch, 1 << 12,                    \
                    "pixels of a patch's side")

/* Of the masked-image head and of the pooler. */
#define FV__VIT_HEAD_FIELDS                                                                        \
    FV_INT(fv__vit_config, encoder_stride, 1, 16, 1 << 12,                                         \
           "pixels of a side that the masked head predicts"),                                      \
        FV_CHOICE(fv__vit_config, pooler_act, 8, fv_act_words, "activation of the pooler"),        \
        FV_INT(fv__vit_config, pooler_output_size, 1, 0, 1 << 16,                                  \
               "of the pooler; not given: hidden_size")

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

/* The keys of ViT and DeiT, which are the same. */
extern const fv_field fv__vit_fields[];

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
typedef fv__pre_norm fv__vit_block;

/* Declares the layers encoder.layer.N below `at`, which is empty or ends in a dot. */
fv__vit_block *fv__vit_blocks(fv_params *p, const fv__vit_config *k, const char *at);
/* All of them on x (B,T,D); hidden states are shown to the tap. */
fv_tensor *fv__vit_encode(fv_ctx *c, const fv__vit_block *b, const fv__vit_config *k, fv_tensor *x);
/* The same for blocks of any names, under masks, with the name that hidden states are shown by. */
fv_tensor *fv__vit_run(fv_ctx *c, const fv__vit_block *b, int layers, fv_tensor *x, fv_mha_arg arg,
                       const char *hidden);
/* Declares the product of the patches, embeddings.patch_embeddings.projection, below `at`. */
void fv__vit_patches_init(fv_params *p, fv_conv *l, const fv__vit_config *k, const char *at);
/* decoder.0, which makes the pixels of a patch from what became of it. */
void fv__vit_decoder_init(fv_params *p, fv_conv *l, const fv__vit_config *k);
/* What the bare model gives of x (B,T,D): last_hidden_state, and pooler_output where there is a
 * pooler. */
void fv__vit_put_base(fv_ctx *c, fv_items *out, fv_tensor *x, const fv_lin *pooler,
                      const fv__vit_config *k);
/* pixel_values, bool_masked_pos, labels. */
extern const fv_input fv__masked_image_inputs[];
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
