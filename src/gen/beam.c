/* beam.c - one step of beam search.
 *
 * Every source has K running beams, best first, and K finished hypotheses.  A step looks at the
 * best continuations of all beams together, 2K or more: those that end and are among the first K
 * may replace a finished one; the best K that do not end run on.  A source is done when no running
 * beam can beat its worst finished hypothesis any more. */
#include <math.h>
#include <string.h>

#include "gen/search.h"

static void copy_beam(beam *to, const beam *from)
{
    int32_t *ids = to->ids;
    memcpy(ids, from->ids, (size_t)from->n * sizeof *ids);
    *to = *from;
    to->ids = ids;
}

/* The s->wide best continuations over all K beams of source i, which is at index p of the batch:
 * as sequences in s->next, best first, and the batch rows they extend in s->row.  Insertion sort
 * over at most wide entries; candidates of a beam come best first, so that its loop ends early. */
static int64_t continuations(search *s, int64_t p, int64_t i)
{
    int64_t want = s->wide, n = 0;
    int32_t *row = s->row;
    for (int64_t k = 0; k < s->K; k++) {
        const beam *b = &s->run[i * s->K + k];
        int64_t have = fv__search_best(s, fv__prefix(s, b, i), p * s->K + k, want);
        for (int64_t j = 0; j < have; j++) {
            float total = b->score + s->candidates[j].score;
            if (n == want && !(total > s->next[n - 1].score)) break;
            int64_t at = n < want ? n++ : n - 1;
            int32_t *ids = s->next[at].ids;
            for (; at > 0 && total > s->next[at - 1].score; at--) {
                s->next[at] = s->next[at - 1];
                row[at] = row[at - 1];
            }
            s->next[at] = (beam){.score = total,
                                 .n = b->n + 1,
                                 .ids = ids,
                                 .finished = fv__search_ends(s, i, s->candidates[j].token)};
            ids[b->n] = s->candidates[j].token;
            row[at] = (int32_t)(p * s->K + k);
        }
    }
    /* tokens are copied once it is known which continuations stay */
    for (int64_t j = 0; j < n; j++) {
        const beam *b = &s->run[(i - p) * s->K + row[j]];
        memcpy(s->next[j].ids, b->ids, (size_t)b->n * sizeof(int32_t));
    }
    return n;
}

/* Inserts b into the K best finished hypotheses, best first; of equal scores the older stays
 * ahead. */
static void finish(search *s, beam *done, const beam *b, float score)
{
    beam *worst = &done[s->K - 1];
    if (!(score > worst->score)) return;
    copy_beam(worst, b);
    worst->score = score;
    worst->finished = true;
    for (int64_t k = s->K - 1; k > 0 && done[k].score > done[k - 1].score; k--) {
        beam t = done[k];
        done[k] = done[k - 1];
        done[k - 1] = t;
    }
}

static bool all_finished(const search *s, const beam *done)
{
    for (int64_t k = 0; k < s->K; k++)
        if (!done[k].finished) return false;
    return true;
}

/* Whether no running beam can still beat the worst finished hypothesis.  The best running one is
 * judged as if it ended at this length, or with early_stopping "never" and a penalty that favours
 * length, at the greatest length it may reach: transformers' heuristic, not a bound. */
bool fv__beam_decided(const search *s, int64_t i)
{
    const beam *run = s->run + i * s->K, *done = s->done + i * s->K;
    double len = (double)s->made;
    if (s->o->early_stopping == FV_EARLY_TRUE && all_finished(s, done)) return true;
    if (s->o->early_stopping == FV_EARLY_NEVER && s->o->length_penalty > 0)
        len = (double)(s->end[i] - s->prompt[i]);
    float best = (float)((double)run[0].score / pow(len, (double)s->o->length_penalty));
    for (int64_t k = 0; k < s->K; k++) {
        float worst = done[k].finished ? done[s->K - 1].score : FAR;
        if (best > worst) return false;
    }
    return true;
}

void fv__beam_step(search *s, int64_t p)
{
    int64_t i = s->at[p];
    beam *run = s->run + i * s->K, *done = s->done + i * s->K;
    int32_t *from = s->from + p * s->K, *token = s->token + p * s->K;
    int64_t n = continuations(s, p, i), kept = 0;
    double scale = pow((double)(s->made + 1), (double)s->o->length_penalty);
    bool full = s->o->early_stopping == FV_EARLY_TRUE && all_finished(s, done);
    for (int64_t j = 0; j < n && j < s->K; j++)
        if (s->next[j].finished && !full)
            finish(s, done, &s->next[j], (float)((double)s->next[j].score / scale));
    for (int64_t j = 0; j < n && kept < s->K; j++) {
        if (s->next[j].finished) continue;
        copy_beam(&run[kept], &s->next[j]);
        from[kept] = s->row[j];
        token[kept++] = s->next[j].ids[s->next[j].n - 1];
    }
    if (!kept) s->over[i] = true; /* every continuation ended: the greatest length */
    /* fewer tokens than beams: the rest follow the first and never win */
    for (; kept < s->K; kept++) {
        if (kept) copy_beam(&run[kept], &run[0]);
        run[kept].score = FAR;
        from[kept] = kept ? from[0] : (int32_t)(p * s->K);
        token[kept] = kept ? token[0] : fv__search_pad(s);
    }
}
