/* optim.cu - AdamW over a flat parameter buffer, the squared gradient norm, and clipping by it.
 *
 * Learning rate, bias corrections and clip scale are read from an fv_update on the device: a
 * captured update is replayed with other values without the host. */
#include "backend/cuda/device/cuda.h"

namespace
{

#define PIECE 16384      /* elements per partial sum of squares */
#define MAX_CHUNKS 65535 /* gridDim.y limit */

/* m = beta1 m + (1-beta1) g;  v = beta2 v + (1-beta2) g^2;  w -= lr * (decay * w +
 * (m/bias_correction1) / (sqrt(v/bias_correction2) + eps))
 * 28 bytes a parameter without ema and copy (w, m, v read and written, g read): bound by
 * bandwidth, so all of it is one pass, the 16-bit copy that the next forward reads included. */
template <class T>
void adamw(fv_stream *s, float *w, float *m, float *v, float *ema, void *copy, const float *grad,
           int64_t n, const fv_adamw *opt)
{
    fv_adamw o = *opt;
    bool wide = aligned(w, m, v, ema, copy, grad);
    each_vec<4>(s, "adamw", n, wide, [=] __device__(auto width, int64_t i) {
        constexpr int V = decltype(width)::value;
        float a[V], b[V], p[V], g[V], e[V];
        const fv_update u = *o.now;
        float lr = o.lr * u.lr;
        if (u.nonfinite) return;
        load(p, w, i);
        load(a, m, i);
        load(b, v, i);
        load(g, grad, i);
        if (ema) load(e, ema, i);
        for (int j = 0; j < V; j++) {
            g[j] *= u.grad_scale;
            a[j] = o.beta1 * a[j] + (1 - o.beta1) * g[j];
            b[j] = o.beta2 * b[j] + (1 - o.beta2) * g[j] * g[j];
            p[j] -= lr * (o.decay * p[j] +
                          a[j] / u.bias_correction1 / (sqrtf(b[j] / u.bias_correction2) + o.eps));
            e[j] = ema ? u.ema_decay * e[j] + (1 - u.ema_decay) * p[j] : 0;
        }
        store(w, i, p);
        store(m, i, a);
        store(v, i, b);
        if (ema) store(ema, i, e);
        if (copy) store((T *)copy, i, p);
    });
}

/* grad_scale = min(1, most / norm); a non-finite loss or norm cancels the update.  Loss and norm
 * are kept at result_index: the host reads them for several updates at once. */
__global__ void clip_norm_kernel(fv_update *u, const float *sumsq, float most, float (*result)[2])
{
    double norm = sqrt((double)*sumsq);
    if (!isfinite(norm) || !isfinite(u->loss)) u->nonfinite = 1;
    u->grad_scale = most > 0 && norm > (double)most ? (float)((double)most / norm) : 1;
    result[u->result_index][0] = u->loss;
    result[u->result_index][1] = (float)norm;
}

void clip_norm(fv_stream *s, fv_update *u, const float *sumsq, float most, float (*result)[2])
{
    launch(s, "clip_norm", clip_norm_kernel, dim3(1), 1, 0, u, sumsq, most, result);
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
    return part[0]; /* valid in thread 0 alone */
}

/* Partial sums of x^2 over pieces of fixed length, then their total: f64, since the norm of 1e8
 * gradients in f32 would lose digits. */
template <class T, int V> __device__ inline void square_piece(double *part, const T *x, int64_t n)
{
    int64_t from = (int64_t)blockIdx.x * PIECE, end = from + PIECE < n ? from + PIECE : n;
    double sum = 0;
#pragma unroll 4
    for (int64_t i = from + threadIdx.x * V; i < end; i += blockDim.x * V) {
        float v[V];
        load(v, x, i);
        for (int j = 0; j < V; j++) sum += (double)v[j] * (double)v[j];
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) part[blockIdx.x] = sum;
}

__device__ inline void total_pieces(float *out, const double *part, int64_t n)
{
    double sum = 0;
#pragma unroll 8
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) sum += part[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0) *out = (float)sum;
}

template <class T, int V> __global__ void squares(double *part, const T *x, int64_t n)
{
    square_piece<T, V>(part, x, n);
}

__global__ void total(float *out, const double *part, int64_t n) { total_pieces(out, part, n); }

template <class T> void sumsq(fv_stream *s, float *out, const void *x, int64_t n)
{
    int64_t pieces = ceil_div(n, PIECE);
    double *part = alloc_scratch<double>(s, pieces);
    if (!part) return;
    with_width<T>(n % vec<T> == 0 && aligned(x), [&](auto w) {
        launch(s, "sumsq", squares<T, decltype(w)::value>, dim3((unsigned)pieces), THREADS, 0, part,
               (const T *)x, n);
    });
    launch(s, "sumsq", total, dim3(1), THREADS, 0, out, part, pieces);
}

/* ---- the same of many chunks at once: block (piece of a chunk, chunk) ---- */

/* What chunk q has of n elements. */
__device__ inline int64_t chunk_len(int64_t q, int64_t n, int64_t chunk)
{
    return n - q * chunk < chunk ? n - q * chunk : chunk;
}

template <int V>
__global__ void chunk_squares(double *part, const float *x, int64_t n, int64_t chunk)
{
    int64_t q = blockIdx.y, len = chunk_len(q, n, chunk);
    if ((int64_t)blockIdx.x * PIECE < len)
        square_piece<float, V>(part + q * gridDim.x, x + q * chunk, len);
}

__global__ void chunk_totals(float *sums, const double *part, int64_t pieces, int64_t n,
                             int64_t chunk)
{
    int64_t q = blockIdx.x;
    total_pieces(sums + q, part + q * pieces, ceil_div(chunk_len(q, n, chunk), PIECE));
}

/* One thread adds, since the order is that of ranks whose chunks meet in host memory; the others
 * load ahead of it. */
__global__ void add_chunks(float *all, const float *sums, int64_t n)
{
    __shared__ float next[THREADS];
    double sum = 0;
    for (int64_t from = 0; from < n; from += THREADS) {
        __syncthreads();
        if (from + threadIdx.x < n) next[threadIdx.x] = sums[from + threadIdx.x];
        __syncthreads();
        for (int64_t i = 0; threadIdx.x == 0 && i < THREADS && from + i < n; i++)
            sum += (double)next[i];
    }
    if (threadIdx.x == 0) *all = (float)sum;
}

void sumsq_chunks(fv_stream *s, float *sums, float *all, const float *x, int64_t n, int64_t chunk)
{
    int64_t chunks = ceil_div(n, chunk), pieces = ceil_div(chunk, PIECE);
    double *part = chunks <= MAX_CHUNKS ? alloc_scratch<double>(s, pieces * chunks) : NULL;
    if (s->err.code) return;
    if (part && chunk % vec<float> == 0 && n % vec<float> == 0 && aligned(x)) {
        launch(s, "sumsq", chunk_squares<vec<float>>, dim3((unsigned)pieces, (unsigned)chunks),
               THREADS, 0, part, x, n, chunk);
        launch(s, "sumsq", chunk_totals, dim3((unsigned)chunks), THREADS, 0, sums, part, pieces, n,
               chunk);
    } else {
        for (int64_t q = 0; q < chunks; q++)
            sumsq<float>(s, sums + q, x + q * chunk, n - q * chunk < chunk ? n - q * chunk : chunk);
    }
    launch(s, "sumsq", add_chunks, dim3(1), THREADS, 0, all, sums, chunks);
}
} // namespace

template <class T> void fv_cuda_optim(fv_kernels *k)
{
    k->adamw = adamw<T>;
    k->sumsq = sumsq<T>;
    k->clip_norm = clip_norm;
    k->sumsq_chunks = sumsq_chunks;
}
FOR_ALL_DTYPES(fv_cuda_optim)
