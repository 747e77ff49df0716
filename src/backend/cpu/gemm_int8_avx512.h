/* gemm_int8_avx512.h - a contiguous row of A to bytes with one scale, 64 values at a time.
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

ALWAYS_INLINE vf largest_of_row(const void *x, int64_t kc, const fv_dtype t)
{
    vf most = v_zero();
    for (int64_t k = 0; k < kc; k += ROW_STEP) {
        vf m[4];
#pragma GCC unroll 4
        for (int u = 0; u < 4; u++) m[u] = v_load_as(x, k + u * VW, t);
        most = v_max_abs(v_max_abs(v_max_abs(v_max_abs(most, m[0]), m[1]), m[2]), m[3]);
    }
    return most;
}

ALWAYS_INLINE row_bytes start_row(const gemm_src *a, int i, int64_t kc)
{
    row_bytes r = {.x = (const char *)a->p + i * a->ld * (int64_t)fv_dtype_size(a->dtype),
                   .dtype = a->dtype};
    const float most = v_hmax_abs(a->dtype == FV_F32 ? largest_of_row(r.x, kc, FV_F32)
                                                     : largest_of_row(r.x, kc, FV_BF16));
    r.by = v_set1(most < TINY ? 0 : 127.0f / most);
    r.scale = most < TINY ? 0 : most / 127.0f;
    return r;
}

/* packs works within 128-bit lanes, so the last permutation puts the fours of bytes in order. */
ALWAYS_INLINE __m512i quantise_64(const void *x, int64_t k, vf by, const fv_dtype t)
{
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    __m512i q[4];
#pragma GCC unroll 4
    for (int u = 0; u < 4; u++) q[u] = _mm512_cvtps_epi32(v_mul(v_load_as(x, k + u * VW, t), by));
    __m512i low = _mm512_packs_epi32(q[0], q[1]), high = _mm512_packs_epi32(q[2], q[3]);
    return _mm512_permutexvar_epi32(order, _mm512_packs_epi16(low, high));
}

ALWAYS_INLINE __m512i next_bytes(row_bytes *r)
{
    int64_t k = r->k;
    r->k += ROW_STEP;
    return r->dtype == FV_F32 ? quantise_64(r->x, k, r->by, FV_F32)
                              : quantise_64(r->x, k, r->by, FV_BF16);
}

#if !defined(CPU_AMX)
/* Row i of a strip behind its head: fours of values, a strip's rows apart, and their sum. */
static void pack_whole_row(a_head *head, const gemm_src *a, int i, int64_t kc)
{
    a_value *to = (a_value *)(head + 1), q[ROW_STEP];
    row_bytes row = start_row(a, i, kc);
    __m512i sum = set_all(0);
    for (int64_t k = 0; k < kc; k += ROW_STEP, to += ROW_STEP * A_WIDTH) {
        __m512i bytes = next_bytes(&row);
        sum = add_broadcast(sum, bytes, _mm512_set1_epi8(1));
        _mm512_storeu_si512(q, bytes);
#pragma GCC unroll 16
        for (int t = 0; t < ROW_STEP / G; t++) memcpy(to + A_GROUP(t, i), q + t * G, G);
    }
    set_head(head, i, row.scale, _mm512_reduce_add_epi32(sum));
}
#endif
#endif
