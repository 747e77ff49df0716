/* test_ops_numbers.c - what only the numbers of an op show: ids and lengths out of range are named,
 * logits that others read stay, and sums over very many rows. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fovea/author/ops.h"
#include "fovea/author/tensor.h"
#include "helper/device.h"

static const int32_t ids[] = {4, 0, 4, 6, 1, 4};
static const int32_t labels[] = {3, -100, 0, 12, 7};
static const int32_t words[] = {2, 1, 4, 3, 3, 0, 0, 0, 0}, frames[] = {4, 3, 2},
                     lens[] = {3, 2, 0};

/* ---- what only the numbers show: ids and lengths out of range ---- */

typedef fv_tensor *faulty(fv_ctx *c);

static fv_tensor *id_too_large(fv_ctx *c)
{
    return fv_gather(c, fv_zeros(c, FV_SHAPE(6, 2)), fv_ints(c, ids, FV_SHAPE(6)), -1);
}
static fv_tensor *row_too_large(fv_ctx *c)
{
    return fv_scatter_add(c, fv_zeros(c, FV_SHAPE(6, 2)), fv_ints(c, ids, FV_SHAPE(6)), 6);
}

static fv_tensor *label_too_large(fv_ctx *c)
{
    return fv_cross_entropy(c, fv_zeros(c, FV_SHAPE(5, 12)), fv_ints(c, labels, FV_SHAPE(5)),
                            (fv_ce_opt){.ignore = -100});
}

static fv_tensor *label_not_ignored(fv_ctx *c)
{
    return fv_cross_entropy(c, fv_zeros(c, FV_SHAPE(5, 13)), fv_ints(c, labels, FV_SHAPE(5)),
                            (fv_ce_opt){.ignore = -1});
}

static fv_tensor *transduce(fv_ctx *c, const int32_t *tlen, int32_t blank)
{
    fv_tensor *x = fv_zeros(c, FV_SHAPE(3, 4, 4, 5)), *u = fv_ints(c, lens, FV_SHAPE(3));
    return fv_rnnt_loss(c, x, fv_ints(c, words, FV_SHAPE(3, 3)), fv_ints(c, tlen, FV_SHAPE(3)), u,
                        blank);
}

static fv_tensor *no_frames(fv_ctx *c) { return transduce(c, (int32_t[]){4, 0, 2}, 0); }
static fv_tensor *too_many_frames(fv_ctx *c) { return transduce(c, (int32_t[]){4, 5, 2}, 0); }
static fv_tensor *blank_as_label(fv_ctx *c) { return transduce(c, frames, 3); }

static const struct {
    faulty *build;
    const char *says;
} faults[] = {
    {id_too_large, "id 6"},          {row_too_large, "id 6"},
    {label_too_large, "label 12"},   {label_not_ignored, "label -100"},
    {no_frames, "sequence 1 has 0"}, {too_many_frames, "sequence 1 has 5"},
    {blank_as_label, "label 3"},
};

static void faults_are_named(void **state)
{
    (void)state;
    fv_device *d;
    fv_ctx *c;
    assert_int_equal(fv_device_open(&d, test_device(), (fv_device_opt){0}, NULL), FV_OK);
    assert_int_equal(fv_ctx_new(&c, d, (fv_ctx_opt){0}, NULL), FV_OK);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        fv_ctx_reset(c, 0);
        faults[i].build(c);
        assert_int_equal(fv_ctx_status(c), FV_EARG);
        if (!strstr(fv_ctx_err(c)->text, faults[i].says))
            fail_msg("\"%s\" is not in: %s", faults[i].says, fv_ctx_err(c)->text);
    }
    fv_ctx_free(c);
    fv_device_close(d);
}

/* The gradient of logits stands in their own place only where nobody else is still to read them. */
static void logits_are_kept_for_other_readers(void **state)
{
    (void)state;
    enum { ROWS = 5, IN = 3, OUT = 7 };
    fv_device *d;
    fv_ctx *c;
    float x[ROWS * IN], w[OUT * IN];
    double dx[4][ROWS * IN];
    const int32_t wanted[ROWS] = {1, 6, -100, 0, 3};
    for (int i = 0; i < ROWS * IN; i++) x[i] = (float)(i % 4) - 1.3f;
    for (int i = 0; i < OUT * IN; i++) w[i] = (float)(i % 5) * 0.4f - 0.7f;
    const char *name = getenv("FOVEA_TEST_DEVICE");
    assert_int_equal(fv_device_open(&d, name ? name : "cpu", (fv_device_opt){0}, NULL), FV_OK);
    assert_int_equal(fv_ctx_new(&c, d, (fv_ctx_opt){.record = true}, NULL), FV_OK);
    for (int parts = 1; parts < 4; parts++) { /* entropy, squares, both */
        fv_ctx_reset(c, 0);
        fv_tensor *in = fv_watch(c, fv_floats(c, x, FV_SHAPE(ROWS, IN)));
        fv_tensor *y = fv_linear(c, in, fv_floats(c, w, FV_SHAPE(OUT, IN)), NULL, FV_ACT_NONE),
                  *loss = NULL;
        if (parts & 2) loss = fv_sum_all(c, fv_mul(c, y, y));
        if (parts & 1) {
            fv_tensor *ce = fv_sum_all(c, fv_cross_entropy(c, y, fv_ints(c, wanted, FV_SHAPE(ROWS)),
                                                           (fv_ce_opt){.ignore = -100}));
            loss = loss ? fv_add(c, loss, ce) : ce;
        }
        assert_int_equal(fv_backward(c, loss), FV_OK);
        assert_int_equal(fv_read_grad(c, in, dx[parts], ROWS * IN), FV_OK);
    }
    for (int i = 0; i < ROWS * IN; i++) assert_true(fabs(dx[3][i] - dx[1][i] - dx[2][i]) < 1e-5);
    fv_ctx_free(c);
    fv_device_close(d);
}

/* Logits of minus infinity, as masks make them, count for nothing, wherever they stand in a row. */
static void hidden_logits_count_for_nothing(void **state)
{
    (void)state;
    enum { MOST = 4096 };
    static float x[MOST], y[2];
    static double dx[MOST];
    static const int64_t widths[] = {5, 8, 37, 1001, 2000, MOST};
    fv_device *d;
    fv_ctx *c;
    assert_int_equal(fv_device_open(&d, test_device(), (fv_device_opt){0}, NULL), FV_OK);
    assert_int_equal(fv_ctx_new(&c, d, (fv_ctx_opt){.record = true}, NULL), FV_OK);
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        /* all but two are hidden, at the end or at the beginning */
        for (int last = 0; last < 2; last++) {
            int64_t n = widths[i], seen = last ? n - 2 : 0;
            for (int64_t j = 0; j < n; j++) x[j] = j == seen ? 1 : j == seen + 1 ? 2 : -INFINITY;
            fv_ctx_reset(c, 0);
            fv_tensor *logits = fv_watch(c, fv_floats(c, x, FV_SHAPE(1, n)));
            fv_tensor *label = fv_ints(c, (int32_t[]){(int32_t)seen}, FV_SHAPE(1));
            fv_tensor *loss = fv_cross_entropy(c, logits, label, (fv_ce_opt){.ignore = -100});
            assert_int_equal(fv_read(c, loss, y, 1), FV_OK);
            assert_true(fabs((double)y[0] - log(exp(1.0) + exp(2.0)) + 1) < 1e-6);
            assert_int_equal(fv_backward(c, fv_sum_all(c, loss)), FV_OK);
            assert_int_equal(fv_read_grad(c, logits, dx, n), FV_OK);
            for (int64_t j = 0; j < n; j++) {
                double want = j == seen || j == seen + 1
                                  ? 1 / (1 + exp(j == seen ? 1.0 : -1.0)) - (j == seen)
                                  : 0;
                assert_true(fabs(dx[j] - want) < 1e-6);
            }
        }
    fv_ctx_free(c);
    fv_device_close(d);
}

/* A grid of blocks has an end: the gradients of gain and bias are sums over more rows than that. */
static void norm_of_very_many_rows(void **state)
{
    (void)state;
    enum { ROWS = 2100000 };
    fv_device *d;
    fv_ctx *c;
    double dgain[2], dbias[2];
    assert_int_equal(fv_device_open(&d, test_device(), (fv_device_opt){0}, NULL), FV_OK);
    assert_int_equal(fv_ctx_new(&c, d, (fv_ctx_opt){.record = true}, NULL), FV_OK);
    fv_tensor *x = fv_expand(c, fv_floats(c, (float[]){1, 3}, FV_SHAPE(1, 2)), FV_SHAPE(ROWS, 2));
    fv_tensor *gain = fv_watch(c, fv_full(c, FV_SHAPE(2), 1)),
              *bias = fv_watch(c, fv_zeros(c, FV_SHAPE(2)));
    assert_int_equal(fv_backward(c, fv_sum_all(c, fv_layernorm(c, x, gain, bias, 0))), FV_OK);
    assert_int_equal(fv_read_grad(c, gain, dgain, 2), FV_OK);
    assert_int_equal(fv_read_grad(c, bias, dbias, 2), FV_OK);
    for (int i = 0; i < 2; i++) assert_true(dgain[i] == (i ? ROWS : -ROWS) && dbias[i] == ROWS);
    fv_ctx_free(c);
    fv_device_close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(faults_are_named),
        cmocka_unit_test(logits_are_kept_for_other_readers),
        cmocka_unit_test(hidden_logits_count_for_nothing),
        cmocka_unit_test(norm_of_very_many_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
