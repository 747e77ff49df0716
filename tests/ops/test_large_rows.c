/* test_large_rows.c - broadcast operands, shifted and divided rows, halved maps and convolutions at
 * sizes of models, where a device has kernels of its own for long sums and whole vectors; the op
 * table's tensors are small.  Held against f32 on the CPU. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "core/core.h"
#include "fovea/author/ops.h"
#include "fovea/author/tensor.h"
#include "fovea/fovea.h"
#include "helper/device.h"
#include "helper/numbers.h"
#include "ops/rel_shift.h"

enum { MULTIPLY, ADD, SHIFT, DIVIDE, HALVE, CONVOLVE };

typedef struct {
    int what;
    fv_shape a, b;
    int64_t pad; /* of a convolution */
} size;

enum { Y, DA, DB, DC, RESULTS };
static const char *const result_name[RESULTS] = {"y", "da", "db", "dc"};
static fv_device *cpu, *dev;

/* Thirds of the last axis: each is a slice, whose gradients meet in one tensor. */
static fv_tensor *of_thirds(fv_ctx *c, fv_tensor *a)
{
    fv_tensor *part[3];
    fv_split(c, part, a, 3, -1);
    return fv_add(c, part[0], fv_mul(c, part[1], part[2]));
}

/* (N,C,H,W) -> (N,C,H/2,W/2), as means of two along each axis. */
static fv_tensor *halved(fv_ctx *c, fv_tensor *a)
{
    fv_shape s = a->shape;
    fv_tensor *y = fv_reshape(c, a, FV_SHAPE(s.d[0] * s.d[1], s.d[2] / 2, 2, s.d[3] / 2, 2));
    return fv_mean(c, fv_mean(c, y, 4), 2);
}

static void learn(numbers *to, fv_device *d, fv_dtype t, bool expected, const void *size_)
{
    const size *s = size_;
    fv_ctx *c;
    fv_err e;
    (void)expected;
    check(fv_ctx_new(&c, d, (fv_ctx_opt){.dtype = t, .record = true, .train = true}, &e), &e);
    float *of_a = numbers_drawn(fv_shape_len(s->a), 1, 1),
          *of_b = numbers_drawn(fv_shape_len(s->b), 2, 1);
    fv_tensor *a = fv_watch(c, fv_floats(c, of_a, s->a)),
              *b = fv_watch(c, fv_floats(c, of_b, s->b)), *bias = NULL, *y = NULL;
    switch (s->what) {
    case MULTIPLY: y = fv_mul(c, a, b); break;
    case ADD: y = fv_add(c, a, b); break;
    case SHIFT: y = fv__rel_bias(c, a); break;
    case DIVIDE: y = of_thirds(c, a); break;
    case HALVE: y = halved(c, a); break;
    case CONVOLVE:
        bias = fv_watch(c, fv_floats(c, of_b, FV_SHAPE(s->b.d[0])));
        y = fv_conv2d(c, a, b, bias, (fv_conv_opt){.pad = s->pad});
        break;
    }
    y = fv_hold(c, y);
    numbers_backward(c, y, 3);
    to[Y] = numbers_of(c, y, false);
    to[DA] = numbers_of(c, a, true);
    if (s->what == MULTIPLY || s->what == ADD || bias) to[DB] = numbers_of(c, b, true);
    if (bias) to[DC] = numbers_of(c, bias, true);
    free(of_a), free(of_b);
    fv_ctx_free(c);
}

static void tell(char *text, size_t capacity, const void *size_)
{
    static const char *const names[] = {"multiply", "add", "shift", "divide", "halve", "convolve"};
    const size *s = size_;
    fv_tensor a = {.shape = s->a}, b = {.shape = s->b};
    snprintf(text, capacity, "%s %s and %s", names[s->what], fv_desc(&a).s, fv_desc(&b).s);
}

static const numbers_trial trial = {RESULTS, result_name, sizeof(size), 1e-4,
                                    2e-2,    1e-2,        learn,        tell};

static void compare(const size *all, size_t n)
{
    numbers_compare(&trial, dev, cpu, all, n, 0, RESULTS - 1);
}

/* A scalar's gradient is one sum of all; masks of sequences and of tokens; biases of maps. */
static void broadcast_operands(void **state)
{
    static const size all[] = {
        {MULTIPLY, {1, {70000}}, {1, {1}}, 0},
        {MULTIPLY, {4, {6, 24, 16, 16}}, {1, {1}}, 0},
        {MULTIPLY, {3, {4, 40, 96}}, {3, {4, 1, 96}}, 0},
        {MULTIPLY, {3, {4, 40, 96}}, {3, {4, 40, 1}}, 0},
        {MULTIPLY, {4, {6, 24, 16, 16}}, {4, {6, 24, 1, 1}}, 0},
        {MULTIPLY, {3, {4, 41, 97}}, {3, {4, 41, 1}}, 0},
        {ADD, {4, {20, 3, 32, 32}}, {4, {1, 3, 1, 1}}, 0},
        {ADD, {3, {4, 40, 96}}, {3, {4, 1, 96}}, 0},
    };
    (void)state;
    compare(all, sizeof all / sizeof *all);
}

/* Rows that begin anywhere, of whole runs of a warp and not; slices whose gradients are added. */
static void rows_are_moved(void **state)
{
    static const size all[] = {
        {SHIFT, {4, {2, 3, 40, 296}}, {1, {1}}, 0}, {SHIFT, {4, {2, 3, 5, 69}}, {1, {1}}, 0},
        {SHIFT, {4, {2, 3, 7, 40}}, {1, {1}}, 0},   {DIVIDE, {3, {3, 50, 192}}, {1, {1}}, 0},
        {DIVIDE, {3, {3, 50, 195}}, {1, {1}}, 0},
    };
    (void)state;
    compare(all, sizeof all / sizeof *all);
}

/* Widths that are whole vectors and not, with and without a border. */
static void maps(void **state)
{
    static const size all[] = {
        {HALVE, {4, {3, 8, 32, 32}}, {1, {1}}, 0},
        {CONVOLVE, {4, {4, 8, 16, 16}}, {4, {12, 8, 3, 3}}, 1},
        {CONVOLVE, {4, {4, 8, 10, 18}}, {4, {12, 8, 3, 3}}, 0},
        {CONVOLVE, {4, {4, 3, 9, 11}}, {4, {12, 3, 5, 3}}, 2},
    };
    (void)state;
    compare(all, sizeof all / sizeof *all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(broadcast_operands),
                                       cmocka_unit_test(rows_are_moved), cmocka_unit_test(maps)};
    return run_beside_cpu(tests, sizeof tests / sizeof *tests, &dev, &cpu);
}
