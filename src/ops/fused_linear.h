/* fused_linear.h - a linear layer for one token of each sequence, with what stands around it, where
 * the device has it. */
#ifndef FV_OPS_FUSED_LINEAR_H
#define FV_OPS_FUSED_LINEAR_H

#include "fovea/author/op.h"

/* y = act(norm(x) w' + b), or added to `residual`, which is changed and returned.  With caches the
 * last columns, half for each, go to row pos of them.  No gradient. */
typedef struct fv_fused_linear_arg {
    const fv_tensor *w, *b;
    fv_act act;
    fv_norm_kind norm;
    const fv_tensor *gain, *shift;
    float eps;
    fv_tensor *residual;
    const fv_tensor *k, *v, *pos; /* caches (B,cap,G*W) and pos (B), or NULL */
    bool half; /* y may be bf16, and then caches are: what comes next reads it so anyway */
} fv_fused_linear_arg;

/* Whether fv__fused_linear takes x (B,1,D) and weights like w. */
bool fv__fused_linear_supported(const fv_ctx *c, const fv_tensor *x, const fv_tensor *w);
fv_tensor *fv__fused_linear(fv_ctx *c, fv_tensor *x, fv_fused_linear_arg a);

#endif
