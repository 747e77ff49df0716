/* walk.c - index arithmetic the ops share.
 *
 * A walk describes how kernels go through an output and up to two operands: axes outermost first,
 * and for each operand a stride per axis in elements.  Broadcasting is a stride of 0.  Kernels
 * are fast along the last axis, so axes are joined before they see the walk:
 *
 *    a (8,16,64) + b (8,16,64)     3 axes, all contiguous      ->  1 axis of 8192
 *    a (8,16,64) + b (64)          b: 0 0 1                    ->  2 axes, 128 and 64
 *    a (8,16,64) + b (8,1,64)      b: 64 0 1                   ->  3 axes, nothing joins */
#include "ops/walk.h"

int fv__axis(fv_ctx *c, const char *op, const fv_tensor *x, int axis)
{
    int n = x->shape.n, at = axis < 0 ? axis + n : axis;
    if (at >= 0 && at < n) return at;
    fv_raise(c, FV_ESHAPE, "%s: %s has no axis %d", op, fv_desc(x).s, axis);
    return -1;
}

fv_axes fv__axes(fv_shape s, int axis)
{
    fv_axes a = {1, s.d[axis], 1};
    for (int i = 0; i < axis; i++) a.outer *= s.d[i];
    for (int i = axis + 1; i < s.n; i++) a.inner *= s.d[i];
    return a;
}

fv_shape fv__without(fv_shape s, int axis)
{
    for (int i = axis; i + 1 < s.n; i++) s.d[i] = s.d[i + 1];
    s.d[--s.n] = 0;
    return s;
}

/* The length of axis i of a shape of n axes that s is broadcast to: missing leading axes count as
 * 1. */
static int64_t length_at(fv_shape s, int i, int n) { return i < n - s.n ? 1 : s.d[i - (n - s.n)]; }

/* NumPy's rule: shapes are aligned at their last axes, and lengths must be equal or 1. */
bool fv__broadcast(fv_shape *out, fv_shape a, fv_shape b)
{
    fv_shape y = {.n = a.n > b.n ? a.n : b.n};
    for (int i = 0; i < y.n; i++) {
        int64_t la = length_at(a, i, y.n), lb = length_at(b, i, y.n);
        if (la != lb && la != 1 && lb != 1) return false;
        y.d[i] = la == 1 ? lb : la;
    }
    *out = y;
    return true;
}

fv_walk fv__walk(fv_shape shape)
{
    fv_walk w = {.n = shape.n};
    for (int i = 0; i < w.n; i++) w.shape[i] = shape.d[i];
    fv__walk_operand(&w, w.y, shape);
    return w;
}

void fv__walk_operand(const fv_walk *w, int64_t *stride, fv_shape s)
{
    int64_t step = 1;
    for (int i = w->n - 1; i >= 0; i--) {
        int64_t len = length_at(s, i, w->n);
        stride[i] = len == 1 ? 0 : step;
        step *= len;
    }
}

/* Axes i and j walk as one if going once around j is one step of i. */
static bool joins(const int64_t *stride, int i, int j, int64_t len)
{
    return stride[i] == stride[j] * len;
}

/* Axes of length 1 vanish; neighbours join where all three operands agree. */
void fv__walk_join(fv_walk *w)
{
    int n = 0; /* axes kept so far */
    for (int i = 0; i < w->n; i++) {
        int64_t len = w->shape[i];
        if (len == 1) continue;
        int p = n - 1; /* the axis before, perhaps joined already */
        bool one = n > 0 && joins(w->y, p, i, len) && joins(w->a, p, i, len) &&
                   joins(w->b, p, i, len);
        int to = one ? p : n++;
        w->shape[to] = one ? w->shape[p] * len : len;
        w->y[to] = w->y[i];
        w->a[to] = w->a[i];
        w->b[to] = w->b[i];
    }
    if (!n) { /* one element: kernels may count on a last axis */
        w->shape[0] = w->y[0] = w->a[0] = w->b[0] = 1;
        n = 1;
    }
    w->n = n;
}

void fv__clear(fv_ctx *c, fv_sink g, int64_t n)
{
    fv_stream *s = fv_ctx_stream(c);
    if (g.data && !g.add) s->dev->backend->zero(s, g.data, (size_t)n * fv_dtype_size(g.dtype));
}

fv_desc_text fv__desc_shape(fv_dtype t, fv_shape s)
{
    fv_tensor only_shape = {.dtype = t, .shape = s};
    return fv_desc(&only_shape);
}
