/* test_ops_matmul.c - products: matmul with every flag and batch, linear with every activation,
 * packed weights. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "helper/device.h"
#include "helper/optable.h"
#include "ops/product.h"
#include "fovea/author/ops.h"

static fv_tensor *nn(fv_ctx *c, fv_tensor *const *x)
{
    return fv_matmul(c, x[0], x[1], (fv_mm){0});
}
static fv_tensor *tn(fv_ctx *c, fv_tensor *const *x)
{
    return fv_matmul(c, x[0], x[1], (fv_mm){.ta = true});
}
static fv_tensor *nt(fv_ctx *c, fv_tensor *const *x)
{
    return fv_matmul(c, x[0], x[1], (fv_mm){.tb = true});
}
static fv_tensor *tt(fv_ctx *c, fv_tensor *const *x)
{
    return fv_matmul(c, x[0], x[1], (fv_mm){.ta = true, .tb = true});
}
static fv_tensor *scaled(fv_ctx *c, fv_tensor *const *x)
{
    return fv_matmul(c, x[0], x[1], (fv_mm){.alpha = 0.375f});
}
static fv_tensor *gram(fv_ctx *c, fv_tensor *const *x)
{
    return fv_matmul(c, x[0], x[0], (fv_mm){.tb = true});
}

static fv_tensor *linear(fv_ctx *c, fv_tensor *const *x)
{
    return fv_linear(c, x[0], x[1], x[2], FV_ACT_NONE);
}
static fv_tensor *linear_kn(fv_ctx *c, fv_tensor *const *x)
{
    return fv_linear_in_out(c, x[0], x[1], x[2], FV_ACT_NONE);
}
static fv_tensor *plain(fv_ctx *c, fv_tensor *const *x)
{
    return fv_linear(c, x[0], x[1], NULL, FV_ACT_NONE);
}
static fv_tensor *relu(fv_ctx *c, fv_tensor *const *x)
{
    return fv_linear(c, x[0], x[1], x[2], FV_RELU);
}
static fv_tensor *gelu(fv_ctx *c, fv_tensor *const *x)
{
    return fv_linear(c, x[0], x[1], x[2], FV_GELU);
}
static fv_tensor *gelu_tanh(fv_ctx *c, fv_tensor *const *x)
{
    return fv_linear_in_out(c, x[0], x[1], x[2], FV_GELU_TANH);
}
static fv_tensor *two_layers(fv_ctx *c, fv_tensor *const *x)
{
    return fv_linear_in_out(c, fv_linear_in_out(c, x[0], x[1], x[2], FV_GELU_TANH), x[3], x[4],
                            FV_ACT_NONE);
}
static fv_tensor *residual(fv_ctx *c, fv_tensor *const *x)
{
    return fv__linear_add(c, x[3], x[0], x[1], x[2], false);
}
static fv_tensor *silu(fv_ctx *c, fv_tensor *const *x)
{
    return fv_linear(c, x[0], x[1], x[2], FV_SILU);
}
static fv_tensor *tanh_(fv_ctx *c, fv_tensor *const *x)
{
    return fv_linear(c, x[0], x[1], x[2], FV_TANH);
}
static fv_tensor *sigmoid(fv_ctx *c, fv_tensor *const *x)
{
    return fv_linear(c, x[0], x[1], x[2], FV_SIGMOID);
}

static fv_tensor *packed(fv_ctx *c, fv_tensor *const *x)
{
    return fv_linear(c, x[0], fv_pack(c, x[1], x[1] ? x[1]->dtype : FV_F32, false), NULL,
                     FV_ACT_NONE);
}

/* ---- what they should give ---- */

typedef struct {
    int64_t batch, m, n, k, shared;
    bool ta, tb;
} sizes;

static void product(double *y, const double *a, const double *b, sizes s)
{
    for (int64_t g = 0; g < s.batch; g++)
        for (int64_t i = 0; i < s.m; i++)
            for (int64_t j = 0; j < s.n; j++) {
                double sum = 0;
                for (int64_t l = 0; l < s.k; l++)
                    sum += a[g * s.m * s.k + (s.ta ? l * s.m + i : i * s.k + l)] *
                           b[(s.shared ? 0 : g) * s.n * s.k + (s.tb ? j * s.k + l : l * s.n + j)];
                y[(g * s.m + i) * s.n + j] = sum;
            }
}

static void want_matmul(const op_case *k, double *y, const double *const *in)
{
    fv_shape a = k->in[0].shape, b = k->in[1].shape;
    sizes s = {.batch = 1,
               .ta = k->build == tn || k->build == tt,
               .tb = k->build == nt || k->build == tt,
               .shared = b.n < a.n};
    for (int i = 0; i < a.n - 2; i++) s.batch *= a.d[i];
    s.m = a.d[a.n - 2 + s.ta];
    s.k = a.d[a.n - 1 - s.ta];
    s.n = b.d[b.n - 1 - s.tb];
    product(y, in[0], in[1], s);
}

static void want_linear(const op_case *k, double *y, const double *const *in)
{
    bool in_out = k->build == linear_kn || k->build == gelu_tanh;
    const int64_t *w = k->in[1].shape.d;
    sizes s = {.batch = 1,
               .m = fv_shape_len(k->in[0].shape) / w[!in_out],
               .n = w[in_out],
               .k = w[!in_out],
               .tb = !in_out};
    product(y, in[0], in[1], s);
    for (int64_t i = 0; i < s.m * s.n; i++) {
        double p = y[i] + (in[2] ? in[2][i % s.n] : 0);
        y[i] = k->build == relu   ? fmax(p, 0)
               : k->build == gelu ? 0.5 * p * erfc(-p / sqrt(2))
               : k->build == gelu_tanh
                   ? 0.5 * p * (1 + tanh(sqrt(2 / M_PI) * (p + 0.044715 * p * p * p)))
               : k->build == silu    ? p / (1 + exp(-p))
               : k->build == tanh_   ? tanh(p)
               : k->build == sigmoid ? 1 / (1 + exp(-p))
                                     : p;
    }
}

/* clang-format off */
#define LAYER {FV_SHAPE(3, 4, 7)}, {FV_SHAPE(5, 7)}, {FV_SHAPE(5), .optional = true}
#define LAYER_KN {FV_SHAPE(3, 4, 7)}, {FV_SHAPE(7, 5)}, {FV_SHAPE(5), .optional = true}
#define BAD_LAYER FV_SHAPE(3, 4, 6), FV_SHAPE(5, 7)

static const op_case cases[] = {
    {.name = "matmul", .build = nn, .in = {{FV_SHAPE(5, 7)}, {FV_SHAPE(7, 3)}}, .want = want_matmul,
     .flags = OP_BY_ROW, .bad = {FV_SHAPE(5, 7), FV_SHAPE(3, 7)}},
    {.name = "matmul, a transposed", .build = tn, .in = {{FV_SHAPE(7, 5)}, {FV_SHAPE(7, 3)}},
     .want = want_matmul, .bad = {FV_SHAPE(5, 7), FV_SHAPE(7, 3)}},
    {.name = "matmul, b transposed", .build = nt, .in = {{FV_SHAPE(5, 7)}, {FV_SHAPE(3, 7)}},
     .want = want_matmul, .flags = OP_BY_ROW, .bad = {FV_SHAPE(5, 7), FV_SHAPE(7, 3)}},
    {.name = "matmul, both transposed", .build = tt, .in = {{FV_SHAPE(7, 5)}, {FV_SHAPE(3, 7)}},
     .want = want_matmul, .bad = {FV_SHAPE(7), FV_SHAPE(3, 7)}},
    {.name = "matmul, scaled", .build = scaled, .in = {{FV_SHAPE(5, 7)}, {FV_SHAPE(7, 3)}},
     .flags = OP_BY_ROW},
    {.name = "matmul with itself", .build = gram, .in = {{FV_SHAPE(2, 5, 7)}}, .flags = OP_BY_ROW},
    {.name = "matmul, batched", .build = nn, .in = {{FV_SHAPE(2, 3, 4, 7)}, {FV_SHAPE(2, 3, 7, 5)}},
     .want = want_matmul, .bad = {FV_SHAPE(2, 3, 4, 7), FV_SHAPE(3, 2, 7, 5)}},
    {.name = "matmul, batched, a transposed", .build = tn,
     .in = {{FV_SHAPE(3, 7, 4)}, {FV_SHAPE(3, 7, 5)}}, .want = want_matmul},
    {.name = "matmul, batched, b transposed", .build = nt,
     .in = {{FV_SHAPE(3, 4, 7)}, {FV_SHAPE(3, 5, 7)}}, .want = want_matmul},
    {.name = "matmul, batched, both transposed", .build = tt,
     .in = {{FV_SHAPE(3, 7, 4)}, {FV_SHAPE(3, 5, 7)}},
     .want = want_matmul},
    {.name = "matmul, one b for all", .build = nn, .in = {{FV_SHAPE(2, 3, 4, 7)}, {FV_SHAPE(7, 5)}},
     .want = want_matmul, .flags = OP_BY_ROW, .bad = {FV_SHAPE(2, 3, 4, 7), FV_SHAPE(3, 7, 5)}},
    {.name = "matmul, one b for all, a transposed", .build = tn,
     .in = {{FV_SHAPE(4, 7, 3)}, {FV_SHAPE(7, 5)}},
     .want = want_matmul, .flags = OP_BY_ROW},
    {.name = "matmul, one b for all, both transposed", .build = tt,
     .in = {{FV_SHAPE(4, 7, 3)}, {FV_SHAPE(5, 7)}},
     .want = want_matmul, .flags = OP_BY_ROW},
    {.name = "matmul, large", .build = nt, .in = {{FV_SHAPE(129, 300)}, {FV_SHAPE(67, 300)}},
     .want = want_matmul, .flags = OP_BY_ROW},
    {.name = "matmul, deep", .build = tn, .in = {{FV_SHAPE(700, 33)}, {FV_SHAPE(700, 65)}},
     .want = want_matmul},

    {.name = "linear", .build = linear, .in = {LAYER}, .want = want_linear, .flags = OP_BY_ROW,
     .bad = {BAD_LAYER}},
    {.name = "linear_kn", .build = linear_kn, .in = {LAYER_KN}, .want = want_linear,
     .flags = OP_BY_ROW, .bad = {FV_SHAPE(3, 4, 7), FV_SHAPE(7, 6), FV_SHAPE(5)}},
    {.name = "linear without bias", .build = plain, .in = {{FV_SHAPE(3, 7)}, {FV_SHAPE(5, 7)}},
     .want = want_linear, .flags = OP_BY_ROW, .bad = {{0}, FV_SHAPE(5)}},
    {.name = "linear of one row", .build = linear,
     .in = {{FV_SHAPE(7)}, {FV_SHAPE(5, 7)}, {FV_SHAPE(5), .optional = true}},
     .want = want_linear},
    {.name = "linear, frozen weight", .build = gelu,
     .in = {{FV_SHAPE(3, 7)}, {FV_SHAPE(5, 7), .fixed = true}, {FV_SHAPE(5), .optional = true}},
     .want = want_linear, .flags = OP_BY_ROW},
    {.name = "linear and relu", .build = relu, .in = {LAYER}, .want = want_linear,
     .flags = OP_BY_ROW, .bad = {BAD_LAYER}},
    {.name = "linear and gelu", .build = gelu, .in = {LAYER}, .want = want_linear,
     .flags = OP_BY_ROW, .bad = {BAD_LAYER}},
    {.name = "linear_kn and gelu_tanh", .build = gelu_tanh, .in = {LAYER_KN}, .want = want_linear,
     .flags = OP_BY_ROW},
    {.name = "two layers", .build = two_layers,
     .in = {{FV_SHAPE(9, 16)}, {FV_SHAPE(16, 24)}, {FV_SHAPE(24),
     .optional = true}, {FV_SHAPE(24, 8)},
            {FV_SHAPE(8), .optional = true}}},
    {.name = "linear onto", .build = residual,
     .in = {{FV_SHAPE(9, 16)}, {FV_SHAPE(8, 16)}, {FV_SHAPE(8),
     .optional = true}, {FV_SHAPE(9, 8)}}},
    {.name = "linear and silu", .build = silu, .in = {LAYER}, .want = want_linear,
     .flags = OP_BY_ROW},
    {.name = "linear and tanh", .build = tanh_, .in = {LAYER}, .want = want_linear,
     .flags = OP_BY_ROW},
    {.name = "linear and sigmoid", .build = sigmoid, .in = {LAYER}, .want = want_linear,
     .flags = OP_BY_ROW},
    {.name = "linear and gelu, large", .build = gelu,
     .in = {{FV_SHAPE(130, 270)}, {FV_SHAPE(97, 270)}, {FV_SHAPE(97), .optional = true}},
     .want = want_linear, .flags = OP_BY_ROW},
    {.name = "linear, packed weight", .build = packed,
     .in = {{FV_SHAPE(6, 70)}, {FV_SHAPE(37, 70)}}, .want = want_linear,
     .flags = OP_NO_GRAD | OP_BY_ROW | OP_NOT_F64 | OP_NOT_F16},
};
/* clang-format on */

/* ---- packed weights: what the table cannot say ---- */

typedef struct fixture {
    fv_device *dev;
    fv_ctx *ctx;
} fixture;

static void open_all(fixture *f)
{
    assert_int_equal(fv_device_open(&f->dev, test_device(), (fv_device_opt){.threads = 1}, NULL),
                     FV_OK);
    assert_int_equal(fv_ctx_new(&f->ctx, f->dev, (fv_ctx_opt){0}, NULL), FV_OK);
}

static void close_all(fixture *f)
{
    fv_ctx_free(f->ctx);
    fv_device_close(f->dev);
}

/* Between -1 and 1, in no order. */
static float scattered(uint32_t i)
{
    return (float)(int32_t)(i * i * 2654435761u + i * 40503u) * 0x1p-31f;
}

/* Every dtype a weight can be packed as, from both layouts, against the plain product; q8 and q4
 * keep 7 and 3 bits. */
static void packed_weights_multiply_like_plain_ones(void **state)
{
    (void)state;
    static const struct {
        fv_dtype t;
        double off;
    } as[] = {{FV_F32, 1e-5}, {FV_BF16, 1e-2}, {FV_Q8, 2e-2}, {FV_Q4, 0.2}, {FV_I8, 2e-2}};
    enum { M = 5, N = 37, K = 96 };
    float x[M * K], w[N * K], want[M * N], got[M * N];
    fixture f;
    open_all(&f);
    for (uint32_t i = 0; i < M * K; i++) x[i] = scattered(i);
    for (uint32_t i = 0; i < N * K; i++) w[i] = scattered(i + 1000);
    for (int in_out = 0; in_out < 2; in_out++)
        for (size_t i = 0; i < sizeof as / sizeof *as; i++) {
            if (!test_on_cpu() && as[i].t == FV_I8) continue; /* the CPU's alone */
            fv_ctx_reset(f.ctx, 0);
            fv_tensor *a = fv_floats(f.ctx, x, FV_SHAPE(M, K));
            fv_tensor *b = fv_floats(f.ctx, w, in_out ? FV_SHAPE(K, N) : FV_SHAPE(N, K));
            fv_tensor *y = in_out ? fv_linear_in_out(f.ctx, a, b, NULL, FV_GELU)
                                  : fv_linear(f.ctx, a, b, NULL, FV_GELU);
            assert_int_equal(fv_read(f.ctx, y, want, M * N), FV_OK);
            y = fv_linear(f.ctx, a, fv_pack(f.ctx, b, as[i].t, in_out), NULL, FV_GELU);
            if (fv_read(f.ctx, y, got, M * N)) fail_msg("%s", fv_ctx_err(f.ctx)->text);
            double off = 0, size = 0;
            for (int j = 0; j < M * N; j++) {
                off += pow((double)got[j] - (double)want[j], 2);
                size += pow((double)want[j], 2);
            }
            if (!(sqrt(off) <= as[i].off * sqrt(size)))
                fail_msg("%s: off by %.3g of the whole", fv_dtype_name(as[i].t), sqrt(off / size));
        }
    close_all(&f);
}

static void packed_weights_go_nowhere_else(void **state)
{
    (void)state;
    fixture f;
    open_all(&f);
    fv_tensor *w = fv_zeros(f.ctx, FV_SHAPE(16, 32)), *p = fv_pack(f.ctx, w, FV_F32, false);
    assert_non_null(p);
    assert_null(fv_add(f.ctx, w, p));
    assert_int_equal(fv_ctx_status(f.ctx), FV_EDTYPE);
    assert_non_null(strstr(fv_ctx_err(f.ctx)->text, "packed f32(16,32)"));
    fv_ctx_reset(f.ctx, 0);
    assert_null(fv_pack(f.ctx, fv_zeros(f.ctx, FV_SHAPE(2, 3, 4)), FV_F32, false));
    assert_int_equal(fv_ctx_status(f.ctx), FV_ESHAPE);
    fv_ctx_reset(f.ctx, 0);
    assert_null(fv_pack(f.ctx, fv_zeros(f.ctx, FV_SHAPE(3, 4)), FV_I32, false));
    assert_int_equal(fv_ctx_status(f.ctx), FV_EDTYPE);
    close_all(&f);
}

/* The first time a device may look for a way to do a large product; that changes nothing but the
 * time. */
static void a_large_product_is_the_same_every_time(void **state)
{
    (void)state;
    if (test_on_cpu()) skip(); /* nothing is looked for there, and it takes long */
    enum { M = 4096, N = 2048, K = 1024 };
    float *x = malloc((size_t)M * K * sizeof *x), *y[2];
    fixture f;
    assert_int_equal(fv_device_open(&f.dev, test_device(), (fv_device_opt){0}, NULL), FV_OK);
    assert_int_equal(fv_ctx_new(&f.ctx, f.dev, (fv_ctx_opt){.dtype = FV_BF16}, NULL), FV_OK);
    for (uint32_t i = 0; i < (uint32_t)M * K; i++) x[i] = scattered(i);
    fv_tensor *a = fv_floats(f.ctx, x, FV_SHAPE(M, K)), *b = fv_floats(f.ctx, x, FV_SHAPE(N, K));
    fv_tensor *bias = fv_floats(f.ctx, x, FV_SHAPE(N));
    for (int i = 0; i < 2; i++) {
        y[i] = malloc((size_t)M * N * sizeof *x);
        fv_tensor *t = fv_linear(f.ctx, a, b, bias, FV_ACT_NONE);
        if (fv_read(f.ctx, t, y[i], (int64_t)M * N)) fail_msg("%s", fv_ctx_err(f.ctx)->text);
    }
    assert_memory_equal(y[0], y[1], (size_t)M * N * sizeof *x);
    free(y[0]);
    free(y[1]);
    free(x);
    close_all(&f);
}

/* So many rows that a device has a kernel of its own for them, several tiles for each part of it,
 * with rows, columns and a depth that fill no tile. */
static void many_rows_multiply_like_few(void **state)
{
    (void)state;
    enum { N = 1544, K = 712, STEP = 37 };
    const uint32_t M = test_on_cpu() ? 261 : 4301;
    static const fv_act acts[] = {FV_ACT_NONE, FV_GELU, FV_GELU_TANH, FV_ACT_NONE};
    enum { ONTO = 3 }; /* the last one, onto numbers that are there */
    float *x = malloc(M * K * sizeof *x), *w = malloc(N * K * sizeof *w),
          *got = malloc(M * N * sizeof *got), b[N];
    float *there = malloc(M * N * sizeof *there);
    fixture f;
    assert_true(x && w && got && there);
    open_all(&f);
    fv_ctx_free(f.ctx);
    assert_int_equal(fv_ctx_new(&f.ctx, f.dev, (fv_ctx_opt){.dtype = FV_BF16}, NULL), FV_OK);
    /* as bf16 holds them */
    for (uint32_t i = 0; i < M * K; i++) x[i] = rintf(scattered(i) * 64) / 64;
    for (uint32_t i = 0; i < N * K; i++) w[i] = rintf(scattered(i + 1000) * 64) / 64;
    for (uint32_t i = 0; i < N; i++) b[i] = rintf(scattered(i + 500) * 64) / 64;
    for (uint32_t i = 0; i < M * N; i++) there[i] = 96 + rintf(scattered(i + 70) * 32);
    for (size_t a = 0; a < sizeof acts / sizeof *acts; a++) {
        fv_ctx_reset(f.ctx, 0);
        fv_tensor *in = fv_floats(f.ctx, x, FV_SHAPE(M, K)),
                  *of = fv_floats(f.ctx, w, FV_SHAPE(N, K));
        fv_tensor *bias = fv_floats(f.ctx, b, FV_SHAPE(N)), *y;
        if (a == ONTO)
            y = fv__linear_add(f.ctx, fv_floats(f.ctx, there, FV_SHAPE(M, N)), in, of, bias, false);
        else
            y = fv_linear(f.ctx, in, of, bias, acts[a]);
        if (fv_read(f.ctx, y, got, M * N)) fail_msg("%s", fv_ctx_err(f.ctx)->text);
        for (uint32_t i = 0; i < M * N; i += STEP) {
            double p = (double)b[i % N] + (a == ONTO ? (double)there[i] : 0);
            for (uint32_t j = 0; j < K; j++)
                p += (double)x[i / N * K + j] * (double)w[i % N * K + j];
            if (acts[a] == FV_GELU) p = 0.5 * p * erfc(-p / sqrt(2));
            if (acts[a] == FV_GELU_TANH)
                p = 0.5 * p * (1 + tanh(sqrt(2 / M_PI) * (p + 0.044715 * p * p * p)));
            /* the product may have been rounded before the sum */
            double apart = a == ONTO ? 0x1p-8 * (double)there[i] : 0;
            if (!(fabs((double)got[i] - p) <= 1e-2 * fabs(p) + 1e-3 + apart))
                fail_msg("activation %d, row %u, column %u: %g, expected %g", (int)acts[a], i / N,
                         i % N, (double)got[i], p);
        }
    }
    close_all(&f);
    free(x), free(w), free(got), free(there);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_large_product_is_the_same_every_time),
        cmocka_unit_test(many_rows_multiply_like_few),
        cmocka_unit_test(packed_weights_multiply_like_plain_ones),
        cmocka_unit_test(packed_weights_go_nowhere_else),
    };
    int failed = cmocka_run_group_tests_name("packed", tests, NULL, NULL);
    return failed + op_table_run("matmul", cases, sizeof cases / sizeof *cases);
}
