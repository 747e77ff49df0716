/* loader.c - the batches of epoch after epoch, in order, prefetched by threads.
 *
 * A ring buffer of slots with one consumer, which takes them in order and releases all it holds at
 * once.  Workers claim slots in order too: under the lock the next batch is planned and its rows
 * are copied into the slot, then it is made without the lock.  Which batch a slot gets depends on
 * counting alone, so the number of workers changes when a batch is made, never what is in it.
 * Without prefetching (ahead = 0) there is no thread, and fv_loader_next fills the slot itself. */
#include <pthread.h>

#include "base/base.h"
#include "fovea/author/feed.h"

enum { MOST_WORKERS = 64 };

typedef struct slot {
    fv_loaded loaded;
    int32_t *rows; /* the examples of its batch */
    size_t rows_bytes;
    int64_t n;
    int64_t number; /* of the batch that is ready in it, from 1 */
    fv_status st;
    fv_err err;
} slot;

struct fv_loader {
    const fv_env *env;
    fv_feed feed;
    fv_loader_opt opt;
    slot *ring;
    int64_t n; /* slots */
    slot *failed;

    int workers;
    pthread_t thread[MOST_WORKERS];
    pthread_mutex_t lock; /* over what follows */
    pthread_cond_t moved;
    fv_plan *plan; /* of the epoch that is being made */
    int64_t epoch, batch, shard;
    int64_t claimed, taken, freed; /* slots so far: freed <= taken <= claimed <= freed + n */
    bool quit;                     /* no further slot is claimed */
};

/* ---- making ---- */

/* Fills in which leaf of which update the next shard is; false: another rank's.  An update ends
 * with its epoch; the first epoch may begin behind the batches of an earlier run. */
static bool own_leaf(const fv_loader *f, fv_loaded *l)
{
    const fv_loader_opt *o = &f->opt;
    int64_t first = f->epoch == o->plan.rng.epoch ? o->batch : 0,
            group = o->group > 0 ? o->group : 1, start = first + (f->batch - first) / group * group,
            left = fv_plan_count(f->plan) - start, n = left < group ? left : group,
            ranks = o->ranks > 0 ? o->ranks : 1;
    l->leaf = (f->batch - start) * o->shards + f->shard;
    l->leaves = n * o->shards;
    l->next = start + n;
    return l->leaf >= l->leaves * o->rank / ranks && l->leaf < l->leaves * (o->rank + 1) / ranks;
}

/* Moves to the next batch that exists; at the end of an epoch the next one is planned. */
static fv_status next_batch(fv_loader *f, fv_err *e)
{
    while (!f->plan || f->batch >= fv_plan_count(f->plan)) {
        if (f->plan) {
            fv_plan_free(f->plan);
            f->plan = NULL;
            f->epoch++;
            f->batch = 0;
        }
        fv_plan_opt o = f->opt.plan;
        o.rng.epoch = f->epoch;
        fv_status st = fv_plan_make(&f->plan, f->env, &f->feed, o, e);
        if (st) return st;
    }
    return FV_OK;
}

/* And where batches are cut, on to the next shard that is this rank's. */
static fv_status advance(fv_loader *f, slot *s)
{
    fv_status st = next_batch(f, &s->err);
    while (!st && f->opt.shards && !own_leaf(f, &s->loaded)) {
        f->shard = (f->shard + 1) % f->opt.shards;
        f->batch += !f->shard;
        st = next_batch(f, &s->err);
    }
    return st;
}

/* The rows of the shard among the n of its batch. */
static const int32_t *cut_shard(const fv_loader *f, const int32_t *rows, int64_t *n)
{
    int64_t from = *n * f->shard / f->opt.shards;
    *n = *n * (f->shard + 1) / f->opt.shards - from;
    return rows + from;
}

/* Gives the slot its batch: which examples, of which epoch. */
static fv_status claim(fv_loader *f, slot *s)
{
    void *p = s->rows;
    s->st = advance(f, s);
    if (s->st) return s->st;
    const int32_t *rows = fv_plan_batch(f->plan, f->batch, &s->n);
    if (f->opt.shards) rows = cut_shard(f, rows, &s->n);
    size_t bytes = (size_t)s->n * sizeof *rows;
    if (!fv__grow(f->env, &p, &s->rows_bytes, bytes + 1))
        return s->st = fv_fail(&s->err, FV_ENOMEM, "batches: out of memory");
    s->rows = p;
    memcpy(s->rows, rows, bytes);
    s->loaded.epoch = f->epoch;
    s->loaded.index = f->batch;
    if (f->opt.shards) f->shard = (f->shard + 1) % f->opt.shards;
    f->batch += !f->shard;
    s->loaded.last = f->batch == fv_plan_count(f->plan);
    return FV_OK;
}

/* Makes the batch of a slot, whose memory is reused; a failure is stored there. */
static void fill(const fv_loader *f, slot *s)
{
    fv_batch_clear(&s->loaded.batch);
    if (s->st || !s->n) return;
    s->st = f->feed.make(f->feed.self, &s->loaded.batch, s->rows, s->n,
                         (fv_data_rng){f->opt.plan.rng.seed, s->loaded.epoch}, &s->err);
    if (!s->st && s->loaded.batch.err.code)
        s->st = fv_fail(&s->err, s->loaded.batch.err.code, "%s", s->loaded.batch.err.text);
}

/* A worker: waits for a free slot, claims it, fills it without the lock, publishes it.  After a
 * failure nothing more is claimed: it is the last slot that the consumer sees. */
static void *work(void *self)
{
    fv_loader *f = self;
    pthread_mutex_lock(&f->lock);
    for (;;) {
        while (!f->quit && f->claimed == f->freed + f->n) pthread_cond_wait(&f->moved, &f->lock);
        if (f->quit) break;
        int64_t number = ++f->claimed;
        slot *s = &f->ring[(number - 1) % f->n];
        if (claim(f, s)) f->quit = true;
        pthread_mutex_unlock(&f->lock);
        fill(f, s);
        pthread_mutex_lock(&f->lock);
        if (s->st) f->quit = true;
        s->number = number;
        pthread_cond_broadcast(&f->moved);
    }
    pthread_mutex_unlock(&f->lock);
    return NULL;
}

/* ---- taking ---- */

/* Batches come in the order of the plan whichever worker made them: slot i of the ring holds batch
 * i modulo its size, and its number says when it is ready. A failure is handed out again by every
 * later call. */
fv_status fv_loader_next(fv_loader *f, const fv_loaded **out, fv_err *e)
{
    if (f->failed) return fv_fail(e, f->failed->st, "%s", f->failed->err.text);
    slot *s = &f->ring[f->taken % f->n];
    if (f->workers) {
        pthread_mutex_lock(&f->lock);
        while (s->number != f->taken + 1) pthread_cond_wait(&f->moved, &f->lock);
        f->taken++;
        pthread_mutex_unlock(&f->lock);
    } else {
        claim(f, s);
        fill(f, s);
        f->taken++;
    }
    *out = &s->loaded;
    if (s->st) f->failed = s; /* nothing comes after it */
    return s->st ? fv_fail(e, s->st, "%s", s->err.text) : FV_OK;
}

/* All batches taken so far may be overwritten: their slots go back to the workers. */
void fv_loader_release(fv_loader *f)
{
    pthread_mutex_lock(&f->lock);
    f->freed = f->taken;
    pthread_cond_broadcast(&f->moved);
    pthread_mutex_unlock(&f->lock);
}

/* ---- lifetime ---- */

/* More workers than batches that are made ahead would only wait. */
static fv_status start(fv_loader *f, fv_err *e)
{
    int64_t want = f->opt.workers > 0 ? f->opt.workers : 1;
    if (want > f->opt.ahead) want = f->opt.ahead;
    if (want > MOST_WORKERS) want = MOST_WORKERS;
    while (f->workers < want) {
        int rc = pthread_create(&f->thread[f->workers], NULL, work, f);
        if (rc) return fv_fail(e, FV_ENOMEM, "batches: cannot start a thread: %s", strerror(rc));
        f->workers++;
    }
    return FV_OK;
}

/* The ring has a slot for each batch the caller holds at once and for each that is made ahead. */
fv_status fv_loader_new(fv_loader **out, const fv_env *env, const fv_feed *feed, fv_loader_opt opt,
                        fv_err *e)
{
    *out = NULL;
    fv_loader *f = fv__alloc(env, sizeof *f);
    if (!f) return fv_fail(e, FV_ENOMEM, "batches: out of memory");
    int64_t n = (opt.hold > 0 ? opt.hold : 1) + opt.ahead;
    f->env = env;
    f->feed = *feed;
    f->opt = opt;
    f->epoch = opt.plan.rng.epoch;
    f->batch = opt.batch;
    f->n = n;
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->moved, NULL);
    f->ring = fv__alloc(env, (size_t)n * sizeof *f->ring);
    for (int64_t i = 0; f->ring && i < n; i++) f->ring[i].loaded.batch.env = env;
    fv_status st = f->ring ? FV_OK : fv_fail(e, FV_ENOMEM, "batches: out of memory");
    if (!st) st = start(f, e);
    if (st)
        fv_loader_free(f);
    else
        *out = f;
    return st;
}

/* Workers leave at the next slot; one in the middle of a batch finishes it first. */
void fv_loader_free(fv_loader *f)
{
    if (!f) return;
    pthread_mutex_lock(&f->lock);
    f->quit = true;
    pthread_cond_broadcast(&f->moved);
    pthread_mutex_unlock(&f->lock);
    for (int i = 0; i < f->workers; i++) pthread_join(f->thread[i], NULL);
    fv_plan_free(f->plan);
    for (int64_t i = 0; f->ring && i < f->n; i++) {
        fv_batch_free(&f->ring[i].loaded.batch);
        fv__free(f->env, f->ring[i].rows, f->ring[i].rows_bytes);
    }
    fv__free(f->env, f->ring, (size_t)f->n * sizeof *f->ring);
    pthread_mutex_destroy(&f->lock);
    pthread_cond_destroy(&f->moved);
    fv__free(f->env, f, sizeof *f);
}
