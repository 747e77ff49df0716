/* bwd_dq_sm90.h - bwd_sm90.cu: how a consumer warpgroup computes dq, quantises it (dq_sm90.h) and
 * hands it over to the thread that adds it to global memory. */
#ifndef FV_CUDA_ATTENTION_BWD_DQ_SM90_H
#define FV_CUDA_ATTENTION_BWD_DQ_SM90_H

#include "produce_sm90.h"

namespace
{
/* The same value, opaque to the compiler: what is computed from it is not kept in registers from
 * one tile to the next. */
__device__ inline unsigned opaque(unsigned x)
{
    asm volatile("" : "+r"(x));
    return x;
}

/* store_swizzled with the thread index given, so that nothing of the address is kept; one xor per
 * stmatrix is left behind what all have in common. */
template <int ROWS, int N, class T>
__device__ inline void store_swizzled_opaque(T *to, const uint32_t (&x)[N][4], unsigned row0,
                                             unsigned thread)
{
    unsigned lane = thread % 32, row = row0 + lane % 16,
             offset = row * PANEL + (lane / 16 ^ row % 8) * 8;
#pragma unroll
    for (int n = 0; n < N; n++)
        stmatrix_x4(to + (offset ^ n % 4 * 16) + n / 4 * ROWS * PANEL, x[n]);
}

/* Where a consumer warpgroup is: the iteration over all tiles of the block, the stage of k of
 * its item, dq parts handed over.  All but the thread are warp-uniform for the compiler; else a
 * wgmma descriptor costs four moves between register files. */
struct consumer_state {
    unsigned iter, item, sent, group;
    unsigned thread; /* by a shuffle: each read of the special register costs a wait */
    float2 qscale;   /* of the tile before, whose dq is computed with this one's */
};

/* One arrival for the warp. */
__device__ inline void warp_arrive(uint64_t *b, const consumer_state &a)
{
    __syncwarp();
    if (opaque(a.thread) % 32 == 0) mbarrier_arrive(b);
}

template <class T> __device__ inline T warp_uniform(T x) { return (T)__shfl_sync(~0u, (int)x, 0); }

/* This warpgroup's share of dq of iteration `iter`: half of the queries for heads 64 wide, half
 * of the width for 128. */
template <class P>
__device__ inline void gemm_dq(float (&dq)[8][4], const bwd_layout<P> &m, unsigned iter,
                               const typename P::T *keys, unsigned group)
{
    unsigned of_queries = P::W == 64 ? group : 0, of_width = P::W == 64 ? 0 : group;
    wgmma_fence();
    gemm_tn<P::KEYS>(dq, m.ds_tile + iter % 2 * P::DS_TILE + of_queries * P::KEYS * PANEL,
                     keys + of_width * P::KEYS * PANEL);
    wgmma_commit();
}

/* The quantisation scales of a thread's two rows of that dq. */
template <class P>
__device__ inline float2 qscales_of(const bwd_layout<P> &m, const consumer_state &a, unsigned iter)
{
    unsigned thread = opaque(a.thread), warp = (P::W == 64 ? a.group * 4 : 0) + thread / 32 % 4;
    const float *qscale = m.qscale + iter % P::STAGES * P::QUERIES + warp * 16 + thread % 32 / 4;
    return make_float2(qscale[0], qscale[8]);
}

/* The integer nearest to x qscale, below 2^30, by fmas alone.  Multiples of 512 first, then the
 * remainder; to each a constant is added that puts the integer into the low bits of the float,
 * and the constants' own bits cancel in the sum. */
__device__ inline int round_to_int(float x, float qscale)
{
    /* 1.5 2^23 more */
    const float to_512s = __uint_as_float(0x4fda6000), to_both = __uint_as_float(0x4fdac000);
    float many = fmaf(x, qscale, to_512s), left = fmaf(x, qscale, to_both - many);
    return (int)((__float_as_uint(many) << 9) + __float_as_uint(left));
}

/* A warp's share of a dq part to shared memory, in accumulator layout, four elements of a thread
 * and column block together. */
template <class P, class F>
__device__ inline void stage_dq_part(const bwd_layout<P> &m, const consumer_state &a, F number)
{
    unsigned thread = opaque(a.thread);
    int4 *scratch = m.part + a.group * (PART / 4) + thread % 128 / 32 * (STRIP / 4) + thread % 32;
#pragma unroll
    for (int n = 0; n < 8; n++)
        scratch[n * 32] = make_int4(number(n, 0), number(n, 1), number(n, 2), number(n, 3));
}

template <class P>
__device__ inline void wait_part_empty(const bwd_layout<P> &m, const consumer_state &a)
{
    mbarrier_wait(m.part_empty + a.group, (a.sent + 1) & 1);
}

/* Hands the part over to the thread that sends it. */
template <class P> __device__ inline void publish_part(const bwd_layout<P> &m, consumer_state &a)
{
    fence_async_proxy();
    warp_arrive(m.part_full + a.group, a);
    a.sent++;
}

/* Quantises dq for the reduction.
 *
 * The bits of a float in [0, 2^-125), taken as an integer n, stand for n 2^-149.  So the result of
 * one fma, x qscale 2^-149 + PART_OFFSET 2^-149, has x qscale + PART_OFFSET as its bits, rounded
 * to nearest, if that lies in [0, 2 PART_OFFSET).  What one block adds to a query's dq hardly ever
 * lies outside: the bound of 2^30 is for the sum of all blocks.  Where it does, higher bits are
 * set, and the warp quantises by the four instructions of round_to_int.  The conversion
 * instruction would share the pipe of exponentials.
 *
 * With residuals the part is sent first and they follow, in place: dq is dead behind this, or
 * registers would not suffice. */
template <class P>
__device__ inline void quantise_dq(const bwd_layout<P> &m, consumer_state &a,
                                   const float (&dq)[8][4], float2 qscale, bool needs_residual)
{
    auto of_row = [&](int e) { return e / 2 ? qscale.y : qscale.x; };
    auto any_size = [&](int n, int e) { return round_to_int(dq[n][e], of_row(e)) + PART_OFFSET; };
    if (!needs_residual) {
        const float unit = __uint_as_float(1), offset = __uint_as_float(PART_OFFSET);
        const float small[2] = {qscale.x * unit, qscale.y * unit};
        /* a scale below 1 times 2^-149 would be 0; a row whose dy is 0 has the scale 0 */
        bool exact = (qscale.x >= 1 || qscale.x == 0) && (qscale.y >= 1 || qscale.y == 0);
        unsigned bits = exact ? 0 : ~0u;
        stage_dq_part<P>(m, a, [&](int n, int e) {
            unsigned x = __float_as_uint(fmaf(dq[n][e], small[e / 2], offset));
            bits |= x;
            return (int)x;
        });
        if (__any_sync(~0u, bits >= 2 * PART_OFFSET)) stage_dq_part<P>(m, a, any_size);
        return;
    }
    stage_dq_part<P>(m, a, any_size);
    publish_part(m, a);
    wait_part_empty(m, a);
    stage_dq_part<P>(m, a, [&](int n, int e) {
        float x = dq[n][e] * of_row(e);
        return __float2int_rn((x - rintf(x)) * RESIDUAL_UNITS);
    });
}

/* dq of iteration dq_iter alone, where no tile follows to compute it with. */
template <class P>
__device__ inline void flush_dq(const bwd_layout<P> &m, consumer_state &a, unsigned dq_iter,
                                unsigned item, bool needs_residual)
{
    float dq[8][4];
    m.ds_ring.wait_full(dq_iter);
    gemm_dq(dq, m, dq_iter, m.k + item * P::KEYS * P::W, a.group);
    wgmma_wait<0>();
    warp_arrive(m.ds_ring.empty + dq_iter % 2, a);
    if (item != a.item) mbarrier_arrive(m.k_ring.empty + item);
    wait_part_empty(m, a);
    quantise_dq(m, a, dq, a.qscale, needs_residual);
    publish_part(m, a);
}
} // namespace

#endif
