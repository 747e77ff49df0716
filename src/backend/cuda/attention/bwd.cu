/* bwd.cu - the portable backward pass of attention, in two passes: dq by rows, dk and dv by
 * columns.
 *
 *     forward: s = scale q k' (+ bias, masked),  w = 2^(s - lse),  y = dropout(w) v
 *     dw = keep dy_i.v_j,  ds = w (dw - dy_i.y_i);
 *     dq_i = sum_j ds k_j,   dk_j = sum_i ds q_i,   dv_j = sum_i keep w dy_i
 *
 * Weights are recomputed from lse in both passes: a block that owns its rows, and another that
 * owns its columns, write every result once and in a fixed order.  One pass with atomic
 * additions to dq would spare two of seven products, and give other bits each time. */
#include "grads.h"
#include "dispatch.h"

template <class T>
void fv_cuda_attention_added(fv_stream *s, const attn_params<T> &attn, const fv_attn_grads *g,
                             const row_stat *stat, float *part, int64_t parts, int width);
int64_t fv_cuda_attention_shares(const fv_attn_args *a);

namespace
{

template <int W> constexpr int columns_of = W <= 64 ? 64 : 32; /* columns of a tile */
/* Stages of the tile loop: one in use, one being loaded; f32 heads 256 wide have shared memory for
 * one. */
template <class T, int W> constexpr int stages_of = W == 256 && sizeof(T) == 4 ? 1 : 2;

template <class T, int W, int K> size_t shared_bytes()
{
    size_t scratch = sizeof(T) == 4 ? WARPS * 16 * (K + 4) * sizeof(float) : 0;
    constexpr int N = stages_of<T, W>;
    return (size_t)(2 * TILE_ROWS + 2 * N * K) * stride_of<T, W> * sizeof(T) +
           N * K * sizeof(row_stat) + scratch;
}

/* Stores exact row statistics, and for the Hopper kernels, where those follow (NULL: not), the
 * folded ones. */
template <class T> struct exact_stats {
    row_stat *stat;
    float2 *folded;

    __device__ void prologue() const {}
    __device__ void store(const attn_params<T> &attn, int b, int h, int i, float dy_y) const
    {
        int64_t r = attn.row_index(b, h, i);
        stat[r] = attn.exact_stat(attn.lse(b, h, i), dy_y);
        if (folded) folded[r] = attn.stat(attn.lse(b, h, i), dy_y);
    }
};

/* ds of a strip to the gradient of a bias that has a number for every pair. */
template <int N, class T>
__device__ inline void write_pairs(sink<T> to, const head_view<T> &head, const float (&ds)[N][4],
                                   int row0, int col0)
{
    const fv_attn_args &a = head.attn.a;
    int64_t base = head.b * a.bias_s[0] + head.h * a.bias_s[1];
    write_rows(to, base + col0, a.bias_s[2], ds, row0, head.rows, (int)a.Tk - col0, 1);
}

/* Where every pair has a bias of its own, ds is its gradient, and no other pass makes it. */
bool has_bias_of_pairs(const fv_attn_args *a, const fv_attn_grads *g)
{
    return g->dq.data && g->dbias.data && a->bias_s[0] && a->bias_s[1] && a->bias_s[2];
}

/* Grid (row tiles, H, B): a block owns 64 queries of a head and walks over the keys they see,
 * the last rows first, which see the most where causal.  Registers: dq of the strip stays, s and
 * dp are made and used up tile by tile.
 *
 *    s = q k'     dp = dy v'     ds = w (keep dp - dy.y)     dq += ds k     dbias = ds, if asked */
template <class T, int W, int K, int KIND>
__global__ void __launch_bounds__(32 * WARPS)
    grad_queries(const __grid_constant__ attn_params<T> attn, const T *dy, sink<T> dq,
                 sink<T> dbias, const row_stat *stat)
{
    constexpr int S = stride_of<T, W>;
    extern __shared__ __align__(16) unsigned char memory[];
    constexpr int N = stages_of<T, W>;
    T *q = (T *)memory, *d = q + TILE_ROWS * S, *keys = d + TILE_ROWS * S,
      *values = keys + N * K * S;
    int warp = threadIdx.x / 32;
    float *scratch = (float *)(values + N * K * S) + warp * 16 * (K + 4);
    head_view<T> head(attn, blockIdx.z, blockIdx.y);
    int g = attn.kv_head(head.h), tile = (int)(gridDim.x - 1 - blockIdx.x) * TILE_ROWS,
        row0 = tile + warp * 16;
    int first = head.first_key(tile) / K * K, last = head.last_key(tile, TILE_ROWS);
    row_stat row[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int i = tile_row(row0, r * 2);
        row[r] = i < head.rows ? stat[attn.row_index(head.b, head.h, i)] : row_stat{INFINITY, 0, 0};
    }
    float sum[W / 8][4];
    clear(sum);
    load_tile_async<TILE_ROWS, W>(q, attn.q(head.b, head.h, tile), attn.a.q_row, head.rows - tile,
                                  (int)attn.a.Wk, attn.vector_q);
    load_tile_async<TILE_ROWS, W>(d, dy + attn.y_offset(head.b, head.h, tile), attn.a.H * attn.a.Wv,
                                  head.rows - tile, (int)attn.a.Wv, attn.vector_y);
    auto load_tiles = [&](int j) {
        int stage = j / K % N * K * S;
        load_tile_async<K, W>(keys + stage, attn.k(head.b, g, j), attn.a.k_row, (int)attn.a.Tk - j,
                              (int)attn.a.Wk, attn.vector_k);
        load_tile_async<K, W>(values + stage, attn.v(head.b, g, j), attn.a.v_row,
                              (int)attn.a.Tk - j, (int)attn.a.Wv, attn.vector_v);
    };
    if (first < last) load_tiles(first);
    for (int j = first; j < last; j += K) {
        const T *k = keys + j / K % N * K * S, *v = values + j / K % N * K * S;
        float s[K / 8][4], dp[K / 8][4];
        clear(s);
        clear(dp);
        cp_async_wait<0>();
        __syncthreads(); /* this tile is here, and the one before is not needed any more */
        if (N > 1 && j + K < last) load_tiles(j + K);
        mul_nt<K / 8, W, S, S>(s, q + warp * 16 * S, k);
        mul_nt<K / 8, W, S, S>(dp, d + warp * 16 * S, v);
        exp_scores_and_dscores<false, KIND>(s, dp, head, row0, j,
                                            head.all_visible(tile, TILE_ROWS, j, K),
                                            [&](int e, int) { return row[e / 2]; });
        if (KIND == ANY && dbias.p) write_pairs(dbias, head, dp, row0, j);
        mul_nn<W / 8, K / 8, S>(sum, dp, k, scratch);
        if (N == 1) __syncthreads();
        if (N == 1 && j + K < last) load_tiles(j + K);
    }
    if (KIND == ANY && dbias.p && !dbias.add) { /* of keys that no row of the tile sees */
        int end = first < last ? first + (last - first + K - 1) / K * K : first;
        float none[K / 8][4];
        clear(none);
        for (int j = 0; j < first; j += K) write_pairs(dbias, head, none, row0, j);
        for (int j = end; j < attn.a.Tk; j += K) write_pairs(dbias, head, none, row0, j);
    }
    int64_t base = attn.q(head.b, head.h, 0) - (const T *)attn.a.q;
    write_rows(dq, base, attn.a.q_row, sum, row0, head.rows, (int)attn.a.Wk, attn.scale * LN2);
}

/* WHICH: 1 dk, 2 dv, 3 both.  Heads 256 wide take one after the other: accumulators of both
 * would not fit the registers.
 * Grid (key tiles, G, B): a block owns 64 keys and walks over the queries of all heads that
 * share them, so grouped heads need no second sum.  Scores are made transposed (key, query),
 * which puts ds' and w' in the registers as A fragments of the next product.
 *
 *    s' = k q'    dp' = v dy'    dk += ds' q    dv += (keep w)' dy */
template <class T, int W, int Q, int WHICH, int KIND>
__global__ void __launch_bounds__(32 * WARPS)
    grad_keys(const __grid_constant__ attn_params<T> attn, const T *dy, sink<T> dk, sink<T> dv,
              const row_stat *stat)
{
    constexpr int S = stride_of<T, W>;
    extern __shared__ __align__(16) unsigned char memory[];
    constexpr int N = stages_of<T, W>;
    T *k = (T *)memory, *v = k + TILE_ROWS * S, *queries = v + TILE_ROWS * S,
      *dy_tiles = queries + N * Q * S;
    row_stat *stats = (row_stat *)(dy_tiles + N * Q * S);
    int warp = threadIdx.x / 32;
    float *scratch = (float *)(stats + N * Q) + warp * 16 * (Q + 4);
    int b = blockIdx.z, g = blockIdx.y, tile = (int)blockIdx.x * TILE_ROWS, row0 = tile + warp * 16,
        q_per_kv = (int)(attn.a.H / attn.a.G);
    int keys = (int)attn.a.Tk;
    float sk[WHICH & 1 ? W / 8 : 1][4], sv[WHICH & 2 ? W / 8 : 1][4];
    clear(sk);
    clear(sv);
    load_tile_async<TILE_ROWS, W>(k, attn.k(b, g, tile), attn.a.k_row, keys - tile, (int)attn.a.Wk,
                                  attn.vector_k);
    load_tile_async<TILE_ROWS, W>(v, attn.v(b, g, tile), attn.a.v_row, keys - tile, (int)attn.a.Wv,
                                  attn.vector_v);
    for (int h = g * q_per_kv; h < (g + 1) * q_per_kv; h++) {
        head_view<T> head(attn, b, h);
        int first = head.first_row(tile) / Q * Q, last = head.last_row(tile, TILE_ROWS);
        auto load_tiles = [&](int i) {
            int stage = i / Q % N, row = i + (int)threadIdx.x;
            load_tile_async<Q, W>(queries + stage * Q * S, attn.q(b, h, i), attn.a.q_row,
                                  head.rows - i, (int)attn.a.Wk, attn.vector_q);
            load_tile_async<Q, W>(dy_tiles + stage * Q * S, dy + attn.y_offset(b, h, i),
                                  attn.a.H * attn.a.Wv, head.rows - i, (int)attn.a.Wv,
                                  attn.vector_y);
            if (threadIdx.x < Q)
                stats[stage * Q + threadIdx.x] = row < head.rows ? stat[attn.row_index(b, h, row)]
                                                                 : row_stat{INFINITY, 0, 0};
        };
        __syncthreads(); /* tiles of the head before are not needed any more */
        if (first < last) load_tiles(first);
        for (int i = first; i < last; i += Q) {
            const T *q = queries + i / Q % N * Q * S, *d = dy_tiles + i / Q % N * Q * S;
            const row_stat *row = stats + i / Q % N * Q;
            float s[Q / 8][4], dp[Q / 8][4];
            clear(s);
            clear(dp);
            cp_async_wait<0>();
            __syncthreads(); /* this tile is here, and the one before is not needed any more */
            if (N > 1 && i + Q < last) load_tiles(i + Q);
            mul_nt<Q / 8, W, S, S>(s, k + warp * 16 * S, q);
            mul_nt<Q / 8, W, S, S>(dp, v + warp * 16 * S, d);
            exp_scores_and_dscores<true, KIND>(s, dp, head, row0, i,
                                               head.all_visible(i, Q, tile, TILE_ROWS),
                                               [&](int e, int n) {
                                                   return row[tile_col(0, n, e)];
                                               });
            if constexpr (WHICH & 1) mul_nn<W / 8, Q / 8, S>(sk, dp, q, scratch);
            if constexpr (WHICH & 2) mul_nn<W / 8, Q / 8, S>(sv, s, d, scratch);
            if (N == 1) __syncthreads();
            if (N == 1 && i + Q < last) load_tiles(i + Q);
        }
    }
    if constexpr (WHICH & 1)
        if (dk.p)
            write_rows(dk, attn.k(b, g, 0) - (const T *)attn.a.k, attn.a.k_row, sk, row0, keys,
                       (int)attn.a.Wk, attn.scale * LN2);
    if constexpr (WHICH & 2)
        if (dv.p)
            write_rows(dv, attn.v(b, g, 0) - (const T *)attn.a.v, attn.a.v_row, sv, row0, keys,
                       (int)attn.a.Wv, 1);
}

template <class T, int W, int K, int KIND>
void start_as(fv_stream *s, const attn_params<T> &attn, const fv_attn_grads *g,
              const row_stat *stat)
{
    const T *dy = (const T *)g->dy;
    sink<T> dk = to<T>(g->dk), dv = to<T>(g->dv);
    dim3 rows((unsigned)ceil_div(attn.a.Tq, TILE_ROWS), (unsigned)attn.a.H, (unsigned)attn.a.B);
    dim3 columns((unsigned)ceil_div(attn.a.Tk, TILE_ROWS), (unsigned)attn.a.G, (unsigned)attn.a.B);
    size_t bytes = shared_bytes<T, W, K>();
    sink<T> dbias = to<T>(has_bias_of_pairs(&attn.a, g) ? g->dbias : fv_sink{});
    if (g->dq.data)
        launch(s, "attention_bwd", grad_queries<T, W, K, KIND>, rows, 32 * WARPS, bytes, attn, dy,
               to<T>(g->dq), dbias, stat);
    if constexpr (W < 256) {
        if (dk.p || dv.p)
            launch(s, "attention_bwd", grad_keys<T, W, K, 3, KIND>, columns, 32 * WARPS, bytes,
                   attn, dy, dk, dv, stat);
    } else {
        if (dk.p)
            launch(s, "attention_bwd", grad_keys<T, W, K, 1, KIND>, columns, 32 * WARPS, bytes,
                   attn, dy, dk, dv, stat);
        if (dv.p)
            launch(s, "attention_bwd", grad_keys<T, W, K, 2, KIND>, columns, 32 * WARPS, bytes,
                   attn, dy, dk, dv, stat);
    }
}

/* PLAIN is compiled apart: without mask, bias and dropout a tile that is all visible has no
 * branch. */
template <class T, int W, int K>
void start_with(fv_stream *s, const attn_params<T> &attn, const fv_attn_grads *g,
                const row_stat *stat)
{
    if (W < 256 && attn.plain && attn.a.dropout <= 0)
        start_as<T, W, K, (W < 256 ? PLAIN : ANY)>(s, attn, g, stat);
    else
        start_as<T, W, K, ANY>(s, attn, g, stat);
}

template <class T, int W>
void start(fv_stream *s, const attn_params<T> &attn, const fv_attn_grads *g, const row_stat *stat)
{
    constexpr int K = columns_of<W>;
    if constexpr (sizeof(T) == 4 &&
                  W == 64) /* smaller tiles, where a chip has less shared memory */
        if (shared_bytes<T, W, K>() > device_of(s)->max_smem) {
            start_with<T, W, K / 2>(s, attn, g, stat);
            return;
        }
    start_with<T, W, K>(s, attn, g, stat);
}

} // namespace

/* Scratch is one allocation, as a second one may move it: row statistics, exact and folded, then
 * sums of the table's gradient. */
template <class T>
void fv_cuda_attention_tiled_bwd(fv_stream *s, const fv_attn_args *a, const fv_attn_grads *g,
                                 bool hopper)
{
    attn_params<T> attn = make_params<T>(s, a);
    attn.vector_y = attn.vector_y && aligned(g->dy);
    int64_t rows = a->B * a->H * a->Tq, parts = g->drel.data ? fv_cuda_attention_shares(a) : 0;
    int64_t sm90_floats = hopper && g->drel.data ? fv_cuda_table_numbers(s, a) : 0,
            table_floats = parts * a->H * a->rel_len;
    int64_t table_size = ceil_div(table_floats > sm90_floats ? table_floats : sm90_floats, 4),
            stat_size = ceil_div(rows, 4);
    int width = tile_width(s, a);
    int4 *scratch = width ? alloc_scratch<int4>(s, 5 * stat_size + table_size) : NULL;
    if (!scratch) return;
    row_stat *stat = (row_stat *)scratch;
    float2 *folded = (float2 *)(scratch + 3 * stat_size);
    float *part = (float *)(scratch + 5 * stat_size);
    launch_row_stats(s, attn, (const T *)g->dy, a->Tq,
                     exact_stats<T>{stat, hopper ? folded : NULL});
    switch (width) {
    case 32: start<T, 32>(s, attn, g, stat); break;
    case 64: start<T, 64>(s, attn, g, stat); break;
    case 128: start<T, 128>(s, attn, g, stat); break;
    case 256: start<T, 256>(s, attn, g, stat); break;
    }
    fv_attn_grads rest = *g;
    if (has_bias_of_pairs(a, g)) rest.dbias = fv_sink{};
    if (hopper && attn.vector_y && rest.dbias.data && fv_cuda_bias_hopper<T>(s, attn, g, folded))
        rest.dbias = fv_sink{};
    if (sm90_floats && attn.vector_y && fv_cuda_table_hopper<T>(s, attn, g, folded, part))
        rest.drel = fv_sink{};
    if (rest.dbias.data || rest.drel.data)
        fv_cuda_attention_added<T>(s, attn, &rest, stat, part, parts, width);
}

template void fv_cuda_attention_tiled_bwd<float>(fv_stream *, const fv_attn_args *,
                                                 const fv_attn_grads *, bool);
template void fv_cuda_attention_tiled_bwd<bf16>(fv_stream *, const fv_attn_args *,
                                                const fv_attn_grads *, bool);
template void fv_cuda_attention_tiled_bwd<f16>(fv_stream *, const fv_attn_args *,
                                               const fv_attn_grads *, bool);
