/* attention.cu - scaled dot-product attention without storing the weights: our own tiled kernel.
 *
 * A warp takes one or two strips of 16 rows of one head, a block four warps, and goes through the keys in tiles, keeping
 * for each row the largest score so far, the sum of exp(score - largest) and the weighted sum of values, which are
 * rescaled when a larger score appears.  While scores are worked out the values of the tile are on their way, while
 * values are summed the next keys are. */
#include "attention.h"
#include "attention_ways.h"

/* PLAIN: no masks, nothing added, no dropout.  Such a kernel has registers for two strips a warp: every number that is
 * read from shared memory then serves twice. */
template <class T, int W, bool PLAIN> constexpr int strips_of = PLAIN && sizeof(T) == 2 && W <= 128 ? 2 : 1;
template <class T, int W> constexpr int keys_of = W <= 64 || (W == 128 && sizeof(T) == 2) ? 64 : 32; /* of a tile */

template <class T, int W, bool PLAIN> static size_t shared_bytes()
{
    constexpr int K = keys_of<T, W>;
    size_t spare = sizeof(T) == 4 ? WARPS * 16 * (K + 4) * sizeof(float) : 0;
    return (size_t)(ROWS * strips_of<T, W, PLAIN> + 2 * K) * stride_of<T, W> * sizeof(T) + spare;
}

/* The rows of one strip that a thread has a part in: two, shared with three other threads. */
struct running {
    float top[2], sum[2];
};

/* Takes a strip of products into the running largest and sum of each row, turns them into weights (after dropout), and
 * rescales what was summed before. */
template <bool PLAIN, int N, int O, class T>
__device__ inline void absorb(float (&s)[N][4], float (&y)[O][4], running &r, const head<T> &at, int row0, int col0, bool whole)
{
    float most[2] = {-INFINITY, -INFINITY}, scale = PLAIN || at.o.plain ? at.o.scale : 1;
    if (!whole) {
        int first[2] = {at.first(tile_row(row0, 0)), at.first(tile_row(row0, 2))};
        int end[2] = {at.end(tile_row(row0, 0)), at.end(tile_row(row0, 2))};
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int j = tile_col(col0, n, e);
                bool near = j >= first[e / 2] && j < end[e / 2];
                if (!near)
                    s[n][e] = -INFINITY;
                else if (!PLAIN && !at.o.plain)
                    s[n][e] = at.score(s[n][e], tile_row(row0, e), j);
            }
    }
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) most[e / 2] = fmaxf(most[e / 2], s[n][e]);
    float shrink[2], base[2];
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
    if (!PLAIN && at.o.a.dropout > 0)
#pragma unroll
        for (int n = 0; n < N; n++) {
            float f[4];
            keep<false>(f, at, row0, col0, n);
#pragma unroll
            for (int e = 0; e < 4; e++) s[n][e] *= f[e];
        }
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
        float scale = r.sum[i] > 0 ? 1 / r.sum[i] : 0, lse = r.sum[i] > 0 ? r.top[i] * LN2 + logf(r.sum[i]) : -INFINITY;
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

template <class T, int W, bool PLAIN>
__global__ void __launch_bounds__(32 * WARPS) attention_tile(const __grid_constant__ job<T> o)
{
    constexpr int K = keys_of<T, W>, S = stride_of<T, W>, M = strips_of<T, W, PLAIN>;
    extern __shared__ __align__(16) unsigned char memory[];
    T *q = (T *)memory, *k = q + ROWS * M * S, *v = k + K * S;
    int warp = threadIdx.x / 32;
    float *spare = (float *)(v + K * S) + warp * 16 * (K + 4);
    head<T> at(o, blockIdx.z, blockIdx.y);
    int g = o.kv_head(at.h), tile = (int)(gridDim.x - 1 - blockIdx.x) * ROWS * M; /* the longest first, when causal */
    int row0 = tile + warp * 16 * M, first = at.first(tile) / K * K, last = at.last_key(tile, ROWS * M);

    float y[M][W / 8][4];
    running r[M];
#pragma unroll
    for (int m = 0; m < M; m++) {
        clear(y[m]);
        r[m] = running{{-INFINITY, -INFINITY}, {0, 0}};
    }
    fetch<ROWS * M, W>(q, o.q(at.b, at.h, tile), o.a.q_row, at.rows - tile, (int)o.a.Wk, o.quick_q);
    if (first < last) fetch<K, W>(k, o.k(at.b, g, first), o.a.k_row, (int)o.a.Tk - first, (int)o.a.Wk, o.quick_k);
    arrived<0>();
    __syncthreads();
    strips<T, M, W, S> rows;
    if constexpr (M > 1) rows.take(q + warp * 16 * M * S);
    for (int j = first; j < last; j += K) {
        float s[M][K / 8][4];
#pragma unroll
        for (int m = 0; m < M; m++) clear(s[m]);
        arrived<0>();
        __syncthreads(); /* the keys are here, and the values before are done with */
        fetch<K, W>(v, o.v(at.b, g, j), o.a.v_row, (int)o.a.Tk - j, (int)o.a.Wv, o.quick_v);
        if constexpr (M > 1)
            mul_nt(s, rows, k);
        else
            mul_nt<K / 8, W, S, S>(s[0], q + warp * 16 * S, k);
        __syncthreads(); /* the keys are done with */
        bool more = j + K < last;
        if (more) fetch<K, W>(k, o.k(at.b, g, j + K), o.a.k_row, (int)o.a.Tk - j - K, (int)o.a.Wk, o.quick_k);
        bool whole = at.whole(tile, ROWS * M, j, K);
#pragma unroll
        for (int m = 0; m < M; m++) absorb<PLAIN>(s[m], y[m], r[m], at, row0 + m * 16, j, whole);
        if (more)
            arrived<1>(); /* the values, not yet the keys */
        else
            arrived<0>();
        __syncthreads();
        if constexpr (M > 1)
            mul_nn<M, W / 8, K / 8, S>(y, s, v);
        else
            mul_nn<W / 8, K / 8, S>(y[0], s[0], v, spare);
    }
#pragma unroll
    for (int m = 0; m < M; m++) finish(y[m], r[m], at, row0 + m * 16);
}

template <class T, int W, bool PLAIN> static void start_as(fv_stream *s, const job<T> &o)
{
    dim3 grid((unsigned)ceil_div(o.a.Tq, ROWS * strips_of<T, W, PLAIN>), (unsigned)o.a.H, (unsigned)o.a.B);
    launch(s, "attention", attention_tile<T, W, PLAIN>, grid, 32 * WARPS, shared_bytes<T, W, PLAIN>(), o);
}

template <class T, int W> static void start(fv_stream *s, const job<T> &o)
{
    if (o.plain && o.a.dropout <= 0)
        start_as<T, W, true>(s, o);
    else
        start_as<T, W, false>(s, o);
}

template <class T> void fv_cuda_attention_tiled(fv_stream *s, const fv_attn_args *a)
{
    job<T> o = prepare<T>(s, a);
    switch (tile_width(s, a)) {
    case 32: start<T, 32>(s, o); break;
    case 64: start<T, 64>(s, o); break;
    case 128: start<T, 128>(s, o); break;
    case 256: start<T, 256>(s, o); break;
    }
}

template void fv_cuda_attention_tiled<float>(fv_stream *, const fv_attn_args *);
template void fv_cuda_attention_tiled<bf16>(fv_stream *, const fv_attn_args *);
template void fv_cuda_attention_tiled<f16>(fv_stream *, const fv_attn_args *);
