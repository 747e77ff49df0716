/* scheduler.c - sequences that join and leave a running batch.
 *
 * The session's rows are the sequences: first those that decode, side by side, then at most one
 * whose prompt is being read.  A step reads a part of that prompt, narrowed to its row, and then
 * makes one batched step of the decoding rows.  A prompt that is read to its end joins them where
 * it stands; a sequence that ends leaves, and the last decoding row takes its place.
 *
 * A prompt is read alone, not padded together with others, and rows of a batch do not see each
 * other: kernels give a row the same bits whatever the batch, so each sequence gets what it would
 * get alone.  Mixing a part of a prompt and decoding rows into one ragged step would fill the
 * device better; every family's step would then have to know about ragged batches.
 *
 * Reading only one prompt at a time bounds what a step takes: requests that decode are kept
 * waiting by `prefill` tokens at most, and a second half-read prompt would only hold memory.
 *
 * Locking: the mutex guards the queue, the list of live sequences and their cancelled flags.  The
 * rows belong to the stepping thread.  Callbacks run without the lock. */
#include <errno.h>
#include <pthread.h>
#include <time.h>

#include "base/base.h"
#include "gen/sample.h"
#include "model/session.h"
#include "fovea/author/family.h"
#include "fovea/author/gen.h"

typedef struct sequence {
    struct sequence *next_waiting; /* in the queue */
    struct sequence *next_live;    /* of all that wait or run */
    uint64_t id;
    fv_gen_opt opt;
    int64_t number; /* of its random numbers */
    int32_t *ids;   /* `end` of them at most, the prompt first */
    int64_t n, prompt, end;
    int64_t cached; /* tokens in the KV cache */
    fv_sched_fn *fn;
    void *user;
    bool cancelled;
    bool done;
    size_t bytes; /* of this block: sequence, ids and lists */
} sequence;

struct fv_scheduler {
    fv_env env;
    const fv_model *model;
    fv_scheduler_opt opt;
    int64_t V;
    fv_ctx *ctx;
    fv_session *session;
    sequence **row; /* opt.rows: those that decode, then the one whose prompt is read */
    int64_t decoding;
    bool reading;             /* row[decoding] is reading its prompt */
    float *logits;            /* (rows,V) */
    float *scratch;           /* capacity */
    fv_candidate *candidates; /* V */
    int32_t *token, *from;    /* rows each */
    void *block;
    size_t bytes;
    fv_tensor y; /* logits of the last batched step */
    /* behind the lock */
    pthread_mutex_t lock;
    pthread_cond_t work;
    bool locks;             /* both are there */
    sequence *first, *last; /* the queue */
    sequence *live;
    int64_t waiting, n_live;
    uint64_t last_id;
};

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
        opt.prefill < 1 || opt.waiting < 1)
        return fv_fail(e, FV_EARG, "scheduler: %lld rows of %lld tokens, %lld of a prompt a step",
                       (long long)opt.rows, (long long)opt.capacity, (long long)opt.prefill);
    return FV_OK;
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
    s->V = f->vocabulary(fv_model_self(m));
    s->bytes = set_layout(s, NULL);
    s->block = fv__alloc(&s->env, s->bytes);
    s->locks = open_locks(s);
    if (!s->block || !s->locks) st = fv_fail(e, FV_ENOMEM, "scheduler: out of memory");
    if (!st) set_layout(s, s->block);
    if (!st) st = fv_ctx_new(&s->ctx, d, (fv_ctx_opt){.dtype = fv_model_dtype(m)}, e);
    if (!st) st = fv_session_new(&s->session, m, d, opt.rows, opt.capacity, e);
    if (st) {
        fv_scheduler_free(s);
        return st;
    }
    fv__session_resize(s->session, 0);
    *out = s;
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
    fv_session_free(s->session);
    fv_ctx_free(s->ctx);
    if (s->locks) pthread_cond_destroy(&s->work);
    if (s->locks) pthread_mutex_destroy(&s->lock);
    fv__free(&env, s->block, s->bytes);
    fv__free(&env, s, sizeof *s);
}

int64_t fv_scheduler_processed(const fv_scheduler *s) { return fv_session_processed(s->session); }

/* ---- requests, from any thread ---- */

static bool ids_within(const int32_t *ids, int64_t n, int32_t least, int64_t V)
{
    for (int64_t i = 0; i < n; i++)
        if (ids[i] < least || ids[i] >= V) return false;
    return true;
}

/* Everything that would fail later is refused here, in the thread that asked. */
static fv_status check_request(const fv_scheduler *s, const int32_t *prompt, int64_t n,
                               const fv_gen_opt *o, fv_err *e)
{
    const int32_t special[] = {o->eos, o->forced_bos, o->forced_eos};
    if (o->num_beams > 1 || o->num_return_sequences > 1)
        return fv_fail(e, FV_EARG, "scheduler: a request takes one beam and one sequence");
    if (n < 1) return fv_fail(e, FV_EARG, "scheduler: an empty prompt");
    if (n >= s->opt.capacity)
        return fv_fail(e, FV_EARG, "scheduler: the prompt has %lld tokens, a sequence holds %lld",
                       (long long)n, (long long)s->opt.capacity);
    if (!o->max_new_tokens && n >= o->max_length)
        return fv_fail(e, FV_EARG, "scheduler: the prompt has %lld tokens, max_length is %lld",
                       (long long)n, (long long)o->max_length);
    if (!ids_within(prompt, n, 0, s->V) || !ids_within(special, 3, -1, s->V) ||
        !ids_within(o->ends, o->n_ends, 0, s->V) || !ids_within(o->banned, o->n_banned, 0, s->V))
        return fv_fail(e, FV_EARG, "scheduler: an id is outside the vocabulary of %lld",
                       (long long)s->V);
    return FV_OK;
}

/* A copy of n ids behind *at, which moves on. */
static const int32_t *copy_ids(int32_t **at, const int32_t *ids, int64_t n)
{
    int32_t *copy = *at;
    if (n > 0) memcpy(copy, ids, (size_t)n * sizeof *copy);
    *at += n;
    return copy;
}

/* One allocation: the sequence, its tokens up to its greatest length, and copies of the lists. */
static sequence *new_sequence(const fv_scheduler *s, const int32_t *prompt, int64_t n,
                              const fv_gen_opt *o)
{
    int64_t end = o->max_new_tokens ? n + o->max_new_tokens : o->max_length;
    if (end > s->opt.capacity) end = s->opt.capacity;
    size_t ids = (size_t)(end + o->n_ends + o->n_banned + o->n_bad_words) * sizeof(int32_t);
    sequence *q = fv__alloc(&s->env, sizeof *q + ids);
    if (!q) return NULL;
    *q = (sequence){.opt = *o, .n = n, .prompt = n, .end = end, .bytes = sizeof *q + ids};
    int32_t *at = q->ids = (int32_t *)(q + 1);
    memcpy(q->ids, prompt, (size_t)n * sizeof *prompt);
    at += end;
    q->opt.ends = copy_ids(&at, o->ends, o->n_ends);
    q->opt.banned = copy_ids(&at, o->banned, o->n_banned);
    q->opt.bad_words = copy_ids(&at, o->bad_words, o->n_bad_words);
    q->number = o->numbers ? o->numbers[0] : 0;
    q->opt.numbers = NULL;
    q->opt.token = NULL;
    return q;
}

/* The id is given and the sequence queued under one lock: no callback can run before *id is set. */
fv_status fv_scheduler_submit(fv_scheduler *s, uint64_t *id, const int32_t *prompt, int64_t n,
                              const fv_gen_opt *opt, fv_sched_fn *fn, void *user, fv_err *e)
{
    fv_status st = check_request(s, prompt, n, opt, e);
    if (st) return st;
    sequence *q = new_sequence(s, prompt, n, opt);
    if (!q) return fv_fail(e, FV_ENOMEM, "scheduler: out of memory for a request");
    q->fn = fn;
    q->user = user;
    pthread_mutex_lock(&s->lock);
    bool full = s->waiting >= s->opt.waiting;
    if (!full) {
        *id = q->id = ++s->last_id;
        if (s->last) s->last->next_waiting = q;
        if (!s->first) s->first = q;
        s->last = q;
        q->next_live = s->live;
        s->live = q;
        s->waiting++;
        s->n_live++;
        pthread_cond_broadcast(&s->work);
    }
    pthread_mutex_unlock(&s->lock);
    if (!full) return FV_OK;
    fv__free(&s->env, q, q->bytes);
    return fv_fail(e, FV_EARG, "scheduler: %lld requests are waiting, which is the most",
                   (long long)s->opt.waiting);
}

/* Only marks: the row belongs to the stepping thread, which ends the sequence at its next step. */
fv_status fv_scheduler_cancel(fv_scheduler *s, uint64_t id, fv_err *e)
{
    bool found = false;
    pthread_mutex_lock(&s->lock);
    for (sequence *q = s->live; q && !found; q = q->next_live)
        if (q->id == id && !q->done) found = q->cancelled = true;
    pthread_mutex_unlock(&s->lock);
    if (found) return FV_OK;
    return fv_fail(e, FV_EARG, "scheduler: no sequence %llu is in flight", (unsigned long long)id);
}

bool fv_scheduler_wait(fv_scheduler *s, int64_t milliseconds)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)(milliseconds / 1000);
    until.tv_nsec += (long)(milliseconds % 1000) * 1000000;
    if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
    pthread_mutex_lock(&s->lock);
    int rc = 0;
    while (!s->live && !rc) rc = pthread_cond_timedwait(&s->work, &s->lock, &until);
    bool any = s->live != NULL;
    pthread_mutex_unlock(&s->lock);
    return any;
}

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

static bool is_cancelled(fv_scheduler *s, const sequence *q)
{
    pthread_mutex_lock(&s->lock);
    bool yes = q->cancelled;
    pthread_mutex_unlock(&s->lock);
    return yes;
}

/* From here on it cannot be cancelled; its row is taken by the next retire. */
static void mark_done(fv_scheduler *s, sequence *q)
{
    pthread_mutex_lock(&s->lock);
    q->done = true;
    pthread_mutex_unlock(&s->lock);
}

/* Ends a sequence without a token. */
static void end_without_token(fv_scheduler *s, sequence *q, fv_finish why, const fv_err *error)
{
    mark_done(s, q);
    q->fn(q->user,
          &(fv_sched_event){
              .id = q->id, .token = -1, .n = q->n - q->prompt, .finish = why, .error = error});
}

/* The next token behind a row of logits. */
static void take_token(fv_scheduler *s, sequence *q, float *logits)
{
    fv_prefix f = {q->ids, q->n, q->prompt, q->end};
    fv_candidate best = fv__next_token(logits, s->V, f, &q->opt, q->number, s->scratch,
                                       s->candidates);
    fv_finish finish = FV_FINISH_NOT;
    q->ids[q->n++] = best.token;
    if (q->n >= q->end) finish = FV_FINISH_LENGTH;
    if (fv__token_is_eos(best.token, &q->opt)) finish = FV_FINISH_STOP;
    if (finish) mark_done(s, q);
    bool more = q->fn(q->user, &(fv_sched_event){.id = q->id,
                                                 .token = best.token,
                                                 .score = best.score,
                                                 .n = q->n - q->prompt,
                                                 .finish = finish});
    if (!more && !finish) mark_done(s, q);
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
        forget(s, s->row[p]);
        s->row[p] = s->row[last];
        s->from[p] = s->from[last];
    }
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
}

/* Cancelled sequences end, wherever they are; the next one that waits gets a free row. */
static void admit(fv_scheduler *s)
{
    for (int64_t p = 0; p < s->decoding + s->reading; p++)
        if (is_cancelled(s, s->row[p])) end_without_token(s, s->row[p], FV_FINISH_CANCELLED, NULL);
    retire(s);
    while (!s->reading && s->decoding < s->opt.rows) {
        pthread_mutex_lock(&s->lock);
        sequence *q = s->first;
        if (q) s->first = q->next_waiting, s->waiting--;
        if (!s->first) s->last = NULL;
        bool cancelled = q && q->cancelled;
        pthread_mutex_unlock(&s->lock);
        if (!q) return;
        if (cancelled) {
            end_without_token(s, q, FV_FINISH_CANCELLED, NULL);
            forget(s, q);
            continue;
        }
        s->row[s->decoding] = q;
        s->reading = true;
        fv__session_resize(s->session, s->decoding + 1);
    }
}

/* ---- steps ---- */

/* A part of the prompt that is being read; its end gives the first token. */
static bool prefill(fv_scheduler *s)
{
    sequence *q = s->row[s->decoding];
    int64_t left = q->prompt - q->cached, T = left < s->opt.prefill ? left : s->opt.prefill;
    fv_ctx *c = s->ctx;
    fv_ctx_reset(c, 0);
    if (!fv__session_narrow(c, s->session, s->decoding, 1, T)) return false;
    fv_tensor *y = fv_session_step(c, s->session, fv_ints(c, q->ids + q->cached, FV_SHAPE(1, T)));
    fv__session_restore(s->session);
    q->cached += T;
    if (!y) return false;
    if (q->cached < q->prompt) {
        s->session->dev->backend->sync(&c->stream);
        return !fv__failed(c);
    }
    if (fv_read(c, y, s->logits, s->V)) return false;
    take_token(s, q, s->logits);
    s->reading = false;
    s->decoding++;
    return true;
}

/* A kept step runs without this call: what it writes stays where it was the first time. */
static void keep_logits(fv_ctx *c, void *user, fv_tensor *logits)
{
    (void)c;
    ((fv_scheduler *)user)->y = *logits;
}

/* The next token of every row that decodes. */
static bool decode(fv_scheduler *s)
{
    int64_t rows = s->decoding;
    for (int64_t p = 0; p < rows; p++) s->token[p] = s->row[p]->ids[s->row[p]->n - 1];
    fv_ctx_reset(s->ctx, 0);
    if (!fv__session_narrow(s->ctx, s->session, 0, rows, 1)) return false;
    bool ok = fv__session_replay(s->ctx, s->session, s->token, FV_STEP_LOGITS, keep_logits, s);
    fv__session_restore(s->session);
    if (!ok || fv_read(s->ctx, &s->y, s->logits, rows * s->V)) return false;
    for (int64_t p = 0; p < rows; p++) take_token(s, s->row[p], s->logits + p * s->V);
    return true;
}

/* What runs ends; what waits stays. */
static fv_status fail_all(fv_scheduler *s, fv_err *e)
{
    fv_err why = *fv_ctx_err(s->ctx);
    for (int64_t p = 0; p < s->decoding + s->reading; p++)
        if (!s->row[p]->done) end_without_token(s, s->row[p], FV_FINISH_FAILED, &why);
    retire(s);
    fv_ctx_reset(s->ctx, 0);
    return fv_fail(e, why.code, "%s", why.text);
}

fv_status fv_scheduler_step(fv_scheduler *s, int64_t *left, fv_err *e)
{
    fv_status st = FV_OK;
    admit(s);
    bool ok = !s->reading || prefill(s);
    if (ok) retire(s);
    ok = ok && !fv__failed(s->ctx);
    if (ok && s->decoding) ok = decode(s);
    if (ok) retire(s);
    if (!ok || fv__failed(s->ctx)) st = fail_all(s, e);
    pthread_mutex_lock(&s->lock);
    *left = s->n_live;
    pthread_mutex_unlock(&s->lock);
    return st;
}
