/* mega_gemm_warp.h - y = act(x W' + bias) as an op of the megakernel, for many rows and many
 * columns: each warp computes whole tiles.
 *
 * Gated and rotated layers as in mega_gemm.h: pairs meet in a lane (tile_columns), are finished
 * there, and lanes exchange halves so that each stores two neighbouring columns.
 *
 * Split-K over warps (mega_gemm.h) costs two block barriers per GROUP tiles.  Where there are tiles
 * enough for every warp, a warp takes two tiles at a time, runs over all of K and stores from
 * registers.  For a vocabulary, two block groups work as one (GROUPS = 2), so W is read once for 32
 * rows. */
#ifndef FV_CUDA_DECODE_MEGA_GEMM_WARP_H
#define FV_CUDA_DECODE_MEGA_GEMM_WARP_H

#include "mega_gemm.h"

#define TILES_PER_WARP 2

template <int GROUPS> using tile_acc = float[GROUPS][TILES_PER_WARP][4];

/* A lane's part of a tile: eight values of column lane / 4, and the scales of columns lane % 4 * 2
 * and the next: addresses in smem, of the first block. */
struct tile_part {
    unsigned value, scale[2];
    /* Quantised, where pairs belong together the second of each comes from the second run of rows
     * (produce_gemm). */
    template <int WT> __device__ void find(unsigned slot, const tile_columns &c)
    {
        int lane = threadIdx.x % 32, column = lane / 4, pair = lane % 4;
        bool runs = WT != FV_BF16 && c.apart != 1;
        int row = runs ? column % 2 * QUANT_ROWS + column / 2 : column;
        value = slot + value_in_slot<WT>(row, 0, pair);
        if (WT == FV_BF16) return;
        scale[0] = slot + scale_in_slot<WT>(runs ? pair : 2 * pair, 0);
        scale[1] = slot + scale_in_slot<WT>(runs ? QUANT_ROWS + pair : 2 * pair + 1, 0);
    }
};

/* c += x W' over all of K for the warp's tiles w; rows lane / 4 and lane / 4 + 8 of each
 * ROWS_BLOCK (interleaved, x_rows).  Missing rows have whatever is in smem; their results are not
 * stored.  Even and odd K steps have separate accumulators: two independent chains of mma. */
template <int GROUPS, int WT>
__device__ inline void mma_own_tiles(tile_acc<GROUPS> &c, unsigned x, int stride,
                                     const tile_part (&w)[TILES_PER_WARP], int steps)
{
    constexpr unsigned BY = WT == FV_BF16 ? 2 * STEP : quant_block_bytes(WT);
    tile_acc<GROUPS> odd = {};
    int lane = threadIdx.x % 32;
    unsigned at[GROUPS];
#pragma unroll
    for (int h = 0; h < GROUPS; h++)
        at[h] = x + (unsigned)(2 * (h * ROWS_BLOCK / 2 + lane / 4) * stride + lane % 4 * 32);
#pragma unroll 4
    for (int s = 0; s < steps; s++) {
        uint4 v[TILES_PER_WARP];
        float2 scale[TILES_PER_WARP];
#pragma unroll
        for (int j = 0; j < TILES_PER_WARP; j++) {
            weight_part<WT> p;
            load_slot(p, w[j].value + s * BY);
            v[j] = p.bf16x8();
            if (WT != FV_BF16)
                scale[j] = make_float2(ld_shared_f32(w[j].scale[0] + s * BY),
                                       ld_shared_f32(w[j].scale[1] + s * BY));
        }
#pragma unroll
        for (int h = 0; h < GROUPS; h++) {
            uint4 a = ld_shared16(at[h] + s * (4 * STEP)),
                  b = ld_shared16(at[h] + s * (4 * STEP) + 16);
#pragma unroll
            for (int j = 0; j < TILES_PER_WARP; j++) {
                if constexpr (WT != FV_BF16) {
                    const unsigned even_k[4] = {a.x, a.y, a.z, a.w},
                                   odd_k[4] = {b.x, b.y, b.z, b.w};
                    multiply_block(c[h][j], even_k, odd_k, v[j], scale[j]);
                } else {
                    mma(c[h][j], a.x, a.y, a.z, a.w, v[j].x, v[j].y);
                    mma(odd[h][j], b.x, b.y, b.z, b.w, v[j].z, v[j].w);
                }
            }
        }
    }
#pragma unroll
    for (int i = 0; i < GROUPS * TILES_PER_WARP * 4; i++) (&c[0][0][0])[i] += (&odd[0][0][0])[i];
}

/* act of all products; gated: act(gate) * up in both of a pair.  No branch inside a loop: the
 * activations of all products overlap. */
template <fv_act ACT> __device__ inline void activate_tiles(tile_acc<1> &c, bool gated)
{
    float *v = &c[0][0][0];
    if (gated) {
#pragma unroll
        for (int i = 0; i < TILES_PER_WARP * 4; i += 2)
            v[i] = v[i + 1] = activate(ACT, v[i]) * v[i + 1];
    } else {
#pragma unroll
        for (int i = 0; i < TILES_PER_WARP * 4; i++) v[i] = activate(ACT, v[i]);
    }
}

/* One branch on the activation, not one per element. */
__device__ inline void activate_tiles(tile_acc<1> &c, fv_act act, bool gated)
{
    switch (act) {
    case FV_RELU: activate_tiles<FV_RELU>(c, gated); return;
    case FV_GELU: activate_tiles<FV_GELU>(c, gated); return;
    case FV_GELU_TANH: activate_tiles<FV_GELU_TANH>(c, gated); return;
    case FV_SILU: activate_tiles<FV_SILU>(c, gated); return;
    case FV_TANH: activate_tiles<FV_TANH>(c, gated); return;
    case FV_SIGMOID: activate_tiles<FV_SIGMOID>(c, gated); return;
    case FV_QUICK_GELU: activate_tiles<FV_QUICK_GELU>(c, gated); return;
    default: activate_tiles<FV_ACT_NONE>(c, gated); return;
    }
}

/* Where the lane's rows begin in y and, at this step's position, in the caches, in elements; -1:
 * nothing is stored, since there is no such row, or (with a fault record) its position is out of
 * range. */
template <int GROUPS> struct row_starts {
    int64_t y[2 * GROUPS], cache[2 * GROUPS];
    __device__ row_starts(const decode_gemm &f, const block_group &t)
    {
        int rows = t.rows, first = t.row;
        int64_t y_n = f.a.k_cache ? f.a.y_n : f.a.n;
#pragma unroll
        for (int i = 0; i < 2 * GROUPS; i++) {
            int r = i * 8 + (int)threadIdx.x % 32 / 4;
            y[i] = r < rows ? (first + r) * y_n : -1;
            cache[i] = -1;
        }
        if constexpr (GROUPS == 1) /* a vocabulary has no caches */
            if (f.a.k_cache) find_in_cache(f, t);
    }
    __device__ void find_in_cache(const decode_gemm &f, const block_group &t)
    {
        int rows = t.rows, first = t.row, cap = (int)f.a.cap;
#pragma unroll
        for (int i = 0; i < 2 * GROUPS; i++) {
            int r = i * 8 + (int)threadIdx.x % 32 / 4, at = f.a.pos[first + min(r, rows - 1)];
            bool is = at >= 0 && at < cap;
            if (r < rows && !is) report_fault(f.bad, first + r, at, cap, 1);
            if (r < rows && is) cache[i] = (first + r) * f.a.cache_batch + at * f.a.cache_row;
        }
    }
};

/* Stores a tile; it belongs as a whole to y, the key cache or the value cache. */
template <int GROUPS>
__device__ inline void store_tiles(const decode_gemm &f, const tile_acc<GROUPS> &c,
                                   const row_starts<GROUPS> &starts, const mk_smem *d, int j,
                                   const tile_columns &which)
{
    const fv_fused_linear &a = f.a;
    int lane = threadIdx.x % 32, all = (int)a.n, y_n = a.k_cache ? (int)a.y_n : all,
        half = (all - y_n) / 2;
    bool cached = GROUPS == 1 && which.base >= y_n, narrow = a.yt == FV_BF16,
         second = cached && which.base - y_n >= half, even = cached || y_n % 2 == 0;
    char *to = (char *)(!cached ? a.y : second ? a.v_cache : a.k_cache);
    int first = !cached ? 0 : second ? y_n + half : y_n;
#pragma unroll
    for (int i = 0; i < 2 * GROUPS; i++) {
        int row = i * 8 + lane / 4, n;
        float2 v = make_float2(c[i / 2][j][i % 2 * 2], c[i / 2][j][i % 2 * 2 + 1]);
        if (which.turn >= 0)
            v = finish_pair(FV_ACT_NONE, which, v,
                            turns_of(d)[row % ROWS_BLOCK * a.rope.half + which.turn + lane % 4]);
        bool mine = neighbours(v, n, which);
        int64_t at = cached ? starts.cache[i] : starts.y[i];
        if (mine && at >= 0 && n < all)
            store_pair(to, at + n - first, narrow, even, n + 1 < all, v);
    }
}

/* Bias of a pair, from the slot or from global memory. */
__device__ inline float2 tile_bias(const decode_gemm &f, const unsigned char *slot,
                                   const tile_columns &c)
{
    int pair = threadIdx.x % 4, n = c.column(pair);
    if (f.bias_in_slot) return *(const float2 *)(slot + BIAS_AT + pair * 8);
    if (n >= (int)f.a.n) return make_float2(0, 0);
    return pair_bias((const float *)f.a.bias, (const float *)f.a.up_bias, c, pair,
                     n + 1 < (int)f.a.n);
}

/* Waits for a slot that this warp alone reads.  A parity wait can only tell the current phase from
 * the one before, and this warp may be laps behind: so first wait until the slot's load has been
 * issued, then for its full barrier. */
__device__ inline void wait_tile(const mk_smem *d, const slot_ring &r)
{
    while (load_acquire_cta(&d->issued[r.i]) <= (unsigned)r.laps) continue;
    if (!mbarrier_test(r.full(), r.laps & 1)) mbarrier_wait(r.full(), r.laps & 1);
}

/* Warp w takes tiles 2w, 2w + 1 of every 16 of this block's; `mine` is its own position in the
 * ring, r advances past the whole op at the end.  A slot is read by one warp only, which arrives
 * for all MMA_WARPS. */
template <int GROUPS, int NEEDS>
__device__ inline void gemm_own_tiles(const mk_op &o, const block_group &t, slot_ring &r,
                                      mk_smem *d, bf16 *x, const unsigned char *slots,
                                      unsigned epoch, block_barrier &barrier)
{
    constexpr int WT = weights_of(NEEDS);
    constexpr bool PAIRED = (NEEDS & NEEDS_PAIRS) != 0;
    const decode_gemm &f = o.gemm;
    int lane = threadIdx.x % 32, first = t.tile(f),
        tiles = (f.tiles - first + t.blocks - 1) / t.blocks;
    if (first >= f.tiles) return;
    const row_starts<GROUPS> starts(f, t);
    barrier.wait();
    load_x<true>(f, x, t, r, slots, epoch);
    decode_sync();
    slot_ring mine = r;
    mine.skip((int)threadIdx.x / 32 * TILES_PER_WARP);
    for (int m = (int)threadIdx.x / 32 * TILES_PER_WARP; m < tiles;
         m += MMA_WARPS * TILES_PER_WARP) {
        tile_acc<GROUPS> c = {};
        tile_part w[TILES_PER_WARP];
        unsigned empty[TILES_PER_WARP];
        int n = min(tiles - m, TILES_PER_WARP);
        slot_ring at_tile = mine;
        const tile_columns which[TILES_PER_WARP] = {tile_columns(f.a, first + m * t.blocks, PAIRED),
                                                    tile_columns(f.a, first + (m + 1) * t.blocks,
                                                                 PAIRED)};
#pragma unroll
        for (int j = 0; j < TILES_PER_WARP; j++) {
            if (j && n > 1) at_tile.next(); /* without a second tile: the first again */
            wait_tile(d, at_tile);
            w[j].template find<WT>(at_tile.slot(), which[j]);
            empty[j] = at_tile.empty();
            float2 b = tile_bias(f, slots + at_tile.i * SLOT_BYTES, which[j]);
#pragma unroll
            for (int i = 0; i < 4 * GROUPS; i++) c[i / 4][j][i % 4] = i % 2 ? b.y : b.x;
        }
        mma_own_tiles<GROUPS, WT>(c, smem_addr(x), interleaved_stride(f.k), w, f.k / STEP);
        __syncwarp();
        if (lane < n) mbarrier_arrive_count(lane ? empty[1] : empty[0], MMA_WARPS);
        if constexpr (GROUPS == 1)
            if (f.a.act || (PAIRED && f.a.up)) activate_tiles(c, f.a.act, PAIRED && f.a.up);
#pragma unroll
        for (int j = 0; j < TILES_PER_WARP; j++)
            if (j < n) store_tiles<GROUPS>(f, c, starts, d, j, which[j]);
        mine.skip(MMA_WARPS * TILES_PER_WARP);
    }
    r.skip(tiles);
}

#endif
