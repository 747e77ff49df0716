/* norm.c - layer norm or RMS norm with its parameters.
 *
 *     layer:  gain * (x - mean) / sqrt(var + eps) + bias
 *     RMS:    gain * x / sqrt(mean(x^2) + eps), with 1 + gain for gain where PLUS_ONE
 *
 * 1 + gain is an op of its own, of one row: a file holds the gain, and so do its gradient and the
 * optimiser.  A model that serves has it computed beforehand. */
#include "nn/part.h"

#include "core/params.h"

void fv_norm_init(fv_params *p, fv_norm *l, int64_t width, fv_norm_opt opt, const char *path, ...)
{
    va_list ap;
    va_start(ap, path);
    fv_path at = fv__path(path, ap);
    va_end(ap);
    *l = (fv_norm){.eps = opt.eps > 0 ? opt.eps : 1e-5f,
                   .rms = opt.type >= FV_RMS_NORM,
                   .plus_one = opt.type == FV_RMS_NORM_PLUS_ONE};
    fv_init first = {.kind = l->plus_one ? FV_INIT_ZERO : FV_INIT_ONE};
    l->gain = fv_param(p, first, FV_SHAPE(width), "%s.weight", at.s);
    if (opt.type == FV_LAYER_NORM)
        l->bias = fv_param(p, (fv_init){.kind = FV_INIT_ZERO}, FV_SHAPE(width), "%s.bias", at.s);
}

/* Once, instead of in every step. */
void fv_norm_pack(fv_params *p, fv_norm *l)
{
    fv_tensor *gain = l->plus_one && l->gain ? fv__params_plus_one(p, l->gain) : NULL;
    if (!gain) return;
    l->gain = gain;
    l->plus_one = false;
}

static fv_tensor *gain_of(fv_ctx *c, const fv_norm *l)
{
    return l->plus_one ? fv_affine(c, l->gain, 1, 1) : l->gain;
}

fv_tensor *fv_norm_fwd(fv_ctx *c, const fv_norm *l, fv_tensor *x)
{
    return l->rms ? fv_rmsnorm(c, x, gain_of(c, l), l->eps)
                  : fv_layernorm(c, x, l->gain, l->bias, l->eps);
}

fv_tensor *fv_norm_add(fv_ctx *c, const fv_norm *l, fv_tensor **sum, fv_tensor *x, fv_tensor *a)
{
    return l->rms ? fv_add_rmsnorm(c, sum, x, a, gain_of(c, l), l->eps)
                  : fv_add_layernorm(c, sum, x, a, l->gain, l->bias, l->eps);
}

/* ---- over the batch ---- */

void fv_bn_init(fv_params *p, fv_bn *l, int64_t channels, fv_bn_opt opt, const char *path, ...)
{
    va_list ap;
    va_start(ap, path);
    fv_path at = fv__path(path, ap);
    va_end(ap);
    fv_init one = {.kind = FV_INIT_ONE}, zero = {.kind = FV_INIT_ZERO};
    *l = (fv_bn){.momentum = 0.1f, .eps = opt.eps > 0 ? opt.eps : 1e-5f};
    if (!opt.plain) {
        l->gain = fv_param(p, one, FV_SHAPE(channels), "%s.weight", at.s);
        l->bias = fv_param(p, zero, FV_SHAPE(channels), "%s.bias", at.s);
    }
    zero.buffer = one.buffer = true;
    l->mean = fv_param(p, zero, FV_SHAPE(channels), "%s.running_mean", at.s);
    l->var = fv_param(p, one, FV_SHAPE(channels), "%s.running_var", at.s);
}

fv_tensor *fv_bn_fwd(fv_ctx *c, const fv_bn *l, fv_tensor *x)
{
    return fv_batchnorm(c, x, l->gain, l->bias, l->mean, l->var, l->momentum, l->eps);
}

fv_fused_linear_arg fv__norm_then_linear(const fv_norm *norm, const fv_lin *l)
{
    if (!norm) return (fv_fused_linear_arg){.w = l->w, .b = l->b};
    return (fv_fused_linear_arg){.w = l->w,
                                 .b = l->b,
                                 .norm = norm->rms ? FV_NORM_RMS : FV_NORM_LAYER,
                                 .gain = norm->gain,
                                 .shift = norm->bias,
                                 .eps = norm->eps};
}

fv_fused_linear_arg fv__linear_then_sum(const fv_lin *l, fv_residual onto)
{
    fv_fused_linear_arg a = {.w = l->w, .b = l->b, .residual = onto.x};
    const fv_norm *norm = onto.norm;
    if (!norm) return a;
    a.residual_norm = norm->rms ? FV_NORM_RMS : FV_NORM_LAYER;
    a.residual_gain = norm->gain;
    a.residual_shift = norm->bias;
    a.residual_eps = norm->eps;
    return a;
}
