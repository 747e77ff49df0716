/* bias_sm90.h - a dense (Tq, Tk) bias on Hopper: tiles of it are loaded by TMA as those of k
 * are, and added to the products.
 *
 * A thread reads its elements from shared memory by ldmatrix, transposed where rows are keys.
 * Loaded straight from global memory, two elements at a time, a bias costs more than the
 * products do. */
#ifndef FV_CUDA_ATTENTION_BIAS_SM90_H
#define FV_CUDA_ATTENTION_BIAS_SM90_H

#include "attention.h"
#include "backend/cuda/device/sm90_pipeline.h"

/* a bf16 is the upper half of an f32 */
__device__ inline float2 unpack2(uint32_t packed, bf16)
{
    return make_float2(__uint_as_float(packed << 16), __uint_as_float(packed & 0xffff0000u));
}
__device__ inline float2 unpack2(uint32_t packed, f16)
{
    return __half22float2(*(const __half2 *)&packed);
}

/* Adds 16 rows by 8 N columns of a bias panel to products.  panel: its row of the strip's first
 * query. TRANSPOSED: the strip's rows are keys, columns 8 first .. of the panel.  bias_scale
 * makes a bias a part of the product. */
template <bool TRANSPOSED, int N, class T>
__device__ inline void add_bias(float (*s)[4], const T *panel, int first, float bias_scale)
{
    int lane = threadIdx.x % 32, low = lane % 8, half = lane / 8 % 2, next = lane / 16;
#pragma unroll
    for (int n = 0; n < N; n += 2) {
        int row = TRANSPOSED ? (n + next) * 8 + low : half * 8 + low,
            chunk_index = TRANSPOSED ? first + half : first + n + next;
        const T *chunk = panel + row * PANEL + (chunk_index ^ low) * 8;
        uint32_t packed[4];
        if constexpr (TRANSPOSED)
            ldmatrix_trans(packed, chunk);
        else
            ldmatrix(packed, chunk);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float2 b = unpack2(packed[i], T());
            float *c = s[n + i / 2] + i % 2 * 2;
            c[0] = fmaf(b.x, bias_scale, c[0]);
            c[1] = fmaf(b.y, bias_scale, c[1]);
        }
    }
}

/* Calls f(k, x) with 16 rows of a panel, columns 16 k .. 16 k + 15: x[n][e] is element e of
 * column block 2 k + n. */
template <int N, class T, class F> __device__ inline void each_bias(const T *panel, F f)
{
    int lane = threadIdx.x % 32, low = lane % 8;
    const T *row = panel + lane % 16 * PANEL;
#pragma unroll
    for (int k = 0; k < N / 2; k++) {
        uint32_t packed[4];
        float x[2][4];
        ldmatrix(packed, row + ((2 * k + lane / 16) ^ low) * 8);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float2 b = unpack2(packed[i], T());
            x[i / 2][i % 2 * 2] = b.x;
            x[i / 2][i % 2 * 2 + 1] = b.y;
        }
        f(k, x);
    }
}

/* ---- on the host ---- */

/* Only a dense bias is added to scores, and TMA can load it. */
template <class T> static bool has_tma_bias(const attn_params<T> &attn)
{
    const fv_attn_args &a = attn.a;
    const int64_t *s = a.bias_s;
    return a.bias && !a.mask && !a.rel && attn.scale > 0 && aligned(a.bias) && s[2] > 0 &&
           s[0] % 8 == 0 && s[1] % 8 == 0 && s[2] % 8 == 0;
}

/* Its tensor map, in boxes of 64 keys by `rows` queries: key, head, query, sequence.  An axis
 * that it is broadcast along has length 1. */
template <class T> static bool tensor_map_bias(CUtensorMap *m, const attn_params<T> &attn, int rows)
{
    const fv_attn_args &a = attn.a;
    const int64_t *s = a.bias_s;
    const cuuint64_t dim[] = {(cuuint64_t)a.Tk, (cuuint64_t)(s[1] ? a.H : 1), (cuuint64_t)a.Tq,
                              (cuuint64_t)(s[0] ? a.B : 1)};
    const cuuint64_t step[] = {(cuuint64_t)(s[1] ? s[1] : s[2]) * 2, (cuuint64_t)s[2] * 2,
                               (cuuint64_t)(s[0] ? s[0] : s[2]) * 2};
    const cuuint32_t box[] = {PANEL, 1, (cuuint32_t)rows, 1};
    return fv_cuda_tensor_map_nd(m, a.bias, kind<T>::dtype, 4, dim, step, box);
}

#endif
