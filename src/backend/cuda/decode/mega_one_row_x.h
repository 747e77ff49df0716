/* mega_one_row_x.h - x of an op of one sequence: each warp receives the elements it multiplies,
 * from the words of an earlier op or from global memory, and stores them to smem, normalised, as
 * bf16 or, for quantised weights, as bytes (mega_int8.h). */
#ifndef FV_CUDA_DECODE_MEGA_ONE_ROW_X_H
#define FV_CUDA_DECODE_MEGA_ONE_ROW_X_H

#include "mega_int8.h"

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

/* Gain and shift of the op's norm: in the ring's next slot, where they fit, or in global memory. */
struct row_norm {
    const float *gain, *shift;
    bool in_slot;
    slot_ring slot;
    __device__ row_norm(const decode_gemm &f, slot_ring &r, const unsigned char *slots)
        : gain((const float *)f.a.gain), shift((const float *)f.a.shift), in_slot(has_gain(f)),
          slot(r)
    {
        if (!in_slot) return;
        const float *at = (const float *)(slots + r.i * SLOT_BYTES);
        mbarrier_wait(r.full(), r.laps & 1);
        if (shift) shift = at + (gain ? f.k : 0);
        if (gain) gain = at;
        r.next();
    }
};

/* The warp's elements of x are in smem when it returns. */
template <int WT>
__device__ inline void receive_row(const decode_gemm &f, const flagged_reader &in,
                                   const row_norm &norm, bf16 *x, mk_smem *d)
{
    const float *from = (const float *)f.a.x;
    int k = f.k;
    if (f.a.xt == FV_BF16)
        receive_bf16_row(in, (const bf16 *)f.a.x, k, x);
    else if (k % ROUND == 0 && k <= 4 * ROUND)
        receive_f32_row(f, in, from, norm.gain, norm.shift, x, d->partial);
    else
        receive_long_row(f, in, from, norm.gain, norm.shift, x, d->partial);
    if (norm.in_slot) next_slots(norm.slot, 1).release();
    __syncwarp();
    if constexpr (WT != FV_BF16) {
        quantise_row<WT>(x, k);
        __syncwarp();
    }
}

#endif
