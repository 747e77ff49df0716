/* losses.c - the mean of a distance between two tensors of one shape: compositions, in f32 or
 * wider. */
#include "fovea/author/op.h"
#include "ops/stat.h"

/* True with both widened; raises where they do not fit. */
static bool pair(fv_ctx *c, const char *op, fv_tensor **x, fv_tensor **t)
{
    if (!fv_same_dtype(c, op, *x, *t)) return false;
    if (!fv_shape_same((*x)->shape, (*t)->shape)) {
        fv_raise(c, FV_ESHAPE, "%s: x %s, target %s", op, fv_desc(*x).s, fv_desc(*t).s);
        return false;
    }
    *x = fv__widen(c, *x);
    *t = fv__widen(c, *t);
    return *x && *t;
}

/* -t log p - (1-t) log(1-p) with p = sigmoid(x), which is (1-t) x + softplus(-x) and never takes
 * the log of 0. */
fv_tensor *fv_bce(fv_ctx *c, fv_tensor *logits, fv_tensor *target)
{
    if (!pair(c, "bce", &logits, &target)) return NULL;
    fv_tensor *rest = fv_mul(c, fv_affine(c, target, -1, 1), logits);
    return fv_mean_all(c, fv_add(c, rest, fv_softplus(c, fv_scale(c, logits, -1))));
}

fv_tensor *fv_hinge(fv_ctx *c, fv_tensor *x, fv_tensor *sign)
{
    if (!pair(c, "hinge", &x, &sign)) return NULL;
    return fv_mean_all(c, fv_relu(c, fv_affine(c, fv_mul(c, x, sign), -1, 1)));
}

fv_tensor *fv_mse(fv_ctx *c, fv_tensor *x, fv_tensor *target)
{
    return pair(c, "mse", &x, &target) ? fv_mean_all(c, fv_square(c, fv_sub(c, x, target))) : NULL;
}

fv_tensor *fv_mae(fv_ctx *c, fv_tensor *x, fv_tensor *target)
{
    return pair(c, "mae", &x, &target) ? fv_mean_all(c, fv_abs(c, fv_sub(c, x, target))) : NULL;
}
