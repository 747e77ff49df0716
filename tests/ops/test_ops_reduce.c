/* test_ops_reduce.c - ops along an axis: sum, mean, max, argmax, topk, cumsum, softmax, KL. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "helper/ctx.h"
#include "helper/optable.h"
#include "fovea/author/ops.h"
#include "fovea/author/tensor.h"

static fv_tensor *sum_first(fv_ctx *c, fv_tensor *const *x) { return fv_sum(c, x[0], 0); }
static fv_tensor *sum_middle(fv_ctx *c, fv_tensor *const *x) { return fv_sum(c, x[0], 1); }
static fv_tensor *sum_last(fv_ctx *c, fv_tensor *const *x) { return fv_sum(c, x[0], -1); }
static fv_tensor *mean_middle(fv_ctx *c, fv_tensor *const *x) { return fv_mean(c, x[0], 1); }
static fv_tensor *mean_last(fv_ctx *c, fv_tensor *const *x) { return fv_mean(c, x[0], -1); }
static fv_tensor *max_middle(fv_ctx *c, fv_tensor *const *x) { return fv_max(c, x[0], 1); }
static fv_tensor *max_last(fv_ctx *c, fv_tensor *const *x) { return fv_max(c, x[0], -1); }
static fv_tensor *sum_all(fv_ctx *c, fv_tensor *const *x) { return fv_sum_all(c, x[0]); }
static fv_tensor *mean_all(fv_ctx *c, fv_tensor *const *x) { return fv_mean_all(c, x[0]); }
static fv_tensor *argmax(fv_ctx *c, fv_tensor *const *x) { return fv_argmax(c, x[0], 1); }
static fv_tensor *topk(fv_ctx *c, fv_tensor *const *x) { return fv_topk(c, x[0], 3, NULL); }
static fv_tensor *topk_all(fv_ctx *c, fv_tensor *const *x) { return fv_topk(c, x[0], 8, NULL); }
static fv_tensor *cumsum_middle(fv_ctx *c, fv_tensor *const *x) { return fv_cumsum(c, x[0], 1); }
static fv_tensor *cumsum_last(fv_ctx *c, fv_tensor *const *x) { return fv_cumsum(c, x[0], -1); }
static fv_tensor *softmax(fv_ctx *c, fv_tensor *const *x) { return fv_softmax(c, x[0]); }
static fv_tensor *log_softmax(fv_ctx *c, fv_tensor *const *x) { return fv_log_softmax(c, x[0]); }
static fv_tensor *symmetric_kl(fv_ctx *c, fv_tensor *const *x) { return fv_symmetric_kl(c, x[0]); }

/* ---- what they should give ---- */

static void fold(const op_case *k, int axis, double *y, const double *x,
                 double (*f)(double, double), double start)
{
    fv_shape s = k->in[0].shape;
    int64_t outer = 1, n = s.d[axis], inner = 1;
    for (int i = 0; i < axis; i++) outer *= s.d[i];
    for (int i = axis + 1; i < s.n; i++) inner *= s.d[i];
    for (int64_t i = 0; i < outer * inner; i++) y[i] = start;
    for (int64_t i = 0; i < outer * n * inner; i++) {
        double *to = &y[i / (n * inner) * inner + i % inner];
        *to = f(*to, x[i]);
    }
}

static double plus(double a, double b) { return a + b; }
static double plus_seventh(double a, double b) { return a + b / 7; }
static double plus_sixth(double a, double b) { return a + b / 6; }

static void want_sum_first(const op_case *k, double *y, const double *const *in)
{
    fold(k, 0, y, in[0], plus, 0);
}
static void want_sum_middle(const op_case *k, double *y, const double *const *in)
{
    fold(k, 1, y, in[0], plus, 0);
}
static void want_sum_last(const op_case *k, double *y, const double *const *in)
{
    fold(k, k->in[0].shape.n - 1, y, in[0], plus, 0);
}
static void want_mean_middle(const op_case *k, double *y, const double *const *in)
{
    fold(k, 1, y, in[0], plus_seventh, 0);
}
static void want_mean_last(const op_case *k, double *y, const double *const *in)
{
    fold(k, 2, y, in[0], plus_sixth, 0);
}
static void want_max_middle(const op_case *k, double *y, const double *const *in)
{
    fold(k, 1, y, in[0], fmax, -INFINITY);
}
static void want_max_last(const op_case *k, double *y, const double *const *in)
{
    fold(k, k->in[0].shape.n - 1, y, in[0], fmax, -INFINITY);
}

static void want_sum_all(const op_case *k, double *y, const double *const *in)
{
    for (int64_t i = 0; i < fv_shape_len(k->in[0].shape); i++) y[0] += in[0][i];
}

static void want_mean_all(const op_case *k, double *y, const double *const *in)
{
    want_sum_all(k, y, in);
    y[0] /= (double)fv_shape_len(k->in[0].shape);
}

static void want_argmax(const op_case *k, double *y, const double *const *in)
{
    const int64_t *d = k->in[0].shape.d;
    for (int64_t i = 0; i < d[0]; i++)
        for (int64_t r = 0; r < d[2]; r++)
            for (int64_t j = 0; j < d[1]; j++) {
                double *best = &y[i * d[2] + r];
                if (in[0][(i * d[1] + j) * d[2] + r] >
                    in[0][(i * d[1] + (int64_t)*best) * d[2] + r])
                    *best = (double)j;
            }
}

/* the p-th largest has p larger ones in its row */
static void want_topk(const op_case *k, double *y, const double *const *in)
{
    int64_t cols = k->in[0].shape.d[1], most = k->build == topk ? 3 : 8;
    for (int64_t i = 0; i < k->in[0].shape.d[0]; i++)
        for (int64_t j = 0; j < cols; j++) {
            int64_t larger = 0;
            for (int64_t l = 0; l < cols; l++) larger += in[0][i * cols + l] > in[0][i * cols + j];
            if (larger < most) y[i * most + larger] = in[0][i * cols + j];
        }
}

static void want_cumsum(const op_case *k, double *y, const double *const *in)
{
    const int64_t *d = k->in[0].shape.d;
    for (int64_t i = 0; i < fv_shape_len(k->in[0].shape); i++)
        y[i] = in[0][i] + (i / d[2] % d[1] ? y[i - d[2]] : 0);
}

static void want_softmax(const op_case *k, double *y, const double *const *in)
{
    int64_t cols = k->in[0].shape.d[k->in[0].shape.n - 1];
    for (int64_t i = 0; i < fv_shape_len(k->in[0].shape); i++) {
        double sum = 0;
        for (int64_t j = 0; j < cols; j++) sum += exp(in[0][i / cols * cols + j] - in[0][i]);
        y[i] = k->build == softmax ? 1 / sum : -log(sum);
    }
}

/* sum (p - q) (log p - log q) */
static void want_symmetric_kl(const op_case *k, double *y, const double *const *in)
{
    fv_shape s = k->in[0].shape;
    int64_t cols = s.d[s.n - 1], rows = fv_shape_len(s) / cols / 2;
    for (int64_t r = 0; r < rows; r++) {
        const double *a = in[0] + r * cols, *b = in[0] + (rows + r) * cols;
        double lse[2] = {0};
        for (int64_t j = 0; j < cols; j++) lse[0] += exp(a[j]), lse[1] += exp(b[j]);
        y[r] = 0;
        for (int64_t j = 0; j < cols; j++) {
            double log_p = a[j] - log(lse[0]), log_q = b[j] - log(lse[1]);
            y[r] += (exp(log_p) - exp(log_q)) * (log_p - log_q);
        }
    }
}

#define WIDE .low = -6, .high = 6

/* clang-format off */
static const op_case cases[] = {
    {.name = "sum, first axis", .build = sum_first, .in = {{FV_SHAPE(6, 5)}},
     .want = want_sum_first},
    {.name = "sum, middle axis", .build = sum_middle, .in = {{FV_SHAPE(4, 7, 3)}},
     .want = want_sum_middle, .flags = OP_BY_ROW, .bad = {FV_SHAPE(4)}},
    {.name = "sum, last axis", .build = sum_last, .in = {{FV_SHAPE(4, 7, 3)}},
     .want = want_sum_last, .flags = OP_BY_ROW},
    {.name = "sum, last axis, long", .build = sum_last, .in = {{FV_SHAPE(5, 4099)}},
     .want = want_sum_last, .flags = OP_BY_ROW},
    {.name = "sum, first axis, long", .build = sum_first, .in = {{FV_SHAPE(2051, 9)}},
     .want = want_sum_first},
    {.name = "mean, middle axis", .build = mean_middle, .in = {{FV_SHAPE(4, 7, 3)}},
     .want = want_mean_middle, .flags = OP_BY_ROW, .bad = {FV_SHAPE(4)}},
    {.name = "mean, last axis", .build = mean_last, .in = {{FV_SHAPE(4, 3, 6)}},
     .want = want_mean_last, .flags = OP_BY_ROW},
    {.name = "max, middle axis", .build = max_middle, .in = {{FV_SHAPE(4, 5, 3)}},
     .want = want_max_middle, .flags = OP_BY_ROW | OP_DISTINCT, .bad = {FV_SHAPE(4)}},
    {.name = "max, last axis", .build = max_last, .in = {{FV_SHAPE(4, 19)}}, .want = want_max_last,
     .flags = OP_BY_ROW | OP_DISTINCT},
    {.name = "sum_all", .build = sum_all, .in = {{FV_SHAPE(3, 4, 5)}}, .want = want_sum_all},
    {.name = "sum_all, many", .build = sum_all, .in = {{FV_SHAPE(300, 111)}}, .want = want_sum_all},
    {.name = "mean_all", .build = mean_all, .in = {{FV_SHAPE(3, 4, 5)}}, .want = want_mean_all},
    {.name = "argmax", .build = argmax, .in = {{FV_SHAPE(4, 5, 3)}}, .want = want_argmax,
     .flags = OP_NO_GRAD | OP_BY_ROW | OP_DISTINCT, .bad = {FV_SHAPE(4)}},
    {.name = "topk", .build = topk, .in = {{FV_SHAPE(4, 17)}}, .want = want_topk,
     .flags = OP_BY_ROW | OP_DISTINCT, .bad = {FV_SHAPE(4, 2)}},
    {.name = "topk, all of them", .build = topk_all, .in = {{FV_SHAPE(5, 8)}}, .want = want_topk,
     .flags = OP_BY_ROW | OP_DISTINCT},
    {.name = "cumsum, middle axis", .build = cumsum_middle, .in = {{FV_SHAPE(4, 7, 3)}},
     .want = want_cumsum, .flags = OP_BY_ROW, .bad = {FV_SHAPE(4)}},
    {.name = "cumsum, last axis", .build = cumsum_last, .in = {{FV_SHAPE(4, 9)}},
     .flags = OP_BY_ROW},
    {.name = "softmax", .build = softmax, .in = {{FV_SHAPE(2, 3, 11), WIDE}}, .want = want_softmax,
     .flags = OP_BY_ROW},
    {.name = "softmax, many", .build = softmax, .in = {{FV_SHAPE(130, 259), WIDE}},
     .want = want_softmax, .flags = OP_BY_ROW},
    {.name = "softmax, one column", .build = softmax, .in = {{FV_SHAPE(5, 1), WIDE}},
     .want = want_softmax, .flags = OP_BY_ROW},
    {.name = "log_softmax", .build = log_softmax, .in = {{FV_SHAPE(2, 3, 11), WIDE}},
     .want = want_softmax, .flags = OP_BY_ROW},
    {.name = "log_softmax, many", .build = log_softmax, .in = {{FV_SHAPE(130, 259), WIDE}},
     .want = want_softmax, .flags = OP_BY_ROW},
    {.name = "symmetric_kl", .build = symmetric_kl, .in = {{FV_SHAPE(2, 3, 2, 11), WIDE}},
     .want = want_symmetric_kl, .bad = {FV_SHAPE(3, 3, 2, 11)}},
    {.name = "symmetric_kl, many", .build = symmetric_kl, .in = {{FV_SHAPE(2, 70, 264)}},
     .want = want_symmetric_kl, .bad = {FV_SHAPE(70, 264)}},
};
/* clang-format on */

/* ---- what the table cannot say ---- */

static const float ties[] = {1, 3, 3, 2, 3, 0};

static void of_equals_the_first_counts(void **state)
{
    (void)state;
    int32_t at[3];
    double dx[6];
    fv_tensor *index, *x = fv_watch(ctx, fv_floats(ctx, ties, FV_SHAPE(6)));
    fv_tensor *y = fv_topk(ctx, x, 3, &index);
    assert_int_equal(fv_read_i32(ctx, index, at, 3), FV_OK);
    assert_memory_equal(at, ((int32_t[]){1, 2, 4}), sizeof at);
    assert_int_equal(index->wants_grad, false);
    y = fv_add(ctx, fv_max(ctx, x, 0), fv_sum_all(ctx, fv_scale(ctx, y, 0)));
    assert_int_equal(fv_backward(ctx, y), FV_OK);
    assert_int_equal(fv_read_grad(ctx, x, dx, 6), FV_OK);
    for (int i = 0; i < 6; i++) assert_true(dx[i] == (i == 1));
}

static void scalars_have_no_axis(void **state)
{
    (void)state;
    assert_null(fv_softmax(ctx, fv_full(ctx, (fv_shape){0}, 1)));
    assert_int_equal(fv_ctx_status(ctx), FV_ESHAPE);
}

static void nothing_has_no_largest(void **state)
{
    (void)state;
    assert_null(fv_max(ctx, fv_zeros(ctx, FV_SHAPE(3, 0)), 1));
    assert_int_equal(fv_ctx_status(ctx), FV_ESHAPE);
    assert_non_null(strstr(fv_ctx_err(ctx)->text, "f32(3,0)"));
}

static void softmax_does_not_overflow(void **state)
{
    (void)state;
    static const float x[] = {1e30f, -1e30f, 1e30f, -INFINITY};
    float y[4];
    assert_int_equal(fv_read(ctx, fv_softmax(ctx, fv_floats(ctx, x, FV_SHAPE(1, 4))), y, 4), FV_OK);
    assert_memory_equal(y, ((float[]){0.5f, 0, 0.5f, 0}), sizeof y);
}

/* A grid of blocks has an end: rows of more pieces than that are summed as well. */
static void sums_of_very_many_rows(void **state)
{
    (void)state;
    enum { ROWS = 8400000 };
    float y[2];
    fv_tensor *sum = fv_sum(ctx, fv_full(ctx, FV_SHAPE(ROWS, 2), 1), 0);
    assert_int_equal(fv_read(ctx, sum, y, 2), FV_OK);
    assert_true(y[0] == ROWS && y[1] == ROWS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(of_equals_the_first_counts, reset_ctx),
        cmocka_unit_test_setup(scalars_have_no_axis, reset_ctx),
        cmocka_unit_test_setup(nothing_has_no_largest, reset_ctx),
        cmocka_unit_test_setup(softmax_does_not_overflow, reset_ctx),
        cmocka_unit_test_setup(sums_of_very_many_rows, reset_ctx),
    };
    int failed = cmocka_run_group_tests_name("reduce", tests, open_ctx, close_ctx);
    return failed + op_table_run("reduce table", cases, sizeof cases / sizeof *cases);
}
