/* bwd_smem_sm90.cu - the gradients of attention on Hopper where heads are narrow: dq is added up in
 * shared memory.
 *
 * A block owns up to 512 queries of heads up to 64 wide, in tiles of 64, and goes through all keys,
 * 64 for each of two groups of four warps at a time:
 *
 *     s = k q',  d = v dy',  w = exp(s - lse),  ds = w (d - dy.y);   dv += w dy,  dk += ds q,
 *     dq += ds' k
 *
 * Keys and values are kept in registers, as are the sums of dk and dv.  Sums of dq lie in shared
 * memory as threads hold them, and the groups take turns at them: the first adds what its keys make
 * of a tile, then the second.  A turn goes on until the first products of the next tile are under
 * way: so while one group makes exponentials the other has the tensor cores, which two that meet at
 * every tile would want at the same time.
 *
 * Where heads that share keys have more queries together, so many blocks as are needed make a team:
 * tile i is owned by member i % size.  All go through the same keys; a member begins with the sums
 * of dk and dv that the one before it came to, and the last writes them.  Every sum is made in one
 * order, whatever else there is, and gradients repeat bit by bit. */
#include <type_traits>

#include "bwd_smem_sm90.h"
#include "dispatch.h"
#include "backend/cuda/device/sm90.h"

#define WIDTH 64
#define STAGES 3
#define LINKS 3 /* blocks of keys whose sums may be on their way to the next member */
#define GROUPS 2
#define BLOCK_THREADS (128 * (GROUPS + 1))
enum { OWN = 1 }; /* named barriers of the four warps of each group */
#define CONSUMER_REGISTERS 240
#define PRODUCER_REGISTERS 24
#define LINK (KEYS * WIDTH * 2 / 4) /* float4s: sums of dk and of dv */

struct bwd_smem_maps {
    qkv_tensor_maps in;
    CUtensorMap dy;
};

template <class T> struct smem_layout {
    T *k, *q, *dy, *ds_tile; /* keys of two blocks */
    float4 *dq;
    float *stat;
    uint64_t *k_full, *k_free, *full, *free, *ready, *sent;
    uint64_t *
        /* of each warp: that of the other group which adds to the same numbers of dq is done.  At
         * these and at `free` every lane arrives for itself, which racecheck can follow; a named
         * barrier it cannot */
        dq_turns;
    static constexpr int TILE = QUERIES * WIDTH, DS_TILE = QUERIES * KEYS, STATS = 2 * QUERIES;
    static constexpr size_t BYTES = 1024 +
                                    (2 * KEYS * WIDTH + 2 * STAGES * TILE + DS_TILE) * sizeof(T) +
                                    SLOTS * TILE * sizeof(float) + STAGES * STATS * sizeof(float) +
                                    (6 + 4 * GROUPS + 2 * STAGES) * sizeof(uint64_t);

    __device__ smem_layout(unsigned char *memory)
    {
        memory += (1024 - smem_addr(memory) % 1024) % 1024;
        k = (T *)memory;
        q = k + 2 * KEYS * WIDTH;
        dy = q + STAGES * TILE;
        ds_tile = dy + STAGES * TILE;
        dq = (float4 *)(ds_tile + DS_TILE);
        stat = (float *)(dq + SLOTS * TILE / 4);
        k_full = (uint64_t *)(stat + STAGES * STATS);
        k_free = k_full + 2;
        ready = k_free + 2;
        sent = ready + 1;
        dq_turns = sent + 1;
        full = dq_turns + 4 * GROUPS;
        free = full + STAGES;
    }
    __device__ void init()
    {
        for (int i = 0; i < 2; i++) {
            mbarrier_init(k_full + i, 1);
            mbarrier_init(k_free + i, 4 * GROUPS);
        }
        mbarrier_init(ready, 1);
        mbarrier_init(sent, 4 * GROUPS);
        for (int i = 0; i < 4 * GROUPS; i++) mbarrier_init(dq_turns + i, 32);
        for (int i = 0; i < STAGES; i++) {
            mbarrier_init(full + i, 1);
            mbarrier_init(free + i, 128 * GROUPS);
        }
        mbarrier_init_fence();
    }
};
static_assert(smem_layout<bf16>::BYTES <= 227 << 10, "what a block has");

/* One thread brings everything. */
template <class T>
__device__ inline void produce_tiles(const smem_layout<T> &m, const job<T> &o,
                                     const bwd_smem_maps *of, const team_plan &p)
{
    unsigned iter = 0, loads = 0;
    for (work_item c(p); c.there(p); c.next(p)) {
        int b = c.b, g = c.g, key = c.block * KEYS;
        bool first = true;
        span all(head<T>(o, b, 0), key);
        for (tile w = all.first(p); all.has(p, w); all.next(p, w), iter++) {
            int stage = iter % STAGES, h = g * p.q_per_kv + w.h, first_query = w.first_query();
            uint64_t *full = m.full + stage;
            if (iter >= STAGES) mbarrier_wait(m.free + stage, (iter / STAGES + 1) & 1);
            mbarrier_arrive_expect_tx(full, 2 * m.TILE * sizeof(T) + m.STATS * sizeof(float));
            tma_load_4d(m.q + stage * m.TILE, &of->in.q, full, 0, h, first_query, b);
            tma_load_4d(m.dy + stage * m.TILE, &of->dy, full, 0, h, first_query, b);
            bulk_load(m.stat + stage * m.STATS,
                      p.stat + ((int64_t)(b * (int)o.a.H + h) * p.tiles + w.t) * m.STATS,
                      m.STATS * sizeof(float), full);
            if (!first) continue;
            first = false;
            uint64_t *k_full = m.k_full + loads % 2;
            if (loads >= 2) mbarrier_wait(m.k_free + loads % 2, (loads / 2 + 1) & 1);
            mbarrier_arrive_expect_tx(k_full, KEYS * WIDTH * sizeof(T));
            tma_load_4d(m.k + loads++ % 2 * KEYS * WIDTH, &of->in.k, k_full, 0, g, key, b);
        }
    }
}

/* ---- from member to member ---- */

__device__ inline unsigned load_acquire_gpu(const unsigned *p)
{
    unsigned n;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(n) : "l"(p) : "memory");
    return n;
}

/* A thread sees to it that sums to begin with are there, and room for those to end with. */
template <class T>
__device__ inline void wait_neighbours(const smem_layout<T> &m, const team_plan &p)
{
    unsigned item = 0, rank = blockIdx.x % p.team;
    const unsigned *done = p.done + blockIdx.x;
    for (work_item c(p); c.there(p); c.next(p), item++) {
        while (rank > 0 && load_acquire_gpu(done - 1) < item + 1) {}
        while (rank + 1 < p.team && load_acquire_gpu(done + 1) + LINKS < item + 1) {}
        if (item > 0) mbarrier_wait(m.sent, (item - 1) & 1);
        mbarrier_arrive(m.ready);
    }
}

/* Another tells when they were sent. */
template <class T>
__device__ inline void signal_neighbours(const smem_layout<T> &m, const team_plan &p)
{
    unsigned item = 0;
    for (work_item c(p); c.there(p); c.next(p), item++) {
        mbarrier_wait(m.sent, item & 1);
        __threadfence();
        asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(p.done + blockIdx.x), "r"(item + 1)
                     : "memory");
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

/* ---- products ---- */

/* c (64, 64) = A B': A in registers, B 64 rows of one panel. */
template <int K, class T>
__device__ inline void gemm_rs_nt(float (&c)[8][4], const uint32_t (&a)[K][4], const T *b)
{
    uint64_t fb = smem_desc(b);
#pragma unroll
    for (int k = 0; k < K; k++)
        wgmma<false>(c, a[k], smem_desc_advance(fb, k * 16 * sizeof(T)), k > 0, T());
}

/* A group's slopes, 64 keys by 64 queries, as rows of a panel. */
template <class T> __device__ inline void store_swizzled_ds(T *to, const uint32_t (&x)[4][4])
{
    int lane = threadIdx.x % 32, row = (int)threadIdx.x / 32 % 4 * 16 + lane / 8 % 2 * 8 + lane % 8;
#pragma unroll
    for (int n = 0; n < 4; n++)
        stmatrix_x4(to + row * PANEL + ((n * 2 + lane / 16) ^ row % 8) * 8, x[n]);
}

/* Rows of a strip of 16 from memory, as the first factor of products.  Behind the last row that one
 * is read once more: what is made of it has no weight. */
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
            bool there = width == WIDTH || tile_col(k * 16, e / 2, 0) < width;
            x[k][e] = there ? __ldg(row[e % 2] + k * 8 + e / 2 * 4) : 0;
        }
}

/* Rows of a strip to a gradient by way of this warp's rows of the room for slopes, so that whole
 * lines go out. */
template <class T>
__device__ inline void write_strip(T *to, int64_t step, T *scratch, const float (&x)[8][4],
                                   int row0, int rows, int width, float scale)
{
    uint32_t narrowed[4][4];
    pack_fragments_by(narrowed, x,
                      [&](float a, float b) { return pack2(a * scale, b * scale, T()); });
    __syncwarp();
    store_swizzled_ds(scratch, narrowed);
    __syncwarp();
    int lane = threadIdx.x % 32, strip = (int)threadIdx.x / 32 % 4 * 16, c = lane % 8;
    to += (row0 + lane / 8) * step + c * 8;
#pragma unroll
    for (int i = 0; i < 4; i++, to += 4 * step) {
        int row = i * 4 + lane / 8;
        uint4 eight = *(const uint4 *)(scratch + (strip + row) * PANEL + (c ^ row % 8) * 8);
        if (row0 + row < rows && c * 8 < width) *(uint4 *)to = eight;
    }
}

/* ---- a group ---- */

/* Of 64 numbers in shared memory those of this thread's columns, two at a time: the compiler would
 * read them one by one. */
__device__ inline void read_columns(float2 (&x)[8], const float *from)
{
#pragma unroll
    for (int n = 0; n < 8; n++)
        asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];"
                     : "=f"(x[n].x), "=f"(x[n].y)
                     : "r"(smem_addr(from + tile_col(0, n, 0))));
}

/* Weights from products where all pairs take part. */
__device__ inline void exp_scores_full(float (&s)[8][4], float scale, const float2 (&lse)[8])
{
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            s[n][e] = exp2_fast(fmaf(s[n][e], scale, e % 2 ? -lse[n].y : -lse[n].x));
}

template <class T> struct gradients {
    T *q, *k, *v;
};

template <class T>
__device__ inline void consume_team(const smem_layout<T> &m, const job<T> &o, const team_plan &p,
                                    const gradients<T> &to, int group)
{
    int thread = threadIdx.x % 128, strip = thread / 32 * 16, rank = blockIdx.x % p.team,
        width = (int)o.a.Wk;
    unsigned iter = 0, loads = 0, item = 0;
    T *ds_tile = m.ds_tile + group * 64 * PANEL;
    uint32_t k[4][4], v[4][4], pw[4][4], ds[4][4];
    float s[8][4], d[8][4], dk[8][4], dv[8][4], dq[8][4];
    float4 so_far[8]; /* sums of dq */
    auto keep = [&](const work_item &c) {
        int row0 = c.block * KEYS + group * 64 + strip;
        load_fragments(k, o.k(c.b, c.g, 0), o.a.k_row, row0, (int)o.a.Tk, width);
        load_fragments(v, o.v(c.b, c.g, 0), o.a.v_row, row0, (int)o.a.Tk, (int)o.a.Wv);
    };
    uint64_t *mine = m.dq_turns + group * 4 + thread / 32,
             *others = m.dq_turns + (1 - group) * 4 + thread / 32;
    if (group == 1) mbarrier_arrive(others); /* the first turn is that of the other */
    work_item c(p);
    if (c.there(p)) keep(c);
    for (; c.there(p); item++) {
        int b = c.b, g = c.g, key = c.block * KEYS, keys = key + group * 64, row0 = keys + strip;
        head<T> at(o, b, g * p.q_per_kv);
        float4 *link = p.links + ((int64_t)blockIdx.x * LINKS + item % LINKS) * LINK +
                       group * (LINK / 2) + thread;
        if (p.team > 1) mbarrier_wait(m.ready, item & 1);
        if (rank > 0) {
            load_partial(dk, link - LINKS * LINK, 128);
            load_partial(dv, link - LINKS * LINK + 8 * 128, 128);
        } else {
            clear(dk);
            clear(dv);
        }
        span all(at, key);
        visibility edge(at, key, keys, key_mask_tile<true, 8>(at, row0, 0).all);
        auto write_dq = [&](const tile &w) {
            if (!to.q) return;
            int64_t base = o.q(b, g * p.q_per_kv + w.h, 0) - (const T *)o.a.q;
            write_strip(to.q + base, o.a.q_row, ds_tile, dq, w.first_query() + strip, at.rows,
                        width, o.scale * LN2);
        };
        auto read_dq = [&](const tile &w) {
            const float4 *sums = m.dq + w.slot * (m.TILE / 4) + thread;
            bool none = group == 0 && edge.first_visit(w);
#pragma unroll
            for (int n = 0; n < 8; n++) so_far[n] = none ? make_float4(0, 0, 0, 0) : sums[n * 128];
        };
        auto add_dq = [&](const tile &w) {
            float4 *sums = m.dq + w.slot * (m.TILE / 4) + thread;
            bool last = group == 1 && edge.last_visit(w);
#pragma unroll
            for (int n = 0; n < 8; n++) {
                dq[n][0] += so_far[n].x, dq[n][1] += so_far[n].y, dq[n][2] += so_far[n].z,
                    dq[n][3] += so_far[n].w;
                if (!last) sums[n * 128] = make_float4(dq[n][0], dq[n][1], dq[n][2], dq[n][3]);
            }
            if (!last) return;
            warpgroup_sync(OWN + group); /* all have read the slopes */
            write_dq(w);
        };
        auto multiply_keys = [&](int stage) {
            wgmma_fence();
            gemm_rs_nt(s, k, m.q + stage * m.TILE);
            wgmma_commit();
        };
        auto multiply_values = [&](int stage) {
            wgmma_fence();
            gemm_rs_nt(d, v, m.dy + stage * m.TILE);
            wgmma_commit();
        };
        auto store_dk = [&] {
            int64_t base = o.k(b, g, 0) - (const T *)o.a.k;
            if (rank + 1 < p.team)
                store_partial(link, dk, 128);
            else if (to.k)
                write_strip(to.k + base, o.a.k_row, ds_tile, dk, row0, (int)o.a.Tk, width,
                            o.scale * LN2);
        };
        auto store_dv = [&] {
            int64_t base = o.v(b, g, 0) - (const T *)o.a.v;
            if (rank + 1 < p.team)
                store_partial(link + 8 * 128, dv, 128);
            else if (to.v)
                write_strip(to.v + base, o.a.v_row, ds_tile, dv, row0, (int)o.a.Tk, (int)o.a.Wv, 1);
        };
        auto stage_of = [](unsigned n) {
            return __shfl_sync(~0u, (int)(n % STAGES), 0);
        }; /* known to be the same for all */
        work_item ahead = c;
        ahead.next(p);
        tile now = all.first(p), next = now;
        int stage = stage_of(iter);
        float2 lse[8]; /* of the tile that is begun */
        auto begin = [&](int of) {
            read_columns(lse, m.stat + of * m.STATS);
            multiply_keys(of);
            multiply_values(of);
        };
        auto visit = [&](auto more) {
            int next_stage = stage_of(iter + 1);
            if (edge.all_visible(now))
                exp_scores_full(s, o.scale, lse);
            else
                exp_scores<true, PLAIN>(s, at, row0, now.first_query(), false,
                                        [&](int e, int n) { return e % 2 ? lse[n].y : lse[n].x; });
            float2 dy_y[8];
            read_columns(dy_y, m.stat + stage * m.STATS + QUERIES);
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
            if (!more.value && ahead.there(p)) keep(ahead);
            store_swizzled_ds(ds_tile, ds);
            fence_async_proxy();
            warpgroup_sync(OWN + group);
            mbarrier_wait(mine, iter & 1);
            wgmma_fence();
            gemm_tn<64>(dq, ds_tile, m.k + (loads % 2 * KEYS + group * 64) * PANEL);
            wgmma_commit();
            gemm_rs(dk, ds, m.q + stage * m.TILE);
            wgmma_commit();
            read_dq(now);
            wgmma_wait<1>();
            add_dq(now);
            if (more.value) {
                mbarrier_wait(m.full + next_stage, (iter + 1) / STAGES & 1);
                begin(next_stage);
                mbarrier_arrive(others);
                wgmma_wait<1>();
                mbarrier_arrive(m.free + stage);
            } else {
                mbarrier_arrive(others);
                warp_arrive(m.k_free + loads++ % 2);
                warpgroup_sync(OWN + group); /* all have read the slopes */
                store_dv();
                wgmma_wait<0>();
                mbarrier_arrive(m.free + stage);
                store_dk();
            }
            stage = next_stage;
            iter++;
        };
        if (all.has(p, now)) {
            mbarrier_wait(m.full + stage, iter / STAGES & 1);
            begin(stage);
            wgmma_wait<1>();
            mbarrier_wait(m.k_full + loads % 2, loads / 2 & 1);
            for (all.next(p, next); all.has(p, next); all.next(p, next)) {
                visit(std::true_type());
                now = next;
            }
            visit(std::false_type());
        } else {
            if (ahead.there(p)) keep(ahead);
            store_dk();
            store_dv();
        }
        if (c.block == p.blocks - 1 && group == 0) { /* queries that see no key */
            span all_tiles(p);
            for (tile w = all_tiles.first(p); all_tiles.has(p, w); all_tiles.next(p, w))
                if (at.last_key(w.first_query(), QUERIES) == 0) {
                    clear(dq);
                    write_dq(w);
                }
        }
        if (p.team > 1) warp_arrive(m.sent);
        c = ahead;
    }
}

template <class T>
__global__ void __launch_bounds__(BLOCK_THREADS, 1)
    grad_bwd_smem(const __grid_constant__ job<T> o, const __grid_constant__ bwd_smem_maps of,
                  const __grid_constant__ team_plan p, const __grid_constant__ gradients<T> to)
{
    extern __shared__ unsigned char memory[];
    smem_layout<T> m(memory);
    if (threadIdx.x == 0) m.init();
    __syncthreads();
    int group = warpgroup_index() - 1;
    if (group < 0) {
        setmaxnreg_dec<PRODUCER_REGISTERS>();
        if (threadIdx.x == 0) produce_tiles(m, o, &of, p);
        if (threadIdx.x == 32 && p.team > 1) wait_neighbours(m, p);
        if (threadIdx.x == 64 && p.team > 1) signal_neighbours(m, p);
    } else {
        setmaxnreg_inc<CONSUMER_REGISTERS>();
        consume_team(m, o, p, to, group);
    }
}

/* lse in units of log 2 and dy.y of each query; eight threads take one, heads follow one another in
 * memory.  Those that fill up the last tile have no weights. */
template <class T>
__global__ void __launch_bounds__(THREADS)
    near_stats(const __grid_constant__ job<T> o, const T *dy, team_plan p)
{
    unsigned r = blockIdx.x * (THREADS / 8) + threadIdx.x / 8, heads = (unsigned)o.a.H,
             rows = p.tiles * QUERIES;
    unsigned first_query = r / heads, h = r - first_query * heads, b = first_query / rows,
             i = first_query - b * rows, c = threadIdx.x % 8 * 8;
    if (blockIdx.x == 0 && p.team > 1)
        for (int n = threadIdx.x; n < p.team * p.teams; n += THREADS) p.done[n] = 0;
    float sum = 0;
    if (b < o.a.B && i < o.a.Tq && c < o.a.Wv) {
        float x[8], y[8];
        load(x, dy, o.y_offset(b, h, i) + c);
        load(y, (const T *)o.a.y, o.y_offset(b, h, i) + c);
#pragma unroll
        for (int e = 0; e < 8; e++) sum += x[e] * y[e];
    }
    for (int x = 4; x; x /= 2) sum += __shfl_xor_sync(~0u, sum, x);
    if (b >= o.a.B || threadIdx.x % 8) return;
    float2 row_stat = i < o.a.Tq ? o.stat(o.lse(b, h, i), sum) : make_float2(INFINITY, 0);
    float *to = p.stat + ((b * o.a.H + h) * p.tiles + i / QUERIES) * (2 * QUERIES) + i % QUERIES;
    to[0] = row_stat.x;
    to[QUERIES] = row_stat.y;
}

/* Who takes part, of so many multiprocessors. */
static team_plan plan_for(const fv_attn_args *a, int sm_count)
{
    team_plan p = {};
    p.heads = (int)(a->B * a->G);
    p.groups = (int)a->G;
    p.q_per_kv = (int)(a->H / a->G);
    p.tiles = (int)ceil_div(a->Tq, QUERIES);
    p.blocks = (int)ceil_div(a->Tk, KEYS);
    p.team = (int)ceil_div((int64_t)p.q_per_kv * p.tiles, SLOTS);
    p.teams = sm_count / p.team < p.heads ? sm_count / p.team : p.heads;
    return p;
}

bool fv_cuda_attention_bwd_smem_fills(const device *d, const fv_attn_args *a)
{
    team_plan p = plan_for(a, d->sm_count);
    int64_t rounds = p.teams ? ceil_div(p.heads, p.teams) : 0;
    return p.teams && (int64_t)p.heads * p.team * 4 >= rounds * d->sm_count * 3;
}

template <class T>
bool fv_cuda_attention_bwd_smem(fv_stream *s, const fv_attn_args *a, const fv_attn_grads *g)
{
    job<T> o = prepare<T>(s, a);
    bwd_smem_maps of;
    team_plan p = plan_for(a, device_of(s)->sm_count);
    int64_t rows = a->B * a->H * p.tiles * QUERIES;
    for (const fv_sink &to : {g->dq, g->dk, g->dv})
        if (to.data && (to.add || to.dtype != kind<T>::dtype || !aligned(to.data))) return false;
    if (!p.teams || rows > INT_MAX || !o.plain || a->dropout > 0 || a->Wk > WIDTH ||
        a->Wv > WIDTH || !o.vector_y || !aligned(g->dy) ||
        !fv_cuda_tensor_map_qkv(&of.in, a, kind<T>::dtype, QUERIES, KEYS) ||
        !fv_cuda_tensor_map(&of.dy, g->dy, kind<T>::dtype, a->B, a->Tq, a->H, a->Wv, a->H * a->Wv,
                            a->Tq * a->H * a->Wv, QUERIES))
        return false;

    /* scratch, in float4s */
    int64_t used = (int64_t)p.team * p.teams, of_links = p.team > 1 ? used * LINKS * LINK : 0,
            of_stats = ceil_div(rows, 2);
    float4 *scratch = alloc_scratch<float4>(s, of_links + of_stats + used / 4 + 1);
    if (!scratch) return true;
    p.links = scratch;
    p.stat = (float *)(scratch + of_links);
    p.done = (unsigned *)(scratch + of_links + of_stats);
    gradients<T> to_all = {(T *)g->dq.data, (T *)g->dk.data, (T *)g->dv.data};
    launch(s, "attention_bwd", near_stats<T>, dim3((unsigned)ceil_div(rows, THREADS / 8)), THREADS,
           0, o, (const T *)g->dy, p);
    launch(s, "attention_bwd", grad_bwd_smem<T>, dim3((unsigned)used), BLOCK_THREADS,
           smem_layout<T>::BYTES, o, of, p, to_all);
    return true;
}

template bool fv_cuda_attention_bwd_smem<bf16>(fv_stream *, const fv_attn_args *,
                                               const fv_attn_grads *);
template bool fv_cuda_attention_bwd_smem<f16>(fv_stream *, const fv_attn_args *,
                                              const fv_attn_grads *);
