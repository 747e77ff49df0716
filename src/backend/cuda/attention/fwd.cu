/* fwd.cu - scaled dot-product attention without storing the weights: our own tiled kernel.
 *
 * A warp takes one or two strips of 16 rows of one head, a block four warps, and goes through the
 * keys in tiles, keeping for each row the largest score so far, the sum of exp(score - largest) and
 * the weighted sum of values, which are rescaled when a larger score appears.  While scores are
 * worked out the values of the tile are on their way, while values are summed the next keys are. */
#include "online_softmax.h"
#include "dispatch.h"

/* A plain kernel has registers for two strips a warp: every number that is read from shared memory
 * then serves twice. */
template <class T, int W, int KIND>
constexpr int strips_of = KIND == PLAIN && sizeof(T) == 2 && W <= 128 ? 2 : 1;
/* of a tile */
template <class T, int W> constexpr int keys_of = W <= 64 || (W == 128 && sizeof(T) == 2) ? 64 : 32;

template <class T, int W, int KIND> static size_t shared_bytes()
{
    constexpr int K = keys_of<T, W>;
    size_t spare = sizeof(T) == 4 ? WARPS * 16 * (K + 4) * sizeof(float) : 0;
    return (size_t)(ROWS * strips_of<T, W, KIND> + 2 * K) * stride_of<T, W> * sizeof(T) + spare;
}

template <class T, int W, int KIND>
__global__ void __launch_bounds__(32 * WARPS) attention_tile(const __grid_constant__ job<T> o)
{
    constexpr int K = keys_of<T, W>, S = stride_of<T, W>, M = strips_of<T, W, KIND>;
    extern __shared__ __align__(16) unsigned char memory[];
    T *q = (T *)memory, *k = q + ROWS * M * S, *v = k + K * S;
    int warp = threadIdx.x / 32;
    float *spare = (float *)(v + K * S) + warp * 16 * (K + 4);
    head<T> at(o, blockIdx.z, blockIdx.y);
    /* the longest first, when causal */
    int g = o.kv_head(at.h), tile = (int)(gridDim.x - 1 - blockIdx.x) * ROWS * M;
    int row0 = tile + warp * 16 * M, first = at.first(tile) / K * K,
        last = at.last_key(tile, ROWS * M);

    float y[M][W / 8][4];
    softmax_state r[M];
#pragma unroll
    for (int m = 0; m < M; m++) {
        clear(y[m]);
        r[m] = softmax_state{{-INFINITY, -INFINITY}, {0, 0}};
    }
    fetch<ROWS * M, W>(q, o.q(at.b, at.h, tile), o.a.q_row, at.rows - tile, (int)o.a.Wk,
                       o.vector_q);
    if (first < last)
        fetch<K, W>(k, o.k(at.b, g, first), o.a.k_row, (int)o.a.Tk - first, (int)o.a.Wk,
                    o.vector_k);
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
        fetch<K, W>(v, o.v(at.b, g, j), o.a.v_row, (int)o.a.Tk - j, (int)o.a.Wv, o.vector_v);
        if constexpr (M > 1)
            mul_nt(s, rows, k);
        else
            mul_nt<K / 8, W, S, S>(s[0], q + warp * 16 * S, k);
        __syncthreads(); /* the keys are done with */
        bool more = j + K < last;
        if (more)
            fetch<K, W>(k, o.k(at.b, g, j + K), o.a.k_row, (int)o.a.Tk - j - K, (int)o.a.Wk,
                        o.vector_k);
        bool full_tile = at.all_visible(tile, ROWS * M, j, K);
#pragma unroll
        for (int m = 0; m < M; m++) {
            float correction[2], sum[2], scale = scale_of<KIND>(at);
            mask_scores<KIND>(s[m], at, row0 + m * 16, j, full_tile);
            update_row_max(s[m], scale, r[m], correction);
            weights(s[m], scale, r[m], sum, [&](int k, const float(&w)[2][4]) {
#pragma unroll
                for (int e = 0; e < 8; e++) s[m][2 * k + e / 4][e % 4] = w[e / 4][e % 4];
            });
            r[m].row_sum[0] += sum[0], r[m].row_sum[1] += sum[1];
            if (has_dropout<KIND>(at))
                apply_dropout<false>(s[m], at, row0 + m * 16, j), zero_dropped(s[m]);
            rescale(y[m], correction);
        }
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

template <class T, int W, int KIND> static void start_as(fv_stream *s, const job<T> &o)
{
    dim3 grid((unsigned)ceil_div(o.a.Tq, ROWS * strips_of<T, W, KIND>), (unsigned)o.a.H,
              (unsigned)o.a.B);
    launch(s, "attention", attention_tile<T, W, KIND>, grid, 32 * WARPS, shared_bytes<T, W, KIND>(),
           o);
}

template <class T, int W> static void start(fv_stream *s, const job<T> &o)
{
    if (o.plain && o.a.dropout <= 0)
        start_as<T, W, PLAIN>(s, o);
    else
        start_as<T, W, ANY>(s, o);
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
