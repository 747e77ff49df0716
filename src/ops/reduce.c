/* reduce.c - sum, mean and maximum along one axis, which disappears, or over everything. */
#include "core/core.h"
#include "ops/walk.h"
#include "fovea/author/ops.h"

typedef struct {
    fv_node node;
    fv_reduce_op op;
    fv_axes axes;
    int32_t *arg;
} reduce;

/* dx = dy (sum), dy / n (mean), dy at the index of the maximum and 0 elsewhere (max) */
static void backward(fv_ctx *c, fv_node *n)
{
    const reduce *s = (const reduce *)n;
    fv_tensor *x = n->in[0];
    const fv_kernels *k = fv_kernels_of(c, x->dtype);
    if (!fv_need(c, k && k->reduce_bwd, "reduce_bwd", x->dtype)) return;
    k->reduce_bwd(fv_ctx_stream(c), s->op, fv_grad(c, x), n->y->grad, s->arg, s->axes.outer,
                  s->axes.n, s->axes.inner);
}

/* arg, the index of the maximum, is kept for backward: ties give all of dy to the first. */
static fv_tensor *apply(fv_ctx *c, fv_reduce_op op, fv_tensor *x, fv_axes axes, fv_shape shape)
{
    const fv_kernels *k = fv_kernels_of(c, x->dtype);
    if (!fv_need(c, k && k->reduce, "reduce", x->dtype)) return NULL;
    fv_tensor *y = fv_new(c, x->dtype, shape);
    int32_t *arg = op == FV_R_MAX ? fv_scratch(c, FV_I32, axes.outer * axes.inner) : NULL;
    if (!y || (op == FV_R_MAX && !arg)) return NULL;
    k->reduce(fv_ctx_stream(c), op, y->data, arg, x->data, axes.outer, axes.n, axes.inner);

    reduce *s = fv_record(c, sizeof *s, backward, y, x);
    if (s) s->op = op, s->axes = axes, s->arg = arg;
    return y;
}

static fv_tensor *along(fv_ctx *c, const char *name, fv_reduce_op op, fv_tensor *x, int axis)
{
    if (!fv_same_dtype(c, name, x, x) || (axis = fv__axis(c, name, x, axis)) < 0) return NULL;
    if (!x->shape.d[axis] && op != FV_R_SUM)
        return fv_raise(c, FV_ESHAPE, "%s: axis %d of %s is empty", name, axis, fv_desc(x).s);
    return apply(c, op, x, fv__axes(x->shape, axis), fv__without(x->shape, axis));
}

static fv_tensor *over_all(fv_ctx *c, const char *name, fv_reduce_op op, fv_tensor *x)
{
    if (!fv_same_dtype(c, name, x, x)) return NULL;
    if (!fv_len(x) && op != FV_R_SUM)
        return fv_raise(c, FV_ESHAPE, "%s: %s is empty", name, fv_desc(x).s);
    return apply(c, op, x, (fv_axes){1, fv_len(x), 1}, (fv_shape){0});
}

fv_tensor *fv_sum(fv_ctx *c, fv_tensor *x, int axis) { return along(c, "sum", FV_R_SUM, x, axis); }
fv_tensor *fv_mean(fv_ctx *c, fv_tensor *x, int axis)
{
    return along(c, "mean", FV_R_MEAN, x, axis);
}
fv_tensor *fv_max(fv_ctx *c, fv_tensor *x, int axis) { return along(c, "max", FV_R_MAX, x, axis); }
fv_tensor *fv_sum_all(fv_ctx *c, fv_tensor *x) { return over_all(c, "sum_all", FV_R_SUM, x); }
fv_tensor *fv_mean_all(fv_ctx *c, fv_tensor *x) { return over_all(c, "mean_all", FV_R_MEAN, x); }

/* i32, without a gradient: recording it for an input that wants one is an error with a sentence. */
fv_tensor *fv_argmax(fv_ctx *c, fv_tensor *x, int axis)
{
    if (!fv_same_dtype(c, "argmax", x, x) || (axis = fv__axis(c, "argmax", x, axis)) < 0)
        return NULL;
    if (!x->shape.d[axis])
        return fv_raise(c, FV_ESHAPE, "argmax: axis %d of %s is empty", axis, fv_desc(x).s);
    const fv_kernels *k = fv_kernels_of(c, x->dtype);
    if (!fv_need(c, k && k->reduce, "reduce", x->dtype)) return NULL;

    fv_axes axes = fv__axes(x->shape, axis);
    fv_tensor *y = fv_new(c, FV_I32, fv__without(x->shape, axis));
    fv_record(c, sizeof(fv_node), NULL, y, x);
    void *largest = fv_scratch(c, x->dtype, axes.outer * axes.inner);
    if (!largest) return NULL;
    k->reduce(fv_ctx_stream(c), FV_R_MAX, largest, y->data, x->data, axes.outer, axes.n,
              axes.inner);
    return y;
}
