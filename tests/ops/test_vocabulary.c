/* test_vocabulary.c - the loss of a language model at sizes of its own: thousands of rows against
 * thousands of words.
 *
 * The op table's rows are short and few.  Kernels take another path where a row does not fit a
 * thread or a block has more than one row to do, products where they are large, and the sum of rows
 * by id where ids are many.  Held against f32 on the CPU, composed of a product and a loss. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "fovea/fovea.h"
#include "fovea/author/ops.h"
#include "fovea/author/params.h"
#include "helper/device.h"
#include "helper/numbers.h"

typedef struct {
    int64_t rows, words, width;
    float smooth;
    bool tied; /* what is multiplied by the table comes from the table, by id */
} size;

enum { LOSS, DX, DTABLE, RESULTS };
static const char *const result_name[RESULTS] = {"loss", "dx", "dtable"};
static fv_device *cpu, *dev;

/* Few words are frequent, most are rare.  The last of 128 rows has no label, as a language model's
 * windows have it, and a long run has none, as where texts are padded. */
static fv_tensor *words(fv_ctx *c, const size *s, uint32_t seed, bool labels)
{
    int32_t *w = malloc((size_t)s->rows * sizeof *w);
    assert_non_null(w);
    for (int64_t i = 0; i < s->rows; i++) {
        seed = seed * 1664525u + 1013904223u;
        double u = (double)(seed >> 8) / (1 << 24);
        bool none = labels &&
                    (i % 128 == 127 || (i >= s->rows / 2 && i < s->rows / 2 + s->rows / 8));
        w[i] = none ? -100 : (int32_t)(u * u * u * (double)s->words);
    }
    fv_tensor *t = fv_ints(c, w, FV_SHAPE(s->rows));
    free(w);
    return t;
}

static fv_params *table_of(fv_device *d, fv_dtype t, const size *s, fv_tensor **table)
{
    fv_params *p;
    fv_err e;
    check(fv_params_new(&p, NULL, &e), &e);
    *table = fv_param(p, (fv_init){0}, FV_SHAPE(s->words, s->width), "table");
    check(fv_params_alloc(p, d, t, true, &e), &e);
    numbers_set(p, *table, 1, 1);
    return p;
}

/* By the op's own kernels, where the device has them; what is expected is composed. */
static void learn(numbers *to, fv_device *d, fv_dtype t, bool expected, const void *size_)
{
    const size *s = size_;
    fv_ctx *c;
    fv_err e;
    fv_tensor *table, *logits;
    fv_params *p = table_of(d, t, s, &table);
    check(fv_ctx_new(&c, d, (fv_ctx_opt){.dtype = t, .record = true, .train = !expected}, &e), &e);
    float *values = numbers_drawn(s->rows * s->width, 2, 1);
    fv_tensor *x = s->tied ? fv_gather(c, table, words(c, s, 4, false), -1)
                           : fv_watch(c, fv_floats(c, values, FV_SHAPE(s->rows, s->width)));
    fv_ce_opt how = {.smooth = s->smooth, .ignore = -100};
    fv_tensor *y = fv_hold(c, fv_linear_cross_entropy(c, &logits, x, table, words(c, s, 5, true),
                                                      how));
    numbers_backward(c, y, 3);
    to[LOSS] = numbers_of(c, y, false);
    if (!s->tied) to[DX] = numbers_of(c, x, true);
    to[DTABLE] = numbers_of_grad(p, table);
    free(values);
    fv_ctx_free(c);
    fv_params_free(p);
}

static void tell(char *text, size_t capacity, const void *size_)
{
    const size *s = size_;
    snprintf(text, capacity, "%lld rows, %lld words, width %lld, smoothed by %g%s",
             (long long)s->rows, (long long)s->words, (long long)s->width, (double)s->smooth,
             s->tied ? ", tied" : "");
}

static const numbers_trial trial = {RESULTS, result_name, sizeof(size), 1e-3,
                                    1e-1,    2e-2,        learn,        tell};

static void rows_against_words(void **state)
{
    static const size all[] = {
        {4096, 4000, 32, 0, false},    {1500, 16000, 32, 0, false},  {300, 50257, 32, 0, false},
        {2000, 1000, 64, 0.1f, false}, {700, 8003, 32, 0.1f, false}, {3000, 130, 64, 0, false},
    };
    (void)state;
    numbers_compare(&trial, dev, cpu, all, sizeof all / sizeof *all, 0, RESULTS - 1);
}

static void words_from_the_table_itself(void **state)
{
    static const size all[] = {{4096, 4000, 32, 0, true},
                               {1500, 16000, 32, 0, true},
                               {6000, 200, 64, 0.1f, true}};
    (void)state;
    numbers_compare(&trial, dev, cpu, all, sizeof all / sizeof *all, 0, RESULTS - 1);
}

/* However many rows a block or a product takes at once. */
static void the_same_bits_every_time(void **state)
{
    static const size s = {2500, 9000, 64, 0, true};
    (void)state;
    numbers_repeat(&trial, dev, &s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_against_words),
        cmocka_unit_test(words_from_the_table_itself),
        cmocka_unit_test(the_same_bits_every_time),
    };
    return run_beside_cpu(tests, sizeof tests / sizeof *tests, &dev, &cpu);
}
