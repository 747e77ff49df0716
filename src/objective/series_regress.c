/* series_regress.c - the objective of regressions on time series: a number, or several, for each
 * series.
 *
 * A record is the numbers of a series and those to be found (objective/part/labelled_series.h),
 * which the model gives as they stand: values far from 1 are best scaled in the file.  The metric
 * is the mean square error, of the mean where the model gives a distribution (loss nll). */
#include "base/base.h"
#include "data/feed_parts.h"
#include "objective/part/labelled_series.h"

/* past_values, past_observed_mask (n,context,C), labels (n,targets). */
static fv_status make(const void *self, fv_batch *out, const int32_t *rows, int64_t n,
                      fv_data_rng how, fv_err *e)
{
    const fv__labelled_series *s = self;
    int64_t K = s->opt.targets;
    (void)how;
    fv_status st = fv__labelled_series_put(s, out, rows, n, e);
    if (st) return st;
    float *label = fv_batch_put(out, "labels", FV_F32, FV_SHAPE(n, K));
    if (!label) return fv_fail(e, out->err.code, "%s", out->err.text);
    for (int64_t i = 0; i < n; i++)
        memcpy(label + i * K, s->target + rows[i] * K, (size_t)K * sizeof *label);
    out->labels = (double)(n * K);
    return FV_OK;
}

/* The sum of squared errors, and their number. */
static fv_status count_errors(const void *self, fv_ctx *c, const fv_batch *b, const fv_items *out,
                              double *hits, double *of)
{
    const fv__labelled_series *s = self;
    const fv_tensor *y = fv_items_get(out, "regression_outputs");
    const float *label = fv_batch_get(b, "labels")->data;
    int64_t n = fv_len(y);
    size_t bytes = (size_t)n * sizeof(float);
    float *host = fv__alloc(s->env, bytes);
    if (!host) return FV_ENOMEM;
    fv_status st = fv_read(c, y, host, n);
    for (int64_t i = 0; !st && i < n; i++) {
        double off = (double)host[i] - (double)label[i];
        *hits += off * off;
    }
    *of += (double)n;
    fv__free(s->env, host, bytes);
    return st;
}

static const fv_feed feed = {.metric = "mean square error",
                             .less_is_better = true,
                             .count = fv__labelled_series_count,
                             .size = fv__size_alike,
                             .make = make,
                             .count_correct = count_errors,
                             .close = fv__labelled_series_close};

static fv_status open_feed(fv_feed *out, const fv_feed_opt *t, const fv_records *from,
                           fv_data_report *report, fv_err *e)
{
    fv__labelled_series *s;
    const fv__series_opt *o = t->options;
    fv_status st = fv__labelled_series_open(&s, t, from, o->targets, report, e);
    return fv__feed_give(out, &feed, s, st);
}

static const fv_field keys[] = {
    FV__SERIES_FIELDS,
    FV_INT(fv__series_opt, targets, 1, 1, 1 << 10, "numbers that are found for each series"),
    {0},
};
static const char *const loss_inputs[] = {"past_values", "labels", NULL};

const fv_objective fv__objective_series_regress = {
    .name = "series_regress",
    .help = "a number for each time series",
    .keys = keys,
    .options_size = sizeof(fv__series_opt),
    .processor = "table",
    .make_processor = fv__labelled_series_processor,
    .config_value = fv__labelled_series_value,
    .head = FV_HEAD_REGRESS,
    .loss_inputs = loss_inputs,
    .open = open_feed,
};
