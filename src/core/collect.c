/* collect.c - see collect.h. */
#include "core/collect.h"

#include "fovea/author/comm.h"

/* What rank 0 asks for; index -1: nothing more. */
typedef struct question {
    int64_t kind, index;
} question;

static fv_status no_memory(fv_err *e) { return fv_fail(e, FV_ENOMEM, "ranks: out of memory"); }

static fv_status read_part(fv__collector *x, int kind, const fv_entry *t, void *host, fv_err *e)
{
    const fv_tensor *p = &t->tensor;
    return x->read ? x->read(x->user, kind, t, host, e)
                   : fv__params_read(x->params, p, 0, host, fv_len(p), e);
}

static int64_t index_of(const fv_params *p, const fv_entry *t)
{
    int64_t i = 0;
    while (p->list[i] != t) i++;
    return i;
}

/* Copies the part of one rank to where its runs are in the whole weight. */
static void scatter_runs(const fv__collector *x, const fv_entry *t, int rank, const char *part)
{
    int64_t at, n;
    for (int64_t i = 0; fv__split_run_of(t, rank, i, &at, &n); i++) {
        memcpy((char *)x->whole + (size_t)at * x->size, part, (size_t)n * x->size);
        part += (size_t)n * x->size;
    }
}

/* The parts of all ranks to rank 0. */
static fv_status gather(fv__collector *x, int kind, const fv_entry *t, fv_err *e)
{
    struct fv_comm *c = t->ranks;
    const fv_env *env = &x->params->env;
    int ranks = fv_comm_size(c), rank = fv_comm_rank(c);
    size_t bytes = (size_t)fv_len(&t->tensor) * x->size, all = rank ? bytes : bytes * (size_t)ranks,
           list = (size_t)ranks * sizeof(fv_comm_part);
    fv_comm_part *recv = fv__alloc(env, list);
    fv_status st = recv && fv__grow(env, &x->part, &x->part_bytes, all) ? FV_OK : no_memory(e);
    if (!st) st = read_part(x, kind, t, x->part, e);
    /* the others must not wait for what will not come */
    if (st) fv_comm_abort(c, e ? e->text : "a weight cannot be read");
    for (int r = 0; !st && r < ranks; r++)
        recv[r] = (fv_comm_part){r, (char *)x->part + (size_t)r * bytes, bytes};
    fv_comm_part send = {0, x->part, bytes};
    if (!st) st = fv_comm_exchange(c, &send, 1, recv, rank ? 0 : ranks, e);
    fv__free(env, recv, list);
    return st;
}

/* Reads the whole of t into x->whole, on rank 0. */
static fv_status load_whole(fv__collector *x, int kind, const fv_entry *t, fv_err *e)
{
    fv_tensor whole = {.shape = fv__split_whole(t)};
    size_t bytes = (size_t)fv_len(&t->tensor) * x->size;
    x->held = NULL;
    if (!fv__grow(&x->params->env, &x->whole, &x->whole_bytes, (size_t)fv_len(&whole) * x->size))
        return no_memory(e);
    fv_status st = FV_OK;
    if (!t->ranks) {
        st = read_part(x, kind, t, x->whole, e);
    } else {
        question q = {kind, index_of(x->params, t)};
        st = fv_comm_broadcast(t->ranks, &q, sizeof q, 0, e);
        if (!st) st = gather(x, kind, t, e);
        for (int r = 0; !st && r < fv_comm_size(t->ranks); r++)
            scatter_runs(x, t, r, (const char *)x->part + (size_t)r * bytes);
    }
    if (!st) x->held = t, x->held_kind = kind;
    return st;
}

fv_status fv__collect(fv__collector *x, int kind, const fv_tensor *t, int64_t at, int64_t n,
                      void *out, fv_err *e)
{
    const fv_entry *entry = (const fv_entry *)t;
    fv_status st = FV_OK;
    if (x->held != entry || x->held_kind != kind) st = load_whole(x, kind, entry, e);
    if (!st) memcpy(out, (const char *)x->whole + (size_t)at * x->size, (size_t)n * x->size);
    return st;
}

fv_status fv__collect_serve(fv__collector *x, fv_err *e)
{
    const fv_params *p = x->params;
    for (;;) {
        question q;
        fv_status st = fv_comm_broadcast(p->ranks, &q, sizeof q, 0, e);
        if (st || q.index < 0) return st;
        if (q.index >= (int64_t)p->n || !p->list[q.index]->ranks)
            return fv_fail(e, FV_ESTATE, "ranks: there is no divided parameter %lld",
                           (long long)q.index);
        st = gather(x, (int)q.kind, p->list[q.index], e);
        if (st) return st;
    }
}

fv_status fv__collect_end(const fv_params *p, fv_err *e)
{
    question none = {0, -1};
    return fv_comm_broadcast(p->ranks, &none, sizeof none, 0, e);
}

void fv__collect_free(fv__collector *x)
{
    const fv_env *env = &x->params->env;
    fv__free(env, x->whole, x->whole_bytes);
    fv__free(env, x->part, x->part_bytes);
    x->whole = x->part = NULL;
    x->whole_bytes = x->part_bytes = 0;
    x->held = NULL;
}
