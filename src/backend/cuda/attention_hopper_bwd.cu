/* attention_hopper_bwd.cu - the gradients of attention on Hopper, by rows and by columns as attention_bwd.cu has them.
 *
 * Both directions are one kernel.  A group of four warps owns 64 rows of two tensors A and Z (queries and dy; or, turned, keys
 * and values) and goes through tiles of the two others, B and X, which a group of its own brings:
 *
 *     s = A B',  d = Z X',  w = exp(s - lse),  ds = w (d - dy.y);   sum of ds B: dq, or dk;   turned: sum of w X: dv
 *
 * Weights and slopes go into the products that follow from registers; nothing but tiles as they came is in shared memory. */
#include "attention_grads.h"
#include "hopper.h"

template <class T_, int W_, bool PLAIN_, bool TURNED_, int GROUPS_, int COLUMNS_, int STAGES_> struct plan {
    typedef T_ T;
    static constexpr int W = W_, GROUPS = GROUPS_, COLUMNS = COLUMNS_, STAGES = STAGES_;
    static constexpr bool PLAIN = PLAIN_, TURNED = TURNED_;
    static constexpr int OWN = 64 * GROUPS, THREADS_ALL = 128 * (GROUPS + 1);
    static constexpr int REGISTERS = GROUPS == 2 ? 240 : 160, SPARE_REGISTERS = GROUPS == 2 ? 24 : 32;
    static constexpr int TILE = COLUMNS * W;
    static constexpr size_t BYTES = 1024 + 2 * (OWN * W + STAGES * TILE) * sizeof(T) + STAGES * COLUMNS * sizeof(float2) +
                                    (1 + 2 * STAGES) * sizeof(uint64_t);
};

/* Tensor maps of what is owned and what passes by. */
struct maps {
    CUtensorMap a, z, b, x;
};

template <class P> struct room {
    typedef typename P::T T;
    T *a, *z, *b, *x;
    float2 *stat; /* of queries that pass by */
    uint64_t *own, *full, *free;

    __device__ room(unsigned char *memory)
    {
        memory += (1024 - shared_at(memory) % 1024) % 1024;
        a = (T *)memory;
        z = a + P::OWN * P::W;
        b = z + P::OWN * P::W;
        x = b + P::STAGES * P::TILE;
        stat = (float2 *)(x + P::STAGES * P::TILE);
        own = (uint64_t *)(stat + P::STAGES * P::COLUMNS);
        full = own + 1;
        free = full + P::STAGES;
    }
    __device__ void init()
    {
        barrier_init(own, 1);
        for (int i = 0; i < P::STAGES; i++) {
            barrier_init(full + i, P::TURNED ? 33 : 1);
            barrier_init(free + i, 4 * P::GROUPS);
        }
        barriers_ready();
    }
};

/* The tiles that pass by: of each head that is served, those that can meet the rows owned. */
template <class P> struct course {
    int from, to; /* heads */
    int tile;

    __device__ void range(const head<typename P::T> &at, int *first, int *count) const
    {
        int begin = P::TURNED ? at.first_row(tile) : at.first(tile);
        int end = P::TURNED ? at.last_row(tile, P::OWN) : at.last_key(tile, P::OWN);
        *first = begin / P::COLUMNS * P::COLUMNS;
        *count = end > *first ? (end - *first + P::COLUMNS - 1) / P::COLUMNS : 0;
    }
};

/* One warp brings everything. */
template <class P>
__device__ inline void bring_all(const room<P> &m, const job<typename P::T> &o, const maps *of, const float2 *stat, int b,
                                 const course<P> &c)
{
    typedef typename P::T T;
    int lane = threadIdx.x, head_own = P::TURNED ? o.kv_head(c.from) : c.from, turn = 0;
    if (lane == 0) {
        arrive_expecting(m.own, 2 * P::OWN * P::W * sizeof(T));
#pragma unroll
        for (int w = 0; w < P::W; w += PANEL) {
            bring_panel(m.a + w * P::OWN, &of->a, m.own, w, head_own, c.tile, b);
            bring_panel(m.z + w * P::OWN, &of->z, m.own, w, head_own, c.tile, b);
        }
    }
    for (int h = c.from; h < c.to; h++) {
        head<T> at(o, b, h);
        int first, count, pass = P::TURNED ? h : o.kv_head(h);
        c.range(at, &first, &count);
        for (int t = 0; t < count; t++, turn++) {
            int stage = turn % P::STAGES, place = first + t * P::COLUMNS;
            if (turn >= P::STAGES) wait_for(m.free + stage, (unsigned)(turn / P::STAGES + 1) & 1);
            if (lane == 0) {
                arrive_expecting(m.full + stage, 2 * P::TILE * sizeof(T));
#pragma unroll
                for (int w = 0; w < P::W; w += PANEL) {
                    bring_panel(m.b + stage * P::TILE + w * P::COLUMNS, &of->b, m.full + stage, w, pass, place, b);
                    bring_panel(m.x + stage * P::TILE + w * P::COLUMNS, &of->x, m.full + stage, w, pass, place, b);
                }
            }
            if (P::TURNED) {
                for (int i = lane; i < P::COLUMNS; i += 32)
                    m.stat[stage * P::COLUMNS + i] =
                        place + i < at.rows ? stat[o.at_lse(b, h, place + i)] : make_float2(INFINITY, 0);
                arrive(m.full + stage);
            }
        }
    }
}

template <class P>
__device__ inline void gather(const room<P> &m, const job<typename P::T> &o, const float2 *stat, int group, int b,
                              const course<P> &c, sink<typename P::T> d1, sink<typename P::T> d2)
{
    typedef typename P::T T;
    constexpr int W = P::W, N = P::COLUMNS / 8;
    int rows = c.tile + group * 64, row0 = rows + (int)threadIdx.x / 32 % 4 * 16, turn = 0;
    const T *a = m.a + group * 64 * PANEL, *z = m.z + group * 64 * PANEL;
    float s[N][4], d[N][4], sum1[W / 8][4], sum2[P::TURNED ? W / 8 : 1][4];
    uint32_t p[P::TURNED ? N / 2 : 1][4], ds[N / 2][4];
    clear(sum1);
    clear(sum2);
    wait_for(m.own, 0);
    for (int h = c.from; h < c.to; h++) {
        head<T> at(o, b, h);
        int first, count;
        float2 known[2];
#pragma unroll
        for (int r = 0; r < 2 && !P::TURNED; r++) {
            int i = tile_row(row0, r * 2);
            known[r] = i < at.rows ? stat[o.at_lse(b, h, i)] : make_float2(INFINITY, 0);
        }
        c.range(at, &first, &count);
        for (int t = 0; t < count; t++, turn++) {
            int stage = turn % P::STAGES, place = first + t * P::COLUMNS;
            const T *tb = m.b + stage * P::TILE, *tx = m.x + stage * P::TILE;
            const float2 *stats = m.stat + stage * P::COLUMNS;
            wait_for(m.full + stage, (unsigned)(turn / P::STAGES) & 1);
            products_begin();
            multiply_rows<W, P::OWN, P::COLUMNS>(s, a, tb);
            multiply_rows<W, P::OWN, P::COLUMNS>(d, z, tx);
            products_end();
            products_done<0>();
            if constexpr (P::TURNED)
                slopes<true, P::PLAIN>(s, d, at, row0, place, at.whole(place, P::COLUMNS, rows, 64),
                                       [&](int e, int n) { return stats[tile_col(0, n, e)]; });
            else
                slopes<false, P::PLAIN>(s, d, at, row0, place, at.whole(rows, 64, place, P::COLUMNS),
                                        [&](int e, int) { return known[e / 2]; });
            narrow(ds, d, T());
            if constexpr (P::TURNED) narrow(p, s, T());
            products_begin();
            multiply_sums(sum1, ds, tb);
            if constexpr (P::TURNED) multiply_sums(sum2, p, tx);
            products_end();
            products_done<0>();
            release(m.free + stage);
        }
    }
    int own = P::TURNED ? (int)o.a.Tk : (int)o.a.Tq, g = o.kv_head(c.from);
    if constexpr (P::TURNED) {
        if (d1.p) write_rows(d1, o.k(b, g, 0) - (const T *)o.a.k, o.a.k_row, sum1, row0, own, (int)o.a.Wk, o.scale * LN2);
        if (d2.p) write_rows(d2, o.v(b, g, 0) - (const T *)o.a.v, o.a.v_row, sum2, row0, own, (int)o.a.Wv, 1);
    } else {
        write_rows(d1, o.q(b, c.from, 0) - (const T *)o.a.q, o.a.q_row, sum1, row0, own, (int)o.a.Wk, o.scale * LN2);
    }
}

template <class P>
__global__ void __launch_bounds__(P::THREADS_ALL, 1)
    grad_wgmma(const __grid_constant__ job<typename P::T> o, const __grid_constant__ maps of, const float2 *stat,
               sink<typename P::T> d1, sink<typename P::T> d2)
{
    extern __shared__ unsigned char memory[];
    room<P> m(memory);
    if (threadIdx.x == 0) m.init();
    __syncthreads();
    int b = blockIdx.z, serves = P::TURNED ? (int)(o.a.H / o.a.G) : 1, group = (int)threadIdx.x / 128 - 1;
    course<P> c;
    c.from = (int)blockIdx.y * serves;
    c.to = c.from + serves;
    c.tile = (int)(P::TURNED ? blockIdx.x : gridDim.x - 1 - blockIdx.x) * P::OWN; /* the longest first, when causal */
    if (group < 0) {
        registers_down<P::SPARE_REGISTERS>();
        if (threadIdx.x < 32) bring_all(m, o, &of, stat, b, c);
    } else {
        registers_up<P::REGISTERS>();
        gather(m, o, stat, group, b, c, d1, d2);
    }
}

template <class P>
static bool start(fv_stream *s, const job<typename P::T> &o, const void *dy, const float2 *stat, fv_sink d1, fv_sink d2)
{
    typedef typename P::T T;
    const fv_attn_args &a = o.a;
    fv_dtype t = kind<T>::dtype;
    int by_query = P::TURNED ? P::COLUMNS : P::OWN, by_key = P::TURNED ? P::OWN : P::COLUMNS;
    CUtensorMap q, k, v, d;
    if (!fv_cuda_map(&q, a.q, t, a.B, a.Tq, a.H, a.Wk, a.q_row, a.q_batch, by_query) ||
        !fv_cuda_map(&d, dy, t, a.B, a.Tq, a.H, a.Wv, a.H * a.Wv, a.Tq * a.H * a.Wv, by_query) ||
        !fv_cuda_map(&k, a.k, t, a.B, a.Tk, a.G, a.Wk, a.k_row, a.k_batch, by_key) ||
        !fv_cuda_map(&v, a.v, t, a.B, a.Tk, a.G, a.Wv, a.v_row, a.v_batch, by_key))
        return false;
    maps of = P::TURNED ? maps{k, v, q, d} : maps{q, d, k, v};
    dim3 grid((unsigned)ceil_div(P::TURNED ? a.Tk : a.Tq, P::OWN), (unsigned)(P::TURNED ? a.G : a.H), (unsigned)a.B);
    launch(s, "attention_bwd", grad_wgmma<P>, grid, P::THREADS_ALL, P::BYTES, o, of, stat, to<T>(d1), to<T>(d2));
    return true;
}

template <class Q, class K>
static bool both(fv_stream *s, const job<typename Q::T> &o, const fv_attn_grads *g, const float2 *stat)
{
    bool ok = true;
    if (g->dq.data) ok = start<Q>(s, o, g->dy, stat, g->dq, g->dq);
    if (ok && (g->dk.data || g->dv.data)) ok = start<K>(s, o, g->dy, stat, g->dk, g->dv);
    return ok;
}

template <class T> bool fv_cuda_attention_hopper_bwd(fv_stream *s, const job<T> *o, const fv_attn_grads *g, const float2 *stat)
{
    const fv_attn_args &a = o->a;
    bool plain = o->plain && a.dropout <= 0, narrow_heads = a.Wk <= 64 && a.Wv <= 64;
    if (narrow_heads && plain)
        return both<plan<T, 64, true, false, 3, 64, 3>, plan<T, 64, true, true, 3, 64, 3>>(s, *o, g, stat);
    if (narrow_heads) return both<plan<T, 64, false, false, 2, 64, 2>, plan<T, 64, false, true, 2, 64, 2>>(s, *o, g, stat);
    if (plain) return both<plan<T, 128, true, false, 2, 64, 2>, plan<T, 128, true, true, 2, 64, 2>>(s, *o, g, stat);
    return both<plan<T, 128, false, false, 2, 64, 2>, plan<T, 128, false, true, 2, 64, 2>>(s, *o, g, stat);
}

template bool fv_cuda_attention_hopper_bwd<bf16>(fv_stream *, const job<bf16> *, const fv_attn_grads *, const float2 *);
template bool fv_cuda_attention_hopper_bwd<f16>(fv_stream *, const job<f16> *, const fv_attn_grads *, const float2 *);
