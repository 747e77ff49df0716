/* optable.c - the examination of optable.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "device.h"
#include "oplab.h"

/* of each input at which differences are taken; a quarter of them where it is large */
#define PLACES 48
#define LARGE 2000

static const struct {
    fv_dtype t;
    double value, grad;
    unsigned skip;
} dtypes[] = {
    {FV_F32, 1e-5, 1e-4, 0},
    {FV_BF16, 1e-2, 4e-2, OP_NOT_BF16},
    {FV_F16, 2e-3, 1e-2, OP_NOT_F16},
};
#define DTYPES (sizeof dtypes / sizeof *dtypes)

/* ---- value and gradient ---- */

static void check_value(const op_case *k, const numbers *v)
{
    result want = run_alone(k, v, k->flags & OP_NOT_F64 ? FV_F32 : FV_F64, false, 1, 1);
    if (k->want || k->each) {
        double *y = zeros(want.n);
        if (k->want) k->want(k, y, (const double *const *)v->x);
        for (int64_t i = 0; k->each && i < want.n; i++) y[i] = k->each(v->x[0][i]);
        near(k, "f64 value", want.y, y, want.n, k->flags & OP_NOT_F64 ? 1e-5 : 1e-12);
        free(y);
    }
    for (size_t i = 0; i < DTYPES; i++) {
        if (k->flags & dtypes[i].skip) continue;
        result got = run_alone(k, v, dtypes[i].t, false, 1, 1);
        assert_int_equal(got.n, want.n);
        near(k, fv_dtype_name(dtypes[i].t), got.y, want.y, want.n, dtypes[i].value);
        result_free(&got);
    }
    result_free(&want);
}

/* sum over y of weight * y, as the gradients have it */
static double functional(lab *l, const op_case *k, const numbers *v)
{
    result r;
    double sum = 0;
    fv_ctx_reset(l->ctx, 0);
    assert_int_equal(run(l, k, v, FV_F64, false, 1, &r), FV_OK);
    for (int64_t i = 0; i < r.n; i++) sum += weight(i) * r.y[i];
    result_free(&r);
    return sum;
}

/* f' = (8 (f(h) - f(-h)) - (f(2h) - f(-2h))) / 12h: exact to h^4, so h can be large and rounding
 * stays out of sight */
static double difference(lab *l, const op_case *k, const numbers *v, double *x)
{
    double at = *x, h = 1e-4, f[4];
    const double step[4] = {h, -h, 2 * h, -2 * h};
    for (int i = 0; i < 4; i++) {
        *x = at + step[i];
        f[i] = functional(l, k, v);
    }
    *x = at;
    return (8 * (f[0] - f[1]) - (f[2] - f[3])) / (12 * h);
}

static void check_differences(const op_case *k, numbers *v, const result *r)
{
    lab l;
    assert_int_equal(lab_open(&l, k, FV_F64, false, 1, 0), FV_OK);
    for (int i = 0; i < v->n; i++) {
        double want[PLACES], got[PLACES];
        int64_t most = v->len[i] > LARGE ? PLACES / 4 : PLACES,
                step = (v->len[i] + most - 1) / most, n = 0;
        for (int64_t j = 0; wants(k, i) && j < v->len[i]; j += step, n++) {
            want[n] = difference(&l, k, v, &v->x[i][j]);
            got[n] = r->g[i][j];
        }
        char what[96];
        snprintf(what, sizeof what, "gradient of input %d against differences, every %lld", i,
                 (long long)step);
        near(k, what, got, want, n, 1e-6);
    }
    lab_close(&l);
}

static void check_dtypes(const op_case *k, const numbers *v, const result *want, int times)
{
    for (size_t d = 0; d < DTYPES; d++) {
        if (k->flags & dtypes[d].skip) continue;
        result got = run_alone(k, v, dtypes[d].t, true, times, 1);
        for (int i = 0; i < v->n; i++) {
            char what[64];
            snprintf(what, sizeof what, "%s gradient of input %d%s", fv_dtype_name(dtypes[d].t), i,
                     times == 2 ? ", used twice" : "");
            near(k, what, got.g[i], want->g[i], v->len[i], dtypes[d].grad);
        }
        result_free(&got);
    }
}

static void check_grad(const op_case *k, numbers *v)
{
    bool f64 = !(k->flags & OP_NOT_F64);
    result once = run_alone(k, v, f64 ? FV_F64 : FV_F32, true, 1, 1),
           twice = run_alone(k, v, f64 ? FV_F64 : FV_F32, true, 2, 1);
    if (f64 && test_on_cpu()) check_differences(k, v, &once); /* f64 is the same everywhere */
    check_dtypes(k, v, &once, 1);
    if (!test_brief()) check_dtypes(k, v, &twice, 2);
    /* in training the second use may draw other numbers */
    for (int i = 0; i < v->n && !(k->flags & OP_TRAIN); i++) {
        for (int64_t j = 0; j < v->len[i]; j++) twice.g[i][j] /= 2;
        near(k, "gradient of an input used twice", twice.g[i], once.g[i], v->len[i],
             f64 ? 1e-12 : 1e-5);
    }
    result_free(&once);
    result_free(&twice);
}

/* Two steps without clearing add up to twice the gradient of one. */
static void check_params(const op_case *k, const numbers *v, fv_dtype t, double tolerance)
{
    lab l;
    fv_params *p;
    fv_tensor *in[OP_MAX_IN];
    result want = run_alone(k, v, t, true, 1, 1);
    assert_int_equal(lab_open(&l, k, t, true, 1, 0), FV_OK);
    assert_int_equal(fv_params_new(&p, &l.env, NULL), FV_OK);
    for (int i = 0; i < v->n; i++)
        in[i] = fv_param(p, (fv_init){.buffer = !wants(k, i)}, k->in[i].shape, "input%d", i);
    assert_int_equal(fv_params_alloc(p, l.dev, t, true, NULL), FV_OK);
    float *f[OP_MAX_IN] = {0};
    for (int i = 0; i < v->n; i++) {
        f[i] = calloc((size_t)v->len[i] + 1, sizeof *f[i]);
        assert_non_null(f[i]);
        for (int64_t j = 0; j < v->len[i]; j++) f[i][j] = (float)v->x[i][j];
        assert_int_equal(fv_params_set(p, in[i], f[i], v->len[i], NULL), FV_OK);
    }
    for (int step = 0; step < 2; step++) {
        fv_ctx_reset(l.ctx, 0);
        fv_tensor *y = k->build(l.ctx, in);
        if (!y || send_back(l.ctx, y))
            fail_msg("%s: of parameters: %s", k->name, fv_ctx_err(l.ctx)->text);
    }
    for (int i = 0; i < v->n; i++) {
        double *got = zeros(v->len[i]);
        assert_int_equal(fv_params_get_grad(p, in[i], f[i], v->len[i], NULL), FV_OK);
        for (int64_t j = 0; j < v->len[i]; j++) got[j] = 0.5 * (double)f[i][j];
        char what[64];
        snprintf(what, sizeof what, "%s gradient of parameter %d over two steps", fv_dtype_name(t),
                 i);
        near(k, what, got, want.g[i], v->len[i], tolerance);
        free(got);
        free(f[i]);
    }
    fv_params_free(p);
    lab_close(&l);
    result_free(&want);
}

/* ---- promises ---- */

static void check_threads(const op_case *k, const numbers *v)
{
    bool grad = !(k->flags & OP_NO_GRAD);
    result one = run_alone(k, v, FV_F32, grad, 1, 1);
    for (int threads = 2; threads <= 4; threads++) {
        char what[64];
        result many = run_alone(k, v, FV_F32, grad, 1, threads);
        snprintf(what, sizeof what, "value by 1 and by %d threads", threads);
        same_bits(k, what, one.y, many.y, one.n);
        for (int i = 0; grad && i < v->n; i++) {
            snprintf(what, sizeof what, "gradient of input %d by 1 and by %d threads", i, threads);
            same_bits(k, what, one.g[i], many.g[i], v->len[i]);
        }
        result_free(&many);
    }
    result_free(&one);
}

static void check_row(const op_case *k, const numbers *v)
{
    int64_t rows = k->in[0].shape.d[0], last = v->len[0] / rows * (rows - 1);
    op_case alone = *k;
    numbers part = *v;
    alone.in[0].shape.d[0] = 1;
    part.len[0] = v->len[0] / rows;
    part.x[0] = v->x[0] + last;
    result all = run_alone(k, v, FV_F32, false, 1, 2),
           one = run_alone(&alone, &part, FV_F32, false, 1, 2);
    assert_int_equal(one.n * rows, all.n);
    const char *what = "the last row alone and among others";
    if (test_on_cpu())
        same_bits(k, what, one.y, all.y + one.n * (rows - 1), one.n);
    else /* a library's matrix product may choose another algorithm for another size */
        near(k, what, one.y, all.y + one.n * (rows - 1), one.n, 1e-5);
    result_free(&all);
    result_free(&one);
}

static void check_steady(const op_case *k, const numbers *v)
{
    lab l;
    result r[3];
    bool grad = !(k->flags & OP_NO_GRAD);
    size_t count = 0;
    assert_int_equal(lab_open(&l, k, FV_F32, grad, 1, 0), FV_OK);
    for (int step = 0; step < 3; step++) {
        fv_ctx_reset(l.ctx, 0);
        assert_int_equal(run(&l, k, v, FV_F32, grad, 1, &r[step]), FV_OK);
        if (step && l.mem->count != count)
            fail_msg("%s: step %d allocated %zu times", k->name, step, l.mem->count - count);
        if (memcmp(r[step].at, r[0].at, sizeof r[0].at))
            fail_msg("%s: addresses moved in step %d", k->name, step);
        count = l.mem->count;
    }
    for (int step = 0; step < 3; step++) result_free(&r[step]);
    lab_close(&l);
}

static void must_be_memory(const op_case *k, fv_status st, const char *what, size_t n)
{
    if (st && st != FV_ENOMEM)
        fail_msg("%s: %s %zu: %s, expected out of memory", k->name, what, n, fv_status_name(st));
}

static void check_failing_allocations(const op_case *k, const numbers *v)
{
    bool grad = !(k->flags & OP_NO_GRAD), reached = true;
    for (size_t n = 1; reached; n++) {
        lab l;
        result r = {0};
        fv_status st = lab_open(&l, k, FV_F32, grad, 1, n);
        if (!st) st = run(&l, k, v, FV_F32, grad, 1, &r);
        must_be_memory(k, st, "without allocation", n);
        reached = l.mem->count >= n;
        if (!reached) assert_int_equal(st, FV_OK);
        result_free(&r);
        lab_close(&l);
    }
}

/* Spoils the arena's room down to `left` bytes; false if there was less. */
static bool leave(fv_arena *a, size_t left)
{
    size_t have = a->chunks[a->n - 1].size, used = a->at == a->n - 1 ? a->used : 0;
    if (left > have - used) return false;
    a->at = a->n - 1;
    a->used = have - left;
    return true;
}

/* Arenas allocate in large chunks, so a failing allocation seldom meets an op in the middle.  Here
 * the room that is left to the op ends after 0, 64, 128, ... bytes, in ever larger steps, until it
 * is enough. */
static void check_little_room(const op_case *k, const numbers *v, bool host)
{
    lab l;
    result r;
    bool grad = !(k->flags & OP_NO_GRAD), enough = false;
    assert_int_equal(lab_open(&l, k, FV_F32, grad, 1, 0), FV_OK);
    /* kernels have their workspace now */
    assert_int_equal(run(&l, k, v, FV_F32, grad, 1, &r), FV_OK);
    result_free(&r);
    for (size_t left = 0; !enough; left += left < 512 ? 64 : left / 512 * 64) {
        fv_ctx_reset(l.ctx, 0);
        inputs in = give(l.ctx, k, v, FV_F32, grad);
        if (!leave(host ? &l.ctx->host : &l.ctx->data, left)) break;
        l.mem->limit = l.mem->live;
        fv_status st = compute(l.ctx, k, v, in, grad, 1, &r);
        must_be_memory(k, st, "room for bytes", left);
        enough = !st;
        l.mem->limit = 0;
        result_free(&r);
    }
    lab_close(&l);
}

/* ---- refusals ---- */

static void check_bad_shapes(const op_case *k, const numbers *v)
{
    lab l;
    fv_tensor *in[OP_MAX_IN] = {0};
    bool any = false;
    assert_int_equal(lab_open(&l, k, FV_F32, false, 1, 0), FV_OK);
    for (int i = 0; i < v->n; i++) {
        any = any || k->bad[i].n;
        in[i] = fv_zeros(l.ctx, k->bad[i].n ? k->bad[i] : k->in[i].shape);
    }
    if (any) {
        if (k->build(l.ctx, in) || fv_ctx_status(l.ctx) != FV_ESHAPE)
            fail_msg("%s: bad shapes: %s, expected to be refused", k->name,
                     fv_status_name(fv_ctx_status(l.ctx)));
        for (int i = 0; i < v->n; i++) {
            fv_desc_text desc = fv_desc(in[i]);
            if (k->bad[i].n && !strstr(fv_ctx_err(l.ctx)->text, strchr(desc.s, '(')))
                fail_msg("%s: bad shape %s is not named in: %s", k->name, desc.s,
                         fv_ctx_err(l.ctx)->text);
        }
    }
    lab_close(&l);
}

static void check_null(const op_case *k, const numbers *v)
{
    lab l;
    assert_int_equal(lab_open(&l, k, FV_F32, true, 1, 0), FV_OK);
    for (int i = 0; i < v->n; i++) {
        fv_tensor *in[OP_MAX_IN] = {0};
        if (k->in[i].optional) continue;
        for (int j = 0; j < v->n; j++) in[j] = j == i ? NULL : fv_zeros(l.ctx, k->in[j].shape);
        if (k->build(l.ctx, in)) fail_msg("%s: input %d is NULL, y is not", k->name, i);
        if (fv_ctx_status(l.ctx))
            fail_msg("%s: input %d is NULL: %s", k->name, i, fv_ctx_err(l.ctx)->text);
    }
    lab_close(&l);
}

static void check_not_recorded(const op_case *k, const numbers *v)
{
    lab l;
    fv_tensor *in[OP_MAX_IN] = {0};
    assert_int_equal(lab_open(&l, k, FV_F32, true, 1, 0), FV_OK);
    for (int i = 0; i < v->n; i++)
        in[i] = fv_watch(l.ctx, upload(l.ctx, v->x[i], k->in[i].shape, FV_F32));
    if (k->build(l.ctx, in) || fv_ctx_status(l.ctx) != FV_ESTATE)
        fail_msg("%s: has no gradient, yet took an input that wants one", k->name);
    lab_close(&l);
}

/* ---- the table ---- */

static void examine(void **state)
{
    const op_case *k = *state;
    numbers v = numbers_draw(k);
    if (!test_brief() || k->flags & OP_NO_GRAD) check_value(k, &v);
    if (k->flags & OP_NO_GRAD) {
        check_not_recorded(k, &v);
    } else {
        check_grad(k, &v);
        if (!(k->flags & OP_NOT_PARAM)) check_params(k, &v, FV_F32, 1e-5);
        if (!(k->flags & (OP_NOT_PARAM | OP_NOT_BF16)) && !test_brief())
            check_params(k, &v, FV_BF16, 4e-2);
    }
    if (k->flags & OP_BY_ROW && !test_brief()) check_row(k, &v);
    if (!test_brief()) check_steady(k, &v);
    if (test_on_cpu()) { /* whose threads and memory these are about */
        check_threads(k, &v);
        check_failing_allocations(k, &v);
        check_little_room(k, &v, false);
        check_little_room(k, &v, true);
    }
    check_bad_shapes(k, &v);
    check_null(k, &v);
    numbers_free(&v);
}

int op_table_run(const char *group, const op_case *cases, size_t n)
{
    struct CMUnitTest *tests = calloc(n, sizeof *tests);
    if (!tests) return 1;
    for (size_t i = 0; i < n; i++)
        tests[i] = (struct CMUnitTest){cases[i].name, examine, NULL, NULL,
                                       (void *)(uintptr_t)&cases[i]};
    int failed = _cmocka_run_group_tests(group, tests, n, NULL, NULL);
    free(tests);
    return failed + lab_end(!failed);
}
