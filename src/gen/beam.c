/* beam.c - one step of beam search.
 *
 * Every source has K running beams, best first, and K finished hypotheses.  A step looks at the
 * best continuations of all beams together, 2K or more: those that end and are among the first K
 * may replace a finished one; the best K that do not end run on.  A source is done when no running
 * beam can beat its worst finished hypothesis any more. */
#include <math.h>
#include <string.h>

#include "fovea/author/backend.h"
#include "gen/search.h"

static void copy_beam(beam *to, const beam *from)
{
    int32_t *ids = to->ids;
    memcpy(ids, from->ids, (size_t)from->n * sizeof *ids);
    *to = *from;
    to->ids = ids;
}

/* Tokens are copied once it is known which n continuations stay. */
static void copy_prefixes(search *s, int64_t p, int64_t i, int64_t n)
{
    for (int64_t j = 0; j < n; j++) {
        const beam *b = &s->run[(i - p) * s->K + s->row[j]];
        memcpy(s->next[j].ids, b->ids, (size_t)b->n * sizeof(int32_t));
    }
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
                                 .finished = fv__search_ends(s, i, b->n + 1,
                                                             s->candidates[j].token)};
            ids[b->n] = s->candidates[j].token;
            row[at] = (int32_t)(p * s->K + k);
        }
    }
    copy_prefixes(s, p, i, n);
    return n;
}

/* log(sum of exp(score / temperature)) over n candidates with their softmax weights. */
static float log_sum(const fv_candidate *c, int64_t n, const float *score, float heat)
{
    int64_t best = 0;
    double sum = 0;
    for (int64_t j = 0; j < n; j++) {
        sum += (double)c[j].score;
        if (c[j].score > c[best].score) best = j;
    }
    return score[c[best].token] / heat + (float)log(sum / (double)c[best].score);
}

/* The same, drawn: continuations without replacement, each with a probability that is the softmax
 * of its beam's score and its own over all of them.  The largest of score + Gumbel noise are such a
 * draw, in its order.  The noise goes by source, step, beam and token, so that it does not depend
 * on the batch. */
static int64_t draw_continuations(search *s, int64_t p, int64_t i)
{
    const fv_gen_opt *o = s->o;
    int64_t want = s->wide, n = 0, least = 2 + o->n_ends;
    int32_t *row = s->row;
    for (int64_t k = 0; k < s->K; k++) {
        const beam *b = &s->run[i * s->K + k];
        float *score = s->scores + (p * s->K + k) * s->V;
        fv_candidate *from;
        fv__process_logits(score, s->V, fv__prefix(s, b, i), o, s->scratch);
        int64_t have = fv__sample_from(&from, score, s->V, o, least, s->candidates);
        float less = have && o->renormalize_logits ? log_sum(from, have, score, o->temperature) : 0;
        for (int64_t j = 0; j < have; j++) {
            uint32_t w[4];
            int32_t token = from[j].token;
            float total = b->score + score[token] / o->temperature - less;
            fv_philox(w, (uint64_t)o->seed, (uint64_t)fv__search_number(s, i), (uint64_t)s->made,
                      (uint64_t)(1 + k * s->V + token));
            double u = ((double)w[0] + ((double)w[1] + 0.5) * 0x1p-32) * 0x1p-32;
            double key = (double)total - log(-log(u));
            if (isinf(total) || (n == want && !(key > s->key[n - 1]))) continue;
            int64_t at = n < want ? n++ : n - 1;
            int32_t *ids = s->next[at].ids;
            for (; at > 0 && key > s->key[at - 1]; at--) {
                s->next[at] = s->next[at - 1];
                row[at] = row[at - 1];
                s->key[at] = s->key[at - 1];
            }
            s->next[at] = (beam){.score = total,
                                 .n = b->n + 1,
                                 .ids = ids,
                                 .finished = fv__search_ends(s, i, b->n + 1, token)};
            ids[b->n] = token;
            row[at] = (int32_t)(p * s->K + k);
            s->key[at] = key;
        }
    }
    copy_prefixes(s, p, i, n);
    return n;
}

/* Those drawn, best first instead of in the order of the draw. */
static void sort_drawn(search *s, int64_t n)
{
    for (int64_t j = 1; j < n; j++) {
        beam b = s->next[j];
        int32_t row = s->row[j];
        int64_t at = j;
        for (; at > 0 && b.score > s->next[at - 1].score; at--) {
            s->next[at] = s->next[at - 1];
            s->row[at] = s->row[at - 1];
        }
        s->next[at] = b;
        s->row[at] = row;
    }
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
    int64_t n = s->o->do_sample ? draw_continuations(s, p, i) : continuations(s, p, i), kept = 0;
    double scale = pow((double)(s->made + 1), (double)s->o->length_penalty);
    bool full = s->o->early_stopping == FV_EARLY_TRUE && all_finished(s, done);
    for (int64_t j = 0; j < n && j < s->K; j++)
        if (s->next[j].finished && !full)
            finish(s, done, &s->next[j], (float)((double)s->next[j].score / scale));
    if (s->o->do_sample) sort_drawn(s, n);
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
