/* search.c - the search loop on the host: prefill, then decode steps until every source is over.
 *
 * A step scores all rows in one batch, takes each source on (beam.c for several beams; greedy
 * search and sampling are one beam that takes its own continuation), and lets sources that are
 * over leave the batch.
 *
 * A sequence begins with its prompt: behind an encoder the start token and what the caller puts
 * behind it, or else the source itself.
 * Prompts of different lengths are prefilled together, padded, all but the last token of
 * each; the padding is truncated from the KV cache, and from the last token on all rows decode in
 * step, each at its own position.  Prompts of one length need no padding, and their end is the
 * first step. Attention masks over left-padded prompts, as transformers has them, would keep
 * padding in the cache for good. */
#include <math.h>
#include <stdio.h>

#include "base/base.h"
#include "fovea/author/op.h"
#include "fovea/author/session.h"
#include "gen/search.h"
#include "model/session.h"

#define RUN 512 /* prompt tokens of a row in one prefill step: bounds its activations */

/* How many of a row's best tokens are enough for this search, so that the device selects them and
 * only these are read back; 0: the whole row is needed.  A rule that bans a few tokens only needs
 * as many more; penalties, n-grams and sampling look at every score. */
static int64_t best_needed(const search *s, bool encoder)
{
    const fv_gen_opt *o = s->o;
    if (o->do_sample || fv__looks_back(o)) return 0;
    /* one mask serves all rows only where these have the same length */
    if (o->renormalize_logits && (!encoder || s->depth > 1)) return 0;
    int64_t k = (o->num_beams > 1 ? s->wide : 1) + o->n_banned + o->n_begin_banned + o->n_ends + 1;
    return k < s->V ? k : s->V;
}

/* ---- memory: one block, cut up ---- */

/* Takes bytes from a block, in whole cache lines. */
static void *cut(uintptr_t *at, size_t bytes)
{
    void *p = (void *)*at;
    *at += (bytes + 63) / 64 * 64;
    return p;
}

/* Places every array of the search in one block; with base NULL it only adds up the bytes. */
static size_t set_layout(search *s, void *base)
{
    uintptr_t at = (uintptr_t)base;
    int64_t rows = s->n * s->K, len = s->longest;
    size_t ids = (size_t)(rows * len) * sizeof(int32_t);
    s->run = cut(&at, (size_t)rows * sizeof *s->run);
    s->done = cut(&at, (size_t)rows * sizeof *s->done);
    s->next = cut(&at, (size_t)s->wide * sizeof *s->next);
    s->row = cut(&at, (size_t)s->wide * sizeof *s->row);
    s->key = cut(&at, (size_t)s->wide * sizeof *s->key);
    s->over = cut(&at, (size_t)s->n * sizeof *s->over);
    s->at = cut(&at, (size_t)s->n * sizeof *s->at);
    s->scores = cut(&at, (size_t)(rows * s->depth * (s->top ? s->top : s->V)) * sizeof *s->scores);
    s->tokens = cut(&at, (size_t)(rows * s->depth * s->top) * sizeof *s->tokens);
    s->scratch = cut(&at, (size_t)len * sizeof *s->scratch);
    s->candidates = cut(&at, (size_t)(s->V > s->wide ? s->V : s->wide) * sizeof *s->candidates);
    s->token = cut(&at, (size_t)rows * sizeof *s->token);
    s->from = cut(&at, (size_t)rows * sizeof *s->from);
    int32_t *run = cut(&at, ids), *done = cut(&at, ids);
    s->spare = cut(&at, (size_t)(s->wide * len) * sizeof *s->spare);
    for (int64_t i = 0; base && i < rows; i++) {
        s->run[i] = (beam){.score = i % s->K ? FAR : 0, .ids = run + i * len};
        s->done[i] = (beam){.score = FAR, .ids = done + i * len};
    }
    for (int64_t i = 0; base && i < s->n; i++) s->at[i] = i;
    for (int64_t i = 0; base && i < s->wide; i++) s->next[i].ids = s->spare + i * len;
    return at - (uintptr_t)base;
}

/* Every beam begins with its prompt, whose last token is the first decode step's input. */
static void give_prompts(search *s, const int32_t *const *source, bool encoder)
{
    for (int64_t i = 0; i < s->n * s->K; i++) {
        int64_t n = s->prompt[i / s->K];
        int32_t *ids = s->run[i].ids;
        if (encoder) ids[0] = s->o->start;
        for (int64_t j = 1; encoder && j < n; j++) ids[j] = s->o->begin[j - 1];
        if (!encoder) memcpy(ids, source[i / s->K], (size_t)n * sizeof *ids);
        memcpy(s->done[i].ids, ids, (size_t)n * sizeof *ids);
        s->run[i].n = s->done[i].n = n;
        s->token[i] = ids[n - 1];
    }
}

/* ---- one step of one source ---- */

bool fv__search_ends(const search *s, int64_t i, int64_t n, int32_t token)
{
    return fv__token_is_eos(token, s->o) || n >= s->end[i];
}

int64_t fv__search_best(search *s, fv_prefix f, int64_t row, int64_t want)
{
    if (!s->top) {
        float *score = s->scores + row * s->V;
        fv__process_logits(score, s->V, f, s->o, s->scratch);
        if (s->o->renormalize_logits) fv__log_softmax_row(score, s->V);
        if (want > s->V) want = s->V;
        fv__top_k(s->candidates, want, score, s->V);
        return want;
    }
    int32_t forced = fv__forced_token(s->o, f);
    if (forced >= 0) {
        s->candidates[0] = (fv_candidate){0, forced};
        return 1;
    }
    int64_t n = 0;
    for (int64_t j = row * s->top; j < (row + 1) * s->top && n < want; j++)
        if (!fv__token_is_banned(s->o, f, s->tokens[j]))
            s->candidates[n++] = (fv_candidate){s->scores[j], s->tokens[j]};
    /* every token there is was ruled out */
    if (!n) s->candidates[n++] = (fv_candidate){-INFINITY, s->tokens[row * s->top]};
    return n;
}

int64_t fv__search_number(const search *s, int64_t i)
{
    return s->o->numbers ? s->o->numbers[i / s->copies] * s->copies + i % s->copies : i;
}

/* Where only the best of a row are here, they have their log-probabilities already. */
fv_candidate fv__search_next(search *s, int64_t p, int64_t row)
{
    int64_t i = s->at[p];
    fv_prefix f = fv__prefix(s, &s->run[i], i);
    if (!s->top)
        return fv__next_token(s->scores + row * s->V, s->V, f, s->o, fv__search_number(s, i),
                              s->scratch, s->candidates);
    fv__search_best(s, f, row, 1);
    return s->candidates[0];
}

void fv__search_append(search *s, int64_t p, fv_candidate best)
{
    int64_t i = s->at[p];
    beam *b = &s->run[i];
    b->ids[b->n++] = best.token;
    b->score += best.score < 0 ? best.score : 0;
    s->token[p] = best.token;
    s->from[p] = (int32_t)p;
    bool stop = s->o->token && !s->o->token(s->o->user, i, best.token);
    /* and stays where it is */
    if (stop || fv__search_ends(s, i, b->n, best.token)) b->finished = s->over[i] = true;
}

/* ---- the whole ---- */

fv_status fv__search_failed(const search *s, fv_err *e)
{
    const fv_err *why = fv_ctx_err(s->ctx);
    return fv_fail(e, why->code, "%s", why->text);
}

/* Prompt tokens that the first step with logits reads: the rest behind whole runs where all
 * prompts have one length, else the last token alone. */
static int64_t first_step(const search *s)
{
    for (int64_t i = 1; i < s->n; i++)
        if (s->prompt[i] != s->prompt[0]) return 1;
    return (s->prompt[0] - s->known - 1) % RUN + 1;
}

/* A row that has fewer tokens is padded, and truncated back to its own after each run. */
bool fv__search_read(const search *s, fv_ctx *c, fv_session *to, int64_t known, int64_t first)
{
    int64_t most = 0, rows = s->n * s->K;
    for (int64_t i = 0; i < s->n; i++)
        most = s->prompt[i] - first > most ? s->prompt[i] - first : most;
    size_t bytes = (size_t)(rows * (most < RUN ? most : RUN)) * sizeof(int32_t);
    int32_t *ids = fv__alloc(s->env, bytes);
    if (bytes && !ids) fv_raise(c, FV_ENOMEM, "generate: out of memory for %zu bytes", bytes);
    for (int64_t i = 0; i < rows; i++) fv_session_expect(to, i, s->run[i].n);
    for (int64_t at = known; at < most && !fv__failed(c); at += RUN) {
        int64_t T = most - at < RUN ? most - at : RUN;
        for (int64_t i = 0; i < rows * T; i++) {
            const beam *b = &s->run[i / T];
            ids[i] = at + i % T < b->n - 1 ? b->ids[at + i % T] : fv__search_pad(s);
        }
        fv_ctx_reset(c, 0);
        fv_session_step(c, to, fv_ints(c, ids, FV_SHAPE(rows, T)));
        for (int64_t i = 0; i < rows; i++) fv_session_truncate(to, i, s->run[i].n - 1);
    }
    fv__free(s->env, ids, bytes);
    return !fv__failed(c);
}

/* renormalize_logits by a mask: banned tokens become -inf before the softmax, which is the same
 * as a second softmax behind the ban. */
static fv_tensor *renormalised(search *s, fv_tensor *y)
{
    uint8_t *mask = (uint8_t *)s->candidates; /* its V entries are larger than V bytes */
    /* behind an encoder all rows have one length, and so one mask */
    fv_prefix f = fv__prefix(s, &s->run[s->at[0] * s->K], s->at[0]);
    for (int64_t v = 0; v < s->V; v++) mask[v] = !fv__token_is_banned(s->o, f, (int32_t)v);
    return fv_masked_fill(s->ctx, y, fv_bytes(s->ctx, mask, FV_SHAPE(1, s->V)), -INFINITY);
}

/* What the host reads back of a step, in s->y.  Where the best are enough: the top-k
 * log-probabilities and their tokens.  Else whole rows: log-probabilities for beams, and for one
 * beam the logits themselves, since transformers' processors work on those. */
static void score(fv_ctx *c, void *user, fv_tensor *logits)
{
    search *s = user;
    fv_tensor *y = logits;
    if (s->top && s->o->renormalize_logits) y = renormalised(s, y);
    if (s->top || s->K > 1) y = fv_log_softmax(c, y);
    s->y = s->top ? fv_topk(c, y, s->top, &s->y_token) : y;
}

/* The first step where prompts have one length: their last run, several tokens a row. */
static bool step_prompts(search *s)
{
    fv_ctx *c = s->ctx;
    int64_t rows = s->n * s->K, T = s->first;
    size_t bytes = (size_t)(rows * T) * sizeof(int32_t);
    int32_t *ids = fv__alloc(s->env, bytes);
    if (!ids) return fv_raise(c, FV_ENOMEM, "generate: out of memory") != NULL;
    for (int64_t i = 0; i < rows; i++)
        memcpy(ids + i * T, s->run[i].ids + s->run[i].n - T, (size_t)T * sizeof *ids);
    fv_ctx_reset(c, 0);
    fv_tensor *y = fv_session_step(c, s->session, fv_ints(c, ids, FV_SHAPE(rows, T)));
    if (y) score(c, s, y);
    fv__free(s->env, ids, bytes);
    s->first = 1;
    return !fv__failed(c);
}

/* The first step may read several tokens a row; all others are decode steps, which replay.  A
 * replay does not come to `score`: it leaves its results where the step that was captured had them,
 * whatever was read since. */
static bool step_all(search *s)
{
    if (s->first > 1) return step_prompts(s);
    uint64_t kind = s->top ? FV_STEP_TOPK : FV_STEP_LOGITS;
    s->y = s->y_token = NULL;
    if (!fv__session_replay(s->ctx, s->session, s->token, kind, score, s)) return false;
    if (s->y) s->decoded[0] = *s->y;
    if (s->y_token) s->decoded[1] = *s->y_token;
    s->y = &s->decoded[0], s->y_token = &s->decoded[1];
    return true;
}

/* What a step has given, in host memory. */
static fv_status read_scores(search *s, int64_t rows, fv_err *e)
{
    fv_ctx *c = s->ctx;
    if (!s->top) return fv_read(c, s->y, s->scores, rows * s->V) ? fv__search_failed(s, e) : FV_OK;
    bool ok = !fv_read(c, s->y, s->scores, rows * s->top) &&
              !fv_read_i32(c, s->y_token, s->tokens, rows * s->top);
    return ok ? FV_OK : fv__search_failed(s, e);
}

fv_status fv__search_step(search *s, fv_err *e)
{
    return step_all(s) ? read_scores(s, s->live * s->K, e) : fv__search_failed(s, e);
}

fv_status fv__search_step_many(search *s, const int32_t *ids, int64_t T, fv_err *e)
{
    fv_ctx *c = s->ctx;
    fv_ctx_reset(c, 0);
    fv_tensor *y = fv__session_step_all(c, s->session, fv_ints(c, ids, FV_SHAPE(s->live, T)));
    if (y) score(c, s, y);
    return fv__failed(c) ? fv__search_failed(s, e) : read_scores(s, s->live * T, e);
}

/* Takes every live source on by one token, and asks beam search which are decided. */
static void advance(search *s)
{
    for (int64_t p = 0; p < s->live; p++) {
        if (s->K == 1)
            fv__search_append(s, p, fv__search_next(s, p, p));
        else
            fv__beam_step(s, p);
    }
    s->made++;
    for (int64_t p = 0; s->K > 1 && p < s->live; p++) {
        int64_t i = s->at[p];
        if (!s->over[i]) s->over[i] = fv__beam_decided(s, i);
    }
}

/* Order within the batch means nothing, so the last source fills each gap: one copy a source. */
void fv__search_retire(search *s)
{
    for (int64_t p = 0; p < s->live;) {
        if (!s->over[s->at[p]]) {
            p++;
            continue;
        }
        int64_t last = --s->live;
        s->at[p] = s->at[last];
        memmove(s->from + p * s->K, s->from + last * s->K, (size_t)s->K * sizeof *s->from);
        memmove(s->token + p * s->K, s->token + last * s->K, (size_t)s->K * sizeof *s->token);
    }
}

fv_status fv__search_loop(search *s, fv_err *e)
{
    fv_status st = FV_OK;
    while (!st && s->live) {
        st = fv__search_step(s, e);
        if (st) break;
        advance(s);
        fv__search_retire(s);
        if (s->live) fv_session_select(s->ctx, s->session, s->from, s->live * s->K);
        if (fv_ctx_status(s->ctx)) st = fv__search_failed(s, e);
    }
    return st;
}

/* ---- for generate.c ---- */

fv_status fv__search_prepare(search *s, const int32_t *const *source, bool encoder, fv_err *e)
{
    s->wide = (2 + s->o->n_ends) * s->K;
    s->depth = fv__speculate_depth(s->o);
    s->top = best_needed(s, encoder);
    s->bytes = set_layout(s, NULL);
    char *block = fv__alloc(s->env, s->bytes);
    if (!block) return fv_fail(e, FV_ENOMEM, "generate: out of memory for %zu bytes", s->bytes);
    set_layout(s, block);
    give_prompts(s, source, encoder);
    s->block = block;
    return FV_OK;
}

fv_status fv__search_prefill(search *s, bool last_alone, fv_err *e)
{
    s->first = last_alone ? 1 : first_step(s);
    bool ok = fv__search_read(s, s->ctx, s->session, s->known, s->first);
    return ok ? FV_OK : fv__search_failed(s, e);
}
