/* bwd_smem_sm90.cu - the backward pass of attention on Hopper for narrow heads and short
 * sequences: dq is accumulated in shared memory.
 *
 *     forward: s = scale q k',  w = exp(s - lse),  y = w v
 *     d = v dy',  ds = w (d - dy.y);   dv += w dy,  dk += ds q,  dq += ds' k
 *
 * A block owns up to 512 queries (DQ_SLOTS tiles of 64) of heads up to 64 wide and goes through
 * all keys, 64 for each of two consumer warpgroups at a time.  Per block:
 *
 *   producer    one thread loads k of each key block (two stages) and q, dy and row statistics of
 *               each tile (STAGES stages) by TMA
 *   consumers   s, d, dv, dk and dq by wgmma.  k and v are A fragments in registers, as are the
 *               sums of dk and dv.  dq lies in shared memory in accumulator layout, and the
 *               warpgroups add to it in turns, one tile after the other: first warpgroup 0 adds
 *               what its keys contribute, then warpgroup 1
 *
 * A turn lasts until the first products of the next tile are issued: so while one warpgroup
 * computes exponentials the other has the tensor cores, which two that met at every tile would
 * want at the same time.
 *
 * Where the query heads of a KV head have more queries together, several blocks form a team:
 * tile i belongs to member i % size.  All members go through the same keys.  A member begins
 * with the dk and dv that the one before it came to, through global memory and a counter with
 * acquire and release, and the last writes them.  Every sum has a fixed order, so gradients
 * repeat bit by bit.
 *
 * Shared memory, in order: k, q, dy, ds (swizzled), dq, row statistics, mbarriers.  Registers:
 * 240 per consumer thread, 24 per producer thread.  bwd_sm90.cu is the kernel for everything
 * longer or wider; this one is faster at lengths of 256 to 512 (docs/benchmarks.md). */
#include "bwd_smem_sm90.h"
#include "dispatch.h"
#include "grads.h"

namespace
{
/* c (64, 64) = A B': A in registers, B 64 rows of one panel. */
template <int K, class T>
__device__ inline void gemm_rs_nt(float (&c)[8][4], const uint32_t (&a)[K][4], const T *b)
{
    uint64_t desc = smem_desc(b);
#pragma unroll
    for (int k = 0; k < K; k++)
        wgmma<false>(c, a[k], smem_desc_advance(desc, k * 16 * sizeof(T)), k > 0, T());
}

/* 16 rows of global memory as A fragments.  Past the last row that one is loaded again: its weights
 * are 0. */
template <int K, class T>
__device__ inline void load_fragments(uint32_t (&x)[K][4], const T *from, int64_t step, int row0,
                                      int rows, int width)
{
    const unsigned *row[2];
#pragma unroll
    for (int i = 0; i < 2; i++)
        row[i] = (const unsigned *)(from + min(tile_row(row0, i * 2), rows - 1) * step +
                                    tile_col(0, 0, 0));
#pragma unroll
    for (int k = 0; k < K; k++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            bool in_bounds = width == WIDTH || tile_col(k * 16, e / 2, 0) < width;
            x[k][e] = in_bounds ? __ldg(row[e % 2] + k * 8 + e / 2 * 4) : 0;
        }
}

/* This thread's columns of 64 floats in shared memory, two at a time: the compiler would load them
 * one by one. */
__device__ inline void load_columns(float2 (&x)[8], const float *from)
{
#pragma unroll
    for (int n = 0; n < 8; n++)
        asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];"
                     : "=f"(x[n].x), "=f"(x[n].y)
                     : "r"(smem_addr(from + tile_col(0, n, 0))));
}

template <class T> struct gradients {
    T *q, *k, *v; /* NULL: not wanted */
};

/* What a consumer warpgroup carries from one key block to the next. */
struct team_state {
    unsigned iter = 0, loads = 0, item = 0; /* tiles, key blocks with tiles, key blocks so far */
    uint32_t k[4][4], v[4][4];              /* A fragments of the key block at hand */
};

/* One consumer warpgroup at one key block. */
template <class T> struct bwd_smem_consumer {
    const bwd_smem_layout<T> &m;
    const attn_params<T> &attn;
    const team_plan &p;
    const gradients<T> &to;
    team_state &st;
    const key_block &c;
    key_block next_block;
    head_view<T> head;
    int group, thread, strip, rank, width, row0; /* row0: the warp's first key */
    T *ds_tile;                                  /* of this warpgroup */
    uint64_t *own_turn, *other_turn;
    float4 *partial;
    tile_range tiles;
    visibility edge;
    int stage;
    query_tile now;
    float s[8][4], d[8][4], dk[8][4], dv[8][4], dq[8][4];
    float4 dq_so_far[8];
    float2 lse[8]; /* of the tile whose products are issued */

    __device__ __forceinline__ bwd_smem_consumer(const bwd_smem_layout<T> &m_,
                                                 const attn_params<T> &attn_, const team_plan &p_,
                                                 const gradients<T> &to_, team_state &st_,
                                                 const key_block &c_, int group_)
        : m(m_), attn(attn_), p(p_), to(to_), st(st_), c(c_), next_block(c_),
          head(attn_, c_.b, c_.g * p_.q_per_kv), group(group_), thread(threadIdx.x % 128),
          strip((int)threadIdx.x / 32 % 4 * 16), rank(blockIdx.x % p_.team), width((int)attn_.a.Wk),
          row0(c_.block * KEYS + group_ * 64 + strip), ds_tile(m_.ds_tile + group_ * 64 * PANEL),
          own_turn(m_.dq_turn + group_ * 4 + thread / 32),
          other_turn(m_.dq_turn + (1 - group_) * 4 + thread / 32),
          partial(p_.partials +
                  ((int64_t)blockIdx.x * PARTIAL_SLOTS + st_.item % PARTIAL_SLOTS) * PARTIAL +
                  group_ * (PARTIAL / 2) + thread),
          tiles(head, c_.block * KEYS), edge(head, c_.block * KEYS, c_.block * KEYS + group_ * 64,
                                             key_mask_tile<true, 8>(head, row0, 0).all)
    {
        next_block.next(p);
        now = tiles.first(p);
        /* warp-uniform, so that addresses of operands are in uniform registers */
        stage = stage_of(st.iter);
    }
    __device__ static int stage_of(unsigned n) { return __shfl_sync(~0u, (int)(n % STAGES), 0); }

    static __device__ __forceinline__ void load_kv(team_state &st, const attn_params<T> &attn,
                                                   const key_block &c, int group)
    {
        int row0 = c.block * KEYS + group * 64 + (int)threadIdx.x % 128 / 32 * 16;
        load_fragments(st.k, attn.k(c.b, c.g, 0), attn.a.k_row, row0, (int)attn.a.Tk,
                       (int)attn.a.Wk);
        load_fragments(st.v, attn.v(c.b, c.g, 0), attn.a.v_row, row0, (int)attn.a.Tk,
                       (int)attn.a.Wv);
    }

    /* dk and dv begin with what the member before came to. */
    __device__ __forceinline__ void begin_sums()
    {
        if (p.team > 1) mbarrier_wait(m.partial_ready, st.item & 1);
        if (rank > 0) {
            load_partial(dk, partial - PARTIAL_SLOTS * PARTIAL, 128);
            load_partial(dv, partial - PARTIAL_SLOTS * PARTIAL + 8 * 128, 128);
        } else {
            clear(dk);
            clear(dv);
        }
    }

    /* 16 rows of a gradient by way of the warp's rows of ds_tile. */
    __device__ __forceinline__ void write_rows(T *grad, int64_t step, const float (&x)[8][4],
                                               int first_row, int rows, int columns, float scale)
    {
        write_rows_coalesced<64, WIDTH>(grad, step, ds_tile, strip, x, first_row, rows, columns,
                                        scale);
    }
    __device__ __forceinline__ void write_dq(const query_tile &w)
    {
        if (!to.q) return;
        int64_t base = attn.q(c.b, c.g * p.q_per_kv + w.h, 0) - (const T *)attn.a.q;
        write_rows(to.q + base, attn.a.q_row, dq, w.first_query() + strip, head.rows, width,
                   attn.scale * LN2);
    }
    __device__ __forceinline__ void store_dk()
    {
        int64_t base = attn.k(c.b, c.g, 0) - (const T *)attn.a.k;
        if (rank + 1 < p.team)
            store_partial(partial, dk, 128);
        else if (to.k)
            write_rows(to.k + base, attn.a.k_row, dk, row0, (int)attn.a.Tk, width,
                       attn.scale * LN2);
    }
    __device__ __forceinline__ void store_dv()
    {
        int64_t base = attn.v(c.b, c.g, 0) - (const T *)attn.a.v;
        if (rank + 1 < p.team)
            store_partial(partial + 8 * 128, dv, 128);
        else if (to.v)
            write_rows(to.v + base, attn.a.v_row, dv, row0, (int)attn.a.Tk, (int)attn.a.Wv, 1);
    }

    /* dq of a tile in shared memory, loaded while its product is in flight, and added to. */
    __device__ __forceinline__ void load_dq()
    {
        const float4 *sums = m.dq + now.slot * (m.TILE / 4) + thread;
        bool none = group == 0 && edge.first_visit(now);
#pragma unroll
        for (int n = 0; n < 8; n++) dq_so_far[n] = none ? make_float4(0, 0, 0, 0) : sums[n * 128];
    }
    __device__ __forceinline__ void add_dq()
    {
        float4 *sums = m.dq + now.slot * (m.TILE / 4) + thread;
        bool last = group == 1 && edge.last_visit(now);
#pragma unroll
        for (int n = 0; n < 8; n++) {
            dq[n][0] += dq_so_far[n].x, dq[n][1] += dq_so_far[n].y, dq[n][2] += dq_so_far[n].z,
                dq[n][3] += dq_so_far[n].w;
            if (!last) sums[n * 128] = make_float4(dq[n][0], dq[n][1], dq[n][2], dq[n][3]);
        }
        if (!last) return;
        warpgroup_sync(GROUP_BARRIER + group); /* all warps have read ds */
        write_dq(now);
    }

    /* Issues s = k q' and d = v dy' of the tile in a stage. */
    __device__ __forceinline__ void issue_s_d(int at_stage)
    {
        load_columns(lse, m.stat + at_stage * m.STATS);
        wgmma_fence();
        gemm_rs_nt(s, st.k, m.q + at_stage * m.TILE);
        wgmma_commit();
        wgmma_fence();
        gemm_rs_nt(d, st.v, m.dy + at_stage * m.TILE);
        wgmma_commit();
    }
    /* s becomes the weights. */
    __device__ __forceinline__ void exp_tile()
    {
        if (!edge.all_visible(now)) {
            exp_scores<true, PLAIN>(s, head, row0, now.first_query(), false,
                                    [&](int e, int n) { return e % 2 ? lse[n].y : lse[n].x; });
            return;
        }
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                s[n][e] = exp2_fast(fmaf(s[n][e], attn.scale, e % 2 ? -lse[n].y : -lse[n].x));
    }
    /* d becomes ds, and both go into dv and, by way of shared memory, into dq and dk.  MORE:
     * another tile follows; else k and v of the next key block are loaded as soon as they may
     * be. */
    template <bool MORE> __device__ __forceinline__ void issue_dv_dq_dk()
    {
        uint32_t pw[4][4], ds[4][4];
        float2 dy_y[8];
        load_columns(dy_y, m.stat + stage * m.STATS + QUERIES);
        wgmma_wait<0>();
        pack_fragments(pw, s, T());
        wgmma_fence();
        gemm_rs(dv, pw, m.dy + stage * m.TILE);
        wgmma_commit();
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                d[n][e] = dscore<PLAIN>(s[n][e], d[n][e], e % 2 ? dy_y[n].y : dy_y[n].x);
        pack_fragments(ds, d, T());
        if (!MORE && next_block.exists(p)) load_kv(st, attn, next_block, group);
        store_swizzled<64>(ds_tile, ds, strip);
        fence_async_proxy();
        warpgroup_sync(GROUP_BARRIER + group);
        mbarrier_wait(own_turn, st.iter & 1);
        wgmma_fence();
        gemm_tn<64>(dq, ds_tile, m.k + (st.loads % 2 * KEYS + group * 64) * PANEL);
        wgmma_commit();
        gemm_rs(dk, ds, m.q + stage * m.TILE);
        wgmma_commit();
    }
    template <bool MORE> __device__ __forceinline__ void process_tile()
    {
        int next_stage = stage_of(st.iter + 1);
        exp_tile();
        issue_dv_dq_dk<MORE>();
        load_dq();
        wgmma_wait<1>();
        add_dq();
        if (MORE) {
            m.ring.wait_full(st.iter + 1);
            issue_s_d(next_stage);
            mbarrier_arrive(other_turn);
            wgmma_wait<1>();
            mbarrier_arrive(m.ring.empty + stage);
        } else {
            mbarrier_arrive(other_turn);
            warp_arrive(m.k_ring.empty + st.loads++ % 2);
            warpgroup_sync(GROUP_BARRIER + group); /* all warps have read ds */
            store_dv();
            wgmma_wait<0>();
            mbarrier_arrive(m.ring.empty + stage);
            store_dk();
        }
        stage = next_stage;
        st.iter++;
    }

    /* Tiles that see no key at all get dq = 0. */
    __device__ __forceinline__ void zero_hidden_tiles()
    {
        tile_range all(p);
        for (query_tile w = all.first(p); all.has(p, w); all.next(p, w))
            if (head.last_key(w.first_query(), QUERIES) == 0) {
                clear(dq);
                write_dq(w);
            }
    }

    __device__ __forceinline__ void run()
    {
        begin_sums();
        if (tiles.has(p, now)) {
            query_tile next = now;
            m.ring.wait_full(st.iter);
            issue_s_d(stage);
            wgmma_wait<1>();
            m.k_ring.wait_full(st.loads);
            for (tiles.next(p, next); tiles.has(p, next); tiles.next(p, next)) {
                process_tile<true>();
                now = next;
            }
            process_tile<false>();
        } else {
            if (next_block.exists(p)) load_kv(st, attn, next_block, group);
            store_dk();
            store_dv();
        }
        if (c.block == p.blocks - 1 && group == 0) zero_hidden_tiles();
        if (p.team > 1) warp_arrive(m.partial_sent);
        st.item++;
    }
};

template <class T>
__device__ inline void consume_key_blocks(const bwd_smem_layout<T> &m, const attn_params<T> &attn,
                                          const team_plan &p, const gradients<T> &to, int group)
{
    team_state st;
    /* the first turn at dq is that of warpgroup 0 */
    if (group == 1) mbarrier_arrive(m.dq_turn + (int)threadIdx.x % 128 / 32);
    key_block c(p);
    if (c.exists(p)) bwd_smem_consumer<T>::load_kv(st, attn, c, group);
    while (c.exists(p)) {
        bwd_smem_consumer<T> consumer(m, attn, p, to, st, c, group);
        consumer.run();
        c = consumer.next_block;
    }
}

template <class T>
__global__ void __launch_bounds__(BLOCK_THREADS, 1)
    grad_bwd_smem(const __grid_constant__ attn_params<T> attn,
                  const __grid_constant__ bwd_smem_maps maps, const __grid_constant__ team_plan p,
                  const __grid_constant__ gradients<T> to)
{
    extern __shared__ unsigned char memory[];
    bwd_smem_layout<T> m = open_layout<bwd_smem_layout<T>>(align_1024(memory));
    int group = warpgroup_index() - 1;
    if (group < 0) {
        setmaxnreg_dec<PRODUCER_REGISTERS>();
        if (threadIdx.x == 0) produce_tiles(m, attn, &maps, p);
        if (threadIdx.x == 32 && p.team > 1) wait_neighbours(m, p);
        if (threadIdx.x == 64 && p.team > 1) signal_neighbours(m, p);
    } else {
        setmaxnreg_inc<CONSUMER_REGISTERS>();
        consume_key_blocks(m, attn, p, to, group);
    }
}

/* Row statistics by tiles, as the kernel loads them; queries that fill up the last tile get weights
 * 0.  Its first block also clears the counters of teams. */
template <class T> struct tiled_stats {
    team_plan p;

    __device__ void prologue() const
    {
        if (p.team > 1)
            for (int n = threadIdx.x; n < p.team * p.teams; n += THREADS) p.done[n] = 0;
    }
    __device__ void store(const attn_params<T> &attn, int b, int h, int i, float dy_y) const
    {
        float2 stat = i < attn.a.Tq ? attn.stat(attn.lse(b, h, i), dy_y) : make_float2(INFINITY, 0);
        float *row = p.stat + ((b * attn.a.H + h) * p.tiles + i / QUERIES) * (2 * QUERIES) +
                     i % QUERIES;
        row[0] = stat.x;
        row[QUERIES] = stat.y;
    }
};

team_plan plan_for(const fv_attn_args *a, int sm_count)
{
    team_plan p = {};
    p.kv_heads = (int)(a->B * a->G);
    p.kv_per_seq = (int)a->G;
    p.q_per_kv = (int)(a->H / a->G);
    p.tiles = (int)ceil_div(a->Tq, QUERIES);
    p.blocks = (int)ceil_div(a->Tk, KEYS);
    p.team = (int)ceil_div((int64_t)p.q_per_kv * p.tiles, DQ_SLOTS);
    p.teams = sm_count / p.team < p.kv_heads ? sm_count / p.team : p.kv_heads;
    return p;
}
} // namespace

bool fv_cuda_attention_bwd_smem_fills(const device *d, const fv_attn_args *a)
{
    team_plan p = plan_for(a, d->sm_count);
    int64_t rounds = p.teams ? ceil_div(p.kv_heads, p.teams) : 0;
    return p.teams && (int64_t)p.kv_heads * p.team * 4 >= rounds * d->sm_count * 3;
}

template <class T>
bool fv_cuda_attention_bwd_smem(fv_stream *s, const fv_attn_args *a, const fv_attn_grads *g)
{
    attn_params<T> attn = make_params<T>(s, a);
    bwd_smem_maps maps;
    team_plan p = plan_for(a, device_of(s)->sm_count);
    int64_t rows = a->B * a->H * p.tiles * QUERIES;
    for (const fv_sink &to : {g->dq, g->dk, g->dv})
        if (to.data && (to.add || to.dtype != kind<T>::dtype || !aligned(to.data))) return false;
    if (!p.teams || rows > INT_MAX || !attn.plain || a->dropout > 0 || a->Wk > WIDTH ||
        a->Wv > WIDTH || !attn.vector_y || !aligned(g->dy) ||
        !fv_cuda_tensor_map_qkv(&maps.in, a, kind<T>::dtype, QUERIES, KEYS) ||
        !fv_cuda_tensor_map(&maps.dy, g->dy, kind<T>::dtype, a->B, a->Tq, a->H, a->Wv, a->H * a->Wv,
                            a->Tq * a->H * a->Wv, QUERIES))
        return false;

    /* scratch, in float4s: partial sums, statistics, counters */
    int64_t blocks = (int64_t)p.team * p.teams,
            partials = p.team > 1 ? blocks * PARTIAL_SLOTS * PARTIAL : 0, stats = ceil_div(rows, 2);
    float4 *scratch = alloc_scratch<float4>(s, partials + stats + blocks / 4 + 1);
    if (!scratch) return true;
    p.partials = scratch;
    p.stat = (float *)(scratch + partials);
    p.done = (unsigned *)(scratch + partials + stats);
    gradients<T> to = {(T *)g->dq.data, (T *)g->dk.data, (T *)g->dv.data};
    launch_row_stats(s, attn, (const T *)g->dy, p.tiles * QUERIES, tiled_stats<T>{p});
    launch(s, "attention_bwd", grad_bwd_smem<T>, dim3((unsigned)blocks), BLOCK_THREADS,
           1024 + smem_bytes<bwd_smem_layout<T>>(), attn, maps, p, to);
    return true;
}

template bool fv_cuda_attention_bwd_smem<bf16>(fv_stream *, const fv_attn_args *,
                                               const fv_attn_grads *);
template bool fv_cuda_attention_bwd_smem<f16>(fv_stream *, const fv_attn_args *,
                                              const fv_attn_grads *);
