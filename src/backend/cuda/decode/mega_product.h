/* mega_product.h - a product as an op of a program: weights come through the ring, rows of x as
 * mega_rows.h says.
 *
 * A tile is 8 columns of the result; its weights are 8 rows of w, each fetched by one bulk copy.
 * Up to 16 rows of x are the left factor of the tensor core's product (16 by 16 of k), a tile is
 * the right one (16 of k by 8).  The order of k within a product is free, so a thread takes 8
 * neighbours of both with one access each.  Warps share k; their sums are added in order.  What
 * tile a block makes has no influence on its numbers. */
#ifndef FV_CUDA_DECODE_MEGA_PRODUCT_H
#define FV_CUDA_DECODE_MEGA_PRODUCT_H

#include "mega_rows.h"

/* ---- the product ---- */

__device__ inline uint4 read16(unsigned a)
{
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(a)
                 : "memory");
    return v;
}

/* Where x is while the product goes through k.  Long rows of many sequences would leave little room
 * for weights: of those there is a chunk, and the next STAGES - 1 are on their way. */
struct x_chunks {
    unsigned x;       /* in shared memory */
    int stride, size; /* size: bytes of a stage */
    bool streams;
    int issued, stage; /* how many chunks were asked for; where the next one that is read will be */
    __device__ x_chunks(const decode_gemm &f, const block_group &t, const bf16 *x_)
        : x(at(x_)), stride(x_stride(f.streams ? f.chunk : f.k)), size(2 * t.rows * stride),
          streams(f.streams), issued(0), stage(0)
    {
    }
    __device__ void prefetch(const decode_gemm &f, const block_group &t, int to)
    {
        int from = issued++ * f.chunk;
        /* or nothing, behind the last */
        copy_rows(f, x + (unsigned)(to * size), stride, t, from, min(f.k - from, f.chunk));
    }
    __device__ void begin(const decode_gemm &f, const block_group &t)
    {
        issued = stage = 0;
        for (int i = 0; i < STAGES; i++) prefetch(f, t, i);
    }
    /* The next chunk, for all threads of the block. */
    __device__ unsigned next() const
    {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 1) : "memory");
        decode_sync();
        return x + (unsigned)(stage * size);
    }
    /* It has been read, and makes room for another. */
    __device__ void leave(const decode_gemm &f, const block_group &t)
    {
        if (issued * f.chunk < f.k) decode_sync();
        prefetch(f, t, stage);
        if (++stage == STAGES) stage = 0;
    }
};

/* This warp's share of up to GROUP tiles: rows lane / 4 and (MANY) 8 more, columns lane % 4 * 2 and
 * the one behind it.  Rows that there are none of are taken from elsewhere; what comes of them goes
 * nowhere.  Of few rows the upper half of the left factor holds what the second product needs, and
 * the lower what the first does; the other half of each result is nothing.  bias: of what this
 * thread will deliver. */
template <bool MANY>
__device__ inline void multiply(float (&c)[GROUP][4], float2 &bias, ring &r, const decode_gemm &f,
                                const block_group &t, x_chunks &x, int tiles)
{
    /* of a chunk; and bytes from one to the next */
    constexpr int STEPS = MAX_CHUNK / ROUND, BY = 2 * ROUND;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, k = f.k, chunk = f.chunk;
    unsigned within = (unsigned)(2 * STEP * warp + lane % 4 * 16),
             in_slot = (unsigned)(lane / 4 * ROW_BYTES) + within;
    unsigned low = (unsigned)(2 * min(lane / 4, t.rows - 1) * x.stride) + within,
             high = (unsigned)(2 * min(lane / 4 + 8, t.rows - 1) * x.stride) + within;
    float odd[GROUP][4] = {};
    if (MANY && x.streams) x.begin(f, t);
    for (int from = 0, i = 0; from < k; from += chunk, i++) {
        unsigned w[GROUP], first = r.empty();
        int wrapped = r.slots - r.i,
            steps = (min(k - from, chunk) / STEP - warp + MMA_WARPS - 1) / MMA_WARPS;
#pragma unroll
        for (int j = 0; j < GROUP; j++) {
            w[j] = r.slot();
            if (j < tiles) {
                wait(r.full(), r.laps & 1);
                r.next();
            }
        }
        if (i == 0 && f.bias_in_slot && warp / 2 < tiles) {
            unsigned mine = (warp < 4   ? warp < 2 ? w[0] : w[1]
                               : warp < 6 ? w[2]
                                        : w[3]) +
                            BIAS_AT + (unsigned)(lane % 4 * 8);
            asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                         : "=f"(bias.x), "=f"(bias.y)
                         : "r"(mine)
                         : "memory");
        }
        unsigned xs = MANY && x.streams ? x.next() : x.x + (unsigned)(2 * from);
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            if (s < steps) {
                uint4 a = read16(xs + low + s * BY), b = a;
                if (MANY) b = read16(xs + high + s * BY);
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
        if (lane < tiles)
            mbarrier_arrive(first + (unsigned)(8 * (lane < wrapped ? lane : lane - r.slots)));
        if (MANY && x.streams) x.leave(f, t);
    }
#pragma unroll
    for (int j = 0; j < GROUP; j++)
#pragma unroll
        for (int e = 0; e < (MANY ? 4 : 2); e++) c[j][e] += odd[j][MANY ? e : e + 2];
}

/* ---- results ---- */

/* Where they go, in registers: what lies in shared memory would be read again and again. */
struct mk_epilogue {
    void *y, *k, *v;
    const float *bias;
    const int32_t *pos;
    int n, y_n, cap, act;
    bool add, narrow, memory;
    flagged_reader old;
    flagged_word *flagged_out;
    unsigned epoch;
    __device__ mk_epilogue(const decode_gemm &f, const mk_output &to, unsigned first_epoch, int op)
        : y(f.a.y), k(f.a.k_cache), v(f.a.v_cache),
          bias(f.bias_in_slot ? NULL : (const float *)f.a.bias), pos(f.a.pos), n((int)f.a.n),
          y_n(f.a.k_cache ? (int)f.a.y_n : n), cap((int)f.a.cap), act(f.a.act), add(f.a.add),
          narrow(f.a.yt == FV_BF16), memory(to.memory), old(f.old.at(first_epoch)),
          flagged_out(to.area), epoch(first_epoch + (unsigned)op)
    {
    }
};

/* Two neighbours of one row.  What they need besides their sums is asked for before those are
 * ready. */
struct result_pair {
    float2 bias, old;
    flagged_word pending[2];
    int at; /* row of the cache */
    __device__ void prefetch(const mk_epilogue &g, int row, int n)
    {
        int64_t i = row * (int64_t)g.y_n + n;
        bool both = n + 1 < g.n;
        if (g.bias) bias = make_float2(g.bias[n], both ? g.bias[n + 1] : 0);
        if (g.old.area)
            g.old.load_flagged(pending, i);
        else if (g.add)
            old = make_float2(((const float *)g.y)[i], both ? ((const float *)g.y)[i + 1] : 0);
        if (n >= g.y_n) at = g.pos[row];
    }
    __device__ void store_result(const mk_epilogue &g, int row, int n, float2 sum, fault *bad)
    {
        float2 v = make_float2(sum.x + bias.x, sum.y + bias.y);
        if (g.act != FV_ACT_NONE)
            v = make_float2(activate((fv_act)g.act, v.x), activate((fv_act)g.act, v.y));
        if (g.old.area) old = g.old.wait_flagged(pending, row * (int64_t)g.y_n + n);
        v.x += old.x, v.y += old.y;
        if (g.flagged_out) send(g, row * g.n + n, v);
        if (n >= g.y_n)
            keep(g, row, n, v, bad);
        else if (g.memory)
            store_two(g, row * (int64_t)g.y_n + n, n, v);
    }
    __device__ static void send(const mk_epilogue &g, int at, float2 v)
    {
        if (g.narrow) {
            __nv_bfloat162 both = __float22bfloat162_rn(v);
            store_flagged(g.flagged_out + at / 2, *(const unsigned *)&both, g.epoch);
        } else {
            store_flagged2(g.flagged_out + at, v.x, v.y, g.epoch);
        }
    }
    __device__ void keep(const mk_epilogue &g, int row, int n, float2 v, fault *bad) const
    {
        int half = (g.n - g.y_n) / 2, c = n - g.y_n;
        int64_t i = (row * (int64_t)g.cap + at) * half + (c < half ? c : c - half);
        void *to = c < half ? g.k : g.v;
        if (at < 0 || at >= g.cap)
            report_fault(bad, row, at, g.cap, 1);
        else if (g.narrow)
            store_bf16x2((bf16 *)to + i, v);
        else
            *(float2 *)((float *)to + i) = v;
    }
    /* Two at once where rows are even. */
    __device__ static void store_two(const mk_epilogue &g, int64_t i, int n, float2 v)
    {
        if (g.y_n % 2 == 0 && g.narrow) {
            store_bf16x2((bf16 *)g.y + i, v);
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
__device__ inline void gemm_shared_k(const mk_op &o, const block_group &t, ring &r, mk_smem *d,
                                     bf16 *x, const unsigned char *slots, unsigned epoch, int op)
{
    const decode_gemm &f = o.gemm;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, wide = t.wide, tiles = f.tiles,
        first = t.tile(f);
    int tile = threadIdx.x / 64, row = threadIdx.x / 4 % ROWS_BLOCK, column = threadIdx.x % 4 * 2;
    if (first >= tiles) return;
    mk_epilogue g(f, o.to, epoch, op);
    x_chunks chunks(f, t, x);
    for (int t0 = first; t0 < tiles; t0 += GROUP * wide) {
        int n = (t0 + tile * wide) * TILE + column;
        bool now = row < t.rows && n < g.n;
        result_pair b = {};
        if (now) b.prefetch(g, t.row + row, n);
        if (t0 == first && !(MANY && f.streams)) {
            fetch_x<MANY>(f, x, t, r, slots, epoch);
            decode_sync();
        }
        float c[GROUP][4] = {};
        int left = tiles - t0, now_tiles = left > 3 * wide   ? 4
                                           : left > 2 * wide ? 3
                                           : left > wide     ? 2
                                                             : 1;
        multiply<MANY>(c, b.bias, r, f, t, chunks, now_tiles);
        if (t0 != first) decode_sync(); /* the sums before these have been read */
        float *to = d->sums[0][warp] + lane / 4 * TILE + lane % 4 * 2;
#pragma unroll
        for (int j = 0; j < GROUP; j++) {
            *(float2 *)(to + j * (MMA_WARPS * TILE_SUMS)) = make_float2(c[j][0], c[j][1]);
            if (MANY)
                *(float2 *)(to + j * (MMA_WARPS * TILE_SUMS) + 8 * TILE) = make_float2(c[j][2],
                                                                                       c[j][3]);
        }
        decode_sync();
        if (!now) continue;
        float2 v = make_float2(0, 0);
#pragma unroll
        for (int w = 0; w < MMA_WARPS; w++) {
            float2 u = *(const float2 *)&d->sums[tile][w][row * TILE + column];
            v.x += u.x, v.y += u.y;
        }
        b.store_result(g, t.row + row, n, v, f.bad);
    }
}

#endif
