/* fwd_sm90.cu - the forward pass of attention on Hopper: TMA, wgmma, warp specialisation.
 *
 *     s = scale q k' (+ bias, masked);  w = exp(s - max);  y = dropout(w) v / sum w;
 *     lse = (max, sum w)
 *
 * Persistent kernel: one block per SM takes work items, QUERIES rows of one head and the keys
 * that they see, from a static schedule.  Per block:
 *
 *   producer    one thread loads q into Q_STAGES stages and k, v into STAGES stages by TMA, ahead
 *               of their use and into the next work item.  WITH_DROPOUT: a second warp computes the
 *               key half of the Philox state of each tile, once for all rows.
 *   consumers   GROUPS warpgroups of 64 rows.  q k' of tile t and p v of tile t - 1 are issued
 *               together; the softmax of tile t runs while p v is in flight.  Warpgroups issue in
 *               turns (pingpong), so that the exponentials of one overlap the products of another.
 *   epilogue    y goes through the q stage, which is not needed any more, and out by TMA while the
 *               next work item begins.
 *
 * The row maximum is that of the first tile.  Later tiles do not compute theirs: the sum of a
 * tile's weights shows whether one is too large, and only then maximum, y and weights are
 * redone.  That spares a pass over the scores, and changes no result beyond rounding.
 *
 * Shared memory, in order: q, k, v, bias tiles (swizzled, 1024-byte aligned), Philox key states,
 * mbarriers.  Registers per thread: 240, 160 or 112 for two, three or four consumer warpgroups,
 * 24 or 32 for the producer.
 *
 * Tried and slower (docs/benchmarks.md): a warp of its own for the stores, p v of an item's last
 * tile beside q k' of the next item's first, 160 keys a tile, three k and v stages where two
 * suffice, no turns, one exponential of four or eight as a polynomial. */
#include "dispatch.h"
#include "fwd_sm90.h"
#include "online_softmax.h"

namespace
{
#define MANY_TILES 16 /* row tiles of a head from which work items are ordered by length */

/* ---- producer ---- */

/* One thread: q of each work item, then k (with its bias tile) and v, tile by tile. */
template <class P>
__device__ inline void produce_tiles(const fwd_layout<P> &m, const fwd_maps *maps,
                                     const attn_params<typename P::T> &attn,
                                     const fwd_schedule &sched)
{
    constexpr unsigned SIZE = sizeof(typename P::T);
    const fv_attn_args &a = attn.a;
    unsigned iter = 0;
    for (fwd_item<P> x; x.find(attn, sched); x.next(sched)) {
        int b = x.b, h = x.h, g = attn.kv_head(h), q_stage = x.n % P::Q_STAGES;
        m.q_ring.wait_empty((unsigned)x.n);
        mbarrier_arrive_expect_tx(m.q_ring.full + q_stage, P::Q_TILE * SIZE);
        tma_load_tile<P::QUERIES, P::W>(m.q + q_stage * P::Q_TILE, &maps->in.q,
                                        m.q_ring.full + q_stage, h, x.row, b);
        for (int t = 0; t < x.tiles; t++, iter++) {
            int stage = iter % P::STAGES, j = x.first + t * P::KEYS;
            uint64_t *k_full = m.k_ring.full + stage, *v_full = m.v_ring.full + stage;
            m.k_ring.wait_empty(iter);
            mbarrier_arrive_expect_tx(k_full, (P::KV_TILE + P::BIAS_TILE) * SIZE);
#pragma unroll
            for (int c = 0; P::BIAS && c < P::KEYS; c += PANEL)
                tma_load_4d(m.bias + stage * P::BIAS_TILE + c * P::QUERIES, &maps->bias, k_full,
                            j + c, a.bias_s[1] ? h : 0, x.row, a.bias_s[0] ? b : 0);
            tma_load_tile<P::KEYS, P::W>(m.k + stage * P::KV_TILE, &maps->in.k, k_full, g, j, b);
            m.v_ring.wait_empty(iter);
            mbarrier_arrive_expect_tx(v_full, P::KV_TILE * SIZE);
            tma_load_tile<P::KEYS, P::W>(m.v + stage * P::KV_TILE, &maps->in.v, v_full, g, j, b);
        }
    }
}

/* One warp, WITH_DROPOUT: the key half of the Philox state for the keys of each tile. */
template <class P>
__device__ inline void produce_philox(const fwd_layout<P> &m,
                                      const attn_params<typename P::T> &attn,
                                      const fwd_schedule &sched)
{
    static_assert(P::PHILOX_KEYS <= 32, "one for each lane");
    unsigned iter = 0, lane = threadIdx.x % 32;
    uint64_t step = *attn.a.rng.step;
    for (fwd_item<P> x; x.find(attn, sched); x.next(sched))
        for (int t = 0; t < x.tiles; t++, iter++) {
            int stage = iter % P::STAGES;
            fv__philox_key_part k = fv__philox_start_key(&attn.philox_keys, attn.a.rng.site, step,
                                                         (unsigned)(x.first + t * P::KEYS) / 4 +
                                                             lane);
            m.k_ring.wait_empty(iter);
            if ((int)lane < P::PHILOX_KEYS)
                m.philox[stage * P::PHILOX_KEYS + lane] = make_uint4(k.mixed, k.c0, k.c2, k.c3);
            mbarrier_arrive(m.k_ring.full + stage);
        }
}

/* ---- consumers ---- */

/* Weights of 16 columns as A fragments.  again: weights that were 0 before are too small or
 * dropped, and stay 0. */
template <int KIND, class T>
__device__ inline void pack_weights(uint32_t (&p)[4], const float (&w)[2][4], bool again, T)
{
#pragma unroll
    for (int e = 0; e < 4; e++) {
        float a = w[e / 2][e % 2 * 2], b = w[e / 2][e % 2 * 2 + 1];
        if (again)
            p[e] = pack2(p[e] & 0xffff ? a : 0, p[e] >> 16 ? b : 0, T());
        else
            p[e] = KIND == WITH_DROPOUT ? pack2_relu(a, b, T()) : pack2(a, b, T());
    }
}

/* The dropout mask over the weights of 16 rows.
 * Philox mixes row and key counters only from its third round on (attention_dropout.h): the row
 * half is computed once per item and kept in registers, the key half once per tile by the
 * producer's second warp for all rows, and only five rounds are left for each 16 columns. */
template <class P> struct dropout_mask {
    const fwd_layout<P> &m;
    const head_view<typename P::T> &head;
    int row0;
    fv__philox_row_part philox; /* WITH_DROPOUT: the row half of the Philox state */

    __device__ dropout_mask(const fwd_layout<P> &m_, const head_view<typename P::T> &head_,
                            int row0_)
        : m(m_), head(head_), row0(row0_)
    {
        if (P::DROPOUT)
            philox = fv__philox_start_row(&head.attn.philox_keys, head.step,
                                          head.philox_row(tile_row(row0, 0)));
    }
    /* WITH_DROPOUT: a minus sign on dropped weights of columns 16 k .. of a tile, from the table of
     * key states. */
    __device__ void mark_dropped_columns(float (&w)[2][4], int stage, int k) const
    {
        uint4 key = m.philox[stage * P::PHILOX_KEYS + k * 4 + threadIdx.x % 4];
        uint32_t word[2][2];
        fv__philox_finish(word[0], &head.attn.philox_keys, philox,
                          fv__philox_key_part{key.x, key.y, key.z, key.w});
        mark_dropped<false>(w, word, head.attn.drop_threshold);
    }
    /* Other kinds have no table: zeroes dropped weights of a tile from key j on, already packed. */
    __device__ void zero_dropped_tile(uint32_t (&p)[P::KEYS / 16][4], int j) const
    {
        uint32_t below = head.attn.drop_threshold;
#pragma unroll
        for (int k = 0; k < P::KEYS / 16; k++) {
            uint32_t word[2][2];
            dropout_bits<false>(word, head, row0, j, k);
#pragma unroll
            for (int e = 0; e < 4; e++) {
                uint32_t a = word[0][e / 2], b = word[1][e / 2];
                if ((e % 2 ? a : a << 16) < below) p[k][e] &= 0xffff0000;
                if ((e % 2 ? b : b << 16) < below) p[k][e] &= 0xffff;
            }
        }
    }
};

/* The keys of a stage are not needed any more.  (Who arrives: fwd_layout::init.) */
template <class P> __device__ __forceinline__ void release_k(const fwd_layout<P> &m, int stage)
{
    if (P::DROPOUT)
        mbarrier_arrive(m.k_ring.empty + stage);
    else
        warp_arrive(m.k_ring.empty + stage);
}

/* Products s of tile t become scores, then weights p.  row: the warpgroup's first.  between() runs
 * ahead of what changes p and y: it waits for p v of the tile before. */
template <class P, class F>
__device__ __forceinline__ void
softmax_tile(float (&s)[P::KEYS / 8][4], float (&y)[P::W / 8][4], uint32_t (&p)[P::KEYS / 16][4],
             softmax_state &r, const dropout_mask<P> &dropout, const fwd_layout<P> &m,
             const head_view<typename P::T> &head, const fwd_item<P> &x, int row, int t, int stage,
             F between)
{
    typedef typename P::T T;
    constexpr int KEYS = P::KEYS;
    int j = x.first + t * KEYS, row0 = dropout.row0;
    float scale = scale_of<P::KIND>(head), sum[2], correction[2];
#pragma unroll
    for (int c = 0; P::BIAS && c < KEYS; c += PANEL)
        add_bias<false, PANEL / 8>(s + c / 8,
                                   m.bias + stage * P::BIAS_TILE + c * P::QUERIES +
                                       (row0 - x.row) * PANEL,
                                   0, head.attn.bias_scale);
    if (!P::DROPOUT) release_k(m, stage);
    mask_scores<P::KIND>(s, head, row0, j, head.all_visible(row, 64, j, KEYS));
    if (t == 0) update_row_max(s, scale, r, correction);
    between();
    bool fit = exp_weights(s, scale, r, sum, [&](int k, float(&w)[2][4]) {
        if (P::DROPOUT) dropout.mark_dropped_columns(w, stage, k);
        pack_weights<P::KIND>(p[k], w, false, T());
    });
    if (t > 0 && !fit) {
        update_row_max(s, scale, r, correction);
        rescale(y, correction);
        exp_weights(s, scale, r, sum,
                    [&](int k, float(&w)[2][4]) { pack_weights<P::KIND>(p[k], w, true, T()); });
    }
    r.row_sum[0] += sum[0], r.row_sum[1] += sum[1];
    if (P::DROPOUT)
        release_k(m, stage); /* not before: the Philox table belongs to the same stage */
    else if (has_dropout<P::KIND>(head))
        dropout.zero_dropped_tile(p, j);
}

/* Tiles [from, to) that only other warpgroups see: takes its turns and releases them. */
template <class P>
__device__ __forceinline__ void skip_tiles(const fwd_layout<P> &m, int from, int to, unsigned iter,
                                           int group)
{
    for (int t = from; t < to; t++) {
        pingpong<P::GROUPS>::wait(group);
        pingpong<P::GROUPS>::pass(group);
        m.k_ring.wait_full(iter + t);
        release_k(m, m.k_ring.stage(iter + t));
        m.v_ring.wait_full(iter + t);
        warp_arrive(m.v_ring.empty + m.v_ring.stage(iter + t));
    }
}

/* One thread of a warpgroup: y of item n has left its q stage, which may be loaded again. */
template <class P> __device__ inline void release_q(const fwd_layout<P> &m, int n)
{
    if (n < 0 || threadIdx.x % 128) return;
    bulk_wait_read();
    mbarrier_arrive(m.q_ring.empty + n % P::Q_STAGES);
}

/* Epilogue: y to where the warpgroup's q was, and from there by TMA. */
template <class P>
__device__ inline void store_output(typename P::T *q, const float (&y)[P::W / 8][4],
                                    const fwd_maps *maps, const fwd_item<P> &x, int group)
{
    uint32_t packed[P::W / 16][4];
    pack_fragments(packed, y, typename P::T());
    store_swizzled<P::QUERIES>(q, packed, (int)threadIdx.x / 32 % 4 * 16);
    fence_async_proxy();
    warpgroup_sync(1 + P::GROUPS + group);
    if (threadIdx.x % 128) return;
#pragma unroll
    for (int c = 0; c < P::W; c += PANEL)
        tma_store_4d(&maps->y, q + c * P::QUERIES, c, x.h, x.row + group * 64, x.b);
    bulk_commit();
}

/* One consumer warpgroup at one work item: 64 rows, all tiles of keys.  iter counts the key
 * tiles of the items before, and so names the stage of tile t.  q k' of tile t is issued before
 * p v of tile t - 1, and the softmax waits for the former only. */
template <class P>
__device__ inline void attend(const fwd_layout<P> &m, const fwd_maps *maps,
                              const head_view<typename P::T> &head, const fwd_item<P> &x, int group,
                              unsigned iter)
{
    typedef typename P::T T;
    typedef pingpong<P::GROUPS> turns;
    constexpr int KEYS = P::KEYS, W = P::W;
    int rows = x.row + group * 64, row0 = rows + (int)threadIdx.x / 32 % 4 * 16;
    /* tiles that these rows see; the rest of the item's they only release */
    int own = rows < head.rows ? fwd_item<P>::tiles_to(x.first, head.last_key(rows, 64)) : 0;
    T *q = m.q + x.n % P::Q_STAGES * P::Q_TILE + group * 64 * PANEL;
    float s[KEYS / 8][4], y[W / 8][4];
    uint32_t p[KEYS / 16][4];
    dropout_mask<P> dropout(m, head, row0);
    /* rows past the end have a maximum already, so that they never ask for a new one */
    softmax_state r = {{tile_row(row0, 0) < head.rows ? -INFINITY : 0,
                        tile_row(row0, 2) < head.rows ? -INFINITY : 0},
                       {0, 0}};
    auto stage = [&](int t) { return (int)((iter + t) % P::STAGES); };
    auto issue_qk = [&](int t) {
        m.k_ring.wait_full(iter + t);
        wgmma_fence();
        gemm_nt<W, P::QUERIES, KEYS>(s, q, m.k + stage(t) * P::KV_TILE);
        wgmma_commit();
    };
    auto issue_pv = [&](int t) {
        m.v_ring.wait_full(iter + t);
        wgmma_fence();
        gemm_rs(y, p, m.v + stage(t) * P::KV_TILE, t > 0);
        wgmma_commit();
    };
    auto softmax = [&](int t, auto between) {
        softmax_tile<P>(s, y, p, r, dropout, m, head, x, rows, t, stage(t), between);
    };
    m.q_ring.wait_full((unsigned)x.n);
    turns::wait(group);
    if (own) {
        issue_qk(0);
        turns::pass(group);
        if (P::Q_STAGES > 1) release_q(m, x.n - 1);
        wgmma_wait<0>();
        softmax(0, [] {});
        for (int t = 1; t < own; t++) {
            turns::wait(group);
            issue_qk(t);
            issue_pv(t - 1);
            turns::pass(group);
            wgmma_wait<1>();
            softmax(t, [&] {
                wgmma_wait<0>();
                warp_arrive(m.v_ring.empty + stage(t - 1));
            });
        }
        turns::wait(group);
        issue_pv(own - 1);
        turns::pass(group);
        skip_tiles(m, own, x.tiles, iter, group);
        wgmma_wait<0>();
        warp_arrive(m.v_ring.empty + stage(own - 1));
    } else {
        clear(y);
        turns::pass(group);
        if (P::Q_STAGES > 1) release_q(m, x.n - 1);
        skip_tiles(m, own, x.tiles, iter, group);
    }
    normalise_output(y, r, head);
    store_output(q, y, maps, x, group);
    if (P::Q_STAGES == 1) release_q(m, x.n);
    write_lse(r, head, row0); /* last: the fence in store_output would wait for it, too */
}

template <class P>
__global__ void __launch_bounds__(P::BLOCK_THREADS, 1)
    attention_wgmma(const __grid_constant__ attn_params<typename P::T> attn,
                    const __grid_constant__ fwd_maps maps, fwd_schedule sched)
{
    extern __shared__ unsigned char memory[];
    fwd_layout<P> m = open_layout<fwd_layout<P>>(align_1024(memory));
    int group = warpgroup_index() - 1;
    if (group < 0) {
        setmaxnreg_dec<P::PRODUCER_REGISTERS>();
        if (threadIdx.x == 0) produce_tiles(m, &maps, attn, sched);
        if (P::DROPOUT && threadIdx.x / 32 == 1) produce_philox(m, attn, sched);
    } else {
        setmaxnreg_inc<P::CONSUMER_REGISTERS>();
        pingpong<P::GROUPS>::start(group);
        unsigned iter = 0;
        for (fwd_item<P> x; x.find(attn, sched); x.next(sched)) {
            attend(m, &maps, head_view<typename P::T>(attn, x.b, x.h), x, group, iter);
            iter += x.tiles;
        }
        pingpong<P::GROUPS>::finish(group);
        if (threadIdx.x % 128 == 0) bulk_wait_read();
    }
}

/* ---- on the host ---- */

/* One block per SM; but few items of different lengths are better left to the hardware's own block
 * scheduler, one block each. */
template <class P> bool start(fv_stream *s, const attn_params<typename P::T> &attn)
{
    const fv_attn_args &a = attn.a;
    fv_dtype type = kind<typename P::T>::dtype;
    int64_t sm_count = device_of(s)->sm_count, tiles = ceil_div(a.Tq, P::QUERIES),
            items = a.B * a.H * tiles;
    bool differ = a.causal || a.window > 0 || a.lens, many = items >= 4 * sm_count;
    bool by_length = differ && tiles >= MANY_TILES, pairs = differ && many && !by_length;
    fwd_schedule sched = {(int)tiles, (int)(pairs ? (tiles + 1) / 2 : tiles), 0, pairs, by_length};
    int64_t all = a.B * a.H * sched.parts;
    fwd_maps maps;
    if (items > INT32_MAX / 2 || !fv_cuda_tensor_map_qkv(&maps.in, &a, type, P::QUERIES, P::KEYS))
        return false;
    if (!fv_cuda_tensor_map(&maps.y, a.y, type, a.B, a.Tq, a.H, a.Wv, a.H * a.Wv, a.Tq * a.H * a.Wv,
                            64))
        return false;
    if (P::BIAS && !tensor_map_bias(&maps.bias, attn, P::QUERIES)) return false;
    sched.all = (int)all;
    dim3 grid = differ && !many ? dim3((unsigned)all) : persistent_grid(s, all);
    launch(s, "attention", attention_wgmma<P>, grid, P::BLOCK_THREADS,
           1024 + smem_bytes<fwd_layout<P>>(), attn, maps, sched);
    return true;
}
} // namespace

/* Shapes of tiles by measurement: three warpgroups and 128 keys for heads up to 64 wide, four with
 * 64 keys where keys are few, two with 128 keys (one q stage with a bias) where registers or shared
 * memory run short. */
template <class T> bool fv_cuda_attention_hopper(fv_stream *s, const fv_attn_args *a)
{
    attn_params<T> attn = make_params<T>(s, a);
    bool narrow_heads = a->Wk <= 64 && a->Wv <= 64, few_keys = a->Tk <= (a->causal ? 2048 : 512);
    if (has_tma_bias(attn))
        return narrow_heads ? start<fwd_config<T, 64, WITH_BIAS, 3, 128, 2>>(s, attn)
                            : start<fwd_config<T, 128, WITH_BIAS, 2, 128, 2, 1>>(s, attn);
    if (a->mask) {
        uint32_t *scratch = alloc_scratch<uint32_t>(s, fv_cuda_mask_words(a, false));
        if (!scratch) return true;
        attn.bits = fv_cuda_mask_bits(s, a, false, scratch);
    }
    if (!attn.plain)
        return narrow_heads ? start<fwd_config<T, 64, ANY, 3, 128, 2>>(s, attn)
                            : start<fwd_config<T, 128, ANY, 2, 128, 2>>(s, attn);
    if (a->dropout > 0)
        return narrow_heads ? start<fwd_config<T, 64, WITH_DROPOUT, 3, 128, 2>>(s, attn)
                            : start<fwd_config<T, 128, WITH_DROPOUT, 2, 128, 2>>(s, attn);
    if (!narrow_heads) return start<fwd_config<T, 128, PLAIN, 3, 64, 3>>(s, attn);
    return few_keys ? start<fwd_config<T, 64, PLAIN, 4, 64, 4>>(s, attn)
                    : start<fwd_config<T, 64, PLAIN, 3, 128, 2>>(s, attn);
}

template bool fv_cuda_attention_hopper<bf16>(fv_stream *, const fv_attn_args *);
template bool fv_cuda_attention_hopper<f16>(fv_stream *, const fv_attn_args *);
