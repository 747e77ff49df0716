/* threads.c - ranks that are threads of one process: the logic of many machines, under TSan.
 *
 * A collective is two meetings at one hub.  Between them every rank's list of what it sends is
 * visible to all, and each copies what it is sent; behind the second nobody reads any more, so the
 * memory may change.  No data is kept in the hub. */
#include <pthread.h>
#include <stdio.h>

#include "comm/comm.h"

typedef struct list {
    const fv_comm_part *part;
    int n;
} list;

/* Where the threads of one process meet.  sent: what each rank offers in the exchange under way; it
 * lies in the sender's memory until the second meeting. */
typedef struct hub {
    fv_env env;
    pthread_mutex_t lock; /* over what follows */
    pthread_cond_t met;
    int size, arrived, users;
    uint64_t meetings;
    char dead[512]; /* why nothing goes any more; "": it goes */
    list sent[];
} hub;

static fv_status failed(const hub *h, fv_err *e) { return fv_fail(e, FV_EDEVICE, "%s", h->dead); }

/* Waits until all ranks are here; the lock is held. */
static fv_status meet(hub *h, fv_err *e)
{
    uint64_t now = h->meetings;
    if (!*h->dead && ++h->arrived == h->size) {
        h->arrived = 0;
        h->meetings++;
        pthread_cond_broadcast(&h->met);
    }
    while (!*h->dead && h->meetings == now) pthread_cond_wait(&h->met, &h->lock);
    /* a meeting that took place counts, whatever happened since */
    return h->meetings != now ? FV_OK : failed(h, e);
}

/* What rank `from` sends to `to` as its k-th part; NULL: nothing. */
static const fv_comm_part *sent_by(const hub *h, int from, int to, int k)
{
    for (int i = 0; i < h->sent[from].n; i++)
        if (h->sent[from].part[i].rank == to && !k--) return &h->sent[from].part[i];
    return NULL;
}

/* Copies part i of what comes; false where it was not sent so. */
static bool copy_part(const fv_comm *c, const hub *h, const fv_comm_part *recv, int i)
{
    int k = 0;
    for (int j = 0; j < i; j++) k += recv[j].rank == recv[i].rank;
    const fv_comm_part *p = sent_by(h, recv[i].rank, c->rank, k);
    if (!p || p->bytes != recv[i].bytes) return false;
    if (p->bytes && p->data != recv[i].data) memcpy(recv[i].data, p->data, p->bytes);
    return true;
}

/* Two meetings: all lists are there, and all have been copied from.  No buffer is needed in
 * between. */
static fv_status exchange(fv_comm *c, const fv_comm_part *send, int n_send,
                          const fv_comm_part *recv, int n_recv, fv_err *e)
{
    hub *h = c->impl;
    pthread_mutex_lock(&h->lock);
    h->sent[c->rank] = (list){send, n_send};
    fv_status st = meet(h, e);
    pthread_mutex_unlock(&h->lock);
    if (st) return st;
    bool ok = true;
    for (int i = 0; i < n_recv && ok; i++) ok = copy_part(c, h, recv, i);
    if (!ok) c->table->stop(c, "it was sent other parts than it expected");
    pthread_mutex_lock(&h->lock);
    st = meet(h, e);
    pthread_mutex_unlock(&h->lock);
    return st;
}

/* A meeting alone. */
static fv_status barrier(fv_comm *c, fv_err *e)
{
    hub *h = c->impl;
    pthread_mutex_lock(&h->lock);
    fv_status st = meet(h, e);
    pthread_mutex_unlock(&h->lock);
    return st;
}

/* The first reason stays; the lock is held. */
static void kill_hub(hub *h, int rank, const char *why)
{
    if (!*h->dead) snprintf(h->dead, sizeof h->dead, "rank %d: %.400s", rank, why);
    pthread_cond_broadcast(&h->met);
}

static void stop_all(fv_comm *c, const char *why)
{
    hub *h = c->impl;
    pthread_mutex_lock(&h->lock);
    kill_hub(h, c->rank, why);
    pthread_mutex_unlock(&h->lock);
}

/* Whoever waits for a rank that has left would wait for ever. */
static void close_threads(fv_comm *c)
{
    hub *h = c->impl;
    pthread_mutex_lock(&h->lock);
    if (h->arrived) kill_hub(h, c->rank, "has left");
    int left = --h->users;
    /* from now on a meeting of all can no longer be */
    if (left && !*h->dead) snprintf(h->dead, sizeof h->dead, "rank %d: has left", c->rank);
    pthread_mutex_unlock(&h->lock);
    if (left) return;
    pthread_mutex_destroy(&h->lock);
    pthread_cond_destroy(&h->met);
    fv_env env = h->env;
    fv__free(&env, h, sizeof *h + (size_t)h->size * sizeof *h->sent);
}

static const fv__comm_table table = {.name = "threads",
                                     .exchange = exchange,
                                     .barrier = barrier,
                                     .stop = stop_all,
                                     .close = close_threads};

/* All n communicators are made together, one for each thread; the last that closes frees the
 * hub. */
fv_status fv_comm_threads(fv_comm **out, int n, const fv_env *env, fv_err *e)
{
    size_t bytes = sizeof(hub) + (size_t)n * sizeof(list);
    if (n < 1 || n > 64) return fv_fail(e, FV_EARG, "ranks: %d threads, expected 1 to 64", n);
    hub *h = fv__alloc(env, bytes);
    bool ok = h;
    for (int i = 0; i < n; i++) {
        out[i] = ok ? fv__comm_new(env, &table, 0) : NULL;
        ok = ok && out[i];
        if (!out[i]) continue;
        out[i]->rank = out[i]->local_rank = i;
        out[i]->size = out[i]->local_size = n;
        out[i]->impl = h;
    }
    if (ok) {
        if (env) h->env = *env;
        h->size = h->users = n;
        pthread_mutex_init(&h->lock, NULL);
        pthread_cond_init(&h->met, NULL);
        return FV_OK;
    }
    for (int i = 0; i < n; i++)
        if (out[i]) fv__comm_free(out[i]);
    for (int i = 0; i < n; i++) out[i] = NULL;
    fv__free(env, h, bytes);
    return fv_fail(e, FV_ENOMEM, "ranks: out of memory");
}
