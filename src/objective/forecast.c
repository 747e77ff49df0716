/* forecast.c - the objective of forecasts: the values that follow a window of a time series.
 *
 * Every window of `context` time steps and the `horizon` time steps behind it is an example
 * (part/windows.c).  The loss over a part is over ALL its windows, as a batch that is not full
 * counts too.  The metric is the mean absolute error.
 *
 * Values are normalised before the model sees them, and loss and metric are measured on normalised
 * values, as the papers on long-term forecasting report them. */
#include <math.h>

#include "base/base.h"
#include "data/feed_parts.h"
#include "model/series.h"
#include "objective/part/windows.h"

enum { MSE, MAE };
static const char *const losses[] = {"mse", "mae", NULL};

/* ---- batches ---- */

/* past_values (n,context,C), future_values (n,horizon,C). */
static fv_status make(const void *self, fv_batch *out, const int32_t *rows, int64_t n,
                      fv_data_rng how, fv_err *e)
{
    const fv__windows *w = self;
    const fv__windows_opt *o = &w->opt;
    int64_t C = w->channels, T = o->context, H = o->horizon;
    (void)how;
    float *past = fv_batch_put(out, "past_values", FV_F32, FV_SHAPE(n, T, C)),
          *future = fv_batch_put(out, "future_values", FV_F32, FV_SHAPE(n, H, C));
    if (!future) return fv_fail(e, out->err.code, "%s", out->err.text);
    for (int64_t i = 0; i < n; i++) {
        const float *from = fv__windows_at(w, rows[i]);
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
    const fv__windows *w = self;
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

/* Whether a key of the model's configuration has this value. */
static bool has_value(const fv_model *m, const char *key, const char *value)
{
    char text[40] = "";
    fv_fields_get(fv_model_config(m), fv_model_family(m)->config, key, text, sizeof text);
    return !strcmp(text, value);
}

/* What a model with a distribution cannot be trained to here. */
static fv_status prepare(void *self, const fv_model *m, fv_device *d, fv_err *e)
{
    const fv__windows *w = self;
    (void)d;
    if (!has_value(m, "loss", "nll")) return FV_OK;
    if (w->opt.loss == MAE)
        return fv_fail(e, FV_EARG, "error = mae: with loss = nll the likelihood is the loss");
    if (has_value(m, "distribution_output", "negative_binomial"))
        return fv_fail(e, FV_EARG,
                       "distribution_output = negative_binomial is of counts, and the objective "
                       "forecast gives channels mean 0 and deviation 1");
    return FV_OK;
}

static fv_status open_feed(fv_feed *out, const fv_feed_opt *t, const fv_records *from,
                           fv_data_report *report, fv_err *e)
{
    fv__windows *w;
    *out = (fv_feed){0};
    fv_status st = fv__windows_open(&w, t, from, report, e);
    if (st) return st;
    *out = (fv_feed){.self = w,
                     .metric = "mean absolute error",
                     .less_is_better = true,
                     .count = fv__windows_count,
                     .size = fv__size_alike,
                     .make = make,
                     .count_correct = count_errors,
                     .prepare = prepare,
                     .forward = w->opt.loss == MAE ? forward_mae : NULL,
                     .close = fv__windows_close};
    return FV_OK;
}

static const fv_field keys[] = {
    FV__WINDOWS_FIELDS,
    FV_INT(fv__windows_opt, horizon, 1, 96, 1 << 16, "time steps that are forecast"),
    FV_CHOICE_KEY("error", fv__windows_opt, loss, MSE, losses,
                  "mean square or mean absolute error"),
    {0},
};
static const char *const loss_inputs[] = {"past_values", "future_values", NULL};

const fv_objective fv__objective_forecast = {
    .name = "forecast",
    .help = "the values that follow a window of a time series",
    .keys = keys,
    .options_size = sizeof(fv__windows_opt),
    .processor = "table",
    .make_processor = fv__windows_processor,
    .config_value = fv__windows_value,
    .head = FV_HEAD_FORECAST,
    .loss_inputs = loss_inputs,
    .open = open_feed,
};
