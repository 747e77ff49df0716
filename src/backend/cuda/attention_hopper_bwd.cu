/* attention_hopper_bwd.cu - the gradients of attention on Hopper, all three in one pass.
 *
 * A block owns 128 keys and their values, 64 for each of two groups of four warps, and goes through tiles of queries and dy:
 *
 *     s = k q',  d = v dy',  w = exp(s - lse),  ds = w (d - dy.y);   dv += w dy,  dk += ds q,  dq += ds' k
 *
 * Weights and slopes go into the sums of dv and dk from registers.  For dq both groups lay their slopes into shared memory, and
 * each takes 64 by 64 numbers of the tile's dq, which the copy engine adds to those of other blocks (attention_hopper_sums.h).
 * What a thread spills goes all the way to memory here, as shared memory leaves no room in the cache, and the assembler puts a
 * wait behind every product where registers do not suffice: so not more products are under way at a time than these.
 *
 * A warp beside these brings tiles, those of the next keys while the last of these are computed on. */
#include "attention_bias.h"
#include "attention_grads.h"
#include "attention_hopper_sums.h"
#include "attention_ways.h"

/* An item of the work: a block of keys, and the tiles of queries that can meet them. */
struct course {
    int b, g, from, to;      /* sequence, head of keys, heads that it serves; b < 0: there are no more */
    int tile;                /* first key */
    int first, count, start; /* first query, tiles of them, and which comes first, so that not all add to the same at a time */
    bool loose;
    __device__ int place(int t, int queries) const
    {
        int at = t + start;
        return first + (at < count ? at : at - count) * queries;
    }
};

template <class T_, int W_, int KIND_> struct plan {
    typedef T_ T;
    static constexpr int W = W_, GROUPS = 2, KEYS = 64 * GROUPS, QUERIES = GROUPS * PART / W, STAGES = 2;
    static constexpr int KIND = KIND_;
    static constexpr bool BIAS = KIND == BIASED;
    static constexpr bool EARLY = KIND == PLAIN && W == 128; /* dv is under way while slopes are made: else registers lack */
    static_assert(STAGES == 2, "a tile of the bias lies where slopes will");
    static constexpr int THREADS_ALL = 128 * (GROUPS + 1), REGISTERS = 240, SPARE_REGISTERS = 24;
    static constexpr int TILE = QUERIES * W, SLOPES = QUERIES * KEYS;
    static constexpr size_t BYTES = 1024 + (3 * KEYS * W + 2 * STAGES * TILE + 2 * SLOPES) * sizeof(T) +
                                    GROUPS * PART * sizeof(int) + STAGES * QUERIES * (sizeof(float2) + sizeof(float)) +
                                    (6 + 2 * STAGES) * sizeof(uint64_t) + 2 * sizeof(course);
    static_assert(128 * (GROUPS * REGISTERS + SPARE_REGISTERS) <= 65536 / THREADS_ALL / 8 * 8 * THREADS_ALL, "what a block has");
};

struct maps {
    attention_maps in;
    CUtensorMap dy, bias;
};

template <class P> struct room {
    typedef typename P::T T;
    T *k, *v, *q, *dy, *slopes; /* keys of two items; slopes of two tiles: those of one are read while the next are laid */
    int4 *part;                 /* of dq, for each group */
    float2 *stat;
    float *unit;
    uint64_t *k_full, *k_free, *v_full, *v_free, *full, *free;
    course *own;

    __device__ room(unsigned char *memory)
    {
        memory += (1024 - shared_at(memory) % 1024) % 1024;
        k = (T *)memory;
        v = k + 2 * P::KEYS * P::W;
        q = v + P::KEYS * P::W;
        dy = q + P::STAGES * P::TILE;
        slopes = dy + P::STAGES * P::TILE;
        part = (int4 *)(slopes + 2 * P::SLOPES);
        stat = (float2 *)(part + P::GROUPS * PART / 4);
        unit = (float *)(stat + P::STAGES * P::QUERIES);
        k_full = (uint64_t *)(unit + P::STAGES * P::QUERIES);
        k_free = k_full + 2;
        v_full = k_free + 2;
        v_free = v_full + 1;
        full = v_free + 1;
        free = full + P::STAGES;
        own = (course *)(free + P::STAGES);
    }
    __device__ void init()
    {
        for (int i = 0; i < 2; i++) {
            barrier_init(k_full + i, 1);
            barrier_init(k_free + i, 128 * P::GROUPS);
        }
        barrier_init(v_full, 1);
        barrier_init(v_free, 4 * P::GROUPS);
        for (int i = 0; i < P::STAGES; i++) {
            barrier_init(full + i, 33);
            barrier_init(free + i, 4 * P::GROUPS);
        }
        barriers_ready();
    }
};

/* The n-th head of keys.  Sequences that share a bias go together, so that memory is read once for all. */
template <class P> __device__ inline void where(const job<typename P::T> &o, int n, int *b, int *g)
{
    int heads = (int)o.a.G, sequences = (int)o.a.B;
    *b = P::BIAS ? n % sequences : n / heads;
    *g = P::BIAS ? n / sequences : n % heads;
}

/* Item i: the longest of a head first when causal. */
template <class P> __device__ inline course course_of(const job<typename P::T> &o, int i)
{
    int tiles = (int)ceil_div(o.a.Tk, P::KEYS), heads = (int)o.a.G, serves = (int)o.a.H / heads, n = i / tiles;
    course c;
    where<P>(o, n, &c.b, &c.g);
    c.from = c.g * serves;
    c.to = c.from + serves;
    c.tile = i % tiles * P::KEYS;
    head<typename P::T> at(o, c.b, c.from);
    int end = at.last_row(c.tile, P::KEYS);
    c.first = at.first_row(c.tile) / P::QUERIES * P::QUERIES;
    c.count = end > c.first ? (end - c.first + P::QUERIES - 1) / P::QUERIES : 0;
    c.start = c.count ? c.tile / P::QUERIES % c.count : 0;
    return c;
}

/* A tile of the bias to where its slopes will be laid, each group's to where that group will. */
template <class P>
__device__ inline void bring_bias(const room<P> &m, const job<typename P::T> &o, const maps *of, int stage, int h, int place,
                                  const course &c)
{
    for (int i = 0; i < P::QUERIES; i += 64)
        for (int j = 0; j < P::KEYS; j += 64)
            bring_panel(m.slopes + stage * P::SLOPES + i * P::KEYS + j * PANEL, &of->bias, m.full + stage, c.tile + j,
                        o.a.bias_s[1] ? h : 0, place + i, o.a.bias_s[0] ? c.b : 0);
}

/* One warp brings everything, item by item: whichever is next when there is room for it. */
template <class P>
__device__ inline void bring_all(const room<P> &m, const job<typename P::T> &o, const maps *of, const whole_sums &sums, int items)
{
    typedef typename P::T T;
    int lane = threadIdx.x, turn = 0, item = blockIdx.x, next = 0;
    unsigned values = 0;
    for (unsigned n = 0;; n++, item = __shfl_sync(~0u, next, 0)) {
        uint64_t *k_full = m.k_full + n % 2;
        if (n >= 2) wait_for(m.k_free + n % 2, (n / 2 + 1) & 1);
        if (item >= items) {
            if (lane == 0) m.own[n % 2].b = -1;
            if (lane == 0) arrive(k_full);
            return;
        }
        course c = course_of<P>(o, item);
        bound limit = bound_of(sums, c.b * (int)o.a.G + c.g, o.keep_scale);
        c.loose = limit.loose;
        if (lane == 0) {
            m.own[n % 2] = c;
            arrive_expecting(k_full, P::KEYS * P::W * sizeof(T));
#pragma unroll
            for (int w = 0; w < P::W; w += PANEL)
                bring_panel(m.k + (n % 2 * P::W + w) * P::KEYS, &of->in.k, k_full, w, c.g, c.tile, c.b);
            next = (int)gridDim.x + atomicAdd(sums.next, 1);
        }
        for (int h = c.from; h < c.to; h++)
            for (int t = 0; t < c.count; t++, turn++) {
                int stage = turn % P::STAGES, place = c.place(t, P::QUERIES);
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
                    float4 known = make_float4(INFINITY, 0, 0, 0);
                    if (place + i < o.a.Tq) known = sums.stat[o.at_lse(c.b, h, place + i)];
                    m.stat[stage * P::QUERIES + i] = make_float2(known.x, known.y);
                    m.unit[stage * P::QUERIES + i] = units(known.z * limit.most);
                }
                arrive(m.full + stage);
                if (h > c.from || t > 0) continue;
                if (values > 0) wait_for(m.v_free, (values - 1) & 1);
                values++;
                if (lane > 0) continue;
                arrive_expecting(m.v_full, P::KEYS * P::W * sizeof(T));
#pragma unroll
                for (int w = 0; w < P::W; w += PANEL) bring_panel(m.v + w * P::KEYS, &of->in.v, m.v_full, w, c.g, c.tile, c.b);
            }
    }
}

/* A group's numbers, 64 rows by 16 N, as rows of panels of ROWS_ rows. */
template <int ROWS_, int N, class T> __device__ inline void lay(T *to, const uint32_t (&x)[N][4], int row0)
{
    int lane = threadIdx.x % 32, row = row0 + (int)threadIdx.x / 32 % 4 * 16 + lane / 8 % 2 * 8 + lane % 8;
#pragma unroll
    for (int n = 0; n < N; n++) {
        int eight = n * 2 + lane / 16; /* columns */
        store_matrices(to + eight / 8 * ROWS_ * PANEL + row * PANEL + (eight % 8 ^ row % 8) * 8, x[n]);
    }
}

/* The group's share of a tile's dq, on its way to memory: thread 0 of the group sends what all have written.  Numbers stand as
 * threads have them, four together for each column block.  rest NULL: the head is not loose. */
__device__ inline void add_part(int4 *room, int4 *sum, int4 *rest, const float (&dq)[8][4], float unit0, float unit1, int group)
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

/* A group's rows of a gradient by way of its room for parts, so that eight neighbours go together; where they cannot, straight
 * from registers. */
template <int W, class T>
__device__ inline void write_keys(sink<T> to, T *room, int64_t base, int64_t step, const float (&x)[W / 8][4], int row0, int rows,
                                  int width, float scale, int group)
{
    int thread = threadIdx.x % 128;
    if (!to.p) return;
    if (to.wide || to.add || ((uintptr_t)to.p & 15)) {
        write_rows(to, base, step, x, row0 + thread / 32 * 16, rows, width, scale);
        return;
    }
    uint32_t narrowed[W / 16][4];
    narrow_by(narrowed, x, [&](float a, float b) { return two(a * scale, b * scale, T()); });
    group_wait(2 + group); /* nobody reads what was there */
    lay<64>(room, narrowed, 0);
    group_wait(2 + group);
#pragma unroll
    for (int n = 0; n < W / 16; n++) {
        int row = n % 4 * 16 + thread / 8, c = n / 4 * PANEL + thread % 8 * 8;
        const uint4 *from = (const uint4 *)(room + (n / 4 * 64 + row) * PANEL + (thread % 8 ^ row % 8) * 8);
        if (row0 + row < rows && c < width) *(uint4 *)((T *)to.p + base + (row0 + row) * step + c) = *from;
    }
}

/* An item, by one of the groups; turn counts the tiles of all, values the items that had any. */
template <class P>
__device__ inline void gather(const room<P> &m, const job<typename P::T> &o, const whole_sums &sums, int group, const course &c,
                              const typename P::T *all_keys, int &turn, unsigned &values, sink<typename P::T> to_k,
                              sink<typename P::T> to_v)
{
    typedef typename P::T T;
    constexpr int W = P::W, N = P::QUERIES / 8;
    /* heads 64 wide: a group has half of a tile's queries; 128 wide: half of their width */
    int of_queries = W == 64 ? group : 0, of_width = W == 64 ? 0 : group;
    int keys = c.tile + group * 64, row0 = keys + (int)threadIdx.x / 32 % 4 * 16;
    int query = of_queries * 64 + tile_row(row0 - keys, 0);
    const T *k = all_keys + group * 64 * PANEL, *v = m.v + group * 64 * PANEL;
    int4 *room = m.part + group * (PART / 4);
    float s[N][4], d[N][4], dk[W / 8][4], dv[W / 8][4], dq[8][4];
    uint32_t p[N / 2][4], ds[N / 2][4];
    clear(dk);
    clear(dv);
    if (c.count) wait_for(m.v_full, values++ & 1);
    auto visit = [&](int h, int t, bool last) {
        int stage = turn % P::STAGES, place = c.place(t, P::QUERIES);
        head<T> at(o, c.b, h);
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
        auto narrow_weights = [&] {
            narrow_by(p, s, [](float a, float b) { return P::KIND == PLAIN ? two(a, b, T()) : two_kept(a, b, T()); });
        };
        if constexpr (P::EARLY) {
            narrow_weights();
            products_begin();
            multiply_sums(dv, p, dy);
            products_end();
            products_done<1>();
        } else {
            if (P::KIND == PLAIN) worked_out(bits_of(s));
            products_done<0>();
            narrow_weights();
        }
        if (last) release(m.v_free);
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) d[n][e] = slope_of<P::KIND>(s[n][e], d[n][e], stat[tile_col(0, n, e)].y);
        narrow(ds, d, T());
        if (P::BIAS) group_wait(2 + group); /* all have read the bias that was there */
        lay<P::KEYS>(laid, ds, group * 64);
        written_for_engine();
        if (threadIdx.x % 128 == 0) added_read(); /* the part before has left shared memory */
        turn_wait(1);                             /* the slopes of both groups are there */
        products_begin();
        multiply_columns<P::KEYS>(dq, laid + of_queries * P::KEYS * PANEL, all_keys + of_width * P::KEYS * PANEL);
        products_end();
        if (!P::EARLY) multiply_sums(dv, p, dy);
        multiply_sums(dk, ds, q);
        products_end();
        products_done<1>();
        if (sums.sum) {
            int part = (c.b * (int)o.a.H + h) * sums.parts + place / P::QUERIES * P::GROUPS + group;
            int64_t to = (int64_t)part * (PART / 4);
            add_part(room, sums.sum + to, c.loose ? sums.rest + to : NULL, dq, m.unit[stage * P::QUERIES + query],
                     m.unit[stage * P::QUERIES + query + 8], group);
        }
        products_done<0>();
        release(m.free + stage);
        turn++;
    };
    for (int h = c.from; h < c.to; h++)
        for (int t = 0; t < c.count; t++) visit(h, t, h == c.to - 1 && t == c.count - 1);
    if (threadIdx.x % 128 == 0) added_read();
    int64_t at_k = o.k(c.b, c.g, 0) - (const T *)o.a.k, at_v = o.v(c.b, c.g, 0) - (const T *)o.a.v;
    T *second = (T *)room + (W == 64 ? 64 * 64 : 0);
    write_keys<W>(to_k, (T *)room, at_k, o.a.k_row, dk, keys, (int)o.a.Tk, (int)o.a.Wk, o.scale * LN2, group);
    write_keys<W>(to_v, second, at_v, o.a.v_row, dv, keys, (int)o.a.Tk, (int)o.a.Wv, 1, group);
}

template <class P>
__global__ void __launch_bounds__(P::THREADS_ALL, 1)
    grad_wgmma(const __grid_constant__ job<typename P::T> o, const __grid_constant__ maps of,
               const __grid_constant__ whole_sums sums, sink<typename P::T> to_k, sink<typename P::T> to_v, int items)
{
    extern __shared__ unsigned char memory[];
    room<P> m(memory);
    if (threadIdx.x == 0) m.init();
    __syncthreads();
    int group = group_of() - 1;
    if (group < 0) {
        registers_down<P::SPARE_REGISTERS>();
        if (threadIdx.x < 32) bring_all(m, o, &of, sums, items);
    } else {
        registers_up<P::REGISTERS>();
        int turn = 0;
        unsigned values = 0;
        for (unsigned n = 0;; n++) {
            wait_for(m.k_full + n % 2, n / 2 & 1);
            if (__shfl_sync(~0u, m.own[n % 2].b, 0) < 0) break; /* known to be the same for all */
            gather(m, o, sums, group, m.own[n % 2], m.k + n % 2 * P::KEYS * P::W, turn, values, to_k, to_v);
            arrive(m.k_free + n % 2);
        }
        if (threadIdx.x % 128 == 0) added_read();
    }
}

/* The sums of dq as they are wanted: a warp has a strip. */
template <class P>
__global__ void __launch_bounds__(THREADS) spread(const __grid_constant__ job<typename P::T> o,
                                                  const __grid_constant__ whole_sums sums, sink<typename P::T> to, bool quick)
{
    int part = blockIdx.x, h = blockIdx.y, b = blockIdx.z, half = part % 2 * 64;
    int row = part / 2 * P::QUERIES + (P::W == 64 ? half : 0), column = P::W == 64 ? 0 : half;
    bound of = bound_of(sums, b * (int)o.a.G + o.kv_head(h), o.keep_scale);
    int64_t at = ((int64_t)(b * (int)o.a.H + h) * sums.parts + part) * (PART / 4);
    write_strip(o, sums, to, quick, of, b, h, at, (int)threadIdx.x / 32, row, column);
}

static int threads_for(int64_t width)
{
    int share = 1;
    while (share * 8 < width) share *= 2;
    return share;
}

template <class P> static bool start(fv_stream *s, const job<typename P::T> &o, const fv_attn_grads *g)
{
    typedef typename P::T T;
    const fv_attn_args &a = o.a;
    fv_dtype t = kind<T>::dtype;
    maps of;
    if (!fv_cuda_map_attention(&of.in, &a, t, P::QUERIES, P::KEYS) ||
        !fv_cuda_map(&of.dy, g->dy, t, a.B, a.Tq, a.H, a.Wv, a.H * a.Wv, a.Tq * a.H * a.Wv, P::QUERIES))
        return false;
    if (P::BIAS && !map_bias(&of.bias, o, 64)) return false;
    int most = device_of(s)->processors;
    int64_t tiles = ceil_div(a.Tk, P::KEYS), heads = a.B * a.G, items = tiles * heads, rows = a.B * a.H * a.Tq;
    whole_sums sums = {};
    sums.spans = (int)ceil_div(a.Tk, SPAN);
    sums.parts = (int)(ceil_div(a.Tq, P::QUERIES) * P::GROUPS);

    /* scratch, in int4s: first what is not cleared */
    int64_t of_top = ceil_div(heads * sums.spans, 2), of_sums = g->dq.data ? a.B * a.H * sums.parts * (PART / 4) : 0;
    int4 *room = work<int4>(s, rows + of_top + 1 + 2 * of_sums);
    if (!room) return true;
    foresight how = {};
    how.clear = room + rows + of_top;
    how.to_clear = 1 + of_sums;
    how.clearing = (int)(ceil_div(how.to_clear, 16 * THREADS) < most ? ceil_div(how.to_clear, 16 * THREADS) : most);
    how.of_keys = (int)(a.B * sums.spans);
    how.by_key = threads_for(a.Wk > a.Wv ? a.Wk : a.Wv);
    how.by_row = threads_for(a.Wv);
    sums.stat = (float4 *)room;
    sums.top = (float2 *)(room + rows);
    sums.next = (int *)how.clear;
    sums.sum = of_sums ? how.clear + 1 : NULL;
    sums.rest = sums.sum + of_sums;

    dim3 before((unsigned)(how.clearing + how.of_keys + a.B * ceil_div(a.Tq, 8))), grid((unsigned)(items < most ? items : most));
    launch(s, "attention_bwd", foresee<T>, before, THREADS, 0, o, (const T *)g->dy, sums, how);
    if (sums.sum) launch(s, "attention_bwd", clear_rests<T>, dim3((unsigned)heads, 8), THREADS, 0, o, sums);
    launch(s, "attention_bwd", grad_wgmma<P>, grid, P::THREADS_ALL, P::BYTES, o, of, sums, to<T>(g->dk), to<T>(g->dv),
           (int)items);
    dim3 of_dq((unsigned)sums.parts, (unsigned)a.H, (unsigned)a.B);
    if (sums.sum) launch(s, "attention_bwd", spread<P>, of_dq, 32 * STRIPS, 0, o, sums, to<T>(g->dq), aligned(g->dq.data));
    return true;
}

template <class T> bool fv_cuda_attention_hopper_bwd(fv_stream *s, const fv_attn_args *a, const fv_attn_grads *g)
{
    job<T> o = prepare<T>(s, a);
    if (!o.quick_y || !aligned(g->dy) || a->Tk > MOST_KEYS) return false;
    bool narrow_heads = a->Wk <= 64 && a->Wv <= 64;
    auto run = [&](auto slim, auto wide) {
        return narrow_heads ? start<decltype(slim)>(s, o, g) : start<decltype(wide)>(s, o, g);
    };
    if (biased(o)) return run(plan<T, 64, BIASED>(), plan<T, 128, BIASED>());
    if (!o.plain) return run(plan<T, 64, ANY>(), plan<T, 128, ANY>());
    if (a->dropout > 0) return run(plan<T, 64, DROPS>(), plan<T, 128, DROPS>());
    return run(plan<T, 64, PLAIN>(), plan<T, 128, PLAIN>());
}

template bool fv_cuda_attention_hopper_bwd<bf16>(fv_stream *, const fv_attn_args *, const fv_attn_grads *);
template bool fv_cuda_attention_hopper_bwd<f16>(fv_stream *, const fv_attn_args *, const fv_attn_grads *);
