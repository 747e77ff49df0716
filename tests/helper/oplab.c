/* oplab.c - drawing, running and comparing for the op table. */
#include <math.h>
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

double *zeros(int64_t n)
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
    double *grid = zeros(all);
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
        for (int64_t j = 0; j < v->len[i]; j++)
            v->x[i][j] = to_8_bits(low + (high - low) * grid[at++]);
    free(grid);
}

numbers numbers_draw(const op_case *k)
{
    numbers v = {0};
    for (; v.n < OP_MAX_IN && k->in[v.n].shape.n; v.n++) {
        const op_input *in = &k->in[v.n];
        double low = in->low, high = in->high;
        if (low == 0 && high == 0) low = -1, high = 1;
        v.len[v.n] = fv_shape_len(in->shape);
        v.x[v.n] = zeros(v.len[v.n]);
        for (int64_t j = 0; j < v.len[v.n]; j++)
            v.x[v.n][j] = to_8_bits(low + (high - low) * uniform((uint64_t)v.n, (uint64_t)j));
    }
    if (k->flags & OP_DISTINCT) deal(&v, k);
    return v;
}

void numbers_free(numbers *v)
{
    for (int i = 0; i < v->n; i++) free(v->x[i]);
}

float weight(int64_t i) { return (float)to_8_bits(2 * uniform(77, (uint64_t)i) - 1); }

/* ---- one place to compute in ---- */

static struct {
    fv_mem_counter mem;
    fv_env env;
    fv_device *dev;
} gpu;

static fv_status open_gpu(const char *name, fv_err *e)
{
    if (gpu.dev) return FV_OK;
    fv_mem_counter_init(&gpu.mem);
    gpu.env = (fv_env){.mem = &gpu.mem.mem};
    return fv_device_open(&gpu.dev, name, (fv_device_opt){.env = &gpu.env}, e);
}

int lab_end(bool all_good)
{
    fv_device_close(gpu.dev);
    gpu.dev = NULL;
    if (all_good && gpu.mem.live) fprintf(stderr, "%zu bytes have not come back\n", gpu.mem.live);
    return all_good && gpu.mem.live;
}

static fv_status open_cpu(lab *l, int threads, size_t fail_at, fv_err *e)
{
    fv_mem_counter_init(&l->own);
    l->own.fail_at = fail_at;
    l->mem = &l->own;
    l->env = (fv_env){.mem = &l->own.mem};
    return fv_device_open(&l->dev, "cpu", (fv_device_opt){.threads = threads, .env = &l->env}, e);
}

fv_status lab_open(lab *l, const op_case *k, fv_dtype t, bool record, int threads, size_t fail_at)
{
    fv_err e;
    fv_status st;
    *l = (lab){0};
    if (t == FV_F64 || test_on_cpu()) { /* the yardstick is always the reference arithmetic */
        st = open_cpu(l, threads, fail_at, &e);
    } else {
        st = open_gpu(test_device(), &e);
        *l = (lab){.mem = &gpu.mem, .env = gpu.env, .dev = gpu.dev};
    }
    fv_ctx_opt opt = {.dtype = t, .record = record, .train = k->flags & OP_TRAIN, .seed = 7};
    return st ? st : fv_ctx_new(&l->ctx, l->dev, opt, &e);
}

void lab_close(lab *l)
{
    fv_ctx_free(l->ctx);
    if (l->mem == &gpu.mem) return;
    fv_device_close(l->dev);
    assert_int_equal(l->mem->live, 0);
}

/* ---- running a case ---- */

void result_free(result *r)
{
    free(r->y);
    for (int i = 0; i < OP_MAX_IN; i++) free(r->g[i]);
}

bool wants(const op_case *k, int i) { return !(k->flags & OP_NO_GRAD) && !k->in[i].fixed; }

static fv_status read_value(fv_ctx *c, const fv_tensor *y, result *r)
{
    r->n = fv_len(y);
    r->y = zeros(r->n);
    if (y->dtype != FV_I32) return fv_read_f64(c, y, r->y, r->n);
    int32_t *t = calloc((size_t)r->n + 1, sizeof *t);
    assert_non_null(t);
    fv_status st = fv_read_i32(c, y, t, r->n);
    for (int64_t i = 0; i < r->n; i++) r->y[i] = t[i];
    free(t);
    return st;
}

fv_tensor *upload(fv_ctx *c, const double *x, fv_shape s, fv_dtype t)
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

fv_status send_back(fv_ctx *c, fv_tensor *y)
{
    float *dy = calloc((size_t)fv_len(y) + 1, sizeof *dy);
    assert_non_null(dy);
    for (int64_t i = 0; i < fv_len(y); i++) dy[i] = weight(i);
    fv_status st = fv_backward_from(c, y, dy);
    free(dy);
    return st;
}

inputs give(fv_ctx *c, const op_case *k, const numbers *v, fv_dtype t, bool grad)
{
    inputs in = {0};
    for (int i = 0; i < v->n; i++) {
        in.x[i] = upload(c, v->x[i], k->in[i].shape, t);
        if (grad && wants(k, i)) fv_watch(c, in.x[i]);
    }
    return in;
}

fv_status compute(fv_ctx *c, const op_case *k, const numbers *v, inputs in, bool grad, int times,
                  result *r)
{
    *r = (result){0};
    fv_tensor *y = k->build(c, in.x);
    if (times == 2) y = fv_add(c, y, k->build(c, in.x));
    if (!y || fv_ctx_status(c)) return fv_ctx_status(c);
    fv_status st = read_value(c, y, r);
    if (grad && !st) st = send_back(c, y);
    r->at[0] = y->data;
    for (int i = 0; i < v->n && !st; i++) {
        r->g[i] = zeros(v->len[i]);
        r->at[1 + i] = in.x[i]->grad;
        if (grad) st = fv_read_grad(c, in.x[i], r->g[i], v->len[i]);
    }
    return st;
}

fv_status run(lab *l, const op_case *k, const numbers *v, fv_dtype t, bool grad, int times,
              result *r)
{
    return compute(l->ctx, k, v, give(l->ctx, k, v, t, grad), grad, times, r);
}

result run_alone(const op_case *k, const numbers *v, fv_dtype t, bool grad, int times, int threads)
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

void near(const op_case *k, const char *what, const double *got, const double *want, int64_t n,
          double tolerance)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += isfinite(want[i]) ? want[i] * want[i] : 0;
    double size = n ? sqrt(sum / (double)n) : 0, loose = k->loose > 0 ? k->loose : 1;
    for (int64_t i = 0; i < n; i++) {
        if (got[i] == want[i]) continue; /* infinities too */
        double off = fabs(got[i] - want[i]),
               most = loose * tolerance * (fabs(want[i]) + size + 1e-9);
        if (!(off <= most))
            fail_msg("%s: %s: element %lld is %.9g, expected %.9g (off by %.2g, at most %.2g)",
                     k->name, what, (long long)i, got[i], want[i], off, most);
    }
}

void same_bits(const op_case *k, const char *what, const double *a, const double *b, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], sizeof *a))
            fail_msg("%s: %s: element %lld is %.9g and %.9g", k->name, what, (long long)i, a[i],
                     b[i]);
}
