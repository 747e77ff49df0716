/* nn.h - layers: small structs of parameters, with two verbs.
 *
 * fv_X_init declares a layer's parameters below a path (printf-style, "encoder.layers.%d.fc1") and
 * fills the struct; failures stick to the fv_params.  fv_X_fwd computes and leaves the struct
 * alone, so threads may share it.  Options are structs in which zero means the default, which is
 * what the Transformer of 2017 has. */
#ifndef FOVEA_AUTHOR_NN_H
#define FOVEA_AUTHOR_NN_H

#include "fovea/author/ops.h"
#include "fovea/author/params.h"
#include "fovea/author/position.h"

/* ---- linear: path.weight, path.bias ---- */

typedef struct fv_lin {
    fv_tensor *w, *b; /* w may be replaced by its fv_pack for inference; b may be NULL */
    bool in_out;
} fv_lin;

typedef struct fv_lin_opt {
    bool no_bias;
    bool in_out; /* the weight is stored (in,out), as GPT-2 has it, else (out,in) */
    float std;   /* first values: normal with this deviation; 0: Xavier */
} fv_lin_opt;

FV_API void fv_lin_init(fv_params *p, fv_lin *l, int64_t in, int64_t out, fv_lin_opt opt,
                        const char *path, ...) FV_PRINTF(6, 7);
FV_API fv_tensor *fv_lin_fwd(fv_ctx *c, const fv_lin *l, fv_tensor *x); /* (..,in) -> (..,out) */
/* with the activation in one pass */
FV_API fv_tensor *fv_lin_act(fv_ctx *c, const fv_lin *l, fv_tensor *x, fv_act act);

/* Replaces the weight by its layout for products (fv_params_pack), once parameters have values and
 * will not change.  Where the device has none for the parameters' own dtype the weight stays as it
 * is. */
FV_API void fv_lin_pack(fv_params *p, fv_lin *l, fv_dtype dtype);

/* ---- norm: path.weight, path.bias ---- */

typedef struct fv_norm {
    fv_tensor *gain, *bias;
    float eps;
    bool rms, plus_one;
} fv_norm;

/* Layer norm with gain and bias, or with a gain alone; RMS norm, which has no bias, and Gemma's, in
 * which 1 + gain multiplies and the gain begins as 0. */
typedef enum fv_norm_type {
    FV_LAYER_NORM,
    FV_LAYER_NORM_NO_BIAS,
    FV_RMS_NORM,
    FV_RMS_NORM_PLUS_ONE
} fv_norm_type;

typedef struct fv_norm_opt {
    fv_norm_type type;
    float eps; /* 0: 1e-5 */
} fv_norm_opt;

FV_API void fv_norm_init(fv_params *p, fv_norm *l, int64_t width, fv_norm_opt opt, const char *path,
                         ...) FV_PRINTF(5, 6);
FV_API fv_tensor *fv_norm_fwd(fv_ctx *c, const fv_norm *l, fv_tensor *x);
/* For serving, with the weights: 1 + gain is computed once. */
FV_API void fv_norm_pack(fv_params *p, fv_norm *l);
/* *sum = x + a, result = norm(*sum), in one pass; sum may be NULL. */
FV_API fv_tensor *fv_norm_add(fv_ctx *c, const fv_norm *l, fv_tensor **sum, fv_tensor *x,
                              fv_tensor *a);

/* ---- batch norm: path.weight, path.bias, path.running_mean, path.running_var ---- */

typedef struct fv_bn {
    fv_tensor *gain, *bias, *mean, *var;
    float momentum, eps; /* momentum: 0.1, unless a family sets another */
} fv_bn;

typedef struct fv_bn_opt {
    bool plain; /* no gain and bias of its own */
    float eps;  /* 0: 1e-5 */
} fv_bn_opt;

FV_API void fv_bn_init(fv_params *p, fv_bn *l, int64_t channels, fv_bn_opt opt, const char *path,
                       ...) FV_PRINTF(5, 6);
FV_API fv_tensor *fv_bn_fwd(fv_ctx *c, const fv_bn *l, fv_tensor *x); /* (B,C,..) */

/* ---- embedding: path.weight (vocab,width) ---- */

typedef struct fv_emb {
    fv_tensor *table;
    float scale; /* rows are multiplied by it: sqrt(width) in the Transformer of 2017; at first 1 */
    int32_t skip; /* this id's row gets no gradient, as that of padding; -1, at first: none */
} fv_emb;

/* std: deviation of the first values; 0: 1/sqrt(width).  Scale and skip are set in the struct. */
FV_API void fv_emb_init(fv_params *p, fv_emb *l, int64_t vocab, int64_t width, float std,
                        const char *path, ...) FV_PRINTF(6, 7);
/* I32 (B,T) -> (B,T,width) */
FV_API fv_tensor *fv_emb_fwd(fv_ctx *c, const fv_emb *l, fv_tensor *ids);
/* tied output: (..,width) -> (..,vocab) */
FV_API fv_tensor *fv_emb_logits(fv_ctx *c, const fv_emb *l, fv_tensor *x);

/* ---- multi-head attention: path.q_proj, path.k_proj, path.v_proj, path.out_proj ---- */

typedef struct fv_mha {
    fv_lin q, k, v, qkv, out;
    fv_norm q_norm, k_norm; /* of each head, before it is rotated; without a gain: none */
    bool by_head;           /* qkv: rows of q, k and v of one head, then of the next (GPT-NeoX) */
    int64_t n_head, n_kv_head, head;
    int64_t window;   /* > 0: only that many keys back */
    float scale;      /* of the scores; 0: 1/sqrt(head) */
    float dropout;    /* on the weights */
    const char *name; /* the path, for taps */
} fv_mha;

typedef struct fv_mha_opt {
    int64_t n_kv_head;  /* 0: n_head */
    int64_t head;       /* width of one head; 0: width / n_head */
    fv_lin_opt in, out; /* of the products before and behind the attention */
    /* Names below the path: of q, k, v and the last product, or of one weight for q, k and v and
     * the last product.  NULL: "q_proj k_proj v_proj out_proj". */
    const char *names;
} fv_mha_opt;

/* Keys and values kept between calls, (B,cap,G*W).  Where they are complete their B may also divide
 * that of x: then each serves several neighbours, as one encoded sentence serves all its beams. */
typedef struct fv_kv {
    fv_tensor *k, *v;
    /* I32 (B): rows where the new keys go; NULL: none are added, k and v are complete */
    fv_tensor *pos;
    fv_tensor *lens; /* I32 (B): keys that exist after that; NULL: all */
} fv_kv;

/* What differs from call to call; zero is plain self-attention. */
typedef struct fv_mha_arg {
    fv_tensor *memory; /* (B,Tk,..): attended to; NULL: x itself */
    bool causal;
    fv_tensor *key_mask, *mask, *bias, *rel; /* as in fv_attn */
    int64_t rel_zero;
    fv_rope_arg rope; /* rotary positions, where it has freq */
    const fv_kv *kv;  /* no gradient */
} fv_mha_arg;

/* What else an attention has is set in the struct: its window, the scale of its scores, dropout,
 * norms of its heads. */
FV_API void fv_mha_init(fv_params *p, fv_mha *l, int64_t width, int64_t n_head, fv_mha_opt opt,
                        const char *path, ...) FV_PRINTF(6, 7);
/* The same without its products, for a family that declares them itself. */
FV_API void fv_mha_bare(fv_params *p, fv_mha *l, int64_t n_head, int64_t head, const char *path,
                        ...) FV_PRINTF(5, 6);
/* (B,Tq,width) -> the same */
FV_API fv_tensor *fv_mha_fwd(fv_ctx *c, const fv_mha *l, fv_tensor *x, fv_mha_arg arg);
/* Keys and values of a memory, to be attended to many times: a complete fv_kv. */
FV_API fv_kv fv_mha_keys(fv_ctx *c, const fv_mha *l, fv_tensor *memory);

/* Packs all weights; joined: q, k and v become one product, for attention to x itself. */
FV_API void fv_mha_pack(fv_params *p, fv_mha *l, fv_dtype dtype, bool joined);

/* Transformer-XL: score = (q + u).k + (q + v).r[distance].  Besides path's own: path.r_net,
 * path.r_w_bias, path.r_r_bias. */
typedef struct fv_rel_mha {
    fv_mha att;
    fv_lin r;
    fv_tensor *u, *v;  /* (H,W) */
    float dropout;     /* of queries, keys, values and distances: a mask for a whole sequence */
    float dropconnect; /* of the weights that project them: a mask for a whole batch */
} fv_rel_mha;

FV_API void fv_rel_mha_init(fv_params *p, fv_rel_mha *l, int64_t width, int64_t n_head,
                            fv_mha_opt opt, const char *path, ...) FV_PRINTF(6, 7);
/* arg.memory: earlier states and then x, (B,L,width).  positions (L,width): sinusoids of the
 * distances L-1, .., 1, 0. */
FV_API fv_tensor *fv_rel_mha_fwd(fv_ctx *c, const fv_rel_mha *l, fv_tensor *x, fv_tensor *positions,
                                 fv_mha_arg arg);

/* ---- feed-forward: path.fc1, path.fc2 ---- */

typedef struct fv_mlp {
    fv_lin up, gate, down;
    fv_act act;
    bool packed;
    float dropout; /* inside, after the activation */
} fv_mlp;

typedef struct fv_mlp_opt {
    fv_act act; /* FV_ACT_NONE: relu */
    /* gated, with one weight: the rows of the gate, then those of the other */
    bool packed;
    fv_lin_opt lin;
    /* Names below the path: up and down, act(up x), or gate, up and down, act(gate x) * (up x).
     * NULL: "fc1 fc2". */
    const char *names;
} fv_mlp_opt;

/* width -> hidden -> width. */
FV_API void fv_mlp_init(fv_params *p, fv_mlp *l, int64_t width, int64_t hidden, fv_mlp_opt opt,
                        const char *path, ...) FV_PRINTF(6, 7);
FV_API fv_tensor *fv_mlp_fwd(fv_ctx *c, const fv_mlp *l, fv_tensor *x);
FV_API void fv_mlp_pack(fv_params *p, fv_mlp *l, fv_dtype dtype);

/* ---- blocks: what a family writes its layers of ----
 *
 * A pre-norm block is
 *
 *     h = fv_norm_fwd(c, &b->attn_norm, x);
 *     h = fv_mha_add_norm(c, &b->attn, &x, h, arg, dropout, &b->mlp_norm);
 *     return fv_mlp_add(c, &b->mlp, x, h, dropout);
 *
 * which fv_pre_norm is in one call, and a post-norm one
 *
 *     x = fv_norm_add(c, &b->attn_norm, NULL, x, fv_mha_fwd(c, &b->attn, x, arg));
 *     return fv_mlp_norm(c, &b->mlp, x, dropout, &b->mlp_norm);
 *
 * All are (B,T,width) -> (B,T,width); each may be replaced by its ops, with the same result. */

/* *x += dropout(attention(h)); returns norm(*x). */
FV_API fv_tensor *fv_mha_add_norm(fv_ctx *c, const fv_mha *l, fv_tensor **x, fv_tensor *h,
                                  fv_mha_arg arg, float dropout, const fv_norm *norm);
/* x + dropout(mlp(h)) */
FV_API fv_tensor *fv_mlp_add(fv_ctx *c, const fv_mlp *l, fv_tensor *x, fv_tensor *h, float dropout);
/* norm(x + dropout(mlp(x))) */
FV_API fv_tensor *fv_mlp_norm(fv_ctx *c, const fv_mlp *l, fv_tensor *x, float dropout,
                              const fv_norm *norm);

/* The block above.  For one token of each sequence of a session it is fused, where the device has
 * kernels for that. */
FV_API fv_tensor *fv_pre_norm(fv_ctx *c, const fv_norm *attn_norm, const fv_mha *attn,
                              const fv_norm *mlp_norm, const fv_mlp *mlp, fv_tensor *x,
                              fv_mha_arg arg, float dropout);
/* With attention to others between the two, x += dropout(cross(cross_norm(x))); fused likewise. */
FV_API fv_tensor *fv_pre_norm_cross(fv_ctx *c, const fv_norm *attn_norm, const fv_mha *attn,
                                    const fv_norm *cross_norm, const fv_mha *cross,
                                    const fv_norm *mlp_norm, const fv_mlp *mlp, fv_tensor *x,
                                    fv_mha_arg arg, fv_mha_arg cross_arg, float dropout);
/* x + dropout(attention(attn_norm(x))) + dropout(mlp(mlp_norm(x))), fused likewise. */
FV_API fv_tensor *fv_parallel(fv_ctx *c, const fv_norm *attn_norm, const fv_mha *attn,
                              const fv_norm *mlp_norm, const fv_mlp *mlp, fv_tensor *x,
                              fv_mha_arg arg, float dropout);

/* Stochastic depth: in training a share p of the batch is 0 and the rest divided by 1 - p, each
 * element of axis 0 as a whole; else x itself. */
FV_API fv_tensor *fv_drop_path(fv_ctx *c, fv_tensor *x, float p);

/* fn(c, block, x, self, cross), computed again in the backward pass where the context recomputes
 * (fv_checkpoint).  block must live until then. */
typedef fv_tensor *fv_layer_fn(fv_ctx *c, const void *block, fv_tensor *x, fv_mha_arg self,
                               fv_mha_arg cross);
FV_API fv_tensor *fv_layer_run(fv_ctx *c, fv_layer_fn *fn, const void *block, fv_tensor *x,
                               fv_mha_arg self, fv_mha_arg cross);

/* ---- convolution and patches: path.weight, path.bias ---- */

typedef struct fv_conv {
    fv_tensor *w, *b;
    fv_conv_opt opt;
    int dims;
} fv_conv;

typedef struct fv_conv_layer_opt {
    int dims; /* 1 or 2; 0: 2 */
    bool no_bias;
    fv_conv_opt conv; /* stride, padding, ... */
    float std;
} fv_conv_layer_opt;

FV_API void fv_conv_init(fv_params *p, fv_conv *l, int64_t in, int64_t out, int64_t kernel,
                         fv_conv_layer_opt opt, const char *path, ...) FV_PRINTF(7, 8);
FV_API fv_tensor *fv_conv_fwd(fv_ctx *c, const fv_conv *l, fv_tensor *x);
/* An image (B,C,H,W) as the sequence of its patches (B,N,width), row by row; init with stride =
 * kernel, which makes it one product with the weight.  Pixels at the right and bottom that do not
 * fill a patch do not count. */
FV_API fv_tensor *fv_conv_patches(fv_ctx *c, const fv_conv *l, fv_tensor *image);

/* (B,C,H,W) -> (B,H/p * W/p,C*p*p): the pixels of each patch, channel by channel; and back, given
 * the rows and columns of the grid of patches. */
FV_API fv_tensor *fv_patchify(fv_ctx *c, fv_tensor *image, int64_t p);
FV_API fv_tensor *fv_unpatchify(fv_ctx *c, fv_tensor *x, int64_t channels, int64_t p, int64_t rows,
                                int64_t cols);

/* A grid of vectors resized by bicubic interpolation, as PyTorch's interpolate has it (pixel
 * centres, borders repeated, no antialiasing): x (h*w,D) or (1,h*w,D) -> (oh*ow,D). */
FV_API fv_tensor *fv_grid_resize(fv_ctx *c, fv_tensor *x, int64_t h, int64_t w, int64_t oh,
                                 int64_t ow);

#endif
