/* task_ranks.c - the records of a task, or of an evaluation, among the ranks of a job.
 *
 * Every rank reads all records, which are cheap, and computes its own.  What it computed travels as
 * bytes with the record's number, and is counted or printed in the order of the records, so a sum
 * has one order and a file one text for any number of ranks.
 *
 *     a task         runs of records in turn, so that long and short parts of a file are spread;
 *                    results are kept until all ranks are done, and rank 0 hands them on
 *     an evaluation  slices in turn, gathered after each round by all ranks: all of them count, and
 *                    come to the same figures or to the same error; rank 0 reports
 *
 * One list of records that ranks take from as they get free would balance better; it needs a rank
 * that serves it, and records of one file are alike. */
#include "fovea/author/comm.h"
#include "task_pipeline.h"

/* ---- tasks ---- */

/* Records that a rank takes in a row: as many as go through the model together, within bounds. */
static int64_t run_of(const fv_pipeline *p)
{
    int64_t n = p->opt.batch;
    return n < 1 ? 1 : n > 64 ? 64 : n;
}

/* Whether ranks share the model: then each runs all records. */
static bool is_shared(const fv_pipeline *p)
{
    return p->opt.tensor_parallel || p->opt.pipeline_parallel;
}

/* Ranks that share the records. */
static int sharing(const fv_pipeline *p) { return is_shared(p) ? 1 : fv_comm_size(p->opt.comm); }

bool fv__task_owns(const fv_pipeline *p, int64_t record)
{
    int size = sharing(p);
    return size < 2 || (record - 1) / run_of(p) % size == fv_comm_rank(p->opt.comm);
}

/* A result on its way to rank 0; the bytes of its texts follow, in this order. */
typedef struct kept {
    int64_t record;
    uint64_t text, note, error, extra;
    int32_t code;
    bool more;
} kept;

static void put_kept(fv_buf *b, const fv_task_result *r, const fv_buf *extra)
{
    kept k = {.record = r->record, .text = r->n, .extra = extra->len, .more = r->more};
    if (r->note) k.note = strlen(r->note);
    if (r->error) k.error = strlen(r->error->text), k.code = (int32_t)r->error->code;
    fv_comm_record h = {r->record, sizeof k + k.text + k.note + k.error + k.extra};
    fv__buf_add(b, &h, sizeof h);
    fv__buf_add(b, &k, sizeof k);
    fv__buf_add(b, r->text, r->n);
    if (k.note) fv__buf_add(b, r->note, k.note);
    if (k.error) fv__buf_add(b, r->error->text, k.error);
    fv__buf_add(b, extra->data, extra->len);
}

/* Hands a result on, or keeps it where ranks share the records; and what it adds to the total. */
void fv__task_deliver(fv_pipeline *p, const fv_task_result *r)
{
    bool prints = !is_shared(p) || !fv_comm_rank(p->opt.comm);
    if (sharing(p) > 1) {
        put_kept(&p->kept, r, &p->extra);
    } else {
        if (!p->stopped && prints) p->stopped = !p->fn(p->user, r);
        if (p->extra.len && !p->add_error.code)
            p->kind->add(p, p->extra.data, p->extra.len, &p->add_error);
    }
    p->extra.len = 0;
}

/* At rank 0, in order of the records. */
static void take_kept(void *user, const char *at, size_t n)
{
    fv_pipeline *p = user;
    kept k;
    fv_err error = {0};
    char note[sizeof p->note];
    (void)n;
    memcpy(&k, at, sizeof k);
    const char *text = at + sizeof k, *said = text + k.text, *why = said + k.note;
    size_t cut = k.note < sizeof note ? k.note : sizeof note - 1;
    memcpy(note, said, cut);
    note[cut] = 0;
    if (k.code) fv_fail(&error, (fv_status)k.code, "%.*s", (int)k.error, why);
    fv_task_result r = {.record = k.record,
                        .text = text,
                        .n = k.text,
                        .note = k.note ? note : NULL,
                        .error = k.code ? &error : NULL,
                        .more = k.more};
    if (!p->stopped) p->stopped = !p->fn(p->user, &r);
    p->first = k.record;
    p->done = 1;
    if (k.extra && !p->add_error.code) p->kind->add(p, why + k.error, k.extra, &p->add_error);
}

/* The texts of all ranks go to rank 0; tokens that were generated are counted together. */
fv_status fv__task_gather(fv_pipeline *p, fv_err *e)
{
    fv_comm *c = p->opt.comm;
    int size = sharing(p);
    size_t bytes = (size_t)size * (sizeof(int64_t) + sizeof(fv_comm_part));
    if (size < 2) return FV_OK;
    int64_t *tokens = fv__alloc(&p->env, bytes);
    fv_comm_part *part = (fv_comm_part *)(void *)(tokens + size);
    fv_status st = tokens && !p->kept.failed
                       ? FV_OK
                       : fv_fail(e, FV_ENOMEM, "out of memory for the results");
    st = fv_comm_agree(c, st, e);
    for (int r = 0; !st && r < size; r++) part[r] = (fv_comm_part){r, &tokens[r], sizeof *tokens};
    if (!st) tokens[fv_comm_rank(c)] = p->tokens;
    if (!st) st = fv_comm_all_gather(c, part, e);
    if (!st) st = fv_comm_gather_records(c, p->kept.data, p->kept.len, take_kept, p, e);
    for (int r = 0; !st && r < size; r++) p->tokens += r == fv_comm_rank(c) ? 0 : tokens[r];
    fv__free(&p->env, tokens, bytes);
    p->kept.len = 0;
    return st;
}

/* ---- evaluations ---- */

void fv__eval_give(fv_buf *out, const void *result, size_t n)
{
    static const char zero[8];
    uint64_t len = n;
    fv__buf_add(out, &len, sizeof len);
    if (n) fv__buf_add(out, result, n);
    fv__buf_add(out, zero, (8 - n % 8) % 8); /* numbers stay aligned */
}

/* What rounds use, one after the other. */
typedef struct rounds {
    fv_eval_run *r;
    const fv_slices *s;
    void *work;
    int64_t n, slice; /* records in all, and of one rank in a round */
    fv_buf mine;      /* results of this rank */
    char *all;        /* of every rank, in order of rank */
    size_t all_bytes, length_bytes;
    uint64_t *length; /* of each rank's */
    fv_comm_part *part;
} rounds;

/* Takes the results of records from `from` on, n of them, out of the bytes of one rank. */
static fv_status take_slice(const rounds *x, const char *at, size_t bytes, int64_t from, int64_t n,
                            fv_err *e)
{
    fv_status st = FV_OK;
    size_t pos = 0;
    for (int64_t i = 0; !st && i < n; i++) {
        uint64_t len = 0;
        bool whole = bytes - pos >= sizeof len;
        if (whole) memcpy(&len, at + pos, sizeof len);
        pos += sizeof len;
        if (!whole || len > bytes - pos)
            return fv_fail(e, FV_ESTATE, "record %lld has no result", (long long)(from + i + 1));
        st = x->s->take(x->work, from + i, at + pos, len, e);
        pos += len + (8 - len % 8) % 8;
    }
    return st;
}

/* Lengths first, then the bytes of every rank at every rank. */
static fv_status gather_round(rounds *x, fv_err *e)
{
    fv_comm *c = x->r->opt->comm;
    int size = fv_comm_size(c), rank = fv_comm_rank(c);
    size_t at = 0, own = 0;
    void *all = x->all;
    for (int k = 0; k < size; k++) x->part[k] = (fv_comm_part){k, &x->length[k], sizeof(uint64_t)};
    x->length[rank] = x->mine.len;
    fv_status st = fv_comm_all_gather(c, x->part, e);
    if (st) return st;
    for (int k = 0; k < size; at += (size_t)x->length[k++]) own = k == rank ? at : own;
    bool ok = fv__grow(&x->r->env, &all, &x->all_bytes, at + 1);
    x->all = all;
    st = ok ? FV_OK
            : fv_fail(e, FV_ENOMEM, "out of memory for %zu bytes of results of %d ranks", at, size);
    if ((st = fv_comm_agree(c, st, e))) return st;
    if (x->mine.len) memcpy(x->all + own, x->mine.data, x->mine.len);
    at = 0;
    for (int k = 0; k < size; at += (size_t)x->length[k++])
        x->part[k] = (fv_comm_part){k, x->all + at, (size_t)x->length[k]};
    return fv_comm_all_gather(c, x->part, e);
}

/* Of the records from `from` on, those that rank k has in this round. */
static int64_t share_of(const rounds *x, int64_t from, int k, int64_t *first)
{
    *first = from + k * x->slice;
    int64_t left = x->n - *first;
    return left < 0 ? 0 : left < x->slice ? left : x->slice;
}

/* One round: a slice for each rank from record `from` on. */
static fv_status run_round(rounds *x, int64_t from, fv_err *e)
{
    fv_comm *c = x->r->opt->comm;
    int size = fv_comm_size(c);
    int64_t at, n = share_of(x, from, fv_comm_rank(c), &at);
    x->mine.len = 0;
    fv_status st = n ? x->s->compute(x->work, at, n, &x->mine, e) : FV_OK;
    if (!st && x->mine.failed) st = fv_fail(e, FV_ENOMEM, "out of memory for results");
    if (size == 1) return st ? st : take_slice(x, x->mine.data, x->mine.len, at, n, e);
    st = fv_comm_agree(c, st, e);
    if (!st) st = gather_round(x, e);
    if (st) x->r->settled = true; /* all ranks know, and agree on nothing more */
    size_t pos = 0;
    for (int k = 0; !st && k < size; pos += (size_t)x->length[k++]) {
        n = share_of(x, from, k, &at);
        st = take_slice(x, x->all + pos, (size_t)x->length[k], at, n, e);
    }
    return st;
}

/* A slice bounds memory; results are of records, and do not depend on it.  Several ranks share what
 * would be one slice. */
fv_status fv__eval_slices(fv_eval_run *r, int64_t n, const fv_slices *s, void *work, fv_err *e)
{
    int size = fv_comm_size(r->opt->comm);
    int64_t slice = s->slice        ? s->slice
                    : r->opt->batch ? r->opt->batch
                                    : 1024,
            each = (n + size - 1) / size;
    rounds x = {.r = r, .s = s, .work = work, .n = n, .mine = {.env = &r->env}};
    x.slice = slice > each ? each : slice;
    x.length_bytes = (size_t)size * (sizeof *x.length + sizeof *x.part);
    x.length = fv__alloc(&r->env, x.length_bytes);
    fv_status st = x.length ? FV_OK : fv_fail(e, FV_ENOMEM, "out of memory");
    x.part = (fv_comm_part *)(void *)(x.length + size);
    for (int64_t at = 0; !st && at < n; at += x.slice * size) st = run_round(&x, at, e);
    fv__buf_free(&x.mine);
    fv__free(&r->env, x.all, x.all_bytes);
    fv__free(&r->env, x.length, x.length_bytes);
    return st;
}
