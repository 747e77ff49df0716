/* gemm_transpose.h - moving values between lanes: the transpose of VW x VW values, and rows of C
 * from 2 x 2 blocks. */
#ifndef FV_GEMM_TRANSPOSE_H
#define FV_GEMM_TRANSPOSE_H

#include "gemm.h"

/* Exchanges neighbouring pairs of 2^s x 2^s blocks, s = 0, 1, .. : the transpose. */
ALWAYS_INLINE void transpose(vf x[VW])
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
    /* 4x4 blocks within each 128 bits: afterwards x[4g + r] holds, in its lane l, column 4l + r of
     * rows 4g.. */
#pragma GCC unroll 16
    for (int g = 0; g < VW; g += 4) {
        vf a = v_shuffle(x[g], x[g + 1], lo), b = v_shuffle(x[g + 2], x[g + 3], lo);
        vf c = v_shuffle(x[g], x[g + 1], hi), d = v_shuffle(x[g + 2], x[g + 3], hi);
        y[g] = v_shuffle(a, b, lo2), y[g + 1] = v_shuffle(a, b, hi2);
        y[g + 2] = v_shuffle(c, d, lo2), y[g + 3] = v_shuffle(c, d, hi2);
    }
#if VW == 4
    for (int r = 0; r < 4; r++) x[r] = y[r];
#elif VW == 8
    const vi low = {0, 1, 2, 3, 8, 9, 10, 11}, high = {4, 5, 6, 7, 12, 13, 14, 15};
#pragma GCC unroll 4
    for (int r = 0; r < 4; r++) {
        x[r] = v_shuffle(y[r], y[4 + r], low);
        x[4 + r] = v_shuffle(y[r], y[4 + r], high);
    }
#else
    const vi low = {0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23};
    const vi high = {8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31};
    const vi even = {0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27};
    const vi odd = {4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31};
#pragma GCC unroll 4
    for (int r = 0; r < 4; r++) {
        vf a = v_shuffle(y[r], y[4 + r], even), b = v_shuffle(y[r], y[4 + r], odd);
        vf c = v_shuffle(y[8 + r], y[12 + r], even), d = v_shuffle(y[8 + r], y[12 + r], odd);
        x[r] = v_shuffle(a, c, low), x[8 + r] = v_shuffle(a, c, high);
        x[4 + r] = v_shuffle(b, d, low), x[12 + r] = v_shuffle(b, d, high);
    }
#endif
}

#if defined(CPU_NEON_BF16)
/* Rows 2i and 2i+1 of C from the 2 x 2 blocks of panels of nr columns.  What the tile says is
 * copied first: a store might change it. */
ALWAYS_INLINE void store_row_pair(const gemm_tile *tile, const float32x4_t *s, const int i,
                                  const int panels, const int nr)
{
    const gemm_tile t = *tile;
    const bool two = 2 * i + 1 < t.rows;
    float32x4_t alpha = v_set1(t.alpha);
#pragma GCC unroll 12
    for (int j = 0; j < panels * nr / VW; j++) {
        float64x2_t left = vreinterpretq_f64_f32(s[2 * j]),
                    right = vreinterpretq_f64_f32(s[2 * j + 1]);
        float *c = t.c + 2 * i * t.ldc + j * VW / nr * t.c_next + j * VW % nr;
        vf first = vreinterpretq_f32_f64(vzip1q_f64(left, right)),
           second = vreinterpretq_f32_f64(vzip2q_f64(left, right));
        v_store(c, v_fma(alpha, first, t.add ? v_load(c) : v_zero()));
        c += t.ldc;
        if (two) v_store(c, v_fma(alpha, second, t.add ? v_load(c) : v_zero()));
    }
}
#endif

#endif
