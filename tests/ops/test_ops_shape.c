/* test_ops_shape.c - ops that only move numbers: reshape, permute, slice, concat, pad, roll,
 * expand, rel_shift. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "helper/ctx.h"
#include "helper/optable.h"
#include "fovea/author/ops.h"
#include "ops/rel_shift.h"
#include "fovea/author/tensor.h"

/* reshape and head share memory with x; a scale makes y a tensor of its own that can be read after
 * backward */
static fv_tensor *reshape(fv_ctx *c, fv_tensor *const *x)
{
    return fv_scale(c, fv_reshape(c, x[0], FV_SHAPE(4, -1, 3)), 1);
}
static fv_tensor *reshape_twice(fv_ctx *c, fv_tensor *const *x)
{
    fv_tensor *y = fv_reshape(c, fv_square(c, x[0]), FV_SHAPE(-1));
    return fv_mul(c, y, fv_reshape(c, fv_reshape(c, x[0], FV_SHAPE(2, 18)), FV_SHAPE(36)));
}
static fv_tensor *head(fv_ctx *c, fv_tensor *const *x)
{
    return fv_scale(c, fv_head(c, x[0], 2), 1);
}
static fv_tensor *permute(fv_ctx *c, fv_tensor *const *x)
{
    return fv_permute(c, x[0], (int[]){2, 0, 3, 1});
}
static fv_tensor *heads_apart(fv_ctx *c, fv_tensor *const *x)
{
    return fv_permute(c, x[0], (int[]){0, 2, 1, 3});
}
static fv_tensor *permute_none(fv_ctx *c, fv_tensor *const *x)
{
    return fv_permute(c, x[0], (int[]){0, 1});
}
static fv_tensor *transpose(fv_ctx *c, fv_tensor *const *x) { return fv_transpose(c, x[0]); }
static fv_tensor *slice_first(fv_ctx *c, fv_tensor *const *x) { return fv_slice(c, x[0], 0, 1, 3); }
static fv_tensor *slice_middle(fv_ctx *c, fv_tensor *const *x)
{
    return fv_slice(c, x[0], 1, 2, 5);
}
static fv_tensor *slice_last(fv_ctx *c, fv_tensor *const *x)
{
    return fv_slice(c, x[0], -1, 3, 11);
}
static fv_tensor *slice_all(fv_ctx *c, fv_tensor *const *x) { return fv_slice(c, x[0], 1, 0, 5); }
static fv_tensor *concat_rows(fv_ctx *c, fv_tensor *const *x) { return fv_concat(c, x, 3, 0); }
static fv_tensor *concat_cols(fv_ctx *c, fv_tensor *const *x) { return fv_concat(c, x, 3, -1); }
static fv_tensor *concat_itself(fv_ctx *c, fv_tensor *const *x)
{
    return fv_concat(c, (fv_tensor *[]){x[0], x[0], x[0], x[0], x[0]}, 5, 1);
}
static fv_tensor *pad(fv_ctx *c, fv_tensor *const *x) { return fv_pad(c, x[0], 1, 2, 1, -3); }
static fv_tensor *roll(fv_ctx *c, fv_tensor *const *x) { return fv_roll(c, x[0], 1, 2); }
static fv_tensor *roll_back(fv_ctx *c, fv_tensor *const *x) { return fv_roll(c, x[0], -1, -8); }
static fv_tensor *expand(fv_ctx *c, fv_tensor *const *x)
{
    return fv_expand(c, x[0], FV_SHAPE(2, 3, 4, 5));
}
static fv_tensor *rel_shift(fv_ctx *c, fv_tensor *const *x) { return fv_rel_shift(c, x[0]); }
static fv_tensor *rel_bias(fv_ctx *c, fv_tensor *const *x) { return fv__rel_bias(c, x[0]); }

static fv_tensor *split(fv_ctx *c, fv_tensor *const *x)
{
    fv_tensor *part[3];
    if (!fv_split(c, part, x[0], 3, 1)) return NULL;
    return fv_add(c, fv_mul(c, part[0], part[1]), part[2]);
}

/* ---- what they should give ---- */

static void want_permute(const op_case *k, double *y, const double *const *in)
{
    const int64_t *d = k->in[0].shape.d;
    int64_t n = 0;
    for (int64_t e = 0; e < d[2]; e++)
        for (int64_t f = 0; f < d[0]; f++)
            for (int64_t g = 0; g < d[3]; g++)
                for (int64_t h = 0; h < d[1]; h++)
                    y[n++] = in[0][((f * d[1] + h) * d[2] + e) * d[3] + g];
}

static void want_transpose(const op_case *k, double *y, const double *const *in)
{
    const int64_t *d = k->in[0].shape.d;
    for (int64_t b = 0; b < d[0]; b++)
        for (int64_t i = 0; i < d[1]; i++)
            for (int64_t j = 0; j < d[2]; j++)
                y[(b * d[2] + j) * d[1] + i] = in[0][(b * d[1] + i) * d[2] + j];
}

static void want_slice_middle(const op_case *k, double *y, const double *const *in)
{
    const int64_t *d = k->in[0].shape.d;
    int64_t n = 0;
    for (int64_t i = 0; i < d[0]; i++)
        for (int64_t j = 2; j < 5; j++)
            for (int64_t r = 0; r < d[2]; r++) y[n++] = in[0][(i * d[1] + j) * d[2] + r];
}

static void want_concat_cols(const op_case *k, double *y, const double *const *in)
{
    int64_t n = 0;
    for (int64_t row = 0; row < k->in[0].shape.d[0]; row++)
        for (int i = 0; i < 3; i++)
            for (int64_t j = 0; j < k->in[i].shape.d[1]; j++)
                y[n++] = in[i][row * k->in[i].shape.d[1] + j];
}

static void want_pad(const op_case *k, double *y, const double *const *in)
{
    const int64_t *d = k->in[0].shape.d;
    int64_t n = 0;
    for (int64_t i = 0; i < d[0]; i++)
        for (int64_t j = -2; j < d[1] + 1; j++)
            for (int64_t r = 0; r < d[2]; r++)
                y[n++] = j < 0 || j >= d[1] ? -3 : in[0][(i * d[1] + j) * d[2] + r];
}

static void want_roll(const op_case *k, double *y, const double *const *in)
{
    const int64_t *d = k->in[0].shape.d;
    for (int64_t i = 0; i < d[0]; i++)
        for (int64_t j = 0; j < d[1]; j++)
            for (int64_t r = 0; r < d[2]; r++)
                y[(i * d[1] + (j + 2) % d[1]) * d[2] + r] = in[0][(i * d[1] + j) * d[2] + r];
}

static void want_roll_back(const op_case *k, double *y, const double *const *in)
{
    const int64_t *d = k->in[0].shape.d;
    for (int64_t i = 0; i < d[0]; i++)
        for (int64_t j = 0; j < d[1]; j++) y[i * d[1] + j] = in[0][i * d[1] + (j + 8) % d[1]];
}

static void want_expand(const op_case *k, double *y, const double *const *in)
{
    (void)k;
    for (int64_t i = 0; i < 2 * 3 * 4 * 5; i++) y[i] = in[0][i / 20 % 3 * 5 + i % 5];
}

static void want_rel_shift(const op_case *k, double *y, const double *const *in)
{
    fv_shape s = k->in[0].shape;
    int64_t T = s.d[s.n - 2], L = s.d[s.n - 1];
    for (int64_t n = 0; n < fv_shape_len(s); n++) {
        int64_t i = n / L % T, j = n % L + T - 1 - i;
        y[n] = j < L ? in[0][n / L * L + j] : 0;
    }
}

/* (H,B,T,L+T) -> (B,H,T,L) */
static void want_rel_bias(const op_case *k, double *y, const double *const *in)
{
    fv_shape s = k->in[0].shape;
    int64_t H = s.d[0], B = s.d[1], T = s.d[2], wide = s.d[3], L = wide - T;
    for (int64_t n = 0; n < B * H * T * L; n++) {
        int64_t j = n % L, i = n / L % T, h = n / L / T % H, b = n / L / T / H;
        y[n] = in[0][((h * B + b) * T + i) * wide + j + T - 1 - i];
    }
}

static double same(double x) { return x; }

/* clang-format off */
static const op_case cases[] = {
    {.name = "reshape", .build = reshape, .in = {{FV_SHAPE(2, 6, 3)}}, .each = same,
     .bad = {FV_SHAPE(2, 5, 3)}},
    {.name = "reshape twice", .build = reshape_twice, .in = {{FV_SHAPE(2, 6, 3)}}},
    {.name = "head", .build = head, .in = {{FV_SHAPE(5, 4)}}, .each = same,
     .bad = {FV_SHAPE(1, 4)}},
    {.name = "permute", .build = permute, .in = {{FV_SHAPE(2, 3, 4, 5)}}, .want = want_permute,
     .bad = {FV_SHAPE(2, 3, 4)}},
    {.name = "permute, heads apart", .build = heads_apart, .in = {{FV_SHAPE(3, 70, 4, 16)}},
     .flags = OP_BY_ROW},
    {.name = "permute, nothing", .build = permute_none, .in = {{FV_SHAPE(4, 5)}}, .each = same,
     .flags = OP_BY_ROW},
    {.name = "transpose", .build = transpose, .in = {{FV_SHAPE(2, 3, 7)}}, .want = want_transpose,
     .flags = OP_BY_ROW, .bad = {FV_SHAPE(7)}},
    {.name = "transpose, many", .build = transpose, .in = {{FV_SHAPE(3, 130, 67)}},
     .want = want_transpose, .flags = OP_BY_ROW},
    {.name = "slice, first axis", .build = slice_first, .in = {{FV_SHAPE(4, 3, 5)}},
     .bad = {FV_SHAPE(2, 3, 5)}},
    {.name = "slice, middle axis", .build = slice_middle, .in = {{FV_SHAPE(4, 6, 3)}},
     .want = want_slice_middle, .flags = OP_BY_ROW, .bad = {FV_SHAPE(4, 4, 3)}},
    {.name = "slice, last axis", .build = slice_last, .in = {{FV_SHAPE(4, 3, 12)}},
     .flags = OP_BY_ROW, .bad = {FV_SHAPE(4, 3, 9)}},
    {.name = "slice, everything", .build = slice_all, .in = {{FV_SHAPE(4, 5)}}, .each = same,
     .flags = OP_BY_ROW},
    {.name = "concat, first axis", .build = concat_rows,
     .in = {{FV_SHAPE(1, 5)}, {FV_SHAPE(3, 5)}, {FV_SHAPE(2, 5), .fixed = true}},
     .bad = {FV_SHAPE(1, 5), FV_SHAPE(3, 6)}},
    {.name = "concat, last axis", .build = concat_cols,
     .in = {{FV_SHAPE(4, 5)}, {FV_SHAPE(4, 1)}, {FV_SHAPE(4, 7)}},
     .want = want_concat_cols, .bad = {FV_SHAPE(4, 5), {0}, FV_SHAPE(3, 7)}},
    {.name = "concat, the same five times", .build = concat_itself, .in = {{FV_SHAPE(3, 2, 4)}},
     .flags = OP_BY_ROW, .bad = {FV_SHAPE(3)}},
    {.name = "split", .build = split, .in = {{FV_SHAPE(4, 6, 3)}}, .flags = OP_BY_ROW,
     .bad = {FV_SHAPE(4, 7, 3)}},
    {.name = "pad", .build = pad, .in = {{FV_SHAPE(3, 4, 5)}}, .want = want_pad, .flags = OP_BY_ROW,
     .bad = {FV_SHAPE(3)}},
    {.name = "roll", .build = roll, .in = {{FV_SHAPE(3, 5, 4)}}, .want = want_roll,
     .flags = OP_BY_ROW, .bad = {FV_SHAPE(3)}},
    {.name = "roll back", .build = roll_back, .in = {{FV_SHAPE(3, 5)}}, .want = want_roll_back,
     .flags = OP_BY_ROW},
    {.name = "expand", .build = expand, .in = {{FV_SHAPE(3, 1, 5)}}, .want = want_expand,
     .bad = {FV_SHAPE(2, 1, 5)}},
    {.name = "rel_shift", .build = rel_shift, .in = {{FV_SHAPE(2, 3, 4, 6)}},
     .want = want_rel_shift, .flags = OP_BY_ROW, .bad = {FV_SHAPE(6)}},
    {.name = "rel_bias", .build = rel_bias, .in = {{FV_SHAPE(2, 3, 4, 10)}},
     .want = want_rel_bias, .bad = {FV_SHAPE(2, 3, 4, 4)}},
    {.name = "rel_bias, one row and one head", .build = rel_bias, .in = {{FV_SHAPE(1, 2, 1, 4)}},
     .want = want_rel_bias},
    {.name = "rel_shift, square", .build = rel_shift, .in = {{FV_SHAPE(5, 5)}},
     .want = want_rel_shift},
    {.name = "rel_shift, more rows than columns", .build = rel_shift, .in = {{FV_SHAPE(2, 7, 3)}},
     .want = want_rel_shift},
    {.name = "rel_shift, one row", .build = rel_shift, .in = {{FV_SHAPE(2, 1, 3)}},
     .want = want_rel_shift, .flags = OP_BY_ROW},
};
/* clang-format on */

/* ---- what the table cannot say ---- */

static const int32_t counting[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};

static void integers_are_sliced_joined_and_reshaped(void **state)
{
    (void)state;
    int32_t got[4], joined[8];
    fv_tensor *x = fv_reshape(ctx, fv_ints(ctx, counting, FV_SHAPE(12)), FV_SHAPE(3, -1));
    fv_tensor *y = fv_slice(ctx, fv_head(ctx, x, 2), 1, 1, 3);
    assert_int_equal(fv_read_i32(ctx, y, got, 4), FV_OK);
    assert_memory_equal(got, ((int32_t[]){1, 2, 5, 6}), sizeof got);
    for (int axis = 0; axis < 2; axis++) {
        static const int32_t want[2][8] = {{1, 2, 5, 6, 1, 2, 5, 6}, {1, 2, 1, 2, 5, 6, 5, 6}};
        fv_tensor *both = fv_concat(ctx, (fv_tensor *[]){y, y}, 2, axis);
        assert_int_equal(fv_read_i32(ctx, both, joined, 8), FV_OK);
        assert_memory_equal(joined, want[axis], sizeof joined);
    }
    assert_null(fv_concat(ctx, (fv_tensor *[]){y, fv_zeros(ctx, FV_SHAPE(2, 2))}, 2, 0));
    assert_int_equal(fv_ctx_status(ctx), FV_EDTYPE);
}

static void integers_are_refused_elsewhere(void **state)
{
    (void)state;
    assert_null(fv_transpose(ctx, fv_ints(ctx, counting, FV_SHAPE(3, 4))));
    assert_int_equal(fv_ctx_status(ctx), FV_EDTYPE);
    assert_non_null(strstr(fv_ctx_err(ctx)->text, "i32(3,4)"));
}

static void reshape_and_head_share_memory(void **state)
{
    (void)state;
    fv_tensor *x = fv_zeros(ctx, FV_SHAPE(3, 4));
    assert_ptr_equal(fv_reshape(ctx, x, FV_SHAPE(2, 6))->data, x->data);
    assert_ptr_equal(fv_head(ctx, x, 1)->data, x->data);
}

static void an_axis_that_does_not_exist_is_named(void **state)
{
    (void)state;
    assert_null(fv_slice(ctx, fv_zeros(ctx, FV_SHAPE(3, 4)), -3, 0, 1));
    assert_int_equal(fv_ctx_status(ctx), FV_ESHAPE);
    assert_non_null(strstr(fv_ctx_err(ctx)->text, "f32(3,4) has no axis -3"));
}

static void bad_arguments_are_refused(void **state)
{
    (void)state;
    static const int twice[] = {0, 0}, outside[] = {0, 2};
    fv_tensor *x = fv_zeros(ctx, FV_SHAPE(3, 4)), *none[1];
    for (int i = 0; i < 9; i++) {
        fv_tensor *y = i == 0   ? fv_permute(ctx, x, twice)
                       : i == 1 ? fv_permute(ctx, x, outside)
                       : i == 2 ? fv_slice(ctx, x, 0, 2, 1)
                       : i == 3 ? fv_slice(ctx, x, 0, -1, 1)
                       : i == 4 ? fv_pad(ctx, x, 0, -1, 0, 0)
                       : i == 5 ? fv_reshape(ctx, x, FV_SHAPE(-1, -1))
                       : i == 6 ? fv_reshape(ctx, x, FV_SHAPE(0, -1))
                       : i == 7 ? fv_head(ctx, x, -1)
                                : fv_reshape(ctx, x, (fv_shape){.n = 99});
        assert_null(y);
        assert_int_equal(fv_ctx_status(ctx), FV_ESHAPE);
        assert_non_null(strstr(fv_ctx_err(ctx)->text, "f32(3,4)"));
        fv_ctx_reset(ctx, 0);
        x = fv_zeros(ctx, FV_SHAPE(3, 4));
    }
    assert_false(fv_split(ctx, none, x, 0, 1));
    assert_int_equal(fv_ctx_status(ctx), FV_ESHAPE);
    fv_ctx_reset(ctx, 0);
    assert_null(fv_concat(ctx, none, 0, 0));
    assert_int_equal(fv_ctx_status(ctx), FV_EARG);
}

static void empty_tensors_pass_through(void **state)
{
    (void)state;
    fv_tensor *x = fv_zeros(ctx, FV_SHAPE(3, 0, 4));
    assert_int_equal(fv_len(fv_permute(ctx, x, (int[]){1, 2, 0})), 0);
    assert_int_equal(fv_len(fv_roll(ctx, x, 1, 1)), 0);
    assert_int_equal(fv_len(fv_add(ctx, x, x)), 0);
    assert_int_equal(fv_len(fv_pad(ctx, x, 1, 0, 2, 1)), 24);
    assert_int_equal(fv_ctx_status(ctx), FV_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(integers_are_sliced_joined_and_reshaped, reset_ctx),
        cmocka_unit_test_setup(integers_are_refused_elsewhere, reset_ctx),
        cmocka_unit_test_setup(reshape_and_head_share_memory, reset_ctx),
        cmocka_unit_test_setup(an_axis_that_does_not_exist_is_named, reset_ctx),
        cmocka_unit_test_setup(bad_arguments_are_refused, reset_ctx),
        cmocka_unit_test_setup(empty_tensors_pass_through, reset_ctx),
    };
    int failed = cmocka_run_group_tests_name("shape", tests, open_ctx, close_ctx);
    return failed + op_table_run("shape table", cases, sizeof cases / sizeof *cases);
}
