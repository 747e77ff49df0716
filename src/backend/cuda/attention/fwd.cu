/* fwd.cu - the portable forward pass of attention: tiles on mma.sync (f32: fma), from sm_80 on.
 *
 *     s = scale q k' (+ bias, masked);  w = exp(s - max);  y = dropout(w) v / sum w;
 *     lse = (max, sum w)
 *
 * A block has four warps of one or two strips of 16 query rows each, and goes through the keys
 * in tiles, with the online softmax (online_softmax.h).  One k and one v tile in shared memory,
 * loaded by cp.async: v of a tile arrives while its scores are computed, k of the next while p v
 * is.
 *
 * It takes what the Hopper kernels and cuDNN do not: f32, other chips, wide and odd heads, few
 * rows. */
#include "online_softmax.h"
#include "dispatch.h"

namespace
{

/* A PLAIN kernel has registers for two strips per warp: every B fragment loaded from shared
 * memory then serves twice. */
template <class T, int W, int KIND>
constexpr int strips_of = KIND == PLAIN && sizeof(T) == 2 && W <= 128 ? 2 : 1;

/*    [ q: TILE_ROWS * M rows ][ k: K rows ][ v: K rows ][ f32 only: weights of each warp ]
 *
 * Single buffers for k and v suffice: k is free while p v runs, and v while q k' runs. */
template <class T, int W, int KIND> size_t shared_bytes()
{
    constexpr int K = keys_of<T, W>;
    size_t scratch = sizeof(T) == 4 ? WARPS * 16 * (K + 4) * sizeof(float) : 0;
    return (size_t)(TILE_ROWS * strips_of<T, W, KIND> + 2 * K) * stride_of<T, W> * sizeof(T) +
           scratch;
}

/* Products of a strip become weights after dropout; sum: before it, over this thread's. */
template <int KIND, int N, class T>
__device__ inline void weigh_tile(float (&s)[N][4], const head_view<T> &head, int row0, int col0,
                                  bool full_tile, softmax_state &r, float (&correction)[2],
                                  float (&sum)[2])
{
    float scale = scale_of<KIND>(head);
    mask_scores<KIND>(s, head, row0, col0, full_tile);
    update_row_max(s, scale, r, correction);
    exp_weights<T>(s, scale, r, sum, [&](int k, const float(&w)[2][4]) {
#pragma unroll
        for (int e = 0; e < 8; e++) s[2 * k + e / 4][e % 4] = w[e / 4][e % 4];
    });
    if (has_dropout<KIND>(head)) apply_dropout<false>(s, head, row0, col0), zero_dropped(s);
}

/* The same for all strips of a warp, whose sums go on from tile to tile. */
template <int KIND, int M, int N, int C, class T>
__device__ inline void weigh_strips(float (&s)[M][N][4], float (&y)[M][C][4],
                                    const head_view<T> &head, int row0, int col0, bool full_tile,
                                    softmax_state (&r)[M])
{
#pragma unroll
    for (int m = 0; m < M; m++) {
        float correction[2], sum[2];
        weigh_tile<KIND>(s[m], head, row0 + m * 16, col0, full_tile, r[m], correction, sum);
        r[m].row_sum[0] += sum[0], r[m].row_sum[1] += sum[1];
        rescale(y[m], correction);
    }
}

template <class T, int W, int KIND>
__global__ void __launch_bounds__(32 * WARPS)
    attention_tile(const __grid_constant__ attn_params<T> attn)
{
    constexpr int K = keys_of<T, W>, S = stride_of<T, W>, M = strips_of<T, W, KIND>;
    constexpr bool SPLIT = splits_tiles<T, W>;
    extern __shared__ __align__(16) unsigned char memory[];
    T *q = (T *)memory, *k = q + TILE_ROWS * M * S, *v = k + K * S;
    int warp = threadIdx.x / 32;
    float *scratch = (float *)(v + K * S) + warp * 16 * (K + 4);
    head_view<T> head(attn, blockIdx.z, blockIdx.y);
    /* the longest first, when causal */
    int g = attn.kv_head(head.h), tile = (int)(gridDim.x - 1 - blockIdx.x) * TILE_ROWS * M;
    int row0 = tile + warp * 16 * M, first = head.first_key(tile) / K * K,
        last = head.last_key(tile, TILE_ROWS * M);

    float y[M][W / 8][4];
    softmax_state r[M], tile_softmax;
#pragma unroll
    for (int m = 0; m < M; m++) {
        clear(y[m]);
        r[m] = softmax_state{{-INFINITY, -INFINITY}, {0, 0}};
    }
    load_tile_async<TILE_ROWS * M, W>(q, attn.q(head.b, head.h, tile), attn.a.q_row,
                                      head.rows - tile, (int)attn.a.Wk, attn.vector_q);
    if (first < last)
        load_tile_async<K, W>(k, attn.k(head.b, g, first), attn.a.k_row, (int)attn.a.Tk - first,
                              (int)attn.a.Wk, attn.vector_k);
    cp_async_wait<0>();
    __syncthreads();
    a_fragments<T, M, W, S> rows;
    if constexpr (M > 1) rows.load(q + warp * 16 * M * S);
    for (int j = first; j < last; j += K) {
        float s[M][K / 8][4], sum[2];
#pragma unroll
        for (int m = 0; m < M; m++) clear(s[m]);
        cp_async_wait<0>();
        __syncthreads(); /* k is here, and v of the tile before is not needed any more */
        load_tile_async<K, W>(v, attn.v(head.b, g, j), attn.a.v_row, (int)attn.a.Tk - j,
                              (int)attn.a.Wv, attn.vector_v);
        if constexpr (M > 1)
            mul_nt(s, rows, k);
        else
            mul_nt<K / 8, W, S, S>(s[0], q + warp * 16 * S, k);
        __syncthreads(); /* k is not needed any more */
        bool more = j + K < last;
        if (more)
            load_tile_async<K, W>(k, attn.k(head.b, g, j + K), attn.a.k_row, (int)attn.a.Tk - j - K,
                                  (int)attn.a.Wk, attn.vector_k);
        bool full_tile = head.all_visible(tile, TILE_ROWS * M, j, K);
        if constexpr (SPLIT) {
            float unused[2];
            tile_softmax = softmax_state{{-INFINITY, -INFINITY}, {0, 0}};
            weigh_tile<KIND>(s[0], head, row0, j, full_tile, tile_softmax, unused, sum);
        } else {
            weigh_strips<KIND>(s, y, head, row0, j, full_tile, r);
        }
        if (more)
            cp_async_wait<1>(); /* v has arrived; the next k need not */
        else
            cp_async_wait<0>();
        __syncthreads();
        if constexpr (SPLIT) {
            float part[W / 8][4];
            clear(part);
            mul_nn<W / 8, K / 8, S>(part, s[0], v, scratch);
            merge_tile(y[0], r[0], part, tile_softmax, sum);
        } else if constexpr (M > 1) {
            mul_nn<M, W / 8, K / 8, S>(y, s, v);
        } else {
            mul_nn<W / 8, K / 8, S>(y[0], s[0], v, scratch);
        }
    }
#pragma unroll
    for (int m = 0; m < M; m++) write_output(y[m], r[m], head, row0 + m * 16);
}

template <class T, int W, int KIND> void start_as(fv_stream *s, const attn_params<T> &attn)
{
    dim3 grid((unsigned)ceil_div(attn.a.Tq, TILE_ROWS * strips_of<T, W, KIND>), (unsigned)attn.a.H,
              (unsigned)attn.a.B);
    launch(s, "attention", attention_tile<T, W, KIND>, grid, 32 * WARPS, shared_bytes<T, W, KIND>(),
           attn);
}

template <class T, int W> void start(fv_stream *s, const attn_params<T> &attn)
{
    if (attn.plain && attn.a.dropout <= 0)
        start_as<T, W, PLAIN>(s, attn);
    else
        start_as<T, W, ANY>(s, attn);
}

} // namespace

template <class T> void fv_cuda_attention_tiled(fv_stream *s, const fv_attn_args *a)
{
    attn_params<T> attn = make_params<T>(s, a);
    switch (tile_width(s, a)) {
    case 32: start<T, 32>(s, attn); break;
    case 64: start<T, 64>(s, attn); break;
    case 128: start<T, 128>(s, attn); break;
    case 256: start<T, 256>(s, attn); break;
    }
}

template void fv_cuda_attention_tiled<float>(fv_stream *, const fv_attn_args *);
template void fv_cuda_attention_tiled<bf16>(fv_stream *, const fv_attn_args *);
template void fv_cuda_attention_tiled<f16>(fv_stream *, const fv_attn_args *);
