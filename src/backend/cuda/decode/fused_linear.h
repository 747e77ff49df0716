/* fused_linear.h - y = act(norm(x) W' + bias) (+ y) for the few rows of a decode step: what the
 * stand-alone kernel (fused_linear.cu) and the megakernel share.
 *
 * Two more forms, for Llama-like layers:
 *     gated:    y_j = act(gate_j + b_j) * (up_j + c_j),   gate = n W', up = n U', n = norm(x)
 *     rotated:  (q_i, q_(i + half)) -> (q_i cos - q_(i + half) sin, q_i sin + q_(i + half) cos)
 *               with the angle pos * freq_i; keys likewise, values not
 * In both, two products must meet in one thread.  A thread holds two neighbouring columns of a tile
 * of 8, so a tile is made of those rows of W (and U) that belong together (tile_columns), and the
 * kernels only differ from the plain form in which rows they load and in the last few
 * instructions.  Weights interleaved in memory would do the same, but then prefill and everybody
 * else who reads them would have to know. */
#ifndef FV_CUDA_FUSED_LINEAR_H
#define FV_CUDA_FUSED_LINEAR_H

#include "backend/cuda/device/cuda.h"
#include "backend/cuda/rows/scalar.h"

/* What a layer of a decode step is reduced to, whichever kernel runs it.  columns counts
 * products, so a gated layer has two for each column of y. */
struct row_job {
    fv_fused_linear a;
    int k;
    int columns; /* products per row of x: n, or 2 n if gated */
    bool quads;  /* four columns per store */
    fault *bad;
};

/* Which columns a tile of 8 products is made of, as four pairs: pair p is columns column(p) and
 * column(p) + apart.  With `paired` a constant false, all of it folds into plain columns: what the
 * megakernel of GPT-2 is compiled with. */
struct tile_columns {
    int base, apart; /* apart: 1; half: a rotated pair; 0: gate and up of one column */
    int turn;        /* frequency of the first pair; -1: not rotated */
    __device__ tile_columns(const fv_fused_linear &a, int tile, bool paired = true)
        : base(8 * tile), apart(1), turn(-1)
    {
        if (!paired) return;
        if (a.up) {
            base = 4 * tile, apart = 0;
        } else if (a.rope.freq && base < ((int)a.n + (int)a.y_n) / 2) {
            int c = base % a.rope.head;
            if (c >= 2 * a.rope.half) return;
            turn = c / 2;
            if (!a.rope.adjacent) base -= c - c / 2, apart = a.rope.half;
        }
    }
    __device__ int column(int pair) const { return base + (apart == 1 ? 2 * pair : pair); }
};

/* Row j of a tile's weights: a row of W or of U. */
struct weight_row {
    const char *w;
    int64_t row;
};
__device__ inline weight_row weight_row_of(const fv_fused_linear &a, const tile_columns &c, int j)
{
    return {(const char *)(j % 2 && !c.apart ? a.up : a.w), c.column(j / 2) + j % 2 * c.apart};
}

/* Bias of a pair; `both`: of plain columns the second exists. */
__device__ inline float2 pair_bias(const float *bias, const float *up_bias, const tile_columns &c,
                                   int pair, bool both)
{
    int n = c.column(pair);
    if (!bias) return make_float2(0, 0);
    return make_float2(bias[n], !c.apart ? up_bias[n] : both ? bias[n + c.apart] : 0);
}

/* (cos, sin) for a pair of row r. */
__device__ inline float2 pair_turn(const fv_fused_rope &o, const tile_columns &c, int pair,
                                   int64_t r)
{
    if (c.turn < 0) return make_float2(1, 0);
    return rotation(o.pos[r], o.freq[r * o.freq_row + c.turn + pair]);
}

/* Sums of a pair, bias added, become results; gated: both the same. */
__device__ inline float2 finish_pair(fv_act act, const tile_columns &c, float2 v, float2 turn)
{
    if (!c.apart) {
        v.x = v.y = activate(act, v.x) * v.y;
    } else if (c.turn >= 0) {
        v = make_float2(v.x * turn.x - v.y * turn.y, v.x * turn.y + v.y * turn.x);
    } else if (act != FV_ACT_NONE) {
        v = activate(act, v);
    }
    return v;
}

/* Lanes 4 q .. 4 q + 3 hold the pairs of a row; each gets two neighbouring columns instead, n and
 * the next, to store them at once.  False: the lane beside it stores its result.  By whole warps: a
 * mask of four lanes costs a MATCH, hundreds of cycles. */
__device__ inline bool neighbours(float2 &v, int &n, const tile_columns &c)
{
    int pair = threadIdx.x % 4;
    bool odd = pair % 2;
    n = c.column(pair);
    if (c.apart == 1) return true;
    float other = __shfl_xor_sync(~0u, odd ? v.x : v.y, 1);
    (odd ? v.x : v.y) = other;
    n = c.base + (pair & 2) + (odd ? c.apart : 0);
    return !odd || c.apart;
}

__device__ inline uint4 rounded(const float (&v)[8])
{
    pack<bf16, 8> p;
#pragma unroll
    for (int j = 0; j < 8; j++) p.v[j] = __float2bfloat16_rn(v[j]);
    return *(const uint4 *)&p;
}

/* One row by one warp: y = (x - mean) * rstd * gain + shift, or x itself, rounded to bf16.  The
 * first FIT * 256 elements stay in registers between the passes. */
__device__ inline void normalise(const fv_fused_linear &a, bf16 *to, const float *x,
                                 const float *gain, const float *shift)
{
    constexpr int FIT = 4;
    int k = (int)a.k, lane = threadIdx.x % 32 * 8;
    float v[FIT][8] = {}, mean = 0, sum = 0;
#pragma unroll
    for (int j = 0; j < FIT; j++)
        if (j * 256 + lane < k) load(v[j], x, j * 256 + lane);
    auto each_of = [&](auto f) {
#pragma unroll
        for (int j = 0; j < FIT; j++)
            if (j * 256 + lane < k) f(v[j], j * 256 + lane);
        for (int i = FIT * 256 + lane; i < k; i += 256) {
            float u[8];
            load(u, x, i);
            f(u, i);
        }
    };
    if (a.norm == FV_NORM_LAYER) {
        each_of([&](const float(&u)[8], int) {
            sum += ((u[0] + u[1]) + (u[2] + u[3])) + ((u[4] + u[5]) + (u[6] + u[7]));
        });
        mean = warp_allreduce(sum, sum_op()) / (float)k;
    }
    sum = 0;
    if (a.norm)
        each_of([&](const float(&u)[8], int) {
#pragma unroll
            for (int e = 0; e < 8; e++) sum += (u[e] - mean) * (u[e] - mean);
        });
    float scale = a.norm ? 1 / sqrtf(warp_allreduce(sum, sum_op()) / (float)k + a.eps) : 1;
    each_of([&](const float(&u)[8], int i) {
        float y[8], g[8], s[8];
        if (gain) load(g, gain, i);
        if (shift) load(s, shift, i);
#pragma unroll
        for (int e = 0; e < 8; e++)
            y[e] = (u[e] - mean) * scale * (gain ? g[e] : 1) + (shift ? s[e] : 0);
        *(uint4 *)(to + i) = rounded(y);
    });
}

__device__ inline void mma(float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3,
                           unsigned b0, unsigned b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* Epilogue inputs of one element, loaded before its sum is ready. */
struct epilogue_operands {
    float bias, old; /* old: the residual */
    int at;          /* position in the KV cache */
    __device__ void prefetch(const row_job &f, int64_t r, int64_t n, bool now)
    {
        const fv_fused_linear &a = f.a;
        bool in = now && n < a.n && r < a.rows;
        bias = in && a.bias ? ((const float *)a.bias)[n] : 0;
        old = in && a.residual ? ((const float *)a.residual)[r * a.n + n] : 0;
        at = in && a.k_cache && n >= a.y_n ? a.pos[r] : 0;
    }
};

/* Destination of an element: y, or one of the KV caches. */
struct target {
    void *to;
    int64_t i;
};

/* Of column n of row r; to NULL (and a fault record) if the cache has no such position. */
__device__ inline target result_target(const row_job &f, int64_t r, int64_t n, int at)
{
    const fv_fused_linear &a = f.a;
    if (!a.k_cache || n < a.y_n) return {a.y, r * (a.k_cache ? a.y_n : a.n) + n};
    int64_t w = (a.n - a.y_n) / 2, c = n - a.y_n;
    if (at >= 0 && at < a.cap)
        return {c < w ? a.k_cache : a.v_cache,
                r * a.cache_batch + at * a.cache_row + (c < w ? c : c - w)};
    report_fault(f.bad, r, at, a.cap, 1);
    return {NULL, 0};
}

__device__ inline void store_result(const row_job &f, int64_t r, int64_t n, float v,
                                    epilogue_operands b)
{
    const fv_fused_linear &a = f.a;
    if (n >= a.n) return;
    v = activate(a.act, v + b.bias) + b.old;
    target p = result_target(f, r, n, b.at);
    if (p.to && a.yt == FV_BF16)
        ((bf16 *)p.to)[p.i] = __float2bfloat16_rn(v);
    else if (p.to)
        ((float *)p.to)[p.i] = v;
}

/* fused_linear_many.cu: y (rows,k) = norm(x) in bf16, once for all. */
void fv_cuda_normalise_rows(fv_stream *s, bf16 *y, const fv_fused_linear &a);
/* y = norm(residual), which then is the residual, without a norm. */
void fv_cuda_normalise_residual(fv_stream *s, fv_fused_linear *a);
/* The layer as kernels around a library's product.  False: its weights are few, or so are rows. */
bool fv_cuda_fused_linear_many(fv_stream *s, const row_job &j);

/* mega_plan.cu: runs the layer in the megakernel; during a capture it is deferred until the next
 * kernel that is not a megakernel op.  False: not on this device, or not with these sizes. */
bool fv_cuda_defer(fv_stream *s, const row_job &j);

#endif
