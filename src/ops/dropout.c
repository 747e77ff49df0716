/* dropout.c - y = x / (1 - p) where it is kept, 0 elsewhere: what is kept depends on seed, step and
 * index alone. */
#include "ops/walk.h"
#include "fovea/ops.h"

typedef struct {
    fv_node node;
    float p;
    fv_rng rng;
} dropout;

/* dx = dy where x was kept: the same Philox words again, no mask is stored */
static void backward(fv_ctx *c, fv_node *n)
{
    const dropout *s = (const dropout *)n;
    fv_tensor *x = n->in[0];
    const fv_kernels *k = fv_kernels_of(c, x->dtype);
    if (!fv_need(c, k && k->dropout, "dropout", x->dtype)) return;
    k->dropout(fv_ctx_stream(c), fv_grad(c, x), n->y->grad, fv_len(x), s->p, s->rng);
}

/* x itself is returned when nothing is dropped, so an op in inference costs nothing.  The site
 * is drawn only while training: masks of two runs agree if their graphs do. */
fv_tensor *fv_dropout(fv_ctx *c, fv_tensor *x, float p)
{
    if (!fv_same_dtype(c, "dropout", x, x)) return NULL;
    if (!(p >= 0 && p < 1))
        return fv_raise(c, FV_EARG, "dropout: rate %g is not in 0 <= p < 1", (double)p);
    if (!fv_ctx_training(c) || p == 0) return x;
    const fv_kernels *k = fv_kernels_of(c, x->dtype);
    if (!fv_need(c, k && k->dropout, "dropout", x->dtype)) return NULL;

    fv_tensor *y = fv_new(c, x->dtype, x->shape);
    if (!y) return NULL;
    fv_rng rng = fv_next_rng(c);
    k->dropout(fv_ctx_stream(c), fv__out(y), x->data, fv_len(x), p, rng);

    dropout *s = fv_record(c, sizeof *s, backward, y, x);
    if (s) s->p = p, s->rng = rng;
    return y;
}
