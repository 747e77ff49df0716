/* entropy.cu - cross-entropy of logits against labels, with label smoothing, and the divergence of
 * two rows of logits.
 *
 * Cross-entropy has two forms.  The plain one saves the log-sum-exp of each row and computes the
 * gradient later.  The fused one, for the last op of a language model, writes loss and gradient in
 * one pass, the gradient over the logits: of the 1.6 GB of logits of GPT-2 at 16 x 1,024 tokens no
 * second copy exists.  Its rows are padded to whole vectors, so a vocabulary of 50,257 runs as fast
 * as 50,304. */
#include "backend/cuda/device/cuda.h"

namespace
{

/* Online softmax statistics of a thread's elements: max, sum of exp(x - max), and for smoothing the
 * sum of x - x[0] (relative to x[0] so that it does not cancel).
 * Merging two partial results (m1, t1) and (m2, t2):  m = max(m1, m2), t = t1 e^(m1 - m) + t2
 * e^(m2 - m) */
struct row_stats {
    float top, total, off;
};

template <class T, int V> __device__ row_stats scan_row(const T *row, int64_t vocab)
{
    row_stats p = {-INFINITY, 0, 0};
    float first = to_float(row[0]), v[V];
    for (int64_t i = threadIdx.x * V; i < vocab; i += blockDim.x * V) {
        load(v, row, i);
        float top = p.top;
        for (int j = 0; j < V; j++) top = v[j] > top ? v[j] : top;
        if (top > p.top) {
            p.total *= expf(p.top - top);
            p.top = top;
        }
        float base = top == -INFINITY ? 0 : top; /* avoids -inf - -inf: all -inf adds 0 */
        for (int j = 0; j < V; j++) {
            p.total += expf(v[j] - base);
            p.off += v[j] - first;
        }
    }
    return p;
}

/* loss = (1 - smooth) * (lse - x[label]) + smooth * (lse - mean(x)) */
template <class T, int V>
__global__ void entropy_row(float *loss, float *lse, const T *x, const int32_t *labels,
                            int64_t vocab, float smooth, int32_t ignore, fault *bad)
{
    int64_t r = blockIdx.x;
    int32_t label = labels[r];
    bool outside = label < 0 || label >= vocab;
    if (label == ignore || outside) {
        if (threadIdx.x) return;
        loss[r] = lse[r] = 0;
        if (label != ignore) report_fault(bad, r, label, vocab);
        return;
    }
    const T *row = x + r * vocab;
    row_stats p = scan_row<T, V>(row, vocab);
    float top = block_allreduce(p.top, max_op());
    float total = block_allreduce(p.top == -INFINITY ? 0.0f : p.total * expf(p.top - top),
                                  sum_op());
    float off = smooth != 0 ? block_allreduce(p.off, sum_op()) : 0;
    if (threadIdx.x) return;
    float log_total = logf(total), mean = off / (float)vocab + (to_float(row[0]) - top);
    lse[r] = top + log_total;
    loss[r] = log_total - (1 - smooth) * (to_float(row[label]) - top) -
              (smooth != 0 ? smooth * mean : 0);
}

template <class T>
void cross_entropy(fv_stream *s, fv_stat *loss, fv_stat *lse, const void *x, const int32_t *labels,
                   int64_t rows, int64_t vocab, float smooth, int32_t ignore)
{
    with_width<T>(vocab % vec<T> == 0 && aligned(x), [&](auto w) {
        constexpr int V = decltype(w)::value;
        launch(s, "cross_entropy", entropy_row<T, V>, dim3((unsigned)rows), row_threads(vocab / V),
               0, (float *)loss, (float *)lse, (const T *)x, labels, vocab, smooth, ignore,
               faults_of(s) + FAULT_LABEL);
    });
}

/* dx = dloss * (softmax(x) - (1 - smooth) * onehot(label) - smooth / vocab) */
template <class T, int V>
__global__ void entropy_bwd_row(sink<T> dx, const float *dloss, const float *lse, const T *x,
                                const int32_t *labels, int64_t vocab, float smooth, int32_t ignore)
{
    int64_t r = blockIdx.x;
    int32_t label = labels[r];
    bool counts = label != ignore;
    float d = counts ? dloss[r] : 0, shift = lse[r], even = smooth / (float)vocab, v[V];
    for (int64_t i = threadIdx.x * V; i < vocab; i += blockDim.x * V) {
        load(v, x, r * vocab + i);
        for (int j = 0; j < V; j++) {
            float target = even + (i + j == label ? 1 - smooth : 0);
            v[j] = counts ? d * (expf(v[j] - shift) - target) : 0;
        }
        sink_store(dx, r * vocab + i, v);
    }
}

template <class T>
void cross_entropy_bwd(fv_stream *s, fv_sink dx, const fv_stat *dloss, const fv_stat *lse,
                       const void *x, const int32_t *labels, int64_t rows, int64_t vocab,
                       float smooth, int32_t ignore)
{
    if (!dx.data) return;
    with_width<T>(vocab % vec<T> == 0 && aligned(x, dx.data), [&](auto w) {
        constexpr int V = decltype(w)::value;
        launch(s, "cross_entropy_bwd", entropy_bwd_row<T, V>, dim3((unsigned)rows),
               row_threads(vocab / V), 0, to<T>(dx), (const float *)dloss, (const float *)lse,
               (const T *)x, labels, vocab, smooth, ignore);
    });
}

/* ---- the divergence of two rows ---- */

/* The log-sum-exp of a row, to all threads. */
template <class T, int V> __device__ float row_lse(const T *row, int64_t vocab)
{
    row_stats p = scan_row<T, V>(row, vocab);
    float top = block_allreduce(p.top, max_op());
    float total = p.top == -INFINITY ? 0.0f : p.total * expf(p.top - top);
    return top + logf(block_allreduce(total, sum_op()));
}

/* KL(p||q) = sum p (log p - log q), and the other way round: a block for a pair of rows, which the
 * second loop reads from L2 */
template <class T, int V>
__global__ void symmetric_kl_row(float *y, float *kept, const T *x, int64_t rows, int64_t vocab)
{
    int64_t r = blockIdx.x;
    const T *of_p = x + r * vocab, *of_q = x + (rows + r) * vocab;
    float lse_p = row_lse<T, V>(of_p, vocab), lse_q = row_lse<T, V>(of_q, vocab), pq = 0, qp = 0;
    float p[V], q[V];
    for (int64_t i = threadIdx.x * V; i < vocab; i += blockDim.x * V) {
        load(p, of_p, i);
        load(q, of_q, i);
        for (int j = 0; j < V; j++) {
            float log_p = p[j] - lse_p, log_q = q[j] - lse_q;
            pq += expf(log_p) * (log_p - log_q);
            qp += expf(log_q) * (log_q - log_p);
        }
    }
    pq = block_allreduce(pq, sum_op());
    qp = block_allreduce(qp, sum_op());
    if (threadIdx.x) return;
    kept[r] = lse_p;
    kept[rows + r] = lse_q;
    kept[2 * rows + r] = pq;
    kept[3 * rows + r] = qp;
    y[r] = pq + qp;
}

template <class T>
void symmetric_kl(fv_stream *s, fv_stat *y, fv_stat *kept, const void *x, int64_t rows,
                  int64_t vocab)
{
    with_width<T>(vocab % vec<T> == 0 && aligned(x), [&](auto w) {
        constexpr int V = decltype(w)::value;
        launch(s, "symmetric_kl", symmetric_kl_row<T, V>, dim3((unsigned)rows),
               row_threads(vocab / V), 0, (float *)y, (float *)kept, (const T *)x, rows, vocab);
    });
}

/* d KL(p||q) / dx = p (log p - log q - KL(p||q)) and d KL(q||p) / dx = p - q, x the logits of p;
 * those of q likewise.  0 where dy is, whatever the row holds. */
template <class T, int V>
__global__ void symmetric_kl_bwd_row(sink<T> dx, const float *dy, const float *kept, const T *x,
                                     int64_t rows, int64_t vocab)
{
    int64_t r = blockIdx.x;
    float d = dy[r], lse_p = kept[r], lse_q = kept[rows + r], pq = kept[2 * rows + r],
          qp = kept[3 * rows + r], of_p[V], of_q[V];
    for (int64_t i = threadIdx.x * V; i < vocab; i += blockDim.x * V) {
        load(of_p, x, r * vocab + i);
        load(of_q, x, (rows + r) * vocab + i);
        for (int j = 0; j < V; j++) {
            float log_p = of_p[j] - lse_p, log_q = of_q[j] - lse_q;
            float p = expf(log_p), q = expf(log_q), apart = log_p - log_q;
            of_p[j] = d == 0 ? 0 : d * (p * (apart - pq) + (p - q));
            of_q[j] = d == 0 ? 0 : d * (q * (-apart - qp) + (q - p));
        }
        sink_store(dx, r * vocab + i, of_p);
        sink_store(dx, (rows + r) * vocab + i, of_q);
    }
}

template <class T>
void symmetric_kl_bwd(fv_stream *s, fv_sink dx, const fv_stat *dy, const fv_stat *kept,
                      const void *x, int64_t rows, int64_t vocab)
{
    if (!dx.data) return;
    with_width<T>(vocab % vec<T> == 0 && aligned(x, dx.data), [&](auto w) {
        constexpr int V = decltype(w)::value;
        launch(s, "symmetric_kl_bwd", symmetric_kl_bwd_row<T, V>, dim3((unsigned)rows),
               row_threads(vocab / V), 0, to<T>(dx), (const float *)dy, (const float *)kept,
               (const T *)x, rows, vocab);
    });
}

/* ---- fused: loss and gradient, the gradient overwriting the logits ---- */

#define LOG2E 1.4426950408889634f

__device__ inline float exp2_approx(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Max and sum of exp(x - max).  It starts at a finite minimum, not at -inf, so that vectors of
 * nothing but -inf (the padding) need no branch. */
#define LEAST -1e38f
struct lse_stats {
    float top, total;
};

template <class T, int V> __device__ lse_stats scan_padded_row(const T *row, int n)
{
    lse_stats p = {LEAST, 0};
    float v[V];
#pragma unroll 2
    for (int i = threadIdx.x * V; i < n; i += blockDim.x * V) {
        load(v, row, i);
        float top = p.top;
        for (int j = 0; j < V; j++) top = fmaxf(top, v[j]);
        if (top > p.top) {
            p.total *= exp2_approx((p.top - top) * LOG2E);
            p.top = top;
        }
        float shift = -top * LOG2E;
        for (int j = 0; j < V; j++) p.total += exp2_approx(fmaf(v[j], LOG2E, shift));
    }
    return p;
}

/* Over the block, to all threads.  `buffer` alternates between 0 and 1, which saves the second
 * barrier. */
__device__ inline lse_stats block_stats(lse_stats p, int buffer)
{
    __shared__ lse_stats part[2][32];
    unsigned lane = threadIdx.x % 32;
    float top = warp_allreduce(p.top, max_op());
    float total = warp_allreduce(p.total * exp2_approx((p.top - top) * LOG2E), sum_op());
    if (lane == 0) part[buffer][threadIdx.x / 32] = {top, total};
    __syncthreads();
    p = lane < blockDim.x / 32 ? part[buffer][lane] : lse_stats{LEAST, 0};
    top = warp_allreduce(p.top, max_op());
    return {top, warp_allreduce(p.total * exp2_approx((p.top - top) * LOG2E), sum_op())};
}

/* Sum of x - top over the row, to all threads. */
template <class T, int V> __device__ float sum_of_row(const T *row, int vocab, float top)
{
    float sum = 0;
    for (int i = threadIdx.x * V; i < vocab; i += blockDim.x * V)
        for (int j = 0; j < V && i + j < vocab; j++) sum += to_float(row[i + j]) - top;
    return block_allreduce(sum, sum_op());
}

/* One 16-byte store: left to itself the compiler may split it into element stores. */
template <class T, int V> __device__ inline void store_all(T *to, const float (&v)[V])
{
    pack<T, V> k;
    for (int j = 0; j < V; j++) k.v[j] = from_float<T>(v[j]);
    if constexpr (sizeof k == 16) {
        const uint4 w = *(const uint4 *)&k;
        asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(w.x), "r"(w.y),
                     "r"(w.z), "r"(w.w)
                     : "memory");
    } else {
        *(pack<T, V> *)to = k;
    }
}

/* Whether this thread owns element i of a row; blockDim.x is a power of two. */
template <int V> __device__ inline bool is_owner(int i)
{
    return (i / V & (int)(blockDim.x - 1)) == (int)threadIdx.x;
}

/* Sets the padding (elements from vocab on) within this thread's vectors; last: start of its last
 * vector. */
template <class T, int V>
__device__ inline void fill_padding(T *row, int vocab, int last, float value)
{
    for (; last >= 0 && last + V > vocab; last -= (int)blockDim.x * V)
        for (int j = 0; j < V; j++)
            if (last + j >= vocab) row[last + j] = from_float<T>(value);
}

/* Row to smem, each thread the vectors that it will read itself: no barrier is needed. */
template <class T, int V> __device__ inline void fetch_row(T *to, const T *row, int n)
{
    for (int i = threadIdx.x * V; i < n; i += blockDim.x * V) cp_async16(to + i, row + i);
}

/* loss = lse - (1 - smooth) x[label] - smooth mean(x), and x becomes softmax(x) - target; padding
 * becomes 0.  A block walks over rows.  HELD: the row is read once, into smem, while cp.async
 * loads the next one into the other buffer.  Else it is read twice, the second time from L2.
 * Bytes of one row of logits, vocabulary V in 16 bits:
 *
 *    plain: forward reads V, backward reads and writes V      3 V
 *    fused, not held: read, read again (L2), written          2 V of HBM
 *    fused, held: read into smem, written                     2 V, and one pass of latency less
 *
 * Two rows of 50,304 in bf16 take 197 KiB, which the 227 KiB of an H100's SM hold. */
template <class T, int V, bool HELD>
__global__ void __launch_bounds__(1024, HELD ? 1 : 2)
    entropy_fused_row(float *loss, T *x, const int32_t *labels, int64_t rows, int vocab, int step,
                      float smooth, int32_t ignore, fault *bad)
{
    extern __shared__ uint4 held[];
    int half = 0, buffer = 0, end = step / V - 1,
        last = (end - ((end - (int)threadIdx.x) & (int)(blockDim.x - 1))) * V;
    float even = smooth / (float)vocab, v[V];
    if (HELD) fetch_row<T, V>((T *)held, x + blockIdx.x * (int64_t)step, step);
    int32_t label = labels[blockIdx.x];
    for (int64_t r = blockIdx.x; r < rows; r += gridDim.x, half ^= 1) {
        T *row = x + r * step, *from = HELD ? (T *)held + half * step : row;
        int32_t now = label;
        bool counts = now != ignore && now >= 0 && now < vocab, more = r + gridDim.x < rows;
        if (HELD) asm volatile("cp.async.wait_all;" ::: "memory");
        if (HELD && more)
            fetch_row<T, V>((T *)held + (half ^ 1) * step, row + gridDim.x * (int64_t)step, step);
        if (more) label = labels[r + gridDim.x];
        if (!counts) {
            if (threadIdx.x == 0) loss[r] = 0;
            if (threadIdx.x == 0 && now != ignore) report_fault(bad, r, now, vocab);
            const float none[V] = {};
            for (int i = threadIdx.x * V; i < step; i += blockDim.x * V) store_all(row + i, none);
            continue;
        }
        fill_padding<T, V>(from, vocab, last, -INFINITY);
        float chosen = is_owner<V>(now) ? to_float(from[now]) : 0;
        lse_stats p = block_stats(scan_padded_row<T, V>(from, step), buffer);
        buffer ^= 1;
        float off = smooth != 0 ? sum_of_row<T, V>(from, vocab, p.top) : 0,
              log_total = logf(p.total);
        float lse = p.top * LOG2E + log_total * LOG2E; /* base 2, for ex2 */
#pragma unroll 4
        for (int i = threadIdx.x * V; i < step; i += blockDim.x * V) {
            load(v, from, i);
            for (int j = 0; j < V; j++) v[j] = exp2_approx(fmaf(v[j], LOG2E, -lse)) - even;
            store_all(row + i, v);
        }
        if (is_owner<V>(now)) {
            loss[r] = log_total - (1 - smooth) * (chosen - p.top) -
                      (smooth != 0 ? smooth * off / (float)vocab : 0);
            row[now] = from_float<T>(exp2_approx(fmaf(chosen, LOG2E, -lse)) - even - (1 - smooth));
        }
        fill_padding<T, V>(row, vocab, last, 0);
    }
}

template <class T>
void cross_entropy_fused(fv_stream *s, fv_stat *loss, void *x, const int32_t *labels, int64_t rows,
                         int64_t vocab, int64_t step, float smooth, int32_t ignore)
{
    constexpr int V = 16 / sizeof(T);
    fault *bad = faults_of(s) + FAULT_LABEL;
    unsigned threads = row_threads(step / V), many = threads == 512 ? 1024 : threads;
    size_t two_rows = 2 * (size_t)step * sizeof(T), others = 2048, shared = device_of(s)->max_smem;
    bool packs = step % V == 0 && aligned(x), held = packs && two_rows + others <= shared;
    int64_t beside = (int64_t)(shared / (two_rows + others));
    /* blocks of shorter rows share an SM: while one waits at a barrier, others go on, and a
     * vocabulary of 12,000 leaves no thread of 256 idle, but a quarter of 1,024 */
    if (held && many > 256 && beside > 1) many = beside < 4 ? 512 : 256;
    int64_t most = 2048 / many;
    most = (int64_t)device_of(s)->sm_count * (beside < most ? beside : most);
    dim3 grid((unsigned)rows), few((unsigned)(rows < most ? rows : most));
    if (held)
        launch(s, "cross_entropy", entropy_fused_row<T, V, true>, few, many, two_rows,
               (float *)loss, (T *)x, labels, rows, (int)vocab, (int)step, smooth, ignore, bad);
    else if (packs)
        launch(s, "cross_entropy", entropy_fused_row<T, V, false>, grid, many, 0, (float *)loss,
               (T *)x, labels, rows, (int)vocab, (int)step, smooth, ignore, bad);
    else
        launch(s, "cross_entropy", entropy_fused_row<T, 1, false>, grid, many, 0, (float *)loss,
               (T *)x, labels, rows, (int)vocab, (int)step, smooth, ignore, bad);
}

/* y = x * scale[row] */
template <class T>
void scale_rows(fv_stream *s, fv_sink y, const void *x, const fv_stat *scale, int64_t rows,
                int64_t cols)
{
    sink<T> to_y = to<T>(y);
    bool wide = cols % vec<T> == 0 && aligned(y.data, x);
    if (!y.data) return;
    each_vec<vec<T>>(s, "scale_rows", rows * cols, wide, [=] __device__(auto w, int64_t i) {
        float v[decltype(w)::value], by = ((const float *)scale)[i / cols];
        load(v, (const T *)x, i);
        for (float &e : v) e *= by;
        sink_store(to_y, i, v);
    });
}
} // namespace

template <class T> void fv_cuda_entropy(fv_kernels *k)
{
    k->cross_entropy_fused = cross_entropy_fused<T>;
    k->scale_rows = scale_rows<T>;
    k->cross_entropy = cross_entropy<T>;
    k->cross_entropy_bwd = cross_entropy_bwd<T>;
    k->symmetric_kl = symmetric_kl<T>;
    k->symmetric_kl_bwd = symmetric_kl_bwd<T>;
}
FOR_ALL_DTYPES(fv_cuda_entropy)
