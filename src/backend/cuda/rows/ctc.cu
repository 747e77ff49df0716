/* ctc.cu - the CTC loss: -log of the total probability of all ways to spread labels over frames.
 *
 * States s = 0 .. 2U are the labels with a blank around each: e(s) is the blank where s is even,
 * else label s / 2.  A frame depends on the one before only, so all states of a frame are
 * independent: one block per sequence, one frame after another.  beta runs backwards the same way
 * and keeps two frames.  alpha, written by frame, is what the gradient reads.
 *
 * A class may be the label of several states: the thread of its first state adds them in order
 * (`next` links them), so that no atomics are needed and bits repeat. */
#include "alignment.h"

namespace
{

template <class T> struct chain : alignment<T> {
    __device__ int64_t states() const { return 2 * this->count() + 1; }
    __device__ int64_t width() const { return 2 * this->U + 1; }
    __device__ int64_t frame(int64_t t) const { return blockIdx.x * this->T_ + t; }
    __device__ int32_t said(int64_t s) const { return s % 2 ? this->label(s / 2) : this->blank; }
    __device__ float lp_of(int64_t t, int64_t s) const
    {
        return to_float(this->lp[frame(t) * this->V + said(s)]);
    }
    /* The blank between two different labels may be left out. */
    __device__ bool skips(int64_t s) const { return s % 2 && s >= 2 && said(s) != said(s - 2); }
};

/* alpha(t,s) = lp(t,e(s)) + logadd(alpha(t-1,s), alpha(t-1,s-1), alpha(t-1,s-2) where it skips)
 * loss = -logadd(alpha(n-1,2U), alpha(n-1,2U-1)), infinite where the labels do not fit. */
template <class T> __global__ void ctc_sequence(float *loss, float *alpha, chain<T> g)
{
    if (!g.valid()) return;
    int64_t n = g.frames(), S = g.states();
    for (int64_t t = 0; t < n; t++) {
        float *here = alpha + g.frame(t) * g.width();
        const float *was = here - g.width();
        for (int64_t k = threadIdx.x; k < S; k += blockDim.x) {
            float sum = !t && k < 2 ? 0 : -INFINITY;
            if (t) sum = was[k];
            if (t && k >= 1) sum = log_add(sum, was[k - 1]);
            if (t && g.skips(k)) sum = log_add(sum, was[k - 2]);
            here[k] = sum + g.lp_of(t, k);
        }
        __syncthreads();
    }
    if (threadIdx.x) return;
    const float *end = alpha + g.frame(n - 1) * g.width() + S - 1;
    loss[blockIdx.x] = -(S > 1 ? log_add(end[0], end[-1]) : end[0]);
}

/* next[u]: the next label equal to label u, or -1; encoded as -3 - next where an earlier one is
 * equal, too.  Read by is_first and next_of. */
template <class T> __device__ inline void link_labels(int32_t *next, const chain<T> &g)
{
    for (int64_t u = threadIdx.x; u < g.count(); u += blockDim.x) {
        int64_t after = u + 1, before = 0;
        while (after < g.count() && g.label(after) != g.label(u)) after++;
        while (before < u && g.label(before) != g.label(u)) before++;
        int32_t link = after < g.count() ? (int32_t)after : -1;
        next[u] = before < u ? -3 - link : link;
    }
    __syncthreads();
}
__device__ inline bool is_first(int32_t link) { return link >= -1; }
__device__ inline int32_t next_of(int32_t link) { return is_first(link) ? link : -3 - link; }

/* The part of ctc_bwd_sequence that writes a frame: dlp(t,v) = -dloss * share(v), the shares of the
 * states that say v added up; blanks by the whole block. */
template <class T>
__device__ inline void put_frame(sink<T> dlp, const chain<T> &g, int64_t t, const float *share,
                                 const int32_t *next, float dloss)
{
    int64_t row = g.frame(t) * g.V;
    float blanks = 0;
    for (int64_t k = 2 * threadIdx.x; k < g.states(); k += 2 * blockDim.x) blanks += share[k];
    blanks = block_allreduce(blanks, sum_op());
    if (threadIdx.x == 0 && blanks > 0) sink_put(dlp, row + g.blank, -dloss * blanks);
    for (int64_t u = threadIdx.x; u < g.count(); u += blockDim.x) {
        if (!is_first(next[u])) continue;
        float sum = 0;
        for (int64_t i = u; i >= 0; i = next_of(next[i])) sum += share[2 * i + 1];
        if (sum > 0) sink_put(dlp, row + g.label(u), -dloss * sum);
    }
}

/* share(t,s) = exp(alpha(t,s) + beta(t,s) + loss), of all ways those that are in s at frame t;
 * beta(t,s) = logadd over the states that may follow of beta(t+1,.) + lp(t+1,.). */
template <class T>
__global__ void ctc_bwd_sequence(sink<T> dlp, const float *dloss, const float *loss,
                                 const float *alpha, float *work, int32_t *links, chain<T> g)
{
    if (!g.valid()) return;
    int64_t n = g.frames(), S = g.states(), width = g.width();
    float d_loss = dloss[blockIdx.x], total = loss[blockIdx.x],
          *rows = work + blockIdx.x * 3 * width, *share = rows + 2 * width;
    int32_t *next = links + blockIdx.x * (g.U + 1);
    if (!(total < INFINITY)) return; /* no way at all: nothing to learn from the sequence */
    link_labels(next, g);
    for (int64_t t = n - 1; t >= 0; t--) {
        float *here = rows + t % 2 * width;
        const float *after = rows + (t + 1) % 2 * width;
        for (int64_t k = threadIdx.x; k < S; k += blockDim.x) {
            bool last = t == n - 1;
            float sum = k >= S - 2 ? 0 : -INFINITY;
            if (!last) sum = after[k] + g.lp_of(t + 1, k);
            if (!last && k + 1 < S) sum = log_add(sum, after[k + 1] + g.lp_of(t + 1, k + 1));
            if (!last && k + 2 < S && g.skips(k + 2))
                sum = log_add(sum, after[k + 2] + g.lp_of(t + 1, k + 2));
            here[k] = sum;
            share[k] = expf(alpha[g.frame(t) * width + k] + sum + total);
        }
        __syncthreads();
        put_frame(dlp, g, t, share, next, d_loss);
        __syncthreads(); /* the shares have been read */
    }
}

template <class T>
chain<T> chain_of(fv_stream *s, const void *lp, const int32_t *labels, const int32_t *tlen,
                  const int32_t *ulen, int64_t T_, int64_t U, int64_t V, int32_t blank)
{
    return {{(const T *)lp, labels, tlen, ulen, T_, U, V, blank, faults_of(s) + FAULT_CTC}};
}

template <class T>
void ctc(fv_stream *s, fv_stat *loss, fv_stat *alpha, const void *lp, const int32_t *labels,
         const int32_t *tlen, const int32_t *ulen, int64_t B, int64_t T_, int64_t U, int64_t V,
         int32_t blank)
{
    launch(s, "ctc", ctc_sequence<T>, dim3((unsigned)B), row_threads(2 * U + 1), 0, (float *)loss,
           (float *)alpha, chain_of<T>(s, lp, labels, tlen, ulen, T_, U, V, blank));
}

template <class T>
void ctc_bwd(fv_stream *s, fv_sink dlp, const fv_stat *dloss, const fv_stat *loss,
             const fv_stat *alpha, const void *lp, const int32_t *labels, const int32_t *tlen,
             const int32_t *ulen, int64_t B, int64_t T_, int64_t U, int64_t V, int32_t blank)
{
    if (!dlp.data) return;
    int64_t floats = B * 3 * (2 * U + 1);
    float *work = alloc_scratch<float>(s, floats + B * (U + 1)); /* the links behind the floats */
    if (!work) return;
    size_t size = dlp.dtype == FV_F32 ? 4 : sizeof(T);
    /* classes that no state says, and frames behind the last, have gradient 0 */
    if (!dlp.add) s->dev->backend->zero(s, dlp.data, (size_t)(B * T_ * V) * size);
    launch(s, "ctc_bwd", ctc_bwd_sequence<T>, dim3((unsigned)B), row_threads(2 * U + 1), 0,
           to<T>(dlp), (const float *)dloss, (const float *)loss, (const float *)alpha, work,
           (int32_t *)(work + floats), chain_of<T>(s, lp, labels, tlen, ulen, T_, U, V, blank));
}
} // namespace

template <class T> void fv_cuda_ctc(fv_kernels *k)
{
    k->ctc = ctc<T>;
    k->ctc_bwd = ctc_bwd<T>;
}
FOR_ALL_DTYPES(fv_cuda_ctc)
