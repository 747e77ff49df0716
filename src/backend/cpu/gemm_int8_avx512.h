/* gemm_int8_avx512.h - contiguous rows of A to bytes with one scale each, 64 values at a time.
 *
 * Finite rows get the bits that gemm_int8.c gives them block by block. */
#ifndef FV_GEMM_INT8_AVX512_H
#define FV_GEMM_INT8_AVX512_H

#include "gemm_int8.h"

#define ROW_STEP 64

typedef struct row_bytes {
    const void *x;
    fv_dtype dtype;
    int64_t k; /* of the next step */
    vf by;
    float scale;
} row_bytes;

ALWAYS_INLINE bool is_whole_row(const gemm_src *a, int i, int64_t kc)
{
    bool floats = a->dtype == FV_F32 || a->dtype == FV_BF16;
    return floats && a->along_k && kc % ROW_STEP == 0 && i < a->n;
}

/* Prefetches the row that comes next, `next` bytes further. */
ALWAYS_INLINE vf largest_of_row(const void *x, int64_t kc, int64_t next, const fv_dtype t)
{
    const int64_t size = t == FV_F32 ? 4 : 2;
    vf most = v_zero();
    for (int64_t k = 0; k < kc; k += ROW_STEP) {
        vf m[4];
#pragma GCC unroll 4
        for (int64_t u = 0; u < ROW_STEP * size; u += 64)
            __builtin_prefetch((const char *)x + next + k * size + u);
#pragma GCC unroll 4
        for (int u = 0; u < 4; u++) m[u] = v_load_as(x, k + u * VW, t);
        most = v_max_abs(v_max_abs(v_max_abs(v_max_abs(most, m[0]), m[1]), m[2]), m[3]);
    }
    return most;
}

ALWAYS_INLINE row_bytes start_row(const gemm_src *a, int i, int64_t kc)
{
    const int64_t next = a->ld * (int64_t)fv_dtype_size(a->dtype);
    row_bytes r = {.x = (const char *)a->p + i * next, .dtype = a->dtype};
    const float most = v_hmax_abs(a->dtype == FV_F32 ? largest_of_row(r.x, kc, next, FV_F32)
                                                     : largest_of_row(r.x, kc, next, FV_BF16));
    r.by = v_set1(most < TINY ? 0 : 127.0f / most);
    r.scale = most < TINY ? 0 : most / 127.0f;
    return r;
}

/* 64 values to bytes, in groups of four as vpdpbusd takes them: the packs instructions work within
 * 128-bit lanes, so lane l has groups l, l + 4, l + 8 and l + 12. */
ALWAYS_INLINE __m512i quantise_fours(const void *x, int64_t k, vf by, const fv_dtype t)
{
    __m512i q[4];
#pragma GCC unroll 4
    for (int u = 0; u < 4; u++) q[u] = _mm512_cvtps_epi32(v_mul(v_load_as(x, k + u * VW, t), by));
    return _mm512_packs_epi16(_mm512_packs_epi32(q[0], q[1]), _mm512_packs_epi32(q[2], q[3]));
}

/* The same, groups in order. */
ALWAYS_INLINE __m512i quantise_64(const void *x, int64_t k, vf by, const fv_dtype t)
{
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return _mm512_permutexvar_epi32(order, quantise_fours(x, k, by, t));
}

ALWAYS_INLINE __m512i next_bytes(row_bytes *r)
{
    int64_t k = r->k;
    r->k += ROW_STEP;
    return r->dtype == FV_F32 ? quantise_64(r->x, k, r->by, FV_F32)
                              : quantise_64(r->x, k, r->by, FV_BF16);
}

#if !defined(CPU_AMX)
#define SIDE 4 /* rows that are transposed together */

/* x: 64 bytes of each of SIDE rows, as quantise_fours gives them.  Stores each group of four of all
 * rows side by side, and adds to the rows' sums. */
ALWAYS_INLINE void pack_fours(a_value *to, __m512i *sum, const __m512i *x)
{
    __m512i pair[SIDE], y[SIDE];
#pragma GCC unroll 4
    for (int i = 0; i < SIDE; i++) sum[i] = add_broadcast(sum[i], x[i], _mm512_set1_epi8(1));
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        pair[2 * i] = _mm512_unpacklo_epi32(x[2 * i], x[2 * i + 1]);
        pair[2 * i + 1] = _mm512_unpackhi_epi32(x[2 * i], x[2 * i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        y[2 * i] = _mm512_unpacklo_epi64(pair[i], pair[2 + i]);
        y[2 * i + 1] = _mm512_unpackhi_epi64(pair[i], pair[2 + i]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < SIDE; i++) { /* lane l: group 4 i + l of each row */
        _mm_storeu_si128((__m128i *)(to + A_GROUP(SIDE * i, 0)), _mm512_castsi512_si128(y[i]));
        _mm_storeu_si128((__m128i *)(to + A_GROUP(SIDE * i + 1, 0)),
                         _mm512_extracti32x4_epi32(y[i], 1));
        _mm_storeu_si128((__m128i *)(to + A_GROUP(SIDE * i + 2, 0)),
                         _mm512_extracti32x4_epi32(y[i], 2));
        _mm_storeu_si128((__m128i *)(to + A_GROUP(SIDE * i + 3, 0)),
                         _mm512_extracti32x4_epi32(y[i], 3));
    }
}

/* SIDE rows of a strip from row i on; of rows that there are not, whatever the last has. */
ALWAYS_INLINE void pack_rows_as(a_head *head, const gemm_src *a, int i, int64_t kc,
                                const fv_dtype t)
{
    a_value *to = (a_value *)(head + 1) + A_GROUP(0, i);
    row_bytes row[SIDE];
    __m512i x[SIDE], sum[SIDE];
#pragma GCC unroll 4
    for (int r = 0; r < SIDE; r++) {
        row[r] = start_row(a, i + r < a->n ? i + r : a->n - 1, kc);
        sum[r] = set_all(0);
    }
    for (int64_t k = 0; k < kc; k += ROW_STEP, to += ROW_STEP * A_WIDTH) {
#pragma GCC unroll 4
        for (int r = 0; r < SIDE; r++) x[r] = quantise_fours(row[r].x, k, row[r].by, t);
        pack_fours(to, sum, x);
    }
#pragma GCC unroll 4
    for (int r = 0; r < SIDE; r++)
        set_head(head, i + r, row[r].scale, _mm512_reduce_add_epi32(sum[r]));
}

/* A strip of whole rows. */
static void pack_whole_rows(a_head *head, const gemm_src *a, int64_t kc)
{
    for (int i = 0; i < a->n; i += SIDE)
        if (a->dtype == FV_F32)
            pack_rows_as(head, a, i, kc, FV_F32);
        else
            pack_rows_as(head, a, i, kc, FV_BF16);
}
#undef SIDE
#endif
#endif
