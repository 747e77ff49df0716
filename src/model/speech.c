/* speech.c - the losses of families that speak: spectrograms, the end of a clip, guided attention.
 *
 *     L = mean |after - y| + mean |before - y| + mean BCE(stop) + lambda mean(W * attention)
 *
 * as transformers' SpeechT5SpectrogramLoss has it, means being over what is not padding.  A batch
 * may be cut into parts whose gradients are added: sums are divided by the numbers of the whole
 * batch, and means over other things (frames, pairs of a frame and a token) count by the numbers of
 * their part.  Masks and counts are computed from the labels on the device, so that a step can be
 * captured. */
#include "model/speech.h"

#include <math.h>

#include "core/core.h"

#define STOP_WEIGHT 5.0f /* of the frame that ends a clip, of which there is one */

/* Losses are summed in f32 also where a model computes in 16 bits. */
static fv_dtype wide(const fv_ctx *c) { return c->dtype == FV_F64 ? FV_F64 : FV_F32; }

fv_tensor *fv__speech_known(fv_ctx *c, fv_tensor *labels)
{
    return fv_clamp(c, fv_affine(c, labels, 1, 99), 0, 1);
}

/* known (B,frames,mel) -> (B,frames / step): at the last frame of each step. */
static fv_tensor *known_steps(fv_ctx *c, fv_tensor *known, int64_t step)
{
    if (!known) return NULL;
    int64_t B = fv_dim(known, 0), T = fv_dim(known, 1) / step;
    fv_tensor *x = fv_slice(c, known, 2, 0, 1);
    x = fv_slice(c, fv_reshape(c, x, FV_SHAPE(B, T, step)), 2, step - 1, step);
    return fv_reshape(c, x, FV_SHAPE(B, T));
}

/* ---- guided attention ---- */

/* known (B,T) of ones, then zeros -> (B,T): how far each is along its row, 0 to (n - 1) / n. */
static fv_tensor *progress(fv_ctx *c, fv_tensor *known)
{
    fv_tensor *n = fv_clamp(c, fv_sum(c, known, 1), 1, INFINITY);
    fv_tensor *at = fv_affine(c, fv_cumsum(c, known, 1), 1, -1);
    return fv_div(c, at, fv_reshape(c, n, FV_SHAPE(fv_dim(known, 0), 1)));
}

/* W[t,n] = 1 - exp(-(n/N - t/T)^2 / 2 sigma^2) */
void fv__guide_open(fv_ctx *c, fv__guide *g, fv_tensor *labels, int64_t T)
{
    fv_tensor *known = known_steps(c, fv_cast(c, fv__speech_known(c, labels), wide(c)), g->step);
    if (!known) return;
    int64_t B = fv_dim(known, 0), Tq = fv_dim(known, 1);
    fv_tensor *text = fv_cast(c, fv_full(c, FV_SHAPE(B, T), 1), wide(c));
    if (g->mask) text = fv_masked_fill(c, text, g->mask, 0);
    fv_tensor *n = fv_reshape(c, progress(c, text), FV_SHAPE(B, 1, 1, T)),
              *t = fv_reshape(c, progress(c, known), FV_SHAPE(B, 1, Tq, 1));
    fv_tensor *both = fv_mul(c, fv_reshape(c, known, FV_SHAPE(B, 1, Tq, 1)),
                             fv_reshape(c, text, FV_SHAPE(B, 1, 1, T)));
    fv_tensor *near = fv_exp(c, fv_scale(c, fv_square(c, fv_sub(c, n, t)),
                                         -1 / (2 * g->sigma * g->sigma)));
    g->far = fv_mul(c, both, fv_affine(c, near, -1, 1));
    g->cells = fv_sum_all(c, both);
}

/* Weights of the guided heads by plain ops, since they need a gradient; then their sum under W. */
void fv__guide_add(fv_ctx *c, fv__guide *g, fv_tensor *q, fv_tensor *k, int64_t n_head)
{
    int64_t H = g->heads < 0 ? n_head + g->heads : g->heads;
    if (H > n_head) H = n_head;
    if (!q || !k || H < 1) return;
    int64_t B = fv_dim(q, 0), Tq = fv_dim(q, 1), Tk = fv_dim(k, 1), W = fv_dim(q, 2) / n_head;
    int to_heads[] = {0, 2, 1, 3};
    q = fv_permute(c, fv_reshape(c, fv_slice(c, q, 2, 0, H * W), FV_SHAPE(B, Tq, H, W)), to_heads);
    k = fv_permute(c, fv_reshape(c, fv_slice(c, k, 2, 0, H * W), FV_SHAPE(B, Tk, H, W)), to_heads);
    fv_tensor *s = fv_matmul(c, q, k, (fv_mm){.tb = true, .alpha = 1 / sqrtf((float)W)});
    s = fv_cast(c, s, wide(c));
    if (g->mask) s = fv_masked_fill(c, s, fv_reshape(c, g->mask, FV_SHAPE(B, 1, 1, Tk)), -1e30f);
    fv_tensor *sum = fv_sum_all(c, fv_mul(c, fv_softmax(c, s), g->far));
    g->sum = g->sum ? fv_add(c, g->sum, sum) : sum;
    g->maps += H;
}

/* ---- the loss ---- */

/* Sum over frames that exist (B,frames) of the cross-entropy of "it ends here", with logits x:
 * y * 5 softplus(-x) + (1 - y) softplus(x). */
static fv_tensor *stop_loss(fv_ctx *c, fv_tensor *x, fv_tensor *known)
{
    int64_t T = fv_dim(known, 1);
    /* a frame is the last where the next does not exist */
    fv_tensor *next = T > 1 ? fv_slice(c, known, 1, 1, T) : NULL;
    next = next ? fv_pad(c, next, 1, 0, 1, 0) : fv_scale(c, known, 0);
    fv_tensor *last = fv_affine(c, next, -1, 1);
    fv_tensor *ends = fv_scale(c, fv_mul(c, last, fv_softplus(c, fv_scale(c, x, -1))), STOP_WEIGHT);
    fv_tensor *goes_on = fv_mul(c, next, fv_softplus(c, x));
    return fv_sum_all(c, fv_mul(c, known, fv_add(c, ends, goes_on)));
}

static fv_tensor *distance(fv_ctx *c, fv_tensor *x, fv_tensor *labels, fv_tensor *known)
{
    x = fv_abs(c, fv_sub(c, fv_cast(c, x, wide(c)), labels));
    return fv_sum_all(c, fv_mul(c, known, x));
}

fv_tensor *fv__speech_loss(fv_ctx *c, const fv_items *in, const fv__speech_out *y,
                           const fv__guide *guide, float weight)
{
    fv_tensor *labels = fv_cast(c, fv_items_get(in, "labels"), wide(c));
    if (!labels || !y->after) return NULL;
    if (!fv_shape_same(labels->shape, y->after->shape))
        return fv_raise(c, FV_ESHAPE, "labels %s beside a spectrogram %s", fv_desc(labels).s,
                        fv_desc(y->after).s);
    int64_t mel = fv_dim(labels, 2);
    fv_tensor *known = fv__speech_known(c, labels), *frames = known_steps(c, known, 1);
    fv_tensor *loss = fv_add(c, distance(c, y->after, labels, known),
                             distance(c, y->before, labels, known));
    fv_tensor *stop = stop_loss(c, fv_cast(c, y->stop, wide(c)), frames);
    loss = fv_add(c, loss, fv_scale(c, stop, (float)mel));
    if (guide && guide->sum) {
        fv_tensor *mean = fv_div(c, guide->sum, fv_scale(c, guide->cells, (float)guide->maps));
        loss = fv_add(c, loss, fv_scale(c, fv_mul(c, mean, fv_sum_all(c, known)), weight));
    }
    return fv__per_label(c, loss, in);
}
