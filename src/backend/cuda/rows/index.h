/* index.h - element-wise kernels whose index is taken apart: in 32 bits wherever it fits. */
#ifndef FV_CUDA_INDEX_H
#define FV_CUDA_INDEX_H

#include "backend/cuda/device/cuda.h"

/* f(i) for each i below n, i of 32 bits where n allows: a division of 64 bits takes longer than the
 * memory access that it is for. */
template <class F> static void each_index(fv_stream *s, const char *name, int64_t n, F f)
{
    if (n <= INT32_MAX)
        each(s, name, n, [=] __device__(int64_t e) { f((int32_t)e); });
    else
        each(s, name, n, f);
}

#endif
