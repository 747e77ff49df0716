/* binary.c - y = a op b, element by element, a and b broadcast as NumPy does. */
#include "core/core.h"
#include "ops/walk.h"
#include "fovea/author/ops.h"

typedef struct {
    fv_node node;
    fv_binary_op op;
    fv_walk walk;
} binary;

/* Where y = a + b or a - b has the shape of an operand, dy is that operand's gradient unchanged:
 * it is handed over. */
static void backward(fv_ctx *c, fv_node *n)
{
    const binary *s = (const binary *)n;
    fv_tensor *a = n->in[0], *b = n->in[1], *y = n->y;
    const fv_kernels *k = fv_kernels_of(c, a->dtype);
    if (!fv_need(c, k && k->binary_bwd, "binary_bwd", a->dtype)) return;

    if (s->op == FV_B_ADD && fv_shape_same(a->shape, b->shape) && fv__grad_alias(c, a, b, n))
        return;
    fv_stream *st = fv_ctx_stream(c);
    fv_sink none = {0};
    if ((s->op == FV_B_ADD || s->op == FV_B_SUB) && a->wants_grad &&
        fv_shape_same(a->shape, y->shape)) {
        if (b->wants_grad)
            k->binary_bwd(st, s->op, none, fv_grad(c, b), y->grad, a->data, b->data, &s->walk);
        fv_grad_pass(c, a, n);
    } else if (s->op == FV_B_ADD && b->wants_grad && fv_shape_same(b->shape, y->shape)) {
        if (a->wants_grad)
            k->binary_bwd(st, s->op, fv_grad(c, a), none, y->grad, a->data, b->data, &s->walk);
        fv_grad_pass(c, b, n);
    } else if (a == b) { /* both gradients have the same sink: one after the other */
        k->binary_bwd(st, s->op, fv_grad(c, a), none, y->grad, a->data, b->data, &s->walk);
        k->binary_bwd(st, s->op, none, fv_grad(c, b), y->grad, a->data, b->data, &s->walk);
    } else {
        fv_sink da = fv_grad(c, a);
        k->binary_bwd(st, s->op, da, fv_grad(c, b), y->grad, a->data, b->data, &s->walk);
    }
}

/* Joined axes make the usual cases short: equal shapes are one axis, a bias is two. */
static fv_tensor *apply(fv_ctx *c, const char *name, fv_binary_op op, fv_tensor *a, fv_tensor *b)
{
    fv_shape shape;
    if (!fv_same_dtype(c, name, a, b)) return NULL;
    if (!fv__broadcast(&shape, a->shape, b->shape))
        return fv_raise(c, FV_ESHAPE, "%s: %s and %s do not broadcast together", name, fv_desc(a).s,
                        fv_desc(b).s);
    const fv_kernels *k = fv_kernels_of(c, a->dtype);
    if (!fv_need(c, k && k->binary, "binary", a->dtype)) return NULL;

    fv_tensor *y = fv_new(c, a->dtype, shape);
    if (!y) return NULL;
    fv_walk w = fv__walk(shape);
    fv__walk_operand(&w, w.a, a->shape);
    fv__walk_operand(&w, w.b, b->shape);
    fv__walk_join(&w);
    k->binary(fv_ctx_stream(c), op, y->data, a->data, b->data, &w);

    binary *s = fv_record(c, sizeof *s, backward, y, a, b);
    if (s) s->op = op, s->walk = w;
    return y;
}

fv_tensor *fv_add(fv_ctx *c, fv_tensor *a, fv_tensor *b) { return apply(c, "add", FV_B_ADD, a, b); }
fv_tensor *fv_sub(fv_ctx *c, fv_tensor *a, fv_tensor *b) { return apply(c, "sub", FV_B_SUB, a, b); }
fv_tensor *fv_mul(fv_ctx *c, fv_tensor *a, fv_tensor *b) { return apply(c, "mul", FV_B_MUL, a, b); }
fv_tensor *fv_div(fv_ctx *c, fv_tensor *a, fv_tensor *b) { return apply(c, "div", FV_B_DIV, a, b); }
fv_tensor *fv_maximum(fv_ctx *c, fv_tensor *a, fv_tensor *b)
{
    return apply(c, "maximum", FV_B_MAX, a, b);
}
