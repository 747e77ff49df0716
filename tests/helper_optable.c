/* helper_optable.c - the examination of optable.h. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fovea/op.h"
#include "optable.h"

#define PLACES 48 /* of each input at which differences are taken */

/* ---- numbers ---- */

/* Eight significant bits, which every float dtype has. */
static double to_8_bits(double v)
{
    int e;
    double m = frexp(v, &e);
    return ldexp(nearbyint(m * 256), e - 8);
}

static double uniform(uint64_t site, uint64_t i)
{
    uint32_t w[4];
    fv_philox(w, 20, site, 0, i);
    return ((double)w[0] + 0.5) * 0x1p-32;
}

typedef struct numbers {
    int n; /* inputs */
    int64_t len[OP_MAX_IN];
    double *x[OP_MAX_IN];
} numbers;

static double *room(int64_t n)
{
    double *p = calloc((size_t)n + 1, sizeof *p);
    assert_non_null(p);
    return p;
}

/* All numbers of all inputs on one grid, dealt out by repeated exchange. */
static void deal(numbers *v, const op_case *k)
{
    int64_t all = 0, at = 0;
    for (int i = 0; i < v->n; i++) all += v->len[i];
    double *grid = room(all);
    for (int64_t i = 0; i < all; i++) grid[i] = ((double)i + 0.5) / (double)all;
    for (int64_t i = all - 1; i > 0; i--) {
        int64_t j = (int64_t)(uniform(99, (uint64_t)i) * (double)(i + 1));
        double t = grid[i];
        grid[i] = grid[j];
        grid[j] = t;
    }
    double low = k->in[0].low, high = k->in[0].high;
    if (low == 0 && high == 0) low = -1, high = 1;
    for (int i = 0; i < v->n; i++)
        for (int64_t j = 0; j < v->len[i]; j++) v->x[i][j] = to_8_bits(low + (high - low) * grid[at++]);
    free(grid);
}

static numbers draw(const op_case *k)
{
    numbers v = {0};
    for (; v.n < OP_MAX_IN && k->in[v.n].shape.n; v.n++) {
        const op_input *in = &k->in[v.n];
        double low = in->low, high = in->high;
        if (low == 0 && high == 0) low = -1, high = 1;
        v.len[v.n] = fv_shape_len(in->shape);
        v.x[v.n] = room(v.len[v.n]);
        for (int64_t j = 0; j < v.len[v.n]; j++)
            v.x[v.n][j] = to_8_bits(low + (high - low) * uniform((uint64_t)v.n, (uint64_t)j));
    }
    if (k->flags & OP_DISTINCT) deal(&v, k);
    return v;
}

static void numbers_free(numbers *v)
{
    for (int i = 0; i < v->n; i++) free(v->x[i]);
}

/* The gradient that is sent back into y. */
static float weight(int64_t i) { return (float)to_8_bits(2 * uniform(77, (uint64_t)i) - 1); }

/* ---- one place to compute in ---- */

typedef struct lab {
    fv_mem_counter mem;
    fv_env env;
    fv_device *dev;
    fv_ctx *ctx;
} lab;

static fv_status lab_open(lab *l, const op_case *k, fv_dtype t, bool record, int threads, size_t fail_at)
{
    fv_err e;
    const char *name = getenv("FOVEA_TEST_DEVICE");
    *l = (lab){0};
    fv_mem_counter_init(&l->mem);
    l->mem.fail_at = fail_at;
    l->env = (fv_env){.mem = &l->mem.mem};
    fv_status st = fv_device_open(&l->dev, name ? name : "cpu", (fv_device_opt){.threads = threads, .env = &l->env}, &e);
    fv_ctx_opt opt = {.dtype = t, .record = record, .train = k->flags & OP_TRAIN, .seed = 7};
    return st ? st : fv_ctx_new(&l->ctx, l->dev, opt, &e);
}

static void lab_close(lab *l)
{
    fv_ctx_free(l->ctx);
    fv_device_close(l->dev);
    assert_int_equal(l->mem.live, 0);
}

/* ---- running a case ---- */

typedef struct result {
    int64_t n;
    double *y, *g[OP_MAX_IN];
    const void *at[1 + OP_MAX_IN]; /* where y and the gradients lay */
} result;

static void result_free(result *r)
{
    free(r->y);
    for (int i = 0; i < OP_MAX_IN; i++) free(r->g[i]);
}

static bool wants(const op_case *k, int i) { return !(k->flags & OP_NO_GRAD) && !k->in[i].fixed; }

static fv_status read_value(fv_ctx *c, const fv_tensor *y, result *r)
{
    r->n = fv_len(y);
    r->y = room(r->n);
    if (y->dtype != FV_I32) return fv_read_f64(c, y, r->y, r->n);
    int32_t *t = calloc((size_t)r->n + 1, sizeof *t);
    assert_non_null(t);
    fv_status st = fv_read_i32(c, y, t, r->n);
    for (int64_t i = 0; i < r->n; i++) r->y[i] = t[i];
    free(t);
    return st;
}

static fv_tensor *upload(fv_ctx *c, const double *x, fv_shape s, fv_dtype t)
{
    if (t == FV_F64) return fv_doubles(c, x, s);
    int64_t n = fv_shape_len(s);
    float *f = calloc((size_t)n + 1, sizeof *f);
    assert_non_null(f);
    for (int64_t i = 0; i < n; i++) f[i] = (float)x[i];
    fv_tensor *y = fv_floats(c, f, s);
    free(f);
    return y;
}

static fv_status send_back(fv_ctx *c, fv_tensor *y)
{
    float *dy = calloc((size_t)fv_len(y) + 1, sizeof *dy);
    assert_non_null(dy);
    for (int64_t i = 0; i < fv_len(y); i++) dy[i] = weight(i);
    fv_status st = fv_backward_from(c, y, dy);
    free(dy);
    return st;
}

/* The value and, if the lab records, the gradients.  times 2: the op twice on the same inputs, added. */
static fv_status run(lab *l, const op_case *k, const numbers *v, fv_dtype t, bool grad, int times, result *r)
{
    fv_ctx *c = l->ctx;
    fv_tensor *in[OP_MAX_IN] = {0};
    *r = (result){0};
    for (int i = 0; i < v->n; i++) {
        in[i] = upload(c, v->x[i], k->in[i].shape, t);
        if (grad && wants(k, i)) fv_watch(c, in[i]);
    }
    fv_tensor *y = k->build(c, in);
    if (times == 2) y = fv_add(c, y, k->build(c, in));
    if (!y || fv_ctx_status(c)) return fv_ctx_status(c);
    fv_status st = read_value(c, y, r);
    if (grad && !st) st = send_back(c, y);
    r->at[0] = y->data;
    for (int i = 0; i < v->n && !st; i++) {
        r->g[i] = room(v->len[i]);
        r->at[1 + i] = in[i]->grad;
        if (grad) st = fv_read_grad(c, in[i], r->g[i], v->len[i]);
    }
    return st;
}

static result run_alone(const op_case *k, const numbers *v, fv_dtype t, bool grad, int times, int threads)
{
    lab l;
    result r;
    assert_int_equal(lab_open(&l, k, t, grad, threads, 0), FV_OK);
    fv_status st = run(&l, k, v, t, grad, times, &r);
    if (st) fail_msg("%s: %s: %s", k->name, fv_dtype_name(t), fv_ctx_err(l.ctx)->text);
    if (!r.y) fail_msg("%s: NULL without an error", k->name);
    lab_close(&l);
    return r;
}

/* ---- comparing ---- */

/* Element by element, relative to the number and to the size of all of them together. */
static void near(const op_case *k, const char *what, const double *got, const double *want, int64_t n, double tolerance)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += isfinite(want[i]) ? want[i] * want[i] : 0;
    double size = n ? sqrt(sum / (double)n) : 0, loose = k->loose > 0 ? k->loose : 1;
    for (int64_t i = 0; i < n; i++) {
        if (got[i] == want[i]) continue; /* infinities too */
        double off = fabs(got[i] - want[i]), most = loose * tolerance * (fabs(want[i]) + size + 1e-9);
        if (!(off <= most))
            fail_msg("%s: %s: element %lld is %.9g, expected %.9g (off by %.2g, at most %.2g)", k->name, what, (long long)i,
                     got[i], want[i], off, most);
    }
}

static void same_bits(const op_case *k, const char *what, const double *a, const double *b, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], sizeof *a))
            fail_msg("%s: %s: element %lld is %.9g and %.9g", k->name, what, (long long)i, a[i], b[i]);
}

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
        double *y = room(want.n);
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

/* f' = (8 (f(h) - f(-h)) - (f(2h) - f(-2h))) / 12h: exact to h^4, so h can be large and rounding stays out of sight */
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
        int64_t step = (v->len[i] + PLACES - 1) / PLACES, n = 0;
        for (int64_t j = 0; wants(k, i) && j < v->len[i]; j += step, n++) {
            want[n] = difference(&l, k, v, &v->x[i][j]);
            got[n] = r->g[i][j];
        }
        char what[96];
        snprintf(what, sizeof what, "gradient of input %d against differences, every %lld", i, (long long)step);
        near(k, what, got, want, n, 1e-6);
    }
    lab_close(&l);
}

static void check_grad(const op_case *k, numbers *v)
{
    bool f64 = !(k->flags & OP_NOT_F64);
    for (int times = 1; times <= 2; times++) {
        result want = run_alone(k, v, f64 ? FV_F64 : FV_F32, true, times, 1);
        if (f64 && times == 1) check_differences(k, v, &want);
        for (size_t d = 0; d < DTYPES; d++) {
            if (k->flags & dtypes[d].skip) continue;
            result got = run_alone(k, v, dtypes[d].t, true, times, 1);
            for (int i = 0; i < v->n; i++) {
                char what[64];
                snprintf(what, sizeof what, "%s gradient of input %d%s", fv_dtype_name(dtypes[d].t), i,
                         times == 2 ? ", used twice" : "");
                near(k, what, got.g[i], want.g[i], v->len[i], dtypes[d].grad);
            }
            result_free(&got);
        }
        result_free(&want);
    }
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
    for (int i = 0; i < v->n; i++) in[i] = fv_param(p, (fv_init){.buffer = !wants(k, i)}, k->in[i].shape, "input%d", i);
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
        if (!y || send_back(l.ctx, y)) fail_msg("%s: of parameters: %s", k->name, fv_ctx_err(l.ctx)->text);
    }
    for (int i = 0; i < v->n; i++) {
        double *got = room(v->len[i]);
        assert_int_equal(fv_params_get_grad(p, in[i], f[i], v->len[i], NULL), FV_OK);
        for (int64_t j = 0; j < v->len[i]; j++) got[j] = 0.5 * (double)f[i][j];
        char what[64];
        snprintf(what, sizeof what, "%s gradient of parameter %d over two steps", fv_dtype_name(t), i);
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
    result all = run_alone(k, v, FV_F32, false, 1, 2), one = run_alone(&alone, &part, FV_F32, false, 1, 2);
    assert_int_equal(one.n * rows, all.n);
    same_bits(k, "the last row alone and among others", one.y, all.y + one.n * (rows - 1), one.n);
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
        if (step && l.mem.count != count) fail_msg("%s: step %d allocated %zu times", k->name, step, l.mem.count - count);
        if (memcmp(r[step].at, r[0].at, sizeof r[0].at)) fail_msg("%s: addresses moved in step %d", k->name, step);
        count = l.mem.count;
    }
    for (int step = 0; step < 3; step++) result_free(&r[step]);
    lab_close(&l);
}

static void check_out_of_memory(const op_case *k, const numbers *v)
{
    bool grad = !(k->flags & OP_NO_GRAD), reached = true;
    for (size_t n = 1; reached; n++) {
        lab l;
        result r = {0};
        fv_status st = lab_open(&l, k, FV_F32, grad, 1, n);
        if (!st) st = run(&l, k, v, FV_F32, grad, 1, &r);
        if (st && st != FV_ENOMEM)
            fail_msg("%s: allocation %zu fails: %s, expected out of memory", k->name, n, fv_status_name(st));
        reached = l.mem.count >= n;
        if (!reached) assert_int_equal(st, FV_OK);
        result_free(&r);
        lab_close(&l);
    }
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
            fail_msg("%s: bad shapes: %s, expected to be refused", k->name, fv_status_name(fv_ctx_status(l.ctx)));
        for (int i = 0; i < v->n; i++) {
            fv_desc_text desc = fv_desc(in[i]);
            if (k->bad[i].n && !strstr(fv_ctx_err(l.ctx)->text, strchr(desc.s, '(')))
                fail_msg("%s: bad shape %s is not named in: %s", k->name, desc.s, fv_ctx_err(l.ctx)->text);
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
        if (fv_ctx_status(l.ctx)) fail_msg("%s: input %d is NULL: %s", k->name, i, fv_ctx_err(l.ctx)->text);
    }
    lab_close(&l);
}

static void check_not_recorded(const op_case *k, const numbers *v)
{
    lab l;
    fv_tensor *in[OP_MAX_IN] = {0};
    assert_int_equal(lab_open(&l, k, FV_F32, true, 1, 0), FV_OK);
    for (int i = 0; i < v->n; i++) in[i] = fv_watch(l.ctx, upload(l.ctx, v->x[i], k->in[i].shape, FV_F32));
    if (k->build(l.ctx, in) || fv_ctx_status(l.ctx) != FV_ESTATE)
        fail_msg("%s: has no gradient, yet took an input that wants one", k->name);
    lab_close(&l);
}

/* ---- the table ---- */

static void examine(void **state)
{
    const op_case *k = *state;
    numbers v = draw(k);
    check_value(k, &v);
    if (k->flags & OP_NO_GRAD) {
        check_not_recorded(k, &v);
    } else {
        check_grad(k, &v);
        if (!(k->flags & OP_NOT_PARAM)) check_params(k, &v, FV_F32, 1e-5);
        if (!(k->flags & (OP_NOT_PARAM | OP_NOT_BF16))) check_params(k, &v, FV_BF16, 4e-2);
    }
    check_threads(k, &v);
    if (k->flags & OP_BY_ROW) check_row(k, &v);
    check_steady(k, &v);
    check_out_of_memory(k, &v);
    check_bad_shapes(k, &v);
    check_null(k, &v);
    numbers_free(&v);
}

int op_table_run(const char *group, const op_case *cases, size_t n)
{
    struct CMUnitTest *tests = calloc(n, sizeof *tests);
    if (!tests) return 1;
    for (size_t i = 0; i < n; i++)
        tests[i] = (struct CMUnitTest){cases[i].name, examine, NULL, NULL, (void *)(uintptr_t)&cases[i]};
    int failed = _cmocka_run_group_tests(group, tests, n, NULL, NULL);
    free(tests);
    return failed;
}
