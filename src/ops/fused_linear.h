/* fused_linear.h - a linear layer for one token of each sequence, with what stands around it, where
 * the device has it. */
#ifndef FV_OPS_FUSED_LINEAR_H
#define FV_OPS_FUSED_LINEAR_H

#include "fovea/author/op.h"

/* y = act(norm(x) w' + b), or added to `residual`, which is changed and returned; a residual that
 * still lacks a norm (residual_norm) stays, and y = norm(residual) + norm(x) w' + b.  With caches
 * the last columns, half for each, go to row pos of them; what becomes y and a key may be rotated
 * first, as fv_rope does.  With `up`: y = act(norm(x) w' + b) * (norm(x) up' + up_b).
 * No gradient. */
typedef struct fv_fused_linear_arg {
    const fv_tensor *w, *b;
    fv_act act;
    fv_norm_kind norm;
    const fv_tensor *gain, *shift;
    float eps;
    fv_tensor *residual;
    fv_norm_kind residual_norm;
    const fv_tensor *residual_gain, *residual_shift;
    float residual_eps;
    const fv_tensor *k, *v, *pos;          /* caches (B,cap,G*W) and pos (B), or NULL */
    const fv_tensor *up, *up_b;            /* of w's shape, of b's; or NULL */
    bool halves;                           /* the lower halves of w and b are up and up_b */
    const fv_tensor *rope_pos, *rope_freq; /* (B), (half) or (B,half); NULL: no rotation */
    int64_t head;                          /* width of a rotated head */
    bool adjacent;                         /* pairs (2i,2i+1), else (i,i+half) */
    bool half; /* y may be bf16, and then caches are: what comes next reads it so anyway */
} fv_fused_linear_arg;

/* Whether fv__fused_linear takes x (B,1,D) and weights like w. */
bool fv__fused_linear_supported(const fv_ctx *c, const fv_tensor *x, const fv_tensor *w);
/* Whether the device's kernel gates, with n columns of weights that are, or are not, the halves of
 * one; and whether it rotates heads of that width. */
bool fv__fused_gate_supported(const fv_ctx *c, int64_t n, bool halves);
bool fv__fused_rope_supported(const fv_ctx *c, const fv_tensor *freq, int64_t head);
fv_tensor *fv__fused_linear(fv_ctx *c, fv_tensor *x, fv_fused_linear_arg a);
/* Rotation by freq (half) or (B,half) at positions pos (B), as kernels take it; freq NULL: none. */
fv_fused_rope fv__fused_rope(const fv_tensor *freq, const fv_tensor *pos, int64_t head,
                             bool adjacent);

#endif
