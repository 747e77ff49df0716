/* masked_series.c - the objective of pre-training on time series: patches that are hidden (Nie et
 * al. 2023, self-supervised PatchTST).
 *
 * Of every window and channel the same number of patches is hidden, drawn anew for each: the model
 * gives their values, and the loss is the mean square over those alone, of values as the model
 * scales them.  Patches that overlap tell each other's values: patch_stride is best patch_length.
 * A forecaster goes on from the result ([model] from), whose head it leaves aside. */
#include "base/base.h"
#include "data/dice.h"
#include "data/feed_parts.h"
#include "model/series.h"
#include "objective/part/windows.h"

enum { DICE_PATCHES = 13 }; /* a Philox stream of its own beside those of data/dice.h */

/* So many of N patches that neither all nor none are hidden. */
static int64_t hidden_of(const fv__windows *w)
{
    int64_t n = (int64_t)((double)w->opt.mask * (double)w->patches + 0.5);
    if (n < 1) n = 1;
    return n < w->patches ? n : w->patches - 1;
}

/* Hides k of n patches: each is hidden with the probability that leaves k in all. */
static void hide(uint8_t *mask, int64_t n, int64_t k, fv__dice *d)
{
    for (int64_t i = 0; i < n; i++) {
        mask[i] = fv__dice_below(d, (int)(n - i)) < (int)k;
        k -= mask[i];
    }
}

/* past_values (n,context,C), bool_masked_pos (n,C,patches). */
static fv_status make(const void *self, fv_batch *out, const int32_t *rows, int64_t n,
                      fv_data_rng how, fv_err *e)
{
    const fv__windows *w = self;
    int64_t C = w->channels, T = w->opt.context, N = w->patches;
    float *past = fv_batch_put(out, "past_values", FV_F32, FV_SHAPE(n, T, C));
    uint8_t *mask = fv_batch_put(out, "bool_masked_pos", FV_U8, FV_SHAPE(n, C, N));
    if (!mask) return fv_fail(e, out->err.code, "%s", out->err.text);
    past = (float *)(uintptr_t)fv_batch_get(out, "past_values")->data;
    for (int64_t i = 0; i < n; i++) {
        fv__dice d = fv__dice_of(how, DICE_PATCHES, rows[i]);
        memcpy(past + i * T * C, fv__windows_at(w, rows[i]), (size_t)(T * C) * sizeof *past);
        for (int64_t c = 0; c < C; c++) hide(mask + (i * C + c) * N, N, hidden_of(w), &d);
    }
    out->labels = (double)(n * C * hidden_of(w));
    out->tokens = (double)(n * T * C);
    return FV_OK;
}

/* How many patches a window has is the model's. */
static fv_status prepare(void *self, const fv_model *m, fv_device *d, fv_err *e)
{
    fv__windows *w = self;
    int64_t length = fv__series_setting(m, "patch_length"),
            stride = fv__series_setting(m, "patch_stride");
    (void)d;
    w->patches = length > 0 && stride > 0 ? (w->opt.context - length) / stride + 1 : 0;
    if (w->patches < 2)
        return fv_fail(e, FV_EARG,
                       "objective masked_series: a window of %lld time steps has %lld patches of "
                       "this model, and two are needed, one to be hidden",
                       (long long)w->opt.context, (long long)w->patches);
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
                     .count = fv__windows_count,
                     .size = fv__size_alike,
                     .make = make,
                     .prepare = prepare,
                     .close = fv__windows_close};
    return FV_OK;
}

static const fv_field keys[] = {
    FV__WINDOWS_FIELDS,
    FV_FLOAT(fv__windows_opt, mask, 0.01, 0.4, 0.95, "share of the patches that is hidden"),
    {0},
};
static const char *const loss_inputs[] = {"past_values", "bool_masked_pos", NULL};

const fv_objective fv__objective_masked_series = {
    .name = "masked_series",
    .help = "hidden patches of a time series",
    .keys = keys,
    .options_size = sizeof(fv__windows_opt),
    .processor = "table",
    .make_processor = fv__windows_processor,
    .config_value = fv__windows_value,
    .head = FV_HEAD_MASKED_SERIES,
    .loss_inputs = loss_inputs,
    .open = open_feed,
};
