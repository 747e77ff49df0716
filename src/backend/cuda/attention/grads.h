/* grads.h - what the gradient kernels of attention share: the row prepass, and stores of
 * accumulators to gradients. */
#ifndef FV_CUDA_ATTENTION_GRADS_H
#define FV_CUDA_ATTENTION_GRADS_H

#include "attention.h"

/* The row prepass: dy_i.y_i of every query, which turns dw into ds = w (dw - dy.y) and is the sum
 * over a whole row.  2^share_log2 threads share a row, V elements a load; heads of one query follow
 * one another in memory, so neighbouring warps read neighbouring lines.  OUT stores what its kernel
 * needs; rows of a head beyond Tq, up to `rows`, get dy.y = 0.  (bwd_sm90.cu has a prepass of its
 * own, dq_sm90.h, which also finds bounds and keeps several loads in flight.) */
template <class T, int V, class OUT>
__global__ void __launch_bounds__(THREADS)
    row_stats(const __grid_constant__ attn_params<T> attn, const T *dy, int share_log2,
              unsigned rows, const OUT out)
{
    const unsigned share = 1u << share_log2, lane = threadIdx.x & (share - 1);
    unsigned r = (blockIdx.x * (THREADS >> share_log2)) + (threadIdx.x >> share_log2),
             heads = (unsigned)attn.a.H, query = r / heads, h = r - query * heads, b = query / rows,
             i = query - b * rows;
    if (blockIdx.x == 0) out.prologue();
    float sum = 0;
    if (b < attn.a.B && i < attn.a.Tq)
        for (unsigned c = lane * V; c < attn.a.Wv; c += share * V) {
            float x[V], y[V];
            load(x, dy, attn.y_offset(b, h, i) + c);
            load(y, (const T *)attn.a.y, attn.y_offset(b, h, i) + c);
#pragma unroll
            for (int e = 0; e < V; e++) sum += x[e] * y[e];
        }
    for (unsigned x = share / 2; x; x /= 2) sum += __shfl_xor_sync(~0u, sum, x);
    if (b < attn.a.B && lane == 0) out.store(attn, (int)b, (int)h, (int)i, sum);
}

/* rows: those of a head, Tq or more. */
template <class T, class OUT>
static void launch_row_stats(fv_stream *s, const attn_params<T> &attn, const T *dy, int64_t rows,
                             OUT out)
{
    constexpr int V = 16 / sizeof(T);
    const fv_attn_args &a = attn.a;
    int share_log2 = 0;
    while (share_log2 < 5 && 1 << share_log2 < ceil_div(a.Wv, attn.vector_y ? V : 1)) share_log2++;
    dim3 grid((unsigned)ceil_div(a.B * a.H * rows, THREADS >> share_log2));
    if (attn.vector_y)
        launch(s, "attention_bwd", row_stats<T, V, OUT>, grid, THREADS, 0, attn, dy, share_log2,
               (unsigned)rows, out);
    else
        launch(s, "attention_bwd", row_stats<T, 1, OUT>, grid, THREADS, 0, attn, dy, share_log2,
               (unsigned)rows, out);
}

/* Stores 16 rows of accumulators times scale to a gradient laid out as its tensor is, straight from
 * registers. */
template <int N, class T>
__device__ inline void write_rows(sink<T> to, int64_t base, int64_t step, const float (&c)[N][4],
                                  int row0, int rows, int width, float scale)
{
    /* then pairs of columns are aligned and are stored together */
    bool pairs = width % 2 == 0 && step % 2 == 0 && base % 2 == 0 && ((uintptr_t)to.p & 7) == 0;
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

/* bias_bwd_sm90.cu: the gradient of a dense bias on Hopper.  stat: attn_params::stat of each row.
 * False: TMA cannot read the bias. */
template <class T>
bool fv_cuda_bias_hopper(fv_stream *s, const attn_params<T> &attn, const fv_attn_grads *g,
                         const float2 *stat);
template <>
inline bool fv_cuda_bias_hopper<float>(fv_stream *, const attn_params<float> &,
                                       const fv_attn_grads *, const float2 *)
{
    return false;
}

/* table_bwd_sm90.cu: the gradient of a table by relative position on Hopper, with so many floats of
 * scratch (0: too many, use bias_bwd.cu). */
int64_t fv_cuda_table_numbers(fv_stream *s, const fv_attn_args *a);
template <class T>
bool fv_cuda_table_hopper(fv_stream *s, const attn_params<T> &attn, const fv_attn_grads *g,
                          const float2 *stat, float *lines);
template <>
inline bool fv_cuda_table_hopper<float>(fv_stream *, const attn_params<float> &,
                                        const fv_attn_grads *, const float2 *, float *)
{
    return false;
}

#endif
