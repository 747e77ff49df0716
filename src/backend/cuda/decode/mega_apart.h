/* mega_apart.h - a product of many columns for many rows as an op of a program: each warp makes
 * tiles of its own, all of k.
 *
 * Warps that share k (mega_product.h) meet twice for every few tiles.  Where there are tiles for
 * all of them a warp takes two at a time, which it multiplies with the same x, and hands on what it
 * has in registers. */
#ifndef FV_CUDA_DECODE_MEGA_APART_H
#define FV_CUDA_DECODE_MEGA_APART_H

#include "mega_product.h"

#define TILES_PER_WARP 2

template <int SPAN> using tile_acc = float[SPAN][TILES_PER_WARP][4];

/* Where rows of x are that a thread multiplies: lane / 4 and 8 more of each ROWS_BLOCK.  Rows that
 * there are none of are taken from elsewhere; what comes of them goes nowhere. */
template <int SPAN>
__device__ inline void mma_own_tiles(tile_acc<SPAN> &c, unsigned x, int stride, int rows,
                                     const unsigned (&w)[TILES_PER_WARP], int steps)
{
    tile_acc<SPAN> odd = {};
    int lane = threadIdx.x % 32;
    unsigned at[SPAN][2];
#pragma unroll
    for (int i = 0; i < 2 * SPAN; i++)
        at[i / 2][i % 2] = x +
                           (unsigned)(2 * min(i * 8 + lane / 4, rows - 1) * stride + lane % 4 * 16);
#pragma unroll 4
    for (int s = 0; s < steps; s++) {
        uint4 v[TILES_PER_WARP];
#pragma unroll
        for (int j = 0; j < TILES_PER_WARP; j++) v[j] = read16(w[j] + s * (2 * STEP));
#pragma unroll
        for (int h = 0; h < SPAN; h++) {
            uint4 a = read16(at[h][0] + s * (2 * STEP)), b = read16(at[h][1] + s * (2 * STEP));
#pragma unroll
            for (int j = 0; j < TILES_PER_WARP; j++) {
                mma(c[h][j], a.x, b.x, a.y, b.y, v[j].x, v[j].y);
                mma(odd[h][j], a.z, b.z, a.w, b.w, v[j].z, v[j].w);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < SPAN * TILES_PER_WARP * 4; i++) (&c[0][0][0])[i] += (&odd[0][0][0])[i];
}

template <fv_act ACT, int SPAN> __device__ inline void activate_tiles(tile_acc<SPAN> &c)
{
#pragma unroll
    for (int i = 0; i < SPAN * TILES_PER_WARP * 4; i++)
        (&c[0][0][0])[i] = activate(ACT, (&c[0][0][0])[i]);
}

/* The kind is looked at once, not for each number. */
template <int SPAN> __device__ inline void activate_tiles(tile_acc<SPAN> &c, fv_act act)
{
    switch (act) {
    case FV_RELU: activate_tiles<FV_RELU, SPAN>(c); return;
    case FV_GELU: activate_tiles<FV_GELU, SPAN>(c); return;
    case FV_GELU_TANH: activate_tiles<FV_GELU_TANH, SPAN>(c); return;
    case FV_SILU: activate_tiles<FV_SILU, SPAN>(c); return;
    case FV_TANH: activate_tiles<FV_TANH, SPAN>(c); return;
    case FV_SIGMOID: activate_tiles<FV_SIGMOID, SPAN>(c); return;
    default: return;
    }
}

/* What a tile comes to, columns lane % 4 * 2 and the one behind it, goes to y or, all of it, to one
 * of the caches. */
template <int SPAN>
__device__ inline void store_tiles(const decode_gemm &f, const block_group &t,
                                   const tile_acc<SPAN> &c, const int (&cache_row)[SPAN][2], int j,
                                   int tile)
{
    const fv_fused_linear &a = f.a;
    int lane = threadIdx.x % 32, all = (int)a.n, n = tile * TILE,
        y_n = a.k_cache ? (int)a.y_n : all, half = (all - y_n) / 2;
    bool cached = n >= y_n, narrow = a.yt == FV_BF16, second = cached && n - y_n >= half;
    char *to = (char *)(!cached ? a.y : second ? a.v_cache : a.k_cache);
    int stride = cached ? half : y_n,
        column = (cached ? n - y_n - (second ? half : 0) : n) + lane % 4 * 2,
        left = all - n - lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < 2 * SPAN; i++) {
        int row = i * 8 + lane / 4;
        int64_t at = (cached ? cache_row[i / 2][i % 2] : t.row + row) * (int64_t)stride + column;
        float2 v = make_float2(c[i / 2][j][i % 2 * 2], c[i / 2][j][i % 2 * 2 + 1]);
        if (row >= t.rows || left <= 0 || (cached && cache_row[i / 2][i % 2] < 0)) continue;
        if (stride % 2 == 0 && narrow) {
            store_bf16x2((bf16 *)to + at, v);
        } else if (stride % 2 == 0) {
            *(float2 *)((float *)to + at) = v;
        } else if (narrow) {
            ((bf16 *)to)[at] = __float2bfloat16_rn(v.x);
            if (left > 1) ((bf16 *)to)[at + 1] = __float2bfloat16_rn(v.y);
        } else {
            ((float *)to)[at] = v.x;
            if (left > 1) ((float *)to)[at + 1] = v.y;
        }
    }
}

/* Rows of the cache that this step's keys and values go to; -1: there is no such row. */
template <int SPAN>
__device__ inline void find_cache_rows(int (&cache_row)[SPAN][2], const decode_gemm &f,
                                       const block_group &t)
{
    int cap = (int)f.a.cap;
#pragma unroll
    for (int i = 0; i < 2 * SPAN; i++) {
        int row = t.row + min(i * 8 + (int)threadIdx.x % 32 / 4, t.rows - 1),
            at = f.a.k_cache ? f.a.pos[row] : 0;
        bool is = at >= 0 && at < cap;
        if (f.a.k_cache && !is) report_fault(f.bad, row, at, cap, 1);
        cache_row[i / 2][i % 2] = is ? row * cap + at : -1;
    }
}

/* Of two columns: with the tile, or from memory. */
__device__ inline float2 tile_bias(const decode_gemm &f, const unsigned char *slot, int column)
{
    const float *bias = (const float *)f.a.bias;
    int n = (int)f.a.n;
    if (f.bias_in_slot) return *(const float2 *)(slot + BIAS_AT + threadIdx.x % 4 * 8);
    return make_float2(bias && column < n ? bias[column] : 0,
                       bias && column + 1 < n ? bias[column + 1] : 0);
}

/* A slot that others may not have seen come or go: it is known when it was asked for, and then when
 * it is full. */
__device__ inline void wait_tile(const mk_smem *d, const ring &r)
{
    while ((int)(load_acquire(&d->issued) - r.number()) <= 0) continue;
    wait(r.full(), r.laps & 1);
}

template <int SPAN>
__device__ inline void gemm_own_tiles(const mk_op &o, const block_group &t, ring &r,
                                      const mk_smem *d, bf16 *x, const unsigned char *slots,
                                      unsigned epoch)
{
    const decode_gemm &f = o.gemm;
    int lane = threadIdx.x % 32, first = t.tile(f), tiles = (f.tiles - first + t.wide - 1) / t.wide,
        cache_row[SPAN][2];
    if (first >= f.tiles) return;
    find_cache_rows<SPAN>(cache_row, f, t);
    fetch_x<true>(f, x, t, r, slots, epoch);
    decode_sync();
    ring mine = r;
    mine.skip((int)threadIdx.x / 32 * TILES_PER_WARP);
    for (int m = (int)threadIdx.x / 32 * TILES_PER_WARP; m < tiles;
         m += MMA_WARPS * TILES_PER_WARP) {
        tile_acc<SPAN> c = {};
        unsigned w[TILES_PER_WARP], empty[TILES_PER_WARP];
        int n = min(tiles - m, TILES_PER_WARP);
        ring at_tile = mine;
#pragma unroll
        for (int j = 0; j < TILES_PER_WARP; j++) {
            if (j && n > 1) at_tile.next(); /* else the first once more */
            wait_tile(d, at_tile);
            w[j] = at_tile.slot() + (unsigned)(lane / 4 * ROW_BYTES + lane % 4 * 16);
            empty[j] = at_tile.empty();
            float2 b = tile_bias(f, slots + at_tile.i * SLOT_BYTES,
                                 (first + (m + j) * t.wide) * TILE + lane % 4 * 2);
#pragma unroll
            for (int i = 0; i < 4 * SPAN; i++) c[i / 4][j][i % 4] = i % 2 ? b.y : b.x;
        }
        mma_own_tiles<SPAN>(c, at(x), x_stride(f.k), t.rows, w, f.k / STEP);
        __syncwarp();
        if (lane < n) mbarrier_arrive_count(lane ? empty[1] : empty[0], MMA_WARPS);
        if (SPAN == 1 && f.a.act) activate_tiles<SPAN>(c, f.a.act);
#pragma unroll
        for (int j = 0; j < TILES_PER_WARP; j++)
            if (j < n) store_tiles<SPAN>(f, t, c, cache_row, j, first + (m + j) * t.wide);
        mine.skip(MMA_WARPS * TILES_PER_WARP);
    }
    r.skip(tiles);
}

#endif
