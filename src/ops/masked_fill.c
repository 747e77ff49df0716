/* masked_fill.c - y = mask ? x : value. */
#include "ops/walk.h"
#include "fovea/author/ops.h"

typedef struct {
    fv_node node;
    fv_walk walk;
} masked_fill;

/* dx = mask ? dy : 0 */
static void backward(fv_ctx *c, fv_node *n)
{
    fv_tensor *x = n->in[0], *mask = n->in[1];
    const fv_kernels *k = fv_kernels_of(c, x->dtype);
    if (!fv_need(c, k && k->masked_fill, "masked_fill", x->dtype)) return;
    k->masked_fill(fv_ctx_stream(c), fv_grad(c, x), n->y->grad, mask->data, 0,
                   &((masked_fill *)n)->walk);
}

/* mask u8, broadcast to x; 1 keeps x, 0 puts value: the polarity of the attention masks. */
fv_tensor *fv_masked_fill(fv_ctx *c, fv_tensor *x, fv_tensor *mask, float value)
{
    fv_shape shape;
    if (!mask || !fv_same_dtype(c, "masked_fill", x, x)) return NULL;
    if (mask->dtype != FV_U8)
        return fv_raise(c, FV_EDTYPE, "masked_fill: the mask is %s, expected u8", fv_desc(mask).s);
    if (!fv__broadcast(&shape, x->shape, mask->shape) || !fv_shape_same(shape, x->shape))
        return fv_raise(c, FV_ESHAPE, "masked_fill: mask %s does not broadcast to x %s",
                        fv_desc(mask).s, fv_desc(x).s);
    const fv_kernels *k = fv_kernels_of(c, x->dtype);
    if (!fv_need(c, k && k->masked_fill, "masked_fill", x->dtype)) return NULL;

    fv_tensor *y = fv_new(c, x->dtype, x->shape);
    if (!y) return NULL;
    fv_walk w = fv__walk(x->shape);
    fv__walk_operand(&w, w.a, x->shape);
    fv__walk_operand(&w, w.b, mask->shape);
    fv__walk_join(&w);
    k->masked_fill(fv_ctx_stream(c), fv__out(y), x->data, mask->data, value, &w);

    masked_fill *s = fv_record(c, sizeof *s, backward, y, x, mask);
    if (s) s->walk = w;
    return y;
}
