/* attention_hopper.cu - the forward pass of attention on Hopper: the tiled kernel, with the chip's own products and copies.
 *
 * One group of four warps brings tiles of keys and values, a few ahead of their use; each of the others has 64 rows and goes
 * through them.  A group starts the products of the next keys and of the values at hand together, and works out weights
 * while the latter run:
 *
 *     s = q k_t';  y = shrink y + p v_(t-1)  beside  p = exp(s - top), ...
 *
 * Groups take turns in starting products, so that one's exponentials fall into another's products. */
#include "attention_bias.h"
#include "attention_sums.h"
#include "attention_ways.h"

/* GROUPS of 64 rows; tiles of KEYS keys, STAGES of them in memory.  With all that attention may have registers are scarce, and
 * exponentials so little of the work that taking turns does not pay. */
template <class T_, int W_, int KIND_, int GROUPS_, int KEYS_, int STAGES_> struct plan {
    typedef T_ T;
    static constexpr int W = W_, KIND = KIND_, GROUPS = GROUPS_, KEYS = KEYS_, STAGES = STAGES_;
    static constexpr bool TURNS = KIND != ANY, BIAS = KIND == BIASED;
    static constexpr int QUERIES = 64 * GROUPS, THREADS_ALL = 128 * (GROUPS + 1);
    static constexpr int REGISTERS = GROUPS == 2 ? 240 : 160, SPARE_REGISTERS = GROUPS == 2 ? 24 : 32;
    static constexpr int TILE = KEYS * W, PAIRS = BIAS ? QUERIES * KEYS : 0;
    static constexpr size_t BYTES =
        1024 + (QUERIES * W + STAGES * (2 * TILE + PAIRS)) * sizeof(T) + (1 + 4 * STAGES) * sizeof(uint64_t);
};

struct maps {
    attention_maps in;
    CUtensorMap bias;
};

template <class P> struct room {
    typename P::T *q, *k, *v, *bias;
    uint64_t *q_full, *k_full, *k_free, *v_full, *v_free;

    __device__ room(unsigned char *memory)
    {
        memory += (1024 - shared_at(memory) % 1024) % 1024;
        q = (typename P::T *)memory;
        k = q + P::QUERIES * P::W;
        v = k + P::STAGES * P::TILE;
        bias = v + P::STAGES * P::TILE;
        q_full = (uint64_t *)(bias + P::STAGES * P::PAIRS);
        k_full = q_full + 1;
        k_free = k_full + P::STAGES;
        v_full = k_free + P::STAGES;
        v_free = v_full + P::STAGES;
    }
    __device__ void init()
    {
        barrier_init(q_full, 1);
        for (int i = 0; i < P::STAGES; i++) {
            barrier_init(k_full + i, 1);
            barrier_init(v_full + i, 1);
            barrier_init(k_free + i, 4 * P::GROUPS);
            barrier_init(v_free + i, 4 * P::GROUPS);
        }
        barriers_ready();
    }
};

/* One thread brings everything. */
template <class P>
__device__ inline void bring_all(const room<P> &at_, const maps *of, const head<typename P::T> &at, int tile, int first,
                                 int tiles)
{
    const fv_attn_args &a = at.o.a;
    int b = at.b, h = at.h, g = at.o.kv_head(h);
    arrive_expecting(at_.q_full, P::QUERIES * P::W * sizeof(typename P::T));
#pragma unroll
    for (int c = 0; c < P::W; c += PANEL) bring_panel(at_.q + c * P::QUERIES, &of->in.q, at_.q_full, c, h, tile, b);
    for (int t = 0; t < tiles; t++) {
        int stage = t % P::STAGES;
        unsigned before = (unsigned)(t / P::STAGES + 1) & 1;
        if (t >= P::STAGES) wait_for(at_.k_free + stage, before);
        arrive_expecting(at_.k_full + stage, (P::TILE + P::PAIRS) * sizeof(typename P::T));
#pragma unroll
        for (int c = 0; P::BIAS && c < P::KEYS; c += PANEL)
            bring_panel(at_.bias + stage * P::PAIRS + c * P::QUERIES, &of->bias, at_.k_full + stage, first + t * P::KEYS + c,
                        a.bias_s[1] ? h : 0, tile, a.bias_s[0] ? b : 0);
#pragma unroll
        for (int c = 0; c < P::W; c += PANEL)
            bring_panel(at_.k + stage * P::TILE + c * P::KEYS, &of->in.k, at_.k_full + stage, c, g, first + t * P::KEYS, b);
        if (t >= P::STAGES) wait_for(at_.v_free + stage, before);
        arrive_expecting(at_.v_full + stage, P::TILE * sizeof(typename P::T));
#pragma unroll
        for (int c = 0; c < P::W; c += PANEL)
            bring_panel(at_.v + stage * P::TILE + c * P::KEYS, &of->in.v, at_.v_full + stage, c, g, first + t * P::KEYS, b);
    }
}

template <class P>
__device__ inline void attend(const room<P> &m, const head<typename P::T> &at, int group, int tile, int first, int tiles)
{
    typedef typename P::T T;
    constexpr int KEYS = P::KEYS, W = P::W;
    int rows = tile + group * 64, row0 = rows + (int)threadIdx.x / 32 % 4 * 16;
    const T *q = m.q + group * 64 * PANEL;
    float s[KEYS / 8][4], y[W / 8][4], shrink[2];
    uint32_t p[KEYS / 16][4];
    running r = {{-INFINITY, -INFINITY}, {0, 0}};
    clear(y);
    auto take_turn = [&] {
        if (P::TURNS) turn_wait(1 + group);
    };
    auto give_turn = [&](bool last) {
        if (P::TURNS && !(last && group == P::GROUPS - 1)) turn_give(1 + (group + 1) % P::GROUPS);
    };
    auto start_scores = [&](int t) {
        wait_for(m.k_full + t % P::STAGES, (unsigned)(t / P::STAGES) & 1);
        products_begin();
        multiply_rows<W, P::QUERIES, KEYS>(s, q, m.k + t % P::STAGES * P::TILE);
        products_end();
    };
    auto start_values = [&](int t) {
        wait_for(m.v_full + t % P::STAGES, (unsigned)(t / P::STAGES) & 1);
        products_begin();
        multiply_sums(y, p, m.v + t % P::STAGES * P::TILE);
        products_end();
    };
    auto take_scores = [&](int t) {
#pragma unroll
        for (int c = 0; P::BIAS && c < KEYS; c += PANEL)
            add_bias<false, PANEL / 8>(s + c / 8, m.bias + t % P::STAGES * P::PAIRS + c * P::QUERIES + (row0 - tile) * PANEL, 0,
                                       at.o.bias_scale);
        release(m.k_free + t % P::STAGES);
        int j = first + t * KEYS;
        absorb<P::KIND>(s, r, shrink, at, row0, j, at.whole(rows, 64, j, KEYS));
    };
    auto take_weights = [&] {
        narrow_by(p, s, [](float a, float b) { return P::KIND == PLAIN ? two(a, b, T()) : two_kept(a, b, T()); });
    };
    wait_for(m.q_full, 0);
    if (tiles) {
        take_turn();
        start_scores(0);
        give_turn(false);
        products_done<0>();
        take_scores(0);
        take_weights();
        for (int t = 1; t < tiles; t++) {
            take_turn();
            start_scores(t);
            start_values(t - 1);
            give_turn(false);
            products_done<1>();
            take_scores(t);
            products_done<0>();
            release(m.v_free + (t - 1) % P::STAGES);
            rescale(y, shrink);
            take_weights();
        }
        take_turn();
        start_values(tiles - 1);
        give_turn(true);
        products_done<0>();
    }
    finish(y, r, at, row0);
}

template <class P>
__global__ void __launch_bounds__(P::THREADS_ALL, 1)
    attention_wgmma(const __grid_constant__ job<typename P::T> o, const __grid_constant__ maps of)
{
    extern __shared__ unsigned char memory[];
    room<P> m(memory);
    if (threadIdx.x == 0) m.init();
    __syncthreads();
    /* the longest first, when causal; the sequences that share a bias together, so that memory is read once for all */
    head<typename P::T> at(o, P::BIAS ? blockIdx.x : blockIdx.z, P::BIAS ? blockIdx.z : blockIdx.y);
    int tile = (int)(P::BIAS ? gridDim.y - 1 - blockIdx.y : gridDim.x - 1 - blockIdx.x) * P::QUERIES;
    int first = at.first(tile) / P::KEYS * P::KEYS, last = at.last_key(tile, P::QUERIES);
    int tiles = last > first ? (last - first + P::KEYS - 1) / P::KEYS : 0, group = group_of() - 1;
    if (group < 0) {
        registers_down<P::SPARE_REGISTERS>();
        if (threadIdx.x == 0) bring_all(m, &of, at, tile, first, tiles);
    } else {
        registers_up<P::REGISTERS>();
        if (P::TURNS && group == P::GROUPS - 1 && tiles) turn_give(1);
        attend(m, at, group, tile, first, tiles);
    }
}

template <class P> static bool start(fv_stream *s, const job<typename P::T> &o)
{
    const fv_attn_args &a = o.a;
    maps of;
    if (!fv_cuda_map_attention(&of.in, &a, kind<typename P::T>::dtype, P::QUERIES, P::KEYS)) return false;
    if (P::BIAS && !map_bias(&of.bias, o, P::QUERIES)) return false;
    unsigned tiles = (unsigned)ceil_div(a.Tq, P::QUERIES), heads = (unsigned)a.H, sequences = (unsigned)a.B;
    dim3 grid = P::BIAS ? dim3(sequences, tiles, heads) : dim3(tiles, heads, sequences);
    launch(s, "attention", attention_wgmma<P>, grid, P::THREADS_ALL, P::BYTES, o, of);
    return true;
}

template <class T> bool fv_cuda_attention_hopper(fv_stream *s, const fv_attn_args *a)
{
    job<T> o = prepare<T>(s, a);
    bool narrow_heads = a->Wk <= 64 && a->Wv <= 64;
    if (biased(o))
        return narrow_heads ? start<plan<T, 64, BIASED, 3, 128, 2>>(s, o) : start<plan<T, 128, BIASED, 2, 128, 2>>(s, o);
    if (!o.plain) return narrow_heads ? start<plan<T, 64, ANY, 3, 64, 2>>(s, o) : start<plan<T, 128, ANY, 2, 64, 3>>(s, o);
    if (a->dropout > 0)
        return narrow_heads ? start<plan<T, 64, DROPS, 2, 128, 2>>(s, o) : start<plan<T, 128, DROPS, 2, 128, 2>>(s, o);
    return narrow_heads ? start<plan<T, 64, PLAIN, 3, 128, 2>>(s, o) : start<plan<T, 128, PLAIN, 2, 128, 2>>(s, o);
}

template bool fv_cuda_attention_hopper<bf16>(fv_stream *, const fv_attn_args *);
template bool fv_cuda_attention_hopper<f16>(fv_stream *, const fv_attn_args *);
