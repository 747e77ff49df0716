/* ops.h - the operations.  All take and return tensors of one context; NULL in gives NULL out.
 *
 * Shapes are written (B,T,D): batch, time, width; H heads, W head width, V vocabulary.  "rows" are
 * all axes but the last.  Every op has a gradient unless its comment says "no gradient": such an op
 * refuses to run on something that wants one (put fv_detach in front if that is meant). */
#ifndef FOVEA_OPS_H
#define FOVEA_OPS_H

#include "fovea/tensor.h"

/* ---- products ---- */

typedef enum fv_act {
    FV_ACT_NONE = 0,
    FV_RELU,
    FV_GELU,      /* x * Phi(x), by erf */
    FV_GELU_TANH, /* its tanh approximation (GPT-2) */
    FV_SILU,
    FV_TANH,
    FV_SIGMOID
} fv_act;

/* (..,M,K) x (..,K,N) -> (..,M,N).  Leading axes must be equal, or b has none and serves all.  ta,
 * tb: a is stored (..,K,M), b (..,N,K). */
typedef struct fv_mm {
    bool ta, tb;
    float alpha; /* 0 means 1 */
} fv_mm;
FV_API fv_tensor *fv_matmul(fv_ctx *c, fv_tensor *a, fv_tensor *b, fv_mm opt);
/* act(x w' + bias): x (..,K), w (N,K) -> (..,N); w may be packed (then no gradient); bias (N) or
 * NULL. */
FV_API fv_tensor *fv_linear(fv_ctx *c, fv_tensor *x, fv_tensor *w, fv_tensor *bias, fv_act act);
/* The same with w stored (K,N), as GPT-2 has it. */
FV_API fv_tensor *fv_linear_in_out(fv_ctx *c, fv_tensor *x, fv_tensor *w, fv_tensor *bias,
                                   fv_act act);
/* A weight (N,K), or (K,N) if in_out, packed for this device and converted to dtype (f32, bf16, q8,
 * q4).  No gradient. */
FV_API fv_tensor *fv_pack(fv_ctx *c, fv_tensor *w, fv_dtype dtype, bool in_out);

/* ---- element-wise; a and b are broadcast as NumPy does ---- */

FV_API fv_tensor *fv_add(fv_ctx *c, fv_tensor *a, fv_tensor *b);
FV_API fv_tensor *fv_sub(fv_ctx *c, fv_tensor *a, fv_tensor *b);
FV_API fv_tensor *fv_mul(fv_ctx *c, fv_tensor *a, fv_tensor *b);
FV_API fv_tensor *fv_div(fv_ctx *c, fv_tensor *a, fv_tensor *b);
/* equal: half the gradient each */
FV_API fv_tensor *fv_maximum(fv_ctx *c, fv_tensor *a, fv_tensor *b);

FV_API fv_tensor *fv_scale(fv_ctx *c, fv_tensor *x, float by);              /* by * x */
FV_API fv_tensor *fv_affine(fv_ctx *c, fv_tensor *x, float by, float plus); /* by * x + plus */
FV_API fv_tensor *fv_activate(fv_ctx *c, fv_tensor *x, fv_act act);
FV_API fv_tensor *fv_relu(fv_ctx *c, fv_tensor *x);
FV_API fv_tensor *fv_leaky_relu(fv_ctx *c, fv_tensor *x, float slope);
FV_API fv_tensor *fv_gelu(fv_ctx *c, fv_tensor *x);
FV_API fv_tensor *fv_gelu_tanh(fv_ctx *c, fv_tensor *x);
FV_API fv_tensor *fv_silu(fv_ctx *c, fv_tensor *x);
FV_API fv_tensor *fv_tanh(fv_ctx *c, fv_tensor *x);
FV_API fv_tensor *fv_sigmoid(fv_ctx *c, fv_tensor *x);
FV_API fv_tensor *fv_exp(fv_ctx *c, fv_tensor *x);
FV_API fv_tensor *fv_log(fv_ctx *c, fv_tensor *x);
FV_API fv_tensor *fv_sqrt(fv_ctx *c, fv_tensor *x);
FV_API fv_tensor *fv_rsqrt(fv_ctx *c, fv_tensor *x);
FV_API fv_tensor *fv_abs(fv_ctx *c, fv_tensor *x); /* gradient 0 at 0 */
FV_API fv_tensor *fv_square(fv_ctx *c, fv_tensor *x);
FV_API fv_tensor *fv_softplus(fv_ctx *c, fv_tensor *x);
FV_API fv_tensor *fv_clamp(fv_ctx *c, fv_tensor *x, float low, float high);
FV_API fv_tensor *fv_dropout(fv_ctx *c, fv_tensor *x, float p); /* x itself unless training */
FV_API fv_tensor *fv_cast(fv_ctx *c, fv_tensor *x, fv_dtype dtype);
/* value where mask (U8, broadcast) is 0, x where it is 1 */
FV_API fv_tensor *fv_masked_fill(fv_ctx *c, fv_tensor *x, fv_tensor *mask, float value);

/* ---- shape ---- */

/* one axis may be -1; shares memory */
FV_API fv_tensor *fv_reshape(fv_ctx *c, fv_tensor *x, fv_shape s);
/* axes: one per axis of x */
FV_API fv_tensor *fv_permute(fv_ctx *c, fv_tensor *x, const int *axes);
FV_API fv_tensor *fv_transpose(fv_ctx *c, fv_tensor *x); /* last two axes */
/* axis < 0 counts from the end */
FV_API fv_tensor *fv_slice(fv_ctx *c, fv_tensor *x, int axis, int64_t from, int64_t to);
/* first n along axis 0; shares memory */
FV_API fv_tensor *fv_head(fv_ctx *c, fv_tensor *x, int64_t n);
FV_API fv_tensor *fv_concat(fv_ctx *c, fv_tensor *const *x, int n, int axis);
/* n equal parts; false on failure */
FV_API bool fv_split(fv_ctx *c, fv_tensor **out, fv_tensor *x, int n, int axis);
FV_API fv_tensor *fv_pad(fv_ctx *c, fv_tensor *x, int axis, int64_t before, int64_t after,
                         float value);
FV_API fv_tensor *fv_roll(fv_ctx *c, fv_tensor *x, int axis, int64_t by);
FV_API fv_tensor *fv_expand(fv_ctx *c, fv_tensor *x, fv_shape s); /* broadcast to s */
/* Transformer-XL: (..,T,L) -> (..,T,L), y[i,j] = x[i, j + T-1-i] where that exists and 0
 * elsewhere */
FV_API fv_tensor *fv_rel_shift(fv_ctx *c, fv_tensor *x);

/* ---- along an axis ---- */

FV_API fv_tensor *fv_sum(fv_ctx *c, fv_tensor *x, int axis); /* the axis disappears */
FV_API fv_tensor *fv_mean(fv_ctx *c, fv_tensor *x, int axis);
FV_API fv_tensor *fv_max(fv_ctx *c, fv_tensor *x, int axis); /* gradient to the first largest */
FV_API fv_tensor *fv_sum_all(fv_ctx *c, fv_tensor *x);       /* a scalar */
FV_API fv_tensor *fv_mean_all(fv_ctx *c, fv_tensor *x);
FV_API fv_tensor *fv_argmax(fv_ctx *c, fv_tensor *x, int axis); /* I32; no gradient */
/* The k largest of each row, largest first; *index (I32) may be NULL. */
FV_API fv_tensor *fv_topk(fv_ctx *c, fv_tensor *x, int64_t k, fv_tensor **index);
FV_API fv_tensor *fv_cumsum(fv_ctx *c, fv_tensor *x, int axis);
FV_API fv_tensor *fv_softmax(fv_ctx *c, fv_tensor *x); /* last axis */
FV_API fv_tensor *fv_log_softmax(fv_ctx *c, fv_tensor *x);

/* ---- normalisation; gain and bias of one row, or NULL ---- */

FV_API fv_tensor *fv_layernorm(fv_ctx *c, fv_tensor *x, fv_tensor *gain, fv_tensor *bias,
                               float eps);
FV_API fv_tensor *fv_rmsnorm(fv_ctx *c, fv_tensor *x, fv_tensor *gain, float eps);
/* *sum = x + a, result = norm(*sum): the residual step in one pass over memory.  sum may be
 * NULL. */
FV_API fv_tensor *fv_add_layernorm(fv_ctx *c, fv_tensor **sum, fv_tensor *x, fv_tensor *a,
                                   fv_tensor *gain, fv_tensor *bias, float eps);
FV_API fv_tensor *fv_add_rmsnorm(fv_ctx *c, fv_tensor **sum, fv_tensor *x, fv_tensor *a,
                                 fv_tensor *gain, float eps);
/* x (B,C,..); mean, var (C): running statistics (f32), moved by `momentum` towards the batch while
 * training. */
FV_API fv_tensor *fv_batchnorm(fv_ctx *c, fv_tensor *x, fv_tensor *gain, fv_tensor *bias,
                               fv_tensor *mean, fv_tensor *var, float momentum, float eps);
/* w / sigma(w): w (N,..) seen as a matrix; u (N), v (rest) hold the singular vectors, one power
 * iteration per training call.  Gradient as in the paper: u and v count as constants. */
FV_API fv_tensor *fv_spectral_norm(fv_ctx *c, fv_tensor *w, fv_tensor *u, fv_tensor *v, float eps);

/* ---- tables, convolutions, positions ---- */

/* table (V,D), ids I32 (..) -> (..,D).  skip: an id whose row gets no gradient (padding), or -1. */
FV_API fv_tensor *fv_gather(fv_ctx *c, fv_tensor *table, fv_tensor *ids, int32_t skip);
/* (V,D) with y[ids[i]] += x[i]: the other direction; x (..,D) */
FV_API fv_tensor *fv_scatter_add(fv_ctx *c, fv_tensor *x, fv_tensor *ids, int64_t vocab);

typedef struct fv_conv_opt {
    int64_t stride, pad, dilation, groups, out_pad;
} fv_conv_opt; /* 0 means 1, 0, 1, 1, 0 */
/* x (B,C,T), w (O,C/groups,K) ; x (B,C,H,W), w (O,C/groups,KH,KW); bias (O) or NULL */
FV_API fv_tensor *fv_conv1d(fv_ctx *c, fv_tensor *x, fv_tensor *w, fv_tensor *bias,
                            fv_conv_opt opt);
FV_API fv_tensor *fv_conv2d(fv_ctx *c, fv_tensor *x, fv_tensor *w, fv_tensor *bias,
                            fv_conv_opt opt);
/* the transposes, as PyTorch defines them: w (C,O/groups,K) and (C,O/groups,KH,KW) */
FV_API fv_tensor *fv_conv1d_transpose(fv_ctx *c, fv_tensor *x, fv_tensor *w, fv_tensor *bias,
                                      fv_conv_opt opt);
FV_API fv_tensor *fv_conv2d_transpose(fv_ctx *c, fv_tensor *x, fv_tensor *w, fv_tensor *bias,
                                      fv_conv_opt opt);
/* (B,C,H,W) -> (B,C,H*times,W*times) */
FV_API fv_tensor *fv_upsample_nearest(fv_ctx *c, fv_tensor *x, int64_t times);
FV_API fv_tensor *fv_upsample_bilinear(fv_ctx *c, fv_tensor *x, int64_t oh, int64_t ow);

/* Rotary positions on x (B,T,H*W): pos I32 (B,T), freq f32 (half) angles per step, or (B,half)
 * where sequences differ; see nn.h for making freq. */
typedef struct fv_rope_opt {
    int64_t n_head;
    bool adjacent;
} fv_rope_opt;
FV_API fv_tensor *fv_rope(fv_ctx *c, fv_tensor *x, fv_tensor *pos, fv_tensor *freq,
                          fv_rope_opt opt);

/* ---- losses; each returns one value per row or a scalar, in f32 (f64 for f64) ---- */

typedef struct fv_ce_opt {
    float smooth;
    int32_t ignore;
} fv_ce_opt; /* ignore: a label that does not count; use -100 */
/* logits (..,V), labels I32 (..) -> (..): one loss per row, 0 for ignored.  Probabilities are never
 * stored. */
FV_API fv_tensor *fv_cross_entropy(fv_ctx *c, fv_tensor *logits, fv_tensor *labels, fv_ce_opt opt);
/* The same of the logits x w', x (..,D), w (V,D).  *logits gets them, or NULL: a device may do
 * without them where the context trains, in less memory and time. */
FV_API fv_tensor *fv_linear_cross_entropy(fv_ctx *c, fv_tensor **logits, fv_tensor *x, fv_tensor *w,
                                          fv_tensor *labels, fv_ce_opt opt);
FV_API fv_tensor *fv_bce(fv_ctx *c, fv_tensor *logits, fv_tensor *target); /* mean, with logits */
/* mean of max(0, 1 - sign x) */
FV_API fv_tensor *fv_hinge(fv_ctx *c, fv_tensor *x, fv_tensor *sign);
FV_API fv_tensor *fv_mse(fv_ctx *c, fv_tensor *x, fv_tensor *target); /* mean */
FV_API fv_tensor *fv_mae(fv_ctx *c, fv_tensor *x, fv_tensor *target); /* mean */
/* logits (B,T,U+1,V), labels (B,U), tlen and ulen (B) -> (B): minus log-likelihood over all
 * alignments */
FV_API fv_tensor *fv_rnnt_loss(fv_ctx *c, fv_tensor *logits, fv_tensor *labels, fv_tensor *tlen,
                               fv_tensor *ulen, int32_t blank);

/* ---- attention ---- */

/* q (B,Tq,H*Wk), k (B,Tk,G*Wk), v (B,Tk,G*Wv) -> (B,Tq,H*Wv).  Masks are U8: 1 takes part, 0 does
 * not, everywhere in fovea.  A row in which no key takes part gives zeros and no gradient.  Memory
 * is linear in Tq and Tk. */
/* What an attention is for: whoever sees it by a tap sorts it by this. */
typedef enum fv_attn_role {
    FV_ATTN_SELF = 0, /* tokens of one sequence, both ways: an encoder's */
    FV_ATTN_CAUSAL,   /* tokens of one sequence, earlier ones only: a decoder's */
    FV_ATTN_CROSS     /* a decoder's, to what an encoder made */
} fv_attn_role;

typedef struct fv_attn {
    int64_t n_head;    /* H */
    int64_t n_kv_head; /* G; 0 means H */
    bool causal; /* row i sees keys up to its own position; the last row stands at the last key */
    int64_t window;      /* > 0: only that many keys back */
    float scale;         /* 0 means 1/sqrt(Wk) */
    float dropout;       /* on the weights, while training */
    fv_tensor *key_mask; /* U8 (B,Tk): padding */
    fv_tensor *mask;     /* U8 (B|1,H|1,Tq|1,Tk), or fewer leading axes */
    fv_tensor *bias;     /* float, likewise; added to the scores, with gradient */
    /* float (H,L): added by distance, element rel_zero for a key at the row's own position */
    fv_tensor *rel;
    int64_t rel_zero;
    fv_tensor *lens; /* I32 (B): only the first lens[b] keys exist (a cache filled so far) */
    /* for taps; causal attention is FV_ATTN_CAUSAL unless it is FV_ATTN_CROSS */
    fv_attn_role role;
    const char *name; /* for taps */
} fv_attn;
FV_API fv_tensor *fv_attention(fv_ctx *c, fv_tensor *q, fv_tensor *k, fv_tensor *v, fv_attn opt);
/* The same from one tensor (B,T,(H+2G)*W) that holds q, k and v side by side. */
FV_API fv_tensor *fv_attention_packed(fv_ctx *c, fv_tensor *qkv, fv_attn opt);

/* What a tap of site "attention" receives.  Valid during the call, and until reset if recording. */
typedef struct fv_attn_view fv_attn_view;
FV_API fv_shape fv_attn_view_shape(const fv_attn_view *v); /* (B,H,Tq,Tk) */
FV_API fv_attn_role fv_attn_view_role(const fv_attn_view *v);
/* Exact weights before dropout, (to-from, Tk), rows [from,to) of one head, worked out now.  t is
 * f32 (f64 beside f64), or the dtype of q, k and v: then they are rounded once, and take half of
 * the room and of the time to be written.  No gradient. */
FV_API fv_tensor *fv_attn_view_map(fv_ctx *c, const fv_attn_view *v, fv_dtype t, int64_t b,
                                   int64_t head, int64_t from, int64_t to);
/* The same as f32, into host memory. */
FV_API fv_status fv_attn_view_weights(fv_ctx *c, const fv_attn_view *v, int64_t b, int64_t head,
                                      int64_t from, int64_t to, float *host);

/* cache (B,cap,D), x (B,T,D), pos I32 (B): writes x at rows pos[b].. of the cache and returns the
 * cache.  No gradient. */
FV_API fv_tensor *fv_cache_write(fv_ctx *c, fv_tensor *cache, fv_tensor *x, fv_tensor *pos);

#endif
