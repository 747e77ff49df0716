/* ctc.c - the CTC loss of frames and labels: minus the log-likelihood over all ways to spread the
 * labels over the frames.
 *
 * As in rnnt.c the kernel starts from log-probabilities, so that the softmax and its gradient are
 * the ordinary op, and 16-bit logits are widened first. */
#include "fovea/author/op.h"
#include "ops/stat.h"

typedef struct {
    fv_node node;
    fv_stat *alpha; /* (B,T,2U+1): log-probability of getting to a state */
    int32_t blank;
} ctc;

/* loss = -log sum over all ways of the product of their steps (Graves et al. 2006): d loss / d lp
 * of a label in a frame is minus the share of the ways that say it there. */
static void backward(fv_ctx *c, fv_node *n)
{
    const ctc *s = (ctc *)n;
    fv_tensor *lp = n->in[0], *labels = n->in[1], *tlen = n->in[2], *ulen = n->in[3];
    const int64_t *d = lp->shape.d;
    const fv_kernels *k = fv_kernels_of(c, lp->dtype);
    if (!fv_need(c, k->ctc_bwd, "ctc_bwd", lp->dtype)) return;
    k->ctc_bwd(fv_ctx_stream(c), fv_grad(c, lp), n->y->grad, n->y->data, s->alpha, lp->data,
               labels->data, tlen->data, ulen->data, d[0], d[1], fv_len(labels) / d[0], d[2],
               s->blank);
}

static bool check(fv_ctx *c, const fv_tensor *x, const fv_tensor *labels, const fv_tensor *tlen,
                  const fv_tensor *ulen, int32_t blank)
{
    const int64_t *d = x->shape.d;
    bool ints = labels->dtype == FV_I32 && tlen->dtype == FV_I32 && ulen->dtype == FV_I32;
    if (!ints) fv_raise(c, FV_EDTYPE, "ctc_loss: labels and lengths must be i32");
    bool fits = x->shape.n == 3 && d[0] > 0 && d[2] > 0 && labels->shape.n == 2 &&
                labels->shape.d[0] == d[0] && fv_len(tlen) == d[0] && fv_len(ulen) == d[0];
    if (!fits)
        fv_raise(c, FV_ESHAPE, "ctc_loss: logits %s, labels %s, lengths %s and %s", fv_desc(x).s,
                 fv_desc(labels).s, fv_desc(tlen).s, fv_desc(ulen).s);
    else if (blank < 0 || blank >= d[2])
        fv_raise(c, FV_EARG, "ctc_loss: blank %d is outside 0..%lld", blank, (long long)d[2] - 1);
    return ints && fits && blank >= 0 && blank < d[2];
}

fv_tensor *fv_ctc_loss(fv_ctx *c, fv_tensor *logits, fv_tensor *labels, fv_tensor *tlen,
                       fv_tensor *ulen, int32_t blank)
{
    if (!logits || !labels || !tlen || !ulen || !check(c, logits, labels, tlen, ulen, blank))
        return NULL;
    fv_tensor *lp = fv_log_softmax(c, fv__widen(c, logits));
    const fv_kernels *k = lp ? fv_kernels_of(c, lp->dtype) : NULL;
    if (!k || !fv_need(c, k->ctc, "ctc", lp->dtype)) return NULL;

    const int64_t *d = lp->shape.d, U = fv_len(labels) / d[0], n = d[0] * d[1] * (2 * U + 1);
    fv_tensor *y = fv_new(c, lp->dtype, FV_SHAPE(d[0]));
    fv_stat *alpha = fv_scratch(c, lp->dtype, n);
    if (!alpha) return NULL;
    k->ctc(fv_ctx_stream(c), y->data, alpha, lp->data, labels->data, tlen->data, ulen->data, d[0],
           d[1], U, d[2], blank);

    ctc *s = fv_record(c, sizeof *s, backward, y, lp, labels, tlen, ulen);
    if (s) {
        s->alpha = s->node.temp = alpha;
        s->node.temp_bytes = (size_t)n * fv_dtype_size(lp->dtype);
        s->blank = blank;
    }
    return y;
}
