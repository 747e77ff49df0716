/* mega_rows.h - loads the rows of x of a fused linear layer into smem as bf16, from global memory
 * or flagged words, normalised on the way.
 *
 *     LayerNorm:  (x - mean) / sqrt(var + eps) * gain + shift
 *     RMSNorm:    x / sqrt(mean(x^2) + eps) * gain
 *
 * Every block normalises all rows for itself: a row is 3 KB, and waiting for one block to do it for
 * all would be another trip through L2.
 *
 * Up to FLAGGED_MAX_ROWS rows (MANY false) rows are stored permuted: see pair_at.  Rows of up to
 * 768 elements stay in a warp's registers between the statistics and the store; longer ones are
 * read again, from L2. */
#ifndef FV_CUDA_DECODE_MEGA_ROWS_H
#define FV_CUDA_DECODE_MEGA_ROWS_H

#include "mega_smem.h"

/* Elements from row to row: 64 bytes of padding against bank conflicts. */
__device__ inline int x_stride(int k) { return k + 32; }
/* Elements from two interleaved rows to the next two: 16 bytes of padding. */
__device__ inline int interleaved_stride(int k) { return 2 * k + 8; }

/* Rows of x in smem, as pairs of elements.  gemm_own_tiles has rows r and r + 8 interleaved, pair
 * by pair, so that the A fragment of an mma is one load of 16 bytes.  From one load per row four
 * registers would have to be moved for every mma. */
struct x_rows {
    bf16 *x;
    int stride; /* elements from row to row, or from two interleaved rows to the next two */
    int step;   /* pairs from one pair of a row to the next: 2 if interleaved, else 1 */
    __device__ x_rows(bf16 *x_, int k, bool interleaved)
        : x(x_), stride(interleaved ? interleaved_stride(k) : x_stride(k)),
          step(interleaved ? 2 : 1)
    {
    }
    __device__ bf16 *row(int r) const
    {
        int of_two = r / ROWS_BLOCK * (ROWS_BLOCK / 2) + r % (ROWS_BLOCK / 2);
        return step == 1 ? x + r * stride : x + of_two * stride + r % ROWS_BLOCK / 8 * 2;
    }
};

/* Where pair i of a row is stored.  With at most 8 rows the upper half of the 16-row A fragment
 * would be idle; instead it holds the next 16 of K (see multiply).  Swapping pairs 1 and 2 of every
 * four makes a lane's A fragment 16 contiguous bytes. */
template <bool MANY> __device__ inline int pair_at(int i)
{
    return MANY ? i : (i & ~3) | (i & 1) << 1 | (i & 2) >> 1;
}

__device__ inline unsigned bf16x2_bits(float x, float y)
{
    __nv_bfloat162 both = __floats2bfloat162_rn(x, y);
    return *(const unsigned *)&both;
}

__device__ inline void store_bf16x2(bf16 *to, float2 v)
{
    *(__nv_bfloat162 *)to = __float22bfloat162_rn(v);
}

/* One row of x as f32 pairs.
 * A flagged word is 64 bits: the f32 and the epoch of its writer, stored together.  A reader
 * that sees this step's epoch has the value, so no barrier and no second trip through L2 is
 * needed. */
struct x_row {
    const float *x;
    const flagged_word *words; /* NULL: from global memory */
    unsigned epoch;
    __device__ x_row(const void *rows, int64_t k, const flagged_reader &in, int row)
        : x((const float *)rows + row * k), words(in.area ? in.area + row * k : NULL),
          epoch(in.epoch)
    {
    }
    __device__ x_row(const decode_gemm &f, const flagged_reader &in, int row)
        : x_row(f.a.x, f.k, in, row)
    {
    }
    /* Pairs first, first + 32, ..: N of them; past the end of the row (only if not WHOLE) its last
     * pair again.  FLAGGED: the row may be in flagged words. */
    template <int N, bool WHOLE, bool FLAGGED>
    __device__ void get(float2 (&v)[N], int first, int pairs) const
    {
        auto at = [&](int u) { return WHOLE ? first + u * 32 : min(first + u * 32, pairs - 1); };
        if (FLAGGED && words) {
            flagged_word a[N], b[N];
            wait_pairs(a, b, epoch, [&](int u) { return words + 2 * at(u); });
#pragma unroll
            for (int u = 0; u < N; u++)
                v[u] = make_float2(__uint_as_float((unsigned)a[u]),
                                   __uint_as_float((unsigned)b[u]));
            return;
        }
#pragma unroll
        for (int u = 0; u < N; u++) v[u] = ((const float2 *)x)[at(u)];
    }
};

/* (p - mean) * scale * gain + shift of pair i. */
__device__ inline float2 scale_shift(float2 p, float mean, float scale, const float *gain,
                                     const float *shift, int i)
{
    float2 g = gain ? ((const float2 *)gain)[i] : make_float2(1, 1),
           s = shift ? ((const float2 *)shift)[i] : make_float2(0, 0);
    return make_float2((p.x - mean) * scale * g.x + s.x, (p.y - mean) * scale * g.y + s.y);
}

/* y = (x - mean) * rstd * gain + shift for R rows of one warp, held in registers: up to N * 64
 * elements each, or exactly (WHOLE).
 * R = 2 interleaves two rows: the reductions of one hide the latency of the other's. */
template <int R, int N, bool WHOLE>
__device__ inline void normalise_in_registers(const fv_fused_linear &a, bf16 *const (&to)[2],
                                              int step, const x_row (&x)[2], const float *gain,
                                              const float *shift)
{
    int lane = threadIdx.x % 32, pairs = (int)a.k / 2;
    float2 v[R][N];
    float mean[R] = {}, scale[R], each = __fdividef(1, (float)a.k);
#pragma unroll
    for (int r = 0; r < R; r++) x[r].get<N, WHOLE, R == 1>(v[r], lane, pairs);
    auto sum = [&](auto f) {
        float s[R][2] = {};
#pragma unroll
        for (int u = 0; u < N; u++)
#pragma unroll
            for (int r = 0; r < R; r++)
                if (WHOLE || lane + u * 32 < pairs)
                    s[r][0] += f(v[r][u].x, r), s[r][1] += f(v[r][u].y, r);
#pragma unroll
        for (int r = 0; r < R; r++) scale[r] = warp_allreduce(s[r][0] + s[r][1], sum_op()) * each;
    };
    if (a.norm == FV_NORM_LAYER) {
        sum([&](float e, int) { return e; });
#pragma unroll
        for (int r = 0; r < R; r++) mean[r] = scale[r];
    }
    sum([&](float e, int r) { return (e - mean[r]) * (e - mean[r]); });
#pragma unroll
    for (int r = 0; r < R; r++) scale[r] = rsqrtf(scale[r] + a.eps);
#pragma unroll
    for (int u = 0; u < N; u++)
        if (WHOLE || lane + u * 32 < pairs)
#pragma unroll
            for (int r = 0; r < R; r++)
                store_bf16x2(to[r] + 2 * step * (pair_at<R == 2>(lane) + u * 32),
                             scale_shift(v[r][u], mean[r], scale[r], gain, shift, lane + u * 32));
}

/* The same for two rows of exactly N * 128 elements in global memory, in 16-byte loads: the common
 * width 768 at more than 8 rows. */
template <int N>
__device__ inline void normalise_two_rows(const fv_fused_linear &a, bf16 *const (&to)[2], int step,
                                          const x_row (&x)[2], const float *gain,
                                          const float *shift)
{
    int lane = threadIdx.x % 32;
    float4 v[2][N];
    float sum[2] = {}, each = 1 / (float)(N * 128);
#pragma unroll
    for (int u = 0; u < N; u++)
#pragma unroll
        for (int r = 0; r < 2; r++) v[r][u] = ((const float4 *)x[r].x)[lane + u * 32];
    if (a.norm == FV_NORM_LAYER) {
#pragma unroll
        for (int u = 0; u < N; u++)
#pragma unroll
            for (int r = 0; r < 2; r++) sum[r] += (v[r][u].x + v[r][u].y) + (v[r][u].z + v[r][u].w);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float mean = warp_allreduce(sum[r], sum_op()) * each;
            sum[r] = 0;
#pragma unroll
            for (int u = 0; u < N; u++)
                v[r][u].x -= mean, v[r][u].y -= mean, v[r][u].z -= mean, v[r][u].w -= mean;
        }
    }
#pragma unroll
    for (int u = 0; u < N; u++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float4 p = v[r][u];
            sum[r] += (p.x * p.x + p.y * p.y) + (p.z * p.z + p.w * p.w);
        }
#pragma unroll
    for (int r = 0; r < 2; r++) sum[r] = rsqrtf(warp_allreduce(sum[r], sum_op()) * each + a.eps);
#pragma unroll
    for (int u = 0; u < N; u++) {
        float4 g = gain ? ((const float4 *)gain)[lane + u * 32] : make_float4(1, 1, 1, 1);
        float4 s = shift ? ((const float4 *)shift)[lane + u * 32] : make_float4(0, 0, 0, 0);
        unsigned w[2][2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float4 p = v[r][u];
            w[r][0] = bf16x2_bits(p.x * sum[r] * g.x + s.x, p.y * sum[r] * g.y + s.y);
            w[r][1] = bf16x2_bits(p.z * sum[r] * g.z + s.z, p.w * sum[r] * g.w + s.w);
        }
        if (step == 2) {
            ((uint4 *)to[0])[lane + u * 32] = make_uint4(w[0][0], w[1][0], w[0][1], w[1][1]);
        } else {
            ((uint2 *)to[0])[lane + u * 32] = make_uint2(w[0][0], w[0][1]);
            ((uint2 *)to[1])[lane + u * 32] = make_uint2(w[1][0], w[1][1]);
        }
    }
}

/* The same for a row of any length, read once per pass. */
template <bool MANY>
__device__ inline void normalise_long(const fv_fused_linear &a, bf16 *to, int step, x_row x,
                                      const float *gain, const float *shift)
{
    int lane = threadIdx.x % 32, pairs = (int)a.k / 2;
    float mean = 0, sum = 0, each = __fdividef(1, (float)a.k);
    float2 v[4];
    auto each_of = [&](auto f) {
        for (int i0 = lane; i0 < pairs; i0 += 4 * 32) {
            x.get<4, false, !MANY>(v, i0, pairs);
#pragma unroll
            for (int u = 0; u < 4; u++)
                if (i0 + u * 32 < pairs) f(v[u], i0 + u * 32);
        }
    };
    if (a.norm == FV_NORM_LAYER) {
        each_of([&](float2 p, int) { sum += p.x + p.y; });
        mean = warp_allreduce(sum, sum_op()) * each, sum = 0;
    }
    each_of(
        [&](float2 p, int) { sum += (p.x - mean) * (p.x - mean) + (p.y - mean) * (p.y - mean); });
    float scale = rsqrtf(warp_allreduce(sum, sum_op()) * each + a.eps);
    each_of([&](float2 p, int i) {
        store_bf16x2(to + 2 * step * pair_at<MANY>(i), scale_shift(p, mean, scale, gain, shift, i));
    });
}

/* All rows of the block group; warp w has rows w, w + 8, .. */
template <bool MANY>
__device__ inline void normalise_all(const decode_gemm &f, const x_rows &to, const block_group &t,
                                     const flagged_reader &in, const float *gain,
                                     const float *shift)
{
    constexpr int R = MANY ? 2 : 1, N = 12;
    int k = f.k, r = (int)threadIdx.x / 32;
    if (k > N * 64) {
        for (; r < t.rows; r += MMA_WARPS)
            normalise_long<MANY>(f.a, to.row(r), to.step, x_row(f, in, t.row + r), gain, shift);
        return;
    }
    for (; r < t.rows; r += R * MMA_WARPS) {
        /* without a second row: the first one again */
        int second = r + MMA_WARPS < t.rows ? r + MMA_WARPS : r;
        bf16 *const where[2] = {to.row(r), to.row(second)};
        const x_row x[2] = {x_row(f, in, t.row + r), x_row(f, in, t.row + second)};
        if (MANY && k == N * 64)
            normalise_two_rows<N / 2>(f.a, where, to.step, x, gain, shift);
        else if (k == N * 64)
            normalise_in_registers<R, N, true>(f.a, where, to.step, x, gain, shift);
        else
            normalise_in_registers<R, N, false>(f.a, where, to.step, x, gain, shift);
    }
}

/* Mean and 1 / deviation of rows that the result is added to and that still lack their norm, one
 * warp each: on[0] is the group's first row's. */
template <bool MANY>
__device__ inline void residual_statistics(const decode_gemm &f, const block_group &t,
                                           const flagged_reader &in, float2 *on)
{
    constexpr int N = 8;
    int lane = threadIdx.x % 32, pairs = (int)f.a.n / 2;
    float each = __fdividef(1, (float)f.a.n);
    for (int r = (int)threadIdx.x / 32; r < t.rows; r += MMA_WARPS) {
        const x_row x(f.a.residual, f.a.n, in, t.row + r);
        float2 first[N];
        x.get<N, false, !MANY>(first, lane, pairs);
        auto sum_of = [&](auto g) {
            float s = 0;
#pragma unroll
            for (int u = 0; u < N; u++)
                if (lane + u * 32 < pairs) s += g(first[u].x) + g(first[u].y);
            for (int i = lane + N * 32; i < pairs; i += 4 * 32) {
                float2 v[4];
                x.get<4, false, !MANY>(v, i, pairs);
#pragma unroll
                for (int u = 0; u < 4; u++)
                    if (i + u * 32 < pairs) s += g(v[u].x) + g(v[u].y);
            }
            return warp_allreduce(s, sum_op()) * each;
        };
        float mean = f.a.residual_norm == FV_NORM_LAYER ? sum_of([](float e) { return e; }) : 0,
              square = sum_of([&](float e) { return (e - mean) * (e - mean); });
        if (lane == 0) on[r] = make_float2(mean, rsqrtf(square + f.a.residual_eps));
    }
}

/* The MMA threads split evenly over the rows: a power of two of threads per row. */
struct row_split {
    int threads, row, first;
    __device__ row_split(int rows)
    {
        int bits = 32 - __clz(rows - 1);
        threads = DECODE_THREADS >> bits;
        row = (int)threadIdx.x / threads;
        first = (int)threadIdx.x % threads;
    }
};

/* bf16 rows from flagged words (two elements each). */
__device__ inline void load_flagged_rows(const decode_gemm &f, bf16 *to, const block_group &t,
                                         const flagged_reader &in)
{
    int k = f.k;
    row_split s(t.rows);
    if (s.row >= t.rows) return;
    to += s.row * x_stride(k);
    in.pairs<4>((t.row + s.row) * k / 2, s.first, k / 4, s.threads,
                [&](int, int i, unsigned a, unsigned b) {
                    unsigned *pair = (unsigned *)to + pair_at<false>(2 * i);
                    pair[0] = a, pair[2] = b;
                });
}

/* bf16 rows from global memory, in pair_at's order. */
__device__ inline void load_permuted_rows(const decode_gemm &f, bf16 *to, const block_group &t)
{
    row_split s(t.rows);
    const bf16 *x = (const bf16 *)f.a.x + (t.row + s.row) * (int64_t)f.k;
    for (int i = s.first * 8; i < f.k && s.row < t.rows; i += s.threads * 8) {
        uint4 v = *(const uint4 *)(x + i);
        *(uint4 *)(to + s.row * x_stride(f.k) + i) = make_uint4(v.x, v.z, v.y, v.w);
    }
}

/* f32 rows, rounded to bf16. */
template <bool MANY>
__device__ inline void load_rounded_rows(const decode_gemm &f, const x_rows &rows,
                                         const block_group &t, const flagged_reader &in)
{
    constexpr int AHEAD = MANY ? 6 : 3;
    int k = f.k;
    row_split s(t.rows);
    if (s.row >= t.rows) return;
    bf16 *to = rows.row(s.row);
    if (!MANY && in.area) {
        in.pairs<AHEAD>((t.row + s.row) * k, s.first, k / 2, s.threads,
                        [&](int, int i, unsigned a, unsigned b) {
                            store_bf16x2(to + 2 * pair_at<false>(i),
                                         make_float2(__uint_as_float(a), __uint_as_float(b)));
                        });
        return;
    }
    const float4 *from = (const float4 *)((const float *)f.a.x + (t.row + s.row) * (int64_t)k);
    for (int i0 = s.first; i0 < k / 4; i0 += AHEAD * s.threads) {
        float4 v[AHEAD];
#pragma unroll
        for (int u = 0; u < AHEAD; u++) v[u] = from[min(i0 + u * s.threads, k / 4 - 1)];
#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
            int i = min(i0 + u * s.threads, k / 4 - 1);
            store_bf16x2(to + 2 * rows.step * pair_at<MANY>(2 * i), make_float2(v[u].x, v[u].y));
            store_bf16x2(to + 2 * rows.step * pair_at<MANY>(2 * i + 1),
                         make_float2(v[u].z, v[u].w));
        }
    }
}

/* The block group's rows of x in smem. */
template <bool MANY>
__device__ inline void load_x(const decode_gemm &f, bf16 *to, const block_group &t, slot_ring &ring,
                              const unsigned char *slots, unsigned epoch)
{
    int k = f.k;
    const x_rows rows(to, k, MANY && f.tile_per_warp);
    flagged_reader in = MANY ? flagged_reader{NULL, 0} : f.in.reader(epoch);
    /* bf16: the activation of an op before (half), never normalised; many rows come chunk by chunk
     * (mega_gemm_many.h) */
    if (!MANY && f.a.xt == FV_BF16) {
        if (in.area)
            load_flagged_rows(f, to, t, in);
        else
            load_permuted_rows(f, to, t);
        return;
    }
    if (!f.a.norm) {
        load_rounded_rows<MANY>(f, rows, t, in);
        return;
    }
    /* the producer has loaded gain and shift into the next slot, if they fit; one call for both
     * cases, since the norm is a third of the kernel's code */
    bool in_slot = has_gain(f);
    const float *gain = (const float *)f.a.gain, *shift = (const float *)f.a.shift;
    if (in_slot) {
        const float *slot = (const float *)(slots + ring.i * SLOT_BYTES);
        mbarrier_wait(ring.full(), ring.laps & 1);
        if (shift) shift = slot + (gain ? k : 0);
        if (gain) gain = slot;
    }
    normalise_all<MANY>(f, rows, t, in, gain, shift);
    if (!in_slot) return;
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(ring.empty());
    ring.next();
}

#endif
