/* attention_hopper_bwd.cu - the gradients of attention on Hopper, all three in one pass.
 *
 * A block owns 128 keys and their values, 64 for each of two groups of four warps, and goes through tiles of queries and dy:
 *
 *     s = k q',  d = v dy',  w = exp(s - lse),  ds = w (d - dy.y);   dv += w dy,  dk += ds q,  dq += ds' k
 *
 * Weights and slopes go into the sums of dv and dk from registers.  For dq both groups lay their slopes into shared memory, and
 * each takes 64 by 64 numbers of the tile's dq, which the copy engine adds to those of other blocks (attention_hopper_sums.h).
 * It is made with the products of the tile after it, so that no group waits for the other's slopes: while one computes weights,
 * products of the other are under way.  A warp beside these brings tiles (attention_hopper_bring.h).
 *
 * What a thread spills goes all the way to memory here, as shared memory leaves no room in the cache, and the assembler puts a
 * wait behind every product where registers do not suffice: so not more products are under way at a time than these, and what
 * follows from a thread's or a tile's number is worked out as often as it is needed. */
#include "attention_grads.h"
#include "attention_hopper_bring.h"
#include "attention_ways.h"

/* threadIdx.x, worked out anew: else what follows from it is kept from one tile to the next. */
__device__ inline int thread_now()
{
    int t;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(t));
    return t;
}

/* A warp's numbers, 16 rows by 16 N, as rows of panels of ROWS_ rows. */
template <int ROWS_, int N, class T> __device__ inline void lay(T *to, const uint32_t (&x)[N][4], int row0)
{
    int lane = thread_now() % 32, row = row0 + lane / 8 % 2 * 8 + lane % 8;
    T *at = to + row * PANEL;
#pragma unroll
    for (int n = 0; n < N; n++) {
        int eight = n * 2 + lane / 16; /* columns */
        store_matrices(at + eight / 8 * ROWS_ * PANEL + (eight % 8 ^ row % 8) * 8, x[n]);
    }
}

/* A warp's rows of a gradient by way of its room, so that eight neighbours go together; where they cannot, straight from
 * registers. */
template <int W, class T>
__device__ inline void write_keys(sink<T> to, T *room, int64_t base, int64_t step, const float (&x)[W / 8][4], int row0, int rows,
                                  int width, float scale)
{
    int lane = thread_now() % 32;
    if (!to.p) return;
    if (to.wide || to.add || ((uintptr_t)to.p & 15)) {
        write_rows(to, base, step, x, row0, rows, width, scale);
        return;
    }
    uint32_t narrowed[W / 16][4];
    narrow_by(narrowed, x, [&](float a, float b) { return two(a * scale, b * scale, T()); });
    __syncwarp(); /* nobody reads what was there */
    lay<16>(room, narrowed, 0);
    __syncwarp();
#pragma unroll
    for (int n = 0; n < W / 16; n++) {
        int row = n % 4 * 4 + lane / 8, c = n / 4 * PANEL + lane % 8 * 8;
        const uint4 *from = (const uint4 *)(room + (n / 4 * 16 + row) * PANEL + (lane % 8 ^ row % 8) * 8);
        if (row0 + row < rows && c < width) *(uint4 *)((T *)to.p + base + (row0 + row) * step + c) = *from;
    }
}

/* Where a group is: the tile of all, the parity of the item and the group, in one number.  They are taken out of it in a way that
 * they are known to be the same for a warp: else a factor of a product costs four moves between registers. */
struct spot {
    unsigned turn, item;
    int group;
    __device__ spot(unsigned state)
    {
        state = __shfl_sync(~0u, state, 0);
        turn = state >> 2;
        item = state >> 1 & 1;
        group = (int)(state & 1);
    }
};

/* The group's share of the dq of tile `turn`: half of the queries where heads are 64 wide, half of their width where 128. */
template <class P>
__device__ inline void multiply_slopes(float (&dq)[8][4], const room<P> &m, unsigned turn, const typename P::T *keys, int group)
{
    int of_queries = P::W == 64 ? group : 0, of_width = P::W == 64 ? 0 : group;
    products_begin();
    multiply_columns<P::KEYS>(dq, m.slopes + turn % 2 * P::SLOPES + of_queries * P::KEYS * PANEL,
                              keys + of_width * P::KEYS * PANEL);
    products_end();
}

/* Where a warp's share of the dq of a tile goes, and in which units.  Found out while it is computed. */
struct parcel {
    int strip;
    bool loose;
    float unit0, unit1;
};

template <class P> __device__ inline parcel address(const room<P> &m, unsigned turn, int group)
{
    int thread = thread_now(), lane = thread % 32, warp = group * 4 + thread / 32 % 4;
    note to = m.notes[turn % P::NOTES];
    const float *unit = m.unit + turn % P::NOTES * P::QUERIES + (P::W == 64 ? warp : warp % 4) * 16 + lane / 4;
    if (lane == 0) added_read(); /* the strip before has left shared memory */
    __syncwarp();
    return {to.part * 4 + warp, (to.flags & IS_LOOSE) != 0, unit[0], unit[8]};
}

/* A warp's share of a tile's dq, on its way to memory: its first thread sends what all have written.  Numbers stand as threads
 * have them, four together for each column block. */
template <class P>
__device__ inline void add_strip(const room<P> &m, const whole_sums &sums, const parcel &to, const float (&dq)[8][4])
{
    int lane = thread_now() % 32;
    int4 *room = m.part + to.strip % 8 * (STRIP / 4);
    auto send = [&](int4 *all, auto number) {
#pragma unroll
        for (int n = 0; n < 8; n++)
            room[n * 32 + lane] = make_int4(number(dq[n][0] * to.unit0), number(dq[n][1] * to.unit0), number(dq[n][2] * to.unit1),
                                            number(dq[n][3] * to.unit1));
        written_for_engine();
        __syncwarp();
        if (lane == 0) add_whole(all + (int64_t)to.strip * (STRIP / 4), room, STRIP * sizeof(int));
    };
    send(sums.sum, [](float x) { return __float2int_rn(x); });
    if (!to.loose) return;
    if (lane == 0) added_read();
    __syncwarp();
    send(sums.rest, [](float x) { return __float2int_rn((x - rintf(x)) * REST_UNITS); });
}

/* The dq that was kept, now: keys are those of the item before. */
template <class P> __device__ inline void catch_up(const room<P> &m, const whole_sums &sums, unsigned state)
{
    float dq[8][4];
    spot a(state - 4);
    wait_for(m.laid + a.turn % 2, a.turn / 2 & 1);
    multiply_slopes(dq, m, a.turn, m.k + (a.item ^ 1) * P::KEYS * P::W, a.group);
    parcel to = address(m, a.turn, a.group);
    products_done<0>();
    release(m.read + a.turn % 2);
    arrive(m.k_free + (a.item ^ 1));
    if (sums.sum) add_strip(m, sums, to, dq);
}

/* An item, by one of the groups, from this state on; the one after it is returned. */
template <class P>
__device__ inline unsigned gather(const room<P> &m, const job<typename P::T> &o, const whole_sums &sums, unsigned state,
                                  sink<typename P::T> to_k, sink<typename P::T> to_v)
{
    typedef typename P::T T;
    constexpr int W = P::W, N = P::QUERIES / 8;
    float s[N][4], d[N][4], dk[W / 8][4], dv[W / 8][4], dq[8][4];
    uint32_t p[N / 2][4], ds[N / 2][4];
    clear(dk);
    clear(dv);
    auto visit = [&] {
        spot a(state);
        unsigned stage = a.turn % P::STAGES;
        wait_for(m.full + stage, a.turn / P::STAGES & 1);
        products_begin();
        multiply_rows<W, P::KEYS, P::QUERIES>(s, m.k + a.item * P::KEYS * W + a.group * 64 * PANEL, m.q + stage * P::TILE);
        products_end();
        multiply_rows<W, P::KEYS, P::QUERIES>(d, m.v + a.group * 64 * PANEL, m.dy + stage * P::TILE);
        products_end();
        spot b(state);
        stage = b.turn % P::STAGES;
        const float *lse = m.lse + stage * P::QUERIES, *dy_y = m.dy_y + stage * P::QUERIES;
        const course &c = m.own[b.item];
        auto both = [](const float *x, int n) { return *(const float2 *)(x + tile_col(0, n, 0)); };
        note tile = m.notes[b.turn % P::NOTES];
        float2 ahead[N]; /* where there are registers for it */
#pragma unroll
        for (int n = 0; n < N; n++) ahead[n] = W == 128 ? both(lse, n) : make_float2(0, 0);
        auto lse_of = [&](int e, int n) {
            float2 x = W == 128 ? ahead[n] : both(lse, n);
            return e % 2 ? x.y : x.x;
        };
        products_done<1>();
        int strip = thread_now() / 32 % 4 * 16;
        if constexpr (P::BIAS)
            for (int i = 0; i < P::QUERIES; i += 64)
                add_bias<true, 8>(s + i / 8, m.slopes + b.turn % 2 * P::SLOPES + i * P::KEYS + b.group * 64 * PANEL, strip / 8,
                                  o.bias_scale);
        if (P::KIND == PLAIN && tile.flags & WHOLE << b.group && !o.a.key_mask) {
#pragma unroll
            for (int n = 0; n < N; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) s[n][e] = exp2_fast(fmaf(s[n][e], o.scale, -lse_of(e, n)));
        } else {
            head<T> at(o, c.b, tile.h, c.len);
            weigh<true, P::KIND>(s, at, c.tile + b.group * 64 + strip, tile.place, tile.flags & WHOLE << b.group, lse_of);
        }
        auto weight = [](float a, float b) { return P::KIND == PLAIN ? two(a, b, T()) : two_kept(a, b, T()); };
        if (P::KIND == PLAIN) worked_out(bits_of(s));
        products_done<0>();
        if (tile.flags & LAST) release(m.v_free + b.group);
#pragma unroll
        for (int k = 0; k < N / 2; k++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int i = 2 * k + e / 2, j = e % 2 * 2;
                p[k][e] = weight(s[i][j], s[i][j + 1]);
                float2 of = both(dy_y, i);
                ds[k][e] = two(slope_of<P::KIND>(s[i][j], d[i][j], of.x), slope_of<P::KIND>(s[i][j + 1], d[i][j + 1], of.y), T());
            }
        spot l(state);
        stage = l.turn % P::STAGES;
        int flags = m.notes[l.turn % P::NOTES].flags;
        if (P::BIAS)
            group_wait(2 + l.group); /* all have read the bias that was there */
        else if (l.turn >= 2)
            wait_for(m.read + l.turn % 2, (l.turn / 2 + 1) & 1);
        lay<P::KEYS>(m.slopes + l.turn % 2 * P::SLOPES, ds, l.group * 64 + thread_now() / 32 % 4 * 16);
        products_begin();
        multiply_sums(dv, p, m.dy + stage * P::TILE);
        written_for_engine();
        release(m.laid + l.turn % 2);
        unsigned of = l.turn - P::BEHIND;
        if (flags & KEPT) wait_for(m.laid + of % 2, of / 2 & 1);
        /* if there is none, for nothing */
        multiply_slopes(dq, m, of, m.k + (l.item ^ (flags & OF_OTHER)) * P::KEYS * W, l.group);
        multiply_sums(dk, ds, m.q + stage * P::TILE);
        products_end();
        parcel to = {};
        if (flags & KEPT) to = address(m, of, l.group);
        products_done<1>();
        if (flags & KEPT) {
            release(m.read + of % 2);
            if (flags & OF_OTHER) arrive(m.k_free + (l.item ^ 1));
            if (sums.sum) add_strip(m, sums, to, dq);
        }
        products_done<0>();
        release(m.free + stage);
        state += 4;
        return !(flags & LAST);
    };
    if (m.own[spot(state).item].count)
        while (visit()) {}
    spot a(state);
    const course &c = m.own[a.item];
    int warp = thread_now() / 32 % 4, row0 = c.tile + a.group * 64 + warp * 16;
    T *room = (T *)(m.part + warp * (STRIP / 4) + a.group * (PART / 4)), *second = room + (W == 64 ? 16 * 64 : 0);
    int64_t at_k = o.k(c.b, c.g, 0) - (const T *)o.a.k, at_v = o.v(c.b, c.g, 0) - (const T *)o.a.v;
    if (thread_now() % 32 == 0) added_read();
    write_keys<W>(to_k, room, at_k, o.a.k_row, dk, row0, (int)o.a.Tk, (int)o.a.Wk, o.scale * LN2);
    write_keys<W>(to_v, second, at_v, o.a.v_row, dv, row0, (int)o.a.Tk, (int)o.a.Wv, 1);
    return state;
}

template <class P>
__global__ void __launch_bounds__(P::THREADS_ALL, 1)
    grad_wgmma(const __grid_constant__ job<typename P::T> o, const __grid_constant__ maps of,
               const __grid_constant__ whole_sums sums, sink<typename P::T> to_k, sink<typename P::T> to_v, int items)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    room<P> m(memory);
    if (threadIdx.x == 0) m.init();
    __syncthreads();
    let_others_start();
    wait_for_others();
    int group = group_of() - 1;
    if (group < 0) {
        registers_down<P::SPARE_REGISTERS>();
        if (threadIdx.x < 32) bring_all(m, o, &of, sums, items);
    } else {
        registers_up<P::REGISTERS>();
        unsigned state = (unsigned)group, values = 0;
        for (unsigned n = 0;; n++, state ^= 2) {
            wait_for(m.k_full + n % 2, n / 2 & 1);
            const course &c = m.own[n % 2];
            int b = __shfl_sync(~0u, c.b, 0), count = __shfl_sync(~0u, c.count, 0); /* known to be the same for all */
            bool tiles = b >= 0 && count > 0;
            if (!tiles && c.kept) catch_up(m, sums, state);
            if (b < 0) break;
            if (tiles) wait_for(m.v_full + group, values++ & 1);
            state = gather(m, o, sums, state, to_k, to_v);
            if (!tiles || !P::BEHIND) arrive(m.k_free + n % 2);
        }
        if (threadIdx.x % 32 == 0) added_read();
    }
}

/* The sums of dq as they are wanted: a warp has half of a strip.  Those of the last heads come first: they are in the cache. */
template <class P>
__global__ void __launch_bounds__(THREADS) spread(const __grid_constant__ job<typename P::T> o,
                                                  const __grid_constant__ whole_sums sums, sink<typename P::T> to, bool quick)
{
    int part = gridDim.x - 1 - blockIdx.x, h = gridDim.y - 1 - blockIdx.y, b = gridDim.z - 1 - blockIdx.z, half = part % 2 * 64;
    int row = part / 2 * P::QUERIES + (P::W == 64 ? half : 0), column = P::W == 64 ? 0 : half;
    wait_for_others();
    int64_t at = ((int64_t)(b * (int)o.a.H + h) * sums.parts + part) * (PART / 4);
    write_half(o, sums, to, quick, b, h, at, (int)threadIdx.x / 32, row, column);
}

template <class P> static bool start(fv_stream *s, job<typename P::T> o, const fv_attn_grads *g)
{
    typedef typename P::T T;
    const fv_attn_args &a = o.a;
    fv_dtype t = kind<T>::dtype;
    maps of;
    if (!fv_cuda_map_attention(&of.in, &a, t, P::QUERIES, 64) ||
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
    int64_t of_bits = ceil_div(fv_cuda_mask_words(&a, true), 4);
    int4 *room = work<int4>(s, rows + of_top + 1 + 2 * of_sums + of_bits);
    if (!room) return true;
    o.bits = fv_cuda_mask_bits(s, &a, true, room + rows + of_top + 1 + 2 * of_sums);
    foresight how = {};
    how.clear = room + rows + of_top;
    how.to_clear = 1 + of_sums;
    how.clearing = (int)(ceil_div(how.to_clear, 16 * THREADS) < most ? ceil_div(how.to_clear, 16 * THREADS) : most);
    how.of_rows = (int)ceil_div(a.Tq, 8);
    sums.stat = (float4 *)room;
    sums.top = (float2 *)(room + rows);
    sums.next = (int *)how.clear;
    sums.sum = of_sums ? how.clear + 1 : NULL;
    sums.rest = sums.sum + of_sums;

    dim3 before((unsigned)(how.clearing + a.B * (sums.spans + how.of_rows))), grid((unsigned)(items < most ? items : most));
    launch(s, "attention_bwd", foresee<P::W / 8, T>, before, THREADS, 0, o, (const T *)g->dy, sums, how);
    int64_t shares = ceil_div(of_sums / heads, 64 * THREADS);
    if (sums.sum)
        launch_early(s, "attention_bwd", true, clear_rests<T>, dim3((unsigned)heads, (unsigned)shares), THREADS, 0, o, sums);
    launch_early(s, "attention_bwd", true, grad_wgmma<P>, grid, P::THREADS_ALL, P::BYTES, o, of, sums, to<T>(g->dk), to<T>(g->dv),
                 (int)items);
    dim3 of_dq((unsigned)sums.parts, (unsigned)a.H, (unsigned)a.B);
    if (sums.sum)
        launch_early(s, "attention_bwd", true, spread<P>, of_dq, 32 * HALVES, 0, o, sums, to<T>(g->dq), aligned(g->dq.data));
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
