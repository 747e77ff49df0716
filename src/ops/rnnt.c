/* rnnt.c - the transducer loss of a grid of frames and labels: minus the log-likelihood over all
 * alignments.
 *
 * The kernel starts from log-probabilities, so the softmax and its gradient are the ordinary op.
 * 16-bit logits are widened first: a path adds up hundreds of log-probabilities. */
#include "ops/rnnt.h"

#include "ops/stat.h"

typedef struct {
    fv_node node;
    fv_stat *alpha; /* (B,T,U+1): log-probability of getting to a point of the grid */
    int32_t blank;
} rnnt;

/* loss = -log sum over alignments of the product of their steps:  d loss / d lp of a step is
 * minus the posterior probability that an alignment takes it (Graves, 2012). */
static void backward(fv_ctx *c, fv_node *n)
{
    const rnnt *s = (rnnt *)n;
    fv_tensor *lp = n->in[0], *labels = n->in[1], *tlen = n->in[2], *ulen = n->in[3];
    const int64_t *d = lp->shape.d;
    const fv_kernels *k = fv_kernels_of(c, lp->dtype);
    if (!fv_need(c, k->rnnt_bwd, "rnnt_bwd", lp->dtype)) return;
    k->rnnt_bwd(fv_ctx_stream(c), fv_grad(c, lp), n->y->grad, n->y->data, s->alpha, lp->data,
                labels->data, tlen->data, ulen->data, d[0], d[1], d[2], d[3], s->blank);
}

static bool check(fv_ctx *c, const fv_tensor *x, const fv_tensor *labels, const fv_tensor *tlen,
                  const fv_tensor *ulen, int32_t blank)
{
    const int64_t *d = x->shape.d;
    bool ints = labels->dtype == FV_I32 && tlen->dtype == FV_I32 && ulen->dtype == FV_I32;
    if (!ints) fv_raise(c, FV_EDTYPE, "rnnt_loss: labels and lengths must be i32");
    bool fits = x->shape.n == 4 && d[2] >= 1 && fv_len(labels) == d[0] * (d[2] - 1);
    fits = fits && fv_len(tlen) == d[0] && fv_len(ulen) == d[0];
    if (!fits)
        fv_raise(c, FV_ESHAPE, "rnnt_loss: logits %s, labels %s, lengths %s and %s", fv_desc(x).s,
                 fv_desc(labels).s, fv_desc(tlen).s, fv_desc(ulen).s);
    else if (blank < 0 || blank >= d[3])
        fv_raise(c, FV_EARG, "rnnt_loss: blank %d is outside 0..%lld", blank, (long long)d[3] - 1);
    return ints && fits && blank >= 0 && blank < d[3];
}

fv_tensor *fv_rnnt_loss(fv_ctx *c, fv_tensor *logits, fv_tensor *labels, fv_tensor *tlen,
                        fv_tensor *ulen, int32_t blank)
{
    if (!logits || !labels || !tlen || !ulen || !check(c, logits, labels, tlen, ulen, blank))
        return NULL;
    return fv__rnnt_of(c, fv_log_softmax(c, fv__widen(c, logits)), labels, tlen, ulen, blank);
}

fv_tensor *fv__rnnt_of(fv_ctx *c, fv_tensor *lp, fv_tensor *labels, fv_tensor *tlen,
                       fv_tensor *ulen, int32_t blank)
{
    if (!lp || !labels || !tlen || !ulen || !check(c, lp, labels, tlen, ulen, blank)) return NULL;
    const fv_kernels *k = fv_kernels_of(c, lp->dtype);
    if (!fv_need(c, k->rnnt, "rnnt", lp->dtype)) return NULL;

    const int64_t *d = lp->shape.d;
    fv_tensor *y = fv_new(c, lp->dtype, FV_SHAPE(d[0]));
    fv_stat *alpha = fv_scratch(c, lp->dtype, d[0] * d[1] * d[2]);
    if (!alpha) return NULL;
    k->rnnt(fv_ctx_stream(c), y->data, alpha, lp->data, labels->data, tlen->data, ulen->data, d[0],
            d[1], d[2], d[3], blank);

    rnnt *s = fv_record(c, sizeof *s, backward, y, lp, labels, tlen, ulen);
    if (s) {
        s->alpha = s->node.temp = alpha;
        s->node.temp_bytes = (size_t)(d[0] * d[1] * d[2]) * fv_dtype_size(lp->dtype);
        s->blank = blank;
    }
    return y;
}
