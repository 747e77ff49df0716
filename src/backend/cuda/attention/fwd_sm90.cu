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

/* GROUPS of 64 rows; tiles of KEYS keys, STAGES of them in memory, and HELD of queries, where
 * results are laid, too. */
template <class T_, int W_, int KIND_, int GROUPS_, int KEYS_, int STAGES_, int HELD_ = 2>
struct plan {
    typedef T_ T;
    static constexpr int W = W_, KIND = KIND_, GROUPS = GROUPS_, KEYS = KEYS_, STAGES = STAGES_,
                         HELD = HELD_;
    static constexpr bool BIAS = KIND == BIASED, DRAWS = KIND == DROPS;
    static constexpr int QUERIES = 64 * GROUPS, THREADS_ALL = 128 * (GROUPS + 1);
    static constexpr int REGISTERS = GROUPS == 2   ? 240
                                     : GROUPS == 3 ? 160
                                                   : 112,
                         SPARE_REGISTERS = GROUPS == 2 ? 24 : 32;
    static constexpr int HEAD = QUERIES * W, TILE = KEYS * W, PAIRS = BIAS ? QUERIES * KEYS : 0;
    /* what draws have of a tile's keys: a draw serves four of 16 */
    static constexpr int DRAWN = DRAWS ? KEYS / 4 : 0;
    static_assert((QUERIES - 64) / KEYS < STAGES,
                  "a group passes tiles by while it holds one, whose room they must not need");
    static constexpr size_t BYTES = 1024 + (HELD * HEAD + STAGES * (2 * TILE + PAIRS)) * sizeof(T) +
                                    STAGES * DRAWN * sizeof(fv__drawn_key) +
                                    (2 * HELD + 4 * STAGES) * sizeof(uint64_t);
};

struct maps {
    attention_maps in;
    CUtensorMap y, bias;
};

template <class P> struct room {
    typename P::T *q, *k, *v, *bias;
    uint4 *drawn;
    uint64_t *q_full, *q_free, *k_full, *k_free, *v_full, *v_free;

    __device__ room(unsigned char *memory)
    {
        memory += (1024 - shared_at(memory) % 1024) % 1024;
        q = (typename P::T *)memory;
        k = q + P::HELD * P::HEAD;
        v = k + P::STAGES * P::TILE;
        bias = v + P::STAGES * P::TILE;
        drawn = (uint4 *)(bias + P::STAGES * P::PAIRS);
        q_full = (uint64_t *)(drawn + P::STAGES * P::DRAWN);
        q_free = q_full + P::HELD;
        k_full = q_free + P::HELD;
        k_free = k_full + P::STAGES;
        v_full = k_free + P::STAGES;
        v_free = v_full + P::STAGES;
    }
    __device__ void init()
    {
        for (int i = 0; i < P::HELD; i++) {
            barrier_init(q_full + i, 1);
            barrier_init(q_free + i, P::GROUPS);
        }
        for (int i = 0; i < P::STAGES; i++) {
            barrier_init(k_full + i, P::DRAWS ? 1 + 32 : 1);
            barrier_init(v_full + i, 1);
            barrier_init(k_free + i, P::DRAWS ? 128 * P::GROUPS : 4 * P::GROUPS);
            barrier_init(v_free + i, 4 * P::GROUPS);
        }
        barriers_ready();
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
        int place = !by.by_length ? (block + round) % blocks
                    : round % 2   ? blocks - 1 - block
                                  : block;
        int i = round * blocks + place;
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
__device__ inline void bring_all(const room<P> &m, const maps *of, const job<typename P::T> &o,
                                 const order &by)
{
    constexpr unsigned SIZE = sizeof(typename P::T);
    const fv_attn_args &a = o.a;
    unsigned turn = 0;
    for (item<P> x; x.find(o, by); x.next(by)) {
        int b = x.b, h = x.h, g = o.kv_head(h), held = x.n % P::HELD;
        wait_for(m.q_free + held, (unsigned)(x.n / P::HELD + 1) & 1);
        arrive_expecting(m.q_full + held, P::HEAD * SIZE);
#pragma unroll
        for (int c = 0; c < P::W; c += PANEL)
            bring_panel(m.q + held * P::HEAD + c * P::QUERIES, &of->in.q, m.q_full + held, c, h,
                        x.tile, b);
        for (int t = 0; t < x.tiles; t++, turn++) {
            int stage = turn % P::STAGES, j = x.first + t * P::KEYS;
            unsigned before = (turn / P::STAGES + 1) & 1;
            wait_for(m.k_free + stage, before);
            arrive_expecting(m.k_full + stage, (P::TILE + P::PAIRS) * SIZE);
#pragma unroll
            for (int c = 0; P::BIAS && c < P::KEYS; c += PANEL)
                bring_panel(m.bias + stage * P::PAIRS + c * P::QUERIES, &of->bias, m.k_full + stage,
                            j + c, a.bias_s[1] ? h : 0, x.tile, a.bias_s[0] ? b : 0);
#pragma unroll
            for (int c = 0; c < P::W; c += PANEL)
                bring_panel(m.k + stage * P::TILE + c * P::KEYS, &of->in.k, m.k_full + stage, c, g,
                            j, b);
            wait_for(m.v_free + stage, before);
            arrive_expecting(m.v_full + stage, P::TILE * SIZE);
#pragma unroll
            for (int c = 0; c < P::W; c += PANEL)
                bring_panel(m.v + stage * P::TILE + c * P::KEYS, &of->in.v, m.v_full + stage, c, g,
                            j, b);
        }
    }
}

/* A warp works out what draws have of the keys of each tile, once for all rows.  Whoever writes or
 * reads that table arrives: one thread for its warp would do, but no tool could follow that. */
template <class P>
__device__ inline void bring_drawn(const room<P> &m, const job<typename P::T> &o, const order &by)
{
    static_assert(P::DRAWN <= 32, "one for each thread");
    unsigned turn = 0, lane = threadIdx.x % 32;
    uint64_t step = *o.a.rng.step;
    for (item<P> x; x.find(o, by); x.next(by))
        for (int t = 0; t < x.tiles; t++, turn++) {
            int stage = turn % P::STAGES;
            fv__drawn_key k = fv__draw_of_key(&o.draw_keys, o.a.rng.site, step,
                                              (unsigned)(x.first + t * P::KEYS) / 4 + lane);
            wait_for(m.k_free + stage, (turn / P::STAGES + 1) & 1);
            if ((int)lane < P::DRAWN)
                m.drawn[stage * P::DRAWN + lane] = make_uint4(k.met, k.c0, k.c2, k.c3);
            arrive(m.k_full + stage);
        }
}

/* A group's numbers, 64 rows by 16 N, as rows of panels of ROWS_ rows. */
template <int ROWS_, int N, class T> __device__ inline void lay(T *to, const uint32_t (&x)[N][4])
{
    int lane = threadIdx.x % 32, row = (int)threadIdx.x / 32 % 4 * 16 + lane % 16;
#pragma unroll
    for (int n = 0; n < N; n++) {
        int eight = n * 2 + lane / 16; /* columns */
        store_matrices(to + (eight / 8 * ROWS_ + row) * PANEL + (eight % 8 ^ row % 8) * 8, x[n]);
    }
}

/* Lays the results of a group where its queries were, from where one thread sends them. */
template <class P>
__device__ inline void send(typename P::T *q, const float (&y)[P::W / 8][4], const maps *of,
                            const item<P> &x, int group)
{
    uint32_t narrowed[P::W / 16][4];
    narrow(narrowed, y, typename P::T());
    lay<P::QUERIES>(q, narrowed);
    written_for_engine();
    group_wait(1 + P::GROUPS + group);
    if (threadIdx.x % 128) return;
#pragma unroll
    for (int c = 0; c < P::W; c += PANEL)
        write_panel_from(&of->y, q + c * P::QUERIES, c, x.h, x.tile + group * 64, x.b);
    writes_end();
}

/* One thread of a group says that the results of item n have left, and that there is room for
 * queries. */
template <class P> __device__ inline void sent(const room<P> &m, int n)
{
    if (n < 0 || threadIdx.x % 128) return;
    added_read();
    arrive(m.q_free + n % P::HELD);
}

/* Weights of 16 columns as a factor of a product.  Again: those that were 0 are too small, or
 * dropped, and stay 0. */
template <int KIND, class T>
__device__ inline void narrow_weights(uint32_t (&p)[4], const float (&w)[2][4], bool again, T)
{
#pragma unroll
    for (int e = 0; e < 4; e++) {
        float a = w[e / 2][e % 2 * 2], b = w[e / 2][e % 2 * 2 + 1];
        if (again)
            p[e] = two(p[e] & 0xffff ? a : 0, p[e] >> 16 ? b : 0, T());
        else
            p[e] = KIND == DROPS ? two_kept(a, b, T()) : two(a, b, T());
    }
}

/* What dropout takes of the weights of a strip. */
template <class P> struct dropper {
    const room<P> &m;
    const head<typename P::T> &at;
    int row0;
    fv__drawn_row drawn; /* DROPS: what draws have of its rows */

    __device__ dropper(const room<P> &m_, const head<typename P::T> &at_, int row0_)
        : m(m_), at(at_), row0(row0_)
    {
        if (P::DRAWS)
            drawn = fv__draw_of_row(&at.o.draw_keys, at.step, at.draw_row(tile_row(row0, 0)));
    }
    /* Of the k-th 16 columns of a tile, by what was drawn for its keys: a minus sign. */
    __device__ void mark_some(float (&w)[2][4], int stage, int k) const
    {
        uint4 of = m.drawn[stage * P::DRAWN + k * 4 + threadIdx.x % 4];
        uint32_t word[2][2];
        fv__draw_on(word[0], &at.o.draw_keys, drawn, fv__drawn_key{of.x, of.y, of.z, of.w});
        mark<false>(w, word, at.o.drop_below);
    }
    /* Of a tile from column j on, where there is no such table: 0. */
    __device__ void clear_all(uint32_t (&p)[P::KEYS / 16][4], int j) const
    {
        uint32_t below = at.o.drop_below;
#pragma unroll
        for (int k = 0; k < P::KEYS / 16; k++) {
            uint32_t word[2][2];
            draw<false>(word, at, row0, j, k);
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
__device__ inline void attend(const room<P> &m, const maps *of, const head<typename P::T> &at,
                              const item<P> &x, int group, unsigned turn)
{
    typedef typename P::T T;
    constexpr int KEYS = P::KEYS, W = P::W;
    int rows = x.tile + group * 64, row0 = rows + (int)threadIdx.x / 32 % 4 * 16,
        held = x.n % P::HELD;
    /* tiles that these rows see */
    int mine = rows < at.rows ? item<P>::tiles_to(x.first, at.last_key(rows, 64)) : 0;
    T *q = m.q + held * P::HEAD + group * 64 * PANEL;
    float s[KEYS / 8][4], y[W / 8][4], shrink[2];
    uint32_t p[KEYS / 16][4];
    dropper<P> dropout(m, at, row0);
    /* Rows that are not there have a top already, so that they never ask for one. */
    running r = {{tile_row(row0, 0) < at.rows ? -INFINITY : 0,
                  tile_row(row0, 2) < at.rows ? -INFINITY : 0},
                 {0, 0}};
    auto stage = [&](int t) { return (int)((turn + t) % P::STAGES); };
    auto phase = [&](int t) { return (turn + t) / P::STAGES & 1; };
    auto take_turn = [&] { turn_wait(1 + group); };
    auto give_turn = [&] { turn_give(1 + (group + 1) % P::GROUPS); };
    auto leave_keys = [&](int t) {
        if (P::DRAWS)
            arrive(m.k_free + stage(t));
        else
            release(m.k_free + stage(t));
    };
    auto start_scores = [&](int t) {
        wait_for(m.k_full + stage(t), phase(t));
        products_begin();
        multiply_rows<W, P::QUERIES, KEYS>(s, q, m.k + stage(t) * P::TILE);
        products_end();
    };
    auto start_values = [&](int t) {
        wait_for(m.v_full + stage(t), phase(t));
        products_begin();
        multiply_sums(y, p, m.v + stage(t) * P::TILE, t > 0);
        products_end();
    };
    /* Scores of a tile, then its weights; what is to be done with the values before comes in
     * between. */
    auto take_scores = [&](int t, auto between) {
        int j = x.first + t * KEYS;
        float scale = scale_of<P::KIND>(at), sum[2];
#pragma unroll
        for (int c = 0; P::BIAS && c < KEYS; c += PANEL)
            add_bias<false, PANEL / 8>(s + c / 8,
                                       m.bias + stage(t) * P::PAIRS + c * P::QUERIES +
                                           (row0 - x.tile) * PANEL,
                                       0, at.o.bias_scale);
        if (!P::DRAWS) leave_keys(t);
        see<P::KIND>(s, at, row0, j, at.whole(rows, 64, j, KEYS));
        if (t == 0) grow(s, scale, r, shrink);
        between();
        bool fit = weights(s, scale, r, sum, [&](int k, float(&w)[2][4]) {
            if (P::DRAWS) dropout.mark_some(w, stage(t), k);
            narrow_weights<P::KIND>(p[k], w, false, T());
        });
        if (t > 0 && !fit) {
            grow(s, scale, r, shrink);
            rescale(y, shrink);
            weights(s, scale, r, sum,
                    [&](int k, float(&w)[2][4]) { narrow_weights<P::KIND>(p[k], w, true, T()); });
        }
        r.sum[0] += sum[0], r.sum[1] += sum[1];
        if (P::DRAWS)
            leave_keys(t); /* with what was drawn for them */
        else if (drops<P::KIND>(at))
            dropout.clear_all(p, j);
    };
    auto pass_rest = [&] { /* tiles that others see */
                           for (int t = mine; t < x.tiles; t++) {
                               take_turn();
                               give_turn();
                               wait_for(m.k_full + stage(t), phase(t));
                               leave_keys(t);
                               wait_for(m.v_full + stage(t), phase(t));
                               release(m.v_free + stage(t));
                           }
    };
    wait_for(m.q_full + held, (unsigned)(x.n / P::HELD) & 1);
    take_turn();
    if (mine) {
        start_scores(0);
        give_turn();
        if (P::HELD > 1) sent(m, x.n - 1);
        products_done<0>();
        take_scores(0, [] {});
        for (int t = 1; t < mine; t++) {
            take_turn();
            start_scores(t);
            start_values(t - 1);
            give_turn();
            products_done<1>();
            take_scores(t, [&] {
                products_done<0>();
                release(m.v_free + stage(t - 1));
            });
        }
        take_turn();
        start_values(mine - 1);
        give_turn();
        pass_rest();
        products_done<0>();
        release(m.v_free + stage(mine - 1));
    } else {
        clear(y);
        give_turn();
        if (P::HELD > 1) sent(m, x.n - 1);
        pass_rest();
    }
    divide(y, r, at);
    send(q, y, of, x, group);
    if (P::HELD == 1) sent(m, x.n);
    /* last: what makes results seen by the engine waits for all that was written before */
    write_lse(r, at, row0);
}

template <class P>
__global__ void __launch_bounds__(P::THREADS_ALL, 1)
    attention_wgmma(const __grid_constant__ job<typename P::T> o, const __grid_constant__ maps of,
                    order by)
{
    extern __shared__ unsigned char memory[];
    room<P> m(memory);
    if (threadIdx.x == 0) m.init();
    __syncthreads();
    int group = group_of() - 1;
    if (group < 0) {
        registers_down<P::SPARE_REGISTERS>();
        if (threadIdx.x == 0) bring_all(m, &of, o, by);
        if (P::DRAWS && threadIdx.x / 32 == 1) bring_drawn(m, o, by);
    } else {
        registers_up<P::REGISTERS>();
        if (group == P::GROUPS - 1) turn_give(1);
        unsigned turn = 0;
        for (item<P> x; x.find(o, by); x.next(by)) {
            attend(m, &of, head<typename P::T>(o, x.b, x.h), x, group, turn);
            turn += x.tiles;
        }
        if (group == 0) turn_wait(1);
        if (threadIdx.x % 128 == 0) added_read();
    }
}

/* One block for each multiprocessor.  Few items that differ are better dealt out by the chip, as
 * blocks of their own. */
template <class P> static bool start(fv_stream *s, const job<typename P::T> &o)
{
    const fv_attn_args &a = o.a;
    fv_dtype type = kind<typename P::T>::dtype;
    int64_t processors = device_of(s)->processors, tiles = ceil_div(a.Tq, P::QUERIES),
            items = a.B * a.H * tiles;
    bool differ = a.causal || a.window > 0 || a.lens, many = items >= 4 * processors;
    bool by_length = differ && tiles >= MANY_TILES, pairs = differ && many && !by_length;
    order by = {(int)tiles, (int)(pairs ? (tiles + 1) / 2 : tiles), 0, pairs, by_length};
    int64_t all = a.B * a.H * by.parts, blocks = differ && !many    ? all
                                                 : all < processors ? all
                                                                    : processors;
    maps of;
    if (items > INT32_MAX / 2 || !fv_cuda_map_attention(&of.in, &a, type, P::QUERIES, P::KEYS))
        return false;
    if (!fv_cuda_map(&of.y, a.y, type, a.B, a.Tq, a.H, a.Wv, a.H * a.Wv, a.Tq * a.H * a.Wv, 64))
        return false;
    if (P::BIAS && !map_bias(&of.bias, o, P::QUERIES)) return false;
    by.all = (int)all;
    launch(s, "attention", attention_wgmma<P>, dim3((unsigned)blocks), P::THREADS_ALL, P::BYTES, o,
           of, by);
    return true;
}

template <class T> bool fv_cuda_attention_hopper(fv_stream *s, const fv_attn_args *a)
{
    job<T> o = prepare<T>(s, a);
    bool narrow_heads = a->Wk <= 64 && a->Wv <= 64, few_keys = a->Tk <= (a->causal ? 2048 : 512);
    if (biased(o))
        return narrow_heads ? start<plan<T, 64, BIASED, 3, 128, 2>>(s, o)
                            : start<plan<T, 128, BIASED, 2, 128, 2, 1>>(s, o);
    if (a->mask) {
        uint32_t *room = work<uint32_t>(s, fv_cuda_mask_words(a, false));
        if (!room) return true;
        o.bits = fv_cuda_mask_bits(s, a, false, room);
    }
    if (!o.plain)
        return narrow_heads ? start<plan<T, 64, ANY, 3, 128, 2>>(s, o)
                            : start<plan<T, 128, ANY, 2, 128, 2>>(s, o);
    if (a->dropout > 0)
        return narrow_heads ? start<plan<T, 64, DROPS, 3, 128, 2>>(s, o)
                            : start<plan<T, 128, DROPS, 2, 128, 2>>(s, o);
    if (!narrow_heads) return start<plan<T, 128, PLAIN, 3, 64, 3>>(s, o);
    return few_keys ? start<plan<T, 64, PLAIN, 4, 64, 4>>(s, o)
                    : start<plan<T, 64, PLAIN, 3, 128, 2>>(s, o);
}

template bool fv_cuda_attention_hopper<bf16>(fv_stream *, const fv_attn_args *);
template bool fv_cuda_attention_hopper<f16>(fv_stream *, const fv_attn_args *);
