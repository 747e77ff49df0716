/* attention_sums.h - the running sums of the forward pass, of a strip of 16 rows whose numbers lie as tile.h says. */
#ifndef FV_CUDA_ATTENTION_SUMS_H
#define FV_CUDA_ATTENTION_SUMS_H

#include "attention.h"

/* The rows of one strip that a thread has a part in: two, shared with three other threads. */
struct running {
    float top[2], sum[2];
};

/* Takes a strip of products into the running largest and sum of each row and turns them into weights, with a minus sign where
 * dropout takes them.  What was summed before is to be multiplied by `shrink`. */
template <int KIND, int N, class T>
__device__ inline void absorb(float (&s)[N][4], running &r, float (&shrink)[2], const head<T> &at, int row0, int col0, bool whole)
{
    bool simple = KIND != ANY || at.o.plain;
    float most[2] = {-INFINITY, -INFINITY}, scale = simple ? at.o.scale : 1;
    keys_seen<false, N> seen(at, row0, col0);
    if (!simple) add_scores<false>(s, at, row0, col0);
    if (!whole || !seen.all) {
        int first[2] = {at.first(tile_row(row0, 0)), at.first(tile_row(row0, 2))};
        int end[2] = {at.end(tile_row(row0, 0)), at.end(tile_row(row0, 2))};
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int j = tile_col(col0, n, e);
                bool near = j >= first[e / 2] && j < end[e / 2] && seen(n, e);
                if (!near) s[n][e] = -INFINITY;
            }
    }
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) most[e / 2] = fmaxf(most[e / 2], s[n][e]);
    float base[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        most[i] = fmaxf(most[i], __shfl_xor_sync(~0u, most[i], 1));
        most[i] = fmaxf(most[i], __shfl_xor_sync(~0u, most[i], 2));
        float now = fmaxf(r.top[i], most[i] * scale);
        base[i] = now == -INFINITY ? 0 : now;
        shrink[i] = exp2_fast(r.top[i] - base[i]);
        r.top[i] = now;
        r.sum[i] *= shrink[i];
    }
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            s[n][e] = exp2_fast(fmaf(s[n][e], scale, -base[e / 2]));
            r.sum[e / 2] += s[n][e];
        }
    if (drops<KIND>(at)) drop<false>(s, at, row0, col0);
}

template <int O> __device__ inline void rescale(float (&y)[O][4], const float (&shrink)[2])
{
#pragma unroll
    for (int n = 0; n < O; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) y[n][e] *= shrink[e / 2];
}

/* A strip is done: its sums, divided, are the result. */
template <int O, class T> __device__ inline void finish(const float (&y)[O][4], running &r, const head<T> &at, int row0)
{
    const job<T> &o = at.o;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        r.sum[i] += __shfl_xor_sync(~0u, r.sum[i], 1);
        r.sum[i] += __shfl_xor_sync(~0u, r.sum[i], 2);
        int row = tile_row(row0, i * 2);
        if (row >= at.rows) continue;
        float scale = r.sum[i] > 0 ? o.keep_scale / r.sum[i] : 0,
              lse = r.sum[i] > 0 ? r.top[i] * LN2 + logf(r.sum[i]) : -INFINITY;
        if (threadIdx.x % 4 == 0) ((float *)o.a.lse)[o.at_lse(at.b, at.h, row)] = lse;
        T *to = (T *)o.a.y + o.at_y(at.b, at.h, row);
        bool pairs = o.a.Wv % 2 == 0; /* then two neighbours go together */
#pragma unroll
        for (int n = 0; n < O; n++) {
            int c = tile_col(0, n, 0);
            const float v[2] = {y[n][i * 2] * scale, y[n][i * 2 + 1] * scale};
            if (pairs && c < o.a.Wv)
                store(to, c, v);
            else
                for (int e = 0; e < 2; e++)
                    if (c + e < o.a.Wv) to[c + e] = down<T>(v[e]);
        }
    }
}

#endif
