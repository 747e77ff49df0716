/* gemm_pack.c - a strip of a matrix as an f32 panel: [k][width], whichever way the matrix lies.
 *
 * Where k runs along memory a block of VW x VW values is turned in registers; otherwise rows are copied.  What is
 * wider than the strip is filled with copies of its last row or column: nobody looks at those sums, and a read of
 * real memory needs no branch. */
#include "gemm_turn.h"

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
