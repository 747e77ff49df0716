/* bias_bwd.cu - the gradients of what is added to scores: of a bias by pairs, and of a table by
 * distance.
 *
 * Both are sums of ds = w (dw - dy.y) over everything that read the same number.  A block owns a
 * tile of the bias and goes through the sequences, heads and rows it was repeated for, in order.
 * For the table a block goes through several tiles and keeps sums of its own by distance; the sums
 * of all blocks are then added in order. */
#include "attention.h"

#define MAX_SUMS ((int64_t)16 << 20) /* floats kept for the table's gradient, all blocks together */

template <class T, int W> constexpr int keys_of = W <= 64 ? 64 : 32;

/* Shared memory of these kernels, and the slopes of one tile in registers. */
template <class T, int W> struct bench_top {
    static constexpr int K = keys_of<T, W>, S = stride_of<T, W>;
    T *q, *d, *k, *v;
    float *spare; /* ROWS * (K + 1) */

    static size_t bytes()
    {
        return (size_t)(2 * ROWS + 2 * K) * S * sizeof(T) + ROWS * (K + 1) * sizeof(float);
    }
    __device__ bench_top(unsigned char *memory)
    {
        q = (T *)memory;
        d = q + ROWS * S;
        k = d + ROWS * S;
        v = k + K * S;
        spare = (float *)(v + K * S);
    }
    __device__ void slopes_of(float (&ds)[K / 8][4], const head<T> &at, const T *dy,
                              const row_stat *stat, int tile, int j0)
    {
        const job<T> &o = at.o;
        int g = o.kv_head(at.h), warp = threadIdx.x / 32, row0 = tile + warp * 16;
        float s[K / 8][4];
        clear(s);
        clear(ds);
        __syncthreads();
        fetch<ROWS, W>(q, o.q(at.b, at.h, tile), o.a.q_row, at.rows - tile, (int)o.a.Wk,
                       o.vector_q);
        fetch<ROWS, W>(d, dy + o.y_offset(at.b, at.h, tile), o.a.H * o.a.Wv, at.rows - tile,
                       (int)o.a.Wv, o.vector_y);
        fetch<K, W>(k, o.k(at.b, g, j0), o.a.k_row, o.a.Tk - j0, (int)o.a.Wk, o.vector_k);
        fetch<K, W>(v, o.v(at.b, g, j0), o.a.v_row, o.a.Tk - j0, (int)o.a.Wv, o.vector_v);
        arrived<0>();
        __syncthreads();
        mul_nt<K / 8, W, S, S>(s, q + warp * 16 * S, k);
        mul_nt<K / 8, W, S, S>(ds, d + warp * 16 * S, v);
        row_stat known[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int i = tile_row(row0, r * 2);
            known[r] = i < at.rows ? stat[o.at_row(at.b, at.h, i)] : row_stat{INFINITY, 0, 0};
        }
        exp_scores_and_dscores<false, ANY>(s, ds, at, row0, j0, false,
                                           [&](int e, int) { return known[e / 2]; });
    }
};

/* ---- bias ---- */

/* Block (tile of keys, tile of rows if they are its own, sequence and head if they are). */
template <class T, int W>
__global__ void __launch_bounds__(32 * WARPS)
    grad_bias(const __grid_constant__ job<T> o, const T *dy, sink<T> dbias, const row_stat *stat)
{
    typedef bench_top<T, W> bench;
    constexpr int K = bench::K;
    extern __shared__ __align__(16) unsigned char memory[];
    bench t(memory);
    const fv_attn_args &a = o.a;
    bool own_b = a.bias_s[0], own_h = a.bias_s[1], own_i = a.bias_s[2];
    int heads = own_h ? (int)a.H : 1, b0 = own_b ? blockIdx.z / heads : 0,
        h0 = own_h ? blockIdx.z % heads : 0;
    int j0 = blockIdx.x * K, i0 = own_i ? blockIdx.y * ROWS : 0,
        i_end = own_i ? i0 + ROWS : (int)a.Tq, strip = threadIdx.x / 32 * 16;
    float sum[K / 8][4];
    clear(sum);
    for (int b = b0; b < (own_b ? b0 + 1 : a.B); b++)
        for (int h = h0; h < (own_h ? h0 + 1 : a.H); h++) {
            head<T> at(o, b, h);
            for (int i = i0; i < i_end; i += ROWS) {
                float ds[K / 8][4];
                t.slopes_of(ds, at, dy, stat, i, j0);
#pragma unroll
                for (int n = 0; n < K / 8; n++)
#pragma unroll
                    for (int e = 0; e < 4; e++) sum[n][e] += ds[n][e];
            }
        }
    int64_t base = b0 * a.bias_s[0] + h0 * a.bias_s[1];
    if (own_i) {
#pragma unroll
        for (int n = 0; n < K / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int64_t i = tile_row(i0 + strip, e), j = tile_col(j0, n, e);
                if (i < a.Tq && j < a.Tk) sink_put(dbias, base + i * a.bias_s[2] + j, sum[n][e]);
            }
        return;
    }
#pragma unroll
    for (int n = 0; n < K / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            t.spare[tile_row(strip, e) * (K + 1) + tile_col(0, n, e)] = sum[n][e];
    __syncthreads();
    int64_t j = j0 + threadIdx.x;
    if (threadIdx.x >= K || j >= a.Tk) return;
    float all = 0;
    for (int r = 0; r < ROWS; r++) all += t.spare[r * (K + 1) + threadIdx.x];
    sink_put(dbias, base + j, all);
}

/* ---- table by distance ---- */

/* Block (share of the tiles of rows, head): part[share][head] collects what this block saw. */
template <class T, int W>
__global__ void __launch_bounds__(32 * WARPS)
    grad_rel(const __grid_constant__ job<T> o, const T *dy, float *part, const row_stat *stat)
{
    typedef bench_top<T, W> bench;
    constexpr int K = bench::K, DIAGONALS = ROWS + K - 1;
    static_assert(DIAGONALS <= 32 * WARPS, "a thread for each diagonal");
    extern __shared__ __align__(16) unsigned char memory[];
    __shared__ float line[DIAGONALS];
    bench t(memory);
    int h = blockIdx.y, tiles = (int)ceil_div(o.a.Tq, ROWS), strip = threadIdx.x / 32 * 16;
    int64_t len = o.a.rel_len;
    float *mine = part + (blockIdx.x * o.a.H + h) * len;
    for (int64_t l = threadIdx.x; l < len; l += blockDim.x) mine[l] = 0;
    for (int64_t work = blockIdx.x; work < tiles * o.a.B; work += gridDim.x) {
        head<T> at(o, (int)(work / tiles), h);
        int row0 = (int)(work % tiles) * ROWS;
        for (int j0 = at.first(row0) / K * K; j0 < at.last_key(row0, ROWS); j0 += K) {
            float ds[K / 8][4];
            t.slopes_of(ds, at, dy, stat, row0, j0);
#pragma unroll
            for (int n = 0; n < K / 8; n++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    t.spare[tile_row(strip, e) * (K + 1) + tile_col(0, n, e)] = ds[n][e];
            __syncthreads();
            /* Diagonal x holds the pairs with column - row = x - (ROWS - 1), all at one
             * distance. */
            int x = threadIdx.x;
            int64_t distance = o.a.rel_zero + (j0 - row0 - at.shift) + x - (ROWS - 1);
            if (x < DIAGONALS) {
                float sum = 0;
                for (int r = 0; r < ROWS; r++) {
                    int c = r + x - (ROWS - 1);
                    if (c >= 0 && c < K) sum += t.spare[r * (K + 1) + c];
                }
                line[x] = sum;
                if (distance > 0 && distance < len - 1) mine[distance] += sum;
            }
            __syncthreads();
            if (x < 2) { /* the table's ends stand for everything beyond */
                float sum = 0;
                for (int y = 0; y < DIAGONALS; y++) {
                    int64_t there = distance - x + y;
                    bool low = there <= 0 || len == 1;
                    if (x == 0 ? low : !low && there >= len - 1) sum += line[y];
                }
                if (x == 0 || len > 1) mine[x ? len - 1 : 0] += sum;
            }
        }
    }
}

template <class T> struct add_parts {
    static constexpr int wide = 1;
    sink<T> drel;
    const float *part;
    int64_t n, parts;
    template <int V> __device__ void at(int64_t i) const
    {
        float sum = 0;
        for (int64_t p = 0; p < parts; p++) sum += part[p * n + i];
        sink_put(drel, i, sum);
    }
};

template <class T, int W>
static void start(fv_stream *s, const job<T> &o, const fv_attn_grads *g, const row_stat *stat,
                  float *part, int64_t parts)
{
    const fv_attn_args &a = o.a;
    typedef bench_top<T, W> bench;
    size_t bytes = bench::bytes();
    const T *dy = (const T *)g->dy;
    if (g->dbias.data) {
        dim3 grid((unsigned)ceil_div(a.Tk, bench::K),
                  (unsigned)(a.bias_s[2] ? ceil_div(a.Tq, ROWS) : 1),
                  (unsigned)((a.bias_s[0] ? a.B : 1) * (a.bias_s[1] ? a.H : 1)));
        launch(s, "attention_bwd", grad_bias<T, W>, grid, 32 * WARPS, bytes, o, dy, to<T>(g->dbias),
               stat);
    }
    if (!g->drel.data) return;
    launch(s, "attention_bwd", grad_rel<T, W>, dim3((unsigned)parts, (unsigned)a.H), 32 * WARPS,
           bytes, o, dy, part, stat);
    each(s, "attention_bwd", a.H * a.rel_len, false,
         add_parts<T>{to<T>(g->drel), part, a.H * a.rel_len, parts});
}

/* The work of the stream holds stat already: asking for more may move it, so the table's sums lie
 * behind it. */
template <class T>
void fv_cuda_attention_added(fv_stream *s, const job<T> &o, const fv_attn_grads *g,
                             const row_stat *stat, float *part, int64_t parts, int width)
{
    switch (width) {
    case 32: start<T, 32>(s, o, g, stat, part, parts); break;
    case 64: start<T, 64>(s, o, g, stat, part, parts); break;
    case 128: start<T, 128>(s, o, g, stat, part, parts); break;
    case 256: start<T, 256>(s, o, g, stat, part, parts); break;
    }
}

/* How many blocks share the table's gradient: as many as there are tiles, within memory. */
int64_t fv_cuda_attention_shares(const fv_attn_args *a)
{
    int64_t tiles = ceil_div(a->Tq, ROWS) * a->B, most = MAX_SUMS / (a->H * a->rel_len);
    if (most > 256) most = 256;
    return tiles < most ? tiles : most > 0 ? most : 1;
}

#define FOR(T)                                                                                     \
    template void fv_cuda_attention_added<T>(fv_stream *, const job<T> &, const fv_attn_grads *,   \
                                             const row_stat *, float *, int64_t, int);
FOR(float)
FOR(bf16)
FOR(f16)
