/* forecast.c - the task of forecasting: what follows a time series, and how well that went before.
 *
 * A record is the path of a table, not a text: a forecast needs the columns, their names and dates
 * as they stand in the file.  The work is in series_forecast.c behind author/forecast.h; here are
 * the settings and the two ways a result is written, CSV and JSON. */
#include "fovea/author/forecast.h"

#include <stdio.h>
#include <stdlib.h>

#include "task_pipeline.h"

#define MOST_LEVELS 32

typedef struct forecast_options {
    char date[128], columns[1024], plot[1024], quantiles[256];
    fv_missing missing;
    int64_t from, to, stride, history; /* rows of the file */
    double interval;                   /* share of the errors that the ranges hold, 0: no ranges */
    bool backtest;
} forecast_options;

static const fv_field options[] = {
    FV_TEXT(forecast_options, date, "", "NAME: column with the date; the first unless given"),
    FV_TEXT(forecast_options, columns, "",
            "NAMES: columns that are channels, commas between; all others unless given"),
    FV_CHOICE(forecast_options, missing, FV_MISSING_REFUSE, fv_missing_words,
              "values that are missing: an error, as the one before, or on a line between"),
    FV_BOOL(forecast_options, backtest, false,
            "forecast every window of the file and compare, instead"),
    FV_INT(forecast_options, from, 0, 0, 1e15,
           "first row that a back-test forecasts, counted from 0"),
    FV_INT(forecast_options, to, 0, 0, 1e15, "row that it stops before; 0: the end"),
    FV_INT(forecast_options, stride, 1, 1, 1e9, "rows from one window of a back-test to the next"),
    FV_FLOAT(forecast_options, interval, 0, 0, 0.999,
             "beside the forecast the range that holds this share of the errors of a back-test"),
    FV_TEXT(forecast_options, quantiles, "",
            "LEVELS: quantiles of each value by the errors of a back-test, such as 0.1,0.5,0.9"),
    FV_TEXT(forecast_options, plot, "", "FILE: also draw history and forecast: x.svg"),
    FV_INT(forecast_options, history, 0, 0, 1e9,
           "rows of history in the picture; 0: as many as the model reads"),
    {0}};

/* A forecast with its ranges, (horizon,channels) each; low and high are offsets from y, or NULL,
 * and so are the quantiles of each level, one behind the other. */
typedef struct result {
    const fv_series *s;
    float *y, *low, *high, *quantiles;
    double level[MOST_LEVELS];
    int levels;
    int64_t H, C;
} result;

/* ---- output ---- */

/* A row for each moment of the horizon, with the header of the file; ranges stand behind the
 * forecasts, so that the first columns are the file's own. */
static void put_csv(fv_buf *b, const result *r)
{
    fv__buf_str(b, "date");
    for (int k = 0; k < r->C; k++) fv__buf_fmt(b, ",%s", fv_series_name(r->s, k));
    for (int k = 0; r->low && k < r->C; k++)
        fv__buf_fmt(b, ",%s_low,%s_high", fv_series_name(r->s, k), fv_series_name(r->s, k));
    for (int k = 0; k < r->C; k++)
        for (int q = 0; q < r->levels; q++)
            fv__buf_fmt(b, ",%s_q%g", fv_series_name(r->s, k), r->level[q]);
    for (int64_t h = 0; h < r->H; h++) {
        char date[40];
        const int64_t at = h * r->C;
        fv_series_date(r->s, fv_series_count(r->s) + h, date, sizeof date);
        fv__buf_fmt(b, "\n%s", date);
        for (int64_t k = 0; k < r->C; k++) fv__buf_fmt(b, ",%.6g", (double)r->y[at + k]);
        for (int64_t k = 0; r->low && k < r->C; k++)
            fv__buf_fmt(b, ",%.6g,%.6g", (double)(r->y[at + k] + r->low[at + k]),
                        (double)(r->y[at + k] + r->high[at + k]));
        for (int64_t k = 0; k < r->C; k++)
            for (int q = 0; q < r->levels; q++)
                fv__buf_fmt(b, ",%.6g",
                            (double)(r->y[at + k] + r->quantiles[q * r->H * r->C + at + k]));
    }
    fv__buf_str(b, "\n");
}

/* y (H,C) with add on top: the limits are kept as distances from the forecast. */
static void put_numbers(fv_buf *b, const result *r, const char *name, int64_t k, const float *add)
{
    fv__json_key(b, name);
    fv__json_begin(b, '[');
    for (int64_t h = 0; h < r->H; h++) {
        int64_t at = h * r->C + k;
        fv__json_put_number(b, (double)(r->y[at] + (add ? add[at] : 0)));
    }
    fv__json_end(b, ']');
}

/* An object with a key for each level, where some are asked for. */
static void put_quantiles(fv_buf *b, const result *r, int64_t k)
{
    if (!r->levels) return;
    fv__json_key(b, "quantiles");
    fv__json_begin(b, '{');
    for (int q = 0; q < r->levels; q++) {
        char name[32];
        snprintf(name, sizeof name, "%g", r->level[q]);
        put_numbers(b, r, name, k, r->quantiles + q * r->H * r->C);
    }
    fv__json_end(b, '}');
}

/* Dates go on behind the series' last one by its own step. */
static void put_json(fv_buf *b, const result *r)
{
    fv__json_begin(b, '{');
    fv__json_key(b, "dates");
    fv__json_begin(b, '[');
    for (int64_t h = 0; h < r->H; h++) {
        char date[40];
        fv_series_date(r->s, fv_series_count(r->s) + h, date, sizeof date);
        fv__json_put_text(b, date, strlen(date));
    }
    fv__json_end(b, ']');
    fv__json_key(b, "channels");
    fv__json_begin(b, '[');
    for (int64_t k = 0; k < r->C; k++) {
        const char *name = fv_series_name(r->s, (int)k);
        fv__json_begin(b, '{');
        fv__json_text_at(b, "name", name, strlen(name));
        put_numbers(b, r, "forecast", k, NULL);
        if (r->low) put_numbers(b, r, "low", k, r->low);
        if (r->low) put_numbers(b, r, "high", k, r->high);
        put_quantiles(b, r, k);
        fv__json_end(b, '}');
    }
    fv__json_end(b, ']');
    fv__buf_str(b, "}\n");
}

/* Errors as papers give them, on normalised values, and one figure in the units of the file. */
static void put_backtest(fv_buf *b, const fv_backtest *t, bool json)
{
    if (json) {
        fv__json_begin(b, '{');
        fv__json_int_at(b, "windows", t->windows);
        fv__json_number_at(b, "mse", t->mse);
        fv__json_number_at(b, "mae", t->mae);
        fv__json_number_at(b, "unit_mae", t->unit_mae);
        fv__json_number_at(b, "repeat_mse", t->repeat_mse);
        fv__json_number_at(b, "repeat_mae", t->repeat_mae);
        fv__buf_str(b, "}\n");
        return;
    }
    fv__buf_fmt(b, "%lld windows\n", (long long)t->windows);
    fv__buf_fmt(b, "%-22s MSE %.4f  MAE %.4f  (%.4g in the file's units)\n", "model", t->mse,
                t->mae, t->unit_mae);
    fv__buf_fmt(b, "%-22s MSE %.4f  MAE %.4f\n", "last value repeated", t->repeat_mse,
                t->repeat_mae);
}

/* ---- the task ---- */

/* The forecaster is the pipeline's own state; a series is opened for each record. */
static fv_status open_task(fv_pipeline *p, fv_err *e)
{
    fv_forecaster *f;
    fv_status st = fv_forecaster_open(&f, p->dev, p->opt.model, fv__pipeline_model_opt(p), e);
    if (!st) p->self = f;
    return st;
}

static void close_task(fv_pipeline *p)
{
    fv_forecaster_close(p->self);
    p->self = NULL;
}

static fv_backtest_opt range(const forecast_options *o)
{
    return (fv_backtest_opt){.from = o->from, .to = o->to, .stride = o->stride};
}

/* "0.1,0.5,0.9" */
static fv_status read_levels(result *r, const char *text, fv_err *e)
{
    for (const char *at = text; *at;) {
        char *end;
        double q = strtod(at, &end);
        if (end == at || (*end && *end != ',') || !(q > 0 && q < 1))
            return fv_fail(e, FV_EARG,
                           "quantiles '%s': expected levels between 0 and 1, commas "
                           "between",
                           text);
        if (r->levels == MOST_LEVELS)
            return fv_fail(e, FV_EARG, "quantiles '%s': more than %d levels", text, MOST_LEVELS);
        r->level[r->levels++] = q;
        at = end + (*end == ',');
    }
    return FV_OK;
}

/* Ranges and quantiles, where they are asked for; they lie behind y. */
static fv_status spread(fv_pipeline *p, const fv_series *s, result *r, fv_err *e)
{
    const forecast_options *o = p->options;
    int64_t n = r->H * r->C;
    fv_backtest_opt how = range(o);
    fv_backtest b;
    if (o->interval <= 0 && !r->levels) return FV_OK;
    how.level = o->interval;
    how.levels = r->level;
    how.n_levels = r->levels;
    how.quantiles = r->quantiles = r->y + 3 * n;
    if (o->interval > 0) {
        how.low = r->low = r->y + n;
        how.high = r->high = r->y + 2 * n;
    }
    return fv_forecaster_backtest(p->self, s, how, &b, e);
}

/* The next horizon, with its ranges and quantiles. */
static fv_status next(fv_pipeline *p, const fv_series *s, fv_err *e)
{
    const forecast_options *o = p->options;
    fv_forecaster *f = p->self;
    result r = {.s = s, .H = fv_forecaster_horizon(f), .C = fv_forecaster_channels(f)};
    fv_status st = read_levels(&r, o->quantiles, e);
    if (st) return st;
    size_t bytes = (size_t)((3 + r.levels) * r.H * r.C) * sizeof *r.y;
    r.y = fv__alloc(&p->env, bytes);
    if (!r.y) return fv_fail(e, FV_ENOMEM, "forecast: out of memory");
    st = fv_forecaster_next(f, s, r.y, e);
    if (!st) st = spread(p, s, &r, e);
    int64_t history = o->history ? o->history : fv_forecaster_context(f);
    if (!st && o->plot[0]) st = fv_forecast_plot(s, r.y, r.H, r.low, r.high, history, o->plot, e);
    if (!st) (p->opt.json ? put_json : put_csv)(&p->out, &r);
    fv__free(&p->env, r.y, bytes);
    return st;
}

/* Opened and closed for each record: a pipeline may be asked for many files. */
static fv_status run_file(fv_pipeline *p, const char *path, fv_err *e)
{
    const forecast_options *o = p->options;
    fv_series *s;
    fv_backtest b;
    fv_series_opt from = {path, o->date, o->columns, o->missing};
    fv_status st = fv_series_open(&s, &p->env, &from, e);
    if (st) return st;
    if (fv_series_filled(s))
        snprintf(p->note, sizeof p->note, "%lld missing values were filled",
                 (long long)fv_series_filled(s));
    if (o->backtest)
        st = fv_forecaster_backtest(p->self, s, range(o), &b, e);
    else
        st = next(p, s, e);
    if (!st && o->backtest) put_backtest(&p->out, &b, p->opt.json);
    fv_series_close(s);
    return st ? st : fv__task_emit(p, e);
}

static fv_status run(fv_pipeline *p, const fv_text *in, int64_t n, fv_err *e)
{
    return fv__task_each_path(p, in, n, run_file, e);
}

static const fv_task_example examples[] = {
    {"fovea forecast -m runs/etth1/model ETTh1.csv.gz", "the next rows, as CSV"},
    {"fovea forecast -m runs/etth1/model ETTh1.csv.gz --interval 0.8 --plot next.svg",
     "with a range that eight of ten values fall into, and a picture"},
    {"fovea forecast -m runs/etth1/model ETTh1.csv.gz --quantiles 0.1,0.5,0.9 --from 11520",
     "three quantiles of every value, by the errors since row 11,520"},
    {"fovea forecast -m runs/etth1/model ETTh1.csv.gz --backtest --from 11520 --to 14400",
     "errors over all windows of the test part"},
    {"fovea forecast -m model sales.csv --date day --columns north,south --missing linear --json",
     "two columns of a file with gaps"},
    {0}};

const fv_task_kind fv__forecast_task = {
    .name = "forecast",
    .summary = "predict the values that follow a time series",
    .about =
        "Reads a table of numbers with a date column (CSV, plain or gzip; the first line names the "
        "columns) and prints the rows that follow the last one, with their dates, in the units of "
        "the file.  Columns must be those that the model was trained on.  Dates must follow each "
        "other; a value that is missing is an error unless --missing says how to fill it.\n\n"
        "--interval adds ranges, --quantiles single levels: quantiles of the errors that the model "
        "made at the same distance in a back-test over the rows from --from to --to.  Choose rows "
        "that the model was not "
        "trained on, or the ranges are too narrow.\n\n"
        "--backtest forecasts every window of those rows and prints the mean square and mean "
        "absolute error of values as the model sees them (mean 0, deviation 1 over the rows it was "
        "trained on), as papers do, beside those of repeating the last value.  All windows count.",
    .examples = examples,
    .options = options,
    .size = sizeof(forecast_options),
    .path = "FILE",
    .open = open_task,
    .run = run,
    .close = close_task};
