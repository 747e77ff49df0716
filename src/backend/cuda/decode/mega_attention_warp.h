/* mega_attention_warp.h - attention of one query by one warp, on tensor cores: many sequences,
 * heads MMA_HEAD wide, bf16 caches.
 *
 *     S = q K'   m16n8k16, upper 8 rows of A: words 0 and 1 of every piece of the query; lower 8:
 *                words 2 and 3.  A lane gets the scores of two keys of each tile of 8, as the A
 *                fragment of the second product wants them
 *     y = P V    upper 8 rows of A: P rounded to bf16; lower 8: what rounding took away.  Their
 *                results are added at the end, so that P counts with 16 bits
 *
 * Lane l loads of key l / 4 of a tile the pieces (16 bytes) l % 4 and l % 4 + 4.  For S that is the
 * B fragment as it is: the order of the elements is free as long as q has the same.  For P V, word
 * w of a piece is an 8x8 matrix (key, element) over the warp; transposed (movmatrix) it is the B
 * fragment, whose results are again word w of a piece.
 *
 * That is some 190 instructions for 16 keys.  Multiplied and shuffled element by element they took
 * 250, and a merge of eight partial results at the end. */
#ifndef FV_CUDA_DECODE_MEGA_ATTENTION_WARP_H
#define FV_CUDA_DECODE_MEGA_ATTENTION_WARP_H

#include "mega_smem.h"

#define MMA_HEAD 64
#define KEY_PIECES (MMA_HEAD / 32) /* of a key, for each of 4 lanes */
#define KEY_TILES 2                /* multiplied together; four would spill registers */

/* Keys or values: KEY_TILES tiles of 8. */
struct warp_keys {
    uint4 r[KEY_TILES][KEY_PIECES];

    /* Key `key` into this lane's part of tile t; `first`: the lane's piece of key 0. */
    __device__ void load_key(int t, const bf16 *first, int64_t row, int key)
    {
#pragma unroll
        for (int p = 0; p < KEY_PIECES; p++)
            asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(r[t][p].x), "=r"(r[t][p].y), "=r"(r[t][p].z), "=r"(r[t][p].w)
                         : "l"(first + key * row + 32 * p)
                         : "memory");
    }
    /* Keys j, j + 8, ..; past `last`, key `last` again, whose weight there is 0. */
    __device__ void load(const bf16 *first, int64_t row, int j, int last)
    {
#pragma unroll
        for (int t = 0; t < KEY_TILES; t++) load_key(t, first, row, min(j + 8 * t, last));
    }
    /* The newest key, for the lanes that would have loaded it or one past it. */
    __device__ void load_newest(const bf16 *first, int64_t row, int j, int now)
    {
#pragma unroll
        for (int t = 0; t < KEY_TILES; t++)
            if (j + 8 * t >= now) load_key(t, first, row, now);
    }
};

__device__ inline unsigned transpose_8x8(unsigned v)
{
    unsigned to;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(to) : "r"(v));
    return to;
}

/* Two weights rounded to bf16, and the rounding errors, also as bf16. */
__device__ inline void split_weights(unsigned &high, unsigned &low, float2 p)
{
    __nv_bfloat162 rounded = __float22bfloat162_rn(p);
    float2 back = __bfloat1622float2(rounded);
    __nv_bfloat162 rest = __floats2bfloat162_rn(p.x - back.x, p.y - back.y);
    high = *(const unsigned *)&rounded;
    low = *(const unsigned *)&rest;
}

/* y += P V and sum += P for P = 2^(s - base), of which a lane has two weights of each tile. */
__device__ inline void add_values(float (&y)[KEY_PIECES][4][4], float &sum,
                                  const float (&s)[KEY_TILES][4], float base, const warp_keys &v)
{
#pragma unroll
    for (int t = 0; t < KEY_TILES; t += 2) {
        unsigned high[2], low[2];
#pragma unroll
        for (int u = 0; u < 2; u++) {
            float2 w = make_float2(exp2_fast(s[t + u][0] - base), exp2_fast(s[t + u][1] - base));
            sum += w.x + w.y;
            split_weights(high[u], low[u], w);
        }
#pragma unroll
        for (int p = 0; p < KEY_PIECES; p++)
#pragma unroll
            for (int w = 0; w < 4; w++)
                mma(y[p][w], high[0], low[0], high[1], low[1], transpose_8x8((&v.r[t][p].x)[w]),
                    transpose_8x8((&v.r[t + 1][p].x)[w]));
    }
}

/* Head h of sequence b.  All keys but the newest were there before this launch: the first of them
 * are loaded before the barrier is waited for. */
__device__ inline void attend_by_mma(const attn_params<bf16> &attn, int h, int b, block_wait *wait)
{
    constexpr int TILES = KEY_TILES, KEYS = 8 * TILES;
    head_view<bf16> head(attn, b, h);
    int lane = threadIdx.x % 32, g = attn.kv_head(h), from = head.first_key(0),
        to = head.end_key(0), now = max(to - 1, from), j = from + lane / 4;
    const bf16 *first_k = attn.k(b, g, 0) + lane % 4 * 8, *first_v = attn.v(b, g, 0) + lane % 4 * 8,
               *query = attn.q(b, h, 0) + lane % 4 * 8;
    const uint8_t *mask = attn.a.key_mask ? attn.a.key_mask + b * attn.a.Tk : NULL;
    int64_t k_row = attn.a.k_row, v_row = attn.a.v_row;
    float scale = attn.scale, row_max = -INFINITY, sum = 0, y[KEY_PIECES][4][4] = {};
    uint4 q[KEY_PIECES];
    warp_keys k, v;
    k.load(first_k, k_row, j, max(now - 1, from));
    v.load(first_v, v_row, j, max(now - 1, from));
    (*wait)();
#pragma unroll
    for (int p = 0; p < KEY_PIECES; p++) {
        uint4 r = *(const uint4 *)(query + 32 * p);
        q[p] = make_uint4(r.x, r.z, r.y, r.w);
    }
    if (now < from + KEYS) {
        k.load_newest(first_k, k_row, j, now);
        v.load_newest(first_v, v_row, j, now);
    }
    for (int j0 = from; j0 < to; j0 += KEYS, j += KEYS) {
        float s[TILES][4] = {}, lower[TILES][4] = {}, tile_max = -INFINITY;
#pragma unroll
        for (int p = 0; p < KEY_PIECES; p++)
#pragma unroll
            for (int t = 0; t < TILES; t++) {
                const uint4 &a = q[p], &e = k.r[t][p];
                mma(s[t], a.x, a.y, a.z, a.w, e.x, e.y);
                mma(lower[t], a.x, a.y, a.z, a.w, e.z, e.w);
            }
        k.load(first_k, k_row, j + KEYS, now);
#pragma unroll
        for (int i = 0; i < 2 * TILES; i++) {
            int key = j0 + i / 2 * 8 + lane % 4 * 2 + i % 2;
            float &e = s[i / 2][i % 2];
            e = key < to ? scale * (e + lower[i / 2][2 + i % 2]) : -INFINITY;
            if (mask && key < to && !mask[key]) e = -INFINITY;
            tile_max = fmaxf(tile_max, e);
        }
        tile_max = fmaxf(tile_max, __shfl_xor_sync(~0u, tile_max, 1));
        tile_max = fmaxf(tile_max, __shfl_xor_sync(~0u, tile_max, 2));
        if (tile_max > row_max) {
            float correction = exp2_fast(row_max - tile_max);
            row_max = tile_max;
            sum *= correction;
#pragma unroll
            for (int i = 0; i < KEY_PIECES * 4 * 4; i++) (&y[0][0][0])[i] *= correction;
        }
        add_values(y, sum, s, row_max == -INFINITY ? 0 : row_max, v);
        v.load(first_v, v_row, j + KEYS, now);
    }
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    float inverse = sum != 0 ? __fdividef(1, sum) : 0; /* NaN stays NaN */
#pragma unroll
    for (int p = 0; p < KEY_PIECES; p++)
        if (lane / 4 == p) { /* all rows of the result are equal */
            float out[8];
#pragma unroll
            for (int e = 0; e < 8; e++)
                out[e] = (y[p][e / 2][e % 2] + y[p][e / 2][2 + e % 2]) * inverse;
            store((bf16 *)attn.a.y, attn.y_offset(b, h, 0) + 32 * p + lane % 4 * 8, out);
        }
    if (lane == 0) attn.lse(b, h, 0) = make_float2(row_max, sum);
}

#endif
