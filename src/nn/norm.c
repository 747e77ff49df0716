/* norm.c - layer norm or RMS norm with its parameters.
 *
 *     layer:  gain * (x - mean) / sqrt(var + eps) + bias
 *     RMS:    gain * x / sqrt(mean(x^2) + eps) */
#include "nn/part.h"

void fv_norm_init(fv_params *p, fv_norm *l, int64_t width, fv_norm_opt opt, const char *path, ...)
{
    va_list ap;
    va_start(ap, path);
    fv_path at = fv__path(path, ap);
    va_end(ap);
    *l = (fv_norm){.eps = opt.eps > 0 ? opt.eps : 1e-5f, .rms = opt.rms};
    l->gain = fv_param(p, (fv_init){.kind = FV_INIT_ONE}, FV_SHAPE(width), "%s.weight", at.s);
    if (!opt.rms && !opt.no_bias)
        l->bias = fv_param(p, (fv_init){.kind = FV_INIT_ZERO}, FV_SHAPE(width), "%s.bias", at.s);
}

fv_tensor *fv_norm_fwd(fv_ctx *c, const fv_norm *l, fv_tensor *x)
{
    return l->rms ? fv_rmsnorm(c, x, l->gain, l->eps)
                  : fv_layernorm(c, x, l->gain, l->bias, l->eps);
}

fv_tensor *fv_norm_add(fv_ctx *c, const fv_norm *l, fv_tensor **sum, fv_tensor *x, fv_tensor *a)
{
    return l->rms ? fv_add_rmsnorm(c, sum, x, a, l->gain, l->eps)
                  : fv_add_layernorm(c, sum, x, a, l->gain, l->bias, l->eps);
}

fv_fused_linear_arg fv__norm_then_linear(const fv_norm *norm, const fv_lin *l)
{
    return (fv_fused_linear_arg){.w = l->w,
                                 .b = l->b,
                                 .norm = norm->rms ? FV_NORM_RMS : FV_NORM_LAYER,
                                 .gain = norm->gain,
                                 .shift = norm->bias,
                                 .eps = norm->eps};
}
