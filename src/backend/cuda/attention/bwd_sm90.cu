/* bwd_sm90.cu - the gradients of attention on Hopper, all three in one pass.
 *
 * A block owns 128 keys and their values, 64 for each of two groups of four warps, and goes through
 * tiles of queries and dy:
 *
 *     s = k q',  d = v dy',  w = exp(s - lse),  ds = w (d - dy.y);
 *     dv += w dy,  dk += ds q,  dq += ds' k
 *
 * Weights and slopes go into the sums of dv and dk from registers.  For dq both groups lay their
 * slopes into shared memory, and each takes 64 by 64 numbers of the tile's dq, which the copy
 * engine adds to those of other blocks (dq_sm90.h).
 * It is made with the products of the tile after it, so that no group waits for the other's slopes:
 * while one computes weights, products of the other are under way.  Warps beside these bring tiles
 * and send dq on (produce_sm90.h).
 *
 * s, d and dq have both factors in shared memory and read as much of it as it can give: what a warp
 * asks for meanwhile comes when they are done.  So rows' numbers are read a tile ahead, barriers
 * looked at before they are needed, and fences put behind products.
 *
 * What a thread spills goes all the way to memory here, as shared memory leaves no room in the
 * cache, and the assembler puts a wait behind every product where registers do not suffice: so not
 * more products are under way at a time than these, and what follows from a thread's or a tile's
 * number is worked out as often as it is needed. */
#include "grads.h"
#include "produce_sm90.h"
#include "dispatch.h"

/* The same number, of which the compiler does not know it: else what follows from it is kept from
 * one tile to the next. */
__device__ inline unsigned again(unsigned x)
{
    asm volatile("" : "+r"(x));
    return x;
}

/* A warp's numbers, 16 rows by 16 N, as rows of panels of ROWS_ rows. */
template <int ROWS_, int N, class T>
__device__ inline void lay(T *to, const uint32_t (&x)[N][4], unsigned row0, unsigned thread)
{
    unsigned lane = thread % 32, row = row0 + lane % 16,
             at = row * PANEL + (lane / 16 ^ row % 8) * 8;
#pragma unroll
    for (int n = 0; n < N; n++)
        store_matrices(to + (at ^ n % 4 * 16) + n / 4 * ROWS_ * PANEL, x[n]);
}

/* A warp's rows of a gradient by way of its room, so that eight neighbours go together; where they
 * cannot, straight from registers. */
template <int W, class T>
__device__ inline void write_keys(sink<T> to, T *room, int64_t base, int64_t step,
                                  const float (&x)[W / 8][4], int row0, int rows, int width,
                                  float scale)
{
    int lane = threadIdx.x % 32;
    if (!to.p) return;
    if (to.wide || to.add || ((uintptr_t)to.p & 15)) {
        write_rows(to, base, step, x, row0, rows, width, scale);
        return;
    }
    uint32_t narrowed[W / 16][4];
    narrow_by(narrowed, x, [&](float a, float b) { return two(a * scale, b * scale, T()); });
    __syncwarp(); /* nobody reads what was there */
    lay<16>(room, narrowed, 0, threadIdx.x);
    __syncwarp();
#pragma unroll
    for (int n = 0; n < W / 16; n++) {
        int row = n % 4 * 4 + lane / 8, c = n / 4 * PANEL + lane % 8 * 8;
        const uint4 *from = (const uint4 *)(room + (n / 4 * 16 + row) * PANEL +
                                            (lane % 8 ^ row % 8) * 8);
        if (row0 + row < rows && c < width)
            *(uint4 *)((T *)to.p + base + (row0 + row) * step + c) = *from;
    }
}

/* Where a group is: the tile of all that the block goes through, which of the two places of keys
 * its item has, and how many parts of dq it has handed on.  All but the thread are known to be the
 * same for a warp: else a factor of a product costs four moves between registers. */
struct spot {
    unsigned turn, item, sent, group;
    unsigned thread; /* by way of a shuffle: read again and again it would cost a wait each time */
};

/* This warp is done with something. */
__device__ inline void release(uint64_t *b, const spot &a)
{
    __syncwarp();
    if (again(a.thread) % 32 == 0) arrive(b);
}

template <class T> __device__ inline T same_for_all(T x) { return (T)__shfl_sync(~0u, (int)x, 0); }

/* The group's share of the dq of tile `turn`: half of the queries where heads are 64 wide, half of
 * their width where 128. */
template <class P>
__device__ inline void multiply_slopes(float (&dq)[8][4], const room<P> &m, unsigned turn,
                                       const typename P::T *keys, unsigned group)
{
    unsigned of_queries = P::W == 64 ? group : 0, of_width = P::W == 64 ? 0 : group;
    products_begin();
    multiply_columns<P::KEYS>(dq, m.slopes + turn % 2 * P::SLOPES + of_queries * P::KEYS * PANEL,
                              keys + of_width * P::KEYS * PANEL);
    products_end();
}

/* The units of a thread's two rows of the dq of tile `turn`. */
template <class P> __device__ inline float2 units_of(const room<P> &m, const spot &a, unsigned turn)
{
    unsigned thread = again(a.thread), warp = (P::W == 64 ? a.group * 4 : 0) + thread / 32 % 4;
    const float *unit = m.unit + turn % P::NOTES * P::QUERIES + warp * 16 + thread % 32 / 4;
    return make_float2(unit[0], unit[8]);
}

/* The whole number nearest to x unit, which is less than 2^30, by multiplying and adding alone:
 * 512s first, then what is left.  To both so much is added that the number stands in the lowest
 * bits of the sum; what is above it comes to 0. */
__device__ inline int nearest(float x, float unit)
{
    /* 12582912 more */
    const float to_512s = __uint_as_float(0x4fda6000), to_both = __uint_as_float(0x4fdac000);
    float many = fmaf(x, unit, to_512s), left = fmaf(x, unit, to_both - many);
    return (int)((__float_as_uint(many) << 9) + __float_as_uint(left));
}

/* A warp's share of a tile's dq to where it is sent from, once that is free.  Numbers stand as
 * threads have them, four together for each column block. */
template <class P, class F>
__device__ inline void write_part(const room<P> &m, const spot &a, F number)
{
    unsigned thread = again(a.thread);
    int4 *room = m.part + a.group * (PART / 4) + thread % 128 / 32 * (STRIP / 4) + thread % 32;
#pragma unroll
    for (int n = 0; n < 8; n++)
        room[n * 32] = make_int4(number(n, 0), number(n, 1), number(n, 2), number(n, 3));
}

template <class P> __device__ inline void wait_for_room(const room<P> &m, const spot &a)
{
    wait_for(m.part_free + a.group, (a.sent + 1) & 1);
}

/* What was written may be sent. */
template <class P> __device__ inline void hand_on(const room<P> &m, spot &a)
{
    written_for_engine();
    release(m.part_full + a.group, a);
    a.sent++;
}

/* In units, to be handed on; 12 of 32 by the pipe that makes exponentials, which takes eight times
 * as long, the others beside it.  Where a head is loose that comes first, and then what is left:
 * numbers are not needed any more behind this, or registers would not suffice for all that is on
 * its way to shared memory. */
template <class P>
__device__ inline void write_numbers(const room<P> &m, spot &a, const float (&dq)[8][4],
                                     float2 unit, bool loose)
{
    auto of_row = [&](int e) { return e / 2 ? unit.y : unit.x; };
    if (!loose) {
        write_part<P>(m, a, [&](int n, int e) {
            return e == 3 || (e == 1 && n % 2) ? __float2int_rn(dq[n][e] * of_row(e))
                                               : nearest(dq[n][e], of_row(e));
        });
        return;
    }
    write_part<P>(m, a, [&](int n, int e) { return nearest(dq[n][e], of_row(e)); });
    hand_on(m, a);
    wait_for_room(m, a);
    write_part<P>(m, a, [&](int n, int e) {
        float x = dq[n][e] * of_row(e);
        return __float2int_rn((x - rintf(x)) * REST_UNITS);
    });
}

/* The dq of tile `of`, which was kept, by itself. */
template <class P>
__device__ inline void make_dq(const room<P> &m, spot &a, unsigned of, unsigned item, bool loose)
{
    float dq[8][4];
    wait_for(m.laid + of % 2, of / 2 & 1);
    multiply_slopes(dq, m, of, m.k + item * P::KEYS * P::W, a.group);
    float2 unit = units_of(m, a, of);
    products_done<0>();
    release(m.read + of % 2, a);
    if (item != a.item) arrive(m.k_free + item);
    wait_for_room(m, a);
    write_numbers(m, a, dq, unit, loose);
    hand_on(m, a);
}

/* Hides pairs that lengths, causality and a window rule out, which is all that a plain tile can
 * have. */
template <int N, class T>
__device__ inline void hide_far(float (&s)[N][4], const head<T> &at, int row0, int col0,
                                unsigned thread)
{
    /* of the first column among those that a row's key meets, and of these */
    unsigned col[2], many[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int key = row0 + (int)(thread % 32 / 4) + r * 8, from = at.first_row(key);
        col[r] = (unsigned)(col0 + (int)(thread % 4 * 2) - from);
        many[r] = (unsigned)max(at.last_row(key, 1) - from, 0);
    }
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (col[e / 2] + (unsigned)(n * 8 + e % 2) >= many[e / 2]) s[n][e] = -INFINITY;
}

/* An item of so many tiles, by one of the groups. */
template <class P>
__device__ inline void gather(const room<P> &m, const job<typename P::T> &o, spot &a, int tiles,
                              sink<typename P::T> to_k, sink<typename P::T> to_v)
{
    typedef typename P::T T;
    constexpr int W = P::W, N = P::QUERIES / 8;
    /* registers suffice for reading what rows have before it is needed */
    constexpr bool AHEAD_OF = W == 128;
    float s[N][4], d[N][4], dk[W / 8][4], dv[W / 8][4], dq[8][4];
    uint32_t p[N / 2][4], ds[N / 2][4];
    float2 lse[N], dy_y[N];
    const course &c = m.own[a.item];
    bool kept = same_for_all(!P::BEHIND || c.kept),
         loose = same_for_all(P::BEHIND ? c.after_loose : c.loose);
    bool ready = false;
    auto both = [&](const float *x, int n) {
        return *(const float2 *)(x + n * 8 + again(a.thread) % 4 * 2);
    };
    auto read_rows = [&](float2(&x)[N], const float *from) {
#pragma unroll
        for (int n = 0; n < N && AHEAD_OF; n++) x[n] = both(from, n);
    };
    clear(dk);
    clear(dv);
    for (int left = tiles; left > 0; left--, a.turn++) {
        unsigned stage = a.turn % P::STAGES, of = a.turn - P::BEHIND;
        const float *rows_lse = m.lse + stage * P::QUERIES,
                    *rows_dy_y = m.dy_y + stage * P::QUERIES;
        if (!ready) {
            wait_for(m.full + stage, a.turn / P::STAGES & 1);
            read_rows(lse, rows_lse);
        }
        note tile = m.notes[a.turn % P::NOTES];
        float2 unit = units_of(m, a, of);
        products_begin();
        multiply_rows<W, P::KEYS, P::QUERIES>(s, m.k + a.item * P::KEYS * W + a.group * 64 * PANEL,
                                              m.q + stage * P::TILE);
        products_end();
        multiply_rows<W, P::KEYS, P::QUERIES>(d, m.v + a.group * 64 * PANEL,
                                              m.dy + stage * P::TILE);
        products_end();
        products_done<1>();

        unsigned strip = again(a.thread) / 32 % 4 * 16;
        auto lse_of = [&](int e, int n) {
            float2 x = AHEAD_OF ? lse[n] : both(rows_lse, n);
            return e % 2 ? x.y : x.x;
        };
        if constexpr (P::BIAS)
            for (int i = 0; i < P::QUERIES; i += 64)
                add_bias<true, 8>(s + i / 8,
                                  m.slopes + a.turn % 2 * P::SLOPES + i * P::KEYS +
                                      a.group * 64 * PANEL,
                                  (int)strip / 8, o.bias_scale);
        bool whole = tile.flags & WHOLE << a.group;
        if (P::KIND == PLAIN && !o.a.key_mask) {
            if (!whole)
                hide_far(s, head<T>(o, c.b, tile.h, c.len), c.tile + (int)(a.group * 64 + strip),
                         tile.place, a.thread);
#pragma unroll
            for (int n = 0; n < N; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) s[n][e] = fmaf(s[n][e], o.scale, -lse_of(e, n));
            read_rows(dy_y, rows_dy_y);
#pragma unroll
            for (int n = 0; n < N; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) s[n][e] = exp2_fast(s[n][e]);
        } else {
            head<T> at(o, c.b, tile.h, c.len);
            weigh<true, P::KIND>(s, at, c.tile + (int)(a.group * 64 + strip), tile.place, whole,
                                 lse_of);
            read_rows(dy_y, rows_dy_y);
        }
        bool free_to_lay = P::BIAS || reached(m.read + a.turn % 2, (a.turn / 2 + 1) & 1);
        bool all_laid = P::BEHIND && reached(m.laid + of % 2, of / 2 & 1);
        if (P::KIND == PLAIN) worked_out(bits_of(s));
        products_done<0>();
        if (left == 1) release(m.v_free + a.group, a);
#pragma unroll
        for (int k = 0; k < N / 2; k++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int i = 2 * k + e / 2, j = e % 2 * 2;
                float2 x = AHEAD_OF ? dy_y[i] : both(rows_dy_y, i);
                p[k][e] = P::KIND == PLAIN ? two(s[i][j], s[i][j + 1], T())
                                           : two_kept(s[i][j], s[i][j + 1], T());
                ds[k][e] = two(slope_of<P::KIND>(s[i][j], d[i][j], x.x),
                               slope_of<P::KIND>(s[i][j + 1], d[i][j + 1], x.y), T());
            }
        if (P::BIAS)
            group_wait(2 + (int)a.group); /* all have read the bias that was there */
        else if (!free_to_lay)
            wait_for(m.read + a.turn % 2, (a.turn / 2 + 1) & 1);
        lay<P::KEYS>(m.slopes + a.turn % 2 * P::SLOPES, ds,
                     a.group * 64 + again(a.thread) / 32 % 4 * 16, again(a.thread));
        auto laid = [&] {
            written_for_engine();
            release(m.laid + a.turn % 2, a);
        };
        if (!P::BEHIND) laid();
        products_begin();
        multiply_sums(dv, p, m.dy + stage * P::TILE);
        if (kept && !all_laid) wait_for(m.laid + of % 2, of / 2 & 1);
        /* keys of the item before; if there is none, for nothing */
        bool others = P::BEHIND && left == tiles;
        multiply_slopes(dq, m, of, m.k + (a.item ^ others) * P::KEYS * W, a.group);
        multiply_sums(dk, ds, m.q + stage * P::TILE);
        products_end();
        if (P::BEHIND) laid(); /* by now it is written */
        bool room_there = reached(m.part_free + a.group, (a.sent + 1) & 1);
        ready = left > 1 && reached(m.full + (stage ^ 1), (a.turn + 1) / P::STAGES & 1);
        products_done<1>();
        if (kept) {
            release(m.read + of % 2, a);
            if (others) arrive(m.k_free + (a.item ^ 1));
            if (!room_there) wait_for_room(m, a);
            write_numbers(m, a, dq, unit, loose);
        }
        if (ready) read_rows(lse, m.lse + (stage ^ 1) * P::QUERIES);
        products_done<0>();
        release(m.free + stage, a);
        if (kept) hand_on(m, a);
        kept = true;
        loose = same_for_all(c.loose);
    }
    unsigned warp = a.thread / 32 % 4;
    int row0 = c.tile + (int)(a.group * 64 + warp * 16);
    T *room = (T *)(m.part + warp * (STRIP / 4) + a.group * (PART / 4)),
      *second = room + (W == 64 ? 16 * 64 : 0);
    int64_t at_k = o.k(c.b, c.g, 0) - (const T *)o.a.k, at_v = o.v(c.b, c.g, 0) - (const T *)o.a.v;
    wait_for_room(m, a);
    write_keys<W>(to_k, room, at_k, o.a.k_row, dk, row0, (int)o.a.Tk, (int)o.a.Wk, o.scale * LN2);
    write_keys<W>(to_v, second, at_v, o.a.v_row, dv, row0, (int)o.a.Tk, (int)o.a.Wv, 1);
}

/* What one of the groups does: item after item. */
template <class P>
__device__ inline void gather_all(const room<P> &m, const job<typename P::T> &o, int group,
                                  sink<typename P::T> to_k, sink<typename P::T> to_v)
{
    spot a = {0, 0, 0, (unsigned)group, __shfl_sync(~0u, threadIdx.x, (int)threadIdx.x % 32)};
    for (unsigned n = 0, values = 0;; n++) {
        a.item = n % 2;
        wait_for(m.k_full + a.item, n / 2 & 1);
        const course &c = m.own[a.item];
        int b = same_for_all(c.b), tiles = b < 0 ? 0 : same_for_all(c.count * (c.to - c.from));
        if (!tiles && same_for_all(c.kept))
            make_dq(m, a, a.turn - 1, a.item ^ 1, same_for_all(c.after_loose));
        if (b < 0) break;
        if (tiles) wait_for(m.v_full + group, values++ & 1);
        gather(m, o, a, tiles, to_k, to_v);
        if (!tiles || !P::BEHIND) arrive(m.k_free + a.item);
    }
    wait_for_room(m, a); /* so that what follows is not taken for what came before */
    if (a.thread % 128 == 0) m.ended[group] = 1;
    release(m.part_full + group, a);
}

template <class P>
__global__ void __launch_bounds__(P::THREADS_ALL, 1)
    grad_wgmma(const __grid_constant__ job<typename P::T> o, const __grid_constant__ maps of,
               const __grid_constant__ whole_sums sums, sink<typename P::T> to_k,
               sink<typename P::T> to_v, int items)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    room<P> m(memory);
    if (threadIdx.x == 0) m.init();
    __syncthreads();
    wait_for_others();
    let_others_start(); /* not before: `spread` looks at counts that are cleared by then */
    int group = group_of() - 1, warp = (int)threadIdx.x / 32;
    if (group < 0) {
        registers_down<P::SPARE_REGISTERS>();
        if (warp == 0)
            bring_all(m, o, &of, sums, items);
        else if (warp == 1)
            tell_all(m, o, sums);
        else if (threadIdx.x % 32 == 0)
            send_all(m, o, sums, warp - 2);
    } else {
        registers_up<P::REGISTERS>();
        gather_all(m, o, group, to_k, to_v);
    }
}

/* The sums of dq as they are wanted: a warp has half of a strip.  A head is taken when it is done,
 * in the order that they are, which begins on multiprocessors that have no more items while others
 * have.  The last block does not end before those do. */
template <class P>
__global__ void __launch_bounds__(THREADS)
    spread(const __grid_constant__ job<typename P::T> o, const __grid_constant__ whole_sums sums,
           sink<typename P::T> to, bool quick)
{
    int part = blockIdx.x, h = blockIdx.y, b = blockIdx.z, half = part % 2 * 64;
    int row = part / 2 * P::QUERIES + (P::W == 64 ? half : 0), column = P::W == 64 ? 0 : half;
    if (threadIdx.x == 0)
        wait_until(sums.done + b * (int)o.a.G + o.kv_head(h),
                   P::GROUPS * (int)ceil_div(o.a.Tk, P::KEYS));
    __syncthreads();
    int64_t at = ((int64_t)(b * (int)o.a.H + h) * sums.parts + part) * (PART / 4);
    write_half(o, sums, to, quick, b, h, at, (int)threadIdx.x / 32, row, column);
    if (part == gridDim.x - 1 && h == gridDim.y - 1 && b == gridDim.z - 1) wait_for_others();
}

template <class P> static bool start(fv_stream *s, job<typename P::T> o, const fv_attn_grads *g)
{
    typedef typename P::T T;
    const fv_attn_args &a = o.a;
    fv_dtype t = kind<T>::dtype;
    maps of;
    if (!fv_cuda_map_attention(&of.in, &a, t, P::QUERIES, 64) ||
        !fv_cuda_map(&of.dy, g->dy, t, a.B, a.Tq, a.H, a.Wv, a.H * a.Wv, a.Tq * a.H * a.Wv,
                     P::QUERIES))
        return false;
    if (P::BIAS && !map_bias(&of.bias, o, 64)) return false;
    int most = device_of(s)->processors;
    int64_t tiles = ceil_div(a.Tk, P::KEYS), heads = a.B * a.G, items = tiles * heads,
            rows = a.B * a.H * a.Tq;
    whole_sums sums = {};
    sums.spans = (int)ceil_div(a.Tk, SPAN);
    sums.parts = (int)(ceil_div(a.Tq, P::QUERIES) * P::GROUPS);
    int64_t together = a.causal ? ceil_div(4 * most, tiles) : 0;
    sums.together = (int)(together < heads ? together : heads);

    /* scratch, in int4s: first what is not cleared */
    int64_t of_top = ceil_div(heads * sums.spans, 2),
            of_sums = g->dq.data ? a.B * a.H * sums.parts * (PART / 4) : 0;
    int64_t of_bits = ceil_div(fv_cuda_mask_words(&a, true), 4), counts = 1 + ceil_div(heads, 4);
    int4 *room = work<int4>(s, rows + of_top + counts + 2 * of_sums + of_bits);
    if (!room) return true;
    o.bits = fv_cuda_mask_bits(s, &a, true, room + rows + of_top + counts + 2 * of_sums);
    foresight how = {};
    how.clear = room + rows + of_top;
    how.to_clear = counts + of_sums;
    how.clearing = (int)(ceil_div(how.to_clear, 16 * THREADS) < most
                             ? ceil_div(how.to_clear, 16 * THREADS)
                             : most);
    how.of_rows = (int)ceil_div(a.Tq, 8);
    sums.stat = (float4 *)room;
    sums.top = (float2 *)(room + rows);
    sums.next = (int *)how.clear;
    sums.done = sums.next + 4;
    sums.sum = of_sums ? how.clear + counts : NULL;
    sums.rest = sums.sum + of_sums;

    dim3 before((unsigned)(how.clearing + a.B * (sums.spans + how.of_rows))),
        grid((unsigned)(items < most ? items : most));
    launch(s, "attention_bwd", foresee<P::W / 8, T>, before, THREADS, 0, o, (const T *)g->dy, sums,
           how);
    int64_t shares = ceil_div(of_sums / heads, 64 * THREADS);
    if (sums.sum)
        launch_early(s, "attention_bwd", true, clear_rests<T>,
                     dim3((unsigned)heads, (unsigned)shares), THREADS, 0, o, sums);
    launch_early(s, "attention_bwd", true, grad_wgmma<P>, grid, P::THREADS_ALL, P::BYTES, o, of,
                 sums, to<T>(g->dk), to<T>(g->dv), (int)items);
    dim3 of_dq((unsigned)sums.parts, (unsigned)a.H, (unsigned)a.B);
    if (sums.sum)
        launch_early(s, "attention_bwd", true, spread<P>, of_dq, 32 * HALVES, 0, o, sums,
                     to<T>(g->dq), aligned(g->dq.data));
    return true;
}

template <class T>
bool fv_cuda_attention_hopper_bwd(fv_stream *s, const fv_attn_args *a, const fv_attn_grads *g)
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

template bool fv_cuda_attention_hopper_bwd<bf16>(fv_stream *, const fv_attn_args *,
                                                 const fv_attn_grads *);
template bool fv_cuda_attention_hopper_bwd<f16>(fv_stream *, const fv_attn_args *,
                                                const fv_attn_grads *);
