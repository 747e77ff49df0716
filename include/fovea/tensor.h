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

#define FV_MAX_DIM 6

typedef struct fv_shape {
    int n; /* 0: a scalar */
    int64_t d[FV_MAX_DIM];
} fv_shape;

/* FV_SHAPE(2, 3, 4) is the shape (2,3,4). */
#define FV_SHAPE(...)                                                                              \
    ((fv_shape){(int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), {__VA_ARGS__}})

typedef struct fv_ctx fv_ctx;
typedef struct fv_node fv_node;

typedef struct fv_tensor {
    void *data; /* device memory: read it with fv_read, never through this pointer */
    /* NULL until a gradient arrives; of the tensor's dtype; for bf16 and f16 parameters f32 */
    void *grad;
    fv_shape shape;
    fv_dtype dtype;
    bool wants_grad; /* a parameter being trained, or computed from one */
    bool has_grad;   /* grad holds a value (else it is still to be written) */
    bool is_param;
    bool packed;   /* a weight in the backend's own layout (fv_pack): only matmul takes it */
    bool held;     /* survives fv_backward */
    bool released; /* memory was given back during fv_backward */
    struct fv_tensor *base; /* whose memory this shares (fv_reshape, fv_head, ...), or NULL */
    const char *name;       /* parameters only */
} fv_tensor;

typedef struct fv_desc {
    char s[96];
} fv_desc_text; /* "f32(2,3,4)", for messages */

/* Sizes are 0 for NULL, so that code which computes with shapes needs no checks either. */
FV_API fv_desc_text fv_desc(const fv_tensor *t);
FV_API fv_shape fv_shape_of(const fv_tensor *t);
/* axis < 0 counts from the end; 0 where there is none */
FV_API int64_t fv_dim(const fv_tensor *t, int axis);
FV_API int64_t fv_len(const fv_tensor *t);  /* number of elements */
FV_API int64_t fv_rows(const fv_tensor *t); /* product of all axes but the last; 1 for a scalar */
FV_API int64_t fv_cols(const fv_tensor *t); /* last axis; 1 for a scalar */
FV_API int64_t fv_shape_len(fv_shape s);
FV_API bool fv_shape_same(fv_shape a, fv_shape b);

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
FV_API void fv_ctx_set_train(fv_ctx *c, bool train);
FV_API void fv_ctx_set_record(fv_ctx *c, bool record);
FV_API bool fv_ctx_training(const fv_ctx *c);
FV_API fv_device *fv_ctx_device(const fv_ctx *c);
FV_API size_t fv_ctx_bytes(const fv_ctx *c); /* memory its arenas hold */

/* Marks a position in the arena; fv_keep moves x down to it and gives back everything else made
 * since.  While recording both do nothing.  Any other tensor made after the mark is gone. */
typedef struct fv_mark {
    size_t chunk, used;
} fv_mark;
FV_API fv_mark fv_mark_here(fv_ctx *c);
FV_API fv_tensor *fv_keep(fv_ctx *c, fv_mark mark, fv_tensor *x);

/* ---- getting data in and out; host memory, converted to or from the tensor's dtype ---- */

/* of the context's dtype, as doubles and zeros are */
FV_API fv_tensor *fv_floats(fv_ctx *c, const float *host, fv_shape s);
FV_API fv_tensor *fv_doubles(fv_ctx *c, const double *host, fv_shape s);
FV_API fv_tensor *fv_ints(fv_ctx *c, const int32_t *host, fv_shape s);
FV_API fv_tensor *fv_bytes(fv_ctx *c, const uint8_t *host, fv_shape s);
FV_API fv_tensor *fv_zeros(fv_ctx *c, fv_shape s);
FV_API fv_tensor *fv_full(fv_ctx *c, fv_shape s, float value);

/* Copy out.  n must be fv_len(t).  Waits for the device. */
FV_API fv_status fv_read(fv_ctx *c, const fv_tensor *t, float *host, int64_t n);
FV_API fv_status fv_read_f64(fv_ctx *c, const fv_tensor *t, double *host, int64_t n);
FV_API fv_status fv_read_i32(fv_ctx *c, const fv_tensor *t, int32_t *host, int64_t n);
/* zeros if none came */
FV_API fv_status fv_read_grad(fv_ctx *c, const fv_tensor *t, double *host, int64_t n);
FV_API fv_status fv_write(fv_ctx *c, fv_tensor *t, const float *host, int64_t n);

/* Asks for the gradient of an input that is no parameter: call right after making it. */
FV_API fv_tensor *fv_watch(fv_ctx *c, fv_tensor *t);
/* Keeps a tensor readable after fv_backward, which otherwise reuses its memory. */
FV_API fv_tensor *fv_hold(fv_ctx *c, fv_tensor *t);
/* The same values with no gradient behind them. */
FV_API fv_tensor *fv_detach(fv_ctx *c, fv_tensor *t);

/* d loss / d everything that wants it.  loss has one element.  Parameter gradients are added to
 * what is there (fv_params_zero_grad clears); others are fresh.  Afterwards only the loss, held
 * tensors, watched inputs and parameters can be read. */
FV_API fv_status fv_backward(fv_ctx *c, fv_tensor *loss);
/* The same from a given gradient of y (host floats, fv_len(y) of them). */
FV_API fv_status fv_backward_from(fv_ctx *c, fv_tensor *y, const float *dy);

/* Gradient checkpointing: y = fn(c, user, x), keeping x and y but nothing from in between;
 * fv_backward runs fn again to get it, with the same random numbers.  What fn reads besides x
 * (parameters, masks, an encoder's memory) comes through user, gets its gradient as always, and
 * must stay as it is until then. */
typedef fv_tensor *fv_block_fn(fv_ctx *c, void *user, fv_tensor *x);
FV_API fv_tensor *fv_checkpoint(fv_ctx *c, fv_block_fn *fn, void *user, fv_tensor *x);

/* ---- taps: one callback sees what passes ---- */

/* site: "attention", "attention_output", "hidden", ...; name: which one
 * ("encoder.layers.0.self_attn"); what: the tensor, or for "attention" the view from which exact
 * weights can be asked (ops.h).  Nothing has read an output yet when the tap sees it: in a pass
 * that is not recorded the tap may fv_write to it. */
typedef void fv_tap_fn(void *user, fv_ctx *c, const char *site, const char *name, const void *what);
FV_API void fv_ctx_set_tap(fv_ctx *c, fv_tap_fn *fn, void *user);
FV_API void fv_tap(fv_ctx *c, const char *site, const char *name, const void *what);

/* ---- parameters: named, in one flat block, gradients in a second ---- */

typedef struct fv_params fv_params;

typedef enum fv_init_kind {
    FV_INIT_ZERO,
    FV_INIT_ONE,
    FV_INIT_NORMAL,
    FV_INIT_UNIFORM,
    FV_INIT_XAVIER
} fv_init_kind;
typedef struct fv_init {
    fv_init_kind kind;
    float scale;
    bool buffer;
} fv_init; /* buffer: saved, never trained */

FV_API fv_status fv_params_new(fv_params **out, const fv_env *env, fv_err *e);
FV_API void fv_params_free(fv_params *p); /* NULL is allowed */

/* Declares one.  Sticky like a context: after a failure returns NULL and fv_params_alloc reports
 * it.  The tensor's address never changes; its data comes with fv_params_alloc. */
FV_API fv_tensor *fv_param(fv_params *p, fv_init init, fv_shape s, const char *fmt, ...)
    FV_PRINTF(4, 5);

/* Cleared host memory that lives as long as the parameters, for arrays of layers; NULL (and sticky)
 * if there is none. */
FV_API void *fv_params_scratch(fv_params *p, size_t bytes);

/* Gives all declared parameters memory on d, and gradients if train. */
FV_API fv_status fv_params_alloc(fv_params *p, fv_device *d, fv_dtype dtype, bool train, fv_err *e);
FV_API fv_status fv_params_randomize(fv_params *p, uint64_t seed, fv_err *e);
FV_API void fv_params_zero_grad(fv_params *p);

FV_API int fv_params_count(const fv_params *p);
FV_API int64_t fv_params_elements(const fv_params *p, const char *prefix); /* "" counts all */
FV_API fv_tensor *fv_params_at(const fv_params *p, int i);
FV_API fv_tensor *fv_params_find(const fv_params *p, const char *name);
/* Turns training on or off for every parameter whose name begins with prefix; returns how many
 * matched. */
FV_API int fv_params_train(fv_params *p, const char *prefix, bool on);
FV_API fv_status fv_params_get(fv_params *p, const fv_tensor *t, float *host, int64_t n, fv_err *e);
FV_API fv_status fv_params_set(fv_params *p, fv_tensor *t, const float *host, int64_t n, fv_err *e);
FV_API fv_status fv_params_get_grad(fv_params *p, const fv_tensor *t, float *host, int64_t n,
                                    fv_err *e);
/* The flat blocks, for optimisers: device memory, *n elements, padding between parameters is
 * zero. */
FV_API void *fv_params_data(const fv_params *p, int64_t *n);
FV_API void *fv_params_grad(fv_params *p, int64_t *n);

#endif
