/* tile.h - small matrix products inside a block: 16 rows for each warp, sums in registers.
 *
 * Sums lie as the tensor cores leave them: of a strip of 16 rows and 8n columns a thread holds, for
 * each 8 columns, four numbers: rows lane/4 and lane/4 + 8, columns 2 (lane%4) and the next.
 * 16-bit types use mma.sync, which every chip from sm_80 on has; f32 does the same by fused
 * multiply-adds, so that everything built on this is written once.  Factors stand in shared memory
 * in rows of W plus 16 bytes, which keeps neighbouring rows in different banks. */
#ifndef FV_CUDA_TILE_H
#define FV_CUDA_TILE_H

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

/* Four 8x8 matrices; each thread names one row of 16 bytes. */
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

/* ---- c (16, 8 N) += A (16, K) B', B (8 N, K): rows of both are dense along K ---- */

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

/* The first factor as the tensor cores want it, M strips of 16 rows one behind the other: kept in
 * registers, or where those are scarce (K from 128 on) read again each time. */
template <class T, int M, int K, int S> struct strips {
    static constexpr bool kept = K < 128;
    const T *at;
    uint32_t f[M][kept ? K / 16 : 1][4];

    __device__ void read(int k, int slot)
    {
        int lane = threadIdx.x % 32;
#pragma unroll
        for (int m = 0; m < M; m++)
            ldmatrix(f[m][slot], at + (m * 16 + lane % 16) * S + lane / 16 * 8 + k);
    }
    __device__ void take(const T *a)
    {
        at = a;
#pragma unroll
        for (int k = 0; kept && k < K; k += 16) read(k, k / 16);
    }
};

/* c[m] += strip m B': what is read of the second factor serves all strips. */
template <int M, int N, int K, int S, class T>
__device__ inline void mul_nt(float (&c)[M][N][4], strips<T, M, K, S> &a, const T *b)
{
    int lane = threadIdx.x % 32, which = lane / 8;
    const T *rb = b + (which / 2 * 8 + lane % 8) * S + which % 2 * 8;
#pragma unroll
    for (int k = 0; k < K; k += 16) {
        if constexpr (!strips<T, M, K, S>::kept) a.read(k, 0);
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            uint32_t fb[4];
            ldmatrix(fb, rb + n * 8 * S + k);
#pragma unroll
            for (int m = 0; m < M; m++) {
                const uint32_t(&fa)[4] = a.f[m][strips<T, M, K, S>::kept ? k / 16 : 0];
                mma(c[m][n], fa, fb[0], fb[1], T());
                mma(c[m][n + 1], fa, fb[2], fb[3], T());
            }
        }
    }
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
            c[n][0] += u.x * x.x + u.y * x.y + u.z * x.z + u.w * x.w;
            c[n][1] += u.x * y.x + u.y * y.y + u.z * y.z + u.w * y.w;
            c[n][2] += v.x * x.x + v.y * x.y + v.z * x.z + v.w * x.w;
            c[n][3] += v.x * y.x + v.y * y.y + v.z * y.z + v.w * y.w;
        }
    }
}

/* ---- c (16, 8 N) += P (16, 8 K) B, P from registers, B (8 K, 8 N) with rows dense along N ---- */

/* spare is not used: sums turn into a factor without leaving their threads. */
template <int N, int K, int SB, class T>
__device__ inline void mul_nn(float (&c)[N][4], const float (&p)[K][4], const T *b, float *spare)
{
    static_assert(N % 2 == 0 && K % 2 == 0, "16 by 16 at a time");
    (void)spare;
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

/* spare: 16 (8 K + 4) floats of this warp, through which threads see one another's numbers. */
template <int N, int K, int SB>
__device__ inline void mul_nn(float (&c)[N][4], const float (&p)[K][4], const float *b,
                              float *spare)
{
    constexpr int S = 8 * K + 4;
    int lane = threadIdx.x % 32, r = lane / 4, q = lane % 4 * 2;
    __syncwarp();
#pragma unroll
    for (int k = 0; k < K; k++) {
        *(float2 *)(spare + r * S + k * 8 + q) = make_float2(p[k][0], p[k][1]);
        *(float2 *)(spare + (r + 8) * S + k * 8 + q) = make_float2(p[k][2], p[k][3]);
    }
    __syncwarp();
#pragma unroll 2
    for (int k = 0; k < 8 * K; k++) {
        float u = spare[r * S + k], v = spare[(r + 8) * S + k];
#pragma unroll
        for (int n = 0; n < N; n++) {
            float2 x = *(const float2 *)(b + k * SB + n * 8 + q);
            c[n][0] += u * x.x;
            c[n][1] += u * x.y;
            c[n][2] += v * x.x;
            c[n][3] += v * x.y;
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

/* ROWS rows of W numbers, of which n rows and `width` numbers exist; the rest becomes 0.  quick:
 * rows begin at multiples of 16 bytes and width is one of so many; then the copy runs beside what
 * follows, until all_arrived. */
template <int ROWS, int W, class T>
__device__ inline void fetch(T *to, const T *from, int64_t step, int64_t n, int width,
                             bool vectorised)
{
    constexpr int S = stride_of<T, W>, V = 16 / sizeof(T);
    if (vectorised) {
#pragma unroll 4
        for (int e = threadIdx.x; e < ROWS * (W / V); e += blockDim.x) {
            int r = e / (W / V), c = e % (W / V) * V;
            bool there = r < n && c < width;
            uint32_t at = (uint32_t)__cvta_generic_to_shared(to + r * S + c);
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at),
                         "l"(there ? from + r * step + c : from), "r"(there ? 16 : 0));
        }
    } else {
        for (int e = threadIdx.x; e < ROWS * W; e += blockDim.x) {
            int r = e / W, c = e % W;
            to[r * S + c] = r < n && c < width ? from[r * step + c] : from_float<T>(0);
        }
    }
    asm volatile("cp.async.commit_group;");
}

template <int LEFT> __device__ inline void arrived()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT));
}

#endif
