/* pairs_sm90.h - sums of ds over everything that read the same bias, on Hopper: what the
 * gradients of a dense bias (bias_bwd_sm90.cu) and of a table by relative position
 * (table_bwd_sm90.cu) share.
 *
 *     ds_ij = w_ij (keep dy_i.v_j - dy_i.y_i),   w_ij = exp(score_ij - lse_i)
 *
 * Persistent kernel, one block per SM.  A block keeps the sum of ds over a tile of 128 queries
 * by 128 keys in registers while it goes through everything that is summed: sequences, heads,
 * positions along a diagonal.  Per block:
 *
 *   producers   two threads load the operands of the two products by TMA, q with k into even stages
 *               and dy with v into odd ones; a warp writes a description of each tile, its row
 *               statistics (cp.async) and, once per work item, the bias tile
 *   consumers   two warpgroups of 64 queries, which issue their two products in turns (pingpong),
 *               so that the exponentials of one overlap the products of the other
 *
 * Shared memory, in order: operands, bias, row statistics, descriptions, mbarriers.  Registers:
 * 232 per consumer thread, 40 per producer thread. */
#ifndef FV_CUDA_ATTENTION_PAIRS_SM90_H
#define FV_CUDA_ATTENTION_PAIRS_SM90_H

#include "bias_sm90.h"
#include "grads.h"

/* A stage has both operands of one product.  BIAS: the bias tile of each work item is loaded and
 * added; else scores.h adds what there is.
 * The accumulator of ds, 128 x 128 f32, is 64 registers a thread beside s and d of the same
 * size: that is what fixes the tile, and why registers are moved from the producers. */
template <class T_, int W_, bool BIAS_> struct pairs_config {
    typedef T_ T;
    static constexpr int W = W_;
    static constexpr bool BIAS = BIAS_;
    static constexpr int GROUPS = 2, QUERIES = 64 * GROUPS, KEYS = 128, STAGES = W == 64 ? 4 : 3,
                         BIAS_STAGES = W == 64 ? 2 : 1, INFO_STAGES = 2;
    static constexpr int BLOCK_THREADS = 128 * (GROUPS + 1), CONSUMER_REGISTERS = 232,
                         PRODUCER_REGISTERS = 40;
    static constexpr int OPERANDS = (QUERIES + KEYS) * W, BIAS_TILE = QUERIES * KEYS;
};

struct pairs_maps {
    qkv_tensor_maps in;
    CUtensorMap dy, bias;
};

/* What consumers are told about an iteration: work item, sequence, head, first query and key, and
 * flags: HAS_LOADS, operands come for it (or, with LAST, a bias came for the item); FULL_TILE, all
 * pairs are visible; FIRST of its item; LAST, comes after the last tile of an item; END_OF_WORK. */
enum { HAS_LOADS = 1, FULL_TILE = 2, FIRST = 4, LAST = 8, END_OF_WORK = 16 };
struct pairs_tile {
    int item, b, h, i, j, flags, len, zero;
};
static_assert(sizeof(pairs_tile) == 32, "two words of 16 bytes");

template <class P> struct pairs_layout {
    typename P::T *operands, *bias;
    float2 *stat; /* of the tile's queries */
    pairs_tile *infos;
    stage_ring<P::STAGES> ring;
    stage_ring<P::BIAS_STAGES> bias_ring;
    stage_ring<P::INFO_STAGES> info_ring;

    template <class CARVER> __host__ __device__ constexpr void carve(CARVER &c)
    {
        c.take(operands, P::STAGES * P::OPERANDS);
        c.take(bias, P::BIAS_STAGES * P::BIAS_TILE);
        c.take(stat, P::INFO_STAGES * P::QUERIES);
        c.take(infos, P::INFO_STAGES);
        ring.carve(c);
        bias_ring.carve(c);
        info_ring.carve(c);
    }
    __device__ void init() const
    {
        ring.init(1, 4 * P::GROUPS);
        bias_ring.init(1, 4 * P::GROUPS);
        info_ring.init(33, 4 * P::GROUPS); /* cp.async of each lane, and the description */
        mbarrier_init_fence();
    }
};

/* 8 bytes, or zeros, by cp.async; mbarrier_arrive_cp_async arrives for this thread once all its
 * cp.async are complete. */
__device__ inline void cp_async_8(void *to, const void *from, bool in_bounds)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(smem_addr(to)), "l"(from),
                 "r"(in_bounds ? 8 : 0)
                 : "memory");
}
__device__ inline void mbarrier_arrive_cp_async(uint64_t *b)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(smem_addr(b))
                 : "memory");
}

/* Some pair of the tile is visible. */
template <class T>
__device__ inline bool any_visible(const head_view<T> &head, int i, int rows, int j, int keys)
{
    return i < head.rows && j < head.last_key(i, rows) && j + keys > head.first_key(i);
}

/* One producer thread: the operands of one of the two products, rows of q or dy, and rows of k
 * or v. item(n) is the n-th work item; its each(f) calls f(head, i, j) for every tile that it
 * sums.  first: 0 or 1, the stage to start with; it takes every second. */
template <class P, class I>
__device__ inline void
produce_operands(const pairs_layout<P> &m, const CUtensorMap *rows_map, const CUtensorMap *keys_map,
                 const attn_params<typename P::T> &attn, int items, I item, unsigned first)
{
    typedef typename P::T T;
    unsigned stage = first,
             empty_phase = 1; /* the parity of the stage's use before; that of none is 1 */
    int q_per_kv = (int)attn.a.H / (int)attn.a.G;
    for (int n = blockIdx.x; n < items; n += gridDim.x)
        item(n).each([&](const head_view<T> &head, int i, int j) {
            T *rows = m.operands + stage * P::OPERANDS, *keys = rows + P::QUERIES * P::W;
            int g = q_per_kv == 1 ? head.h : head.h / q_per_kv;
            mbarrier_wait(m.ring.empty + stage, empty_phase);
            mbarrier_arrive_expect_tx(m.ring.full + stage, P::OPERANDS * sizeof(T));
            tma_load_tile<P::QUERIES, P::W>(rows, rows_map, m.ring.full + stage, head.h, i, head.b);
            tma_load_tile<P::KEYS, P::W>(keys, keys_map, m.ring.full + stage, g, j, head.b);
            stage += 2;
            if (stage >= P::STAGES) stage -= P::STAGES, empty_phase ^= 1;
        });
}

/* The third producer warp: description and row statistics of each tile, and the bias tile of
 * each work item. */
template <class P, class I>
__device__ inline void produce_tile_info(const pairs_layout<P> &m, const CUtensorMap *bias,
                                         const attn_params<typename P::T> &attn, const float2 *stat,
                                         int items, I item)
{
    typedef typename P::T T;
    int lane = threadIdx.x % 32;
    unsigned iter = 0, tile = 0; /* iterations and bias tiles so far */
    pairs_tile now = {};
    auto publish = [&](const head_view<T> *head) {
        unsigned info = iter % P::INFO_STAGES;
        m.info_ring.wait_empty(iter);
        if (head) {
            const float2 *from = stat + attn.row_index(head->b, head->h, now.i + lane);
            float2 *row_stat = m.stat + info * P::QUERIES + lane;
            int left = head->rows - now.i - lane;
#pragma unroll
            for (int r = 0; r < P::QUERIES; r += 32)
                cp_async_8(row_stat + r, r < left ? from + r : stat, r < left);
        }
        mbarrier_arrive_cp_async(m.info_ring.full + info);
        if (lane == 0) {
            m.infos[info] = now;
            mbarrier_arrive(m.info_ring.full + info);
        }
        iter++;
    };
    for (int n = blockIdx.x; n < items; n += gridDim.x) {
        bool begun = false;
        now.item = n;
        item(n).each([&](const head_view<T> &head, int i, int j) {
            bool all = head.all_visible(i, P::QUERIES, j, P::KEYS) && !attn.a.key_mask;
            now.b = head.b, now.h = head.h, now.i = i, now.j = j, now.len = head.len;
            now.flags = HAS_LOADS | (all ? FULL_TILE : 0) | (begun ? 0 : FIRST);
            publish(&head);
            if (begun) return;
            begun = true;
            if (!P::BIAS) return;
            uint64_t *full = m.bias_ring.full + tile % P::BIAS_STAGES;
            m.bias_ring.wait_empty(tile);
            if (lane == 0) {
                mbarrier_arrive_expect_tx(full, P::BIAS_TILE * sizeof(T));
                for (int c = 0; c < P::KEYS; c += PANEL)
                    tma_load_4d(m.bias + tile % P::BIAS_STAGES * P::BIAS_TILE + c * P::QUERIES,
                                bias, full, j + c, attn.a.bias_s[1] ? head.h : 0, i,
                                attn.a.bias_s[0] ? head.b : 0);
            }
        });
        tile += begun && P::BIAS;
        now.flags = LAST | (begun && P::BIAS ? HAS_LOADS : 0);
        publish(NULL);
    }
    now.flags = END_OF_WORK;
    publish(NULL);
}

/* Adds the ds of 16 rows to their sums, where all pairs are visible and nothing is dropped.
 * each_added(f) calls f(k, x) with what is added to the products of columns 16 k .. 16 k + 15.
 * Exponentials should be spread among the other instructions, but ptxas would put all of them
 * last: so lse of one 16 columns depends on a weight of the 16 before the last, of which `zero`,
 * loaded and always 0, masks everything. */
template <int N, class A>
__device__ inline void add_dscores(float (&sum)[N][4], const float (&s)[N][4],
                                   const float (&d)[N][4], float bias_scale, float scale,
                                   const float2 (&row_stat)[2], int zero, A each_added)
{
    float lse[2][2] = {{row_stat[0].x, row_stat[1].x}, {row_stat[0].x, row_stat[1].x}};
    each_added([&](int k, const float(&x)[2][4]) {
        float w[2][4];
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                w[n][e] = exp2_fast(
                    fmaf(fmaf(x[n][e], bias_scale, s[2 * k + n][e]), scale, -lse[k % 2][e / 2]));
                sum[2 * k + n][e] = fmaf(w[n][e], d[2 * k + n][e] - row_stat[e / 2].y,
                                         sum[2 * k + n][e]);
            }
#pragma unroll
        for (int r = 0; r < 2; r++)
            lse[k % 2][r] = __int_as_float(__float_as_int(lse[k % 2][r]) |
                                           (__float_as_int(w[1][2 * r + 1]) & zero));
    });
}

/* The general case of a tile: products s and d become weights and ds, which is added to sum. */
template <class P, int N, class F>
__device__ __forceinline__ void
add_dscores_masked(float (&sum)[N][4], float (&s)[N][4], const float (&d)[N][4],
                   const head_view<typename P::T> &head, int row0, int col0, bool full_tile,
                   const float2 (&row_stat)[2], F over_bias, uint64_t *operands_empty)
{
    if (P::BIAS)
        over_bias([&](int k, const float(&x)[2][4]) {
#pragma unroll
            for (int n = 0; n < 2; n++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    s[2 * k + n][e] = fmaf(x[n][e], head.attn.bias_scale, s[2 * k + n][e]);
        });
    exp_scores<false, P::BIAS ? WITH_BIAS : ANY>(s, head, row0, col0, full_tile,
                                                 [&](int e, int) { return row_stat[e / 2].x; });
    wgmma_wait<0>();
    warp_arrive(operands_empty);
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) sum[n][e] += dscore<ANY>(s[n][e], d[n][e], row_stat[e / 2].y);
}

/* Issues s = q k' and d = dy v' from two stages of the ring, in this warpgroup's turn. */
template <class P, int N>
__device__ __forceinline__ void
issue_s_d(float (&s)[N][4], float (&d)[N][4], const pairs_layout<P> &m, unsigned first,
          unsigned first_phase, unsigned second, unsigned second_phase, int group)
{
    constexpr int W = P::W;
    const typename P::T *q = m.operands + first * P::OPERANDS,
                        *dy = m.operands + second * P::OPERANDS;
    pingpong<P::GROUPS>::wait(group);
    mbarrier_wait(m.ring.full + first, first_phase);
    wgmma_fence();
    gemm_nt<W, P::QUERIES, P::KEYS>(s, q + group * 64 * PANEL, q + P::QUERIES * W);
    wgmma_commit();
    mbarrier_wait(m.ring.full + second, second_phase);
    wgmma_fence();
    gemm_nt<W, P::QUERIES, P::KEYS>(d, dy + group * 64 * PANEL, dy + P::QUERIES * W);
    wgmma_commit();
    pingpong<P::GROUPS>::pass(group);
}

/* One consumer warpgroup.  epilogue(item, sum, bias) gets the sums of 16 rows of each warp, and the
 * warp's rows of the bias tile in shared memory, or NULL where none was loaded.  The stage of the
 * ring is kept, not computed: it may have three stages. */
template <class P, class F>
__device__ inline void consume_tiles(const pairs_layout<P> &m,
                                     const attn_params<typename P::T> &attn, int group, F epilogue)
{
    typedef typename P::T T;
    constexpr int N = P::KEYS / 8;
    int strip = group * 64 + (int)threadIdx.x / 32 % 4 * 16;
    bool fast = attn.a.dropout <= 0 && attn.scale > 0 &&
                (P::BIAS || (!attn.a.mask && !attn.a.bias));
    unsigned stage = 0, phase = 0, tile = 0; /* tile: of the bias */
    float s[N][4], d[N][4], sum[N][4];
    auto flags_of =
        [&](unsigned iter) { /* warp-uniform for the compiler */
                             m.info_ring.wait_full(iter);
                             return __shfl_sync(~0u, m.infos[iter % P::INFO_STAGES].flags, 0);
        };
    auto bias_tile = [&] { return m.bias + tile % P::BIAS_STAGES * P::BIAS_TILE + strip * PANEL; };
    clear(sum);
    int flags = flags_of(0);
    for (unsigned iter = 0; flags != END_OF_WORK; iter++) {
        unsigned info = iter % P::INFO_STAGES;
        if (flags & LAST) {
            int item = m.infos[info].item;
            warp_arrive(m.info_ring.empty + info);
            epilogue(item, sum, flags & HAS_LOADS ? bias_tile() : NULL);
            if (flags & HAS_LOADS) warp_arrive(m.bias_ring.empty + tile++ % P::BIAS_STAGES);
            clear(sum);
            flags = flags_of(iter + 1);
            continue;
        }
        unsigned first = stage, first_phase = phase, second = stage + 1, second_phase = phase;
        if (second == P::STAGES) second = 0, second_phase ^= 1;
        stage += 2;
        if (stage >= P::STAGES) stage -= P::STAGES, phase ^= 1;
        issue_s_d(s, d, m, first, first_phase, second, second_phase, group);
        const float2 *stat = m.stat + info * P::QUERIES;
        const float2 row_stat[2] = {stat[tile_row(strip, 0)], stat[tile_row(strip, 2)]};
        if (P::BIAS && flags & FIRST) m.bias_ring.wait_full(tile);
        int next = flags_of(iter + 1);
        const T *bias = bias_tile();
        auto over_bias = [&](auto f) {
#pragma unroll
            for (int c = 0; c < P::KEYS; c += PANEL)
                each_bias<PANEL / 8>(bias + c * P::QUERIES,
                                     [&](int k, const float(&x)[2][4]) { f(c / 16 + k, x); });
        };
        wgmma_wait<1>();
        warp_arrive(m.ring.empty + first);
        const pairs_tile &now = m.infos[info];
        if (fast && flags & FULL_TILE) {
            int zero = now.zero, b = now.b, h = now.h, len = now.len, row0 = now.i + strip,
                col0 = now.j;
            warp_arrive(m.info_ring.empty + info);
            wgmma_wait<0>();
            warp_arrive(m.ring.empty + second);
            if constexpr (P::BIAS)
                add_dscores(sum, s, d, attn.bias_scale, attn.scale, row_stat, zero, over_bias);
            else
                add_dscores(sum, s, d, attn.bias_scale, attn.scale, row_stat, zero, [&](auto f) {
                    each_distance<false, N>(head_view<T>(attn, b, h, len), row0, col0, f);
                });
        } else {
            head_view<T> head(attn, now.b, now.h, now.len);
            int row0 = now.i + strip, col0 = now.j;
            warp_arrive(m.info_ring.empty + info);
            add_dscores_masked<P>(sum, s, d, head, row0, col0, flags & FULL_TILE, row_stat,
                                  over_bias, m.ring.empty + second);
        }
        flags = next;
    }
}

/* All that a block does: item(n) is the n-th work item, epilogue as above with the warpgroup. */
template <class P, class I, class F>
__device__ inline void run_block(unsigned char *memory, const pairs_maps *maps,
                                 const attn_params<typename P::T> &attn, const float2 *stat,
                                 int items, I item, F epilogue)
{
    typedef pingpong<P::GROUPS> turns;
    pairs_layout<P> m = open_layout<pairs_layout<P>>(memory);
    int group = warpgroup_index() - 1;
    if (group < 0) {
        setmaxnreg_dec<P::PRODUCER_REGISTERS>();
        if (threadIdx.x == 0) produce_operands(m, &maps->in.q, &maps->in.k, attn, items, item, 0);
        if (threadIdx.x == 32) produce_operands(m, &maps->dy, &maps->in.v, attn, items, item, 1);
        if (threadIdx.x / 32 == 2) produce_tile_info(m, &maps->bias, attn, stat, items, item);
    } else {
        setmaxnreg_inc<P::CONSUMER_REGISTERS>();
        turns::start(group);
        consume_tiles(m, attn, group, [&](int n, auto &sum, typename P::T *bias) {
            epilogue(n, sum, bias, group);
        });
        turns::finish(group);
    }
}

/* ---- on the host ---- */

template <class P>
static bool make_pairs_maps(pairs_maps *maps, const attn_params<typename P::T> &attn,
                            const fv_attn_grads *g)
{
    const fv_attn_args &a = attn.a;
    fv_dtype t = kind<typename P::T>::dtype;
    return fv_cuda_tensor_map_qkv(&maps->in, &a, t, P::QUERIES, P::KEYS) &&
           fv_cuda_tensor_map(&maps->dy, g->dy, t, a.B, a.Tq, a.H, a.Wv, a.H * a.Wv,
                              a.Tq * a.H * a.Wv, P::QUERIES) &&
           (!P::BIAS || tensor_map_bias(&maps->bias, attn, P::QUERIES));
}

#endif
