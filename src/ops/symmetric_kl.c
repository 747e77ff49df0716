/* symmetric_kl.c - y = KL(p||q) + KL(q||p) = sum (p - q) (log p - log q), p and q being the softmax
 * of two rows of logits.
 *
 * Composed of softmax, log-softmax and products it would write a dozen tensors of the size of the
 * logits, in f32.  Here four numbers a row are kept, and backward computes the probabilities again,
 * straight into the gradient. */
#include "ops/stat.h"

typedef struct {
    fv_node node;
    fv_stat *kept; /* (4,rows) */
} symmetric_kl;

static int64_t pairs_of(const fv_tensor *x) { return fv_rows(x) / 2; }

static void backward(fv_ctx *c, fv_node *n)
{
    fv_tensor *x = n->in[0];
    const fv_kernels *k = fv_kernels_of(c, x->dtype);
    if (!fv_need(c, k && k->symmetric_kl_bwd, "symmetric_kl_bwd", x->dtype)) return;
    k->symmetric_kl_bwd(fv_ctx_stream(c), fv_grad(c, x), n->y->grad, ((symmetric_kl *)n)->kept,
                        x->data, pairs_of(x), fv_cols(x));
}

fv_tensor *fv_symmetric_kl(fv_ctx *c, fv_tensor *x)
{
    if (!fv_same_dtype(c, "symmetric_kl", x, x)) return NULL;
    if (x->shape.n < 3 || x->shape.d[0] != 2 || fv_cols(x) < 1)
        return fv_raise(c, FV_ESHAPE, "symmetric_kl: %s is not (2,..,V)", fv_desc(x).s);
    const fv_kernels *k = fv_kernels_of(c, x->dtype);
    if (!fv_need(c, k && k->symmetric_kl, "symmetric_kl", x->dtype)) return NULL;

    fv_shape rows = {.n = x->shape.n - 2};
    for (int i = 0; i < rows.n; i++) rows.d[i] = x->shape.d[i + 1];
    fv_dtype st = fv__stat_dtype(x->dtype);
    fv_tensor *y = fv_new(c, st, rows);
    fv_stat *kept = fv_scratch(c, st, 4 * pairs_of(x));
    if (!y || !kept) return NULL;
    k->symmetric_kl(fv_ctx_stream(c), y->data, kept, x->data, pairs_of(x), fv_cols(x));

    symmetric_kl *s = fv_record(c, sizeof *s, backward, y, x);
    if (s) {
        s->kept = s->node.temp = kept;
        s->node.temp_bytes = (size_t)(4 * pairs_of(x)) * fv_dtype_size(st);
    }
    return y;
}
