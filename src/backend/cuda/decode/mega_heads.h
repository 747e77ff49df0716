/* mega_heads.h - norms and rotations of heads (heads.h) as an op of the megakernel.
 *
 * Each head is one warp's, of a block that nobody else's head is in as long as there are enough, so
 * a warp polls for its own head alone.  What it stores has the layout of a QKV projection that
 * appends to caches itself: attention reads either. */
#ifndef FV_CUDA_DECODE_MEGA_HEADS_H
#define FV_CUDA_DECODE_MEGA_HEADS_H

#include "mega_rows.h"

/* The lane's elements of a row, from flagged words or from global memory. */
template <bool MANY, int E>
__device__ inline void receive_head(float (&v)[E], const heads_job &j, const flagged_reader &in,
                                    int64_t at)
{
    if (!MANY && in.area) {
        flagged_word a[E / 2], b[E / 2];
        wait_pairs_warp(
            a, b, in.epoch, [](int) { return true; }, [&](int i) { return in.area + at + 2 * i; });
#pragma unroll
        for (int i = 0; i < E / 2; i++) {
            v[2 * i] = __uint_as_float((unsigned)a[i]);
            v[2 * i + 1] = __uint_as_float((unsigned)b[i]);
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < E / 2; i++) {
        float2 pair = *(const float2 *)(j.a.x + at + 2 * i);
        v[2 * i] = pair.x, v[2 * i + 1] = pair.y;
    }
}

template <int E>
__device__ inline void store_flagged_head(flagged_word *to, const float (&v)[E], bool narrow,
                                          int at, unsigned epoch)
{
#pragma unroll
    for (int e = 0; e < E; e += 2)
        if (narrow)
            store_flagged(to + (at + e) / 2, bf16x2_bits(v[e], v[e + 1]), epoch);
        else
            store_flagged2(to + at + e, v[e], v[e + 1], epoch);
}

template <bool MANY, int E>
__device__ inline void split_heads(const mk_op &o, const block_group &t, const float2 *turns,
                                   unsigned epoch, int op, block_barrier &barrier)
{
    const decode_heads &f = o.heads;
    const fv_fused_heads &a = f.a;
    int heads = a.H + 2 * a.G, n = heads * a.W;
    for (int i = t.block + (int)threadIdx.x / 32 * t.blocks; i < heads * t.rows;
         i += t.blocks * MMA_WARPS) {
        int local = t.rows > 1 ? i / heads : 0, row = t.row + local, unit = i - local * heads;
        const head_unit u(a, unit);
        head_values<E> w;
        w.prefetch(a, u, [&](int pair) { return turns[local * a.rope.half + pair]; });
        int pos = a.pos[row];
        barrier.wait();
        receive_head<MANY>(w.v, f, f.in.reader(epoch), (int64_t)row * n + u.column + w.first());
        w.finish(a);
        if (!MANY && o.out.area)
            store_flagged_head(o.out.area, w.v, a.yt == FV_BF16, row * n + unit * a.W + w.first(),
                               epoch + (unsigned)op);
        w.store(f, u, row, pos, MANY || o.out.to_global);
    }
}

#endif
