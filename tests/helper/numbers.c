/* numbers.c - numbers to begin with, those that come out, and how far these are from what was
 * expected. */
#include "numbers.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "device.h"
#include "fovea/author/params.h"

static float *zeros(int64_t n)
{
    float *x = malloc((size_t)n * sizeof *x);
    assert_non_null(x);
    return x;
}

float *numbers_drawn(int64_t n, uint32_t seed, float most)
{
    float *x = zeros(n);
    for (int64_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = most * (float)((int)(seed >> 24) % 33 - 16) / 16;
    }
    return x;
}

void numbers_set(fv_params *p, fv_tensor *weight, uint32_t seed, float most)
{
    fv_err e;
    float *values = numbers_drawn(fv_len(weight), seed, most);
    check(fv_params_set(p, weight, values, fv_len(weight), &e), &e);
    free(values);
}

numbers numbers_of(fv_ctx *c, const fv_tensor *t, bool grad)
{
    numbers r = {.x = zeros(fv_len(t)), .n = fv_len(t)};
    double *x = malloc((size_t)r.n * sizeof *x);
    assert_non_null(x);
    check(grad ? fv_read_grad(c, t, x, r.n) : fv_read_f64(c, t, x, r.n), fv_ctx_err(c));
    for (int64_t i = 0; i < r.n; i++) r.x[i] = (float)x[i];
    free(x);
    return r;
}

numbers numbers_of_grad(fv_params *p, const fv_tensor *weight)
{
    fv_err e;
    numbers r = {.x = zeros(fv_len(weight)), .n = fv_len(weight)};
    check(fv_params_get_grad(p, weight, r.x, r.n, &e), &e);
    return r;
}

void numbers_backward(fv_ctx *c, fv_tensor *y, uint32_t seed)
{
    float *dy = numbers_drawn(fv_len(y), seed, 1);
    fv_backward_from(c, y, dy);
    free(dy);
    if (fv_ctx_status(c)) fail_msg("%s", fv_ctx_err(c)->text);
}

numbers_gap numbers_apart(const numbers *got, const numbers *want)
{
    numbers_gap g = {0};
    double square = 0;
    for (int64_t i = 0; i < want->n; i++) square += (double)want->x[i] * (double)want->x[i];
    g.mean = sqrt(square / (double)want->n);
    for (int64_t i = 0; i < want->n && !isnan(g.most); i++) {
        double off = fabs((double)got->x[i] - (double)want->x[i]);
        double share = off == 0 ? 0 : off / (g.mean + fabs((double)want->x[i]));
        if (!(share <= g.most)) g.most = share, g.at = i;
    }
    return g;
}

/* ---- at many sizes ---- */

static numbers *results(const numbers_trial *of, fv_device *d, fv_dtype t, bool expected,
                        const void *size)
{
    numbers *r = calloc((size_t)of->results, sizeof *r);
    assert_non_null(r);
    of->run(r, d, t, expected, size);
    return r;
}

static void drop(const numbers_trial *of, numbers *r)
{
    for (int k = 0; k < of->results; k++) free(r[k].x);
    free(r);
}

static void near(const numbers_trial *of, const void *size, fv_dtype t, int k, const numbers *got,
                 const numbers *want, double tolerance)
{
    char text[160];
    numbers_gap gap = numbers_apart(got, want);
    if (gap.most <= tolerance) return;
    of->on_skipped(text, sizeof text, size);
    fail_msg("%s, %s: %s[%lld] is %g, expected %g (mean size %g)", fv_dtype_name(t), text,
             of->name[k], (long long)gap.at, (double)got->x[gap.at], (double)want->x[gap.at],
             gap.mean);
}

void numbers_compare(const numbers_trial *of, fv_device *dev, fv_device *cpu, const void *all,
                     size_t n, int first, int last)
{
    const struct {
        fv_dtype t;
        double tolerance;
    } dtypes[] = {{FV_F32, of->f32}, {FV_BF16, of->bf16}, {FV_F16, of->f16}};
    for (size_t i = 0; i < n; i++) {
        const void *size = (const char *)all + i * of->size;
        numbers *want = results(of, cpu, FV_F32, true, size);
        for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++) {
            numbers *got = results(of, dev, dtypes[d].t, false, size);
            for (int k = first; k <= last; k++)
                if (want[k].x)
                    near(of, size, dtypes[d].t, k, &got[k], &want[k], dtypes[d].tolerance);
            drop(of, got);
        }
        drop(of, want);
    }
}

void numbers_repeat(const numbers_trial *of, fv_device *dev, const void *size)
{
    numbers *a = results(of, dev, FV_BF16, false, size),
            *b = results(of, dev, FV_BF16, false, size);
    for (int k = 0; k < of->results; k++)
        if (a[k].x) assert_memory_equal(a[k].x, b[k].x, (size_t)a[k].n * sizeof *a[k].x);
    drop(of, a);
    drop(of, b);
}
