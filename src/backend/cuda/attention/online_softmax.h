/* online_softmax.h - the online softmax of the forward kernels, for a strip of 16 rows in
 * accumulators.
 *
 *     m' = max(m, max_j s_j);  y = y 2^(m - m') + sum_j 2^(s_j - m') v_j;  l likewise;
 *     y / l at the end */
#ifndef FV_CUDA_ATTENTION_ONLINE_SOFTMAX_H
#define FV_CUDA_ATTENTION_ONLINE_SOFTMAX_H

#include "attention.h"

/* Keys of a tile of the portable forward kernel, and of f32 in the decode kernel. */
template <class T, int W> constexpr int keys_of = W <= 64 || (W == 128 && sizeof(T) == 2) ? 64 : 32;

/* The maximum and sum of a thread's two rows; three other threads hold parts of the same rows.
 * row_sum is this thread's share; the shares of a quad are added once, at the end: sums are
 * linear, so corrections can be applied to the shares.  row_max must agree in all four threads
 * at once. */
struct softmax_state {
    float row_max[2], row_sum[2];
};

/* -inf for keys out of the range that lengths, causality and window leave a row. */
template <int N, class T>
__device__ inline void mask_out_of_range(float (&s)[N][4], const head_view<T> &head, int row0,
                                         int col0)
{
    int from[2], count[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int row = tile_row(row0, 2 * i), first = head.first_key(row);
        from[i] = first - tile_col(col0, 0, 0);
        count[i] = max(head.end_key(row) - first, 0);
    }
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            if ((unsigned)(n * 8 + e % 2 - from[e / 2]) >= (unsigned)count[e / 2])
                s[n][e] = -INFINITY;
}

/* Products of a strip become scores but for the factor scale_of; -inf where masked.  full_tile:
 * all_visible, nothing to do for the range. */
template <int KIND, int N, class T>
__device__ inline void mask_scores(float (&s)[N][4], const head_view<T> &head, int row0, int col0,
                                   bool full_tile)
{
    if (KIND == ANY && !head.attn.plain) add_scores<false>(s, head, row0, col0);
    if (!full_tile) mask_out_of_range(s, head, row0, col0);
    if (head.attn.a.key_mask) {
        key_mask_tile<false, N> seen(head, row0, col0);
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (!seen(n, e)) s[n][e] = -INFINITY;
    }
}

/* Takes the scores of a tile into the row maxima.  Sums so far are to be multiplied by
 * `correction`, which has been applied to row_sum.
 * Four running maxima in place of two break the chain of dependent fmaxf; the scale is applied
 * to the maximum, not to each score, which is why it has to be positive here (add_scores sees to
 * that). */
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

/* The greatest sum of a thread's weights of one row and tile that is accepted without a new
 * maximum: f16 holds each of them, with a margin.
 * Raising the maximum at every tile costs a rescaling of y.  A stale maximum is still exact as
 * long as 2^(s - max) does not overflow what the second product stores, so it is raised only
 * when needed. */
#define MAX_WEIGHT_SUM 4096

/* Weights 2^(score - max) of a strip, 16 columns at a time to `consume`; sum: over this
 * thread's. False: some are too large for the maximum at hand, and it must be raised. */
template <class T = bf16, int N, class F>
__device__ inline bool exp_weights(const float (&s)[N][4], float scale, const softmax_state &r,
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
                w[n][e] = exp2_fast(exponent<T>(s[2 * k + n][e], scale, base[e / 2]));
                /* one chain: with more, ptxas does not interleave ex2 with the Philox rounds */
                sum[e / 2] += w[n][e];
            }
        consume(k, w);
    }
    bool fits = sum[0] <= MAX_WEIGHT_SUM && sum[1] <= MAX_WEIGHT_SUM && r.row_max[0] != -INFINITY &&
                r.row_max[1] != -INFINITY;
    return __all_sync(~0u, fits);
}

/* f32 serves bits that do not depend on how many rows or keys are read at once.  So each tile of
 * keys, at a multiple of its size, has a softmax of its own, (max, sum, y), and tiles are merged in
 * order: in the tiled kernel as it goes, in the decode kernel, where tiles run in parallel, at the
 * end.  A tile without a visible key changes no bit.  Wider heads have no registers for a second y,
 * and no kernel of their own for decoding. */
#define SPLIT_MAX_WIDTH 128
template <class T, int W> constexpr bool splits_tiles = sizeof(T) == 4 && W <= SPLIT_MAX_WIDTH;

/* Takes a tile's maximum into row_max; what is known so far is to be multiplied by x, the tile by
 * y. */
__device__ inline float2 merge_max(float &row_max, float tile_max)
{
    float top = fmaxf(row_max, tile_max), before = row_max;
    row_max = top;
    if (top == -INFINITY) return make_float2(1, 0);
    return make_float2(exp2_fast(before - top), exp2_fast(tile_max - top));
}
__device__ inline float merge(float x, float tile, float2 by)
{
    return fmaf(tile, by.y, __fmul_rn(x, by.x));
}

/* y and r, with a tile's; the tile's sums are those of each thread. */
template <int O>
__device__ inline void merge_tile(float (&y)[O][4], softmax_state &r, const float (&part)[O][4],
                                  const softmax_state &tile, const float (&sum)[2])
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float2 by = merge_max(r.row_max[i], tile.row_max[i]);
        float all = sum[i] + __shfl_xor_sync(~0u, sum[i], 1);
        all += __shfl_xor_sync(~0u, all, 2);
        /* one thread of the four has the sum: normalise_output adds theirs */
        r.row_sum[i] = merge(r.row_sum[i], threadIdx.x % 4 ? 0 : all, by);
#pragma unroll
        for (int n = 0; n < O; n++)
#pragma unroll
            for (int e = 2 * i; e < 2 * i + 2; e++) y[n][e] = merge(y[n][e], part[n][e], by);
    }
}

/* y is 4 O registers: this is the cost that keeping a stale maximum saves. */
template <int O> __device__ inline void rescale(float (&y)[O][4], const float (&correction)[2])
{
#pragma unroll
    for (int n = 0; n < O; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) y[n][e] *= correction[e / 2];
}

/* Divides by the row sums, and by the keep probability of dropout. */
template <int O, class T>
__device__ inline void normalise_output(float (&y)[O][4], softmax_state &r,
                                        const head_view<T> &head)
{
    float by[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        r.row_sum[i] += __shfl_xor_sync(~0u, r.row_sum[i], 1);
        r.row_sum[i] += __shfl_xor_sync(~0u, r.row_sum[i], 2);
        by[i] = r.row_sum[i] > 0 ? head.attn.dropout_scale / r.row_sum[i] : 0;
    }
    rescale(y, by);
}

/* Stores max and sum of each row, which make up its log-sum-exp. */
template <class T>
__device__ inline void write_lse(const softmax_state &r, const head_view<T> &head, int row0)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int row = tile_row(row0, i * 2);
        if (row >= head.rows || threadIdx.x % 4) continue;
        head.attn.lse(head.b, head.h, row) = make_float2(r.row_max[i], r.row_sum[i]);
    }
}

/* Epilogue: normalises, stores log-sum-exps, and stores y straight from registers. */
template <int O, class T>
__device__ inline void write_output(float (&y)[O][4], softmax_state &r, const head_view<T> &head,
                                    int row0)
{
    const attn_params<T> &attn = head.attn;
    normalise_output(y, r, head);
    write_lse(r, head, row0);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int row = tile_row(row0, i * 2);
        if (row >= head.rows) continue;
        T *to = (T *)attn.a.y + attn.y_offset(head.b, head.h, row);
        bool pairs = attn.a.Wv % 2 ==
                     0; /* then pairs of columns are aligned and are stored together */
#pragma unroll
        for (int n = 0; n < O; n++) {
            int c = tile_col(0, n, 0);
            const float v[2] = {y[n][i * 2], y[n][i * 2 + 1]};
            if (pairs && c < attn.a.Wv)
                store(to, c, v);
            else
                for (int e = 0; e < 2; e++)
                    if (c + e < attn.a.Wv) to[c + e] = from_float<T>(v[e]);
        }
    }
}

#endif
