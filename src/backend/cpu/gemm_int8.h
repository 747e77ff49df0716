/* gemm_int8.h - one block of 32 values of k of an integer product, for each level's instructions.
 *
 * Each flavour says how wide its tile is (MR, NR), how many values of k stand side by side (G),
 * what the values of a panel of A look like, and how `run` adds blocks, one after another, to the
 * sums:
 *     s[i][j] = fma((float)sum_k a[i][k] b[k][j], scale_a[i] * scale_b[j], s[i][j])
 * The integer sum is exact, so every flavour gives the same bits.
 *
 * A block of a panel of B is NR scales, then [32/G][NR][G] bytes; of FV_Q4 [16/G][NR][G] bytes
 * whose low halves are the k below 16 and whose high halves are the others.  Halves are unpacked to
 * the upper four bits of a byte, that is to 16 times their value, which costs one instruction; the
 * scale held is a 16th of the true one. */
#ifndef FV_GEMM_INT8_H
#define FV_GEMM_INT8_H

#include "gemm_transpose.h"

#define BLOCK 32
#define TINY 0x1p-100f /* magnitudes below it count as zero */

/* A block of a panel of B, FV_Q8 with NR = 8 and G = 8 (NEON):
 *
 *    [scale of 8 columns: 32 bytes][col 0: k0..k7][col 1: k0..k7] .. [col 7][col 0: k8..k15] ..
 *
 * and of FV_Q4, where one byte holds k and k + 16:
 *
 *    [32 bytes of scales][col 0: (k0,k16) .. (k7,k23)][col 1] .. [col 0: (k8,k24) .. (k15,k31)] ..
 *
 * so that the low halves of a vector are k0.. and the high ones k16.. of the same columns: the
 * halves are split by one shift or one AND, with no permutation. */
#if defined(CPU_NEON_BF16)

#include "gemm_neon.h"
#include "gemm_smmla.h"

/* smmla: 2 rows by 2 columns over 8 values of k.  Scales of A are held twice, as the blocks of C
 * want them. */
#define MR 8
#define NR 8
#define G 8
#define I8_PANELS 1
#define A_WIDTH 8
#define A_GROUP(t, i) (((t)*A_WIDTH + (i)) * G)
#define B_BIAS 0
typedef int8_t a_value;
typedef struct a_head {
    float scale[MR / 2][4];
} a_head;
#define SUMS (MR / 2 * NR / 2)

ALWAYS_INLINE void set_head(a_head *h, int i, float scale, int sum)
{
    (void)sum;
    h->scale[i / 2][i % 2 * 2] = h->scale[i / 2][i % 2 * 2 + 1] = scale;
}

/* All of it stays in the order written: gcc 12 moves products far from the loads they need and runs
 * out of registers.  The first of a chain clears its sum itself, because a copy of a register of
 * zeros takes a turn of a multiplier. */
ALWAYS_INLINE vf load_twice(const float *p) /* p[0] p[1] p[0] p[1] */
{
    vf x;
    __asm__ volatile("ld1r {%0.2d}, %1" : "=w"(x) : "Q"(*(const double *)p));
    return x;
}
ALWAYS_INLINE int32x4_t mma(int32x4_t s, int8x16_t a, int8x16_t b)
{
    __asm__ volatile("smmla %0.4s, %1.16b, %2.16b" : "+w"(s) : "w"(a), "w"(b));
    return s;
}
ALWAYS_INLINE int32x4_t mma_first(int8x16_t a, int8x16_t b)
{
    int32x4_t s;
    __asm__ volatile("movi %0.4s, #0\n\tsmmla %0.4s, %1.16b, %2.16b" : "=&w"(s) : "w"(a), "w"(b));
    return s;
}
ALWAYS_INLINE vf to_float(int32x4_t s)
{
    vf f;
    __asm__ volatile("scvtf %0.4s, %1.4s" : "=w"(f) : "w"(s));
    return f;
}

/* Values t*8.. of k of a pair of columns. */
ALWAYS_INLINE int8x16_t load_columns(const uint8_t *b, const int t, const bool q4)
{
    int8x16_t x = neon_load_bytes(b + (q4 ? t % 2 : t) * NR * G);
    if (!q4) return x;
    return t < 2 ? vshlq_n_s8(x, 4) : vandq_s8(x, vdupq_n_s8((int8_t)0xf0));
}

/* s[pair of rows][panel][pair of columns] += one block.  Up to eight chains of products side by
 * side hide how long each takes; more would leave no registers for s. */
ALWAYS_INLINE void block(vf *s, const void *a, const void *b, const int rows, const int panels,
                         const bool q4)
{
    const a_head *head = a;
    const int8_t *qa = (const int8_t *)(head + 1);
    const uint8_t *qb = (const uint8_t *)((const float *)b + NR);
    const int pairs = (rows + 1) / 2, wide = pairs > 2 ? 2 : 4;
#pragma GCC unroll 2
    for (int j0 = 0; j0 < NR / 2; j0 += wide) {
        int32x4_t sum[8];
#pragma GCC unroll 4
        for (int t = 0; t < 4; t++) {
            int8x16_t x[4];
#pragma GCC unroll 4
            for (int i = 0; i < pairs; i++) x[i] = neon_load_bytes(qa + A_GROUP(t, 2 * i));
#pragma GCC unroll 4
            for (int j = 0; j < wide; j++) {
                int8x16_t w = load_columns(qb + 2 * (j0 + j) * G, t, q4);
#pragma GCC unroll 4
                for (int i = 0; i < pairs; i++)
                    sum[i * wide + j] = t ? mma(sum[i * wide + j], x[i], w) : mma_first(x[i], w);
            }
        }
        vf f[8];
#pragma GCC unroll 8
        for (int i = 0; i < pairs * wide; i++) f[i] = to_float(sum[i]);
#pragma GCC unroll 4
        for (int j = 0; j < wide; j++) {
            vf sb = load_twice((const float *)b + 2 * (j0 + j));
#pragma GCC unroll 4
            for (int i = 0; i < pairs; i++) {
                vf *at = s + i * panels * (NR / 2) + j0 + j;
                *at = neon_fma(f[i * wide + j], neon_mul(v_load(head->scale[i]), sb), *at);
            }
        }
    }
}

/* One row alone would leave half of every smmla idle, and of what brings its sums to floats.  sdot
 * adds up four values of k to a lane, so a pair of columns leaves two halves of each side by side,
 * and four columns go together from there.
 *    w    = { col j: k0..k7 | col j+1: k0..k7 }     x = { k0..k7 | k0..k7 } of the row
 *    sdot = { j: k0-3, j: k4-7 | j+1: k0-3, j+1: k4-7 }     vpaddq adds the halves of four columns
 */
ALWAYS_INLINE void one_row(vf *s, const gemm_tile *t, const size_t b_unit, const int panels,
                           const bool q4)
{
    const char *a = t->a, *b = t->b;
    const int8x16_t upper = vdupq_n_s8((int8_t)0xf0);
    const int loads = q4 ? 2 : 4;
    vf sum[GEMM_WALK * 2];
#pragma GCC unroll 8
    for (int i = 0; i < panels * 2; i++) sum[i] = v_zero();
    for (size_t blocks = gemm_units(t->kc); blocks;
         blocks--, a += sizeof(a_head) + BLOCK * A_WIDTH, b += b_unit) {
        const a_head *head = (const a_head *)a;
        int8x16_t x[4];
#pragma GCC unroll 4
        for (int k = 0; k < 4; k++)
            x[k] = vreinterpretq_s8_s64(
                vld1q_dup_s64((const int64_t *)((const int8_t *)(head + 1) + k * A_WIDTH * G)));
#pragma GCC unroll 4
        for (int p = 0; p < panels; p++) {
            const float *scale = (const float *)(b + (size_t)p * t->b_next);
            const int8_t *qb = (const int8_t *)(scale + NR);
            int32x4_t d[NR / 2];
#pragma GCC unroll 4
            for (int j = 0; j < NR / 2; j++) d[j] = vdupq_n_s32(0);
#pragma GCC unroll 4
            for (int k = 0; k < loads; k++)
#pragma GCC unroll 4
                for (int j = 0; j < NR / 2; j++) {
                    int8x16_t w = vld1q_s8(qb + (k * NR + 2 * j) * G);
                    d[j] = vdotq_s32(d[j], q4 ? vshlq_n_s8(w, 4) : w, x[k]);
                    if (q4) d[j] = vdotq_s32(d[j], vandq_s8(w, upper), x[k + 2]);
                }
#pragma GCC unroll 2
            for (int h = 0; h < 2; h++) {
                vf f = vcvtq_f32_s32(vpaddq_s32(d[2 * h], d[2 * h + 1]));
                sum[2 * p + h] = v_fma(f, v_mul(v_set1(head->scale[0][0]), v_load(scale + 4 * h)),
                                       sum[2 * p + h]);
            }
        }
    }
#pragma GCC unroll 8
    /* as store_row_pair wants them: two columns in the first half */
    for (int i = 0; i < panels * 2; i++) {
        s[2 * i] = sum[i];
        s[2 * i + 1] = vextq_f32(sum[i], sum[i], 2);
    }
}

ALWAYS_INLINE void run(vf *s, const gemm_tile *t, const size_t b_unit, const int rows,
                       const int panels, const bool q4)
{
    const char *a = t->a, *b = t->b, *ahead = t->ahead;
    int64_t blocks = (int64_t)gemm_units(t->kc), step = t->ahead_step * (BLOCK / 4);
    if (rows == 1) {
        one_row(s, t, b_unit, panels, q4);
        return;
    }
    for (; blocks; blocks--, a += sizeof(a_head) + BLOCK * A_WIDTH, b += b_unit, ahead += step) {
        __builtin_prefetch(ahead);
        __builtin_prefetch(ahead + 64);
#pragma GCC unroll 4
        for (int p = 0; p < panels; p++)
            block(s + p * (NR / 2), a, b + (size_t)p * t->b_next, rows, panels, q4);
    }
}

ALWAYS_INLINE void store_tile(const gemm_tile *t, const vf *s, const int rows, const int panels)
{
#pragma GCC unroll 4
    for (int i = 0; i < (rows + 1) / 2; i++)
        store_row_pair(t, s + i * panels * (NR / 2), i, panels, NR);
}

#else /* one row of C to a vector of columns */

#define NR VW
/* Panels of FV_I8 that a tile of MR rows takes.  With two, a group of A is loaded once for two
 * products: 1.1 times as fast on Cascade Lake. */
#if defined(CPU_AVX512_VNNI) && !defined(CPU_AMX)
#define I8_PANELS 2
#else
#define I8_PANELS 1
#endif
#define SUMS (MR * I8_PANELS)
/* Rows of a strip of A, and where group t of G values of k of row i is in a block of it: side by
 * side with those of the other rows, or, for tiles of AMX, row after row. */
#if defined(CPU_AMX)
#define A_WIDTH 16
#define A_GROUP(t, i) ((i)*BLOCK + (t)*G)
#else
#define A_WIDTH MR
#define A_GROUP(t, i) (((t)*A_WIDTH + (i)) * G)
#endif

#if defined(CPU_AVX512_VNNI) || defined(CPU_AVX_VNNI)

/* vpdpbusd: unsigned by signed bytes, 4 values of k to a lane.  B is held 128 too high, and 128
 * times the sum of A's values taken off again. */
#define G 4
#define B_BIAS 128
typedef int8_t a_value;
#if defined(CPU_AVX512_VNNI)
#define MR 12
typedef __m512i wide;
typedef struct group {
    a_value v[G];
} group;
ALWAYS_INLINE wide load_group(const void *p) { return _mm512_loadu_si512(p); }
/* In assembly, because gcc 12 copies the sum twice around each intrinsic. */
ALWAYS_INLINE wide add_group(wide s, const a_value *a, wide w)
{
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(s) : "v"(w), "m"(*(const group *)a));
    return s;
}
/* The same with a group that was broadcast before. */
ALWAYS_INLINE wide add_broadcast(wide s, wide x, wide w)
{
    __asm__("vpdpbusd %2, %1, %0" : "+v"(s) : "v"(w), "v"(x));
    return s;
}
ALWAYS_INLINE wide set_all(int32_t x) { return _mm512_set1_epi32(x); }
ALWAYS_INLINE wide broadcast(const a_value *a)
{
    int32_t four;
    memcpy(&four, a, sizeof four);
    return set_all(four);
}
ALWAYS_INLINE vf to_float(wide s) { return _mm512_cvtepi32_ps(s); }
ALWAYS_INLINE wide high_half(wide x) { return _mm512_and_si512(x, _mm512_set1_epi8((char)0xf0)); }
ALWAYS_INLINE wide low_half(wide x) { return high_half(_mm512_slli_epi16(x, 4)); }
#else
#define MR 6
typedef __m256i wide;
ALWAYS_INLINE wide load_group(const void *p) { return _mm256_loadu_si256(p); }
ALWAYS_INLINE wide add_group(wide s, const a_value *a, wide w)
{
    int32_t four;
    memcpy(&four, a, sizeof four);
    return _mm256_dpbusd_avx_epi32(s, w, _mm256_set1_epi32(four));
}
ALWAYS_INLINE wide set_all(int32_t x) { return _mm256_set1_epi32(x); }
ALWAYS_INLINE vf to_float(wide s) { return _mm256_cvtepi32_ps(s); }
ALWAYS_INLINE wide high_half(wide x) { return _mm256_and_si256(x, _mm256_set1_epi8((char)0xf0)); }
ALWAYS_INLINE wide low_half(wide x) { return high_half(_mm256_slli_epi16(x, 4)); }
#endif
typedef struct a_head {
    float scale[A_WIDTH];
    int32_t start[A_WIDTH];
} a_head;
ALWAYS_INLINE wide first_sum(const a_head *h, int i) { return set_all(h->start[i]); }

#elif defined(CPU_NEON_DOTPROD)

#include "gemm_sdot.h"

#elif defined(CPU_AVX512) || defined(CPU_AVX2)

/* vpmaddwd: 2 values of k to a lane, in 16 bits.  A is held in 16 bits; B is widened as it is
 * loaded. */
#define G 2
#define B_BIAS 0
typedef int16_t a_value;
#if defined(CPU_AVX2)
#define MR 6
typedef __m256i wide;
ALWAYS_INLINE wide load_group(const void *p) { return _mm256_cvtepi8_epi16(_mm_loadu_si128(p)); }
ALWAYS_INLINE wide add_group(wide s, const a_value *a, wide w)
{
    int32_t two;
    memcpy(&two, a, sizeof two);
    return _mm256_add_epi32(s, _mm256_madd_epi16(_mm256_set1_epi32(two), w));
}
ALWAYS_INLINE wide set_all(int32_t x) { return _mm256_set1_epi32(x); }
ALWAYS_INLINE vf to_float(wide s) { return _mm256_cvtepi32_ps(s); }
/* 16 times the halves: shifted to the top of 16 bits, and back with the sign */
ALWAYS_INLINE wide low_half(wide x) { return _mm256_srai_epi16(_mm256_slli_epi16(x, 12), 8); }
ALWAYS_INLINE wide high_half(wide x) { return _mm256_slli_epi16(_mm256_srai_epi16(x, 4), 4); }
#else
#define MR 12
typedef __m512i wide;
ALWAYS_INLINE wide load_group(const void *p) { return _mm512_cvtepi8_epi16(_mm256_loadu_si256(p)); }
ALWAYS_INLINE wide add_group(wide s, const a_value *a, wide w)
{
    int32_t two;
    memcpy(&two, a, sizeof two);
    return _mm512_add_epi32(s, _mm512_madd_epi16(_mm512_set1_epi32(two), w));
}
ALWAYS_INLINE wide set_all(int32_t x) { return _mm512_set1_epi32(x); }
ALWAYS_INLINE vf to_float(wide s) { return _mm512_cvtepi32_ps(s); }
ALWAYS_INLINE wide low_half(wide x) { return _mm512_srai_epi16(_mm512_slli_epi16(x, 12), 8); }
ALWAYS_INLINE wide high_half(wide x) { return _mm512_slli_epi16(_mm512_srai_epi16(x, 4), 4); }
#endif
typedef struct a_head {
    float scale[MR];
} a_head;
ALWAYS_INLINE wide first_sum(const a_head *h, int i)
{
    (void)h, (void)i;
    return set_all(0);
}

#else

/* The compiler's own way, one value of k after another. */
#define MR 4
#define G 1
#define B_BIAS 0
typedef int8_t a_value;
typedef struct a_head {
    float scale[MR];
} a_head;

#endif

ALWAYS_INLINE void set_head(a_head *h, int i, float scale, int sum)
{
    h->scale[i] = scale;
#if B_BIAS
    h->start[i] = -B_BIAS * sum;
#else
    (void)sum;
#endif
}

/* s[row][panel] */
ALWAYS_INLINE void block(vf *s, const void *a, const void *b, const int rows, const int panels,
                         const bool q4)
{
    const a_head *head = a;
    const a_value *qa = (const a_value *)(head + 1);
    const uint8_t *qb = (const uint8_t *)((const float *)b + NR);
    vf sb = v_load(b);
#if defined(CPU_NEON_DOTPROD)
    sdot_block(s, head, qa, qb, sb, rows, panels, q4);
#elif defined(CPU_AVX512_VNNI) || defined(CPU_AVX512) || defined(CPU_AVX2)
    wide sum[MR];
#pragma GCC unroll 12
    for (int i = 0; i < rows; i++) sum[i] = first_sum(head, i);
#pragma GCC unroll 16
    for (int t = 0; t < BLOCK / G; t++) {
        const int half = BLOCK / G / 2;
        wide w = load_group(qb + (q4 ? t % half : t) * NR * G);
        if (q4) w = t < half ? low_half(w) : high_half(w);
#pragma GCC unroll 12
        for (int i = 0; i < rows; i++) sum[i] = add_group(sum[i], qa + A_GROUP(t, i), w);
    }
#pragma GCC unroll 12
    for (int i = 0; i < rows; i++)
        s[i * panels] = v_fma(to_float(sum[i]), v_mul(v_set1(head->scale[i]), sb), s[i * panels]);
#else
    int32_t sum[MR][NR] = {{0}};
    for (int k = 0; k < BLOCK; k++)
        for (int j = 0; j < NR; j++) {
            uint8_t byte = qb[(q4 ? k % 16 : k) * NR + j];
            int32_t w = (int8_t)(!q4 ? byte : k < 16 ? (uint8_t)(byte << 4) : byte & 0xf0);
            for (int i = 0; i < rows; i++) sum[i][j] += w * qa[k * A_WIDTH + i];
        }
    for (int i = 0; i < rows; i++) {
        float f[NR];
        for (int j = 0; j < NR; j++) f[j] = (float)sum[i][j];
        s[i * panels] = v_fma(v_load(f), v_mul(v_set1(head->scale[i]), sb), s[i * panels]);
    }
#endif
}

ALWAYS_INLINE void run(vf *s, const gemm_tile *t, const size_t b_unit, const int rows,
                       const int panels, const bool q4)
{
    const char *a = t->a, *b = t->b, *ahead = t->ahead;
    int64_t blocks = (int64_t)gemm_units(t->kc), step = t->ahead_step * (BLOCK / 4);
#if defined(CPU_NEON_DOTPROD)
    if (rows == 1) {
        sdot_one_row(s, t, b_unit, panels, q4);
        return;
    }
#endif
    for (; blocks; blocks--, a += sizeof(a_head) + BLOCK * A_WIDTH * sizeof(a_value), b += b_unit,
                   ahead += step) {
        __builtin_prefetch(ahead);
        __builtin_prefetch(ahead + 64);
#pragma GCC unroll 4
        for (int p = 0; p < panels; p++)
            block(s + p, a, b + (size_t)p * t->b_next, rows, panels, q4);
    }
}

ALWAYS_INLINE void store_tile(const gemm_tile *t, const vf *s, const int rows, const int panels)
{
    vf alpha = v_set1(t->alpha);
#pragma GCC unroll 12
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int j = 0; j < panels; j++) {
            float *c = t->c + i * t->ldc + j * t->c_next;
            v_store(c, v_fma(alpha, s[i * panels + j], t->add ? v_load(c) : v_zero()));
        }
}

#endif
#endif
