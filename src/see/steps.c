/* steps.c - one attention with all its steps: scores, scaled and masked scores, weights, output.
 *
 *     scores   s = q k'                    by a plain matrix product
 *     scaled   t = scale s + bias          hidden where the mask or causality says so
 *     weights  w = exp(t) / sum of exp(t)  over the keys of a row; zeros where all are hidden
 *     output   y = w v
 *
 * Output and weights are those of the tiled operator, which never stores a weight: they are
 * recomputed from the log-sum-exp that it keeps.  Computing them from the scores would be shorter
 * and show another computation than the one that models run. */
#include "see.h"

/* The tap: the operator passes by, and is asked for its weights. */
static void take_weights(void *user, fv_ctx *c, const char *site, const char *name,
                         const void *what)
{
    (void)name;
    fv_see_steps *a = user;
    if (strcmp(site, "attention") != 0) return;
    for (int64_t h = 0; h < a->H; h++)
        if (fv_attn_view_weights(c, what, 0, h, 0, a->Tq, a->weights + h * a->Tq * a->Tk)) return;
}

static fv_status compute(fv_ctx *c, fv_see_steps *a)
{
    fv_tensor *q = fv_floats(c, a->q, FV_SHAPE(1, a->Tq, a->H * a->Wk));
    fv_tensor *k = fv_floats(c, a->k, FV_SHAPE(1, a->Tk, a->H * a->Wk));
    fv_tensor *v = fv_floats(c, a->v, FV_SHAPE(1, a->Tk, a->H * a->Wv));
    for (int64_t h = 0; h < a->H; h++) {
        fv_tensor *qh = fv_slice(c, q, -1, h * a->Wk, (h + 1) * a->Wk),
                  *kh = fv_slice(c, k, -1, h * a->Wk, (h + 1) * a->Wk);
        fv_read(c, fv_matmul(c, qh, kh, (fv_mm){.tb = true}), a->scores + h * a->Tq * a->Tk,
                a->Tq * a->Tk);
    }
    fv_attn opt = {.n_head = a->H, .causal = a->causal, .name = "attend"};
    if (a->masked) {
        fv_shape s = FV_SHAPE(1, a->H, a->Tq, a->Tk);
        opt.mask = fv_bytes(c, a->mask, s);
        if (a->biased) opt.bias = fv_floats(c, a->bias, s);
    }
    fv_ctx_set_tap(c, take_weights, a);
    fv_tensor *y = fv_attention(c, q, k, v, opt);
    fv_read(c, y, a->output, a->Tq * a->H * a->Wv);
    return fv_ctx_status(c);
}

/* Causality as the operator has it: the last row is at the last key, so that a row of fewer queries
 * than keys (a decode step) sees all that came before it. */
static void scale_and_hide(fv_see_steps *a)
{
    for (int64_t i = 0; i < a->H * a->Tq * a->Tk; i++) {
        int64_t key = i % a->Tk, position = i / a->Tk % a->Tq + a->Tk - a->Tq;
        a->scaled[i] = a->scale * a->scores[i] + a->bias[i];
        if (a->causal && key > position) a->mask[i] = 0;
    }
}

fv_status fv_see_attention(fv_device *d, fv_see_steps *a, fv_err *e)
{
    fv_ctx *c;
    fv_status st = fv_ctx_new(&c, d, (fv_ctx_opt){0}, e);
    if (st) return st;
    st = compute(c, a);
    if (st && e) *e = *fv_ctx_err(c);
    fv_ctx_free(c);
    if (!st) scale_and_hide(a);
    return st;
}
