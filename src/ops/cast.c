/* cast.c - the same values in another float dtype. */
#include "ops/walk.h"
#include "fovea/author/ops.h"

/* the table is that of what is read: x forward, dy backward */
static void backward(fv_ctx *c, fv_node *n)
{
    fv_tensor *x = n->in[0], *y = n->y;
    const fv_kernels *k = fv_kernels_of(c, y->dtype);
    if (!fv_need(c, k && k->cast, "cast", y->dtype)) return;
    k->cast(fv_ctx_stream(c), fv_grad(c, x), y->grad, fv_len(x));
}

fv_tensor *fv_cast(fv_ctx *c, fv_tensor *x, fv_dtype dtype)
{
    if (!fv_same_dtype(c, "cast", x, x)) return NULL;
    if ((unsigned)dtype >= FV_FLOATS)
        return fv_raise(c, FV_EDTYPE, "cast: from %s to %s", fv_desc(x).s, fv_dtype_name(dtype));
    if (x->dtype == dtype) return x;
    const fv_kernels *k = fv_kernels_of(c, x->dtype);
    if (!fv_need(c, k && k->cast, "cast", x->dtype)) return NULL;

    fv_tensor *y = fv_new(c, dtype, x->shape);
    if (!y) return NULL;
    k->cast(fv_ctx_stream(c), fv__out(y), x->data, fv_len(x));
    fv_record(c, sizeof(fv_node), backward, y, x);
    return y;
}
