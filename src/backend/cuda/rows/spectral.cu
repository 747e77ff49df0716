/* spectral.cu - sigma = u' W v of a weight under spectral norm, with a round of power iteration
 * before it while training:
 *
 *     v = unit(W' u),   u = unit(W v),   sigma = u' (W v)
 *
 * One block does it all.  As separate products, norms and divisions it is 18 launches for each
 * weight, by the ops 855 of about 2,000 of a SAGAN update, most of them shorter than a launch.
 * Spread over the whole GPU it would need grid barriers for two passes over a matrix that one SM
 * reads in microseconds; larger ones are left to the products. */
#include "backend/cuda/device/cuda.h"

namespace
{

#define SIGMA_WARPS 32
#define MAX_SIDE 4096                 /* rows or columns: u, v and sums are in smem */
#define MAX_WEIGHT ((int64_t)1 << 20) /* elements that one SM reads twice */

/* ||x|| of a vector in smem, not below eps; every thread must call it. */
__device__ inline float length_of(const float *x, int n, float eps)
{
    float sum = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += x[i] * x[i];
    return fmaxf(sqrtf(block_allreduce(sum, sum_op())), eps);
}

/* x = y / length, rounded as it will be stored; both in smem. */
template <class T> __device__ inline void divide(float *x, const float *y, int n, float length)
{
    for (int i = threadIdx.x; i < n; i += blockDim.x) x[i] = to_float(from_float<T>(y[i] / length));
    __syncthreads();
}

template <class T> __device__ inline void copy_out(T *y, const float *x, int n)
{
    for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = from_float<T>(x[i]);
}

/* part (groups,cols): the sums of u[r] W[r,c] over rows r = group, group + groups, ...; a warp has
 * V columns a lane of one group. */
template <class T, int V>
__device__ inline void columns_by_u(float *part, const float *u, const T *w, int rows, int cols,
                                    int groups)
{
    int lane = threadIdx.x % 32, chunks = (cols + 32 * V - 1) / (32 * V);
    for (int unit = threadIdx.x / 32; unit < chunks * groups; unit += SIGMA_WARPS) {
        int c = (unit % chunks * 32 + lane) * V, group = unit / chunks;
        float sum[V] = {}, x[V];
        if (c >= cols) continue;
#pragma unroll 4
        for (int r = group; r < rows; r += groups) {
            load(x, w, (int64_t)r * cols + c);
            for (int j = 0; j < V; j++) sum[j] += u[r] * x[j];
        }
        for (int j = 0; j < V; j++) part[group * cols + c + j] = sum[j];
    }
    __syncthreads();
}

/* y = W v, a warp a row. */
template <class T, int V>
__device__ inline void rows_by_v(float *y, const float *v, const T *w, int rows, int cols)
{
    int lane = threadIdx.x % 32;
    for (int r = threadIdx.x / 32; r < rows; r += SIGMA_WARPS) {
        float sum = 0, x[V];
#pragma unroll 4
        for (int c = lane * V; c < cols; c += 32 * V) {
            load(x, w, (int64_t)r * cols + c);
            for (int j = 0; j < V; j++) sum += x[j] * v[c + j];
        }
        sum = warp_allreduce(sum, sum_op());
        if (lane == 0) y[r] = sum;
    }
    __syncthreads();
}

/* The vectors of one weight: u and v are read and, where they are renewed, written; backward reads
 * the copies, since the next call may change u and v before it runs. */
template <class T> struct vectors {
    T *u, *v, *u_copy, *v_copy;
};

/* smem: u (rows), v (cols), part: (groups,cols) and then (rows) */
template <class T, int V>
__global__ void __launch_bounds__(SIGMA_WARPS * 32)
    sigma_block(T *sigma, vectors<T> at, const T *w, int rows, int cols, int groups, float eps,
                bool renew)
{
    extern __shared__ float smem[];
    float *u = smem, *v = u + rows, *part = v + cols;
    for (int i = threadIdx.x; i < rows; i += blockDim.x) u[i] = to_float(at.u[i]);
    for (int i = threadIdx.x; i < cols; i += blockDim.x) v[i] = to_float(at.v[i]);
    __syncthreads();
    if (renew) {
        columns_by_u<T, V>(part, u, w, rows, cols, groups);
        for (int c = threadIdx.x; c < cols; c += blockDim.x) {
            float sum = part[c];
            for (int g = 1; g < groups; g++) sum += part[g * cols + c];
            v[c] = sum;
        }
        __syncthreads();
        divide<T>(v, v, cols, length_of(v, cols, eps));
        copy_out(at.v, v, cols);
    }
    rows_by_v<T, V>(part, v, w, rows, cols);
    if (renew) {
        divide<T>(u, part, rows, length_of(part, rows, eps));
        copy_out(at.u, u, rows);
    }
    float sum = 0;
    for (int r = threadIdx.x; r < rows; r += blockDim.x) sum += u[r] * part[r];
    sum = block_allreduce(sum, sum_op());
    if (threadIdx.x == 0) *sigma = from_float<T>(sum);
    copy_out(at.u_copy, u, rows);
    copy_out(at.v_copy, v, cols);
}

template <class T>
bool spectral_sigma(fv_stream *s, void *sigma, void *u_copy, void *v_copy, void *u, void *v,
                    const void *w, int64_t rows, int64_t cols, float eps, bool renew)
{
    if (rows < 1 || cols < 1 || rows > MAX_SIDE || cols > MAX_SIDE || rows * cols > MAX_WEIGHT)
        return false;
    vectors<T> at = {(T *)u, (T *)v, (T *)u_copy, (T *)v_copy};
    with_width<T>(cols % vec<T> == 0 && aligned(w), [&](auto n) {
        constexpr int V = decltype(n)::value;
        /* groups share the rows of a column where columns alone leave warps idle */
        int64_t chunks = ceil_div(cols, 32 * V), most = SIGMA_WARPS / chunks,
                groups = most < 1 ? 1 : most, part = groups * cols > rows ? groups * cols : rows;
        launch(s, "spectral_sigma", sigma_block<T, V>, dim3(1), SIGMA_WARPS * 32,
               (size_t)(rows + cols + part) * sizeof(float), (T *)sigma, at, (const T *)w,
               (int)rows, (int)cols, (int)groups, eps, renew);
    });
    return true;
}

/* Gradient of sigma = u' W v, u and v constants: dW[r,c] (+)= dsigma u[r] v[c] */
template <class T>
void spectral_sigma_bwd(fv_stream *s, fv_sink dw, const void *dsigma, const void *u_,
                        const void *v_, int64_t rows, int64_t cols)
{
    sink<T> to_dw = to<T>(dw);
    const T *g = (const T *)dsigma, *u = (const T *)u_, *v = (const T *)v_;
    if (!dw.data) return;
    bool wide = cols % vec<T> == 0 && aligned(dw.data, v);
    each_vec<vec<T>>(s, "spectral_sigma_bwd", rows * cols, wide, [=] __device__(auto n, int64_t i) {
        constexpr int V = decltype(n)::value;
        uint32_t r = (uint32_t)i / (uint32_t)cols, c = (uint32_t)i % (uint32_t)cols;
        float scale = to_float(*g) * to_float(u[r]), x[V];
        load(x, v, c);
        for (int j = 0; j < V; j++) x[j] *= scale;
        sink_store(to_dw, i, x);
    });
}
} // namespace

template <class T> void fv_cuda_spectral(fv_kernels *k)
{
    k->spectral_sigma = spectral_sigma<T>;
    k->spectral_sigma_bwd = spectral_sigma_bwd<T>;
}
FOR_ALL_DTYPES(fv_cuda_spectral)
