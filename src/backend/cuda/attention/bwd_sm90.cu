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
__device__ inline unsigned opaque(unsigned x)
{
    asm volatile("" : "+r"(x));
    return x;
}

/* A warp's numbers, 16 rows by 16 N, as rows of panels of ROWS_ rows. */
template <int ROWS_, int N, class T>
__device__ inline void store_swizzled(T *to, const uint32_t (&x)[N][4], unsigned row0,
                                      unsigned thread)
{
    unsigned lane = thread % 32, row = row0 + lane % 16,
             at = row * PANEL + (lane / 16 ^ row % 8) * 8;
#pragma unroll
    for (int n = 0; n < N; n++) stmatrix_x4(to + (at ^ n % 4 * 16) + n / 4 * ROWS_ * PANEL, x[n]);
}

/* A warp's rows of a gradient by way of its room, so that eight neighbours go together; where they
 * cannot, straight from registers. */
template <int W, class T>
__device__ inline void write_grad_rows(sink<T> to, T *scratch, int64_t base, int64_t step,
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
    pack_fragments_by(narrowed, x,
                      [&](float a, float b) { return pack2(a * scale, b * scale, T()); });
    __syncwarp(); /* nobody reads what was there */
    store_swizzled<16>(scratch, narrowed, 0, threadIdx.x);
    __syncwarp();
#pragma unroll
    for (int n = 0; n < W / 16; n++) {
        int row = n % 4 * 4 + lane / 8, c = n / 4 * PANEL + lane % 8 * 8;
        const uint4 *from = (const uint4 *)(scratch + (n / 4 * 16 + row) * PANEL +
                                            (lane % 8 ^ row % 8) * 8);
        if (row0 + row < rows && c < width)
            *(uint4 *)((T *)to.p + base + (row0 + row) * step + c) = *from;
    }
}

/* Where a group is: the tile of all that the block goes through, which of the two places of keys
 * its item has, and how many parts of dq it has handed on.  All but the thread are known to be the
 * same for a warp: else a factor of a product costs four moves between registers. */
struct consumer_state {
    unsigned iter, item, sent, group;
    unsigned thread; /* by way of a shuffle: read again and again it would cost a wait each time */
};

/* This warp is done with something. */
__device__ inline void warp_arrive(uint64_t *b, const consumer_state &a)
{
    __syncwarp();
    if (opaque(a.thread) % 32 == 0) mbarrier_arrive(b);
}

template <class T> __device__ inline T warp_uniform(T x) { return (T)__shfl_sync(~0u, (int)x, 0); }

/* The group's share of the dq of tile `iter`: half of the queries where heads are 64 wide, half of
 * their width where 128. */
template <class P>
__device__ inline void gemm_dq(float (&dq)[8][4], const smem_layout<P> &m, unsigned iter,
                               const typename P::T *keys, unsigned group)
{
    unsigned of_queries = P::W == 64 ? group : 0, of_width = P::W == 64 ? 0 : group;
    wgmma_fence();
    gemm_tn<P::KEYS>(dq, m.ds_tile + iter % 2 * P::DS_TILE + of_queries * P::KEYS * PANEL,
                     keys + of_width * P::KEYS * PANEL);
    wgmma_commit();
}

/* The units of a thread's two rows of the dq of tile `iter`. */
template <class P>
__device__ inline float2 units_of(const smem_layout<P> &m, const consumer_state &a, unsigned iter)
{
    unsigned thread = opaque(a.thread), warp = (P::W == 64 ? a.group * 4 : 0) + thread / 32 % 4;
    const float *unit = m.unit + iter % P::INFO_STAGES * P::QUERIES + warp * 16 + thread % 32 / 4;
    return make_float2(unit[0], unit[8]);
}

/* The whole number nearest to x unit, which is less than 2^30, by multiplying and adding alone:
 * 512s first, then what is left.  To both so much is added that the number stands in the lowest
 * bits of the sum; what is above it comes to 0. */
__device__ inline int round_to_int(float x, float unit)
{
    /* 12582912 more */
    const float to_512s = __uint_as_float(0x4fda6000), to_both = __uint_as_float(0x4fdac000);
    float many = fmaf(x, unit, to_512s), left = fmaf(x, unit, to_both - many);
    return (int)((__float_as_uint(many) << 9) + __float_as_uint(left));
}

/* A warp's share of a tile's dq to where it is sent from, once that is free.  Numbers stand as
 * threads have them, four together for each column block. */
template <class P, class F>
__device__ inline void stage_dq_part(const smem_layout<P> &m, const consumer_state &a, F number)
{
    unsigned thread = opaque(a.thread);
    int4 *scratch = m.part + a.group * (PART / 4) + thread % 128 / 32 * (STRIP / 4) + thread % 32;
#pragma unroll
    for (int n = 0; n < 8; n++)
        scratch[n * 32] = make_int4(number(n, 0), number(n, 1), number(n, 2), number(n, 3));
}

template <class P>
__device__ inline void wait_part_free(const smem_layout<P> &m, const consumer_state &a)
{
    mbarrier_wait(m.part_free + a.group, (a.sent + 1) & 1);
}

/* What was written may be sent. */
template <class P> __device__ inline void publish_part(const smem_layout<P> &m, consumer_state &a)
{
    fence_async_proxy();
    warp_arrive(m.part_full + a.group, a);
    a.sent++;
}

/* In units, to be handed on; 12 of 32 by the pipe that makes exponentials, which takes eight times
 * as long, the others beside it.  Where a head is loose that comes first, and then what is left:
 * numbers are not needed any more behind this, or registers would not suffice for all that is on
 * its way to shared memory. */
template <class P>
__device__ inline void quantise_dq(const smem_layout<P> &m, consumer_state &a,
                                   const float (&dq)[8][4], float2 unit, bool needs_residual)
{
    auto of_row = [&](int e) { return e / 2 ? unit.y : unit.x; };
    if (!needs_residual) {
        stage_dq_part<P>(m, a, [&](int n, int e) {
            return e == 3 || (e == 1 && n % 2) ? __float2int_rn(dq[n][e] * of_row(e))
                                               : round_to_int(dq[n][e], of_row(e));
        });
        return;
    }
    stage_dq_part<P>(m, a, [&](int n, int e) { return round_to_int(dq[n][e], of_row(e)); });
    publish_part(m, a);
    wait_part_free(m, a);
    stage_dq_part<P>(m, a, [&](int n, int e) {
        float x = dq[n][e] * of_row(e);
        return __float2int_rn((x - rintf(x)) * RESIDUAL_UNITS);
    });
}

/* The dq of tile `of`, which was kept, by itself. */
template <class P>
__device__ inline void flush_dq(const smem_layout<P> &m, consumer_state &a, unsigned of,
                                unsigned item, bool needs_residual)
{
    float dq[8][4];
    mbarrier_wait(m.ds_full + of % 2, of / 2 & 1);
    gemm_dq(dq, m, of, m.k + item * P::KEYS * P::W, a.group);
    float2 unit = units_of(m, a, of);
    wgmma_wait<0>();
    warp_arrive(m.ds_free + of % 2, a);
    if (item != a.item) mbarrier_arrive(m.k_free + item);
    wait_part_free(m, a);
    quantise_dq(m, a, dq, unit, needs_residual);
    publish_part(m, a);
}

/* Hides pairs that lengths, causality and a window rule out, which is all that a plain tile can
 * have. */
template <int N, class T>
__device__ inline void mask_causal_window(float (&s)[N][4], const head<T> &at, int row0, int col0,
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
__device__ inline void accumulate_item(const smem_layout<P> &m, const job<typename P::T> &o,
                                       consumer_state &a, int tiles, sink<typename P::T> to_k,
                                       sink<typename P::T> to_v)
{
    typedef typename P::T T;
    constexpr int W = P::W, N = P::QUERIES / 8;
    /* registers suffice for reading what rows have before it is needed */
    constexpr bool AHEAD_OF = W == 128;
    float s[N][4], d[N][4], dk[W / 8][4], dv[W / 8][4], dq[8][4];
    uint32_t p[N / 2][4], ds[N / 2][4];
    float2 lse[N], dy_y[N];
    const work_item &c = m.queue[a.item];
    bool dq_pending = warp_uniform(!P::DQ_DELAY || c.dq_pending),
         needs_residual = warp_uniform(P::DQ_DELAY ? c.previous_needs_residual : c.needs_residual);
    bool tile_ready = false;
    auto both = [&](const float *x, int n) {
        return *(const float2 *)(x + n * 8 + opaque(a.thread) % 4 * 2);
    };
    auto read_rows = [&](float2(&x)[N], const float *from) {
#pragma unroll
        for (int n = 0; n < N && AHEAD_OF; n++) x[n] = both(from, n);
    };
    clear(dk);
    clear(dv);
    for (int left = tiles; left > 0; left--, a.iter++) {
        unsigned stage = a.iter % P::STAGES, of = a.iter - P::DQ_DELAY;
        const float *rows_lse = m.lse + stage * P::QUERIES,
                    *rows_dy_y = m.dy_y + stage * P::QUERIES;
        if (!tile_ready) {
            mbarrier_wait(m.full + stage, a.iter / P::STAGES & 1);
            read_rows(lse, rows_lse);
        }
        tile_info tile = m.infos[a.iter % P::INFO_STAGES];
        float2 unit = units_of(m, a, of);
        wgmma_fence();
        gemm_nt<W, P::KEYS, P::QUERIES>(s, m.k + a.item * P::KEYS * W + a.group * 64 * PANEL,
                                        m.q + stage * P::TILE);
        wgmma_commit();
        gemm_nt<W, P::KEYS, P::QUERIES>(d, m.v + a.group * 64 * PANEL, m.dy + stage * P::TILE);
        wgmma_commit();
        wgmma_wait<1>();

        unsigned strip = opaque(a.thread) / 32 % 4 * 16;
        auto lse_of = [&](int e, int n) {
            float2 x = AHEAD_OF ? lse[n] : both(rows_lse, n);
            return e % 2 ? x.y : x.x;
        };
        if constexpr (P::BIAS)
            for (int i = 0; i < P::QUERIES; i += 64)
                add_bias<true, 8>(s + i / 8,
                                  m.ds_tile + a.iter % 2 * P::DS_TILE + i * P::KEYS +
                                      a.group * 64 * PANEL,
                                  (int)strip / 8, o.bias_scale);
        bool full_tile = tile.flags & WHOLE << a.group;
        if (P::KIND == PLAIN && !o.a.key_mask) {
            if (!full_tile)
                mask_causal_window(s, head<T>(o, c.b, tile.h, c.len),
                                   c.tile + (int)(a.group * 64 + strip), tile.first_query,
                                   a.thread);
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
            exp_scores<true, P::KIND>(s, at, c.tile + (int)(a.group * 64 + strip), tile.first_query,
                                      full_tile, lse_of);
            read_rows(dy_y, rows_dy_y);
        }
        bool ds_is_free = P::BIAS || mbarrier_test(m.ds_free + a.iter % 2, (a.iter / 2 + 1) & 1);
        bool ds_is_full = P::DQ_DELAY && mbarrier_test(m.ds_full + of % 2, of / 2 & 1);
        if (P::KIND == PLAIN) pin_before_wait(or_bits(s));
        wgmma_wait<0>();
        if (left == 1) warp_arrive(m.v_free + a.group, a);
#pragma unroll
        for (int k = 0; k < N / 2; k++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int i = 2 * k + e / 2, j = e % 2 * 2;
                float2 x = AHEAD_OF ? dy_y[i] : both(rows_dy_y, i);
                p[k][e] = P::KIND == PLAIN ? pack2(s[i][j], s[i][j + 1], T())
                                           : pack2_relu(s[i][j], s[i][j + 1], T());
                ds[k][e] = pack2(dscore<P::KIND>(s[i][j], d[i][j], x.x),
                                 dscore<P::KIND>(s[i][j + 1], d[i][j + 1], x.y), T());
            }
        if (P::BIAS)
            warpgroup_sync(2 + (int)a.group); /* all have read the bias that was there */
        else if (!ds_is_free)
            mbarrier_wait(m.ds_free + a.iter % 2, (a.iter / 2 + 1) & 1);
        store_swizzled<P::KEYS>(m.ds_tile + a.iter % 2 * P::DS_TILE, ds,
                                a.group * 64 + opaque(a.thread) / 32 % 4 * 16, opaque(a.thread));
        auto publish_ds = [&] {
            fence_async_proxy();
            warp_arrive(m.ds_full + a.iter % 2, a);
        };
        if (!P::DQ_DELAY) publish_ds();
        wgmma_fence();
        gemm_rs(dv, p, m.dy + stage * P::TILE);
        if (dq_pending && !ds_is_full) mbarrier_wait(m.ds_full + of % 2, of / 2 & 1);
        /* keys of the item before; if there is none, for nothing */
        bool others = P::DQ_DELAY && left == tiles;
        gemm_dq(dq, m, of, m.k + (a.item ^ others) * P::KEYS * W, a.group);
        gemm_rs(dk, ds, m.q + stage * P::TILE);
        wgmma_commit();
        if (P::DQ_DELAY) publish_ds(); /* by now it is written */
        bool part_is_free = mbarrier_test(m.part_free + a.group, (a.sent + 1) & 1);
        tile_ready = left > 1 && mbarrier_test(m.full + (stage ^ 1), (a.iter + 1) / P::STAGES & 1);
        wgmma_wait<1>();
        if (dq_pending) {
            warp_arrive(m.ds_free + of % 2, a);
            if (others) mbarrier_arrive(m.k_free + (a.item ^ 1));
            if (!part_is_free) wait_part_free(m, a);
            quantise_dq(m, a, dq, unit, needs_residual);
        }
        if (tile_ready) read_rows(lse, m.lse + (stage ^ 1) * P::QUERIES);
        wgmma_wait<0>();
        warp_arrive(m.free + stage, a);
        if (dq_pending) publish_part(m, a);
        dq_pending = true;
        needs_residual = warp_uniform(c.needs_residual);
    }
    unsigned warp = a.thread / 32 % 4;
    int row0 = c.tile + (int)(a.group * 64 + warp * 16);
    T *scratch = (T *)(m.part + warp * (STRIP / 4) + a.group * (PART / 4)),
      *second = scratch + (W == 64 ? 16 * 64 : 0);
    int64_t at_k = o.k(c.b, c.g, 0) - (const T *)o.a.k, at_v = o.v(c.b, c.g, 0) - (const T *)o.a.v;
    wait_part_free(m, a);
    write_grad_rows<W>(to_k, scratch, at_k, o.a.k_row, dk, row0, (int)o.a.Tk, (int)o.a.Wk,
                       o.scale * LN2);
    write_grad_rows<W>(to_v, second, at_v, o.a.v_row, dv, row0, (int)o.a.Tk, (int)o.a.Wv, 1);
}

/* What one of the groups does: item after item. */
template <class P>
__device__ inline void consume_items(const smem_layout<P> &m, const job<typename P::T> &o,
                                     int group, sink<typename P::T> to_k, sink<typename P::T> to_v)
{
    consumer_state a = {0, 0, 0, (unsigned)group,
                        __shfl_sync(~0u, threadIdx.x, (int)threadIdx.x % 32)};
    for (unsigned n = 0, values = 0;; n++) {
        a.item = n % 2;
        mbarrier_wait(m.k_full + a.item, n / 2 & 1);
        const work_item &c = m.queue[a.item];
        int b = warp_uniform(c.b), tiles = b < 0 ? 0 : warp_uniform(c.count * (c.to - c.from));
        if (!tiles && warp_uniform(c.dq_pending))
            flush_dq(m, a, a.iter - 1, a.item ^ 1, warp_uniform(c.previous_needs_residual));
        if (b < 0) break;
        if (tiles) mbarrier_wait(m.v_full + group, values++ & 1);
        accumulate_item(m, o, a, tiles, to_k, to_v);
        if (!tiles || !P::DQ_DELAY) mbarrier_arrive(m.k_free + a.item);
    }
    wait_part_free(m, a); /* so that what follows is not taken for what came before */
    if (a.thread % 128 == 0) m.finished[group] = 1;
    warp_arrive(m.part_full + group, a);
}

template <class P>
__global__ void __launch_bounds__(P::BLOCK_THREADS, 1)
    grad_wgmma(const __grid_constant__ job<typename P::T> o, const __grid_constant__ tensor_maps of,
               const __grid_constant__ int_dq sums, sink<typename P::T> to_k,
               sink<typename P::T> to_v, int items)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    smem_layout<P> m(memory);
    if (threadIdx.x == 0) m.init();
    __syncthreads();
    pdl_wait();
    pdl_launch_dependents(); /* not before: `write_dq` looks at counts that are cleared by then */
    int group = warpgroup_index() - 1, warp = (int)threadIdx.x / 32;
    if (group < 0) {
        setmaxnreg_dec<P::PRODUCER_REGISTERS>();
        if (warp == 0)
            produce_tiles(m, o, &of, sums, items);
        else if (warp == 1)
            produce_row_stats(m, o, sums);
        else if (threadIdx.x % 32 == 0)
            reduce_dq(m, o, sums, warp - 2);
    } else {
        setmaxnreg_inc<P::CONSUMER_REGISTERS>();
        consume_items(m, o, group, to_k, to_v);
    }
}

/* The sums of dq as they are wanted: a warp has half of a strip.  A head is taken when it is done,
 * in the order that they are, which begins on multiprocessors that have no more items while others
 * have.  The last block does not end before those do. */
template <class P>
__global__ void __launch_bounds__(THREADS)
    write_dq(const __grid_constant__ job<typename P::T> o, const __grid_constant__ int_dq sums,
             sink<typename P::T> to, bool vectorised)
{
    int part = blockIdx.x, h = blockIdx.y, b = blockIdx.z, half = part % 2 * 64;
    int row = part / 2 * P::QUERIES + (P::W == 64 ? half : 0), column = P::W == 64 ? 0 : half;
    if (threadIdx.x == 0)
        wait_count(sums.done + b * (int)o.a.G + o.kv_head(h),
                   P::GROUPS * (int)ceil_div(o.a.Tk, P::KEYS));
    __syncthreads();
    int64_t at = ((int64_t)(b * (int)o.a.H + h) * sums.parts + part) * (PART / 4);
    write_dq_half(o, sums, to, vectorised, b, h, at, (int)threadIdx.x / 32, row, column);
    if (part == gridDim.x - 1 && h == gridDim.y - 1 && b == gridDim.z - 1) pdl_wait();
}

template <class P> static bool start(fv_stream *s, job<typename P::T> o, const fv_attn_grads *g)
{
    typedef typename P::T T;
    const fv_attn_args &a = o.a;
    fv_dtype t = kind<T>::dtype;
    tensor_maps of;
    if (!fv_cuda_tensor_map_qkv(&of.in, &a, t, P::QUERIES, 64) ||
        !fv_cuda_tensor_map(&of.dy, g->dy, t, a.B, a.Tq, a.H, a.Wv, a.H * a.Wv, a.Tq * a.H * a.Wv,
                            P::QUERIES))
        return false;
    if (P::BIAS && !tensor_map_bias(&of.bias, o, 64)) return false;
    int most = device_of(s)->sm_count;
    int64_t tiles = ceil_div(a.Tk, P::KEYS), heads = a.B * a.G, items = tiles * heads,
            rows = a.B * a.H * a.Tq;
    int_dq sums = {};
    sums.spans = (int)ceil_div(a.Tk, SPAN);
    sums.parts = (int)(ceil_div(a.Tq, P::QUERIES) * P::GROUPS);
    int64_t interleaved = a.causal ? ceil_div(4 * most, tiles) : 0;
    sums.interleaved = (int)(interleaved < heads ? interleaved : heads);

    /* scratch, in int4s: first what is not cleared */
    int64_t of_top = ceil_div(heads * sums.spans, 2),
            of_sums = g->dq.data ? a.B * a.H * sums.parts * (PART / 4) : 0;
    int64_t of_bits = ceil_div(fv_cuda_mask_words(&a, true), 4), counts = 1 + ceil_div(heads, 4);
    int4 *scratch = alloc_scratch<int4>(s, rows + of_top + counts + 2 * of_sums + of_bits);
    if (!scratch) return true;
    o.bits = fv_cuda_mask_bits(s, &a, true, scratch + rows + of_top + counts + 2 * of_sums);
    prepass_args how = {};
    how.clear = scratch + rows + of_top;
    how.clear_count = counts + of_sums;
    how.clear_blocks = (int)(ceil_div(how.clear_count, 16 * THREADS) < most
                                 ? ceil_div(how.clear_count, 16 * THREADS)
                                 : most);
    how.of_rows = (int)ceil_div(a.Tq, 8);
    sums.stat = (float4 *)scratch;
    sums.top = (float2 *)(scratch + rows);
    sums.next = (int *)how.clear;
    sums.done = sums.next + 4;
    sums.sum = of_sums ? how.clear + counts : NULL;
    sums.residual = sums.sum + of_sums;

    dim3 before((unsigned)(how.clear_blocks + a.B * (sums.spans + how.of_rows))),
        grid((unsigned)(items < most ? items : most));
    launch(s, "attention_bwd", bwd_prepass<P::W / 8, T>, before, THREADS, 0, o, (const T *)g->dy,
           sums, how);
    int64_t shares = ceil_div(of_sums / heads, 64 * THREADS);
    if (sums.sum)
        launch_pdl(s, "attention_bwd", true, clear_residuals<T>,
                   dim3((unsigned)heads, (unsigned)shares), THREADS, 0, o, sums);
    launch_pdl(s, "attention_bwd", true, grad_wgmma<P>, grid, P::BLOCK_THREADS, P::BYTES, o, of,
               sums, to<T>(g->dk), to<T>(g->dv), (int)items);
    dim3 of_dq((unsigned)sums.parts, (unsigned)a.H, (unsigned)a.B);
    if (sums.sum)
        launch_pdl(s, "attention_bwd", true, write_dq<P>, of_dq, 32 * HALVES, 0, o, sums,
                   to<T>(g->dq), aligned(g->dq.data));
    return true;
}

template <class T>
bool fv_cuda_attention_hopper_bwd(fv_stream *s, const fv_attn_args *a, const fv_attn_grads *g)
{
    job<T> o = prepare<T>(s, a);
    if (!o.vector_y || !aligned(g->dy) || a->Tk > MAX_KEYS) return false;
    bool narrow_heads = a->Wk <= 64 && a->Wv <= 64;
    auto run = [&](auto slim, auto wide) {
        return narrow_heads ? start<decltype(slim)>(s, o, g) : start<decltype(wide)>(s, o, g);
    };
    if (biased(o)) return run(traits<T, 64, WITH_BIAS>(), traits<T, 128, WITH_BIAS>());
    if (!o.plain) return run(traits<T, 64, ANY>(), traits<T, 128, ANY>());
    if (a->dropout > 0) return run(traits<T, 64, WITH_DROPOUT>(), traits<T, 128, WITH_DROPOUT>());
    return run(traits<T, 64, PLAIN>(), traits<T, 128, PLAIN>());
}

template bool fv_cuda_attention_hopper_bwd<bf16>(fv_stream *, const fv_attn_args *,
                                                 const fv_attn_grads *);
template bool fv_cuda_attention_hopper_bwd<f16>(fv_stream *, const fv_attn_args *,
                                                const fv_attn_grads *);
