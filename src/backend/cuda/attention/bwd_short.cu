/* bwd_short.cu - the backward pass of attention over up to 128 queries and keys: one block is one
 * head, and every pair is computed once.
 *
 *     forward: s = scale q k' (masked),  w = 2^(s - lse),  y = dropout(w) v
 *     dw = keep dy_i.v_j,  ds = w (dw - dy_i.y_i);
 *     dv_j = sum_i keep w dy_i,   dk_j = sum_i ds q_i,   dq_i = sum_j ds k_j
 *
 * Five products where the portable kernel, whose blocks own rows or columns, takes seven, and no
 * pass of its own for dy.y.  A warp owns 16 keys and goes through all queries, 16 at a time, with
 * its keys and values as A fragments in registers; ds is left in shared memory, key by key.  When
 * all warps are done each owns 16 queries and sums ds k.  Every sum has one owner and one order.
 *
 * Rows are filled up to a multiple of 16, not of 64 as tiles of wgmma are: the 65 tokens of an
 * image of 8 x 8 patches take 80 x 80 pairs instead of 128 x 128, which is why this kernel is not
 * one for Hopper.
 *
 * Shared memory: q, k, v and dy of the head, ds, row statistics.  Gradients leave through the rows
 * of v (dv, dk) and q (dq) that nobody reads any more, so that stores are whole lines. */
#include "dispatch.h"
#include "grads.h"

namespace
{

/* ROWS: queries and keys, filled up; ds has rows of keys. */
template <class T, int W, int ROWS> struct short_smem {
    static constexpr int S = stride_of<T, W>, DS = stride_of<T, ROWS>;
    T q[ROWS * S], k[ROWS * S], v[ROWS * S], dy[ROWS * S], ds[ROWS * DS];
    row_stat stat[ROWS];
};

/* Statistics of the 16 queries from row0 on, two lanes a row. */
template <class T, int W>
__device__ inline void stat_rows(row_stat *stat, const head_view<T> &head, const T *dy, int row0)
{
    const attn_params<T> &attn = head.attn;
    constexpr int V = 16 / sizeof(T);
    int lane = threadIdx.x % 32, i = row0 + lane / 2, from = lane % 2 * (W / 2);
    float sum = 0;
    if (i < head.rows)
        for (int c = from; c < from + W / 2 && c < attn.a.Wv; c += V) {
            float x[V], y[V];
            load(x, dy, attn.y_offset(head.b, head.h, i) + c);
            load(y, (const T *)attn.a.y, attn.y_offset(head.b, head.h, i) + c);
#pragma unroll
            for (int e = 0; e < V; e++) sum += x[e] * y[e];
        }
    sum += __shfl_xor_sync(~0u, sum, 1);
    if (lane % 2) return;
    stat[i] = i < head.rows ? attn.exact_stat(attn.lse(head.b, head.h, i), sum)
                            : row_stat{INFINITY, 0, 0};
}

/* 16 rows of accumulators, times scale, to a gradient by way of the warp's own rows of shared
 * memory. */
template <int W, class T>
__device__ inline void write_strip(T *to, int64_t step, T *strip, const float (&c)[W / 8][4],
                                   int row0, int rows, int width, float scale)
{
    constexpr int S = stride_of<T, W>, V = 16 / sizeof(T);
    int lane = threadIdx.x % 32;
    __syncwarp();
#pragma unroll
    for (int n = 0; n < W / 8; n++)
#pragma unroll
        for (int i = 0; i < 2; i++)
            *(uint32_t *)(strip + tile_row(0, 2 * i) * S + tile_col(0, n, 0)) =
                pack2(c[n][2 * i] * scale, c[n][2 * i + 1] * scale, T());
    __syncwarp();
#pragma unroll
    for (int e = lane; e < 16 * (W / V); e += 32) {
        int r = e / (W / V), column = e % (W / V) * V;
        if (row0 + r < rows && column < width)
            *(uint4 *)(to + (row0 + r) * step + column) = *(const uint4 *)(strip + r * S + column);
    }
}

/* dq (16 queries, W) = sum over keys of ds' k: ds lies key by key, so its fragments are loaded
 * transposed. */
template <int W, int ROWS, class T>
__device__ inline void sum_queries(float (&dq)[W / 8][4], const short_smem<T, W, ROWS> *m, int row0)
{
    constexpr int S = stride_of<T, W>, DS = stride_of<T, ROWS>;
    int lane = threadIdx.x % 32, which = lane / 8;
    const T *rd = m->ds + (which / 2 * 8 + lane % 8) * DS + row0 + which % 2 * 8,
            *rk = m->k + (which % 2 * 8 + lane % 8) * S + which / 2 * 8;
#pragma unroll
    for (int j = 0; j < ROWS; j += 16) {
        uint32_t fa[4], fb[4];
        ldmatrix_trans(fa, rd + j * DS);
#pragma unroll
        for (int n = 0; n < W / 8; n += 2) {
            ldmatrix_trans(fb, rk + j * S + n * 8);
            mma(dq[n], fa, fb[0], fb[1], T());
            mma(dq[n + 1], fa, fb[2], fb[3], T());
        }
    }
}

template <class T> struct short_grads {
    T *q, *k, *v; /* NULL: not wanted */
};

template <class T, int W, int ROWS, int KIND>
__global__ void __launch_bounds__(2 * ROWS, ROWS <= 80 ? 3 : 1)
    grad_short(const __grid_constant__ attn_params<T> attn, const T *dy, short_grads<T> to)
{
    constexpr int S = stride_of<T, W>, DS = stride_of<T, ROWS>;
    extern __shared__ __align__(16) unsigned char memory[];
    short_smem<T, W, ROWS> *m = (short_smem<T, W, ROWS> *)memory;
    int heads = (int)attn.a.H, keys = (int)attn.a.Tk, warp = threadIdx.x / 32, row0 = warp * 16;
    head_view<T> head(attn, (int)blockIdx.x / heads, (int)blockIdx.x % heads);
    int b = head.b, h = head.h;
    load_tile_async<ROWS, W>(m->q, attn.q(b, h, 0), attn.a.q_row, head.rows, (int)attn.a.Wk, true);
    load_tile_async<ROWS, W>(m->k, attn.k(b, h, 0), attn.a.k_row, keys, (int)attn.a.Wk, true);
    load_tile_async<ROWS, W>(m->v, attn.v(b, h, 0), attn.a.v_row, keys, (int)attn.a.Wv, true);
    load_tile_async<ROWS, W>(m->dy, dy + attn.y_offset(b, h, 0), attn.a.H * attn.a.Wv, head.rows,
                             (int)attn.a.Wv, true);
    stat_rows<T, W>(m->stat, head, dy, row0);
    cp_async_wait<0>();
    __syncthreads();

    float dk[W / 8][4], dv[W / 8][4];
    a_fragments<T, 1, W, S> of_k, of_v;
    clear(dk);
    clear(dv);
    of_k.load(m->k + row0 * S);
    of_v.load(m->v + row0 * S);
#pragma unroll 1
    for (int i = 0; i < ROWS; i += 16) {
        float s[1][2][4], dp[1][2][4];
        clear(s[0]);
        clear(dp[0]);
        mul_nt(s, of_k, (const T *)m->q + i * S);
        mul_nt(dp, of_v, (const T *)m->dy + i * S);
        exp_scores_and_dscores<true, KIND>(s[0], dp[0], head, row0, i,
                                           head.all_visible(i, 16, row0, 16), [&](int e, int n) {
                                               return m->stat[i + tile_col(0, n, e)];
                                           });
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int e = 0; e < 4; e += 2)
                *(uint32_t *)(m->ds + tile_row(row0, e) * DS +
                              tile_col(i, n, 0)) = pack2(dp[0][n][e], dp[0][n][e + 1], T());
        mul_nn<W / 8, 2, S>(dk, dp[0], (const T *)m->q + i * S, NULL);
        mul_nn<W / 8, 2, S>(dv, s[0], (const T *)m->dy + i * S, NULL);
    }
    T *strip = m->v + row0 * S; /* read by this warp alone, above */
    if (to.v)
        write_strip<W>(to.v + (attn.v(b, h, 0) - (const T *)attn.a.v), attn.a.v_row, strip, dv,
                       row0, keys, (int)attn.a.Wv, 1);
    if (to.k)
        write_strip<W>(to.k + (attn.k(b, h, 0) - (const T *)attn.a.k), attn.a.k_row, strip, dk,
                       row0, keys, (int)attn.a.Wk, attn.scale * LN2);
    __syncthreads();
    if (!to.q) return;
    clear(dk); /* from here on dq */
    sum_queries(dk, m, row0);
    write_strip<W>(to.q + (attn.q(b, h, 0) - (const T *)attn.a.q), attn.a.q_row, m->q + row0 * S,
                   dk, row0, head.rows, (int)attn.a.Wk, attn.scale * LN2);
}

template <class T, int W, int ROWS>
void start(fv_stream *s, const attn_params<T> &attn, const fv_attn_grads *g)
{
    short_grads<T> to = {(T *)g->dq.data, (T *)g->dk.data, (T *)g->dv.data};
    dim3 grid((unsigned)(attn.a.B * attn.a.H));
    auto kernel = attn.a.dropout > 0 ? grad_short<T, W, ROWS, WITH_DROPOUT>
                                     : grad_short<T, W, ROWS, PLAIN>;
    launch(s, "attention_bwd", kernel, grid, 2 * ROWS, sizeof(short_smem<T, W, ROWS>), attn,
           (const T *)g->dy, to);
}

template <class T, int W>
void start_rows(fv_stream *s, const attn_params<T> &attn, const fv_attn_grads *g)
{
    int64_t rows = attn.a.Tq > attn.a.Tk ? attn.a.Tq : attn.a.Tk;
    if (rows <= 64)
        start<T, W, 64>(s, attn, g);
    else if (rows <= 80)
        start<T, W, 80>(s, attn, g);
    else
        start<T, W, 128>(s, attn, g);
}

} // namespace

template <class T>
bool fv_cuda_attention_short_bwd(fv_stream *s, const fv_attn_args *a, const fv_attn_grads *g)
{
    attn_params<T> attn = make_params<T>(s, a);
    for (const fv_sink &to : {g->dq, g->dk, g->dv})
        if (to.data && (to.add || to.dtype != kind<T>::dtype || !aligned(to.data))) return false;
    if (!attn.plain || !attn.vector_q || !attn.vector_k || !attn.vector_v || !attn.vector_y ||
        !aligned(g->dy) || a->B * a->H > INT32_MAX)
        return false;
    if (a->Wk <= 32 && a->Wv <= 32)
        start_rows<T, 32>(s, attn, g);
    else
        start_rows<T, 64>(s, attn, g);
    return true;
}

template bool fv_cuda_attention_short_bwd<bf16>(fv_stream *, const fv_attn_args *,
                                                const fv_attn_grads *);