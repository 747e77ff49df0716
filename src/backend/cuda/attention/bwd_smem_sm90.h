/* bwd_smem_sm90.h - bwd_smem_sm90.cu: which block owns which tiles of dq, which pairs of a tile are
 * visible, shared memory, and the producer warps. */
#ifndef FV_CUDA_ATTENTION_BWD_SMEM_SM90_H
#define FV_CUDA_ATTENTION_BWD_SMEM_SM90_H

#include <climits>

#include "attention.h"
#include "backend/cuda/device/sm90_pipeline.h"

namespace
{
enum {
    KEYS = 128,   /* of a key block, 64 for each consumer warpgroup */
    QUERIES = 64, /* of a tile */
    DQ_SLOTS = 8, /* tiles of dq that shared memory of a block holds */
    WIDTH = 64,
    STAGES = 3,
    PARTIAL_SLOTS = 3, /* key blocks whose dk and dv may be on their way to the next member */
    PARTIAL = KEYS * WIDTH * 2 / 4, /* float4s of such dk and dv */
    GROUPS = 2,
    BLOCK_THREADS = 128 * (GROUPS + 1),
    CONSUMER_REGISTERS = 240,
    PRODUCER_REGISTERS = 24,
    GROUP_BARRIER = 1 /* and 2: the named barriers of the four warps of each warpgroup */
};

/* A team is as many blocks as it takes to hold the dq of all query heads of one KV head.  Teams
 * take KV heads in turn.
 *    team of 2, one KV head:   block 0: dq of tiles 0, 2, 4 ..     block 1: dq of tiles 1, 3, 5 ..
 *    key block j:              both compute ds for their tiles; dk and dv go block 0 -> block 1,
 *                              which adds its own and stores them: one order, no atomics */
struct team_plan {
    int team, teams;                    /* blocks of a team; teams */
    int kv_heads, kv_per_seq, q_per_kv; /* of all sequences; of one; query heads of a KV head */
    int tiles, blocks;                  /* query tiles of a head; key blocks */
    float *stat;                        /* (B, H, tiles, 2, 64): lse, then dy.y */
    float4 *partials; /* dk and dv on their way from block to block, PARTIAL_SLOTS each */
    unsigned *done;   /* key blocks that each block has finished */
};

/* A key block: the work item of a team. */
struct key_block {
    int n, block, b, g; /* KV head of all, block of its keys; sequence, KV head of that */

    __device__ key_block(const team_plan &p) : n(blockIdx.x / p.team), block(0) { locate(p); }
    __device__ bool exists(const team_plan &p) const { return n < p.kv_heads; }
    __device__ void next(const team_plan &p)
    {
        if (++block < p.blocks) return;
        block = 0;
        n += p.teams;
        locate(p);
    }

  private:
    __device__ void locate(const team_plan &p)
    {
        b = n / p.kv_per_seq;
        g = n - b * p.kv_per_seq;
    }
};

/* A query tile: query head within the KV head, tile of that head, and its slot of dq. */
struct query_tile {
    int h, t, slot;
    __device__ int first_query() const { return t * QUERIES; }
};

/* The tiles among [from, to) of each query head that this block of the team owns: of all heads'
 * tiles, numbered through, every team-th. */
struct tile_range {
    int from, to;

    /* Those that see any key of the block from `key` on. */
    template <class T> __device__ tile_range(const head_view<T> &head, int key)
    {
        int first = head.first_row(key), end = head.last_row(key, KEYS);
        from = first / QUERIES;
        to = end > first ? (end + QUERIES - 1) / QUERIES : 0;
    }
    __device__ explicit tile_range(const team_plan &p) : from(0), to(p.tiles) {}

    __device__ query_tile first(const team_plan &p) const
    {
        query_tile x = {-1, to, 0};
        next_head(p, x);
        return x;
    }
    __device__ bool has(const team_plan &p, const query_tile &x) const { return x.h < p.q_per_kv; }
    __device__ void next(const team_plan &p, query_tile &x) const
    {
        x.t += p.team;
        x.slot++;
        next_head(p, x);
    }

  private:
    __device__ void next_head(const team_plan &p, query_tile &x) const
    {
        while (x.h < p.q_per_kv && x.t >= to) {
            int offset = ((int)blockIdx.x - ++x.h * p.tiles - from) % p.team;
            x.t = from + (offset < 0 ? offset + p.team : offset);
            x.slot = (x.h * p.tiles + x.t) / p.team;
        }
    }
};

/* How tiles relate to one key block, by comparisons of their first query alone. */
struct visibility {
    int begins, ends;       /* first_visit from here on, last_visit up to here */
    int full_from, full_to; /* all pairs with the warpgroup's 64 keys are visible */

    /* key: of the block; keys: of the warpgroup; no_mask: its key mask hides nothing. */
    template <class T>
    __device__ visibility(const head_view<T> &head, int key, int keys, bool no_mask)
    {
        const int none = INT_MAX, reach = head.window > 0 ? head.window - head.shift : none;
        begins = key == 0 ? -none : reach == none ? none : key + reach - 1;
        ends = head.len <= key + KEYS ? none
               : head.causal          ? key + KEYS - QUERIES - head.shift
                                      : -none;
        full_from = !no_mask || keys + 64 > head.len ? none
                    : head.causal                    ? keys + 63 - head.shift
                                                     : -none;
        full_to = min(head.rows - QUERIES, reach == none ? none : keys + reach - QUERIES);
    }
    /* The first, the last key block that the tile meets. */
    __device__ bool first_visit(const query_tile &x) const { return x.first_query() >= begins; }
    __device__ bool last_visit(const query_tile &x) const { return x.first_query() <= ends; }
    __device__ bool all_visible(const query_tile &x) const
    {
        return x.first_query() >= full_from && x.first_query() <= full_to;
    }
};

struct bwd_smem_maps {
    qkv_tensor_maps in;
    CUtensorMap dy;
};

template <class T> struct bwd_smem_layout {
    static constexpr int TILE = QUERIES * WIDTH, DS_TILE = QUERIES * KEYS, STATS = 2 * QUERIES;
    T *k, *q, *dy, *ds_tile; /* k of two key blocks */
    float4 *dq;
    float *stat; /* lse of the tile's queries, then their dy.y */
    stage_ring<2> k_ring;
    uint64_t *partial_ready, *partial_sent;
    /* One for each warp: the warp of the other warpgroup that adds to the same elements of dq is
     * done.  At these and at ring.empty every lane arrives for itself, which compute-sanitizer's
     * racecheck can follow; named barriers it cannot. */
    uint64_t *dq_turn;
    stage_ring<STAGES> ring;

    template <class CARVER> __host__ __device__ constexpr void carve(CARVER &c)
    {
        c.take(k, 2 * KEYS * WIDTH);
        c.take(q, STAGES * TILE);
        c.take(dy, STAGES * TILE);
        c.take(ds_tile, DS_TILE);
        c.take(dq, DQ_SLOTS * TILE / 4);
        c.take(stat, STAGES * STATS);
        k_ring.carve(c);
        c.take(partial_ready, 1);
        c.take(partial_sent, 1);
        c.take(dq_turn, 4 * GROUPS);
        ring.carve(c);
    }
    __device__ void init() const
    {
        k_ring.init(1, 4 * GROUPS);
        mbarrier_init(partial_ready, 1);
        mbarrier_init(partial_sent, 4 * GROUPS);
        for (int i = 0; i < 4 * GROUPS; i++) mbarrier_init(dq_turn + i, 32);
        ring.init(1, 128 * GROUPS);
        mbarrier_init_fence();
    }
};
static_assert(1024 + smem_bytes<bwd_smem_layout<bf16>>() <= 227 << 10, "shared memory of a block");

/* ---- producer ---- */

/* One thread.  The keys of a block come behind its first tile, which consumers need first. */
template <class T>
__device__ inline void produce_tiles(const bwd_smem_layout<T> &m, const attn_params<T> &attn,
                                     const bwd_smem_maps *maps, const team_plan &p)
{
    unsigned iter = 0, loads = 0;
    for (key_block c(p); c.exists(p); c.next(p)) {
        int b = c.b, g = c.g, key = c.block * KEYS;
        bool first = true;
        tile_range tiles(head_view<T>(attn, b, 0), key);
        for (query_tile w = tiles.first(p); tiles.has(p, w); tiles.next(p, w), iter++) {
            int stage = iter % STAGES, h = g * p.q_per_kv + w.h, first_query = w.first_query();
            uint64_t *full = m.ring.full + stage;
            m.ring.wait_empty(iter);
            mbarrier_arrive_expect_tx(full, 2 * m.TILE * sizeof(T) + m.STATS * sizeof(float));
            tma_load_4d(m.q + stage * m.TILE, &maps->in.q, full, 0, h, first_query, b);
            tma_load_4d(m.dy + stage * m.TILE, &maps->dy, full, 0, h, first_query, b);
            bulk_load(m.stat + stage * m.STATS,
                      p.stat + ((int64_t)(b * (int)attn.a.H + h) * p.tiles + w.t) * m.STATS,
                      m.STATS * sizeof(float), full);
            if (!first) continue;
            first = false;
            uint64_t *k_full = m.k_ring.full + loads % 2;
            m.k_ring.wait_empty(loads);
            mbarrier_arrive_expect_tx(k_full, KEYS * WIDTH * sizeof(T));
            tma_load_4d(m.k + loads++ % 2 * KEYS * WIDTH, &maps->in.k, k_full, 0, g, key, b);
        }
    }
}

/* ---- dk and dv from member to member ---- */

/* One thread: the sums to begin with are there, and so is a slot for those to end with. */
template <class T>
__device__ inline void wait_neighbours(const bwd_smem_layout<T> &m, const team_plan &p)
{
    unsigned item = 0, rank = blockIdx.x % p.team;
    const unsigned *done = p.done + blockIdx.x;
    for (key_block c(p); c.exists(p); c.next(p), item++) {
        while (rank > 0 && load_acquire_gpu(done - 1) < item + 1) {}
        while (rank + 1 < p.team && load_acquire_gpu(done + 1) + PARTIAL_SLOTS < item + 1) {}
        if (item > 0) mbarrier_wait(m.partial_sent, (item - 1) & 1);
        mbarrier_arrive(m.partial_ready);
    }
}

/* One thread: tells the next member that they were stored. */
template <class T>
__device__ inline void signal_neighbours(const bwd_smem_layout<T> &m, const team_plan &p)
{
    unsigned item = 0;
    for (key_block c(p); c.exists(p); c.next(p), item++) {
        mbarrier_wait(m.partial_sent, item & 1);
        __threadfence();
        store_release_gpu(p.done + blockIdx.x, item + 1);
    }
}

template <int N>
__device__ inline void load_partial(float (&x)[N][4], const float4 *from, int apart)
{
#pragma unroll
    for (int n = 0; n < N; n++) {
        float4 four = __ldcg(from + n * apart);
        x[n][0] = four.x, x[n][1] = four.y, x[n][2] = four.z, x[n][3] = four.w;
    }
}
template <int N> __device__ inline void store_partial(float4 *to, const float (&x)[N][4], int apart)
{
#pragma unroll
    for (int n = 0; n < N; n++)
        __stcg(to + n * apart, make_float4(x[n][0], x[n][1], x[n][2], x[n][3]));
}
} // namespace

#endif
