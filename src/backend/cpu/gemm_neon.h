/* gemm_neon.h - the inner loop of a tile on NEON, with instructions in the order written.
 *
 *     s (rows, 3 vectors) += A' B,   A (k, 8), B (k, 12), all contiguous and in f32
 *
 * It is the loop of f32 products (gemm_f32.c) and of attention's (attention_block.c).  gemm_int8.h
 * and attention_neon.h use its single instructions. */
#ifndef FV_GEMM_NEON_H
#define FV_GEMM_NEON_H

#include "simd.h"

#define NEON_A 8     /* values of A for one k */
#define NEON_NV 3    /* vectors of B for one k */
#define NEON_STEPS 4 /* of k in one turn of the loop: 7 % over one */
#define NEON_PACED 6 /* rows from which on a step has room for all loads of the next */

/* The values of A for one k: multiply-adds take a lane of a register. */
typedef struct {
    vf v[NEON_A / VW];
} neon_column;

/* As volatile assembly because then they stay in the order written: the same accumulators in the
 * same order at every step, four to a cycle.  Left to gcc 12 the order differs from step to step,
 * which costs Neoverse a fifth. */
ALWAYS_INLINE vf neon_fma_row(vf b, neon_column a, const int row, vf sum)
{
    switch (row % VW) { /* a constant once the loops are unrolled */
    case 0:
        __asm__ volatile("fmla %0.4s, %1.4s, %2.s[0]" : "+w"(sum) : "w"(b), "w"(a.v[row / VW]));
        break;
    case 1:
        __asm__ volatile("fmla %0.4s, %1.4s, %2.s[1]" : "+w"(sum) : "w"(b), "w"(a.v[row / VW]));
        break;
    case 2:
        __asm__ volatile("fmla %0.4s, %1.4s, %2.s[2]" : "+w"(sum) : "w"(b), "w"(a.v[row / VW]));
        break;
    default:
        __asm__ volatile("fmla %0.4s, %1.4s, %2.s[3]" : "+w"(sum) : "w"(b), "w"(a.v[row / VW]));
    }
    return sum;
}

/* A function of one instruction of two operands. */
#define NEON_BINARY(name, instruction)                                                             \
    ALWAYS_INLINE vf name(vf a, vf b)                                                              \
    {                                                                                              \
        vf y;                                                                                      \
        __asm__ volatile(instruction " %0.4s, %1.4s, %2.4s" : "=w"(y) : "w"(a), "w"(b));           \
        return y;                                                                                  \
    }
NEON_BINARY(neon_mul, "fmul")
ALWAYS_INLINE vf neon_fma(vf a, vf b, vf c) /* a*b + c */
{
    __asm__ volatile("fmla %0.4s, %1.4s, %2.4s" : "+w"(c) : "w"(a), "w"(b));
    return c;
}

ALWAYS_INLINE int8x16_t neon_load_bytes(const void *p)
{
    int8x16_t x;
    __asm__ volatile("ldr %q0, %1" : "=w"(x) : "m"(*(const int8x16_t *)p));
    return x;
}
ALWAYS_INLINE vf neon_load_here(const float *p)
{
    vf x;
    __asm__ volatile("ldr %q0, %1" : "=w"(x) : "m"(*(const float(*)[VW])p));
    return x;
}

/* Four steps of k, where the operands of each are loaded during the one before, one behind each row
 * of multiply-adds: so the pipes get four in every cycle (82 of 83 GFLOP/s on Neoverse V1 from the
 * first cache).  Left to gcc the loads of a step stand together, in pairs, and the multiply-adds
 * wait for them (78).  w and col come in loaded; last: nothing comes after.  Two lines at `ahead`
 * are prefetched where `prefetch` says so. */
ALWAYS_INLINE void neon_four_steps(vf *s, vf *w, neon_column *col, const float *a, const float *b,
                                   const char *ahead, const bool prefetch, const int rows,
                                   const bool last)
{
#pragma GCC unroll 4
    for (int k = 1; k <= NEON_STEPS; k++) {
        const bool load = !last || k < NEON_STEPS;
        vf next[NEON_NV];
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++) {
#pragma GCC unroll 4
            for (int j = 0; j < NEON_NV; j++)
                s[i * NEON_NV + j] = neon_fma_row(w[j], *col, i, s[i * NEON_NV + j]);
            if (load && i < NEON_NV) next[i] = neon_load_here(b + k * NEON_NV * VW + i * VW);
            if (load && i == VW - 1) col->v[0] = neon_load_here(a + k * NEON_A);
            if (prefetch && k == 1 && (i == VW || i == VW + 1))
                __builtin_prefetch(ahead + (i - VW) * 64);
        }
        if (!load) return;
        col->v[1] = neon_load_here(a + k * NEON_A + VW);
#pragma GCC unroll 4
        for (int j = 0; j < NEON_NV; j++) w[j] = next[j];
    }
}

/* n > 0 times four steps; rows >= NEON_PACED. */
ALWAYS_INLINE void neon_paced(vf *s, const float *a, const float *b, int64_t n, const char *ahead,
                              int64_t ahead_step, const bool prefetch, const int rows)
{
    vf w[NEON_NV];
    neon_column col = {{neon_load_here(a), neon_load_here(a + VW)}};
#pragma GCC unroll 4
    for (int j = 0; j < NEON_NV; j++) w[j] = neon_load_here(b + j * VW);
    while (--n) {
        neon_four_steps(s, w, &col, a, b, ahead, prefetch, rows, false);
        a += NEON_STEPS * NEON_A;
        b += NEON_STEPS * NEON_NV * VW;
        if (prefetch) ahead += ahead_step;
    }
    neon_four_steps(s, w, &col, a, b, ahead, prefetch, rows, true);
}

#endif
