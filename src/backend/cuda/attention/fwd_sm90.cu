/* fwd_sm90.cu - the forward pass of attention on Hopper: the tiled kernel, with the chip's own
 * products and copies.
 *
 * One block stays on each multiprocessor and takes item after item: rows of one head, and the keys
 * that they see.  One warp brings tiles of queries, keys and values, ahead of their use and into
 * the next item; groups of four warps have 64 rows each and go through them.  A group starts the
 * products of the next keys and of the values at hand together, and makes weights of the former:
 *
 *     s = q k_t';  y = y + p v_(t-1);  p = exp(s - top)
 *
 * Top is the largest score of the first tile.  Later ones are not looked at one by one: the sum of
 * a tile's weights tells whether some are too large for that, and then top, y and the weights are
 * made anew.
 *
 * Groups take turns in starting products, so that one's exponentials fall into another's products.
 * Results are laid where the queries were and sent from there by the copy engine, while the next
 * item begins. */
#include "bias_sm90.h"
#include "online_softmax.h"
#include "dispatch.h"

/* GROUPS of 64 rows; tiles of KEYS keys, STAGES of them in memory, and Q_STAGES of queries, where
 * results are laid, too. */
template <class T_, int W_, int KIND_, int GROUPS_, int KEYS_, int STAGES_, int HELD_ = 2>
struct traits {
    typedef T_ T;
    static constexpr int W = W_, KIND = KIND_, GROUPS = GROUPS_, KEYS = KEYS_, STAGES = STAGES_,
                         Q_STAGES = HELD_;
    static constexpr bool BIAS = KIND == WITH_BIAS, DROPOUT = KIND == WITH_DROPOUT;
    static constexpr int QUERIES = 64 * GROUPS, BLOCK_THREADS = 128 * (GROUPS + 1);
    static constexpr int CONSUMER_REGISTERS = GROUPS == 2   ? 240
                                              : GROUPS == 3 ? 160
                                                            : 112,
                         PRODUCER_REGISTERS = GROUPS == 2 ? 24 : 32;
    static constexpr int HEAD = QUERIES * W, TILE = KEYS * W, PAIRS = BIAS ? QUERIES * KEYS : 0;
    /* what draws have of a tile's keys: a draw serves four of 16 */
    static constexpr int PHILOX_KEYS = DROPOUT ? KEYS / 4 : 0;
    static_assert((QUERIES - 64) / KEYS < STAGES,
                  "a group passes tiles by while it holds one, whose room they must not need");
    static constexpr size_t BYTES = 1024 +
                                    (Q_STAGES * HEAD + STAGES * (2 * TILE + PAIRS)) * sizeof(T) +
                                    STAGES * PHILOX_KEYS * sizeof(fv__philox_key_part) +
                                    (2 * Q_STAGES + 4 * STAGES) * sizeof(uint64_t);
};

struct tensor_maps {
    qkv_tensor_maps in;
    CUtensorMap y, bias;
};

template <class P> struct smem_layout {
    typename P::T *q, *k, *v, *bias;
    uint4 *philox;
    uint64_t *q_full, *q_free, *k_full, *k_free, *v_full, *v_free;

    __device__ smem_layout(unsigned char *memory)
    {
        memory += (1024 - smem_addr(memory) % 1024) % 1024;
        q = (typename P::T *)memory;
        k = q + P::Q_STAGES * P::HEAD;
        v = k + P::STAGES * P::TILE;
        bias = v + P::STAGES * P::TILE;
        philox = (uint4 *)(bias + P::STAGES * P::PAIRS);
        q_full = (uint64_t *)(philox + P::STAGES * P::PHILOX_KEYS);
        q_free = q_full + P::Q_STAGES;
        k_full = q_free + P::Q_STAGES;
        k_free = k_full + P::STAGES;
        v_full = k_free + P::STAGES;
        v_free = v_full + P::STAGES;
    }
    __device__ void init()
    {
        for (int i = 0; i < P::Q_STAGES; i++) {
            mbarrier_init(q_full + i, 1);
            mbarrier_init(q_free + i, P::GROUPS);
        }
        for (int i = 0; i < P::STAGES; i++) {
            mbarrier_init(k_full + i, P::DROPOUT ? 1 + 32 : 1);
            mbarrier_init(v_full + i, 1);
            mbarrier_init(k_free + i, P::DROPOUT ? 128 * P::GROUPS : 4 * P::GROUPS);
            mbarrier_init(v_free + i, 4 * P::GROUPS);
        }
        mbarrier_init_fence();
    }
};

#define MANY_TILES 16

/* How rows are dealt out.  Tiles of one head after the other, so that its keys stay in the
 * second-level cache; in pairs, the first goes with the last, the second with the last but one:
 * when causal, all pairs take as long.  By length, where tiles are many: the longest of all heads,
 * then the next, which leaves the shortest for the end. */
struct order {
    int tiles, parts; /* of a head; a part is a pair of tiles or one */
    int all;          /* parts */
    bool pairs, by_length;
};

/* What a block works at: rows from `tile` on of a head, and tiles of keys from `first` on. */
template <class P> struct item {
    int round = 0, n = 0; /* of this block: parts and items before */
    bool second = false;  /* of a pair */
    int part, b, h, tile, first, tiles;

    __device__ static int tiles_to(int first, int end)
    {
        return end > first ? (end - first + P::KEYS - 1) / P::KEYS : 0;
    }

    /* False: there is nothing left.  Blocks move on by one each round: where the last tile of a
     * head is short, each has some.  By length they go to and fro: who had the longest gets the
     * shortest next. */
    __device__ bool find(const job<typename P::T> &o, const order &by)
    {
        int blocks = gridDim.x, block = blockIdx.x, sequences = (int)o.a.B, heads = (int)o.a.H;
        int slot = !by.by_length ? (block + round) % blocks
                   : round % 2   ? blocks - 1 - block
                                 : block;
        int i = round * blocks + slot;
        if (i >= by.all) return false;
        /* sequences that share a bias go together, so that memory is read once for all */
        int step = by.by_length ? heads * sequences
                   : P::BIAS    ? sequences
                                : 1,
            one = i % step + i / step / by.parts * step;
        part = i / step % by.parts;
        b = P::BIAS ? one % sequences : one / heads;
        h = P::BIAS ? one / sequences : one % heads;
        head<typename P::T> at(o, b, h);
        /* the longest first, when causal */
        tile = (second ? part : by.tiles - 1 - part) * P::QUERIES;
        first = at.first(tile) / P::KEYS * P::KEYS;
        tiles = tiles_to(first, at.last_key(tile, P::QUERIES));
        return true;
    }
    __device__ void next(const order &by)
    {
        second = by.pairs && !second && part != by.tiles - 1 - part;
        if (!second) round++;
        n++;
    }
};

/* One thread brings everything. */
template <class P>
__device__ inline void produce_tiles(const smem_layout<P> &m, const tensor_maps *of,
                                     const job<typename P::T> &o, const order &by)
{
    constexpr unsigned SIZE = sizeof(typename P::T);
    const fv_attn_args &a = o.a;
    unsigned iter = 0;
    for (item<P> x; x.find(o, by); x.next(by)) {
        int b = x.b, h = x.h, g = o.kv_head(h), held = x.n % P::Q_STAGES;
        mbarrier_wait(m.q_free + held, (unsigned)(x.n / P::Q_STAGES + 1) & 1);
        mbarrier_arrive_expect_tx(m.q_full + held, P::HEAD * SIZE);
#pragma unroll
        for (int c = 0; c < P::W; c += PANEL)
            tma_load_4d(m.q + held * P::HEAD + c * P::QUERIES, &of->in.q, m.q_full + held, c, h,
                        x.tile, b);
        for (int t = 0; t < x.tiles; t++, iter++) {
            int stage = iter % P::STAGES, j = x.first + t * P::KEYS;
            unsigned before = (iter / P::STAGES + 1) & 1;
            mbarrier_wait(m.k_free + stage, before);
            mbarrier_arrive_expect_tx(m.k_full + stage, (P::TILE + P::PAIRS) * SIZE);
#pragma unroll
            for (int c = 0; P::BIAS && c < P::KEYS; c += PANEL)
                tma_load_4d(m.bias + stage * P::PAIRS + c * P::QUERIES, &of->bias, m.k_full + stage,
                            j + c, a.bias_s[1] ? h : 0, x.tile, a.bias_s[0] ? b : 0);
#pragma unroll
            for (int c = 0; c < P::W; c += PANEL)
                tma_load_4d(m.k + stage * P::TILE + c * P::KEYS, &of->in.k, m.k_full + stage, c, g,
                            j, b);
            mbarrier_wait(m.v_free + stage, before);
            mbarrier_arrive_expect_tx(m.v_full + stage, P::TILE * SIZE);
#pragma unroll
            for (int c = 0; c < P::W; c += PANEL)
                tma_load_4d(m.v + stage * P::TILE + c * P::KEYS, &of->in.v, m.v_full + stage, c, g,
                            j, b);
        }
    }
}

/* A warp works out what draws have of the keys of each tile, once for all rows.  Whoever writes or
 * reads that table arrives: one thread for its warp would do, but no tool could follow that. */
template <class P>
__device__ inline void produce_philox(const smem_layout<P> &m, const job<typename P::T> &o,
                                      const order &by)
{
    static_assert(P::PHILOX_KEYS <= 32, "one for each thread");
    unsigned iter = 0, lane = threadIdx.x % 32;
    uint64_t step = *o.a.rng.step;
    for (item<P> x; x.find(o, by); x.next(by))
        for (int t = 0; t < x.tiles; t++, iter++) {
            int stage = iter % P::STAGES;
            fv__philox_key_part k = fv__philox_start_key(&o.philox_keys, o.a.rng.site, step,
                                                         (unsigned)(x.first + t * P::KEYS) / 4 +
                                                             lane);
            mbarrier_wait(m.k_free + stage, (iter / P::STAGES + 1) & 1);
            if ((int)lane < P::PHILOX_KEYS)
                m.philox[stage * P::PHILOX_KEYS + lane] = make_uint4(k.mixed, k.c0, k.c2, k.c3);
            mbarrier_arrive(m.k_full + stage);
        }
}

/* A group's numbers, 64 rows by 16 N, as rows of panels of ROWS_ rows. */
template <int ROWS_, int N, class T>
__device__ inline void store_swizzled(T *to, const uint32_t (&x)[N][4])
{
    int lane = threadIdx.x % 32, row = (int)threadIdx.x / 32 % 4 * 16 + lane % 16;
#pragma unroll
    for (int n = 0; n < N; n++) {
        int eight = n * 2 + lane / 16; /* columns */
        stmatrix_x4(to + (eight / 8 * ROWS_ + row) * PANEL + (eight % 8 ^ row % 8) * 8, x[n]);
    }
}

/* Lays the results of a group where its queries were, from where one thread sends them. */
template <class P>
__device__ inline void store_output(typename P::T *q, const float (&y)[P::W / 8][4],
                                    const tensor_maps *of, const item<P> &x, int group)
{
    uint32_t narrowed[P::W / 16][4];
    pack_fragments(narrowed, y, typename P::T());
    store_swizzled<P::QUERIES>(q, narrowed);
    fence_async_proxy();
    warpgroup_sync(1 + P::GROUPS + group);
    if (threadIdx.x % 128) return;
#pragma unroll
    for (int c = 0; c < P::W; c += PANEL)
        tma_store_4d(&of->y, q + c * P::QUERIES, c, x.h, x.tile + group * 64, x.b);
    bulk_commit();
}

/* One thread of a group says that the results of item n have left, and that there is room for
 * queries. */
template <class P> __device__ inline void release_q(const smem_layout<P> &m, int n)
{
    if (n < 0 || threadIdx.x % 128) return;
    bulk_wait_read();
    mbarrier_arrive(m.q_free + n % P::Q_STAGES);
}

/* Weights of 16 columns as a factor of a product.  Again: those that were 0 are too small, or
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

/* What dropout takes of the weights of a strip. */
template <class P> struct dropout_mask {
    const smem_layout<P> &m;
    const head<typename P::T> &at;
    int row0;
    fv__philox_row_part philox; /* WITH_DROPOUT: what draws have of its rows */

    __device__ dropout_mask(const smem_layout<P> &m_, const head<typename P::T> &at_, int row0_)
        : m(m_), at(at_), row0(row0_)
    {
        if (P::DROPOUT)
            philox = fv__philox_start_row(&at.o.philox_keys, at.step,
                                          at.philox_row(tile_row(row0, 0)));
    }
    /* Of the k-th 16 columns of a tile, by what was drawn for its keys: a minus sign. */
    __device__ void mark_dropped_columns(float (&w)[2][4], int stage, int k) const
    {
        uint4 of = m.philox[stage * P::PHILOX_KEYS + k * 4 + threadIdx.x % 4];
        uint32_t word[2][2];
        fv__philox_finish(word[0], &at.o.philox_keys, philox,
                          fv__philox_key_part{of.x, of.y, of.z, of.w});
        mark_dropped<false>(w, word, at.o.drop_threshold);
    }
    /* Of a tile from column j on, where there is no such table: 0. */
    __device__ void zero_dropped_tile(uint32_t (&p)[P::KEYS / 16][4], int j) const
    {
        uint32_t below = at.o.drop_threshold;
#pragma unroll
        for (int k = 0; k < P::KEYS / 16; k++) {
            uint32_t word[2][2];
            dropout_bits<false>(word, at, row0, j, k);
#pragma unroll
            for (int e = 0; e < 4; e++) {
                uint32_t a = word[0][e / 2], b = word[1][e / 2];
                if ((e % 2 ? a : a << 16) < below) p[k][e] &= 0xffff0000;
                if ((e % 2 ? b : b << 16) < below) p[k][e] &= 0xffff;
            }
        }
    }
};

/* An item, by one of the groups; turn counts the tiles of items before. */
template <class P>
__device__ inline void attend(const smem_layout<P> &m, const tensor_maps *of,
                              const head<typename P::T> &at, const item<P> &x, int group,
                              unsigned iter)
{
    typedef typename P::T T;
    constexpr int KEYS = P::KEYS, W = P::W;
    int rows = x.tile + group * 64, row0 = rows + (int)threadIdx.x / 32 % 4 * 16,
        held = x.n % P::Q_STAGES;
    /* tiles that these rows see */
    int mine = rows < at.rows ? item<P>::tiles_to(x.first, at.last_key(rows, 64)) : 0;
    T *q = m.q + held * P::HEAD + group * 64 * PANEL;
    float s[KEYS / 8][4], y[W / 8][4], correction[2];
    uint32_t p[KEYS / 16][4];
    dropout_mask<P> dropout(m, at, row0);
    /* Rows that are not there have a top already, so that they never ask for one. */
    softmax_state r = {{tile_row(row0, 0) < at.rows ? -INFINITY : 0,
                        tile_row(row0, 2) < at.rows ? -INFINITY : 0},
                       {0, 0}};
    auto stage = [&](int t) { return (int)((iter + t) % P::STAGES); };
    auto phase = [&](int t) { return (iter + t) / P::STAGES & 1; };
    auto pingpong_wait = [&] { named_barrier_sync(1 + group); };
    auto pingpong_arrive = [&] { named_barrier_arrive(1 + (group + 1) % P::GROUPS); };
    auto release_k = [&](int t) {
        if (P::DROPOUT)
            mbarrier_arrive(m.k_free + stage(t));
        else
            warp_arrive(m.k_free + stage(t));
    };
    auto issue_qk = [&](int t) {
        mbarrier_wait(m.k_full + stage(t), phase(t));
        wgmma_fence();
        gemm_nt<W, P::QUERIES, KEYS>(s, q, m.k + stage(t) * P::TILE);
        wgmma_commit();
    };
    auto issue_pv = [&](int t) {
        mbarrier_wait(m.v_full + stage(t), phase(t));
        wgmma_fence();
        gemm_rs(y, p, m.v + stage(t) * P::TILE, t > 0);
        wgmma_commit();
    };
    /* Scores of a tile, then its weights; what is to be done with the values before comes in
     * between. */
    auto softmax_step = [&](int t, auto between) {
        int j = x.first + t * KEYS;
        float scale = scale_of<P::KIND>(at), sum[2];
#pragma unroll
        for (int c = 0; P::BIAS && c < KEYS; c += PANEL)
            add_bias<false, PANEL / 8>(s + c / 8,
                                       m.bias + stage(t) * P::PAIRS + c * P::QUERIES +
                                           (row0 - x.tile) * PANEL,
                                       0, at.o.bias_scale);
        if (!P::DROPOUT) release_k(t);
        mask_scores<P::KIND>(s, at, row0, j, at.all_visible(rows, 64, j, KEYS));
        if (t == 0) update_row_max(s, scale, r, correction);
        between();
        bool fit = weights(s, scale, r, sum, [&](int k, float(&w)[2][4]) {
            if (P::DROPOUT) dropout.mark_dropped_columns(w, stage(t), k);
            pack_weights<P::KIND>(p[k], w, false, T());
        });
        if (t > 0 && !fit) {
            update_row_max(s, scale, r, correction);
            rescale(y, correction);
            weights(s, scale, r, sum,
                    [&](int k, float(&w)[2][4]) { pack_weights<P::KIND>(p[k], w, true, T()); });
        }
        r.row_sum[0] += sum[0], r.row_sum[1] += sum[1];
        if (P::DROPOUT)
            release_k(t); /* with what was drawn for them */
        else if (has_dropout<P::KIND>(at))
            dropout.zero_dropped_tile(p, j);
    };
    auto skip_tiles = [&] { /* tiles that others see */
                            for (int t = mine; t < x.tiles; t++) {
                                pingpong_wait();
                                pingpong_arrive();
                                mbarrier_wait(m.k_full + stage(t), phase(t));
                                release_k(t);
                                mbarrier_wait(m.v_full + stage(t), phase(t));
                                warp_arrive(m.v_free + stage(t));
                            }
    };
    mbarrier_wait(m.q_full + held, (unsigned)(x.n / P::Q_STAGES) & 1);
    pingpong_wait();
    if (mine) {
        issue_qk(0);
        pingpong_arrive();
        if (P::Q_STAGES > 1) release_q(m, x.n - 1);
        wgmma_wait<0>();
        softmax_step(0, [] {});
        for (int t = 1; t < mine; t++) {
            pingpong_wait();
            issue_qk(t);
            issue_pv(t - 1);
            pingpong_arrive();
            wgmma_wait<1>();
            softmax_step(t, [&] {
                wgmma_wait<0>();
                warp_arrive(m.v_free + stage(t - 1));
            });
        }
        pingpong_wait();
        issue_pv(mine - 1);
        pingpong_arrive();
        skip_tiles();
        wgmma_wait<0>();
        warp_arrive(m.v_free + stage(mine - 1));
    } else {
        clear(y);
        pingpong_arrive();
        if (P::Q_STAGES > 1) release_q(m, x.n - 1);
        skip_tiles();
    }
    normalise_output(y, r, at);
    store_output(q, y, of, x, group);
    if (P::Q_STAGES == 1) release_q(m, x.n);
    /* last: what makes results seen by the engine waits for all that was written before */
    write_lse(r, at, row0);
}

template <class P>
__global__ void __launch_bounds__(P::BLOCK_THREADS, 1)
    attention_wgmma(const __grid_constant__ job<typename P::T> o,
                    const __grid_constant__ tensor_maps of, order by)
{
    extern __shared__ unsigned char memory[];
    smem_layout<P> m(memory);
    if (threadIdx.x == 0) m.init();
    __syncthreads();
    int group = warpgroup_index() - 1;
    if (group < 0) {
        setmaxnreg_dec<P::PRODUCER_REGISTERS>();
        if (threadIdx.x == 0) produce_tiles(m, &of, o, by);
        if (P::DROPOUT && threadIdx.x / 32 == 1) produce_philox(m, o, by);
    } else {
        setmaxnreg_inc<P::CONSUMER_REGISTERS>();
        if (group == P::GROUPS - 1) named_barrier_arrive(1);
        unsigned iter = 0;
        for (item<P> x; x.find(o, by); x.next(by)) {
            attend(m, &of, head<typename P::T>(o, x.b, x.h), x, group, iter);
            iter += x.tiles;
        }
        if (group == 0) named_barrier_sync(1);
        if (threadIdx.x % 128 == 0) bulk_wait_read();
    }
}

/* One block for each multiprocessor.  Few items that differ are better dealt out by the chip, as
 * blocks of their own. */
template <class P> static bool start(fv_stream *s, const job<typename P::T> &o)
{
    const fv_attn_args &a = o.a;
    fv_dtype type = kind<typename P::T>::dtype;
    int64_t sm_count = device_of(s)->sm_count, tiles = ceil_div(a.Tq, P::QUERIES),
            items = a.B * a.H * tiles;
    bool differ = a.causal || a.window > 0 || a.lens, many = items >= 4 * sm_count;
    bool by_length = differ && tiles >= MANY_TILES, pairs = differ && many && !by_length;
    order by = {(int)tiles, (int)(pairs ? (tiles + 1) / 2 : tiles), 0, pairs, by_length};
    int64_t all = a.B * a.H * by.parts, blocks = differ && !many  ? all
                                                 : all < sm_count ? all
                                                                  : sm_count;
    tensor_maps of;
    if (items > INT32_MAX / 2 || !fv_cuda_tensor_map_qkv(&of.in, &a, type, P::QUERIES, P::KEYS))
        return false;
    if (!fv_cuda_tensor_map(&of.y, a.y, type, a.B, a.Tq, a.H, a.Wv, a.H * a.Wv, a.Tq * a.H * a.Wv,
                            64))
        return false;
    if (P::BIAS && !tensor_map_bias(&of.bias, o, P::QUERIES)) return false;
    by.all = (int)all;
    launch(s, "attention", attention_wgmma<P>, dim3((unsigned)blocks), P::BLOCK_THREADS, P::BYTES,
           o, of, by);
    return true;
}

template <class T> bool fv_cuda_attention_hopper(fv_stream *s, const fv_attn_args *a)
{
    job<T> o = prepare<T>(s, a);
    bool narrow_heads = a->Wk <= 64 && a->Wv <= 64, few_keys = a->Tk <= (a->causal ? 2048 : 512);
    if (biased(o))
        return narrow_heads ? start<traits<T, 64, WITH_BIAS, 3, 128, 2>>(s, o)
                            : start<traits<T, 128, WITH_BIAS, 2, 128, 2, 1>>(s, o);
    if (a->mask) {
        uint32_t *scratch = alloc_scratch<uint32_t>(s, fv_cuda_mask_words(a, false));
        if (!scratch) return true;
        o.bits = fv_cuda_mask_bits(s, a, false, scratch);
    }
    if (!o.plain)
        return narrow_heads ? start<traits<T, 64, ANY, 3, 128, 2>>(s, o)
                            : start<traits<T, 128, ANY, 2, 128, 2>>(s, o);
    if (a->dropout > 0)
        return narrow_heads ? start<traits<T, 64, WITH_DROPOUT, 3, 128, 2>>(s, o)
                            : start<traits<T, 128, WITH_DROPOUT, 2, 128, 2>>(s, o);
    if (!narrow_heads) return start<traits<T, 128, PLAIN, 3, 64, 3>>(s, o);
    return few_keys ? start<traits<T, 64, PLAIN, 4, 64, 4>>(s, o)
                    : start<traits<T, 64, PLAIN, 3, 128, 2>>(s, o);
}

template bool fv_cuda_attention_hopper<bf16>(fv_stream *, const fv_attn_args *);
template bool fv_cuda_attention_hopper<f16>(fv_stream *, const fv_attn_args *);
