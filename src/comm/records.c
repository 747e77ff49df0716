/* records.c - numbered texts of all ranks, in order of their numbers.
 *
 * Each rank's records are in order already, so rank 0 merges as many queues as there are ranks:
 * it looks at the front of each and takes the least number.  Ranks are few; a heap would save
 * nothing.  All texts are at rank 0 at once: what a rank printed as it went would come in any
 * order. */
#include "comm.h"

/* A rank's records, read from the front. */
typedef struct queue {
    const char *at, *end;
} queue;

/* The queue whose next record comes first, the lower rank of equal ones; NULL: all are empty. */
static queue *next_queue(queue *q, int n, fv_comm_record *best)
{
    queue *first = NULL;
    fv_comm_record h;
    for (int i = 0; i < n; i++) {
        if (q[i].at == q[i].end) continue;
        memcpy(&h, q[i].at, sizeof h);
        if (!first || h.number < best->number) first = &q[i], *best = h;
    }
    return first;
}

/* Where each rank's records begin in what was gathered: each is preceded by its length. */
static bool find_queues(queue *q, int ranks, const char *all, size_t len)
{
    size_t at = 0;
    for (int r = 0; r < ranks; r++) {
        uint64_t n;
        if (len - at < sizeof n) return false;
        memcpy(&n, all + at, sizeof n);
        at += sizeof n;
        if (len - at < n) return false;
        q[r] = (queue){all + at, all + at + n};
        at += (size_t)n;
    }
    return at == len;
}

static void merge(queue *q, int n, fv_comm_record_fn *each, void *user)
{
    fv_comm_record h;
    for (queue *from; (from = next_queue(q, n, &h)); from->at += sizeof h + h.n)
        each(user, from->at + sizeof h, (size_t)h.n);
}

/* A rank without memory must not keep the others waiting: all agree before anything is sent. */
fv_status fv_comm_gather_records(fv_comm *c, const char *mine, size_t n, fv_comm_record_fn *each,
                                 void *user, fv_err *e)
{
    int ranks = fv_comm_size(c);
    const fv_env *env = c ? &c->env : NULL;
    uint64_t length = n;
    size_t bytes = n + sizeof length, len = 0;
    char *all = NULL, *sent = fv__alloc_raw(env, bytes);
    queue *q = fv__alloc(env, (size_t)ranks * sizeof *q);
    fv_status st = sent && q ? FV_OK : fv_fail(e, FV_ENOMEM, "ranks: out of memory for results");
    st = fv_comm_agree(c, st, e);
    if (!st) {
        memcpy(sent, &length, sizeof length);
        if (n) memcpy(sent + sizeof length, mine, n);
        st = fv_comm_gather_text(c, env, sent, bytes, &all, &len, e);
    }
    if (!st && all && find_queues(q, ranks, all, len)) merge(q, ranks, each, user);
    fv_comm_free_text(env, all, len);
    fv__free(env, sent, bytes);
    fv__free(env, q, (size_t)ranks * sizeof *q);
    return st;
}
