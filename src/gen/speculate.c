/* speculate.c - speculative decoding: tokens are drafted cheaply and verified several in one step.
 *
 * A decode step of few rows is bound by reading the weights, so a step that reads k + 1 tokens a
 * row costs little more than one that reads one:
 *
 *    draft     d_1 .. d_k                 from the text so far, or by an assistant model
 *    step      x_0 d_1 .. d_k             gives the logits behind each of them
 *    verify    x_1 is chosen behind x_0; while x_j = d_j, the logits behind d_j are those of the
 *              real text, and x_{j+1} is chosen from them
 *
 * Each x_j is chosen as it is without drafts: logits have the same bits however a text is cut into
 * steps, and a token's random number is a function of seed, source and position.  So the text is
 * the same one, sampled or not.  Rejection sampling (Leviathan et al. 2023) accepts a few more
 * drafts, but only keeps the distribution, and a seed would no longer name a text.  An assistant
 * draws with the random numbers of the model it drafts for, so that two similar distributions
 * mostly give the same token.
 *
 * Keys and values of rejected drafts are truncated from the caches.  A rotation whose frequencies
 * follow the length of a text (dynamic RoPE) would make a step depend on how many tokens it reads:
 * there nothing is drafted. */
#include "base/base.h"
#include "core/core.h"
#include "fovea/author/family.h"
#include "fovea/author/session.h"
#include "gen/search.h"
#include "model/part.h"
#include "model/session.h"

/* The assistant: a session of its own that follows the rows of the search. */
typedef struct assistant {
    fv_ctx *ctx;
    fv_session *session;
    fv_gen_opt o; /* the search's, without callbacks */
    float *logits;
    size_t bytes; /* of the logits */
} assistant;

/* What one step verifies, an entry for each row of the batch. */
typedef struct drafts {
    assistant a;
    int64_t *n, *most; /* drafts there are, and may be */
    int64_t *len;      /* tokens of `text` */
    int32_t *ids;      /* (live,depth): the last token of each row and its drafts */
    int32_t *text;     /* (live,longest): rows with their drafts, as the assistant reads them */
    size_t bytes;
} drafts;

int64_t fv__speculate_depth(const fv_gen_opt *o)
{
    if (o->num_beams > 1) return 1;
    return 1 + (o->assistant ? o->num_assistant_tokens : o->prompt_lookup_num_tokens);
}

/* ---- drafts from the text so far ---- */

/* Where in text the n tokens of `tail` stand, the last such place that something follows; the
 * index behind them, or 0.  A text that repeats itself mostly repeats what came last. */
static int64_t find_behind(const int32_t *text, int64_t len, const int32_t *tail, int64_t n)
{
    for (int64_t at = len - n - 1; at >= 0; at--)
        if (!memcmp(text + at, tail, (size_t)n * sizeof *tail)) return at + n;
    return 0;
}

/* Looks for the last tokens of the row, as many as max_matching_ngram_size and then fewer, in the
 * row and in what an encoder has read (a summary copies from it); returns how many it drafts. */
static int64_t look_up(const search *s, int64_t i, int32_t *draft, int64_t most)
{
    const beam *b = &s->run[i];
    const int32_t *texts[] = {b->ids, s->source ? s->source[i] : NULL};
    int64_t lens[] = {b->n, s->source ? s->n_source[i] : 0};
    for (int64_t size = s->o->max_matching_ngram_size; size > 0; size--)
        for (int k = 0; k < 2 && size < b->n; k++) {
            int64_t at = find_behind(texts[k], lens[k], b->ids + b->n - size, size), n = 0;
            if (!at) continue;
            /* an encoder's vocabulary may be another */
            for (; n < most && at + n < lens[k] && texts[k][at + n] < s->V; n++)
                draft[n] = texts[k][at + n];
            if (n) return n;
        }
    return 0;
}

/* ---- drafts by an assistant ---- */

static fv_status check_assistant(const search *s, fv_err *e)
{
    const fv_model *m = s->o->assistant;
    const fv_family *f = fv_model_family(m);
    int64_t V = f->step ? f->vocabulary(fv_model_self(m)) : 0, context = fv_model_context(m);
    if (f->begin || V != s->V)
        return fv_fail(e, FV_EARG,
                       "generate: the assistant is a %s of %lld tokens, expected a model without "
                       "an encoder that writes the same %lld tokens",
                       fv_model_head(m), (long long)V, (long long)s->V);
    if (context && context < s->longest)
        return fv_fail(e, FV_EARG,
                       "generate: the assistant's context is %lld tokens, and a text may come to "
                       "%lld",
                       (long long)context, (long long)s->longest);
    return FV_OK;
}

static fv_status assistant_failed(const assistant *a, fv_err *e)
{
    return fv_fail(e, fv_ctx_err(a->ctx)->code, "the assistant: %s", fv_ctx_err(a->ctx)->text);
}

/* With all prompts read, but for the last token of each. */
static fv_status open_assistant(assistant *a, const search *s, fv_err *e)
{
    const fv_model *m = s->o->assistant;
    fv_device *d = fv_ctx_device(s->ctx);
    int64_t context = fv_model_context(m), cap = s->longest + s->depth;
    a->o = *s->o;
    a->o.logits = NULL; /* a constraint follows the real text alone */
    fv_status st = check_assistant(s, e);
    if (!st) st = fv_ctx_new(&a->ctx, d, (fv_ctx_opt){.dtype = fv_model_dtype(m)}, e);
    if (!st)
        st = fv_session_new(&a->session, m, d, s->n, context && context < cap ? context : cap, e);
    if (!st && !fv__search_read(s, a->ctx, a->session, 0, 1)) st = assistant_failed(a, e);
    return st;
}

static void close_assistant(assistant *a, const fv_env *env)
{
    fv__free(env, a->logits, a->bytes);
    fv_session_free(a->session);
    fv_ctx_free(a->ctx);
}

/* Reads what the assistant has not read of the first len[p] tokens of each row of w->text, and
 * leaves the logits behind them in a.logits (live,V).  Rows that lack fewer tokens than others are
 * padded, and truncated afterwards; of one that lacks none the logits are not touched. */
static fv_status catch_up(const search *s, drafts *w, fv_err *e)
{
    assistant *a = &w->a;
    int64_t T = 1;
    void *logits = a->logits;
    for (int64_t p = 0; p < s->live; p++) {
        int64_t lacks = w->len[p] - fv_session_len(a->session, p);
        T = lacks > T ? lacks : T;
    }
    fv_ctx_reset(a->ctx, 0);
    int32_t *ids = fv__step_memory(a->ctx, (size_t)(s->live * T) * sizeof *ids);
    if (!fv__grow(s->env, &logits, &a->bytes, (size_t)(s->live * T * s->V) * sizeof(float)))
        return fv_fail(e, FV_ENOMEM, "generate: out of memory");
    a->logits = logits;
    for (int64_t p = 0; ids && p < s->live; p++)
        for (int64_t t = 0, at = fv_session_len(a->session, p); t < T; t++, at++)
            ids[p * T + t] = at < w->len[p] ? w->text[p * s->longest + at] : fv__search_pad(s);
    fv_tensor *y = ids ? fv__session_step_all(a->ctx, a->session,
                                              fv_ints(a->ctx, ids, FV_SHAPE(s->live, T)))
                       : NULL;
    if (!y || fv_read(a->ctx, y, a->logits, s->live * T * s->V)) return assistant_failed(a, e);
    for (int64_t p = 0; p < s->live; p++) {
        int64_t padding = fv_session_len(a->session, p) - w->len[p];
        if (padding < T)
            memmove(a->logits + p * s->V, a->logits + (p * T + T - 1 - padding) * s->V,
                    (size_t)s->V * sizeof(float));
        fv_session_truncate(a->session, p, w->len[p]);
    }
    return FV_OK;
}

/* Whether rows with their drafts and padding fit into the assistant's context. */
static bool assistant_fits(const search *s, const drafts *w)
{
    for (int64_t p = 0; p < s->live; p++)
        if (s->run[s->at[p]].n + s->depth > w->a.session->cap - w->a.session->virtual) return false;
    return true;
}

/* One token a row and step, chosen by the rules and the random numbers of the search. */
static fv_status ask_assistant(search *s, drafts *w, fv_err *e)
{
    fv_status st = FV_OK;
    if (!assistant_fits(s, w)) return FV_OK;
    for (int64_t p = 0; p < s->live; p++) {
        const beam *b = &s->run[s->at[p]];
        memcpy(w->text + p * s->longest, b->ids, (size_t)b->n * sizeof *b->ids);
        w->len[p] = b->n;
    }
    for (int64_t k = 0, going = 1; going && k < s->depth - 1; k++) {
        st = catch_up(s, w, e);
        going = 0;
        for (int64_t p = 0; !st && p < s->live; p++) {
            int64_t i = s->at[p];
            int32_t *text = w->text + p * s->longest;
            fv_prefix f = {.ids = text, .n = w->len[p], .prompt = s->prompt[i], .most = s->end[i]};
            bool ended = k && fv__token_is_eos(text[f.n - 1], s->o);
            if (w->n[p] < k || k >= w->most[p] || ended) continue;
            int32_t token = fv__choose_token(w->a.logits + p * s->V, s->V, f, &w->a.o,
                                             fv__search_number(s, i), s->scratch, s->candidates);
            w->ids[p * s->depth + ++w->n[p]] = text[w->len[p]++] = token;
            going++;
        }
    }
    return st;
}

/* ---- the loop ---- */

/* Drafts for every row: as many as the session has room for, and none that would come behind the
 * last token a text may have. */
static fv_status draft(search *s, drafts *w, fv_err *e)
{
    int64_t room = s->depth - 1;
    for (int64_t p = 0; p < s->live; p++) {
        int64_t left = s->session->cap - s->session->virtual - s->run[s->at[p]].n;
        room = left < room ? left : room;
    }
    for (int64_t p = 0; p < s->live; p++) {
        int64_t i = s->at[p], left = s->end[i] - s->run[i].n - 1;
        w->most[p] = left < room ? left : room;
        w->ids[p * s->depth] = s->token[p];
        w->n[p] = 0;
        if (!s->o->assistant) w->n[p] = look_up(s, i, w->ids + p * s->depth + 1, w->most[p]);
    }
    return s->o->assistant ? ask_assistant(s, w, e) : FV_OK;
}

/* One step over the last token of each row and its drafts; rows with fewer are padded. */
static fv_status step(search *s, drafts *w, int64_t *T, fv_err *e)
{
    *T = 1;
    for (int64_t p = 0; p < s->live; p++) *T = 1 + w->n[p] > *T ? 1 + w->n[p] : *T;
    if (*T == 1) return fv__search_step(s, e); /* a plain decode step, which is replayed */
    for (int64_t p = 0; p < s->live; p++)      /* from (live,depth) to (live,T) */
        for (int64_t t = 0; t < *T; t++)
            w->ids[p * *T + t] = t <= w->n[p] ? w->ids[p * s->depth + t] : fv__search_pad(s);
    return fv__search_step_many(s, w->ids, *T, e);
}

/* Appends to the row at index p every token that its drafts have right, and one more. */
static void verify(search *s, drafts *w, int64_t p, int64_t T)
{
    int64_t i = s->at[p], before = s->run[i].n, right = 0;
    for (int64_t t = 0;; t++) {
        fv_candidate next = fv__search_next(s, p, p * T + t);
        fv__search_append(s, p, next);
        if (s->over[i] || t >= w->n[p] || w->ids[p * T + t + 1] != next.token) break;
        right++;
    }
    s->drafted += w->n[p];
    s->accepted += right;
    fv_session_truncate(s->session, p, s->run[i].n - 1);
    if (s->o->assistant) fv_session_truncate(w->a.session, p, before + right);
}

static fv_status loop(search *s, drafts *w, fv_err *e)
{
    fv_status st = FV_OK;
    /* the end of the prompts, several tokens a row perhaps */
    for (bool first = true; !st && s->live; first = false) {
        int64_t T = 1;
        memset(w->n, 0, (size_t)s->live * sizeof *w->n);
        if (!first && !s->session->spans) st = draft(s, w, e);
        if (!st) st = step(s, w, &T, e);
        for (int64_t p = 0; !st && p < s->live; p++) verify(s, w, p, T);
        fv__search_retire(s);
        if (!st && s->live) fv_session_select(s->ctx, s->session, s->from, s->live);
        if (!st && s->live && s->o->assistant)
            fv_session_select(w->a.ctx, w->a.session, s->from, s->live);
        if (!st && fv_ctx_status(s->ctx)) st = fv__search_failed(s, e);
    }
    return st;
}

fv_status fv__speculate_loop(search *s, fv_err *e)
{
    size_t rows = (size_t)s->n, ids = rows * (size_t)s->depth,
           text = s->o->assistant ? rows * (size_t)s->longest : 0;
    drafts w = {.bytes = 3 * rows * sizeof(int64_t) + (ids + text) * sizeof(int32_t)};
    w.n = fv__alloc(s->env, w.bytes);
    if (!w.n) return fv_fail(e, FV_ENOMEM, "generate: out of memory");
    w.most = w.n + rows;
    w.len = w.most + rows;
    w.ids = (int32_t *)(w.len + rows);
    w.text = w.ids + ids;
    fv_status st = s->o->assistant ? open_assistant(&w.a, s, e) : FV_OK;
    if (!st) st = loop(s, &w, e);
    close_assistant(&w.a, s->env);
    fv__free(s->env, w.n, w.bytes);
    return st;
}
