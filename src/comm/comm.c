/* comm.c - communicators: the calls of the public headers, over whichever engine carries the bytes.
 * A communicator of one rank is NULL here, so a run without mpirun takes no other way than one with
 * it.
 *
 * An engine (mpi.c, tcp.c, threads.c) must be able to exchange parts between ranks; every other
 * collective it may leave out, and gets by exchanges (collectives.c).  So an engine that is only
 * correct is a few functions, and one that is fast overrides what its library does better.  Time
 * and bytes are counted here, once for all engines: what a trace calls communication is the time
 * that the calling thread spends in these functions, hidden behind computing or not. */
#include "comm/comm.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define TIMEOUT 20 /* seconds of silence: all ranks have stopped within 30 */

double fv__comm_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* An engine fills in rank and size; the timeout is the caller's, the environment's or ours. */
fv_comm *fv__comm_new(const fv_env *env, const fv__comm_table *table, double timeout)
{
    fv_comm *c = fv__alloc(env, sizeof *c);
    if (!c) return NULL;
    *c = (fv_comm){.table = table, .size = 1, .local_size = 1};
    int set = fv__env_int("FOVEA_RANK_TIMEOUT");
    c->timeout = timeout > 0 ? timeout : set > 0 ? set : TIMEOUT;
    if (env) c->env = *env;
    pthread_mutex_init(&c->lost_lock, NULL);
    return c;
}

void fv__comm_free(fv_comm *c)
{
    fv_env env = c->env;
    pthread_mutex_destroy(&c->lost_lock);
    fv__free(&env, c, sizeof *c);
}

void fv__comm_on_lost(fv_comm *c, void (*fn)(void *user), void *user)
{
    if (!c) return;
    pthread_mutex_lock(&c->lost_lock);
    c->on_lost = fn;
    c->lost_user = user;
    pthread_mutex_unlock(&c->lost_lock);
}

void fv__comm_tell_lost(fv_comm *c)
{
    pthread_mutex_lock(&c->lost_lock);
    if (c->on_lost) c->on_lost(c->lost_user);
    c->on_lost = NULL;
    pthread_mutex_unlock(&c->lost_lock);
}

/* ---- opening ---- */

fv_status fv_comm_open(fv_comm **out, const fv_env *env, fv_comm_opt o, fv_err *e)
{
    static const char *const engines[] = {"auto", "self", "mpi", "tcp", NULL};
    const char *set = getenv("FOVEA_RANKS"), *name = o.engine      ? o.engine
                                                     : set && *set ? set
                                                                   : "auto";
    fv__launch launch = fv__launch_of_env();
    *out = NULL;
    if (!strcmp(name, "self")) return FV_OK;
    if (!strcmp(name, "mpi")) return fv__comm_mpi(out, env, &o, e);
    if (!strcmp(name, "tcp")) return fv__comm_tcp(out, env, &o, e);
    if (strcmp(name, "auto")) {
        const char *near = fv_closest(name, engines);
        return fv_fail(e, FV_EARG, "ranks: there is no engine \"%.60s\"%s%s%s", name,
                       near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
    }
    if (launch.size < 2) return FV_OK;
    return (launch.mpi ? fv__comm_mpi : fv__comm_tcp)(out, env, &o, e);
}

void fv_comm_close(fv_comm *c)
{
    if (!c) return;
    c->table->close(c);
    fv__comm_free(c);
}

int fv_comm_rank(const fv_comm *c) { return c ? c->rank : 0; }
int fv_comm_size(const fv_comm *c) { return c ? c->size : 1; }
int fv_comm_local_rank(const fv_comm *c) { return c ? c->local_rank : 0; }
int fv_comm_local_size(const fv_comm *c) { return c ? c->local_size : 1; }
const char *fv_comm_engine(const fv_comm *c) { return c ? c->table->name : "self"; }

void fv_comm_abort(fv_comm *c, const char *why)
{
    if (c) c->table->stop(c, why);
}

void fv_comm_spent(const fv_comm *c, double *seconds, double *bytes)
{
    *seconds = c ? c->seconds : 0;
    *bytes = c ? c->bytes : 0;
}

/* ---- collectives ---- */

/* A part for oneself is a copy, no traffic. */
static void count_sent(fv_comm *c, const fv_comm_part *send, int n)
{
    for (int i = 0; i < n; i++)
        if (send[i].rank != c->rank) c->bytes += (double)send[i].bytes;
}

fv_status fv_comm_exchange(fv_comm *c, const fv_comm_part *send, int n_send,
                           const fv_comm_part *recv, int n_recv, fv_err *e)
{
    if (!c) {
        for (int i = 0; i < n_send && i < n_recv; i++)
            if (recv[i].data != send[i].data && recv[i].bytes)
                memcpy(recv[i].data, send[i].data, recv[i].bytes);
        return FV_OK;
    }
    double from = fv__comm_now();
    fv_status st = c->table->exchange(c, send, n_send, recv, n_recv, e);
    count_sent(c, send, n_send);
    c->seconds += fv__comm_now() - from;
    return st;
}

fv_status fv_comm_all_gather(fv_comm *c, const fv_comm_part *part, fv_err *e)
{
    if (!c) return FV_OK;
    double from = fv__comm_now();
    fv_status st = c->table->all_gather ? c->table->all_gather(c, part, e)
                                        : fv__exchange_gather(c, part, &c->bytes, e);
    c->seconds += fv__comm_now() - from;
    return st;
}

fv_status fv_comm_broadcast(fv_comm *c, void *data, size_t bytes, int root, fv_err *e)
{
    if (!c) return FV_OK;
    double from = fv__comm_now();
    fv_status st = (c->table->broadcast ? c->table->broadcast
                                        : fv__exchange_broadcast)(c, data, bytes, root, e);
    c->seconds += fv__comm_now() - from;
    return st;
}

fv_status fv_comm_all_reduce(fv_comm *c, float *data, int64_t n, fv_err *e)
{
    if (!c) return FV_OK;
    double from = fv__comm_now();
    fv_status st = (c->table->all_reduce ? c->table->all_reduce : fv__exchange_all_reduce)(c, data,
                                                                                           n, e);
    /* as reduce-scatter and all-gather send them, whatever the engine does */
    c->bytes += 2.0 * (double)n * sizeof *data;
    c->seconds += fv__comm_now() - from;
    return st;
}

fv_status fv_comm_reduce_scatter(fv_comm *c, float *data, const int64_t *from, const int64_t *n,
                                 fv_err *e)
{
    if (!c) return FV_OK;
    double start = fv__comm_now();
    fv_status st = (c->table->reduce_scatter ? c->table->reduce_scatter
                                             : fv__exchange_reduce_scatter)(c, data, from, n, e);
    for (int r = 0; r < c->size; r++)
        if (r != c->rank) c->bytes += (double)n[r] * sizeof *data;
    c->seconds += fv__comm_now() - start;
    return st;
}

fv_status fv_comm_barrier(fv_comm *c, fv_err *e)
{
    if (!c) return FV_OK;
    double from = fv__comm_now();
    fv_status st = (c->table->barrier ? c->table->barrier : fv__exchange_barrier)(c, e);
    c->seconds += fv__comm_now() - from;
    return st;
}

/* ---- agreement ---- */

/* What a rank has to say before all go on: a status and the sentence of its error.  Ranks meet at
 * points where any of them may have failed (opening data, writing a checkpoint); without a meeting
 * the others would wait in the next collective until their timeout, and name the wrong cause. */
typedef struct opinion {
    int32_t status;
    char text[508];
} opinion;

/* A rank that has failed keeps its own error; the others get that of the lowest rank that has. */
fv_status fv_comm_agree(fv_comm *c, fv_status mine, fv_err *e)
{
    if (!c) return mine;
    size_t bytes = (size_t)c->size * (sizeof(opinion) + sizeof(fv_comm_part));
    opinion *all = fv__alloc(&c->env, bytes);
    if (!all) {
        fv_comm_abort(c, "out of memory");
        return mine ? mine : fv_fail(e, FV_ENOMEM, "ranks: out of memory");
    }
    fv_comm_part *part = (fv_comm_part *)(void *)(all + c->size);
    for (int r = 0; r < c->size; r++) part[r] = (fv_comm_part){r, &all[r], sizeof *all};
    opinion *own = &all[c->rank];
    own->status = (int32_t)mine;
    if (mine) snprintf(own->text, sizeof own->text, "%.*s", 480, e ? e->text : "failed");
    fv_status st = fv_comm_all_gather(c, part, mine ? NULL : e);
    int bad = 0;
    while (!st && bad < c->size && !all[bad].status) bad++;
    if (!st && bad < c->size) {
        st = (fv_status)all[bad].status;
        /* its own sentence needs no number in front */
        if (bad != c->rank) fv_fail(e, st, "rank %d: %s", bad, all[bad].text);
    }
    fv__free(&c->env, all, bytes);
    return mine ? mine : st;
}

void fv_comm_free_text(const fv_env *env, char *all, size_t len)
{
    if (all) fv__free(env, all, len + 1);
}

/* Lengths first, then the texts, to rank 0. */
fv_status fv_comm_gather_text(fv_comm *c, const fv_env *env, const char *mine, size_t n, char **all,
                              size_t *len, fv_err *e)
{
    int size = fv_comm_size(c), rank = fv_comm_rank(c);
    size_t bytes = (size_t)size * (sizeof(uint64_t) + sizeof(fv_comm_part)), total = 0;
    uint64_t *length = fv__alloc(env, bytes);
    *all = NULL;
    *len = 0;
    if (!length) return fv_fail(e, FV_ENOMEM, "ranks: out of memory");
    fv_comm_part *part = (fv_comm_part *)(void *)(length + size),
                 send = {0, (void *)(uintptr_t)mine, n};
    for (int r = 0; r < size; r++) part[r] = (fv_comm_part){r, &length[r], sizeof *length};
    length[rank] = n;
    fv_status st = fv_comm_all_gather(c, part, e);
    for (int r = 0; r < size; r++) total += (size_t)length[r];
    if (!st && !rank && !(*all = fv__alloc_raw(env, total + 1)))
        st = fv_fail(e, FV_ENOMEM, "ranks: out of memory for %zu bytes of results", total);
    if (st == FV_ENOMEM) fv_comm_abort(c, "out of memory");
    for (int r = 0; !st && !rank && r < size; r++) {
        part[r] = (fv_comm_part){r, *all + *len, (size_t)length[r]};
        *len += (size_t)length[r];
    }
    if (!st) st = fv_comm_exchange(c, &send, 1, part, rank ? 0 : size, e);
    if (!st && !rank) (*all)[*len] = 0;
    if (st && *all) {
        fv__free(env, *all, total + 1);
        *all = NULL;
    }
    fv__free(env, length, bytes);
    return st;
}
