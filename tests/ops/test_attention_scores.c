/* test_attention_scores.c - attention at scores from 1e1 to 1e18: output, exact weights and
 * gradients.
 *
 * Two kinds of inputs.  "tied": every query is a power of two in one column and each key has -2 ..
 * 2 there, so that scores are exact in f32 in whatever order they are added up, and many keys share
 * the maximum; held against float64.  "dense": all columns are random, so that scores are rounded;
 * held against what the returned weights themselves say: rows that sum to 1, an output of sum_j
 * w_ij v_j, and dv_j = sum_i w_ij dy_i. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fovea/fovea.h"
#include "fovea/author/ops.h"
#include "fovea/author/tensor.h"
#include "helper/device.h"
#include "helper/numbers.h"

#define W 64
#define TOLERANCE 2e-6

typedef struct {
    int64_t Tq, Tk;
    bool causal, tied;
    int log10; /* of the largest score */
} scores_case;

typedef struct {
    float *q, *k, *v, *dy; /* (Tq,W), (Tk,W), (Tk,W), (Tq,W) */
    double *w, *y, *dq, *dk, *dv;
    double *got_w, *got_y, *got_dq, *got_dk, *got_dv;
} run;

static fv_device *cpu, *dev;

static double *zeros(int64_t n)
{
    double *x = calloc((size_t)n, sizeof *x);
    assert_non_null(x);
    return x;
}

/* ---- inputs ---- */

/* The scale is 1, so a score is the dot product. */
static void draw_inputs(run *r, const scores_case *s)
{
    float big = (float)exp2(floor(log2(pow(10, s->log10) / 2)));
    r->q = numbers_drawn(s->Tq * W, 1, 1);
    r->k = numbers_drawn(s->Tk * W, 2, 1);
    r->v = numbers_drawn(s->Tk * W, 3, 1);
    r->dy = numbers_drawn(s->Tq * W, 4, 1);
    for (int64_t i = 0; i < s->Tq * W; i++) {
        int64_t row = i / W;
        if (s->tied)
            r->q[i] = i % W != row % W ? 0 : row % 3 ? big : -big;
        else
            r->q[i] *= sqrtf(big) / 4;
    }
    for (int64_t i = 0; i < s->Tk * W; i++) {
        if (s->tied)
            r->k[i] = roundf(r->k[i] * 2.4f);
        else
            r->k[i] *= sqrtf(big) / 4;
    }
}

static bool takes_part(const scores_case *s, int64_t i, int64_t j)
{
    return !s->causal || j <= i + s->Tk - s->Tq;
}

/* ---- what is right, in float64 ---- */

static void weights_in_f64(run *r, const scores_case *s, int64_t i)
{
    double top = -INFINITY, sum = 0, *w = r->w + i * s->Tk;
    for (int64_t j = 0; j < s->Tk; j++) {
        w[j] = takes_part(s, i, j) ? 0 : -INFINITY;
        for (int64_t c = 0; c < W; c++) w[j] += (double)r->q[i * W + c] * (double)r->k[j * W + c];
        top = fmax(top, w[j]);
    }
    for (int64_t j = 0; j < s->Tk; j++) sum += w[j] = exp(w[j] - top);
    for (int64_t j = 0; j < s->Tk; j++) w[j] /= sum;
}

/* y = w v;  dp = dy v';  ds = w (dp - dy.y);  dq = ds k;  dk = ds' q;  dv = w' dy, with the weights
 * w. */
static void rest_in_f64(run *r, const scores_case *s, const double *w)
{
    for (int64_t i = 0; i < s->Tq; i++) {
        double dyy = 0;
        for (int64_t c = 0; c < W; c++) {
            for (int64_t j = 0; j < s->Tk; j++)
                r->y[i * W + c] += w[i * s->Tk + j] * (double)r->v[j * W + c];
            dyy += (double)r->dy[i * W + c] * r->y[i * W + c];
        }
        for (int64_t j = 0; j < s->Tk; j++) {
            double dp = 0, p = w[i * s->Tk + j];
            for (int64_t c = 0; c < W; c++)
                dp += (double)r->dy[i * W + c] * (double)r->v[j * W + c];
            for (int64_t c = 0; c < W; c++) {
                r->dq[i * W + c] += p * (dp - dyy) * (double)r->k[j * W + c];
                r->dk[j * W + c] += p * (dp - dyy) * (double)r->q[i * W + c];
                r->dv[j * W + c] += p * (double)r->dy[i * W + c];
            }
        }
    }
}

/* ---- what is computed ---- */

static void look(void *user, fv_ctx *c, const char *site, const char *name, const void *what)
{
    run *r = user;
    (void)name;
    if (strcmp(site, "attention")) return;
    fv_shape s = fv_attn_view_shape(what);
    fv_tensor *w = fv_attn_view_map(c, what, FV_F32, 0, 0, 0, s.d[2]);
    check(fv_read_f64(c, w, r->got_w, s.d[2] * s.d[3]), fv_ctx_err(c));
}

static void attend(run *r, const scores_case *s)
{
    fv_ctx *c = NULL;
    fv_err e;
    int64_t queries = s->Tq * W, keys = s->Tk * W;
    check(fv_ctx_new(&c, dev, (fv_ctx_opt){.record = true}, &e), &e);
    fv_ctx_set_tap(c, look, r);
    fv_tensor *q = fv_watch(c, fv_floats(c, r->q, FV_SHAPE(1, s->Tq, W)));
    fv_tensor *k = fv_watch(c, fv_floats(c, r->k, FV_SHAPE(1, s->Tk, W)));
    fv_tensor *v = fv_watch(c, fv_floats(c, r->v, FV_SHAPE(1, s->Tk, W)));
    fv_tensor *y = fv_attention(c, q, k, v,
                                (fv_attn){.n_head = 1, .scale = 1, .causal = s->causal});
    fv_hold(c, y);
    fv_backward_from(c, y, r->dy);
    check(fv_read_f64(c, y, r->got_y, queries), fv_ctx_err(c));
    check(fv_read_grad(c, q, r->got_dq, queries), fv_ctx_err(c));
    check(fv_read_grad(c, k, r->got_dk, keys), fv_ctx_err(c));
    check(fv_read_grad(c, v, r->got_dv, keys), fv_ctx_err(c));
    fv_ctx_free(c);
}

/* ---- held against one another ---- */

/* The largest difference, relative to the largest number, and to what is added up where sums
 * cancel. */
static void compare(const char *what, const double *got, const double *want, int64_t n,
                    double least, const scores_case *s)
{
    double most = 0, scale = least;
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(got[i])) most = INFINITY;
        most = fmax(most, fabs(got[i] - want[i]));
        scale = fmax(scale, fabs(want[i]));
    }
    if (!(most <= TOLERANCE * scale))
        fail_msg("%s is off by %.3g: scores of 1e%d, %d rows, %d keys, %s, %s", what, most / scale,
                 s->log10, (int)s->Tq, (int)s->Tk, s->causal ? "causal" : "full",
                 s->tied ? "tied" : "dense");
}

static void check_weights(const double *w, const scores_case *s)
{
    for (int64_t i = 0; i < s->Tq; i++) {
        double sum = 0;
        for (int64_t j = 0; j < s->Tk; j++) {
            double x = w[i * s->Tk + j];
            assert_true(x >= 0 && x <= 1);
            if (!takes_part(s, i, j)) assert_true(x == 0);
            sum += x;
        }
        if (!(fabs(sum - 1) <= TOLERANCE))
            fail_msg("weights of row %d sum to %.9g: scores of 1e%d, %d rows, %d keys, %s", (int)i,
                     sum, s->log10, (int)s->Tq, (int)s->Tk, s->tied ? "tied" : "dense");
    }
}

static void try_case(const scores_case *s)
{
    int64_t queries = s->Tq * W, keys = s->Tk * W, pairs = s->Tq * s->Tk;
    run r = {.w = zeros(pairs),
             .y = zeros(queries),
             .dq = zeros(queries),
             .dk = zeros(keys),
             .dv = zeros(keys)};
    r.got_w = zeros(pairs), r.got_y = zeros(queries), r.got_dq = zeros(queries),
    r.got_dk = zeros(keys), r.got_dv = zeros(keys);
    draw_inputs(&r, s);
    attend(&r, s);
    check_weights(r.got_w, s);
    for (int64_t i = 0; s->tied && i < s->Tq; i++) weights_in_f64(&r, s, i);
    if (s->tied) compare("a weight", r.got_w, r.w, pairs, 1, s);
    rest_in_f64(&r, s, s->tied ? r.w : r.got_w);
    compare("y", r.got_y, r.y, queries, 1, s);
    compare("dv", r.got_dv, r.dv, keys, 1, s);
    if (s->tied) { /* slopes are differences of numbers around 4, times k around 2 and q */
        compare("dq", r.got_dq, r.dq, queries, 8, s);
        compare("dk", r.got_dk, r.dk, keys, 4 * pow(10, s->log10) / 4, s);
    }
    void *all[] = {r.q,  r.k,  r.v,     r.dy,    r.w,      r.y,      r.dq,
                   r.dk, r.dv, r.got_w, r.got_y, r.got_dq, r.got_dk, r.got_dv};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

static void try_sizes(bool tied)
{
    /* one row and a few, as decoding has them; a panel; tiles of keys with borders; a long row of
     * keys */
    static const int64_t sizes[][2] = {{1, 70}, {5, 300}, {40, 40}, {200, 233}, {90, 700}};
    for (int log10 = 1; log10 <= 18; log10++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            for (int causal = 0; causal < 2; causal++) {
                /* A GPU decodes with kernels that add up a score in another order than its tiles
                 * do; beside a large maximum that is another weight.  For a single row only scores
                 * that are exact in any order can be compared. */
                if (!tied && !test_on_cpu() && sizes[i][0] == 1) continue;
                try_case(&(scores_case){sizes[i][0], sizes[i][1], causal, tied, log10});
            }
}

static void many_keys_share_the_maximum(void **state)
{
    (void)state;
    try_sizes(true);
}

static void weights_are_those_of_output_and_gradient(void **state)
{
    (void)state;
    try_sizes(false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(many_keys_share_the_maximum),
        cmocka_unit_test(weights_are_those_of_output_and_gradient),
    };
    return run_beside_cpu(tests, sizeof tests / sizeof *tests, &dev, &cpu);
}
