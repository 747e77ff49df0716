/* plan.h - a matrix product as cuBLASLt is asked for it. */
#ifndef FV_CUDA_GEMM_PLAN_H
#define FV_CUDA_GEMM_PLAN_H

#include "backend/cuda/device/cuda.h"

/* Everything an algorithm depends on.  Compared as bytes, so it must be cleared first. */
struct gemm_shape {
    int64_t m, n, k, batch, lda, ldb, ldc, stride_a, stride_b, stride_c;
    int dtype, ct, epilogue; /* epilogue: cuBLASLt's */
    int ta, tb, add;
    int align_a, align_b, align_c; /* largest power of two up to 256 that divides the address */
};

/* The rest, as in fv_gemm. */
struct gemm_call {
    const void *a, *b, *plus, *bias; /* plus, bias: or NULL */
    void *c, *pre;                   /* pre: or NULL */
    float alpha;
};

/* True when it ran (or failed for good); false when cuBLASLt has no algorithm for it. */
bool fv_cuda_multiply(fv_stream *s, const gemm_shape *shape, const gemm_call *g);

#endif
