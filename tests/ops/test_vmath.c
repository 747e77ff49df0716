/* test_vmath.c - the vector functions against the C library in f64: largest errors, limits, NaN; at
 * every level.
 *
 * What has a kernel is measured through the tables of each instruction level; the rest is measured
 * at the generic one, whose source is the same. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define CPU_LEVEL generic
#include "backend/cpu/vmath.h"
#include "helper/kernels.h"

#define SAMPLES 200000

static float x[SAMPLES], y[SAMPLES];

static double d_sigmoid(double v) { return 1 / (1 + exp(-v)); }
static double d_softplus(double v) { return (v > 0 ? v : 0) + log1p(exp(-fabs(v))); }
static double d_silu(double v) { return v / (1 + exp(-v)); }
static double d_gelu(double v) { return 0.5 * v * erfc(-v / sqrt(2)); }
static double d_gelu_tanh(double v)
{
    return 0.5 * v * (1 + tanh(sqrt(2 / 3.14159265358979323846) * (v + 0.044715 * v * v * v)));
}

static double d_quick_gelu(double v) { return v / (1 + exp(-1.702 * v)); }

static void samples(double low, double high)
{
    for (int i = 0; i < SAMPLES; i++) x[i] = (float)(low + (high - low) * i / (SAMPLES - 1));
}

/* The largest error over x and y: in units of the last place of the true value, or for tails that
 * cancel, as a part of
 * |x|. */
typedef enum { ULP, OF_X } measure;

static double worst(double (*f)(double), measure m)
{
    double most = 0;
    for (int i = 0; i < SAMPLES; i++) {
        double want = f((double)x[i]), e;
        if (fabs(want) > (double)FLT_MAX) {
            assert_true(isinf(y[i]));
            continue;
        }
        int place;
        frexp(want, &place);
        double unit = m == ULP ? ldexp(1, (place < -125 ? -125 : place) - 24) : fabs((double)x[i]);
        e = want == (double)y[i] ? 0 : fabs(want - (double)y[i]) / unit;
        if (!(e <= most)) most = e; /* NaN counts */
    }
    return most;
}

typedef struct {
    fv_unary_op op;
    double (*f)(double);
    double low, high;
    measure m;
    double limit;
} accuracy;

static void functions_with_a_kernel(void **state)
{
    (void)state;
    static const accuracy table[] = {
        {FV_U_EXP, exp, -86.9 + 1e-5, 89, ULP, 1.2},
        {FV_U_EXP, exp, -1, 1, ULP, 1},
        {FV_U_LOG, log, 1e-3, 4, ULP, 2},
        {FV_U_LOG, log, 0.99, 1.01, ULP, 2},
        {FV_U_LOG, log, 1e-40, 1e-37, ULP, 2},
        {FV_U_LOG, log, 1, 3e38, ULP, 2},
        {FV_U_TANH, tanh, -12, 12, ULP, 3},
        {FV_U_TANH, tanh, -0.1, 0.1, ULP, 3},
        {FV_U_SIGMOID, d_sigmoid, -86, 40, ULP, 3},
        {FV_U_SOFTPLUS, d_softplus, -86, 40, ULP, 3},
        {FV_U_SILU, d_silu, -86, 40, ULP, 3},
        {FV_U_GELU, d_gelu, -12, 12, OF_X, 2e-7},
        {FV_U_GELU, d_gelu, -0.1, 0.1, OF_X, 2e-7},
        {FV_U_GELU_TANH, d_gelu_tanh, -12, 12, OF_X, 2e-7},
        {FV_U_GELU_TANH, d_gelu_tanh, -0.1, 0.1, OF_X, 2e-7},
        {FV_U_QUICK_GELU, d_quick_gelu, -40, 20, OF_X, 2e-7},
    };
    for (int l = 0; l < n_level; l++)
        for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
            const accuracy *a = &table[i];
            fv_stream s = {.dev = at_level[l], .threads = 1};
            samples(a->low, a->high);
            at_level[l]->k[FV_F32]->unary(&s, a->op, y, x, SAMPLES, 0, 0);
            /* for levels without fused multiply-add */
            double e = worst(a->f, a->m), tolerance = a->m == ULP ? 2 : 1e-7;
            bool fused = strcmp(fv_device_level(at_level[l]), "generic") != 0;
            if (!(e <= a->limit + (fused ? 0 : tolerance)))
                fail_msg("%s: function %d on %g..%g is off by %g", fv_device_level(at_level[l]),
                         (int)a->op, a->low, a->high, e);
        }
}

static void each(vf (*f)(vf))
{
    for (int i = 0; i < SAMPLES; i += VW) v_store(y + i, f(v_load(x + i)));
}

static vf sine(vf a)
{
    vf s, c;
    v_sincos(&s, &c, a);
    return s;
}

static vf cosine(vf a)
{
    vf s, c;
    v_sincos(&s, &c, a);
    return c;
}

static double worst_absolute(double (*f)(double))
{
    double most = 0;
    for (int i = 0; i < SAMPLES; i++) most = fmax(most, fabs(f((double)x[i]) - (double)y[i]));
    return most;
}

static void functions_without_one(void **state)
{
    (void)state;
    samples(-6, 6);
    each(v_erf);
    assert_true(worst(erf, ULP) < 7);
    samples(-0.1, 0.1);
    each(v_erf);
    assert_true(worst(erf, ULP) < 5);
    for (int far = 0; far < 3; far++) {
        samples(-10, far == 0 ? 10 : far == 1 ? 1e5 : 1e8);
        each(sine);
        assert_true(worst_absolute(sin) < 1.2e-7);
        each(cosine);
        assert_true(worst_absolute(cos) < 1.2e-7);
    }
}

/* What happens at the ends: {input, output} for each function. */
typedef struct {
    fv_unary_op op;
    float in, out;
} limit;

static void limits_and_nan(void **state)
{
    (void)state;
    const float inf = INFINITY;
    const limit limits[] = {
        {FV_U_EXP, -inf, 0},        {FV_U_EXP, -200, 0},      {FV_U_EXP, 0, 1},
        {FV_U_EXP, 88.73f, inf},    {FV_U_EXP, inf, inf},     {FV_U_EXP, FLT_MAX, inf},
        {FV_U_LOG, 0, -inf},        {FV_U_LOG, -0.0f, -inf},  {FV_U_LOG, inf, inf},
        {FV_U_LOG, 1, 0},           {FV_U_TANH, inf, 1},      {FV_U_TANH, -inf, -1},
        {FV_U_TANH, 0, 0},          {FV_U_SIGMOID, inf, 1},   {FV_U_SIGMOID, -inf, 0},
        {FV_U_SOFTPLUS, inf, inf},  {FV_U_SOFTPLUS, -inf, 0}, {FV_U_GELU, inf, inf},
        {FV_U_GELU_TANH, inf, inf}, {FV_U_SILU, inf, inf},    {FV_U_GELU, -20, 0},
        {FV_U_GELU_TANH, -20, 0},   {FV_U_SILU, -200, 0},
    };
    uint32_t payload = 0x7fc12345; /* a NaN with bits that must not leak into the exponent */
    float nan;
    memcpy(&nan, &payload, 4);
    for (int l = 0; l < n_level; l++) {
        fv_stream s = {.dev = at_level[l], .threads = 1};
        float got;
        for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
            at_level[l]->k[FV_F32]->unary(&s, limits[i].op, &got, &limits[i].in, 1, 0, 0);
            if (got != limits[i].out)
                fail_msg("%s: function %d of %g is %g", fv_device_level(at_level[l]),
                         (int)limits[i].op, (double)limits[i].in, (double)got);
        }
        for (fv_unary_op op = 0; op < FV_U_COUNT; op++) {
            at_level[l]->k[FV_F32]->unary(&s, op, &got, &nan, 1, 1, 2);
            if (!isnan(got))
                fail_msg("%s: function %d of NaN is %g", fv_device_level(at_level[l]), (int)op,
                         (double)got);
        }
        float minus = -1;
        at_level[l]->k[FV_F32]->unary(&s, FV_U_LOG, &got, &minus, 1, 0, 0);
        assert_true(isnan(got));
    }
}

/* To nearest, ties to even, subnormals kept; a NaN is quiet. */
static uint16_t as_bf16(float v)
{
    uint32_t u;
    memcpy(&u, &v, sizeof u);
    return (uint16_t)((isnan(v) ? u | 0x400000 : u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* Every bf16 times a few numbers. */
static void rounding_to_bf16(void **state)
{
    static const float by[] = {1, 0.7f, 0x1.01p-7f, 0x1.018p-40f, 0x1.3p-120f, 0x1.ff8p60f};
    static uint16_t in[1 << 16], got[1 << 16];
    (void)state;
    for (int i = 0; i < 1 << 16; i++) in[i] = (uint16_t)i;
    for (int l = 0; l < n_level; l++)
        for (size_t b = 0; b < sizeof by / sizeof *by; b++) {
            fv_stream s = {.dev = at_level[l], .threads = 1};
            at_level[l]->k[FV_BF16]->unary(&s, FV_U_SCALE, got, in, 1 << 16, by[b], 0);
            for (int i = 0; i < 1 << 16; i++) {
                uint32_t u = (uint32_t)i << 16;
                float v;
                memcpy(&v, &u, sizeof v);
                uint16_t want = as_bf16(by[b] * v + 0.0f);
                bool zeros = !((got[i] | want) & 0x7fff); /* of either sign: levels may fuse */
                if (got[i] != want && !zeros)
                    fail_msg("%s: %a times %a is %04x, expected %04x", fv_device_level(at_level[l]),
                             (double)v, (double)by[b], got[i], want);
            }
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(functions_with_a_kernel),
        cmocka_unit_test(functions_without_one),
        cmocka_unit_test(limits_and_nan),
        cmocka_unit_test(rounding_to_bf16),
    };
    return cmocka_run_group_tests(tests, open_levels, close_levels);
}
