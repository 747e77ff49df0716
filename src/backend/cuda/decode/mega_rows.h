/* mega_rows.h - rows of x of a product, from memory or by mail, as bf16 in shared memory,
 * normalised where that is asked. */
#ifndef FV_CUDA_DECODE_MEGA_ROWS_H
#define FV_CUDA_DECODE_MEGA_ROWS_H

#include "mega.h"

__device__ inline int x_stride(int k) { return k + 32; }

/* Few rows lie in shared memory so that 16 bytes of one are a whole left factor: of four
 * neighbouring pairs the second and the third have changed places.  Its upper rows are for the
 * second product (see multiply). */
template <bool MANY> __device__ inline int pair_at(int i)
{
    return MANY ? i : (i & ~3) | (i & 1) << 1 | (i & 2) >> 1;
}

__device__ inline void store_bf16x2(bf16 *to, float2 v)
{
    *(__nv_bfloat162 *)to = __float22bfloat162_rn(v);
}

/* Pairs of numbers of one row, from memory or by mail. */
struct row_of_x {
    const float *x;
    const flagged_word *sent; /* NULL: from memory */
    unsigned epoch;
    __device__ row_of_x(const decode_gemm &f, const flagged_reader &in, int row)
        : x((const float *)f.a.x + row * (int64_t)f.k),
          sent(in.area ? in.area + row * (int64_t)f.k : NULL), epoch(in.epoch)
    {
    }
    /* Pairs first, first + 32, ..: N of them, or (not WHOLE) the row's last once more where it is
     * shorter.  MAIL: it may be. */
    template <int N, bool WHOLE, bool MAIL>
    __device__ void get(float2 (&v)[N], int first, int pairs) const
    {
        if (MAIL && sent) {
            flagged_word a[N], b[N];
            bool all;
            do {
                all = true;
#pragma unroll
                for (int u = 0; u < N; u++)
                    load_flagged2(a[u], b[u],
                                  sent + 2 * (WHOLE ? first + u * 32
                                                    : min(first + u * 32, pairs - 1)));
#pragma unroll
                for (int u = 0; u < N; u++)
                    all = all && (unsigned)(a[u] >> 32) == epoch && (unsigned)(b[u] >> 32) == epoch;
            } while (!all);
#pragma unroll
            for (int u = 0; u < N; u++)
                v[u] = make_float2(__uint_as_float((unsigned)a[u]),
                                   __uint_as_float((unsigned)b[u]));
            return;
        }
#pragma unroll
        for (int u = 0; u < N; u++)
            v[u] = ((const float2 *)x)[WHOLE ? first + u * 32 : min(first + u * 32, pairs - 1)];
    }
};

__device__ inline float2 gained(float2 p, float mean, float scale, const float *gain,
                                const float *shift, int i)
{
    float2 g = gain ? ((const float2 *)gain)[i] : make_float2(1, 1),
           s = shift ? ((const float2 *)shift)[i] : make_float2(0, 0);
    return make_float2((p.x - mean) * scale * g.x + s.x, (p.y - mean) * scale * g.y + s.y);
}

/* R rows, normalised by a warp and rounded; up to N * 64 numbers each, which stay in registers.
 * WHOLE: just so many. */
template <int R, int N, bool WHOLE>
__device__ inline void normalise_held(const fv_fused_linear &a, bf16 *const (&to)[2],
                                      const row_of_x (&x)[2], const float *gain, const float *shift)
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
                store_bf16x2(to[r] + 2 * (pair_at<R == 2>(lane) + u * 32),
                             gained(v[r][u], mean[r], scale[r], gain, shift, lane + u * 32));
}

/* Two rows of N * 128 numbers from memory at once. */
template <int N>
__device__ inline void normalise_two(const fv_fused_linear &a, bf16 *const (&to)[2],
                                     const row_of_x (&x)[2], const float *gain, const float *shift)
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
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float4 p = v[r][u];
            __nv_bfloat162 both[2] = {__floats2bfloat162_rn(p.x * sum[r] * g.x + s.x,
                                                            p.y * sum[r] * g.y + s.y),
                                      __floats2bfloat162_rn(p.z * sum[r] * g.z + s.z,
                                                            p.w * sum[r] * g.w + s.w)};
            *(uint2 *)(to[r] + 4 * (lane + u * 32)) = *(const uint2 *)both;
        }
    }
}

/* A row of any length, read again and again. */
template <bool MANY>
__device__ inline void normalise_long(const fv_fused_linear &a, bf16 *to, row_of_x x,
                                      const float *gain, const float *shift)
{
    int lane = threadIdx.x % 32, pairs = (int)a.k / 2;
    float mean = 0, sum = 0, each = __fdividef(1, (float)a.k);
    float2 v[4];
    auto each_of = [&](auto f) {
        for (int i0 = lane; i0 < pairs; i0 += 4 * 32) {
            x.get<4, false, true>(v, i0, pairs);
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
        store_bf16x2(to + 2 * pair_at<MANY>(i), gained(p, mean, scale, gain, shift, i));
    });
}

/* All rows of this block; a warp has every eighth. */
template <bool MANY>
__device__ inline void normalise_all(const decode_gemm &f, bf16 *to, const block_group &t,
                                     const flagged_reader &in, const float *gain,
                                     const float *shift)
{
    constexpr int R = MANY ? 2 : 1, N = 12;
    int k = f.k, r = (int)threadIdx.x / 32, stride = x_stride(k);
    if (k > N * 64) {
        for (; r < t.rows; r += MMA_WARPS)
            normalise_long<MANY>(f.a, to + r * stride, row_of_x(f, in, t.row + r), gain, shift);
        return;
    }
    for (; r < t.rows; r += R * MMA_WARPS) {
        /* perhaps the first once more */
        int second = r + MMA_WARPS < t.rows ? r + MMA_WARPS : r;
        bf16 *const where[2] = {to + r * stride, to + second * stride};
        const row_of_x x[2] = {row_of_x(f, in, t.row + r), row_of_x(f, in, t.row + second)};
        if (MANY && k == N * 64)
            normalise_two<N / 2>(f.a, where, x, gain, shift);
        else if (k == N * 64)
            normalise_held<R, N, true>(f.a, where, x, gain, shift);
        else
            normalise_held<R, N, false>(f.a, where, x, gain, shift);
    }
}

/* Threads that share a row, where all of a block share all rows: a power of two. */
struct row_share {
    int threads, row, first;
    __device__ row_share(int rows)
    {
        int bits = 32 - __clz(rows - 1);
        threads = DECODE_THREADS >> bits;
        row = (int)threadIdx.x / threads;
        first = (int)threadIdx.x % threads;
    }
};

/* Rows of bf16 as they were sent. */
__device__ inline void load_flagged_rows(const decode_gemm &f, bf16 *to, const block_group &t,
                                         const flagged_reader &in)
{
    int k = f.k;
    row_share s(t.rows);
    if (s.row >= t.rows) return;
    to += s.row * x_stride(k);
    in.pairs<4>((t.row + s.row) * k / 2, s.first, k / 4, s.threads,
                [&](int, int i, unsigned a, unsigned b) {
                    unsigned *pair = (unsigned *)to + pair_at<false>(2 * i);
                    pair[0] = a, pair[2] = b;
                });
}

/* Few rows of bf16 from memory. */
__device__ inline void load_permuted_rows(const decode_gemm &f, bf16 *to, const block_group &t)
{
    row_share s(t.rows);
    const bf16 *x = (const bf16 *)f.a.x + (t.row + s.row) * (int64_t)f.k;
    for (int i = s.first * 8; i < f.k && s.row < t.rows; i += s.threads * 8) {
        uint4 v = *(const uint4 *)(x + i);
        *(uint4 *)(to + s.row * x_stride(f.k) + i) = make_uint4(v.x, v.z, v.y, v.w);
    }
}

/* Columns [from, from + n) of rows of bf16 in memory, on their way once this returns: a group of
 * copies. */
__device__ inline void copy_rows(const decode_gemm &f, unsigned to, int stride,
                                 const block_group &t, int from, int n)
{
    row_share s(t.rows);
    const bf16 *x = (const bf16 *)f.a.x + (t.row + s.row) * (int64_t)f.k + from;
    for (int i = s.first * 8; i < n && s.row < t.rows; i += s.threads * 8)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                         to + (unsigned)(2 * (s.row * stride + i))),
                     "l"(x + i)
                     : "memory");
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Rows of f32, rounded. */
template <bool MANY>
__device__ inline void load_rounded_rows(const decode_gemm &f, bf16 *to, const block_group &t,
                                         const flagged_reader &in)
{
    constexpr int AHEAD = MANY ? 6 : 3;
    int k = f.k;
    row_share s(t.rows);
    if (s.row >= t.rows) return;
    to += s.row * x_stride(k);
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
            store_bf16x2(to + 2 * pair_at<MANY>(2 * i), make_float2(v[u].x, v[u].y));
            store_bf16x2(to + 2 * pair_at<MANY>(2 * i + 1), make_float2(v[u].z, v[u].w));
        }
    }
}

/* This block's rows as bf16, normalised where that is asked for. */
template <bool MANY>
__device__ inline void fetch_x(const decode_gemm &f, bf16 *to, const block_group &t, ring &ring,
                               const unsigned char *slots, unsigned epoch)
{
    int k = f.k;
    flagged_reader in = f.from.at(epoch);
    if (f.a.xt == FV_BF16) {
        if (!MANY && in.area) {
            load_flagged_rows(f, to, t, in);
        } else if (!MANY) {
            load_permuted_rows(f, to, t);
        } else {
            copy_rows(f, at(to), x_stride(k), t, 0, k);
            asm volatile("cp.async.wait_all;" ::: "memory");
        }
        return;
    }
    if (!f.a.norm) {
        load_rounded_rows<MANY>(f, to, t, in);
        return;
    }
    if (!has_gain(f)) {
        normalise_all<MANY>(f, to, t, in, (const float *)f.a.gain, (const float *)f.a.shift);
        return;
    }
    const float *gain = (const float *)(slots + ring.i * SLOT_BYTES);
    wait(ring.full(), ring.laps & 1);
    normalise_all<MANY>(f, to, t, in, f.a.gain ? gain : NULL, f.a.shift ? gain + k : NULL);
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(ring.empty());
    ring.next();
}

#endif
