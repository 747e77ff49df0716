/* quant.h - weights of 8 and 4 bits on the device.
 *
 *     w = scale q,  q in -127 .. 127 (FV_Q8) or -8 .. 7 (FV_Q4), a scale for each BLOCK of k
 *
 *    weight (n,k): tiles of QUANT_ROWS rows, the last filled with zeros; a tile: blocks of k
 *    block:        [ values of each row ][ f32 scale of each row ]
 *    FV_Q8:        a value is a byte
 *    FV_Q4:        q + 8; eight in a word, 0 2 4 6 1 3 5 7 from the lowest bits on: shifting by 4 i
 *                  brings neighbours 2 i and 2 i + 1 into the halves of the word
 *
 * So a part of k of four rows, scales included, lies in one piece: the megakernel copies a tile of
 * eight columns by two bulk copies.  Four and not eight rows, because where pairs of rows belong
 * together (gate and up, rotated halves) four neighbours of each make a tile.
 *
 * The numbers are those of the CPU (backend/cpu/gemm_int8.c), which also rounds activations to 8
 * bits; here they are bf16, so results are closer to those of float weights (one sequence:
 * decode/mega_int8.h).  A lane of a tensor core product takes 8 neighbours at a time, and a step of
 * a warp is one block: so a scale multiplies the sum of a step, not each value. */
#ifndef FV_CUDA_QUANT_H
#define FV_CUDA_QUANT_H

#include "backend/cuda/device/cuda.h"

#define QUANT_BLOCK 32
#define QUANT_ROWS 4

static inline bool is_quantised(fv_dtype t) { return t == FV_Q8 || t == FV_Q4; }

__host__ __device__ static inline int64_t quant_blocks(int64_t k)
{
    return ceil_div(k, QUANT_BLOCK);
}

/* Bytes of a row in a block, without its scale; of a block; of a tile. */
__host__ __device__ constexpr int quant_row_bytes(int t)
{
    return t == FV_Q8 ? QUANT_BLOCK : QUANT_BLOCK / 2;
}
__host__ __device__ constexpr int quant_block_bytes(int t)
{
    return QUANT_ROWS * (quant_row_bytes(t) + (int)sizeof(float));
}
__host__ __device__ static inline int64_t quant_tile_bytes(int t, int64_t k)
{
    return quant_blocks(k) * quant_block_bytes(t);
}

/* Where row r of a weight has its values of the first block, and that block's scale; those of block
 * b are b * block_bytes further.  Of bf16 rows lie one behind the other, without scales. */
template <class C> struct row_start {
    C *value, *scale;
    int64_t block_bytes;
    __host__ __device__ row_start(C *w, int t, int64_t r, int64_t k)
    {
        if (t == FV_BF16) {
            value = w + r * k * 2, scale = NULL, block_bytes = 2 * QUANT_BLOCK;
            return;
        }
        C *tile = w + r / QUANT_ROWS * quant_tile_bytes(t, k);
        int i = (int)(r % QUANT_ROWS), bytes = quant_row_bytes(t);
        value = tile + i * bytes;
        scale = tile + QUANT_ROWS * bytes + i * (int)sizeof(float);
        block_bytes = quant_block_bytes(t);
    }
};

__device__ inline unsigned sub_bf16x2(unsigned a, unsigned b)
{
    __nv_bfloat162 y = __hsub2(*(__nv_bfloat162 *)&a, *(__nv_bfloat162 *)&b);
    return *(unsigned *)&y;
}

/* (x & mask) | bits as one instruction, which takes one constant from a register. */
__device__ inline unsigned and_or(unsigned x, unsigned mask, unsigned bits)
{
    unsigned y;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(y) : "r"(x), "r"(mask), "r"(bits));
    return y;
}

/* 0x4300 is 128 in bf16, and its last 7 bits count ones: so 7 bits become a number by an or.  The
 * sign bit of a byte is worth -128, a q4 is 8 too large: both are subtracted, exactly. */
__device__ inline unsigned bytes_to_bf16x2(unsigned two)
{
    return sub_bf16x2(and_or(two, 0x007f007f, 0x43004300), and_or(two, 0x00800080, 0x43004300));
}
__device__ inline unsigned nibbles_to_bf16x2(unsigned two)
{
    return sub_bf16x2(and_or(two, 0x000f000f, 0x43004300), 0x43084308);
}

/* Eight neighbours of a row of W, as a lane loads them, and as bf16.  `value` and `scale` point to
 * those of some element, `blocks` counts from there; !in: zeros.  The scale is for the sum over a
 * block, of which a lane may have rows of x but no values: where the last block of a row is not
 * whole, it is there (block) without them. */
template <int WT> struct weight_part;
template <> struct weight_part<FV_BF16> {
    static constexpr int VALUE_BITS = 16;
    uint4 v;
    __device__ void load(const char *value, const char *, int blocks, bool in = true, bool = true)
    {
        v = in ? __ldg((const uint4 *)(value + 2 * QUANT_BLOCK * blocks)) : uint4{};
    }
    __device__ uint4 bf16x8() const { return v; }
};
template <> struct weight_part<FV_Q8> {
    static constexpr int VALUE_BITS = 8;
    uint2 v;
    float scale;
    __device__ void load(const char *value, const char *scale_at, int blocks, bool in = true,
                         bool block = true)
    {
        int by = blocks * quant_block_bytes(FV_Q8);
        v = in ? __ldg((const uint2 *)(value + by)) : uint2{};
        scale = block ? __ldg((const float *)(scale_at + by)) : 0;
    }
    __device__ uint4 bf16x8() const
    {
        return make_uint4(bytes_to_bf16x2(__byte_perm(v.x, 0, 0x4140)),
                          bytes_to_bf16x2(__byte_perm(v.x, 0, 0x4342)),
                          bytes_to_bf16x2(__byte_perm(v.y, 0, 0x4140)),
                          bytes_to_bf16x2(__byte_perm(v.y, 0, 0x4342)));
    }
};
template <> struct weight_part<FV_Q4> {
    static constexpr int VALUE_BITS = 4;
    unsigned v;
    float scale;
    __device__ void load(const char *value, const char *scale_at, int blocks, bool in = true,
                         bool block = true)
    {
        int by = blocks * quant_block_bytes(FV_Q4);
        v = in ? __ldg((const unsigned *)(value + by)) : 0;
        scale = block ? __ldg((const float *)(scale_at + by)) : 0;
    }
    __device__ uint4 bf16x8() const
    {
        return make_uint4(nibbles_to_bf16x2(v), nibbles_to_bf16x2(v >> 4),
                          nibbles_to_bf16x2(v >> 8), nibbles_to_bf16x2(v >> 12));
    }
};

/* quant.cu: a weight (n,k), or (k,n) if !tb, of a float dtype, quantised; and back, as bf16 (n,k),
 * for products of many rows. */
void fv_cuda_quantise(fv_stream *s, void *out, fv_dtype to, const void *w, fv_dtype from, int64_t n,
                      int64_t k, int64_t ld, bool tb);
void fv_cuda_dequantise(fv_stream *s, bf16 *out, const void *w, fv_dtype t, int64_t n, int64_t k);

/* quant_sm90.cu: sums (parts,m,n) f32 = x W' of up to 128 rows, x (m,k) bf16; rows of sums are ld
 * apart, parts `apart`.  quant_parts: how many parts; 0: not on this device, not that many rows. */
int fv_cuda_quant_parts(fv_stream *s, fv_dtype t, int64_t m, int64_t n, int64_t k);
void fv_cuda_multiply_quantised(fv_stream *s, float *sums, int64_t ld, int64_t apart, const bf16 *x,
                                const void *w, fv_dtype t, int64_t m, int64_t n, int64_t k);

#endif
