/* generate.c - generating for a batch of sources, as transformers' generate does.
 *
 * fv_generate makes a context and a session with a row for every beam of every source, has the
 * encoder read the sources where there is one, runs the search (search.c, or on a device that can
 * choose tokens by itself search_device.c and beam_device.c) and copies the best hypotheses out.
 * fv_session_generate does the same for one prompt in a session that lives on, as a chat's does. */

#include "fovea/author/gen.h"
#include "base/base.h"
#include "gen/search.h"
#include "model/session.h"
#include "fovea/author/family.h"

/* ---- sources and hypotheses ---- */

/* The encoder reads sources that are no ids, as `fill` puts them. */
static fv_status encode_filled(search *s, fv_err *e)
{
    fv_items in = {0};
    fv_ctx_reset(s->ctx, 0);
    s->fill(s->user, s->ctx, &in);
    fv_session_begin(s->ctx, s->session, &in);
    return fv_ctx_status(s->ctx) ? fv__search_failed(s, e) : FV_OK;
}

/* The encoder reads all sources in one batch, padded and masked; its output stays in the session.
 */
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

/* Copies the best hypotheses of each source into one block, which the caller frees. */
static fv_status copy_hypotheses(const search *s, fv_generated *out, int64_t each, fv_err *e)
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

/* Options that no search can follow, with a sentence each. */
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
    if ((!o->do_sample || o->num_beams > 1) && o->num_return_sequences > o->num_beams)
        return fv_fail(e, FV_EARG, "generate: %lld hypotheses asked of %lld beams",
                       (long long)o->num_return_sequences, (long long)o->num_beams);
    if (f->begin && o->start < 0)
        return fv_fail(e, FV_EARG, "generate: the id of the start token is not known");
    return FV_OK;
}

/* Prompt length and greatest length of each sequence; the model's context and the session's
 * capacity bound what max_length asks for. */
static fv_status measure(search *s, const fv_model *m, const int64_t *len, fv_err *e)
{
    const fv_family *f = fv_model_family(m);
    int64_t context = fv_model_context(m);
    if (s->session && (!context || s->session->cap < context)) context = s->session->cap;
    for (int64_t i = 0; i < s->n; i++) {
        s->prompt[i] = f->begin ? 1 + s->o->n_begin : len[i];
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

/* A source read by an encoder is not checked here: its vocabulary may be another, and the
 * embedding checks its ids. */
static fv_status check_all_ids(const search *s, const int32_t *const *source, const int64_t *len,
                               bool encoder, fv_err *e)
{
    const fv_gen_opt *o = s->o;
    fv_status st = check_ids((int32_t[]){o->start, o->eos, o->pad, o->forced_bos, o->forced_eos}, 5,
                             -1, s->V, e);
    if (!st) st = check_ids(o->ends, o->n_ends, 0, s->V, e);
    if (!st) st = check_ids(o->banned, o->n_banned, 0, s->V, e);
    if (!st) st = check_ids(o->begin_banned, o->n_begin_banned, 0, s->V, e);
    if (!st) st = check_ids(o->begin, o->n_begin, 0, s->V, e);
    if (!st) st = check_ids(o->biased, o->n_biased, -1, s->V, e);
    for (int64_t i = 0; i < s->n && !encoder && !st; i++)
        st = check_ids(source[i], len[i], 0, s->V, e);
    return st;
}

/* Tokens of a row of the session: with the drafts that go beyond the end and are dropped. */
static int64_t capacity(const search *s, const fv_model *m)
{
    int64_t context = fv_model_context(m), most = s->longest + fv__speculate_depth(s->o) - 1;
    return context && context < most ? context : most;
}

/* Everything behind the checks: session, prompts, search. */
static fv_status search_all(search *s, const fv_model *m, const int32_t *const *source,
                            const int64_t *len, fv_err *e)
{
    bool encoder = fv_model_family(m)->begin != NULL;
    fv_status st = measure(s, m, len, e);
    if (!st) st = check_all_ids(s, source, len, encoder, e);
    if (encoder && !s->fill) s->source = source, s->n_source = len;
    if (!st && !s->session)
        st = fv_session_new(&s->session, m, fv_ctx_device(s->ctx), s->n * s->K, capacity(s, m), e);
    if (st) return st;
    st = fv__search_prepare(s, source, encoder, e);
    if (!st && encoder) st = s->fill ? encode_filled(s, e) : encode(s, source, len, e);
    if (st) return st;
    /* a device that feeds tokens back by itself begins with one token a row */
    bool samples = fv__device_samples(s, encoder), searches = fv__device_searches(s, encoder);
    st = fv__search_prefill(s, samples || searches, e);
    if (st) return st;
    if (samples) return fv__sample_loop(s, e);
    if (s->depth > 1) return fv__speculate_loop(s, e);
    return searches ? fv__beams_loop(s, e) : fv__search_loop(s, e);
}

/* Searches for n sources, each `copies` times, with s->ctx and perhaps s->session given. */
static fv_status run_search(search *s, fv_generated *out, const fv_model *m,
                            const int32_t *const *source, const int64_t *len, int64_t n, fv_err *e)
{
    int64_t copies = s->copies = s->o->do_sample && s->K == 1 ? s->o->num_return_sequences : 1;
    s->n = s->live = n * copies;
    s->V = fv_model_family(m)->vocabulary(fv_model_self(m));
    size_t bytes = (size_t)s->n * (sizeof *source + 3 * sizeof *len);
    const int32_t **all = fv__alloc(s->env, bytes);
    if (!all) return fv_fail(e, FV_ENOMEM, "generate: out of memory");
    int64_t *lens = (int64_t *)(all + s->n);
    s->prompt = lens + s->n;
    s->end = s->prompt + s->n;
    for (int64_t i = 0; i < s->n; i++) {
        all[i] = source ? source[i / copies] : NULL;
        lens[i] = len ? len[i / copies] : 0;
    }
    fv_status st = search_all(s, m, all, lens, e);
    if (!st) st = copy_hypotheses(s, out, s->o->num_return_sequences / copies, e);
    if (!st) out->n = n, out->each = s->o->num_return_sequences;
    out->drafted = s->drafted, out->accepted = s->accepted;
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

fv_status fv_generate_from(fv_generated *out, fv_device *d, const fv_model *m, fv_source_fn *fill,
                           void *user, int64_t n, const fv_gen_opt *opt, fv_err *e)
{
    search s = {.o = opt, .env = fv_device_env(d), .K = opt->num_beams, .fill = fill, .user = user};
    *out = (fv_generated){0};
    fv_status st = check(m, opt, n, e);
    if (!st && !fv_model_family(m)->begin)
        st = fv_fail(e, FV_EARG, "generate: %s has no encoder", fv_model_head(m));
    if (!st) st = fv_ctx_new(&s.ctx, d, (fv_ctx_opt){.dtype = fv_model_dtype(m)}, e);
    if (!st) st = run_search(&s, out, m, NULL, NULL, n, e);
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
