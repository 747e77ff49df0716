/* gemm.h - products for tests: numbers, a product described, made and run.
 *
 * A test program opens gemm_device and fills gemm_reference by gemm_setup. */
#ifndef HELPER_GEMM_H
#define HELPER_GEMM_H

#include "backend/ref/tables.h"
#include "core/core.h"

extern fv_kernels gemm_reference[FV_FLOATS];
extern fv_device *gemm_device;
int gemm_setup(void **state);
int gemm_teardown(void **state);

void *gemm_memory(size_t bytes);
/* n numbers of dtype t, and the same numbers as f32 in *f */
void *gemm_numbers(fv_dtype t, int64_t n, float **f);

typedef struct gemm_case {
    int64_t m, n, k, batch;
    bool ta, tb, add, bias, pre, pad; /* pad: leading dimensions larger than they need be */
    fv_act act;
    float alpha;
    fv_dtype table, ct;
    bool packed;
    fv_dtype pack_as;
} gemm_case;

typedef struct gemm_problem {
    fv_gemm g;
    float *a, *b, *bias, *c; /* as f32 */
    void *a_real, *b_real, *b_packed, *bias_real, *c_first;
    int64_t c_len;
} gemm_problem;

gemm_problem gemm_make(const gemm_case *t);
void gemm_drop(gemm_problem *p);
/* C of a run with so many threads, into fresh memory. */
void *gemm_run(fv_device *d, const gemm_case *t, const gemm_problem *p, int threads, void **pre);

/* (m,n,k) */
extern const int64_t gemm_sizes[][3];
extern const size_t gemm_sizes_n;

#endif
