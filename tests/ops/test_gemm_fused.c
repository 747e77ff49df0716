/* test_gemm_fused.c - the fused linear layer of a decode step has the bits of the kernels that it
 * stands for.
 *
 * Runs once for each instruction level (FOVEA_CPU). */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "helper/gemm.h"

/* What stands around a product in a step of writing changes no bit: norm, product, and the sum
 * (with what may have a norm of its own), the caches (with q and k rotated) or a second product to
 * be multiplied by behind it. */
typedef struct around {
    fv_norm_kind norm;
    enum { PLAIN, ONTO, ONTO_NORM, CACHES, ROTATED, GATED } then;
    fv_dtype weight;
    int64_t rows;
    int threads;
} around;

enum { K = 130, MOST_N = 264, CAP = 3 }; /* enough for several threads */

/* The operands, and the product as kernels of their own give it. */
typedef struct product_alone {
    float *x, *w, *w2, *bias, *gain, *shift, *old;
    float normed[2 * K], sum[2 * MOST_N], up[2 * MOST_N];
    void *packed, *packed2;
} product_alone;

static void multiply_alone(fv_stream *s, product_alone *o, const around *t, int64_t n, fv_act act)
{
    const fv_kernels *f = gemm_device->k[FV_F32];
    float stat[4];
    float **all[] = {&o->x, &o->w, &o->w2, &o->bias, &o->gain, &o->shift, &o->old};
    const int64_t lens[] = {2 * K, n * K, n * K, n, K, K, 2 * n};
    for (int i = 0; i < 7; i++) free(gemm_numbers(FV_F32, lens[i], all[i]));
    o->packed = gemm_memory(f->pack_bytes(n, K, t->weight));
    o->packed2 = gemm_memory(f->pack_bytes(n, K, t->weight));
    f->pack(s, o->packed, t->weight, o->w, FV_F32, n, K, K, true);
    f->pack(s, o->packed2, t->weight, o->w2, FV_F32, n, K, K, true);
    memcpy(o->normed, o->x, sizeof o->normed);
    if (t->norm == FV_NORM_LAYER)
        f->layernorm(s, o->normed, stat, stat + 2, NULL, o->x, NULL, o->gain, o->shift, t->rows, K,
                     1e-5f);
    if (t->norm == FV_NORM_RMS)
        f->rmsnorm(s, o->normed, stat, NULL, o->x, NULL, o->gain, t->rows, K, 1e-5f);
    fv_gemm g = {.m = t->rows,
                 .n = n,
                 .k = K,
                 .batch = 1,
                 .a = o->normed,
                 .b = o->packed,
                 .c = o->sum,
                 .lda = K,
                 .ldc = n,
                 .bt = t->weight};
    g.packed = true;
    g.bias = o->bias;
    g.act = act;
    f->gemm(s, &g);
    g.b = o->packed2;
    g.c = o->up;
    g.act = FV_ACT_NONE;
    f->gemm(s, &g);
}

static void norm_residual(fv_stream *s, float *y, const product_alone *o, const around *t,
                          int64_t n)
{
    const fv_kernels *f = gemm_device->k[FV_F32];
    float stat[4];
    if (t->norm == FV_NORM_LAYER)
        f->layernorm(s, y, stat, stat + 2, NULL, o->old, NULL, o->bias, o->bias, t->rows, n, 1e-5f);
    else
        f->rmsnorm(s, y, stat, NULL, o->old, NULL, o->bias, t->rows, n, 1e-5f);
}

static void check_around(const around *t)
{
    const fv_kernels *f = gemm_device->k[FV_F32];
    bool rotated = t->then == ROTATED, caches = t->then == CACHES || rotated,
         onto = t->then == ONTO || t->then == ONTO_NORM;
    int64_t n = rotated ? MOST_N : 261, each = n / 3, y_n = caches ? each : n;
    int64_t row = each + 5, batch = CAP * row + 7; /* positions and sequences lie apart */
    fv_act act = t->then == PLAIN || t->then == GATED ? FV_GELU_TANH : FV_ACT_NONE;
    float cache[2][2 * CAP * MOST_N], y[2 * MOST_N], want[2 * MOST_N], freq[11];
    const int32_t pos[] = {1, 2};
    product_alone o;
    fv_stream s;
    fv_err e = {0};
    assert_int_equal(fv__stream_open(&s, gemm_device, t->threads, &e), FV_OK);
    multiply_alone(&s, &o, t, n, act);
    for (int i = 0; i < 11; i++) freq[i] = 1 / (float)(1 + i);
    for (int64_t i = 0; i < t->rows && rotated; i++)
        for (int h = 0; h < 2; h++) {
            float *at = o.sum + i * n + h * each; /* four heads of 22, q or k */
            f->rope(&s, (fv_sink){.data = at, .dtype = FV_F32}, at, pos + i, freq, 1, 1, 4, 22, 11,
                    false, false);
        }
    memcpy(y, o.old, (size_t)(2 * n) * sizeof *y);
    memcpy(want, o.old, (size_t)(2 * n) * sizeof *y);
    if (t->then == ONTO_NORM) norm_residual(&s, want, &o, t, n);
    memset(cache, 0, sizeof cache);
    for (int64_t i = 0; i < t->rows; i++)
        for (int64_t j = 0; j < y_n; j++) {
            float x = o.sum[i * n + j], *to = want + i * y_n + j;
            *to = onto ? *to + x : t->then == GATED ? x * o.up[i * n + j] : x;
        }
    fv_fused_linear r = {.rows = t->rows,
                         .n = n,
                         .k = K,
                         .x = o.x,
                         .w = o.packed,
                         .wt = t->weight,
                         .bias = o.bias,
                         .norm = t->norm};
    r.gain = o.gain;
    r.shift = t->norm == FV_NORM_LAYER ? o.shift : NULL;
    r.eps = 1e-5f;
    r.act = act;
    if (onto) r.residual = t->then == ONTO ? y : o.old;
    if (t->then == ONTO_NORM) {
        r.residual_norm = t->norm ? t->norm : FV_NORM_RMS;
        r.residual_gain = o.bias;
        r.residual_shift = t->norm == FV_NORM_LAYER ? o.bias : NULL;
        r.residual_eps = 1e-5f;
    }
    r.y = y;
    r.y_n = y_n;
    if (t->then == GATED) r.up = o.packed2, r.up_bias = o.bias;
    if (rotated) r.rope = (fv_fused_rope){freq, pos, 0, 11, 22, false};
    if (caches) {
        r.k_cache = cache[0], r.v_cache = cache[1], r.pos = pos, r.cap = CAP;
        r.cache_row = row, r.cache_batch = batch;
    }
    assert_true(f->fused_linear(&s, &r));
    assert_memory_equal(y, want, (size_t)(2 * n) * sizeof *y);
    for (int64_t i = 0; i < t->rows && caches; i++)
        for (int h = 0; h < 2; h++)
            assert_memory_equal(cache[h] + i * batch + pos[i] * row, o.sum + i * n + (1 + h) * each,
                                (size_t)each * sizeof **cache);
    float *all[] = {o.x, o.w, o.w2, o.bias, o.gain, o.shift, o.old};
    for (int i = 0; i < 7; i++) free(all[i]);
    free(o.packed);
    free(o.packed2);
    fv__stream_close(&s);
}

static void test_fused_linear(void **state)
{
    (void)state;
    const fv_dtype kinds[] = {FV_F32, FV_BF16, FV_F16, FV_Q8, FV_Q4, FV_I8};
    for (int i = 0; i < 6 * 3 * 6 * 2; i++)
        check_around(&(around){.norm = (fv_norm_kind)(i / 6 % 3),
                               .then = i / 18 % 6,
                               .weight = kinds[i % 6],
                               .rows = 1 + i / 108,
                               .threads = 1 + i % 3});
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_fused_linear)};
    return cmocka_run_group_tests(tests, gemm_setup, gemm_teardown);
}
