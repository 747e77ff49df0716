/* norm_warp.h - norms of rows that a warp can hold in registers: no shared memory, no waiting for other warps.
 *
 * Lane l has the packs l, l + 32, ... of a row, P of them.  The gradients of gain and bias are summed on the way: a block
 * adds up its rows, for each warp in registers and then over warps, and leaves one piece. */
#ifndef FV_CUDA_NORM_WARP_H
#define FV_CUDA_NORM_WARP_H

#include "cuda.h"

#define NORM_WARPS 8

template <class T> struct norm_args {
    T *y, *sum;
    float *mean, *rstd; /* mean NULL: RMS norm */
    const T *x, *a, *gain, *bias;
    int64_t cols;
    float eps;
};

template <class T> struct back_args {
    sink<T> dx;
    const T *dy, *x, *gain;
    const float *mean, *rstd;
    int64_t rows, cols;
};

/* y = gain * (x - mean) * rstd + bias,  rstd = 1 / sqrt(var + eps), of row r, which a warp holds. */
template <class T, int P, int V> __device__ inline void norm_held(float (&v)[P][V], const norm_args<T> &n, int64_t r)
{
    int lane = threadIdx.x % 32;
    float m = 0, var = 0;
    if (n.mean) {
#pragma unroll
        for (int p = 0; p < P; p++)
#pragma unroll
            for (int j = 0; j < V; j++) m += v[p][j];
        m = warp_all(m, add_up()) / (float)n.cols;
    }
#pragma unroll
    for (int p = 0; p < P; p++)
#pragma unroll
        for (int j = 0; j < V; j++) var += (v[p][j] - m) * (v[p][j] - m);
    float scale = 1 / sqrtf(warp_all(var, add_up()) / (float)n.cols + n.eps);
    if (lane == 0) {
        if (n.mean) n.mean[r] = m;
        n.rstd[r] = scale;
    }
#pragma unroll
    for (int p = 0; p < P; p++) {
        float g[V], b[V];
        if (n.gain) load(g, n.gain, (p * 32 + lane) * V);
        if (n.bias) load(b, n.bias, (p * 32 + lane) * V);
#pragma unroll
        for (int j = 0; j < V; j++) v[p][j] = (v[p][j] - m) * scale * (n.gain ? g[j] : 1) + (n.bias ? b[j] : 0);
        store(n.y, r * n.cols + (p * 32 + lane) * V, v[p]);
    }
}

/* From the last row to the first: those that were written last are in the cache still. */
template <class T, int P> __global__ void __launch_bounds__(32 * NORM_WARPS) norm_by_warp(norm_args<T> n, int64_t rows)
{
    constexpr int V = 16 / sizeof(T);
    int64_t r = rows - 1 - ((int64_t)blockIdx.x * NORM_WARPS + threadIdx.x / 32), from = r * n.cols + threadIdx.x % 32 * V;
    float v[P][V];
    wait_for_others();
    let_others_start();
    if (r < 0) return;
#pragma unroll
    for (int p = 0; p < P; p++) load(v[p], n.x, from + p * 32 * V);
    if (n.a)
#pragma unroll
        for (int p = 0; p < P; p++) {
            float a[V];
            load(a, n.a, from + p * 32 * V);
#pragma unroll
            for (int j = 0; j < V; j++) v[p][j] = up(down<T>(v[p][j] + a[j])); /* what is stored is what is normalised */
            if (n.sum != n.y) store(n.sum, from + p * 32 * V, v[p]);
        }
    norm_held(v, n, r);
}

/* Makes the compiler forget what it has computed from a pack: it would keep it in registers, which are scarce. */
template <class P> __device__ inline void forget(P &p)
{
    uint32_t *w = (uint32_t *)&p;
#pragma unroll
    for (int i = 0; i < (int)(sizeof(P) / 4); i++) asm volatile("" : "+r"(w[i]));
}

/* Brings what will soon be read from memory to the chip; registers, in which it could wait, are all in use. */
__device__ inline void fetch_soon(const void *p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

/* With g = dy * gain and n = (x - mean) * rstd:  dx = rstd * (g - mean(g) - n * mean(g * n)); mean(g) drops out without mean.
 * part (2,blocks,cols): the block's sums of dy * n, and of dy. */
template <class T, int P>
__global__ void __launch_bounds__(32 * NORM_WARPS, P <= 3 ? 2 : 1)
    norm_back_by_warp(float *part, back_args<T> a, int64_t per_block)
{
    constexpr int V = 16 / sizeof(T);
    extern __shared__ float sums[]; /* (NORM_WARPS,cols) */
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int64_t r = (int64_t)blockIdx.x * per_block + warp, end = (int64_t)(blockIdx.x + 1) * per_block;
    float dg[P][V] = {}, db[P][V] = {};
    bool onto = a.dx.p && a.dx.add && !a.dx.wide;
    if (end > a.rows) end = a.rows;
    for (; r < end; r += NORM_WARPS) {
        float m = a.mean ? a.mean[r] : 0, scale = a.rstd[r], gs = 0, gns = 0;
        int64_t next = (r + NORM_WARPS < end ? r + NORM_WARPS : r) * a.cols + lane * V;
#pragma unroll
        for (int p = 0; p < P; p++) {
            fetch_soon(a.dy + next + p * 32 * V);
            fetch_soon(a.x + next + p * 32 * V);
            if (onto) fetch_soon((const T *)a.dx.p + next + p * 32 * V);
        }
        pack<T, V> d[P], x[P]; /* kept as they are and unpacked twice */
#pragma unroll
        for (int p = 0; p < P; p++) {
            d[p] = *(const pack<T, V> *)(a.dy + r * a.cols + (p * 32 + lane) * V);
            x[p] = *(const pack<T, V> *)(a.x + r * a.cols + (p * 32 + lane) * V);
        }
#pragma unroll
        for (int p = 0; p < P; p++) {
            float g[V];
            if (a.gain) load(g, a.gain, (p * 32 + lane) * V); /* from the cache, row after row */
#pragma unroll
            for (int j = 0; j < V; j++) {
                float dy = up(d[p].v[j]), n = (up(x[p].v[j]) - m) * scale, u = a.gain ? dy * g[j] : dy;
                dg[p][j] += dy * n;
                db[p][j] += dy;
                gs += u;
                gns += u * n;
            }
        }
        gs = a.mean ? warp_all(gs, add_up()) / (float)a.cols : 0;
        gns = warp_all(gns, add_up()) / (float)a.cols;
        if (!a.dx.p) continue;
#pragma unroll
        for (int p = 0; p < P; p++) {
            float u[V], g[V];
            forget(d[p]), forget(x[p]);
            if (a.gain) load(g, a.gain, (p * 32 + lane) * V);
#pragma unroll
            for (int j = 0; j < V; j++) {
                float dy = up(d[p].v[j]), n = (up(x[p].v[j]) - m) * scale;
                u[j] = scale * ((a.gain ? dy * g[j] : dy) - gs - n * gns);
            }
            deliver(a.dx, r * a.cols + (p * 32 + lane) * V, u);
        }
    }
    if (!part) return;
    for (int which = 0; which < 2; which++) {
        __syncthreads();
#pragma unroll
        for (int p = 0; p < P; p++) store(sums, warp * a.cols + (p * 32 + lane) * V, which ? db[p] : dg[p]);
        __syncthreads();
        for (int64_t c = threadIdx.x; c < a.cols; c += blockDim.x) {
            float sum = 0;
            for (int w = 0; w < NORM_WARPS; w++) sum += sums[w * a.cols + c];
            part[((int64_t)which * gridDim.x + blockIdx.x) * a.cols + c] = sum;
        }
    }
}

/* Packs that each lane would hold, or 0 where rows are not for a warp. */
template <class T> static int packs_of(int64_t cols)
{
    constexpr int V = 16 / sizeof(T);
    int64_t packs = cols / (32 * V);
    bool fits = packs <= 4 || (packs == 6 && sizeof(T) == 4);
    return cols % (32 * V) == 0 && fits ? (int)packs : 0;
}

/* Rows of one block, by their number alone: enough blocks for a large chip, pieces few enough to be summed. */
static inline int64_t rows_of_block(int64_t rows) { return rows >= 16384 ? 64 : rows >= 4096 ? 32 : NORM_WARPS; }

template <class T, int P> static void norm_as(fv_stream *s, const char *name, const norm_args<T> &n, int64_t rows)
{
    launch_early(s, name, true, norm_by_warp<T, P>, dim3((unsigned)ceil_div(rows, NORM_WARPS)), 32 * NORM_WARPS, 0, n, rows);
}

template <class T, int P> static void norm_back_as(fv_stream *s, const char *name, const back_args<T> &a, float *part)
{
    int64_t per_block = rows_of_block(a.rows);
    size_t shared = (size_t)(NORM_WARPS * a.cols) * sizeof(float);
    launch(s, name, norm_back_by_warp<T, P>, dim3((unsigned)ceil_div(a.rows, per_block)), 32 * NORM_WARPS, shared, part, a,
           per_block);
}

/* Six packs are rows of 768 numbers in f32; in 16 bits they would not fit a lane's registers. */
template <class T> static void norm_in_registers(fv_stream *s, const char *name, const norm_args<T> &n, int64_t rows, int packs)
{
    switch (packs) {
    case 1: norm_as<T, 1>(s, name, n, rows); break;
    case 2: norm_as<T, 2>(s, name, n, rows); break;
    case 3: norm_as<T, 3>(s, name, n, rows); break;
    case 4: norm_as<T, 4>(s, name, n, rows); break;
    default:
        if constexpr (sizeof(T) == 4) norm_as<T, 6>(s, name, n, rows);
    }
}

template <class T>
static void norm_back_in_registers(fv_stream *s, const char *name, const back_args<T> &a, float *part, int packs)
{
    switch (packs) {
    case 1: norm_back_as<T, 1>(s, name, a, part); break;
    case 2: norm_back_as<T, 2>(s, name, a, part); break;
    case 3: norm_back_as<T, 3>(s, name, a, part); break;
    case 4: norm_back_as<T, 4>(s, name, a, part); break;
    default:
        if constexpr (sizeof(T) == 4) norm_back_as<T, 6>(s, name, a, part);
    }
}

#endif
