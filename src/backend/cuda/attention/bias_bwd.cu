/* bias_bwd.cu - the portable gradients of what is added to scores: of a dense bias, and of a
 * table by relative position.
 *
 *     dbias_ij = sum of ds_ij,   drel_d = sum of ds_ij with j - i = d,   ds = w (keep dy.v - dy.y)
 *
 * Both sum over everything that read the same number.  For the bias a block owns a tile and goes
 * through the sequences, heads and rows that it is broadcast to, in order.  For the table a
 * block goes through several tiles and keeps a sum for each distance; the sums of all blocks are
 * then added in order. */
#include "attention.h"

#define MAX_SUMS ((int64_t)16 << 20) /* floats of partial table gradients, all blocks together */

namespace
{

template <class T, int W> constexpr int keys_of = W <= 64 ? 64 : 32;

/* Shared memory of these kernels, and ds of one tile in registers.
 *    [ q: 64 rows ][ dy: 64 rows ][ k: K rows ][ v: K rows ][ 64 x (K + 1) floats ]
 *
 * K + 1: a column of the scratch then falls on 32 different banks. */
template <class T, int W> struct ds_tile {
    static constexpr int K = keys_of<T, W>, S = stride_of<T, W>;
    T *q, *d, *k, *v;
    float *scratch; /* TILE_ROWS * (K + 1) */

    static size_t bytes()
    {
        return (size_t)(2 * TILE_ROWS + 2 * K) * S * sizeof(T) +
               TILE_ROWS * (K + 1) * sizeof(float);
    }
    __device__ ds_tile(unsigned char *memory)
    {
        q = (T *)memory;
        d = q + TILE_ROWS * S;
        k = d + TILE_ROWS * S;
        v = k + K * S;
        scratch = (float *)(v + K * S);
    }
    __device__ void compute(float (&ds)[K / 8][4], const head_view<T> &head, const T *dy,
                            const row_stat *stat, int tile, int j0)
    {
        const attn_params<T> &attn = head.attn;
        int g = attn.kv_head(head.h), warp = threadIdx.x / 32, row0 = tile + warp * 16;
        float s[K / 8][4];
        clear(s);
        clear(ds);
        __syncthreads();
        load_tile_async<TILE_ROWS, W>(q, attn.q(head.b, head.h, tile), attn.a.q_row,
                                      head.rows - tile, (int)attn.a.Wk, attn.vector_q);
        load_tile_async<TILE_ROWS, W>(d, dy + attn.y_offset(head.b, head.h, tile),
                                      attn.a.H * attn.a.Wv, head.rows - tile, (int)attn.a.Wv,
                                      attn.vector_y);
        load_tile_async<K, W>(k, attn.k(head.b, g, j0), attn.a.k_row, attn.a.Tk - j0,
                              (int)attn.a.Wk, attn.vector_k);
        load_tile_async<K, W>(v, attn.v(head.b, g, j0), attn.a.v_row, attn.a.Tk - j0,
                              (int)attn.a.Wv, attn.vector_v);
        cp_async_wait<0>();
        __syncthreads();
        mul_nt<K / 8, W, S, S>(s, q + warp * 16 * S, k);
        mul_nt<K / 8, W, S, S>(ds, d + warp * 16 * S, v);
        row_stat row[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int i = tile_row(row0, r * 2);
            row[r] = i < head.rows ? stat[attn.row_index(head.b, head.h, i)]
                                   : row_stat{INFINITY, 0, 0};
        }
        exp_scores_and_dscores<false, ANY>(s, ds, head, row0, j0, false,
                                           [&](int e, int) { return row[e / 2]; });
    }
};

/* ---- bias ---- */

/* Blocks (key tile, row tile unless rows are broadcast, sequence and head unless they are). */
template <class T, int W>
__global__ void __launch_bounds__(32 * WARPS)
    grad_bias(const __grid_constant__ attn_params<T> attn, const T *dy, sink<T> dbias,
              const row_stat *stat)
{
    typedef ds_tile<T, W> tile_smem;
    constexpr int K = tile_smem::K;
    extern __shared__ __align__(16) unsigned char memory[];
    tile_smem t(memory);
    const fv_attn_args &a = attn.a;
    bool own_b = a.bias_s[0], own_h = a.bias_s[1], own_i = a.bias_s[2];
    int heads = own_h ? (int)a.H : 1, b0 = own_b ? blockIdx.z / heads : 0,
        h0 = own_h ? blockIdx.z % heads : 0;
    int j0 = blockIdx.x * K, i0 = own_i ? blockIdx.y * TILE_ROWS : 0,
        i_end = own_i ? i0 + TILE_ROWS : (int)a.Tq, strip = threadIdx.x / 32 * 16;
    float sum[K / 8][4];
    clear(sum);
    for (int b = b0; b < (own_b ? b0 + 1 : a.B); b++)
        for (int h = h0; h < (own_h ? h0 + 1 : a.H); h++) {
            head_view<T> head(attn, b, h);
            for (int i = i0; i < i_end; i += TILE_ROWS) {
                float ds[K / 8][4];
                t.compute(ds, head, dy, stat, i, j0);
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
            t.scratch[tile_row(strip, e) * (K + 1) + tile_col(0, n, e)] = sum[n][e];
    __syncthreads();
    int64_t j = j0 + threadIdx.x;
    if (threadIdx.x >= K || j >= a.Tk) return;
    float all = 0;
    for (int r = 0; r < TILE_ROWS; r++) all += t.scratch[r * (K + 1) + threadIdx.x];
    sink_put(dbias, base + j, all);
}

/* ---- table by relative position ---- */

/* Blocks (share of the row tiles, head): part[share][head] is what this block has summed. */
template <class T, int W>
__global__ void __launch_bounds__(32 * WARPS)
    grad_rel(const __grid_constant__ attn_params<T> attn, const T *dy, float *part,
             const row_stat *stat)
{
    typedef ds_tile<T, W> tile_smem;
    constexpr int K = tile_smem::K, DIAGONALS = TILE_ROWS + K - 1;
    static_assert(DIAGONALS <= 32 * WARPS, "a thread for each diagonal");
    extern __shared__ __align__(16) unsigned char memory[];
    __shared__ float line[DIAGONALS];
    tile_smem t(memory);
    int h = blockIdx.y, tiles = (int)ceil_div(attn.a.Tq, TILE_ROWS), strip = threadIdx.x / 32 * 16;
    int64_t len = attn.a.rel_len;
    float *mine = part + (blockIdx.x * attn.a.H + h) * len;
    for (int64_t l = threadIdx.x; l < len; l += blockDim.x) mine[l] = 0;
    for (int64_t work = blockIdx.x; work < tiles * attn.a.B; work += gridDim.x) {
        head_view<T> head(attn, (int)(work / tiles), h);
        int row0 = (int)(work % tiles) * TILE_ROWS;
        for (int j0 = head.first_key(row0) / K * K; j0 < head.last_key(row0, TILE_ROWS); j0 += K) {
            float ds[K / 8][4];
            t.compute(ds, head, dy, stat, row0, j0);
#pragma unroll
            for (int n = 0; n < K / 8; n++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    t.scratch[tile_row(strip, e) * (K + 1) + tile_col(0, n, e)] = ds[n][e];
            __syncthreads();
            /* Diagonal x holds the pairs with column - row = x - (TILE_ROWS - 1), all at one
             * distance. */
            int x = threadIdx.x;
            int64_t distance = attn.a.rel_zero + (j0 - row0 - head.shift) + x - (TILE_ROWS - 1);
            if (x < DIAGONALS) {
                float sum = 0;
                for (int r = 0; r < TILE_ROWS; r++) {
                    int c = r + x - (TILE_ROWS - 1);
                    if (c >= 0 && c < K) sum += t.scratch[r * (K + 1) + c];
                }
                line[x] = sum;
                if (distance > 0 && distance < len - 1) mine[distance] += sum;
            }
            __syncthreads();
            if (x < 2) { /* the table's ends stand for all distances beyond */
                float sum = 0;
                for (int y = 0; y < DIAGONALS; y++) {
                    int64_t in_bounds = distance - x + y;
                    bool low = in_bounds <= 0 || len == 1;
                    if (x == 0 ? low : !low && in_bounds >= len - 1) sum += line[y];
                }
                if (x == 0 || len > 1) mine[x ? len - 1 : 0] += sum;
            }
        }
    }
}

template <class T> struct add_parts {
    sink<T> drel;
    const float *part;
    int64_t n, parts;
    __device__ void operator()(int64_t i) const
    {
        float sum = 0;
        for (int64_t p = 0; p < parts; p++) sum += part[p * n + i];
        sink_put(drel, i, sum);
    }
};

template <class T, int W>
void start(fv_stream *s, const attn_params<T> &attn, const fv_attn_grads *g, const row_stat *stat,
           float *part, int64_t parts)
{
    const fv_attn_args &a = attn.a;
    typedef ds_tile<T, W> tile_smem;
    size_t bytes = tile_smem::bytes();
    const T *dy = (const T *)g->dy;
    if (g->dbias.data) {
        dim3 grid((unsigned)ceil_div(a.Tk, tile_smem::K),
                  (unsigned)(a.bias_s[2] ? ceil_div(a.Tq, TILE_ROWS) : 1),
                  (unsigned)((a.bias_s[0] ? a.B : 1) * (a.bias_s[1] ? a.H : 1)));
        launch(s, "attention_bwd", grad_bias<T, W>, grid, 32 * WARPS, bytes, attn, dy,
               to<T>(g->dbias), stat);
    }
    if (!g->drel.data) return;
    launch(s, "attention_bwd", grad_rel<T, W>, dim3((unsigned)parts, (unsigned)a.H), 32 * WARPS,
           bytes, attn, dy, part, stat);
    each(s, "attention_bwd", a.H * a.rel_len,
         add_parts<T>{to<T>(g->drel), part, a.H * a.rel_len, parts});
}

} // namespace

/* stat and part lie in one allocation of scratch: a second one may move it. */
template <class T>
void fv_cuda_attention_added(fv_stream *s, const attn_params<T> &attn, const fv_attn_grads *g,
                             const row_stat *stat, float *part, int64_t parts, int width)
{
    switch (width) {
    case 32: start<T, 32>(s, attn, g, stat, part, parts); break;
    case 64: start<T, 64>(s, attn, g, stat, part, parts); break;
    case 128: start<T, 128>(s, attn, g, stat, part, parts); break;
    case 256: start<T, 256>(s, attn, g, stat, part, parts); break;
    }
}

/* Blocks that share the table's gradient: as many as there are row tiles, within MAX_SUMS. */
int64_t fv_cuda_attention_shares(const fv_attn_args *a)
{
    int64_t tiles = ceil_div(a->Tq, TILE_ROWS) * a->B, most = MAX_SUMS / (a->H * a->rel_len);
    if (most > 256) most = 256;
    return tiles < most ? tiles : most > 0 ? most : 1;
}

#define INSTANTIATE(T)                                                                             \
    template void fv_cuda_attention_added<T>(fv_stream *, const attn_params<T> &,                  \
                                             const fv_attn_grads *, const row_stat *, float *,     \
                                             int64_t, int);
INSTANTIATE(float)
INSTANTIATE(bf16)
INSTANTIATE(f16)
