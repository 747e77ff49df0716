/* gemm_sdot.h - integer products on NEON with sdot, for processors that have it but not smmla.
 *
 * sdot adds four products of bytes to each of four lanes: four values of k of four columns of B by
 * four values of k of one row of A, which are a lane of a register.  A tile is up to 12 rows by 4
 * columns, whose integer and f32 sums take 24 of the 32 registers; the rows of A lie side by side
 * in a block, so that one load brings four of them.
 *
 * What a block and a run are is in gemm_int8.h and gemm_int8_row.h. */
#ifndef FV_GEMM_SDOT_H
#define FV_GEMM_SDOT_H

#include "gemm_neon.h"

#define MR 12
#define G 4
#define B_BIAS 0
typedef int8_t a_value;
typedef struct a_head {
    float scale[MR];
} a_head;

/* Volatile, so that loads stay where they are written: gcc 12 moves those of a whole block to its
 * front and runs out of registers. */
ALWAYS_INLINE int8x16_t sdot_load(const void *p)
{
    int8x16_t x;
    __asm__ volatile("ldr %q0, %1" : "=w"(x) : "m"(*(const int8x16_t *)p));
    return x;
}
#define SDOT_LANE(lane)                                                                            \
    __asm__ volatile("sdot %0.4s, %1.16b, %2.4b[" #lane "]" : "+w"(s) : "w"(w), "w"(a))
/* s + four values of k of a column in each lane of w, times those of row `row` of four in a. */
ALWAYS_INLINE int32x4_t sdot_row(int32x4_t s, int8x16_t w, int8x16_t a, const int row)
{
    switch (row) { /* a constant once the loops are unrolled */
    case 0: SDOT_LANE(0); break;
    case 1: SDOT_LANE(1); break;
    case 2: SDOT_LANE(2); break;
    default: SDOT_LANE(3);
    }
    return s;
}

/* sum[i * next] += four values of k of a panel times row i. */
ALWAYS_INLINE void sdot_rows(int32x4_t *sum, const int8_t *a, int8x16_t w, const int rows,
                             const int next)
{
#pragma GCC unroll 3
    for (int i = 0; i < rows; i += 4) {
        int8x16_t x = sdot_load(a + i * G);
#pragma GCC unroll 4
        for (int j = i; j < rows && j < i + 4; j++)
            sum[j * next] = sdot_row(sum[j * next], w, x, j - i);
    }
}

/* Values t*4.. of k of a panel. */
ALWAYS_INLINE int8x16_t sdot_columns(const uint8_t *b, const int t, const bool q4)
{
    int8x16_t w = sdot_load(b + (q4 ? t % 4 : t) * VW * G);
    if (!q4) return w;
    return t < 4 ? vshlq_n_s8(w, 4) : vandq_s8(w, vdupq_n_s8((int8_t)0xf0));
}

/* Sums start from the bits of 1.5 * 2^23: read as a float they are that much too high, and less it
 * the float of the integer, exactly, because |sum| < 2^22.  A conversion would take twice as long;
 * a copy of a register would take a turn of a multiplier, so the start is loaded. */
static const float sdot_start[VW] = {0x1.8p23f, 0x1.8p23f, 0x1.8p23f, 0x1.8p23f};

/* s[row][panel] += one block of a panel, whose scales are sb. */
ALWAYS_INLINE void sdot_block(vf *s, const a_head *head, const uint8_t *b, vf sb, const int rows,
                              const int panels, const bool q4)
{
    const int8_t *a = (const int8_t *)(head + 1);
    const vf high = v_load(sdot_start);
    int32x4_t sum[MR];
#pragma GCC unroll 12
    for (int i = 0; i < rows; i++) sum[i] = vreinterpretq_s32_s8(sdot_load(sdot_start));
#pragma GCC unroll 8
    for (int t = 0; t < 8; t++) sdot_rows(sum, a + t * MR * G, sdot_columns(b, t, q4), rows, 1);
#pragma GCC unroll 3
    for (int i = 0; i < rows; i += 4) {
        vf scale = neon_load_here(head->scale + i);
#pragma GCC unroll 4
        for (int j = i; j < rows && j < i + 4; j++)
            s[j * panels] = v_fma(v_sub(vreinterpretq_f32_s32(sum[j]), high),
                                  vmulq_laneq_f32(sb, scale, j - i), s[j * panels]);
    }
}

#endif
