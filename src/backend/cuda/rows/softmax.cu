/* softmax.cu - y = exp(x - max) / sum exp(x - max) over rows, or log-softmax, x - max - log sum;
 * one block per row. */
#include "backend/cuda/device/cuda.h"

namespace
{

/* Three passes over the row: max, sum, result.  The second and third hit L1 or L2, so an online
 * softmax (one pass fewer, more exps) does not pay. */
template <class T, int V> __global__ void softmax_row(T *y, const T *x, int64_t cols, bool as_log)
{
    const T *in = x + blockIdx.x * cols;
    float top = -INFINITY, sum = 0, v[V];
    for (int64_t i = threadIdx.x * V; i < cols; i += blockDim.x * V) {
        load(v, in, i);
        for (int j = 0; j < V; j++) top = v[j] > top ? v[j] : top;
    }
    top = block_allreduce(top, max_op());
    for (int64_t i = threadIdx.x * V; i < cols; i += blockDim.x * V) {
        load(v, in, i);
        for (int j = 0; j < V; j++) sum += expf(v[j] - top);
    }
    sum = block_allreduce(sum, sum_op());
    float shift = logf(sum), scale = 1 / sum;
    for (int64_t i = threadIdx.x * V; i < cols; i += blockDim.x * V) {
        load(v, in, i);
        for (int j = 0; j < V; j++) v[j] = as_log ? v[j] - top - shift : expf(v[j] - top) * scale;
        store(y + blockIdx.x * cols, i, v);
    }
}

/* Softmax: dx = y (dy - sum dy y).  Log-softmax: dx = dy - exp(y) sum dy. */
template <class T, int V>
__global__ void softmax_bwd_row(sink<T> dx, const T *dy, const T *y, int64_t cols, bool as_log)
{
    int64_t row = blockIdx.x * cols;
    float sum = 0, g[V], p[V];
    for (int64_t i = threadIdx.x * V; i < cols; i += blockDim.x * V) {
        load(g, dy, row + i);
        load(p, y, row + i);
        for (int j = 0; j < V; j++) sum += g[j] * (as_log ? 1 : p[j]);
    }
    sum = block_allreduce(sum, sum_op());
    for (int64_t i = threadIdx.x * V; i < cols; i += blockDim.x * V) {
        load(g, dy, row + i);
        load(p, y, row + i);
        for (int j = 0; j < V; j++) g[j] = as_log ? g[j] - expf(p[j]) * sum : p[j] * (g[j] - sum);
        sink_store(dx, row + i, g);
    }
}

template <class T>
void softmax(fv_stream *s, void *y, const void *x, int64_t rows, int64_t cols, bool as_log)
{
    if (!cols) return;
    with_width<T>(cols % vec<T> == 0 && aligned(x, y), [&](auto w) {
        constexpr int V = decltype(w)::value;
        launch(s, "softmax", softmax_row<T, V>, dim3((unsigned)rows), row_threads(cols / V), 0,
               (T *)y, (const T *)x, cols, as_log);
    });
}

template <class T>
void softmax_bwd(fv_stream *s, fv_sink dx, const void *dy, const void *y, int64_t rows,
                 int64_t cols, bool as_log)
{
    if (!dx.data || !cols) return;
    with_width<T>(cols % vec<T> == 0 && aligned(dx.data, dy, y), [&](auto w) {
        constexpr int V = decltype(w)::value;
        launch(s, "softmax_bwd", softmax_bwd_row<T, V>, dim3((unsigned)rows), row_threads(cols / V),
               0, to<T>(dx), (const T *)dy, (const T *)y, cols, as_log);
    });
}
} // namespace

template <class T> void fv_cuda_softmax(fv_kernels *k)
{
    k->softmax = softmax<T>;
    k->softmax_bwd = softmax_bwd<T>;
}
FOR_ALL_DTYPES(fv_cuda_softmax)
