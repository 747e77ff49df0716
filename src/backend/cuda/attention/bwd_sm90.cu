/* bwd_sm90.cu - the backward pass of attention on Hopper: dq, dk and dv in one pass.
 *
 *     forward: s = scale q k' (+ bias, masked),  w = exp(s - lse),  y = dropout(w) v
 *     d = v dy',  ds = w (keep d - dy.y);   dv += keep w dy,  dk += ds q,  dq += ds' k
 *
 * Persistent kernel, one block per SM; work items, key blocks of 128, come from an atomic
 * counter. Per block:
 *
 *   producers   four warps with roles of their own: produce_sm90.h
 *   consumers   two warpgroups of 64 keys each go through tiles of queries.  s' = k q' and
 *               d' = v dy' have both operands in shared memory; w and ds go into dv and dk as A
 *               fragments from registers.  For dq both warpgroups write ds to shared memory, and
 *               each computes 64 x 64 of the tile's dq
 *   dq          fixed point, added to global memory by bulk reductions (dq_sm90.h).  It is computed
 *               one iteration late, with the products of the next tile, so that no warpgroup waits
 *               for the other's ds: while one computes exponentials, products of the other are in
 *               flight
 *   epilogue    dk and dv by way of shared memory.  A kernel of its own (write_dq) converts dq,
 *               head by head as they are done
 *
 * s, d and dq use all of shared memory's bandwidth, so a warp's own loads return when they are
 * done.  Hence row statistics are loaded while s is computed or are a part of the products
 * (STATS_BY_WGMMA), mbarriers are tested before they are needed, and fences stand behind the
 * issue of products.
 *
 * Registers: 240 per consumer thread, 24 per producer thread.  Shared memory leaves no L1, so a
 * spill goes to L2, and ptxas serialises wgmmas where accumulators do not fit: no more products
 * are in flight than these, and what follows from a thread's or a tile's index is recomputed
 * (`opaque`) instead of kept.
 *
 * Tried and slower (docs/benchmarks.md): dq by `red` straight from registers (a tenth), dk
 * before dq, which frees stages earlier (5 %). */
#include "bwd_dq_sm90.h"
#include "dispatch.h"
#include "grads.h"

namespace
{
/* 16 rows of dk or dv, coalesced by way of the warp's scratch; straight from registers where the
 * gradient is wider, added to or not aligned. */
template <int W, class T>
__device__ inline void write_grad_rows(sink<T> to, T *scratch, int64_t base, int64_t step,
                                       const float (&x)[W / 8][4], int row0, int rows, int width,
                                       float scale)
{
    if (!to.p) return;
    if (to.wide || to.add || ((uintptr_t)to.p & 15))
        write_rows(to, base, step, x, row0, rows, width, scale);
    else
        write_rows_coalesced<16, W>((T *)to.p + base, step, scratch, 0, x, row0, rows, width,
                                    scale);
}

/* -inf for pairs out of the range that lengths, causality and window leave a key: all that a
 * PLAIN tile can have. */
template <int N, class T>
__device__ inline void mask_causal_window(float (&s)[N][4], const head_view<T> &head, int row0,
                                          int col0, unsigned thread)
{
    /* the thread's first column relative to the visible range of its rows' keys, and the length
     * of that */
    unsigned col[2], many[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int key = row0 + (int)(thread % 32 / 4) + r * 8, from = head.first_row(key);
        col[r] = (unsigned)(col0 + (int)(thread % 4 * 2) - from);
        many[r] = (unsigned)max(head.last_row(key, 1) - from, 0);
    }
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (col[e / 2] + (unsigned)(n * 8 + e % 2) >= many[e / 2]) s[n][e] = -INFINITY;
}

/* Pairs of row statistics for this thread's columns of block n. */
__device__ __forceinline__ float2 row_pair(const float *x, const consumer_state &a, int n)
{
    return *(const float2 *)(x + n * 8 + opaque(a.thread) % 4 * 2);
}

/* Those of the first column blocks, ahead of their use; the others arrive while these are used. */
template <int AHEAD, int N>
__device__ __forceinline__ void preload_rows(float2 (&x)[N], const float *from,
                                             const consumer_state &a)
{
#pragma unroll
    for (int n = 0; n < AHEAD; n++) x[n] = row_pair(from, a, n);
}

/* The A fragment whose product with a stage of m.stats is the sum of a query's three parts from
 * `first` on, for all keys. */
struct sum_of_parts {
    uint32_t fragment[4];

    __device__ sum_of_parts(const consumer_state &a, unsigned first)
    {
        const uint32_t one = 0x3f80; /* a bf16 */
        unsigned k = opaque(a.thread) % 4 * 2;
        uint32_t ones = (k - first < 3u ? one : 0) | (k + 1 - first < 3u ? one << 16 : 0);
        fragment[0] = fragment[1] = ones;
        fragment[2] = fragment[3] = 0;
    }
};

/* Issues s' = k q' of a tile; with STATS_BY_WGMMA less lse / scale of its queries. */
template <class P, int N>
__device__ __forceinline__ void issue_s(float (&s)[N][4], const bwd_layout<P> &m,
                                        const consumer_state &a)
{
    typedef typename P::T T;
    unsigned stage = a.iter % P::STAGES;
    const T *k = m.k + a.item * P::KEYS * P::W + a.group * 64 * PANEL, *q = m.q + stage * P::TILE;
    sum_of_parts lse(a, 0);
    wgmma_fence();
    if constexpr (P::STATS_BY_WGMMA)
        wgmma<false>(s, lse.fragment, smem_desc_unswizzled(m.stats + stage * P::QUERIES), false,
                     T());
    gemm_nt<P::W, P::KEYS, P::QUERIES, P::STATS_BY_WGMMA>(s, k, q);
    wgmma_commit();
}

/* Issues d' = v dy'; with STATS_BY_WGMMA less dy.y. */
template <class P, int N>
__device__ __forceinline__ void issue_d(float (&d)[N][4], const bwd_layout<P> &m,
                                        const consumer_state &a,
                                        const typename P::v_fragments &v_begin)
{
    typedef typename P::T T;
    unsigned stage = a.iter % P::STAGES;
    const T *v = m.v + a.group * 64 * PANEL, *dy = m.dy + stage * P::TILE;
    sum_of_parts dy_y(a, 3);
    wgmma_fence();
    if constexpr (P::STATS_BY_WGMMA)
        wgmma<false>(d, dy_y.fragment, smem_desc_unswizzled(m.stats + stage * P::QUERIES), false,
                     T());
    gemm_nt_rs<P::QUERIES, P::V_STEPS>(d, v_begin, dy);
    gemm_nt<P::W, P::KEYS, P::QUERIES, P::STATS_BY_WGMMA, P::V_STEPS * 16>(d, v, dy);
    wgmma_commit();
}

/* Fragments of the first k-steps of v, for a whole work item. */
template <class P>
__device__ __forceinline__ void load_v_fragments(typename P::v_fragments &v, const bwd_layout<P> &m,
                                                 const consumer_state &a)
{
    unsigned lane = opaque(a.thread) % 32, row = opaque(a.thread) / 32 % 4 * 16 + lane % 16;
    const typename P::T *from = m.v + (a.group * 64 + row) * PANEL;
    static_assert(P::V_STEPS * 16 <= PANEL, "one panel");
#pragma unroll
    for (int k = 0; k < P::V_STEPS; k++) ldmatrix(v[k], from + ((2 * k + lane / 16) ^ row % 8) * 8);
}

/* Products s' of a tile become weights, negative where dropped; dy_y is preloaded on the way.  lse
 * and rows_*: preloaded, and in shared memory; unused with STATS_BY_WGMMA, where s has them. */
template <class P, int AHEAD, int N>
__device__ __forceinline__ void
exp_tile(float (&s)[N][4], float2 (&dy_y)[N], const float2 (&lse)[N], const bwd_layout<P> &m,
         const attn_params<typename P::T> &attn, const consumer_state &a, const bwd_item &c,
         const bwd_tile &tile, const float *rows_lse, const float *rows_dy_y)
{
    typedef typename P::T T;
    unsigned strip = opaque(a.thread) / 32 % 4 * 16;
    auto lse_of = [&](int e, int n) {
        if (P::STATS_BY_WGMMA) return 0.f;
        float2 x = n < AHEAD ? lse[n] : row_pair(rows_lse, a, n);
        return e % 2 ? x.y : x.x;
    };
    if constexpr (P::BIAS)
        for (int i = 0; i < P::QUERIES; i += 64)
            add_bias<true, 8>(s + i / 8,
                              m.ds_tile + a.iter % 2 * P::DS_TILE + i * P::KEYS +
                                  a.group * 64 * PANEL,
                              (int)strip / 8, attn.bias_scale);
    bool full_tile = tile.flags & FULL_TILE << a.group;
    if (P::KIND == PLAIN && !attn.a.key_mask) {
        if (!full_tile)
            mask_causal_window(s, head_view<T>(attn, c.b, tile.h, c.len),
                               c.tile + (int)(a.group * 64 + strip), tile.first_query, a.thread);
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) s[n][e] = fmaf(s[n][e], attn.scale, -lse_of(e, n));
        preload_rows<AHEAD>(dy_y, rows_dy_y, a);
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) s[n][e] = exp2_fast(s[n][e]);
    } else {
        head_view<T> head(attn, c.b, tile.h, c.len);
        exp_scores<true, P::KIND>(s, head, c.tile + (int)(a.group * 64 + strip), tile.first_query,
                                  full_tile, lse_of);
        preload_rows<AHEAD>(dy_y, rows_dy_y, a);
    }
}

/* Weights and ds as A fragments. */
template <class P, int AHEAD, int N>
__device__ __forceinline__ void pack_p_ds(uint32_t (&p)[N / 2][4], uint32_t (&ds)[N / 2][4],
                                          const float (&s)[N][4], const float (&d)[N][4],
                                          const float2 (&dy_y)[N], const float *rows_dy_y,
                                          const consumer_state &a)
{
    typedef typename P::T T;
#pragma unroll
    for (int k = 0; k < N / 2; k++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int i = 2 * k + e / 2, j = e % 2 * 2;
            p[k][e] = P::KIND == PLAIN ? pack2(s[i][j], s[i][j + 1], T())
                                       : pack2_relu(s[i][j], s[i][j + 1], T());
            if constexpr (P::STATS_BY_WGMMA) {
                ds[k][e] = pack2(s[i][j] * d[i][j], s[i][j + 1] * d[i][j + 1], T());
            } else {
                float2 x = i < AHEAD ? dy_y[i] : row_pair(rows_dy_y, a, i);
                ds[k][e] = pack2(dscore<P::KIND>(s[i][j], d[i][j], x.x),
                                 dscore<P::KIND>(s[i][j + 1], d[i][j + 1], x.y), T());
            }
        }
}

/* Epilogue of an item: dk and dv. */
template <class P>
__device__ __forceinline__ void
write_dk_dv(const bwd_layout<P> &m, const attn_params<typename P::T> &attn, consumer_state &a,
            const bwd_item &c, const float (&dk)[P::W / 8][4], const float (&dv)[P::W / 8][4],
            sink<typename P::T> to_k, sink<typename P::T> to_v)
{
    typedef typename P::T T;
    constexpr int W = P::W;
    unsigned warp = a.thread / 32 % 4;
    int row0 = c.tile + (int)(a.group * 64 + warp * 16);
    T *scratch = (T *)(m.part + warp * (STRIP / 4) + a.group * (PART / 4)),
      *second = scratch + (W == 64 ? 16 * 64 : 0);
    int64_t at_k = attn.k(c.b, c.g, 0) - (const T *)attn.a.k,
            at_v = attn.v(c.b, c.g, 0) - (const T *)attn.a.v;
    wait_part_empty(m, a);
    write_grad_rows<W>(to_k, scratch, at_k, attn.a.k_row, dk, row0, (int)attn.a.Tk, (int)attn.a.Wk,
                       attn.scale * LN2);
    write_grad_rows<W>(to_v, second, at_v, attn.a.v_row, dv, row0, (int)attn.a.Tk, (int)attn.a.Wv,
                       1);
}

/* One consumer warpgroup at one work item of so many tiles. */
template <class P>
__device__ inline void consume_item(const bwd_layout<P> &m, const attn_params<typename P::T> &attn,
                                    consumer_state &a, int tiles, sink<typename P::T> to_k,
                                    sink<typename P::T> to_v)
{
    constexpr int W = P::W, N = P::QUERIES / 8;
    constexpr int AHEAD = P::STATS_BY_WGMMA ? 0 : W == 64 ? 4 : N; /* row statistics preloaded */
    float s[N][4], d[N][4], dk[W / 8][4], dv[W / 8][4], dq[8][4];
    uint32_t p[N / 2][4], ds[N / 2][4];
    typename P::v_fragments v;
    float2 lse[N], dy_y[N];
    const bwd_item &c = m.queue[a.item];
    bool dq_pending = warp_uniform(!P::DQ_DELAY || c.dq_pending),
         needs_residual = warp_uniform(P::DQ_DELAY ? c.previous_needs_residual : c.needs_residual);
    bool tile_ready = false;
    load_v_fragments(v, m, a);
    clear(dk);
    clear(dv);
    for (int left = tiles; left > 0; left--, a.iter++) {
        unsigned stage = a.iter % P::STAGES, dq_iter = a.iter - P::DQ_DELAY;
        const float *rows_lse = m.lse + stage * P::QUERIES,
                    *rows_dy_y = m.dy_y + stage * P::QUERIES;
        if (!tile_ready) m.ring.wait_full(a.iter);
        bwd_tile tile = m.tile_infos[a.iter % P::INFO_STAGES];
        if (!P::DQ_DELAY) a.qscale = qscales_of(m, a, a.iter);
        issue_s(s, m, a);
        preload_rows<AHEAD>(lse, rows_lse, a);
        issue_d(d, m, a, v);
        wgmma_wait<1>();

        exp_tile<P, AHEAD>(s, dy_y, lse, m, attn, a, c, tile, rows_lse, rows_dy_y);
        bool ds_is_empty = P::BIAS || m.ds_ring.test_empty(a.iter);
        bool ds_is_full = P::DQ_DELAY && m.ds_ring.test_full(dq_iter);
        if (P::KIND == PLAIN) pin_before_wait(or_bits(s));
        wgmma_wait<0>();
        if (left == 1) warp_arrive(m.v_empty + a.group, a);
        pack_p_ds<P, AHEAD>(p, ds, s, d, dy_y, rows_dy_y, a);
        if (P::BIAS)
            warpgroup_sync(2 + (int)a.group); /* all warps have read the bias tile there */
        else if (!ds_is_empty)
            m.ds_ring.wait_empty(a.iter);
        store_swizzled_opaque<P::KEYS>(m.ds_tile + a.iter % 2 * P::DS_TILE, ds,
                                       a.group * 64 + opaque(a.thread) / 32 % 4 * 16,
                                       opaque(a.thread));
        auto publish_ds = [&] {
            fence_async_proxy();
            warp_arrive(m.ds_ring.full + a.iter % 2, a);
        };
        if (!P::DQ_DELAY) publish_ds();
        wgmma_fence();
        gemm_rs(dv, p, m.dy + stage * P::TILE);
        if (dq_pending && !ds_is_full) m.ds_ring.wait_full(dq_iter);
        /* the first dq of an item is that of the item before, with its k; if none, for nothing */
        bool dq_of_previous = P::DQ_DELAY && left == tiles;
        gemm_dq(dq, m, dq_iter, m.k + (a.item ^ dq_of_previous) * P::KEYS * W, a.group);
        gemm_rs(dk, ds, m.q + stage * P::TILE);
        wgmma_commit();
        if (P::DQ_DELAY) publish_ds(); /* by now the stores are done: the fence does not stall */
        bool part_is_empty = mbarrier_test(m.part_empty + a.group, (a.sent + 1) & 1);
        tile_ready = left > 1 && m.ring.test_full(a.iter + 1);
        wgmma_wait<1>();
        if (dq_pending) {
            warp_arrive(m.ds_ring.empty + dq_iter % 2, a);
            if (dq_of_previous) mbarrier_arrive(m.k_ring.empty + (a.item ^ 1));
            if (!part_is_empty) wait_part_empty(m, a);
            quantise_dq(m, a, dq, a.qscale, needs_residual);
        }
        if (P::DQ_DELAY) a.qscale = qscales_of(m, a, a.iter);
        wgmma_wait<0>();
        warp_arrive(m.ring.empty + stage, a);
        if (dq_pending) publish_part(m, a);
        dq_pending = true;
        needs_residual = warp_uniform(c.needs_residual);
    }
    write_dk_dv(m, attn, a, c, dk, dv, to_k, to_v);
}

/* One consumer warpgroup: work item after work item. */
template <class P>
__device__ inline void consume_items(const bwd_layout<P> &m, const attn_params<typename P::T> &attn,
                                     int group, sink<typename P::T> to_k, sink<typename P::T> to_v)
{
    consumer_state a = {
        0, 0, 0, (unsigned)group, __shfl_sync(~0u, threadIdx.x, (int)threadIdx.x % 32), {}};
    for (unsigned n = 0, values = 0;; n++) {
        a.item = n % 2;
        m.k_ring.wait_full(n);
        const bwd_item &c = m.queue[a.item];
        int b = warp_uniform(c.b), tiles = b < 0 ? 0 : warp_uniform(c.count * (c.to - c.from));
        if (!tiles && warp_uniform(c.dq_pending))
            flush_dq(m, a, a.iter - 1, a.item ^ 1, warp_uniform(c.previous_needs_residual));
        if (b < 0) break;
        if (tiles) mbarrier_wait(m.v_full + group, values++ & 1);
        consume_item(m, attn, a, tiles, to_k, to_v);
        if (!tiles || !P::DQ_DELAY) mbarrier_arrive(m.k_ring.empty + a.item);
    }
    wait_part_empty(m, a); /* so that `finished` is not taken for another part */
    if (a.thread % 128 == 0) m.finished[group] = 1;
    warp_arrive(m.part_full + group, a);
}

template <class P>
__global__ void __launch_bounds__(P::BLOCK_THREADS, 1)
    grad_wgmma(const __grid_constant__ attn_params<typename P::T> attn,
               const __grid_constant__ bwd_maps maps, const __grid_constant__ dq_workspace ws,
               sink<typename P::T> to_k, sink<typename P::T> to_v, int items)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    bwd_layout<P> m = open_layout<bwd_layout<P>>(memory);
    pdl_wait();
    pdl_launch_dependents(); /* not before: write_dq polls counters that are cleared by then */
    int group = warpgroup_index() - 1, warp = (int)threadIdx.x / 32;
    if (group < 0) {
        setmaxnreg_dec<P::PRODUCER_REGISTERS>();
        if (warp == 0)
            produce_tiles(m, attn, &maps, ws, items);
        else if (warp == 1)
            produce_row_stats(m, attn, ws);
        else if (threadIdx.x % 32 == 0)
            reduce_dq(m, attn, ws, warp - 2);
    } else {
        setmaxnreg_inc<P::CONSUMER_REGISTERS>();
        consume_items(m, attn, group, to_k, to_v);
    }
}

/* How many key blocks have added to dq of the tile of this query.  By all threads of the block,
 * behind a barrier. */
template <class P>
__device__ inline unsigned key_blocks_of(const head_view<typename P::T> &head, int first_query)
{
    unsigned blocks = 0;
    for (int at = 0; at < (int)head.attn.a.Tk; at += THREADS * P::KEYS) {
        int first_key = at + (int)threadIdx.x * P::KEYS;
        int2 range = queries_of_block<P>(head, first_key);
        bool in_range = first_query >= range.x && first_query < range.y;
        blocks += (unsigned)__syncthreads_count(first_key < head.attn.a.Tk && in_range);
    }
    return blocks;
}

/* dq from fixed point to its dtype: a warp has half a strip.  Blocks poll for their head, in the
 * order in which heads finish, and begin on SMs that have run out of work items.  The last block
 * ends behind all others of the main kernel. */
template <class P>
__global__ void __launch_bounds__(THREADS)
    write_dq(const __grid_constant__ attn_params<typename P::T> attn,
             const __grid_constant__ dq_workspace ws, sink<typename P::T> to, bool vectorised)
{
    int part = blockIdx.x, h = blockIdx.y, b = blockIdx.z, half = part % 2 * 64;
    int row = part / 2 * P::QUERIES + (P::W == 64 ? half : 0), column = P::W == 64 ? 0 : half;
    if (threadIdx.x == 0)
        wait_count(ws.done + b * (int)attn.a.G + attn.kv_head(h),
                   P::GROUPS * (unsigned)ceil_div(attn.a.Tk, P::KEYS));
    unsigned offset = PART_OFFSET *
                      key_blocks_of<P>(head_view<typename P::T>(attn, b, h), part / 2 * P::QUERIES);
    int64_t head = ((int64_t)(b * (int)attn.a.H + h) * ws.parts + part) * (PART / 4);
    write_dq_half(attn, ws, to, vectorised, b, h, head, offset, (int)threadIdx.x / 32, row, column);
    if (part == gridDim.x - 1 && h == gridDim.y - 1 && b == gridDim.z - 1) pdl_wait();
}

template <class P> bool start(fv_stream *s, attn_params<typename P::T> attn, const fv_attn_grads *g)
{
    typedef typename P::T T;
    const fv_attn_args &a = attn.a;
    fv_dtype t = kind<T>::dtype;
    bwd_maps maps;
    if (!fv_cuda_tensor_map_qkv(&maps.in, &a, t, P::QUERIES, 64) ||
        !fv_cuda_tensor_map(&maps.dy, g->dy, t, a.B, a.Tq, a.H, a.Wv, a.H * a.Wv, a.Tq * a.H * a.Wv,
                            P::QUERIES))
        return false;
    if (P::BIAS && !tensor_map_bias(&maps.bias, attn, 64)) return false;
    int sm_count = device_of(s)->sm_count;
    int64_t tiles = ceil_div(a.Tk, P::KEYS), heads = a.B * a.G, items = tiles * heads,
            rows = a.B * a.H * a.Tq;
    dq_workspace ws = {};
    ws.spans = (int)ceil_div(a.Tk, SPAN);
    ws.parts = (int)(ceil_div(a.Tq, P::QUERIES) * P::GROUPS);
    int64_t interleaved = a.causal ? ceil_div(4 * sm_count, tiles) : 0;
    ws.interleaved = (int)(interleaved < heads ? interleaved : heads);

    /* scratch, in int4s; first what is not cleared */
    int64_t of_top = ceil_div(heads * ws.spans, 2),
            of_sums = g->dq.data ? a.B * a.H * ws.parts * (PART / 4) : 0;
    int64_t of_bits = ceil_div(fv_cuda_mask_words(&a, true), 4), counts = 1 + ceil_div(heads, 4);
    int4 *scratch = alloc_scratch<int4>(s, rows + of_top + counts + 2 * of_sums + of_bits);
    if (!scratch) return true;
    attn.bits = fv_cuda_mask_bits(s, &a, true, scratch + rows + of_top + counts + 2 * of_sums);
    prepass_plan plan = {};
    plan.clear = scratch + rows + of_top;
    plan.clear_count = counts + of_sums;
    plan.clear_blocks = (int)(ceil_div(plan.clear_count, 16 * THREADS) < sm_count
                                  ? ceil_div(plan.clear_count, 16 * THREADS)
                                  : sm_count);
    plan.row_blocks = (int)ceil_div(a.Tq, 8);
    ws.stat = (float4 *)scratch;
    ws.kv_max = (float2 *)(scratch + rows);
    ws.next = (int *)plan.clear;
    ws.done = (unsigned *)ws.next + 4;
    ws.sum = of_sums ? plan.clear + counts : NULL;
    ws.residual = ws.sum + of_sums;

    dim3 before((unsigned)(plan.clear_blocks + a.B * (ws.spans + plan.row_blocks))),
        grid((unsigned)(items < sm_count ? items : sm_count));
    launch(s, "attention_bwd", bwd_prepass<P::W / 8, T>, before, THREADS, 0, attn, (const T *)g->dy,
           ws, plan);
    int64_t shares = ceil_div(of_sums / heads, 64 * THREADS);
    if (ws.sum)
        launch_pdl(s, "attention_bwd", true, clear_residuals<T>,
                   dim3((unsigned)heads, (unsigned)shares), THREADS, 0, attn, ws);
    launch_pdl(s, "attention_bwd", true, grad_wgmma<P>, grid, P::BLOCK_THREADS,
               smem_bytes<bwd_layout<P>>(), attn, maps, ws, to<T>(g->dk), to<T>(g->dv), (int)items);
    dim3 dq_grid((unsigned)ws.parts, (unsigned)a.H, (unsigned)a.B);
    if (ws.sum)
        launch_pdl(s, "attention_bwd", true, write_dq<P>, dq_grid, 32 * HALVES, 0, attn, ws,
                   to<T>(g->dq), aligned(g->dq.data));
    return true;
}

} // namespace

template <class T>
bool fv_cuda_attention_hopper_bwd(fv_stream *s, const fv_attn_args *a, const fv_attn_grads *g)
{
    attn_params<T> attn = make_params<T>(s, a);
    if (!attn.vector_y || !aligned(g->dy) || a->Tk > MAX_KEYS) return false;
    bool narrow_heads = a->Wk <= 64 && a->Wv <= 64;
    /* STATS_BY_WGMMA has lse / scale, which must be finite */
    bool plain = attn.plain && attn.scale >= 1e-20f;
    auto run = [&](auto slim, auto wide) {
        return narrow_heads ? start<decltype(slim)>(s, attn, g) : start<decltype(wide)>(s, attn, g);
    };
    if (has_tma_bias(attn))
        return run(bwd_config<T, 64, WITH_BIAS>(), bwd_config<T, 128, WITH_BIAS>());
    if (!plain) return run(bwd_config<T, 64, ANY>(), bwd_config<T, 128, ANY>());
    if (a->dropout > 0)
        return run(bwd_config<T, 64, WITH_DROPOUT>(), bwd_config<T, 128, WITH_DROPOUT>());
    return run(bwd_config<T, 64, PLAIN>(), bwd_config<T, 128, PLAIN>());
}

template bool fv_cuda_attention_hopper_bwd<bf16>(fv_stream *, const fv_attn_args *,
                                                 const fv_attn_grads *);
template bool fv_cuda_attention_hopper_bwd<f16>(fv_stream *, const fv_attn_args *,
                                                const fv_attn_grads *);
