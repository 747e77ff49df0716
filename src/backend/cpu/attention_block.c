/* attention_block.c - the inner product of attention: a block of sums that stays in registers.
 *
 *     C (STEP, LANES) = start + A' B,   A (depth, STEP), B (depth, LANES), all contiguous
 *
 * STEP * 3 sums and what feeds them fill the registers.  They are separate functions: inlined
 * into a loop, gcc keeps the loop's values in registers and spills the sums.
 *
 * Per step of depth: 3 loads of B, one column of A, STEP * 3 multiply-adds.  The ratio of
 * arithmetic to loads is what makes LANES = 3 vectors pay; with one vector the load ports would
 * be the limit. */
#include "attention.h"
#if VW == 4 && STEP == 8
#include "gemm_neon.h"
#endif

/* One column of A, ready to be broadcast: NEON multiplies by a lane of a register, elsewhere a
 * broadcast is a load. */
#if defined(CPU_NEON) || defined(CPU_NEON_BF16)
typedef struct {
    vf v[STEP / VW];
} column;
ALWAYS_INLINE column load_column(const float *a) { return (column){{v_load(a), v_load(a + VW)}}; }
ALWAYS_INLINE vf broadcast(column c, const int m) { return v_set1(c.v[m / VW][m % VW]); }
#else
typedef const float *column;
ALWAYS_INLINE column load_column(const float *a) { return a; }
ALWAYS_INLINE vf broadcast(column c, const int m) { return v_set1(c[m]); }
#endif

typedef struct {
    vf s[STEP][3];
} sums; /* only ever indexed by constants, so that it lives in registers */

/* Each of the STEP * 3 accumulators is one chain over k, first to last: the order of additions
 * that attention_rows.c repeats for a single row, which is why both give the same bits. */
ALWAYS_INLINE void multiply(float *c, sums x, const float *a, const float *b, int64_t depth)
{
#if defined(NEON_A)
    int64_t fours = depth / NEON_STEPS;
    if (fours) neon_paced(x.s[0], a, b, fours, NULL, 0, false, STEP);
    a += fours * NEON_STEPS * STEP;
    b += fours * NEON_STEPS * LANES;
    depth %= NEON_STEPS;
#endif
#pragma GCC unroll 4
    for (int64_t k = 0; k < depth; k++, a += STEP, b += LANES) {
        column y = load_column(a);
        vf b0 = v_load(b), b1 = v_load(b + VW), b2 = v_load(b + 2 * VW);
#pragma GCC unroll 8
        for (int m = 0; m < STEP; m++) {
            vf z = broadcast(y, m);
            x.s[m][0] = v_fma(z, b0, x.s[m][0]);
            x.s[m][1] = v_fma(z, b1, x.s[m][1]);
            x.s[m][2] = v_fma(z, b2, x.s[m][2]);
        }
    }
#pragma GCC unroll 8
    for (int m = 0; m < STEP; m++)
#pragma GCC unroll 3
        for (int n = 0; n < 3; n++) v_store(c + m * LANES + n * VW, x.s[m][n]);
}

void NAME(attn_set)(float *c, const float *a, const float *b, int64_t depth)
{
    sums x;
#pragma GCC unroll 8
    for (int m = 0; m < STEP; m++) x.s[m][0] = x.s[m][1] = x.s[m][2] = v_zero();
    multiply(c, x, a, b, depth);
}

void NAME(attn_add)(float *c, const float *a, const float *b, int64_t depth)
{
    sums x;
#pragma GCC unroll 8
    for (int m = 0; m < STEP; m++)
#pragma GCC unroll 3
        for (int n = 0; n < 3; n++) x.s[m][n] = v_load(c + m * LANES + n * VW);
    multiply(c, x, a, b, depth);
}

void NAME(attn_scale_add)(float *c, const float *a, const float *b, int64_t depth,
                          const float *keep)
{
    sums x;
    vf k0 = v_load(keep), k1 = v_load(keep + VW), k2 = v_load(keep + 2 * VW);
#pragma GCC unroll 8
    for (int m = 0; m < STEP; m++) {
        x.s[m][0] = v_mul(v_load(c + m * LANES), k0);
        x.s[m][1] = v_mul(v_load(c + m * LANES + VW), k1);
        x.s[m][2] = v_mul(v_load(c + m * LANES + 2 * VW), k2);
    }
    multiply(c, x, a, b, depth);
}
