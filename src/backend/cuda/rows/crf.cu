/* crf.cu - the loss of a linear-chain conditional random field, formulas in backend/ref/crf.c.
 *
 * One block a sequence, one thread a label: alpha and beta of a position need those of the position
 * before or behind it, so positions follow one another with barriers between.  Chains are tens of
 * positions and tables tens of labels wide, so this is latency; batches fill the chip.  A parallel
 * scan over matrices (K,K) would cost K times the work.
 *
 * The gradient of the transitions is a sum over sequences: each block leaves its own, and a second
 * kernel adds them in the order of the batch. */
#include "backend/cuda/device/cuda.h"

namespace
{

template <class T> struct chain {
    const T *x, *trans;
    const int32_t *labels; /* of this block's sequence */
    int64_t T_, K;

    __device__ float score(int64_t t, int64_t k) const { return to_float(x[t * K + k]); }
    __device__ float step(int64_t j, int64_t k) const { return to_float(trans[j * K + k]); }
    /* The last position up to t with a label; -1: none. */
    __device__ int64_t before(int64_t t) const
    {
        while (t >= 0 && labels[t] < 0) t--;
        return t;
    }
};

template <class T> __device__ chain<T> chain_of(const fv_crf &a)
{
    int64_t b = blockIdx.x;
    return {(const T *)a.x + b * a.T * a.K, (const T *)a.trans, a.labels + b * a.T, a.T, a.K};
}

/* log sum_i exp(v(i)), in order; f gives v. */
template <class F> __device__ float log_sum(int64_t n, F v)
{
    float top = -INFINITY, sum = 0;
    for (int64_t i = 0; i < n; i++) top = fmaxf(top, v(i));
    if (top == -INFINITY) return top;
    for (int64_t i = 0; i < n; i++) sum += expf(v(i) - top);
    return top + logf(sum);
}

/* A label beyond the table is recorded, and nothing is computed of its sequence; uniform. */
template <class T> __device__ bool labels_fit(const chain<T> &g, fault *bad)
{
    int wrong = 0;
    for (int64_t t = threadIdx.x; t < g.T_; t += blockDim.x)
        if (g.labels[t] >= g.K) {
            report_fault(bad, blockIdx.x * g.T_ + t, g.labels[t], g.K);
            wrong = 1;
        }
    return !__syncthreads_or(wrong);
}

/* alpha(i,k) = x(t_i,k) + log sum_j exp(alpha(i-1,j) + A(j,k));  loss = log Z - score(y) */
template <class T> __global__ void crf_sequence(float *loss, float *alpha_, fv_crf a, fault *bad)
{
    chain<T> g = chain_of<T>(a);
    float *alpha = alpha_ + (int64_t)blockIdx.x * a.T * a.K, score = 0;
    int64_t K = g.K, was = -1;
    if (!labels_fit(g, bad)) return;
    for (int64_t t = 0; t < g.T_; t++) {
        if (g.labels[t] < 0) continue;
        for (int64_t k = threadIdx.x; k < K; k += blockDim.x) {
            float sum = was < 0 ? g.step(K, k) : log_sum(K, [&](int64_t j) {
                return alpha[was * K + j] + g.step(j, k);
            });
            alpha[t * K + k] = sum + g.score(t, k);
        }
        score += g.step(was < 0 ? K : g.labels[was], g.labels[t]) + g.score(t, g.labels[t]);
        was = t;
        __syncthreads();
    }
    if (threadIdx.x) return;
    float all = was < 0
                    ? 0
                    : log_sum(K, [&](int64_t k) { return alpha[was * K + k] + g.step(K + 1, k); });
    loss[blockIdx.x] = was < 0 ? 0 : all - score - g.step(K + 1, g.labels[was]);
}

/* beta(i-1,j) = log sum_k exp(A(j,k) + x(t_i,k) + beta(i,k)); gradients are probabilities minus
 * what is right.  A thread owns row j of its sequence's transitions, so its sums have one order. */
template <class T>
__global__ void crf_bwd_sequence(sink<T> dx, const float *dloss, const float *alpha_, float *pairs_,
                                 fv_crf a, fault *bad)
{
    extern __shared__ float beta_[]; /* (2,K): of this position and of the one before */
    chain<T> g = chain_of<T>(a);
    int64_t K = g.K, base = (int64_t)blockIdx.x * a.T * K, turn = 0;
    const float *alpha = alpha_ + base;
    float *pairs = pairs_ + (int64_t)blockIdx.x * (K + 2) * K, d = dloss[blockIdx.x];
    for (int64_t i = threadIdx.x; i < (K + 2) * K; i += blockDim.x) pairs[i] = 0;
    for (int64_t k = threadIdx.x; k < K; k += blockDim.x) beta_[k] = g.step(K + 1, k);
    __syncthreads();
    int64_t last = g.before(g.T_ - 1);
    if (last < 0 || !labels_fit(g, bad)) return;
    float all = log_sum(K, [&](int64_t k) { return alpha[last * K + k] + g.step(K + 1, k); });
    for (int64_t t = last, was; t >= 0; t = was, turn ^= 1) {
        const float *beta = beta_ + turn * K;
        float *next = beta_ + (turn ^ 1) * K;
        was = g.before(t - 1);
        for (int64_t k = threadIdx.x; k < K; k += blockDim.x) {
            float p = expf(alpha[t * K + k] + beta[k] - all) - (k == g.labels[t] ? 1 : 0);
            if (dx.p) sink_put(dx, base + t * K + k, d * p);
            if (t == last) pairs[(K + 1) * K + k] = d * p;
            if (was < 0) pairs[K * K + k] = d * p;
        }
        for (int64_t j = threadIdx.x; was >= 0 && j < K; j += blockDim.x) {
            float from = alpha[was * K + j] - all;
            auto behind = [&](int64_t k) { return g.step(j, k) + g.score(t, k) + beta[k]; };
            for (int64_t k = 0; k < K; k++) {
                bool right = j == g.labels[was] && k == g.labels[t];
                pairs[j * K + k] += d * (expf(from + behind(k)) - (right ? 1 : 0));
            }
            next[j] = log_sum(K, behind);
        }
        __syncthreads();
    }
}

/* dtrans(i) = sum over sequences, in order */
template <class T> __global__ void crf_sum(sink<T> dtrans, const float *pairs, int64_t B, int64_t n)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float sum = 0;
    for (int64_t b = 0; b < B; b++) sum += pairs[b * n + i];
    sink_put(dtrans, i, sum);
}

template <class T> void crf(fv_stream *s, fv_stat *loss, fv_stat *alpha, const fv_crf *a)
{
    launch(s, "crf", crf_sequence<T>, dim3((unsigned)a->B), row_threads(a->K), 0, (float *)loss,
           (float *)alpha, *a, faults_of(s) + FAULT_LABEL);
}

template <class T>
void crf_bwd(fv_stream *s, fv_sink dx, fv_sink dtrans, const fv_stat *dloss, const fv_stat *alpha,
             fv_stat *pairs, const fv_crf *a)
{
    int64_t n = (a->K + 2) * a->K;
    size_t size = dx.dtype == FV_F32 ? 4 : sizeof(T);
    /* positions without a label have gradient 0 */
    if (dx.data && !dx.add) s->dev->backend->zero(s, dx.data, (size_t)(a->B * a->T * a->K) * size);
    launch(s, "crf_bwd", crf_bwd_sequence<T>, dim3((unsigned)a->B), row_threads(a->K),
           (size_t)(2 * a->K) * sizeof(float), to<T>(dx), (const float *)dloss,
           (const float *)alpha, (float *)pairs, *a, faults_of(s) + FAULT_LABEL);
    if (dtrans.data)
        launch(s, "crf_sum", crf_sum<T>, dim3((unsigned)ceil_div(n, 128)), 128, 0, to<T>(dtrans),
               (const float *)pairs, a->B, n);
}
} // namespace

template <class T> void fv_cuda_crf(fv_kernels *k)
{
    k->crf = crf<T>;
    k->crf_bwd = crf_bwd<T>;
}
FOR_ALL_DTYPES(fv_cuda_crf)
