/* weights.c - the weights of a capture: of one head, and of means over heads and layers.
 *
 * fv_attn_view_weights recomputes exp(score - lse) for the rows asked for; nothing is kept here.
 * Means are taken row block by row block, so that they need the memory of two blocks, not of all
 * heads. */
#include <ctype.h>
#include <stdio.h>

#include "see.h"

static const char *const nouns[] = {"self-attention of the encoder",
                                    "self-attention of the decoder", "cross-attention"};

/* Where there is no cross-attention the model has one stack, and "of the encoder" says nothing. */
void fv__see_title(char *out, size_t n, const fv_see *s, fv_see_pick p)
{
    char layer[48] = "", head[32] = "";
    bool alone = !s->map[FV_SEE_CROSS].layers, through = p.rollout || p.flow;
    const char *what = p.flow ? "flow through the " : p.rollout ? "rollout of the " : "";
    if (p.layer != FV_SEE_ALL)
        snprintf(layer, sizeof layer, ", %slayer %lld", through ? "up to " : "",
                 (long long)p.layer);
    else if (!through)
        snprintf(layer, sizeof layer, ", mean of all layers");
    if (p.head != FV_SEE_ALL)
        snprintf(head, sizeof head, ", head %lld", (long long)p.head);
    else if (!through)
        snprintf(head, sizeof head, p.layer == FV_SEE_ALL ? " and heads" : ", mean of all heads");
    snprintf(out, n, "%s%s%s%s%s", what, alone ? "self-attention" : nouns[p.kind],
             s->guide && p.kind == FV_SEE_ENCODER ? ", weighed by the text" : "", layer, head);
    if (n) out[0] = (char)toupper((unsigned char)out[0]);
}

/* ---- checks ---- */

/* The sentence for a layer or head out of range. */
static fv_status no_such(const char *what, int64_t given, const char *kind, int64_t n, fv_err *e)
{
    if (n == 1)
        return fv_fail(e, FV_EARG, "%s %lld: the %s attention has only %s 0", what,
                       (long long)given, kind, what);
    return fv_fail(e, FV_EARG, "%s %lld: the %s attention has %ss 0 to %lld", what,
                   (long long)given, kind, what, (long long)(n - 1));
}

fv_status fv__see_check(const fv_see *s, fv_see_pick p, fv_err *e)
{
    if ((unsigned)p.kind >= FV_SEE_KINDS)
        return fv_fail(e, FV_EARG, "there is no such kind of attention");
    const fv_see_map *m = &s->map[p.kind];
    const char *kind = fv_see_kind_name(p.kind);
    if (!m->layers) {
        char have[64] = "";
        for (int k = 0; k < FV_SEE_KINDS; k++)
            if (s->map[k].layers)
                snprintf(have + strlen(have), sizeof have - strlen(have), "%s%s", *have ? ", " : "",
                         fv_see_kind_name((fv_see_kind)k));
        return fv_fail(e, FV_EARG, "this model has no %s attention; it has: %s", kind, have);
    }
    if (p.layer != FV_SEE_ALL && (p.layer < 0 || p.layer >= m->layers))
        return no_such("layer", p.layer, kind, m->layers, e);
    if (p.head != FV_SEE_ALL && (p.head < 0 || p.head >= m->heads))
        return no_such("head", p.head, kind, m->heads, e);
    if ((p.rollout || p.flow) && p.head != FV_SEE_ALL)
        return fv_fail(e, FV_EARG, "a %s goes through the mean of all heads: leave out the head",
                       p.flow ? "flow" : "rollout");
    if (p.rollout && p.flow) return fv_fail(e, FV_EARG, "a rollout or a flow, not both");
    return FV_OK;
}

fv_status fv__see_check_pass(const fv_see *s, fv_err *e)
{
    if (!s->outline) return FV_OK;
    return fv_fail(e, FV_ESTATE, "this capture is an outline: it has labels, and no weights");
}

/* ---- one layer ---- */

/* The error of the context becomes the error of the call. */
static fv_status head_rows(fv_see *s, fv_see_kind k, int64_t layer, int64_t head, int64_t from,
                           int64_t to, float *out, fv_err *e)
{
    const fv_see_map *m = &s->map[k];
    fv_status st = fv_attn_view_weights(s->ctx, m->layer[layer].view, s->batch, head, from, to,
                                        out);
    if (!st && s->guide && k == FV_SEE_ENCODER)
        fv__see_guide_rows(s->guide, layer, head, m->heads, from, to, out);
    return st ? fv_fail(e, st, "%s", fv_ctx_err(s->ctx)->text) : FV_OK;
}

fv_status fv__see_layer_rows(fv_see *s, fv_see_kind k, int64_t layer, int64_t head, int64_t from,
                             int64_t to, float *out, float *scratch, fv_err *e)
{
    const fv_see_map *m = &s->map[k];
    int64_t n = (to - from) * m->cols;
    if (head != FV_SEE_ALL) return head_rows(s, k, layer, head, from, to, out, e);
    for (int64_t i = 0; i < n; i++) out[i] = 0;
    for (int64_t h = 0; h < m->heads; h++) {
        fv_status st = head_rows(s, k, layer, h, from, to, scratch, e);
        if (st) return st;
        for (int64_t i = 0; i < n; i++) out[i] += scratch[i] / (float)m->heads;
    }
    return FV_OK;
}

/* ---- means ---- */

/* The mean over the layers of p, of one head or of all. */
static fv_status mean_rows(fv_see *s, fv_see_pick p, int64_t from, int64_t to, float *out,
                           fv_err *e)
{
    const fv_see_map *m = &s->map[p.kind];
    int64_t n = (to - from) * m->cols, first = p.layer == FV_SEE_ALL ? 0 : p.layer;
    int64_t last = p.layer == FV_SEE_ALL ? m->layers - 1 : p.layer;
    size_t bytes = (size_t)(2 * n) * sizeof(float);
    /* one head of one layer: no mean, no scratch */
    if (p.layer != FV_SEE_ALL && p.head != FV_SEE_ALL)
        return head_rows(s, p.kind, p.layer, p.head, from, to, out, e);
    float *scratch = fv__alloc(s->env, bytes);
    if (!scratch) return fv_fail(e, FV_ENOMEM, "attention weights: out of memory");
    float *layer = scratch + n;
    for (int64_t i = 0; i < n; i++) out[i] = 0;
    fv_status st = FV_OK;
    for (int64_t l = first; !st && l <= last; l++) {
        st = fv__see_layer_rows(s, p.kind, l, p.head, from, to, layer, scratch, e);
        for (int64_t i = 0; !st && i < n; i++) out[i] += layer[i] / (float)(last - first + 1);
    }
    fv__free(s->env, scratch, bytes);
    return st;
}

fv_status fv_see_weights(fv_see *s, fv_see_pick p, int64_t from, int64_t to, float *out, fv_err *e)
{
    fv_status st = fv__see_check(s, p, e);
    if (!st) st = fv__see_check_pass(s, e);
    if (st) return st;
    const fv_see_map *m = &s->map[p.kind];
    if (from < 0 || to < from || to > m->rows)
        return fv_fail(e, FV_EARG, "rows %lld to %lld of %lld", (long long)from, (long long)to,
                       (long long)m->rows);
    if (from == to) return FV_OK;
    int64_t up_to = p.layer == FV_SEE_ALL ? m->layers - 1 : p.layer;
    if (p.flow) return fv__see_flow(s, p.kind, up_to, from, to, out, e);
    if (p.rollout) return fv__see_rollout(s, p.kind, up_to, from, to, out, e);
    return mean_rows(s, p, from, to, out, e);
}
