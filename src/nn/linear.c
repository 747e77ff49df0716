/* linear.c - y = act(x w' + b): a weight and a bias.
 *
 * The weight is (out,in), or (in,out) as GPT-2 stores it; a packed one is in the layout of the
 * device's product and has no such order any more. */
#include <string.h>

#include "core/params.h"
#include "nn/part.h"
#include "fovea/author/comm.h"
#include "ops/product.h"

void fv_lin_init(fv_params *p, fv_lin *l, int64_t in, int64_t out, fv_lin_opt opt, const char *path,
                 ...)
{
    va_list ap;
    va_start(ap, path);
    fv_path at = fv__path(path, ap);
    va_end(ap);
    fv_shape shape = opt.in_out ? FV_SHAPE(in, out) : FV_SHAPE(out, in);
    *l = (fv_lin){.in_out = opt.in_out};
    l->w = fv_param(p, fv__weight(opt.std), shape, "%s.weight", at.s);
    fv__param_mark_linear(l->w, opt.in_out ? FV_LINEAR_IN_OUT : FV_LINEAR_OUT_IN);
    if (!opt.no_bias)
        l->b = fv_param(p, (fv_init){.kind = FV_INIT_ZERO}, FV_SHAPE(out), "%s.bias", at.s);
}

int fv__split_ranks(const fv_params *p) { return fv_comm_size(p->ranks); }

/* Each rank has the biases of its own outputs; of inputs that are divided the sum gets one. */
void fv__lin_init_split(fv_params *p, fv_lin *l, int64_t in, int64_t out, fv_lin_opt opt, int kind,
                        const int64_t *piece, int pieces, const char *path)
{
    bool columns = kind == FV__COLUMNS;
    fv__split w = {.kind = kind, .axis = columns == opt.in_out, .pieces = pieces}, b;
    memcpy(w.piece, piece, (size_t)pieces * sizeof *piece);
    b = w;
    b.axis = 0;
    fv_lin_init(p, l, in, out, opt, "%s", path);
    fv__param_split(p, l->w, &w);
    if (columns) fv__param_split(p, l->b, &b);
}

fv_tensor *fv_lin_act(fv_ctx *c, const fv_lin *l, fv_tensor *x, fv_act act)
{
    return (l->in_out ? fv_linear_in_out : fv_linear)(c, x, l->w, l->b, act);
}

fv_tensor *fv_lin_fwd(fv_ctx *c, const fv_lin *l, fv_tensor *x)
{
    return fv_lin_act(c, l, x, FV_ACT_NONE);
}

fv_tensor *fv__lin_add(fv_ctx *c, const fv_lin *l, fv_tensor *residual, fv_tensor *x)
{
    return fv__linear_add(c, residual, x, l->w, l->b, l->in_out);
}

/* Where nothing is gained, nothing is lost: a device may be as fast with weights as they are. */
static bool stays(const fv_params *p, const fv_tensor *w, fv_dtype dtype)
{
    return dtype == w->dtype && !fv_params_packs(p, dtype);
}

void fv_lin_pack(fv_params *p, fv_lin *l, fv_dtype dtype)
{
    /* an adapter hangs on the parameter, which a packed weight is not */
    if (l->w && !l->w->packed && !fv__param_adapter(l->w) && !stays(p, l->w, dtype))
        l->w = fv_params_pack(p, &l->w, 1, dtype, l->in_out);
}
