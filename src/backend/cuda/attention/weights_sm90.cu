/* weights_sm90.cu - exact attention weights of rows of one head on Hopper, from the log-sum-exp.
 *
 *     w_ij = 2^(fma(s_ij, scale, -max_i)) / sum_i,  for queries i in [from, to) and all keys j
 *
 * Bound by the stores of w, 2 or 4 bytes a pair.  Persistent kernel, one block per SM:
 *
 *   producer    one thread loads k and q tiles by TMA, two stages each
 *   consumers   GROUPS warpgroups of 64 queries by 128 keys, which issue wgmma in turns (pingpong),
 *               so that the exponentials of one overlap the products of another
 *   stores      a finished tile goes to shared memory, swizzled, and out by TMA in boxes of 64 rows
 *               of 128 bytes.  Tiles without a visible pair are stored from a box of zeros, and
 *               cost nothing but their bytes
 *
 * A work item is a run of row tiles below one another, for which the k tile stays; neighbouring
 * blocks have neighbouring columns.  Runs are short: long ones scatter the stores over the whole
 * matrix, which DRAM takes more slowly.
 *
 * Shared memory, in order: k, q, output tiles, zeros.  Registers: 160 (f32: 240) per consumer
 * thread. */
#include "attention.h"
#include "dispatch.h"
#include "backend/cuda/device/sm90_pipeline.h"

namespace
{
enum { KEYS = 128, STAGES = 2 };

/* One TMA store moves a box of 64 rows of 128 bytes; a warpgroup's tile is TILE elements of
 * them. */
template <class O> struct store_box {
    static constexpr int COLUMNS = 128 / sizeof(O), SIZE = 64 * COLUMNS,
                         TILE = KEYS / COLUMNS * SIZE;
};

/* O: the dtype of weights.  Output tiles of f32 leave shared memory for two warpgroups. */
template <class T_, class O_, int W_, int KIND_> struct weights_config {
    typedef T_ T;
    typedef O_ O;
    static constexpr int W = W_, KIND = KIND_;
    static constexpr bool NARROW = sizeof(O) == 2;
    static constexpr int GROUPS = NARROW ? 3 : 2, QUERIES = 64 * GROUPS,
                         BLOCK_THREADS = 128 * (GROUPS + 1);
    static constexpr int CONSUMER_REGISTERS = NARROW ? 160 : 240,
                         PRODUCER_REGISTERS = NARROW ? 32 : 24;
    static constexpr int OUT_BUFFERS = W <= 64 ? 2 : 1, MAX_RUN = NARROW ? 4 : 2;
};

/* Queries [from, to) of one head, in `runs` runs of `run` row tiles, `across` of them side by
 * side.
 *    columns (128 keys) ->   0   1   2   3        run = 2: a block keeps k of its column for two
 *    strip 0 (192 rows)     [A] [B] [C] [D]       strips; the next band of strips starts SHIFT
 *    strip 1                [A] [B] [C] [D]       columns further on, so that causal rows, whose
 *    strip 2                [D] [A] [B] [C]       upper tiles are hidden, are shared out evenly */
struct weights_plan {
    int b, h, from, to, run, across, runs;
};

struct weights_maps {
    qkv_tensor_maps in;
    CUtensorMap w;
};

template <class P> struct weights_layout {
    typename P::T *k, *q;
    typename P::O *out, *zeros;

    template <class CARVER> __host__ __device__ constexpr void carve(CARVER &c)
    {
        c.take(k, STAGES * KEYS * P::W);
        c.take(q, STAGES * P::QUERIES * P::W);
        c.take(out, P::GROUPS * P::OUT_BUFFERS * store_box<typename P::O>::TILE);
        c.take(zeros, store_box<typename P::O>::SIZE);
    }
};

/* No pair of the tile is visible. */
template <int QUERIES, class T>
__device__ inline bool hidden(const head_view<T> &head, int row, int key)
{
    return key >= head.last_key(row, QUERIES) || key + KEYS <= head.first_key(row);
}

/* f(row, key, run) for all tiles of this block.  Each band of runs begins at another column, so
 * that all blocks get hidden and visible tiles in equal shares. */
template <int QUERIES, class F> __device__ inline void each_tile(const weights_plan &plan, F f)
{
    constexpr int SHIFT = 37;
    for (int i = blockIdx.x; i < plan.runs; i += gridDim.x) {
        int band = i / plan.across, column = (i % plan.across + band * SHIFT) % plan.across;
        for (int strip = band * plan.run; strip < (band + 1) * plan.run; strip++) {
            int row = plan.from + strip * QUERIES;
            if (row < plan.to) f(row, column * KEYS, i);
        }
    }
}

/* The producer thread. */
template <class P>
__device__ __forceinline__ void
produce_tiles(const weights_layout<P> &m, const stage_ring<STAGES> &k_ring,
              const stage_ring<STAGES> &q_ring, const head_view<typename P::T> &head,
              const weights_maps &maps, const weights_plan &plan)
{
    constexpr unsigned SIZE = P::W * sizeof(typename P::T);
    unsigned k_iter = ~0u, q_iter = 0;
    int run = -1;
    each_tile<P::QUERIES>(plan, [&](int row, int key, int i) {
        if (hidden<P::QUERIES>(head, row, key)) return;
        if (run != i) {
            run = i;
            k_iter++;
            int stage = k_ring.stage(k_iter);
            k_ring.wait_empty(k_iter);
            mbarrier_arrive_expect_tx(k_ring.full + stage, KEYS * SIZE);
            tma_load_tile<KEYS, P::W>(m.k + stage * KEYS * P::W, &maps.in.k, k_ring.full + stage,
                                      head.attn.kv_head(plan.h), key, plan.b);
        }
        int stage = q_ring.stage(q_iter);
        q_ring.wait_empty(q_iter++);
        mbarrier_arrive_expect_tx(q_ring.full + stage, P::QUERIES * SIZE);
        tma_load_tile<P::QUERIES, P::W>(m.q + stage * P::QUERIES * P::W, &maps.in.q,
                                        q_ring.full + stage, plan.h, row, plan.b);
    });
}

/* A warpgroup's weights, 64 rows by KEYS, to the swizzled boxes of its output tile.  f32:
 * threads of odd rows store column blocks two further on first, or two rows would hit the same
 * banks. */
__device__ inline void store_tile(float *to, const float (&s)[KEYS / 8][4])
{
    typedef store_box<float> box;
    int row = tile_row((int)threadIdx.x / 32 % 4 * 16, 0), lane = threadIdx.x % 4;
    bool odd = row % 2;
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            /* 16-byte chunk of the row; row + 8 has the same swizzle */
            int chunk = (n % 4 * 2 + lane / 2) ^ row % 8 ^ (odd ? 4 : 0);
            float2 v = make_float2(odd ? s[n ^ 2][r * 2] : s[n][r * 2],
                                   odd ? s[n ^ 2][r * 2 + 1] : s[n][r * 2 + 1]);
            *(float2 *)(to + n / 4 * box::SIZE + (row + r * 8) * box::COLUMNS + chunk * 4 +
                        lane % 2 * 2) = v;
        }
}
template <class O> __device__ inline void store_tile(O *to, const float (&s)[KEYS / 8][4])
{
    uint32_t x[KEYS / 16][4];
    pack_fragments(x, s, O());
    store_swizzled<64>(to, x, (int)threadIdx.x / 32 % 4 * 16);
}

/* TMA stores of a tile, by one thread; boxes are `apart` elements from one another. */
template <class O>
__device__ inline void tma_store_tile(const CUtensorMap *map, const O *from, int apart, int key,
                                      int row)
{
#pragma unroll
    for (int n = 0; n < KEYS / store_box<O>::COLUMNS; n++)
        tma_store_2d(map, from + n * apart, key + n * store_box<O>::COLUMNS, row);
    bulk_commit();
}

/* One consumer warpgroup. */
template <class P>
__device__ __forceinline__ void
consume_tiles(const weights_layout<P> &m, const stage_ring<STAGES> &k_ring,
              const stage_ring<STAGES> &q_ring, const head_view<typename P::T> &head,
              const weights_maps &maps, const weights_plan &plan, int group)
{
    typedef typename P::O O;
    typedef pingpong<P::GROUPS, 1 + P::GROUPS> turns; /* behind the barriers of one warpgroup */
    constexpr int W = P::W, QUERIES = P::QUERIES, TILE = store_box<O>::TILE;
    const attn_params<typename P::T> &attn = head.attn;
    unsigned k_iter = ~0u, q_iter = 0;
    int run = -1;
    bool is_store_thread = threadIdx.x % 128 == 0;
    float s[KEYS / 8][4];
    turns::start(group);
    each_tile<QUERIES>(plan, [&](int row, int key, int i) {
        int rows = row + group * 64, row0 = rows + (int)threadIdx.x / 32 % 4 * 16;
        if (hidden<QUERIES>(head, row, key)) {
            if (is_store_thread) tma_store_tile(&maps.w, m.zeros, 0, key, rows - plan.from);
            return;
        }
        float2 lse[2]; /* loaded ahead of the wait for the tiles */
        row_stat stat[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int query = tile_row(row0, r * 2);
            lse[r] = query < plan.to ? attn.lse(plan.b, plan.h, query) : make_float2(0, 0);
        }
        if (run != i) {
            if (run >= 0) warp_arrive(k_ring.empty + k_ring.stage(k_iter));
            run = i;
            k_ring.wait_full(++k_iter);
        }
        int stage = q_ring.stage(q_iter);
        turns::wait(group);
        q_ring.wait_full(q_iter);
        wgmma_fence();
        gemm_nt<W, QUERIES, KEYS>(s, m.q + stage * QUERIES * W + group * 64 * PANEL,
                                  m.k + k_ring.stage(k_iter) * KEYS * W);
        wgmma_commit();
        wgmma_wait<0>();
        turns::pass(group);
        warp_arrive(q_ring.empty + stage);
#pragma unroll
        for (int r = 0; r < 2; r++) stat[r] = weight_stat(lse[r]);
        exp_scores<false, P::KIND>(s, head, row0, key, head.all_visible(rows, 64, key, KEYS),
                                   [&](int e, int) { return stat[e / 2]; });
        /* the forward kernel may have been another one (mma.sync, cuDNN) and round otherwise */
#pragma unroll
        for (int e = 0; e < KEYS / 2; e++) s[e / 4][e % 4] = fminf(s[e / 4][e % 4], 1);
        O *out = m.out + (group * P::OUT_BUFFERS + (int)(q_iter++ % P::OUT_BUFFERS)) * TILE;
        /* the store before from this buffer has read it */
        if (is_store_thread) bulk_wait_read<P::OUT_BUFFERS - 1>();
        warpgroup_sync(1 + group);
        store_tile(out, s);
        fence_async_proxy();
        warpgroup_sync(1 + group);
        if (is_store_thread)
            tma_store_tile(&maps.w, out, store_box<O>::SIZE, key, rows - plan.from);
    });
    turns::finish(group);
    if (is_store_thread) bulk_wait_read();
}

template <class P>
__global__ void __launch_bounds__(P::BLOCK_THREADS, 1)
    weights_wgmma(const __grid_constant__ attn_params<typename P::T> attn,
                  const __grid_constant__ weights_maps maps,
                  const __grid_constant__ weights_plan plan)
{
    typedef typename P::O O;
    extern __shared__ __align__(1024) unsigned char memory[];
    __shared__ uint64_t barriers[4 * STAGES];
    weights_layout<P> m;
    smem_carver carver = {memory};
    m.carve(carver);
    stage_ring<STAGES> k_ring = {barriers, barriers + STAGES},
                       q_ring = {barriers + 2 * STAGES, barriers + 3 * STAGES};
    if (threadIdx.x == 0) {
        k_ring.init(1, 4 * P::GROUPS);
        q_ring.init(1, 4 * P::GROUPS);
        mbarrier_init_fence();
    }
    for (int i = threadIdx.x; i < store_box<O>::SIZE; i += P::BLOCK_THREADS)
        m.zeros[i] = from_float<O>(0);
    fence_async_proxy();
    __syncthreads();
    head_view<typename P::T> head(attn, plan.b, plan.h);
    int group = warpgroup_index() - 1;
    if (group < 0) {
        setmaxnreg_dec<P::PRODUCER_REGISTERS>();
        if (threadIdx.x == 0) produce_tiles<P>(m, k_ring, q_ring, head, maps, plan);
    } else {
        setmaxnreg_inc<P::CONSUMER_REGISTERS>();
        consume_tiles<P>(m, k_ring, q_ring, head, maps, plan, group);
    }
}

template <class P>
bool start(fv_stream *s, typename P::O *w, const attn_params<typename P::T> &attn,
           weights_plan plan)
{
    typedef typename P::O O;
    const fv_attn_args &a = attn.a;
    weights_maps maps;
    const cuuint64_t dim[] = {(cuuint64_t)a.Tk, (cuuint64_t)(plan.to - plan.from)},
                     step[] = {(cuuint64_t)a.Tk * sizeof(O)};
    const cuuint32_t box[] = {store_box<O>::COLUMNS, 64};
    if (a.Tk * sizeof(O) % 16 || !aligned(w) ||
        !fv_cuda_tensor_map_nd(&maps.w, w, kind<O>::dtype, 2, dim, step, box) ||
        !fv_cuda_tensor_map_qkv(&maps.in, &a, kind<typename P::T>::dtype, P::QUERIES, KEYS))
        return false;
    int64_t across = ceil_div(a.Tk, KEYS), strips = ceil_div(plan.to - plan.from, P::QUERIES),
            run = ceil_div(across * strips, device_of(s)->sm_count);
    plan.run = run < P::MAX_RUN ? (int)run : P::MAX_RUN;
    plan.across = (int)across;
    plan.runs = (int)(across * ceil_div(strips, plan.run));
    launch(s, "attention_weights", weights_wgmma<P>, persistent_grid(s, plan.runs),
           P::BLOCK_THREADS, smem_bytes<weights_layout<P>>(), attn, maps, plan);
    return true;
}

template <class T, class O>
bool start_as(fv_stream *s, O *w, const attn_params<T> &attn, weights_plan plan)
{
    if (attn.a.Wk <= 64)
        return attn.plain ? start<weights_config<T, O, 64, PLAIN>>(s, w, attn, plan)
                          : start<weights_config<T, O, 64, ANY>>(s, w, attn, plan);
    return attn.plain ? start<weights_config<T, O, 128, PLAIN>>(s, w, attn, plan)
                      : start<weights_config<T, O, 128, ANY>>(s, w, attn, plan);
}
} // namespace

template <class T>
bool fv_cuda_weights_hopper(fv_stream *s, fv_sink w, const attn_params<T> *attn, int64_t b,
                            int64_t h, int64_t i0, int64_t i1)
{
    weights_plan plan = {(int)b, (int)h, (int)i0, (int)i1, 0, 0, 0};
    if (w.add) return false;
    return w.dtype == FV_F32 ? start_as(s, (float *)w.data, *attn, plan)
                             : start_as(s, (T *)w.data, *attn, plan);
}

template bool fv_cuda_weights_hopper<bf16>(fv_stream *, fv_sink, const attn_params<bf16> *, int64_t,
                                           int64_t, int64_t, int64_t);
template bool fv_cuda_weights_hopper<f16>(fv_stream *, fv_sink, const attn_params<f16> *, int64_t,
                                          int64_t, int64_t, int64_t);
