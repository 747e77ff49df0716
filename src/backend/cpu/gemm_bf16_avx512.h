/* gemm_bf16_avx512.h - bf16 panels for vdpbf16ps and for AMX tiles, and the tile of the former.
 *
 * Both instructions take B as pairs of k: [k/2][columns][2].  A pair is 32 bits, so a panel is the
 * transpose of a matrix of pairs, made in registers 16 x 16 at a time.  What is beyond kc in the
 * last 32 values of k is filled with zeros, which AMX multiplies; rows beyond n repeat the last,
 * and their sums are not stored. */
#ifndef FV_GEMM_BF16_AVX512_H
#define FV_GEMM_BF16_AVX512_H

#include "gemm_transpose.h"

#define PAIRS (GEMM_UNIT / 2) /* of one unit of k: as many as there are lanes */

/* 16 or fewer values as bf16, rounded to nearest even; the others are 0. */
ALWAYS_INLINE __m256i load_some(const void *p, int64_t i, int64_t n, const fv_dtype t)
{
    const __mmask16 mask = first_lanes(n);
    if (t == FV_F32)
        return (__m256i)_mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(mask, (const float *)p + i));
    __m256i h = _mm256_maskz_loadu_epi16(mask, (const uint16_t *)p + i);
    return t == FV_BF16 ? h : (__m256i)_mm512_cvtneps_pbh(_mm512_cvtph_ps(h));
}

/* Asks for values that are packed soon: a cache line of many rows is used up at a time, which no
 * hardware prefetcher follows. */
ALWAYS_INLINE void soon(const void *p, int64_t i, int64_t n, const fv_dtype t)
{
    const int64_t size = t == FV_F32 ? 4 : 2;
    for (int64_t at = 0; at < n * size; at += 64)
        __builtin_prefetch((const char *)p + i * size + at);
}

/* A unit of k of one row: 32 values, of which n are there. */
ALWAYS_INLINE __m512i load_unit(const void *p, int64_t i, int64_t n, const fv_dtype t)
{
    soon(p, i + 2 * GEMM_UNIT, GEMM_UNIT, t);
    if (t == FV_BF16 && n >= GEMM_UNIT) return _mm512_loadu_si512((const uint16_t *)p + i);
    __m256i low = load_some(p, i, n, t),
            high = n > VW ? load_some(p, i + VW, n - VW, t) : _mm256_setzero_si256();
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

/* Pairs of k of 16 rows from `first` on: lane j of x[p] is pair p of row first + j. */
ALWAYS_INLINE void load_pairs(vf x[PAIRS], const gemm_src *s, int first, int64_t k, int64_t kc,
                              const fv_dtype t)
{
    if (s->along_k) {
#pragma GCC unroll 16
        for (int j = 0; j < PAIRS; j++) {
            int64_t row = first + j < s->n ? first + j : s->n - 1;
            x[j] = (vf)load_unit(s->p, row * s->ld + k, kc - k, t);
        }
        transpose(x);
        return;
    }
    int64_t n = s->n - first;
#pragma GCC unroll 16
    for (int p = 0; p < PAIRS; p++) {
        int64_t at = k + 2 * p;
        soon(s->p, (at + GEMM_UNIT) * s->ld + first, VW, t);
        soon(s->p, (at + 1 + GEMM_UNIT) * s->ld + first, VW, t);
        __m256i even = _mm256_setzero_si256(), odd = even;
        if (at < kc && n > 0) even = load_some(s->p, at * s->ld + first, n, t);
        if (at + 1 < kc && n > 0) odd = load_some(s->p, (at + 1) * s->ld + first, n, t);
        x[p] = (vf)_mm512_or_si512(_mm512_cvtepu16_epi32(even),
                                   _mm512_slli_epi32(_mm512_cvtepu16_epi32(odd), 16));
    }
}

ALWAYS_INLINE void pack_pairs_as(void *out, const int width, const gemm_src *s, int64_t kc,
                                 const fv_dtype t)
{
    for (int64_t k = 0; k < kc; k += GEMM_UNIT)
        for (int i = 0; i < width; i += VW) {
            vf x[PAIRS];
            load_pairs(x, s, i, k, kc, t);
#pragma GCC unroll 16
            for (int p = 0; p < PAIRS; p++) v_store((float *)out + (k / 2 + p) * width + i, x[p]);
        }
}

ALWAYS_INLINE void pack_pairs(void *out, const int width, const gemm_src *s, int64_t kc)
{
    if (s->dtype == FV_BF16)
        pack_pairs_as(out, width, s, kc, FV_BF16);
    else if (s->dtype == FV_F16)
        pack_pairs_as(out, width, s, kc, FV_F16);
    else
        pack_pairs_as(out, width, s, kc, FV_F32);
}

#endif
