/* reshape.c - other names for the same memory: reshape and head copy nothing. */
#include "ops/walk.h"
#include "fovea/author/ops.h"

static void backward(fv_ctx *c, fv_node *n) { fv_grad_pass(c, n->in[0], n); }

/* Puts the length that makes s hold n elements into its one axis of -1; false if there is none. */
static bool solve(fv_shape *s, int64_t n)
{
    int64_t known = 1;
    int open = -1;
    if (s->n < 0 || s->n > FV_MAX_DIM) return false;
    for (int i = 0; i < s->n; i++) {
        if (s->d[i] == -1 && open < 0)
            open = i;
        else if (s->d[i] < 0 || __builtin_mul_overflow(known, s->d[i], &known))
            return false;
    }
    if (open < 0) return known == n;
    if (!known || n % known) return false;
    s->d[open] = n / known;
    return true;
}

/* One axis may be -1 and is solved for.  y shares x's memory, and its gradient is handed to x. */
fv_tensor *fv_reshape(fv_ctx *c, fv_tensor *x, fv_shape s)
{
    if (!x) return NULL;
    fv_shape to = s;
    if (x->packed || !solve(&to, fv_len(x))) {
        if (s.n < 0 || s.n > FV_MAX_DIM) s.n = 0;
        return fv_raise(c, FV_ESHAPE, "reshape: %s to %s", fv_desc(x).s,
                        fv__desc_shape(x->dtype, s).s);
    }
    fv_tensor *y = fv_alias(c, x, to);
    fv_record(c, sizeof(fv_node), backward, y, x);
    return y;
}

/* y = x[0..n):  dx = dy, and 0 from there on */
static void head_backward(fv_ctx *c, fv_node *n)
{
    fv_tensor *x = n->in[0];
    const fv_kernels *k = fv_kernels_of(c, x->dtype);
    if (!fv_need(c, k && k->cast, "cast", x->dtype)) return;
    fv_sink dx = fv_grad(c, x);
    fv__clear(c, dx, fv_len(x));
    k->cast(fv_ctx_stream(c), dx, n->y->grad, fv_len(n->y));
}

fv_tensor *fv_head(fv_ctx *c, fv_tensor *x, int64_t n)
{
    if (!x) return NULL;
    if (x->packed || !x->shape.n || n < 0 || n > x->shape.d[0])
        return fv_raise(c, FV_ESHAPE, "head: the first %lld along axis 0 of %s", (long long)n,
                        fv_desc(x).s);
    fv_shape s = x->shape;
    s.d[0] = n;
    fv_tensor *y = fv_alias(c, x, s);
    fv_record(c, sizeof(fv_node), head_backward, y, x);
    return y;
}
