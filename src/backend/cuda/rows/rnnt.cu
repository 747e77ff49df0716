/* rnnt.cu - the transducer loss: -log of the total probability of all monotonic alignments.
 *
 * alpha(t,u) depends on alpha(t-1,u) and alpha(t,u-1), so all nodes with the same t + u are
 * independent: one block per sequence, one anti-diagonal after another.  beta runs backwards the
 * same way and keeps two diagonals only. */
#include "alignment.h"

namespace
{

/* The lattice of one sequence (blockIdx.x): node (t,u) has consumed t frames and emitted u labels;
 * blank goes to (t+1,u), label u to (t,u+1).  lp (B,T,U+1,V). */
template <class T> struct lattice : alignment<T> {
    __device__ int64_t point(int64_t t, int64_t u) const
    {
        return (blockIdx.x * this->T_ + t) * (this->U + 1) + u;
    }
    __device__ float by_blank(int64_t t, int64_t u) const
    {
        return to_float(this->lp[point(t, u) * this->V + this->blank]);
    }
    __device__ float by_label(int64_t t, int64_t u) const
    {
        return to_float(this->lp[point(t, u) * this->V + this->label(u)]);
    }
};

/* alpha(t,u) = logadd(alpha(t-1,u) + lp_blank(t-1,u), alpha(t,u-1) + lp_label(t,u-1))
 * T + U steps with a barrier each; a diagonal has at most U + 1 nodes, one thread each where
 * they fit. */
template <class T> __global__ void rnnt_sequence(float *loss, float *alpha, lattice<T> g)
{
    if (!g.valid()) return;
    int64_t n = g.frames(), U = g.count();
    for (int64_t d = 0; d < n + U; d++) {
        for (int64_t u = threadIdx.x; u <= U && u <= d; u += blockDim.x) {
            int64_t t = d - u;
            if (t >= n) continue;
            float down = t ? alpha[g.point(t - 1, u)] + g.by_blank(t - 1, u) : -INFINITY;
            float across = u ? alpha[g.point(t, u - 1)] + g.by_label(t, u - 1) : -INFINITY;
            alpha[g.point(t, u)] = d ? log_add(down, across) : 0;
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) loss[blockIdx.x] = -alpha[g.point(n - 1, U)] - g.by_blank(n - 1, U);
}

/* dlp of an edge = -dloss * exp(alpha(before) + lp + beta(after) + loss): minus the posterior
 * probability that a path takes it. */
template <class T>
__global__ void rnnt_bwd_sequence(sink<T> dlp, const float *dloss, const float *loss,
                                  const float *alpha, float *beta, lattice<T> g)
{
    if (!g.valid()) return;
    int64_t n = g.frames(), U = g.count();
    float d_loss = dloss[blockIdx.x], total = loss[blockIdx.x],
          *rows = beta + blockIdx.x * 2 * (g.U + 1);
    for (int64_t d = n + U - 1; d >= 0; d--) {
        float *here = rows + d % 2 * (g.U + 1);
        const float *after = rows + (d + 1) % 2 * (g.U + 1);
        for (int64_t u = threadIdx.x; u <= U && u <= d; u += blockDim.x) {
            int64_t t = d - u;
            if (t >= n) continue;
            bool end = t == n - 1 && u == U;
            float before = alpha[g.point(t, u)] + total;
            float down = g.by_blank(t, u) + (end ? 0 : t < n - 1 ? after[u] : -INFINITY);
            float across = u < U ? g.by_label(t, u) + after[u + 1] : -INFINITY;
            if (down > -INFINITY)
                sink_put(dlp, g.point(t, u) * g.V + g.blank, -d_loss * expf(before + down));
            if (across > -INFINITY)
                sink_put(dlp, g.point(t, u) * g.V + g.label(u), -d_loss * expf(before + across));
            here[u] = log_add(down, across);
        }
        __syncthreads();
    }
}

template <class T>
void rnnt(fv_stream *s, fv_stat *loss, fv_stat *alpha, const void *lp, const int32_t *labels,
          const int32_t *tlen, const int32_t *ulen, int64_t B, int64_t T_, int64_t U1, int64_t V,
          int32_t blank)
{
    lattice<T> g = {
        {(const T *)lp, labels, tlen, ulen, T_, U1 - 1, V, blank, faults_of(s) + FAULT_RNNT}};
    launch(s, "rnnt", rnnt_sequence<T>, dim3((unsigned)B), row_threads(U1), 0, (float *)loss,
           (float *)alpha, g);
}

template <class T>
void rnnt_bwd(fv_stream *s, fv_sink dlp, const fv_stat *dloss, const fv_stat *loss,
              const fv_stat *alpha, const void *lp, const int32_t *labels, const int32_t *tlen,
              const int32_t *ulen, int64_t B, int64_t T_, int64_t U1, int64_t V, int32_t blank)
{
    if (!dlp.data) return;
    float *beta = alloc_scratch<float>(s, B * 2 * U1);
    if (!beta) return;
    lattice<T> g = {
        {(const T *)lp, labels, tlen, ulen, T_, U1 - 1, V, blank, faults_of(s) + FAULT_RNNT}};
    size_t size = dlp.dtype == FV_F32 ? 4 : sizeof(T);
    /* edges on no path have gradient 0 */
    if (!dlp.add) s->dev->backend->zero(s, dlp.data, (size_t)(B * T_ * U1 * V) * size);
    launch(s, "rnnt_bwd", rnnt_bwd_sequence<T>, dim3((unsigned)B), row_threads(U1), 0, to<T>(dlp),
           (const float *)dloss, (const float *)loss, (const float *)alpha, beta, g);
}
} // namespace

template <class T> void fv_cuda_rnnt(fv_kernels *k)
{
    k->rnnt = rnnt<T>;
    k->rnnt_bwd = rnnt_bwd<T>;
}
FOR_ALL_DTYPES(fv_cuda_rnnt)
