/* test_gemm.c - the matrix product: right against double, and the same bits whatever surrounds a row.
 *
 * Runs once for each instruction level (FOVEA_CPU); one test compares the levels with each other.  What is expected
 * is computed here from the values as the kernel sees them: rounded to the dtype, or quantised in blocks of 32. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/ref/tables.h"
#include "core/core.h"

static fv_kernels reference[FV_FLOATS];
static fv_device *device;

/* ---- data ---- */

static uint64_t dice = 1;

static float uniform(void) /* -1..1 */
{
    dice = dice * 6364136223846793005u + 1442695040888963407u;
    return (float)(int32_t)(dice >> 32) * 0x1p-31f;
}

static void *memory(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 64) / 64 * 64);
    assert_non_null(p);
    return p;
}

/* n numbers of dtype t, and the same numbers as f32 in *f. */
static void *numbers(fv_dtype t, int64_t n, float **f)
{
    float *x = memory((size_t)n * 4);
    for (int64_t i = 0; i < n; i++) x[i] = uniform();
    void *p = memory((size_t)n * fv_dtype_size(t));
    reference[FV_F32].cast(NULL, (fv_sink){p, t, false}, x, n);
    reference[t].cast(NULL, (fv_sink){x, FV_F32, false}, p, n);
    *f = x;
    return p;
}

static void to_floats(float *f, const void *p, fv_dtype t, int64_t n)
{
    reference[t].cast(NULL, (fv_sink){f, FV_F32, false}, p, n);
}

/* Values of k of one row as the kernel sees them when the weight is packed as dt; weight: they are the weight's. */
static void as_seen(float *x, int64_t k, fv_dtype dt, bool weight)
{
    if (dt == FV_BF16 || (dt == FV_F16 && weight)) {
        uint16_t *h = memory((size_t)k * 2);
        reference[FV_F32].cast(NULL, (fv_sink){h, dt, false}, x, k);
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
        for (int64_t i = b; i < b + n; i++) x[i] = scale * fminf(rintf(x[i] * inverse), four ? 7.0f : 127.0f);
    }
}

/* ---- one case ---- */

typedef struct gemm_case {
    int64_t m, n, k, batch;
    bool ta, tb, add, bias, pre, pad; /* pad: leading dimensions larger than they need be */
    fv_act act;
    float alpha;
    fv_dtype table, ct;
    bool packed;
    fv_dtype pack_as;
} gemm_case;

typedef struct problem {
    fv_gemm g;
    float *a, *b, *bias, *c; /* as f32 */
    void *a_real, *b_real, *b_packed, *bias_real, *c_first;
    int64_t c_len;
} problem;

static problem make(const gemm_case *t)
{
    problem p = {0};
    int64_t pad = t->pad ? 3 : 0, batch = t->batch ? t->batch : 1;
    fv_gemm g = {.m = t->m,
                 .n = t->n,
                 .k = t->k,
                 .batch = batch,
                 .ta = t->ta,
                 .tb = t->tb,
                 .bt = t->table,
                 .ct = t->ct,
                 .add = t->add,
                 .alpha = t->alpha,
                 .act = t->act};
    g.lda = (t->ta ? t->m : t->k) + pad, g.ldb = (t->tb ? t->k : t->n) + pad, g.ldc = t->n + pad;
    g.stride_a = (t->ta ? t->k : t->m) * g.lda, g.stride_b = (t->tb ? t->n : t->k) * g.ldb, g.stride_c = t->m * g.ldc;
    p.c_len = batch * g.stride_c;
    p.a_real = numbers(t->table, batch * g.stride_a, &p.a);
    p.b_real = numbers(t->table, batch * g.stride_b, &p.b);
    p.bias_real = numbers(t->table, t->n, &p.bias);
    p.c_first = numbers(t->ct, p.c_len, &p.c);
    g.a = p.a_real, g.b = p.b_real;
    if (t->bias) g.bias = p.bias_real;
    p.g = g;
    return p;
}

static void drop(problem *p)
{
    void *all[] = {p->a, p->b, p->bias, p->c, p->a_real, p->b_real, p->b_packed, p->bias_real, p->c_first};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

/* C of a run with so many threads, into fresh memory. */
static void *run(fv_device *d, const gemm_case *t, const problem *p, int threads, void **pre)
{
    fv_stream s;
    fv_err e = {0};
    assert_int_equal(fv__stream_open(&s, d, threads, &e), FV_OK);
    size_t bytes = (size_t)p->c_len * fv_dtype_size(t->ct);
    void *c = memory(bytes), *packed = NULL;
    memcpy(c, p->c_first, bytes);
    fv_gemm g = p->g;
    g.c = c;
    if (t->pre) {
        *pre = g.pre = memory((size_t)p->c_len * fv_dtype_size(t->table));
        memset(g.pre, 0, (size_t)p->c_len * fv_dtype_size(t->table));
    }
    if (t->packed) {
        size_t size = d->k[t->table]->pack_bytes(g.n, g.k, t->pack_as);
        assert_true(size > 0);
        packed = memory(size);
        memset(packed, 0xff, size);
        d->k[t->table]->pack(&s, packed, t->pack_as, g.b, t->table, g.n, g.k, g.ldb, g.tb);
        g.packed = true, g.b = packed, g.bt = t->pack_as, g.ldb = 0, g.stride_b = 0, g.tb = false;
    }
    d->k[t->table]->gemm(&s, &g);
    assert_int_equal(s.err.code, FV_OK);
    fv__stream_close(&s);
    free(packed);
    return c;
}

static double activate(fv_act act, double x)
{
    switch (act) {
    case FV_RELU: return x > 0 ? x : 0;
    case FV_GELU: return 0.5 * x * (1 + erf(x * sqrt(0.5)));
    case FV_GELU_TANH: return 0.5 * x * (1 + tanh(sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
    case FV_SILU: return x / (1 + exp(-x));
    case FV_TANH: return tanh(x);
    case FV_SIGMOID: return 1 / (1 + exp(-x));
    default: return x;
    }
}

/* Rows of k values, as seen: row i of A, or column j of B, of one of the batch. */
static float *seen_rows(const float *x, int64_t count, int64_t k, int64_t ld, bool along_k, const gemm_case *t, bool weight)
{
    float *rows = memory((size_t)(count * k) * 4);
    fv_dtype dt = t->packed ? t->pack_as : t->table;
    for (int64_t i = 0; i < count; i++) {
        for (int64_t j = 0; j < k; j++) rows[i * k + j] = along_k ? x[i * ld + j] : x[j * ld + i];
        as_seen(rows + i * k, k, dt, weight);
    }
    return rows;
}

static double epsilon(fv_dtype t) { return t == FV_BF16 ? 0x1p-8 : t == FV_F16 ? 0x1p-11 : 0; }

static void near_one(const gemm_case *t, const char *what, double got, double want, double scale, fv_dtype stored)
{
    double most = 4e-6 * scale + 1e-6 + epsilon(stored) * fabs(want) + (stored == FV_F16 ? 1e-7 : 0);
    if (fabs(got - want) <= most) return;
    fail_msg("%s of m %d n %d k %d ta %d tb %d table %s packed %d as %s add %d act %d: %.9g, expected %.9g within %.2g", what,
             (int)t->m, (int)t->n, (int)t->k, t->ta, t->tb, fv_dtype_name(t->table), t->packed, fv_dtype_name(t->pack_as), t->add,
             t->act, got, want, most);
}

static void check_values(const gemm_case *t, const problem *p, const float *c, const float *pre)
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
        assert_memory_equal(c + i * g->ldc + g->n, p->c + i * g->ldc + g->n, (size_t)(g->ldc - g->n) * 4);
}

/* Right with one thread, and the same bits with two, three and four. */
static void check(const gemm_case *t)
{
    problem p = make(t);
    void *pre = NULL, *c = run(device, t, &p, 1, &pre);
    float *cf = memory((size_t)p.c_len * 4), *pf = memory((size_t)p.c_len * 4);
    to_floats(cf, c, t->ct, p.c_len);
    if (pre) to_floats(pf, pre, t->table, p.c_len);
    check_values(t, &p, cf, pre ? pf : NULL);
    for (int threads = 2; threads <= 4; threads++) {
        void *pre2 = NULL, *c2 = run(device, t, &p, threads, &pre2);
        assert_memory_equal(c, c2, (size_t)p.c_len * fv_dtype_size(t->ct));
        if (pre) assert_memory_equal(pre, pre2, (size_t)p.c_len * fv_dtype_size(t->table));
        free(c2);
        free(pre2);
    }
    free(cf);
    free(pf);
    free(c);
    free(pre);
    drop(&p);
}

/* ---- tests ---- */

static const int64_t sizes[][3] = {{1, 1, 1},    {1, 5, 33},   {2, 13, 7},    {3, 47, 256}, {4, 12, 257},   {5, 33, 64},
                                   {6, 96, 31},  {7, 31, 513}, {8, 8, 100},   {9, 25, 300}, {11, 130, 17},  {13, 49, 40},
                                   {14, 32, 32}, {15, 65, 65}, {16, 100, 96}, {17, 7, 600}, {130, 70, 270}, {29, 200, 1}};
#define SIZES (sizeof sizes / sizeof *sizes)

static void test_plain(void **state)
{
    (void)state;
    const fv_dtype tables[] = {FV_F32, FV_BF16, FV_F16};
    for (int d = 0; d < 3; d++)
        for (size_t i = 0; i < SIZES; i++)
            for (int flags = 0; flags < 4; flags++)
                check(&(gemm_case){.m = sizes[i][0],
                                   .n = sizes[i][1],
                                   .k = sizes[i][2],
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

static void test_packed(void **state)
{
    (void)state;
    const fv_dtype tables[] = {FV_F32, FV_BF16, FV_F16}, packs[] = {FV_F32, FV_BF16, FV_F16, FV_Q8, FV_Q4, FV_I8};
    for (int d = 0; d < 3; d++)
        for (int q = 0; q < 6; q++)
            for (size_t i = 0; i < SIZES; i++)
                check(&(gemm_case){.m = sizes[i][0],
                                   .n = sizes[i][1],
                                   .k = sizes[i][2],
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
                check(&(gemm_case){.m = m, .n = n, .k = 64, .tb = true, .packed = true, .pack_as = packs[q]});
}

static void test_activation(void **state)
{
    (void)state;
    const fv_dtype tables[] = {FV_F32, FV_BF16, FV_F16};
    for (int d = 0; d < 3; d++)
        for (fv_act act = FV_ACT_NONE; act <= FV_SIGMOID; act++)
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
            check(&(gemm_case){.m = 5, .n = 20, .k = 30, .batch = batch, .ta = flags & 1, .tb = flags & 2, .bias = true});
            check(&(gemm_case){.m = 65, .n = 90, .k = 300, .batch = batch, .ta = flags & 1, .tb = flags & 2, .add = true});
        }
}

/* All of a batch into one C: the products are added in order. */
static void test_batch_into_one(void **state)
{
    (void)state;
    gemm_case t = {.m = 40, .n = 50, .k = 60, .batch = 7, .add = true};
    problem p = make(&t);
    fv_gemm together = p.g, each = p.g;
    float *one = memory(40 * 50 * 4), *other = memory(40 * 50 * 4);
    memset(one, 0, 40 * 50 * 4);
    memset(other, 0, 40 * 50 * 4);
    fv_stream s;
    fv_err e = {0};
    assert_int_equal(fv__stream_open(&s, device, 3, &e), FV_OK);
    together.c = one;
    together.stride_c = 0;
    device->k[FV_F32]->gemm(&s, &together);
    each.c = other;
    each.batch = 1;
    for (int i = 0; i < 7; i++) {
        each.a = (const float *)p.g.a + i * p.g.stride_a;
        each.b = (const float *)p.g.b + i * p.g.stride_b;
        device->k[FV_F32]->gemm(&s, &each);
    }
    assert_memory_equal(one, other, 40 * 50 * 4);
    fv__stream_close(&s);
    free(one);
    free(other);
    drop(&p);
}

/* A weight as a file holds it gives the same bits as one that was laid out, in every dtype that both can have. */
static void test_stored(void **state)
{
    (void)state;
    const fv_dtype kinds[] = {FV_F32, FV_BF16, FV_F16};
    const int64_t shapes[][2] = {{40, 776}, {3112, 64}, {75, 400}, {17, 1032}, {8, 8}, {24, 33}};
    fv_stream s;
    fv_err e = {0};
    for (int q = 0; q < 3 * 6 * 2; q++) {
        fv_dtype dt = kinds[q % 3];
        bool tb = q / 18;
        int64_t n = shapes[q / 3 % 6][0], k = shapes[q / 3 % 6][1];
        float *wide, *a;
        void *w = numbers(dt, n * k, &wide);
        free(numbers(FV_F32, 9 * k, &a));
        void *packed = memory(device->k[FV_F32]->pack_bytes(n, k, dt));
        float *one = memory((size_t)(9 * n) * 4), *other = memory((size_t)(9 * n) * 4);
        for (int64_t m = 1; m <= 9; m++) {
            assert_int_equal(fv__stream_open(&s, device, 1 + (int)m % 3, &e), FV_OK);
            fv_gemm g = {.m = m, .n = n, .k = k, .batch = 1, .a = a, .b = w, .c = one, .bias = wide, .act = FV_GELU, .bt = dt};
            g.lda = k;
            g.ldb = tb ? k : n;
            g.ldc = n;
            g.tb = tb;
            g.alpha = m % 2 ? 0 : 0.5f;
            device->k[FV_F32]->gemm(&s, &g);
            device->k[FV_F32]->pack(&s, packed, dt, w, dt, n, k, g.ldb, tb);
            g.packed = true;
            g.b = packed;
            g.c = other;
            device->k[FV_F32]->gemm(&s, &g);
            assert_memory_equal(one, other, (size_t)(m * n) * 4);
            fv__stream_close(&s);
        }
        free(w);
        free(wide);
        free(a);
        free(packed);
        free(one);
        free(other);
    }
}

/* What stands around a product in a step of writing changes no bit: norm, product, and the sum or the caches behind it. */
typedef struct around {
    fv_norm_kind norm;
    enum { PLAIN, ONTO, CACHES } then;
    fv_dtype weight;
    int64_t rows;
    int threads;
} around;

static void check_around(const around *t)
{
    enum { N = 261, K = 130, EACH = 87, CAP = 3 }; /* enough for several threads */
    const fv_kernels *f = device->k[FV_F32];
    float *x, *w, *bias, *gain, *shift, *old, normed[2 * K], stat[4], sum[2 * N], cache[2][2 * CAP * EACH], y[2 * N], want[2 * N];
    float **all[] = {&x, &w, &bias, &gain, &shift, &old};
    const int64_t lens[] = {2 * K, N * K, N, K, K, 2 * N};
    const int32_t pos[] = {1, 2};
    for (int i = 0; i < 6; i++) free(numbers(FV_F32, lens[i], all[i]));
    void *packed = memory(f->pack_bytes(N, K, t->weight));
    fv_stream s;
    fv_err e = {0};
    assert_int_equal(fv__stream_open(&s, device, t->threads, &e), FV_OK);
    f->pack(&s, packed, t->weight, w, FV_F32, N, K, K, true);
    memcpy(normed, x, sizeof normed);
    if (t->norm == FV_NORM_LAYER) f->layernorm(&s, normed, stat, stat + 2, NULL, x, NULL, gain, shift, t->rows, K, 1e-5f);
    if (t->norm == FV_NORM_RMS) f->rmsnorm(&s, normed, stat, NULL, x, NULL, gain, t->rows, K, 1e-5f);
    fv_act act = t->then == PLAIN ? FV_GELU_TANH : FV_ACT_NONE;
    fv_gemm g = {
        .m = t->rows, .n = N, .k = K, .batch = 1, .a = normed, .b = packed, .c = sum, .lda = K, .ldc = N, .bt = t->weight};
    g.packed = true;
    g.bias = bias;
    g.act = act;
    f->gemm(&s, &g);
    int64_t y_n = t->then == CACHES ? EACH : N;
    memcpy(y, old, sizeof y);
    memcpy(want, old, sizeof want);
    memset(cache, 0, sizeof cache);
    for (int64_t i = 0; i < t->rows; i++)
        for (int64_t j = 0; j < y_n; j++)
            want[i * y_n + j] = t->then == ONTO ? old[i * y_n + j] + sum[i * N + j] : sum[i * N + j];
    fv_row_linear r = {.rows = t->rows, .n = N, .k = K, .x = x, .w = packed, .wt = t->weight, .bias = bias, .norm = t->norm};
    r.gain = gain;
    r.shift = t->norm == FV_NORM_LAYER ? shift : NULL;
    r.eps = 1e-5f;
    r.act = act;
    r.add = t->then == ONTO;
    r.y = y;
    r.y_n = y_n;
    if (t->then == CACHES) r.k_cache = cache[0], r.v_cache = cache[1], r.pos = pos, r.cap = CAP;
    assert_true(f->row_linear(&s, &r));
    assert_memory_equal(y, want, sizeof y);
    for (int64_t i = 0; i < t->rows && t->then == CACHES; i++)
        for (int h = 0; h < 2; h++)
            assert_memory_equal(cache[h] + (i * CAP + pos[i]) * EACH, sum + i * N + (1 + h) * EACH, EACH * 4);
    for (int i = 0; i < 6; i++) free(*all[i]);
    free(packed);
    fv__stream_close(&s);
}

static void test_row_linear(void **state)
{
    (void)state;
    const fv_dtype kinds[] = {FV_F32, FV_BF16, FV_F16, FV_Q8, FV_Q4, FV_I8};
    for (int i = 0; i < 6 * 3 * 3 * 2; i++)
        check_around(&(around){.norm = (fv_norm_kind)(i / 6 % 3),
                               .then = i / 18 % 3,
                               .weight = kinds[i % 6],
                               .rows = 1 + i / 54,
                               .threads = 1 + i % 3});
}

/* k = 0 is an empty sum, not an untouched C. */
static void test_empty_sum(void **state)
{
    (void)state;
    float c[6] = {9, 9, 9, 9, 9, 9}, bias[3] = {1, 2, 3}, none = 0;
    fv_stream s;
    fv_err e = {0};
    assert_int_equal(fv__stream_open(&s, device, 1, &e), FV_OK);
    device->k[FV_F32]->gemm(&s, &(fv_gemm){.m = 2, .n = 3, .batch = 1, .a = &none, .b = &none, .c = c, .ldc = 3, .bias = bias});
    for (int i = 0; i < 6; i++) assert_true(c[i] == bias[i % 3]);
    fv__stream_close(&s);
}

/* A row has the same bits alone and among others, and with the weight packed or not. */
static void test_row_alone(void **state)
{
    (void)state;
    const fv_dtype packs[] = {FV_F32, FV_BF16, FV_F16, FV_Q8, FV_Q4, FV_I8};
    for (int q = 0; q < 6; q++)
        for (int64_t m = 2; m < 70; m += 1 + m / 3) {
            gemm_case t = {
                .m = m, .n = 75, .k = 530, .tb = true, .packed = true, .pack_as = packs[q], .bias = true, .act = FV_GELU};
            problem p = make(&t);
            float *all = run(device, &t, &p, 2, NULL);
            for (int64_t i = 0; i < m; i++) {
                gemm_case alone = t;
                problem row = p;
                alone.m = row.g.m = 1;
                row.g.a = (const float *)p.g.a + i * p.g.lda;
                row.c_len = row.g.ldc;
                float *one = run(device, &alone, &row, 1, NULL);
                assert_memory_equal(one, all + i * p.g.ldc, 75 * 4);
                free(one);
            }
            if (packs[q] == FV_F32) {
                gemm_case plain = t;
                plain.packed = false;
                float *other = run(device, &plain, &p, 1, NULL);
                assert_memory_equal(other, all, (size_t)p.c_len * 4);
                free(other);
            }
            free(all);
            drop(&p);
        }
}

/* A long inner axis is taken in pieces where there are many rows, and whole where there are few: no bit may tell. */
static void test_long_row_alone(void **state)
{
    (void)state;
    const fv_dtype tables[] = {FV_F32, FV_BF16};
    for (int flags = 0; flags < 16; flags++) {
        fv_dtype table = tables[flags & 1];
        gemm_case t = {.m = 330,
                       .n = 21,
                       .k = 20011,
                       .tb = flags & 2,
                       .pad = true,
                       .table = table,
                       .ct = flags & 4 ? FV_F32 : table,
                       .add = flags & 8,
                       .bias = !(flags & 8),
                       .act = flags & 8 ? FV_ACT_NONE : FV_RELU};
        size_t size = fv_dtype_size(t.ct);
        problem p = make(&t);
        char *all = run(device, &t, &p, 2, NULL);
        for (int64_t i = 0; i < 330; i += 47) {
            gemm_case alone = t;
            problem row = p;
            alone.m = row.g.m = 1;
            row.g.a = (const char *)p.g.a + (size_t)(i * p.g.lda) * fv_dtype_size(table);
            row.c_first = (char *)p.c_first + (size_t)(i * p.g.ldc) * size;
            row.c_len = row.g.ldc;
            char *one = run(device, &alone, &row, 1, NULL);
            assert_memory_equal(one, all + (size_t)(i * p.g.ldc) * size, 21 * size);
            free(one);
        }
        free(all);
        drop(&p);
    }
}

/* A large second factor is laid out a slice at a time; one that came laid out is taken whole. */
static void test_slices(void **state)
{
    (void)state;
    gemm_case t = {.m = 272, .n = 1450, .k = 3000, .tb = true}, laid_out = t;
    laid_out.packed = true;
    problem p = make(&t);
    float *whole = run(device, &laid_out, &p, 2, NULL);
    for (int threads = 1; threads <= 3; threads++) {
        float *slices = run(device, &t, &p, threads, NULL);
        assert_memory_equal(slices, whole, (size_t)p.c_len * sizeof *whole);
        free(slices);
    }
    free(whole);
    drop(&p);
}

/* With fused multiply-add the fast product in f32 is the reference, bit by bit. */
static void test_documented_order(void **state)
{
    (void)state;
#if defined(__x86_64__)
    if (!strcmp(device->level, "generic")) skip();
#endif
    for (size_t i = 0; i < SIZES; i++)
        for (int flags = 0; flags < 8; flags++) {
            gemm_case t = {.m = sizes[i][0],
                           .n = sizes[i][1],
                           .k = sizes[i][2],
                           .ta = flags & 1,
                           .tb = flags & 2,
                           .add = flags & 4,
                           .bias = !(flags & 4),
                           .alpha = i % 2 ? 0.3f : 0};
            problem p = make(&t);
            float *fast = run(device, &t, &p, 2, NULL);
            fv_device plain = *device;
            plain.k[FV_F32] = &reference[FV_F32];
            float *slow = run(&plain, &t, &p, 1, NULL);
            assert_memory_equal(fast, slow, (size_t)p.c_len * 4);
            free(fast);
            free(slow);
            drop(&p);
        }
}

/* Levels with fused multiply-add agree bit by bit, in f32 and with quantised weights. */
static void test_levels_agree(void **state)
{
    (void)state;
    const char *names[8];
    int n = fv_cpu_levels(names, 8);
    const fv_dtype packs[] = {FV_F32, FV_F16, FV_Q8, FV_Q4, FV_I8};
    for (int q = 0; q < 5; q++) {
        gemm_case t = {.m = 19, .n = 61, .k = 700, .tb = true, .packed = true, .pack_as = packs[q], .bias = true};
        problem p = make(&t);
        float *first = NULL;
        for (int i = 0; i < n; i++) {
            fv_device *d;
            fv_err e = {0};
#if defined(__x86_64__)
            if (!strcmp(names[i], "generic")) continue;
#endif
            assert_int_equal(fv_device_open(&d, "cpu", (fv_device_opt){.level = names[i], .threads = 2}, &e), FV_OK);
            float *c = run(d, &t, &p, 2, NULL);
            if (first) assert_memory_equal(c, first, (size_t)p.c_len * 4);
            if (first)
                free(c);
            else
                first = c;
            fv_device_close(d);
        }
        free(first);
        drop(&p);
    }
}

/* The largest value of a block is kept exactly enough, zeros stay zeros, and an infinite one does not hide. */
static void test_quantised_extremes(void **state)
{
    (void)state;
    const fv_dtype packs[] = {FV_Q8, FV_Q4, FV_I8};
    for (int q = 0; q < 3; q++) {
        gemm_case t = {.m = 2, .n = 3, .k = 64, .tb = true, .packed = true, .pack_as = packs[q]};
        problem p = make(&t);
        float *a = p.a_real, *b = p.b_real;
        memset(a, 0, 64 * 4);
        memset(b, 0, 64 * 4);
        a[70] = 1e30f;
        a[100] = 0x1p-120f;
        b[64] = -1e-30f;
        float *c = run(device, &t, &p, 1, NULL);
        for (int j = 0; j < 3; j++) assert_true(c[j] == 0);
        for (int i = 0; i < 2; i++) assert_true(c[i * 3] == 0);
        assert_true(isfinite(c[5]));
        free(c);
        a[64] = INFINITY;
        c = run(device, &t, &p, 1, NULL);
        assert_true(!isfinite(c[5]));
        for (int j = 0; j < 3; j++) assert_true(c[j] == 0);
        free(c);
        drop(&p);
    }
}

static int setup(void **state)
{
    (void)state;
    fv__ref_fill(reference);
    return fv_device_open(&device, "cpu", (fv_device_opt){0}, NULL);
}

static int teardown(void **state)
{
    (void)state;
    fv_device_close(device);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain),          cmocka_unit_test(test_packed),
        cmocka_unit_test(test_every_small_m),  cmocka_unit_test(test_activation),
        cmocka_unit_test(test_batch),          cmocka_unit_test(test_batch_into_one),
        cmocka_unit_test(test_stored),         cmocka_unit_test(test_row_linear),

        cmocka_unit_test(test_empty_sum),      cmocka_unit_test(test_row_alone),
        cmocka_unit_test(test_long_row_alone), cmocka_unit_test(test_documented_order),
        cmocka_unit_test(test_many_rows),      cmocka_unit_test(test_slices),
        cmocka_unit_test(test_levels_agree),   cmocka_unit_test(test_quantised_extremes),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
