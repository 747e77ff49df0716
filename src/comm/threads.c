/* threads.c - ranks that are threads of one process: the logic of many machines, under TSan.
 *
 * A collective is two meetings at one hub.  Between them every rank's list of what it sends is
 * visible to all, and each copies what it is sent; behind the second nobody reads any more, so the
 * memory may change.  No data is kept in the hub.  A part of the ranks (split.c) has a hub of its
 * own below that of all, and ends with it. */
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
    char dead[512];     /* why nothing goes any more; "": it goes */
    struct hub *parent; /* of all ranks; NULL: this is it */
    struct hub *child, *next;
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

/* The first reason stays; the lock is held.  Hubs below end, too: locks are taken from above. */
static void kill_hub(hub *h, int rank, const char *why)
{
    if (!*h->dead) snprintf(h->dead, sizeof h->dead, "rank %d: %.400s", rank, why);
    pthread_cond_broadcast(&h->met);
    for (hub *below = h->child; below; below = below->next) {
        pthread_mutex_lock(&below->lock);
        kill_hub(below, rank, why);
        pthread_mutex_unlock(&below->lock);
    }
}

/* local_rank: among all threads, whichever part of them c is of. */
static void stop_all(fv_comm *c, const char *why)
{
    hub *h = c->impl;
    if (h->parent) h = h->parent;
    pthread_mutex_lock(&h->lock);
    kill_hub(h, c->local_rank, why);
    pthread_mutex_unlock(&h->lock);
}

static void free_hub(hub *h)
{
    fv_env env = h->env;
    hub *above = h->parent;
    if (above) pthread_mutex_lock(&above->lock);
    for (hub **at = above ? &above->child : NULL; at && *at; at = *at ? &(*at)->next : at)
        if (*at == h) *at = h->next;
    if (above) pthread_mutex_unlock(&above->lock);
    pthread_mutex_destroy(&h->lock);
    pthread_cond_destroy(&h->met);
    fv__free(&env, h, sizeof *h + (size_t)h->size * sizeof *h->sent);
}

/* Whoever waits for a rank that has left would wait for ever. */
static void close_threads(fv_comm *c)
{
    hub *h = c->impl;
    pthread_mutex_lock(&h->lock);
    if (h->arrived) kill_hub(h, c->local_rank, "has left");
    int left = --h->users;
    /* from now on a meeting of all can no longer be */
    if (left && !*h->dead) snprintf(h->dead, sizeof h->dead, "rank %d: has left", c->local_rank);
    pthread_mutex_unlock(&h->lock);
    if (!left) free_hub(h);
}

static hub *hub_new(const fv_env *env, int n)
{
    hub *h = fv__alloc(env, sizeof(hub) + (size_t)n * sizeof(list));
    if (!h) return NULL;
    if (env) h->env = *env;
    h->size = h->users = n;
    pthread_mutex_init(&h->lock, NULL);
    pthread_cond_init(&h->met, NULL);
    return h;
}

static void hang_below(hub *h, hub *above)
{
    pthread_mutex_lock(&above->lock);
    h->parent = above;
    h->next = above->child;
    above->child = h;
    pthread_mutex_unlock(&above->lock);
}

/* The first member makes the hub; its address goes to all by the hub above.  It hangs there before
 * anybody else knows of it, so that no failure is missed. */
static fv_status split(fv_comm *out, fv_comm *c, const int *member, int n, fv_err *e)
{
    hub *all[64] = {0};
    fv_comm_part part[64];
    for (int r = 0; r < c->size; r++) part[r] = (fv_comm_part){r, &all[r], sizeof *all};
    hub *h = all[c->rank] = c->rank == member[0] ? hub_new(&c->env, n) : NULL;
    if (h) hang_below(h, c->impl);
    fv_status st = fv_comm_all_gather(c, part, e);
    if (!st && !all[member[0]]) st = fv_fail(e, FV_ENOMEM, "ranks: out of memory");
    out->impl = all[member[0]];
    if (st && h) free_hub(h);
    return st;
}

static const fv__comm_table table = {.name = "threads",
                                     .exchange = exchange,
                                     .barrier = barrier,
                                     .stop = stop_all,
                                     .close = close_threads,
                                     .split = split};

/* All n communicators are made together, one for each thread; the last that closes frees the
 * hub. */
fv_status fv_comm_threads(fv_comm **out, int n, const fv_env *env, fv_err *e)
{
    if (n < 1 || n > 64) return fv_fail(e, FV_EARG, "ranks: %d threads, expected 1 to 64", n);
    hub *h = hub_new(env, n);
    bool ok = h;
    for (int i = 0; i < n; i++) {
        out[i] = ok ? fv__comm_new(env, &table, 0) : NULL;
        ok = ok && out[i];
        if (!out[i]) continue;
        out[i]->rank = out[i]->local_rank = i;
        out[i]->size = out[i]->local_size = n;
        out[i]->impl = h;
    }
    if (ok) return FV_OK;
    for (int i = 0; i < n; i++)
        if (out[i]) fv__comm_free(out[i]);
    for (int i = 0; i < n; i++) out[i] = NULL;
    if (h) free_hub(h);
    return fv_fail(e, FV_ENOMEM, "ranks: out of memory");
}
