/* params.h - parameters for those who declare them: named, in one flat block, gradients in a
 * second; weights of products packed once, for parameters that will not change any more. */
#ifndef FOVEA_AUTHOR_PARAMS_H
#define FOVEA_AUTHOR_PARAMS_H

#include "fovea/author/tensor.h"

typedef enum fv_init_kind {
    FV_INIT_ZERO,
    FV_INIT_ONE, /* times scale, where that is not 0 */
    FV_INIT_NORMAL,
    FV_INIT_UNIFORM,
    FV_INIT_XAVIER
} fv_init_kind;
typedef struct fv_init {
    fv_init_kind kind;
    float scale;
    bool buffer;
} fv_init; /* buffer: saved, never trained */

/* An empty set, to declare into. */
FV_API fv_status fv_params_new(fv_params **out, const fv_env *env, fv_err *e);
FV_API void fv_params_free(fv_params *p); /* NULL is allowed */

/* Declares one.  Sticky like a context: after a failure returns NULL and fv_params_alloc reports
 * it.  The tensor's address never changes; its data comes with fv_params_alloc. */
FV_API fv_tensor *fv_param(fv_params *p, fv_init init, fv_shape s, const char *fmt, ...)
    FV_PRINTF(4, 5);

/* Which part of a layer the weight of a linear map is the last product of: where bottleneck
 * adapters stand.  fv_mha_init and fv_mlp_init mark theirs, a family that declares them itself does
 * it.  w may be NULL. */
typedef enum fv_part_end { FV_ENDS_NONE = 0, FV_ENDS_ATTENTION, FV_ENDS_MLP } fv_part_end;
FV_API void fv_param_mark_end(fv_tensor *w, fv_part_end end);

/* Cleared host memory that lives as long as the parameters, for arrays of layers; NULL (and sticky)
 * if there is none. */
FV_API void *fv_params_scratch(fv_params *p, size_t bytes);

/* Gives all declared parameters memory on d, and gradients if train. */
FV_API fv_status fv_params_alloc(fv_params *p, fv_device *d, fv_dtype dtype, bool train, fv_err *e);
FV_API fv_status fv_params_randomize(fv_params *p, uint64_t seed, fv_err *e);

/* Turns training on or off for every parameter whose name begins with prefix; returns how many
 * matched. */
FV_API int fv_params_train(fv_params *p, const char *prefix, bool on);
/* A parameter's gradient, as fv_params_get its values. */
FV_API fv_status fv_params_get_grad(fv_params *p, const fv_tensor *t, float *host, int64_t n,
                                    fv_err *e);
/* The flat blocks, for optimisers: device memory, *n elements, padding between parameters is
 * zero. */
FV_API void *fv_params_data(const fv_params *p, int64_t *n);
FV_API void *fv_params_grad(fv_params *p, int64_t *n);

/* ---- packed ---- */

/* w[0..n), each (N,K) of one K, or (K,N) if in_out, one below the other as one packed tensor (sum
 * of N,K) of dtype (f32, bf16, q8, q4) that lives as long as p.  NULL on failure, which sticks to p
 * (fv_params_status), as where the device has no such layout: fv_params_packs says so. */
FV_API fv_tensor *fv_params_pack(fv_params *p, fv_tensor *const *w, int n, fv_dtype dtype,
                                 bool in_out);
FV_API bool fv_params_packs(const fv_params *p, fv_dtype dtype);
/* n vectors one behind the other (their biases); zeros for NULL, which needs vectors of one length,
 * and NULL if all are. */
FV_API fv_tensor *fv_params_join(fv_params *p, fv_tensor *const *t, int n);
/* The first failure of declaring, joining or packing. */
FV_API fv_status fv_params_status(const fv_params *p, fv_err *e);
/* Read where a file is mapped (fv_params_map): it cannot be changed. */
FV_API bool fv_params_borrowed(const fv_tensor *t);

#endif
