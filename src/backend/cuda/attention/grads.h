/* grads.h - how the kernels of attention's gradients write them. */
#ifndef FV_CUDA_ATTENTION_GRADS_H
#define FV_CUDA_ATTENTION_GRADS_H

#include "attention.h"

/* Rows of a strip of sums to a gradient that is laid out as x is. */
template <int N, class T>
__device__ inline void write_rows(sink<T> to, int64_t base, int64_t step, const float (&c)[N][4],
                                  int row0, int rows, int width, float scale)
{
    bool pairs = width % 2 == 0 && step % 2 == 0 && base % 2 == 0 &&
                 ((uintptr_t)to.p & 7) == 0; /* then two neighbours go together */
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int r = tile_row(row0, i * 2), col = tile_col(0, n, 0);
            const float v[2] = {c[n][i * 2] * scale, c[n][i * 2 + 1] * scale};
            if (r >= rows) continue;
            if (pairs && col < width)
                sink_store(to, base + r * step + col, v);
            else
                for (int e = 0; e < 2; e++)
                    if (col + e < width) sink_put(to, base + r * step + col + e, v[e]);
        }
}

/* bias_bwd_sm90.cu: the gradient of a bias by pairs.  False where this is another case. */
template <class T>
bool fv_cuda_bias_hopper(fv_stream *s, const job<T> &o, const fv_attn_grads *g, const float2 *stat);
template <>
inline bool fv_cuda_bias_hopper<float>(fv_stream *, const job<float> &, const fv_attn_grads *,
                                       const float2 *)
{
    return false;
}

/* table_bwd_sm90.cu: the gradient of a table by distance, with room for so many numbers (0: not on
 * Hopper). */
int64_t fv_cuda_table_numbers(fv_stream *s, const fv_attn_args *a);
template <class T>
bool fv_cuda_table_hopper(fv_stream *s, const job<T> &o, const fv_attn_grads *g, const float2 *stat,
                          float *lines);
template <>
inline bool fv_cuda_table_hopper<float>(fv_stream *, const job<float> &, const fv_attn_grads *,
                                        const float2 *, float *)
{
    return false;
}

#endif
