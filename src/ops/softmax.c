/* softmax.c - y = exp(x) / sum exp(x) over the last axis, or its logarithm. */
#include "fovea/author/op.h"
#include "fovea/author/ops.h"

typedef struct {
    fv_node node;
    bool log;
} softmax;

/* dx = y (dy - sum dy y), or for the logarithm dx = dy - exp(y) sum dy */
static void backward(fv_ctx *c, fv_node *n)
{
    fv_tensor *x = n->in[0];
    const fv_kernels *k = fv_kernels_of(c, x->dtype);
    if (!fv_need(c, k && k->softmax_bwd, "softmax_bwd", x->dtype)) return;
    k->softmax_bwd(fv_ctx_stream(c), fv_grad(c, x), n->y->grad, n->y->data, fv_rows(x), fv_cols(x),
                   ((softmax *)n)->log);
}

/* (..,n) -> (..,n), each row by itself.  y is all that backward reads. */
static fv_tensor *apply(fv_ctx *c, const char *name, fv_tensor *x, bool log)
{
    if (!fv_same_dtype(c, name, x, x)) return NULL;
    if (!x->shape.n)
        return fv_raise(c, FV_ESHAPE, "%s: %s has no axis to go over", name, fv_desc(x).s);
    const fv_kernels *k = fv_kernels_of(c, x->dtype);
    if (!fv_need(c, k && k->softmax, "softmax", x->dtype)) return NULL;

    fv_tensor *y = fv_new(c, x->dtype, x->shape);
    if (!y) return NULL;
    k->softmax(fv_ctx_stream(c), y->data, x->data, fv_rows(x), fv_cols(x), log);

    softmax *s = fv_record(c, sizeof *s, backward, y, x);
    if (s) s->log = log;
    return y;
}

fv_tensor *fv_softmax(fv_ctx *c, fv_tensor *x) { return apply(c, "softmax", x, false); }
fv_tensor *fv_log_softmax(fv_ctx *c, fv_tensor *x) { return apply(c, "log_softmax", x, true); }
