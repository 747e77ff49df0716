/* distribution.c - distributions of forecast values: parameters, mean and log-likelihood, as
 * compositions of ops.
 *
 *     student_t           df = 2 + s(a), loc = b, scale = s(c);  s(x) = (x + sqrt(x^2 + 4)) / 2
 *     normal              loc = a, scale = s(b)
 *     negative_binomial   total count = s(a), logits = b + log(scale of the window)
 *
 * Parameters are those of transformers' StudentTOutput, NormalOutput and NegativeBinomialOutput.
 * The first two are of (x - loc) / scale of the window; counts are not shifted. */
#include "model/distribution.h"

#include <math.h>

#define LEAST 1.1920929e-7f /* of a scale: the epsilon of f32, as in transformers */
#define MANY 1e30f
#define HALF_LOG_PI 0.57236494f
#define HALF_LOG_2PI 0.91893853f

const char *const fv__distribution_words[] = {"student_t", "normal", "negative_binomial", NULL};

int fv__distribution_count(int kind) { return kind == FV__STUDENT_T ? 3 : 2; }

/* (x + sqrt(x^2 + 4)) / 2, which is above 0 and has no exponential to overflow. */
static fv_tensor *squareplus(fv_ctx *c, fv_tensor *x)
{
    return fv_scale(c, fv_add(c, x, fv_sqrt(c, fv_affine(c, fv_square(c, x), 1, 4))), 0.5f);
}

/* log Gamma(x), x > 0: Stirling's series at x + 7, less log(x (x+1) .. (x+6)).  The product is
 * taken in two halves, so that x up to 1e9 does not overflow. */
static fv_tensor *log_gamma(fv_ctx *c, fv_tensor *x)
{
    fv_tensor *z = fv_affine(c, x, 1, 7), *low = x, *high = fv_affine(c, x, 1, 4);
    for (int i = 1; i < 4; i++) low = fv_mul(c, low, fv_affine(c, x, 1, (float)i));
    for (int i = 5; i < 7; i++) high = fv_mul(c, high, fv_affine(c, x, 1, (float)i));
    fv_tensor *one = fv_affine(c, fv_scale(c, z, 0), 1, 1), *by = fv_div(c, one, z),
              *tail = fv_mul(c, by, fv_affine(c, fv_square(c, by), -1.0f / 360, 1.0f / 12));
    fv_tensor *main = fv_sub(c, fv_mul(c, fv_affine(c, z, 1, -0.5f), fv_log(c, z)), z);
    fv_tensor *y = fv_affine(c, fv_add(c, main, tail), 1, HALF_LOG_2PI);
    return fv_sub(c, fv_sub(c, y, fv_log(c, low)), fv_log(c, high));
}

/* Differences of log Gamma are small beside its values: they need f32. */
static fv_tensor *wide(fv_ctx *c, fv_tensor *x)
{
    return x && x->dtype == FV_BF16 ? fv_cast(c, x, FV_F32) : x;
}

fv__distribution fv__distribution_of(fv_ctx *c, int kind, fv_tensor *const *y, const fv__scaled *s)
{
    fv__distribution d = {.kind = kind, .loc = s ? s->loc : NULL, .scale = s ? s->scale : NULL};
    for (int i = 0; i < fv__distribution_count(kind); i++) d.p[i] = wide(c, y[i]);
    d.loc = wide(c, d.loc);
    d.scale = wide(c, d.scale);
    if (kind == FV__NEGATIVE_BINOMIAL) {
        d.p[0] = squareplus(c, d.p[0]);
        if (d.scale) d.p[1] = fv_add(c, d.p[1], fv_log(c, d.scale));
        return d;
    }
    int at = kind == FV__STUDENT_T; /* of the location */
    if (at) d.p[0] = fv_affine(c, squareplus(c, d.p[0]), 1, 2);
    d.p[at + 1] = fv_clamp(c, squareplus(c, d.p[at + 1]), LEAST, MANY);
    return d;
}

fv_tensor *fv__distribution_mean(fv_ctx *c, const fv__distribution *d)
{
    if (d->kind == FV__NEGATIVE_BINOMIAL) return fv_mul(c, d->p[0], fv_exp(c, d->p[1]));
    fv_tensor *y = d->p[d->kind == FV__STUDENT_T];
    return d->scale ? fv_add(c, fv_mul(c, y, d->scale), d->loc) : y;
}

/* -log p = (v+1)/2 log(1 + t^2/v) + log(scale) + (log v + log pi)/2 + G(v/2) - G((v+1)/2) */
static fv_tensor *student_nll(fv_ctx *c, const fv__distribution *d, fv_tensor *x)
{
    fv_tensor *v = d->p[0], *t = fv_div(c, fv_sub(c, x, d->p[1]), d->p[2]);
    fv_tensor *far = fv_log(c, fv_affine(c, fv_div(c, fv_square(c, t), v), 1, 1)),
              *gammas = fv_sub(c, log_gamma(c, fv_scale(c, v, 0.5f)),
                               log_gamma(c, fv_affine(c, v, 0.5f, 0.5f)));
    fv_tensor *y = fv_add(c, fv_mul(c, fv_affine(c, v, 0.5f, 0.5f), far), fv_log(c, d->p[2]));
    return fv_add(c, fv_add(c, y, gammas), fv_affine(c, fv_log(c, v), 0.5f, HALF_LOG_PI));
}

/* -log p = t^2 / 2 + log(scale) + log(2 pi) / 2 */
static fv_tensor *normal_nll(fv_ctx *c, const fv__distribution *d, fv_tensor *x)
{
    fv_tensor *t = fv_div(c, fv_sub(c, x, d->p[0]), d->p[1]);
    return fv_add(c, fv_affine(c, fv_square(c, t), 0.5f, HALF_LOG_2PI), fv_log(c, d->p[1]));
}

/* -log p = n softplus(l) + x softplus(-l) - G(n + x) + G(1 + x) + G(n) */
static fv_tensor *counts_nll(fv_ctx *c, const fv__distribution *d, fv_tensor *x)
{
    fv_tensor *n = d->p[0], *l = d->p[1];
    fv_tensor *y = fv_add(c, fv_mul(c, n, fv_softplus(c, l)),
                          fv_mul(c, x, fv_softplus(c, fv_scale(c, l, -1))));
    fv_tensor *ways = fv_sub(c, fv_add(c, log_gamma(c, fv_affine(c, x, 1, 1)), log_gamma(c, n)),
                             log_gamma(c, fv_add(c, n, x)));
    return fv_add(c, y, ways);
}

fv_tensor *fv__distribution_nll(fv_ctx *c, const fv__distribution *d, fv_tensor *x)
{
    if (d->kind == FV__NEGATIVE_BINOMIAL) return counts_nll(c, d, x);
    if (d->scale) x = fv_div(c, fv_sub(c, x, d->loc), d->scale);
    fv_tensor *y = d->kind == FV__NORMAL ? normal_nll(c, d, x) : student_nll(c, d, x);
    return d->scale ? fv_add(c, y, fv_log(c, d->scale)) : y; /* of x, not of the scaled x */
}

void fv__put_distribution(fv_ctx *c, const fv_items *in, fv_items *out, fv__distribution d,
                          const char *const *names, fv_tensor *values)
{
    fv_tensor *mean = fv__distribution_mean(c, &d);
    fv_items_put(out, names[0], mean);
    for (int i = 0; i < fv__distribution_count(d.kind); i++)
        fv_items_put(out, names[i + 1], d.p[i]);
    if (!values || !mean) return;
    if (fv_len(values) != fv_len(mean) || values->dtype == FV_I32) {
        fv_raise(c, FV_ESHAPE, "values %s, expected floats %s", fv_desc(values).s, fv_desc(mean).s);
        return;
    }
    fv_tensor *y = fv__distribution_nll(c, &d, wide(c, fv_reshape(c, values, mean->shape)));
    int64_t wide_as = fv_cols(mean), rows = fv_len(mean) / wide_as;
    fv_tensor *sum = fv_sum_all(c, y);
    fv_items_put(out, "loss",
                 in->n_labels > 0 ? fv__per_label(c, fv_scale(c, sum, (float)wide_as), in)
                                  : fv_scale(c, sum, 1 / (float)rows));
}
