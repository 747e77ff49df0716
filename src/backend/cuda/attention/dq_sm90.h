/* dq_sm90.h - deterministic accumulation of dq on Hopper: fixed-point integers that all blocks
 * add to.
 *
 * Integer sums are the same in any order, so gradients repeat bit by bit although blocks add to
 * dq concurrently, by cp.reduce.async.bulk.  Each query has its own scale, a power of 2.  As
 *
 *     |dq_i| <= sum_j |ds_ij| max |k|  <=  2 keep |dy_i| max_j |v_j| max |k|,
 *
 * the scale makes this bound, over the keys of the head, less than 2^30.  The bound is as a rule
 * some thousand times too large, which leaves twice the bits of a 16-bit result.  Where a few
 * keys or values are far larger than the others (MAX_SPREAD) it is looser by as much; such heads
 * also add the rounding residual of each part, in units of 2^-20 of the first.
 *
 * Each element of a part is added with PART_OFFSET (bwd_dq_sm90.h); write_dq knows how many parts
 * there were, and takes their offsets off again.
 *
 * The alternatives lose: f32 atomics do not repeat, a second pass for dq computes two more
 * products, and blocks that add in order wait for one another. */
#ifndef FV_CUDA_ATTENTION_DQ_SM90_H
#define FV_CUDA_ATTENTION_DQ_SM90_H

#include <cfloat>

#include "attention.h"
#include "backend/cuda/device/sm90_pipeline.h"

#define PART 4096  /* elements of dq added at a time: 64 queries by 64 columns */
#define STRIP 1024 /* of these, those of one warp: 16 queries */
#define RESIDUAL_UNITS 1048576.f
#define PART_OFFSET 0x800000
#define MAX_KEYS (1 << 18) /* 2048 key blocks' residuals are at most 2^30 units */
#define SPAN 64            /* keys whose maxima are found together */
#define MAX_SPREAD 16.f

struct dq_workspace {
    float4 *stat; /* of each query: base-2 lse, dy.y, |dy| */
    /* of each span of a KV head: max |k| and max |v_j|^2 */
    float2 *kv_max;
    int4 *sum;        /* fixed-point dq, by parts; NULL: dq is not wanted */
    int4 *residual;   /* its residuals, of heads that need them */
    int *next;        /* counter of work items taken */
    unsigned *done;   /* of each KV head: how often a consumer warpgroup has added all of an item */
    int spans, parts; /* of a head */
    int interleaved;  /* KV heads, the last of all, whose items are interleaved */
};

/* The bound of |dq_i| is max_abs |dy_i|.  needs_residual: it is too loose for 30 bits. */
struct dq_bound {
    float max_abs;
    bool needs_residual;
};

/* By a whole warp. */
__device__ inline dq_bound dq_bound_of(const dq_workspace &ws, int head_of_keys,
                                       float dropout_scale)
{
    float2 high = make_float2(0, 0), low = make_float2(FLT_MAX, FLT_MAX);
    for (int i = threadIdx.x % 32; i < ws.spans; i += 32) {
        float2 kv_max = ws.kv_max[head_of_keys * ws.spans + i];
        high = make_float2(max_op()(high.x, kv_max.x), max_op()(high.y, kv_max.y));
        low = make_float2(fminf(low.x, kv_max.x), fminf(low.y, kv_max.y));
    }
    high = make_float2(warp_allreduce(high.x, max_op()), warp_allreduce(high.y, max_op()));
    low = make_float2(-warp_allreduce(-low.x, max_op()), -warp_allreduce(-low.y, max_op()));
    float k = high.x / low.x, v = sqrtf(high.y / low.y);
    return {2 * dropout_scale * sqrtf(high.y) * high.x, !(k * v <= MAX_SPREAD)};
}

/* The quantisation scale, a power of 2, for values up to max_abs; 0 where dy is 0, NaN where
 * there is no finite bound. */
__device__ inline float quant_scale(float max_abs)
{
    int exponent = (int)(__float_as_uint(max_abs) >> 23 & 255);
    float qscale = __uint_as_float((uint32_t)(127 + min(156 - exponent, 100)) << 23);
    return max_abs == 0 ? 0 : max_abs <= FLT_MAX ? qscale : NAN;
}

/* One thread waits until a counter has reached `end`. */
__device__ inline void wait_count(const unsigned *count, unsigned end)
{
    while (load_acquire_gpu(count) < end) __nanosleep(200);
}

/* Four column blocks of this thread, from fixed point.  offset: of so many parts, modulo 2^32. */
__device__ inline void load_sums(float (&x)[4][4], const int4 *from, unsigned offset)
{
    int4 s[4];
#pragma unroll
    for (int n = 0; n < 4; n++) s[n] = __ldcg(from + n * 32);
#pragma unroll
    for (int n = 0; n < 4; n++) {
        x[n][0] = (float)(int)((unsigned)s[n].x - offset),
        x[n][1] = (float)(int)((unsigned)s[n].y - offset),
        x[n][2] = (float)(int)((unsigned)s[n].z - offset),
        x[n][3] = (float)(int)((unsigned)s[n].w - offset);
    }
}

/* Adds the residuals; one load after the other, as this is rare and registers are few. */
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

/* A warp converts half of a strip, 16 rows by 32 columns, and stores it.  Elements are stored in
 * accumulator layout, four of a thread and column block together; pairs of threads exchange
 * them, so that each stores four neighbouring columns. */
#define HALVES 8 /* half strips of a part */
template <class T>
__device__ inline void write_dq_half(const attn_params<T> &attn, const dq_workspace &ws, sink<T> to,
                                     bool vectorised, int b, int h, int64_t part, unsigned offset,
                                     int half, int row, int column)
{
    int lane = threadIdx.x % 32, odd = lane % 2;
    int i = tile_row(row + half / 2 * 16, 0),
        c = column + half % 2 * 32 + odd * 8 + lane % 4 / 2 * 4;
    part += half * (STRIP / 8) + lane;
    float x[4][4];
    load_sums(x, ws.sum + part, offset);
    /* while these loads are in flight */
    dq_bound limit = dq_bound_of(ws, b * (int)attn.a.G + attn.kv_head(h), attn.dropout_scale);
    if (limit.needs_residual) load_residuals(x, ws.residual + part);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        bool in_bounds = i + r * 8 < attn.a.Tq;
        float qscale = in_bounds
                           ? quant_scale(ws.stat[attn.row_index(b, h, i + r * 8)].z * limit.max_abs)
                           : 0;
        float size = qscale == 0 ? 0 : attn.scale * LN2 / qscale;
        int64_t offset = b * attn.a.q_batch + (i + r * 8) * attn.a.q_row + (int64_t)h * attn.a.Wk +
                         c;
#pragma unroll
        for (int n = 0; n < 4; n += 2) {
            float u = __shfl_xor_sync(~0u, odd ? x[n][r * 2] : x[n + 1][r * 2], 1);
            float v = __shfl_xor_sync(~0u, odd ? x[n][r * 2 + 1] : x[n + 1][r * 2 + 1], 1);
            float mine[4] = {odd ? u : x[n][r * 2], odd ? v : x[n][r * 2 + 1],
                             odd ? x[n + 1][r * 2] : u, odd ? x[n + 1][r * 2 + 1] : v};
            if (!in_bounds || c + n * 8 >= attn.a.Wk) continue;
#pragma unroll
            for (int e = 0; e < 4; e++) mine[e] *= size;
            if (vectorised)
                sink_store(to, offset + n * 8, mine);
            else
                for (int e = 0; e < 4; e++) sink_put(to, offset + n * 8 + e, mine[e]);
        }
    }
}

/* ---- the prepass ---- */

/* Blocks of bwd_prepass: first those that clear, then for each sequence those that find maxima
 * of keys and values, and those that compute row statistics. */
struct prepass_plan {
    int clear_blocks, row_blocks; /* blocks that clear; row blocks of a sequence */
    int64_t clear_count;          /* int4s from `clear` on */
    int4 *clear;
};

#define IN_FLIGHT 4 /* loads of a thread in flight at a time, of each of two tensors */

/* Eight elements of each of IN_FLIGHT rows, 0 out of bounds. */
template <class T, class F, class G>
__device__ inline void load_rows(pack<T, 8> (&x)[IN_FLIGHT], F in_bounds, G address)
{
#pragma unroll
    for (int n = 0; n < IN_FLIGHT; n++)
        x[n] = in_bounds(n) ? *(const pack<T, 8> *)address(n) : pack<T, 8>{};
}

/* Row statistics: a warp has one query of all heads, which follow one another in memory.  SHARE
 * threads share a row, and of these one each keeps the results of IN_FLIGHT rows. */
template <int SHARE, class T>
__device__ inline void prepass_rows(const attn_params<T> &attn, const T *dy, float4 *stat, int b,
                                    int block)
{
    int each = 32 / SHARE, i = block * 8 + (int)threadIdx.x / 32;
    int lane = threadIdx.x % 32, c = lane % SHARE * 8, heads = (int)attn.a.H,
        width = (int)attn.a.Wv;
    if (i >= attn.a.Tq) return;
    const T *of_dy = dy + attn.y_offset(b, 0, i) + c,
            *of_y = (const T *)attn.a.y + attn.y_offset(b, 0, i) + c;
    const float2 *lse = &attn.lse(b, 0, i);
    for (int first = 0; first < heads; first += each * IN_FLIGHT) {
        int mine = first + lane % SHARE * each + lane / SHARE;
        bool keeps = lane % SHARE < IN_FLIGHT && mine < heads;
        auto h = [&](int n) { return first + n * each + lane / SHARE; };
        auto in_bounds = [&](int n) { return h(n) < heads && c < width; };
        pack<T, 8> d[IN_FLIGHT], y[IN_FLIGHT];
        load_rows(d, in_bounds, [&](int n) { return of_dy + h(n) * width; });
        load_rows(y, in_bounds, [&](int n) { return of_y + h(n) * width; });
        float2 row_stat = keeps ? lse[mine * attn.a.Tq] : make_float2(0, 0);
        float dot = 0, norm = 0;
#pragma unroll
        for (int n = 0; n < IN_FLIGHT; n++) {
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
        float2 found = attn.stat(row_stat, dot);
        if (keeps) stat[attn.row_index(b, mine, i)] = make_float4(found.x, found.y, sqrtf(norm), 0);
    }
}

/* The greater magnitude of two 16-bit floats, twice.  Without their signs floats compare as
 * integers, NaN being the greatest. */
__device__ inline uint32_t max_abs2(uint32_t a, uint32_t b) { return __vmaxu2(a, b & 0x7fff7fffu); }

template <int SHARE, class T>
__device__ inline void prepass_keys(const attn_params<T> &attn, float2 *kv_max, int b, int span,
                                    int spans)
{
    __shared__ float2 warp_max[8][32];
    int each = 32 / SHARE, lane = threadIdx.x % 32, warp = threadIdx.x / 32, c = lane % SHARE * 8,
        heads = (int)attn.a.G;
    int left = (int)attn.a.Tk - span * SPAN - warp;
    const T *of_k = attn.k(b, 0, span * SPAN + warp) + c,
            *of_v = attn.v(b, 0, span * SPAN + warp) + c;
    for (int first = 0; first < heads; first += each) {
        int g = first + lane / SHARE, rows = g < heads ? left : 0;
        uint32_t max_abs = 0;
        float square = 0;
        for (int from = 0; from < SPAN; from += 8 * IN_FLIGHT) {
            pack<T, 8> k[IN_FLIGHT], v[IN_FLIGHT];
            auto j = [&](int n) { return from + n * 8; };
            load_rows(
                k, [&](int n) { return j(n) < rows && c < (int)attn.a.Wk; },
                [&](int n) { return of_k + j(n) * attn.a.k_row + g * (int)attn.a.Wk; });
            load_rows(
                v, [&](int n) { return j(n) < rows && c < (int)attn.a.Wv; },
                [&](int n) { return of_v + j(n) * attn.a.v_row + g * (int)attn.a.Wv; });
#pragma unroll
            for (int n = 0; n < IN_FLIGHT; n++) {
                const uint32_t *bits = (const uint32_t *)&k[n];
                float sum = 0;
#pragma unroll
                for (int e = 0; e < 4; e++) max_abs = max_abs2(max_abs, bits[e]);
#pragma unroll
                for (int e = 0; e < 8; e++) sum += to_float(v[n].v[e]) * to_float(v[n].v[e]);
#pragma unroll
                for (int x = SHARE / 2; x; x /= 2) sum += __shfl_xor_sync(~0u, sum, x);
                square = max_op()(square, sum);
            }
        }
#pragma unroll
        for (int x = SHARE / 2; x; x /= 2)
            max_abs = __vmaxu2(max_abs, __shfl_xor_sync(~0u, max_abs, x));
        max_abs = __vmaxu2(max_abs, max_abs >> 16) & 0xffffu;
        uint16_t one = (uint16_t)max_abs;
        if (lane % SHARE == 0)
            warp_max[warp][lane / SHARE] = make_float2(to_float(*(T *)&one), square);
        __syncthreads();
        if (warp == 0 && lane < each && first + lane < heads) {
            float2 all = warp_max[0][lane];
            for (int w = 1; w < 8; w++)
                all = make_float2(max_op()(all.x, warp_max[w][lane].x),
                                  max_op()(all.y, warp_max[w][lane].y));
            kv_max[(b * heads + first + lane) * spans + span] = all;
        }
        __syncthreads();
    }
}

/* SHARE threads of a warp share a row.  Sequences are taken from the last to the first: the main
 * kernel begins with the first, which are in L2 by then. */
template <int SHARE, class T>
__global__ void __launch_bounds__(THREADS)
    bwd_prepass(const __grid_constant__ attn_params<T> attn, const T *dy, dq_workspace ws,
                prepass_plan plan)
{
    int block = (int)blockIdx.x - plan.clear_blocks, each = ws.spans + plan.row_blocks;
    pdl_launch_dependents();
    if (block < 0) {
        for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < plan.clear_count;
             i += (int64_t)plan.clear_blocks * THREADS)
            plan.clear[i] = make_int4(0, 0, 0, 0);
        return;
    }
    int b = (int)attn.a.B - 1 - block / each, part = block % each;
    if (part < ws.spans)
        prepass_keys<SHARE>(attn, ws.kv_max, b, part, ws.spans);
    else
        prepass_rows<SHARE>(attn, dy, ws.stat, b, part - ws.spans);
}

/* Clears the residuals of heads that need them; blocks (KV head, share of it). */
template <class T>
__global__ void __launch_bounds__(THREADS)
    clear_residuals(const __grid_constant__ attn_params<T> attn, dq_workspace ws)
{
    pdl_launch_dependents();
    pdl_wait();
    if (!dq_bound_of(ws, (int)blockIdx.x, attn.dropout_scale).needs_residual) return;
    int64_t each = attn.a.H / attn.a.G * ws.parts * (PART / 4);
    for (int64_t i = (int64_t)blockIdx.y * THREADS + threadIdx.x; i < each;
         i += (int64_t)gridDim.y * THREADS)
        ws.residual[blockIdx.x * each + i] = make_int4(0, 0, 0, 0);
}

#endif
