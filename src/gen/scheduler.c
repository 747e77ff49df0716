/* scheduler.c - sequences that join and leave a running batch.
 *
 * The session's rows are the sequences: first those that decode, side by side, then at most one
 * whose prompt is being read.  A step reads prompts one after another, `prefill` tokens of them in
 * all, each narrowed to its row, and then makes one batched step of the decoding rows.  A prompt
 * that is read to its end joins them where it stands; a sequence that ends leaves, and the last
 * decoding row takes its place.
 *
 * A prompt is read alone, not padded together with others, and rows of a batch do not see each
 * other: kernels give a row the same bits whatever the batch, so each sequence gets what it would
 * get alone.  Mixing a part of a prompt and decoding rows into one ragged step would fill the
 * device better; every family's step would then have to know about ragged batches.
 *
 * Only one prompt is half read at a time: a second would only hold memory.  Several short prompts
 * are read in one step, since those that arrive together would otherwise wait for a decode step of
 * the whole batch between any two of them; requests that decode are kept waiting by `prefill`
 * tokens at most either way.
 *
 * Locking: the mutex guards the queue, the list of live sequences and their cancelled flags.  The
 * rows belong to the stepping thread.  Callbacks run without the lock. */
#include <time.h>

#include "fovea/author/family.h"
#include "fovea/author/gen.h"
#include "gen/scheduler.h"
#include "model/prompt.h"

/* ---- opening ---- */

static void *cut(char **at, size_t bytes)
{
    void *p = *at;
    *at += (bytes + 63) / 64 * 64;
    return p;
}

/* Places all arrays in one block; with base NULL it only adds up the bytes. */
static size_t set_layout(fv_scheduler *s, char *base)
{
    char *at = base;
    size_t rows = (size_t)s->opt.rows, V = (size_t)s->V;
    s->row = cut(&at, rows * sizeof *s->row);
    s->logits = cut(&at, rows * V * sizeof *s->logits);
    s->raw = cut(&at, V * sizeof *s->raw);
    s->scratch = cut(&at, (size_t)s->opt.capacity * sizeof *s->scratch);
    s->candidates = cut(&at, V * sizeof *s->candidates);
    s->token = cut(&at, rows * sizeof *s->token);
    s->from = cut(&at, rows * sizeof *s->from);
    return (size_t)(at - base);
}

static bool open_locks(fv_scheduler *s)
{
    pthread_condattr_t monotonic;
    if (pthread_mutex_init(&s->lock, NULL)) return false;
    bool ok = !pthread_condattr_init(&monotonic);
    if (ok) {
        pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
        ok = !pthread_cond_init(&s->work, &monotonic);
        pthread_condattr_destroy(&monotonic);
    }
    if (!ok) pthread_mutex_destroy(&s->lock);
    return ok;
}

/* What the options and the model must satisfy, with a sentence where they do not. */
static fv_status check_family(const fv_model *m, fv_scheduler_opt opt, fv_err *e)
{
    const fv_family *f = fv_model_family(m);
    if (!f->step || f->vocabulary(fv_model_self(m)) < 1)
        return fv_fail(e, FV_EMISSING, "scheduler: %s does not generate", fv_model_head(m));
    if (f->begin)
        return fv_fail(e, FV_EMISSING,
                       "scheduler: %s has an encoder, and sequences behind one do not join a batch",
                       fv_model_head(m));
    if (opt.rows < 1 || opt.rows > 4096 || opt.capacity < 2 || opt.capacity > 1 << 24 ||
        opt.prefill < 1 || opt.waiting < 1 || opt.cache_bytes < 0 || opt.prefix_bytes < 0)
        return fv_fail(e, FV_EARG, "scheduler: %lld rows of %lld tokens, %lld of a prompt a step",
                       (long long)opt.rows, (long long)opt.capacity, (long long)opt.prefill);
    return FV_OK;
}

/* ---- what the model is like ---- */

typedef struct probe {
    int64_t layers, heads;
} probe;

static void count_heads(void *user, fv_ctx *c, const char *site, const char *name, const void *what)
{
    probe *p = user;
    (void)c, (void)name;
    if (strcmp(site, "attention")) return;
    int64_t heads = fv_attn_view_shape(what).d[1];
    p->heads = p->layers++ && p->heads < heads ? p->heads : heads;
}

/* One token through a session of one row shows how many layers and heads a model has and, by the
 * session, how many bytes of cache a token takes. */
static fv_status measure(fv_scheduler *s, fv_session **one, probe *p, const fv_model *m, fv_err *e)
{
    fv_status st = fv_session_new(one, m, s->ctx->dev, 1, 1, e);
    if (st) return st;
    fv_ctx_set_tap(s->ctx, count_heads, p);
    fv_session_step(s->ctx, *one, fv_ints(s->ctx, (int32_t[]){0}, FV_SHAPE(1, 1)));
    st = fv_ctx_status(s->ctx);
    if (st) fv_fail(e, st, "%s", fv_ctx_err(s->ctx)->text);
    fv_ctx_set_tap(s->ctx, NULL, NULL);
    fv_ctx_reset(s->ctx, 0);
    return st;
}

/* What the budget allows: tokens where memory follows them, else fewer rows. */
static fv_status look(fv_scheduler *s, fv_device *d, fv_err *e)
{
    fv_session *one = NULL;
    probe p = {0};
    fv_status st = measure(s, &one, &p, s->model, e);
    if (st) {
        fv_session_free(one);
        return st;
    }
    s->token_bytes = (int64_t)fv__session_token_bytes(one);
    int64_t each = s->token_bytes * s->opt.capacity;
    fv_session_free(one);
    s->stats.layers = p.layers;
    s->stats.heads = p.heads;
    if (st || !s->opt.cache_bytes) return st;
    if (d->backend->discard && each && each <= s->opt.cache_bytes) {
        s->budget = s->opt.cache_bytes / s->token_bytes;
        return FV_OK;
    }
    int64_t rows = each ? s->opt.cache_bytes / each - 1 : s->opt.rows; /* one is for moving rows */
    if (rows < 1)
        return fv_fail(
            e, FV_EARG,
            "scheduler: a KV cache of %lld bytes holds no sequence of %lld tokens, which "
            "needs %lld",
            (long long)s->opt.cache_bytes, (long long)s->opt.capacity,
            (long long)(d->backend->discard ? each : 2 * each));
    if (s->opt.rows > rows) s->opt.rows = rows;
    return FV_OK;
}

/* Everything that depends on how many rows there are. */
static fv_status open_rows(fv_scheduler *s, fv_device *d, fv_err *e)
{
    s->bytes = set_layout(s, NULL);
    s->block = fv__alloc(&s->env, s->bytes);
    s->locks = open_locks(s);
    if (!s->block || !s->locks) return fv_fail(e, FV_ENOMEM, "scheduler: out of memory");
    set_layout(s, s->block);
    fv_status st = fv_session_new(&s->session, s->model, d, s->opt.rows, s->opt.capacity, e);
    if (!st && s->budget) fv__session_page(s->session);
    return st;
}

fv_status fv_scheduler_new(fv_scheduler **out, fv_device *d, const fv_model *m,
                           fv_scheduler_opt opt, fv_err *e)
{
    const fv_family *f = fv_model_family(m);
    int64_t context = fv_model_context(m);
    *out = NULL;
    if (!opt.rows) opt.rows = 16;
    if (!opt.prefill) opt.prefill = 512;
    if (!opt.waiting) opt.waiting = 1024;
    if (!opt.capacity) opt.capacity = context ? context : 2048;
    if (context && opt.capacity > context) opt.capacity = context;
    fv_status st = check_family(m, opt, e);
    if (st) return st;
    fv_scheduler *s = fv__alloc(fv_device_env(d), sizeof *s);
    if (!s) return fv_fail(e, FV_ENOMEM, "scheduler: out of memory");
    *s = (fv_scheduler){.env = *fv_device_env(d), .model = m, .opt = opt};
    s->models[s->n_models++] = m;
    s->prefixes = (fv_prefix_cache){.env = s->env, .budget = opt.prefix_bytes};
    s->V = f->vocabulary(fv_model_self(m));
    st = fv_ctx_new(&s->ctx, d, (fv_ctx_opt){.dtype = fv_model_dtype(m)}, e);
    if (!st) st = look(s, d, e);
    if (!st) st = open_rows(s, d, e);
    if (st) {
        fv_scheduler_free(s);
        return st;
    }
    fv__session_resize(s->session, 0);
    *out = s;
    return FV_OK;
}

/* The caches have one shape for all models; whether this one writes it, one token shows. */
fv_status fv_scheduler_add_model(fv_scheduler *s, int *number, const fv_model *m, fv_err *e)
{
    fv_session *one = NULL;
    probe p = {0};
    const fv_family *f = fv_model_family(m);
    if (s->n_models == FV_SCHED_MODELS)
        return fv_fail(e, FV_EARG, "scheduler: %d models share a batch at most", FV_SCHED_MODELS);
    if (f != fv_model_family(s->model) || f->vocabulary(fv_model_self(m)) != s->V)
        return fv_fail(e, FV_EARG,
                       "scheduler: models of one batch are of one family and vocabulary");
    if (fv__prompt_length(fv__model_virtual(m)) != fv__prompt_length(fv__model_virtual(s->model)))
        return fv_fail(e, FV_EARG,
                       "scheduler: models of one batch have as many virtual tokens (an adapter's "
                       "prompt or prefix)");
    fv_status st = measure(s, &one, &p, m, e);
    bool alike = p.layers == s->stats.layers && p.heads == s->stats.heads && !st &&
                 (int64_t)fv__session_token_bytes(one) == s->token_bytes;
    fv_session_free(one);
    if (!st && !alike)
        st = fv_fail(e, FV_EARG, "scheduler: models of one batch have the same layers and heads");
    if (st) return st;
    *number = s->n_models;
    s->models[s->n_models++] = m;
    return FV_OK;
}

void fv_scheduler_free(fv_scheduler *s)
{
    if (!s) return;
    fv_env env = s->env;
    for (sequence *q = s->live, *next; q; q = next) {
        next = q->next_live;
        fv__free(&env, q, q->bytes);
    }
    if (s->session) fv__prefix_free(&s->prefixes, s->session->dev);
    if (s->session) fv__sched_tap_free(s);
    fv_session_free(s->session);
    fv_ctx_free(s->ctx);
    if (s->locks) pthread_cond_destroy(&s->work);
    if (s->locks) pthread_mutex_destroy(&s->lock);
    fv__free(&env, s->block, s->bytes);
    fv__free(&env, s, sizeof *s);
}

int64_t fv_scheduler_processed(const fv_scheduler *s) { return fv_session_processed(s->session); }

/* ---- the life of a sequence, on the stepping thread ---- */

/* Takes it out of the live ones and frees it; it holds no row any more. */
static void forget(fv_scheduler *s, sequence *q)
{
    pthread_mutex_lock(&s->lock);
    sequence **at = &s->live;
    while (*at != q) at = &(*at)->next_live;
    *at = q->next_live;
    s->n_live--;
    pthread_mutex_unlock(&s->lock);
    fv__free(&s->env, q, q->bytes);
}

/* Keys and values depend on the model, so each has prefixes of its own. */
static void keep_prefix(fv_scheduler *s, const sequence *q, int64_t row, int64_t n)
{
    fv__prefix_store(&s->prefixes, s->ctx, s->session, q->ask.model, row, q->ids, n);
}

/* Rows of one model side by side, for one step each; the order of the others stays. */
static void group_rows(fv_scheduler *s)
{
    for (int64_t i = 1; s->n_models > 1 && i < s->decoding; i++) {
        sequence *q = s->row[i];
        int32_t from = s->from[i];
        int64_t at = i;
        for (; at > 0 && s->row[at - 1]->ask.model > q->ask.model; at--) {
            s->row[at] = s->row[at - 1];
            s->from[at] = s->from[at - 1];
        }
        s->row[at] = q;
        s->from[at] = from;
    }
}

/* Rows of sequences that are done leave the batch. */
static void retire(fv_scheduler *s)
{
    int64_t before = s->decoding + s->reading, was = s->decoding;
    for (int64_t i = 0; i < before; i++) s->from[i] = (int32_t)i;
    for (int64_t p = 0; p < s->decoding;) {
        if (!s->row[p]->done) {
            p++;
            continue;
        }
        int64_t last = --s->decoding;
        /* the next turn of a conversation begins with all of this one */
        if (!s->ctx->err.code) keep_prefix(s, s->row[p], s->from[p], s->row[p]->cached);
        forget(s, s->row[p]);
        s->row[p] = s->row[last];
        s->from[p] = s->from[last];
    }
    group_rows(s);
    if (s->reading) {
        sequence *q = s->row[was];
        s->row[s->decoding] = q;
        s->from[s->decoding] = (int32_t)was;
        s->reading = !q->done;
        if (q->done) forget(s, q);
    }
    int64_t rows = s->decoding + s->reading;
    if (rows && !s->ctx->err.code) fv_session_select(s->ctx, s->session, s->from, rows);
    fv__session_resize(s->session, rows);
    for (int64_t i = rows; s->budget && i < before; i++) fv__session_trim(s->session, i);
}

/* What a kept prefix has of the prompt.  The last token is read in any case, for its logits, and so
 * are rows whose attention is wanted. */
static void load_prefix(fv_scheduler *s, sequence *q)
{
    if (q->ask.n_layers && q->ask.prompt_rows) return;
    q->shared = fv__prefix_load(&s->prefixes, s->ctx, s->session, q->ask.model, s->decoding, q->ids,
                                q->prompt - 1);
    q->cached = q->shared;
}

/* Cancelled sequences end, wherever they are; the next one that waits gets a free row. */
static void admit(fv_scheduler *s)
{
    for (int64_t p = 0; p < s->decoding + s->reading; p++)
        if (fv__sched_cancelled(s, s->row[p]))
            fv__sched_end(s, s->row[p], FV_FINISH_CANCELLED, NULL);
    retire(s);
    while (!s->reading && s->decoding < s->opt.rows) {
        sequence *q = fv__sched_next(s);
        if (!q) return;
        if (fv__sched_cancelled(s, q)) {
            fv__sched_end(s, q, FV_FINISH_CANCELLED, NULL);
            forget(s, q);
            continue;
        }
        s->row[s->decoding] = q;
        s->reading = true;
        fv__session_resize(s->session, s->decoding + 1);
        fv_session_expect(s->session, s->decoding, q->prompt);
        load_prefix(s, q);
    }
}

/* ---- steps ---- */

static void count_step(fv_scheduler *s, int64_t prompt, int64_t shared)
{
    int64_t cached = 0;
    for (int64_t p = 0; p < s->decoding + s->reading; p++) cached += s->row[p]->cached;
    pthread_mutex_lock(&s->lock);
    s->stats.prompt += prompt;
    s->stats.shared += shared;
    s->stats.cache_tokens = cached;
    s->stats.cache_bytes = cached * s->token_bytes;
    s->stats.prefix_bytes = fv__prefix_bytes(&s->prefixes);
    pthread_mutex_unlock(&s->lock);
}

/* Rows of the prompt that were just read, without the last one of all, which comes with its
 * token. */
static void tell_prompt_rows(fv_scheduler *s, sequence *q, int64_t T)
{
    fv_sched_weights w;
    int64_t n = q->cached < q->prompt ? T : T - 1;
    if (!q->ask.prompt_rows || n < 1) return;
    const fv_sched_weights *told = fv__sched_weights(s, &w, 0, 0, n);
    if (told)
        q->ask.fn(q->ask.user, &(fv_sched_event){.id = q->id, .token = -1, .attention = told});
}

static int64_t unread(const sequence *q) { return q->prompt - q->cached; }

/* T tokens of the prompt that is being read; its end gives the first token. */
static bool prefill(fv_scheduler *s, int64_t T)
{
    sequence *q = s->row[s->decoding];
    bool first = q->cached == q->shared;
    fv_sched_weights w;
    fv_ctx *c = s->ctx;
    fv_ctx_reset(c, 0);
    if (!fv__session_narrow(c, s->session, s->decoding, 1, T)) return false;
    fv__session_use(s->session, s->models[q->ask.model]);
    fv_tensor *y = NULL;
    if (fv__sched_watch(s, s->decoding, 1, T))
        y = fv_session_step(c, s->session, fv_ints(c, q->ids + q->cached, FV_SHAPE(1, T)));
    fv__session_restore(s->session);
    q->cached += T;
    if (!fv__sched_collect(s) || !y) return false;
    count_step(s, T, first ? q->shared : 0);
    if (q->cached < q->prompt) s->session->dev->backend->sync(&c->stream);
    if (fv__failed(c)) return false;
    tell_prompt_rows(s, q, T);
    if (q->cached < q->prompt) return true;
    if (fv_read(c, y, s->logits, s->V)) return false;
    keep_prefix(s, q, s->decoding, q->prompt);
    int64_t last = q->ask.prompt_rows ? T - 1 : 0;
    fv__sched_take_token(s, q, s->logits, fv__sched_weights(s, &w, 0, last, 1));
    s->reading = false;
    s->decoding++;
    return true;
}

/* Prompts up to `prefill` tokens.  The first may be read in part; another is begun only if all of
 * it fits, since a pass over the weights for its first few tokens would cost as much as for all. */
static bool read_prompts(fv_scheduler *s)
{
    int64_t left = s->opt.prefill;
    while (s->reading) {
        int64_t n = unread(s->row[s->decoding]);
        if (n > left && left < s->opt.prefill) break;
        if (n > left) n = left;
        if (!prefill(s, n)) return false;
        left -= n;
        if (s->reading) break;
        admit(s); /* a first token may have been the last, and the next prompt takes a row */
        if (fv__failed(s->ctx)) return false;
    }
    return true;
}

/* A kept step runs without this call: what it writes stays where it was the first time. */
static void keep_logits(fv_ctx *c, void *user, fv_tensor *logits)
{
    (void)c;
    ((fv_scheduler *)user)->y = *logits;
}

/* The next token of rows [first, first + rows), which have one model. */
static bool decode_group(fv_scheduler *s, int64_t first, int64_t rows)
{
    fv_sched_weights w;
    float *logits = s->logits + first * s->V;
    for (int64_t p = 0; p < rows; p++) {
        const sequence *q = s->row[first + p];
        s->token[p] = q->ids[q->n - 1];
    }
    fv_ctx_reset(s->ctx, 0);
    if (!fv__session_narrow(s->ctx, s->session, first, rows, 1)) return false;
    fv__session_use(s->session, s->models[s->row[first]->ask.model]);
    bool ok = fv__sched_watch(s, first, rows, 1) &&
              fv__session_replay(s->ctx, s->session, s->token, FV_STEP_LOGITS, keep_logits, s);
    fv__session_restore(s->session);
    ok = fv__sched_collect(s) && ok;
    if (!ok || fv_read(s->ctx, &s->y, logits, rows * s->V)) return false;
    for (int64_t p = 0; p < rows; p++) {
        sequence *q = s->row[first + p];
        q->cached++;
        fv__sched_take_token(s, q, logits + p * s->V, fv__sched_weights(s, &w, p, 0, 1));
    }
    return true;
}

/* The next token of every row that decodes. */
static bool decode(fv_scheduler *s)
{
    for (int64_t first = 0, end; first < s->decoding; first = end) {
        int model = s->row[first]->ask.model;
        for (end = first + 1; end < s->decoding && s->row[end]->ask.model == model;) end++;
        if (!decode_group(s, first, end - first)) return false;
    }
    count_step(s, 0, 0);
    return true;
}

/* What runs ends; what waits stays. */
static fv_status fail_all(fv_scheduler *s, fv_err *e)
{
    fv_err why = *fv_ctx_err(s->ctx);
    for (int64_t p = 0; p < s->decoding + s->reading; p++)
        if (!s->row[p]->done) fv__sched_end(s, s->row[p], FV_FINISH_FAILED, &why);
    retire(s);
    fv_ctx_reset(s->ctx, 0);
    return fv_fail(e, why.code, "%s", why.text);
}

fv_status fv_scheduler_step(fv_scheduler *s, int64_t *left, fv_err *e)
{
    fv_status st = FV_OK;
    admit(s);
    bool ok = read_prompts(s);
    if (ok && s->decoding) ok = decode(s);
    if (ok) retire(s);
    if (!ok || fv__failed(s->ctx)) st = fail_all(s, e);
    pthread_mutex_lock(&s->lock);
    *left = s->n_live;
    pthread_mutex_unlock(&s->lock);
    return st;
}
