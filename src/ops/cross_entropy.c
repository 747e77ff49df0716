/* cross_entropy.c - loss = (1-smooth) * (lse - x[label]) + smooth * (lse - mean(x)), one for each row.
 *
 * Only the log-sum-exp of a row is kept: backward computes the probabilities again, straight into the gradient. */
#include "fovea/op.h"
#include "ops/stat.h"

typedef struct {
    fv_node node;
    fv_stat *lse;
    fv_ce_opt opt;
} cross_entropy;

static void backward(fv_ctx *c, fv_node *n)
{
    const cross_entropy *s = (cross_entropy *)n;
    fv_tensor *x = n->in[0], *labels = n->in[1];
    const fv_kernels *k = fv_kernels_of(c, x->dtype);
    if (!fv_need(c, k->cross_entropy_bwd, "cross_entropy_bwd", x->dtype)) return;
    k->cross_entropy_bwd(fv_ctx_stream(c), fv_grad(c, x), n->y->grad, s->lse, x->data, labels->data, fv_rows(x), fv_cols(x),
                         s->opt.smooth, s->opt.ignore);
}

fv_tensor *fv_cross_entropy(fv_ctx *c, fv_tensor *logits, fv_tensor *labels, fv_ce_opt opt)
{
    if (!logits || !labels) return NULL;
    if (labels->dtype != FV_I32) return fv_raise(c, FV_EDTYPE, "cross_entropy: labels %s are not i32", fv_desc(labels).s);
    if (logits->shape.n < 1 || fv_cols(logits) < 1 || fv_rows(logits) != fv_len(labels))
        return fv_raise(c, FV_ESHAPE, "cross_entropy: logits %s, labels %s", fv_desc(logits).s, fv_desc(labels).s);
    if (!(opt.smooth >= 0 && opt.smooth <= 1))
        return fv_raise(c, FV_EARG, "cross_entropy: smoothing %g is outside 0..1", (double)opt.smooth);
    const fv_kernels *k = fv_kernels_of(c, logits->dtype);
    if (!k || !fv_need(c, k->cross_entropy, "cross_entropy", logits->dtype)) return NULL;

    fv_dtype st = fv__stat_dtype(logits->dtype);
    fv_tensor *y = fv_new(c, st, labels->shape);
    fv_stat *lse = fv_scratch(c, st, fv_len(labels));
    if (!lse) return NULL;
    k->cross_entropy(fv_ctx_stream(c), y->data, lse, logits->data, labels->data, fv_len(labels), fv_cols(logits), opt.smooth,
                     opt.ignore);

    cross_entropy *s = fv_record(c, sizeof *s, backward, y, logits, labels);
    if (s) {
        s->lse = s->node.temp = lse;
        s->node.temp_bytes = (size_t)fv_len(labels) * fv_dtype_size(st);
        s->opt = opt;
    }
    return y;
}
