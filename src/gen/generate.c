/* generate.c - beam search, greedy search and sampling, as transformers defines them.
 *
 * Beam search is in beam.c, or a device's (search_beams.c); greedy search and sampling are one
 * beam that takes its own continuation and ends with it, chosen here or (search_write.c) by the
 * device.
 *
 * A sequence begins with its prompt: the start token behind an encoder, or else the source
 * itself. Prompts may differ in length: all but the last token of each go through the model
 * together, padded, the padding is cut off again, and from the last token on all rows go in step,
 * each at its own place.  Prompts of one length need no such care: their end is the first step. */
#include <math.h>
#include <stdio.h>

#include "base/base.h"
#include "fovea/author/op.h"
#include "gen/search.h"
#include "model/session.h"

#define RUN 512 /* tokens of prompts that go through the model at a time */

/* Whether the rules can be followed with no more than the best of a row: they rule out a few
 * tokens, at most. */
static int64_t best_needed(const search *s, bool encoder)
{
    const fv_gen_opt *o = s->o;
    if (o->do_sample || o->repetition_penalty != 1 || o->no_repeat_ngram_size > 0 ||
        o->n_bad_words > 0)
        return 0;
    /* rows of different lengths have different rules */
    if (o->renormalize_logits && !encoder) return 0;
    int64_t k = (o->num_beams > 1 ? s->wide : 1) + o->n_banned + o->n_ends + 1;
    return k < s->V ? k : s->V;
}

/* ---- memory: one block, cut up ---- */

static void *cut(uintptr_t *at, size_t bytes)
{
    void *p = (void *)*at;
    *at += (bytes + 63) / 64 * 64;
    return p;
}

/* With base NULL it only counts. */
static size_t lay_out(search *s, void *base)
{
    uintptr_t at = (uintptr_t)base;
    int64_t rows = s->n * s->K, len = s->longest;
    size_t ids = (size_t)(rows * len) * sizeof(int32_t);
    s->run = cut(&at, (size_t)rows * sizeof *s->run);
    s->done = cut(&at, (size_t)rows * sizeof *s->done);
    s->next = cut(&at, (size_t)s->wide * sizeof *s->next);
    s->row = cut(&at, (size_t)s->wide * sizeof *s->row);
    s->over = cut(&at, (size_t)s->n * sizeof *s->over);
    s->at = cut(&at, (size_t)s->n * sizeof *s->at);
    s->scores = cut(&at, (size_t)(rows * (s->top ? s->top : s->V)) * sizeof *s->scores);
    s->tokens = cut(&at, (size_t)(rows * s->top) * sizeof *s->tokens);
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

/* Every beam begins with its prompt. */
static void give_prompts(search *s, const int32_t *const *source, bool encoder)
{
    for (int64_t i = 0; i < s->n * s->K; i++) {
        int64_t n = s->prompt[i / s->K];
        const int32_t *ids = encoder ? &s->o->start : source[i / s->K];
        memcpy(s->run[i].ids, ids, (size_t)n * sizeof *ids);
        memcpy(s->done[i].ids, ids, (size_t)n * sizeof *ids);
        s->run[i].n = s->done[i].n = n;
        s->token[i] = ids[n - 1];
    }
}

/* ---- one step of one source ---- */

bool fv__search_ends(const search *s, int64_t i, int32_t token)
{
    return fv__token_is_eos(token, s->o) || s->prompt[i] + s->made + 1 >= s->end[i];
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

/* The one token a row goes on with, by the rules and perhaps drawn; its score is the model's own
 * log-probability. */
static fv_candidate sample_step(search *s, const beam *b, int64_t row, int64_t i)
{
    float *score = s->scores + row * s->V;
    double all = s->top ? 0 : fv__log_sum_exp(score, s->V);
    fv_candidate best = {0};
    if (s->o->do_sample) {
        uint32_t w[4];
        fv_philox(w, (uint64_t)s->o->seed, (uint64_t)fv__search_number(s, i), (uint64_t)s->made, 0);
        fv__process_logits(score, s->V, fv__prefix(s, b, i), s->o, s->scratch);
        best.token = fv__sample_token(score, s->V, s->o, ((double)w[0] + 0.5) * 0x1p-32,
                                      s->candidates);
    } else {
        fv__search_best(s, fv__prefix(s, b, i), row, 1);
        best = s->candidates[0];
    }
    if (!s->top)
        best.score = isfinite(score[best.token]) ? (float)((double)score[best.token] - all) : 0;
    return best;
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
    if (stop || fv__search_ends(s, i, best.token)) b->finished = s->over[i] = true;
}

/* ---- the whole ---- */

fv_status fv__search_failed(const search *s, fv_err *e)
{
    const fv_err *why = fv_ctx_err(s->ctx);
    return fv_fail(e, why->code, "%s", why->text);
}

/* How much of the prompts the first step can read: a run, where all are equally long. */
static int64_t first_step(const search *s)
{
    for (int64_t i = 1; i < s->n; i++)
        if (s->prompt[i] != s->prompt[0]) return 1;
    return (s->prompt[0] - s->known - 1) % RUN + 1;
}

/* All of each prompt but what the first step reads, in runs that bound the memory of a step. */
static fv_status read_prompts(search *s, fv_err *e)
{
    int64_t most = 0, rows = s->n * s->K;
    for (int64_t i = 0; i < s->n; i++)
        most = s->prompt[i] - s->first > most ? s->prompt[i] - s->first : most;
    size_t bytes = (size_t)(rows * (most < RUN ? most : RUN)) * sizeof(int32_t);
    int32_t *ids = fv__alloc(s->env, bytes);
    if (bytes && !ids) return fv_fail(e, FV_ENOMEM, "generate: out of memory for %zu bytes", bytes);
    fv_status st = FV_OK;
    for (int64_t at = s->known; at < most && !st; at += RUN) {
        int64_t T = most - at < RUN ? most - at : RUN;
        for (int64_t i = 0; i < rows * T; i++) {
            const beam *b = &s->run[i / T];
            ids[i] = at + i % T < b->n - 1 ? b->ids[at + i % T] : fv__search_pad(s);
        }
        fv_ctx_reset(s->ctx, 0);
        fv_session_step(s->ctx, s->session, fv_ints(s->ctx, ids, FV_SHAPE(rows, T)));
        if (fv_ctx_status(s->ctx)) st = fv__search_failed(s, e);
        for (int64_t i = 0; i < rows; i++) fv_session_truncate(s->session, i, s->run[i].n - 1);
    }
    fv__free(s->env, ids, bytes);
    return st;
}

/* What may not be chosen in this step is taken out before the softmax, which comes to the same as
 * doing it once more. */
static fv_tensor *renormalised(search *s, fv_tensor *y)
{
    uint8_t *mask = (uint8_t *)s->candidates; /* V of these are less than V picks */
    /* behind an encoder all are equally long */
    fv_prefix f = fv__prefix(s, &s->run[s->at[0] * s->K], s->at[0]);
    for (int64_t v = 0; v < s->V; v++) mask[v] = !fv__token_is_banned(s->o, f, (int32_t)v);
    return fv_masked_fill(s->ctx, y, fv_bytes(s->ctx, mask, FV_SHAPE(1, s->V)), -INFINITY);
}

/* Where the best are enough, they and their log-probabilities.  Else all: log-probabilities for
 * beams, and for one beam logits as they are, since that is what its rules work on. */
static void score(fv_ctx *c, void *user, fv_tensor *logits)
{
    search *s = user;
    fv_tensor *y = logits;
    if (s->top && s->o->renormalize_logits) y = renormalised(s, y);
    if (s->top || s->K > 1) y = fv_log_softmax(c, y);
    s->y = s->top ? fv_topk(c, y, s->top, &s->y_token) : y;
}

/* The end of every prompt at once. */
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

static bool step_all(search *s)
{
    if (s->first > 1) return step_prompts(s);
    return fv__session_replay(s->ctx, s->session, s->token, s->top ? FV_STEP_TOPK : FV_STEP_LOGITS,
                              score, s);
}

static fv_status step_scores(search *s, fv_err *e)
{
    fv_ctx *c = s->ctx;
    int64_t rows = s->live * s->K;
    if (!step_all(s)) return fv__search_failed(s, e);
    if (!s->top) return fv_read(c, s->y, s->scores, rows * s->V) ? fv__search_failed(s, e) : FV_OK;
    bool ok = !fv_read(c, s->y, s->scores, rows * s->top) &&
              !fv_read_i32(c, s->y_token, s->tokens, rows * s->top);
    return ok ? FV_OK : fv__search_failed(s, e);
}

static void advance(search *s)
{
    for (int64_t p = 0; p < s->live; p++) {
        if (s->K == 1)
            fv__search_append(s, p, sample_step(s, &s->run[s->at[p]], p, s->at[p]));
        else
            fv__beam_step(s, p);
    }
    s->made++;
    for (int64_t p = 0; s->K > 1 && p < s->live; p++) {
        int64_t i = s->at[p];
        if (!s->over[i]) s->over[i] = fv__beam_decided(s, i);
    }
}

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

static fv_status loop(search *s, fv_err *e)
{
    fv_status st = FV_OK;
    while (!st && s->live) {
        st = step_scores(s, e);
        if (st) break;
        advance(s);
        fv__search_retire(s);
        if (s->live) fv_session_select(s->ctx, s->session, s->from, s->live * s->K);
        if (fv_ctx_status(s->ctx)) st = fv__search_failed(s, e);
    }
    return st;
}

/* ---- in and out ---- */

static fv_status encode(search *s, const int32_t *const *source, const int64_t *len, fv_err *e)
{
    int64_t most = 0;
    for (int64_t i = 0; i < s->n; i++) most = len[i] > most ? len[i] : most;
    if (most < 1) return fv_fail(e, FV_EARG, "generate: an empty source");
    size_t bytes = (size_t)(s->n * most) * (sizeof(int32_t) + 1);
    int32_t *ids = fv__alloc(s->env, bytes);
    if (!ids) return fv_fail(e, FV_ENOMEM, "generate: out of memory");
    uint8_t *mask = (uint8_t *)(ids + s->n * most);
    for (int64_t i = 0; i < s->n; i++)
        for (int64_t j = 0; j < most; j++) {
            ids[i * most + j] = j < len[i] ? source[i][j] : fv__search_pad(s);
            mask[i * most + j] = j < len[i];
        }
    fv_items in = {0};
    fv_ctx_reset(s->ctx, 0);
    fv_items_put(&in, "input_ids", fv_ints(s->ctx, ids, FV_SHAPE(s->n, most)));
    fv_items_put(&in, "attention_mask", fv_bytes(s->ctx, mask, FV_SHAPE(s->n, most)));
    fv__free(s->env, ids, bytes);
    fv_session_begin(s->ctx, s->session, &in);
    return fv_ctx_status(s->ctx) ? fv__search_failed(s, e) : FV_OK;
}

/* Copies the best of each source into one block of the caller's. */
static fv_status write_hypotheses(const search *s, fv_generated *out, int64_t each, fv_err *e)
{
    int64_t len = s->longest;
    size_t heads = (size_t)(s->n * each) * sizeof(fv_hyp),
           bytes = heads + (size_t)(s->n * each * len) * sizeof(int32_t);
    fv_hyp *h = fv__alloc(s->env, bytes);
    if (!h) return fv_fail(e, FV_ENOMEM, "generate: out of memory");
    int32_t *ids = (int32_t *)(h + s->n * each);
    for (int64_t i = 0; i < s->n; i++)
        for (int64_t k = 0; k < each; k++, ids += len) {
            const beam *b = &s->done[i * s->K + k];
            if (!b->finished) b = &s->run[i * s->K + k]; /* none ended: what there is */
            h[i * each + k] =
                (fv_hyp){.ids = ids, .n = b->n - s->prompt[i], .score = (double)b->score};
            memcpy(ids, b->ids + s->prompt[i], (size_t)(b->n - s->prompt[i]) * sizeof *ids);
        }
    *out = (fv_generated){.hyp = h, .n = s->n, .each = each, .env = s->env, .bytes = bytes};
    return FV_OK;
}

void fv_generated_free(fv_generated *g)
{
    fv__free(g->env, g->hyp, g->bytes);
    *g = (fv_generated){0};
}

static fv_status check(const fv_model *m, const fv_gen_opt *o, int64_t n, fv_err *e)
{
    const fv_family *f = fv_model_family(m);
    if (!f->step || f->vocabulary(fv_model_self(m)) < 1)
        return fv_fail(e, FV_EMISSING, "generate: %s does not write text", fv_model_head(m));
    if (n < 1 || o->num_beams < 1 || o->num_beams > 256 || o->num_return_sequences < 1 ||
        o->max_new_tokens < 0)
        return fv_fail(e, FV_EARG,
                       "generate: %lld sources, %lld beams, %lld hypotheses, %lld new tokens",
                       (long long)n, (long long)o->num_beams, (long long)o->num_return_sequences,
                       (long long)o->max_new_tokens);
    if (!o->do_sample && o->num_return_sequences > o->num_beams)
        return fv_fail(e, FV_EARG, "generate: %lld hypotheses asked of %lld beams",
                       (long long)o->num_return_sequences, (long long)o->num_beams);
    if (o->do_sample && o->num_beams > 1)
        return fv_fail(e, FV_EARG, "generate: sampling takes one beam, not %lld",
                       (long long)o->num_beams);
    if (f->begin && o->start < 0)
        return fv_fail(e, FV_EARG, "generate: the id of the start token is not known");
    return FV_OK;
}

/* How long each sequence is and may become; what the model has places for limits what was not
 * asked for. */
static fv_status measure(search *s, const fv_model *m, const int64_t *len, fv_err *e)
{
    const fv_family *f = fv_model_family(m);
    int64_t context = f->context ? f->context(fv_model_self(m)) : 0;
    if (s->session && (!context || s->session->cap < context)) context = s->session->cap;
    for (int64_t i = 0; i < s->n; i++) {
        s->prompt[i] = f->begin ? 1 : len[i];
        s->end[i] = s->o->max_new_tokens ? s->prompt[i] + s->o->max_new_tokens : s->o->max_length;
        if (context && s->end[i] > context) s->end[i] = context;
        if (s->prompt[i] < 1) return fv_fail(e, FV_EARG, "generate: an empty prompt");
        if (s->prompt[i] >= s->end[i])
            return fv_fail(e, FV_EARG,
                           "generate: the prompt has %lld tokens, and %lld is all there may be",
                           (long long)s->prompt[i], (long long)s->end[i]);
        if (s->end[i] > s->longest) s->longest = s->end[i];
    }
    return FV_OK;
}

static fv_status check_ids(const int32_t *ids, int64_t n, int32_t least, int64_t V, fv_err *e)
{
    for (int64_t i = 0; i < n; i++)
        if (ids[i] < least || ids[i] >= V)
            return fv_fail(e, FV_EARG, "generate: id %d is outside the vocabulary of %lld", ids[i],
                           (long long)V);
    return FV_OK;
}

/* An encoder's vocabulary may be another, and its table looks for itself. */
static fv_status check_all_ids(const search *s, const int32_t *const *source, const int64_t *len,
                               bool encoder, fv_err *e)
{
    const fv_gen_opt *o = s->o;
    fv_status st = check_ids((int32_t[]){o->start, o->eos, o->pad, o->forced_bos, o->forced_eos}, 5,
                             -1, s->V, e);
    if (!st) st = check_ids(o->ends, o->n_ends, 0, s->V, e);
    if (!st) st = check_ids(o->banned, o->n_banned, 0, s->V, e);
    for (int64_t i = 0; i < s->n && !encoder && !st; i++)
        st = check_ids(source[i], len[i], 0, s->V, e);
    return st;
}

static fv_status search_all(search *s, const fv_model *m, const int32_t *const *source,
                            const int64_t *len, fv_err *e)
{
    bool encoder = fv_model_family(m)->begin != NULL;
    fv_status st = measure(s, m, len, e);
    if (!st) st = check_all_ids(s, source, len, encoder, e);
    if (!st && !s->session)
        st = fv_session_new(&s->session, m, fv_ctx_device(s->ctx), s->n * s->K, s->longest, e);
    if (st) return st;
    s->wide = (2 + s->o->n_ends) * s->K;
    s->top = best_needed(s, encoder);
    s->bytes = lay_out(s, NULL);
    char *block = fv__alloc(s->env, s->bytes);
    if (!block) return fv_fail(e, FV_ENOMEM, "generate: out of memory for %zu bytes", s->bytes);
    lay_out(s, block);
    give_prompts(s, source, encoder);
    s->block = block;
    if (encoder) st = encode(s, source, len, e);
    bool chooses = fv__device_samples(s, encoder), searches = fv__device_searches(s, encoder);
    s->first = chooses || searches ? 1 : first_step(s);
    if (!st) st = read_prompts(s, e);
    if (st) return st;
    return chooses ? fv__sample_loop(s, e) : searches ? fv__beams_loop(s, e) : loop(s, e);
}

/* Searches for n sources, each `copies` times, with s->ctx and perhaps s->session given. */
static fv_status run_search(search *s, fv_generated *out, const fv_model *m,
                            const int32_t *const *source, const int64_t *len, int64_t n, fv_err *e)
{
    int64_t copies = s->copies = s->o->do_sample ? s->o->num_return_sequences : 1;
    s->n = s->live = n * copies;
    s->V = fv_model_family(m)->vocabulary(fv_model_self(m));
    size_t bytes = (size_t)s->n * (sizeof *source + 3 * sizeof *len);
    const int32_t **all = fv__alloc(s->env, bytes);
    if (!all) return fv_fail(e, FV_ENOMEM, "generate: out of memory");
    int64_t *lens = (int64_t *)(all + s->n);
    s->prompt = lens + s->n;
    s->end = s->prompt + s->n;
    for (int64_t i = 0; i < s->n; i++) {
        all[i] = source[i / copies];
        lens[i] = len[i / copies];
    }
    fv_status st = search_all(s, m, all, lens, e);
    if (!st) st = write_hypotheses(s, out, s->o->num_return_sequences / copies, e);
    if (!st) out->n = n, out->each = s->o->num_return_sequences;
    fv__free(s->env, s->block, s->bytes);
    fv__free(s->env, all, bytes);
    return st;
}

fv_status fv_generate(fv_generated *out, fv_device *d, const fv_model *m,
                      const int32_t *const *source, const int64_t *len, int64_t n,
                      const fv_gen_opt *opt, fv_err *e)
{
    search s = {.o = opt, .env = fv_device_env(d), .K = opt->num_beams};
    *out = (fv_generated){0};
    fv_status st = check(m, opt, n, e);
    if (!st) st = fv_ctx_new(&s.ctx, d, (fv_ctx_opt){.dtype = fv_model_dtype(m)}, e);
    if (!st) st = run_search(&s, out, m, source, len, n, e);
    fv_session_free(s.session);
    fv_ctx_free(s.ctx);
    return st;
}

fv_status fv_session_generate(fv_generated *out, fv_ctx *c, fv_session *session,
                              const int32_t *prompt, int64_t n, int64_t known,
                              const fv_gen_opt *opt, fv_err *e)
{
    const fv_model *m = session->model;
    search s = {.o = opt,
                .env = fv_device_env(session->dev),
                .K = opt->num_beams,
                .ctx = c,
                .session = session,
                .known = known < n ? known : n - 1};
    *out = (fv_generated){0};
    fv_status st = check(m, opt, 1, e);
    if (st) return st;
    if (fv_model_family(m)->begin)
        return fv_fail(e, FV_EARG, "generate: a family with an encoder continues no prompt");
    if (opt->num_beams > 1 || opt->num_return_sequences > 1 || session->rows != 1)
        return fv_fail(e, FV_EARG,
                       "generate: a session of one row takes one beam and one sequence");
    if (known < 0 || known > session->len[0])
        return fv_fail(e, FV_EARG, "generate: %lld tokens are known of %d in the session",
                       (long long)known, session->len[0]);
    fv_session_truncate(session, 0, s.known);
    st = run_search(&s, out, m, &prompt, &n, 1, e);
    /* a device that samples by itself may have gone on behind the end */
    if (!st) fv_session_truncate(session, 0, n + out->hyp[0].n - 1);
    return st;
}
