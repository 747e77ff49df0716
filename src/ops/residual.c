/* residual.c - the sum in front of a fused norm. */
#include "ops/residual.h"

#include "core/core.h"

/* sum = x + a */
static void backward(fv_ctx *c, fv_node *n)
{
    fv_tensor *sum = n->y, *x = n->in[0], *a = n->in[1];
    if (fv__grad_alias(c, x, a, n)) return;
    const fv_kernels *k = fv_kernels_of(c, sum->dtype);
    if (!fv_need(c, k->cast, "cast", sum->dtype)) return;
    fv_sink da = fv_grad(c, a);
    if (da.data) k->cast(fv_ctx_stream(c), da, sum->grad, fv_len(sum));
    fv_grad_pass(c, x, n); /* last: it may take the gradient's memory with it */
}

fv_tensor *fv__residual(fv_ctx *c, const char *op, fv_tensor *x, fv_tensor *a, bool wanted)
{
    if (!fv_same_dtype(c, op, x, a)) return NULL;
    if (!fv_shape_same(x->shape, a->shape))
        return fv_raise(c, FV_ESHAPE, "%s: %s and %s do not add up", op, fv_desc(x).s,
                        fv_desc(a).s);
    if (!wanted && !c->record) return NULL;
    fv_tensor *sum = fv_new(c, x->dtype, x->shape);
    fv_record(c, sizeof(fv_node), backward, sum, x, a);
    return sum;
}
