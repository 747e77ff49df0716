/* collectives.c - collectives made of exchange, for engines that have none of their own: broadcast,
 * barrier, all-gather, and sums in order of rank. */
#include "comm/comm.h"

/* The others are told, or they would wait for this rank until the timeout. */
static fv_status no_memory(fv_comm *c, fv_err *e)
{
    c->table->stop(c, "out of memory");
    return fv_fail(e, FV_ENOMEM, "ranks: out of memory");
}

/* The k-th part that this rank sends to itself is the k-th that it receives. */
void fv__comm_copy_own(const fv_comm *c, const fv_comm_part *send, int n_send,
                       const fv_comm_part *recv, int n_recv)
{
    int at = 0;
    for (int i = 0; i < n_recv; i++) {
        if (recv[i].rank != c->rank) continue;
        while (at < n_send && send[at].rank != c->rank) at++;
        if (at < n_send && recv[i].bytes && recv[i].data != send[at].data)
            memcpy(recv[i].data, send[at].data, recv[i].bytes);
        at++;
    }
}

/* Lists of parts, one for each rank. */
static fv_comm_part *parts_new(fv_comm *c, size_t lists)
{
    return fv__alloc(&c->env, lists * (size_t)c->size * sizeof(fv_comm_part));
}

static void parts_free(fv_comm *c, fv_comm_part *p, size_t lists)
{
    fv__free(&c->env, p, lists * (size_t)c->size * sizeof *p);
}

/* part[r]: where rank r's bytes go here; this rank's own are there already. */
fv_status fv__exchange_gather(fv_comm *c, const fv_comm_part *part, double *sent, fv_err *e)
{
    fv_comm_part *send = parts_new(c, 2), *recv = send ? send + c->size : NULL;
    int n = 0;
    if (!send) return no_memory(c, e);
    for (int r = 0; r < c->size; r++) {
        if (r == c->rank) continue;
        send[n] = (fv_comm_part){r, part[c->rank].data, part[c->rank].bytes};
        recv[n++] = (fv_comm_part){r, part[r].data, part[r].bytes};
    }
    fv_status st = c->table->exchange(c, send, n, recv, n, e);
    *sent += (double)n * (double)part[c->rank].bytes;
    parts_free(c, send, 2);
    return st;
}

fv_status fv__exchange_broadcast(fv_comm *c, void *data, size_t bytes, int root, fv_err *e)
{
    fv_comm_part *send = parts_new(c, 1), recv = {root, data, bytes};
    if (!send) return no_memory(c, e);
    for (int r = 0; r < c->size; r++) send[r] = (fv_comm_part){r, data, bytes};
    bool is_root = c->rank == root;
    fv_status st = c->table->exchange(c, send, is_root ? c->size : 0, &recv, 1, e);
    parts_free(c, send, 1);
    return st;
}

/* Everybody to rank 0, then rank 0 to everybody. */
fv_status fv__exchange_barrier(fv_comm *c, fv_err *e)
{
    char token = 0;
    fv_comm_part *recv = parts_new(c, 1), send = {0, &token, 1};
    if (!recv) return no_memory(c, e);
    for (int r = 0; r < c->size; r++) recv[r] = (fv_comm_part){r, &token, 1};
    fv_status st = c->table->exchange(c, &send, 1, recv, c->rank ? 0 : c->size, e);
    parts_free(c, recv, 1);
    return st ? st : fv__exchange_broadcast(c, &token, 1, 0, e);
}

/* data[from[r] .. +n[r]) of all ranks to rank r, which adds them up. */
fv_status fv__exchange_reduce_scatter(fv_comm *c, float *data, const int64_t *from,
                                      const int64_t *n, fv_err *e)
{
    int64_t own = n[c->rank];
    size_t bytes = (size_t)own * (size_t)c->size * sizeof *data + 1;
    fv_comm_part *send = parts_new(c, 2), *recv = send ? send + c->size : NULL;
    float *all = fv__alloc_raw(&c->env, bytes);
    fv_status st = send && all ? FV_OK : no_memory(c, e);
    for (int r = 0; !st && r < c->size; r++) {
        send[r] = (fv_comm_part){r, data + from[r], (size_t)n[r] * sizeof *data};
        recv[r] = (fv_comm_part){r, all + r * own, (size_t)own * sizeof *data};
    }
    if (!st) st = c->table->exchange(c, send, c->size, recv, c->size, e);
    float *y = data + from[c->rank];
    for (int64_t i = 0; !st && i < own; i++) {
        y[i] = all[i];
        for (int r = 1; r < c->size; r++) y[i] += all[r * own + i];
    }
    parts_free(c, send, 2);
    fv__free(&c->env, all, bytes);
    return st;
}

/* Each rank adds up one part in order of rank, then all parts go to all: the same bits on every
 * rank. */
fv_status fv__exchange_all_reduce(fv_comm *c, float *data, int64_t n, fv_err *e)
{
    double sent;
    size_t bytes = 2 * (size_t)c->size * sizeof(int64_t);
    fv_comm_part *part = parts_new(c, 1);
    int64_t *from = fv__alloc(&c->env, bytes), *len = from ? from + c->size : NULL;
    fv_status st = part && from ? FV_OK : no_memory(c, e);
    for (int r = 0; !st && r < c->size; r++) {
        from[r] = fv__tree_from(n, r, c->size);
        len[r] = fv__tree_from(n, r + 1, c->size) - from[r];
        part[r] = (fv_comm_part){r, data + from[r], (size_t)len[r] * sizeof *data};
    }
    if (!st) st = fv__exchange_reduce_scatter(c, data, from, len, e);
    if (!st) st = fv__exchange_gather(c, part, &sent, e);
    parts_free(c, part, 1);
    fv__free(&c->env, from, bytes);
    return st;
}
