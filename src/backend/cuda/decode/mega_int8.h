/* mega_int8.h - products of 8- and 4-bit weights with one row of x, on int8 tensor cores.
 *
 * Converting eight bytes of W to bf16 takes more instructions than all else that is done with them,
 * so x, which is short, is converted to bytes instead.  For each QUANT_BLOCK elements
 *
 *     x = s q,   q = 256 high + low,   |q| <= 32639,   high and low in -128 .. 127
 *
 * and mma.m16n8k32 sums 32 products of bytes without rounding:
 *
 *     A: W as it is in two slots, a tile above another     B: high, low, and again, in its columns
 *     y += scale of W * s * (256 sum_high + sum_low)
 *
 * x is bf16, with 8 bits: an element loses some where it is below 1/128 of its block's largest.
 * With several rows converting them takes longer than it saves (docs/log.md).
 *
 * In smem the bytes of a block replace its bf16, [ 32 high ][ 32 low ], eight neighbours in the
 * order in which W has them; the row's x_scales follow it. */
#ifndef FV_CUDA_DECODE_MEGA_INT8_H
#define FV_CUDA_DECODE_MEGA_INT8_H

#include "mega_gemm.h"

#define X_LARGEST 32639.0f /* 127 * 256 + 127 */

struct x_scale {
    float s;
    int offset; /* of q4, whose values are 8 too large: -8 sum q, to be added */
};
static_assert(sizeof(x_scale) == X_SCALE_BYTES, "planned for");

__device__ inline x_scale *x_scales_of(bf16 *row, int k) { return (x_scale *)(row + x_stride(k)); }

/* From a block's bytes to those of a column of B: high or low. */
__device__ inline unsigned x_column(int column) { return (unsigned)(column % 2 * QUANT_BLOCK); }

/* max, or NaN if one is. */
__device__ inline float max_nan(float a, float b)
{
    float c;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
    return c;
}

/* Byte `at` of four words. */
__device__ inline unsigned gather_bytes(unsigned a, unsigned b, unsigned c, unsigned d, int at)
{
    unsigned by = (unsigned)(at | (at + 4) << 4);
    return __byte_perm(__byte_perm(a, b, by), __byte_perm(c, d, by), 0x5410);
}

/* A lane's quarter of a block: eight neighbours of x. */
template <int WT> struct x_part {
    uint2 high, low;
    x_scale scale;

    /* By the four lanes of a block; p: as pair_at stores it. */
    __device__ void quantise(uint4 p)
    {
        /* 1.5 * 2^23 and its bits: added to a number, it leaves an integer in the low bits */
        constexpr float TO_INTEGER = 12582912;
        constexpr int TO_INTEGER_BITS = 0x4b400000;
        const unsigned pair[4] = {p.x, p.z, p.y, p.w};
        float v[8], m[4];
#pragma unroll
        for (int e = 0; e < 4; e++) {
            v[2 * e] = __uint_as_float(pair[e] << 16);
            v[2 * e + 1] = __uint_as_float(pair[e] & 0xffff0000u);
            m[e] = max_nan(fabsf(v[2 * e]), fabsf(v[2 * e + 1]));
        }
        float most = max_nan(max_nan(m[0], m[1]), max_nan(m[2], m[3]));
        most = max_nan(most, __shfl_xor_sync(~0u, most, 1));
        most = max_nan(most, __shfl_xor_sync(~0u, most, 2));
        /* scaled, since __fdividef by more than 2^126 is 0 */
        float inverse = most > 1e-30f ? __fdividef(X_LARGEST * 0x1p-20f, most * 0x1p-20f) : 0;
        unsigned q[8], h[8];
        int sum = 0;
#pragma unroll
        for (int e = 0; e < 8; e++) {
            q[e] = __float_as_uint(fmaf(v[e], inverse, TO_INTEGER));
            h[e] = q[e] + 128; /* low is signed: rounds to the nearest high */
            sum += (int)q[e] - TO_INTEGER_BITS;
        }
        if (WT == FV_Q8) {
            high = make_uint2(gather_bytes(h[0], h[1], h[2], h[3], 1),
                              gather_bytes(h[4], h[5], h[6], h[7], 1));
            low = make_uint2(gather_bytes(q[0], q[1], q[2], q[3], 0),
                             gather_bytes(q[4], q[5], q[6], q[7], 0));
            sum = 0;
        } else {
            high = make_uint2(gather_bytes(h[0], h[4], h[1], h[5], 1),
                              gather_bytes(h[2], h[6], h[3], h[7], 1));
            low = make_uint2(gather_bytes(q[0], q[4], q[1], q[5], 0),
                             gather_bytes(q[2], q[6], q[3], q[7], 0));
            sum += __shfl_xor_sync(~0u, sum, 1);
            sum += __shfl_xor_sync(~0u, sum, 2);
        }
        scale = {most * (1 / X_LARGEST), -8 * sum};
    }
};

/* The warp's elements of the row, one block of MMA_WARPS; bf16 to bytes, in place. */
template <int WT> __device__ inline void quantise_row(bf16 *row, int k)
{
    int lane = threadIdx.x % 32, blocks = k / QUANT_BLOCK;
    for (int first = (int)threadIdx.x / 32; first < blocks; first += 8 * MMA_WARPS) {
        int block = first + lane / 4 * MMA_WARPS;
        char *at = (char *)(row + block * QUANT_BLOCK);
        x_part<WT> x;
        x.quantise(block < blocks ? ((const uint4 *)at)[lane % 4] : uint4{});
        __syncwarp(); /* all four lanes have read the block */
        if (block >= blocks) continue;
        ((uint2 *)at)[lane % 4] = x.high;
        ((uint2 *)(at + QUANT_BLOCK))[lane % 4] = x.low;
        if (lane % 4 == 0) x_scales_of(row, k)[block] = x.scale;
    }
}

/* Eight neighbours of a row of W, as bytes for A. */
__device__ inline uint2 weight_bytes(const weight_part<FV_Q8> &w) { return w.v; }
__device__ inline uint2 weight_bytes(const weight_part<FV_Q4> &w)
{
    return make_uint2(w.v & 0x0f0f0f0fu, w.v >> 4 & 0x0f0f0f0fu);
}

/* d = A B + c: of A the upper eight rows are w, the lower `below`. */
__device__ inline void mma_s8(int (&d)[4], uint2 w, uint2 below, uint2 x, int c)
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%10,%11,%10,%11};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(w.x), "r"(below.x), "r"(w.y), "r"(below.y), "r"(x.x), "r"(x.y), "r"(0), "r"(c));
}

/* s (256 high + low) */
__device__ inline float scaled_sum(int high, int low, float s)
{
    return s * (float)(high * 256 + low);
}

#endif
