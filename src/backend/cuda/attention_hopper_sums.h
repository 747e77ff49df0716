/* attention_hopper_sums.h - dq on Hopper: sums of whole numbers that all blocks add to at once.
 *
 * Such sums are the same in any order, so gradients repeat bit by bit without waiting for one another.  A unit is chosen for each
 * query: no number of dq_i is larger than
 *
 *     sum_j |ds_ij| max |k|  <=  2 keep |dy_i| max_j |v_j| max |k|,
 *
 * and that, of its head, is less than 2^30 units.  The bound is some thousand times too large as a rule, which leaves twice the
 * bits that a result of 16 bits has.  Where a few keys or values are far larger than the others it is looser by as much; such
 * heads add what is left of each part in units of 2^-20, too. */
#ifndef FV_CUDA_ATTENTION_HOPPER_SUMS_H
#define FV_CUDA_ATTENTION_HOPPER_SUMS_H

#include <cfloat>

#include "attention.h"

#define PART 4096 /* numbers that are added at a time: 64 queries by 64 numbers */
#define REST_UNITS 1048576.f
#define MOST_KEYS (1 << 18) /* 2048 blocks' rests are 2^30 such units at most */
#define SPAN 64             /* keys whose greatest numbers are known together */
#define LOOSE 16.f

struct whole_sums {
    float4 *stat;     /* for each query lse in units of log 2, dy.y and |dy| */
    float2 *top;      /* for each span of a head of keys the greatest |k| and the square of the greatest |v_j| */
    int4 *sum;        /* attention_hopper_bwd.cu; NULL: dq is not wanted */
    int4 *rest;       /* of loose heads, likewise */
    int *next;        /* items of work that were taken */
    int spans, parts; /* of a head */
};

/* What is known of a head of keys: `most` times |dy_i| is the bound. */
struct bound {
    float most;
    bool loose;
};

/* By a whole warp. */
__device__ inline bound bound_of(const whole_sums &sums, int head_of_keys, float keep_scale)
{
    float2 high = make_float2(0, 0), low = make_float2(FLT_MAX, FLT_MAX);
    for (int i = threadIdx.x % 32; i < sums.spans; i += 32) {
        float2 top = sums.top[head_of_keys * sums.spans + i];
        high = make_float2(greater()(high.x, top.x), greater()(high.y, top.y));
        low = make_float2(fminf(low.x, top.x), fminf(low.y, top.y));
    }
    high = make_float2(warp_all(high.x, greater()), warp_all(high.y, greater()));
    low = make_float2(-warp_all(-low.x, greater()), -warp_all(-low.y, greater()));
    float k = high.x / low.x, v = sqrtf(high.y / low.y);
    return {2 * keep_scale * sqrtf(high.y) * high.x, !(k * v <= LOOSE)};
}

/* Units in 1, a power of 2; 0 where dy is 0, NaN where there is no bound. */
__device__ inline float units(float most)
{
    int exponent = (int)(__float_as_uint(most) >> 23 & 255);
    float unit = __uint_as_float((uint32_t)(127 + min(156 - exponent, 100)) << 23);
    return most == 0 ? 0 : most <= FLT_MAX ? unit : NAN;
}

/* Takes four column blocks of a thread's numbers of a part. */
__device__ inline void take_sums(float (&x)[4][4], const int4 *from)
{
    int4 s[4];
#pragma unroll
    for (int n = 0; n < 4; n++) s[n] = __ldcg(from + n * 128);
#pragma unroll
    for (int n = 0; n < 4; n++) {
        x[n][0] = (float)s[n].x, x[n][1] = (float)s[n].y, x[n][2] = (float)s[n].z, x[n][3] = (float)s[n].w;
    }
}

/* The same of what is left of each part; one after the other, as this is rare. */
__device__ inline void take_rests(float (&x)[4][4], const int4 *from)
{
#pragma unroll
    for (int n = 0; n < 4; n++) {
        int4 s;
        asm volatile("ld.global.cg.v4.s32 {%0,%1,%2,%3}, [%4];"
                     : "=r"(s.x), "=r"(s.y), "=r"(s.z), "=r"(s.w)
                     : "l"(from + n * 128));
        x[n][0] += (float)s.x / REST_UNITS, x[n][1] += (float)s.y / REST_UNITS;
        x[n][2] += (float)s.z / REST_UNITS, x[n][3] += (float)s.w / REST_UNITS;
    }
}

/* A warp writes out a strip of a part, 16 rows by 32 numbers.  Numbers stand as threads of a group have them, four together for
 * each column block; threads change them in pairs, so that four neighbours go together. */
#define STRIPS 8
template <class T>
__device__ inline void write_strip(const job<T> &o, const whole_sums &sums, sink<T> to, bool quick, bound of, int b, int h,
                                   int64_t part, int strip, int row, int column)
{
    int lane = threadIdx.x % 32, odd = lane % 2;
    int i = tile_row(row + strip / 2 * 16, 0), c = column + strip % 2 * 32 + odd * 8 + lane % 4 / 2 * 4;
    part += strip % 2 * 512 + strip / 2 * 32 + lane;
    float x[4][4];
    take_sums(x, sums.sum + part);
    if (of.loose) take_rests(x, sums.rest + part);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        bool there = i + r * 8 < o.a.Tq;
        float unit = there ? units(sums.stat[o.at_lse(b, h, i + r * 8)].z * of.most) : 0;
        float size = unit == 0 ? 0 : o.scale * LN2 / unit;
        int64_t place = b * o.a.q_batch + (i + r * 8) * o.a.q_row + (int64_t)h * o.a.Wk + c;
#pragma unroll
        for (int n = 0; n < 4; n += 2) {
            float u = __shfl_xor_sync(~0u, odd ? x[n][r * 2] : x[n + 1][r * 2], 1);
            float v = __shfl_xor_sync(~0u, odd ? x[n][r * 2 + 1] : x[n + 1][r * 2 + 1], 1);
            float mine[4] = {odd ? u : x[n][r * 2], odd ? v : x[n][r * 2 + 1], odd ? x[n + 1][r * 2] : u,
                             odd ? x[n + 1][r * 2 + 1] : v};
            if (!there || c + n * 8 >= o.a.Wk) continue;
#pragma unroll
            for (int e = 0; e < 4; e++) mine[e] *= size;
            if (quick)
                deliver(to, place + n * 8, mine);
            else
                for (int e = 0; e < 4; e++) put(to, place + n * 8 + e, mine[e]);
        }
    }
}

/* ---- before the pass over pairs ---- */

/* What a block of `foresee` takes part in: clearing, greatest numbers of keys and values, rows of dy and y. */
struct foresight {
    int clearing, of_keys; /* blocks of the first two kinds */
    int64_t to_clear;      /* int4s from `clear` on */
    int4 *clear;
    int by_key, by_row; /* threads of a warp that share one, powers of two */
};

#define AHEAD 4 /* reads of a thread that are under way at a time, of each of two tensors */

/* Eight numbers of each of AHEAD rows, 0 where there are none. */
template <class T, class F, class G> __device__ inline void read_ahead(pack<T, 8> (&x)[AHEAD], F there, G at)
{
#pragma unroll
    for (int n = 0; n < AHEAD; n++) x[n] = there(n) ? *(const pack<T, 8> *)at(n) : pack<T, 8>{};
}

/* Positions of a block are those of its warps; heads follow one another in memory. */
template <class T> __device__ inline void see_rows(const job<T> &o, const T *dy, float4 *stat, int block, int share)
{
    int each = 32 / share, blocks = (int)ceil_div(o.a.Tq, 8), b = block / blocks, i = block % blocks * 8 + (int)threadIdx.x / 32;
    int lane = threadIdx.x % 32, c = lane % share * 8, heads = (int)o.a.H;
    if (i >= o.a.Tq) return;
    for (int first = 0; first < heads; first += each * AHEAD) {
        auto h = [&](int n) { return first + n * each + lane / share; };
        auto there = [&](int n) { return h(n) < heads && c < o.a.Wv; };
        pack<T, 8> d[AHEAD], y[AHEAD];
        read_ahead(d, there, [&](int n) { return dy + o.at_y(b, h(n), i) + c; });
        read_ahead(y, there, [&](int n) { return (const T *)o.a.y + o.at_y(b, h(n), i) + c; });
#pragma unroll
        for (int n = 0; n < AHEAD; n++) {
            float sum = 0, square = 0;
#pragma unroll
            for (int e = 0; e < 8; e++) sum += up(d[n].v[e]) * up(y[n].v[e]), square += up(d[n].v[e]) * up(d[n].v[e]);
            for (int x = share / 2; x; x /= 2) {
                sum += __shfl_xor_sync(~0u, sum, x);
                square += __shfl_xor_sync(~0u, square, x);
            }
            if (h(n) >= heads || lane % share) continue;
            int64_t r = o.at_lse(b, h(n), i);
            float2 known = o.stat(((const float *)o.a.lse)[r], sum);
            stat[r] = make_float4(known.x, known.y, sqrtf(square), 0);
        }
    }
}

template <class T> __device__ inline void see_keys(const job<T> &o, float2 *top, int block, int share, int spans)
{
    __shared__ float2 of_warp[8][32];
    int each = 32 / share, lane = threadIdx.x % 32, warp = threadIdx.x / 32, c = lane % share * 8, heads = (int)o.a.G;
    int b = block / spans, span = block % spans;
    for (int first = 0; first < heads; first += each) {
        int g = first + lane / share;
        float of_k = 0, of_v = 0;
        for (int from = 0; from < SPAN; from += 8 * AHEAD) {
            auto j = [&](int n) { return span * SPAN + from + n * 8 + warp; };
            pack<T, 8> k[AHEAD], v[AHEAD];
            read_ahead(
                k, [&](int n) { return g < heads && j(n) < o.a.Tk && c < o.a.Wk; }, [&](int n) { return o.k(b, g, j(n)) + c; });
            read_ahead(
                v, [&](int n) { return g < heads && j(n) < o.a.Tk && c < o.a.Wv; }, [&](int n) { return o.v(b, g, j(n)) + c; });
#pragma unroll
            for (int n = 0; n < AHEAD; n++) {
                float square = 0;
#pragma unroll
                for (int e = 0; e < 8; e++) of_k = greater()(of_k, fabsf(up(k[n].v[e]))), square += up(v[n].v[e]) * up(v[n].v[e]);
                for (int x = share / 2; x; x /= 2) square += __shfl_xor_sync(~0u, square, x);
                of_v = greater()(of_v, square);
            }
        }
        for (int x = share / 2; x; x /= 2) of_k = greater()(of_k, __shfl_xor_sync(~0u, of_k, x));
        if (lane % share == 0) of_warp[warp][lane / share] = make_float2(of_k, of_v);
        __syncthreads();
        if (warp == 0 && lane < each && first + lane < heads) {
            float2 all = of_warp[0][lane];
            for (int w = 1; w < 8; w++)
                all = make_float2(greater()(all.x, of_warp[w][lane].x), greater()(all.y, of_warp[w][lane].y));
            top[(b * heads + first + lane) * spans + span] = all;
        }
        __syncthreads();
    }
}

template <class T>
__global__ void __launch_bounds__(THREADS) foresee(const __grid_constant__ job<T> o, const T *dy, whole_sums sums, foresight how)
{
    int block = blockIdx.x;
    if (block < how.clearing) {
        for (int64_t i = (int64_t)block * THREADS + threadIdx.x; i < how.to_clear; i += (int64_t)how.clearing * THREADS)
            how.clear[i] = make_int4(0, 0, 0, 0);
    } else if (block < how.clearing + how.of_keys) {
        see_keys(o, sums.top, block - how.clearing, how.by_key, sums.spans);
    } else {
        see_rows(o, dy, sums.stat, block - how.clearing - how.of_keys, how.by_row);
    }
}

/* Rests of a loose head begin with 0; a block for each head of keys and share of it. */
template <class T> __global__ void __launch_bounds__(THREADS) clear_rests(const __grid_constant__ job<T> o, whole_sums sums)
{
    if (!bound_of(sums, (int)blockIdx.x, o.keep_scale).loose) return;
    int64_t each = o.a.H / o.a.G * sums.parts * (PART / 4);
    for (int64_t i = (int64_t)blockIdx.y * THREADS + threadIdx.x; i < each; i += (int64_t)gridDim.y * THREADS)
        sums.rest[blockIdx.x * each + i] = make_int4(0, 0, 0, 0);
}

#endif
