/* task_series.c - time series through a model: parsed, normalised, stacked into batches, and each
 * one's outputs handed back.
 *
 * To a model that takes past_values a text is the numbers of a series (fv_series_parse).  So
 * whatever reads texts (lines, tables with labels) also reads series. */
#include "fovea/author/family.h"
#include "fovea/author/series.h"
#include "task_pipeline.h"

enum { TOGETHER = 64 }; /* series of one batch */

bool fv__task_reads_series(const fv_task *t)
{
    return fv_family_takes(fv_model_family(t->model), "past_values");
}

static fv_status failed(const fv_task *t, fv_err *e)
{
    return fv_fail(e, fv_ctx_err(t->ctx)->code, "%s", fv_ctx_err(t->ctx)->text);
}

/* n texts from `first` on, as one batch. */
static fv_status run_batch(fv_task *t, const fv_text *texts, int64_t first, int64_t n,
                           const fv_wanted *w, fv_err *e)
{
    int64_t T = fv__task_setting(t, "context_length"), C = fv_processor_columns(t->processor);
    size_t each = (size_t)(T * C);
    float *x = fv__task_claim(t, (size_t)n * each * sizeof *x, e);
    uint8_t *observed = fv__task_claim(t, (size_t)n * each, e);
    if (!x || !observed) return FV_ENOMEM;
    for (int64_t i = 0; i < n; i++) {
        size_t at = (size_t)i * each;
        fv_text one = fv__joined(&texts[first + i]); /* tabs stand between numbers, too */
        fv_status st = fv_series_parse(x + at, observed + at, T, C, one.s, one.n, e);
        if (st) return st;
        fv_processor_normalise(t->processor, x + at, T);
    }
    fv_items in = {0}, out = {0};
    fv_ctx_reset(t->ctx, 0);
    fv_items_put(&in, "past_values", fv_floats(t->ctx, x, FV_SHAPE(n, T, C)));
    if (fv_family_takes(fv_model_family(t->model), "past_observed_mask"))
        fv_items_put(&in, "past_observed_mask", fv_bytes(t->ctx, observed, FV_SHAPE(n, T, C)));
    fv_model_forward(t->ctx, t->model, &in, &out);
    return fv_ctx_status(t->ctx) ? failed(t, e) : fv__task_hand_back(t, &out, first, n, w, e);
}

fv_status fv__task_run_series(fv_task *t, const fv_text *texts, int64_t n, const fv_wanted *w,
                              fv_err *e)
{
    fv_status st = FV_OK;
    for (int64_t at = 0; !st && at < n; at += TOGETHER)
        st = run_batch(t, texts, at, n - at < TOGETHER ? n - at : TOGETHER, w, e);
    return st;
}
