/* entropy.cu - cross-entropy of logits against labels, smoothed; only the log-sum-exp of a row is kept. */
#include "cuda.h"

/* What one thread knows of its part of a row: the largest, the sum of exp(x - largest), the sum of x - first of the row. */
struct part_of_row {
    float top, total, off;
};

template <class T, int V> __device__ part_of_row look(const T *row, int64_t vocab)
{
    part_of_row p = {-INFINITY, 0, 0};
    float first = up(row[0]), v[V];
    for (int64_t i = threadIdx.x * V; i < vocab; i += blockDim.x * V) {
        load(v, row, i);
        float top = p.top;
#pragma unroll
        for (int j = 0; j < V; j++) top = v[j] > top ? v[j] : top;
        if (top > p.top) {
            p.total *= expf(p.top - top);
            p.top = top;
        }
#pragma unroll
        for (int j = 0; j < V; j++) {
            p.total += expf(v[j] - top);
            p.off += v[j] - first;
        }
    }
    return p;
}

/* loss = (1 - smooth) * (lse - x[label]) + smooth * (lse - mean(x)) */
template <class T, int V>
__global__ void entropy_row(float *loss, float *lse, const T *x, const int32_t *labels, int64_t vocab, float smooth,
                            int32_t ignore, fault *bad)
{
    int64_t r = blockIdx.x;
    int32_t label = labels[r];
    bool outside = label < 0 || label >= vocab;
    if (label == ignore || outside) {
        if (threadIdx.x) return;
        loss[r] = lse[r] = 0;
        if (label != ignore) report(bad, r, label, vocab);
        return;
    }
    const T *row = x + r * vocab;
    part_of_row p = look<T, V>(row, vocab);
    float top = block_all(p.top, greater());
    float total = block_all(p.top == -INFINITY ? 0.0f : p.total * expf(p.top - top), add_up());
    float off = smooth != 0 ? block_all(p.off, add_up()) : 0;
    if (threadIdx.x) return;
    float log_total = logf(total), mean = off / (float)vocab + (up(row[0]) - top);
    lse[r] = top + log_total;
    loss[r] = log_total - (1 - smooth) * (up(row[label]) - top) - (smooth != 0 ? smooth * mean : 0);
}

template <class T>
static void cross_entropy(fv_stream *s, fv_stat *loss, fv_stat *lse, const void *x, const int32_t *labels, int64_t rows,
                          int64_t vocab, float smooth, int32_t ignore)
{
    constexpr int V = 16 / sizeof(T);
    fault *bad = faults_of(s) + FAULT_LABEL;
    if (vocab % V == 0 && aligned(x))
        launch(s, "cross_entropy", entropy_row<T, V>, dim3((unsigned)rows), row_threads(vocab / V), 0, (float *)loss,
               (float *)lse, (const T *)x, labels, vocab, smooth, ignore, bad);
    else
        launch(s, "cross_entropy", entropy_row<T, 1>, dim3((unsigned)rows), row_threads(vocab), 0, (float *)loss, (float *)lse,
               (const T *)x, labels, vocab, smooth, ignore, bad);
}

/* dx = dloss * (softmax(x) - (1 - smooth) * [label] - smooth / vocab) */
template <class T, int V>
__global__ void entropy_bwd_row(sink<T> dx, const float *dloss, const float *lse, const T *x, const int32_t *labels,
                                int64_t vocab, float smooth, int32_t ignore)
{
    int64_t r = blockIdx.x;
    int32_t label = labels[r];
    bool counts = label != ignore;
    float d = counts ? dloss[r] : 0, shift = lse[r], even = smooth / (float)vocab, v[V];
    for (int64_t i = threadIdx.x * V; i < vocab; i += blockDim.x * V) {
        load(v, x, r * vocab + i);
#pragma unroll
        for (int j = 0; j < V; j++) {
            float target = even + (i + j == label ? 1 - smooth : 0);
            v[j] = counts ? d * (expf(v[j] - shift) - target) : 0;
        }
        deliver(dx, r * vocab + i, v);
    }
}

template <class T>
static void cross_entropy_bwd(fv_stream *s, fv_sink dx, const fv_stat *dloss, const fv_stat *lse, const void *x,
                              const int32_t *labels, int64_t rows, int64_t vocab, float smooth, int32_t ignore)
{
    constexpr int V = 16 / sizeof(T);
    if (!dx.data) return;
    if (vocab % V == 0 && aligned(x, dx.data))
        launch(s, "cross_entropy_bwd", entropy_bwd_row<T, V>, dim3((unsigned)rows), row_threads(vocab / V), 0, to<T>(dx),
               (const float *)dloss, (const float *)lse, (const T *)x, labels, vocab, smooth, ignore);
    else
        launch(s, "cross_entropy_bwd", entropy_bwd_row<T, 1>, dim3((unsigned)rows), row_threads(vocab), 0, to<T>(dx),
               (const float *)dloss, (const float *)lse, (const T *)x, labels, vocab, smooth, ignore);
}

/* ---- both at once: x becomes its gradient ---- */

#define LOG2E 1.4426950408889634f
#define LN2 0.6931471805599453f

__device__ inline float exp2_quick(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* As look, in units of log 2 and without the sum of x: its exponentials are what this kernel spends its time on. */
template <class T, int V> __device__ part_of_row look_quick(const T *row, int64_t n, int64_t vocab)
{
    part_of_row p = {-INFINITY, 0, 0};
    float v[V];
#pragma unroll 2
    for (int64_t i = threadIdx.x * V; i < n; i += blockDim.x * V) {
        load(v, row, i);
        float top = p.top;
#pragma unroll
        for (int j = 0; j < V; j++) {
            v[j] = i + j < vocab ? v[j] * LOG2E : -INFINITY;
            top = fmaxf(top, v[j]);
        }
        if (top > p.top) {
            p.total *= exp2_quick(p.top - top);
            p.top = top;
        }
#pragma unroll
        for (int j = 0; j < V; j++) p.total += exp2_quick(v[j] - top);
    }
    return p;
}

template <class T> __device__ float sum_of_row(const T *row, int64_t vocab)
{
    float sum = 0, first = up(row[0]);
    for (int64_t i = threadIdx.x; i < vocab; i += blockDim.x) sum += up(row[i]) - first;
    return block_all(sum, add_up());
}

__device__ inline void fetch_pack(void *to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((unsigned)__cvta_generic_to_shared(to)), "l"(from) : "memory");
}

/* One block for each row.  HELD: it is read once, to shared memory, while the other block of the multiprocessor computes, and a
 * thread reads only packs that it fetched itself; else it is read twice, the second time from the cache. */
template <class T, int V, bool HELD>
__global__ void __launch_bounds__(HELD ? 512 : 1024, 2) entropy_slope_row(float *loss, T *x, const int32_t *labels, int64_t vocab,
                                                                          int64_t step, float smooth, int32_t ignore, fault *bad)
{
    extern __shared__ uint4 held[];
    int64_t r = blockIdx.x;
    int32_t label = labels[r];
    bool counts = label != ignore && label >= 0 && label < vocab;
    T *row = x + r * step;
    const T *from = HELD ? (const T *)held : row;
    if (threadIdx.x == 0 && !counts) {
        loss[r] = 0;
        if (label != ignore) report(bad, r, label, vocab);
    }
    if (HELD) {
        for (int64_t i = threadIdx.x * V; i < step; i += blockDim.x * V) fetch_pack((T *)held + i, row + i);
        asm volatile("cp.async.wait_all;" ::: "memory");
    }
    float lse = 0, even = smooth / (float)vocab, v[V]; /* lse in units of log 2 */
    if (counts) {
        part_of_row p = look_quick<T, V>(from, step, vocab);
        float top = block_all(p.top, greater());
        float total = block_all(p.top == -INFINITY ? 0.0f : p.total * exp2_quick(p.top - top), add_up());
        float off = smooth != 0 ? sum_of_row(row, vocab) : 0, first = up(row[0]), chosen = up(row[label]);
        float log_total = logf(total), high = top * LN2;
        lse = top + log_total * LOG2E;
        if (threadIdx.x == 0)
            loss[r] = log_total - (1 - smooth) * (chosen - high) -
                      (smooth != 0 ? smooth * (off / (float)vocab + (first - high)) : 0);
        __syncthreads(); /* the row is about to change */
    }
#pragma unroll 2
    for (int64_t i = threadIdx.x * V; i < step; i += blockDim.x * V) {
        load(v, from, i);
#pragma unroll
        for (int j = 0; j < V; j++) {
            float weight = exp2_quick(fmaf(v[j], LOG2E, -lse)) - even;
            v[j] = counts && i + j < vocab ? (i + j == label ? weight - (1 - smooth) : weight) : 0;
        }
        store(row, i, v);
    }
}

template <class T>
static void cross_entropy_slope(fv_stream *s, fv_stat *loss, void *x, const int32_t *labels, int64_t rows, int64_t vocab,
                                int64_t step, float smooth, int32_t ignore)
{
    constexpr int V = 16 / sizeof(T);
    fault *bad = faults_of(s) + FAULT_LABEL;
    unsigned threads = row_threads(step / V), many = 2 * threads; /* up to 1024: rows are long */
    size_t bytes = (size_t)step * sizeof(T), others = 2048;
    dim3 grid((unsigned)rows);
    bool packs = step % V == 0 && aligned(x);
    if (packs && 2 * (bytes + others) <= device_of(s)->most_shared)
        launch(s, "cross_entropy", entropy_slope_row<T, V, true>, grid, threads, bytes, (float *)loss, (T *)x, labels, vocab,
               step, smooth, ignore, bad);
    else if (packs)
        launch(s, "cross_entropy", entropy_slope_row<T, V, false>, grid, many, 0, (float *)loss, (T *)x, labels, vocab, step,
               smooth, ignore, bad);
    else
        launch(s, "cross_entropy", entropy_slope_row<T, 1, false>, grid, many, 0, (float *)loss, (T *)x, labels, vocab, step,
               smooth, ignore, bad);
}

template <class T> struct by_rows {
    static constexpr int wide = 16 / sizeof(T);
    sink<T> y;
    const T *x;
    const float *scale;
    int64_t cols;
    template <int V> __device__ void at(int64_t i) const
    {
        float v[V], by = scale[i / cols];
        load(v, x, i);
#pragma unroll
        for (int j = 0; j < V; j++) v[j] *= by;
        deliver(y, i, v);
    }
};

template <class T>
static void scale_rows(fv_stream *s, fv_sink y, const void *x, const fv_stat *scale, int64_t rows, int64_t cols)
{
    bool wide = cols % by_rows<T>::wide == 0 && aligned(y.data, x);
    if (y.data) each(s, "scale_rows", rows * cols, wide, by_rows<T>{to<T>(y), (const T *)x, (const float *)scale, cols});
}

template <class T> void fv_cuda_entropy(fv_kernels *k)
{
    k->cross_entropy_slope = cross_entropy_slope<T>;
    k->scale_rows = scale_rows<T>;
    k->cross_entropy = cross_entropy<T>;
    k->cross_entropy_bwd = cross_entropy_bwd<T>;
}
FOR_ALL_DTYPES(fv_cuda_entropy)
