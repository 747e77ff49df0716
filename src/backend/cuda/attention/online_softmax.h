/* online_softmax.h - the running sums of the forward pass, of a strip of 16 rows whose numbers lie
 * as device/tile.h says. */
#ifndef FV_CUDA_ATTENTION_ONLINE_SOFTMAX_H
#define FV_CUDA_ATTENTION_ONLINE_SOFTMAX_H

#include "attention.h"

/* The rows of one strip that a thread has a part in: two, shared with three other threads. */
struct running {
    float top[2], sum[2];
};

/* Hides what rows of a strip cannot see. */
template <int N, class T>
__device__ inline void hide(float (&s)[N][4], const head<T> &at, int row0, int col0)
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
__device__ inline void see(float (&s)[N][4], const head<T> &at, int row0, int col0, bool whole)
{
    if (KIND == ANY && !at.o.plain) add_scores<false>(s, at, row0, col0);
    if (!whole) hide(s, at, row0, col0);
    if (at.o.a.key_mask) {
        keys_seen<false, N> seen(at, row0, col0);
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (!seen(n, e)) s[n][e] = -INFINITY;
    }
}

/* Takes scores of a strip into the largest of each row, that weights are relative to.  What was
 * summed before is to be multiplied by `shrink`. */
template <int N>
__device__ inline void grow(const float (&s)[N][4], float scale, running &r, float (&shrink)[2])
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
        top = fmaxf(r.top[i], fmaxf(top, __shfl_xor_sync(~0u, top, 2)));
        shrink[i] = top == -INFINITY ? 1 : exp2_fast(r.top[i] - top);
        r.sum[i] *= shrink[i];
        r.top[i] = top;
    }
}

/* The most that the weights of a thread's part of a row may be in sum: of one tile, and such that
 * f16 holds each of them. */
#define MOST_WEIGHT 4096

/* Weights of a strip from its scores, 16 columns at a time for `take`; sum: of this thread's.
 * False: top is too low for them. */
template <int N, class F>
__device__ inline bool weights(const float (&s)[N][4], float scale, const running &r,
                               float (&sum)[2], F take)
{
    float base[2] = {r.top[0] == -INFINITY ? 0 : r.top[0], r.top[1] == -INFINITY ? 0 : r.top[1]};
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
        take(k, w);
    }
    bool fits = sum[0] <= MOST_WEIGHT && sum[1] <= MOST_WEIGHT && r.top[0] != -INFINITY &&
                r.top[1] != -INFINITY;
    return __all_sync(~0u, fits);
}

template <int O> __device__ inline void rescale(float (&y)[O][4], const float (&shrink)[2])
{
#pragma unroll
    for (int n = 0; n < O; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) y[n][e] *= shrink[e / 2];
}

/* A strip is done: its sums are divided. */
template <int O, class T>
__device__ inline void divide(float (&y)[O][4], running &r, const head<T> &at)
{
    float by[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        r.sum[i] += __shfl_xor_sync(~0u, r.sum[i], 1);
        r.sum[i] += __shfl_xor_sync(~0u, r.sum[i], 2);
        by[i] = r.sum[i] > 0 ? at.o.keep_scale / r.sum[i] : 0;
    }
    rescale(y, by);
}

/* What is kept of its rows. */
template <class T> __device__ inline void write_lse(const running &r, const head<T> &at, int row0)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int row = tile_row(row0, i * 2);
        if (row >= at.rows || threadIdx.x % 4) continue;
        at.o.lse(at.b, at.h, row) = make_float2(r.top[i], r.sum[i]);
    }
}

/* All of that, and results written straight from registers. */
template <int O, class T>
__device__ inline void finish(float (&y)[O][4], running &r, const head<T> &at, int row0)
{
    const job<T> &o = at.o;
    divide(y, r, at);
    write_lse(r, at, row0);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int row = tile_row(row0, i * 2);
        if (row >= at.rows) continue;
        T *to = (T *)o.a.y + o.at_y(at.b, at.h, row);
        bool pairs = o.a.Wv % 2 == 0; /* then two neighbours go together */
#pragma unroll
        for (int n = 0; n < O; n++) {
            int c = tile_col(0, n, 0);
            const float v[2] = {y[n][i * 2], y[n][i * 2 + 1]};
            if (pairs && c < o.a.Wv)
                store(to, c, v);
            else
                for (int e = 0; e < 2; e++)
                    if (c + e < o.a.Wv) to[c + e] = down<T>(v[e]);
        }
    }
}

#endif
