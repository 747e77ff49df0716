/* program_product.h - a product as an op of a program: weights come through the ring, rows of x from memory or by mail.
 *
 * A tile is 8 columns of the result; its weights are 8 rows of w, each fetched by one bulk copy.  Up to 16 rows of x are the
 * left factor of the tensor core's product (16 by 16 of k), a tile is the right one (16 of k by 8).  The order of k within
 * a product is free, so a thread takes 8 neighbours of both with one access each.  Warps share k; their sums are added in
 * order.  What tile a block makes has no influence on its numbers. */
#ifndef FV_CUDA_PROGRAM_PRODUCT_H
#define FV_CUDA_PROGRAM_PRODUCT_H

#include "program.h"

/* ---- rows of x ---- */

__device__ inline int x_stride(int k) { return k + 32; }

/* Few rows lie in shared memory so that 16 bytes of one are a whole left factor: of four neighbouring pairs the second and the
 * third have changed places.  Its upper rows are for the second product (see multiply). */
template <bool MANY> __device__ inline int pair_at(int i) { return MANY ? i : (i & ~3) | (i & 1) << 1 | (i & 2) >> 1; }

__device__ inline void put_pair(bf16 *to, float2 v) { *(__nv_bfloat162 *)to = __float22bfloat162_rn(v); }

/* Pairs of numbers of one row, from memory or by mail. */
struct row_of_x {
    const float *x;
    const word *sent; /* NULL: from memory */
    unsigned turn;
    __device__ row_of_x(const few_product &f, const inbox &in, int row)
        : x((const float *)f.a.x + row * (int64_t)f.k), sent(in.area ? in.area + row * (int64_t)f.k : NULL), turn(in.turn)
    {
    }
    /* Pairs first, first + 32, ..: N of them, or (not WHOLE) the row's last once more where it is shorter.  MAIL: it may be. */
    template <int N, bool WHOLE, bool MAIL> __device__ void get(float2 (&v)[N], int first, int pairs) const
    {
        if (MAIL && sent) {
            word a[N], b[N];
            bool all;
            do {
                all = true;
#pragma unroll
                for (int u = 0; u < N; u++)
                    look_at(a[u], b[u], sent + 2 * (WHOLE ? first + u * 32 : min(first + u * 32, pairs - 1)));
#pragma unroll
                for (int u = 0; u < N; u++) all = all && (unsigned)(a[u] >> 32) == turn && (unsigned)(b[u] >> 32) == turn;
            } while (!all);
#pragma unroll
            for (int u = 0; u < N; u++) v[u] = make_float2(__uint_as_float((unsigned)a[u]), __uint_as_float((unsigned)b[u]));
            return;
        }
#pragma unroll
        for (int u = 0; u < N; u++) v[u] = ((const float2 *)x)[WHOLE ? first + u * 32 : min(first + u * 32, pairs - 1)];
    }
};

__device__ inline float2 gained(float2 p, float mean, float scale, const float *gain, const float *shift, int i)
{
    float2 g = gain ? ((const float2 *)gain)[i] : make_float2(1, 1), s = shift ? ((const float2 *)shift)[i] : make_float2(0, 0);
    return make_float2((p.x - mean) * scale * g.x + s.x, (p.y - mean) * scale * g.y + s.y);
}

/* R rows, normalised by a warp and rounded; up to N * 64 numbers each, which stay in registers.  WHOLE: just so many. */
template <int R, int N, bool WHOLE>
__device__ inline void normalise_held(const fv_row_linear &a, bf16 *const (&to)[2], const row_of_x (&x)[2], const float *gain,
                                      const float *shift)
{
    int lane = threadIdx.x % 32, pairs = (int)a.k / 2;
    float2 v[R][N];
    float mean[R] = {}, scale[R], each = __fdividef(1, (float)a.k);
#pragma unroll
    for (int r = 0; r < R; r++) x[r].get<N, WHOLE, R == 1>(v[r], lane, pairs);
    auto sum = [&](auto f) {
        float s[R][2] = {};
#pragma unroll
        for (int u = 0; u < N; u++)
#pragma unroll
            for (int r = 0; r < R; r++)
                if (WHOLE || lane + u * 32 < pairs) s[r][0] += f(v[r][u].x, r), s[r][1] += f(v[r][u].y, r);
#pragma unroll
        for (int r = 0; r < R; r++) scale[r] = warp_all(s[r][0] + s[r][1], add_up()) * each;
    };
    if (a.norm == FV_NORM_LAYER) {
        sum([&](float e, int) { return e; });
#pragma unroll
        for (int r = 0; r < R; r++) mean[r] = scale[r];
    }
    sum([&](float e, int r) { return (e - mean[r]) * (e - mean[r]); });
#pragma unroll
    for (int r = 0; r < R; r++) scale[r] = rsqrtf(scale[r] + a.eps);
#pragma unroll
    for (int u = 0; u < N; u++)
        if (WHOLE || lane + u * 32 < pairs)
#pragma unroll
            for (int r = 0; r < R; r++)
                put_pair(to[r] + 2 * (pair_at<R == 2>(lane) + u * 32),
                         gained(v[r][u], mean[r], scale[r], gain, shift, lane + u * 32));
}

/* A row of any length, read again and again. */
template <bool MANY>
__device__ inline void normalise_long(const fv_row_linear &a, bf16 *to, row_of_x x, const float *gain, const float *shift)
{
    int lane = threadIdx.x % 32, pairs = (int)a.k / 2;
    float mean = 0, sum = 0, each = __fdividef(1, (float)a.k);
    float2 v[4];
    auto each_of = [&](auto f) {
        for (int i0 = lane; i0 < pairs; i0 += 4 * 32) {
            x.get<4, false, true>(v, i0, pairs);
#pragma unroll
            for (int u = 0; u < 4; u++)
                if (i0 + u * 32 < pairs) f(v[u], i0 + u * 32);
        }
    };
    if (a.norm == FV_NORM_LAYER) {
        each_of([&](float2 p, int) { sum += p.x + p.y; });
        mean = warp_all(sum, add_up()) * each, sum = 0;
    }
    each_of([&](float2 p, int) { sum += (p.x - mean) * (p.x - mean) + (p.y - mean) * (p.y - mean); });
    float scale = rsqrtf(warp_all(sum, add_up()) * each + a.eps);
    each_of([&](float2 p, int i) { put_pair(to + 2 * pair_at<MANY>(i), gained(p, mean, scale, gain, shift, i)); });
}

/* All rows of this block; a warp has every eighth. */
template <bool MANY>
__device__ inline void normalise_all(const few_product &f, bf16 *to, const team &t, const inbox &in, const float *gain,
                                     const float *shift)
{
    constexpr int R = MANY ? 2 : 1, N = 12;
    int k = f.k, r = (int)threadIdx.x / 32, stride = x_stride(k);
    if (k > N * 64) {
        for (; r < t.rows; r += MULTIPLIERS) normalise_long<MANY>(f.a, to + r * stride, row_of_x(f, in, t.row + r), gain, shift);
        return;
    }
    for (; r < t.rows; r += R * MULTIPLIERS) {
        int second = r + MULTIPLIERS < t.rows ? r + MULTIPLIERS : r; /* perhaps the first once more */
        bf16 *const where[2] = {to + r * stride, to + second * stride};
        const row_of_x x[2] = {row_of_x(f, in, t.row + r), row_of_x(f, in, t.row + second)};
        if (k == N * 64)
            normalise_held<R, N, true>(f.a, where, x, gain, shift);
        else
            normalise_held<R, N, false>(f.a, where, x, gain, shift);
    }
}

/* Threads that share a row, where all of a block share all rows: a power of two. */
struct row_share {
    int threads, row, first;
    __device__ row_share(int rows)
    {
        int bits = 32 - __clz(rows - 1);
        threads = ONE_THREADS >> bits;
        row = (int)threadIdx.x / threads;
        first = (int)threadIdx.x % threads;
    }
};

/* Rows of bf16 as they were sent. */
__device__ inline void take_rows(const few_product &f, bf16 *to, const team &t, const inbox &in)
{
    int k = f.k;
    row_share s(t.rows);
    if (s.row >= t.rows) return;
    to += s.row * x_stride(k);
    in.pairs<4>((t.row + s.row) * k / 2, s.first, k / 4, s.threads, [&](int, int i, unsigned a, unsigned b) {
        unsigned *pair = (unsigned *)to + pair_at<false>(2 * i);
        pair[0] = a, pair[2] = b;
    });
}

/* Few rows of bf16 from memory. */
__device__ inline void turn_rows(const few_product &f, bf16 *to, const team &t)
{
    row_share s(t.rows);
    const bf16 *x = (const bf16 *)f.a.x + (t.row + s.row) * (int64_t)f.k;
    for (int i = s.first * 8; i < f.k && s.row < t.rows; i += s.threads * 8) {
        uint4 v = *(const uint4 *)(x + i);
        *(uint4 *)(to + s.row * x_stride(f.k) + i) = make_uint4(v.x, v.z, v.y, v.w);
    }
}

/* Columns [from, from + n) of rows of bf16 in memory, on their way once this returns: a group of copies. */
__device__ inline void copy_rows(const few_product &f, unsigned to, int stride, const team &t, int from, int n)
{
    row_share s(t.rows);
    const bf16 *x = (const bf16 *)f.a.x + (t.row + s.row) * (int64_t)f.k + from;
    for (int i = s.first * 8; i < n && s.row < t.rows; i += s.threads * 8)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + (unsigned)(2 * (s.row * stride + i))), "l"(x + i)
                     : "memory");
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Rows of f32, rounded. */
template <bool MANY> __device__ inline void round_rows(const few_product &f, bf16 *to, const team &t, const inbox &in)
{
    constexpr int AHEAD = MANY ? 6 : 3;
    int k = f.k;
    row_share s(t.rows);
    if (s.row >= t.rows) return;
    to += s.row * x_stride(k);
    if (!MANY && in.area) {
        in.pairs<AHEAD>((t.row + s.row) * k, s.first, k / 2, s.threads, [&](int, int i, unsigned a, unsigned b) {
            put_pair(to + 2 * pair_at<false>(i), make_float2(__uint_as_float(a), __uint_as_float(b)));
        });
        return;
    }
    const float4 *from = (const float4 *)((const float *)f.a.x + (t.row + s.row) * (int64_t)k);
    for (int i0 = s.first; i0 < k / 4; i0 += AHEAD * s.threads) {
        float4 v[AHEAD];
#pragma unroll
        for (int u = 0; u < AHEAD; u++) v[u] = from[min(i0 + u * s.threads, k / 4 - 1)];
#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
            int i = min(i0 + u * s.threads, k / 4 - 1);
            put_pair(to + 2 * pair_at<MANY>(2 * i), make_float2(v[u].x, v[u].y));
            put_pair(to + 2 * pair_at<MANY>(2 * i + 1), make_float2(v[u].z, v[u].w));
        }
    }
}

/* This block's rows as bf16, normalised where that is asked for. */
template <bool MANY>
__device__ inline void fetch_x(const few_product &f, bf16 *to, const team &t, ring &ring, const unsigned char *slots,
                               unsigned turn)
{
    int k = f.k;
    inbox in = f.from.at(turn);
    if (f.a.xt == FV_BF16) {
        if (!MANY && in.area) {
            take_rows(f, to, t, in);
        } else if (!MANY) {
            turn_rows(f, to, t);
        } else {
            copy_rows(f, at(to), x_stride(k), t, 0, k);
            asm volatile("cp.async.wait_all;" ::: "memory");
        }
        return;
    }
    if (!f.a.norm) {
        round_rows<MANY>(f, to, t, in);
        return;
    }
    if (!has_gain(f)) {
        normalise_all<MANY>(f, to, t, in, (const float *)f.a.gain, (const float *)f.a.shift);
        return;
    }
    const float *gain = (const float *)(slots + ring.i * SLOT_BYTES);
    wait(ring.full(), ring.turn & 1);
    normalise_all<MANY>(f, to, t, in, f.a.gain ? gain : NULL, f.a.shift ? gain + k : NULL);
    __syncwarp();
    if (threadIdx.x % 32 == 0) arrive(ring.empty());
    ring.next();
}

/* ---- the product ---- */

__device__ inline uint4 read16(unsigned a)
{
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(a) : "memory");
    return v;
}

/* Where x is while the product goes through k.  Long rows of many sequences would leave little room for weights: of those
 * there is what all warps take at once, ROUND numbers of each row, and the next STAGES - 1 of these are on their way. */
struct x_rounds {
    unsigned x;       /* in shared memory */
    int stride, size; /* size: bytes of a stage */
    bool streams;
    int chunk, within, filled, read; /* where the next round to be asked for begins, and stages */
    __device__ x_rounds(const few_product &f, const team &t, const bf16 *x_)
        : x(at(x_)), stride(x_stride(f.streams ? ROUND : f.k)), size(2 * t.rows * stride), streams(f.streams)
    {
    }
    __device__ void ask(const few_product &f, const team &t)
    {
        copy_rows(f, x + (unsigned)(filled * size), stride, t, chunk + within, min(min(f.k - chunk, f.chunk) - within, ROUND));
        if (++filled == STAGES) filled = 0;
        if ((within += ROUND) >= f.chunk) chunk += f.chunk, within = 0;
    }
    __device__ void begin(const few_product &f, const team &t)
    {
        chunk = within = filled = read = 0;
        for (int i = 0; i < STAGES - 1; i++) ask(f, t);
    }
    /* The next round, for all threads of the block; what was read before it makes room. */
    __device__ unsigned next(const few_product &f, const team &t)
    {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        one_sync();
        ask(f, t);
        unsigned stage = x + (unsigned)(read * size);
        if (++read == STAGES) read = 0;
        return stage;
    }
};

/* This warp's share of up to GROUP tiles: rows lane / 4 and (MANY) 8 more, columns lane % 4 * 2 and the one behind it.  Rows
 * that there are none of are taken from elsewhere; what comes of them goes nowhere.  Of few rows the upper half of the left
 * factor holds what the second product needs, and the lower what the first does; the other half of each result is nothing.
 * bias: of what this thread will deliver. */
template <bool MANY>
__device__ inline void multiply(float (&c)[GROUP][4], float2 &bias, ring &r, const few_product &f, const team &t, x_rounds &x,
                                int tiles)
{
    constexpr int STEPS = MOST_CHUNK / ROUND, BY = 2 * ROUND; /* of a chunk; and bytes from one to the next */
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, k = f.k, chunk = f.chunk;
    unsigned within = (unsigned)(2 * STEP * warp + lane % 4 * 16), in_slot = (unsigned)(lane / 4 * ROW_BYTES) + within;
    unsigned low = (unsigned)(2 * min(lane / 4, t.rows - 1) * x.stride) + within,
             high = (unsigned)(2 * min(lane / 4 + 8, t.rows - 1) * x.stride) + within;
    float odd[GROUP][4] = {};
    if (MANY && x.streams) x.begin(f, t);
    for (int from = 0, i = 0; from < k; from += chunk, i++) {
        unsigned w[GROUP], first = r.empty();
        int wrapped = r.slots - r.i, steps = (min(k - from, chunk) / STEP - warp + MULTIPLIERS - 1) / MULTIPLIERS;
#pragma unroll
        for (int j = 0; j < GROUP; j++) {
            w[j] = r.slot();
            if (j < tiles) {
                wait(r.full(), r.turn & 1);
                r.next();
            }
        }
        if (i == 0 && f.bias_comes && warp / 2 < tiles) {
            unsigned mine = (warp < 4 ? warp < 2 ? w[0] : w[1] : warp < 6 ? w[2] : w[3]) + BIAS_AT + (unsigned)(lane % 4 * 8);
            asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(bias.x), "=f"(bias.y) : "r"(mine) : "memory");
        }
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            unsigned xs = x.x + (unsigned)(2 * from + s * BY);
            if (MANY && x.streams && s * ROUND < chunk) xs = x.next(f, t);
            if (s < steps) {
                uint4 a = read16(xs + low), b = a;
                if (MANY) b = read16(xs + high);
#pragma unroll
                for (int j = 0; j < GROUP; j++)
                    if (j < tiles) {
                        uint4 v = read16(w[j] + in_slot + s * BY);
                        if (MANY) {
                            mma(c[j], a.x, b.x, a.y, b.y, v.x, v.y);
                            mma(odd[j], a.z, b.z, a.w, b.w, v.z, v.w);
                        } else {
                            mma(c[j], a.x, a.y, a.z, a.w, v.x, v.y);
                            mma(odd[j], a.x, a.y, a.z, a.w, v.z, v.w);
                        }
                    }
            }
        }
        __syncwarp();
        if (lane < tiles) arrive(first + (unsigned)(8 * (lane < wrapped ? lane : lane - r.slots)));
    }
#pragma unroll
    for (int j = 0; j < GROUP; j++)
#pragma unroll
        for (int e = 0; e < (MANY ? 4 : 2); e++) c[j][e] += odd[j][MANY ? e : e + 2];
}

/* ---- results ---- */

/* Where they go, in registers: what lies in shared memory would be read again and again. */
struct goal {
    void *y, *k, *v;
    const float *bias;
    const int32_t *pos;
    int n, y_n, cap, act;
    bool add, narrow, memory;
    inbox old;
    word *post;
    unsigned turn;
    __device__ goal(const few_product &f, const receiver &to, unsigned first_turn, int op)
        : y(f.a.y), k(f.a.k_cache), v(f.a.v_cache), bias(f.bias_comes ? NULL : (const float *)f.a.bias), pos(f.a.pos),
          n((int)f.a.n), y_n(f.a.k_cache ? (int)f.a.y_n : n), cap((int)f.a.cap), act(f.a.act), add(f.a.add),
          narrow(f.a.yt == FV_BF16), memory(to.memory), old(f.old.at(first_turn)), post(to.area), turn(first_turn + (unsigned)op)
    {
    }
};

/* Two neighbours of one row.  What they need besides their sums is asked for before those are ready. */
struct two_results {
    float2 bias, old;
    word mail[2];
    int at; /* row of the cache */
    __device__ void ask(const goal &g, int row, int n)
    {
        int64_t i = row * (int64_t)g.y_n + n;
        bool both = n + 1 < g.n;
        if (g.bias) bias = make_float2(g.bias[n], both ? g.bias[n + 1] : 0);
        if (g.old.area)
            g.old.look(mail, i);
        else if (g.add)
            old = make_float2(((const float *)g.y)[i], both ? ((const float *)g.y)[i + 1] : 0);
        if (n >= g.y_n) at = g.pos[row];
    }
    __device__ void deliver(const goal &g, int row, int n, float2 sum, fault *bad)
    {
        float2 v = make_float2(sum.x + bias.x, sum.y + bias.y);
        if (g.act != FV_ACT_NONE) v = make_float2(activate((fv_act)g.act, v.x), activate((fv_act)g.act, v.y));
        if (g.old.area) old = g.old.take(mail, row * (int64_t)g.y_n + n);
        v.x += old.x, v.y += old.y;
        if (g.post) send(g, row * g.n + n, v);
        if (n >= g.y_n)
            keep(g, row, n, v, bad);
        else if (g.memory)
            store_two(g, row * (int64_t)g.y_n + n, n, v);
    }
    __device__ static void send(const goal &g, int at, float2 v)
    {
        if (g.narrow) {
            __nv_bfloat162 both = __float22bfloat162_rn(v);
            post(g.post + at / 2, *(const unsigned *)&both, g.turn);
        } else {
            post_pair(g.post + at, v.x, v.y, g.turn);
        }
    }
    __device__ void keep(const goal &g, int row, int n, float2 v, fault *bad) const
    {
        int half = (g.n - g.y_n) / 2, c = n - g.y_n;
        int64_t i = (row * (int64_t)g.cap + at) * half + (c < half ? c : c - half);
        void *to = c < half ? g.k : g.v;
        if (at < 0 || at >= g.cap)
            report(bad, row, at, g.cap, 1);
        else if (g.narrow)
            put_pair((bf16 *)to + i, v);
        else
            *(float2 *)((float *)to + i) = v;
    }
    /* Two at once where rows are even. */
    __device__ static void store_two(const goal &g, int64_t i, int n, float2 v)
    {
        if (g.y_n % 2 == 0 && g.narrow) {
            put_pair((bf16 *)g.y + i, v);
        } else if (g.y_n % 2 == 0) {
            *(float2 *)((float *)g.y + i) = v;
        } else if (g.narrow) {
            ((bf16 *)g.y)[i] = __float2bfloat16_rn(v.x);
            if (n + 1 < g.n) ((bf16 *)g.y)[i + 1] = __float2bfloat16_rn(v.y);
        } else {
            ((float *)g.y)[i] = v.x;
            if (n + 1 < g.n) ((float *)g.y)[i + 1] = v.y;
        }
    }
};

/* turn: of the first op of the program; this is the op-th.  MANY: more than 8 rows. */
template <bool MANY>
__device__ inline void make(const program_op &o, const team &t, ring &r, desk *d, bf16 *x, const unsigned char *slots,
                            unsigned turn, int op)
{
    const few_product &f = o.product;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, wide = t.wide, tiles = f.tiles, first = t.tile(f);
    int tile = threadIdx.x / 64, row = threadIdx.x / 4 % ROWS_BLOCK, column = threadIdx.x % 4 * 2;
    if (first >= tiles) return;
    goal g(f, o.to, turn, op);
    x_rounds rounds(f, t, x);
    for (int t0 = first; t0 < tiles; t0 += GROUP * wide) {
        int n = (t0 + tile * wide) * TILE + column;
        bool now = row < t.rows && n < g.n;
        two_results b = {};
        if (now) b.ask(g, t.row + row, n);
        if (t0 == first && !(MANY && f.streams)) {
            fetch_x<MANY>(f, x, t, r, slots, turn);
            one_sync();
        }
        float c[GROUP][4] = {};
        int left = tiles - t0, now_tiles = left > 3 * wide ? 4 : left > 2 * wide ? 3 : left > wide ? 2 : 1;
        multiply<MANY>(c, b.bias, r, f, t, rounds, now_tiles);
        if (t0 != first) one_sync(); /* the sums before these have been read */
        float *to = d->sums[0][warp] + lane / 4 * TILE + lane % 4 * 2;
#pragma unroll
        for (int j = 0; j < GROUP; j++) {
            *(float2 *)(to + j * (MULTIPLIERS * TILE_SUMS)) = make_float2(c[j][0], c[j][1]);
            if (MANY) *(float2 *)(to + j * (MULTIPLIERS * TILE_SUMS) + 8 * TILE) = make_float2(c[j][2], c[j][3]);
        }
        one_sync();
        if (!now) continue;
        float2 v = make_float2(0, 0);
#pragma unroll
        for (int w = 0; w < MULTIPLIERS; w++) {
            float2 u = *(const float2 *)&d->sums[tile][w][row * TILE + column];
            v.x += u.x, v.y += u.y;
        }
        b.deliver(g, t.row + row, n, v, f.bad);
    }
}

#endif
