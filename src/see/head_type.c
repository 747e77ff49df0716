/* head_type.c - what a head does, in a few numbers; and its queries and keys.
 *
 * Entropy, and how much of a row's weight goes to the token before, to the first one, to the token
 * itself, and to what followed the token's earlier occurrences.  These are the patterns that heads
 * are sorted by: previous-token heads, heads that rest on the first token where they have nothing
 * to find, induction heads (Clark et al. 2019; Olsson et al. 2022). */
#include <math.h>

#include "core/core.h"
#include "fovea/author/see.h"
#include "ops/attention.h"
#include "see.h"

/* Adds one row of n weights; i is the row's own column, -1 where rows are other tokens. */
static void add_row(fv_see_head *h, const float *w, int64_t n, int64_t i)
{
    for (int64_t j = 0; j < n; j++)
        if (w[j] > 0) h->entropy -= (double)w[j] * log((double)w[j]);
    if (i != 0) h->first += (double)w[0];
    if (i > 0) h->previous += (double)w[i - 1];
    if (i >= 0) h->self += (double)w[i];
}

/* What followed earlier occurrences of the row's token; false: it has none. */
static bool add_induction(fv_see_head *h, const float *w, const int32_t *ids, int64_t i)
{
    bool again = false;
    for (int64_t j = 0; j < i; j++) {
        if (ids[j] != ids[i]) continue;
        h->induction += (double)w[j + 1];
        again = true;
    }
    return again;
}

static void divide(double *x, int64_t n) { *x = n > 0 ? *x / (double)n : 0; }

fv_status fv_see_head_type(fv_see *s, fv_see_pick p, const int32_t *ids, fv_see_head *out,
                           fv_err *e)
{
    *out = (fv_see_head){0};
    fv_status st = fv__see_check(s, p, e);
    if (!st) st = fv__see_check_pass(s, e);
    if (st) return st;
    if (p.layer == FV_SEE_ALL || p.head == FV_SEE_ALL || p.rollout)
        return fv_fail(e, FV_EARG, "the type of a head is asked for one layer and one head");
    const fv_see_map *m = &s->map[p.kind];
    bool square = p.kind != FV_SEE_CROSS && m->rows == m->cols;
    int64_t block = fv__see_block(m->cols), again = 0;
    size_t bytes = (size_t)(block * m->cols) * sizeof(float);
    float *w = fv__alloc(s->env, bytes);
    if (!w) return fv_fail(e, FV_ENOMEM, "type of a head: out of memory");
    for (int64_t from = 0; from < m->rows && !st; from += block) {
        int64_t to = from + block < m->rows ? from + block : m->rows;
        st = fv_see_weights(s, p, from, to, w, e);
        for (int64_t i = from; i < to && !st; i++) {
            const float *row = w + (i - from) * m->cols;
            add_row(out, row, m->cols, square ? i : -1);
            if (square && ids) again += add_induction(out, row, ids, i);
        }
    }
    fv__free(s->env, w, bytes);
    divide(&out->entropy, m->rows);
    divide(&out->self, m->rows);
    divide(&out->first, square ? m->rows - 1 : m->rows);
    divide(&out->previous, m->rows - 1);
    divide(&out->induction, again);
    return st;
}

fv_status fv_see_vectors(fv_see *s, fv_see_pick p, float *q, float *k, int64_t *width, float *scale,
                         fv_err *e)
{
    fv_status st = fv__see_check(s, p, e);
    if (st) return st;
    if (p.layer == FV_SEE_ALL || p.head == FV_SEE_ALL || p.rollout)
        return fv_fail(e, FV_EARG, "queries and keys are those of one layer and one head");
    *width = fv__attn_view_vectors(s->ctx, s->map[p.kind].layer[p.layer].view, s->batch, p.head, q,
                                   k, scale);
    if (*width) return FV_OK;
    return fv_fail(e, fv_ctx_err(s->ctx)->code, "%s", fv_ctx_err(s->ctx)->text);
}
