/* attention.h - what the attention kernels share: panels, the block product, exp2, masks and
 * biases.
 *
 * Nothing of size Tq x Tk is ever stored: keys come in tiles, and a row carries its maximum, its
 * sum and its unfinished output from tile to tile.  All heavy work is one operation on packed
 * memory,
 *
 *     C (STEP, LANES) += A' B,   A (depth, STEP), B (depth, LANES), all contiguous,
 *
 * which runs like a matrix product because it is one.  With x' for "stored transposed", forward
 * needs
 *     S' (key, row) = K Q'    and    O' (w, row) += V' P',
 * so rows of the softmax lie in lanes: maxima and sums need no work across a vector, and P' comes
 * out as the next product wants it.  The alternative, keys in lanes, pays for both.
 *
 * Same bits everywhere: a score is one chain of multiply-adds over w, an output one chain over keys
 * that is rescaled at multiples of KEYS, a sum over keys four chains (key mod 4) per tile.  None of
 * this depends on which rows share a panel, so a row alone (attention_rows.c), in a batch, or on
 * any thread is the same row. */
#ifndef FV_ATTENTION_H
#define FV_ATTENTION_H

#include <float.h>

#include "vmath.h"

/* The tile of scores, S' (KEYS, LANES), with rows of the softmax in lanes:
 *
 *               row p .. row p+LANES-1
 *      key 0    [ vector 0 | vector 1 | vector 2 ]     a vector is VW rows
 *      key 1    [          |          |          ]     STEP keys are one block of registers
 *       ...
 *      key KEYS-1
 *
 * Three vectors and not two or four: STEP * 3 accumulators leave registers for three vectors of
 * B and the broadcasts, and one load of B serves STEP multiply-adds. */
#define LANES (3 * VW) /* positions side by side: three vectors */
#if defined(CPU_AVX2) || defined(CPU_GENERIC)
#define STEP 4 /* 12 sums, of 16 registers */
#else
#define STEP 8 /* 24 sums, of 32 registers */
#endif
/* KEYS of a tile: a multiple of LANES, STEP and 4 for which a panel's scores stay in L1. */
#if defined(CPU_AVX512) || defined(CPU_AVX512_BF16)
#define KEYS 96
#else
#define KEYS 192
#endif
/* With fewer rows than this per KV head a panel would be mostly padding: attention_rows.c. */
#define FEW_ROWS 8
/* Rows that the backward pass processes together, chosen for L1 as well. */
#define GROUP 96

#define LOG2E 1.44269504f

/* The prepared arguments of one call.  The rows of KV head g are those of all query heads it
 * serves, head after head. */
typedef struct attn {
    const fv_attn_args *a;
    fv_dtype dtype;
    int64_t q_per_kv;      /* query heads of a key head */
    int64_t rows;          /* q_per_kv * Tq */
    int64_t wk, wv;        /* widths rounded up to STEP */
    float scale, scale2;   /* of the scores; times log2 e, since all exponentials are powers of 2 */
    bool has_mask_or_bias; /* scores are more than dot products: mask, key_mask, bias or rel */
} attn;

/* A row: which it is, and that it sees keys lo <= j < hi as far as length, causality and window
 * go.
 * A row never sees a key outside [lo, hi); inside it, mask, key_mask and bias may still say no.
 * lo == hi == 0 marks a row without keys: y and all of its gradients are zero. */
typedef struct attn_row {
    int64_t b, h, i, pos, lo, hi;
} attn_row;

/* ---- attention_tile.c ---- */

/* Checks lens, the one argument whose values come from the caller's data, and derives sizes. */
bool NAME(attn_init)(attn *t, fv_stream *s, const fv_attn_args *a,
                     fv_dtype dtype); /* false: the stream has failed */
attn_row NAME(attn_row)(const attn *t, int64_t b, int64_t g, int64_t r);
/* Threads for `work` multiply-adds: for little work, waking a second one costs more than it
 * saves. */
int NAME(attn_threads)(const fv_stream *s, int64_t work);

/* out[j] for keys j0 .. j0+n of a row: bias and rel times log2 e, -inf where a mask says no. */
void NAME(attn_bias_row)(float *out, const attn *t, const attn_row *r, int64_t j0, int64_t n);
/* Adds those to scores stored as (n, LANES), and writes -inf outside each row's range.  scratch:
 * 2 * KEYS * LANES. */
void NAME(attn_mask_and_bias)(float *s, const attn *t, const attn_row *rows, int n_rows, int64_t j0,
                              int64_t n, float *scratch);
/* The dropout mask times the dropout scale, so 0 or 1 / (1 - p), as (n rounded up to 16, LANES); j0
 * is a multiple of 16, as KEYS is. */
void NAME(attn_dropout)(float *f, const attn *t, const attn_row *rows, int n_rows, int64_t j0,
                        int64_t n);

/* n floats from element `at` of x: x itself if it is f32, else converted into scratch. */
const float *NAME(attn_load)(const void *x, fv_dtype dtype, int64_t at, int64_t n, float *scratch);
/* x[at..] = by * row, or added to it. */
void NAME(attn_store)(fv_sink x, int64_t at, const float *row, int64_t n, float by);

/* y and lse of a row whose keys have all been seen: output o, maximum m of its scores (in base 2),
 * sum l. */
void NAME(attn_finish)(const attn *t, const attn_row *r, const float *o, float m, float l);

/* n rows of width w, transposed: out (w, lanes) with zeros beyond n.  lanes is a multiple of 4. */
void NAME(attn_pack_lanes)(float *out, int lanes, const float *const *rows, int n, int64_t w,
                           float by);
/* n rows of width w in strips of STEP rows (w, STEP), one after another, zeros beyond n. */
void NAME(attn_pack_strips)(float *out, const float *const *rows, int64_t n, int64_t w);
/* n rows of width w in strips of STEP columns, zeros beyond w: column c of row r at
 * out[c/STEP*stride + r*STEP + c%STEP]. */
void NAME(attn_pack_steps)(float *out, int64_t stride, const float *const *rows, int n, int64_t w);
/* x (n, ldx) -> out (m, ldo) transposed; n and m are rounded up to 4. */
void NAME(attn_transpose)(float *out, int64_t ldo, const float *x, int64_t ldx, int64_t n,
                          int64_t m);

/* ---- attention_block.c: C (STEP, LANES) = A' B, C + A' B, and C times keep (a factor for each
 * lane) + A' B ---- */

/* The three differ in what the accumulators start from: 0 (scores), C (gradients, which add
 * tiles) and the rescaled C of the online softmax (outputs). */
void NAME(attn_set)(float *c, const float *a, const float *b, int64_t depth);
void NAME(attn_add)(float *c, const float *a, const float *b, int64_t depth);
void NAME(attn_scale_add)(float *c, const float *a, const float *b, int64_t depth,
                          const float *keep);

/* ---- attention_rows.c: few rows at a time ---- */

int64_t NAME(attn_few_rows_floats)(const attn *t, int64_t heads); /* of work */
/* Forward of all rows of key heads [g0, g0+heads). */
void NAME(attn_few_rows)(const attn *t, int64_t b, int64_t g0, int64_t heads, float *work);
/* Weights of row i of one head, stored from element `at` of w. */
void NAME(attn_weights)(fv_sink w, int64_t at, const attn *t, int64_t b, int64_t h, int64_t i,
                        float *work);

/* ---- attention_bwd.c ---- */

void NAME(attn_bwd)(fv_stream *s, const fv_attn_args *a, const fv_attn_grads *g, fv_dtype dtype);

static inline int64_t attn_min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t attn_max(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t attn_round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

/* Offsets of a row's data, in elements. */
static inline int64_t attn_q_offset(const fv_attn_args *a, const attn_row *r)
{
    return r->b * a->q_batch + r->i * a->q_row + r->h * a->Wk;
}
static inline int64_t attn_k_offset(const fv_attn_args *a, int64_t b, int64_t g, int64_t j)
{
    return b * a->k_batch + j * a->k_row + g * a->Wk;
}
static inline int64_t attn_v_offset(const fv_attn_args *a, int64_t b, int64_t g, int64_t j)
{
    return b * a->v_batch + j * a->v_row + g * a->Wv;
}
static inline int64_t attn_y_offset(const fv_attn_args *a, const attn_row *r)
{
    return ((r->b * a->Tq + r->i) * a->H + r->h) * a->Wv;
}

/* What the forward pass keeps of a row: the maximum of its scores, in base 2, and the sum of
 * 2^(score - maximum). */
static inline float *attn_lse(const fv_attn_args *a, const attn_row *r)
{
    return (float *)a->lse + 2 * ((r->b * a->H + r->h) * a->Tq + r->i);
}

/* 2^t for t <= 0, relative error below 1.7e-7 (3 half-ulps); exactly 0 below -127, so for -inf.
 * t = n + x with |x| <= 1/2: adding and taking away 1.5 * 2^23 rounds, and leaves n in the low bits
 * to be shifted into the exponent.  The polynomial is exactly 1 at 0, so that t = -127 gives the
 * bits of 0. */
static inline vf attn_exp2(vf t)
{
    const vf magic = v_set1(12582912.0f);
#if defined(CPU_NEON) || defined(CPU_NEON_BF16)
    t = v_max(v_set1(-127.0f), t); /* subnormals cost nothing here */
#else
    t = v_sel(v_lt(t, v_set1(-126.0f)), v_set1(-127.0f), t);
#endif
    vf z = v_add(t, magic);
    vf x = v_sub(t, v_sub(z, magic)), x2 = v_mul(x, x);
    vf p = v_fma(v_set1(0x1.5bba14p-10f), x, v_set1(0x1.3cea88p-7f));
    p = v_fma(p, x2, v_fma(v_set1(0x1.c6b752p-5f), x, v_set1(0x1.ebf9bcp-3f)));
    p = v_fma(p, x2, v_fma(v_set1(0x1.62e42ap-1f), x, v_set1(1.0f)));
    /* the sum may carry into the sign for a score that is not finite */
    return (vf)((vu)p + ((vu)z << 23));
}

/* Vectors of four lanes at every level: for transposing 4x4 blocks and for rows processed one at a
 * time. */
typedef float f4 __attribute__((vector_size(16)));
typedef int32_t i4 __attribute__((vector_size(16)));

/* Through memcpy, because q, k and v may start at any element of a row of (B,T,H*W). */
static inline f4 attn_load4(const float *p)
{
    f4 x;
    memcpy(&x, p, sizeof x);
    return x;
}

ALWAYS_INLINE f4 attn_fma4(f4 a, f4 b, f4 c)
{
#if VW == 4
    return (f4)v_fma((vf)a, (vf)b, (vf)c);
#else
    return (f4)_mm_fmadd_ps((__m128)a, (__m128)b, (__m128)c);
#endif
}

/* y[i] = lane i of a, b, c, d: two rounds of interleaving, eight shuffles. */
ALWAYS_INLINE void attn_transpose4(f4 y[4], f4 a, f4 b, f4 c, f4 d)
{
    const i4 low = {0, 4, 1, 5}, high = {2, 6, 3, 7};
    f4 ac0 = v_shuffle(a, c, low), ac1 = v_shuffle(a, c, high);
    f4 bd0 = v_shuffle(b, d, low), bd1 = v_shuffle(b, d, high);
    y[0] = v_shuffle(ac0, bd0, low);
    y[1] = v_shuffle(ac0, bd0, high);
    y[2] = v_shuffle(ac1, bd1, low);
    y[3] = v_shuffle(ac1, bd1, high);
}

#endif
