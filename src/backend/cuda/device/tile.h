/* tile.h - matrix products of a block on mma.sync: a strip of 16 rows per warp, accumulators in
 * registers.
 *
 * Accumulators c[n][e] are laid out as mma.m16n8k16 leaves them: column block n is 8 columns,
 * and of its 16 x 8 elements a thread has rows lane/4 (e = 0, 1) and lane/4 + 8 (e = 2, 3),
 * columns 2 (lane % 4) and the next.  16-bit types use mma.sync, which every chip from sm_80 on
 * has; f32 computes the same by fused multiply-adds, so that kernels are written once.  Operands
 * are in shared memory, rows of W elements padded by 16 bytes: ldmatrix then has no bank
 * conflicts. */
#ifndef FV_CUDA_DEVICE_TILE_H
#define FV_CUDA_DEVICE_TILE_H

#include "cuda.h"

template <class T, int W> constexpr int stride_of = W + 16 / (int)sizeof(T);

/* ---- tensor cores ---- */

__device__ inline void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, bf16)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
                 "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ inline void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, f16)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
                 "{%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Four 8x8 matrices of 16-bit elements; each lane has the address of one row of 16 bytes. */
__device__ inline void ldmatrix(uint32_t (&r)[4], const void *row)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at));
}

__device__ inline void ldmatrix_trans(uint32_t (&r)[4], const void *row)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at));
}

__device__ inline uint32_t pack2(float a, float b, bf16)
{
    __nv_bfloat162 v = __floats2bfloat162_rn(a, b);
    return *(uint32_t *)&v;
}
__device__ inline uint32_t pack2(float a, float b, f16)
{
    __half2 v = __floats2half2_rn(a, b);
    return *(uint32_t *)&v;
}

/* ---- c (16, 8 N) += A (16, K) B', B (8 N, K): rows of A and B are contiguous along K ---- */

/* ldmatrix gives lane l the row address l % 16 (A), l / 16 choosing the left or right 8 columns;
 * for B the four 8 x 8 matrices are two column blocks by two halves of k.  Two blocks of columns
 * share one A fragment: six registers loaded for two mma. */
template <int N, int K, int SA, int SB, class T>
__device__ inline void mul_nt(float (&c)[N][4], const T *a, const T *b)
{
    static_assert(N % 2 == 0, "two blocks of columns at a time");
    int lane = threadIdx.x % 32, which = lane / 8;
    const T *ra = a + lane % 16 * SA + lane / 16 * 8,
            *rb = b + (which / 2 * 8 + lane % 8) * SB + which % 2 * 8;
#pragma unroll
    for (int k = 0; k < K; k += 16) {
        uint32_t fa[4], fb[4];
        ldmatrix(fa, ra + k);
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            ldmatrix(fb, rb + n * 8 * SB + k);
            mma(c[n], fa, fb[0], fb[1], T());
            mma(c[n + 1], fa, fb[2], fb[3], T());
        }
    }
}

/* A fragments of M strips of 16 rows, one after the other.  They stay in registers; from K = 128
 * on there are too many of them, and each use loads them again. */
template <class T, int M, int K, int S> struct a_fragments {
    static constexpr bool IN_REGISTERS = K < 128;
    const T *at;
    uint32_t f[M][IN_REGISTERS ? K / 16 : 1][4];

    __device__ void load_slice(int k, int slot)
    {
        int lane = threadIdx.x % 32;
#pragma unroll
        for (int m = 0; m < M; m++)
            ldmatrix(f[m][slot], at + (m * 16 + lane % 16) * S + lane / 16 * 8 + k);
    }
    __device__ void load(const T *a)
    {
        at = a;
#pragma unroll
        for (int k = 0; IN_REGISTERS && k < K; k += 16) load_slice(k, k / 16);
    }
};

/* c[m] += A_m B' for M strips at once: a B fragment is loaded once for all of them. */
template <int M, int N, int K, int S, class T>
__device__ inline void mul_nt(float (&c)[M][N][4], a_fragments<T, M, K, S> &a, const T *b)
{
    int lane = threadIdx.x % 32, which = lane / 8;
    const T *rb = b + (which / 2 * 8 + lane % 8) * S + which % 2 * 8;
#pragma unroll
    for (int k = 0; k < K; k += 16) {
        if constexpr (!a_fragments<T, M, K, S>::IN_REGISTERS) a.load_slice(k, 0);
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            uint32_t fb[4];
            ldmatrix(fb, rb + n * 8 * S + k);
#pragma unroll
            for (int m = 0; m < M; m++) {
                const uint32_t(&fa)[4] = a.f[m][a_fragments<T, M, K, S>::IN_REGISTERS ? k / 16 : 0];
                mma(c[m][n], fa, fb[0], fb[1], T());
                mma(c[m][n + 1], fa, fb[2], fb[3], T());
            }
        }
    }
}

/* One chain of fmaf along k, never left to the compiler: a score then has the same bits in the
 * forward pass, the backward passes (transposed or not) and the exact weights. */
__device__ inline float dot4(float4 a, float4 b, float sum)
{
    return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

template <int N, int K, int SA, int SB>
__device__ inline void mul_nt(float (&c)[N][4], const float *a, const float *b)
{
    int lane = threadIdx.x % 32;
    const float *ra = a + lane / 4 * SA, *rb = b + lane % 4 * 2 * SB;
#pragma unroll 2
    for (int k = 0; k < K; k += 4) {
        float4 u = *(const float4 *)(ra + k), v = *(const float4 *)(ra + 8 * SA + k);
#pragma unroll
        for (int n = 0; n < N; n++) {
            float4 x = *(const float4 *)(rb + n * 8 * SB + k),
                   y = *(const float4 *)(rb + (n * 8 + 1) * SB + k);
            c[n][0] = dot4(u, x, c[n][0]), c[n][1] = dot4(u, y, c[n][1]);
            c[n][2] = dot4(v, x, c[n][2]), c[n][3] = dot4(v, y, c[n][3]);
        }
    }
}

/* ---- c (16, 8 N) += P (16, 8 K) B: P from accumulators, B (8 K, 8 N) with rows contiguous
 * along N ---- */

/* Accumulators become A fragments without leaving their thread: scratch is not used.
 * The accumulator layout of one mma (rows lane/4 and + 8, columns 2 (lane%4)) is the A layout of
 * the next with two column blocks side by side: p goes from scores to operand by a rounding
 * alone. */
template <int N, int K, int SB, class T>
__device__ inline void mul_nn(float (&c)[N][4], const float (&p)[K][4], const T *b, float *scratch)
{
    static_assert(N % 2 == 0 && K % 2 == 0, "16 by 16 at a time");
    (void)scratch;
    int lane = threadIdx.x % 32, which = lane / 8;
    const T *rb = b + (which % 2 * 8 + lane % 8) * SB + which / 2 * 8;
#pragma unroll
    for (int k = 0; k < K; k += 2) {
        uint32_t fb[4];
        uint32_t fa[4] = {pack2(p[k][0], p[k][1], T()), pack2(p[k][2], p[k][3], T()),
                          pack2(p[k + 1][0], p[k + 1][1], T()),
                          pack2(p[k + 1][2], p[k + 1][3], T())};
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            ldmatrix_trans(fb, rb + k * 8 * SB + n * 8);
            mma(c[n], fa, fb[0], fb[1], T());
            mma(c[n + 1], fa, fb[2], fb[3], T());
        }
    }
}

/* For M strips at once. */
template <int M, int N, int K, int SB, class T>
__device__ inline void mul_nn(float (&c)[M][N][4], const float (&p)[M][K][4], const T *b)
{
    int lane = threadIdx.x % 32, which = lane / 8;
    const T *rb = b + (which % 2 * 8 + lane % 8) * SB + which / 2 * 8;
#pragma unroll
    for (int k = 0; k < K; k += 2) {
        uint32_t fa[M][4];
#pragma unroll
        for (int m = 0; m < M; m++) {
            fa[m][0] = pack2(p[m][k][0], p[m][k][1], T()),
            fa[m][1] = pack2(p[m][k][2], p[m][k][3], T());
            fa[m][2] = pack2(p[m][k + 1][0], p[m][k + 1][1], T()),
            fa[m][3] = pack2(p[m][k + 1][2], p[m][k + 1][3], T());
        }
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            uint32_t fb[4];
            ldmatrix_trans(fb, rb + k * 8 * SB + n * 8);
#pragma unroll
            for (int m = 0; m < M; m++) {
                mma(c[m][n], fa[m], fb[0], fb[1], T());
                mma(c[m][n + 1], fa[m], fb[2], fb[3], T());
            }
        }
    }
}

/* Without tensor cores a thread needs the accumulators of others: scratch is 16 (8 K + 4) floats
 * of this warp. */
template <int N, int K, int SB>
__device__ inline void mul_nn(float (&c)[N][4], const float (&p)[K][4], const float *b,
                              float *scratch)
{
    constexpr int S = 8 * K + 4;
    int lane = threadIdx.x % 32, r = lane / 4, q = lane % 4 * 2;
    __syncwarp();
#pragma unroll
    for (int k = 0; k < K; k++) {
        *(float2 *)(scratch + r * S + k * 8 + q) = make_float2(p[k][0], p[k][1]);
        *(float2 *)(scratch + (r + 8) * S + k * 8 + q) = make_float2(p[k][2], p[k][3]);
    }
    __syncwarp();
#pragma unroll 2
    for (int k = 0; k < 8 * K; k++) {
        float u = scratch[r * S + k], v = scratch[(r + 8) * S + k];
#pragma unroll
        for (int n = 0; n < N; n++) {
            float2 x = *(const float2 *)(b + k * SB + n * 8 + q);
            c[n][0] = fmaf(u, x.x, c[n][0]);
            c[n][1] = fmaf(u, x.y, c[n][1]);
            c[n][2] = fmaf(v, x.x, c[n][2]);
            c[n][3] = fmaf(v, x.y, c[n][3]);
        }
    }
    __syncwarp();
}

template <int N> __device__ inline void clear(float (&c)[N][4])
{
#pragma unroll
    for (int n = 0; n < N; n++) c[n][0] = c[n][1] = c[n][2] = c[n][3] = 0;
}

/* ---- from global to shared memory ---- */

/* Loads ROWS rows of W elements, of which n rows and `width` columns exist, and zeros for the
 * rest. vectorised: rows are aligned to 16 bytes and width is whole vectors; then the loads are
 * cp.async, complete after cp_async_wait. */
template <int ROWS, int W, class T>
__device__ inline void load_tile_async(T *to, const T *from, int64_t step, int64_t n, int width,
                                       bool vectorised)
{
    constexpr int S = stride_of<T, W>, V = 16 / sizeof(T);
    if (vectorised) {
#pragma unroll 4
        for (int e = threadIdx.x; e < ROWS * (W / V); e += blockDim.x) {
            int r = e / (W / V), c = e % (W / V) * V;
            bool in_bounds = r < n && c < width;
            uint32_t at = (uint32_t)__cvta_generic_to_shared(to + r * S + c);
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at),
                         "l"(in_bounds ? from + r * step + c : from), "r"(in_bounds ? 16 : 0));
        }
    } else {
        for (int e = threadIdx.x; e < ROWS * W; e += blockDim.x) {
            int r = e / W, c = e % W;
            to[r * S + c] = r < n && c < width ? from[r * step + c] : from_float<T>(0);
        }
    }
    asm volatile("cp.async.commit_group;");
}

template <int LEFT> __device__ inline void cp_async_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT));
}

#endif
