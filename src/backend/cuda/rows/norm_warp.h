/* norm_warp.h - norms of rows that a warp can hold in registers: no shared memory, no waiting for
 * other warps; and their gradient, with the sums over rows that the gradients of gain and bias are.
 *
 * Lane l has the packs l, l + 32, ... of a row, P of them. */
#ifndef FV_CUDA_NORM_WARP_H
#define FV_CUDA_NORM_WARP_H

#include "backend/cuda/device/cuda.h"

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

/* y = gain * (x - mean) * rstd + bias,  rstd = 1 / sqrt(var + eps), of row r, which a warp
 * holds. */
template <class T, int P, int V>
__device__ inline void norm_held(float (&v)[P][V], const norm_args<T> &n, int64_t r)
{
    int lane = threadIdx.x % 32;
    float m = 0, var = 0;
    if (n.mean) {
#pragma unroll
        for (int p = 0; p < P; p++)
#pragma unroll
            for (int j = 0; j < V; j++) m += v[p][j];
        m = warp_allreduce(m, sum_op()) / (float)n.cols;
    }
#pragma unroll
    for (int p = 0; p < P; p++)
#pragma unroll
        for (int j = 0; j < V; j++) var += (v[p][j] - m) * (v[p][j] - m);
    float scale = 1 / sqrtf(warp_allreduce(var, sum_op()) / (float)n.cols + n.eps);
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
        for (int j = 0; j < V; j++)
            v[p][j] = (v[p][j] - m) * scale * (n.gain ? g[j] : 1) + (n.bias ? b[j] : 0);
        store(n.y, r * n.cols + (p * 32 + lane) * V, v[p]);
    }
}

/* From the last row to the first: those that were written last are in the cache still. */
template <class T, int P>
__global__ void __launch_bounds__(32 * NORM_WARPS) norm_by_warp(norm_args<T> n, int64_t rows)
{
    constexpr int V = 16 / sizeof(T);
    int64_t r = rows - 1 - ((int64_t)blockIdx.x * NORM_WARPS + threadIdx.x / 32),
            from = r * n.cols + threadIdx.x % 32 * V;
    float v[P][V];
    pdl_wait();
    pdl_launch_dependents();
    if (r < 0) return;
#pragma unroll
    for (int p = 0; p < P; p++) load(v[p], n.x, from + p * 32 * V);
    if (n.a)
#pragma unroll
        for (int p = 0; p < P; p++) {
            float a[V];
            load(a, n.a, from + p * 32 * V);
#pragma unroll
            /* what is stored is what is normalised */
            for (int j = 0; j < V; j++) v[p][j] = to_float(from_float<T>(v[p][j] + a[j]));
            if (n.sum != n.y) store(n.sum, from + p * 32 * V, v[p]);
        }
    norm_held(v, n, r);
}

/* ---- the gradient: a block takes tile after tile of its rows, one row for each of its warps ----
 *
 * While a tile is worked on the next one is on its way to shared memory.  A warp finds the two
 * means of its row; then each thread has a pack of columns, in one row of GROUPS, so that the sums
 * over rows take few registers. */

template <int P> struct back_shape {
    static constexpr int groups = P <= 3 ? 4 : 2, warps = P * groups, threads = 32 * warps,
                         packs = 32 * P;
};

template <class T, int P> struct norm_bwd_smem {
    typedef pack<T, 16 / sizeof(T)> packed;
    static constexpr int rows = back_shape<P>::warps;
    packed tile[2][3][rows][32 * P]; /* dy, x and what dx is added to */
    packed gain[32 * P];
    float4 of_row[rows]; /* mean, rstd, the two means */
};

__device__ inline void fetch_pack(void *to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                     (unsigned)__cvta_generic_to_shared(to)),
                 "l"(from)
                 : "memory");
}

/* With g = dy * gain and n = (x - mean) * rstd: the means of g, which is 0 without mean, and of g *
 * n, of a row in shared memory. */
template <class T, int P>
__device__ inline float2 means_of_row(const norm_bwd_smem<T, P> *smem, const back_args<T> &a,
                                      int slot, int row, float m, float scale)
{
    constexpr int V = 16 / sizeof(T);
    float gs = 0, gns = 0;
#pragma unroll
    for (int p = 0; p < P; p++) {
        int at = p * 32 + threadIdx.x % 32;
        float d[V], x[V], g[V];
        load(d, (const T *)&smem->tile[slot][0][row][at], 0);
        load(x, (const T *)&smem->tile[slot][1][row][at], 0);
        load(g, (const T *)&smem->gain[at], 0);
#pragma unroll
        for (int j = 0; j < V; j++) {
            float u = d[j] * g[j];
            gs += u;
            gns += u * (x[j] - m) * scale;
        }
    }
    gs = a.mean ? warp_allreduce(gs, sum_op()) / (float)a.cols : 0;
    return {gs, warp_allreduce(gns, sum_op()) / (float)a.cols};
}

/* dx = rstd * (g - mean(g) - n * mean(g * n)).  part (sums,blocks,cols): the block's sums of dy *
 * n, of dy and, with three, of dx. */
template <class T, int P>
__global__ void __launch_bounds__(back_shape<P>::threads, P <= 3 ? 2 : 1)
    norm_back(float *part, int sums, back_args<T> a, int64_t per_block)
{
    constexpr int V = 16 / sizeof(T), TALL = back_shape<P>::warps, GROUPS = back_shape<P>::groups,
                  PACKS = 32 * P;
    extern __shared__ uint4 memory[];
    norm_bwd_smem<T, P> *smem = (norm_bwd_smem<T, P> *)memory;
    int warp = threadIdx.x / 32, at = threadIdx.x % PACKS, group = threadIdx.x / PACKS;
    int64_t first = (int64_t)blockIdx.x * per_block,
            end = first + per_block < a.rows ? first + per_block : a.rows;
    bool onto = a.dx.p && a.dx.add && !a.dx.wide;
    float dg[V] = {}, db[V] = {}, ds[V] = {}, g[V];
    auto fetch = [&](int64_t from, int slot) {
#pragma unroll
        for (int i = group; i < TALL; i += GROUPS) {
            int64_t o = (from + i) * a.cols + at * V;
            if (from + i >= end) break;
            fetch_pack(&smem->tile[slot][0][i][at], a.dy + o);
            fetch_pack(&smem->tile[slot][1][i][at], a.x + o);
            if (onto) fetch_pack(&smem->tile[slot][2][i][at], (const T *)a.dx.p + o);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
    fetch(first, 0);
#pragma unroll
    for (int j = 0; j < V; j++) g[j] = 1;
    if (a.gain) load(g, a.gain, at * V);
    if (group == 0) store((T *)&smem->gain[at], 0, g);
    int64_t r = first + warp;
    float m = a.mean && r < end ? a.mean[r] : 0, scale = r < end ? a.rstd[r] : 0;
    for (int slot = 0; first < end; first += TALL, slot ^= 1) {
        fetch(first + TALL, slot ^ 1); /* where this thread alone has read, and is done */
        float m_now = m, scale_now = scale;
        r = first + TALL + warp;
        if (r < end) m = a.mean ? a.mean[r] : 0, scale = a.rstd[r];
        asm volatile("cp.async.wait_group 1;" ::: "memory");
        __syncthreads();
        if (first + warp < end) {
            float2 means = means_of_row<T, P>(smem, a, slot, warp, m_now, scale_now);
            if (threadIdx.x % 32 == 0) smem->of_row[warp] = {m_now, scale_now, means.x, means.y};
        }
        __syncthreads();
#pragma unroll
        for (int i = group; i < TALL; i += GROUPS) {
            if (first + i >= end) break;
            float4 row = smem->of_row[i];
            float d[V], x[V], u[V];
            load(d, (const T *)&smem->tile[slot][0][i][at], 0);
            load(x, (const T *)&smem->tile[slot][1][i][at], 0);
            if (onto) load(u, (const T *)&smem->tile[slot][2][i][at], 0);
#pragma unroll
            for (int j = 0; j < V; j++) {
                float n = (x[j] - row.x) * row.y, v = row.y * (d[j] * g[j] - row.z - n * row.w);
                dg[j] += d[j] * n;
                db[j] += d[j];
                u[j] = onto ? u[j] + v : v;
                ds[j] += to_float(from_float<T>(u[j]));
            }
            int64_t o = (first + i) * a.cols + at * V;
            if (onto)
                store((T *)a.dx.p, o, u);
            else if (a.dx.p)
                sink_store(a.dx, o, u);
        }
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    float *shared = (float *)memory; /* (GROUPS,cols) */
    for (int which = 0; which < sums; which++) {
        __syncthreads();
        store(shared, group * a.cols + at * V, which == 0 ? dg : which == 1 ? db : ds);
        __syncthreads();
        for (int64_t c = threadIdx.x; c < a.cols; c += blockDim.x) {
            float sum = shared[c];
            for (int i = 1; i < GROUPS; i++) sum += shared[i * a.cols + c];
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

template <class T> static size_t back_bytes(int packs)
{
    size_t rows = (size_t)packs * (packs <= 3 ? 4 : 2);
    return (6 * rows + 1) * (size_t)packs * 32 * 16 + rows * sizeof(float4);
}

/* Rows of one block, by their number alone: enough blocks for a large chip, pieces few enough to be
 * summed. */
static inline int64_t rows_of_block(int64_t rows, int packs)
{
    int64_t tile = packs * (packs <= 3 ? 4 : 2);
    return tile * (rows >= 32768 ? 12 : rows >= 8192 ? 6 : rows >= 2048 ? 3 : 1);
}

template <class T, int P>
static void norm_as(fv_stream *s, const char *name, const norm_args<T> &n, int64_t rows)
{
    launch_pdl(s, name, true, norm_by_warp<T, P>, dim3((unsigned)ceil_div(rows, NORM_WARPS)),
               32 * NORM_WARPS, 0, n, rows);
}

template <class T, int P>
static void norm_back_as(fv_stream *s, const char *name, const back_args<T> &a, float *part,
                         int sums)
{
    int64_t per_block = rows_of_block(a.rows, P);
    launch(s, name, norm_back<T, P>, dim3((unsigned)ceil_div(a.rows, per_block)),
           back_shape<P>::threads, sizeof(norm_bwd_smem<T, P>), part, sums, a, per_block);
}

/* Six packs are rows of 768 numbers in f32; in 16 bits they would not fit a lane's registers. */
template <class T>
static void norm_in_registers(fv_stream *s, const char *name, const norm_args<T> &n, int64_t rows,
                              int packs)
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
static void norm_back_in_tiles(fv_stream *s, const char *name, const back_args<T> &a, float *part,
                               int sums, int packs)
{
    switch (packs) {
    case 1: norm_back_as<T, 1>(s, name, a, part, sums); break;
    case 2: norm_back_as<T, 2>(s, name, a, part, sums); break;
    case 3: norm_back_as<T, 3>(s, name, a, part, sums); break;
    case 4: norm_back_as<T, 4>(s, name, a, part, sums); break;
    default:
        if constexpr (sizeof(T) == 4) norm_back_as<T, 6>(s, name, a, part, sums);
    }
}

#endif
