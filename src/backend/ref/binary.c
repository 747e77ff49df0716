/* binary.c - y = a op b with broadcasting, and both gradients. */
#include "backend/ref/ref.h"
#include "backend/ref/ref_walk.h"

static acc value(fv_binary_op op, acc a, acc b)
{
    switch (op) {
    case FV_B_ADD: return a + b;
    case FV_B_SUB: return a - b;
    case FV_B_MUL: return a * b;
    case FV_B_DIV: return a / b;
    case FV_B_MAX: return a > b || a != a ? a : b;
    case FV_B_COUNT: break;
    }
    return 0;
}

/* dy / da and dy / db */
static acc binary_grad_a(fv_binary_op op, acc a, acc b)
{
    switch (op) {
    case FV_B_ADD:
    case FV_B_SUB: return 1;
    case FV_B_MUL: return b;
    case FV_B_DIV: return 1 / b;
    case FV_B_MAX: return a > b ? 1 : a < b ? 0 : (acc)0.5;
    case FV_B_COUNT: break;
    }
    return 0;
}

static acc binary_grad_b(fv_binary_op op, acc a, acc b)
{
    switch (op) {
    case FV_B_ADD: return 1;
    case FV_B_SUB: return -1;
    case FV_B_MUL: return a;
    case FV_B_DIV: return -a / (b * b);
    case FV_B_MAX: return binary_grad_a(op, b, a);
    case FV_B_COUNT: break;
    }
    return 0;
}

static void binary(fv_stream *s, fv_binary_op op, void *y, const void *a, const void *b,
                   const fv_walk *w)
{
    (void)s;
    for (walker at = walk_start(w); at.more; walk_next(&at, w))
        st(y, at.y, value(op, ld(a, at.a), ld(b, at.b)));
}

/* One operand's gradient: the axes it is repeated along are walked inside, so that each of its
 * elements is summed in the order of y and delivered once. */
static void one_side(fv_binary_op op, fv_sink g, acc (*grad)(fv_binary_op, acc, acc),
                     const int64_t *stride, const void *dy, const void *a, const void *b,
                     const fv_walk *w)
{
    fv_walk kept = {0}, summed = {0};
    if (!g.data) return;
    for (int i = 0; i < w->n; i++) {
        fv_walk *to = stride[i] ? &kept : &summed;
        int n = to->n++;
        to->shape[n] = w->shape[i];
        to->y[n] = w->y[i];
        to->a[n] = w->a[i];
        to->b[n] = w->b[i];
    }
    bool of_a = stride == w->a;
    for (walker o = walk_start(&kept); o.more; walk_next(&o, &kept)) {
        acc sum = 0;
        for (walker i = walk_start(&summed); i.more; walk_next(&i, &summed))
            sum += grad(op, ld(a, o.a + i.a), ld(b, o.b + i.b)) * ld(dy, o.y + i.y);
        sink_store(g, of_a ? o.a : o.b, sum);
    }
}

static void binary_bwd(fv_stream *s, fv_binary_op op, fv_sink da, fv_sink db, const void *dy,
                       const void *a, const void *b, const fv_walk *w)
{
    (void)s;
    one_side(op, da, binary_grad_a, w->a, dy, a, b, w);
    one_side(op, db, binary_grad_b, w->b, dy, a, b, w);
}

void REF(binary)(fv_kernels *k);
void REF(binary)(fv_kernels *k)
{
    k->binary = binary;
    k->binary_bwd = binary_bwd;
}
