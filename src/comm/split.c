/* split.c - a part of the ranks as a communicator of its own: ranks that share a model, and those
 * that have the same part of it.
 *
 *     tensor parallel 2 of 6 ranks     {0 1} {2 3} {4 5}     colour = rank / 2
 *     data parallel                    {0 2 4} {1 3 5}       colour = rank % 2
 *
 * Exchanges are those of all ranks, with other numbers; collectives are made of them
 * (collectives.c).  MPI could split its communicators itself; its collectives would be faster, and
 * each would need heartbeats of its own or a way to those of all. */
#include "comm/comm.h"

typedef struct group {
    fv_comm *all;
    int member[]; /* their ranks in `all` */
} group;

static size_t group_bytes(int n) { return sizeof(group) + (size_t)n * sizeof(int); }

static fv_status exchange(fv_comm *c, const fv_comm_part *send, int n_send,
                          const fv_comm_part *recv, int n_recv, fv_err *e)
{
    const group *g = c->impl;
    size_t bytes = (size_t)(n_send + n_recv) * sizeof(fv_comm_part);
    fv_comm_part *part = fv__alloc(&c->env, bytes);
    if (bytes && !part) {
        c->table->stop(c, "out of memory");
        return fv_fail(e, FV_ENOMEM, "ranks: out of memory");
    }
    for (int i = 0; i < n_send + n_recv; i++) {
        part[i] = i < n_send ? send[i] : recv[i - n_send];
        part[i].rank = g->member[part[i].rank];
    }
    fv_comm *all = g->all;
    fv_status st = all->table->exchange(all, part, n_send, part + n_send, n_recv, e);
    fv__free(&c->env, part, bytes);
    return st;
}

static void stop(fv_comm *c, const char *why) { fv_comm_abort(((group *)c->impl)->all, why); }

static void close_group(fv_comm *c) { fv__free(&c->env, c->impl, group_bytes(c->size)); }

static const fv__comm_table table = {.name = "group",
                                     .exchange = exchange,
                                     .stop = stop,
                                     .close = close_group};

/* The ranks with this rank's colour, to be freed; NULL: the failure is in e. */
static int *find_members(fv_comm *c, int colour, int *n, size_t *bytes, fv_err *e)
{
    *bytes = (size_t)c->size * (sizeof(fv_comm_part) + sizeof(int));
    fv_comm_part *part = fv__alloc(&c->env, *bytes);
    if (!part) {
        fv_comm_abort(c, "out of memory");
        fv_fail(e, FV_ENOMEM, "ranks: out of memory");
        return NULL;
    }
    int *all = (int *)(void *)(part + c->size);
    for (int r = 0; r < c->size; r++) part[r] = (fv_comm_part){r, &all[r], sizeof *all};
    all[c->rank] = colour;
    fv_status st = fv_comm_all_gather(c, part, e);
    int *member = (int *)(void *)part; /* the parts are not needed any more */
    *n = 0;
    for (int r = 0; r < c->size; r++)
        if (all[r] == colour) member[(*n)++] = r;
    if (!st) return member;
    fv__free(&c->env, part, *bytes);
    return NULL;
}

fv_status fv_comm_split(fv_comm **out, fv_comm *c, int colour, fv_err *e)
{
    int n;
    size_t bytes;
    *out = NULL;
    if (!c) return FV_OK;
    int *member = find_members(c, colour, &n, &bytes, e);
    if (!member) return e ? e->code : FV_EDEVICE;
    bool own = c->table->split; /* the engine's own way, which all ranks take part in */
    fv_comm *part = fv__comm_new(&c->env, own ? c->table : &table, c->timeout);
    group *g = own ? NULL : fv__alloc(&c->env, group_bytes(n));
    fv_status st = part && (own || g) ? FV_OK : fv_fail(e, FV_ENOMEM, "ranks: out of memory");
    if (st) fv_comm_abort(c, "out of memory");
    if (!st) {
        part->size = n;
        part->local_rank = c->local_rank;
        part->local_size = c->local_size;
        part->impl = g;
        if (g) g->all = c;
    }
    for (int i = 0; !st && i < n; i++) {
        if (member[i] == c->rank) part->rank = i;
        if (g) g->member[i] = member[i];
    }
    if (!st && own) st = c->table->split(part, c, member, n, e);
    fv__free(&c->env, member, bytes);
    if (!st && n > 1) {
        *out = part;
        return FV_OK;
    }
    if (!st)
        fv_comm_close(part);
    else if (part)
        fv__comm_free(part);
    if (st && g) fv__free(&c->env, g, group_bytes(n));
    return st;
}
