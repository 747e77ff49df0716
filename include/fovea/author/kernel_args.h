/* kernel_args.h - the descriptions that kernels are given: products, walks, attention, the
 * optimiser, writing. */
#ifndef FOVEA_AUTHOR_KERNEL_ARGS_H
#define FOVEA_AUTHOR_KERNEL_ARGS_H

#include "fovea/device.h"

/* Numbers kept beside the data, in at least f32: means, log-sum-exps, losses.  f32, but f64 in the
 * f64 table. */
typedef void fv_stat;

/* Where a gradient goes: not wanted (data NULL), to be written, or to be added to what is there.
 * dtype is the table's, or f32 for parameters (f64 in the f64 table).  Forward outputs are plain
 * pointers and are always written, but for attention's weights, which also come in either dtype. */
typedef struct fv_sink {
    void *data;
    fv_dtype dtype;
    bool add;
} fv_sink;

/* One position of the random sequence: key (seed), stream (site, *step), position given by the
 * element.  step lives in device memory so that a captured graph can be replayed with another
 * value. */
typedef struct fv_rng {
    uint64_t seed, site;
    const uint64_t *step;
} fv_rng;

/* ---- matrix product ---- */

/* C = act(alpha * A B + bias), or C += alpha * A B, for each of `batch` triples.
 * A is (m,k), stored (k,m) if ta; B is (k,n), stored (n,k) if tb; strides and leading dimensions in
 * elements.  Order of addition, the same on every CPU level: with s_j the chain fma(a_k, b_k, s)
 * over the j-th run of FV_GEMM_KC values of k starting from 0, C = ((s_0 + s_1) + s_2) + ... (old C
 * first when add). */
#define FV_GEMM_KC 384
#define FV_PACK_ROWS 96 /* a multiple of the columns of every kind's panels */
typedef struct fv_gemm {
    int64_t m, n, k, batch;
    const void *a, *b;
    void *c;
    int64_t lda, ldb, ldc;
    int64_t stride_a, stride_b, stride_c; /* from one of the batch to the next; 0 shares */
    bool ta, tb;
    fv_dtype
        /* of b: the table's, any dtype pack accepts with packed, and on the CPU bf16 or f16 in the
         * f32 table */
        bt;
    fv_dtype ct; /* of c: the table's or f32 */
    /* b was packed by the pack kernel (then ldb, stride_b, tb mean nothing and batch is 1) */
    bool packed;
    bool add;         /* no bias, act or pre then */
    float alpha;      /* 0 means 1 */
    const void *bias; /* (n) or NULL */
    fv_act act;
    const void *
        /* (m,n,ldc), added last, where the table says that gemm can; no add, act or pre then.
         * NULL: nothing */
        plus;
    void *pre; /* (m,n,ldc) gets the value before act, or NULL */
} fv_gemm;

/* ---- element-wise and shape ---- */

typedef enum fv_unary_op {
    FV_U_SCALE, /* p0 * x + p1 */
    FV_U_RELU,
    FV_U_GELU,
    FV_U_GELU_TANH,
    FV_U_SILU,
    FV_U_TANH,
    FV_U_SIGMOID,
    FV_U_EXP,
    FV_U_LOG,
    FV_U_SQRT,
    FV_U_RSQRT,
    FV_U_ABS,
    FV_U_SQUARE,
    FV_U_SOFTPLUS,
    FV_U_LEAKY_RELU, /* p0: slope below zero */
    FV_U_CLAMP,      /* to p0..p1 */
    FV_U_QUICK_GELU, /* x / (1 + exp(-1.702 x)) */
    FV_U_NORMAL_CDF, /* Phi(x) */
    FV_U_COUNT
} fv_unary_op;

typedef enum fv_binary_op {
    FV_B_ADD,
    FV_B_SUB,
    FV_B_MUL,
    FV_B_DIV,
    FV_B_MAX,
    FV_B_COUNT
} fv_binary_op;

/* Nested loops over shape[0..n), last fastest, with a stride in elements for each operand (0
 * repeats).  Ops collapse neighbouring axes before they get here, so n is small and the last axis
 * long. */
typedef struct fv_walk {
    int n;
    int64_t shape[FV_MAX_DIM + 2];
    int64_t y[FV_MAX_DIM + 2], a[FV_MAX_DIM + 2], b[FV_MAX_DIM + 2];
} fv_walk;

/* Which position of a row of ids is looked for: the last that is not id, the last or the first that
 * is, the first of the largest; the row's first where there is none. */
typedef enum fv_find { FV_FIND_LAST_OTHER, FV_FIND_LAST, FV_FIND_FIRST, FV_FIND_LARGEST } fv_find;

typedef enum fv_reduce_op { FV_R_SUM, FV_R_MEAN, FV_R_MAX, FV_R_COUNT } fv_reduce_op;

/* ---- convolution as a matrix product: x (B,C,H,W) <-> col (B, C*kh*kw, oh*ow) ---- */
typedef struct fv_conv_geom {
    int64_t batch, channels, h, w, kh, kw, sh, sw, ph, pw, dh, dw, oh,
        ow; /* kernel, stride, padding, dilation, out */
} fv_conv_geom;

/* ---- attention ----
 * q (B,Tq,H*Wk), k (B,Tk,G*Wk), v (B,Tk,G*Wv) -> y (B,Tq,H*Wv); query head h reads key head h /
 * (H/G).
 * Row i of q stands at position pos(i) = i + len - Tq, where len = lens[b], or Tk where lens is
 * NULL.
 * Key j takes part for row i when all of these hold: j < len; key_mask[b,j] is 1; mask[b,h,i,j] is
 * 1; causal: j <= pos(i); window > 0: j > pos(i) - window.
 * Score = scale * q_i.k_j + bias[b,h,i,j] + rel[h, rel_zero + j - pos(i)] (index clamped to
 * 0..rel_len-1).
 * Weights = softmax over the keys that take part; then dropout; y_i = sum_j weight_j v_j.  A row in
 * which none takes part gives y = 0, a sum of 0 and no gradient.  Weights are never stored: lse is
 * enough.
 * What takes no part may be multiplied by 0 all the same: there must be numbers, from len on
 * too. */
typedef struct fv_attn_args {
    int64_t B, Tq, Tk, H, G, Wk, Wv;
    const void *q, *k, *v;
    int64_t q_row, k_row, v_row;       /* elements from one position to the next */
    int64_t q_batch, k_batch, v_batch; /* and from one sequence to the next */
    void *y;                           /* (B,Tq,H*Wv), contiguous */
    fv_stat *
        /* (B,H,Tq,2) the log-sum-exp of a row's scores as its two parts: their maximum, and the sum
         * of 2^(score - maximum), with scores in base 2 (times log2 e).  One float would lose the
         * sum beside a large maximum.  Before dropout; a row without keys has the sum 0. */
        lse;
    const int32_t *lens;     /* (B) or NULL */
    const uint8_t *key_mask; /* (B,Tk) or NULL */
    const uint8_t *mask; /* NULL, or element (b,h,i,j) at b*mask_s[0]+h*mask_s[1]+i*mask_s[2]+j */
    int64_t mask_s[3];
    const void *bias; /* NULL, or likewise with bias_s */
    int64_t bias_s[3];
    const void *rel; /* NULL, or (H,rel_len) */
    int64_t rel_len, rel_zero;
    bool causal;
    int64_t window;
    float scale;   /* 0 means 1/sqrt(Wk) */
    float dropout; /* 0: none.  Weights that are dropped, and what the others are divided by: */
    fv_rng rng;    /*   src/backend/attention_dropout.h */
} fv_attn_args;

typedef struct fv_attn_grads {
    const void *dy;     /* (B,Tq,H*Wv) */
    fv_sink dq, dk, dv; /* laid out as q, k, v are, strides included */
    fv_sink dbias;      /* with bias_s; repeated axes are summed */
    fv_sink drel;
} fv_attn_grads;

/* ---- the optimiser ---- */

/* The numbers of one update.  They live in device memory, so that a captured graph can be replayed
 * with others. */
typedef struct fv_update {
    float lr, bias_correction1, bias_correction2; /* correct: 1 - beta^t */
    float ema_decay;                              /* what a moving average keeps of itself */
    int32_t result_index; /* of what the update came to, among those of others */
    float loss;
    float grad_scale;  /* gradients are multiplied by it: clipping */
    int32_t nonfinite; /* by a loss or norm that was not finite: from there on nothing is changed */
} fv_update;

typedef struct fv_adamw {
    float lr;                       /* a factor of now's */
    float beta1, beta2, eps, decay; /* decay is decoupled: p -= lr * decay * p */
    const fv_update *now;           /* device */
} fv_adamw;

/* ---- what enters an encoder ---- */

/* y (rows,cols) = the norm of the sum of rows of n tables (vocab,cols), as gathering, adding and
 * layernorm give it, or the sum itself (eps < 0): rows named by ids, or where there are none
 * `count` of them from `first` on, again and again. */
typedef struct fv_embed {
    int64_t rows, cols;
    void *y;
    int n;
    struct {
        const void *table;
        const int32_t *ids;
        int64_t vocab, first, count;
    } of[3];
    const void *gain, *bias; /* (cols) or NULL */
    float eps;
} fv_embed;

/* ---- writing, one token of each sequence at a time ---- */

/* Rotates columns before they are stored, as the rope kernel does: of each head, `head` columns
 * wide, `half` pairs by pos[r] * freq[i].  head is a multiple of 8, half of 4. */
typedef struct fv_fused_rope {
    const float *freq;  /* (half), or (rows,half) if freq_row is half; NULL: nothing is rotated */
    const int32_t *pos; /* (rows) */
    int32_t freq_row, half, head;
    bool adjacent; /* pairs (2i,2i+1), else (i,i+half) */
} fv_fused_rope;

/* y = act(norm(x) w' + bias); with a residual (rows,n) y = residual + norm(x) w' + bias, and the
 * residual may be y, or still lack a norm of its own: y = norm'(residual) + norm(x) w' + bias, in
 * another y.  With up, times norm(x) up' + up_bias, n % 4 == 0.
 * x (rows,k), w and up (n,k) packed.  With caches only the first y_n columns go to y, the rest in
 * two halves to row pos[r] of sequence r of each, (rows,cap,(n-y_n)/2) with positions cache_row
 * elements apart and sequences cache_batch; y and k may be rotated. */
typedef enum fv_norm_kind { FV_NORM_NONE, FV_NORM_LAYER, FV_NORM_RMS } fv_norm_kind;
typedef struct fv_fused_linear {
    int64_t rows, n, k, y_n, cap;
    const void *x, *w, *bias, *up, *up_bias; /* biases (n) or NULL */
    fv_dtype xt, wt, yt;                     /* x and y: the table's or bf16; caches are as y */
    fv_norm_kind norm;
    const void *gain, *shift; /* of the norm, (k) or NULL */
    float eps;
    fv_act act;
    const void *residual; /* or NULL */
    fv_norm_kind residual_norm;
    const void *residual_gain, *residual_shift; /* (n) or NULL */
    float residual_eps;
    void *y, *k_cache, *v_cache;
    int64_t cache_row, cache_batch;
    const int32_t *pos;
    fv_fused_rope rope;
} fv_fused_linear;

/* q, k and v of one token of each sequence on their way from a product to attention:
 * x (rows,(H+2G)*W) f32, q of all H heads, then k and v of G, or (by_head) all three of the first
 * head, then of the next.  Heads of q and k are divided by the root of their mean square, times a
 * gain (W), where there is one; rotated, times factor where they are; and y (rows,H*W) is q, row
 * pos[r] of sequence r of the caches (rows,cap,G*W) its k and v. */
typedef struct fv_fused_heads {
    int64_t rows, cap;
    int32_t H, G, W;
    bool by_head;
    const float *x, *q_gain, *k_gain; /* gains of both or of neither */
    float eps, factor;                /* factor: of what is rotated; 1 */
    fv_dtype yt;                      /* of y and of the caches: f32 or bf16 */
    void *y, *k_cache, *v_cache;
    int64_t cache_row, cache_batch; /* elements from position to position, sequence to sequence */
    const int32_t *pos;
    fv_fused_rope rope;
} fv_fused_heads;

#endif
