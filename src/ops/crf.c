/* crf.c - the loss of a linear-chain conditional random field (Lafferty et al. 2001): minus the
 * log-probability of a sequence of labels among all sequences.
 *
 * Transitions are one table (K+2,K): a label's score behind each of the K labels, then at the start
 * (row K) and at the end (row K+1).  Positions with a negative label are no part of the chain,
 * which goes on behind them: tokens inside words, padding, special tokens.  So no second length or
 * mask is needed, and the op reads the labels as the cross-entropy does.  16-bit inputs are widened
 * first, as in ctc.c. */
#include "fovea/author/op.h"
#include "ops/stat.h"

typedef struct {
    fv_node node;
    fv_stat *alpha; /* (B,T,K): log-sum of all beginnings that end in a label */
    fv_stat
        *pairs; /* (B,K+2,K): each sequence's gradient of the transitions, to be added in order */
} crf;

/* loss = log sum over all label sequences of exp(score) - score of the right one: d loss / d x
 * is the probability of a label at a position minus 1 for the right one, and likewise for
 * transitions. */
static void backward(fv_ctx *c, fv_node *n)
{
    const crf *s = (crf *)n;
    fv_tensor *x = n->in[0], *trans = n->in[1], *labels = n->in[2];
    const int64_t *d = x->shape.d;
    const fv_kernels *k = fv_kernels_of(c, x->dtype);
    if (!fv_need(c, k->crf_bwd, "crf_bwd", x->dtype)) return;
    fv_crf a = {x->data, trans->data, labels->data, d[0], d[1], d[2]};
    k->crf_bwd(fv_ctx_stream(c), fv_grad(c, x), fv_grad(c, trans), n->y->grad, s->alpha, s->pairs,
               &a);
}

static bool check(fv_ctx *c, const fv_tensor *x, const fv_tensor *trans, const fv_tensor *labels)
{
    const int64_t *d = x->shape.d;
    bool fits = x->shape.n == 3 && d[0] > 0 && d[1] > 0 && trans->shape.n == 2 &&
                trans->shape.d[0] == d[2] + 2 && trans->shape.d[1] == d[2] &&
                labels->shape.n == 2 && labels->shape.d[0] == d[0] && labels->shape.d[1] == d[1];
    if (!fits)
        fv_raise(c, FV_ESHAPE, "crf_loss: logits %s, transitions %s, labels %s", fv_desc(x).s,
                 fv_desc(trans).s, fv_desc(labels).s);
    else if (labels->dtype != FV_I32)
        fv_raise(c, FV_EDTYPE, "crf_loss: labels %s must be i32", fv_desc(labels).s);
    return fits && labels->dtype == FV_I32;
}

fv_tensor *fv_crf_loss(fv_ctx *c, fv_tensor *logits, fv_tensor *transitions, fv_tensor *labels)
{
    if (!logits || !transitions || !labels || !check(c, logits, transitions, labels)) return NULL;
    fv_tensor *x = fv__widen(c, logits), *trans = fv__widen(c, transitions);
    const fv_kernels *k = x && trans ? fv_kernels_of(c, x->dtype) : NULL;
    if (!k || !fv_same_dtype(c, "crf_loss", x, trans) || !fv_need(c, k->crf, "crf", x->dtype))
        return NULL;

    const int64_t *d = x->shape.d, n = d[0] * d[1] * d[2], rows = d[0] * (d[2] + 2) * d[2];
    fv_tensor *y = fv_new(c, x->dtype, FV_SHAPE(d[0]));
    fv_stat *alpha = fv_scratch(c, x->dtype, n + rows);
    if (!alpha) return NULL;
    fv_crf a = {x->data, trans->data, labels->data, d[0], d[1], d[2]};
    k->crf(fv_ctx_stream(c), y->data, alpha, &a);

    crf *s = fv_record(c, sizeof *s, backward, y, x, trans, labels);
    if (s) {
        s->alpha = s->node.temp = alpha;
        s->pairs = (fv_stat *)((char *)alpha + (size_t)n * fv_dtype_size(x->dtype));
        s->node.temp_bytes = (size_t)(n + rows) * fv_dtype_size(x->dtype);
    }
    return y;
}
