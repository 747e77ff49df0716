/* attention_sums.h - the running sums of the forward pass, of a strip of 16 rows whose numbers lie as tile.h says. */
#ifndef FV_CUDA_ATTENTION_SUMS_H
#define FV_CUDA_ATTENTION_SUMS_H

#include "attention.h"

/* The rows of one strip that a thread has a part in: two, shared with three other threads. */
struct running {
    float top[2], sum[2];
};

/* Hides what rows of a strip cannot see. */
template <int N, class T> __device__ inline void hide(float (&s)[N][4], const head<T> &at, int row0, int col0)
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
            if ((unsigned)(n * 8 + e % 2 - from[e / 2]) >= (unsigned)count[e / 2]) s[n][e] = -INFINITY;
}

/* A row's weights are relative to a score that is its largest, or was: what was summed before need not shrink as long as they
 * stay below 2 to the power of this. */
#define GROWN 8

/* Takes a strip of products into the running largest of each row.  What was summed before is to be multiplied by `shrink`; false:
 * by 1, as none of this warp's rows grew. */
template <int KIND, int N, class T>
__device__ inline bool take_top(float (&s)[N][4], running &r, float (&shrink)[2], const head<T> &at, int row0, int col0,
                                bool whole)
{
    bool simple = KIND != ANY || at.o.plain, grown = false;
    float scale = simple ? at.o.scale : 1, most[4] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
    if (!simple) add_scores<false>(s, at, row0, col0);
    if (!whole) hide(s, at, row0, col0);
    if (at.o.a.key_mask) {
        keys_seen<false, N> seen(at, row0, col0);
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (!seen(n, e)) s[n][e] = -INFINITY;
    }
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) most[e] = fmaxf(most[e], s[n][e]);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        most[i] = fmaxf(most[2 * i], most[2 * i + 1]) * scale;
        grown = grown || most[i] >= r.top[i] + GROWN;
        shrink[i] = 1;
    }
    if (!__any_sync(~0u, grown)) return false;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float top = fmaxf(most[i], __shfl_xor_sync(~0u, most[i], 1));
        top = fmaxf(r.top[i], fmaxf(top, __shfl_xor_sync(~0u, top, 2)));
        if (top < r.top[i] + GROWN) top = r.top[i];
        if (top != -INFINITY) shrink[i] = exp2_fast(r.top[i] - top);
        r.top[i] = top;
    }
    return true;
}

/* Then turns them into weights, with a minus sign where dropout takes them, and adds these up.  Sums of four chains are the
 * fastest; with those of two the assembler mixes exponentials with the drawing of random numbers. */
template <int KIND, int N, class T>
__device__ inline void take_weights(float (&s)[N][4], running &r, const float (&shrink)[2], const head<T> &at, int row0, int col0)
{
    constexpr int APART = KIND == DROPS ? 2 : 1;
    bool simple = KIND != ANY || at.o.plain;
    float scale = simple ? at.o.scale : 1, sum[4] = {r.sum[0] * shrink[0], 0, 0, 0};
    float base[2] = {r.top[0] == -INFINITY ? 0 : r.top[0], r.top[1] == -INFINITY ? 0 : r.top[1]};
    sum[2 / APART] = r.sum[1] * shrink[1];
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            s[n][e] = exp2_fast(fmaf(s[n][e], scale, -base[e / 2]));
            sum[e / APART] += s[n][e];
        }
#pragma unroll
    for (int i = 0; i < 2; i++) r.sum[i] = APART == 2 ? sum[i] : sum[2 * i] + sum[2 * i + 1];
    if (drops<KIND>(at)) drop<false>(s, at, row0, col0);
}

template <int O> __device__ inline void rescale(float (&y)[O][4], const float (&shrink)[2])
{
#pragma unroll
    for (int n = 0; n < O; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) y[n][e] *= shrink[e / 2];
}

/* A strip is done: its sums are divided. */
template <int O, class T> __device__ inline void divide(float (&y)[O][4], running &r, const head<T> &at)
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
        ((float *)at.o.a.lse)[at.o.at_lse(at.b, at.h, row)] = r.sum[i] > 0 ? r.top[i] * LN2 + logf(r.sum[i]) : -INFINITY;
    }
}

/* All of that, and results written straight from registers. */
template <int O, class T> __device__ inline void finish(float (&y)[O][4], running &r, const head<T> &at, int row0)
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
