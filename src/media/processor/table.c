/* table.c - the processor of tables of numbers: every column to mean 0 and deviation 1.
 *
 *     y = (x - mean) / deviation
 *
 * kept in preprocessor_config.json as
 *
 *     {"processor_kind": "table", "columns": [..], "mean": [..], "std": [..]}
 *
 * with the numbers written so that they read back as the same doubles.  A column that never changes
 * has deviation 1: it becomes 0 everywhere.  Where a number is missing (NaN) it stays missing and
 * does not count. */
#include <math.h>
#include <stdio.h>

#include "fovea/author/processor.h"
#include "media/preprocessor.h"
#include "store/json.h"

typedef struct column {
    char *name;
    double mean, deviation;
} column;

typedef struct table {
    const fv_env *env;
    column *column;
    int n;
} table;

const fv_processor_type fv__processor_table;

static bool recognise(const fv_env *env, const char *path, const fv_json *preprocessor)
{
    (void)env, (void)path;
    const char *kind = preprocessor ? fv_json_text(preprocessor, "processor_kind") : NULL;
    return kind && !strcmp(kind, "table");
}

static fv_status allocate(table *t, const fv_env *env, int n, fv_err *e)
{
    t->env = env;
    t->column = fv__alloc(env, (size_t)n * sizeof *t->column);
    if (!t->column) return fv_fail(e, FV_ENOMEM, "table: out of memory for %d columns", n);
    t->n = n;
    return FV_OK;
}

static fv_status set_name(const table *t, int i, const char *name, fv_err *e)
{
    size_t n = strlen(name) + 1;
    if (!(t->column[i].name = fv__alloc(t->env, n)))
        return fv_fail(e, FV_ENOMEM, "table: out of memory for its columns");
    memcpy(t->column[i].name, name, n);
    return FV_OK;
}

static void close_table(void *self)
{
    table *t = self;
    for (int i = 0; i < t->n; i++)
        if (t->column[i].name) fv__free(t->env, t->column[i].name, strlen(t->column[i].name) + 1);
    fv__free(t->env, t->column, (size_t)t->n * sizeof *t->column);
}

/* Name, mean and deviation of column i; a deviation of 0 would divide by it. */
static fv_status read_column(const table *t, const fv_json *j, int i, const char *path, fv_err *e)
{
    char name[32], mean[32], deviation[32];
    column *c = &t->column[i];
    snprintf(name, sizeof name, "columns.%d", i);
    snprintf(mean, sizeof mean, "mean.%d", i);
    snprintf(deviation, sizeof deviation, "std.%d", i);
    const char *text = fv_json_text(j, name);
    if (!text || !fv_json_number(j, mean, &c->mean) ||
        !fv_json_number(j, deviation, &c->deviation) || !(c->deviation > 0))
        return fv_fail(
            e, FV_EFORMAT,
            "%s: column %d: expected a name in columns, a number in mean and one above 0 "
            "in std",
            path, i);
    return set_name(t, i, text, e);
}

static fv_status open_table(void *self, const fv_env *env, const char *dir, fv_err *e)
{
    char path[FV_PATH];
    fv_json *j;
    snprintf(path, sizeof path, "%s/preprocessor_config.json", dir);
    fv_status st = fv_json_open(&j, env, path, e);
    if (st) return st;
    int n = fv_json_count(j, "columns");
    if (!recognise(env, path, j) || n < 1 || fv_json_count(j, "mean") != n ||
        fv_json_count(j, "std") != n)
        st = fv_fail(e, FV_EFORMAT,
                     "%s: expected processor_kind \"table\", and columns, mean and std of one "
                     "length",
                     path);
    if (!st) st = allocate(self, env, n, e);
    for (int i = 0; !st && i < n; i++) st = read_column(self, j, i, path, e);
    fv_json_close(j);
    return st;
}

static fv_status save(const void *self, const char *dir, fv_err *e)
{
    const table *t = self;
    char path[FV_PATH];
    snprintf(path, sizeof path, "%s/preprocessor_config.json", dir);
    fv__jtree tree = {.pool = {.env = t->env}};
    fv__jnode *o = fv__jnode_new(&tree, FV__J_OBJECT), *names = fv__jnode_new(&tree, FV__J_ARRAY),
              *means = fv__jnode_new(&tree, FV__J_ARRAY),
              *deviations = fv__jnode_new(&tree, FV__J_ARRAY);
    bool ok = o && names && means && deviations &&
              fv__jnode_put(&tree, o, "processor_kind", fv__jnode_text(&tree, "table", 5));
    for (int i = 0; ok && i < t->n; i++) {
        const column *c = &t->column[i];
        ok = fv__jnode_put(&tree, names, NULL, fv__jnode_text(&tree, c->name, strlen(c->name))) &&
             fv__jnode_put(&tree, means, NULL, fv__jnode_real(&tree, c->mean)) &&
             fv__jnode_put(&tree, deviations, NULL, fv__jnode_real(&tree, c->deviation));
    }
    ok = ok && fv__jnode_put(&tree, o, "columns", names) &&
         fv__jnode_put(&tree, o, "mean", means) && fv__jnode_put(&tree, o, "std", deviations);
    fv_buf b = {.env = t->env, .failed = !ok};
    if (ok) fv__jnode_print(&b, o, 0);
    return fv__preprocessor_write(t->env, path, &b, &tree, e);
}

/* Two passes, so that a large mean does not cost the digits of a small deviation. */
static void measure(column *c, const float *x, int64_t rows, int stride)
{
    double sum = 0, squares = 0, n = 0;
    for (int64_t i = 0; i < rows; i++)
        if (!isnan(x[i * stride])) sum += (double)x[i * stride], n++;
    c->mean = n > 0 ? sum / n : 0;
    for (int64_t i = 0; i < rows; i++) {
        double d = (double)x[i * stride] - c->mean;
        if (!isnan(d)) squares += d * d;
    }
    c->deviation = n > 0 ? sqrt(squares / n) : 0;
    if (!(c->deviation > 0)) c->deviation = 1;
}

fv_status fv_processor_fit_table(fv_processor **out, const fv_env *env, const char *const *name,
                                 int n, const float *x, int64_t rows, fv_err *e)
{
    *out = NULL;
    if (n < 1 || rows < 1) return fv_fail(e, FV_EARG, "table: there are no numbers to fit");
    for (int64_t i = 0; i < rows * n; i++)
        if (isinf(x[i]))
            return fv_fail(e, FV_ENUMERIC, "table: row %lld, column %s: not finite",
                           (long long)(i / n + 1), name[i % n]);
    fv_status st = fv_processor_new(out, env, &fv__processor_table, e);
    if (st) return st;
    table *t = fv_processor_self(*out, &fv__processor_table);
    st = allocate(t, env, n, e);
    for (int i = 0; !st && i < n; i++) {
        st = set_name(t, i, name[i], e);
        measure(&t->column[i], x + i, rows, n);
    }
    if (st) {
        fv_processor_close(*out);
        *out = NULL;
    }
    return st;
}

int fv_processor_columns(const fv_processor *p)
{
    const table *t = fv_processor_self(p, &fv__processor_table);
    return t ? t->n : 0;
}

const char *fv_processor_column(const fv_processor *p, int i)
{
    const table *t = fv_processor_self(p, &fv__processor_table);
    return t && i >= 0 && i < t->n ? t->column[i].name : NULL;
}

void fv_processor_normalise(const fv_processor *p, float *x, int64_t rows)
{
    const table *t = fv_processor_self(p, &fv__processor_table);
    for (int64_t i = 0; t && i < rows * t->n; i++) {
        const column *c = &t->column[i % t->n];
        x[i] = (float)(((double)x[i] - c->mean) / c->deviation);
    }
}

void fv_processor_restore(const fv_processor *p, float *x, int64_t rows)
{
    const table *t = fv_processor_self(p, &fv__processor_table);
    for (int64_t i = 0; t && i < rows * t->n; i++) {
        const column *c = &t->column[i % t->n];
        x[i] = (float)((double)x[i] * c->deviation + c->mean);
    }
}

const fv_processor_type fv__processor_table = {
    .name = "table",
    .size = sizeof(table),
    .recognise = recognise,
    .open = open_table,
    .save = save,
    .close = close_table,
};
