/* tensor.h - what ops, layers and families see of tensors and contexts, beyond fovea/tensor.h. */
#ifndef FOVEA_AUTHOR_TENSOR_H
#define FOVEA_AUTHOR_TENSOR_H

#include "fovea/items.h"

struct fv_tensor {
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
    /* Elements from one position to the next and from one sequence to the next, of a KV cache that
     * lies between others (fv_session_kv); 0: contiguous, as every other tensor is.  cache_write,
     * attention and the fused linear layer take such a cache, nothing else does. */
    int64_t row_step, batch_step;
};

typedef struct fv_desc {
    char s[96];
} fv_desc_text; /* "f32(2,3,4)", for messages */

/* Sizes are 0 for NULL, so that code which computes with shapes needs no checks either. */
FV_API fv_desc_text fv_desc(const fv_tensor *t);
FV_API int64_t fv_rows(const fv_tensor *t); /* product of all axes but the last; 1 for a scalar */
FV_API int64_t fv_cols(const fv_tensor *t); /* last axis; 1 for a scalar */
FV_API int64_t fv_shape_len(fv_shape s);
FV_API bool fv_shape_same(fv_shape a, fv_shape b);

/* ---- context ---- */

/* What fv_ctx_opt says at first, from here on. */
FV_API void fv_ctx_set_train(fv_ctx *c, bool train);
FV_API void fv_ctx_set_record(fv_ctx *c, bool record);
FV_API bool fv_ctx_training(const fv_ctx *c);
FV_API fv_device *fv_ctx_device(const fv_ctx *c);
FV_API size_t fv_ctx_bytes(const fv_ctx *c); /* memory its arenas hold */
FV_API const fv_env *fv_device_env(const fv_device *d);

/* Marks a position in the arena; fv_keep moves x down to it and gives back everything else made
 * since.  While recording both do nothing.  Any other tensor made after the mark is gone. */
typedef struct fv_mark {
    size_t chunk, used;
} fv_mark;
FV_API fv_mark fv_mark_here(fv_ctx *c);
FV_API fv_tensor *fv_keep(fv_ctx *c, fv_mark mark, fv_tensor *x);

/* ---- data ---- */

/* Host memory as a tensor of the context's dtype, and a constant. */
FV_API fv_tensor *fv_doubles(fv_ctx *c, const double *host, fv_shape s);
FV_API fv_tensor *fv_full(fv_ctx *c, fv_shape s, float value);
/* As fv_read; and the other way, into a tensor that nothing was computed from yet. */
FV_API fv_status fv_read_f64(fv_ctx *c, const fv_tensor *t, double *host, int64_t n);
FV_API fv_status fv_write(fv_ctx *c, fv_tensor *t, const float *host, int64_t n);

/* ---- gradients ---- */

/* Keeps a tensor readable after fv_backward, which otherwise reuses its memory. */
FV_API fv_tensor *fv_hold(fv_ctx *c, fv_tensor *t);
/* The same values with no gradient behind them. */
FV_API fv_tensor *fv_detach(fv_ctx *c, fv_tensor *t);
/* fv_backward from a given gradient of y (host floats, fv_len(y) of them). */
FV_API fv_status fv_backward_from(fv_ctx *c, fv_tensor *y, const float *dy);

/* Gradient checkpointing: y = fn(c, user, x), keeping x and y but nothing from in between;
 * fv_backward runs fn again to get it, with the same random numbers.  What fn reads besides x
 * (parameters, masks, an encoder's memory) comes through user, gets its gradient as always, and
 * must stay as it is until then. */
typedef fv_tensor *fv_block_fn(fv_ctx *c, void *user, fv_tensor *x);
FV_API fv_tensor *fv_checkpoint(fv_ctx *c, fv_block_fn *fn, void *user, fv_tensor *x);

/* ---- taps, items ---- */

/* Shows something to the tap, if there is one: site and name as fv_tap_fn has them. */
FV_API void fv_tap(fv_ctx *c, const char *site, const char *name, const void *what);

/* Raises FV_EARG where an item was refused.  what and of are for the message: "inputs", "gpt2". */
FV_API bool fv_items_check(fv_ctx *c, const fv_items *s, const char *what, const char *of);

#endif
