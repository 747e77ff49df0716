/* gemm_smmla.h - the full tile of 8-bit products on NEON, 8 rows by 8 columns, in assembly.
 *
 * A block of 32 values of k is 64 smmla and as many instructions again that convert the sums to
 * float, scale and add them.
 * What bounds it on Neoverse V1 was found by trying some 300 orders of these instructions: six are
 * begun in a cycle, four of them in the vector units, a conversion counts twice there, and chains
 * of products that start from a register loaded or copied, not cleared, leave units idle.  That
 * leaves 35 cycles; eight chains side by side, four pairs of rows by two of columns, take 39, and
 * what is scaled need not be mixed with products by hand.  Four chains at a time took 43.  gcc 12,
 * given the same order in intrinsics, copies and spills.  The other tiles are written in C
 * (gemm_int8.h) and give the same bits.
 *
 *   v16-v31  sums in f32, pair of rows i and pair of columns j in v(16 + 4i + j)
 *   v0-v7    integer sums of the two pairs of columns being multiplied, pair of rows i in v(2i),
 *            v(2i + 1)
 *   v8-v11   pairs of rows, then their scales
 *   v12-v13  pairs of columns, then their scales
 *   v14-v15  scales multiplied */
#ifndef FV_GEMM_SMMLA_H
#define FV_GEMM_SMMLA_H

#include "gemm.h"

/* Values 8t.. of k of all rows and of pairs of columns 2h, 2h+1. */
#define LOAD(t, h)                                                                                 \
    "ldp q12, q13, [%[b], #32+64*" #t "+32*" #h "]\n"                                              \
    "ldp q8, q9, [%[a], #64+64*" #t "]\n ldp q10, q11, [%[a], #96+64*" #t "]\n"
#define CLEAR(c0, c1) "movi v" #c0 ".2d, #0\n movi v" #c1 ".2d, #0\n"
#define PRODUCTS(x, c0, c1)                                                                        \
    "smmla v" #c0 ".4s, v" #x ".16b, v12.16b\n smmla v" #c1 ".4s, v" #x ".16b, v13.16b\n"
#define STEP(t, h)                                                                                 \
    LOAD(t, h) PRODUCTS(8, 0, 1) PRODUCTS(9, 2, 3) PRODUCTS(10, 4, 5) PRODUCTS(11, 6, 7)
/* The scales of two columns stand twice in a vector; by way of x registers that costs no vector
 * unit. */
#define SCALES(h)                                                                                  \
    "ldp x9, x10, [%[b], #16*" #h                                                                  \
    "]\n ldp q8, q9, [%[a]]\n ldp q10, q11, [%[a], #32]\n dup v12.2d, x9\n dup v13.2d, x10\n"
#define ADD(c0, c1, x, s0, s1)                                                                     \
    "scvtf v" #c0 ".4s, v" #c0 ".4s\n scvtf v" #c1 ".4s, v" #c1 ".4s\n"                            \
    "fmul v14.4s, v" #x ".4s, v12.4s\n fmul v15.4s, v" #x ".4s, v13.4s\n"                          \
    "fmla v" #s0 ".4s, v" #c0 ".4s, v14.4s\n fmla v" #s1 ".4s, v" #c1 ".4s, v15.4s\n"

/* Two rows of the result from the sums of their pair, v(s0) to v(s3). */
#define PUT(s0, s1, s2, s3)                                                                        \
    "zip1 v0.2d, v" #s0 ".2d, v" #s1 ".2d\n zip1 v1.2d, v" #s2 ".2d, v" #s3 ".2d\n"                \
    "zip2 v2.2d, v" #s0 ".2d, v" #s1 ".2d\n zip2 v3.2d, v" #s2 ".2d, v" #s3 ".2d\n"                \
    "stp q0, q1, [%[c]]\n add %[c], %[c], %[next]\n stp q2, q3, [%[c]]\n add %[c], %[c], "         \
    "%[next]\n"
/* The next block of A: its strip comes from the second cache, a line at a time too late
 * otherwise. */
#define NEXT(line) "prfm pldl1keep, [%[a], #320+64*" #line "]\n"

/* c (8 rows, `next` bytes apart, of 8) = the sums over all blocks, one at least, of a strip of A
 * and a panel of B.  ahead: memory to ask for, `step` bytes for each block. */
static inline void smmla_sums(float *c, int64_t next, const void *a, const void *b, int64_t blocks,
                              const char *ahead, int64_t step)
{
    __asm__ volatile(
        CLEAR(16, 17) CLEAR(18, 19) CLEAR(20, 21) CLEAR(22, 23) CLEAR(24, 25) CLEAR(26, 27)
            CLEAR(28, 29) CLEAR(30, 31) "1:\n"
        /* the first four columns */
        CLEAR(0, 1) CLEAR(2, 3) CLEAR(4, 5) CLEAR(6, 7) NEXT(0) STEP(0, 0) NEXT(1) STEP(1, 0)
            NEXT(2) STEP(2, 0) NEXT(3) STEP(3, 0) NEXT(4) SCALES(0) ADD(0, 1, 8, 16, 17)
                ADD(2, 3, 9, 20, 21) ADD(4, 5, 10, 24, 25) ADD(6, 7, 11, 28, 29)
        /* the others */
        CLEAR(0, 1) CLEAR(2, 3) CLEAR(4, 5) CLEAR(6, 7) STEP(0, 1) STEP(1, 1) STEP(2, 1) STEP(3, 1)
            SCALES(1) ADD(0, 1, 8, 18, 19) ADD(2, 3, 9, 22, 23) ADD(4, 5, 10, 26, 27)
                ADD(6, 7, 11, 30, 31) "prfm pldl1keep, [%[ahead]]\n prfm pldl1keep, [%[ahead], "
                                      "#64]\n add %[ahead], %[ahead], %[step]\n"
                                      "add %[a], %[a], #320\n add %[b], %[b], #288\n subs "
                                      "%[blocks], %[blocks], #1\n b.ne 1b\n" PUT(16, 17, 18, 19)
                                          PUT(20, 21, 22, 23) PUT(24, 25, 26, 27)
                                              PUT(28, 29, 30, 31)
        : [c] "+r"(c), [a] "+r"(a), [b] "+r"(b), [blocks] "+r"(blocks), [ahead] "+r"(ahead)
        : [next] "r"(next), [step] "r"(step)
        : "cc", "memory", "x9", "x10", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9",
          "v10", "v11", "v12", "v13", "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22",
          "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31");
}

/* A tile of 7 or 8 rows.  Mostly its sums are what C shall be. */
static inline void smmla_tile(const gemm_tile *t)
{
    float own[64];
    const bool plain = t->rows == 8 && t->alpha == 1 && !t->add;
    smmla_sums(plain ? t->c : own, (plain ? t->ldc : 8) * (int64_t)sizeof(float), t->a, t->b,
               (int64_t)gemm_units(t->kc), t->ahead, t->ahead_step * (GEMM_UNIT / 4));
    for (int i = 0; i < t->rows && !plain; i++)
        for (int j = 0; j < 8; j += VW) {
            float *c = t->c + i * t->ldc + j;
            v_store(c, v_fma(v_set1(t->alpha), v_load(own + 8 * i + j),
                             t->add ? v_load(c) : v_zero()));
        }
}

#undef LOAD
#undef CLEAR
#undef PRODUCTS
#undef STEP
#undef SCALES
#undef ADD
#undef PUT
#undef NEXT

#endif
