/* eval_regress.c - errors of the numbers that a model finds for time series: mean square, mean
 * absolute, and the share of the variance that is explained (R squared). */
#include <math.h>
#include <stdlib.h>

#include "fovea/author/task.h"
#include "task_pipeline.h"

typedef struct work {
    fv_eval_run *r;
    fv_task *task;
    fv_table *rows;
    int64_t targets;
    double squares, absolute, sum, sum_squares, n; /* of errors; of what was to be found */
} work;

static fv_status compute(void *user, int64_t from, int64_t n, fv_buf *out, fv_err *e)
{
    work *w = user;
    size_t each = (size_t)w->targets * sizeof(float), bytes = (size_t)n * (sizeof(fv_text) + each);
    fv_text *texts = fv__alloc(&w->r->env, bytes);
    if (!texts) return fv_fail(e, FV_ENOMEM, "out of memory");
    float *y = (float *)(void *)(texts + n);
    for (int64_t i = 0; i < n; i++) texts[i].s = fv_table_text(w->rows, from + i, 0, &texts[i].n);
    fv_status st = fv_task_regress(w->task, texts, n, y, e);
    for (int64_t i = 0; !st && i < n; i++) fv__eval_give(out, y + i * w->targets, each);
    fv__free(&w->r->env, texts, bytes);
    return st;
}

static void count(work *w, double given, double gold)
{
    double off = given - gold;
    w->squares += off * off;
    w->absolute += fabs(off);
    w->sum += gold;
    w->sum_squares += gold * gold;
    w->n++;
}

/* The numbers that were to be found stand in the second text. */
static fv_status take(void *user, int64_t i, const void *result, size_t bytes, fv_err *e)
{
    work *w = user;
    const float *y = result;
    size_t len;
    const char *at = fv_table_text(w->rows, i, 1, &len);
    (void)bytes;
    for (int64_t k = 0; k < w->targets; k++) {
        char *end;
        double gold = strtod(at, &end);
        if (end == at || !isfinite(gold))
            return fv_fail(e, FV_EFORMAT, "%s:%lld: \"%.40s\": expected %lld numbers",
                           w->r->opt->file, (long long)fv_table_line(w->rows, i), at,
                           (long long)w->targets);
        count(w, (double)y[k], gold);
        at = end + strspn(end, ", ");
        fv__buf_fmt(&w->r->predictions, "%s%.6g", k ? " " : "", (double)y[k]);
    }
    fv__buf_str(&w->r->predictions, "\n");
    return FV_OK;
}

static void report(const work *w)
{
    fv_buf *b = &w->r->out;
    double mse = w->squares / w->n, mae = w->absolute / w->n, mean = w->sum / w->n,
           variance = w->sum_squares / w->n - mean * mean,
           explained = variance > 0 ? 1 - mse / variance : 0;
    if (!w->r->opt->json) {
        fv__buf_fmt(b, "%-20s %9.4f  of %lld records\n", "mean square error", mse,
                    (long long)fv_table_count(w->rows));
        fv__buf_fmt(b, "%-20s %9.4f\n%-20s %9.4f\n", "mean absolute error", mae, "R squared",
                    explained);
        return;
    }
    fv__json_begin(b, '{');
    fv__json_text_at(b, "task", "regress", 7);
    fv__json_int_at(b, "records", fv_table_count(w->rows));
    fv__json_number_at(b, "mse", mse);
    fv__json_number_at(b, "mae", mae);
    fv__json_number_at(b, "r2", explained);
    fv__buf_str(b, "}\n");
}

static fv_status run(fv_eval_run *r, fv_err *e)
{
    work w = {.r = r};
    fv_data_report found = {0};
    fv_records from = fv__eval_records(r);
    if (!r->opt->file)
        return fv_fail(e, FV_EUSAGE, "a file with series and their numbers is needed");
    fv_status st = fv__eval_encoder(r, &w.task, FV_JOB_REGRESS, e);
    if (!st) st = fv_table_open(&w.rows, &r->env, &from, 2, &found, e);
    if (!st) {
        w.targets = fv_task_targets(w.task);
        fv_slices how = {compute, take, 0};
        st = fv__eval_slices(r, fv_table_count(w.rows), &how, &w, e);
    }
    if (!st) report(&w);
    fv_table_close(w.rows);
    fv_task_close(w.task);
    return st;
}

static const fv_head_job heads[] = {FV_HEAD_REGRESS, FV_HEAD_BASE};
const fv_task_eval fv__eval_regress = {.name = "regress", .heads = heads, .run = run};
