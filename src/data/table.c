/* table.c - records as they stand in a file: one or two texts each, in memory.
 *
 * For what is read as it is and not encoded: tables of images, evaluations. Feeds of text encode
 * records as they come and keep ids alone. */
#include "data/records.h"

/* Where the texts of a record begin in all.data. */
typedef struct row {
    size_t at[2], len[2];
    int64_t line;
} row;

struct fv_table {
    const fv_env *env;
    fv_buf all; /* every text with a NUL behind it */
    row *row;
    size_t row_bytes;
    int64_t n;
};

/* Texts are appended to one buffer, which may move while it grows: rows keep offsets, not
 * pointers. */
static fv_status add(fv__reading *rd, const fv__record *rec)
{
    fv_table *r = rd->user;
    void *p = r->row;
    bool ok = fv__grow(r->env, &p, &r->row_bytes, (size_t)(r->n + 1) * sizeof *r->row);
    r->row = p;
    row x = {.line = rec->line};
    for (int i = 0; i < rd->n_texts; i++) {
        x.at[i] = r->all.len;
        x.len[i] = rec->text[i].n;
        fv__buf_add(&r->all, rec->text[i].s, rec->text[i].n);
        fv__buf_add(&r->all, "", 1);
    }
    if (!ok || r->all.failed) return fv_fail(rd->e, FV_ENOMEM, "%s: out of memory", rd->from->file);
    r->row[r->n++] = x;
    rd->report->kept++;
    return FV_OK;
}

/* All texts stand in one buffer, rows by offset: a table of a million rows is two allocations. */
fv_status fv_table_open(fv_table **out, const fv_env *env, const fv_records *from, int texts,
                        fv_data_report *report, fv_err *e)
{
    fv_table *r = *out = fv__alloc(env, sizeof *r);
    if (!r) return fv_fail(e, FV_ENOMEM, "%s: out of memory", from->file);
    *r = (fv_table){.env = env, .all = {.env = env}};
    fv__reading rd = {.env = env,
                      .from = from,
                      .n_texts = texts,
                      .each = add,
                      .user = r,
                      .report = report,
                      .e = e};
    fv_status st = fv__records_read(&rd);
    if (!st && !r->n) st = fv_fail(e, FV_EFORMAT, "%s: no record can be used", from->file);
    if (st) {
        fv_table_close(r);
        *out = NULL;
    }
    return st;
}

void fv_table_close(fv_table *r)
{
    if (!r) return;
    const fv_env *env = r->env;
    fv__buf_free(&r->all);
    fv__free(env, r->row, r->row_bytes);
    fv__free(env, r, sizeof *r);
}

int64_t fv_table_count(const fv_table *r) { return r->n; }
int64_t fv_table_line(const fv_table *r, int64_t i) { return r->row[i].line; }

const char *fv_table_text(const fv_table *r, int64_t i, int which, size_t *len)
{
    *len = r->row[i].len[which];
    return r->all.data + r->row[i].at[which];
}
