/* gemm_direct_neon.h - one row against four columns of an f32 weight (N,K) that is not packed, on
 * NEON, with instructions in the order written.
 *
 *     s[u] += sum_k a[k] (row 0..3 of the weight)[k],   k over run u of two runs side by side
 *
 * Four rows of four values are transposed by eight interleavings, then multiplied by lanes of a:
 * twelve instructions for four pipes, but the four multiply-adds of a block go into one sum and
 * take two cycles each.  So each stands between two interleavings of the next block, which is of
 * the other run (247 us for a (3072,768) from the last cache on Neoverse V1; left to gcc 12, which
 * puts the interleavings of a block before its multiply-adds, 262; 227 are the two sums alone). */
#ifndef FV_GEMM_DIRECT_NEON_H
#define FV_GEMM_DIRECT_NEON_H

#include "gemm_neon.h"

typedef struct {
    vf v[VW]; /* rows of four values of k, or, transposed, values of k of four columns */
} neon_block;

/* The first halves of both, value by value; the second halves; and by pairs of values. */
NEON_INLINE vf neon_first(vf a, vf b)
{
    vf y;
    __asm__ volatile("zip1 %0.4s, %1.4s, %2.4s" : "=w"(y) : "w"(a), "w"(b));
    return y;
}
NEON_INLINE vf neon_second(vf a, vf b)
{
    vf y;
    __asm__ volatile("zip2 %0.4s, %1.4s, %2.4s" : "=w"(y) : "w"(a), "w"(b));
    return y;
}
NEON_INLINE vf neon_first_pair(vf a, vf b)
{
    vf y;
    __asm__ volatile("zip1 %0.2d, %1.2d, %2.2d" : "=w"(y) : "w"(a), "w"(b));
    return y;
}
NEON_INLINE vf neon_second_pair(vf a, vf b)
{
    vf y;
    __asm__ volatile("zip2 %0.2d, %1.2d, %2.2d" : "=w"(y) : "w"(a), "w"(b));
    return y;
}

NEON_INLINE neon_block neon_rows(const float *b, const int64_t ld)
{
    neon_block x;
#pragma GCC unroll 4
    for (int i = 0; i < VW; i++) x.v[i] = neon_load_here(b + i * ld);
    return x;
}

/* The transpose of x, and meanwhile sum += a times the block before, which is transposed. */
NEON_INLINE neon_block neon_transpose_and_add(neon_block x, vf *sum, neon_block before, vf by)
{
    const neon_column a = {{by, by}};
    neon_block y;
    vf low = neon_first(x.v[0], x.v[1]), low2 = neon_first(x.v[2], x.v[3]);
    *sum = neon_fma_row(before.v[0], a, 0, *sum);
    vf high = neon_second(x.v[0], x.v[1]), high2 = neon_second(x.v[2], x.v[3]);
    *sum = neon_fma_row(before.v[1], a, 1, *sum);
    y.v[0] = neon_first_pair(low, low2);
    y.v[1] = neon_second_pair(low, low2);
    *sum = neon_fma_row(before.v[2], a, 2, *sum);
    y.v[2] = neon_first_pair(high, high2);
    y.v[3] = neon_second_pair(high, high2);
    *sum = neon_fma_row(before.v[3], a, 3, *sum);
    return y;
}

/* Rows of 2 n values, contiguous, n a multiple of four and known to the compiler, so that all loads
 * have one address.  ahead: 8 n values that are prefetched.  Sums begin with products of zeros,
 * which change nothing. */
NEON_INLINE void neon_two_runs(vf sum[2], const float *a, const float *b, const int64_t n,
                               const float *ahead)
{
    const vf zero = v_zero();
    neon_block first = neon_rows(b, 2 * n), y, x = {{zero, zero, zero, zero}};
    vf a1 = sum[0] = sum[1] = zero;
    for (const float *end = a + n; a < end; a += VW, b += VW, ahead += 8 * VW) {
        __builtin_prefetch(ahead);
        neon_block second = neon_rows(b + n, 2 * n);
        vf a0 = neon_load_here(a);
        y = neon_transpose_and_add(first, &sum[1], x, a1);
        __builtin_prefetch(ahead + 4 * VW);
        first = neon_rows(b + VW, 2 * n); /* behind the last: values of the second run, not used */
        a1 = neon_load_here(a + n);
        x = neon_transpose_and_add(second, &sum[0], y, a0);
    }
    const neon_column last = {{a1, a1}};
#pragma GCC unroll 4
    for (int i = 0; i < VW; i++) sum[1] = neon_fma_row(x.v[i], last, i, sum[1]);
}

#endif
