/* gemm_pack.c - a strip of a matrix as an f32 panel: [k][width], for either storage order.
 *
 * Where k runs along memory a block of VW x VW values is transposed in registers; otherwise rows
 * are copied.  What is wider than the strip is filled with copies of its last row or column: those
 * sums are not stored, and reading valid memory needs no branch. */
#include "gemm_transpose.h"

ALWAYS_INLINE vf rounded(vf x, const bool round)
{
    uint16_t h[VW];
    if (!round) return x;
    v_store_bf16(h, x);
    return v_load_bf16(h);
}

/* A block reads a cache line of each of 16 rows and is done with them: the next but one is asked
 * for meanwhile (without that a core of a Xeon packed 2.7 GB/s, where it reads 11).  Shorter
 * vectors take longer for a line, and the hardware follows their rows. */
#define AHEAD (VW == 16 ? 2 * VW : 0)

ALWAYS_INLINE void soon(const void *p, int64_t i, const fv_dtype t)
{
    if (AHEAD) __builtin_prefetch((const char *)p + i * (t == FV_F32 ? 4 : 2));
}

/* n < VW values of k are left, or all of a block. */
ALWAYS_INLINE void transpose_block(float *out, const int width, const void *p, const int64_t *row,
                                   int64_t k, int64_t n, const fv_dtype t, const bool round)
{
    vf x[VW];
#pragma GCC unroll 16
    for (int j = 0; j < VW && AHEAD; j++)
        __builtin_prefetch((const char *)p + (size_t)(row[j] + k + AHEAD) * (t == FV_F32 ? 4 : 2));
#pragma GCC unroll 16
    for (int j = 0; j < VW; j++)
        x[j] = rounded(n >= VW ? v_load_as(p, row[j] + k, t) : v_load_as_n(p, row[j] + k, n, t),
                       round);
    transpose(x);
#pragma GCC unroll 16
    for (int j = 0; j < VW; j++)
        if (j < n) v_store(out + (k + j) * width, x[j]);
}

/* One row alone, as in decoding, needs no transposition: each value is broadcast. */
ALWAYS_INLINE void one_row(float *out, const int width, const gemm_src *s, int64_t kc,
                           const fv_dtype t, const bool round)
{
    for (int64_t k = 0; k < kc; k += VW) {
        int64_t n = kc - k < VW ? kc - k : VW;
        vf x = rounded(n == VW ? v_load_as(s->p, k, t) : v_load_as_n(s->p, k, n, t), round);
        for (int64_t j = 0; j < n; j++)
#pragma GCC unroll 4
            for (int i = 0; i < width; i += VW) v_store(out + (k + j) * width + i, v_set1(x[j]));
    }
}

ALWAYS_INLINE void along_k(float *out, const int width, const gemm_src *s, int64_t kc,
                           const fv_dtype t, const bool round)
{
    if (s->n == 1) {
        one_row(out, width, s, kc, t, round);
        return;
    }
    for (int i = 0; i < width; i += VW) {
        int64_t row[VW], k = 0;
        for (int j = 0; j < VW; j++) row[j] = (i + j < s->n ? i + j : s->n - 1) * s->ld;
        for (; k + VW <= kc; k += VW) transpose_block(out + i, width, s->p, row, k, VW, t, round);
        if (k < kc) transpose_block(out + i, width, s->p, row, k, kc - k, t, round);
    }
}

ALWAYS_INLINE void across(float *out, const int width, const gemm_src *s, int64_t kc,
                          const fv_dtype t, const bool round)
{
    if (s->n >= width) {
        for (int64_t k = 0; k < kc; k++)
#pragma GCC unroll 4
            for (int i = 0; i < width; i += VW) {
                soon(s->p, (k + AHEAD) * s->ld + i, t);
                v_store(out + k * width + i, rounded(v_load_as(s->p, k * s->ld + i, t), round));
            }
        return;
    }
    for (int64_t k = 0; k < kc; k++)
        for (int i = 0; i < width; i += VW) {
            int64_t n = s->n - i, at = k * s->ld + i;
            vf x = n >= VW ? v_load_as(s->p, at, t)
                   : n > 0 ? v_load_as_n(s->p, at, n, t)
                           : v_zero();
            v_store(out + k * width + i, rounded(x, round));
        }
}

/* Each branch has a constant dtype and a constant `round`, so that the inner loops are free of
 * tests; bf16 is never rounded again. */
ALWAYS_INLINE void either(float *out, const int width, const gemm_src *s, int64_t kc, bool round)
{
    if (s->dtype == FV_BF16 && s->along_k)
        along_k(out, width, s, kc, FV_BF16, false);
    else if (s->dtype == FV_BF16)
        across(out, width, s, kc, FV_BF16, false);
    else if (s->dtype == FV_F16 && s->along_k)
        along_k(out, width, s, kc, FV_F16, round);
    else if (s->dtype == FV_F16)
        across(out, width, s, kc, FV_F16, round);
    else if (s->along_k && round)
        along_k(out, width, s, kc, FV_F32, true);
    else if (s->along_k)
        along_k(out, width, s, kc, FV_F32, false);
    else if (round)
        across(out, width, s, kc, FV_F32, true);
    else
        across(out, width, s, kc, FV_F32, false);
}

void NAME(gemm_pack)(float *out, int width, const gemm_src *s, int64_t kc, bool round)
{
    switch (width / VW) { /* a width the compiler knows */
    case 1: either(out, VW, s, kc, round); break;
    case 2: either(out, 2 * VW, s, kc, round); break;
    default: either(out, 3 * VW, s, kc, round); break;
    }
}
