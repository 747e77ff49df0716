/* topk.cu - the k largest of each row, and max along an axis; ties go to the lower index, NaN
 * counts as the largest.
 *
 * The k largest are found one by one: each pass takes the best element that comes after the
 * previous one in the order.  That reads a row k times, which for the few values that beams and
 * viewers need is faster than sorting it. */
#include "backend/cuda/device/cuda.h"

namespace
{

struct scored_index {
    float v;
    int64_t i; /* -1: none yet */
};

__device__ inline bool larger(float a, float b) { return a > b || (a != a && b == b); }

/* Whether a comes before b; i < 0 is the end of the order.
 * A strict total order of (value, index): "the best after the last one" is then unambiguous,
 * ties and NaN included, and needs no list of what was taken. */
__device__ inline bool before(scored_index a, scored_index b)
{
    if (b.i < 0 || a.i < 0) return b.i < 0 && a.i >= 0;
    return larger(a.v, b.v) || (!larger(b.v, a.v) && a.i < b.i);
}

__device__ inline scored_index first_of(scored_index a, scored_index b)
{
    return before(a, b) ? a : b;
}

__device__ inline scored_index warp_first(scored_index p)
{
    for (int o = 16; o; o /= 2) {
        scored_index q = {__shfl_xor_sync(~0u, p.v, o),
                          (int64_t)__shfl_xor_sync(~0u, (long long)p.i, o)};
        p = first_of(p, q);
    }
    return p;
}

/* The first over the block, broadcast to all threads. */
__device__ inline scored_index block_first(scored_index p)
{
    __shared__ scored_index part[32];
    p = warp_first(p);
    __syncthreads();
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = p;
    __syncthreads();
    p = part[0];
    for (unsigned w = 1; w < blockDim.x / 32; w++) p = first_of(p, part[w]);
    return p;
}

/* One block per row, one pass per k. */
template <class T>
__global__ void topk_row(T *values, int32_t *index, const T *x, int64_t cols, int64_t k)
{
    const T *row = x + blockIdx.x * cols;
    scored_index last = {0, -1};
    for (int64_t p = 0; p < k; p++) {
        scored_index best = {0, -1};
        for (int64_t j = threadIdx.x; j < cols; j += blockDim.x) {
            scored_index c = {to_float(row[j]), j};
            if (last.i < 0 || before(last, c)) best = first_of(best, c);
        }
        last = block_first(best);
        if (threadIdx.x == 0) {
            index[blockIdx.x * k + p] = (int32_t)last.i;
            values[blockIdx.x * k + p] = row[last.i];
        }
    }
}

template <class T>
void topk(fv_stream *s, void *values, int32_t *index, const void *x, int64_t rows, int64_t cols,
          int64_t k)
{
    launch(s, "topk", topk_row<T>, dim3((unsigned)rows), row_threads(cols), 0, (T *)values, index,
           (const T *)x, cols, k);
}

/* dx[index] (+)= dy; elsewhere 0. */
template <class T>
void topk_bwd(fv_stream *s, fv_sink dx, const void *dy, const int32_t *index, int64_t rows,
              int64_t cols, int64_t k)
{
    if (!dx.data) return;
    size_t size = dx.dtype == FV_F32 ? 4 : sizeof(T);
    if (!dx.add) s->dev->backend->zero(s, dx.data, (size_t)(rows * cols) * size);
    sink<T> g = to<T>(dx);
    each(s, "topk_bwd", rows * k, [=] __device__(int64_t i) {
        sink_put(g, i / k * cols + index[i], to_float(((const T *)dy)[i]));
    });
}
} // namespace

/* max of x (outer,n,inner) over n, for rows/reduce.cu */
template <class T>
void fv_cuda_argmax(fv_stream *s, T *y, int32_t *arg, const T *x, int64_t outer, int64_t n,
                    int64_t inner)
{
    if (inner == 1 && n >= 32) {
        topk<T>(s, y, arg, x, outer, n, 1);
        return;
    }
    each(s, "max", outer * inner, [=] __device__(int64_t e) {
        int64_t from = e / inner * n * inner + e % inner;
        scored_index best = {0, -1};
        for (int64_t i = 0; i < n; i++)
            best = first_of(best, scored_index{to_float(x[from + i * inner]), i});
        y[e] = x[from + best.i * inner];
        arg[e] = (int32_t)best.i;
    });
}
template void fv_cuda_argmax<float>(fv_stream *, float *, int32_t *, const float *, int64_t,
                                    int64_t, int64_t);
template void fv_cuda_argmax<bf16>(fv_stream *, bf16 *, int32_t *, const bf16 *, int64_t, int64_t,
                                   int64_t);
template void fv_cuda_argmax<f16>(fv_stream *, f16 *, int32_t *, const f16 *, int64_t, int64_t,
                                  int64_t);

template <class T> void fv_cuda_topk(fv_kernels *k)
{
    k->topk = topk<T>;
    k->topk_bwd = topk_bwd<T>;
}
FOR_ALL_DTYPES(fv_cuda_topk)
