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
 *
 * The warps split K: warp w has STEP elements from w * STEP on, and those every ROUND elements
 * further.  Each warp polls for just these, so the only barrier between the arrival of x and the
 * mma is that of the norm. */
#ifndef FV_CUDA_DECODE_MEGA_ONE_ROW_H
#define FV_CUDA_DECODE_MEGA_ONE_ROW_H

#include "mega_gemm.h"

/* Of a chunk, for a warp. */
__host__ __device__ constexpr int row_steps(int wt) { return max_chunk(wt) / ROUND; }

static_assert(MAX_CHUNK % ROUND == 0 && max_chunk(FV_Q8) % ROUND == 0 &&
                  max_chunk(FV_Q4) % ROUND == 0,
              "every chunk but the last has whole rounds");
static_assert(2 * GROUP * MMA_WARPS * TILE <= 4 * TILE_SUMS, "a buffer of sums is 4 rows of smem");
static_assert(decode_floats + 2 * DECODE_MAX_WIDTH + 4 <= (GROUP - 1) * MMA_WARPS * TILE_SUMS,
              "sums do not overlap the smem of attention, which other warps may still be reading");

/* ---- x ---- */

__device__ inline float2 pair_value(flagged_word a, flagged_word b)
{
    return make_float2(__uint_as_float((unsigned)a), __uint_as_float((unsigned)b));
}

/* N pairs of f32: elements `first` and the next, then 2 ROUND further; 0 from k on. */
template <int N>
__device__ inline void receive_pairs(float2 (&v)[N], const float *x, const flagged_reader &in,
                                     int first, int k)
{
    flagged_word a[N], b[N];
    auto in_row = [&](int i) { return first + i * 2 * ROUND < k; };
    if (in.area)
        wait_pairs_warp(a, b, in.epoch, in_row,
                        [&](int i) { return in.area + first + i * 2 * ROUND; });
#pragma unroll
    for (int i = 0; i < N; i++)
        v[i] = !in_row(i) ? make_float2(0, 0)
               : in.area  ? pair_value(a[i], b[i])
                          : *(const float2 *)(x + first + i * 2 * ROUND);
}

/* Elements i and i + 1 of a row in smem. */
__device__ inline bf16 *pair_in(bf16 *row, int i) { return row + 2 * pair_at<false>(i / 2); }

/* The sum over the MMA threads, through smem that no thread is still reading. */
__device__ inline float row_sum(float s, float (&all)[MMA_WARPS])
{
    s = warp_allreduce(s, sum_op());
    if (threadIdx.x % 32 == 0) all[threadIdx.x / 32] = s;
    decode_sync();
    float4 a = *(const float4 *)all, b = *(const float4 *)(all + 4);
    return ((a.x + a.y) + (a.z + a.w)) + ((b.x + b.y) + (b.z + b.w));
}

/* Receives the warp's elements of an f32 row of any length and stores them to smem as bf16,
 * normalised if the layer has a norm.  Elements beyond the first 4 ROUND do not stay in registers:
 * each pass reads them again from L2.  Not inlined: its code would lie in the middle of the short
 * row's. */
__device__ __noinline__ void receive_long_row(const decode_gemm &f, flagged_reader in,
                                              const float *x, const float *gain, const float *shift,
                                              bf16 *to, float (*partial)[MMA_WARPS])
{
    constexpr int N = 2, EACH = 2 * N * ROUND;
    int lane = threadIdx.x % 32, k = f.k,
        first = lane / 16 * ROUND + (int)threadIdx.x / 32 * STEP + lane % 16 * 2;
    float2 v[N], g[N], s[N];
    float mean = 0, scale = 1, sum = 0, each = __fdividef(1, (float)k);
    auto load_scales = [&](int from) {
#pragma unroll
        for (int i = 0; i < N; i++) {
            int at = from + i * 2 * ROUND;
            g[i] = gain && at < k ? *(const float2 *)(gain + at) : make_float2(1, 1);
            s[i] = shift && at < k ? *(const float2 *)(shift + at) : make_float2(0, 0);
        }
    };
    auto squares = [&](int from) {
#pragma unroll
        for (int i = 0; i < N; i++)
            if (from + i * 2 * ROUND < k)
                sum += (v[i].x - mean) * (v[i].x - mean) + (v[i].y - mean) * (v[i].y - mean);
    };
    bool layer = f.a.norm == FV_NORM_LAYER, norm = f.a.norm;
    load_scales(first);
    receive_pairs(v, x, in, first, k);
    if (layer) {
        sum = (v[0].x + v[0].y) + (v[1].x + v[1].y);
        for (int from = EACH; from < k; from += EACH) {
            float2 more[N];
            receive_pairs(more, x, in, from + first, k);
            sum += (more[0].x + more[0].y) + (more[1].x + more[1].y);
        }
        mean = row_sum(sum, partial[0]) * each, sum = 0;
    }
    if (norm) {
        squares(first);
        for (int from = EACH; from < k; from += EACH) {
            receive_pairs(v, x, in, from + first, k);
            squares(from + first);
        }
        scale = rsqrtf(row_sum(sum, partial[1]) * each + f.a.eps);
        if (EACH < k) receive_pairs(v, x, in, first, k);
    }
    for (int from = 0;;) {
#pragma unroll
        for (int i = 0; i < N; i++) {
            int at = from + first + i * 2 * ROUND;
            if (at < k)
                store_bf16x2(pair_in(to, at),
                             make_float2((v[i].x - mean) * scale * g[i].x + s[i].x,
                                         (v[i].y - mean) * scale * g[i].y + s[i].y));
        }
        if ((from += EACH) >= k) break;
        receive_pairs(v, x, in, from + first, k);
        load_scales(from + first);
    }
}

/* Welford's statistics: the mean and the sum of squared differences from it.  Merging them in pairs
 * takes one reduction over the block, where first the mean and then the squares would take two. */
struct welford {
    float mean, m2;
    /* Both have n values. */
    __device__ void merge(float other_mean, float other_m2, float n)
    {
        float d = other_mean - mean;
        mean = 0.5f * (mean + other_mean);
        m2 = fmaf(d * d, 0.5f * n, m2 + other_m2);
    }
    /* Lanes l and l + 16: of their n values, a fraction `share` is the upper lane's. */
    __device__ void merge_halves(float n, float share)
    {
        float m = __shfl_xor_sync(~0u, mean, 16), q = __shfl_xor_sync(~0u, m2, 16),
              first = threadIdx.x & 16 ? m : mean, d = (threadIdx.x & 16 ? mean : m) - first;
        mean = fmaf(d, share, first);
        m2 = fmaf(d * d, n * share * (1 - share), m2 + q);
    }
    /* Over the block; n and share as above. */
    __device__ void merge_all(float n, float share, float (*shared)[MMA_WARPS])
    {
        merge_halves(n, share);
#pragma unroll
        for (int by = 1; by < 16; by *= 2, n *= 2) {
            float m = __shfl_xor_sync(~0u, mean, by), q = __shfl_xor_sync(~0u, m2, by);
            merge(m, q, n);
        }
        if (threadIdx.x % 32 == 0)
            shared[0][threadIdx.x / 32] = mean, shared[1][threadIdx.x / 32] = m2;
        decode_sync();
        float m[MMA_WARPS], q[MMA_WARPS];
#pragma unroll
        for (int w = 0; w < MMA_WARPS; w += 4) {
            *(float4 *)(m + w) = *(const float4 *)(shared[0] + w);
            *(float4 *)(q + w) = *(const float4 *)(shared[1] + w);
        }
#pragma unroll
        for (int by = 1; by < MMA_WARPS; by *= 2, n *= 2)
#pragma unroll
            for (int w = 0; w < MMA_WARPS; w += 2 * by) {
                welford r = {m[w], q[w]};
                r.merge(m[w + by], q[w + by], n);
                m[w] = r.mean, q[w] = r.m2;
            }
        mean = m[0], m2 = q[0];
    }
};

/* The same for k = ROUND, 2 ROUND, 3 ROUND or 4 ROUND: at most two pairs of elements a lane, which
 * stay in registers.  Of rounds 2 i and 2 i + 1 the lower half of a warp has the first, the upper
 * the second.  A lane that has no pair polls the lower half's first, so that no lane branches. */
__device__ inline void receive_f32_row(const decode_gemm &f, const flagged_reader &in,
                                       const float *x, const float *gain, const float *shift,
                                       bf16 *to, float (*partial)[MMA_WARPS])
{
    constexpr int N = 2;
    int k = f.k, norm = f.a.norm, half = (int)threadIdx.x / 16 % 2 * ROUND,
        pair = (int)threadIdx.x / 32 * STEP + (int)threadIdx.x % 16 * 2;
    float eps = f.a.eps, n = (float)(k / ROUND * 2), low = k > 2 * ROUND ? 4 : 2, high = n - low,
          own = half ? high : low, inv = own > 0 ? __fdividef(1, own) : 0,
          share = __fdividef(high, n), inv_k = __fdividef(1, (float)k), mean = 0, scale = 1;
    float2 v[N], g[N], s[N];
    int at[N];
    bool in_row[N];
#pragma unroll
    for (int i = 0; i < N; i++) {
        in_row[i] = half + i * 2 * ROUND < k;
        at[i] = in_row[i] ? half + i * 2 * ROUND + pair : pair;
        g[i] = gain ? *(const float2 *)(gain + at[i]) : make_float2(1, 1);
        s[i] = shift ? *(const float2 *)(shift + at[i]) : make_float2(0, 0);
    }
    asm volatile(""
                 : "+f"(inv), "+f"(inv_k), "+f"(eps),
                   "+f"(share)); /* computed before x is waited for */
    if (in.area) {
        flagged_word a[N], b[N];
        wait_pairs_warp(
            a, b, in.epoch, [](int) { return true; }, [&](int i) { return in.area + at[i]; });
#pragma unroll
        for (int i = 0; i < N; i++) v[i] = pair_value(a[i], b[i]);
    } else {
#pragma unroll
        for (int i = 0; i < N; i++) v[i] = *(const float2 *)(x + at[i]);
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        if (!in_row[i]) v[i] = make_float2(0, 0);
    if (norm == FV_NORM_LAYER) {
        welford r = {((v[0].x + v[0].y) + (v[1].x + v[1].y)) * inv, 0};
#pragma unroll
        for (int i = 0; i < N; i++) {
            float d = v[i].x - r.mean, e = v[i].y - r.mean;
            r.m2 += in_row[i] ? d * d + e * e : 0;
        }
        r.merge_all(n, share, partial);
        mean = r.mean;
        scale = rsqrtf(r.m2 * inv_k + eps);
    } else if (norm) {
        float sum = (v[0].x * v[0].x + v[0].y * v[0].y) + (v[1].x * v[1].x + v[1].y * v[1].y);
        scale = rsqrtf(row_sum(sum, partial[0]) * inv_k + eps);
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        if (in_row[i])
            store_bf16x2(pair_in(to, at[i]),
                         make_float2((v[i].x - mean) * scale * g[i].x + s[i].x,
                                     (v[i].y - mean) * scale * g[i].y + s[i].y));
}

/* Receives the warp's elements of a bf16 row: a load has four consecutive elements a lane, of four
 * rounds, and N loads are in flight.  A lane that has none repeats elements of the first round. */
__device__ inline void receive_bf16_row(const flagged_reader &in, const bf16 *x, int k, bf16 *to)
{
    constexpr int N = 3, EACH = 4 * ROUND;
    int lane = threadIdx.x % 32, first = (int)threadIdx.x / 32 * STEP + lane % 8 * 4;
    if (first - lane % 8 * 4 >= k) return; /* k < ROUND: the warp has no elements */
    for (int from = 0; from < k; from += N * EACH) {
        flagged_word a[N], b[N];
        int at[N];
#pragma unroll
        for (int i = 0; i < N; i++) {
            at[i] = from + i * EACH + lane / 8 * ROUND + first;
            if (at[i] >= k) at[i] = first;
        }
        auto in_row = [&](int i) { return from + i * EACH < k; };
        if (in.area)
            wait_pairs_warp(a, b, in.epoch, in_row, [&](int i) { return in.area + at[i] / 2; });
#pragma unroll
        for (int i = 0; i < N; i++)
            if (in_row(i)) {
                uint2 v = in.area ? make_uint2((unsigned)a[i], (unsigned)b[i])
                                  : *(const uint2 *)(x + at[i]);
                unsigned *pair = (unsigned *)pair_in(to, at[i]);
                pair[0] = v.x, pair[2] = v.y;
            }
    }
}

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

    /* Waits for the next slots of the ring, and loads from them.  Steps behind the end of the row
     * are multiplied by zeros and slots that are not there are not used: both load others again,
     * as a load under a condition goes to other registers, and a copy of them waits for it. */
    __device__ void load(const slot_ring &r, const slot_batch &s)
    {
        next_slots(r, s.slots).wait();
        constexpr unsigned BY = step_in_slot<WT>();
        int lane = threadIdx.x % 32, warp = (int)threadIdx.x / 32;
        unsigned row = value_in_slot<WT>(lane / 4, 0, 0),
                 at = value_in_slot<WT>(lane / 4, warp, lane % 4),
                 scale = scale_in_slot<WT>(lane / 4, 0), scales = scale_in_slot<WT>(lane / 4, warp);
#pragma unroll
        for (int u = 0; u < GROUP; u++) {
            slot[u] = r.slot(u < s.slots ? r.ahead(u) : r.i);
#pragma unroll
            for (int i = 0; i < STEPS; i++) {
                bool in = i * ROUND < s.k_left_of(u);
                load_slot(w[u][i], slot[u] + (in ? at + i * BY : row));
                if constexpr (WT != FV_BF16)
                    w[u][i].scale = ld_shared_f32(slot[u] + (in ? scales + i * BY : scale));
            }
        }
    }
};

/* c[u] += W x for the first N slots; x: smem address of the lane's pairs of the batch.  Of
 * quantised weights each step is scaled, and only the lane's part of the result: c[u][0]. */
template <int N, int WT>
__device__ inline void multiply_slots(float (&c)[GROUP][4], const row_weights<WT> &w,
                                      const slot_batch &s, unsigned x)
{
    constexpr int STEPS = row_steps(WT);
    bool lower = threadIdx.x % 4 >= 2;
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
            const uint4 v = w.w[u][i].bf16x8();
            if constexpr (WT == FV_BF16) {
                mma(c[u], v.x, v.y, v.z, v.w, b[u][i].x, b[u][i].y);
            } else {
                float d[4] = {};
                mma(d, v.x, v.y, v.z, v.w, b[u][i].x, b[u][i].y);
                c[u][0] = fmaf(w.w[u][i].scale, lower ? d[2] : d[0], c[u][0]);
            }
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
        float v = WT == FV_BF16 && lower ? c[u][2] : c[u][0];
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
    const float *gain = (const float *)f.a.gain, *shift = (const float *)f.a.shift;
    slot_ring scales = r;
    bool in_slot = has_gain(f);
    if (in_slot) {
        const float *slot = (const float *)(slots + r.i * SLOT_BYTES);
        mbarrier_wait(r.full(), r.laps & 1);
        if (shift) shift = slot + (gain ? k : 0);
        if (gain) gain = slot;
        r.next();
    }
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
            if (t0 == first && from == 0) {
                const float *from_memory = (const float *)f.a.x;
                if (f.a.xt == FV_BF16)
                    receive_bf16_row(in, (const bf16 *)f.a.x, k, x);
                else if (k % ROUND == 0 && k <= 4 * ROUND)
                    receive_f32_row(f, in, from_memory, gain, shift, x, d->partial);
                else
                    receive_long_row(f, in, from_memory, gain, shift, x, d->partial);
                if (in_slot) next_slots(scales, 1).release();
                __syncwarp();
            }
            unsigned at = smem_addr(x) +
                          (unsigned)(2 * (from + warp * STEP) + lane % 4 * 16 + lane / 16 * 8);
            if (s.slots > 2)
                multiply_slots<GROUP>(c, w, s, at);
            else
                multiply_slots<2>(c, w, s, at);
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
