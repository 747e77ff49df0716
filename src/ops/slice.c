/* slice.c - ops that copy ranges along one axis: slice, split, concat, pad and roll.
 *
 * x is seen as (outer, n, inner) around the axis, so a range along it is `outer` runs of len *
 * inner contiguous elements, and every op here is one strided copy (or two, for roll). */
#include "ops/walk.h"
#include "fovea/author/ops.h"

/* A range starts at index `at` of an axis of length n. */
typedef struct {
    int64_t n, at;
} run;

static void *skip(const void *p, int64_t n, fv_dtype t)
{
    return (char *)(uintptr_t)p + (size_t)n * fv_dtype_size(t);
}

/* y[o, ry.at + i, r] (+)= x[o, rx.at + i, r] for i < len, where a gives the range of o and r
 *    x (outer, rx.n, inner)   .. [ rx.at ........ + len ) ..
 *    y (outer, ry.n, inner)   .. [ ry.at ........ + len ) ..    two axes: outer, len * inner */
static void copy_run(fv_ctx *c, const fv_kernels *k, fv_sink y, run ry, const void *x, run rx,
                     int64_t len, fv_axes a)
{
    if (!y.data || !len) return;
    fv_walk w = {.n = 2,
                 .shape = {a.outer, len * a.inner},
                 .y = {ry.n * a.inner, 1},
                 .a = {rx.n * a.inner, 1}};
    fv__walk_join(&w);
    y.data = skip(y.data, ry.at * a.inner, y.dtype);
    k->copy(fv_ctx_stream(c), y, skip(x, rx.at * a.inner, k->dtype), &w);
}

static const fv_kernels *copying(fv_ctx *c, fv_dtype t)
{
    const fv_kernels *k = fv_kernels_of(c, t);
    return fv_need(c, k && k->copy, "copy", t) ? k : NULL;
}

/* x with another length along one axis, or NULL. */
static fv_tensor *resized(fv_ctx *c, const fv_tensor *x, int axis, int64_t n)
{
    fv_shape shape = x->shape;
    shape.d[axis] = n;
    return fv_new(c, x->dtype, shape);
}

/* ---- slice and pad: x is the larger, or y is ---- */

typedef struct {
    fv_node node;
    fv_axes axes;
    int64_t at, len;
} part; /* axes of x; at: where the smaller begins; len: of y */

/* y = x[at .. at + n):  dx = dy there, and 0 around it */
static void slice_backward(fv_ctx *c, fv_node *n)
{
    const part *s = (const part *)n;
    fv_tensor *x = n->in[0];
    const fv_kernels *k = copying(c, x->dtype);
    if (!k) return;
    fv_sink dx = fv_grad(c, x);
    fv__clear(c, dx, fv_len(x));
    copy_run(c, k, dx, (run){s->axes.n, s->at}, n->y->grad, (run){s->len, 0}, s->len, s->axes);
}

/* Integers have no kernels: they are moved block by block. */
static bool is_moved(const fv_tensor *x) { return x->dtype == FV_I32 || x->dtype == FV_U8; }

static void move_run(fv_ctx *c, fv_tensor *y, run ry, const fv_tensor *x, run rx, int64_t len,
                     fv_axes a)
{
    fv_stream *s = fv_ctx_stream(c);
    fv_dtype t = x->dtype;
    size_t bytes = (size_t)(len * a.inner) * fv_dtype_size(t);
    for (int64_t o = 0; o < a.outer && bytes; o++)
        s->dev->backend->move(s, skip(y->data, (o * ry.n + ry.at) * a.inner, t),
                              skip(x->data, (o * rx.n + rx.at) * a.inner, t), bytes);
}

fv_tensor *fv_slice(fv_ctx *c, fv_tensor *x, int axis, int64_t from, int64_t to)
{
    if (!x || (axis = fv__axis(c, "slice", x, axis)) < 0) return NULL;
    if (x->packed || from < 0 || to < from || to > x->shape.d[axis])
        return fv_raise(c, FV_ESHAPE, "slice: %lld to %lld along axis %d of %s", (long long)from,
                        (long long)to, axis, fv_desc(x).s);
    bool moved = is_moved(x);
    const fv_kernels *k = moved ? NULL : copying(c, x->dtype);
    fv_tensor *y = k || moved ? resized(c, x, axis, to - from) : NULL;
    if (!y) return NULL;
    fv_axes a = fv__axes(x->shape, axis);
    if (moved)
        move_run(c, y, (run){to - from, 0}, x, (run){a.n, from}, to - from, a);
    else
        copy_run(c, k, fv__out(y), (run){to - from, 0}, x->data, (run){a.n, from}, to - from, a);

    part *s = fv_record(c, sizeof *s, slice_backward, y, x);
    if (s) s->axes = a, s->at = from, s->len = to - from;
    return y;
}

bool fv_split(fv_ctx *c, fv_tensor **out, fv_tensor *x, int n, int axis)
{
    for (int i = 0; i < n; i++) out[i] = NULL;
    if (!x || (axis = fv__axis(c, "split", x, axis)) < 0) return false;
    if (n < 1 || x->shape.d[axis] % n) {
        fv_raise(c, FV_ESHAPE, "split: axis %d of %s into %d equal parts", axis, fv_desc(x).s, n);
        return false;
    }
    int64_t len = x->shape.d[axis] / n;
    bool ok = true;
    for (int i = 0; i < n; i++) ok = (out[i] = fv_slice(c, x, axis, i * len, (i + 1) * len)) && ok;
    return ok;
}

/* dx is the part of dy that x fills */
static void pad_backward(fv_ctx *c, fv_node *n)
{
    const part *s = (const part *)n;
    fv_tensor *x = n->in[0];
    const fv_kernels *k = copying(c, x->dtype);
    if (k)
        copy_run(c, k, fv_grad(c, x), (run){s->axes.n, 0}, n->y->grad, (run){s->len, s->at},
                 s->axes.n, s->axes);
}

/* Filled whole, then x copied over it: one kernel more than needed at the edges, and no case for
 * them. */
fv_tensor *fv_pad(fv_ctx *c, fv_tensor *x, int axis, int64_t before, int64_t after, float value)
{
    if (!fv_same_dtype(c, "pad", x, x) || (axis = fv__axis(c, "pad", x, axis)) < 0) return NULL;
    if (before < 0 || after < 0 || before > INT64_MAX / 4 || after > INT64_MAX / 4)
        return fv_raise(c, FV_ESHAPE, "pad: %lld before and %lld after axis %d of %s",
                        (long long)before, (long long)after, axis, fv_desc(x).s);
    const fv_kernels *k = copying(c, x->dtype);
    if (!k || !fv_need(c, k->fill, "fill", x->dtype)) return NULL;

    fv_axes a = fv__axes(x->shape, axis);
    fv_tensor *y = resized(c, x, axis, before + a.n + after);
    if (!y) return NULL;
    k->fill(fv_ctx_stream(c), y->data, value, fv_len(y));
    copy_run(c, k, fv__out(y), (run){before + a.n + after, before}, x->data, (run){a.n, 0}, a.n, a);

    part *s = fv_record(c, sizeof *s, pad_backward, y, x);
    if (s) s->axes = a, s->at = before, s->len = before + a.n + after;
    return y;
}

/* ---- concat ---- */

typedef struct {
    fv_node node;
    int axis;
} concat;

/* each dx is its run of dy */
static void concat_backward(fv_ctx *c, fv_node *n)
{
    int axis = ((concat *)n)->axis;
    fv_axes a = fv__axes(n->y->shape, axis);
    const fv_kernels *k = copying(c, n->y->dtype);
    for (int64_t i = 0, at = 0; k && i < n->n_in; i++) {
        fv_tensor *x = n->in[i];
        int64_t len = x->shape.d[axis];
        copy_run(c, k, fv_grad(c, x), (run){len, 0}, n->y->grad, (run){a.n, at}, len, a);
        at += len;
    }
}

/* The length of all along the axis; raises and returns -1 unless they agree in all other axes. */
static int64_t joined(fv_ctx *c, fv_tensor *const *x, int n, int axis)
{
    int64_t sum = 0;
    for (int i = 0; i < n; i++) {
        bool integers = is_moved(x[0]) && x[i]->dtype == x[0]->dtype;
        if (!integers && !fv_same_dtype(c, "concat", x[0], x[i])) return -1;
        fv_shape like = x[i]->shape;
        if (like.n == x[0]->shape.n) {
            like.d[axis] = x[0]->shape.d[axis];
            sum += x[i]->shape.d[axis];
        }
        if (!fv_shape_same(like, x[0]->shape)) {
            fv_raise(c, FV_ESHAPE, "concat: %s and %s along axis %d", fv_desc(x[0]).s,
                     fv_desc(x[i]).s, axis);
            return -1;
        }
    }
    return sum;
}

/* n tensors that agree in all axes but one -> their lengths added along it.  The caller's array
 * is copied into the node, so it may live on the stack. */
fv_tensor *fv_concat(fv_ctx *c, fv_tensor *const *x, int n, int axis)
{
    if (n < 1) return fv_raise(c, FV_EARG, "concat: of %d tensors", n);
    for (int i = 0; i < n; i++)
        if (!x[i]) return NULL;
    if ((axis = fv__axis(c, "concat", x[0], axis)) < 0) return NULL;
    int64_t len = joined(c, x, n, axis), at = 0;
    if (len < 0) return NULL;
    bool moved = is_moved(x[0]);
    const fv_kernels *k = moved ? NULL : copying(c, x[0]->dtype);
    fv_tensor *y = k || moved ? resized(c, x[0], axis, len) : NULL;
    if (!y) return NULL;
    for (int i = 0; i < n; i++) {
        fv_axes a = fv__axes(x[i]->shape, axis);
        if (moved)
            move_run(c, y, (run){len, at}, x[i], (run){a.n, 0}, a.n, a);
        else
            copy_run(c, k, fv__out(y), (run){len, at}, x[i]->data, (run){a.n, 0}, a.n, a);
        at += a.n;
    }
    concat *s = fv_record_n(c, "concat", sizeof *s, concat_backward, y, n,
                            (fv_tensor **)(uintptr_t)x);
    if (s) s->axis = axis;
    return y;
}

/* ---- roll ---- */

typedef struct {
    fv_node node;
    fv_axes axes;
    int64_t by;
} roll;

/* y[(i + by) mod n] (+)= x[i], 0 <= by <= n, in two runs */
static void roll_copy(fv_ctx *c, const fv_kernels *k, fv_sink y, const void *x, fv_axes a,
                      int64_t by)
{
    copy_run(c, k, y, (run){a.n, by}, x, (run){a.n, 0}, a.n - by, a);
    copy_run(c, k, y, (run){a.n, 0}, x, (run){a.n, a.n - by}, by, a);
}

static void roll_backward(fv_ctx *c, fv_node *n)
{
    const roll *s = (const roll *)n;
    fv_tensor *x = n->in[0];
    const fv_kernels *k = copying(c, x->dtype);
    if (k) roll_copy(c, k, fv_grad(c, x), n->y->grad, s->axes, s->axes.n - s->by);
}

fv_tensor *fv_roll(fv_ctx *c, fv_tensor *x, int axis, int64_t by)
{
    if (!fv_same_dtype(c, "roll", x, x) || (axis = fv__axis(c, "roll", x, axis)) < 0) return NULL;
    const fv_kernels *k = copying(c, x->dtype);
    fv_tensor *y = k ? fv_new(c, x->dtype, x->shape) : NULL;
    if (!y) return NULL;
    fv_axes a = fv__axes(x->shape, axis);
    by = a.n ? (by % a.n + a.n) % a.n : 0;
    roll_copy(c, k, fv__out(y), x->data, a, by);

    roll *s = fv_record(c, sizeof *s, roll_backward, y, x);
    if (s) s->axes = a, s->by = by;
    return y;
}
