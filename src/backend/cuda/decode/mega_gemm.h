/* mega_gemm.h - y = act(x W' + bias) (+ y), gated or rotated (fused_linear.h), as an op of the
 * megakernel, split-K over the warps of a block.
 *
 * A tile is 8 columns of y; its weights are 8 rows of W, each one bulk copy into a slot of the
 * ring. mma.m16n8k16: A is up to 16 rows of x, B is a tile.  The order of K within an mma is free,
 * so a lane takes 8 consecutive elements of A and of B with one 16-byte load each.  The 8 warps
 * split K and add their partial sums through smem in a fixed order; which block computes a tile
 * does not change its bits. */
#ifndef FV_CUDA_DECODE_MEGA_GEMM_H
#define FV_CUDA_DECODE_MEGA_GEMM_H

#include "mega_gemm_many.h"

/* ---- K loop ---- */

/* c += this warp's part of K for up to GROUP tiles, of at most 8 rows: row lane / 4, columns
 * lane % 4 * 2 and the next.  Missing rows read an existing one; their results are not stored.
 * The upper half of A holds the K of the second mma: the first mma's lower and the second's upper
 * half of the result are valid, and one A load serves both.
 * bias: of the two outputs that this thread stores.  A step is one block of a quantised row, of
 * which the sums of both columns are scaled. */
template <int WT>
__device__ inline void multiply_few(float (&c)[GROUP][4], float2 &bias, slot_ring &r,
                                    const decode_gemm &f, const block_group &t, unsigned x,
                                    int tiles)
{
    constexpr int STEPS = max_chunk(WT) / ROUND; /* K steps of a chunk for a warp */
    constexpr unsigned BY = step_in_slot<WT>();
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, k = f.k, chunk = f.chunk;
    unsigned in_slot = value_in_slot<WT>(lane / 4, warp, lane % 4),
             scales = scale_in_slot<WT>(lane % 4 * 2, warp),
             row = (unsigned)(2 * (min(lane / 4, t.rows - 1) * x_stride(k) + STEP * warp) +
                              lane % 4 * 16);
    float odd[GROUP][4] = {};
    for (int from = 0; from < k; from += chunk) {
        unsigned w[GROUP];
        const next_slots slots(r, tiles);
        int steps = (min(k - from, chunk) / STEP - warp + MMA_WARPS - 1) / MMA_WARPS;
#pragma unroll
        for (int j = 0; j < GROUP; j++) w[j] = r.slot(r.ahead(j));
        r.advance(tiles);
        slots.wait();
        /* in the epilogue this warp stores tile warp / 2: read its bias before the slot is freed */
        if (from == 0 && f.bias_in_slot && warp / 2 < tiles)
            bias = slot_bias(select_element(w, warp / 2));
        unsigned xs = x + (unsigned)(2 * from);
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            if (s < steps) {
                uint4 a = ld_shared16(xs + row + (unsigned)(2 * ROUND * s));
#pragma unroll
                for (int j = 0; j < GROUP; j++)
                    if (j < tiles) {
                        weight_part<WT> part;
                        load_slot(part, w[j] + in_slot + s * BY);
                        uint4 v = part.bf16x8();
                        if constexpr (WT == FV_BF16) {
                            mma(c[j], a.x, a.y, a.z, a.w, v.x, v.y);
                            mma(odd[j], a.x, a.y, a.z, a.w, v.z, v.w);
                        } else {
                            float low[4] = {}, high[4] = {};
                            const float2 scale = ld_shared_f32x2(w[j] + scales + s * BY);
                            mma(low, a.x, a.y, a.z, a.w, v.x, v.y);
                            mma(high, a.x, a.y, a.z, a.w, v.z, v.w);
                            c[j][0] = fmaf(scale.x, low[0] + high[2], c[j][0]);
                            c[j][1] = fmaf(scale.y, low[1] + high[3], c[j][1]);
                        }
                    }
            }
        }
        slots.release();
    }
#pragma unroll
    for (int j = 0; j < GROUP; j++)
#pragma unroll
        for (int e = 0; e < 2; e++) c[j][e] += odd[j][e + 2];
}

/* ---- epilogue ---- */

/* The sums of a pair of a tile.  Of quantised weights those rows that belong together come from two
 * tiles of QUANT_ROWS rows (produce_gemm), as they lie in memory. */
template <int WT>
__device__ inline float2 tile_pair(const float *sums, const tile_columns &c, int pair)
{
    if (WT == FV_BF16 || c.apart == 1) return *(const float2 *)(sums + 2 * pair);
    return make_float2(sums[pair], sums[QUANT_ROWS + pair]);
}

/* Two adjacent elements, in one access where the row length is even; both: the second exists. */
__device__ inline void store_pair(void *to, int64_t i, bool narrow, bool even, bool both, float2 v)
{
    if (even && narrow) {
        store_bf16x2((bf16 *)to + i, v);
    } else if (even) {
        *(float2 *)((float *)to + i) = v;
    } else if (narrow) {
        ((bf16 *)to)[i] = __float2bfloat16_rn(v.x);
        if (both) ((bf16 *)to)[i + 1] = __float2bfloat16_rn(v.y);
    } else {
        ((float *)to)[i] = v.x;
        if (both) ((float *)to)[i + 1] = v.y;
    }
}

/* The descriptor's epilogue fields in registers: the compiler must reload them from smem after
 * every store. */
struct mk_epilogue {
    void *y, *k, *v;
    const float *bias, *up_bias;
    const int32_t *pos;
    const float *residual, *gain, *shift; /* gain and shift: of the residual's norm */
    int n, y_n, cap, act;
    int64_t cache_row, cache_batch;
    bool normed, narrow, to_global; /* normed: the residual; narrow: y and caches are bf16 */
    flagged_reader residual_in;
    flagged_word *flagged_out;
    unsigned epoch;
    /* tag: of the words written; without words, neither in.area nor to.area is set */
    __device__ mk_epilogue(const decode_gemm &f, const mk_output &to, const flagged_reader &in,
                           unsigned tag)
        : y(f.a.y), k(f.a.k_cache), v(f.a.v_cache),
          bias(f.bias_in_slot ? NULL : (const float *)f.a.bias),
          up_bias((const float *)f.a.up_bias), pos(f.a.pos), residual((const float *)f.a.residual),
          gain((const float *)f.a.residual_gain), shift((const float *)f.a.residual_shift),
          n((int)f.a.n), y_n(f.a.k_cache ? (int)f.a.y_n : n), cap((int)f.a.cap), act(f.a.act),
          cache_row(f.a.cache_row), cache_batch(f.a.cache_batch), normed(f.a.residual_norm),
          narrow(f.a.yt == FV_BF16), to_global(to.to_global), residual_in(in), flagged_out(to.area),
          epoch(tag)
    {
    }
};

/* A pair of columns of one row.  Bias, residual, angle and cache position are loaded before the K
 * loop, so their latency is hidden.  POST_NORM: the residual may have a norm. */
template <bool POST_NORM> struct result_pair {
    float2 bias, old;   /* old: the residual */
    float2 gain, shift; /* of its norm */
    float2 turn;        /* cos and sin */
    flagged_word pending[2];
    int at; /* position in the KV cache */
    /* turns: of the row */
    __device__ void prefetch(const mk_epilogue &g, const float2 *turns, const tile_columns &c,
                             int row)
    {
        int pair = threadIdx.x % 4, n = c.column(pair);
        int64_t i = row * (int64_t)g.y_n + n;
        bool both = n + 1 < g.n;
        bias = pair_bias(g.bias, g.up_bias, c, pair, both);
        if (c.turn >= 0) turn = turns[c.turn + pair];
        if (g.residual_in.area)
            g.residual_in.load_flagged(pending, i);
        else if (g.residual)
            old = make_float2(g.residual[i], both ? g.residual[i + 1] : 0);
        if (POST_NORM && g.normed) { /* n is even */
            gain = g.gain ? *(const float2 *)(g.gain + n) : make_float2(1, 1);
            shift = g.shift ? *(const float2 *)(g.shift + n) : make_float2(0, 0);
        }
        if (n >= g.y_n) at = g.pos[row];
    }
    /* By whole warps; lanes without `now` store nothing.  of_residual: mean and 1 / deviation. */
    __device__ void store_result(const mk_epilogue &g, const tile_columns &c, int row, float2 sum,
                                 float2 of_residual, bool now, fault *bad)
    {
        float2 v = make_float2(sum.x + bias.x, sum.y + bias.y);
        int n;
        v = finish_pair((fv_act)g.act, c, v, turn);
        if (!neighbours(v, n, c) || !now) return;
        if (g.residual_in.area) old = g.residual_in.wait_flagged(pending, row * (int64_t)g.y_n + n);
        if (POST_NORM && g.normed)
            old = make_float2((old.x - of_residual.x) * of_residual.y * gain.x + shift.x,
                              (old.y - of_residual.x) * of_residual.y * gain.y + shift.y);
        v.x += old.x, v.y += old.y;
        if (g.flagged_out) store_flags(g, row * g.n + n, v);
        if (n >= g.y_n)
            store_cache(g, row, n, v, bad);
        else if (g.to_global)
            store_pair(g.y, row * (int64_t)g.y_n + n, g.narrow, g.y_n % 2 == 0, n + 1 < g.n, v);
    }
    __device__ static void store_flags(const mk_epilogue &g, int at, float2 v)
    {
        if (g.narrow) {
            __nv_bfloat162 both = __float22bfloat162_rn(v);
            store_flagged(g.flagged_out + at / 2, *(const unsigned *)&both, g.epoch);
        } else {
            store_flagged2(g.flagged_out + at, v.x, v.y, g.epoch);
        }
    }
    /* Columns from y_n on are this step's key, then value: appended to the KV cache. */
    __device__ void store_cache(const mk_epilogue &g, int row, int n, float2 v, fault *bad) const
    {
        int half = (g.n - g.y_n) / 2, c = n - g.y_n;
        int64_t i = row * g.cache_batch + at * g.cache_row + (c < half ? c : c - half);
        void *to = c < half ? g.k : g.v;
        if (at < 0 || at >= g.cap)
            report_fault(bad, row, at, g.cap, 1);
        else if (g.narrow)
            store_bf16x2((bf16 *)to + i, v);
        else
            *(float2 *)((float *)to + i) = v;
    }
};

/* Per group of up to GROUP tiles: prefetch the epilogue's inputs, load x (once), run the K loop,
 * exchange partial sums through smem; then thread t owns tile t / 64, row t / 4 % 16, columns
 * t % 4 * 2 and the next, adds the eight partial sums and stores.
 *
 * epoch: tag of the launch's first op; this is op number `op`.  MANY: more than 8 rows. */
template <bool MANY, int NEEDS>
__device__ inline void gemm_shared_k(const mk_op &o, const block_group &t, slot_ring &r, mk_smem *d,
                                     bf16 *x, const unsigned char *slots, unsigned epoch, int op)
{
    constexpr bool POST_NORM = (NEEDS & NEEDS_POST_NORM) != 0;
    const decode_gemm &f = o.gemm;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, blocks = t.blocks, tiles = f.tiles,
        first = t.tile(f);
    int tile = threadIdx.x / 64, row = threadIdx.x / 4 % ROWS_BLOCK, pair = threadIdx.x % 4;
    if (first >= tiles) return;
    /* many rows: through global memory only, and no code for words */
    const mk_epilogue g = MANY ? mk_epilogue(f, {NULL, true}, {NULL, 0}, 0)
                               : mk_epilogue(f, o.out, f.y_in.reader(epoch), epoch + op);
    for (int t0 = first; t0 < tiles; t0 += GROUP * blocks) {
        tile_columns which(f.a, t0 + tile * blocks, (NEEDS & NEEDS_PAIRS) != 0);
        bool now = row < t.rows && which.column(pair) < g.n;
        result_pair<POST_NORM> b = {};
        if (now) b.prefetch(g, turns_of(d) + row * f.a.rope.half, which, t.row + row);
        bool loads = t0 == first && !(MANY && f.stream_x),
             normed = POST_NORM && t0 == first && g.normed;
        if (normed) residual_statistics<MANY>(f, t, g.residual_in, d->residual);
        if (loads) load_x<MANY>(f, x, t, r, slots, epoch);
        if (loads || normed) decode_sync();
        const float2 of_residual = POST_NORM ? d->residual[row] : make_float2(0, 0);
        float c[GROUP][4] = {};
        int left = tiles - t0, now_tiles = left > 3 * blocks   ? 4
                                           : left > 2 * blocks ? 3
                                           : left > blocks     ? 2
                                                               : 1;
        if constexpr (MANY)
            multiply_many<weights_of(NEEDS)>(c, b.bias, r, f, t, smem_addr(x), now_tiles);
        else
            multiply_few<weights_of(NEEDS)>(c, b.bias, r, f, t, smem_addr(x), now_tiles);
        if (t0 != first) decode_sync(); /* the previous partial sums have been read */
        float *to = d->sums[0][warp] + lane / 4 * TILE + lane % 4 * 2;
#pragma unroll
        for (int j = 0; j < GROUP; j++) {
            *(float2 *)(to + j * (MMA_WARPS * TILE_SUMS)) = make_float2(c[j][0], c[j][1]);
            if (MANY)
                *(float2 *)(to + j * (MMA_WARPS * TILE_SUMS) + 8 * TILE) = make_float2(c[j][2],
                                                                                       c[j][3]);
        }
        decode_sync();
        if (row / 8 * 8 >= t.rows) continue; /* none of the warp's */
        float2 v = make_float2(0, 0);
#pragma unroll
        for (int w = 0; w < MMA_WARPS; w++) {
            float2 u = tile_pair<weights_of(NEEDS)>(&d->sums[tile][w][row * TILE], which, pair);
            v.x += u.x, v.y += u.y;
        }
        b.store_result(g, which, t.row + row, v, of_residual, now, f.bad);
    }
}

#endif
