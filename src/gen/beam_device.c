/* beam_device.c - beam search on a device that runs it by itself.
 *
 * The rules are beam.c's.  The device keeps, per source, scores of the running beams, the
 * finished hypotheses, and a log of each step's tokens and parents.  The host reads which sources
 * are over every few steps, and at the end the log, from which it traces the sequences back:
 * moving token histories along with the beams would copy far more.
 *
 * Sources that are over keep decoding until half of the batch is; a small batch is never
 * compacted, since a step of few rows takes as long as one of fewer, and a changed batch must be
 * captured anew. */
#include <math.h>
#include <stdlib.h>

#include "base/base.h"
#include "gen/search.h"
#include "model/session.h"
#include "fovea/author/session.h"

enum { RUN_MAX = 8, FEW_ROWS = 64, MAX_ROWS = 65535 };

typedef struct beam_search {
    search *s;
    fv_beams b; /* device */
    fv_beams h; /* its state in host memory */
    void *host;
    /* bytes: of the host's block, of the state, and of each half of the log */
    size_t host_bytes, state, log;
    fv_cache_rows *cache;   /* device */
    uint64_t known_version; /* version of the caches that it knows, plus 1; 0: of none */
} beam_search;

bool fv__device_searches(const search *s, bool encoder)
{
    const fv_gen_opt *o = s->o;
    const fv_device *d = s->session->dev;
    fv_dtype t = s->ctx->dtype;
    bool rules = o->do_sample || fv__looks_back(o) || o->n_begin_banned > 0;
    bool can = (unsigned)t < FV_FLOATS && d->k[t] && d->k[t]->beams && s->K <= FV_BEAMS_MAX &&
               s->wide <= FV_BEAMS_MAX_CANDIDATES;
    return s->K > 1 && s->n * s->K <= MAX_ROWS && can && !rules && (encoder || o->forced_bos < 0);
}

/* ---- memory ---- */

static size_t cut(size_t *at, size_t bytes)
{
    size_t here = *at;
    *at += (bytes + 63) / 64 * 64;
    return here;
}

/* Points the arrays of per-source state into a block, in device or host memory alike. */
static void point(fv_beams *b, void *state)
{
    int64_t n = b->all, K = b->K;
    b->done = state;
    b->score = (float *)(b->done + n * K);
    b->over = (int32_t *)(b->score + n * K);
    b->made = b->over + n;
    int32_t *min_new = b->made + n, *max_new = min_new + n;
    b->min_new = min_new;
    b->max_new = max_new;
    b->common = max_new + n;
}

static size_t state_bytes(int64_t n, int64_t K)
{
    return (size_t)(n * K) * (sizeof(fv_ended) + sizeof(float)) +
           (size_t)(n * (4 + K * K)) * sizeof(int32_t);
}

/* The state before the first step, in host memory, and length^length_penalty by length. */
static void begin_state(beam_search *u, double *penalty)
{
    const search *s = u->s;
    fv_beams *h = &u->h;
    int32_t *min_new = h->made + s->n, *max_new = min_new + s->n;
    memset(u->host, 0, u->state);
    for (int64_t j = 0; j < s->n * s->K; j++) {
        h->done[j] = (fv_ended){.score = FAR, .made = -1};
        h->score[j] = s->run[j].score;
    }
    for (int64_t i = 0; i < s->n; i++) {
        min_new[i] = fv__search_min_new(s, i);
        max_new[i] = fv__search_max_new(s, i);
    }
    for (int64_t t = 0; t < s->longest + 2; t++)
        penalty[t] = pow((double)t, (double)s->o->length_penalty);
}

/* Lays the block out, uploads the state before the first step, and describes it to the kernel. */
static bool begin(beam_search *u, const uint8_t *token_flags)
{
    search *s = u->s;
    fv_ctx *c = s->ctx;
    const fv_gen_opt *o = s->o;
    size_t at = 0, lengths = (size_t)(s->longest + 2) * sizeof(double);
    u->state = (state_bytes(s->n, s->K) + 63) / 64 * 64;
    u->log = (size_t)(s->longest * s->n * s->K) * sizeof(int32_t);
    size_t state = cut(&at, u->state), log = cut(&at, 2 * u->log), penalty = cut(&at, lengths);
    size_t source = cut(&at, (size_t)s->n * sizeof(int32_t)),
           cache = cut(&at, 2 * MAX_SLOTS * sizeof(fv_cache_rows));
    size_t kind = cut(&at, (size_t)s->V);
    u->host_bytes = u->state + lengths;
    u->host = fv__alloc(s->env, u->host_bytes);
    if (!u->host) return fv_raise(c, FV_ENOMEM, "generate: out of memory") != NULL;
    if (!fv__session_reserve(c, s->session, &s->session->sampler_block, FV_U8,
                             FV_SHAPE((int64_t)at), 0))
        return false;
    char *block = s->session->sampler_block.t.data;
    fv_beams b = {.K = s->K,
                  .V = s->V,
                  .all = s->n,
                  .wide = s->wide,
                  .token_flags = (uint8_t *)block + kind,
                  .forced_first = o->forced_bos,
                  .forced_last = o->forced_eos,
                  .pad = fv__search_pad(s),
                  .renormalize = o->renormalize_logits,
                  .early = o->early_stopping == FV_EARLY_TRUE,
                  .hopeful = o->early_stopping == FV_EARLY_NEVER && o->length_penalty > 0,
                  .penalty = (double *)(block + penalty),
                  .source = (int32_t *)(block + source),
                  .tokens = (int32_t *)(block + log),
                  .parents = (int32_t *)(block + log + u->log),
                  .n_positions = 3}; /* pos, lens and shifted lie one behind the other */
    u->b = u->h = b;
    u->cache = (fv_cache_rows *)(block + cache);
    point(&u->b, block + state);
    point(&u->h, u->host);
    begin_state(u, (double *)((char *)u->host + u->state));
    const fv_backend *to = s->session->dev->backend;
    to->upload(&c->stream, block + state, u->host, u->state);
    to->upload(&c->stream, block + penalty, (char *)u->host + u->state, lengths);
    to->upload(&c->stream, block + kind, token_flags, (size_t)s->V);
    return !fv__failed(c);
}

/* Uploads the source at each index of the batch. */
static bool step_beams(beam_search *u)
{
    search *s = u->s;
    int32_t *source = s->from; /* large enough, and unused between steps */
    for (int64_t p = 0; p < s->live; p++) source[p] = (int32_t)s->at[p];
    s->session->dev->backend->upload(&s->ctx->stream, (void *)u->b.source, source,
                                     (size_t)s->live * sizeof *source);
    u->b.sources = s->live;
    return !fv__failed(s->ctx);
}

/* ---- steps ---- */

/* Uploads addresses and sizes of all KV caches, whose rows the kernel moves with the beams.  They
 * exist only once a step has run. */
static void describe_caches(fv_ctx *c, beam_search *u)
{
    const fv_session *s = u->s->session;
    fv_cache_rows cache[2 * MAX_SLOTS];
    int64_t n = 0;
    for (int i = 0; i < 2 * MAX_SLOTS; i++) {
        const slot *at = i < MAX_SLOTS ? &s->k[i] : &s->v[i - MAX_SLOTS];
        if (!at->t.data) continue;
        size_t token = fv__tensor_bytes(at->t.dtype, at->t.shape.d[2]);
        cache[n++] = (fv_cache_rows){at->t.data, token, token * (size_t)s->allocated};
    }
    s->dev->backend->upload(&c->stream, u->cache, cache, (size_t)n * sizeof *cache);
    u->b.cache = u->cache;
    u->b.n_caches = n;
    u->known_version = s->version + 1;
}

/* Behind the model's step, and captured with it: one step of beam search for all sources. */
static void step(fv_ctx *c, void *user, fv_tensor *logits)
{
    beam_search *u = user;
    const fv_session *s = u->s->session;
    if (u->known_version != s->version + 1) describe_caches(c, u);
    fv_beams a = u->b;
    a.logits = logits->data;
    a.token = s->step_inputs.ids.data;
    a.position = s->step_inputs.pos.data;
    s->dev->k[logits->dtype]->beams(&c->stream, &a);
}

/* n steps, then which sources are over.  fresh: the first input is s->token, not what the device
 * left behind. */
static bool run(beam_search *u, int64_t n, bool fresh)
{
    search *s = u->s;
    fv_session *at = s->session;
    for (int64_t i = 0; i < n; i++)
        if (!fv__session_replay(s->ctx, at, fresh && !i ? s->token : NULL, FV_STEP_BEAMS, step, u))
            return false;
    at->dev->backend->download(&s->ctx->stream, u->h.over, u->b.over,
                               (size_t)s->n * sizeof *u->h.over);
    for (int64_t i = 0; i < s->n; i++) s->over[i] = u->h.over[i];
    return !fv__failed(s->ctx);
}

/* Compacts the batch to the sources that are not over. */
static bool retire(beam_search *u)
{
    search *s = u->s;
    int64_t rows = s->live * s->K;
    s->session->dev->backend->download(&s->ctx->stream, s->token, s->session->step_inputs.ids.data,
                                       (size_t)rows * sizeof *s->token);
    for (int64_t i = 0; i < rows; i++) s->from[i] = (int32_t)i;
    fv__search_retire(s);
    fv_session_select(s->ctx, s->session, s->from, s->live * s->K);
    return !fv__failed(s->ctx);
}

/* ---- results ---- */

/* Follows parents back through the log: the n tokens of beam k of source i. */
static void trace(const beam_search *u, int32_t *ids, int64_t i, int32_t n, int64_t k)
{
    while (n-- > 0) {
        int64_t at = ((int64_t)n * u->h.all + i) * u->h.K + k;
        ids[n] = u->h.tokens[at];
        k = u->h.parents[at];
    }
}

static void assemble(const beam_search *u)
{
    const search *s = u->s;
    for (int64_t j = 0; j < s->n * s->K; j++) {
        int64_t i = j / s->K, prompt = s->prompt[i];
        const fv_ended *d = &u->h.done[j];
        beam *run = &s->run[j], *done = &s->done[j];
        run->score = u->h.score[j];
        run->n = prompt + u->h.made[i];
        trace(u, run->ids + prompt, i, u->h.made[i], j % s->K);
        if (d->made < 0) continue;
        done->score = d->score;
        done->finished = true;
        done->n = prompt + d->made + 1;
        trace(u, done->ids + prompt, i, d->made, d->parent);
        done->ids[done->n - 1] = d->token;
    }
}

/* State and log come to the host in three copies; the log only as long as the longest sequence. */
static bool read_all(beam_search *u)
{
    search *s = u->s;
    const fv_backend *from = s->session->dev->backend;
    fv_stream *on = &s->ctx->stream;
    int32_t most = 0;
    from->download(on, u->host, u->b.done, u->state);
    for (int64_t i = 0; i < s->n; i++) most = u->h.made[i] > most ? u->h.made[i] : most;
    size_t bytes = (size_t)(most * s->n * s->K) * sizeof(int32_t);
    int32_t *log = fv__alloc(s->env, 2 * bytes);
    if (!log)
        return fv_raise(s->ctx, FV_ENOMEM, "generate: out of memory for %zu bytes", 2 * bytes) !=
               NULL;
    from->download(on, log, u->b.tokens, bytes);
    from->download(on, log + most * s->n * s->K, u->b.parents, bytes);
    u->h.tokens = log;
    u->h.parents = log + most * s->n * s->K;
    bool ok = !fv__failed(s->ctx);
    if (ok) assemble(u);
    fv__free(s->env, log, 2 * bytes);
    return ok;
}

/* Runs of 1, 2, 4, then 8 steps between looks at which sources are over. */
fv_status fv__beams_loop(search *s, fv_err *e)
{
    beam_search u = {.s = s};
    uint8_t *token_flags = fv__search_token_flags(s);
    bool fresh = true, ok = token_flags && begin(&u, token_flags);
    if (!token_flags) fv_raise(s->ctx, FV_ENOMEM, "generate: out of memory");
    for (int64_t n = 1; ok && s->live; n = n < RUN_MAX ? 2 * n : RUN_MAX) {
        int64_t open = 0;
        ok = (!fresh || step_beams(&u)) && run(&u, n, fresh);
        for (int64_t p = 0; p < s->live; p++) open += !s->over[s->at[p]];
        fresh = open && 2 * open <= s->live && s->live * s->K > FEW_ROWS;
        if (!open) s->live = 0;
        if (ok && fresh) ok = retire(&u);
    }
    ok = ok && read_all(&u);
    fv__free(s->env, token_flags, (size_t)s->V);
    fv__free(s->env, u.host, u.host_bytes);
    return ok ? FV_OK : fv__search_failed(s, e);
}
