/* overlap.c - buckets of gradients on their way while backward still runs.
 *
 * The tape says when the gradient of a parameter is final (core/tape.c).  A bucket is final when
 * all its parameters are; a thread then merges it with the nodes it completes, sends it and adds
 * up this rank's share.  All ranks must take the buckets in one order, and a bucket that is not
 * final holds up those behind it, so the order is the one in which buckets became final in the
 * first update of rank 0.  It changes when things are sent, never what is added.
 *
 * What is final and not yet sent is memory (ZeRO-2 gives it back): backward waits while more than
 * FV__UNDER_WAY buckets are, as long as the thread has one to send.  It would not be sooner done
 * if it ran ahead of the network.
 *
 *     main      backward of the last leaf ........... | waits | loss, norm, update
 *     thread          bucket 7   bucket 6   bucket 5 .. bucket 0 |
 * / */
#include <pthread.h>

#include "core/params.h"
#include "train/reduce.h"
#include "train/sharded.h"

struct fv__overlap {
    fv__ranks *r;
    pthread_t thread;
    bool running;
    int64_t *order; /* of the buckets */
    bool learnt;    /* it is rank 0's */
    bool at_once;   /* no thread: a bucket is reduced by whoever closes it */
    fv__mail mail;  /* then */

    pthread_mutex_t lock; /* over what follows */
    pthread_cond_t moved;
    int64_t *open; /* of each bucket: parameters that are not final */
    int64_t *seen; /* buckets as they became final */
    int64_t n_seen, n_reduced;
    bool starved; /* the thread waits for a bucket that is not final */
    bool begun, done, quit;
    double seconds; /* of communication by the thread */
    fv_status st;
    fv_err err;
};

/* ---- which parameters stand in a bucket ---- */

static int64_t bucket_size(const fv__ranks *r) { return r->shares.per_rank * r->shares.ranks; }

/* A parameter may lie in several buckets, and a bucket hold several parameters. */
static void buckets_of(const fv__ranks *r, const fv_tensor *t, int64_t *first, int64_t *last)
{
    int64_t from = ((const fv_entry *)t)->offset;
    *first = from / bucket_size(r);
    *last = (from + fv_len(t) - 1) / bucket_size(r);
}

/* Every parameter that has a gradient is open, whether this leaf reaches it or not. */
static void open_all(fv__overlap *o)
{
    const fv_params *p = o->r->params;
    memset(o->open, 0, (size_t)o->r->shares.buckets * sizeof *o->open);
    for (int i = 0; i < fv_params_count(p); i++) {
        const fv_tensor *t = fv_params_at(p, i);
        int64_t b, last;
        if (!t->grad) continue;
        for (buckets_of(o->r, t, &b, &last); b <= last; b++) o->open[b]++;
    }
}

/* All gradients of the bucket are final: the thread may send it. */
static void close_bucket(fv__overlap *o, int64_t b)
{
    o->open[b] = 0;
    o->seen[o->n_seen++] = b;
    pthread_cond_broadcast(&o->moved);
}

/* Where ranks share the parameters, backward itself talks to them, in an order that all have: so
 * must what is sent. */
static void reduce_at_once(fv__overlap *o, int64_t b)
{
    o->open[b] = -1;
    if (!o->st)
        o->st = fv__reduce_bucket(o->r, &o->mail, o->r->stack[o->r->depth - 1].grad, b, &o->err);
}

static void on_final_at_once(void *self, const fv_tensor *t)
{
    fv__overlap *o = self;
    int64_t b, last;
    if (!t->grad || !t->has_grad) return;
    for (buckets_of(o->r, t, &b, &last); b <= last; b++)
        if (!--o->open[b]) reduce_at_once(o, b);
}

static fv_status begin_at_once(fv__overlap *o, fv_ctx *c, fv_err *e)
{
    open_all(o);
    o->st = FV_OK;
    c->on_final = on_final_at_once;
    c->final_user = o;
    return fv__mail_new(&o->mail, o->r, e);
}

/* What backward did not close: buckets of padding, or all where it recomputes. */
static fv_status end_at_once(fv__overlap *o, fv_err *e)
{
    for (int64_t b = 0; b < o->r->shares.buckets; b++)
        if (o->open[b] >= 0) reduce_at_once(o, b);
    fv__mail_free(&o->mail, o->r);
    return o->st ? fv_fail(e, o->st, "%s", o->err.text) : FV_OK;
}

/* Called by backward, in the thread that computes. */
static void on_final(void *self, const fv_tensor *t)
{
    fv__overlap *o = self;
    int64_t b, last;
    /* one that no gradient has reached is zeroed when backward is done */
    if (!t->grad || !t->has_grad) return;
    pthread_mutex_lock(&o->lock);
    for (buckets_of(o->r, t, &b, &last); b <= last; b++)
        if (!--o->open[b]) close_bucket(o, b);
    double from = fv__trace_now(o->r->trace);
    bool waited = false;
    for (; o->n_seen - o->n_reduced > FV__UNDER_WAY && !o->starved && !o->done && !o->quit;
         waited = true)
        pthread_cond_wait(&o->moved, &o->lock);
    pthread_mutex_unlock(&o->lock);
    if (waited) fv__trace_add(o->r->trace, FV__TRACK_MAIN, "wait for buckets", o->r->step, from);
}

/* ---- the thread ---- */

/* Waits for bucket b; false: the update failed. */
static bool wait_for_bucket(fv__overlap *o, int64_t b)
{
    pthread_mutex_lock(&o->lock);
    o->starved = o->open[b];
    if (o->starved) pthread_cond_broadcast(&o->moved);
    while (o->open[b] && !o->quit) pthread_cond_wait(&o->moved, &o->lock);
    o->starved = false;
    bool ok = !o->quit;
    pthread_mutex_unlock(&o->lock);
    return ok;
}

/* In the order that all ranks agreed on; a bucket that is not closed yet is waited for. */
static fv_status reduce_all(fv__overlap *o, double *seconds, fv_err *e)
{
    fv__ranks *r = o->r;
    fv__mail m;
    double before, after, bytes;
    float *grad = r->stack[r->depth - 1].grad;
    fv_comm_spent(r->comm, &before, &bytes);
    fv_status st = fv__mail_new(&m, r, e);
    for (int64_t i = 0; !st && i < r->shares.buckets; i++) {
        if (!wait_for_bucket(o, o->order[i]))
            st = fv_fail(e, FV_ESTATE, "ranks: the update was given up");
        if (!st) st = fv__reduce_bucket(r, &m, grad, o->order[i], e);
        pthread_mutex_lock(&o->lock);
        o->n_reduced++;
        pthread_cond_broadcast(&o->moved);
        pthread_mutex_unlock(&o->lock);
    }
    fv__mail_free(&m, r);
    fv_comm_spent(r->comm, &after, &bytes);
    *seconds = after - before;
    return st;
}

static void *work(void *self)
{
    fv__overlap *o = self;
    pthread_mutex_lock(&o->lock);
    for (;;) {
        while (!o->begun && !o->quit) pthread_cond_wait(&o->moved, &o->lock);
        if (o->quit) break;
        o->begun = false;
        pthread_mutex_unlock(&o->lock);
        fv_err err = {0};
        double seconds = 0;
        fv_status st = reduce_all(o, &seconds, &err);
        pthread_mutex_lock(&o->lock);
        o->st = st;
        o->err = err;
        o->seconds = seconds;
        o->done = true;
        pthread_cond_broadcast(&o->moved);
    }
    pthread_mutex_unlock(&o->lock);
    return NULL;
}

/* ---- an update ---- */

/* Before the backward pass of the last leaf: only then do gradients become final. */
fv_status fv__overlap_begin(fv__overlap *o, fv_ctx *c, fv_err *e)
{
    if (o->at_once) return begin_at_once(o, c, e);
    if (!o->running) {
        int rc = pthread_create(&o->thread, NULL, work, o);
        if (rc) return fv_fail(e, FV_ENOMEM, "ranks: cannot start a thread: %s", strerror(rc));
        o->running = true;
    }
    pthread_mutex_lock(&o->lock);
    open_all(o);
    o->n_seen = o->n_reduced = 0;
    o->starved = false;
    o->done = false;
    o->begun = true;
    pthread_cond_broadcast(&o->moved);
    pthread_mutex_unlock(&o->lock);
    c->on_final = on_final;
    c->final_user = o;
    return FV_OK;
}

/* All ranks take the order of rank 0, completed by what no backward had reported. */
static fv_status learn_order(fv__overlap *o, fv_err *e)
{
    if (o->learnt) return FV_OK;
    o->learnt = true;
    memcpy(o->order, o->seen, (size_t)o->r->shares.buckets * sizeof *o->order);
    return fv_comm_broadcast(o->r->comm, o->order, (size_t)o->r->shares.buckets * sizeof *o->order,
                             0, e);
}

/* What was sent while the backward pass ran counts as hidden; the rest is what this call waits
 * for. */
fv_status fv__overlap_end(fv__overlap *o, fv_err *e)
{
    if (o->at_once) return end_at_once(o, e);
    double waits = fv__comm_now();
    pthread_mutex_lock(&o->lock);
    for (int64_t b = 0; b < o->r->shares.buckets; b++)
        if (o->open[b]) close_bucket(o, b);
    /* buckets of padding alone were never open */
    for (int64_t b = 0; b < o->r->shares.buckets && o->n_seen < o->r->shares.buckets; b++) {
        int64_t i = 0;
        while (i < o->n_seen && o->seen[i] != b) i++;
        if (i == o->n_seen) o->seen[o->n_seen++] = b;
    }
    pthread_cond_broadcast(&o->moved);
    while (!o->done) pthread_cond_wait(&o->moved, &o->lock);
    fv_status st = o->st ? fv_fail(e, o->st, "%s", o->err.text) : FV_OK;
    double seconds = o->seconds;
    pthread_mutex_unlock(&o->lock);
    waits = fv__comm_now() - waits;
    if (seconds > waits) o->r->hidden += seconds - waits;
    return st ? st : learn_order(o, e);
}

/* ---- lifetime ---- */

/* Before it is known: layers from the last to the first, then vectors, which stand behind all
 * matrices in the block and are final only with the first layer. */
static void guess_order(fv__overlap *o)
{
    const fv_params *p = o->r->params;
    int64_t matrices = 0, n = o->r->shares.buckets;
    for (int i = 0; i < fv_params_count(p); i++) {
        const fv_tensor *t = fv_params_at(p, i);
        int64_t end = ((const fv_entry *)t)->offset + fv_len(t);
        if (t->shape.n > 1 && t->grad && end > matrices) matrices = end;
    }
    matrices /= bucket_size(o->r);
    if (matrices > n) matrices = n;
    for (int64_t i = 0; i < n; i++) o->order[i] = i < matrices ? matrices - 1 - i : i;
}

fv_status fv__overlap_new(fv__overlap **out, fv__ranks *r, fv_err *e)
{
    size_t n = (size_t)r->shares.buckets;
    fv__overlap *o = *out = fv__alloc(&r->dev->env, sizeof *o);
    if (!o) return fv_fail(e, FV_ENOMEM, "ranks: out of memory");
    o->r = r;
    o->at_once = fv__sharded_of(r->params);
    pthread_mutex_init(&o->lock, NULL);
    pthread_cond_init(&o->moved, NULL);
    o->order = fv__alloc(&r->dev->env, 3 * n * sizeof *o->order);
    if (!o->order) return fv_fail(e, FV_ENOMEM, "ranks: out of memory");
    o->open = o->order + n;
    o->seen = o->open + n;
    guess_order(o);
    return FV_OK;
}

/* A thread that waits for other ranks ends when the job has failed (fv_comm_abort) or they send. */
void fv__overlap_free(fv__overlap *o)
{
    if (!o) return;
    fv_env env = o->r->dev->env;
    pthread_mutex_lock(&o->lock);
    o->quit = true;
    pthread_cond_broadcast(&o->moved);
    pthread_mutex_unlock(&o->lock);
    if (o->running) pthread_join(o->thread, NULL);
    pthread_mutex_destroy(&o->lock);
    pthread_cond_destroy(&o->moved);
    fv__free(&env, o->order, 3 * (size_t)o->r->shares.buckets * sizeof *o->order);
    fv__free(&env, o, sizeof *o);
}
