/* ops.h - the operations that layers and families are made of, beside those of fovea/ops.h, whose
 * rules they follow. */
#ifndef FOVEA_AUTHOR_OPS_H
#define FOVEA_AUTHOR_OPS_H

#include "fovea/ops.h"

/* ---- products ---- */

/* fv_linear with w stored (K,N), as GPT-2 has it. */
FV_API fv_tensor *fv_linear_in_out(fv_ctx *c, fv_tensor *x, fv_tensor *w, fv_tensor *bias,
                                   fv_act act);
/* A weight (N,K), or (K,N) if in_out, packed for this device and converted to dtype (f32, bf16, q8,
 * q4).  No gradient. */
FV_API fv_tensor *fv_pack(fv_ctx *c, fv_tensor *w, fv_dtype dtype, bool in_out);

/* ---- element-wise; a and b are broadcast as NumPy does ---- */

FV_API fv_tensor *fv_sub(fv_ctx *c, fv_tensor *a, fv_tensor *b);
FV_API fv_tensor *fv_div(fv_ctx *c, fv_tensor *a, fv_tensor *b);
/* equal: half the gradient each */
FV_API fv_tensor *fv_maximum(fv_ctx *c, fv_tensor *a, fv_tensor *b);
FV_API fv_tensor *fv_affine(fv_ctx *c, fv_tensor *x, float by, float plus); /* by * x + plus */
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
FV_API fv_tensor *fv_cast(fv_ctx *c, fv_tensor *x, fv_dtype dtype);
/* value where mask (U8, broadcast) is 0, x where it is 1 */
FV_API fv_tensor *fv_masked_fill(fv_ctx *c, fv_tensor *x, fv_tensor *mask, float value);

/* ---- shape ---- */

/* axes: one per axis of x */
FV_API fv_tensor *fv_permute(fv_ctx *c, fv_tensor *x, const int *axes);
/* first n along axis 0; shares memory */
FV_API fv_tensor *fv_head(fv_ctx *c, fv_tensor *x, int64_t n);
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

FV_API fv_tensor *fv_max(fv_ctx *c, fv_tensor *x, int axis); /* gradient to the first largest */
/* The k largest of each row, largest first; *index (I32) may be NULL. */
FV_API fv_tensor *fv_topk(fv_ctx *c, fv_tensor *x, int64_t k, fv_tensor **index);
FV_API fv_tensor *fv_cumsum(fv_ctx *c, fv_tensor *x, int axis);

FV_API fv_tensor *fv_log_softmax(fv_ctx *c, fv_tensor *x); /* last axis */
/* x (2,..,V), logits of p = softmax(x[0]) and q = softmax(x[1]) -> (..): KL(p||q) + KL(q||p) of
 * each row, with a gradient to both.  Probabilities are never stored. */
FV_API fv_tensor *fv_symmetric_kl(fv_ctx *c, fv_tensor *x);

/* ---- normalisation; gain and bias of one row, or NULL ---- */

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
 * where sequences differ; see position.h for making freq. */
typedef struct fv_rope_opt {
    int64_t n_head;
    bool adjacent;
} fv_rope_opt;
FV_API fv_tensor *fv_rope(fv_ctx *c, fv_tensor *x, fv_tensor *pos, fv_tensor *freq,
                          fv_rope_opt opt);

/* ---- losses; each returns one value per row or a scalar, in f32 (f64 for f64) ---- */

/* fv_cross_entropy of the logits x w', x (..,D), w (V,D).  *logits gets them, or NULL: a device
 * may do without them where the context trains, in less memory and time. */
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
/* CTC: logits (B,T,V), labels (B,U), tlen and ulen (B) -> (B): minus log-likelihood over all ways
 * to spread the labels over the frames; infinite, with a gradient of 0, where they do not fit */
FV_API fv_tensor *fv_ctc_loss(fv_ctx *c, fv_tensor *logits, fv_tensor *labels, fv_tensor *tlen,
                              fv_tensor *ulen, int32_t blank);
/* Linear-chain conditional random field: logits (B,T,K), transitions (K+2,K), labels I32 (B,T)
 * -> (B): minus the log-probability of the labels.  transitions[j,k]: score of label k behind
 * label j; row K: of k at the start; row K+1: of k at the end.  Positions with a negative label
 * are left out, and the chain goes on behind them; a sequence of nothing else has loss 0. */
FV_API fv_tensor *fv_crf_loss(fv_ctx *c, fv_tensor *logits, fv_tensor *transitions,
                              fv_tensor *labels);

/* ---- attention ---- */

/* fv_attention from one tensor (B,T,(H+2G)*W) that holds q, k and v side by side. */
FV_API fv_tensor *fv_attention_packed(fv_ctx *c, fv_tensor *qkv, fv_attn opt);

/* Exact weights before dropout, (to-from, Tk), rows [from,to) of one head, computed now.  t is
 * f32 (f64 beside f64), or the dtype of q, k and v: then they are rounded once, and take half of
 * the room and of the time to be written.  No gradient. */
FV_API fv_tensor *fv_attn_view_map(fv_ctx *c, const fv_attn_view *v, fv_dtype t, int64_t b,
                                   int64_t head, int64_t from, int64_t to);
/* cache (B,cap,D), x (B,T,D), pos I32 (B): writes x at rows pos[b].. of the cache and returns the
 * cache.  No gradient. */
FV_API fv_tensor *fv_cache_write(fv_ctx *c, fv_tensor *cache, fv_tensor *x, fv_tensor *pos);

#endif
