/* permute.c - permute, transpose and expand: one copy with other strides. */
#include "ops/walk.h"
#include "fovea/author/ops.h"

typedef struct {
    fv_node node;
    fv_walk walk;
} strided;

/* A copy, since tensors have no strides: kernels stay simple, and the hot paths (attention,
 * gemm) take transposition as a flag and never come here. */
static fv_tensor *apply(fv_ctx *c, fv_tensor *x, fv_shape shape, fv_walk w,
                        void (*backward)(fv_ctx *, fv_node *))
{
    const fv_kernels *k = fv_kernels_of(c, x->dtype);
    if (!fv_need(c, k && k->copy, "copy", x->dtype)) return NULL;
    fv_tensor *y = fv_new(c, x->dtype, shape);
    if (!y) return NULL;
    k->copy(fv_ctx_stream(c), fv__out(y), x->data, &w);

    strided *s = fv_record(c, sizeof *s, backward, y, x);
    if (s) s->walk = w;
    return y;
}

/* ---- permute: every element of x once ---- */

/* the same walk with the operands exchanged */
static void permute_backward(fv_ctx *c, fv_node *n)
{
    fv_tensor *x = n->in[0];
    const fv_kernels *k = fv_kernels_of(c, x->dtype);
    if (!fv_need(c, k && k->copy, "copy", x->dtype)) return;
    fv_walk w = ((strided *)n)->walk, back = w;
    memcpy(back.y, w.a, sizeof back.y);
    memcpy(back.a, w.y, sizeof back.a);
    k->copy(fv_ctx_stream(c), fv_grad(c, x), n->y->grad, &back);
}

fv_tensor *fv_permute(fv_ctx *c, fv_tensor *x, const int *axes)
{
    if (!fv_same_dtype(c, "permute", x, x)) return NULL;
    int n = x->shape.n, seen = 0;
    for (int i = 0; i < n; i++)
        if (axes[i] >= 0 && axes[i] < n) seen |= 1 << axes[i];
    if (seen != (1 << n) - 1)
        return fv_raise(c, FV_ESHAPE, "permute: the axes given are not those of %s, each once",
                        fv_desc(x).s);

    fv_shape shape = {.n = n};
    fv_walk in = fv__walk(x->shape);
    for (int i = 0; i < n; i++) shape.d[i] = x->shape.d[axes[i]];
    fv_walk w = fv__walk(shape);
    for (int i = 0; i < n; i++) w.a[i] = in.y[axes[i]];
    fv__walk_join(&w);
    return apply(c, x, shape, w, permute_backward);
}

fv_tensor *fv_transpose(fv_ctx *c, fv_tensor *x)
{
    if (!x) return NULL;
    int n = x->shape.n, axes[FV_MAX_DIM];
    if (n < 2) return fv_raise(c, FV_ESHAPE, "transpose: %s has fewer than two axes", fv_desc(x).s);
    for (int i = 0; i < n; i++) axes[i] = i;
    axes[n - 2] = n - 1;
    axes[n - 1] = n - 2;
    return fv_permute(c, x, axes);
}

/* ---- expand: elements of x repeat ---- */

/* dx is the sum over the repeats, which is how the gradient of an addition treats a repeated
 * operand */
static void expand_backward(fv_ctx *c, fv_node *n)
{
    fv_tensor *x = n->in[0];
    const fv_kernels *k = fv_kernels_of(c, x->dtype);
    if (!fv_need(c, k && k->binary_bwd, "binary_bwd", x->dtype)) return;
    k->binary_bwd(fv_ctx_stream(c), FV_B_ADD, fv_grad(c, x), (fv_sink){0}, n->y->grad, x->data,
                  x->data, &((strided *)n)->walk);
}

fv_tensor *fv_expand(fv_ctx *c, fv_tensor *x, fv_shape s)
{
    fv_shape to;
    if (!fv_same_dtype(c, "expand", x, x)) return NULL;
    if (s.n < 0 || s.n > FV_MAX_DIM || !fv__broadcast(&to, x->shape, s) || !fv_shape_same(to, s)) {
        if (s.n < 0 || s.n > FV_MAX_DIM) s.n = 0;
        return fv_raise(c, FV_ESHAPE, "expand: %s does not broadcast to %s", fv_desc(x).s,
                        fv__desc_shape(x->dtype, s).s);
    }
    fv_walk w = fv__walk(s);
    fv__walk_operand(&w, w.a, x->shape);
    fv__walk_join(&w);
    return apply(c, x, s, w, expand_backward);
}
