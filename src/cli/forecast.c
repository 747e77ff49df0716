/* forecast.c - fovea forecast: what follows a time series, and how well that went before. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "cli.h"
#include "fovea/author/forecast.h"
#include "json.h"

typedef struct forecast_values {
    cli_model model;
    const char *date, *columns, *plot;
    int missing;
    int64_t from, to, stride, history;
    double interval;
    bool backtest, json;
} forecast_values;

static const cli_option options[] = {
    CLI_MODEL(forecast_values),
    CLI_TEXT(forecast_values, date, 0, "date", "NAME",
             "column with the date; the first unless given"),
    CLI_TEXT(forecast_values, columns, 0, "columns", "NAMES",
             "columns that are channels, commas between; all others unless given"),
    CLI_CHOICE(forecast_values, missing, 0, "missing", fv_missing_words,
               "values that are missing: an error, as the one before, or on a line between"),
    CLI_FLAG(forecast_values, backtest, 0, "backtest",
             "forecast every window of the file and compare, instead"),
    CLI_INT(forecast_values, from, 0, "from", "N", 0, 1e15,
            "first row that a back-test forecasts, counted from 0"),
    CLI_INT(forecast_values, to, 0, "to", "N", 0, 1e15, "row that it stops before; 0: the end"),
    CLI_INT(forecast_values, stride, 0, "stride", "N", 1, 1e9,
            "rows from one window of a back-test to the next"),
    CLI_REAL(forecast_values, interval, 0, "interval", "SHARE", 0, 0.999,
             "beside the forecast the range that holds this share of the errors of a back-test"),
    CLI_FILE(forecast_values, plot, 0, "plot", "FILE", "also draw history and forecast: x.svg"),
    CLI_INT(forecast_values, history, 0, "history", "N", 0, 1e9,
            "rows of history in the picture; 0: as many as the model reads"),
    CLI_FLAG(forecast_values, json, 0, "json", "one JSON object"),
    {0},
};

static const forecast_values defaults = {.stride = 1};

static const cli_example examples[] = {
    {"fovea forecast -m runs/etth1/model ETTh1.csv.gz", "the next rows, as CSV"},
    {"fovea forecast -m runs/etth1/model ETTh1.csv.gz --interval 0.8 --plot next.svg",
     "with a range that eight of ten values fall into, and a picture"},
    {"fovea forecast -m runs/etth1/model ETTh1.csv.gz --backtest --from 11520 --to 14400",
     "errors over all windows of the test part"},
    {"fovea forecast -m model sales.csv --date day --columns north,south --missing linear --json",
     "two columns of a file with gaps"},
    {0},
};

/* A forecast with its ranges, (horizon,channels) each; low and high may be NULL. */
typedef struct result {
    const fv_series *s;
    float *y, *low, *high;
    int64_t H, C;
} result;

/* ---- output ---- */

static void print_csv(const result *r)
{
    printf("date");
    for (int k = 0; k < r->C; k++) printf(",%s", fv_series_name(r->s, k));
    for (int k = 0; r->low && k < r->C; k++)
        printf(",%s_low,%s_high", fv_series_name(r->s, k), fv_series_name(r->s, k));
    for (int64_t h = 0; h < r->H; h++) {
        char date[40];
        const int64_t at = h * r->C;
        fv_series_date(r->s, fv_series_count(r->s) + h, date, sizeof date);
        printf("\n%s", date);
        for (int64_t k = 0; k < r->C; k++) printf(",%.6g", (double)r->y[at + k]);
        for (int64_t k = 0; r->low && k < r->C; k++)
            printf(",%.6g,%.6g", (double)(r->y[at + k] + r->low[at + k]),
                   (double)(r->y[at + k] + r->high[at + k]));
    }
    printf("\n");
}

static void put_numbers(cli_json *j, const result *r, const char *name, int64_t k, const float *add)
{
    cli_json_put(j, "s:[", name);
    for (int64_t h = 0; h < r->H; h++) {
        int64_t at = h * r->C + k;
        cli_json_put(j, "f", (double)(r->y[at] + (add ? add[at] : 0)));
    }
    cli_json_put(j, "]");
}

static void print_json(const result *r)
{
    cli_json j = {0};
    cli_json_put(&j, "{s:[", "dates");
    for (int64_t h = 0; h < r->H; h++) {
        char date[40];
        fv_series_date(r->s, fv_series_count(r->s) + h, date, sizeof date);
        cli_json_put(&j, "s", date);
    }
    cli_json_put(&j, "], s:[", "channels");
    for (int64_t k = 0; k < r->C; k++) {
        cli_json_put(&j, "{s:s", "name", fv_series_name(r->s, (int)k));
        put_numbers(&j, r, "forecast", k, NULL);
        if (r->low) put_numbers(&j, r, "low", k, r->low);
        if (r->low) put_numbers(&j, r, "high", k, r->high);
        cli_json_put(&j, "}");
    }
    cli_json_put(&j, "]}");
    cli_json_end();
}

static void print_backtest(const fv_backtest *b, bool json)
{
    if (json) {
        cli_json j = {0};
        cli_json_put(&j, "{s:I, s:f, s:f, s:f, s:f, s:f}", "windows", b->windows, "mse", b->mse,
                     "mae", b->mae, "unit_mae", b->unit_mae, "repeat_mse", b->repeat_mse,
                     "repeat_mae", b->repeat_mae);
        cli_json_end();
        return;
    }
    printf("%lld windows\n", (long long)b->windows);
    printf("%-22s MSE %.4f  MAE %.4f  (%.4g in the file's units)\n", "model", b->mse, b->mae,
           b->unit_mae);
    printf("%-22s MSE %.4f  MAE %.4f\n", "last value repeated", b->repeat_mse, b->repeat_mae);
}

/* ---- the command ---- */

static fv_backtest_opt range(const forecast_values *v)
{
    return (fv_backtest_opt){.from = v->from, .to = v->to, .stride = v->stride};
}

/* The next horizon, with its ranges where they are asked for. */
static fv_status next(const forecast_values *v, fv_forecaster *f, const fv_series *s, fv_err *e)
{
    result r = {.s = s, .H = fv_forecaster_horizon(f), .C = fv_forecaster_channels(f)};
    size_t n = (size_t)(r.H * r.C);
    float *all = calloc(3 * n, sizeof *all);
    if (!all) return fv_fail(e, FV_ENOMEM, "out of memory");
    r.y = all;
    fv_status st = fv_forecaster_next(f, s, r.y, e);
    if (!st && v->interval > 0) {
        fv_backtest_opt o = range(v);
        fv_backtest b;
        o.level = v->interval;
        o.low = r.low = all + n;
        o.high = r.high = all + 2 * n;
        st = fv_forecaster_backtest(f, s, o, &b, e);
    }
    int64_t history = v->history ? v->history : fv_forecaster_context(f);
    if (!st && v->plot) st = fv_forecast_plot(s, r.y, r.H, r.low, r.high, history, v->plot, e);
    if (!st) v->json ? print_json(&r) : print_csv(&r);
    free(all);
    return st;
}

static int run(const cli *c, const void *values, int n, char **operand)
{
    const forecast_values *v = values;
    fv_device *d = NULL;
    fv_forecaster *f = NULL;
    fv_series *s = NULL;
    fv_err e;
    fv_model_opt how = {0};
    (void)n;
    if (!v->model.dir) return cli_usage(c, "a model is needed: -m DIR");
    cli_adapters adapters;
    cli_choose_weights(v->model.dtype, &how.weights, &how.widen);
    int code = cli_take_adapters(c, &v->model.adapters, &adapters, &how.adapters);
    if (code == CLI_OK) code = cli_open_device(c, &d, v->model.device, v->model.threads);
    if (code != CLI_OK) return code;
    fv_series_opt from = {operand[0], v->date, v->columns, (fv_missing)v->missing};
    fv_status st = fv_series_open(&s, NULL, &from, &e);
    if (!st) st = fv_forecaster_open(&f, d, v->model.dir, how, &e);
    if (!st && fv_series_filled(s))
        fprintf(stderr, "%s: %s: %lld missing values were filled\n", c->name, operand[0],
                (long long)fv_series_filled(s));
    if (!st && v->backtest) {
        fv_backtest b;
        st = fv_forecaster_backtest(f, s, range(v), &b, &e);
        if (!st) print_backtest(&b, v->json);
    } else if (!st) {
        st = next(v, f, s, &e);
    }
    fv_forecaster_close(f);
    fv_series_close(s);
    fv_device_close(d);
    return st ? cli_error(c, &e) : CLI_OK;
}

const cli_command forecast_command = {
    .name = "forecast",
    .summary = "what follows a time series",
    .about =
        "Reads a table of numbers with a date column (CSV, plain or gzip; the first line names the "
        "columns) and prints the rows that follow the last one, with their dates, in the units of "
        "the file.  Columns must be those that the model was trained on.  Dates must follow each "
        "other; a value that is missing is an error unless --missing says how to fill it.\n\n"
        "--interval adds ranges: quantiles of the errors that the model made at the same distance "
        "in a back-test over the rows from --from to --to.  Choose rows that the model was not "
        "trained on, or the ranges are too narrow.\n\n"
        "--backtest forecasts every window of those rows and prints the mean square and mean "
        "absolute error of values as the model sees them (mean 0, deviation 1 over the rows it was "
        "trained on), as papers do, beside those of repeating the last value.  All windows count.",
    .options = options,
    .size = sizeof(forecast_values),
    .defaults = &defaults,
    .operands = "FILE",
    .min_operands = 1,
    .max_operands = 1,
    .examples = examples,
    .run = run,
};
