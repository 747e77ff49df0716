/* produce_sm90.h - what the gradients of attention on Hopper go through: items of work, tiles, the
 * memory of a block, and the warps that bring everything into it and send dq on (bwd_sm90.cu). */
#ifndef FV_CUDA_ATTENTION_PRODUCE_SM90_H
#define FV_CUDA_ATTENTION_PRODUCE_SM90_H

#include "bias_sm90.h"
#include "dq_sm90.h"

/* An item of the work: a block of keys, and the tiles of queries that can meet them. */
struct work_item {
    int b, g, from, to; /* sequence, head of keys, heads that it serves; b < 0: there are no more */
    int tile;           /* first key */
    int first, count,
        /* first query, tiles of them, and which comes first, so that not all add to the same at a
         * time */
        start;
    int len;             /* keys of the sequence */
    float most;          /* dq_sm90.h: times |dy_i|, the bound of dq_i */
    bool needs_residual; /* its head is */
    bool dq_pending,
        /* the item before had tiles, so the last of them is kept; the head of that was loose */
        previous_needs_residual;
    __device__ int first_query(int t, int queries) const
    {
        int at = t + start;
        return first + (at < count ? at : at - count) * queries;
    }
};

/* What there is to know of a tile: head, first query, the first of the parts its dq is made of, and
 * which of these hold: the head is loose; it is the last of its item; and for each group, WHOLE <<
 * group: all pairs take part. */
enum { NEEDS_RESIDUAL = 1, LAST = 2, WHOLE = 4 };
struct tile_info {
    int h, first_query, part, flags;
};

template <class T_, int W_, int KIND_> struct traits {
    typedef T_ T;
    static constexpr int W = W_, GROUPS = 2, KEYS = 64 * GROUPS, QUERIES = GROUPS * PART / W,
                         STAGES = 2, INFO_STAGES = 4;
    static constexpr int KIND = KIND_;
    static constexpr bool BIAS = KIND == WITH_BIAS;
    static constexpr int DQ_DELAY =
        BIAS ? 0
             : 1; /* tiles that dq is made later; a bias is brought to where slopes would be kept */
    static_assert(STAGES == 2, "a tile of the bias lies where slopes will");
    static constexpr int BLOCK_THREADS = 128 * (GROUPS + 1), CONSUMER_REGISTERS = 240,
                         PRODUCER_REGISTERS = 24;
    static constexpr int TILE = QUERIES * W, DS_TILE = QUERIES * KEYS;
    static constexpr size_t BYTES = (3 * KEYS * W + 2 * STAGES * TILE + 2 * DS_TILE) * sizeof(T) +
                                    GROUPS * PART * sizeof(int) +
                                    2 * STAGES * QUERIES * sizeof(float) +
                                    INFO_STAGES * (QUERIES * sizeof(float) + sizeof(tile_info)) +
                                    (16 + 2 * STAGES) * sizeof(uint64_t) + 2 * sizeof(work_item) +
                                    GROUPS * sizeof(int);
    static_assert(128 * (GROUPS * CONSUMER_REGISTERS + PRODUCER_REGISTERS) <=
                      65536 / BLOCK_THREADS / 8 * 8 * BLOCK_THREADS,
                  "what a block has");
};

struct tensor_maps {
    qkv_tensor_maps in;
    CUtensorMap dy, bias;
};

template <class P> struct smem_layout {
    typedef typename P::T T;
    T *k, *v, *q, *dy,
        /* keys of two items; slopes of two tiles: those of one are read while the next are laid */
        *ds_tile;
    int4 *part; /* of dq, for each group */
    float *lse, *dy_y,
        /* units and notes are there for longer, as a tile's dq is made with the next, and sent
         * later */
        *unit;
    uint64_t *k_full, *k_free, *v_full, *v_free, *ds_full, *ds_free, *full,
        *free; /* laid, read: slopes */
    uint64_t *part_full, *part_free;
    work_item *queue;
    tile_info *infos;
    volatile int *finished; /* for each group: it has no more parts */

    __device__ smem_layout(unsigned char *memory)
    {
        k = (T *)memory;
        v = k + 2 * P::KEYS * P::W;
        q = v + P::KEYS * P::W;
        dy = q + P::STAGES * P::TILE;
        ds_tile = dy + P::STAGES * P::TILE;
        part = (int4 *)(ds_tile + 2 * P::DS_TILE);
        lse = (float *)(part + P::GROUPS * PART / 4);
        dy_y = lse + P::STAGES * P::QUERIES;
        unit = dy_y + P::STAGES * P::QUERIES;
        k_full = (uint64_t *)(unit + P::INFO_STAGES * P::QUERIES);
        k_free = k_full + 2;
        v_full = k_free + 2;
        v_free = v_full + 2;
        ds_full = v_free + 2;
        ds_free = ds_full + 2;
        full = ds_free + 2;
        free = full + P::STAGES;
        part_full = free + P::STAGES;
        part_free = part_full + 2;
        queue = (work_item *)(part_free + 2);
        infos = (tile_info *)(queue + 2);
        finished = (int *)(infos + P::INFO_STAGES);
    }
    __device__ void init()
    {
        for (int i = 0; i < 2; i++) {
            mbarrier_init(k_full + i, 1);
            mbarrier_init(k_free + i, 128 * P::GROUPS + 32);
            mbarrier_init(v_full + i, 1);
            mbarrier_init(v_free + i, 4);
            mbarrier_init(ds_full + i, 4 * P::GROUPS);
            mbarrier_init(ds_free + i, 4 * P::GROUPS);
            mbarrier_init(part_full + i, 4);
            mbarrier_init(part_free + i, 1);
            finished[i] = 0;
        }
        for (int i = 0; i < P::STAGES; i++) {
            mbarrier_init(full + i, 33);
            mbarrier_init(free + i, 4 * P::GROUPS);
        }
        mbarrier_init_fence();
    }
};

/* The n-th head of keys.  Sequences that share a bias go together, so that memory is read once for
 * all. */
template <class P> __device__ inline void where(const job<typename P::T> &o, int n, int *b, int *g)
{
    int heads = (int)o.a.G, sequences = (int)o.a.B;
    *b = P::BIAS ? n % sequences : n / heads;
    *g = P::BIAS ? n / sequences : n % heads;
}

/* Item i: head by head, so that what is read and added to stays in the cache, the longest of a head
 * first when causal.  The last heads are dealt out together, the longest items of all of them
 * first, so that all multiprocessors end at about one time. */
template <class P>
__device__ inline work_item work_item_of(const job<typename P::T> &o, const int_dq &sums, int i)
{
    int tiles = (int)ceil_div(o.a.Tk, P::KEYS), heads = (int)o.a.G, q_per_kv = (int)o.a.H / heads;
    int apart = (int)o.a.B * heads - sums.interleaved, late = i - apart * tiles;
    int n = late < 0 ? i / tiles : apart + late % sums.interleaved,
        tile = late < 0 ? i % tiles : late / sums.interleaved;
    work_item c;
    where<P>(o, n, &c.b, &c.g);
    c.from = c.g * q_per_kv;
    c.to = c.from + q_per_kv;
    c.tile = tile * P::KEYS;
    head<typename P::T> at(o, c.b, c.from);
    int end = at.last_row(c.tile, P::KEYS);
    c.len = at.len;
    c.first = at.first_row(c.tile) / P::QUERIES * P::QUERIES;
    c.count = end > c.first ? (end - c.first + P::QUERIES - 1) / P::QUERIES : 0;
    c.start = c.count ? c.tile / P::QUERIES % c.count : 0;
    return c;
}

/* Keys or values, a group's 64 at a time. */
template <class P>
__device__ inline void load_keys(typename P::T *to, const CUtensorMap *map, uint64_t *full,
                                 const work_item &c, int group)
{
#pragma unroll
    for (int w = 0; w < P::W; w += PANEL)
        tma_load_4d(to + w * P::KEYS + group * 64 * PANEL, map, full, w, c.g, c.tile + group * 64,
                    c.b);
}

/* A tile of the bias to where its slopes will be laid, each group's to where that group will. */
template <class P>
__device__ inline void load_bias_tile(const smem_layout<P> &m, const job<typename P::T> &o,
                                      const tensor_maps *of, int stage, int h, int first_query,
                                      const work_item &c)
{
    for (int i = 0; i < P::QUERIES; i += 64)
        for (int j = 0; j < P::KEYS; j += 64)
            tma_load_4d(m.ds_tile + stage * P::DS_TILE + i * P::KEYS + j * PANEL, &of->bias,
                        m.full + stage, c.tile + j, o.a.bias_s[1] ? h : 0, first_query + i,
                        o.a.bias_s[0] ? c.b : 0);
}

template <class P>
__device__ inline tile_info tile_info_of(const job<typename P::T> &o, const int_dq &sums,
                                         const work_item &c, int h, int t)
{
    head<typename P::T> at(o, c.b, h, c.len);
    int first_query = c.first_query(t, P::QUERIES),
        part = (c.b * (int)o.a.H + h) * sums.parts + first_query / P::QUERIES * P::GROUPS;
    bool last = h == c.to - 1 && t == c.count - 1;
    int flags = (c.needs_residual ? NEEDS_RESIDUAL : 0) | (last ? LAST : 0);
    for (int i = 0; i < P::GROUPS; i++)
        if (at.all_visible(first_query, P::QUERIES, c.tile + i * 64, 64)) flags |= WHOLE << i;
    return {h, first_query, part, flags};
}

/* Item number n of a block, which is `next` of all: its course and its keys, its values as far as
 * the cache.  The one after it is asked for, so as to be known when it is needed. */
template <class P>
__device__ inline void begin_item(const smem_layout<P> &m, const job<typename P::T> &o,
                                  const tensor_maps *of, const int_dq &sums, int items, unsigned n,
                                  int *next)
{
    int item = __shfl_sync(~0u, *next, 0), lane = threadIdx.x;
    const work_item &before = m.queue[(n + 1) % 2];
    work_item c = {};
    if (n > 0)
        c.dq_pending = P::DQ_DELAY && before.count > 0,
        c.previous_needs_residual = before.needs_residual;
    c.b = -1;
    if (item < items) {
        bool dq_pending = c.dq_pending, previous_needs_residual = c.previous_needs_residual;
        c = work_item_of<P>(o, sums, item);
        bound limit = bound_of(sums, c.b * (int)o.a.G + c.g, o.dropout_scale);
        c.needs_residual = limit.needs_residual, c.most = limit.most, c.dq_pending = dq_pending,
        c.previous_needs_residual = previous_needs_residual;
    }
    if (n >= 2) mbarrier_wait(m.k_free + n % 2, (n / 2 + 1) & 1);
    if (lane == 0) {
        m.queue[n % 2] = c;
        if (c.b < 0)
            mbarrier_arrive(m.k_full + n % 2);
        else {
            mbarrier_arrive_expect_tx(m.k_full + n % 2, P::KEYS * P::W * sizeof(typename P::T));
            for (int i = 0; i < P::GROUPS; i++)
                load_keys<P>(m.k + n % 2 * P::W * P::KEYS, &of->in.k, m.k_full + n % 2, c, i);
            for (int i = 0; i < P::GROUPS && c.count; i++)
                for (int w = 0; w < P::W; w += PANEL)
                    tma_prefetch_4d(&of->in.v, w, c.g, c.tile + i * 64, c.b);
            *next = (int)gridDim.x + atomicAdd(sums.next, 1);
            if (!c.count) atomicAdd(sums.done + c.b * (int)o.a.G + c.g, P::GROUPS);
        }
    }
    __syncwarp();
}

/* One warp brings keys, values and tiles, item by item: whichever is next when there is room for
 * it.  An item is begun with the third tile of the one before it, as then the keys before those are
 * not needed any more. */
template <class P>
__device__ inline void produce_tiles(const smem_layout<P> &m, const job<typename P::T> &o,
                                     const tensor_maps *of, const int_dq &sums, int items)
{
    typedef typename P::T T;
    int lane = threadIdx.x, next = blockIdx.x, tiles = 0;
    unsigned iter = 0, values = 0;
    for (unsigned n = ~0u;;) {
        const work_item &c = m.queue[n % 2];
        int h = tiles ? c.from : 0, t = 0;
        for (int i = 0;; i++, iter++) {
            if (i == min(2, tiles)) begin_item(m, o, of, sums, items, n + 1, &next);
            if (i == tiles) break;
            unsigned stage = iter % P::STAGES;
            int first_query = c.first_query(t, P::QUERIES);
            if (iter >= P::STAGES) mbarrier_wait(m.free + stage, (iter / P::STAGES + 1) & 1);
            if (lane == 0) {
                mbarrier_arrive_expect_tx(m.full + stage,
                                          (2 * P::TILE + (P::BIAS ? P::DS_TILE : 0)) * sizeof(T));
#pragma unroll
                for (int w = 0; w < P::W; w += PANEL) {
                    tma_load_4d(m.q + stage * P::TILE + w * P::QUERIES, &of->in.q, m.full + stage,
                                w, h, first_query, c.b);
                    tma_load_4d(m.dy + stage * P::TILE + w * P::QUERIES, &of->dy, m.full + stage, w,
                                h, first_query, c.b);
                }
            }
            if (P::BIAS && iter >= 2) mbarrier_wait(m.ds_free + iter % 2, (iter / 2 + 1) & 1);
            if (P::BIAS && lane == 0) load_bias_tile(m, o, of, (int)stage, h, first_query, c);
            if (++t == c.count) t = 0, h++;
            for (int g = 0; g < P::GROUPS && i == 0; g++) {
                if (values > 0) mbarrier_wait(m.v_free + g, (values - 1) & 1);
                if (lane == 0) mbarrier_arrive_expect_tx(m.v_full + g, 64 * P::W * sizeof(T));
                if (lane == 0) load_keys<P>(m.v, &of->in.v, m.v_full + g, c, g);
            }
            values += i == 0;
        }
        n++;
        if (m.queue[n % 2].b < 0) return;
        tiles = m.queue[n % 2].count * (m.queue[n % 2].to - m.queue[n % 2].from);
    }
}

/* Another adds what is known of a tile and its rows, which are read while there is no room for them
 * yet. */
template <class P>
__device__ inline void produce_row_stats(const smem_layout<P> &m, const job<typename P::T> &o,
                                         const int_dq &sums)
{
    constexpr int ROWS_EACH = P::QUERIES / 32;
    int lane = threadIdx.x % 32, iter = 0;
    for (unsigned n = 0;; n++) {
        mbarrier_wait(m.k_full + n % 2, n / 2 & 1);
        work_item c = m.queue[n % 2];
        if (c.b < 0) return;
        for (int h = c.from; h < c.to; h++)
            for (int t = 0; t < c.count; t++, iter++) {
                int stage = iter % P::STAGES, first_query = c.first_query(t, P::QUERIES);
                float4 row_stat[ROWS_EACH];
#pragma unroll
                for (int i = 0; i < ROWS_EACH; i++) {
                    int row = first_query + i * 32 + lane;
                    row_stat[i] = row < o.a.Tq ? sums.stat[o.at_row(c.b, h, row)]
                                               : make_float4(INFINITY, 0, 0, 0);
                }
                tile_info tile = tile_info_of<P>(o, sums, c, h, t);
                if (iter >= P::STAGES)
                    mbarrier_wait(m.free + stage, (unsigned)(iter / P::STAGES + 1) & 1);
#pragma unroll
                for (int i = 0; i < ROWS_EACH; i++) {
                    m.lse[stage * P::QUERIES + i * 32 + lane] = row_stat[i].x;
                    m.dy_y[stage * P::QUERIES + i * 32 + lane] = row_stat[i].y;
                    m.unit[iter % P::INFO_STAGES * P::QUERIES + i * 32 + lane] = units(
                        row_stat[i].z * c.most);
                }
                if (lane == 0) m.infos[iter % P::INFO_STAGES] = tile;
                mbarrier_arrive(m.full + stage);
            }
        mbarrier_arrive(m.k_free + n % 2);
    }
}

/* A thread for each group sends what that makes of dq, tile by tile, on its way to memory, and
 * counts items that are there. */
template <class P>
__device__ inline void reduce_dq(const smem_layout<P> &m, const job<typename P::T> &o,
                                 const int_dq &sums, int group)
{
    unsigned sent = 0;
    for (unsigned iter = 0;; iter++) {
        mbarrier_wait(m.part_full + group, sent & 1);
        if (m.finished[group]) return;
        tile_info to = m.infos[iter % P::INFO_STAGES];
        for (bool residual = false;; residual = true) {
            int4 *all = (residual ? sums.residual : sums.sum) +
                        (int64_t)(to.part + group) * (PART / 4);
            if (sums.sum) bulk_reduce_add_s32(all, m.part + group * (PART / 4), PART * sizeof(int));
            bulk_wait_read();
            mbarrier_arrive(m.part_free + group);
            sent++;
            if (residual || !(to.flags & NEEDS_RESIDUAL)) break;
            mbarrier_wait(m.part_full + group, sent & 1);
        }
        if (!(to.flags & LAST)) continue;
        bulk_wait();
        int head = to.part / sums.parts; /* of queries, of all sequences */
        asm volatile(
            "red.release.gpu.global.add.s32 [%0], 1;" ::"l"(sums.done + head / (int)(o.a.H / o.a.G))
            : "memory");
    }
}

#endif
