/* gemm_sdot.h - integer products on NEON with sdot, for processors that have it but not smmla.
 *
 * sdot is a dot product of four bytes in each of four 32-bit lanes: four values of k of four
 * columns of B, by the same four values of k of one row of A, which are one lane of the other
 * operand.  A tile is up to 12 rows by 4 columns, whose integer and f32 sums take 24 of the 32
 * registers; in a block of A the rows are interleaved by four values of k, so that one load has
 * four rows.
 *
 * What a block and a run are is in gemm_int8.h and gemm_int8_row.h. */
#ifndef FV_GEMM_SDOT_H
#define FV_GEMM_SDOT_H

#include "gemm.h"
#include "gemm_neon.h"

#define MR 12
#define G 4
#define B_BIAS 0
typedef int8_t a_value;
typedef struct a_head {
    float scale[MR];
} a_head;

/* Products and their loads are volatile assembly, so that they stay in the order written: gcc 12
 * moves the loads of a whole block to its front and spills registers. */
#define SDOT_LANE(lane)                                                                            \
    __asm__ volatile("sdot %0.4s, %1.16b, %2.4b[" #lane "]" : "+w"(s) : "w"(w), "w"(a))
/* s + w times row `row` of the four rows in a. */
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
        int8x16_t x = neon_load_bytes(a + i * G);
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++)
            if (i + j < rows) sum[(i + j) * next] = sdot_row(sum[(i + j) * next], w, x, j);
    }
}

/* Values t*4.. of k of a panel. */
ALWAYS_INLINE int8x16_t sdot_columns(const uint8_t *b, const int t, const bool q4)
{
    int8x16_t w = neon_load_bytes(b + (q4 ? t % 4 : t) * VW * G);
    if (!q4) return w;
    return t < 4 ? vshlq_n_s8(w, 4) : vandq_s8(w, vdupq_n_s8((int8_t)0xf0));
}

/* An integer sum begins as the bits of 1.5 * 2^23.  Read as a float it is then 1.5 * 2^23 + sum,
 * exactly, because |sum| < 2^22, and one subtraction gives the sum as a float: scvtf has half the
 * throughput.  The constant is loaded for each sum, because a register move would occupy one of the
 * two vector pipes, which are the limit. */
static const float sdot_start[VW] = {0x1.8p23f, 0x1.8p23f, 0x1.8p23f, 0x1.8p23f};

/* x times lane `lane` of y. */
ALWAYS_INLINE vf multiply_lane(vf x, vf y, const int lane)
{
    switch (lane) { /* a constant once the loops are unrolled */
    case 0: return vmulq_laneq_f32(x, y, 0);
    case 1: return vmulq_laneq_f32(x, y, 1);
    case 2: return vmulq_laneq_f32(x, y, 2);
    default: return vmulq_laneq_f32(x, y, 3);
    }
}

/* s[row][panel] += one block of a panel, whose scales are sb. */
ALWAYS_INLINE void sdot_block(vf *s, const a_head *head, const int8_t *a, const uint8_t *b, vf sb,
                              const int rows, const int panels, const bool q4)
{
    const vf start = v_load(sdot_start);
    int32x4_t sum[MR];
#pragma GCC unroll 12
    for (int i = 0; i < rows; i++) sum[i] = vreinterpretq_s32_s8(neon_load_bytes(sdot_start));
#pragma GCC unroll 8
    for (int t = 0; t < 8; t++) sdot_rows(sum, a + t * MR * G, sdot_columns(b, t, q4), rows, 1);
#pragma GCC unroll 3
    for (int i = 0; i < rows; i += 4) {
        vf scale = neon_load_here(head->scale + i);
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
            vf *at = s + (i + j) * panels;
            if (i + j < rows)
                *at = v_fma(v_sub(vreinterpretq_f32_s32(sum[i + j]), start),
                            multiply_lane(sb, scale, j), *at);
        }
    }
}

#define SDOT_AHEAD 2048 /* bytes from what is read to what is prefetched */

/* One row: its values stay in registers for all panels of a block.  Each panel is prefetched,
 * because one block of four panels fills the reorder buffer, and out-of-order execution alone has
 * too few loads in flight (Neoverse N1, decoding: 12 to 29 % faster). */
ALWAYS_INLINE void sdot_one_row(vf *s, const gemm_tile *t, const size_t b_unit, const int panels,
                                const bool q4)
{
    const char *a = t->a, *b = t->b;
    const vf start = v_load(sdot_start);
    for (size_t blocks = gemm_units(t->kc); blocks;
         blocks--, a += sizeof(a_head) + BLOCK * MR, b += b_unit) {
        const a_head *head = (const a_head *)a;
        int8x16_t x[8];
#pragma GCC unroll 8
        for (int k = 0; k < 8; k++)
            x[k] = vreinterpretq_s8_s32(
                vld1q_dup_s32((const int32_t *)(const void *)(head + 1) + k * MR));
        vf scale = v_set1(head->scale[0]);
#pragma GCC unroll 4
        for (int p = 0; p < panels; p++) {
            const char *panel = b + (size_t)p * t->b_next, *ahead = panel + SDOT_AHEAD;
            const uint8_t *qb = (const uint8_t *)((const float *)panel + VW);
            for (size_t i = 0; i < b_unit; i += 64) __builtin_prefetch(ahead + i);
            int32x4_t even = vreinterpretq_s32_f32(start), odd = vdupq_n_s32(0);
#pragma GCC unroll 4
            for (int k = 0; k < 8; k += 2) {
                even = vdotq_s32(even, sdot_columns(qb, k, q4), x[k]);
                odd = vdotq_s32(odd, sdot_columns(qb, k + 1, q4), x[k + 1]);
            }
            vf f = v_sub(vreinterpretq_f32_s32(vaddq_s32(even, odd)), start);
            s[p] = v_fma(f, v_mul(scale, v_load((const float *)panel)), s[p]);
        }
    }
}

#endif
