/* mega_attention_warp.h - attention of one query by one warp, on tensor cores: many sequences,
 * heads 64 or 128 wide, bf16 caches.
 *
 *     S = K q'    m16n8k16, A: words 0 and 2 of the pieces of 8 keys as the upper 8 rows, words 1
 *                 and 3 as the lower; B: the query, words 0 and 2 in even columns, 1 and 3 in odd
 *                 ones
 *     y' = V' p   A: two words of the pieces of 16 values; B: p rounded to bf16 in even columns, in
 *                 odd ones what rounding took away.  Their results are added at the end, so that p
 *                 counts with 16 bits
 *
 * Lane l loads of key l / 4 of a tile the pieces (16 bytes) l % 4, l % 4 + 4, ...  For S that is
 * the A fragment as it is: the order of the elements is free as long as q has the same.  For y',
 * word w of a piece is an 8x8 matrix (key, element) over the warp; transposed (movmatrix) it is a
 * part of the A fragment.  The B fragment is such a matrix, too: a lane has the weight of key
 * l / 4, as a word of two bf16. */
#ifndef FV_CUDA_DECODE_MEGA_ATTENTION_WARP_H
#define FV_CUDA_DECODE_MEGA_ATTENTION_WARP_H

#include "mega_rows.h"

#define KEY_TILES 2 /* multiplied together; with four it is 1 % slower */

/* Keys or values: KEY_TILES tiles of 8, of each key PIECES pieces for each of 4 lanes. */
template <int PIECES> struct warp_keys {
    uint4 r[KEY_TILES][PIECES];

    /* Key `key` into this lane's part of tile t; `first`: the lane's piece of key 0. */
    __device__ void load_key(int t, const bf16 *first, unsigned row, int key)
    {
#pragma unroll
        for (int p = 0; p < PIECES; p++)
            asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(r[t][p].x), "=r"(r[t][p].y), "=r"(r[t][p].z), "=r"(r[t][p].w)
                         : "l"((const char *)first + (uint64_t)(unsigned)key * row + 64 * p)
                         : "memory");
    }
    /* Keys j, j + 8, ..; past `last`, key `last` again, whose weight there is 0. */
    __device__ void load(const bf16 *first, unsigned row, int j, int last)
    {
#pragma unroll
        for (int t = 0; t < KEY_TILES; t++) load_key(t, first, row, min(j + 8 * t, last));
    }
    /* The newest key, for the lanes that would have loaded it or one past it. */
    __device__ void load_newest(const bf16 *first, unsigned row, int j, int now)
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

/* A weight rounded to bf16, and above it the rounding error, also as bf16. */
__device__ inline unsigned split_weight(float p)
{
    bf16 rounded = __float2bfloat16_rn(p);
    __nv_bfloat162 both = __halves2bfloat162(rounded,
                                             __float2bfloat16_rn(p - __bfloat162float(rounded)));
    return *(const unsigned *)&both;
}

/* y += P V and sum += P for P = 2^(s - base); a lane has that of key l / 4 of each tile. */
template <int PIECES>
__device__ inline void add_values(float (&y)[PIECES][2][4], float &sum, const float (&s)[KEY_TILES],
                                  float base, const warp_keys<PIECES> &v)
{
    unsigned p[KEY_TILES];
#pragma unroll
    for (int t = 0; t < KEY_TILES; t++) {
        float e = exp2_fast(s[t] - base);
        sum += e;
        p[t] = transpose_8x8(split_weight(e));
    }
#pragma unroll
    for (int t = 0; t < KEY_TILES; t += 2)
#pragma unroll
        for (int i = 0; i < 2 * PIECES; i++) {
            const unsigned *low = &v.r[t][i / 2].x + i % 2 * 2,
                           *high = &v.r[t + 1][i / 2].x + i % 2 * 2;
            mma(y[i / 2][i % 2], transpose_8x8(low[0]), transpose_8x8(low[1]),
                transpose_8x8(high[0]), transpose_8x8(high[1]), p[t], p[t + 1]);
        }
}

/* Of pieces p and p + 1 of the lanes two neighbouring elements of y for each lane, beginning with
 * pair_of_lane(p).  Row l / 4 = 2 i + e of a result is element e of a word of piece i + 4 p, and
 * all columns are alike. */
template <int PIECES> __device__ inline float2 gather_pair(const float (&y)[PIECES][2][4], int p)
{
    int lane = threadIdx.x % 32, word = lane % 4;
    bool odd = lane / 4 % 2;
    float all[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float w[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            w[i] = y[p + h][i / 2][i % 2 * 2] + y[p + h][i / 2][i % 2 * 2 + 1];
        float first = word % 2 ? w[1] : w[0], second = word % 2 ? w[3] : w[2];
        all[h] = word / 2 ? second : first;
    }
    float own = odd ? all[1] : all[0], other = __shfl_xor_sync(~0u, odd ? all[0] : all[1], 4);
    return odd ? make_float2(other, own) : make_float2(own, other);
}

__device__ inline int pair_of_lane(int p)
{
    int lane = threadIdx.x % 32, row = lane / 4;
    return (p + row % 2) * 32 + row / 2 * 8 + lane % 4 * 2;
}

/* Head h of sequence b.  All keys but the newest were there before this launch: the first of them
 * are loaded before the barrier is waited for. */
template <int W>
__device__ inline void attend_by_mma(const attn_params<bf16> &attn, int h, int b,
                                     block_barrier *barrier)
{
    constexpr int PIECES = W / 32, TILES = KEY_TILES, KEYS = 8 * TILES;
    head_view<bf16> head(attn, b, h);
    int lane = threadIdx.x % 32, g = attn.kv_head(h), from = head.first_key(0),
        to = head.end_key(0), now = max(to - 1, from), j = from + lane / 4;
    const bf16 *first_k = attn.k(b, g, 0) + lane % 4 * 8, *first_v = attn.v(b, g, 0) + lane % 4 * 8,
               *query = attn.q(b, h, 0) + lane % 4 * 8;
    const uint8_t *mask = attn.a.key_mask ? attn.a.key_mask + b * attn.a.Tk : NULL;
    unsigned k_row = (unsigned)attn.a.k_row * 2, v_row = (unsigned)attn.a.v_row * 2; /* bytes */
    float scale = attn.scale, row_max = -INFINITY, sum = 0, y[PIECES][2][4] = {};
    unsigned q[PIECES][2];
    warp_keys<PIECES> k, v;
    k.load(first_k, k_row, j, max(now - 1, from));
    v.load(first_v, v_row, j, max(now - 1, from));
    barrier->wait();
#pragma unroll
    for (int p = 0; p < PIECES; p++) {
        uint4 r = *(const uint4 *)(query + 32 * p);
        q[p][0] = lane / 4 % 2 ? r.y : r.x;
        q[p][1] = lane / 4 % 2 ? r.w : r.z;
    }
    if (now < from + KEYS) {
        k.load_newest(first_k, k_row, j, now);
        v.load_newest(first_v, v_row, j, now);
    }
    for (int j0 = from; j0 < to; j0 += KEYS, j += KEYS) {
        float products[TILES][4] = {}, s[TILES], tile_max = -INFINITY;
#pragma unroll
        for (int p = 0; p < PIECES; p++)
#pragma unroll
            for (int t = 0; t < TILES; t++) {
                const uint4 &e = k.r[t][p];
                mma(products[t], e.x, e.y, e.z, e.w, q[p][0], q[p][1]);
            }
        k.load(first_k, k_row, j + KEYS, now);
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            int key = j + 8 * t;
            s[t] = key < to ? scale * (products[t][0] + products[t][3]) : -INFINITY;
            if (mask && key < to && !mask[key]) s[t] = -INFINITY;
            tile_max = fmaxf(tile_max, s[t]);
        }
#pragma unroll
        for (int by = 4; by < 32; by *= 2)
            tile_max = fmaxf(tile_max, __shfl_xor_sync(~0u, tile_max, by));
        if (tile_max > row_max) {
            float correction = exp2_fast(row_max - tile_max);
            row_max = tile_max;
            sum *= correction;
#pragma unroll
            for (int i = 0; i < PIECES * 2 * 4; i++) (&y[0][0][0])[i] *= correction;
        }
        add_values(y, sum, s, row_max == -INFINITY ? 0 : row_max, v);
        v.load(first_v, v_row, j + KEYS, now);
    }
#pragma unroll
    for (int by = 4; by < 32; by *= 2) sum += __shfl_xor_sync(~0u, sum, by);
    float inverse = sum != 0 ? __fdividef(1, sum) : 0; /* NaN stays NaN */
#pragma unroll
    for (int p = 0; p < PIECES; p += 2) {
        float2 out = gather_pair(y, p);
        out.x *= inverse, out.y *= inverse;
        store_bf16x2((bf16 *)attn.a.y + attn.y_offset(b, h, 0) + pair_of_lane(p), out);
    }
    if (lane == 0) attn.lse(b, h, 0) = make_float2(row_max, sum);
}

#endif
