/* gemm_end.c - from sums to C: bias, the value before the activation, the activation, rounding.
 *
 * A pass of its own over sums that are still in cache: it costs a load and a store for each K
 * multiply-adds, and keeps the tiles of every kind free of it.  The activation sees the sum in f32,
 * not what was rounded into pre. */
#include "gemm.h"
#include "vmath.h"

ALWAYS_INLINE vf activate(vf x, const fv_act act)
{
    switch (act) {
    case FV_RELU: return v_max(v_zero(), x);
    case FV_GELU: return v_gelu(x);
    case FV_GELU_TANH: return v_gelu_tanh(x);
    case FV_SILU: return v_silu(x);
    case FV_TANH: return v_tanh(x);
    case FV_SIGMOID: return v_sigmoid(x);
    case FV_QUICK_GELU: return v_quick_gelu(x);
    default: return x;
    }
}

/* Rows of sums are far apart, in L2 or beyond: prefetched this many rows ahead. */
#define ROWS_AHEAD 4

/* An activation is a long chain of instructions: vectors side by side keep the units busy
 * meanwhile.  With 16 lanes two of them are as wide as a tile. */
#define SIDE (VW == 16 ? 2 : 4)

ALWAYS_INLINE void side_by_side(const gemm_end *e, const float *sum, int64_t at, int64_t j,
                                const fv_act act, const fv_dtype table, const fv_dtype ct)
{
    vf x[SIDE];
#pragma GCC unroll 4
    for (int u = 0; u < SIDE; u++) {
        x[u] = v_load(sum + j + u * VW);
        if (e->bias) x[u] = v_add(x[u], v_load_as(e->bias, j + u * VW, table));
        if (e->pre) v_store_as(e->pre, at + j + u * VW, table, x[u]);
    }
#pragma GCC unroll 4
    for (int u = 0; u < SIDE; u++) x[u] = activate(x[u], act);
#pragma GCC unroll 4
    for (int u = 0; u < SIDE; u++) v_store_as(e->c, at + j + u * VW, ct, x[u]);
}

/* The columns behind the last whole vector of a row: too few to be worth a copy for each activation
 * and dtype. */
NOINLINE void last_columns(const gemm_end *e, const float *sum, int64_t at, int64_t j)
{
    int64_t n = e->cols - j;
    vf x = v_load_n(sum + j, n, 0.0f);
    if (e->bias) x = v_add(x, v_load_as_n(e->bias, j, n, e->table));
    if (e->pre) v_store_as_n(e->pre, at + j, n, e->table, x);
    v_store_as_n(e->c, at + j, n, e->ct, activate(x, e->act));
}

ALWAYS_INLINE void rows_of(const gemm_end *end, const fv_act act, const fv_dtype table,
                           const fv_dtype ct)
{
    const gemm_end e = *end; /* a copy, which no store can change */
    for (int64_t i = 0; i < e.rows; i++) {
        const float *sum = e.sum + i * e.ld_sum;
        int64_t at = i * e.ldc, j = 0;
        for (int64_t k = 0; k < e.cols; k += 16)
            __builtin_prefetch(sum + ROWS_AHEAD * e.ld_sum + k);
        for (; j + SIDE * VW <= e.cols; j += SIDE * VW)
            side_by_side(&e, sum, at, j, act, table, ct);
        for (; j + VW <= e.cols; j += VW) {
            vf x = v_load(sum + j);
            if (e.bias) x = v_add(x, v_load_as(e.bias, j, table));
            if (e.pre) v_store_as(e.pre, at + j, table, x);
            v_store_as(e.c, at + j, ct, activate(x, act));
        }
        if (j < e.cols) last_columns(end, sum, at, j);
    }
}

/* Constants all the way down: 8 activations times 5 pairs of dtypes are 40 loops without a
 * branch. C may be f32 in a 16-bit table, never the other way round. */
ALWAYS_INLINE void with_types(const gemm_end *e, const fv_act act)
{
    if (e->table == FV_F32)
        rows_of(e, act, FV_F32, FV_F32);
    else if (e->table == FV_BF16 && e->ct == FV_BF16)
        rows_of(e, act, FV_BF16, FV_BF16);
    else if (e->table == FV_BF16)
        rows_of(e, act, FV_BF16, FV_F32);
    else if (e->ct == FV_F16)
        rows_of(e, act, FV_F16, FV_F16);
    else
        rows_of(e, act, FV_F16, FV_F32);
}

/* A function for each activation: gcc takes twice as long for all of them in one. */
NOINLINE void act_none(const gemm_end *e) { with_types(e, FV_ACT_NONE); }
NOINLINE void act_relu(const gemm_end *e) { with_types(e, FV_RELU); }
NOINLINE void act_gelu(const gemm_end *e) { with_types(e, FV_GELU); }
NOINLINE void act_gelu_tanh(const gemm_end *e) { with_types(e, FV_GELU_TANH); }
NOINLINE void act_silu(const gemm_end *e) { with_types(e, FV_SILU); }
NOINLINE void act_tanh(const gemm_end *e) { with_types(e, FV_TANH); }
NOINLINE void act_sigmoid(const gemm_end *e) { with_types(e, FV_SIGMOID); }
NOINLINE void act_quick_gelu(const gemm_end *e) { with_types(e, FV_QUICK_GELU); }

void NAME(gemm_finish)(const gemm_end *e)
{
    switch (e->act) {
    case FV_RELU: act_relu(e); break;
    case FV_GELU: act_gelu(e); break;
    case FV_GELU_TANH: act_gelu_tanh(e); break;
    case FV_SILU: act_silu(e); break;
    case FV_TANH: act_tanh(e); break;
    case FV_SIGMOID: act_sigmoid(e); break;
    case FV_QUICK_GELU: act_quick_gelu(e); break;
    default: act_none(e);
    }
}

/* Old values of C as the sums to start from.
 * Only where C is 16-bit and added to: it is widened once, and rounded once at the end. */
void NAME(gemm_start)(const gemm_end *e)
{
    for (int64_t i = 0; i < e->rows; i++)
        for (int64_t j = 0; j < e->cols; j += VW) {
            int64_t at = i * e->ldc + j, n = e->cols - j;
            if (n >= VW)
                v_store(e->sum + i * e->ld_sum + j, v_load_as(e->c, at, e->ct));
            else
                v_store_n(e->sum + i * e->ld_sum + j, v_load_as_n(e->c, at, n, e->ct), n);
        }
}
