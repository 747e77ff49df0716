/* bwd.cu - the gradients of attention: of queries by rows, of keys and values by columns.
 *
 *     w = 2^(score - lse),  dw = keep dy_i.v_j,  ds = w (dw - dy_i.y_i),  dq_i = sum_j ds k_j,
 *     dk_j = sum_i ds q_i,
 *     dv_j = sum_i keep w dy_i
 *
 * Weights are computed again from lse, once for each direction: a block that owns its rows, and
 * another that owns its columns, write every result once and in a fixed order.  One pass with
 * atomic additions for dq would spare two of seven products, and give other bits each time. */
#include "grads.h"
#include "dispatch.h"

template <class T>
void fv_cuda_attention_added(fv_stream *s, const job<T> &o, const fv_attn_grads *g,
                             const row_stat *stat, float *part, int64_t parts, int width);
int64_t fv_cuda_attention_shares(const fv_attn_args *a);

template <int W> constexpr int columns_of = W <= 64 ? 64 : 32; /* of a tile */
template <class T, int W>
constexpr int turns_of = W == 256 && sizeof(T) == 4
                             ? 1
                             : 2; /* tiles there is memory for: one in use, one on its way */

template <class T, int W, int K> static size_t shared_bytes()
{
    size_t spare = sizeof(T) == 4 ? WARPS * 16 * (K + 4) * sizeof(float) : 0;
    constexpr int N = turns_of<T, W>;
    return (size_t)(2 * ROWS + 2 * N * K) * stride_of<T, W> * sizeof(T) + N * K * sizeof(row_stat) +
           spare;
}

/* What the passes over pairs need of each row, and that for the kernels on Hopper, where they are
 * used (NULL: not); `share` threads of a warp take one, a power of two. */
template <class T, int V>
__global__ void row_stats(row_stat *stat, float2 *folded, const __grid_constant__ job<T> o,
                          const T *dy, int share)
{
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x) / share, h = blockIdx.y, b = blockIdx.z;
    bool there = i < o.a.Tq;
    int64_t r = o.at_row(b, h, i), at = o.y_offset(b, h, i);
    float sum = 0, d[V], y[V];
    for (int c = threadIdx.x % share * V; there && c < o.a.Wv; c += share * V) {
        load(d, dy, at + c);
        load(y, (const T *)o.a.y, at + c);
#pragma unroll
        for (int j = 0; j < V; j++) sum += d[j] * y[j];
    }
    for (int x = share / 2; x; x /= 2) sum += __shfl_xor_sync(~0u, sum, x);
    if (!there || threadIdx.x % share) return;
    stat[r] = o.exact_stat(o.lse(b, h, i), sum);
    if (folded) folded[r] = o.stat(o.lse(b, h, i), sum);
}

/* What is known of each row before the passes over pairs. */
template <class T>
static void prepare_rows(fv_stream *s, const job<T> &o, const T *dy, row_stat *stat, float2 *folded)
{
    constexpr int V = 16 / sizeof(T);
    const fv_attn_args &a = o.a;
    int share = 1;
    while (share < 32 && share < ceil_div(a.Wv, o.vector_y ? V : 1)) share *= 2;
    dim3 grid((unsigned)ceil_div(a.Tq * share, THREADS), (unsigned)a.H, (unsigned)a.B);
    if (o.vector_y)
        launch(s, "attention_bwd", row_stats<T, V>, grid, THREADS, 0, stat, folded, o, dy, share);
    else
        launch(s, "attention_bwd", row_stats<T, 1>, grid, THREADS, 0, stat, folded, o, dy, share);
}

template <class T, int W, int K, int KIND>
__global__ void __launch_bounds__(32 * WARPS)
    grad_queries(const __grid_constant__ job<T> o, const T *dy, sink<T> dq, const row_stat *stat)
{
    constexpr int S = stride_of<T, W>;
    extern __shared__ __align__(16) unsigned char memory[];
    constexpr int N = turns_of<T, W>;
    T *q = (T *)memory, *d = q + ROWS * S, *keys = d + ROWS * S, *values = keys + N * K * S;
    int warp = threadIdx.x / 32;
    float *spare = (float *)(values + N * K * S) + warp * 16 * (K + 4);
    head<T> at(o, blockIdx.z, blockIdx.y);
    int g = o.kv_head(at.h), tile = (int)(gridDim.x - 1 - blockIdx.x) * ROWS,
        row0 = tile + warp * 16;
    int first = at.first(tile) / K * K, last = at.last_key(tile, ROWS);
    row_stat known[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int i = tile_row(row0, r * 2);
        known[r] = i < at.rows ? stat[o.at_row(at.b, at.h, i)] : row_stat{INFINITY, 0, 0};
    }
    float sum[W / 8][4];
    clear(sum);
    fetch<ROWS, W>(q, o.q(at.b, at.h, tile), o.a.q_row, at.rows - tile, (int)o.a.Wk, o.vector_q);
    fetch<ROWS, W>(d, dy + o.y_offset(at.b, at.h, tile), o.a.H * o.a.Wv, at.rows - tile,
                   (int)o.a.Wv, o.vector_y);
    auto bring = [&](int j) {
        int stage_offset = j / K % N * K * S;
        fetch<K, W>(keys + stage_offset, o.k(at.b, g, j), o.a.k_row, (int)o.a.Tk - j, (int)o.a.Wk,
                    o.vector_k);
        fetch<K, W>(values + stage_offset, o.v(at.b, g, j), o.a.v_row, (int)o.a.Tk - j, (int)o.a.Wv,
                    o.vector_v);
    };
    if (first < last) bring(first);
    for (int j = first; j < last; j += K) {
        const T *k = keys + j / K % N * K * S, *v = values + j / K % N * K * S;
        float s[K / 8][4], dp[K / 8][4];
        clear(s);
        clear(dp);
        arrived<0>();
        __syncthreads(); /* this tile is here, and the one before is done with */
        if (N > 1 && j + K < last) bring(j + K);
        mul_nt<K / 8, W, S, S>(s, q + warp * 16 * S, k);
        mul_nt<K / 8, W, S, S>(dp, d + warp * 16 * S, v);
        exp_scores_and_dscores<false, KIND>(s, dp, at, row0, j, at.all_visible(tile, ROWS, j, K),
                                            [&](int e, int) { return known[e / 2]; });
        mul_nn<W / 8, K / 8, S>(sum, dp, k, spare);
        if (N == 1) __syncthreads();
        if (N == 1 && j + K < last) bring(j + K);
    }
    int64_t base = o.q(at.b, at.h, 0) - (const T *)o.a.q;
    write_rows(dq, base, o.a.q_row, sum, row0, at.rows, (int)o.a.Wk, o.scale * LN2);
}

/* WHICH: 1 keys, 2 values, 3 both.  Wide heads take one after the other: two strips of sums fill
 * the registers. */
template <class T, int W, int Q, int WHICH, int KIND>
__global__ void __launch_bounds__(32 * WARPS)
    grad_keys(const __grid_constant__ job<T> o, const T *dy, sink<T> dk, sink<T> dv,
              const row_stat *stat)
{
    constexpr int S = stride_of<T, W>;
    extern __shared__ __align__(16) unsigned char memory[];
    constexpr int N = turns_of<T, W>;
    T *k = (T *)memory, *v = k + ROWS * S, *queries = v + ROWS * S,
      *slopes_of_y = queries + N * Q * S;
    row_stat *stats = (row_stat *)(slopes_of_y + N * Q * S);
    int warp = threadIdx.x / 32;
    float *spare = (float *)(stats + N * Q) + warp * 16 * (Q + 4);
    int b = blockIdx.z, g = blockIdx.y, tile = (int)blockIdx.x * ROWS, row0 = tile + warp * 16,
        q_per_kv = (int)(o.a.H / o.a.G);
    int keys = (int)o.a.Tk;
    float sk[WHICH & 1 ? W / 8 : 1][4], sv[WHICH & 2 ? W / 8 : 1][4];
    clear(sk);
    clear(sv);
    fetch<ROWS, W>(k, o.k(b, g, tile), o.a.k_row, keys - tile, (int)o.a.Wk, o.vector_k);
    fetch<ROWS, W>(v, o.v(b, g, tile), o.a.v_row, keys - tile, (int)o.a.Wv, o.vector_v);
    for (int h = g * q_per_kv; h < (g + 1) * q_per_kv; h++) {
        head<T> at(o, b, h);
        int first = at.first_row(tile) / Q * Q, last = at.last_row(tile, ROWS);
        auto bring = [&](int i) {
            int stage_offset = i / Q % N, row = i + (int)threadIdx.x;
            fetch<Q, W>(queries + stage_offset * Q * S, o.q(b, h, i), o.a.q_row, at.rows - i,
                        (int)o.a.Wk, o.vector_q);
            fetch<Q, W>(slopes_of_y + stage_offset * Q * S, dy + o.y_offset(b, h, i),
                        o.a.H * o.a.Wv, at.rows - i, (int)o.a.Wv, o.vector_y);
            if (threadIdx.x < Q)
                stats[stage_offset * Q + threadIdx.x] = row < at.rows ? stat[o.at_row(b, h, row)]
                                                                      : row_stat{INFINITY, 0, 0};
        };
        __syncthreads(); /* the head before is done with */
        if (first < last) bring(first);
        for (int i = first; i < last; i += Q) {
            const T *q = queries + i / Q % N * Q * S, *d = slopes_of_y + i / Q % N * Q * S;
            const row_stat *known = stats + i / Q % N * Q;
            float s[Q / 8][4], dp[Q / 8][4];
            clear(s);
            clear(dp);
            arrived<0>();
            __syncthreads(); /* this tile is here, and the one before is done with */
            if (N > 1 && i + Q < last) bring(i + Q);
            mul_nt<Q / 8, W, S, S>(s, k + warp * 16 * S, q);
            mul_nt<Q / 8, W, S, S>(dp, v + warp * 16 * S, d);
            exp_scores_and_dscores<true, KIND>(s, dp, at, row0, i, at.all_visible(i, Q, tile, ROWS),
                                               [&](int e, int n) {
                                                   return known[tile_col(0, n, e)];
                                               });
            if constexpr (WHICH & 1) mul_nn<W / 8, Q / 8, S>(sk, dp, q, spare);
            if constexpr (WHICH & 2) mul_nn<W / 8, Q / 8, S>(sv, s, d, spare);
            if (N == 1) __syncthreads();
            if (N == 1 && i + Q < last) bring(i + Q);
        }
    }
    if constexpr (WHICH & 1)
        if (dk.p)
            write_rows(dk, o.k(b, g, 0) - (const T *)o.a.k, o.a.k_row, sk, row0, keys, (int)o.a.Wk,
                       o.scale * LN2);
    if constexpr (WHICH & 2)
        if (dv.p)
            write_rows(dv, o.v(b, g, 0) - (const T *)o.a.v, o.a.v_row, sv, row0, keys, (int)o.a.Wv,
                       1);
}

template <class T, int W, int K, int KIND>
static void start_as(fv_stream *s, const job<T> &o, const fv_attn_grads *g, const row_stat *stat)
{
    const T *dy = (const T *)g->dy;
    sink<T> dk = to<T>(g->dk), dv = to<T>(g->dv);
    dim3 rows((unsigned)ceil_div(o.a.Tq, ROWS), (unsigned)o.a.H, (unsigned)o.a.B);
    dim3 columns((unsigned)ceil_div(o.a.Tk, ROWS), (unsigned)o.a.G, (unsigned)o.a.B);
    size_t bytes = shared_bytes<T, W, K>();
    if (g->dq.data)
        launch(s, "attention_bwd", grad_queries<T, W, K, KIND>, rows, 32 * WARPS, bytes, o, dy,
               to<T>(g->dq), stat);
    if constexpr (W < 256) {
        if (dk.p || dv.p)
            launch(s, "attention_bwd", grad_keys<T, W, K, 3, KIND>, columns, 32 * WARPS, bytes, o,
                   dy, dk, dv, stat);
    } else {
        if (dk.p)
            launch(s, "attention_bwd", grad_keys<T, W, K, 1, KIND>, columns, 32 * WARPS, bytes, o,
                   dy, dk, dv, stat);
        if (dv.p)
            launch(s, "attention_bwd", grad_keys<T, W, K, 2, KIND>, columns, 32 * WARPS, bytes, o,
                   dy, dk, dv, stat);
    }
}

template <class T, int W, int K>
static void start_with(fv_stream *s, const job<T> &o, const fv_attn_grads *g, const row_stat *stat)
{
    if (W < 256 && o.plain && o.a.dropout <= 0)
        start_as < T, W, K, W<256 ? PLAIN : ANY>(s, o, g, stat);
    else
        start_as<T, W, K, ANY>(s, o, g, stat);
}

template <class T, int W>
static void start(fv_stream *s, const job<T> &o, const fv_attn_grads *g, const row_stat *stat)
{
    constexpr int K = columns_of<W>;
    if constexpr (sizeof(T) == 4 && W == 64) /* smaller tiles, where a chip has no room for those */
        if (shared_bytes<T, W, K>() > device_of(s)->max_smem) {
            start_with<T, W, K / 2>(s, o, g, stat);
            return;
        }
    start_with<T, W, K>(s, o, g, stat);
}

/* Scratch is one block, as asking again may move it: for each row stat, and sums by distance. */
template <class T>
void fv_cuda_attention_tiled_bwd(fv_stream *s, const fv_attn_args *a, const fv_attn_grads *g,
                                 bool hopper)
{
    job<T> o = prepare<T>(s, a);
    o.vector_y = o.vector_y && aligned(g->dy);
    int64_t rows = a->B * a->H * a->Tq, parts = g->drel.data ? fv_cuda_attention_shares(a) : 0;
    int64_t tabled = hopper && g->drel.data ? fv_cuda_table_numbers(s, a) : 0,
            numbers = parts * a->H * a->rel_len;
    int64_t of_rel = ceil_div(numbers > tabled ? numbers : tabled, 4), of_rows = ceil_div(rows, 4);
    int width = tile_width(s, a);
    int4 *scratch = width ? alloc_scratch<int4>(s, 5 * of_rows + of_rel) : NULL;
    if (!scratch) return;
    row_stat *stat = (row_stat *)scratch;
    float2 *folded = (float2 *)(scratch + 3 * of_rows);
    float *part = (float *)(scratch + 5 * of_rows);
    prepare_rows(s, o, (const T *)g->dy, stat, hopper ? folded : NULL);
    switch (width) {
    case 32: start<T, 32>(s, o, g, stat); break;
    case 64: start<T, 64>(s, o, g, stat); break;
    case 128: start<T, 128>(s, o, g, stat); break;
    case 256: start<T, 256>(s, o, g, stat); break;
    }
    fv_attn_grads rest = *g;
    if (hopper && o.vector_y && g->dbias.data && fv_cuda_bias_hopper<T>(s, o, g, folded))
        rest.dbias = fv_sink{};
    if (tabled && o.vector_y && fv_cuda_table_hopper<T>(s, o, g, folded, part))
        rest.drel = fv_sink{};
    if (rest.dbias.data || rest.drel.data)
        fv_cuda_attention_added<T>(s, o, &rest, stat, part, parts, width);
}

template void fv_cuda_attention_tiled_bwd<float>(fv_stream *, const fv_attn_args *,
                                                 const fv_attn_grads *, bool);
template void fv_cuda_attention_tiled_bwd<bf16>(fv_stream *, const fv_attn_args *,
                                                const fv_attn_grads *, bool);
template void fv_cuda_attention_tiled_bwd<f16>(fv_stream *, const fv_attn_args *,
                                               const fv_attn_grads *, bool);
