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

bool cli_share_add(cli_share *s, int64_t record, const char *text, size_t n)
{
    fv_comm_record h = {record, n};
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

static void print(void *user, const char *text, size_t n)
{
    (void)user;
    fwrite(text, 1, n, stdout);
}

/* Every rank comes here, also one whose work failed: otherwise the others would wait for it. */
fv_status cli_share_print(cli_share *s, fv_status st, fv_err *e)
{
    st = fv_comm_agree(s->comm, st, e);
    if (!st) st = fv_comm_gather_records(s->comm, s->data, s->n, print, NULL, e);
    free(s->data);
    *s = (cli_share){.comm = s->comm};
    return st;
}
