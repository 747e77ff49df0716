/* mega_gemm_many.h - the K loop of gemm_shared_k (mega_gemm.h) for 9 to 16 rows.
 *
 * bf16 rows of x come by cp.async, in a pipeline of STAGES chunks: rows of the down projection as a
 * whole would leave no smem for weights.  f32 rows have been normalised or rounded before (load_x),
 * and are there. */
#ifndef FV_CUDA_DECODE_MEGA_GEMM_MANY_H
#define FV_CUDA_DECODE_MEGA_GEMM_MANY_H

#include "mega_rows.h"

/* x in smem:  rows of x * (chunk + 32) * 2 bytes a stage;  STAGES in flight, one being read.  16
 * threads copy a row. */
struct x_chunks {
    const bf16 *from; /* this thread's first element of the next chunk */
    unsigned to;      /* where it goes in stage 0 */
    unsigned size;    /* bytes per stage */
    int left;         /* columns from `from` on that are not yet asked for; none without a row */
    __device__ x_chunks(const decode_gemm &f, const block_group &t, unsigned x, int stride)
    {
        int row = (int)threadIdx.x / 16, first = threadIdx.x % 16 * 8;
        from = (const bf16 *)f.a.x + (t.row + row) * (int64_t)f.k + first;
        to = x + (unsigned)(2 * (row * stride + first));
        size = (unsigned)(2 * t.rows * stride);
        left = row < t.rows ? f.k - first : 0;
        asm volatile("" : "+l"(from)); /* else its product is computed for every copy */
    }
    /* Starts the copy of the next chunk; past the last one it is empty, so that wait_group counts
     * right. */
    __device__ void prefetch(int stage, int chunk)
    {
        unsigned at = to + stage * size;
        int n = min(left, chunk - (int)(threadIdx.x % 16 * 8));
#pragma unroll
        for (int i = 0; i < MAX_CHUNK / 128; i++)
            if (i * 128 < n) cp_async16(at + i * 256, from + i * 128);
        asm volatile("cp.async.commit_group;" ::: "memory");
        from += chunk, left -= chunk;
    }
    /* The oldest chunk is there, for all MMA threads. */
    __device__ static void wait()
    {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 1) : "memory");
        decode_sync();
    }
};

/* Eight neighbours of a row of W, from a slot. */
template <int WT> __device__ inline void load_slot(weight_part<WT> &w, unsigned at)
{
    if constexpr (WT == FV_Q8)
        w.v = ld_shared8(at);
    else if constexpr (WT == FV_Q4)
        w.v = ld_shared4(at);
    else
        w.v = ld_shared16(at);
}

/* c += scale * (x W') for a block of quantised weights v; even and odd: A of its two halves. */
__device__ inline void multiply_block(float (&c)[4], const unsigned (&even)[4],
                                      const unsigned (&odd)[4], uint4 v, float2 scale)
{
    float d[4] = {};
    mma(d, even[0], even[1], even[2], even[3], v.x, v.y);
    mma(d, odd[0], odd[1], odd[2], odd[3], v.z, v.w);
#pragma unroll
    for (int e = 0; e < 4; e++) c[e] = fmaf(e % 2 ? scale.y : scale.x, d[e], c[e]);
}

/* Where a lane finds its part of a tile in a slot: eight values of column lane / 4, and the scales
 * of columns lane % 4 * 2 and the next, of the warp's first block. */
struct slot_part {
    unsigned value, scale;
};

/* c + odd += the warp's steps of a chunk for TILES tiles: rows lane / 4 (at low) and lane / 4 + 8
 * (at high).  An A fragment is four neighbouring registers, two of each row.  Left to itself the
 * compiler copies all four again for every mma.  XOR with zero, which it cannot know to be 0,
 * copies them once for all tiles.
 * w: smem addresses of the tiles' slots. */
template <int TILES, int WT>
__device__ inline void multiply_chunk(float (&c)[GROUP][4], float (&odd)[GROUP][4],
                                      const unsigned (&w)[GROUP], const slot_part &part,
                                      unsigned low, unsigned high, int steps, unsigned zero)
{
    constexpr int STEPS = MAX_CHUNK / ROUND;
    constexpr unsigned BY = 2 * ROUND, W_BY = step_in_slot<WT>();
#pragma unroll
    for (int s = 0; s < STEPS; s++)
        if (s < steps) {
            uint4 a = ld_shared16(low + s * BY), b = ld_shared16(high + s * BY), v[TILES];
            float2 scale[TILES];
            const unsigned even_k[4] = {a.x ^ zero, b.x ^ zero, a.y ^ zero, b.y ^ zero},
                           odd_k[4] = {a.z ^ zero, b.z ^ zero, a.w ^ zero, b.w ^ zero};
#pragma unroll
            for (int j = 0; j < TILES; j++) {
                weight_part<WT> p;
                load_slot(p, w[j] + part.value + s * W_BY);
                v[j] = p.bf16x8();
                if (WT != FV_BF16) scale[j] = ld_shared_f32x2(w[j] + part.scale + s * W_BY);
            }
            if constexpr (WT != FV_BF16) {
#pragma unroll
                for (int j = 0; j < TILES; j++) multiply_block(c[j], even_k, odd_k, v[j], scale[j]);
                continue;
            }
#pragma unroll
            for (int j = 0; j < TILES; j++)
                mma(c[j], even_k[0], even_k[1], even_k[2], even_k[3], v[j].x, v[j].y);
#pragma unroll
            for (int j = 0; j < TILES; j++)
                mma(odd[j], odd_k[0], odd_k[1], odd_k[2], odd_k[3], v[j].z, v[j].w);
        }
}

/* c += this warp's part of K for the tiles: rows lane / 4 and lane / 4 + 8, columns lane % 4 * 2
 * and the next.  Missing rows read an existing one; their results are not stored.
 * bias: of the two outputs that this thread stores. */
template <int WT>
__device__ inline void multiply_many(float (&c)[GROUP][4], float2 &bias, slot_ring &r,
                                     const decode_gemm &f, const block_group &t, unsigned x,
                                     int tiles)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, k = f.k, chunk = f.chunk,
        stride = x_stride(f.stream_x ? chunk : k), rows = t.rows, stage = 0;
    unsigned zero = (unsigned)k >> 31;
    bool streams = f.stream_x, has_bias = f.bias_in_slot;
    unsigned within = (unsigned)(2 * STEP * warp + lane % 4 * 16),
             low = x + (unsigned)(2 * min(lane / 4, rows - 1) * stride) + within,
             high = x + (unsigned)(2 * min(lane / 4 + 8, rows - 1) * stride) + within;
    const slot_part part = {value_in_slot<WT>(lane / 4, warp, lane % 4),
                            scale_in_slot<WT>(lane % 4 * 2, warp)};
    auto steps_of = [&](int n) { return (n / STEP - warp + MMA_WARPS - 1) / MMA_WARPS; };
    float odd[GROUP][4] = {};
    x_chunks chunks(f, t, x, stride);
    if (streams)
        for (int i = 0; i < STAGES; i++) chunks.prefetch(i, chunk);
    for (int from = 0; from < k; from += chunk) {
        unsigned w[GROUP];
        const next_slots slots(r, tiles);
        int steps = from + chunk <= k ? steps_of(chunk) : steps_of(k - from);
#pragma unroll
        for (int j = 0; j < GROUP; j++) w[j] = r.slot(r.ahead(j));
        r.advance(tiles);
        slots.wait();
        /* in the epilogue this warp stores tile warp / 2: read its bias before the slot is freed */
        if (from == 0 && has_bias && warp / 2 < tiles)
            bias = slot_bias(select_element(w, warp / 2));
        if (streams) chunks.wait();
        unsigned at = streams ? stage * chunks.size : (unsigned)(2 * from);
        switch (tiles) {
        case 1: multiply_chunk<1, WT>(c, odd, w, part, low + at, high + at, steps, zero); break;
        case 2: multiply_chunk<2, WT>(c, odd, w, part, low + at, high + at, steps, zero); break;
        case 3: multiply_chunk<3, WT>(c, odd, w, part, low + at, high + at, steps, zero); break;
        default: multiply_chunk<4, WT>(c, odd, w, part, low + at, high + at, steps, zero); break;
        }
        slots.release();
        if (!streams || from + chunk >= k) continue;
        if (from + STAGES * chunk < k) decode_sync(); /* the stage has been read by all */
        chunks.prefetch(stage, chunk);
        stage = (stage + 1) % STAGES;
    }
#pragma unroll
    for (int j = 0; j < GROUP; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) c[j][e] += odd[j][e];
}

#endif
