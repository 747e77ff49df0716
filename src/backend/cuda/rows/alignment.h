/* alignment.h - what the losses over alignments share (rnnt.cu, ctc.cu): sums of probabilities as
 * logarithms, and the lengths and labels of a batch.  One block per sequence. */
#ifndef FV_CUDA_ALIGNMENT_H
#define FV_CUDA_ALIGNMENT_H

#include "backend/cuda/device/cuda.h"

/* log(exp(a) + exp(b)) */
__device__ inline float log_add(float a, float b)
{
    float top = a > b ? a : b, low = a > b ? b : a;
    return low == -INFINITY ? top : top + log1pf(expf(low - top));
}

/* Log-probabilities lp over V classes, and the labels (B,U) that the block's sequence is to give in
 * at most T_ frames. */
template <class T> struct alignment {
    const T *lp;
    const int32_t *labels, *tlen, *ulen;
    int64_t T_, U, V;
    int32_t blank;
    fault *bad; /* the record for lengths; behind it the one for labels */

    __device__ int64_t frames() const { return tlen[blockIdx.x]; }
    __device__ int64_t count() const { return ulen[blockIdx.x]; }
    __device__ int32_t label(int64_t u) const { return labels[blockIdx.x * U + u]; }

    /* Lengths and labels in range?  Uniform over the block; otherwise a fault is recorded. */
    __device__ bool valid() const
    {
        if (frames() < 1 || frames() > T_ || count() < 0 || count() > U) {
            if (threadIdx.x == 0)
                report_fault(bad, blockIdx.x, tlen[blockIdx.x], T_ << 32 | U, ulen[blockIdx.x]);
            return false;
        }
        int wrong = 0;
        for (int64_t u = threadIdx.x; u < count(); u += blockDim.x) {
            if (label(u) >= 0 && label(u) < V && label(u) != blank) continue;
            report_fault(bad + 1, blockIdx.x, label(u), V);
            wrong = 1;
        }
        return !__syncthreads_or(wrong);
    }
};

#endif
