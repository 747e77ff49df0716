/* heads.h - q, k and v of a decode step on their way from one product to attention (fused_heads):
 * what the stand-alone kernel and the megakernel share.
 *
 *     q, k = rot(norm q), rot(norm k);   caches[pos] = k, v
 *
 * A warp has a head, E = W / 32 neighbouring elements in each lane.  Elements that are rotated
 * together are in one lane (2i, 2i+1) or half / E lanes apart (i, i + half).  Both kernels must
 * give the same bits, so products and sums are spelled out. */
#ifndef FV_CUDA_DECODE_HEADS_H
#define FV_CUDA_DECODE_HEADS_H

#include "backend/cuda/device/cuda.h"
#include "backend/cuda/rows/scalar.h"

struct heads_job {
    fv_fused_heads a;
    fault *bad;
};

/* One of the H + 2 G heads of a row, in the order of q, k and v. */
struct head_unit {
    enum { QUERY, KEY, VALUE } which;
    int h, column; /* which head of these; first column of the product */
    __device__ head_unit(const fv_fused_heads &a, int unit)
    {
        which = unit < a.H ? QUERY : unit < a.H + a.G ? KEY : VALUE;
        h = which == QUERY ? unit : unit - a.H - (which == VALUE ? a.G : 0);
        column = (a.by_head ? 3 * h + (int)which : unit) * a.W;
    }
};

template <int E> struct head_values {
    float v[E], gain[E];
    float2 turn[E];
    bool normed, turned; /* the head is; */
    bool rotated, low;   /* this lane's elements are, and are the first of their pairs */

    __device__ static int first() { return (int)threadIdx.x % 32 * E; }

    /* What does not depend on x; turn_of(i): cos and sin for pair i. */
    template <class F>
    __device__ void prefetch(const fv_fused_heads &a, const head_unit &u, F turn_of)
    {
        const float *g = u.which == head_unit::QUERY ? a.q_gain : a.k_gain;
        int half = a.rope.half;
        normed = g && u.which != head_unit::VALUE;
        turned = a.rope.freq && u.which != head_unit::VALUE;
        rotated = turned && first() < 2 * half;
        low = first() < half;
#pragma unroll
        for (int e = 0; e < E; e++) {
            int i = first() + e, pair = a.rope.adjacent ? i / 2 : low ? i : i - half;
            gain[e] = normed ? g[i] : 1;
            turn[e] = rotated ? turn_of(pair) : make_float2(1, 0);
        }
    }
    __device__ void finish(const fv_fused_heads &a)
    {
        if (normed) {
            float sum = 0;
#pragma unroll
            for (int e = 0; e < E; e++) sum = __fmaf_rn(v[e], v[e], sum);
            sum = warp_allreduce(sum, sum_op());
            float scale = rsqrtf(__fmaf_rn(sum, 1.f / (32 * E), a.eps));
#pragma unroll
            for (int e = 0; e < E; e++) v[e] = __fmul_rn(__fmul_rn(v[e], scale), gain[e]);
        }
        if (!turned) return;
        int lane = threadIdx.x % 32, apart = a.rope.half / E,
            from = !rotated ? lane
                   : low    ? lane + apart
                            : lane - apart;
        float old[E];
#pragma unroll
        for (int e = 0; e < E; e++) old[e] = v[e];
#pragma unroll
        for (int e = 0; e < E; e++) {
            float there = __shfl_sync(~0u, old[e], from),
                  other = a.rope.adjacent ? old[e ^ 1] : there;
            bool is_first = a.rope.adjacent ? e % 2 == 0 : low;
            float r = __fmaf_rn(is_first ? -other : other, turn[e].y, __fmul_rn(old[e], turn[e].x));
            if (rotated) v[e] = __fmul_rn(r, a.factor);
        }
    }
    /* q to y if `to_y`, k and v to row pos of their caches. */
    __device__ void store(const heads_job &j, const head_unit &u, int64_t row, int pos,
                          bool to_y) const
    {
        const fv_fused_heads &a = j.a;
        int64_t at = first() + (int64_t)u.h * a.W;
        void *to = u.which == head_unit::QUERY ? a.y
                   : u.which == head_unit::KEY ? a.k_cache
                                               : a.v_cache;
        if (u.which == head_unit::QUERY) {
            if (!to_y) return;
            at += row * a.H * a.W;
        } else {
            if (pos < 0 || pos >= a.cap) {
                report_fault(j.bad, row, pos, a.cap, 1);
                return;
            }
            at += row * a.cache_batch + pos * a.cache_row;
        }
#pragma unroll
        for (int e = 0; e < E; e += 2)
            if (a.yt == FV_BF16)
                *(__nv_bfloat162 *)((bf16 *)to + at + e) = __floats2bfloat162_rn(v[e], v[e + 1]);
            else
                *(float2 *)((float *)to + at + e) = make_float2(v[e], v[e + 1]);
    }
};

/* mega_plan.cu: runs it in the megakernel, as for fused linear layers. */
bool fv_cuda_defer(fv_stream *s, const heads_job &j);

#endif
