/* product.h - an fv_gemm of matrices without gaps, which is all that ops have. */
#ifndef FV_PRODUCT_H
#define FV_PRODUCT_H

#include "fovea/author/op.h"

/* One factor: its memory, whether it is stored transposed, and the elements from one of a batch to
 * the next. */
typedef struct fv_factor {
    const void *data;
    bool t;
    int64_t stride;
} fv_factor;

/* to (m,n) (+)= a (m,k) b (k,n) in the arithmetic of dtype; for one pair, until batch and stride_c
 * are set. */
static inline fv_gemm fv__product(fv_sink to, fv_factor a, fv_factor b, int64_t m, int64_t n,
                                  int64_t k, fv_dtype dtype)
{
    fv_gemm g = {.m = m,
                 .n = n,
                 .k = k,
                 .batch = 1,
                 .a = a.data,
                 .b = b.data,
                 .c = to.data,
                 .ta = a.t,
                 .tb = b.t};
    g.lda = a.t ? m : k;
    g.ldb = b.t ? k : n;
    g.ldc = n;
    g.stride_a = a.stride;
    g.stride_b = b.stride;
    g.bt = dtype;
    g.ct = to.dtype;
    g.add = to.add;
    return g;
}

/* onto + x w' + bias, w (N,K) or, in_out, (K,N); onto (..,N), which may not be x.  One product
 * where the device can. */
fv_tensor *fv__linear_add(fv_ctx *c, fv_tensor *residual, fv_tensor *x, fv_tensor *w,
                          fv_tensor *bias, bool in_out);

/* y += x w', w (N,K), in y's own memory: the result is another tensor there, and y (..,N), which no
 * gradient may need, is not read again. */
fv_tensor *fv__linear_onto(fv_ctx *c, fv_tensor *y, fv_tensor *x, fv_tensor *w);

/* n weights (N_i,K) and their biases (or all NULL) that lie one behind the other in memory, with
 * their gradients, as those of q, k and v do that were declared in a row: y = x (w_0; w_1; ...)' as
 * one product, on a device that gains by it.  x is read once instead of n times, and its gradient
 * is one sum instead of n that are rounded. */
bool fv__linear_joins(const fv_ctx *c, const fv_tensor *x, fv_tensor *const *w, fv_tensor *const *b,
                      int n);
fv_tensor *fv__linear_joined(fv_ctx *c, fv_tensor *x, fv_tensor *const *w, fv_tensor *const *b,
                             int n);

/* Whether fv__linear_add is one product for x and w, so that a sum behind fv_linear would be a pass
 * more. */
bool fv__linear_adds(const fv_ctx *c, const fv_tensor *x, const fv_tensor *w);

/* The node is a linear map whose gradient never looks at its output again: whoever reads that last
 * may write over it. */
bool fv__linear_output_unused(const fv_node *n);

/* Where n is a linear map to y without activation: where the sums of the columns of y's gradient
 * go.  It leaves them to the caller, who makes that gradient whole. */
fv_sink fv__linear_bias_sums(fv_ctx *c, fv_node *n, const fv_tensor *y);

#endif
