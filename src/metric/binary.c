/* binary.c - how good probabilities of yes or no are: AUC, log-loss, calibration; Platt's scaling.
 *
 * AUC judges the order alone, so a calibration, which keeps the order, cannot change it.  Log-loss
 * and calibration error judge the probabilities.  Bins of the error hold equally many impressions,
 * since most probabilities of clicks are small and bins of equal width would be empty. */
#include <math.h>
#include <stdlib.h>

#include "base/base.h"
#include "fovea/author/metric.h"

enum { BINS = 10, MOST_STEPS = 100 };

double fv_platt_probability(fv_platt p, double logit)
{
    return 1 / (1 + exp(-(p.scale * logit + p.shift)));
}

/* log(1 + e^z) without overflow */
static double softplus(double z) { return z > 0 ? z + log1p(exp(-z)) : log1p(exp(z)); }

/* -log P of what happened, with z the calibrated logit */
static double loss_of(fv_platt p, float logit, uint8_t yes)
{
    double z = p.scale * (double)logit + p.shift;
    return softplus(yes ? -z : z);
}

static double mean_loss(fv_platt p, const float *logit, const uint8_t *yes, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += loss_of(p, logit[i], yes[i]);
    return sum / (double)n;
}

/* Newton's method with halved steps: the log-loss is convex in scale and shift. */
fv_status fv_platt_fit(fv_platt *out, const float *logit, const uint8_t *yes, int64_t n, fv_err *e)
{
    int64_t taken = 0;
    for (int64_t i = 0; i < n; i++) taken += yes[i] != 0;
    if (!taken || taken == n)
        return fv_fail(e, FV_EARG, "calibration needs both kinds: %lld of %lld are yes",
                       (long long)taken, (long long)n);
    fv_platt p = {1, 0};
    double loss = mean_loss(p, logit, yes, n);
    for (int step = 0; step < MOST_STEPS; step++) {
        double ga = 0, gb = 0, haa = 1e-9, hab = 0, hbb = 1e-9; /* gradient, Hessian */
        for (int64_t i = 0; i < n; i++) {
            double x = (double)logit[i], q = fv_platt_probability(p, x), d = q - (yes[i] != 0),
                   w = q * (1 - q);
            ga += d * x, gb += d;
            haa += w * x * x, hab += w * x, hbb += w;
        }
        double det = haa * hbb - hab * hab;
        if (!(det > 0)) break;
        double da = (hbb * ga - hab * gb) / det, db = (haa * gb - hab * ga) / det, size = 1, next;
        fv_platt to;
        do {
            to = (fv_platt){p.scale - size * da, p.shift - size * db};
            next = mean_loss(to, logit, yes, n);
            size /= 2;
        } while (next > loss && size > 1e-6);
        if (!(next < loss)) break;
        double gained = loss - next;
        p = to, loss = next;
        if (gained < 1e-12) break;
    }
    *out = p;
    return FV_OK;
}

typedef struct scored {
    float logit;
    uint8_t yes;
} scored;

static int by_logit(const void *a, const void *b)
{
    float x = ((const scored *)a)->logit, y = ((const scored *)b)->logit;
    return (x > y) - (x < y);
}

/* (sum of the ranks of yes - yes (yes + 1) / 2) / (yes no), ties at their mean rank.  x sorted */
static double area(const scored *x, int64_t n, int64_t yes)
{
    double ranks = 0;
    for (int64_t from = 0, to; from < n; from = to) {
        int64_t here = 0;
        for (to = from; to < n && !(x[to].logit > x[from].logit); to++) here += x[to].yes;
        ranks += (double)here * (double)(from + to + 1) / 2;
    }
    double no = (double)(n - yes), both = (double)yes * no;
    return both > 0 ? (ranks - (double)yes * (double)(yes + 1) / 2) / both : NAN;
}

/* sum over bins of |mean P - share of yes| times the bin's share of all.  x sorted */
static double calibration_error(const scored *x, int64_t n, fv_platt p)
{
    double error = 0;
    for (int64_t b = 0; b < BINS; b++) {
        double gap = 0;
        for (int64_t i = b * n / BINS; i < (b + 1) * n / BINS; i++)
            gap += fv_platt_probability(p, (double)x[i].logit) - x[i].yes;
        error += fabs(gap);
    }
    return error / (double)n;
}

fv_status fv_binary_judge(fv_binary *out, const fv_env *env, const float *logit, const uint8_t *yes,
                          int64_t n, fv_platt p, fv_err *e)
{
    *out = (fv_binary){.n = n};
    size_t bytes = (size_t)n * sizeof(scored);
    scored *x = n > 0 ? fv__alloc(env, bytes) : NULL;
    if (!x) return fv_fail(e, n > 0 ? FV_ENOMEM : FV_EARG, "nothing to judge, or out of memory");
    for (int64_t i = 0; i < n; i++) {
        x[i] = (scored){logit[i], yes[i] != 0};
        out->yes += x[i].yes;
        out->mean += fv_platt_probability(p, (double)logit[i]) / (double)n;
    }
    qsort(x, (size_t)n, sizeof *x, by_logit);
    out->auc = area(x, n, out->yes);
    out->log_loss = mean_loss(p, logit, yes, n);
    out->error = calibration_error(x, n, p);
    fv__free(env, x, bytes);
    return FV_OK;
}
