/* impressions.c - what users were shown: a line for each candidate, its history and its features.
 *
 * Histories stand one behind the other in one array, and a row says where its own begins. A feature
 * is a category, whatever its text is; it gets the number that the hash of its column and its text
 * gives, so that no list of categories has to be kept with a model, and one that was never seen has
 * a number too (feature hashing, Weinberger et al. 2009). */
#include "base/base.h"
#include "base/pool.h"
#include "fovea/author/events.h"

typedef struct row {
    int64_t from, n;
    int32_t item, label;
} row;

struct fv_impressions {
    fv_buf rows, items, features; /* of row, and of int32_t */
    int64_t n, columns;
};

typedef struct reading {
    fv_impressions *v;
    const fv_impressions_opt *opt;
    int64_t line;
    fv_err *e;
} reading;

/* Up to the next tab or the end; false behind the last.  *at becomes NULL there. */
static bool next_column(const char **at, const char *end, fv__str *out)
{
    if (!*at) return false;
    const char *s = *at, *tab = memchr(s, '\t', (size_t)(end - s));
    *out = (fv__str){s, (size_t)((tab ? tab : end) - s)};
    *at = tab ? tab + 1 : NULL;
    return true;
}

/* An item that the model does not know is a candidate like any other: advertisements are new. */
static fv_status item_of(const reading *r, fv__str f, int32_t *id)
{
    if (!r->opt->items->closed) return fv_labels_add(r->opt->items, id, f.s, f.n, r->e);
    *id = fv_labels_find(r->opt->items, f.s, f.n);
    if (*id < 0) *id = r->opt->items->n;
    return FV_OK;
}

static fv_status read_history(const reading *r, fv__str f, row *x)
{
    fv_buf *b = &r->v->items;
    fv_status st = FV_OK;
    x->from = (int64_t)(b->len / sizeof(int32_t));
    for (const char *s = f.s, *end = f.s + f.n; !st;) {
        while (s < end && *s == ' ') s++;
        const char *from = s;
        while (s < end && *s != ' ') s++;
        if (s == from) break;
        int32_t id = 0;
        st = item_of(r, (fv__str){from, (size_t)(s - from)}, &id);
        fv__buf_add(b, &id, sizeof id);
    }
    x->n = (int64_t)(b->len / sizeof(int32_t)) - x->from;
    return st;
}

/* FNV-1a of the text, begun with the column's number. */
static int32_t bucket(const reading *r, int64_t column, fv__str f)
{
    uint64_t h = 14695981039346656037u ^ (uint64_t)column;
    for (size_t i = 0; i <= f.n; i++) {
        h *= 1099511628211u;
        if (i < f.n) h ^= (unsigned char)f.s[i];
    }
    return (int32_t)((h ^ h >> 32) % (uint64_t)r->opt->buckets);
}

static fv_status read_features(const reading *r, const char **at, const char *end)
{
    fv_impressions *v = r->v;
    fv__str f;
    int64_t n = 0;
    for (; next_column(at, end, &f); n++) {
        int32_t id = bucket(r, n, f);
        fv__buf_add(&v->features, &id, sizeof id);
    }
    if (!v->n) v->columns = n;
    if (n == v->columns) return FV_OK;
    return fv_fail(r->e, FV_EFORMAT, "%s:%lld: %lld features, the lines before have %lld",
                   r->opt->file, (long long)r->line, (long long)n, (long long)v->columns);
}

static fv_status read_line(const reading *r, const char *line, size_t len)
{
    const char *at = line, *end = line + len;
    fv__str label, item, history;
    row x = {0};
    if (!next_column(&at, end, &label) || !next_column(&at, end, &item) ||
        !next_column(&at, end, &history) || !item.n)
        return fv_fail(r->e, FV_EFORMAT,
                       "%s:%lld: expected label, candidate and history with tabs between",
                       r->opt->file, (long long)r->line);
    if (label.n != 1 || !strchr("01-", *label.s))
        return fv_fail(r->e, FV_EFORMAT, "%s:%lld: label \"%.*s\", expected 1, 0 or -",
                       r->opt->file, (long long)r->line, (int)(label.n < 40 ? label.n : 40),
                       label.s);
    x.label = *label.s == '-' ? -1 : *label.s - '0';
    fv_status st = item_of(r, item, &x.item);
    if (!st) st = read_history(r, history, &x);
    if (!st) st = read_features(r, &at, end);
    fv__buf_add(&r->v->rows, &x, sizeof x);
    r->v->n++;
    return st;
}

fv_status fv_impressions_open(fv_impressions **out, const fv_env *env,
                              const fv_impressions_opt *opt, fv_err *e)
{
    fv_textfile *t = NULL;
    fv_impressions *v = *out = fv__alloc(env, sizeof *v);
    if (!v) return fv_fail(e, FV_ENOMEM, "%s: out of memory", opt->file);
    v->rows.env = v->items.env = v->features.env = env;
    reading r = {v, opt, 1, e};
    fv_status st = fv_textfile_open(&t, env, opt->file, e);
    for (int64_t i = 0, lines = st ? 0 : fv_textfile_count(t); !st && i < lines; i++, r.line++) {
        size_t n;
        const char *line = fv_textfile_line(t, i, &n);
        if (n && (i || !opt->header)) st = read_line(&r, line, n);
    }
    fv_textfile_close(t);
    if (!st && (v->rows.failed || v->items.failed || v->features.failed))
        st = fv_fail(e, FV_ENOMEM, "%s: out of memory", opt->file);
    if (!st && !v->n) st = fv_fail(e, FV_EFORMAT, "%s: there is no impression", opt->file);
    if (st) {
        fv_impressions_close(v);
        *out = NULL;
    }
    return st;
}

void fv_impressions_close(fv_impressions *v)
{
    if (!v) return;
    const fv_env *env = v->rows.env;
    fv__buf_free(&v->rows);
    fv__buf_free(&v->items);
    fv__buf_free(&v->features);
    fv__free(env, v, sizeof *v);
}

int64_t fv_impressions_count(const fv_impressions *v) { return v->n; }
int64_t fv_impressions_features(const fv_impressions *v) { return v->columns; }

fv_impression fv_impressions_at(const fv_impressions *v, int64_t i)
{
    const row *x = (const row *)(const void *)v->rows.data + i;
    const int32_t *items = (const int32_t *)(const void *)v->items.data,
                  *features = (const int32_t *)(const void *)v->features.data;
    return (fv_impression){.item = x->item,
                           .label = x->label,
                           .history = items ? items + x->from : NULL,
                           .n = x->n,
                           .features = features ? features + i * v->columns : NULL};
}
