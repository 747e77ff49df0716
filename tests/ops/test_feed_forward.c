/* test_feed_forward.c - two linear maps with an activation between them, and a norm behind, at
 * sizes of models.
 *
 * The op table's products are small.  Large ones end in kernels of their own, which may bring the
 * gradient through the activation and the sums for its bias, as the norm's gradient may bring those
 * for the second.  Held against f32 on the CPU. */
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
#include "fovea/author/params.h"
#include "helper/device.h"
#include "helper/numbers.h"
#include "ops/product.h"

typedef struct {
    int64_t rows, width, hidden;
    fv_act act;
    bool in_out;     /* weights are stored (in,out) */
    bool read_twice; /* what lies between them is read once more */
    bool norm;
    bool residual; /* x is added to what comes out */
    bool frozen;   /* the maps are not trained, as below an adapter */
} size;

enum { W1, B1, W2, B2, GAIN, SHIFT, PARAMS };
enum { Y = PARAMS, DX, RESULTS };
static const char *const result_name[RESULTS] = {"dw1",   "db1",    "dw2", "db2",
                                                 "dgain", "dshift", "y",   "dx"};
static fv_device *cpu, *dev;

static fv_params *params_of(fv_device *d, fv_dtype t, const size *s, fv_tensor **w)
{
    static const char *const names[PARAMS] = {"w1", "b1", "w2", "b2", "gain", "shift"};
    fv_params *p;
    fv_err e;
    int64_t in = s->width, out = s->hidden;
    fv_shape up = s->in_out ? FV_SHAPE(in, out) : FV_SHAPE(out, in),
             down = s->in_out ? FV_SHAPE(out, in) : FV_SHAPE(in, out);
    fv_shape shapes[PARAMS] = {up, FV_SHAPE(out), down, FV_SHAPE(in), FV_SHAPE(in), FV_SHAPE(in)};
    check(fv_params_new(&p, NULL, &e), &e);
    for (int i = 0; i < PARAMS; i++) w[i] = fv_param(p, (fv_init){0}, shapes[i], "%s", names[i]);
    check(fv_params_alloc(p, d, t, true, &e), &e);
    for (int i = 0; i < PARAMS; i++) numbers_set(p, w[i], 10 + (uint32_t)i, 1.0f / 8);
    if (s->frozen) fv_params_train(p, "", false);
    return p;
}

static void learn(numbers *to, fv_device *d, fv_dtype t, bool expected, const void *size_)
{
    const size *s = size_;
    fv_ctx *c;
    fv_err e;
    fv_tensor *w[PARAMS];
    fv_params *p = params_of(d, t, s, w);
    (void)expected;
    fv_tensor *(*linear)(fv_ctx *, fv_tensor *, fv_tensor *, fv_tensor *,
                         fv_act) = s->in_out ? fv_linear_in_out : fv_linear;
    check(fv_ctx_new(&c, d, (fv_ctx_opt){.dtype = t, .record = true, .train = true}, &e), &e);
    float *values = numbers_drawn(s->rows * s->width, 2, 1);
    fv_tensor *x = fv_watch(c, fv_floats(c, values, FV_SHAPE(s->rows, s->width)));
    fv_tensor *h = linear(c, x, w[W1], w[B1], s->act);
    fv_tensor *y = s->residual ? fv__linear_add(c, x, h, w[W2], w[B2], s->in_out)
                               : linear(c, h, w[W2], w[B2], FV_ACT_NONE);
    if (s->read_twice) y = fv_add(c, y, linear(c, h, w[W2], NULL, FV_ACT_NONE));
    if (s->norm) y = fv_layernorm(c, y, w[GAIN], w[SHIFT], 1e-5f);
    y = fv_hold(c, y);
    numbers_backward(c, y, 3);
    to[Y] = numbers_of(c, y, false);
    to[DX] = numbers_of(c, x, true);
    for (int i = 0; !s->frozen && i < (s->norm ? PARAMS : GAIN); i++)
        to[i] = numbers_of_grad(p, w[i]);
    free(values);
    fv_ctx_free(c);
    fv_params_free(p);
}

static void tell(char *text, size_t capacity, const void *size_)
{
    const size *s = size_;
    snprintf(text, capacity, "%lld rows, %lld to %lld, activation %d%s%s%s", (long long)s->rows,
             (long long)s->width, (long long)s->hidden, (int)s->act, s->in_out ? ", (in,out)" : "",
             s->read_twice ? ", read twice" : "", s->norm ? ", normed" : "");
    if (s->residual) strncat(text, ", onto x", capacity - strlen(text) - 1);
    if (s->frozen) strncat(text, ", frozen", capacity - strlen(text) - 1);
}

static const numbers_trial trial = {RESULTS, result_name, sizeof(size), 1e-3,
                                    3e-2,    1e-2,        learn,        tell};

static void compare(const size *all, size_t n)
{
    numbers_compare(&trial, dev, cpu, all, n, 0, RESULTS - 1);
}

/* Whole tiles and parts of tiles, along both sides. */
static void as_models_have_them(void **state)
{
    static const size all[] = {
        {1024, 256, 2304, FV_GELU_TANH, .in_out = true},
        {1000, 264, 2312, FV_GELU_TANH, .in_out = true},
        {1000, 264, 2312, FV_GELU_TANH, .in_out = false},
        {1024, 256, 2304, FV_GELU, .in_out = false},
        {1000, 264, 2312, FV_RELU, .in_out = true},
        {1000, 264, 2312, FV_GELU_TANH, .in_out = true, .frozen = true},
        {1024, 256, 2304, FV_GELU, .in_out = false, .frozen = true},
    };
    (void)state;
    compare(all, sizeof all / sizeof *all);
}

/* Then the gradient of what lies between them is not yet whole when the first of its readers has
 * run. */
static void read_by_another(void **state)
{
    static const size all[] = {{1024, 256, 2304, FV_GELU_TANH, .in_out = true, .read_twice = true}};
    (void)state;
    compare(all, sizeof all / sizeof *all);
}

static void with_a_norm_behind(void **state)
{
    static const size all[] = {
        {1000, 256, 512, FV_GELU_TANH, .in_out = true, .norm = true},
        {3000, 512, 256, FV_GELU, .norm = true},
        {2100, 768, 256, FV_GELU_TANH, .norm = true},
        {700, 264, 512, FV_RELU, .norm = true},
        {500, 64, 96, FV_GELU, .norm = true},
        {700, 192, 64, FV_RELU, .norm = true},
        {900, 128, 64, FV_RELU, .norm = true},
    };
    (void)state;
    compare(all, sizeof all / sizeof *all);
}

/* 384 columns, which are two whole tiles on Hopper and not one and a half. */
static void onto_the_residual_stream(void **state)
{
    static const size all[] = {
        {6400, 384, 128, FV_GELU, .residual = true},
        {6401, 384, 72, FV_GELU, .residual = true, .norm = true},
        {300, 384, 128, FV_GELU, .residual = true, .norm = true},
    };
    (void)state;
    compare(all, sizeof all / sizeof *all);
}

static void the_same_bits_every_time(void **state)
{
    static const size s = {1000, 256, 2312, FV_GELU_TANH, .in_out = true, .norm = true};
    (void)state;
    numbers_repeat(&trial, dev, &s);
}

static fv_tensor *ones(fv_ctx *c, int64_t rows, int64_t columns)
{
    return fv_full(c, FV_SHAPE(rows, columns), 1);
}

/* Matrices of ones: an element is the number of terms in its sum.  Libraries that share a long sum
 * among blocks have left out what does not fill a tile. */
static void all_terms_count(fv_dtype t, int64_t rows, int64_t in, int64_t out)
{
    fv_tensor *w[PARAMS];
    fv_ctx *c;
    fv_err e;
    fv_params *p = params_of(dev, t, &(size){.rows = rows, .width = in, .hidden = out}, w);
    check(fv_ctx_new(&c, dev, (fv_ctx_opt){.dtype = t, .record = true, .train = true}, &e), &e);
    fv_tensor *x = fv_watch(c, ones(c, rows, in)), *y = fv_linear(c, x, w[W1], NULL, FV_ACT_NONE),
              *sum = fv_hold(c, fv_matmul(c, x, ones(c, in, out), (fv_mm){0}));
    float *dy = malloc((size_t)(rows * out) * sizeof *dy);
    assert_non_null(dy);
    for (int64_t i = 0; i < rows * out; i++) dy[i] = 1;
    check(fv_backward_from(c, y, dy), fv_ctx_err(c));
    numbers dw = numbers_of_grad(p, w[W1]), forward = numbers_of(c, sum, false);
    for (int64_t i = 0; i < dw.n; i++)
        if (dw.x[i] != (float)rows)
            fail_msg("%s, dw of (%lld,%lld): element %lld adds %g of %lld rows", fv_dtype_name(t),
                     (long long)out, (long long)in, (long long)i, (double)dw.x[i], (long long)rows);
    for (int64_t i = 0; i < forward.n; i++)
        assert_float_equal(forward.x[i], (float)in, (float)in / 200); /* a bf16 has eight bits */
    free(dy), free(dw.x), free(forward.x);
    fv_ctx_free(c);
    fv_params_free(p);
}

static void no_term_is_left_out(void **state)
{
    static const fv_dtype dtypes[] = {FV_F32, FV_BF16, FV_F16};
    static const int64_t all[][3] = {{6401, 384, 72}, {6401, 72, 384},  {6465, 384, 384},
                                     {4097, 128, 64}, {1001, 256, 256}, {64, 4072, 768},
                                     {17, 1000, 72},  {128, 6440, 128}};
    (void)state;
    for (size_t t = 0; t < sizeof dtypes / sizeof *dtypes; t++)
        for (size_t i = 0; i < sizeof all / sizeof *all; i++)
            all_terms_count(dtypes[t], all[i][0], all[i][1], all[i][2]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_term_is_left_out),      cmocka_unit_test(as_models_have_them),
        cmocka_unit_test(onto_the_residual_stream), cmocka_unit_test(read_by_another),
        cmocka_unit_test(with_a_norm_behind),       cmocka_unit_test(the_same_bits_every_time),
    };
    return run_beside_cpu(tests, sizeof tests / sizeof *tests, &dev, &cpu);
}
