/* loader.c - the batches of epoch after epoch, in order, prefetched by a thread.
 *
 * A ring buffer of slots with one producer and one consumer: the producer fills them in order, the
 * consumer takes them in order and releases all it holds at once.  Three counters of slots
 * (made, taken, freed) are all the shared state.  Which batch comes next depends on counting alone,
 * so prefetching changes when a batch is made, never what is in it.  Without prefetching
 * (ahead = 0) there is no thread, and fv_loader_next fills the slot itself. */
#include <pthread.h>

#include "base/base.h"
#include "fovea/author/feed.h"

typedef struct slot {
    fv_loaded loaded;
    fv_status st;
    fv_err err;
} slot;

struct fv_loader {
    const fv_env *env;
    fv_feed feed;
    fv_loader_opt opt;
    fv_plan *plan; /* of the maker, as are epoch and batch */
    int64_t epoch, batch;
    slot *ring;
    int64_t n; /* slots */
    slot *failed;

    bool threaded;
    pthread_t thread;
    pthread_mutex_t lock; /* over what follows */
    pthread_cond_t moved;
    int64_t made, taken, freed; /* slots so far: freed <= taken <= made <= freed + n */
    bool quit;
};

/* ---- making ---- */

/* Moves to the next batch that exists; at the end of an epoch the next one is planned. */
static fv_status advance(fv_loader *f, fv_err *e)
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

/* Makes the next batch in a slot, whose memory is reused; a failure is stored there. */
static void fill(fv_loader *f, slot *s)
{
    int64_t n;
    fv_batch_clear(&s->loaded.batch);
    s->st = advance(f, &s->err);
    if (s->st) return;
    const int32_t *rows = fv_plan_batch(f->plan, f->batch, &n);
    s->loaded.epoch = f->epoch;
    s->loaded.index = f->batch++;
    s->loaded.last = f->batch == fv_plan_count(f->plan);
    s->st = f->feed.make(f->feed.self, &s->loaded.batch, rows, n,
                         (fv_data_rng){f->opt.plan.rng.seed, f->epoch}, &s->err);
    if (!s->st && s->loaded.batch.err.code)
        s->st = fv_fail(&s->err, s->loaded.batch.err.code, "%s", s->loaded.batch.err.text);
}

/* The producer: waits for a free slot, fills it without the lock, publishes it.  It ends after a
 * failure, which is the last slot that the consumer sees. */
static void *work(void *self)
{
    fv_loader *f = self;
    for (bool failed = false; !failed;) {
        pthread_mutex_lock(&f->lock);
        while (!f->quit && f->made == f->freed + f->n) pthread_cond_wait(&f->moved, &f->lock);
        bool quit = f->quit;
        slot *s = &f->ring[f->made % f->n];
        pthread_mutex_unlock(&f->lock);
        if (quit) break;
        fill(f, s);
        failed = s->st != FV_OK;
        pthread_mutex_lock(&f->lock);
        f->made++;
        pthread_cond_broadcast(&f->moved);
        pthread_mutex_unlock(&f->lock);
    }
    return NULL;
}

/* ---- taking ---- */

fv_status fv_loader_next(fv_loader *f, const fv_loaded **out, fv_err *e)
{
    if (f->failed) return fv_fail(e, f->failed->st, "%s", f->failed->err.text);
    slot *s = &f->ring[f->taken % f->n];
    if (f->threaded) {
        pthread_mutex_lock(&f->lock);
        while (f->made == f->taken) pthread_cond_wait(&f->moved, &f->lock);
        f->taken++;
        pthread_mutex_unlock(&f->lock);
    } else {
        fill(f, s);
        f->taken++;
    }
    *out = &s->loaded;
    if (s->st) f->failed = s; /* nothing comes after it */
    return s->st ? fv_fail(e, s->st, "%s", s->err.text) : FV_OK;
}

void fv_loader_release(fv_loader *f)
{
    pthread_mutex_lock(&f->lock);
    f->freed = f->taken;
    pthread_cond_broadcast(&f->moved);
    pthread_mutex_unlock(&f->lock);
}

/* ---- lifetime ---- */

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
    if (!st && opt.ahead > 0) {
        int rc = pthread_create(&f->thread, NULL, work, f);
        f->threaded = !rc;
        if (rc) st = fv_fail(e, FV_ENOMEM, "batches: cannot start a thread: %s", strerror(rc));
    }
    if (st)
        fv_loader_free(f);
    else
        *out = f;
    return st;
}

void fv_loader_free(fv_loader *f)
{
    if (!f) return;
    if (f->threaded) {
        pthread_mutex_lock(&f->lock);
        f->quit = true;
        pthread_cond_broadcast(&f->moved);
        pthread_mutex_unlock(&f->lock);
        pthread_join(f->thread, NULL);
    }
    fv_plan_free(f->plan);
    for (int64_t i = 0; f->ring && i < f->n; i++) fv_batch_free(&f->ring[i].loaded.batch);
    fv__free(f->env, f->ring, (size_t)f->n * sizeof *f->ring);
    pthread_mutex_destroy(&f->lock);
    pthread_cond_destroy(&f->moved);
    fv__free(f->env, f, sizeof *f);
}
