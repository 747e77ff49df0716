/* ops.h - the operations.  All take and return tensors of one context; NULL in gives NULL out.
 *
 * Shapes are written (B,T,D): batch, time, width; H heads, W head width, V vocabulary.  "rows" are
 * all axes but the last.  Every op has a gradient unless its comment says "no gradient": such an op
 * refuses to run on something that wants one (put fv_detach in front if that is meant).
 *
 * Rarer operations, which layers are made of, are in author/ops.h. */
#ifndef FOVEA_OPS_H
#define FOVEA_OPS_H

#include "fovea/tensor.h"

/* ---- products ---- */

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

/* ---- element-wise; a and b are broadcast as NumPy does ---- */

/* a + b, a * b */
FV_API fv_tensor *fv_add(fv_ctx *c, fv_tensor *a, fv_tensor *b);
FV_API fv_tensor *fv_mul(fv_ctx *c, fv_tensor *a, fv_tensor *b);

FV_API fv_tensor *fv_scale(fv_ctx *c, fv_tensor *x, float by); /* by * x */
/* act(x), element by element */
FV_API fv_tensor *fv_activate(fv_ctx *c, fv_tensor *x, fv_act act);
FV_API fv_tensor *fv_dropout(fv_ctx *c, fv_tensor *x, float p); /* x itself unless training */

/* ---- shape ---- */

/* one axis may be -1; shares memory */
FV_API fv_tensor *fv_reshape(fv_ctx *c, fv_tensor *x, fv_shape s);
FV_API fv_tensor *fv_transpose(fv_ctx *c, fv_tensor *x); /* last two axes */
/* axis < 0 counts from the end */
FV_API fv_tensor *fv_slice(fv_ctx *c, fv_tensor *x, int axis, int64_t from, int64_t to);
/* n tensors, floats or integers, one behind the other along axis; their other axes are equal */
FV_API fv_tensor *fv_concat(fv_ctx *c, fv_tensor *const *x, int n, int axis);

/* ---- along an axis ---- */

FV_API fv_tensor *fv_sum(fv_ctx *c, fv_tensor *x, int axis); /* the axis disappears */
FV_API fv_tensor *fv_mean(fv_ctx *c, fv_tensor *x, int axis);
FV_API fv_tensor *fv_sum_all(fv_ctx *c, fv_tensor *x); /* a scalar */
FV_API fv_tensor *fv_mean_all(fv_ctx *c, fv_tensor *x);
FV_API fv_tensor *fv_argmax(fv_ctx *c, fv_tensor *x, int axis); /* I32; no gradient */
FV_API fv_tensor *fv_softmax(fv_ctx *c, fv_tensor *x);          /* last axis */

/* ---- normalisation; gain and bias of one row, or NULL ---- */

/* Over the last axis: (x - mean) / deviation, and x / rms. */
FV_API fv_tensor *fv_layernorm(fv_ctx *c, fv_tensor *x, fv_tensor *gain, fv_tensor *bias,
                               float eps);
FV_API fv_tensor *fv_rmsnorm(fv_ctx *c, fv_tensor *x, fv_tensor *gain, float eps);

/* ---- tables ---- */

/* table (V,D), ids I32 (..) -> (..,D).  skip: an id whose row gets no gradient (padding), or -1. */
FV_API fv_tensor *fv_gather(fv_ctx *c, fv_tensor *table, fv_tensor *ids, int32_t skip);

/* ---- losses; each returns one value per row or a scalar, in f32 (f64 for f64) ---- */

typedef struct fv_ce_opt {
    float smooth;
    int32_t ignore;
} fv_ce_opt; /* ignore: a label that does not count; use -100 */
/* logits (..,V), labels I32 (..) -> (..): one loss per row, 0 for ignored.  Probabilities are never
 * stored. */
FV_API fv_tensor *fv_cross_entropy(fv_ctx *c, fv_tensor *logits, fv_tensor *labels, fv_ce_opt opt);

/* ---- attention ---- */

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
/* q (B,Tq,H*Wk), k (B,Tk,G*Wk), v (B,Tk,G*Wv) -> (B,Tq,H*Wv).  Masks are U8: 1 takes part, 0 does
 * not, everywhere in fovea.  A row in which no key takes part gives zeros and no gradient.  Memory
 * is linear in Tq and Tk. */
FV_API fv_tensor *fv_attention(fv_ctx *c, fv_tensor *q, fv_tensor *k, fv_tensor *v, fv_attn opt);

/* What a tap of site "attention" receives.  Valid during the call, and until reset if recording. */
typedef struct fv_attn_view fv_attn_view;
FV_API fv_shape fv_attn_view_shape(const fv_attn_view *v); /* (B,H,Tq,Tk) */
FV_API fv_attn_role fv_attn_view_role(const fv_attn_view *v);
/* Exact weights before dropout, (to-from, Tk), rows [from,to) of one head, computed now, as f32
 * into host memory.  No gradient. */
FV_API fv_status fv_attn_view_weights(fv_ctx *c, const fv_attn_view *v, int64_t b, int64_t head,
                                      int64_t from, int64_t to, float *host);

#endif
