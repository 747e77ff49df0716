/* tensor.h - contexts, tensors and parameters.
 *
 * A context belongs to one thread.  It owns everything computed in it: nobody frees a tensor, they
 * go together at fv_ctx_reset.  A failure inside a context is sticky: the first one is kept, every
 * later compute call returns NULL at once and passing NULL on is allowed everywhere, so model code
 * needs no checks; look at fv_ctx_status once at the end.
 *
 * Tensors are contiguous, row-major, last axis fastest. */
#ifndef FOVEA_TENSOR_H
#define FOVEA_TENSOR_H

#include "fovea/device.h"

typedef struct fv_shape {
    int n; /* 0: a scalar */
    int64_t d[FV_MAX_DIM];
} fv_shape;

/* FV_SHAPE(2, 3, 4) is the shape (2,3,4). */
#define FV_SHAPE(...)                                                                              \
    ((fv_shape){(int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), {__VA_ARGS__}})

typedef struct fv_ctx fv_ctx;
typedef struct fv_tensor fv_tensor; /* its members are for authors: author/tensor.h */

/* Sizes are 0 for NULL, so that code which computes with shapes needs no checks either. */
FV_API fv_shape fv_shape_of(const fv_tensor *t);
/* axis < 0 counts from the end; 0 where there is none */
FV_API int64_t fv_dim(const fv_tensor *t, int axis);
FV_API int64_t fv_len(const fv_tensor *t); /* number of elements */

/* ---- context ---- */

typedef struct fv_ctx_opt {
    fv_dtype dtype; /* of float tensors made in it; default f32 */
    int threads;    /* 0: the device's */
    uint64_t seed;  /* of dropout */
    bool record;    /* keep a tape, so that fv_backward works */
    bool train;     /* dropout is active, batch norm uses the batch */
    /* layers keep what enters them and nothing else: fv_backward computes it again
     * (fv_checkpoint) */
    bool recompute;
} fv_ctx_opt;

FV_API fv_status fv_ctx_new(fv_ctx **out, fv_device *d, fv_ctx_opt opt, fv_err *e);
FV_API void fv_ctx_free(fv_ctx *c); /* NULL is allowed; all its tensors go with it */

/* Forgets every tensor, the tape and the error; memory stays.  The step is the random counter: the
 * same (seed, step) gives the same dropout whatever the thread count or backend. */
FV_API void fv_ctx_reset(fv_ctx *c, uint64_t step);

FV_API fv_status fv_ctx_status(fv_ctx *c); /* waits for the device */
FV_API const fv_err *fv_ctx_err(const fv_ctx *c);

/* ---- getting data in and out; host memory, converted to or from the tensor's dtype ---- */

/* of the context's dtype, as zeros are */
FV_API fv_tensor *fv_floats(fv_ctx *c, const float *host, fv_shape s);
FV_API fv_tensor *fv_ints(fv_ctx *c, const int32_t *host, fv_shape s);
FV_API fv_tensor *fv_bytes(fv_ctx *c, const uint8_t *host, fv_shape s);
FV_API fv_tensor *fv_zeros(fv_ctx *c, fv_shape s);

/* Copy out.  n must be fv_len(t).  Waits for the device. */
FV_API fv_status fv_read(fv_ctx *c, const fv_tensor *t, float *host, int64_t n);
FV_API fv_status fv_read_i32(fv_ctx *c, const fv_tensor *t, int32_t *host, int64_t n);
/* The gradient of t; zeros if none came. */
FV_API fv_status fv_read_grad(fv_ctx *c, const fv_tensor *t, double *host, int64_t n);

/* Asks for the gradient of an input that is no parameter: call right after making it. */
FV_API fv_tensor *fv_watch(fv_ctx *c, fv_tensor *t);

/* d loss / d everything that wants it.  loss has one element.  Parameter gradients are added to
 * what is there (fv_params_zero_grad clears); others are fresh.  Afterwards only the loss,
 * watched inputs and parameters can be read. */
FV_API fv_status fv_backward(fv_ctx *c, fv_tensor *loss);

/* ---- taps: one callback sees what passes ---- */

/* site: "attention", "attention_output", "hidden", ...; name: which one
 * ("encoder.layers.0.self_attn"); what: the tensor, or for "attention" the view from which exact
 * weights can be asked (ops.h).  Nothing has read an output yet when the tap sees it: in a pass
 * that is not recorded the tap may write to it (author/tensor.h). */
typedef void fv_tap_fn(void *user, fv_ctx *c, const char *site, const char *name, const void *what);
FV_API void fv_ctx_set_tap(fv_ctx *c, fv_tap_fn *fn, void *user);

/* ---- parameters of a model, by their published names (fv_model_params) ---- */

typedef struct fv_params fv_params;

/* Clears the gradients that fv_backward adds to. */
FV_API void fv_params_zero_grad(fv_params *p);

/* How many there are, and which: NULL where there is none. */
FV_API int fv_params_count(const fv_params *p);
FV_API int64_t fv_params_elements(const fv_params *p, const char *prefix); /* "" counts all */
FV_API fv_tensor *fv_params_at(const fv_params *p, int i);
FV_API fv_tensor *fv_params_find(const fv_params *p, const char *name);
/* Copies all n elements out and in; n must be fv_len(t). */
FV_API fv_status fv_params_get(fv_params *p, const fv_tensor *t, float *host, int64_t n, fv_err *e);
FV_API fv_status fv_params_set(fv_params *p, fv_tensor *t, const float *host, int64_t n, fv_err *e);

#endif
