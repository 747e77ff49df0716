/* series_forecast.c - forecasts with a trained model, and back-testing.
 *
 * Intervals are empirical: the quantiles of the errors that the model made at the same distance in
 * the windows of a back-test.  A model that outputs distributions lost: its intervals are only as
 * good as the family of distributions fits, and the model must be trained for them. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/core.h"
#include "fovea/author/family.h"
#include "fovea/author/forecast.h"
#include "fovea/author/processor.h"
#include "model/series.h"

enum { TOGETHER = 64 }; /* windows of a batch */

/* T time steps go in, H come out, of C channels each. */
struct fv_forecaster {
    fv_env env;
    fv_model *model;
    fv_processor *processor;
    fv_ctx *c;
    int64_t T, H, C;
};

/* ---- opening ---- */

/* A processor without columns (a model from elsewhere) takes what it is given. */
static fv_status check(const fv_forecaster *f, const char *dir, fv_err *e)
{
    int columns = fv_processor_columns(f->processor);
    if (fv_model_job(f->model) != FV_HEAD_FORECAST)
        return fv_fail(e, FV_EARG, "%s: %s does not forecast; PatchTSTForPrediction would", dir,
                       fv_model_head(f->model));
    if (columns && columns != f->C)
        return fv_fail(e, FV_EFORMAT,
                       "%s: preprocessor_config.json has %d columns, config.json %lld channels",
                       dir, columns, (long long)f->C);
    return FV_OK;
}

/* T, H and C are the model's: it reads T time steps of C channels and gives H more. */
fv_status fv_forecaster_open(fv_forecaster **out, fv_device *d, const char *dir, fv_model_opt opt,
                             fv_err *e)
{
    const fv_env *env = fv_device_env(d);
    fv_forecaster *f = *out = fv__alloc(env, sizeof *f);
    if (!f) return fv_fail(e, FV_ENOMEM, "forecast: out of memory");
    if (env) f->env = *env;
    opt.serve = true;
    fv_status st = fv_model_open(&f->model, d, dir, opt, e);
    if (!st) st = fv_processor_open(&f->processor, env, NULL, dir, e);
    if (!st) {
        f->T = fv__series_setting(f->model, "context_length");
        f->H = fv__series_setting(f->model, "prediction_length");
        f->C = fv__series_setting(f->model, "num_input_channels");
        st = check(f, dir, e);
    }
    if (!st) st = fv_ctx_new(&f->c, d, (fv_ctx_opt){.dtype = fv_model_dtype(f->model)}, e);
    if (st) {
        fv_forecaster_close(f);
        *out = NULL;
    }
    return st;
}

void fv_forecaster_close(fv_forecaster *f)
{
    if (!f) return;
    fv_env env = f->env;
    fv_ctx_free(f->c);
    fv_processor_close(f->processor);
    fv_model_free(f->model);
    fv__free(&env, f, sizeof *f);
}

int64_t fv_forecaster_context(const fv_forecaster *f) { return f->T; }
int64_t fv_forecaster_horizon(const fv_forecaster *f) { return f->H; }
int64_t fv_forecaster_channels(const fv_forecaster *f) { return f->C; }

/* ---- windows ---- */

/* past (n,T,C) -> future (n,H,C), both as the model sees them. */
static fv_status run_scaled(const fv_forecaster *f, const float *past, int64_t n, float *future,
                            fv_err *e)
{
    fv_items in = {0}, out = {0};
    fv_ctx_reset(f->c, 0);
    fv_items_put(&in, "past_values", fv_floats(f->c, past, FV_SHAPE(n, f->T, f->C)));
    fv_model_forward(f->c, f->model, &in, &out);
    fv_status st = fv_read(f->c, fv_items_get(&out, "prediction_outputs"), future, n * f->H * f->C);
    return st ? fv_fail(e, st, "forecast: %s", fv_ctx_err(f->c)->text) : FV_OK;
}

/* Values go in and come out in the file's units; the model sees them normalised. */
fv_status fv_forecaster_run(fv_forecaster *f, const float *past, int64_t n, float *future,
                            fv_err *e)
{
    size_t bytes = (size_t)(TOGETHER * f->T * f->C) * sizeof(float);
    float *x = fv__alloc(&f->env, bytes);
    fv_status st = x ? FV_OK : fv_fail(e, FV_ENOMEM, "forecast: out of memory");
    for (int64_t i = 0; !st && i < n; i += TOGETHER) {
        int64_t k = n - i < TOGETHER ? n - i : TOGETHER;
        memcpy(x, past + i * f->T * f->C, (size_t)(k * f->T * f->C) * sizeof *x);
        fv_processor_normalise(f->processor, x, k * f->T);
        st = run_scaled(f, x, k, future + i * f->H * f->C, e);
        fv_processor_restore(f->processor, future + i * f->H * f->C, k * f->H);
    }
    fv__free(&f->env, x, bytes);
    return st;
}

/* A model knows its columns by name and order: another order would be another model's input. */
static fv_status check_series(const fv_forecaster *f, const fv_series *s, fv_err *e)
{
    if (fv_series_channels(s) != f->C)
        return fv_fail(e, FV_EARG, "the series has %d columns, but the model %lld",
                       fv_series_channels(s), (long long)f->C);
    for (int i = 0; i < f->C && fv_processor_columns(f->processor); i++)
        if (strcmp(fv_series_name(s, i), fv_processor_column(f->processor, i)) != 0)
            return fv_fail(e, FV_EARG, "column %d of the series is %s, but the model's is %s",
                           i + 1, fv_series_name(s, i), fv_processor_column(f->processor, i));
    return FV_OK;
}

/* The last T time steps of the series; more history than the model reads has no effect. */
fv_status fv_forecaster_next(fv_forecaster *f, const fv_series *s, float *future, fv_err *e)
{
    fv_status st = check_series(f, s, e);
    int64_t n = fv_series_count(s);
    if (!st && n < f->T)
        st = fv_fail(e, FV_EARG, "the series has %lld time steps, but the model reads %lld",
                     (long long)n, (long long)f->T);
    return st ? st : fv_forecaster_run(f, fv_series_values(s) + (n - f->T) * f->C, 1, future, e);
}

/* ---- back-testing ---- */

typedef struct testing {
    fv_forecaster *f;
    float *x;                     /* (steps,C): the whole series as the model sees it */
    const float *u;               /* the same in the units of the file */
    float *past, *future, *error; /* of a batch (k,..); error (windows,H,C) in units, or NULL */
    int64_t first, stride, windows;
    fv_backtest sum;
} testing;

/* Adds window i, whose forecast is y (H,C). */
static void add_window(testing *t, int64_t i, float *y)
{
    const fv_forecaster *f = t->f;
    int64_t at = t->first + i * t->stride, n = f->H * f->C;
    const float *actual = t->x + at * f->C, *unit = t->u + at * f->C, *last = actual - f->C;
    for (int64_t j = 0; j < n; j++) {
        double d = (double)y[j] - (double)actual[j], r = (double)last[j % f->C] - (double)actual[j];
        t->sum.mse += d * d;
        t->sum.mae += fabs(d);
        t->sum.repeat_mse += r * r;
        t->sum.repeat_mae += fabs(r);
    }
    fv_processor_restore(f->processor, y, f->H);
    for (int64_t j = 0; j < n; j++) {
        float d = unit[j] - y[j];
        t->sum.unit_mae += fabs((double)d);
        if (t->error) t->error[i * n + j] = d;
    }
}

/* Sums in f64 and in the order of the windows: the result does not depend on the batch. */
static fv_status test_windows(testing *t, fv_err *e)
{
    const fv_forecaster *f = t->f;
    int64_t width = f->T * f->C;
    fv_status st = FV_OK;
    for (int64_t i = 0; !st && i < t->windows; i += TOGETHER) {
        int64_t k = t->windows - i < TOGETHER ? t->windows - i : TOGETHER;
        for (int64_t b = 0; b < k; b++)
            memcpy(t->past + b * width, t->x + (t->first + (i + b) * t->stride - f->T) * f->C,
                   (size_t)width * sizeof *t->past);
        st = run_scaled(f, t->past, k, t->future, e);
        for (int64_t b = 0; !st && b < k; b++) add_window(t, i + b, t->future + b * f->H * f->C);
    }
    double n = (double)(t->windows * f->H * f->C);
    t->sum.windows = t->windows;
    t->sum.mse /= n;
    t->sum.mae /= n;
    t->sum.unit_mae /= n;
    t->sum.repeat_mse /= n;
    t->sum.repeat_mae /= n;
    return st;
}

static int by_value(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* The q-quantile of n sorted numbers, between neighbours by a line. */
static float quantile(const float *x, int64_t n, double q)
{
    double at = q * (double)(n - 1);
    int64_t i = (int64_t)floor(at), next = i + 1 < n ? i + 1 : i;
    return (float)((double)x[i] + (at - (double)i) * ((double)x[next] - (double)x[i]));
}

/* For each distance and channel; `column` has room for a number of each window. */
static void intervals(const testing *t, const fv_backtest_opt *o, float *column)
{
    int64_t n = t->f->H * t->f->C;
    for (int64_t j = 0; j < n; j++) {
        for (int64_t i = 0; i < t->windows; i++) column[i] = t->error[i * n + j];
        qsort(column, (size_t)t->windows, sizeof *column, by_value);
        if (o->level > 0) {
            o->low[j] = quantile(column, t->windows, (1 - o->level) / 2);
            o->high[j] = quantile(column, t->windows, (1 + o->level) / 2);
        }
        for (int k = 0; k < o->n_levels; k++)
            o->quantiles[k * n + j] = quantile(column, t->windows, o->levels[k]);
    }
}

/* Which windows: *first is the first moment that is forecast. */
static fv_status choose(const fv_forecaster *f, int64_t n, const fv_backtest_opt *o, testing *t,
                        fv_err *e)
{
    int64_t from = o->from > f->T ? o->from : f->T, to = o->to > 0 ? o->to : n;
    if (to > n)
        return fv_fail(e, FV_EARG, "to %lld: the series has %lld time steps", (long long)to,
                       (long long)n);
    if (to - from < f->H)
        return fv_fail(e, FV_EARG,
                       "time steps %lld to %lld hold no horizon of %lld behind a context of %lld",
                       (long long)from, (long long)to, (long long)f->H, (long long)f->T);
    t->first = from;
    t->stride = o->stride > 0 ? o->stride : 1;
    t->windows = (to - from - f->H) / t->stride + 1;
    return FV_OK;
}

/* One block of memory: the series as the model sees it, a batch of windows, and errors where
 * quantiles of them are wanted. */
fv_status fv_forecaster_backtest(fv_forecaster *f, const fv_series *s, fv_backtest_opt opt,
                                 fv_backtest *out, fv_err *e)
{
    testing t = {.f = f, .u = fv_series_values(s)};
    fv_status st = check_series(f, s, e);
    int64_t n = fv_series_count(s);
    *out = (fv_backtest){0};
    if (!st) st = choose(f, n, &opt, &t, e);
    if (st) return st;
    if (!opt.low || !opt.high) opt.level = 0;
    if (!opt.levels || !opt.quantiles) opt.n_levels = 0;
    bool wanted = opt.level > 0 || opt.n_levels > 0;
    int64_t kept = wanted ? t.windows * f->H * f->C + t.windows : 0,
            floats = n * f->C + TOGETHER * (f->T + f->H) * f->C + kept;
    size_t bytes = (size_t)floats * sizeof(float);
    float *all = fv__alloc(&f->env, bytes);
    if (!all) return fv_fail(e, FV_ENOMEM, "back-test: out of memory");
    t.x = all;
    t.past = t.x + n * f->C;
    t.future = t.past + TOGETHER * f->T * f->C;
    if (wanted) t.error = t.future + TOGETHER * f->H * f->C;
    memcpy(t.x, t.u, (size_t)(n * f->C) * sizeof *t.x);
    fv_processor_normalise(f->processor, t.x, n);
    st = test_windows(&t, e);
    if (!st && wanted) intervals(&t, &opt, t.error + t.windows * f->H * f->C);
    if (!st) *out = t.sum;
    fv__free(&f->env, all, bytes);
    return st;
}
