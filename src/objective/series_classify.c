/* series_classify.c - the objective of classifiers of time series: one label for each series.
 *
 * A record is the numbers of a series and its label (objective/part/labelled_series.h); labels are
 * numbered as they first appear in the training data.  The metric is accuracy. */
#include "data/feed_parts.h"
#include "objective/part/labelled_series.h"

/* past_values, past_observed_mask (n,context,C), labels (n). */
static fv_status make(const void *self, fv_batch *out, const int32_t *rows, int64_t n,
                      fv_data_rng how, fv_err *e)
{
    const fv__labelled_series *s = self;
    (void)how;
    fv_status st = fv__labelled_series_put(s, out, rows, n, e);
    if (st) return st;
    int32_t *label = fv_batch_put(out, "labels", FV_I32, FV_SHAPE(n));
    if (!label) return fv_fail(e, out->err.code, "%s", out->err.text);
    for (int64_t i = 0; i < n; i++) label[i] = s->label[rows[i]];
    return FV_OK;
}

static const fv_feed feed = {.metric = "accuracy",
                             .count = fv__labelled_series_count,
                             .size = fv__size_alike,
                             .make = make,
                             .count_correct = fv__count_correct_labels,
                             .close = fv__labelled_series_close};

static fv_status open_feed(fv_feed *out, const fv_feed_opt *t, const fv_records *from,
                           fv_data_report *report, fv_err *e)
{
    fv__labelled_series *s;
    fv_status st = fv__labelled_series_open(&s, t, from, 0, report, e);
    return fv__feed_give(out, &feed, s, st);
}

static const fv_field keys[] = {FV__SERIES_FIELDS, {0}};
static const char *const loss_inputs[] = {"past_values", "labels", NULL};

const fv_objective fv__objective_series_classify = {
    .name = "series_classify",
    .help = "a label for each time series",
    .keys = keys,
    .options_size = sizeof(fv__series_opt),
    .processor = "table",
    .make_processor = fv__labelled_series_processor,
    .config_value = fv__labelled_series_value,
    .head = FV_HEAD_CLASSIFY,
    .loss_inputs = loss_inputs,
    .names_labels = true,
    .open = open_feed,
};
