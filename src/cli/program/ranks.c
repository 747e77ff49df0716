/* ranks.c - the records of a task among the ranks of an MPI job: each takes its share, rank 0
 * prints all results in the order of the records.
 *
 * Shares are runs of RUN records in turn, so that long and short parts of a file are spread.
 * Results are kept until all ranks are done: what a rank prints as it goes would come in any
 * order. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

enum { RUN = 64 };

bool cli_own_record(const cli_share *s, int64_t number)
{
    return (number - 1) / RUN % fv_comm_size(s->comm) == fv_comm_rank(s->comm);
}

/* A result as it travels: number and length of a record's text, then the text. */
typedef struct head {
    int64_t record;
    uint64_t n;
} head;

bool cli_share_add(cli_share *s, int64_t record, const char *text, size_t n)
{
    head h = {record, n};
    size_t want = s->n + sizeof h + n;
    if (want > s->capacity) {
        size_t more = want > 2 * s->capacity ? want : 2 * s->capacity;
        char *data = realloc(s->data, more);
        if (!data) return false;
        s->data = data;
        s->capacity = more;
    }
    memcpy(s->data + s->n, &h, sizeof h);
    memcpy(s->data + s->n + sizeof h, text, n);
    s->n = want;
    return true;
}

/* A rank's results, read from the front. */
typedef struct queue {
    const char *at, *end;
} queue;

/* The queue whose next record comes first; NULL: all are empty. */
static queue *next_queue(queue *q, int n)
{
    queue *first = NULL;
    head h, best = {0};
    for (int i = 0; i < n; i++) {
        if (q[i].at == q[i].end) continue;
        memcpy(&h, q[i].at, sizeof h);
        if (!first || h.record < best.record) first = &q[i], best = h;
    }
    return first;
}

static void print_in_order(queue *q, int n)
{
    for (queue *from; (from = next_queue(q, n));) {
        head h;
        memcpy(&h, from->at, sizeof h);
        fwrite(from->at + sizeof h, 1, (size_t)h.n, stdout);
        from->at += sizeof h + h.n;
    }
}

/* Where each rank's results begin in what was gathered: each is preceded by its length. */
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

fv_status cli_share_print(cli_share *s, fv_status st, fv_err *e)
{
    int ranks = fv_comm_size(s->comm);
    char *all = NULL, *mine = malloc(s->n + sizeof(uint64_t));
    size_t len = 0;
    uint64_t n = s->n;
    queue *q = malloc((size_t)ranks * sizeof *q);
    if (!st && (!mine || !q)) st = fv_fail(e, FV_ENOMEM, "out of memory for the results");
    st = fv_comm_agree(s->comm, st, e);
    if (!st) {
        memcpy(mine, &n, sizeof n);
        if (n) memcpy(mine + sizeof n, s->data, n);
        st = fv_comm_gather_text(s->comm, NULL, mine, s->n + sizeof n, &all, &len, e);
    }
    if (!st && all && find_queues(q, ranks, all, len)) print_in_order(q, ranks);
    fv_comm_free_text(NULL, all, len);
    free(mine);
    free(q);
    free(s->data);
    *s = (cli_share){.comm = s->comm};
    return st;
}
