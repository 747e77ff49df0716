/* gemm_pack.c - a strip of a matrix as an f32 panel: [k][width], whichever way the matrix lies.
 *
 * Where k runs along memory a block of VW x VW values is turned in registers; otherwise rows are copied.  What is
 * wider than the strip is filled with copies of its last row or column: nobody looks at those sums, and a read of
 * real memory needs no branch. */
#include "gemm.h"

/* Exchanges neighbouring pairs of 2^s x 2^s blocks, s = 0, 1, .. : the transpose. */
INLINE void turn(vf x[VW])
{
    vf y[VW];
#if VW == 4
    const vi lo = {0, 4, 1, 5}, hi = {2, 6, 3, 7};
    const vi lo2 = {0, 1, 4, 5}, hi2 = {2, 3, 6, 7};
#elif VW == 8
    const vi lo = {0, 8, 1, 9, 4, 12, 5, 13}, hi = {2, 10, 3, 11, 6, 14, 7, 15};
    const vi lo2 = {0, 1, 8, 9, 4, 5, 12, 13}, hi2 = {2, 3, 10, 11, 6, 7, 14, 15};
#else
    const vi lo = {0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29};
    const vi hi = {2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31};
    const vi lo2 = {0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29};
    const vi hi2 = {2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31};
#endif
    /* 4x4 blocks within each 128 bits: afterwards x[4g + r] holds, in its lane l, column 4l + r of rows 4g.. */
#pragma GCC unroll 16
    for (int g = 0; g < VW; g += 4) {
        vf a = __builtin_shuffle(x[g], x[g + 1], lo), b = __builtin_shuffle(x[g + 2], x[g + 3], lo);
        vf c = __builtin_shuffle(x[g], x[g + 1], hi), d = __builtin_shuffle(x[g + 2], x[g + 3], hi);
        y[g] = __builtin_shuffle(a, b, lo2), y[g + 1] = __builtin_shuffle(a, b, hi2);
        y[g + 2] = __builtin_shuffle(c, d, lo2), y[g + 3] = __builtin_shuffle(c, d, hi2);
    }
#if VW == 4
    for (int r = 0; r < 4; r++) x[r] = y[r];
#elif VW == 8
    const vi low = {0, 1, 2, 3, 8, 9, 10, 11}, high = {4, 5, 6, 7, 12, 13, 14, 15};
#pragma GCC unroll 4
    for (int r = 0; r < 4; r++) {
        x[r] = __builtin_shuffle(y[r], y[4 + r], low);
        x[4 + r] = __builtin_shuffle(y[r], y[4 + r], high);
    }
#else
    const vi low = {0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23};
    const vi high = {8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31};
    const vi even = {0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27};
    const vi odd = {4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31};
#pragma GCC unroll 4
    for (int r = 0; r < 4; r++) {
        vf a = __builtin_shuffle(y[r], y[4 + r], even), b = __builtin_shuffle(y[r], y[4 + r], odd);
        vf c = __builtin_shuffle(y[8 + r], y[12 + r], even), d = __builtin_shuffle(y[8 + r], y[12 + r], odd);
        x[r] = __builtin_shuffle(a, c, low), x[8 + r] = __builtin_shuffle(a, c, high);
        x[4 + r] = __builtin_shuffle(b, d, low), x[12 + r] = __builtin_shuffle(b, d, high);
    }
#endif
}

INLINE vf rounded(vf x, const bool round)
{
    uint16_t h[VW];
    if (!round) return x;
    v_store_bf16(h, x);
    return v_load_bf16(h);
}

INLINE void along_k(float *out, int width, const gemm_src *s, int64_t kc, const fv_dtype t, const bool round)
{
    for (int i = 0; i < width; i += VW) {
        int64_t row[VW];
        for (int j = 0; j < VW; j++) row[j] = (i + j < s->n ? i + j : s->n - 1) * s->ld;
        int64_t k = 0;
        for (; k < kc; k += VW) {
            int n = kc - k < VW ? (int)(kc - k) : VW;
            vf x[VW];
#pragma GCC unroll 16
            for (int j = 0; j < VW; j++)
                x[j] = rounded(n == VW ? v_load_as(s->p, row[j] + k, t) : v_load_as_n(s->p, row[j] + k, n, t), round);
            turn(x);
#pragma GCC unroll 16
            for (int j = 0; j < VW; j++)
                if (j < n) v_store(out + (k + j) * width + i, x[j]);
        }
    }
}

INLINE void across(float *out, int width, const gemm_src *s, int64_t kc, const fv_dtype t, const bool round)
{
    for (int64_t k = 0; k < kc; k++)
        for (int i = 0; i < width; i += VW) {
            int n = s->n - i < VW ? s->n - i : VW;
            vf x = n == VW ? v_load_as(s->p, k * s->ld + i, t) : n > 0 ? v_load_as_n(s->p, k * s->ld + i, n, t) : v_zero();
            v_store(out + k * width + i, rounded(x, round));
        }
}

INLINE void either(float *out, int width, const gemm_src *s, int64_t kc, const fv_dtype t, const bool round)
{
    if (s->along_k) along_k(out, width, s, kc, t, round);
    else across(out, width, s, kc, t, round);
}

void NAME(gemm_pack)(float *out, int width, const gemm_src *s, int64_t kc, bool round)
{
    if (s->dtype == FV_BF16) either(out, width, s, kc, FV_BF16, false);
    else if (s->dtype == FV_F16 && round) either(out, width, s, kc, FV_F16, true);
    else if (s->dtype == FV_F16) either(out, width, s, kc, FV_F16, false);
    else if (round) either(out, width, s, kc, FV_F32, true);
    else either(out, width, s, kc, FV_F32, false);
}
