/* pairs_sm90.h - slopes of scores on Hopper, added up over all that read the same number: what the
 * gradients of a bias by pairs (bias_bwd_sm90.cu) and of a table by distance (table_bwd_sm90.cu)
 * have in common.
 *
 * A block has 128 rows, 64 for each of two groups of four warps, by 128 keys at a time, and keeps
 * their sums in registers while it goes through whatever is added up: sequences, heads, places.
 * Warps of its own bring what they need, ahead and into the next item: queries with keys, for the
 * scores, then dy with values.  Groups take turns in starting products, so that one's exponentials
 * fall into the other's products. */
#ifndef FV_CUDA_ATTENTION_PAIRS_SM90_H
#define FV_CUDA_ATTENTION_PAIRS_SM90_H

#include "bias_sm90.h"
#include "grads.h"

/* A slot has two factors of one product.  BIAS: a tile of a bias is brought for each item, and
 * added; else scores.h adds what there is. */
template <class T_, int W_, bool BIAS_> struct traits {
    typedef T_ T;
    static constexpr int W = W_;
    static constexpr bool BIAS = BIAS_;
    static constexpr int GROUPS = 2, QUERIES = 64 * GROUPS, KEYS = 128, SLOTS = W == 64 ? 4 : 3,
                         BIASES = W == 64 ? 2 : 1, INFO_STAGES = 2;
    static constexpr int BLOCK_THREADS = 128 * (GROUPS + 1), CONSUMER_REGISTERS = 232,
                         PRODUCER_REGISTERS = 40;
    static constexpr int SLOT = (QUERIES + KEYS) * W, PAIRS = QUERIES * KEYS;
    static constexpr size_t BYTES = (SLOTS * SLOT + BIASES * PAIRS) * sizeof(T) +
                                    INFO_STAGES * (QUERIES * sizeof(float2) + 32) +
                                    2 * (SLOTS + BIASES + INFO_STAGES) * sizeof(uint64_t);
};

struct tensor_maps {
    qkv_tensor_maps in;
    CUtensorMap dy, bias;
};

/* What there is to know of a turn: which item, sequence, head, first row and key, and which of
 * these hold: slots come for it; all pairs take part; it is the first of its item, or comes after
 * the last; there are no more. */
enum { HAS_LOADS = 1, WHOLE = 2, FIRST = 4, LAST = 8, END_OF_WORK = 16 };
struct tile_info {
    int item, b, h, i, j, flags, len, none;
};
static_assert(sizeof(tile_info) == 32, "two words of 16 bytes");

template <class P> struct smem_layout {
    typename P::T *slots, *bias;
    float2 *stat; /* of the rows of a turn */
    tile_info *infos;
    uint64_t *full, *free, *bias_full, *bias_free, *info_full, *info_free;

    __device__ smem_layout(unsigned char *memory)
    {
        slots = (typename P::T *)memory;
        bias = slots + P::SLOTS * P::SLOT;
        stat = (float2 *)(bias + P::BIASES * P::PAIRS);
        infos = (tile_info *)(stat + P::INFO_STAGES * P::QUERIES);
        full = (uint64_t *)(infos + P::INFO_STAGES);
        free = full + P::SLOTS;
        bias_full = free + P::SLOTS;
        bias_free = bias_full + P::BIASES;
        info_full = bias_free + P::BIASES;
        info_free = info_full + P::INFO_STAGES;
    }
    __device__ void init()
    {
        for (int i = 0; i < P::SLOTS; i++) {
            mbarrier_init(full + i, 1);
            mbarrier_init(free + i, 4 * P::GROUPS);
        }
        for (int i = 0; i < P::BIASES; i++) {
            mbarrier_init(bias_full + i, 1);
            mbarrier_init(bias_free + i, 4 * P::GROUPS);
        }
        for (int i = 0; i < P::INFO_STAGES; i++) {
            mbarrier_init(info_full + i, 33);
            mbarrier_init(info_free + i, 4 * P::GROUPS);
        }
        mbarrier_init_fence();
    }
};

/* 8 bytes, or zeros, on their own way; mbarrier_arrive_cp_async: this thread arrives once all that
 * it sent so has come. */
__device__ inline void cp_async_8(void *to, const void *from, bool there)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(smem_addr(to)), "l"(from),
                 "r"(there ? 8 : 0)
                 : "memory");
}
__device__ inline void mbarrier_arrive_cp_async(uint64_t *b)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(smem_addr(b))
                 : "memory");
}

/* Some pair of these takes part. */
template <class T> __device__ inline bool some(const head<T> &at, int i, int rows, int j, int keys)
{
    return i < at.rows && j < at.last_key(i, rows) && j + keys > at.first(i);
}

/* item(n) is the n-th; its each(f) calls f(head, i, j) for all that it adds up, with the first row
 * and key.  One thread brings the factors of one of the two products: rows, of queries or dy, and
 * keys or values.  first: 0 or 1, its first slot. */
template <class P, class I>
__device__ inline void produce_operands(const smem_layout<P> &m, const CUtensorMap *of_rows,
                                        const CUtensorMap *of_keys, const job<typename P::T> &o,
                                        int items, I item, unsigned first)
{
    typedef typename P::T T;
    unsigned slot = first, before = 1; /* the parity of its use before; that of none is 1 */
    int q_per_kv = (int)o.a.H / (int)o.a.G;
    for (int n = blockIdx.x; n < items; n += gridDim.x)
        item(n).each([&](const head<T> &at, int i, int j) {
            T *rows = m.slots + slot * P::SLOT, *keys = rows + P::QUERIES * P::W;
            int g = q_per_kv == 1 ? at.h : at.h / q_per_kv;
            mbarrier_wait(m.free + slot, before);
            mbarrier_arrive_expect_tx(m.full + slot, P::SLOT * sizeof(T));
#pragma unroll
            for (int w = 0; w < P::W; w += PANEL) {
                tma_load_4d(rows + w * P::QUERIES, of_rows, m.full + slot, w, at.h, i, at.b);
                tma_load_4d(keys + w * P::KEYS, of_keys, m.full + slot, w, g, j, at.b);
            }
            slot += 2;
            if (slot >= P::SLOTS) slot -= P::SLOTS, before ^= 1;
        });
}

/* A warp says what each turn is, brings what is known of its rows, and the tile of the bias. */
template <class P, class I>
__device__ inline void produce_tile_info(const smem_layout<P> &m, const CUtensorMap *bias,
                                         const job<typename P::T> &o, const float2 *stat, int items,
                                         I item)
{
    typedef typename P::T T;
    int lane = threadIdx.x % 32;
    unsigned iter = 0, tile = 0; /* so far, of turns and of the bias */
    tile_info now = {};
    auto give = [&](const head<T> *at) {
        unsigned info_stage = iter % P::INFO_STAGES;
        mbarrier_wait(m.info_free + info_stage, (iter / P::INFO_STAGES + 1) & 1);
        if (at) {
            const float2 *from = stat + o.at_row(at->b, at->h, now.i + lane);
            float2 *row_stat = m.stat + info_stage * P::QUERIES + lane;
            int left = at->rows - now.i - lane;
#pragma unroll
            for (int r = 0; r < P::QUERIES; r += 32)
                cp_async_8(row_stat + r, r < left ? from + r : stat, r < left);
        }
        mbarrier_arrive_cp_async(m.info_full + info_stage);
        if (lane == 0) {
            m.infos[info_stage] = now;
            mbarrier_arrive(m.info_full + info_stage);
        }
        iter++;
    };
    for (int n = blockIdx.x; n < items; n += gridDim.x) {
        bool begun = false;
        now.item = n;
        item(n).each([&](const head<T> &at, int i, int j) {
            bool all = at.all_visible(i, P::QUERIES, j, P::KEYS) && !o.a.key_mask;
            now.b = at.b, now.h = at.h, now.i = i, now.j = j, now.len = at.len;
            now.flags = HAS_LOADS | (all ? WHOLE : 0) | (begun ? 0 : FIRST);
            give(&at);
            if (begun) return;
            begun = true;
            if (!P::BIAS) return;
            uint64_t *full = m.bias_full + tile % P::BIASES;
            mbarrier_wait(m.bias_free + tile % P::BIASES, (tile / P::BIASES + 1) & 1);
            if (lane == 0) {
                mbarrier_arrive_expect_tx(full, P::PAIRS * sizeof(T));
                for (int c = 0; c < P::KEYS; c += PANEL)
                    tma_load_4d(m.bias + tile % P::BIASES * P::PAIRS + c * P::QUERIES, bias, full,
                                j + c, o.a.bias_s[1] ? at.h : 0, i, o.a.bias_s[0] ? at.b : 0);
            }
        });
        tile += begun && P::BIAS;
        now.flags = LAST | (begun && P::BIAS ? HAS_LOADS : 0);
        give(NULL);
    }
    now.flags = END_OF_WORK;
    give(NULL);
}

/* What a strip's slopes add to its sums where all pairs take part and nothing is dropped.  add(f)
 * calls f(k, x) with what is added to the products of columns 16 k and on.  Exponentials are to
 * fall between the rest, and the assembler would put all of them last: so what is known of a row
 * waits, from one 16 columns to the next but one, for a weight, of which `none`, 0, takes
 * nothing. */
template <int N, class A>
__device__ inline void add_dscores(float (&sum)[N][4], const float (&s)[N][4],
                                   const float (&d)[N][4], float times, float scale,
                                   const float2 (&row_stat)[2], int none, A add)
{
    float lse[2][2] = {{row_stat[0].x, row_stat[1].x}, {row_stat[0].x, row_stat[1].x}};
    add([&](int k, const float(&x)[2][4]) {
        float w[2][4];
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                w[n][e] = exp2_fast(
                    fmaf(fmaf(x[n][e], times, s[2 * k + n][e]), scale, -lse[k % 2][e / 2]));
                sum[2 * k + n][e] = fmaf(w[n][e], d[2 * k + n][e] - row_stat[e / 2].y,
                                         sum[2 * k + n][e]);
            }
#pragma unroll
        for (int r = 0; r < 2; r++)
            lse[k % 2][r] = __int_as_float(__float_as_int(lse[k % 2][r]) |
                                           (__float_as_int(w[1][2 * r + 1]) & none));
    });
}

/* What one of the groups has to do; take(item, sums, bias) is given the sums of a strip of 16 rows
 * for each warp, and where the strip's bias was, or NULL: there was none. */
template <class P, class F>
__device__ inline void add_all(const smem_layout<P> &m, const job<typename P::T> &o, int group,
                               F take)
{
    typedef typename P::T T;
    constexpr int W = P::W, N = P::KEYS / 8;
    int strip = group * 64 + (int)threadIdx.x / 32 % 4 * 16;
    bool vectorised = o.a.dropout <= 0 && o.scale > 0 && (P::BIAS || (!o.a.mask && !o.a.bias));
    unsigned slot = 0, phase = 0, tile = 0;
    float s[N][4], d[N][4], sum[N][4];
    /* Known to be the same for all. */
    auto flags_of = [&](unsigned iter) {
        mbarrier_wait(m.info_full + iter % P::INFO_STAGES, iter / P::INFO_STAGES & 1);
        return __shfl_sync(~0u, m.infos[iter % P::INFO_STAGES].flags, 0);
    };
    clear(sum);
    int flags = flags_of(0);
    for (unsigned iter = 0; flags != END_OF_WORK; iter++) {
        unsigned info_stage = iter % P::INFO_STAGES;
        if (flags & LAST) {
            int item = m.infos[info_stage].item;
            warp_arrive(m.info_free + info_stage);
            take(item, sum,
                 flags & HAS_LOADS ? m.bias + tile % P::BIASES * P::PAIRS + strip * PANEL : NULL);
            if (flags & HAS_LOADS) warp_arrive(m.bias_free + tile++ % P::BIASES);
            clear(sum);
            flags = flags_of(iter + 1);
            continue;
        }
        unsigned first = slot, first_phase = phase, second = slot + 1, second_phase = phase;
        if (second == P::SLOTS) second = 0, second_phase ^= 1;
        slot += 2;
        if (slot >= P::SLOTS) slot -= P::SLOTS, phase ^= 1;
        const T *q = m.slots + first * P::SLOT, *dy = m.slots + second * P::SLOT;
        named_barrier_sync(1 + group);
        mbarrier_wait(m.full + first, first_phase);
        wgmma_fence();
        gemm_nt<W, P::QUERIES, P::KEYS>(s, q + group * 64 * PANEL, q + P::QUERIES * W);
        wgmma_commit();
        mbarrier_wait(m.full + second, second_phase);
        wgmma_fence();
        gemm_nt<W, P::QUERIES, P::KEYS>(d, dy + group * 64 * PANEL, dy + P::QUERIES * W);
        wgmma_commit();
        named_barrier_arrive(2 - group);
        const float2 *stat = m.stat + info_stage * P::QUERIES;
        const float2 row_stat[2] = {stat[tile_row(strip, 0)], stat[tile_row(strip, 2)]};
        if (P::BIAS && flags & FIRST)
            mbarrier_wait(m.bias_full + tile % P::BIASES, tile / P::BIASES & 1);
        int next = flags_of(iter + 1);
        const T *bias = m.bias + tile % P::BIASES * P::PAIRS + strip * PANEL;
        auto over_bias = [&](auto f) {
#pragma unroll
            for (int c = 0; c < P::KEYS; c += PANEL)
                each_bias<PANEL / 8>(bias + c * P::QUERIES,
                                     [&](int k, const float(&x)[2][4]) { f(c / 16 + k, x); });
        };
        wgmma_wait<1>();
        warp_arrive(m.free + first);
        const tile_info &now = m.infos[info_stage];
        if (vectorised && flags & WHOLE) {
            int none = now.none, b = now.b, h = now.h, len = now.len, row0 = now.i + strip,
                col0 = now.j;
            warp_arrive(m.info_free + info_stage);
            wgmma_wait<0>();
            warp_arrive(m.free + second);
            if constexpr (P::BIAS)
                add_dscores(sum, s, d, o.bias_scale, o.scale, row_stat, none, over_bias);
            else
                add_dscores(sum, s, d, o.bias_scale, o.scale, row_stat, none, [&](auto f) {
                    each_distance<false, N>(head<T>(o, b, h, len), row0, col0, f);
                });
        } else {
            head<T> at(o, now.b, now.h, now.len);
            int row0 = now.i + strip, col0 = now.j;
            warp_arrive(m.info_free + info_stage);
            if (P::BIAS)
                over_bias([&](int k, const float(&x)[2][4]) {
#pragma unroll
                    for (int n = 0; n < 2; n++)
#pragma unroll
                        for (int e = 0; e < 4; e++)
                            s[2 * k + n][e] = fmaf(x[n][e], o.bias_scale, s[2 * k + n][e]);
                });
            exp_scores<false, P::BIAS ? WITH_BIAS : ANY>(s, at, row0, col0, flags & WHOLE,
                                                         [&](int e, int) {
                                                             return row_stat[e / 2].x;
                                                         });
            wgmma_wait<0>();
            warp_arrive(m.free + second);
#pragma unroll
            for (int n = 0; n < N; n++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    sum[n][e] += dscore<ANY>(s[n][e], d[n][e], row_stat[e / 2].y);
        }
        flags = next;
    }
}

/* All that a block does. */
template <class P, class I, class F>
__device__ inline void run_block(unsigned char *memory, const tensor_maps *of,
                                 const job<typename P::T> &o, const float2 *stat, int items, I item,
                                 F take)
{
    smem_layout<P> m(memory);
    if (threadIdx.x == 0) m.init();
    __syncthreads();
    int group = warpgroup_index() - 1;
    if (group < 0) {
        setmaxnreg_dec<P::PRODUCER_REGISTERS>();
        if (threadIdx.x == 0) produce_operands(m, &of->in.q, &of->in.k, o, items, item, 0);
        if (threadIdx.x == 32) produce_operands(m, &of->dy, &of->in.v, o, items, item, 1);
        if (threadIdx.x / 32 == 2) produce_tile_info(m, &of->bias, o, stat, items, item);
    } else {
        setmaxnreg_inc<P::CONSUMER_REGISTERS>();
        if (group == 1) named_barrier_arrive(1);
        add_all(m, o, group,
                [&](int n, auto &sum, typename P::T *bias) { take(n, sum, bias, group); });
        if (group == 0) named_barrier_sync(1);
    }
}

/* ---- on the host ---- */

template <class P>
static bool tensor_map_pairs(tensor_maps *of, const job<typename P::T> &o, const fv_attn_grads *g)
{
    const fv_attn_args &a = o.a;
    fv_dtype t = kind<typename P::T>::dtype;
    return fv_cuda_tensor_map_qkv(&of->in, &a, t, P::QUERIES, P::KEYS) &&
           fv_cuda_tensor_map(&of->dy, g->dy, t, a.B, a.Tq, a.H, a.Wv, a.H * a.Wv,
                              a.Tq * a.H * a.Wv, P::QUERIES) &&
           (!P::BIAS || tensor_map_bias(&of->bias, o, P::QUERIES));
}

/* Blocks that stay, one to a multiprocessor. */
static inline dim3 grid_of(fv_stream *s, int64_t items)
{
    int64_t most = device_of(s)->sm_count;
    return dim3((unsigned)(items < most ? items : most));
}

#endif
