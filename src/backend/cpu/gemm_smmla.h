/* gemm_smmla.h - the full tile of 8-bit products on NEON, 8 rows by 8 columns, in assembly.
 *
 * A block of 32 values of k is 64 smmla and 48 instructions that bring the sums to floats, scale and add them.  Done one
 * after the other the multipliers stand still for a third of the time, so each group of four products is scaled between
 * the products of the next.  That takes every register there is, and gcc 12, given the same order in intrinsics, copies
 * and spills: 190 Gop/s against the 280 of this.  The other tiles are written in C (gemm_int8.h) and give the same bits.
 *
 *   v16-v31  sums in f32, pair of rows i and pair of columns j in v(16 + 4i + j)
 *   v0-v3 and v4-v7  the group being multiplied and the one being scaled, in turns
 *   v8 (or v15), v9  two pairs of rows;  v10, v11  two pairs of columns
 *   v12, v8, v14, v13  scales of the group being scaled */
#ifndef FV_GEMM_SMMLA_H
#define FV_GEMM_SMMLA_H

#include "simd.h"

/* Values 8t.. of k for pairs of rows 2h, 2h+1 and pairs of columns 2j, 2j+1. */
#define LOAD(x, t, h, j)                                                                                                         \
    "ldr q" #x ", [%[a], #64+64*" #t "+32*" #h "]\n ldr q9, [%[a], #80+64*" #t "+32*" #h "]\n"                                   \
    "ldr q10, [%[b], #32+64*" #t "+32*" #j "]\n ldr q11, [%[b], #48+64*" #t "+32*" #j "]\n"
#define CLEAR(c0, c1, c2, c3) "movi v" #c0 ".4s, #0\n movi v" #c1 ".4s, #0\n movi v" #c2 ".4s, #0\n movi v" #c3 ".4s, #0\n"
#define PRODUCTS(x, c0, c1, c2, c3)                                                                                              \
    "smmla v" #c0 ".4s, v" #x ".16b, v10.16b\n smmla v" #c1 ".4s, v9.16b, v10.16b\n"                                             \
    "smmla v" #c2 ".4s, v" #x ".16b, v11.16b\n smmla v" #c3 ".4s, v9.16b, v11.16b\n"
#define FLOATS(c0, c1, c2, c3)                                                                                                   \
    "scvtf v" #c0 ".4s, v" #c0 ".4s\n scvtf v" #c1 ".4s, v" #c1 ".4s\n"                                                          \
    "scvtf v" #c2 ".4s, v" #c2 ".4s\n scvtf v" #c3 ".4s, v" #c3 ".4s\n"
#define SCALES(from_a, from_b, h, j)                                                                                             \
    "ldr q13, [%[" from_b "], #16*" #j "]\n"                                                                                     \
    "ldr q14, [%[" from_a "], #32*" #h "]\n ldr q15, [%[" from_a "], #16+32*" #h "]\n"                                           \
    "dup v12.2d, v13.d[0]\n dup v13.2d, v13.d[1]\n"                                                                              \
    "fmul v8.4s, v15.4s, v12.4s\n fmul v12.4s, v14.4s, v12.4s\n fmul v14.4s, v14.4s, v13.4s\n fmul v13.4s, v15.4s, v13.4s\n"
#define ADD(c0, c1, c2, c3, s0, s1, s2, s3)                                                                                      \
    "fmla v" #s0 ".4s, v" #c0 ".4s, v12.4s\n fmla v" #s1 ".4s, v" #c1 ".4s, v8.4s\n"                                             \
    "fmla v" #s2 ".4s, v" #c2 ".4s, v14.4s\n fmla v" #s3 ".4s, v" #c3 ".4s, v13.4s\n"

/* s[i][j] = the sums of a tile over all blocks of a strip of A and a panel of B.  none: zeros, read as scales once; ahead:
 * memory to ask for, `step` bytes for each block. */
static inline void smmla_tile(vf s[16], const void *a, const void *b, int64_t blocks, const float none[16], const char *ahead,
                              int64_t step)
{
    const void *last_a = none, *last_b = none;
    __asm__ volatile(
        CLEAR(4, 5, 6, 7) CLEAR(16, 17, 18, 19) CLEAR(20, 21, 22, 23) CLEAR(24, 25, 26, 27)
            CLEAR(28, 29, 30, 31) "1:\n" LOAD(8, 0, 0, 0) CLEAR(0, 1, 2, 3) PRODUCTS(8, 0, 1, 2, 3) FLOATS(4, 5, 6, 7)
                LOAD(8, 1, 0, 0) PRODUCTS(8, 0, 1, 2, 3) SCALES("last_a", "last_b", 1, 1) LOAD(15, 2, 0, 0)
                    PRODUCTS(15, 0, 1, 2, 3) ADD(4, 5, 6, 7, 26, 30, 27, 31) LOAD(8, 3, 0, 0) PRODUCTS(8, 0, 1, 2, 3)

                        LOAD(8, 0, 0, 1) CLEAR(4, 5, 6, 7) PRODUCTS(8, 4, 5, 6, 7) FLOATS(0, 1, 2, 3) LOAD(8, 1, 0, 1)
                            PRODUCTS(8, 4, 5, 6, 7) SCALES("a", "b", 0, 0) LOAD(15, 2, 0, 1) PRODUCTS(15, 4, 5, 6, 7)
                                ADD(0, 1, 2, 3, 16, 20, 17, 21) LOAD(8, 3, 0, 1) PRODUCTS(8, 4, 5, 6, 7)

                                    LOAD(8, 0, 1, 0) CLEAR(0, 1, 2, 3) PRODUCTS(8, 0, 1, 2, 3) FLOATS(4, 5, 6, 7) LOAD(8, 1, 1, 0)
                                        PRODUCTS(8, 0, 1, 2, 3) SCALES("a", "b", 0, 1) LOAD(15, 2, 1, 0) PRODUCTS(15, 0, 1, 2, 3)
                                            ADD(4, 5, 6, 7, 18, 22, 19, 23) LOAD(8, 3, 1, 0) PRODUCTS(8, 0, 1, 2, 3)

                                                LOAD(8, 0, 1, 1) CLEAR(4, 5, 6, 7) PRODUCTS(8, 4, 5, 6, 7) FLOATS(0, 1, 2, 3)
                                                    LOAD(8, 1, 1, 1) PRODUCTS(8, 4, 5, 6, 7) SCALES("a", "b", 1, 0) LOAD(
                                                        15, 2, 1, 1) PRODUCTS(15, 4, 5, 6, 7) ADD(0, 1, 2, 3, 24, 28, 25, 29)
                                                        LOAD(8, 3, 1, 1) PRODUCTS(8, 4, 5, 6, 7)

                                                            "prfm pldl1keep, [%[ahead]]\n prfm pldl1keep, [%[ahead], #64]\n add "
                                                            "%[ahead], %[ahead], %[step]\n"
                                                            "mov %[last_a], %[a]\n mov %[last_b], %[b]\n"
                                                            "add %[a], %[a], #320\n add %[b], %[b], #288\n"
                                                            "subs %[blocks], %[blocks], #1\n"
                                                            "b.ne 1b\n" FLOATS(4, 5, 6, 7) SCALES("last_a", "last_b", 1, 1) ADD(
                                                                4, 5, 6, 7, 26, 30, 27,
                                                                31) "stp q16, q17, [%[s]]\n stp q18, q19, [%[s], #32]\n stp q20, "
                                                                    "q21, [%[s], #64]\n stp q22, q23, [%[s], #96]\n"
                                                                    "stp q24, q25, [%[s], #128]\n stp q26, q27, [%[s], #160]\n "
                                                                    "stp q28, q29, [%[s], #192]\n stp q30, q31, [%[s], #224]\n"
        : [a] "+r"(a), [b] "+r"(b), [blocks] "+r"(blocks), [last_a] "+r"(last_a), [last_b] "+r"(last_b), [ahead] "+r"(ahead)
        : [s] "r"(s), [step] "r"(step)
        : "cc", "memory", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15",
          "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31");
}

#undef LOAD
#undef CLEAR
#undef PRODUCTS
#undef FLOATS
#undef SCALES
#undef ADD

#endif
