/* golden.c - reading and comparing golden tensors. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "device.h"
#include "golden.h"
#include "fovea/author/tensor.h"

static fv_array load(const golden *g, const char *fmt, va_list ap)
{
    char name[128], place[512];
    fv_array a;
    fv_err e;
    vsnprintf(name, sizeof name, fmt, ap);
    snprintf(place, sizeof place, "%s:%s", g->file, name);
    if (fv_array_open(&a, NULL, place, (fv_array_opt){.nonfinite = true}, &e))
        fail_msg("%s", e.text);
    return a;
}

fv_array golden_array(const golden *g, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fv_array a = load(g, fmt, ap);
    va_end(ap);
    return a;
}

float *golden_numbers(const fv_st *file, const char *name, int64_t *n)
{
    fv_err e;
    fv_st_info info;
    check(fv_st_find(file, name, &info, &e), &e);
    float *x = malloc((size_t)info.count * sizeof *x);
    assert_non_null(x);
    check(fv_st_read(file, &info, x, FV_F32, info.count, &e), &e);
    *n = info.count;
    return x;
}

fv_tensor *golden_input(fv_ctx *c, const fv_st *file, const char *name, fv_dtype as)
{
    fv_err e;
    fv_st_info info;
    check(fv_st_find(file, name, &info, &e), &e);
    void *x = malloc((size_t)info.count * fv_dtype_size(as));
    assert_non_null(x);
    check(fv_st_read(file, &info, x, as, info.count, &e), &e);
    fv_tensor *t = as == FV_U8 ? fv_bytes(c, x, info.shape) : fv_ints(c, x, info.shape);
    free(x);
    return t;
}

fv_tensor *golden_floats(const golden *g, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fv_array a = load(g, fmt, ap);
    va_end(ap);
    fv_tensor *t = fv_floats(g->ctx, a.data, a.shape);
    fv_array_close(&a);
    return t;
}

fv_tensor *golden_ints(const golden *g, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fv_array a = load(g, fmt, ap);
    va_end(ap);
    int64_t n = fv_shape_len(a.shape);
    int32_t *ints = calloc((size_t)n + 1, sizeof *ints);
    assert_non_null(ints);
    for (int64_t i = 0; i < n; i++) ints[i] = (int32_t)a.data[i];
    fv_tensor *t = fv_ints(g->ctx, ints, a.shape);
    free(ints);
    fv_array_close(&a);
    return t;
}

fv_tensor *golden_mask(const golden *g, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fv_array a = load(g, fmt, ap);
    va_end(ap);
    int64_t n = fv_shape_len(a.shape);
    uint8_t *bytes = calloc((size_t)n + 1, 1);
    assert_non_null(bytes);
    for (int64_t i = 0; i < n; i++) bytes[i] = a.data[i] != 0;
    fv_tensor *t = fv_bytes(g->ctx, bytes, a.shape);
    free(bytes);
    fv_array_close(&a);
    return t;
}

/* a gradient that is 0 in theory, as that of a key's bias, is allowed its rounding */
#define TINY 0.01

static void compare(const char *fmt, va_list ap, const fv_tensor *t, const double *got,
                    const fv_array *want, double tolerance)
{
    char what[128];
    double size = 0;
    int64_t n = fv_shape_len(want->shape);
    vsnprintf(what, sizeof what, fmt, ap);
    if (!fv_shape_same(t->shape, want->shape))
        fail_msg("%s: %s, expected %s", what, fv_desc(t).s,
                 fv_desc(&(fv_tensor){.shape = want->shape}).s);
    for (int64_t i = 0; i < n; i++)
        size += (double)want->data[i] * (double)want->data[i] / (double)n;
    for (int64_t i = 0; i < n; i++) {
        double w = want->data[i], most = tolerance * (fabs(w) + sqrt(size) + TINY);
        if (!(fabs(got[i] - w) <= most))
            fail_msg("%s: element %lld is %.9g, expected %.9g (off by %.2g, at most %.2g)", what,
                     (long long)i, got[i], w, fabs(got[i] - w), most);
    }
}

static void near(const golden *g, const fv_tensor *t, bool grad, double tolerance, const char *fmt,
                 va_list ap)
{
    va_list again;
    va_copy(again, ap);
    fv_array want = load(g, fmt, ap);
    if (!t) fail_msg("%s", fv_ctx_err(g->ctx)->text);
    double *got = calloc((size_t)fv_len(t) + 1, sizeof *got);
    assert_non_null(got);
    fv_status st = (grad ? fv_read_grad : fv_read_f64)(g->ctx, t, got, fv_len(t));
    if (st) fail_msg("%s", fv_ctx_err(g->ctx)->text);
    compare(fmt, again, t, got, &want, tolerance);
    va_end(again);
    free(got);
    fv_array_close(&want);
}

void golden_near(const golden *g, const fv_tensor *t, double tolerance, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    near(g, t, false, tolerance, fmt, ap);
    va_end(ap);
}

void golden_grad_near(const golden *g, const fv_tensor *t, double tolerance, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    near(g, t, true, tolerance, fmt, ap);
    va_end(ap);
}
