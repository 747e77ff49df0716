/* cumsum.c - y[i] = x[0] + ... + x[i] along an axis. */
#include "ops/walk.h"
#include "fovea/author/ops.h"

typedef struct {
    fv_node node;
    fv_axes axes;
} cumsum;

/* x[i] is in every sum from i on: dx[i] = dy[i] + ... + dy[n-1] */
static void backward(fv_ctx *c, fv_node *n)
{
    fv_axes a = ((cumsum *)n)->axes;
    fv_tensor *x = n->in[0];
    const fv_kernels *k = fv_kernels_of(c, x->dtype);
    if (!fv_need(c, k && k->cumsum, "cumsum", x->dtype)) return;
    k->cumsum(fv_ctx_stream(c), fv_grad(c, x), n->y->grad, a.outer, a.n, a.inner, true);
}

fv_tensor *fv_cumsum(fv_ctx *c, fv_tensor *x, int axis)
{
    if (!fv_same_dtype(c, "cumsum", x, x) || (axis = fv__axis(c, "cumsum", x, axis)) < 0)
        return NULL;
    const fv_kernels *k = fv_kernels_of(c, x->dtype);
    if (!fv_need(c, k && k->cumsum, "cumsum", x->dtype)) return NULL;

    fv_tensor *y = fv_new(c, x->dtype, x->shape);
    if (!y) return NULL;
    fv_axes a = fv__axes(x->shape, axis);
    k->cumsum(fv_ctx_stream(c), fv__out(y), x->data, a.outer, a.n, a.inner, false);

    cumsum *s = fv_record(c, sizeof *s, backward, y, x);
    if (s) s->axes = a;
    return y;
}
