/* conv.c - convolutions with their parameters. */
#include "nn/part.h"

void fv_conv_init(fv_params *p, fv_conv *l, int64_t in, int64_t out, int64_t kernel,
                  fv_conv_layer_opt opt, const char *path, ...)
{
    va_list ap;
    va_start(ap, path);
    fv_path at = fv__path(path, ap);
    va_end(ap);
    *l = (fv_conv){.opt = opt.conv, .dims = opt.dims == 1 ? 1 : 2};
    int64_t each = in / (opt.conv.groups > 0 ? opt.conv.groups : 1);
    fv_shape shape = l->dims == 1 ? FV_SHAPE(out, each, kernel)
                                  : FV_SHAPE(out, each, kernel, kernel);
    l->w = fv_param(p, fv__weight(opt.std), shape, "%s.weight", at.s);
    if (!opt.no_bias)
        l->b = fv_param(p, (fv_init){.kind = FV_INIT_ZERO}, FV_SHAPE(out), "%s.bias", at.s);
}

fv_tensor *fv_conv_fwd(fv_ctx *c, const fv_conv *l, fv_tensor *x)
{
    return (l->dims == 1 ? fv_conv1d : fv_conv2d)(c, x, l->w, l->b, l->opt);
}
