/* mega_one_row.h - y = act(x W' + bias) (+ y) for one sequence, as an op of the megakernel.
 *
 * One sequence is bound by latency: each of the five ops of a layer starts when the last value of
 * the op before has arrived, and runs a chain of dependent instructions from there to its result.
 * So everything that does not depend on x is done before x is waited for: the epilogue's operands
 * are loaded, and the weights of up to GROUP slots are copied from smem to registers.
 *
 * mma.m16n8k16 multiplies 8 rows of W by 32 elements of x.  The order of K within an mma is free,
 * so a lane takes 8 consecutive elements of a row with one 16-byte load, which as it is makes the
 * four registers of A: pairs 0 and 2 of them are in A's upper half, 1 and 3 in its lower.
 *
 *     A = | pairs 0, 2 of W |   B = | pairs 0, 2 of x, 4 times | pairs 1, 3 of x, 4 times |
 *         | pairs 1, 3      |
 *
 * Columns 0 .. 3 of the upper half of the result and 4 .. 7 of the lower are parts of the product,
 * and are added.  x is stored permuted (pair_at), so that a lane reads its two pairs at once.
 * Where the block has one tile of a long row, the slots are chunks of it, each with its part of x.
 * Quantised weights are multiplied as bytes, by int8 tensor cores (mega_int8.h).
 *
 * The warps split K: warp w has STEP elements from w * STEP on, and those every ROUND elements
 * further.  Each warp polls for just these, so the only barrier between the arrival of x and the
 * mma is that of the norm. */
#ifndef FV_CUDA_DECODE_MEGA_ONE_ROW_H
#define FV_CUDA_DECODE_MEGA_ONE_ROW_H

#include "mega_one_row_x.h"

/* Of a chunk, for a warp. */
__host__ __device__ constexpr int row_steps(int wt) { return max_chunk(wt) / ROUND; }

static_assert(MAX_CHUNK % ROUND == 0 && max_chunk(FV_Q8) % ROUND == 0 &&
                  max_chunk(FV_Q4) % ROUND == 0,
              "every chunk but the last has whole rounds");
static_assert(2 * GROUP * MMA_WARPS * TILE <= 4 * TILE_SUMS, "a buffer of sums is 4 rows of smem");
static_assert(decode_floats + 2 * DECODE_MAX_WIDTH + 4 <= (GROUP - 1) * MMA_WARPS * TILE_SUMS,
              "sums do not overlap the smem of attention, which other warps may still be reading");

/* ---- weights ---- */

/* Up to GROUP slots that are multiplied together: tiles of one chunk, or chunks of one tile. */
struct slot_batch {
    int k_left; /* from the warp's first element of the batch to the end of the row */
    int slots, chunk;
    bool one_tile;
    /* The warp has step i of slot u if i * ROUND is less than this. */
    __device__ int k_left_of(int u) const
    {
        return one_tile ? k_left - u * chunk : u < slots ? k_left : 0;
    }
};

/* A lane's weights of up to GROUP slots, and the slots' addresses in smem.  A step of a warp is one
 * block of a quantised row. */
template <int WT> struct row_weights {
    static constexpr int STEPS = row_steps(WT);
    weight_part<WT> w[GROUP][STEPS];
    unsigned slot[GROUP];

    /* Waits for the next slots of the ring, and loads from them.  Slots that are not there are not
     * used: they load others again, as a load under a condition goes to other registers, and a copy
     * of them waits for it.  So do steps behind the end of a bf16 row, which are multiplied by
     * zeros; of bytes they are left out. */
    __device__ void load(const slot_ring &r, const slot_batch &s)
    {
        next_slots(r, s.slots).wait();
        constexpr unsigned BY = step_in_slot<WT>();
        int lane = threadIdx.x % 32, warp = (int)threadIdx.x / 32;
        unsigned row = value_in_slot<WT>(lane / 4, 0, 0),
                 at = value_in_slot<WT>(lane / 4, warp, lane % 4),
                 scales = scale_in_slot<WT>(lane / 4, warp);
#pragma unroll
        for (int u = 0; u < GROUP; u++) {
            slot[u] = r.slot(u < s.slots ? r.ahead(u) : r.i);
#pragma unroll
            for (int i = 0; i < STEPS; i++) {
                bool in = WT != FV_BF16 || i * ROUND < s.k_left_of(u);
                load_slot(w[u][i], slot[u] + (in ? at + i * BY : row));
                if constexpr (WT != FV_BF16)
                    w[u][i].scale = ld_shared_f32(slot[u] + scales + i * BY);
            }
        }
    }
};

/* c[u] += W x for the first N slots; x: smem address of the lane's pairs of the batch. */
template <int N>
__device__ inline void multiply_slots(float (&c)[GROUP][4], const row_weights<FV_BF16> &w,
                                      const slot_batch &s, unsigned x)
{
    constexpr int STEPS = row_steps(FV_BF16);
    uint2 b[N][STEPS];
#pragma unroll
    for (int u = 0; u < N; u++)
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            unsigned chunk = (unsigned)(2 * (s.one_tile ? u * s.chunk : 0));
            b[u][i] = make_uint2(0, 0);
            if (i * ROUND < s.k_left_of(u))
                b[u][i] = ld_shared8(x + chunk + (unsigned)(2 * i * ROUND));
        }
#pragma unroll
    for (int i = 0; i < STEPS; i++)
#pragma unroll
        for (int u = 0; u < N; u++) {
            const uint4 v = w.w[u][i].v;
            mma(c[u], v.x, v.y, v.z, v.w, b[u][i].x, b[u][i].y);
        }
}

/* The same of bytes (mega_int8.h), of N tiles; results are in c[u][0] of lanes 0, 4, ..  scales: of
 * the batch's first block of the warp. */
template <int N, int WT>
__device__ inline void multiply_tiles(float (&c)[GROUP][4], const row_weights<WT> &w,
                                      const slot_batch &s, unsigned x, unsigned scales)
{
#pragma unroll
    for (int i = 0; i < row_steps(WT); i++) {
        if (i * ROUND >= s.k_left) break;
        const uint2 b = ld_shared8(x + (unsigned)(2 * i * ROUND)),
                    of = ld_shared8(scales + (unsigned)(i * MMA_WARPS * X_SCALE_BYTES));
        float scale = __uint_as_float(of.x);
#pragma unroll
        for (int u = 0; u < N; u += 2) {
            int d[4];
            mma_s8(d, weight_bytes(w.w[u][i]), weight_bytes(w.w[u + 1][i]), b, (int)of.y);
            c[u][0] = fmaf(w.w[u][i].scale, scaled_sum(d[0], d[1], scale), c[u][0]);
            c[u + 1][0] = fmaf(w.w[u + 1][i].scale, scaled_sum(d[2], d[3], scale), c[u + 1][0]);
        }
    }
}

/* And of the chunks of one tile. */
template <int WT>
__device__ inline void multiply_chunks(float (&c)[GROUP][4], const row_weights<WT> &w,
                                       const slot_batch &s, unsigned x, unsigned scales)
{
    constexpr int BLOCKS = max_chunk(WT) / QUANT_BLOCK;
#pragma unroll
    for (int u = 0; u < GROUP; u++)
#pragma unroll
        for (int i = 0; i < row_steps(WT); i++) {
            if (i * ROUND >= s.k_left_of(u)) break;
            const uint2 b = ld_shared8(x + (unsigned)(2 * (u * max_chunk(WT) + i * ROUND))),
                        of = ld_shared8(scales +
                                        (unsigned)((u * BLOCKS + i * MMA_WARPS) * X_SCALE_BYTES));
            int d[4];
            mma_s8(d, weight_bytes(w.w[u][i]), make_uint2(0, 0), b, (int)of.y);
            c[u][0] = fmaf(w.w[u][i].scale, scaled_sum(d[0], d[1], __uint_as_float(of.x)), c[u][0]);
        }
}

/* c[u] += W x of a batch from element `from` on; x: the row in smem. */
template <int WT>
__device__ inline void multiply_batch(float (&c)[GROUP][4], const row_weights<WT> &w,
                                      const slot_batch &s, bf16 *x, int from, int k)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    unsigned at = smem_addr(x) + (unsigned)(2 * (from + warp * STEP));
    if constexpr (WT == FV_BF16) {
        at += (unsigned)(lane % 4 * 16 + lane / 16 * 8);
        if (s.slots > 2)
            multiply_slots<GROUP>(c, w, s, at);
        else
            multiply_slots<2>(c, w, s, at);
    } else {
        unsigned scales = smem_addr(x_scales_of(x, k) + from / QUANT_BLOCK + warp);
        at += x_column(lane / 4) + (unsigned)(lane % 4 * 8);
        if (s.one_tile)
            multiply_chunks<WT>(c, w, s, at, scales);
        else if (s.slots > 2)
            multiply_tiles<GROUP>(c, w, s, at, scales);
        else
            multiply_tiles<2>(c, w, s, at, scales);
    }
}

/* ---- the op ---- */

/* Stores the warp's partial sums, (GROUP slots, 2 halves of C, MMA_WARPS, TILE).  Columns 0 .. 3 of
 * the upper half are equal, and 4 .. 7 of the lower: taken are 0 and 4. */
template <int WT> __device__ inline void store_sums(float *to, const float (&c)[GROUP][4])
{
    int lane = threadIdx.x % 32, lower = lane % 4 / 2;
    to += (lower * MMA_WARPS + (int)threadIdx.x / 32) * TILE + lane / 4;
#pragma unroll
    for (int u = 0; u < GROUP; u++) {
        float v = !lower ? c[u][0] : WT == FV_BF16 ? c[u][2] : 0;
        if (lane % 2 == 0) to[2 * u * MMA_WARPS * TILE] = v;
    }
}

/* The sums of pair lane % 4, over all warps and n slots from `first` on. */
template <int WT>
__device__ inline float2 reduce_pair(const float *from, const tile_columns &c, int first, int n)
{
    int lane = threadIdx.x % 32;
    from += (first * 2 * MMA_WARPS + lane / 4) * TILE;
    float2 v = make_float2(0, 0);
#pragma unroll
    for (int u = 0; u < 2 * GROUP; u++)
        if (u < 2 * n) {
            float2 e = tile_pair<WT>(from + u * MMA_WARPS * TILE, c, lane % 4);
            v.x += e.x, v.y += e.y;
        }
#pragma unroll
    for (int by = 4; by < 32; by *= 2) {
        v.x += __shfl_xor_sync(~0u, v.x, by);
        v.y += __shfl_xor_sync(~0u, v.y, by);
    }
    return v;
}

/* Per group of up to GROUP tiles, of which warp j stores the results of tile j.  Parameters are
 * those of gemm_shared_k, and which of two buffers of sums is next: they alternate over all ops, as
 * a warp may store its next sums while another still reads the last. */
template <int NEEDS>
__device__ inline void gemm_one_row(const mk_op &o, const block_group &t, slot_ring &r, mk_smem *d,
                                    bf16 *x, const unsigned char *slots, unsigned epoch, int op,
                                    int &buffer)
{
    constexpr int WT = weights_of(NEEDS), CHUNK = max_chunk(WT);
    constexpr bool POST_NORM = (NEEDS & NEEDS_POST_NORM) != 0;
    const decode_gemm &f = o.gemm;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, blocks = t.blocks, tiles = f.tiles,
        first = t.tile(f), k = f.k;
    if (first >= tiles) return;
    flagged_reader in = f.in.reader(epoch);
    const row_norm norm(f, r, slots);
    for (int t0 = first; t0 < tiles; t0 += GROUP * blocks, buffer ^= 1) {
        int left = tiles - t0,
            now = 1 + (left > blocks) + (left > 2 * blocks) + (left > 3 * blocks), chunks = 1;
        tile_columns which(f.a, t0 + warp * blocks, (NEEDS & NEEDS_PAIRS) != 0);
        bool mine = warp < now && lane < 4 && which.column(lane % 4) < (int)f.a.n;
        result_pair<POST_NORM> b = {};
        auto epilogue = [&] { return mk_epilogue(f, o.out, f.y_in.reader(epoch), epoch + op); };
        if (mine) b.prefetch(epilogue(), turns_of(d), which, t.row);
        float2 *of_residual = d->residual + buffer; /* read behind the barrier, as the sums are */
        if (POST_NORM && f.a.residual_norm)
            residual_statistics<false>(f, t, f.y_in.reader(epoch), of_residual);
        float c[GROUP][4] = {};
        for (int from = 0; from < k; from += now == 1 ? GROUP * CHUNK : CHUNK) {
            slot_batch s = {k - from - warp * STEP, now, CHUNK, now == 1};
            if (s.one_tile)
                s.slots = 1 + (k - from > CHUNK) + (k - from > 2 * CHUNK) + (k - from > 3 * CHUNK);
            row_weights<WT> w;
            w.load(r, s);
            if (from == 0 && f.bias_in_slot && warp < now)
                b.bias = slot_bias(select_element(w.slot, warp));
            next_slots(r, s.slots).release();
            r.advance(s.slots);
            if (t0 == first && from == 0) receive_row<WT>(f, in, norm, x, d);
            multiply_batch(c, w, s, x, from, k);
            if (s.one_tile && from == 0) chunks = s.slots;
        }
        float *sums = d->sums[GROUP - 1][4 * buffer];
        store_sums<WT>(sums, c);
        decode_sync();
        if (warp >= now) continue;
        /* once more: kept since prefetch, it would spill */
        b.store_result(epilogue(), which, t.row, reduce_pair<WT>(sums, which, warp, chunks),
                       POST_NORM ? *of_residual : make_float2(0, 0), mine, f.bad);
    }
}

#endif
