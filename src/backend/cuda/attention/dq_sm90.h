/* dq_sm90.h - dq on Hopper: sums of whole numbers that all blocks add to at once.
 *
 * Such sums are the same in any order, so gradients repeat bit by bit without waiting for one
 * another.  A unit is chosen for each query: no number of dq_i is larger than
 *
 *     sum_j |ds_ij| max |k|  <=  2 keep |dy_i| max_j |v_j| max |k|,
 *
 * and that, of its head, is less than 2^30 units.  The bound is some thousand times too large as a
 * rule, which leaves twice the bits that a result of 16 bits has.  Where a few keys or values are
 * far larger than the others it is looser by as much; such heads add what is left of each part in
 * units of 2^-20, too. */
#ifndef FV_CUDA_ATTENTION_DQ_SM90_H
#define FV_CUDA_ATTENTION_DQ_SM90_H

#include <cfloat>

#include "attention.h"

#define PART 4096  /* numbers that are added at a time: 64 queries by 64 numbers */
#define STRIP 1024 /* of these, a warp's share: 16 queries */
#define RESIDUAL_UNITS 1048576.f
#define MAX_KEYS (1 << 18) /* 2048 blocks' rests are 2^30 such units at most */
#define SPAN 64            /* keys whose greatest numbers are known together */
#define MAX_SPREAD 16.f

struct int_dq {
    float4 *stat; /* for each query lse in units of log 2, dy.y and |dy| */
    /* for each span of a head of keys the greatest |k| and the square of the greatest |v_j| */
    float2 *top;
    int4 *sum;        /* bwd_sm90.cu; NULL: dq is not wanted */
    int4 *residual;   /* of loose heads, likewise */
    int *next;        /* items of work that were taken */
    int *done;        /* for each head of keys, how often a group has sent all it had of an item */
    int spans, parts; /* of a head */
    int interleaved;  /* heads of keys, the last of all, whose items are dealt out together */
};

/* What is known of a head of keys: `most` times |dy_i| is the bound. */
struct bound {
    float most;
    bool needs_residual;
};

/* By a whole warp. */
__device__ inline bound bound_of(const int_dq &sums, int head_of_keys, float dropout_scale)
{
    float2 high = make_float2(0, 0), low = make_float2(FLT_MAX, FLT_MAX);
    for (int i = threadIdx.x % 32; i < sums.spans; i += 32) {
        float2 top = sums.top[head_of_keys * sums.spans + i];
        high = make_float2(max_op()(high.x, top.x), max_op()(high.y, top.y));
        low = make_float2(fminf(low.x, top.x), fminf(low.y, top.y));
    }
    high = make_float2(warp_allreduce(high.x, max_op()), warp_allreduce(high.y, max_op()));
    low = make_float2(-warp_allreduce(-low.x, max_op()), -warp_allreduce(-low.y, max_op()));
    float k = high.x / low.x, v = sqrtf(high.y / low.y);
    return {2 * dropout_scale * sqrtf(high.y) * high.x, !(k * v <= MAX_SPREAD)};
}

/* Units in 1, a power of 2; 0 where dy is 0, NaN where there is no bound. */
__device__ inline float units(float most)
{
    int exponent = (int)(__float_as_uint(most) >> 23 & 255);
    float unit = __uint_as_float((uint32_t)(127 + min(156 - exponent, 100)) << 23);
    return most == 0 ? 0 : most <= FLT_MAX ? unit : NAN;
}

/* By one thread: until another has counted so far. */
__device__ inline void wait_count(const int *count, int end)
{
    for (int n = 0;;) {
        asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(n) : "l"(count) : "memory");
        if (n >= end) return;
        __nanosleep(200);
    }
}

/* Takes four column blocks of a thread's numbers of a strip. */
__device__ inline void load_sums(float (&x)[4][4], const int4 *from)
{
    int4 s[4];
#pragma unroll
    for (int n = 0; n < 4; n++) s[n] = __ldcg(from + n * 32);
#pragma unroll
    for (int n = 0; n < 4; n++) {
        x[n][0] = (float)s[n].x, x[n][1] = (float)s[n].y, x[n][2] = (float)s[n].z,
        x[n][3] = (float)s[n].w;
    }
}

/* The same of what is left of it; one after the other, as this is rare. */
__device__ inline void load_residuals(float (&x)[4][4], const int4 *from)
{
#pragma unroll
    for (int n = 0; n < 4; n++) {
        int4 s;
        asm volatile("ld.global.cg.v4.s32 {%0,%1,%2,%3}, [%4];"
                     : "=r"(s.x), "=r"(s.y), "=r"(s.z), "=r"(s.w)
                     : "l"(from + n * 32));
        x[n][0] += (float)s.x / RESIDUAL_UNITS, x[n][1] += (float)s.y / RESIDUAL_UNITS;
        x[n][2] += (float)s.z / RESIDUAL_UNITS, x[n][3] += (float)s.w / RESIDUAL_UNITS;
    }
}

/* A warp writes out half of a strip, 16 rows by 32 numbers.  Numbers stand as threads have them,
 * four together for each column block; threads change them in pairs, so that four neighbours go
 * together. */
#define HALVES 8 /* of the strips of a part */
template <class T>
__device__ inline void write_dq_half(const job<T> &o, const int_dq &sums, sink<T> to,
                                     bool vectorised, int b, int h, int64_t part, int half, int row,
                                     int column)
{
    int lane = threadIdx.x % 32, odd = lane % 2;
    int i = tile_row(row + half / 2 * 16, 0),
        c = column + half % 2 * 32 + odd * 8 + lane % 4 / 2 * 4;
    part += half * (STRIP / 8) + lane;
    float x[4][4];
    load_sums(x, sums.sum + part);
    /* while these are on their way */
    bound of = bound_of(sums, b * (int)o.a.G + o.kv_head(h), o.dropout_scale);
    if (of.needs_residual) load_residuals(x, sums.residual + part);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        bool there = i + r * 8 < o.a.Tq;
        float unit = there ? units(sums.stat[o.at_row(b, h, i + r * 8)].z * of.most) : 0;
        float size = unit == 0 ? 0 : o.scale * LN2 / unit;
        int64_t offset = b * o.a.q_batch + (i + r * 8) * o.a.q_row + (int64_t)h * o.a.Wk + c;
#pragma unroll
        for (int n = 0; n < 4; n += 2) {
            float u = __shfl_xor_sync(~0u, odd ? x[n][r * 2] : x[n + 1][r * 2], 1);
            float v = __shfl_xor_sync(~0u, odd ? x[n][r * 2 + 1] : x[n + 1][r * 2 + 1], 1);
            float mine[4] = {odd ? u : x[n][r * 2], odd ? v : x[n][r * 2 + 1],
                             odd ? x[n + 1][r * 2] : u, odd ? x[n + 1][r * 2 + 1] : v};
            if (!there || c + n * 8 >= o.a.Wk) continue;
#pragma unroll
            for (int e = 0; e < 4; e++) mine[e] *= size;
            if (vectorised)
                sink_store(to, offset + n * 8, mine);
            else
                for (int e = 0; e < 4; e++) sink_put(to, offset + n * 8 + e, mine[e]);
        }
    }
}

/* ---- before the pass over pairs ---- */

/* What a block of `bwd_prepass` takes part in: clearing, greatest numbers of keys and values, rows
 * of dy and y. */
struct prepass_args {
    int clear_blocks, of_rows; /* blocks of the first kind, and of the last of a sequence */
    int64_t clear_count;       /* int4s from `clear` on */
    int4 *clear;
};

#define AHEAD 4 /* reads of a thread that are under way at a time, of each of two tensors */

/* Eight numbers of each of AHEAD rows, 0 where there are none. */
template <class T, class F, class G>
__device__ inline void load_ahead(pack<T, 8> (&x)[AHEAD], F there, G at)
{
#pragma unroll
    for (int n = 0; n < AHEAD; n++) x[n] = there(n) ? *(const pack<T, 8> *)at(n) : pack<T, 8>{};
}

/* Positions of a block are those of its warps; heads follow one another in memory.  Of the threads
 * that share a row, one each keeps what was found of AHEAD rows. */
template <int SHARE, class T>
__device__ inline void prepass_rows(const job<T> &o, const T *dy, float4 *stat, int b, int block)
{
    int each = 32 / SHARE, i = block * 8 + (int)threadIdx.x / 32;
    int lane = threadIdx.x % 32, c = lane % SHARE * 8, heads = (int)o.a.H, width = (int)o.a.Wv;
    if (i >= o.a.Tq) return;
    const T *of_dy = dy + o.y_offset(b, 0, i) + c,
            *of_y = (const T *)o.a.y + o.y_offset(b, 0, i) + c;
    const float2 *lse = &o.lse(b, 0, i);
    for (int first = 0; first < heads; first += each * AHEAD) {
        int mine = first + lane % SHARE * each + lane / SHARE;
        bool keeps = lane % SHARE < AHEAD && mine < heads;
        auto h = [&](int n) { return first + n * each + lane / SHARE; };
        auto there = [&](int n) { return h(n) < heads && c < width; };
        pack<T, 8> d[AHEAD], y[AHEAD];
        load_ahead(d, there, [&](int n) { return of_dy + h(n) * width; });
        load_ahead(y, there, [&](int n) { return of_y + h(n) * width; });
        float2 row_stat = keeps ? lse[mine * o.a.Tq] : make_float2(0, 0);
        float dot = 0, norm = 0;
#pragma unroll
        for (int n = 0; n < AHEAD; n++) {
            float sum = 0, square = 0;
#pragma unroll
            for (int e = 0; e < 8; e++)
                sum += to_float(d[n].v[e]) * to_float(y[n].v[e]),
                    square += to_float(d[n].v[e]) * to_float(d[n].v[e]);
#pragma unroll
            for (int x = SHARE / 2; x; x /= 2) {
                sum += __shfl_xor_sync(~0u, sum, x);
                square += __shfl_xor_sync(~0u, square, x);
            }
            if (lane % SHARE == n) dot = sum, norm = square;
        }
        float2 found = o.stat(row_stat, dot);
        if (keeps) stat[o.at_row(b, mine, i)] = make_float4(found.x, found.y, sqrtf(norm), 0);
    }
}

/* The greater of two numbers of 16 bits without their signs, twice: as their bits are, NaN is the
 * greatest. */
__device__ inline uint32_t max_abs2(uint32_t a, uint32_t b) { return __vmaxu2(a, b & 0x7fff7fffu); }

template <int SHARE, class T>
__device__ inline void prepass_keys(const job<T> &o, float2 *top, int b, int span, int spans)
{
    __shared__ float2 of_warp[8][32];
    int each = 32 / SHARE, lane = threadIdx.x % 32, warp = threadIdx.x / 32, c = lane % SHARE * 8,
        heads = (int)o.a.G;
    int left = (int)o.a.Tk - span * SPAN - warp;
    const T *of_k = o.k(b, 0, span * SPAN + warp) + c, *of_v = o.v(b, 0, span * SPAN + warp) + c;
    for (int first = 0; first < heads; first += each) {
        int g = first + lane / SHARE, rows = g < heads ? left : 0;
        uint32_t most = 0;
        float square = 0;
        for (int from = 0; from < SPAN; from += 8 * AHEAD) {
            pack<T, 8> k[AHEAD], v[AHEAD];
            auto j = [&](int n) { return from + n * 8; };
            load_ahead(
                k, [&](int n) { return j(n) < rows && c < (int)o.a.Wk; },
                [&](int n) { return of_k + j(n) * o.a.k_row + g * (int)o.a.Wk; });
            load_ahead(
                v, [&](int n) { return j(n) < rows && c < (int)o.a.Wv; },
                [&](int n) { return of_v + j(n) * o.a.v_row + g * (int)o.a.Wv; });
#pragma unroll
            for (int n = 0; n < AHEAD; n++) {
                const uint32_t *bits = (const uint32_t *)&k[n];
                float sum = 0;
#pragma unroll
                for (int e = 0; e < 4; e++) most = max_abs2(most, bits[e]);
#pragma unroll
                for (int e = 0; e < 8; e++) sum += to_float(v[n].v[e]) * to_float(v[n].v[e]);
#pragma unroll
                for (int x = SHARE / 2; x; x /= 2) sum += __shfl_xor_sync(~0u, sum, x);
                square = max_op()(square, sum);
            }
        }
#pragma unroll
        for (int x = SHARE / 2; x; x /= 2) most = __vmaxu2(most, __shfl_xor_sync(~0u, most, x));
        most = __vmaxu2(most, most >> 16) & 0xffffu;
        uint16_t one = (uint16_t)most;
        if (lane % SHARE == 0)
            of_warp[warp][lane / SHARE] = make_float2(to_float(*(T *)&one), square);
        __syncthreads();
        if (warp == 0 && lane < each && first + lane < heads) {
            float2 all = of_warp[0][lane];
            for (int w = 1; w < 8; w++)
                all = make_float2(max_op()(all.x, of_warp[w][lane].x),
                                  max_op()(all.y, of_warp[w][lane].y));
            top[(b * heads + first + lane) * spans + span] = all;
        }
        __syncthreads();
    }
}

/* SHARE threads of a warp share a row.  The first sequences come last: they are needed first, and
 * are in the cache then. */
template <int SHARE, class T>
__global__ void __launch_bounds__(THREADS)
    bwd_prepass(const __grid_constant__ job<T> o, const T *dy, int_dq sums, prepass_args how)
{
    int block = (int)blockIdx.x - how.clear_blocks, each = sums.spans + how.of_rows;
    pdl_launch_dependents();
    if (block < 0) {
        for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < how.clear_count;
             i += (int64_t)how.clear_blocks * THREADS)
            how.clear[i] = make_int4(0, 0, 0, 0);
        return;
    }
    int b = (int)o.a.B - 1 - block / each, part = block % each;
    if (part < sums.spans)
        prepass_keys<SHARE>(o, sums.top, b, part, sums.spans);
    else
        prepass_rows<SHARE>(o, dy, sums.stat, b, part - sums.spans);
}

/* Rests of a loose head begin with 0; a block for each head of keys and share of it. */
template <class T>
__global__ void __launch_bounds__(THREADS)
    clear_residuals(const __grid_constant__ job<T> o, int_dq sums)
{
    pdl_launch_dependents();
    pdl_wait();
    if (!bound_of(sums, (int)blockIdx.x, o.dropout_scale).needs_residual) return;
    int64_t each = o.a.H / o.a.G * sums.parts * (PART / 4);
    for (int64_t i = (int64_t)blockIdx.y * THREADS + threadIdx.x; i < each;
         i += (int64_t)gridDim.y * THREADS)
        sums.residual[blockIdx.x * each + i] = make_int4(0, 0, 0, 0);
}

#endif
