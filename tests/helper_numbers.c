/* helper_numbers.c - numbers to begin with, those that come out, and how far these are from what was expected. */
#include "helper_numbers.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "helper_device.h"

static float *room(int64_t n)
{
    float *x = malloc((size_t)n * sizeof *x);
    assert_non_null(x);
    return x;
}

float *numbers_drawn(int64_t n, uint32_t seed, float most)
{
    float *x = room(n);
    for (int64_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = most * (float)((int)(seed >> 24) % 33 - 16) / 16;
    }
    return x;
}

numbers numbers_of(fv_ctx *c, const fv_tensor *t, bool grad)
{
    numbers r = {.x = room(fv_len(t)), .n = fv_len(t)};
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
    numbers r = {.x = room(fv_len(weight)), .n = fv_len(weight)};
    check(fv_params_get_grad(p, weight, r.x, r.n, &e), &e);
    return r;
}

numbers_gap numbers_apart(const numbers *got, const numbers *want)
{
    numbers_gap g = {0};
    double square = 0;
    for (int64_t i = 0; i < want->n; i++) square += (double)want->x[i] * (double)want->x[i];
    g.mean = sqrt(square / (double)want->n);
    for (int64_t i = 0; i < want->n && !isnan(g.most); i++) {
        double off = fabs((double)got->x[i] - (double)want->x[i]) / (g.mean + fabs((double)want->x[i]));
        if (!(off <= g.most)) g.most = off, g.at = i;
    }
    return g;
}
