/* optim.cu - AdamW over a flat block of parameters, and the sum of squares that clipping asks for. */
#include "cuda.h"

#define PIECE 16384 /* elements of one partial sum of squares */

/* m = beta1 m + (1-beta1) g;  v = beta2 v + (1-beta2) g^2;  w -= lr * (decay * w + (m/correct1) / (sqrt(v/correct2) + eps)) */
template <class T> struct step {
    static constexpr int wide = 4;
    float *w, *m, *v;
    T *copy;
    const float *grad;
    fv_adamw o;
    template <int V> __device__ void at(int64_t i) const
    {
        float a[V], b[V], p[V], g[V], scale = o.grad_scale ? *o.grad_scale : 1.0f;
        load(p, w, i);
        load(a, m, i);
        load(b, v, i);
        load(g, grad, i);
#pragma unroll
        for (int j = 0; j < V; j++) {
            g[j] *= scale;
            a[j] = o.beta1 * a[j] + (1 - o.beta1) * g[j];
            b[j] = o.beta2 * b[j] + (1 - o.beta2) * g[j] * g[j];
            p[j] -= o.lr * (o.decay * p[j] + a[j] / o.correct1 / (sqrtf(b[j] / o.correct2) + o.eps));
        }
        store(w, i, p);
        store(m, i, a);
        store(v, i, b);
        if (copy) store(copy, i, p);
    }
};

template <class T>
static void adamw(fv_stream *s, float *w, float *m, float *v, void *copy, const float *grad, int64_t n, const fv_adamw *o)
{
    each(s, "adamw", n, aligned(w, m, v, copy, grad), step<T>{w, m, v, (T *)copy, grad, *o});
}

/* ---- sum of squares, in f64 ---- */

__device__ inline double block_sum(double v)
{
    __shared__ double part[THREADS];
    part[threadIdx.x] = v;
    for (unsigned o = THREADS / 2; o; o /= 2) {
        __syncthreads();
        if (threadIdx.x < o) part[threadIdx.x] += part[threadIdx.x + o];
    }
    return part[0]; /* right in thread 0, which is the one that needs it */
}

template <class T, int V> __global__ void squares(double *part, const T *x, int64_t n)
{
    int64_t from = (int64_t)blockIdx.x * PIECE, end = from + PIECE < n ? from + PIECE : n;
    double sum = 0;
#pragma unroll 4
    for (int64_t i = from + threadIdx.x * V; i < end; i += blockDim.x * V) {
        float v[V];
        load(v, x, i);
#pragma unroll
        for (int j = 0; j < V; j++) sum += (double)v[j] * (double)v[j];
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) part[blockIdx.x] = sum;
}

__global__ static void total(float *out, const double *part, int64_t n)
{
    double sum = 0;
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) sum += part[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0) *out = (float)sum;
}

template <class T> static void sumsq(fv_stream *s, float *out, const void *x, int64_t n)
{
    int64_t pieces = ceil_div(n, PIECE);
    double *part = work<double>(s, pieces);
    if (!part) return;
    constexpr int V = 16 / sizeof(T);
    if (n % V == 0 && aligned(x))
        launch(s, "sumsq", squares<T, V>, dim3((unsigned)pieces), THREADS, 0, part, (const T *)x, n);
    else
        launch(s, "sumsq", squares<T, 1>, dim3((unsigned)pieces), THREADS, 0, part, (const T *)x, n);
    launch(s, "sumsq", total, dim3(1), THREADS, 0, out, part, pieces);
}

template <class T> void fv_cuda_optim(fv_kernels *k)
{
    k->adamw = adamw<T>;
    k->sumsq = sumsq<T>;
}
FOR_ALL_DTYPES(fv_cuda_optim)
