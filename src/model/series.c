/* series.c - the scaling of windows of time series, and the loss of forecasts.
 *
 * Each window is scaled to mean 0 and deviation 1 by its own values, channel by channel, and the
 * forecast scaled back (reversible instance normalisation, Kim et al. 2022, without its gain):
 * so the level of a series may drift between training and use.  Formulas are those of transformers'
 * PatchTST. */
#include "model/series.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "nn/part.h"

#define STD_LEAST 1e-5f   /* added to the variance */
#define MEAN_LEAST 1e-10f /* of a mean magnitude */
#define MANY 1e30f

/* (B,T,C) -> (B,1,C): the sum over time. */
static fv_tensor *over_time(fv_ctx *c, fv_tensor *x)
{
    return fv_reshape(c, fv_sum(c, x, 1), FV_SHAPE(fv_dim(x, 0), 1, fv_dim(x, 2)));
}

fv_tensor *fv__mask_floats(fv_ctx *c, fv_tensor *mask, fv_shape s)
{
    fv_tensor *ones = fv_affine(c, fv_zeros(c, s), 0, 1);
    return mask ? fv_masked_fill(c, ones, fv_reshape(c, mask, s), 0) : ones;
}

/* loc = sum w x / n;   scale = sqrt(sum (w (x - loc))^2 / n + 1e-5),   n = max(1, sum w) */
static fv__scaled by_deviation(fv_ctx *c, fv_tensor *past, fv_tensor *w)
{
    fv__scaled s;
    fv_tensor *n = fv_clamp(c, over_time(c, w), 1, MANY);
    s.loc = fv_div(c, over_time(c, fv_mul(c, past, w)), n);
    fv_tensor *off = fv_sub(c, past, s.loc);
    fv_tensor *var = fv_div(c, over_time(c, fv_square(c, fv_mul(c, off, w))), n);
    s.scale = fv_sqrt(c, fv_affine(c, var, 1, STD_LEAST));
    s.x = fv_div(c, off, s.scale);
    return s;
}

/* scale = sum |w x| / n; a channel in which nothing was observed gets the mean over the batch. */
static fv__scaled by_magnitude(fv_ctx *c, fv_tensor *past, fv_tensor *w)
{
    fv_tensor *sum = over_time(c, fv_abs(c, fv_mul(c, past, w))), *n = over_time(c, w);
    fv_tensor *own = fv_div(c, sum, fv_clamp(c, n, 1, MANY)),
              *all = fv_div(c, fv_sum(c, sum, 0), fv_clamp(c, fv_sum(c, n, 0), 1, MANY)),
              *seen = fv_clamp(c, n, 0, 1);
    fv_tensor *scale = fv_add(c, fv_mul(c, seen, own), fv_mul(c, fv_affine(c, seen, -1, 1), all));
    scale = fv_clamp(c, scale, MEAN_LEAST, MANY);
    return (fv__scaled){fv_div(c, past, scale), fv_scale(c, scale, 0), scale};
}

fv__scaled fv__series_scale(fv_ctx *c, fv__scaling how, fv_tensor *past, fv_tensor *observed)
{
    fv_tensor *w = fv__mask_floats(c, observed, fv_shape_of(past));
    if (how == FV__SCALE_STD) return by_deviation(c, past, w);
    if (how == FV__SCALE_MEAN) return by_magnitude(c, past, w);
    fv_tensor *zero = fv_zeros(c, FV_SHAPE(fv_dim(past, 0), 1, fv_dim(past, 2)));
    return (fv__scaled){past, zero, fv_affine(c, zero, 0, 1)};
}

fv_tensor *fv__series_restore(fv_ctx *c, const fv__scaled *s, fv_tensor *y)
{
    return fv_add(c, fv_mul(c, y, s->scale), s->loc);
}

typedef struct grid {
    int64_t start, length, stride;
} grid;

/* Which moment stands at each position of each patch. */
static void fill_moments(void *out, const void *user, int64_t from, int64_t n)
{
    const grid *g = user;
    for (int64_t i = from; i < from + n; i++)
        ((int32_t *)out)[i - from] = (int32_t)(g->start + i / g->length * g->stride +
                                               i % g->length);
}

fv_tensor *fv__series_patches(fv_ctx *c, fv_tensor *x, int64_t length, int64_t stride)
{
    int64_t B = fv_dim(x, 0), T = fv_dim(x, 1), C = fv_dim(x, 2), P = length,
            N = (T - P) / stride + 1;
    static const int time_first[] = {1, 0, 2}, channel_first[] = {1, 2, 0};
    grid g = {T - P - (N - 1) * stride, P, stride};
    fv_tensor *at = fv__table(c, FV_I32, FV_SHAPE(N * P), fill_moments, &g, sizeof g);
    fv_tensor *rows = fv_reshape(c, fv_permute(c, x, time_first), FV_SHAPE(T, B * C));
    fv_tensor *y = fv_reshape(c, fv_gather(c, rows, at, -1), FV_SHAPE(N * P, B, C));
    return fv_reshape(c, fv_permute(c, y, channel_first), FV_SHAPE(B, C, N, P));
}

void fv__series_sinusoids(float *x, int64_t rows, int64_t D)
{
    double sum = 0, squares = 0, n = (double)(rows * D);
    for (int64_t i = 0; i < rows * D; i++) {
        int64_t j = i % D;
        double angle = (double)(i / D) * exp(-(double)(j - j % 2) * log(10000) / (double)D);
        x[i] = (float)(j % 2 ? cos(angle) : sin(angle));
        sum += (double)x[i];
    }
    for (int64_t i = 0; i < rows * D; i++) {
        double d = (double)x[i] - sum / n;
        squares += d * d;
    }
    double by = n > 1 && squares > 0 ? 0.1 / sqrt(squares / (n - 1)) : 1;
    for (int64_t i = 0; i < rows * D; i++) x[i] = (float)(((double)x[i] - sum / n) * by);
}

fv_lin *fv__channel_lins(fv_params *p, int n, int64_t in, int64_t out, float std, const char *path)
{
    fv_lin_opt how = {.std = std};
    fv_lin *l = fv_params_scratch(p, (size_t)(n ? n : 1) * sizeof *l);
    if (l && !n) fv_lin_init(p, l, in, out, how, "%s", path);
    for (int i = 0; l && i < n; i++) fv_lin_init(p, &l[i], in, out, how, "%s.%d", path, i);
    return l;
}

fv_tensor *fv__by_channel(fv_ctx *c, const fv_lin *l, bool shared, fv_tensor *x)
{
    if (shared) return fv_lin_fwd(c, l, x);
    fv_tensor *y = NULL;
    for (int64_t i = 0; i < fv_dim(x, 1); i++) {
        fv_tensor *one = fv_lin_fwd(c, &l[i], fv_slice(c, x, 1, i, i + 1));
        y = i ? fv_concat(c, (fv_tensor *[]){y, one}, 2, 1) : one;
    }
    return y;
}

bool fv__is_window(fv_ctx *c, const char *family, const fv_tensor *past, const fv_tensor *observed,
                   int64_t T, int64_t C)
{
    if (!past) return false;
    fv_shape wanted = FV_SHAPE(fv_dim(past, 0), T, C);
    const fv_tensor *wrong = !fv_shape_same(past->shape, wanted) ? past : NULL;
    if (!wrong && observed && !fv_shape_same(observed->shape, wanted)) wrong = observed;
    if (wrong)
        fv_raise(c, FV_ESHAPE, "%s: %s %s, expected (B,%lld,%lld): context_length, channels",
                 family, wrong == past ? "past_values" : "past_observed_mask", fv_desc(wrong).s,
                 (long long)T, (long long)C);
    return !wrong;
}

void fv__put_forecast(fv_ctx *c, const fv_items *in, fv_items *out, fv_tensor *y)
{
    fv_tensor *future = fv_items_get(in, "future_values");
    fv_items_put(out, "prediction_outputs", y);
    if (!future || !y) return;
    if (!fv_shape_same(future->shape, y->shape)) {
        fv_raise(c, FV_ESHAPE, "future_values %s, expected %s", fv_desc(future).s, fv_desc(y).s);
        return;
    }
    fv_tensor *loss = fv_mse(c, y, future);
    if (in->n_labels > 0) loss = fv__per_label(c, fv_scale(c, loss, (float)fv_len(y)), in);
    fv_items_put(out, "loss", loss);
}

bool fv__series_null(const fv_json *j, const char *key)
{
    const char *k;
    if (!j || fv_json_has(j, key)) return false;
    for (int i = 0; (k = fv_json_key(j, "", i)); i++)
        if (!strcmp(k, key)) return true;
    return false;
}

int64_t fv__series_setting(const fv_model *m, const char *key)
{
    char text[32] = "0";
    fv_fields_get(fv_model_config(m), fv_model_family(m)->config, key, text, sizeof text);
    return strtoll(text, NULL, 10);
}
