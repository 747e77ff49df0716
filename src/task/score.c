/* score.c - how likely texts are to a model that fills masks: each token in turn is hidden, and
 * asked for.
 *
 * The sum over the tokens is the pseudo-log-likelihood (Salazar et al. 2020).  A text of n tokens
 * costs n passes. */
#include <math.h>

#include "task.h"

typedef struct asked {
    int64_t text, token; /* which one is hidden */
    int32_t id;          /* and what it is */
    double log_p;
} asked;

static fv_status score_row(void *user, int64_t i, const fv_seq *s, const float *const out[2],
                           int64_t width, fv_err *e)
{
    asked *a = (asked *)user + i;
    const float *x = out[0] + a->token * width;
    (void)s, (void)e;
    double top = x[0], total = 0;
    for (int64_t v = 1; v < width; v++) top = (double)x[v] > top ? (double)x[v] : top;
    for (int64_t v = 0; v < width; v++) total += exp((double)x[v] - top);
    a->log_p = (double)x[a->id] - top - log(total);
    return FV_OK;
}

/* *out: as s, but with token j hidden. */
static fv_status hide(fv_task *t, fv_seq *out, const fv_seq *s, int64_t j, fv_err *e)
{
    *out = *s;
    out->ids = fv__task_claim(t, (size_t)s->n * sizeof *out->ids, e);
    if (!out->ids) return FV_ENOMEM;
    memcpy(out->ids, s->ids, (size_t)s->n * sizeof *out->ids);
    out->ids[j] = fv_tok_id(t->tok, t->mask);
    return FV_OK;
}

/* Whether token j of a text is asked for. */
static bool counts(const fv_seq *s, int64_t j, int64_t from)
{
    return !s->special[j] && s->spans[j].to > from;
}

fv_status fv_task_score(fv_task *t, const fv_text *texts, int64_t n, const int64_t *from,
                        double *log_p, int64_t *tokens, fv_err *e)
{
    fv_seq *seqs;
    int64_t all = 0, at = 0;
    fv__task_begin(t);
    fv_status st = fv__task_encode_all(t, &seqs, texts, n, e);
    for (int64_t i = 0; !st && i < n; all += tokens[i++]) {
        log_p[i] = 0;
        tokens[i] = 0;
        for (int64_t j = 0; j < seqs[i].n; j++)
            tokens[i] += counts(&seqs[i], j, from ? from[i] : -1);
    }
    fv_seq *hidden = st ? NULL : fv__task_claim(t, (size_t)all * sizeof *hidden, e);
    asked *a = st ? NULL : fv__task_claim(t, (size_t)all * sizeof *a, e);
    if (!hidden || !a) return st ? st : FV_ENOMEM;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; !st && j < seqs[i].n; j++) {
            if (!counts(&seqs[i], j, from ? from[i] : -1)) continue;
            st = hide(t, &hidden[at], &seqs[i], j, e);
            a[at++] = (asked){.text = i, .token = j, .id = seqs[i].ids[j]};
        }
    fv_wanted w = {.names = {"logits"},
                   .per_token = fv__task_setting(t, "vocab_size"),
                   .fn = score_row,
                   .user = a};
    if (!st) st = fv__task_run(t, hidden, all, &w, e);
    /* in the text's order, whichever ran first */
    for (int64_t i = 0; !st && i < all; i++) log_p[a[i].text] += a[i].log_p;
    return st;
}
