/* dlinear.c - DLinear: a forecast by two linear maps, of a moving average and of what is left (Zeng
 * et al. 2023).
 *
 *     trend = moving average of past, its ends repeated;   rest = past - trend
 *     y = W_s rest + b_s + W_t trend + b_t
 *
 * The baseline that models of series are measured against.  Names of the parameters are those of
 * the authors' code.  The average is a product with a constant matrix (T,T): that is one product
 * more, and no kernel of its own. */
#include <stddef.h>

#include "model/series.h"
#include "nn/part.h"

static const fv_family_head heads[] = {
    {"DLinearForPrediction", .job = FV_HEAD_FORECAST},
    {0},
};

/* The order of fv__scaling. */
static const char *const scalings[] = {"std", "mean", "none", NULL};

typedef struct config {
    int num_input_channels, context_length, prediction_length, moving_average, scaling;
    bool individual;
} config;

static const fv_field fields[] = {
    FV_INT(config, num_input_channels, 1, 1, 1 << 16, "channels of the series"),
    FV_INT(config, context_length, 2, 336, 1 << 14, "values of a channel that are read"),
    FV_INT(config, prediction_length, 1, 96, 1 << 16, "values that are forecast"),
    FV_INT(config, moving_average, 1, 25, 1 << 14, "values of the moving average; an odd number"),
    FV_BOOL(config, individual, false, "each channel has weights of its own"),
    FV_CHOICE(config, scaling, FV__SCALE_NONE, scalings, "of a window by its own values"),
    {0},
};

static const fv_input inputs[] = {
    {"past_values", FV_F32, true},
    {"past_observed_mask", FV_U8, false},
    {"future_values", FV_F32, false},
    {0},
};

typedef struct dlinear {
    config cfg;
    fv_lin *seasonal, *trend; /* one, or one for each channel */
} dlinear;

/* An odd window has a middle. */
static fv_status check(const void *config_, fv_err *e)
{
    const config *k = config_;
    if (k->moving_average % 2 == 0)
        return fv_fail(e, FV_EFORMAT, "moving_average %d is not odd", k->moving_average);
    return FV_OK;
}

/* individual: maps for each channel, else one pair for all. */
static void declare(void *self, const fv_setup *s)
{
    dlinear *m = self;
    m->cfg = *(const config *)s->config;
    const config *k = &m->cfg;
    int n = k->individual ? k->num_input_channels : 0;
    m->seasonal = fv__channel_lins(s->params, n, k->context_length, k->prediction_length, 0,
                                   "Linear_Seasonal");
    m->trend = fv__channel_lins(s->params, n, k->context_length, k->prediction_length, 0,
                                "Linear_Trend");
}

/* Two products of a batch are not worth a layout of their own. */
static void pack(void *self, fv_params *p, fv_dtype dtype) { (void)self, (void)p, (void)dtype; }

/* ---- forward ---- */

typedef struct average {
    int64_t T, width;
} average;

/* Element (i,j): how much moment j counts in the average at moment i. */
static void fill_average(void *out, const void *user, int64_t from, int64_t n)
{
    const average *a = user;
    int64_t half = a->width / 2, last = a->T - 1;
    for (int64_t at = from; at < from + n; at++) {
        int64_t i = at / a->T, j = at % a->T, first = i - half, end = i + half, count = 0;
        if (j >= first && j <= end) count = 1;
        /* time steps before the first and behind the last repeat these */
        if (j == 0 && first < 0) count -= first;
        if (j == last && end > last) count += end - last;
        ((float *)out)[at - from] = (float)((double)count / (double)a->width);
    }
}

/* past_values (B,T,C) -> (B,prediction_length,C). */
static void forward(fv_ctx *c, const void *self, const fv_items *in, fv_items *out)
{
    const dlinear *m = self;
    const config *k = &m->cfg;
    fv_tensor *past = fv_items_get(in, "past_values"),
              *observed = fv_items_get(in, "past_observed_mask");
    if (!fv__is_window(c, "dlinear", past, observed, k->context_length, k->num_input_channels))
        return;
    average a = {k->context_length, k->moving_average};
    fv__scaled s = fv__series_scale(c, (fv__scaling)k->scaling, past, observed);
    fv_tensor *x = fv_transpose(c, s.x);
    fv_tensor *by = fv__table(c, FV_F32, FV_SHAPE(a.T, a.T), fill_average, &a, sizeof a);
    fv_tensor *trend = fv_linear(c, x, x ? fv_cast(c, by, x->dtype) : NULL, NULL, FV_ACT_NONE);
    fv_tensor *y = fv_add(c, fv__by_channel(c, m->seasonal, !k->individual, fv_sub(c, x, trend)),
                          fv__by_channel(c, m->trend, !k->individual, trend));
    fv__put_forecast(c, in, out, fv__series_restore(c, &s, fv_transpose(c, y)));
}

const fv_family fv__family_dlinear = {
    .type = "dlinear",
    .heads = heads,
    .config = fields,
    .inputs = inputs,
    .config_size = sizeof(config),
    .size = sizeof(dlinear),
    .check = check,
    .declare = declare,
    .pack = pack,
    .forward = forward,
};
