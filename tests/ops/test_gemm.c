/* test_gemm.c - the matrix product, against double.
 *
 * Runs once for each instruction level (FOVEA_CPU).  What is expected is computed here from the
 * values as the kernel sees them: rounded to the dtype, or quantised in blocks of 32. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "helper/gemm.h"

static void to_floats(float *f, const void *p, fv_dtype t, int64_t n)
{
    gemm_reference[t].cast(NULL, (fv_sink){f, FV_F32, false}, p, n);
}

/* Values of k of one row as the kernel sees them when the weight is packed as dt; weight: they are
 * the weight's. */
static void as_seen(float *x, int64_t k, fv_dtype dt, bool weight)
{
    if (dt == FV_BF16 || (dt == FV_F16 && weight)) {
        uint16_t *h = gemm_memory((size_t)k * 2);
        gemm_reference[FV_F32].cast(NULL, (fv_sink){h, dt, false}, x, k);
        to_floats(x, h, dt, k);
        free(h);
    }
    if (dt != FV_Q8 && dt != FV_Q4 && dt != FV_I8) return;
    int64_t block = dt == FV_I8 ? 4096 : 32;
    for (int64_t b = 0; b < k; b += block) {
        int64_t n = k - b < block ? k - b : block;
        float most = 0;
        for (int64_t i = b; i < b + n; i++)
            if (fabsf(x[i]) > fabsf(most)) most = x[i];
        if (most == 0) continue;
        bool four = dt == FV_Q4 && weight;
        float inverse = four ? -8.0f / most : 127.0f / fabsf(most);
        float scale = four ? most / -8.0f : fabsf(most) / 127.0f;
        for (int64_t i = b; i < b + n; i++)
            x[i] = scale * fminf(rintf(x[i] * inverse), four ? 7.0f : 127.0f);
    }
}

static double activate(fv_act act, double x)
{
    switch (act) {
    case FV_RELU: return x > 0 ? x : 0;
    case FV_GELU: return 0.5 * x * (1 + erf(x * sqrt(0.5)));
    case FV_GELU_TANH:
        return 0.5 * x * (1 + tanh(sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
    case FV_SILU: return x / (1 + exp(-x));
    case FV_TANH: return tanh(x);
    case FV_SIGMOID: return 1 / (1 + exp(-x));
    case FV_QUICK_GELU: return x / (1 + exp(-1.702 * x));
    default: return x;
    }
}

/* Rows of k values, as seen: row i of A, or column j of B, of one of the batch. */
static float *seen_rows(const float *x, int64_t count, int64_t k, int64_t ld, bool along_k,
                        const gemm_case *t, bool weight)
{
    float *rows = gemm_memory((size_t)(count * k) * 4);
    fv_dtype dt = t->packed ? t->pack_as : t->table;
    for (int64_t i = 0; i < count; i++) {
        for (int64_t j = 0; j < k; j++) rows[i * k + j] = along_k ? x[i * ld + j] : x[j * ld + i];
        as_seen(rows + i * k, k, dt, weight);
    }
    return rows;
}

static double epsilon(fv_dtype t) { return t == FV_BF16 ? 0x1p-8 : t == FV_F16 ? 0x1p-11 : 0; }

static void near_one(const gemm_case *t, const char *what, double got, double want, double scale,
                     fv_dtype stored)
{
    double most = 4e-6 * scale + 1e-6 + epsilon(stored) * fabs(want) +
                  (stored == FV_F16 ? 1e-7 : 0);
    if (fabs(got - want) <= most) return;
    fail_msg("%s of m %d n %d k %d ta %d tb %d table %s packed %d as %s add %d act %d: %.9g, "
             "expected %.9g within %.2g",
             what, (int)t->m, (int)t->n, (int)t->k, t->ta, t->tb, fv_dtype_name(t->table),
             t->packed, fv_dtype_name(t->pack_as), t->add, t->act, got, want, most);
}

static void check_values(const gemm_case *t, const gemm_problem *p, const float *c,
                         const float *pre)
{
    const fv_gemm *g = &p->g;
    double alpha = g->alpha == 0 ? 1 : (double)g->alpha;
    for (int64_t e = 0; e < g->batch; e++) {
        float *a = seen_rows(p->a + e * g->stride_a, g->m, g->k, g->lda, !g->ta, t, false);
        float *b = seen_rows(p->b + e * g->stride_b, g->n, g->k, g->ldb, g->tb, t, true);
        for (int64_t i = 0; i < g->m; i++)
            for (int64_t j = 0; j < g->n; j++) {
                double sum = 0, scale = 0;
                for (int64_t k = 0; k < g->k; k++) {
                    double x = (double)a[i * g->k + k] * b[j * g->k + k];
                    sum += x;
                    scale += fabs(x);
                }
                int64_t at = e * g->stride_c + i * g->ldc + j;
                double want = alpha * sum + (g->add ? p->c[at] : 0) + (g->bias ? p->bias[j] : 0);
                scale = fabs(alpha) * scale + fabs(want) + 1;
                if (pre) near_one(t, "pre", pre[at], want, scale, t->table);
                near_one(t, "c", c[at], activate(t->act, want), 2 * scale, t->ct);
            }
        free(a);
        free(b);
    }
    for (int64_t i = 0; i < g->batch * g->m; i++) /* what lies between the rows is not ours */
        assert_memory_equal(c + i * g->ldc + g->n, p->c + i * g->ldc + g->n,
                            (size_t)(g->ldc - g->n) * 4);
}

/* Right with one thread, and the same bits with two, three and twelve: many divide C otherwise. */
static void check(const gemm_case *t)
{
    gemm_problem p = gemm_make(t);
    void *pre = NULL, *c = gemm_run(gemm_device, t, &p, 1, &pre);
    float *cf = gemm_memory((size_t)p.c_len * 4), *pf = gemm_memory((size_t)p.c_len * 4);
    to_floats(cf, c, t->ct, p.c_len);
    if (pre) to_floats(pf, pre, t->table, p.c_len);
    check_values(t, &p, cf, pre ? pf : NULL);
    for (int threads = 2; threads <= 12; threads += threads == 2 ? 1 : 9) {
        void *pre2 = NULL, *c2 = gemm_run(gemm_device, t, &p, threads, &pre2);
        assert_memory_equal(c, c2, (size_t)p.c_len * fv_dtype_size(t->ct));
        if (pre) assert_memory_equal(pre, pre2, (size_t)p.c_len * fv_dtype_size(t->table));
        free(c2);
        free(pre2);
    }
    free(cf);
    free(pf);
    free(c);
    free(pre);
    gemm_drop(&p);
}

/* ---- tests ---- */

static void test_plain(void **state)
{
    (void)state;
    const fv_dtype tables[] = {FV_F32, FV_BF16, FV_F16};
    for (int d = 0; d < 3; d++)
        for (size_t i = 0; i < gemm_sizes_n; i++)
            for (int flags = 0; flags < 4; flags++)
                check(&(gemm_case){.m = gemm_sizes[i][0],
                                   .n = gemm_sizes[i][1],
                                   .k = gemm_sizes[i][2],
                                   .ta = flags & 1,
                                   .tb = flags & 2,
                                   .table = tables[d],
                                   .ct = i % 3 ? tables[d] : FV_F32,
                                   .pad = i % 2,
                                   .add = i % 4 == 1,
                                   .alpha = i % 3 == 1 ? -0.3f : 0});
}

/* So many that each thread gets rows of its own, in several blocks. */
static void test_many_rows(void **state)
{
    (void)state;
    const fv_dtype tables[] = {FV_F32, FV_BF16, FV_F16};
    for (int d = 0; d < 3; d++)
        for (int flags = 0; flags < 4; flags++)
            check(&(gemm_case){.m = 1030,
                               .n = 21,
                               .k = 400,
                               .ta = flags & 1,
                               .tb = flags & 2,
                               .table = tables[d],
                               .ct = flags == 2 ? FV_F32 : tables[d],
                               .pad = flags == 1,
                               .add = flags == 3,
                               .bias = flags == 2});
}

/* Many threads take longer runs of k in bf16, or each packs what it needs of a shallow product. */
static void test_many_threads(void **state)
{
    static const int64_t sizes[][3] = {{70, 130, 1700}, {300, 500, 600}, {530, 70, 800}};
    (void)state;
    for (int i = 0; i < 3; i++)
        for (int flags = 0; flags < 4; flags++)
            check(&(gemm_case){.m = sizes[i][0],
                               .n = sizes[i][1],
                               .k = sizes[i][2],
                               .tb = flags != 3,
                               .table = FV_BF16,
                               .ct = flags & 1 ? FV_F32 : FV_BF16,
                               .add = flags == 1,
                               .bias = flags == 2,
                               .alpha = flags == 3 ? 0.7f : 0});
}

static void test_packed(void **state)
{
    (void)state;
    const fv_dtype tables[] = {FV_F32, FV_BF16, FV_F16},
                   packs[] = {FV_F32, FV_BF16, FV_F16, FV_Q8, FV_Q4, FV_I8};
    for (int d = 0; d < 3; d++)
        for (int q = 0; q < 6; q++)
            for (size_t i = 0; i < gemm_sizes_n; i++)
                check(&(gemm_case){.m = gemm_sizes[i][0],
                                   .n = gemm_sizes[i][1],
                                   .k = gemm_sizes[i][2],
                                   .ta = i % 5 == 4,
                                   .tb = i % 4 != 3,
                                   .table = tables[d],
                                   .ct = i % 3 ? tables[d] : FV_F32,
                                   .pad = i % 2,
                                   .add = i % 4 == 1,
                                   .alpha = i % 3 == 1 ? 0.7f : 0,
                                   .packed = true,
                                   .pack_as = packs[q]});
}

static void test_every_small_m(void **state)
{
    (void)state;
    const fv_dtype packs[] = {FV_F32, FV_BF16, FV_F16, FV_Q8, FV_Q4, FV_I8};
    for (int q = 0; q < 6; q++)
        for (int64_t m = 1; m <= 17; m++)
            for (int64_t n = 250; n < 253; n += 2)
                check(&(gemm_case){
                    .m = m, .n = n, .k = 64, .tb = true, .packed = true, .pack_as = packs[q]});
}

static void test_activation(void **state)
{
    (void)state;
    const fv_dtype tables[] = {FV_F32, FV_BF16, FV_F16};
    for (int d = 0; d < 3; d++)
        for (fv_act act = FV_ACT_NONE; act <= FV_QUICK_GELU; act++)
            for (int i = 0; i < 4; i++)
                check(&(gemm_case){.m = 1 + 9 * i,
                                   .n = 37,
                                   .k = 20 + 250 * (i % 2),
                                   .tb = i % 2,
                                   .bias = i != 2,
                                   .pre = i > 1,
                                   .act = act,
                                   .table = tables[d],
                                   .ct = tables[d],
                                   .pad = i % 2,
                                   .packed = i == 3,
                                   .pack_as = FV_F32});
}

static void test_batch(void **state)
{
    (void)state;
    for (int64_t batch = 2; batch < 20; batch += 5)
        for (int flags = 0; flags < 4; flags++) {
            check(&(gemm_case){.m = 5,
                               .n = 20,
                               .k = 30,
                               .batch = batch,
                               .ta = flags & 1,
                               .tb = flags & 2,
                               .bias = true});
            check(&(gemm_case){.m = 65,
                               .n = 90,
                               .k = 300,
                               .batch = batch,
                               .ta = flags & 1,
                               .tb = flags & 2,
                               .add = true});
        }
}

/* k = 0 is an empty sum, not an untouched C. */
static void test_empty_sum(void **state)
{
    (void)state;
    float c[6] = {9, 9, 9, 9, 9, 9}, bias[3] = {1, 2, 3}, none = 0;
    fv_stream s;
    fv_err e = {0};
    assert_int_equal(fv__stream_open(&s, gemm_device, 1, &e), FV_OK);
    gemm_device->k[FV_F32]->gemm(
        &s,
        &(fv_gemm){
            .m = 2, .n = 3, .batch = 1, .a = &none, .b = &none, .c = c, .ldc = 3, .bias = bias});
    for (int i = 0; i < 6; i++) assert_true(c[i] == bias[i % 3]);
    fv__stream_close(&s);
}

/* The largest value of a block is kept exactly enough, zeros stay zeros, and an infinite one does
 * not hide. */
static void test_quantised_extremes(void **state)
{
    (void)state;
    const fv_dtype packs[] = {FV_Q8, FV_Q4, FV_I8};
    for (int q = 0; q < 3; q++) {
        gemm_case t = {.m = 2, .n = 3, .k = 64, .tb = true, .packed = true, .pack_as = packs[q]};
        gemm_problem p = gemm_make(&t);
        float *a = p.a_real, *b = p.b_real;
        memset(a, 0, 64 * 4);
        memset(b, 0, 64 * 4);
        a[70] = 1e30f;
        a[100] = 0x1p-120f;
        b[64] = -1e-30f;
        float *c = gemm_run(gemm_device, &t, &p, 1, NULL);
        for (int j = 0; j < 3; j++) assert_true(c[j] == 0);
        for (int i = 0; i < 2; i++) assert_true(c[i * 3] == 0);
        assert_true(isfinite(c[5]));
        free(c);
        a[64] = INFINITY;
        c = gemm_run(gemm_device, &t, &p, 1, NULL);
        assert_true(!isfinite(c[5]));
        for (int j = 0; j < 3; j++) assert_true(c[j] == 0);
        free(c);
        gemm_drop(&p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain),
        cmocka_unit_test(test_many_rows),
        cmocka_unit_test(test_many_threads),
        cmocka_unit_test(test_packed),
        cmocka_unit_test(test_every_small_m),
        cmocka_unit_test(test_activation),
        cmocka_unit_test(test_batch),
        cmocka_unit_test(test_empty_sum),
        cmocka_unit_test(test_quantised_extremes),
    };
    return cmocka_run_group_tests(tests, gemm_setup, gemm_teardown);
}
