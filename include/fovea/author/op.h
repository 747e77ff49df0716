/* op.h - for authors of ops: making tensors, recording them, reaching kernels.
 *
 * An op is one file with both directions: it checks shapes, makes its output, calls a kernel and
 * records a node.  NULL inputs are passed on; failures are raised into the context. */
#ifndef FOVEA_AUTHOR_OP_H
#define FOVEA_AUTHOR_OP_H

#include "fovea/author/backend.h"
#include "fovea/author/params.h"

typedef struct fv_node fv_node;
struct fv_node {
    fv_node *prev;
    void (*backward)(fv_ctx *c, fv_node *n);
    fv_tensor *y;
    int n_in;
    fv_tensor **in;
    /* fv_scratch that only backward needs: its memory may be reused afterwards; or NULL */
    void *temp;
    size_t temp_bytes;
};

/* Keeps the first error of the context; always returns NULL. */
FV_API void *fv_raise(fv_ctx *c, fv_status code, const char *fmt, ...) FV_PRINTF(3, 4);

FV_API fv_stream *fv_ctx_stream(fv_ctx *c);
/* The kernels for this dtype; NULL (raised) where the device has none. */
FV_API const fv_kernels *fv_kernels_of(fv_ctx *c, fv_dtype t);
/* Raises "<kernel>: this device has no kernel for <dtype>" and is false unless have. */
FV_API bool fv_need(fv_ctx *c, bool have, const char *kernel, fv_dtype t);
/* True if all are non-NULL, float, of one dtype and not packed; raises otherwise (NULL: silently,
 * the error is older). */
FV_API bool fv_same_dtype(fv_ctx *c, const char *op, const fv_tensor *a, const fv_tensor *b);

/* A new tensor with undefined contents, of the given dtype; NULL when memory is out or the context
 * has failed. */
FV_API fv_tensor *fv_new(fv_ctx *c, fv_dtype t, fv_shape s);
/* Another shape for the same memory (same number of elements). */
FV_API fv_tensor *fv_alias(fv_ctx *c, fv_tensor *x, fv_shape s);
/* Step-lifetime device memory: n elements of t. */
FV_API void *fv_scratch(fv_ctx *c, fv_dtype t, int64_t n);

/* Where the gradient of t goes; data is NULL if t wants none.  Once asked, the kernel must
 * deliver. */
FV_API fv_sink fv_grad(fv_ctx *c, fv_tensor *t);
/* For y whose gradient is that of x unchanged (reshape, one side of an addition): hands n->y's
 * gradient over to x, or adds it there if x has one already.  n->y's gradient cannot be read
 * afterwards, so this comes last in a backward. */
FV_API void fv_grad_pass(fv_ctx *c, fv_tensor *x, fv_node *n);

/* A position of the random sequence, for one use in this step. */
FV_API fv_rng fv_next_rng(fv_ctx *c);

/* fv_record(c, sizeof(my_node), backward, y, x, ...): a node of that size whose fv_node is filled
 * in, or NULL when nothing is to be recorded.  With backward NULL it raises if any input wants a
 * gradient. */
#define fv_record(c, size, backward, y, ...)                                                       \
    fv_record_n(c, __func__, size, backward, y,                                                    \
                (int)(sizeof((fv_tensor *[]){__VA_ARGS__}) / sizeof(fv_tensor *)),                 \
                (fv_tensor *[]){__VA_ARGS__})
FV_API void *fv_record_n(fv_ctx *c, const char *op, size_t size,
                         void (*backward)(fv_ctx *, fv_node *), fv_tensor *y, int n_in,
                         fv_tensor **in);

#endif
