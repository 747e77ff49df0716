/* test_ops_elementwise.c - unary and binary ops, dropout, casts and masked filling through the op
 * table. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "helper/optable.h"
#include "fovea/author/ops.h"
#include "fovea/author/tensor.h"

/* ---- unary ---- */

static fv_tensor *scale(fv_ctx *c, fv_tensor *const *x) { return fv_scale(c, x[0], -2.5f); }
static fv_tensor *affine(fv_ctx *c, fv_tensor *const *x) { return fv_affine(c, x[0], 3, 0.5f); }
static fv_tensor *relu(fv_ctx *c, fv_tensor *const *x) { return fv_relu(c, x[0]); }
static fv_tensor *leaky_relu(fv_ctx *c, fv_tensor *const *x)
{
    return fv_leaky_relu(c, x[0], 0.125f);
}
static fv_tensor *gelu(fv_ctx *c, fv_tensor *const *x) { return fv_gelu(c, x[0]); }
static fv_tensor *gelu_tanh(fv_ctx *c, fv_tensor *const *x) { return fv_gelu_tanh(c, x[0]); }
static fv_tensor *silu(fv_ctx *c, fv_tensor *const *x) { return fv_silu(c, x[0]); }
static fv_tensor *tanh_(fv_ctx *c, fv_tensor *const *x) { return fv_tanh(c, x[0]); }
static fv_tensor *sigmoid(fv_ctx *c, fv_tensor *const *x) { return fv_sigmoid(c, x[0]); }
static fv_tensor *exp_(fv_ctx *c, fv_tensor *const *x) { return fv_exp(c, x[0]); }
static fv_tensor *log_(fv_ctx *c, fv_tensor *const *x) { return fv_log(c, x[0]); }
static fv_tensor *sqrt_(fv_ctx *c, fv_tensor *const *x) { return fv_sqrt(c, x[0]); }
static fv_tensor *rsqrt(fv_ctx *c, fv_tensor *const *x) { return fv_rsqrt(c, x[0]); }
static fv_tensor *abs_(fv_ctx *c, fv_tensor *const *x) { return fv_abs(c, x[0]); }
static fv_tensor *square(fv_ctx *c, fv_tensor *const *x) { return fv_square(c, x[0]); }
static fv_tensor *softplus(fv_ctx *c, fv_tensor *const *x) { return fv_softplus(c, x[0]); }
static fv_tensor *clamp(fv_ctx *c, fv_tensor *const *x) { return fv_clamp(c, x[0], -0.51f, 1.26f); }
static fv_tensor *activate(fv_ctx *c, fv_tensor *const *x)
{
    return fv_activate(c, x[0], FV_GELU_TANH);
}
static fv_tensor *quick_gelu(fv_ctx *c, fv_tensor *const *x)
{
    return fv_activate(c, x[0], FV_QUICK_GELU);
}

static fv_tensor *identity(fv_ctx *c, fv_tensor *const *x)
{
    return fv_scale(c, fv_activate(c, x[0], FV_IDENTITY), 1);
}
static fv_tensor *leaky_relu_act(fv_ctx *c, fv_tensor *const *x)
{
    return fv_activate(c, x[0], FV_LEAKY_RELU);
}
static fv_tensor *relu6(fv_ctx *c, fv_tensor *const *x) { return fv_activate(c, x[0], FV_RELU6); }
static fv_tensor *relu2(fv_ctx *c, fv_tensor *const *x) { return fv_activate(c, x[0], FV_RELU2); }
static fv_tensor *hardswish(fv_ctx *c, fv_tensor *const *x)
{
    return fv_activate(c, x[0], FV_HARDSWISH);
}
static fv_tensor *mish(fv_ctx *c, fv_tensor *const *x) { return fv_activate(c, x[0], FV_MISH); }
static fv_tensor *sqrt_softplus(fv_ctx *c, fv_tensor *const *x)
{
    return fv_activate(c, x[0], FV_SQRT_SOFTPLUS);
}
static fv_tensor *gelu_10(fv_ctx *c, fv_tensor *const *x)
{
    return fv_activate(c, x[0], FV_GELU_10);
}
static fv_tensor *laplace(fv_ctx *c, fv_tensor *const *x)
{
    return fv_activate(c, x[0], FV_LAPLACE);
}

static double each_scale(double x) { return -2.5 * x; }
static double each_affine(double x) { return 3 * x + 0.5; }
static double each_relu(double x) { return x > 0 ? x : 0; }
static double each_leaky_relu(double x) { return x > 0 ? x : 0.125 * x; }
static double each_gelu(double x) { return 0.5 * x * erfc(-x / sqrt(2)); }
static double each_gelu_tanh(double x)
{
    return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * pow(x, 3))));
}
static double each_quick_gelu(double x) { return x / (1 + exp(-1.702 * x)); }
static double each_identity(double x) { return x; }
static double each_leaky_relu_act(double x) { return x > 0 ? x : (double)0.01f * x; }
static double each_relu6(double x) { return fmin(fmax(x, 0), 6); }
static double each_relu2(double x) { return x > 0 ? x * x : 0; }
static double each_hardswish(double x) { return x * fmin(fmax(x + 3, 0), 6) * (double)(1.0f / 6); }
static double each_mish(double x) { return x * tanh(log1p(exp(x))); }
static double each_sqrt_softplus(double x) { return sqrt(log1p(exp(x))); }
static double each_gelu_10(double x) { return fmin(fmax(0.5 * x * erfc(-x / sqrt(2)), -10), 10); }
/* by and plus as floats, as the op has them */
static double each_laplace(double x)
{
    double z = (double)(float)(1 / 0.282095) * x + (double)(float)(-0.707107 / 0.282095);
    return 0.5 * erfc(-z / sqrt(2));
}
static double each_silu(double x) { return x / (1 + exp(-x)); }
static double each_sigmoid(double x) { return 0.5 + 0.5 * tanh(x / 2); }
static double each_rsqrt(double x) { return pow(x, -0.5); }
static double each_square(double x) { return pow(x, 2); }
static double each_softplus(double x) { return log(1 + exp(x)); }
static double each_clamp(double x) { return fmin(fmax(x, (double)-0.51f), (double)1.26f); }

/* ---- binary ---- */

static fv_tensor *add(fv_ctx *c, fv_tensor *const *x) { return fv_add(c, x[0], x[1]); }
static fv_tensor *sub(fv_ctx *c, fv_tensor *const *x) { return fv_sub(c, x[0], x[1]); }
static fv_tensor *mul(fv_ctx *c, fv_tensor *const *x) { return fv_mul(c, x[0], x[1]); }
static fv_tensor *div_(fv_ctx *c, fv_tensor *const *x) { return fv_div(c, x[0], x[1]); }
static fv_tensor *maximum(fv_ctx *c, fv_tensor *const *x) { return fv_maximum(c, x[0], x[1]); }
static fv_tensor *add_itself(fv_ctx *c, fv_tensor *const *x) { return fv_add(c, x[0], x[0]); }
static fv_tensor *mul_itself(fv_ctx *c, fv_tensor *const *x) { return fv_mul(c, x[0], x[0]); }

static double add2(double a, double b) { return a + b; }
static double sub2(double a, double b) { return a - b; }
static double mul2(double a, double b) { return a * b; }
static double div2(double a, double b) { return a / b; }

/* Every index of the larger shape, spelled out: up to four axes, short shapes padded in front with
 * 1. */
static void broadcast(const op_case *k, double *y, const double *const *in,
                      double (*f)(double, double))
{
    int64_t d[2][4], to[4], n = 0;
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 4; j++)
            d[i][j] = j < 4 - k->in[i].shape.n ? 1 : k->in[i].shape.d[j - 4 + k->in[i].shape.n];
    for (int j = 0; j < 4; j++) to[j] = d[0][j] > d[1][j] ? d[0][j] : d[1][j];
    for (int64_t e = 0; e < to[0]; e++)
        for (int64_t g = 0; g < to[1]; g++)
            for (int64_t h = 0; h < to[2]; h++)
                for (int64_t l = 0; l < to[3]; l++) {
                    double v[2];
                    for (int i = 0; i < 2; i++)
                        v[i] =
                            in[i][((e % d[i][0] * d[i][1] + g % d[i][1]) * d[i][2] + h % d[i][2]) *
                                      d[i][3] +
                                  l % d[i][3]];
                    y[n++] = f(v[0], v[1]);
                }
}

static void want_add(const op_case *k, double *y, const double *const *in)
{
    broadcast(k, y, in, add2);
}
static void want_sub(const op_case *k, double *y, const double *const *in)
{
    broadcast(k, y, in, sub2);
}
static void want_mul(const op_case *k, double *y, const double *const *in)
{
    broadcast(k, y, in, mul2);
}
static void want_div(const op_case *k, double *y, const double *const *in)
{
    broadcast(k, y, in, div2);
}
static void want_max(const op_case *k, double *y, const double *const *in)
{
    broadcast(k, y, in, fmax);
}

/* ---- dropout, cast, masked_fill ---- */

static fv_tensor *dropout(fv_ctx *c, fv_tensor *const *x) { return fv_dropout(c, x[0], 0.25f); }
static fv_tensor *dropout_off(fv_ctx *c, fv_tensor *const *x)
{
    return fv_scale(c, fv_dropout(c, x[0], 0.25f), 1);
}
static fv_tensor *to_f32(fv_ctx *c, fv_tensor *const *x)
{
    return fv_cast(c, fv_scale(c, x[0], 1), FV_F32);
}
static fv_tensor *to_bf16_and_back(fv_ctx *c, fv_tensor *const *x)
{
    return fv_cast(c, fv_cast(c, x[0], FV_BF16), FV_F32);
}

static const uint8_t mask_bits[] = {1, 0, 0, 1, 1, 0, 1, 1, 1, 0, 1, 0, 0, 1, 1};

static fv_tensor *masked_fill(fv_ctx *c, fv_tensor *const *x)
{
    return fv_masked_fill(c, x[0], fv_bytes(c, mask_bits, FV_SHAPE(3, 5)), -7);
}

static fv_tensor *masked_rows(fv_ctx *c, fv_tensor *const *x)
{
    return fv_masked_fill(c, x[0], fv_bytes(c, mask_bits, FV_SHAPE(3, 1)), 2);
}

static void want_masked(const op_case *k, double *y, const double *const *in)
{
    for (int64_t i = 0; i < fv_shape_len(k->in[0].shape); i++)
        y[i] = mask_bits[i % 15] ? in[0][i] : -7;
}

static double same(double x) { return x; }

#define WIDE .low = -6, .high = 6
#define ABOVE .low = 0.25f, .high = 4

/* clang-format off */
static const op_case cases[] = {
    {.name = "scale", .build = scale, .in = {{FV_SHAPE(3, 37)}}, .each = each_scale,
     .flags = OP_BY_ROW},
    {.name = "affine", .build = affine, .in = {{FV_SHAPE(3, 37)}}, .each = each_affine,
     .flags = OP_BY_ROW},
    {.name = "relu", .build = relu, .in = {{FV_SHAPE(3, 37)}}, .each = each_relu,
     .flags = OP_BY_ROW},
    {.name = "leaky_relu", .build = leaky_relu, .in = {{FV_SHAPE(3, 37)}}, .each = each_leaky_relu,
     .flags = OP_BY_ROW},
    {.name = "gelu", .build = gelu, .in = {{FV_SHAPE(3, 37), WIDE}}, .each = each_gelu,
     .flags = OP_BY_ROW},
    {.name = "gelu_tanh", .build = gelu_tanh, .in = {{FV_SHAPE(3, 37), WIDE}},
     .each = each_gelu_tanh, .flags = OP_BY_ROW},
    {.name = "silu", .build = silu, .in = {{FV_SHAPE(3, 37), WIDE}}, .each = each_silu,
     .flags = OP_BY_ROW},
    {.name = "tanh", .build = tanh_, .in = {{FV_SHAPE(3, 37), WIDE}}, .each = tanh,
     .flags = OP_BY_ROW},
    {.name = "sigmoid", .build = sigmoid, .in = {{FV_SHAPE(3, 37), WIDE}}, .each = each_sigmoid,
     .flags = OP_BY_ROW},
    {.name = "exp", .build = exp_, .in = {{FV_SHAPE(3, 37), WIDE}}, .each = exp,
     .flags = OP_BY_ROW},
    {.name = "log", .build = log_, .in = {{FV_SHAPE(3, 37), ABOVE}}, .each = log,
     .flags = OP_BY_ROW},
    {.name = "sqrt", .build = sqrt_, .in = {{FV_SHAPE(3, 37), ABOVE}}, .each = sqrt,
     .flags = OP_BY_ROW},
    {.name = "rsqrt", .build = rsqrt, .in = {{FV_SHAPE(3, 37), ABOVE}}, .each = each_rsqrt,
     .flags = OP_BY_ROW},
    {.name = "abs", .build = abs_, .in = {{FV_SHAPE(3, 37)}}, .each = fabs, .flags = OP_BY_ROW},
    {.name = "square", .build = square, .in = {{FV_SHAPE(3, 37)}}, .each = each_square,
     .flags = OP_BY_ROW},
    {.name = "softplus", .build = softplus, .in = {{FV_SHAPE(3, 37), WIDE}}, .each = each_softplus,
     .flags = OP_BY_ROW},
    {.name = "clamp", .build = clamp, .in = {{FV_SHAPE(3, 37), .low = -2, .high = 2}},
     .each = each_clamp, .flags = OP_BY_ROW},
    {.name = "quick_gelu", .build = quick_gelu, .each = each_quick_gelu,
     .in = {{FV_SHAPE(3, 37), .low = -6, .high = 6}},
     .flags = OP_BY_ROW},
    {.name = "activate", .build = activate, .in = {{FV_SHAPE(3, 37)}}, .each = each_gelu_tanh,
     .flags = OP_BY_ROW},
    {.name = "identity", .build = identity, .in = {{FV_SHAPE(3, 37)}}, .each = each_identity,
     .flags = OP_BY_ROW},
    {.name = "leaky_relu of ACT2FN", .build = leaky_relu_act, .in = {{FV_SHAPE(3, 37)}},
     .each = each_leaky_relu_act, .flags = OP_BY_ROW},
    {.name = "relu6", .build = relu6, .in = {{FV_SHAPE(3, 37), .low = -9, .high = 9.1f}},
     .each = each_relu6, .flags = OP_BY_ROW},
    {.name = "relu2", .build = relu2, .in = {{FV_SHAPE(3, 37)}}, .each = each_relu2,
     .flags = OP_BY_ROW},
    {.name = "hardswish", .build = hardswish, .in = {{FV_SHAPE(3, 37), .low = -5, .high = 5.1f}},
     .each = each_hardswish, .flags = OP_BY_ROW},
    {.name = "mish", .build = mish, .in = {{FV_SHAPE(3, 37), .low = -6, .high = 6}},
     .each = each_mish, .flags = OP_BY_ROW},
    {.name = "sqrt_softplus", .build = sqrt_softplus, .each = each_sqrt_softplus,
     .in = {{FV_SHAPE(3, 37), .low = -4, .high = 6}}, .flags = OP_BY_ROW},
    {.name = "gelu_10", .build = gelu_10, .in = {{FV_SHAPE(3, 37), .low = -12, .high = 12.1f}},
     .each = each_gelu_10, .flags = OP_BY_ROW},
    {.name = "laplace", .build = laplace, .in = {{FV_SHAPE(3, 37), .low = -1, .high = 2}},
     .each = each_laplace, .flags = OP_BY_ROW},
    {.name = "gelu, many", .build = gelu, .in = {{FV_SHAPE(7, 9001), WIDE}}, .each = each_gelu,
     .flags = OP_BY_ROW},

    {.name = "add", .build = add, .in = {{FV_SHAPE(2, 3, 5)}, {FV_SHAPE(2, 3, 5)}},
     .want = want_add, .bad = {FV_SHAPE(2, 3, 5), FV_SHAPE(2, 5, 3)}},
    {.name = "add a row", .build = add, .in = {{FV_SHAPE(4, 3, 19)}, {FV_SHAPE(19)}},
     .want = want_add, .flags = OP_BY_ROW, .bad = {FV_SHAPE(4, 3, 19), FV_SHAPE(3)}},
    {.name = "add to a row", .build = add, .in = {{FV_SHAPE(19)}, {FV_SHAPE(4, 3, 19)}},
     .want = want_add},
    {.name = "add a column", .build = add, .in = {{FV_SHAPE(2, 6, 5)}, {FV_SHAPE(6, 1)}},
     .want = want_add, .flags = OP_BY_ROW},
    {.name = "add, outer", .build = add, .in = {{FV_SHAPE(7, 1)}, {FV_SHAPE(1, 9)}},
     .want = want_add, .flags = OP_BY_ROW},
    {.name = "add, in between", .build = add, .in = {{FV_SHAPE(2, 1, 3, 1)}, {FV_SHAPE(4, 1, 5)}},
     .want = want_add, .flags = OP_BY_ROW},
    {.name = "add one number", .build = add, .in = {{FV_SHAPE(5, 7)}, {FV_SHAPE(1)}},
     .want = want_add, .flags = OP_BY_ROW},
    {.name = "add a row, many", .build = add, .in = {{FV_SHAPE(300, 131)}, {FV_SHAPE(131)}},
     .want = want_add, .flags = OP_BY_ROW},
    {.name = "add itself", .build = add_itself, .in = {{FV_SHAPE(4, 9)}}, .flags = OP_BY_ROW},
    {.name = "sub", .build = sub, .in = {{FV_SHAPE(2, 3, 5)}, {FV_SHAPE(3, 5)}}, .want = want_sub,
     .flags = OP_BY_ROW, .bad = {FV_SHAPE(2, 3, 5), FV_SHAPE(4, 5)}},
    {.name = "sub from a row", .build = sub, .in = {{FV_SHAPE(5)}, {FV_SHAPE(2, 3, 5)}},
     .want = want_sub},
    {.name = "mul", .build = mul, .in = {{FV_SHAPE(2, 3, 5)}, {FV_SHAPE(2, 3, 5)}},
     .want = want_mul, .bad = {FV_SHAPE(6), FV_SHAPE(7)}},
    {.name = "mul by a row", .build = mul, .in = {{FV_SHAPE(40, 6, 33)}, {FV_SHAPE(33)}},
     .want = want_mul, .flags = OP_BY_ROW},
    {.name = "mul by a column", .build = mul, .in = {{FV_SHAPE(2, 6, 5)}, {FV_SHAPE(2, 6, 1)}},
     .want = want_mul},
    {.name = "mul itself", .build = mul_itself, .in = {{FV_SHAPE(4, 9)}}, .each = each_square,
     .flags = OP_BY_ROW},
    {.name = "div", .build = div_, .in = {{FV_SHAPE(3, 8)}, {FV_SHAPE(3, 8), ABOVE}},
     .want = want_div, .bad = {FV_SHAPE(3, 8), FV_SHAPE(8, 3)}},
    {.name = "div by a column", .build = div_, .in = {{FV_SHAPE(3, 8)}, {FV_SHAPE(3, 1), ABOVE}},
     .want = want_div},
    {.name = "maximum", .build = maximum, .in = {{FV_SHAPE(4, 7)}, {FV_SHAPE(4, 7)}},
     .want = want_max, .flags = OP_DISTINCT, .bad = {FV_SHAPE(4, 7), FV_SHAPE(4, 6)}},
    {.name = "maximum with a row", .build = maximum, .in = {{FV_SHAPE(4, 7)}, {FV_SHAPE(7)}},
     .want = want_max, .flags = OP_DISTINCT | OP_BY_ROW},

    {.name = "dropout", .build = dropout, .in = {{FV_SHAPE(5, 41)}}, .flags = OP_TRAIN},
    {.name = "dropout, not training", .build = dropout_off, .in = {{FV_SHAPE(5, 41)}}, .each = same,
     .flags = OP_BY_ROW},
    {.name = "cast to f32", .build = to_f32, .in = {{FV_SHAPE(5, 11)}}, .each = same,
     .flags = OP_BY_ROW | OP_NOT_F64},
    {.name = "cast to bf16 and back", .build = to_bf16_and_back, .in = {{FV_SHAPE(5, 11)}},
     .each = same, .flags = OP_BY_ROW | OP_NOT_F64, .loose = 100},
    {.name = "masked_fill", .build = masked_fill, .in = {{FV_SHAPE(2, 3, 5)}}, .want = want_masked,
     .flags = OP_BY_ROW, .bad = {FV_SHAPE(2, 5, 3)}},
    {.name = "masked_fill by rows", .build = masked_rows, .in = {{FV_SHAPE(4, 3, 17)}},
     .flags = OP_BY_ROW, .bad = {FV_SHAPE(4, 2, 17)}},
};
/* clang-format on */

int main(void) { return op_table_run("elementwise", cases, sizeof cases / sizeof *cases); }
