/* explain_set.c - how far methods agree, and which to trust: rank correlation, and the curves of
 * deletion and insertion (Petsiuk et al. 2018) over a set of texts.
 *
 * Tokens are blanked out from the one that a method scores highest on, a tenth of them at a time;
 * the sooner the prediction falls, the better the method knew what it rested on.  Insertion starts
 * with blanks and puts tokens back in the same order.  Special tokens stay in both.  A random order
 * stands beside the methods: what is no better than it says nothing. */
#include <math.h>
#include <stdlib.h>

#include "explain.h"
#include "fovea/author/backend.h"

/* ---- ranks ---- */

/* Mean rank of each value among those kept: values below it and half of those equal to it.  n is
 * the length of a text: counting is short enough. */
static void ranks(double *out, const float *a, const uint8_t *skip, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        double rank = 0;
        for (int64_t j = 0; j < n; j++) {
            if (skip && skip[j]) continue;
            if (fabsf(a[j]) < fabsf(a[i])) rank += 1;
            if (fabsf(a[j]) == fabsf(a[i])) rank += 0.5;
        }
        out[i] = rank;
    }
}

double fv__explain_rank(const float *a, const float *b, const uint8_t *skip, int64_t n,
                        double *order)
{
    double *x = order, *y = order + n, n_kept = 0, mx = 0, my = 0, xy = 0, xx = 0, yy = 0;
    ranks(x, a, skip, n);
    ranks(y, b, skip, n);
    for (int64_t i = 0; i < n; i++)
        if (!skip || !skip[i]) mx += x[i], my += y[i], n_kept += 1;
    if (n_kept < 2) return (double)NAN;
    mx /= n_kept, my /= n_kept;
    for (int64_t i = 0; i < n; i++) {
        if (skip && skip[i]) continue;
        xy += (x[i] - mx) * (y[i] - my);
        xx += (x[i] - mx) * (x[i] - mx);
        yy += (y[i] - my) * (y[i] - my);
    }
    return xx > 0 && yy > 0 ? xy / sqrt(xx * yy) : (double)NAN;
}

/* ---- curves ---- */

typedef struct ranked {
    float score;
    int64_t token;
} ranked;

/* Best first; equal scores in the order of the text. */
static int best_first(const void *a, const void *b)
{
    const ranked *x = a, *y = b;
    if (x->score != y->score) return x->score < y->score ? 1 : -1;
    return (x->token > y->token) - (x->token < y->token);
}

/* Tokens that may be blanked, in the order of a method; returns how many. */
static int64_t order_of(const fv_explainer *x, int method, ranked *out)
{
    int64_t kept = 0;
    for (int64_t t = 0; t < x->now.n; t++) {
        uint32_t w[4];
        if (x->now.special[t]) continue;
        fv_philox(w, 0x6578706c, (uint64_t)x->set.texts, 0, (uint64_t)t);
        bool drawn = method == FV_EXPLAIN_METHODS;
        out[kept++] = (ranked){drawn ? (float)(w[0] >> 8) : x->now.score[method][t], t};
    }
    qsort(out, (size_t)kept, sizeof *out, best_first);
    return kept;
}

/* Rows 0 .. POINTS-1: deletion; then insertion. */
static void blank_rows(const fv_explainer *x, const ranked *order, int64_t kept, int32_t *rows)
{
    int64_t n = x->now.n;
    for (int p = 0; p < 2 * FV_EXPLAIN_POINTS; p++) {
        bool inserts = p >= FV_EXPLAIN_POINTS;
        int64_t first = (p % FV_EXPLAIN_POINTS * kept + (FV_EXPLAIN_POINTS - 1) / 2) /
                        (FV_EXPLAIN_POINTS - 1);
        memcpy(rows + p * n, x->ids, (size_t)n * sizeof *rows);
        for (int64_t i = 0; i < kept; i++)
            if ((i < first) != inserts) rows[p * n + order[i].token] = x->blank;
    }
}

/* By the trapezoidal rule, over shares of the tokens from 0 to 1. */
static double area(const double *y)
{
    double sum = 0;
    for (int p = 0; p + 1 < FV_EXPLAIN_POINTS; p++) sum += (y[p] + y[p + 1]) / 2;
    return sum / (FV_EXPLAIN_POINTS - 1);
}

static void move_mean(double *mean, double value, int64_t n)
{
    *mean += (value - *mean) / (double)n;
}

static fv_status add_curves(fv_explainer *x, int64_t texts, fv_err *e)
{
    int64_t n = x->now.n;
    size_t ids = (size_t)(2 * FV_EXPLAIN_POINTS * n) * sizeof(int32_t),
           orders = (size_t)n * sizeof(ranked);
    int32_t *rows = fv__alloc(&x->env, ids);
    ranked *order = fv__alloc(&x->env, orders);
    fv_status st = rows && order ? FV_OK : fv_fail(e, FV_ENOMEM, "explain: out of memory");
    for (int m = 0; !st && m <= FV_EXPLAIN_METHODS; m++) {
        double p[2 * FV_EXPLAIN_POINTS];
        if (m < FV_EXPLAIN_METHODS && !x->now.score[m]) continue;
        int64_t kept = order_of(x, m, order);
        blank_rows(x, order, kept, rows);
        st = fv__explain_log_p(x, rows, 2 * FV_EXPLAIN_POINTS, p, e);
        for (int i = 0; !st && i < FV_EXPLAIN_POINTS; i++) {
            move_mean(&x->set.deletion[m][i], exp(p[i]), texts);
            move_mean(&x->set.insertion[m][i], exp(p[FV_EXPLAIN_POINTS + i]), texts);
        }
        x->set.deletion_area[m] = area(x->set.deletion[m]);
        x->set.insertion_area[m] = area(x->set.insertion[m]);
    }
    if (rows) fv__free(&x->env, rows, ids);
    if (order) fv__free(&x->env, order, orders);
    return st;
}

fv_status fv__explain_add(fv_explainer *x, fv_err *e)
{
    fv_status st = x->opt.curves ? add_curves(x, x->set.texts + 1, e) : FV_OK;
    if (st) return st;
    x->set.texts++;
    for (int a = 0; a < FV_EXPLAIN_METHODS; a++)
        for (int b = 0; b < FV_EXPLAIN_METHODS; b++) {
            double r = x->now.agreement[a][b];
            if (isfinite(r)) move_mean(&x->set.agreement[a][b], r, ++x->set.agreed[a][b]);
        }
    return FV_OK;
}

const fv_explain_set *fv_explain_set_of(const fv_explainer *x) { return &x->set; }
