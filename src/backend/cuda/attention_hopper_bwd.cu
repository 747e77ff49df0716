/* attention_hopper_bwd.cu - the gradients of attention on Hopper, all three in one pass.
 *
 * A block owns 128 keys and their values, 64 for each of two groups of four warps, and goes through tiles of queries and dy,
 * which a group of its own brings:
 *
 *     s = k q',  d = v dy',  w = exp(s - lse),  ds = w (d - dy.y);   dv += w dy,  dk += ds q,  dq += ds' k
 *
 * Weights and slopes go into the sums of dv and dk from registers.  For dq both groups lay their slopes into shared memory, and
 * each takes 64 by 64 numbers of the tile's dq.  Three orders that keep more products under way (dv beside the slopes, the next
 * scores beside dk, dq a tile later) were no faster.
 *
 * Every block has a part of every dq.  The parts meet in memory as whole numbers, in units that attention_grads.h chooses for
 * each query: such sums are the same in any order, so gradients repeat bit by bit without waiting for one another.  Two passes,
 * one by rows and one by columns, would take seven products instead of five. */
#include "attention_bias.h"
#include "attention_grads.h"

template <class T_, int W_, int KIND_> struct plan {
    typedef T_ T;
    static constexpr int W = W_, GROUPS = 2, KEYS = 64 * GROUPS, QUERIES = GROUPS * PART / W, STAGES = 2;
    static constexpr int KIND = KIND_;
    static constexpr bool BIAS = KIND == BIASED;
    static_assert(STAGES == 2, "a tile of the bias lies where slopes will");
    static constexpr int THREADS_ALL = 128 * (GROUPS + 1), REGISTERS = 240, SPARE_REGISTERS = 24;
    static constexpr int TILE = QUERIES * W, SLOPES = QUERIES * KEYS;
    static constexpr size_t BYTES = 1024 + 2 * (KEYS * W + STAGES * TILE + SLOPES) * sizeof(T) + GROUPS * PART * sizeof(int) +
                                    STAGES * QUERIES * (sizeof(float2) + sizeof(float)) + (3 + 2 * STAGES) * sizeof(uint64_t);
};

struct maps {
    attention_maps in;
    CUtensorMap dy, bias;
};

template <class P> struct room {
    typedef typename P::T T;
    T *k, *v, *q, *dy, *slopes; /* slopes of two tiles: those of one are read while the next are laid */
    int4 *part;                 /* of dq, for each group */
    float2 *stat;
    float *unit;
    uint64_t *own, *own_free, *full, *free;
    int *item; /* that keys and values are of */

    __device__ room(unsigned char *memory)
    {
        memory += (1024 - shared_at(memory) % 1024) % 1024;
        k = (T *)memory;
        v = k + P::KEYS * P::W;
        q = v + P::KEYS * P::W;
        dy = q + P::STAGES * P::TILE;
        slopes = dy + P::STAGES * P::TILE;
        part = (int4 *)(slopes + 2 * P::SLOPES);
        stat = (float2 *)(part + P::GROUPS * PART / 4);
        unit = (float *)(stat + P::STAGES * P::QUERIES);
        own = (uint64_t *)(unit + P::STAGES * P::QUERIES);
        own_free = own + 1;
        full = own_free + 1;
        free = full + P::STAGES;
        item = (int *)(free + P::STAGES);
    }
    __device__ void init()
    {
        barrier_init(own, 1);
        barrier_init(own_free, 4 * P::GROUPS);
        for (int i = 0; i < P::STAGES; i++) {
            barrier_init(full + i, 33);
            barrier_init(free + i, 4 * P::GROUPS);
        }
        barriers_ready();
    }
};

/* Item i of the work: a block of keys, the longest of a head first when causal. */
template <class P> struct course {
    int b, g, from, to; /* sequence, head of keys, heads that it serves */
    int tile, turn;     /* first key; tiles of queries left for the end, so that not all add to the same ones at a time */

    __device__ course(const job<typename P::T> &o, int i)
    {
        int tiles = (int)ceil_div(o.a.Tk, P::KEYS), heads = (int)o.a.G, serves = (int)o.a.H / heads;
        /* sequences that share a bias go together, so that memory is read once for all */
        b = P::BIAS ? i / tiles % (int)o.a.B : i / tiles / heads;
        g = P::BIAS ? i / tiles / (int)o.a.B : i / tiles % heads;
        from = g * serves;
        to = from + serves;
        tile = i % tiles * P::KEYS;
        turn = tile / P::QUERIES;
    }
    /* Tiles that can meet the keys. */
    __device__ void range(const head<typename P::T> &at, int *first, int *count) const
    {
        int end = at.last_row(tile, P::KEYS);
        *first = at.first_row(tile) / P::QUERIES * P::QUERIES;
        *count = end > *first ? (end - *first + P::QUERIES - 1) / P::QUERIES : 0;
    }
    __device__ int place(int first, int count, int t) const { return first + (t + turn) % count * P::QUERIES; }
};

/* A tile of the bias to where its slopes will be laid, each group's to where that group will. */
template <class P>
__device__ inline void bring_bias(const room<P> &m, const job<typename P::T> &o, const maps *of, int stage, int h, int place,
                                  const course<P> &c)
{
    for (int i = 0; i < P::QUERIES; i += 64)
        for (int j = 0; j < P::KEYS; j += 64)
            bring_panel(m.slopes + stage * P::SLOPES + i * P::KEYS + j * PANEL, &of->bias, m.full + stage, c.tile + j,
                        o.a.bias_s[1] ? h : 0, place + i, o.a.bias_s[0] ? c.b : 0);
}

/* One warp brings everything, item by item: whichever is next when there is room for it. */
template <class P>
__device__ inline void bring_all(const room<P> &m, const job<typename P::T> &o, const maps *of, const float2 *stat,
                                 const whole_sums &sums, int items)
{
    typedef typename P::T T;
    int lane = threadIdx.x, turn = 0, item = blockIdx.x, next = 0;
    for (unsigned n = 0;; n++, item = __shfl_sync(~0u, next, 0)) {
        if (n > 0) wait_for(m.own_free, (n - 1) & 1);
        if (lane == 0) *m.item = item;
        if (item >= items) {
            if (lane == 0) arrive(m.own);
            return;
        }
        course<P> c(o, item);
        if (lane == 0) {
            arrive_expecting(m.own, 2 * P::KEYS * P::W * sizeof(T));
#pragma unroll
            for (int w = 0; w < P::W; w += PANEL) {
                bring_panel(m.k + w * P::KEYS, &of->in.k, m.own, w, c.g, c.tile, c.b);
                bring_panel(m.v + w * P::KEYS, &of->in.v, m.own, w, c.g, c.tile, c.b);
            }
            next = (int)gridDim.x + atomicAdd(sums.next, 1);
        }
        for (int h = c.from; h < c.to; h++) {
            head<T> at(o, c.b, h);
            int first, count;
            c.range(at, &first, &count);
            for (int t = 0; t < count; t++, turn++) {
                int stage = turn % P::STAGES, place = c.place(first, count, t);
                if (turn >= P::STAGES) wait_for(m.free + stage, (unsigned)(turn / P::STAGES + 1) & 1);
                if (lane == 0) {
                    arrive_expecting(m.full + stage, (2 * P::TILE + (P::BIAS ? P::SLOPES : 0)) * sizeof(T));
                    if (P::BIAS) bring_bias(m, o, of, stage, h, place, c);
#pragma unroll
                    for (int w = 0; w < P::W; w += PANEL) {
                        bring_panel(m.q + stage * P::TILE + w * P::QUERIES, &of->in.q, m.full + stage, w, h, place, c.b);
                        bring_panel(m.dy + stage * P::TILE + w * P::QUERIES, &of->dy, m.full + stage, w, h, place, c.b);
                    }
                }
                for (int i = lane; i < P::QUERIES; i += 32) {
                    bool there = place + i < at.rows;
                    m.stat[stage * P::QUERIES + i] = there ? stat[o.at_lse(c.b, h, place + i)] : make_float2(INFINITY, 0);
                    m.unit[stage * P::QUERIES + i] = there ? sums.unit[o.at_lse(c.b, h, place + i)] : 0;
                }
                arrive(m.full + stage);
            }
        }
    }
}

/* A group's slopes, 64 keys by so many queries, as rows of the panels of a tile of slopes. */
template <class P, int N> __device__ inline void lay(typename P::T *to, const uint32_t (&ds)[N][4], int group)
{
    int lane = threadIdx.x % 32, row = group * 64 + (int)threadIdx.x / 32 % 4 * 16 + lane / 8 % 2 * 8 + lane % 8;
#pragma unroll
    for (int n = 0; n < N; n++) {
        int eight = n * 2 + lane / 16; /* queries */
        store_matrices(to + eight / 8 * P::KEYS * PANEL + row * PANEL + (eight % 8 ^ row % 8) * 8, ds[n]);
    }
}

/* The group's share of a tile's dq, on its way to memory: thread 0 of the group sends what all have written.  Numbers stand as
 * threads have them, four together for each column block.  rest NULL: the head is not loose. */
__device__ inline void send_part(int4 *room, int4 *sum, int4 *rest, const float (&dq)[8][4], float unit0, float unit1, int group)
{
    int thread = threadIdx.x % 128;
    auto send = [&](int4 *to, auto number) {
#pragma unroll
        for (int n = 0; n < 8; n++)
            room[n * 128 + thread] = make_int4(number(dq[n][0] * unit0), number(dq[n][1] * unit0), number(dq[n][2] * unit1),
                                               number(dq[n][3] * unit1));
        written_for_engine();
        group_wait(2 + group);
        if (thread == 0) add_whole(to, room, PART * sizeof(int));
    };
    send(sum, [](float x) { return __float2int_rn(x); });
    if (!rest) return;
    if (thread == 0) added_read();
    group_wait(2 + group);
    send(rest, [](float x) { return __float2int_rn((x - rintf(x)) * REST_UNITS); });
}

/* An item, by one of the groups; turn counts the tiles of all. */
template <class P>
__device__ inline void gather(const room<P> &m, const job<typename P::T> &o, const whole_sums &sums, int group,
                              const course<P> &c, int &turn, sink<typename P::T> to_k, sink<typename P::T> to_v)
{
    typedef typename P::T T;
    constexpr int W = P::W, N = P::QUERIES / 8;
    /* heads 64 wide: a group has half of a tile's queries; 128 wide: half of their width */
    int of_queries = W == 64 ? group : 0, of_width = W == 64 ? 0 : group;
    int keys = c.tile + group * 64, row0 = keys + (int)threadIdx.x / 32 % 4 * 16;
    int query = of_queries * 64 + tile_row((int)threadIdx.x / 32 % 4 * 16, 0);
    const T *k = m.k + group * 64 * PANEL, *v = m.v + group * 64 * PANEL;
    float s[N][4], d[N][4], dk[W / 8][4], dv[W / 8][4], dq[8][4];
    uint32_t p[N / 2][4], ds[N / 2][4];
    clear(dk);
    clear(dv);
    for (int h = c.from; h < c.to; h++) {
        head<T> at(o, c.b, h);
        int first, count;
        c.range(at, &first, &count);
        bool loose = is_loose(sums.top + TOPS * (c.b * (int)o.a.G + c.g));
        for (int t = 0; t < count; t++, turn++) {
            int stage = turn % P::STAGES, place = c.place(first, count, t);
            const T *q = m.q + stage * P::TILE, *dy = m.dy + stage * P::TILE;
            const float2 *stat = m.stat + stage * P::QUERIES;
            T *laid = m.slopes + turn % 2 * P::SLOPES;
            wait_for(m.full + stage, (unsigned)(turn / P::STAGES) & 1);
            products_begin();
            multiply_rows<W, P::KEYS, P::QUERIES>(s, k, q);
            products_end();
            multiply_rows<W, P::KEYS, P::QUERIES>(d, v, dy);
            products_end();
            products_done<1>();
            if constexpr (P::BIAS)
                for (int i = 0; i < P::QUERIES; i += 64)
                    add_bias<true, 8>(s + i / 8, laid + i * P::KEYS + group * 64 * PANEL, (row0 - keys) / 8, o.bias_scale);
            weigh<true, P::KIND>(s, at, row0, place, at.whole(place, P::QUERIES, keys, 64),
                                 [&](int e, int n) { return stat[tile_col(0, n, e)].x; });
            narrow_by(p, s, [](float a, float b) { return P::KIND == PLAIN ? two(a, b, T()) : two_kept(a, b, T()); });
            products_done<0>();
#pragma unroll
            for (int n = 0; n < N; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) d[n][e] = slope_of<P::KIND>(s[n][e], d[n][e], stat[tile_col(0, n, e)].y);
            narrow(ds, d, T());
            if (P::BIAS) group_wait(2 + group); /* all have read the bias that was there */
            lay<P>(laid, ds, group);
            written_for_engine();
            if (threadIdx.x % 128 == 0) added_read(); /* the part before has left shared memory */
            turn_wait(1);                             /* the slopes of both groups are there */
            products_begin();
            multiply_columns<P::KEYS>(dq, laid + of_queries * P::KEYS * PANEL, m.k + of_width * P::KEYS * PANEL);
            products_end();
            multiply_sums(dv, p, dy);
            multiply_sums(dk, ds, q);
            products_end();
            products_done<1>();
            int part = (c.b * (int)o.a.H + h) * sums.parts + place / P::QUERIES * P::GROUPS + group;
            int64_t to = (int64_t)part * (PART / 4);
            send_part(m.part + group * (PART / 4), sums.sum + to, loose ? sums.rest + to : NULL, dq,
                      m.unit[stage * P::QUERIES + query], m.unit[stage * P::QUERIES + query + 8], group);
            products_done<0>();
            release(m.free + stage);
        }
    }
    release(m.own_free);
    int64_t at_k = o.k(c.b, c.g, 0) - (const T *)o.a.k, at_v = o.v(c.b, c.g, 0) - (const T *)o.a.v;
    if (to_k.p) write_rows(to_k, at_k, o.a.k_row, dk, row0, (int)o.a.Tk, (int)o.a.Wk, o.scale * LN2);
    if (to_v.p) write_rows(to_v, at_v, o.a.v_row, dv, row0, (int)o.a.Tk, (int)o.a.Wv, 1);
}

template <class P>
__global__ void __launch_bounds__(P::THREADS_ALL, 1)
    grad_wgmma(const __grid_constant__ job<typename P::T> o, const __grid_constant__ maps of, const float2 *stat, whole_sums sums,
               sink<typename P::T> to_k, sink<typename P::T> to_v, int items)
{
    extern __shared__ unsigned char memory[];
    room<P> m(memory);
    if (threadIdx.x == 0) m.init();
    __syncthreads();
    int group = group_of() - 1;
    if (group < 0) {
        registers_down<P::SPARE_REGISTERS>();
        if (threadIdx.x < 32) bring_all(m, o, &of, stat, sums, items);
    } else {
        registers_up<P::REGISTERS>();
        int turn = 0;
        for (unsigned n = 0;; n++) {
            wait_for(m.own, n & 1);
            int item = *(volatile int *)m.item;
            if (item >= items) break;
            gather(m, o, sums, group, course<P>(o, item), turn, to_k, to_v);
        }
        if (threadIdx.x % 128 == 0) added_read();
    }
}

/* The sums of dq as they are wanted: a block has the part of a group, turned so that a thread has eight numbers of a row. */
template <class P>
__global__ void __launch_bounds__(128)
    spread_sums(const __grid_constant__ job<typename P::T> o, whole_sums from, sink<typename P::T> to, bool quick)
{
    typedef typename P::T T;
    constexpr int STEP = 72; /* then pairs of a warp are in different banks */
    __shared__ __align__(16) float part[64 * STEP];
    int x = blockIdx.x, h = blockIdx.y, b = blockIdx.z, thread = threadIdx.x, c = thread % 8 * 8;
    int column = P::W == 64 ? 0 : x % 2 * 64;
    int64_t at = (int64_t)((b * (int)o.a.H + h) * from.parts + x) * (PART / 4) + thread;
    int64_t base = o.q(b, h, 0) - (const T *)o.a.q + column + c;
    auto whole = [](int sum, int rest) { return (float)sum + (float)rest / REST_UNITS; };
    bool loose = is_loose(from.top + TOPS * (b * (int)o.a.G + o.kv_head(h)));
#pragma unroll
    for (int n = 0; n < 8; n++) {
        int4 sum = from.sum[at + n * 128], rest = loose ? from.rest[at + n * 128] : make_int4(0, 0, 0, 0);
        float *row = part + tile_row(thread / 32 * 16, 0) * STEP + tile_col(0, n, 0);
        *(float2 *)row = make_float2(whole(sum.x, rest.x), whole(sum.y, rest.y));
        *(float2 *)(row + 8 * STEP) = make_float2(whole(sum.z, rest.z), whole(sum.w, rest.w));
    }
    __syncthreads();
#pragma unroll
    for (int r = thread / 8; r < 64; r += 16) {
        int i = (P::W == 64 ? x : x / 2) * 64 + r;
        if (i >= o.a.Tq || column + c >= o.a.Wk) return;
        float unit = from.unit[o.at_lse(b, h, i)], size = unit == 0 ? 0 : o.scale * LN2 / unit, dq[8];
        load(dq, part, r * STEP + c);
#pragma unroll
        for (int e = 0; e < 8; e++) dq[e] *= size;
        if (quick)
            deliver(to, base + i * o.a.q_row, dq);
        else
            for (int e = 0; e < 8; e++) put(to, base + i * o.a.q_row + e, dq[e]);
    }
}

template <class P>
static bool start(fv_stream *s, const job<typename P::T> &o, const fv_attn_grads *g, const float2 *stat, whole_sums sums)
{
    typedef typename P::T T;
    const fv_attn_args &a = o.a;
    fv_dtype t = kind<T>::dtype;
    maps of;
    if (!fv_cuda_map_attention(&of.in, &a, t, P::QUERIES, P::KEYS) ||
        !fv_cuda_map(&of.dy, g->dy, t, a.B, a.Tq, a.H, a.Wv, a.H * a.Wv, a.Tq * a.H * a.Wv, P::QUERIES))
        return false;
    if (P::BIAS && !map_bias(&of.bias, o, 64)) return false;
    int items = (int)(ceil_div(a.Tk, P::KEYS) * a.G * a.B), most = device_of(s)->processors;
    dim3 grid((unsigned)(items < most ? items : most));
    dim3 parts((unsigned)(ceil_div(a.Tq, P::QUERIES) * P::GROUPS), (unsigned)a.H, (unsigned)a.B);
    sink<T> dk = to<T>(g->dk), dv = to<T>(g->dv);
    launch(s, "attention_bwd", grad_wgmma<P>, grid, P::THREADS_ALL, P::BYTES, o, of, stat, sums, dk, dv, items);
    if (g->dq.data) launch(s, "attention_bwd", spread_sums<P>, parts, 128, 0, o, sums, to<T>(g->dq), aligned(g->dq.data));
    return true;
}

int64_t fv_cuda_hopper_sums(const fv_attn_args *a)
{
    int wide = a->Wk <= 64 && a->Wv <= 64 ? 64 : 128;
    return a->B * a->H * ceil_div(a->Tq, 2 * PART / wide) * 2 * PART;
}

template <class T>
bool fv_cuda_attention_hopper_bwd(fv_stream *s, const job<T> *o, const fv_attn_grads *g, const float2 *stat, whole_sums sums)
{
    const fv_attn_args &a = o->a;
    bool narrow_heads = a.Wk <= 64 && a.Wv <= 64;
    auto run = [&](auto slim, auto wide) {
        return narrow_heads ? start<decltype(slim)>(s, *o, g, stat, sums) : start<decltype(wide)>(s, *o, g, stat, sums);
    };
    if (biased(*o)) return run(plan<T, 64, BIASED>(), plan<T, 128, BIASED>());
    if (!o->plain) return run(plan<T, 64, ANY>(), plan<T, 128, ANY>());
    return a.dropout > 0 ? run(plan<T, 64, DROPS>(), plan<T, 128, DROPS>()) : run(plan<T, 64, PLAIN>(), plan<T, 128, PLAIN>());
}

#define FOR(T)                                                                                                                   \
    template bool fv_cuda_attention_hopper_bwd<T>(fv_stream *, const job<T> *, const fv_attn_grads *, const float2 *, whole_sums);
FOR(bf16)
FOR(f16)
