/* online_softmax.h - the running sums of the forward pass, of a strip of 16 rows whose numbers lie
 * as device/tile.h says. */
#ifndef FV_CUDA_ATTENTION_ONLINE_SOFTMAX_H
#define FV_CUDA_ATTENTION_ONLINE_SOFTMAX_H

#include "attention.h"

/* The rows of one strip that a thread has a part in: two, shared with three other threads. */
struct softmax_state {
    float row_max[2], row_sum[2];
};

/* Hides what rows of a strip cannot see. */
template <int N, class T>
__device__ inline void mask_out_of_range(float (&s)[N][4], const head<T> &at, int row0, int col0)
{
    int from[2], count[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int row = tile_row(row0, 2 * i), first = at.first(row);
        from[i] = first - tile_col(col0, 0, 0);
        count[i] = max(at.end(row) - first, 0);
    }
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            if ((unsigned)(n * 8 + e % 2 - from[e / 2]) >= (unsigned)count[e / 2])
                s[n][e] = -INFINITY;
}

/* Products of a strip become scores, in units of log 2 but for a factor, scale_of; what rows cannot
 * see gets -inf. */
template <int KIND, int N, class T>
__device__ inline void mask_scores(float (&s)[N][4], const head<T> &at, int row0, int col0,
                                   bool full_tile)
{
    if (KIND == ANY && !at.o.plain) add_scores<false>(s, at, row0, col0);
    if (!full_tile) mask_out_of_range(s, at, row0, col0);
    if (at.o.a.key_mask) {
        key_mask_tile<false, N> seen(at, row0, col0);
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (!seen(n, e)) s[n][e] = -INFINITY;
    }
}

/* Takes scores of a strip into the largest of each row, that weights are relative to.  What was
 * summed before is to be multiplied by `correction`. */
template <int N>
__device__ inline void update_row_max(const float (&s)[N][4], float scale, softmax_state &r,
                                      float (&correction)[2])
{
    float most[4] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) most[e] = fmaxf(most[e], s[n][e]);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float top = fmaxf(most[2 * i], most[2 * i + 1]) * scale;
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
        top = fmaxf(r.row_max[i], fmaxf(top, __shfl_xor_sync(~0u, top, 2)));
        correction[i] = top == -INFINITY ? 1 : exp2_fast(r.row_max[i] - top);
        r.row_sum[i] *= correction[i];
        r.row_max[i] = top;
    }
}

/* The most that the weights of a thread's part of a row may be in sum: of one tile, and such that
 * f16 holds each of them. */
#define MAX_WEIGHT_SUM 4096

/* Weights of a strip from its scores, 16 columns at a time for `consume`; sum: of this thread's.
 * False: top is too low for them. */
template <int N, class F>
__device__ inline bool weights(const float (&s)[N][4], float scale, const softmax_state &r,
                               float (&sum)[2], F consume)
{
    float base[2] = {r.row_max[0] == -INFINITY ? 0 : r.row_max[0],
                     r.row_max[1] == -INFINITY ? 0 : r.row_max[1]};
    sum[0] = sum[1] = 0;
#pragma unroll
    for (int k = 0; k < N / 2; k++) {
        float w[2][4];
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                w[n][e] = exp2_fast(fmaf(s[2 * k + n][e], scale, -base[e / 2]));
                sum[e / 2] +=
                    w[n]
                     [e]; /* with more chains the assembler does not mix exponentials with draws */
            }
        consume(k, w);
    }
    bool fits = sum[0] <= MAX_WEIGHT_SUM && sum[1] <= MAX_WEIGHT_SUM && r.row_max[0] != -INFINITY &&
                r.row_max[1] != -INFINITY;
    return __all_sync(~0u, fits);
}

template <int O> __device__ inline void rescale(float (&y)[O][4], const float (&correction)[2])
{
#pragma unroll
    for (int n = 0; n < O; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) y[n][e] *= correction[e / 2];
}

/* A strip is done: its sums are divided. */
template <int O, class T>
__device__ inline void normalise_output(float (&y)[O][4], softmax_state &r, const head<T> &at)
{
    float by[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        r.row_sum[i] += __shfl_xor_sync(~0u, r.row_sum[i], 1);
        r.row_sum[i] += __shfl_xor_sync(~0u, r.row_sum[i], 2);
        by[i] = r.row_sum[i] > 0 ? at.o.dropout_scale / r.row_sum[i] : 0;
    }
    rescale(y, by);
}

/* What is kept of its rows. */
template <class T>
__device__ inline void write_lse(const softmax_state &r, const head<T> &at, int row0)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int row = tile_row(row0, i * 2);
        if (row >= at.rows || threadIdx.x % 4) continue;
        at.o.lse(at.b, at.h, row) = make_float2(r.row_max[i], r.row_sum[i]);
    }
}

/* All of that, and results written straight from registers. */
template <int O, class T>
__device__ inline void finish(float (&y)[O][4], softmax_state &r, const head<T> &at, int row0)
{
    const job<T> &o = at.o;
    normalise_output(y, r, at);
    write_lse(r, at, row0);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int row = tile_row(row0, i * 2);
        if (row >= at.rows) continue;
        T *to = (T *)o.a.y + o.y_offset(at.b, at.h, row);
        bool pairs = o.a.Wv % 2 == 0; /* then two neighbours go together */
#pragma unroll
        for (int n = 0; n < O; n++) {
            int c = tile_col(0, n, 0);
            const float v[2] = {y[n][i * 2], y[n][i * 2 + 1]};
            if (pairs && c < o.a.Wv)
                store(to, c, v);
            else
                for (int e = 0; e < 2; e++)
                    if (c + e < o.a.Wv) to[c + e] = from_float<T>(v[e]);
        }
    }
}

#endif
