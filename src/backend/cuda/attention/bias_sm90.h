/* bias_sm90.h - a bias by pairs on Hopper: tiles of it are brought as those of keys are, and added
 * to products.
 *
 * A thread takes what it needs from shared memory as ldmatrix deals out a tile, turned where rows
 * are keys.  Read straight from memory, two numbers at a time, a bias costs more than the products
 * do. */
#ifndef FV_CUDA_ATTENTION_BIAS_SM90_H
#define FV_CUDA_ATTENTION_BIAS_SM90_H

#include "attention.h"
#include "backend/cuda/device/sm90.h"

/* a bf16 is the upper half of a float */
__device__ inline float2 both(uint32_t two, bf16)
{
    return make_float2(__uint_as_float(two << 16), __uint_as_float(two & 0xffff0000u));
}
__device__ inline float2 both(uint32_t two, f16) { return __half22float2(*(const __half2 *)&two); }

/* Adds 16 rows of a panel, 64 columns of it from block `first` of eight columns on, to a strip of
 * products.  panel: from the strip's first row on; TRANSPOSED: from its first query on, and the
 * strip's keys are columns from 8 * first on.  times: what makes a bias a part of the product. */
template <bool TRANSPOSED, int N, class T>
__device__ inline void add_bias(float (*s)[4], const T *panel, int first, float times)
{
    int lane = threadIdx.x % 32, low = lane % 8, half = lane / 8 % 2, next = lane / 16;
#pragma unroll
    for (int n = 0; n < N; n += 2) {
        int row = TRANSPOSED ? (n + next) * 8 + low : half * 8 + low,
            eight = TRANSPOSED ? first + half : first + n + next;
        const T *at = panel + row * PANEL + (eight ^ low) * 8;
        uint32_t two[4];
        if constexpr (TRANSPOSED)
            ldmatrix_trans(two, at);
        else
            ldmatrix(two, at);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float2 b = both(two[i], T());
            float *c = s[n + i / 2] + i % 2 * 2;
            c[0] = fmaf(b.x, times, c[0]);
            c[1] = fmaf(b.y, times, c[1]);
        }
    }
}

/* f(k, x) with 16 rows of a panel, columns 16 k and on: x[n][e] is number e of column block 2 k +
 * n.  panel: from the first row on. */
template <int N, class T, class F> __device__ inline void each_bias(const T *panel, F f)
{
    int lane = threadIdx.x % 32, low = lane % 8;
    const T *row = panel + lane % 16 * PANEL;
#pragma unroll
    for (int k = 0; k < N / 2; k++) {
        uint32_t two[4];
        float x[2][4];
        ldmatrix(two, row + ((2 * k + lane / 16) ^ low) * 8);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float2 b = both(two[i], T());
            x[i / 2][i % 2 * 2] = b.x;
            x[i / 2][i % 2 * 2 + 1] = b.y;
        }
        f(k, x);
    }
}

/* ---- on the host ---- */

/* The bias is all that is added, and the copy engine can read it. */
template <class T> static bool biased(const job<T> &o)
{
    const fv_attn_args &a = o.a;
    const int64_t *s = a.bias_s;
    return a.bias && !a.mask && !a.rel && o.scale > 0 && aligned(a.bias) && s[2] > 0 &&
           s[0] % 8 == 0 && s[1] % 8 == 0 && s[2] % 8 == 0;
}

/* Describes it, to be brought 64 keys of `rows` rows at a time: by key, head, row and sequence,
 * where what it is repeated for counts as 1. */
template <class T> static bool tensor_map_bias(CUtensorMap *m, const job<T> &o, int rows)
{
    const fv_attn_args &a = o.a;
    const int64_t *s = a.bias_s;
    const cuuint64_t dim[] = {(cuuint64_t)a.Tk, (cuuint64_t)(s[1] ? a.H : 1), (cuuint64_t)a.Tq,
                              (cuuint64_t)(s[0] ? a.B : 1)};
    const cuuint64_t step[] = {(cuuint64_t)(s[1] ? s[1] : s[2]) * 2, (cuuint64_t)s[2] * 2,
                               (cuuint64_t)(s[0] ? s[0] : s[2]) * 2};
    const cuuint32_t box[] = {PANEL, 1, (cuuint32_t)rows, 1};
    return fv_cuda_tensor_map_nd(m, a.bias, kind<T>::dtype, 4, dim, step, box);
}

#endif
