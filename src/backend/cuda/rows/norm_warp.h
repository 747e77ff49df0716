/* norm_warp.h - LayerNorm and RMSNorm of rows that fit a warp's registers, forward and backward.
 *
 * Forward: one warp per row, no shared memory, no block barrier.  Lane l holds the vectors l, l +
 * 32, ... of the row, P of them with V elements: 16 bytes each or, where a row is an odd number of
 * halves or quarters of that (64, 128, 192 and 384 columns of 16 bits), 8 or 4.
 *
 * Backward: dx needs two means over each row, dgain and dbias sums over all rows.  A block walks
 * its rows in tiles of one row per warp, double-buffered with cp.async.  In the first half of an
 * iteration a warp reduces its row's two means; in the second the tile is transposed in roles: each
 * thread owns one vector of columns and walks the rows of its group, so the column sums stay in
 * registers.  One warp per row for both halves would need P vectors of each sum per thread. */
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

/* y = gain * (x - mean) * rstd + bias,  rstd = 1 / sqrt(var + eps); v: row r, held by the warp */
template <class T, int P, int V>
__device__ inline void norm_held(float (&v)[P][V], const norm_args<T> &n, int64_t r)
{
    int lane = threadIdx.x % 32;
    float m = 0, var = 0;
    if (n.mean) {
#pragma unroll
        for (int p = 0; p < P; p++)
            for (int j = 0; j < V; j++) m += v[p][j];
        m = warp_allreduce(m, sum_op()) / (float)n.cols;
    }
#pragma unroll
    for (int p = 0; p < P; p++)
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
        for (int j = 0; j < V; j++)
            v[p][j] = (v[p][j] - m) * scale * (n.gain ? g[j] : 1) + (n.bias ? b[j] : 0);
        store(n.y, r * n.cols + (p * 32 + lane) * V, v[p]);
    }
}

/* Rows in reverse: the producer wrote the last ones last, so they are still in L2. */
template <class T, int P, int V>
__global__ void __launch_bounds__(32 * NORM_WARPS) norm_by_warp(norm_args<T> n, int64_t rows)
{
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
            /* normalise what is stored: the sum rounded to T */
            for (int j = 0; j < V; j++) v[p][j] = to_float(from_float<T>(v[p][j] + a[j]));
            if (n.sum != n.y) store(n.sum, from + p * 32 * V, v[p]);
        }
    norm_held(v, n, r);
}

/* ---- backward ---- */

/* groups: threads that own the same columns, each with every groups-th row of a tile */

/* Of a tile of `warps` rows by 32 P vectors, in the two halves of an iteration:
 *
 *    first    warp w  -> row w, all vectors          reduction along the row, by shuffles
 *    second   thread  -> vector t % (32 P), rows t / (32 P), + groups, ..     sums down the columns
 */
template <int P> struct back_shape {
    static constexpr int groups = P <= 3 ? 4 : 2, warps = P * groups, threads = 32 * warps,
                         packs = 32 * P;
};

template <class T, int P, int V> struct norm_bwd_smem {
    typedef pack<T, V> packed;
    static constexpr int rows = back_shape<P>::warps;
    packed tile[2][3][rows][32 * P]; /* two stages of dy, x and the old dx (if accumulated) */
    packed gain[32 * P];
    float4 of_row[rows]; /* mean, rstd, mean(g), mean(g * n) */
};

/* mean(g) and mean(g * n) of a row in shared memory; g = dy * gain, n = (x - mean) * rstd.
 * mean(g) is 0 for RMSNorm. */
template <class T, int P, int V>
__device__ inline float2 means_of_row(const norm_bwd_smem<T, P, V> *smem, const back_args<T> &a,
                                      int slot, int row, float m, float scale)
{
    float gs = 0, gns = 0;
#pragma unroll
    for (int p = 0; p < P; p++) {
        int at = p * 32 + threadIdx.x % 32;
        float d[V], x[V], g[V];
        load(d, (const T *)&smem->tile[slot][0][row][at], 0);
        load(x, (const T *)&smem->tile[slot][1][row][at], 0);
        load(g, (const T *)&smem->gain[at], 0);
        for (int j = 0; j < V; j++) {
            float u = d[j] * g[j];
            gs += u;
            gns += u * (x[j] - m) * scale;
        }
    }
    gs = a.mean ? warp_allreduce(gs, sum_op()) / (float)a.cols : 0;
    return {gs, warp_allreduce(gns, sum_op()) / (float)a.cols};
}

/* The column sums of a block, added over its groups: part (sums,blocks,cols). */
template <class T, int P, int V>
__device__ inline void store_column_sums(float *part, int sums, const back_args<T> &a,
                                         float *shared, const float (&dg)[V], const float (&db)[V],
                                         const float (&ds)[V])
{
    constexpr int GROUPS = back_shape<P>::groups, PACKS = 32 * P;
    int at = threadIdx.x % PACKS, group = threadIdx.x / PACKS;
    for (int which = 0; which < sums; which++) {
        __syncthreads();
        float v[V]; /* selected by element: a reference would put the sums in local memory */
        for (int j = 0; j < V; j++) {
            v[j] = which == 0 ? dg[j] : db[j];
            if (which == 2) v[j] = ds[j];
        }
        store(shared, group * a.cols + at * V, v);
        __syncthreads();
        for (int64_t c = threadIdx.x; c < a.cols; c += blockDim.x) {
            float sum = shared[c];
            for (int i = 1; i < GROUPS; i++) sum += shared[i * a.cols + c];
            part[((int64_t)which * gridDim.x + blockIdx.x) * a.cols + c] = sum;
        }
    }
}

/* Asynchronous copy of one vector. */
template <class K> __device__ inline void copy_vector(K *smem, const void *from)
{
    uint32_t to = (uint32_t)__cvta_generic_to_shared(smem);
    if constexpr (sizeof(K) == 16)
        cp_async16(to, from);
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(from),
                     "n"(sizeof(K))
                     : "memory");
}

/* dx = rstd * (g - mean(g) - n * mean(g * n)), and the block's column sums of dy * n, dy and, with
 * three, dx.  Block b has rows b * per_block and on. */
template <class T, int P, int V>
__global__ void __launch_bounds__(back_shape<P>::threads, P <= 3 ? 2 : 1)
    norm_back(float *part, int sums, back_args<T> a, int64_t per_block)
{
    constexpr int TALL = back_shape<P>::warps, GROUPS = back_shape<P>::groups, PACKS = 32 * P;
    extern __shared__ uint4 memory[];
    norm_bwd_smem<T, P, V> *smem = (norm_bwd_smem<T, P, V> *)memory;
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
            copy_vector(&smem->tile[slot][0][i][at], a.dy + o);
            copy_vector(&smem->tile[slot][1][i][at], a.x + o);
            if (onto) copy_vector(&smem->tile[slot][2][i][at], (const T *)a.dx.p + o);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
    fetch(first, 0);
    for (int j = 0; j < V; j++) g[j] = 1;
    if (a.gain) load(g, a.gain, at * V);
    if (group == 0) store((T *)&smem->gain[at], 0, g);
    int64_t r = first + warp;
    float m = a.mean && r < end ? a.mean[r] : 0, scale = r < end ? a.rstd[r] : 0;
    /* mean and rstd of the next tile are loaded one iteration ahead */
    for (int slot = 0; first < end; first += TALL, slot ^= 1) {
        /* no barrier: a thread refills only what it alone read in the second half below */
        fetch(first + TALL, slot ^ 1);
        float m_now = m, scale_now = scale;
        r = first + TALL + warp;
        if (r < end) m = a.mean ? a.mean[r] : 0, scale = a.rstd[r];
        asm volatile("cp.async.wait_group 1;" ::: "memory");
        __syncthreads();
        /* first half: warp w has row w of the tile */
        if (first + warp < end) {
            float2 means = means_of_row<T, P, V>(smem, a, slot, warp, m_now, scale_now);
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
    store_column_sums<T, P>(part, sums, a, (float *)memory, dg, db, ds);
}

/* ---- host ---- */

/* Vectors per lane and their elements; packs 0: the row does not fit a warp. */
struct norm_shape {
    int packs, vec;
};

/* Six vectors (768 columns of f32) would not fit the registers in 16 bits. */
template <class T> static norm_shape shape_of(int64_t cols)
{
    constexpr int V = 16 / sizeof(T);
    int64_t packs = cols / (32 * V);
    bool fits = packs <= 4 || (packs == 6 && sizeof(T) == 4);
    if (cols % (32 * V) == 0) return {fits ? (int)packs : 0, V};
    for (int v = V / 2; v >= V / 4; v /= 2)
        if (cols == 32 * v || cols == 96 * v) return {(int)(cols / (32 * v)), v};
    return {0, V};
}

template <class T> static size_t back_bytes(norm_shape n)
{
    size_t rows = (size_t)n.packs * (n.packs <= 3 ? 4 : 2), vector = (size_t)n.vec * sizeof(T);
    return (6 * rows + 1) * (size_t)n.packs * 32 * vector + rows * sizeof(float4);
}

/* Rows per block, from the number of rows alone: enough blocks to fill a large GPU, few enough
 * pieces to add up. */
static inline int64_t rows_of_block(int64_t rows, int packs)
{
    int64_t tile = packs * (packs <= 3 ? 4 : 2);
    return tile * (rows >= 32768 ? 12 : rows >= 8192 ? 6 : rows >= 2048 ? 3 : 1);
}

/* Calls f with vectors per lane and elements of a vector as compile-time constants. */
template <class T, class F> static void with_shape(norm_shape n, F f)
{
    constexpr int V = 16 / sizeof(T);
    if (n.vec == V / 2 && n.packs == 1)
        f(width<1>(), width<V / 2>());
    else if (n.vec == V / 2)
        f(width<3>(), width<V / 2>());
    else if (n.vec == V / 4 && n.packs == 1)
        f(width<1>(), width<V / 4>());
    else if (n.vec == V / 4)
        f(width<3>(), width<V / 4>());
    else
        switch (n.packs) {
        case 1: f(width<1>(), width<V>()); break;
        case 2: f(width<2>(), width<V>()); break;
        case 3: f(width<3>(), width<V>()); break;
        case 4: f(width<4>(), width<V>()); break;
        default:
            if constexpr (sizeof(T) == 4) f(width<6>(), width<V>());
        }
}

template <class T>
static void norm_in_registers(fv_stream *s, const char *name, const norm_args<T> &n, int64_t rows,
                              norm_shape shape)
{
    with_shape<T>(shape, [&](auto p, auto v) {
        launch_pdl(s, name, true, norm_by_warp<T, decltype(p)::value, decltype(v)::value>,
                   dim3((unsigned)ceil_div(rows, NORM_WARPS)), 32 * NORM_WARPS, 0, n, rows);
    });
}

template <class T>
static void norm_back_in_tiles(fv_stream *s, const char *name, const back_args<T> &a, float *part,
                               int sums, norm_shape shape)
{
    with_shape<T>(shape, [&](auto p, auto v) {
        constexpr int P = decltype(p)::value, V = decltype(v)::value;
        int64_t per_block = rows_of_block(a.rows, P);
        launch(s, name, norm_back<T, P, V>, dim3((unsigned)ceil_div(a.rows, per_block)),
               back_shape<P>::threads, sizeof(norm_bwd_smem<T, P, V>), part, sums, a, per_block);
    });
}

#endif
