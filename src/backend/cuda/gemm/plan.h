/* plan.h - a matrix product as cuBLASLt sees it: the key of its plan cache, and the call. */
#ifndef FV_CUDA_GEMM_PLAN_H
#define FV_CUDA_GEMM_PLAN_H

#include "backend/cuda/device/cuda.h"

/* Everything the choice of an algorithm depends on.  Compared with memcmp, so memset it first. */
struct gemm_shape {
    int64_t m, n, k, batch, lda, ldb, ldc, stride_a, stride_b, stride_c;
    int dtype, ct, epilogue; /* epilogue: cuBLASLt's */
    int ta, tb, add;
    int align_a, align_b, align_c; /* largest power of two up to 256 that divides the address */
};

/* What may differ from call to call; names as in fv_gemm. */
struct gemm_call {
    const void *a, *b, *plus, *bias; /* plus, bias: or NULL */
    void *c, *pre;                   /* pre: or NULL */
    float alpha;
};

/* The largest power of two up to 256 that divides an address. */
static inline int fv_cuda_alignment(const void *p)
{
    uintptr_t a = (uintptr_t)p | 256;
    return (int)(a & (~a + 1));
}

/* True: launched, or the stream has an error; false: cuBLASLt has no algorithm for this shape. */
bool fv_cuda_multiply(fv_stream *s, const gemm_shape *shape, const gemm_call *g);

#endif
