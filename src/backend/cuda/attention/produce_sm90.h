/* produce_sm90.h - bwd_sm90.cu: work items, shared memory, and the producer warps.
 *
 * Of the producer warpgroup, warp 0 loads k, v, q and dy by TMA, warp 1 fills in row statistics
 * and a description of each tile, and one thread of warps 2 and 3 each adds dq parts to global
 * memory, one for each consumer warpgroup.  (One warp for all was busy all of the time, and a
 * third of the tiles came late.) */
#ifndef FV_CUDA_ATTENTION_PRODUCE_SM90_H
#define FV_CUDA_ATTENTION_PRODUCE_SM90_H

#include "bias_sm90.h"
#include "dq_sm90.h"

/* A work item: a key block, and the query tiles that see any of its keys. */
struct bwd_item {
    int b, g, from, to; /* sequence, KV head, its query heads [from, to); b < 0: no more work */
    int tile;           /* first key */
    int first, count;   /* first query, number of query tiles */
    int start; /* the tile to start with: blocks of a head start at different ones, so that they do
                * not all add to the same dq */
    int len;   /* keys of the sequence */
    float max_abs;       /* dq_sm90.h: |dq_i| <= max_abs |dy_i| */
    bool needs_residual; /* of dq of this head */
    bool dq_pending;     /* of the item before: dq of its last tile is yet to be computed */
    bool previous_needs_residual;
    __device__ int first_query(int t, int queries) const
    {
        int i = t + start;
        return first + (i < count ? i : i - count) * queries;
    }
};

/* The query tiles that see any of the keys of a block: the first query of the first, the end of the
 * last. */
template <class P>
__device__ inline int2 queries_of_block(const head_view<typename P::T> &head, int first_key)
{
    return make_int2(head.first_row(first_key) / P::QUERIES * P::QUERIES,
                     head.last_row(first_key, P::KEYS));
}

/* A query tile: head, first query, the first part of its dq, and flags: dq needs residuals; last
 * tile of the item; FULL_TILE << group: all pairs with the warpgroup's keys are visible. */
enum { NEEDS_RESIDUAL = 1, LAST_TILE = 2, FULL_TILE = 4 };
struct bwd_tile {
    int h, first_query, part, flags;
};

template <class T_, int W_, int KIND_> struct bwd_config {
    typedef T_ T;
    static constexpr int W = W_, GROUPS = 2, KEYS = 64 * GROUPS, QUERIES = GROUPS * PART / W,
                         STAGES = 2, INFO_STAGES = 4;
    static constexpr int KIND = KIND_;
    static constexpr bool BIAS = KIND == WITH_BIAS;
    /* Row statistics are one more k-step of the products s and d instead of loads and additions: a
     * thread's loads from shared memory wait behind those of wgmma.  Slower for heads 64 wide,
     * where a k-step is a larger share of the products; f16 could not hold a large lse. */
    static constexpr bool STATS_BY_WGMMA = KIND == PLAIN && W == 128 && kind<T>::dtype == FV_BF16;
    /* of d: k-steps whose fragments of v stay in registers; with one more, ptxas serialises
     * wgmmas */
    static constexpr int V_STEPS = STATS_BY_WGMMA ? 3 : 0;
    typedef uint32_t v_fragments[V_STEPS ? V_STEPS : 1][4];
    /* iterations that dq lags behind; none with a bias, whose tile is loaded to where ds would be
     * kept */
    static constexpr int DQ_DELAY = BIAS ? 0 : 1;
    static_assert(STAGES == 2, "a bias tile shares the stage of ds");
    static constexpr int BLOCK_THREADS = 128 * (GROUPS + 1), CONSUMER_REGISTERS = 240,
                         PRODUCER_REGISTERS = 24;
    static constexpr int TILE = QUERIES * W, DS_TILE = QUERIES * KEYS;
    static_assert(128 * (GROUPS * CONSUMER_REGISTERS + PRODUCER_REGISTERS) <=
                      65536 / BLOCK_THREADS / 8 * 8 * BLOCK_THREADS,
                  "registers of a block");
};

/* Tensor maps are kernel parameters (__grid_constant__): TMA reads them from there, and a
 * captured graph keeps a copy. */
struct bwd_maps {
    qkv_tensor_maps in;
    CUtensorMap dy, bias;
};

/* Who waits for whom, for tiles of queries:
 *
 *    TMA (warp 0) + stats (warp 1) --full-->  consumers: s, dp, ds  --empty-->  warps 0 and 1
 *    consumers --part_full-->  warps 2, 3: bulk add of dq to global  --part_empty-->  consumers */
template <class P> struct bwd_layout {
    typedef typename P::T T;
    T *k, *v, *q, *dy; /* k of two items */
    T *ds_tile;        /* of two tiles: dq's wgmma reads one while the other is written */
    int4 *part;        /* dq on its way out, one part for each consumer warpgroup */
    float *lse, *dy_y; /* unless STATS_BY_WGMMA */
    uint4 *stats;      /* if so: for each query bf16_parts of -lse / scale and -dy.y, two zeros */
    float *qscale;
    stage_ring<2> k_ring;       /* work items */
    uint64_t *v_full, *v_empty; /* of each consumer warpgroup */
    stage_ring<2> ds_ring;
    stage_ring<P::STAGES> ring; /* tiles: q, dy, row statistics, bias */
    uint64_t *part_full, *part_empty;
    bwd_item *queue; /* of k_ring's stages */
    /* more stages than the ring has: dq of a tile is sent one or two iterations later */
    bwd_tile *tile_infos;
    volatile int *finished; /* of each consumer warpgroup: no more dq follows */

    template <class CARVER> __host__ __device__ constexpr void carve(CARVER &c)
    {
        c.take(k, 2 * P::KEYS * P::W);
        c.take(v, P::KEYS * P::W);
        c.take(q, P::STAGES * P::TILE);
        c.take(dy, P::STAGES * P::TILE);
        c.take(ds_tile, 2 * P::DS_TILE);
        c.take(part, P::GROUPS * PART / 4);
        c.take(stats, P::STATS_BY_WGMMA ? P::STAGES * P::QUERIES : 0);
        c.take(lse, P::STATS_BY_WGMMA ? 0 : P::STAGES * P::QUERIES);
        c.take(dy_y, P::STATS_BY_WGMMA ? 0 : P::STAGES * P::QUERIES);
        c.take(qscale, P::STAGES * P::QUERIES);
        k_ring.carve(c);
        c.take(v_full, 2);
        c.take(v_empty, 2);
        ds_ring.carve(c);
        ring.carve(c);
        c.take(part_full, 2);
        c.take(part_empty, 2);
        c.take(queue, 2);
        c.take(tile_infos, P::INFO_STAGES);
        c.take(finished, P::GROUPS);
    }
    __device__ void init() const
    {
        k_ring.init(1, 128 * P::GROUPS + 32);
        ds_ring.init(4 * P::GROUPS, 4 * P::GROUPS);
        ring.init(33, 4 * P::GROUPS); /* TMA, and each lane of warp 1 */
        for (int i = 0; i < 2; i++) {
            mbarrier_init(v_full + i, 1);
            mbarrier_init(v_empty + i, 4);
            mbarrier_init(part_full + i, 4);
            mbarrier_init(part_empty + i, 1);
            finished[i] = 0;
        }
        mbarrier_init_fence();
    }
};

/* Sequence and head of KV head n of all.  Sequences that share a bias follow one another, so
 * that it is read from L2. */
template <class P>
__device__ inline void locate_head(const attn_params<typename P::T> &attn, int n, int *b, int *g)
{
    int heads = (int)attn.a.G, sequences = (int)attn.a.B;
    *b = P::BIAS ? n % sequences : n / heads;
    *g = P::BIAS ? n / sequences : n % heads;
}

/* Work item i.  Head by head, so that operands and dq stay in L2, and when causal the longest of
 * a head first.  Items of the last heads are interleaved, the longest of all of them first, so
 * that all SMs finish at about the same time. */
template <class P>
__device__ inline bwd_item bwd_item_of(const attn_params<typename P::T> &attn,
                                       const dq_workspace &ws, int i)
{
    int tiles = (int)ceil_div(attn.a.Tk, P::KEYS), heads = (int)attn.a.G,
        q_per_kv = (int)attn.a.H / heads;
    int apart = (int)attn.a.B * heads - ws.interleaved, late = i - apart * tiles;
    int n = late < 0 ? i / tiles : apart + late % ws.interleaved,
        tile = late < 0 ? i % tiles : late / ws.interleaved;
    bwd_item c;
    locate_head<P>(attn, n, &c.b, &c.g);
    c.from = c.g * q_per_kv;
    c.to = c.from + q_per_kv;
    c.tile = tile * P::KEYS;
    head_view<typename P::T> head(attn, c.b, c.from);
    int2 range = queries_of_block<P>(head, c.tile);
    c.len = head.len;
    c.first = range.x;
    c.count = range.y > range.x ? (range.y - range.x + P::QUERIES - 1) / P::QUERIES : 0;
    c.start = c.count ? c.tile / P::QUERIES % c.count : 0;
    return c;
}

/* k or v of one consumer warpgroup: 64 rows. */
template <class P>
__device__ inline void load_keys(typename P::T *to, const CUtensorMap *map, uint64_t *full,
                                 const bwd_item &c, int group)
{
    tma_load_tile<P::KEYS, P::W>(to + group * 64 * PANEL, map, full, c.g, c.tile + group * 64, c.b);
}

/* A bias tile to where its ds will be written, each warpgroup's 64 keys apart. */
template <class P>
__device__ inline void load_bias_tile(const bwd_layout<P> &m,
                                      const attn_params<typename P::T> &attn, const bwd_maps *maps,
                                      int stage, int h, int first_query, const bwd_item &c)
{
    for (int i = 0; i < P::QUERIES; i += 64)
        for (int j = 0; j < P::KEYS; j += 64)
            tma_load_4d(m.ds_tile + stage * P::DS_TILE + i * P::KEYS + j * PANEL, &maps->bias,
                        m.ring.full + stage, c.tile + j, attn.a.bias_s[1] ? h : 0, first_query + i,
                        attn.a.bias_s[0] ? c.b : 0);
}

template <class P>
__device__ inline bwd_tile bwd_tile_of(const attn_params<typename P::T> &attn,
                                       const dq_workspace &ws, const bwd_item &c, int h, int t)
{
    head_view<typename P::T> head(attn, c.b, h, c.len);
    int first_query = c.first_query(t, P::QUERIES),
        part = (c.b * (int)attn.a.H + h) * ws.parts + first_query / P::QUERIES * P::GROUPS;
    bool last = h == c.to - 1 && t == c.count - 1;
    int flags = (c.needs_residual ? NEEDS_RESIDUAL : 0) | (last ? LAST_TILE : 0);
    for (int i = 0; i < P::GROUPS; i++)
        if (head.all_visible(first_query, P::QUERIES, c.tile + i * 64, 64)) flags |= FULL_TILE << i;
    return {h, first_query, part, flags};
}

/* Work item n of this block, item `taken` of all: its description and k, and a prefetch of v into
 * L2. */
template <class P>
__device__ inline void begin_item(const bwd_layout<P> &m, const attn_params<typename P::T> &attn,
                                  const bwd_maps *maps, const dq_workspace &ws, int items,
                                  unsigned n, int taken)
{
    int item = __shfl_sync(~0u, taken, 0), lane = threadIdx.x;
    const bwd_item &before = m.queue[(n + 1) % 2];
    bwd_item c = {};
    if (n > 0)
        c.dq_pending = P::DQ_DELAY && before.count > 0,
        c.previous_needs_residual = before.needs_residual;
    c.b = -1;
    if (item < items) {
        bool dq_pending = c.dq_pending, previous_needs_residual = c.previous_needs_residual;
        c = bwd_item_of<P>(attn, ws, item);
        dq_bound limit = dq_bound_of(ws, c.b * (int)attn.a.G + c.g, attn.dropout_scale);
        c.needs_residual = limit.needs_residual, c.max_abs = limit.max_abs,
        c.dq_pending = dq_pending, c.previous_needs_residual = previous_needs_residual;
    }
    m.k_ring.wait_empty(n);
    if (lane == 0) {
        m.queue[n % 2] = c;
        if (c.b < 0)
            mbarrier_arrive(m.k_ring.full + n % 2);
        else {
            mbarrier_arrive_expect_tx(m.k_ring.full + n % 2,
                                      P::KEYS * P::W * sizeof(typename P::T));
            for (int i = 0; i < P::GROUPS; i++)
                load_keys<P>(m.k + n % 2 * P::W * P::KEYS, &maps->in.k, m.k_ring.full + n % 2, c,
                             i);
            for (int i = 0; i < P::GROUPS && c.count; i++)
                for (int w = 0; w < P::W; w += PANEL)
                    tma_prefetch_4d(&maps->in.v, w, c.g, c.tile + i * 64, c.b);
            if (!c.count) atomicAdd(ws.done + c.b * (int)attn.a.G + c.g, P::GROUPS);
        }
    }
    __syncwarp();
}

/* Warp 0: k, v and tiles of q and dy, whichever stage is free next.  The next item is taken with
 * the first tile of this one, so that the atomic's latency is hidden, and begins with the third:
 * then k of the item before is not needed any more.  Taken any earlier, the last items are dealt
 * out so unevenly that SMs idle for 3 to 4 % of a causal pass. */
template <class P>
__device__ inline void produce_tiles(const bwd_layout<P> &m, const attn_params<typename P::T> &attn,
                                     const bwd_maps *maps, const dq_workspace &ws, int items)
{
    typedef typename P::T T;
    int lane = threadIdx.x, taken = blockIdx.x, tiles = 0;
    unsigned iter = 0, values = 0;
    for (unsigned n = ~0u;;) {
        const bwd_item &c = m.queue[n % 2];
        int h = tiles ? c.from : 0, t = 0;
        for (int i = 0;; i++, iter++) {
            if (i == 0 && n != ~0u && lane == 0) taken = (int)gridDim.x + atomicAdd(ws.next, 1);
            if (i == min(2, tiles)) begin_item(m, attn, maps, ws, items, n + 1, taken);
            if (i == tiles) break;
            unsigned stage = iter % P::STAGES;
            int first_query = c.first_query(t, P::QUERIES);
            m.ring.wait_empty(iter);
            if (lane == 0) {
                mbarrier_arrive_expect_tx(m.ring.full + stage,
                                          (2 * P::TILE + (P::BIAS ? P::DS_TILE : 0)) * sizeof(T));
                tma_load_tile<P::QUERIES, P::W>(m.q + stage * P::TILE, &maps->in.q,
                                                m.ring.full + stage, h, first_query, c.b);
                tma_load_tile<P::QUERIES, P::W>(m.dy + stage * P::TILE, &maps->dy,
                                                m.ring.full + stage, h, first_query, c.b);
            }
            if (P::BIAS) m.ds_ring.wait_empty(iter);
            if (P::BIAS && lane == 0) load_bias_tile(m, attn, maps, (int)stage, h, first_query, c);
            if (++t == c.count) t = 0, h++;
            for (int g = 0; g < P::GROUPS && i == 0; g++) {
                if (values > 0) mbarrier_wait(m.v_empty + g, (values - 1) & 1);
                if (lane == 0) mbarrier_arrive_expect_tx(m.v_full + g, 64 * P::W * sizeof(T));
                if (lane == 0) load_keys<P>(m.v, &maps->in.v, m.v_full + g, c, g);
            }
            values += i == 0;
        }
        n++;
        if (m.queue[n % 2].b < 0) return;
        tiles = m.queue[n % 2].count * (m.queue[n % 2].to - m.queue[n % 2].from);
    }
}

/* x as the sum of three bf16, 24 bits; their bits. */
struct bf16_parts {
    unsigned part[3];

    __device__ explicit bf16_parts(float x)
    {
#pragma unroll
        for (int i = 0; i < 3; i++) {
            bf16 rounded = __float2bfloat16(x);
            part[i] = __bfloat16_as_ushort(rounded);
            x -= __bfloat162float(rounded);
        }
    }
};

/* Row statistics as the consumers read them: row `row` of all stages.  As a k-step they are added
 * to s, in units of the product, and to d.  Rows out of bounds and those without keys have an
 * infinite lse; there everything else is 0 or masked, so any finite one will do. */
template <class P>
__device__ inline void store_row_stat(const bwd_layout<P> &m, int row, const float4 &row_stat,
                                      float scale)
{
    if constexpr (P::STATS_BY_WGMMA) {
        bf16_parts lse(row_stat.x == INFINITY ? 0 : -row_stat.x / scale), dy_y(-row_stat.y);
        m.stats[row] = make_uint4(lse.part[0] | lse.part[1] << 16, lse.part[2] | dy_y.part[0] << 16,
                                  dy_y.part[1] | dy_y.part[2] << 16, 0);
    } else {
        m.lse[row] = row_stat.x;
        m.dy_y[row] = row_stat.y;
    }
}

/* Warp 1: row statistics, loaded while the stage is not free yet, and the tile's description. */
template <class P>
__device__ inline void produce_row_stats(const bwd_layout<P> &m,
                                         const attn_params<typename P::T> &attn,
                                         const dq_workspace &ws)
{
    constexpr int ROWS_EACH = P::QUERIES / 32;
    int lane = threadIdx.x % 32, iter = 0;
    for (unsigned n = 0;; n++) {
        m.k_ring.wait_full(n);
        bwd_item c = m.queue[n % 2];
        if (c.b < 0) return;
        for (int h = c.from; h < c.to; h++)
            for (int t = 0; t < c.count; t++, iter++) {
                int stage = iter % P::STAGES, first_query = c.first_query(t, P::QUERIES);
                float4 row_stat[ROWS_EACH];
#pragma unroll
                for (int i = 0; i < ROWS_EACH; i++) {
                    int row = first_query + i * 32 + lane;
                    row_stat[i] = row < attn.a.Tq ? ws.stat[attn.row_index(c.b, h, row)]
                                                  : make_float4(INFINITY, 0, 0, 0);
                }
                bwd_tile tile = bwd_tile_of<P>(attn, ws, c, h, t);
                m.ring.wait_empty((unsigned)iter);
#pragma unroll
                for (int i = 0; i < ROWS_EACH; i++) {
                    int row = stage * P::QUERIES + i * 32 + lane;
                    store_row_stat(m, row, row_stat[i], attn.scale);
                    m.qscale[row] = quant_scale(row_stat[i].z * c.max_abs);
                }
                if (lane == 0) m.tile_infos[iter % P::INFO_STAGES] = tile;
                if (P::STATS_BY_WGMMA) fence_async_proxy();
                mbarrier_arrive(m.ring.full + stage);
            }
        mbarrier_arrive(m.k_ring.empty + n % 2);
    }
}

/* One thread for each consumer warpgroup: adds its dq parts to global memory, and counts
 * finished items. */
template <class P>
__device__ inline void reduce_dq(const bwd_layout<P> &m, const attn_params<typename P::T> &attn,
                                 const dq_workspace &ws, int group)
{
    unsigned sent = 0;
    for (unsigned iter = 0;; iter++) {
        mbarrier_wait(m.part_full + group, sent & 1);
        if (m.finished[group]) return;
        bwd_tile to = m.tile_infos[iter % P::INFO_STAGES];
        for (bool residual = false;; residual = true) {
            int4 *all = (residual ? ws.residual : ws.sum) + (int64_t)(to.part + group) * (PART / 4);
            if (ws.sum) bulk_reduce_add_s32(all, m.part + group * (PART / 4), PART * sizeof(int));
            bulk_wait_read();
            mbarrier_arrive(m.part_empty + group);
            sent++;
            if (residual || !(to.flags & NEEDS_RESIDUAL)) break;
            mbarrier_wait(m.part_full + group, sent & 1);
        }
        if (!(to.flags & LAST_TILE)) continue;
        bulk_wait();
        int q_head = to.part / ws.parts;
        increment_release_gpu(ws.done + q_head / (int)(attn.a.H / attn.a.G));
    }
}

#endif
