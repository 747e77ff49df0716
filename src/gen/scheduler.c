/* scheduler.c - sequences that join and leave a running batch.
 *
 * The session's rows are the sequences: first those that decode, side by side, then those whose
 * prompts are being read.  A step reads prompts (scheduler_prompt.c), `prefill` tokens of them in
 * all, and then makes one batched step of the decoding rows (scheduler_decode.c).  A prompt that is
 * read to its end joins them where it stands; a sequence that ends leaves, and the last decoding
 * row takes its place.
 *
 * Rows of a batch do not see each other: kernels give a row the same bits whatever the batch, so
 * each sequence gets what it would get alone.  Mixing a part of a prompt and decoding rows into one
 * ragged step would fill the device better; every family's step would then have to know about
 * ragged batches.
 *
 * A GPU works beside the host (s->beside).  There the device chooses tokens where no rule needs all
 * scores, and callbacks run while it makes the next step:
 *
 *    device   | step n       |      | step n+1     |      |
 *    host       tell n-1      read n   tell n        read n+1
 *
 * So a callback that ends its sequence ends it one step late, and that token is dropped.
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
    s->told = cut(&at, 2 * rows * sizeof *s->told);
    s->padded = cut(&at, (size_t)s->opt.prefill * sizeof *s->padded);
    s->tap.start = cut(&at, (rows + 1) * sizeof *s->tap.start);
    s->tap.width = cut(&at, rows * sizeof *s->tap.width);
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

/* What the budget allows: bytes of sequences where memory follows their tokens, else fewer rows.
 * Either way there must be as much as the longest sequence takes, and where rows move by copying
 * twice that. */
static fv_status look(fv_scheduler *s, fv_err *e)
{
    probe p = {0};
    fv_status st = measure(s, &s->like, &p, s->model, e);
    if (st) return st;
    s->token_bytes = (int64_t)fv__session_token_bytes(s->like);
    s->spans = s->like->spans;
    s->stats.layers = p.layers;
    s->stats.heads = p.heads;
    if (!s->opt.cache_bytes || !s->token_bytes) return FV_OK;
    bool follows = fv__session_can_page(s->like, s->opt.capacity);
    int64_t row = follows ? fv__session_row_bytes(s->like, s->opt.capacity)
                          : s->token_bytes * s->opt.capacity,
            least = follows && !fv__session_packs(s->like) ? row : 2 * row;
    if (least > s->opt.cache_bytes)
        return fv_fail(
            e, FV_EARG,
            "scheduler: a KV cache of %lld bytes holds no sequence of %lld tokens, which "
            "needs %lld",
            (long long)s->opt.cache_bytes, (long long)s->opt.capacity, (long long)least);
    int64_t rows = s->opt.cache_bytes / row - 1; /* one is for moving rows */
    if (follows)
        s->budget = s->opt.cache_bytes;
    else if (s->opt.rows > rows)
        s->opt.rows = rows;
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
    if (!st && s->budget && !fv__session_page(s->session, s->like, (size_t)s->budget))
        st = fv_fail(
            e, FV_ENOMEM,
            "scheduler: cannot reserve addresses for a KV cache of %lld rows of %lld tokens",
            (long long)s->opt.rows, (long long)s->opt.capacity);
    if (!st && !fv__sched_choice_open(s)) st = fv_fail(e, FV_ENOMEM, "scheduler: out of memory");
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
    s->beside = d->backend->capture;
    s->models[s->n_models++] = m;
    fv__sched_ranks_open(s);
    s->prefixes = (fv_prefix_cache){.env = s->env, .budget = opt.prefix_bytes};
    s->V = f->vocabulary(fv_model_self(m));
    st = fv_ctx_new(&s->ctx, d, (fv_ctx_opt){.dtype = fv_model_dtype(m)}, e);
    if (!st) st = look(s, e);
    if (!st) st = open_rows(s, d, e);
    fv_session_free(s->like);
    s->like = NULL;
    if (st) {
        if (e) fv__sched_ranks_failed(s, e);
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
    if (s->ranks)
        return fv_fail(e, FV_EMISSING,
                       "scheduler: a model divided among ranks takes no second one beside it");
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
    fv__sched_ranks_close(s);
    for (sequence *q = s->live, *next; q; q = next) {
        next = q->next_live;
        fv__free(&env, q, q->bytes);
    }
    if (s->session) fv__prefix_free(&s->prefixes, s->session->dev);
    if (s->session) fv__sched_tap_free(s);
    if (s->session) fv__sched_choice_free(s);
    fv_session_free(s->session);
    fv_ctx_free(s->ctx);
    if (s->locks) pthread_cond_destroy(&s->work);
    if (s->locks) pthread_mutex_destroy(&s->lock);
    fv__free(&env, s->block, s->bytes);
    fv__free(&env, s, sizeof *s);
}

int64_t fv_scheduler_processed(const fv_scheduler *s) { return fv_session_processed(s->session); }

/* ---- where the time goes ---- */

int64_t fv__sched_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

void fv__sched_lap(fv_scheduler *s, int64_t *time)
{
    int64_t now = fv__sched_now();
    *time += now - s->since;
    s->since = now;
}

void fv__sched_inner(fv_scheduler *s, int64_t *time, int64_t from)
{
    int64_t spent = fv__sched_now() - from;
    *time += spent;
    s->since += spent;
}

/* ---- the life of a sequence, on the stepping thread ---- */

void fv__sched_forget(fv_scheduler *s, sequence *q)
{
    pthread_mutex_lock(&s->lock);
    sequence **at = &s->live;
    while (*at != q) at = &(*at)->next_live;
    *at = q->next_live;
    s->n_live--;
    pthread_mutex_unlock(&s->lock);
    fv__free(&s->env, q, q->bytes);
}

/* Its row is free; an event that waits keeps the sequence until it is told. */
static void leave(fv_scheduler *s, sequence *q)
{
    q->left = true;
    if (!q->told_later) fv__sched_forget(s, q);
}

/* Keys and values depend on the model, so each has prefixes of its own. */
void fv__sched_keep_prefix(fv_scheduler *s, const sequence *q, int64_t row, int64_t n)
{
    fv__prefix_store(&s->prefixes, s->ctx, s->session, q->ask.model, row, q->ids, n, !q->done);
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

static bool any_done(const fv_scheduler *s)
{
    for (int64_t p = 0; p < s->decoding + s->reading; p++)
        if (s->row[p]->done) return true;
    return false;
}

/* Rows of sequences that are done leave the batch. */
static void retire(fv_scheduler *s)
{
    int64_t before = s->decoding + s->reading, was = s->decoding, rows;
    if (s->n_models == 1 && !any_done(s)) return;
    for (int64_t i = 0; i < before; i++) s->from[i] = (int32_t)i;
    for (int64_t p = 0; p < s->decoding;) {
        if (!s->row[p]->done) {
            p++;
            continue;
        }
        int64_t last = --s->decoding;
        /* the next turn of a conversation begins with all of this one */
        if (!s->ctx->err.code) fv__sched_keep_prefix(s, s->row[p], s->from[p], s->row[p]->cached);
        leave(s, s->row[p]);
        s->row[p] = s->row[last];
        s->from[p] = s->from[last];
    }
    group_rows(s);
    rows = s->decoding;
    for (int64_t p = was; p < before; p++) {
        sequence *q = s->row[p];
        if (q->done) {
            leave(s, q);
            continue;
        }
        s->row[rows] = q;
        s->from[rows++] = (int32_t)p;
    }
    s->reading = rows - s->decoding;
    if (rows && !s->ctx->err.code) fv_session_select(s->ctx, s->session, s->from, rows);
    fv__session_resize(s->session, rows);
    for (int64_t i = rows; s->budget && i < before; i++) fv__session_trim(s->session, i);
}

/* The last token is read in any case, for its logits, and so are rows whose attention is wanted. */
void fv__sched_seat(fv_scheduler *s, sequence *q)
{
    int64_t at = s->decoding + s->reading++;
    s->row[at] = q;
    fv__session_resize(s->session, at + 1);
    fv_session_expect(s->session, at, q->prompt);
    if (q->ask.n_layers && q->ask.prompt_rows) return;
    q->shared = fv__prefix_load(&s->prefixes, s->ctx, s->session, q->ask.model, at, q->ids,
                                q->prompt - 1);
    q->cached = q->shared;
}

/* Cancelled sequences end, wherever they are; the next one that waits gets a free row. */
void fv__sched_admit(fv_scheduler *s)
{
    bool cancelled = fv__sched_any_cancelled(s);
    for (int64_t p = 0; cancelled && p < s->decoding + s->reading; p++) {
        if (!fv__sched_cancelled(s, s->row[p])) continue;
        fv__sched_tell(s); /* what it wrote comes before its end */
        if (!s->row[p]->done) fv__sched_end(s, s->row[p], FV_FINISH_CANCELLED, NULL);
    }
    retire(s);
    while (!s->reading && s->decoding < s->opt.rows) {
        sequence *q = fv__sched_next(s, 0, 0);
        if (!q) return;
        if (!fv__sched_cancelled(s, q)) {
            fv__sched_seat(s, q);
            continue;
        }
        fv__sched_end(s, q, FV_FINISH_CANCELLED, NULL);
        fv__sched_forget(s, q);
    }
}

/* ---- steps ---- */

void fv__sched_count(fv_scheduler *s, int64_t prompt, int64_t shared)
{
    int64_t cached = 0, together = 0;
    for (int64_t p = 0; p < s->decoding + s->reading; p++) {
        cached += s->row[p]->cached;
        together += fv__session_shared(s->session, p);
    }
    pthread_mutex_lock(&s->lock);
    s->stats.prompt += prompt;
    if (prompt)
        s->stats.prompt_steps++;
    else
        s->stats.decode_steps++;
    s->stats.shared += shared;
    s->stats.cache_tokens = cached;
    s->stats.cache_shared = together;
    s->stats.cache_bytes = (cached - together) * s->token_bytes;
    s->stats.cache_pages = fv__session_held_bytes(s->session);
    s->stats.prefix_bytes = fv__prefix_bytes(&s->prefixes);
    pthread_mutex_unlock(&s->lock);
}

/* What runs ends; what waits stays. */
static fv_status fail_all(fv_scheduler *s, fv_err *e)
{
    fv_err why = *fv_ctx_err(s->ctx);
    fv__sched_ranks_failed(s, &why);
    fv__sched_tell(s);
    for (int64_t p = 0; p < s->decoding + s->reading; p++)
        if (!s->row[p]->done) fv__sched_end(s, s->row[p], FV_FINISH_FAILED, &why);
    retire(s);
    fv_ctx_reset(s->ctx, 0);
    return fv_fail(e, why.code, "%s", why.text);
}

fv_status fv_scheduler_step(fv_scheduler *s, int64_t *left, fv_err *e)
{
    fv_status st = FV_OK;
    bool ended, ok = fv__sched_meet(s, &ended);
    *left = -1;
    if (ended) return FV_OK;
    s->since = fv__sched_now();
    fv__sched_admit(s);
    fv__sched_lap(s, &s->times.queue);
    ok = ok && fv__sched_read_prompts(s);
    fv__sched_lap(s, &s->times.prompts);
    if (ok && s->decoding) ok = fv__sched_decode(s);
    fv__sched_lap(s, &s->times.decode);
    if (ok) retire(s);
    if (!ok || fv__failed(s->ctx)) st = fail_all(s, e);
    if (!s->decoding && !s->reading) fv__sched_tell(s); /* no further step would do it */
    fv__sched_lap(s, &s->times.queue);
    pthread_mutex_lock(&s->lock);
    *left = s->n_live;
    s->stats.times = s->times;
    pthread_mutex_unlock(&s->lock);
    return st;
}
