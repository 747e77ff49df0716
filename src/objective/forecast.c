/* forecast.c - the objective of forecasts: the values that follow a window of a time series.
 *
 * One file is cut into three parts by time: training, validation, test.  Each channel gets
 * mean 0 and deviation 1 by the numbers of the training part.  Every window of `context` moments
 * and the `horizon` moments behind it is an example; those of a later part may begin in the one
 * before it, so that the first forecast of a part is for its first moment (as in the papers on
 * ETT).  The loss over a part is over ALL its windows, as a batch that is not full counts too.
 * The metric is the mean absolute error.
 *
 * Units: a moment is one row of the file, a channel one column.  Values are normalised before
 * the model sees them, and loss and metric are measured on normalised values, as the papers on
 * long-term forecasting report them.  Training windows are `stride` moments apart, evaluation
 * always uses stride 1.
 *
 * The series is kept in memory once, (moments,channels), and a batch copies windows out of it.
 * Storing the windows themselves would take context + horizon times as much. */
#include <math.h>

#include "base/base.h"
#include "data/feed_parts.h"
#include "fovea/author/objective.h"
#include "fovea/author/processor.h"
#include "fovea/author/series.h"
#include "model/series.h"

enum { MSE, MAE };
static const char *const losses[] = {"mse", "mae", NULL};
enum { VALID, TEST };
static const char *const parts[] = {"valid", "test", NULL};

typedef struct options {
    /* all three in moments */
    int64_t context, horizon, stride;
    /* moments of training, validation, test; at[0] 0: 7/10, 1/10, 2/10 */
    fv_int_list split;
    char date[64], columns[1024];
    int missing, loss, evaluate;
} options;

typedef struct windows {
    const fv_env *env;
    options opt;
    float *x; /* (moments,channels), normalised */
    size_t bytes;
    int64_t first, n, stride, channels; /* the first window, how many, and how far apart */
} windows;

static fv_series_opt source(const options *o, const fv_records *from)
{
    return (fv_series_opt){.file = from->file,
                           .date = o->date,
                           .columns = o->columns,
                           .missing = (fv_missing)o->missing};
}

/* ---- parts ---- */

/* Moments [from, to) of part 0 training, 1 validation, 2 test, of n. */
static fv_status part_of(const options *o, const char *file, int64_t n, int part, int64_t *from,
                         int64_t *to, fv_err *e)
{
    /* the middle part gets what rounding leaves, so that the three add up to n */
    int64_t size[3] = {n * 7 / 10, n - n * 7 / 10 - n * 2 / 10, n * 2 / 10};
    if (o->split.n > 3) return fv_fail(e, FV_EARG, "parts: at most three numbers are expected");
    for (int i = 0; o->split.at[0] && i < 3; i++) size[i] = i < o->split.n ? o->split.at[i] : 0;
    if (size[0] + size[1] + size[2] > n)
        return fv_fail(e, FV_EARG, "parts: %lld + %lld + %lld moments, but %s has %lld",
                       (long long)size[0], (long long)size[1], (long long)size[2], file,
                       (long long)n);
    *from = part > 0 ? size[0] : 0;
    if (part > 1) *from += size[1];
    *to = *from + size[part];
    return FV_OK;
}

/* The windows of a part; one of training may not begin before it. */
static fv_status find_windows(windows *w, const char *file, int64_t moments, int part, fv_err *e)
{
    const options *o = &w->opt;
    int64_t from, to;
    fv_status st = part_of(o, file, moments, part, &from, &to, e);
    if (st) return st;
    /* context of the part before: else its first `context` moments would never be forecast */
    if (part && from >= o->context) from -= o->context;
    w->first = from;
    w->stride = part ? 1 : o->stride;
    w->n = (to - from - o->context - o->horizon) / w->stride + 1;
    if (to - from < o->context + o->horizon)
        return fv_fail(e, FV_EARG,
                       "%s: %lld moments hold no window of context %lld and horizon %lld", file,
                       (long long)(to - from), (long long)o->context, (long long)o->horizon);
    return FV_OK;
}

/* ---- batches ---- */

/* past_values (n,context,C), future_values (n,horizon,C). */
static fv_status make(const void *self, fv_batch *out, const int32_t *rows, int64_t n,
                      fv_data_rng how, fv_err *e)
{
    const windows *w = self;
    const options *o = &w->opt;
    int64_t C = w->channels, T = o->context, H = o->horizon;
    (void)how;
    float *past = fv_batch_put(out, "past_values", FV_F32, FV_SHAPE(n, T, C)),
          *future = fv_batch_put(out, "future_values", FV_F32, FV_SHAPE(n, H, C));
    if (!future) return fv_fail(e, out->err.code, "%s", out->err.text);
    for (int64_t i = 0; i < n; i++) {
        const float *from = w->x + (w->first + rows[i] * w->stride) * C;
        memcpy(past + i * T * C, from, (size_t)(T * C) * sizeof *past);
        memcpy(future + i * H * C, from + T * C, (size_t)(H * C) * sizeof *future);
    }
    out->labels = (double)(n * H * C);
    out->tokens = (double)(n * T * C);
    return FV_OK;
}

/* The mean absolute error in place of the family's mean square. */
static void forward_mae(const void *self, fv_ctx *c, const fv_model *m, const fv_items *in,
                        fv_items *out)
{
    (void)self;
    fv_tensor *future = fv_items_get(in, "future_values");
    /* without future_values the family computes no loss of its own */
    fv_items plain = {0};
    fv_items_put(&plain, "past_values", fv_items_get(in, "past_values"));
    fv_model_forward(c, m, &plain, out);
    fv_tensor *off = fv_mae(c, fv_items_get(out, "prediction_outputs"), future);
    /* mean times count is the sum, which fv__per_label divides by the labels of the whole step,
     * so that accumulated batches of unequal size weigh right */
    fv_items_put(out, "loss", fv__per_label(c, fv_scale(c, off, (float)fv_len(future)), in));
}

/* The sum of absolute errors, and their number. */
static fv_status count_errors(const void *self, fv_ctx *c, const fv_batch *b, const fv_items *out,
                              double *hits, double *of)
{
    const windows *w = self;
    const fv_tensor *y = fv_items_get(out, "prediction_outputs");
    const fv_batch_part *future = fv_batch_get(b, "future_values");
    int64_t n = fv_len(y);
    size_t bytes = (size_t)n * sizeof(float);
    float *host = fv__alloc(w->env, bytes);
    if (!host) return FV_ENOMEM;
    fv_status st = fv_read(c, y, host, n);
    for (int64_t i = 0; !st && i < n; i++)
        /* errors are summed in double: a part may have millions of values */
        *hits += fabs((double)host[i] - (double)((const float *)future->data)[i]);
    *of += (double)n;
    fv__free(w->env, host, bytes);
    return st;
}

/* ---- the feed ---- */

static int64_t count(const void *self, int64_t epoch)
{
    (void)epoch;
    return ((const windows *)self)->n;
}

static void close_feed(void *self)
{
    windows *w = self;
    const fv_env *env = w->env;
    fv__free(env, w->x, w->bytes);
    fv__free(env, w, sizeof *w);
}

/* The columns of the file must be those that the processor was fitted to. */
static fv_status check_columns(const fv_series *s, const fv_processor *p, const char *file,
                               fv_err *e)
{
    if (fv_series_channels(s) != fv_processor_columns(p))
        return fv_fail(e, FV_EFORMAT, "%s: %d columns, but the model has %d", file,
                       fv_series_channels(s), fv_processor_columns(p));
    for (int i = 0; i < fv_series_channels(s); i++)
        if (strcmp(fv_series_name(s, i), fv_processor_column(p, i)) != 0)
            return fv_fail(e, FV_EFORMAT, "%s: column %d is %s, but the model's is %s", file, i + 1,
                           fv_series_name(s, i), fv_processor_column(p, i));
    return FV_OK;
}

/* Means and deviations are those of the training part alone: later values are not known when a
 * model is used. */
static fv_status read_windows(windows *w, const fv_feed_opt *t, const fv_records *from,
                              fv_data_report *report, fv_err *e)
{
    fv_series *s;
    fv_series_opt how = source(&w->opt, from);
    fv_status st = fv_series_open(&s, t->env, &how, e);
    if (st) return st;
    st = check_columns(s, t->processor, from->file, e);
    int64_t n = fv_series_count(s);
    int part = t->evaluation ? 1 + (w->opt.evaluate == TEST) : 0;
    if (!st) st = find_windows(w, from->file, n, part, e);
    w->channels = fv_series_channels(s);
    w->bytes = (size_t)(n * w->channels) * sizeof *w->x;
    if (!st && !(w->x = fv__alloc(t->env, w->bytes)))
        st = fv_fail(e, FV_ENOMEM, "%s: out of memory", from->file);
    if (!st) {
        memcpy(w->x, fv_series_values(s), w->bytes);
        fv_processor_normalise(t->processor, w->x, n);
        report->records = report->kept = w->n;
        report->tokens[0] = w->n * w->opt.context * w->channels;
    }
    fv_series_close(s);
    return st;
}

static fv_status open_feed(fv_feed *out, const fv_feed_opt *t, const fv_records *from,
                           fv_data_report *report, fv_err *e)
{
    *out = (fv_feed){0};
    if (from->part[1] > 0)
        return fv_fail(e, FV_EARG,
                       "hold_out: parts of a series are cut by time: give parts, and the file "
                       "again as valid");
    windows *w = fv__alloc(t->env, sizeof *w);
    if (!w) return fv_fail(e, FV_ENOMEM, "%s: out of memory", from->file);
    w->env = t->env;
    w->opt = *(const options *)t->options;
    fv_status st = read_windows(w, t, from, report, e);
    if (st)
        close_feed(w);
    else
        *out = (fv_feed){.self = w,
                         .metric = "mean absolute error",
                         .less_is_better = true,
                         .count = count,
                         .size = fv__size_alike,
                         .make = make,
                         .count_correct = count_errors,
                         .forward = w->opt.loss == MAE ? forward_mae : NULL,
                         .close = close_feed};
    return st;
}

/* Means and deviations of the training part. */
static fv_status make_processor(fv_processor **out, const fv_env *env, const void *own,
                                const fv_records *from, fv_processor *tok, fv_err *e)
{
    const options *o = own;
    fv_series *s;
    int64_t first = 0, end = 0;
    (void)tok;
    fv_series_opt how = source(o, from);
    fv_status st = fv_series_open(&s, env, &how, e);
    if (st) return st;
    int n = fv_series_channels(s);
    size_t bytes = (size_t)n * sizeof(char *);
    const char **name = fv__alloc(env, bytes);
    if (!name) st = fv_fail(e, FV_ENOMEM, "%s: out of memory", from->file);
    for (int i = 0; !st && i < n; i++) name[i] = fv_series_name(s, i);
    if (!st) st = part_of(o, from->file, fv_series_count(s), 0, &first, &end, e);
    if (!st) st = fv_processor_fit_table(out, env, name, n, fv_series_values(s), end, e);
    fv__free(env, (void *)name, bytes);
    fv_series_close(s);
    return st;
}

/* Windows and channels of the model are those of the data: a recipe does not repeat them. */
static int64_t config_value(const void *own, const fv_processor *p, const char *key)
{
    const options *o = own;
    if (!strcmp(key, "context_length")) return o->context;
    if (!strcmp(key, "prediction_length")) return o->horizon;
    return strcmp(key, "num_input_channels") ? -1 : fv_processor_columns(p);
}

static const fv_field keys[] = {
    FV_INT(options, context, 2, 336, 1 << 20, "moments that a forecast reads"),
    FV_INT(options, horizon, 1, 96, 1 << 16, "moments that are forecast"),
    FV_INT(options, stride, 1, 1, 1 << 20, "moments from one window of training to the next"),
    FV_INTS_KEY("parts", options, split, 0, "0", 1 << 30,
                "moments of training, validation and test; 0: seven, one and two tenths"),
    FV_CHOICE(options, evaluate, VALID, parts, "which part is evaluated on", FV_ON_RESUME),
    FV_TEXT(options, date, "", "column with the date; empty: the first"),
    FV_TEXT(options, columns, "", "columns that are channels, commas between; empty: all others"),
    FV_CHOICE(options, missing, FV_MISSING_REFUSE, fv_missing_words,
              "values that are missing: an error, as the one before, or on a line between"),
    FV_CHOICE_KEY("error", options, loss, MSE, losses, "mean square or mean absolute error"),
    {0},
};
static const char *const loss_inputs[] = {"past_values", "future_values", NULL};

const fv_objective fv__objective_forecast = {
    .name = "forecast",
    .help = "the values that follow a window of a time series",
    .keys = keys,
    .options_size = sizeof(options),
    .processor = "table",
    .make_processor = make_processor,
    .config_value = config_value,
    .head = FV_HEAD_FORECAST,
    .loss_inputs = loss_inputs,
    .open = open_feed,
};
