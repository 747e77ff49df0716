/* test_attention.c - the attention kernels of this level against the reference in f64, and their
 * promises. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "helper/attention.h"
#include "backend/ref/tables.h"
#include "fovea/fovea.h"

static fv_device *dev;
static fv_kernels ref[FV_FLOATS];

/* A stream without a context. */
static fv_stream stream(int threads) { return (fv_stream){.dev = dev, .threads = threads}; }

static void stream_free(fv_stream *s)
{
    if (s->scratch) dev->backend->release(dev, s->scratch, s->scratch_bytes);
    *s = (fv_stream){0};
}

/* ---- value and gradient ---- */

typedef struct bound {
    double y, lse, grad;
} bound; /* largest relative errors allowed */

static void check(const char *what, double got, double most, const problem *p)
{
    sizes n = p->n;
    if (got <= most) return;
    fail_msg("%s is off by %.3g > %.3g: B%d Tq%d Tk%d H%d G%d Wk%d Wv%d options %#x seed %d", what,
             got, most, (int)n.B, (int)n.Tq, (int)n.Tk, (int)n.H, (int)n.G, (int)n.Wk, (int)n.Wv,
             (unsigned)p->options, (int)p->seed);
}

static void compare(const problem *p, const answer *got, const answer *want, bound most)
{
    check("y", difference(got->y, want->y, p->n_y), most.y, p);
    check("lse", difference(got->lse, want->lse, p->n.B * p->n.H * p->n.Tq), most.lse, p);
    check("dq", difference(got->dq, want->dq, p->n_q), most.grad, p);
    check("dk", difference(got->dk, want->dk, p->n_k), most.grad, p);
    check("dv", difference(got->dv, want->dv, p->n_v), most.grad, p);
    check("dbias", difference(got->dbias, want->dbias, p->n_bias), most.grad, p);
    check("drel", difference(got->drel, want->drel, p->n_rel), most.grad, p);
}

static void one(sizes n, int options, uint64_t seed, fv_dtype t, bound most, int threads)
{
    fv_stream s = stream(threads);
    problem p = problem_new(n, options, seed);
    answer want = answer_new(&p, &ref[FV_F64], &s), got = answer_new(&p, dev->k[t], &s);
    assert_int_equal(s.err.code, FV_OK);
    compare(&p, &got, &want, most);
    answer_free(&got);
    answer_free(&want);
    problem_free(&p);
    stream_free(&s);
}

static const bound f32 = {2e-6, 2e-6, 2e-5};

static const sizes small[] = {
    {1, 1, 1, 1, 1, 3, 3},   {2, 7, 7, 2, 2, 16, 16},  {3, 5, 9, 4, 2, 3, 5},
    {2, 1, 13, 2, 1, 16, 8}, {2, 2, 33, 1, 1, 40, 3},  {2, 17, 33, 2, 1, 8, 16},
    {1, 49, 50, 2, 2, 4, 4}, {2, 13, 100, 1, 1, 8, 8},
};
#define N_SMALL (sizeof small / sizeof *small)

static void every_combination_of_options(void **state)
{
    (void)state;
    for (int options = 0; options < 1024; options++)
        one(small[(size_t)options % N_SMALL], options, (uint64_t)options + 1, FV_F32, f32,
            1 + options % 3);
}

static void every_size(void **state)
{
    static const sizes sizes_[] = {
        {1, 33, 33, 2, 2, 64, 64},   {1, 65, 65, 1, 1, 64, 64},  {1, 130, 130, 2, 1, 128, 128},
        {2, 130, 65, 2, 2, 80, 40},  {1, 65, 130, 4, 1, 40, 80}, {1, 7, 300, 2, 2, 64, 64},
        {1, 300, 7, 2, 2, 16, 16},   {2, 1, 300, 4, 2, 64, 64},  {1, 3, 257, 1, 1, 3, 128},
        {1, 200, 200, 1, 1, 128, 3}, {1, 97, 193, 1, 1, 16, 16}, {1, 1, 1000, 1, 1, 64, 64},
        {1, 250, 250, 3, 3, 8, 8},
    };
    static const int options[] = {
        0,       CAUSAL,        CAUSAL | WINDOW, LENS | CAUSAL, MASK, BIAS | APART, REL | CAUSAL,
        DROPOUT, KEY_MASK | ADD};
    (void)state;
    for (size_t i = 0; i < sizeof sizes_ / sizeof *sizes_; i++)
        for (size_t o = 0; o < sizeof options / sizeof *options; o++)
            one(sizes_[i], options[o], i * 100 + o, FV_F32, f32, 1 + (int)o % 3);
}

static void narrow_dtypes(void **state)
{
    static const bound bf16 = {1e-2, 3e-6, 5e-2}, f16 = {1e-3, 3e-6, 6e-3};
    (void)state;
    for (int options = 0; options < 1024; options += 7) {
        one(small[(size_t)options % N_SMALL], options & ~ADD, (uint64_t)options, FV_BF16, bf16, 2);
        one(small[(size_t)options % N_SMALL], options & ~ADD, (uint64_t)options, FV_F16, f16, 2);
    }
    one((sizes){1, 130, 130, 2, 1, 64, 64}, CAUSAL, 1, FV_BF16, bf16, 2);
    one((sizes){1, 130, 130, 2, 1, 64, 64}, CAUSAL | ADD, 1, FV_F16, f16, 2);
}

/* ---- gradients of the reference, by differences ---- */

/* Sum of dy * y for the problem as it is. */
static double loss(const problem *p, fv_stream *s)
{
    prepared x = prepare(p, FV_F64);
    double sum = 0;
    ref[FV_F64].attention(s, &x.a);
    for (int64_t i = 0; i < p->n_y; i++) sum += p->dy[i] * ((double *)x.a.y)[i];
    prepared_free(&x);
    return sum;
}

static void differ(const problem *p, double *x, const double *grad, int64_t n, const char *what,
                   fv_stream *s)
{
    const double h = 1e-3;
    double most = 0, scale = 0.05;
    for (int64_t i = 0; i < n; i++) {
        double at = x[i], f[4], step[4] = {-2, -1, 1, 2};
        for (int k = 0; k < 4; k++) {
            x[i] = at + step[k] * h;
            f[k] = loss(p, s);
        }
        x[i] = at;
        double want = (f[0] - 8 * f[1] + 8 * f[2] - f[3]) / (12 * h);
        most = fmax(most, fabs(grad[i] - want));
        scale = fmax(scale, fabs(want));
    }
    check(what, most / scale, 1e-6, p);
}

static void reference_gradient_is_the_slope(void **state)
{
    (void)state;
    for (int options = 0; options < 256; options++) {
        fv_stream s = stream(1);
        problem p = problem_new((sizes){2, 3, 5, 2, 1 + options % 2, 3, 2}, options,
                                (uint64_t)options + 1);
        answer a = answer_new(&p, &ref[FV_F64], &s);
        differ(&p, p.q, a.dq, p.n_q, "dq against differences", &s);
        differ(&p, p.k, a.dk, p.n_k, "dk against differences", &s);
        differ(&p, p.v, a.dv, p.n_v, "dv against differences", &s);
        differ(&p, p.bias, a.dbias, p.n_bias, "dbias against differences", &s);
        differ(&p, p.rel, a.drel, p.n_rel, "drel against differences", &s);
        answer_free(&a);
        problem_free(&p);
        stream_free(&s);
    }
}

/* ---- the same bits ---- */

static void same(const double *a, const double *b, int64_t n, const char *what, const problem *p)
{
    check(what, n && memcmp(a, b, (size_t)n * sizeof *a) ? 1 : 0, 0, p);
}

static void same_for_any_number_of_threads(sizes n, int options, uint64_t seed, fv_dtype t)
{
    fv_stream s = stream(1);
    problem p = problem_new(n, options, seed);
    answer one_thread = answer_new(&p, dev->k[t], &s);
    for (s.threads = 2; s.threads <= 4; s.threads++) {
        answer more = answer_new(&p, dev->k[t], &s);
        same(more.y, one_thread.y, p.n_y, "y on more threads", &p);
        same(more.lse, one_thread.lse, p.n.B * p.n.H * p.n.Tq, "lse on more threads", &p);
        same(more.dq, one_thread.dq, p.n_q, "dq on more threads", &p);
        same(more.dk, one_thread.dk, p.n_k, "dk on more threads", &p);
        same(more.dv, one_thread.dv, p.n_v, "dv on more threads", &p);
        same(more.dbias, one_thread.dbias, p.n_bias, "dbias on more threads", &p);
        same(more.drel, one_thread.drel, p.n_rel, "drel on more threads", &p);
        answer_free(&more);
    }
    answer_free(&one_thread);
    problem_free(&p);
    stream_free(&s);
}

static void same_bits_for_any_number_of_threads(void **state)
{
    static const sizes n[] = {{1, 400, 400, 1, 1, 16, 16}, {1, 130, 500, 4, 2, 8, 16},
                              {3, 200, 200, 2, 2, 16, 16}, {1, 1100, 40, 1, 1, 16, 16},
                              {3, 90, 800, 3, 3, 8, 8},    {2, 1, 700, 3, 3, 64, 64}};
    static const int options[] = {0,
                                  CAUSAL,
                                  BIAS,
                                  REL | CAUSAL,
                                  DROPOUT | BIAS,
                                  MASK | LENS | CAUSAL,
                                  KEY_MASK | WINDOW | CAUSAL};
    (void)state;
    for (size_t i = 0; i < sizeof n / sizeof *n * (sizeof options / sizeof *options); i++) {
        for (uint64_t seed = 0; seed < 8;
             seed += i % 7 == 2 ? 1 : 8) /* bias: with each axis repeated or not */
            same_for_any_number_of_threads(n[i / 7], options[i % 7], seed, FV_F32);
        same_for_any_number_of_threads(n[i / 7], options[i % 7], i, FV_BF16);
    }
}

/* Rows [i, i+m) of sequence b alone: as if the others had been there before, in a cache of which
 * only len keys count. */
static void alone(const problem *p, const prepared *all, int64_t b, int64_t i, int64_t m,
                  fv_dtype t, fv_stream *s)
{
    fv_attn_args a = all->a;
    int64_t size = (int64_t)fv_dtype_size(t);
    int32_t len = (int32_t)(a.causal ? i + m + a.Tk - a.Tq : a.lens ? a.lens[b] : a.Tk);
    char *y = calloc((size_t)(m * a.H * a.Wv), (size_t)size);
    float *lse = calloc((size_t)(2 * a.H * m), sizeof *lse);
    a.B = 1;
    a.Tq = m;
    a.q = (const char *)a.q + (b * a.q_batch + i * a.q_row) * size;
    a.k = (const char *)a.k + b * a.k_batch * size;
    a.v = (const char *)a.v + b * a.v_batch * size;
    a.y = y;
    a.lse = lse;
    a.lens = &len;
    if (a.key_mask) a.key_mask += b * a.Tk;
    if (a.mask) a.mask += b * a.mask_s[0] + i * a.mask_s[2];
    if (a.bias) a.bias = (const char *)a.bias + (b * a.bias_s[0] + i * a.bias_s[2]) * size;
    dev->k[t]->attention(s, &a);
    for (int64_t r = 0; r < m; r++) {
        const int64_t bytes = a.H * a.Wv * size;
        const char *row = (const char *)all->a.y + (b * all->a.Tq + i + r) * bytes;
        check("a row alone", memcmp(y + r * bytes, row, (size_t)bytes) ? 1 : 0, 0, p);
        for (int64_t h = 0; h < a.H; h++)
            check("lse of a row alone",
                  memcmp(lse + 2 * (h * m + r),
                         (float *)all->a.lse + 2 * ((b * a.H + h) * all->a.Tq + i + r),
                         2 * sizeof *lse),
                  0, p);
    }
    free(y);
    free(lse);
}

static void same_bits_for_a_row_alone(void **state)
{
    static const sizes n[] = {{2, 210, 210, 2, 2, 64, 64},
                              {1, 70, 70, 4, 1, 20, 7},
                              {3, 30, 450, 2, 1, 128, 80},
                              {1, 33, 33, 1, 1, 3, 3}};
    static const int options[] = {CAUSAL, CAUSAL | BIAS | MASK | APART, CAUSAL | WINDOW | KEY_MASK,
                                  REL | CAUSAL, 0};
    (void)state;
    for (size_t i = 0; i < sizeof n / sizeof *n; i++)
        for (size_t o = 0; o < 2 * sizeof options / sizeof *options; o++) {
            fv_dtype t = o % 2 ? FV_BF16 : FV_F32;
            fv_stream s = stream(2);
            problem p = problem_new(n[i], options[o / 2], 64 * i + o / 2);
            prepared x = prepare(&p, t);
            dev->k[t]->attention(&s, &x.a);
            for (int64_t b = 0; b < p.n.B; b++)
                for (int64_t r = 0; r + 5 <= p.n.Tq; r += 3) {
                    alone(&p, &x, b, r, 1, t, &s);
                    alone(&p, &x, b, r, 2, t, &s);
                    alone(&p, &x, b, r, 5, t, &s);
                }
            prepared_free(&x);
            problem_free(&p);
            stream_free(&s);
        }
}

/* ---- weights, empty rows, dropout, memory, refusals ---- */

static void weights_are_exact(void **state)
{
    (void)state;
    for (int options = 0; options < 128; options++) {
        fv_stream s = stream(2);
        problem p = problem_new((sizes){2, 9, 230, 4, 2, 20, 5}, options, (uint64_t)options);
        prepared x = prepare(&p, FV_F32), y = prepare(&p, FV_F64);
        int64_t n = p.n.Tq * p.n.Tk;
        float *w = malloc((size_t)n * sizeof *w);
        double *want = malloc((size_t)n * sizeof *want), *got = malloc((size_t)n * sizeof *got);
        dev->k[FV_F32]->attention(&s, &x.a);
        ref[FV_F64].attention(&s, &y.a);
        for (int64_t h = 0; h < p.n.H; h++) {
            dev->k[FV_F32]->attention_weights(&s, (fv_sink){w, FV_F32, false}, &x.a, h % 2, h, 0,
                                              p.n.Tq);
            ref[FV_F64].attention_weights(&s, (fv_sink){want, FV_F64, false}, &y.a, h % 2, h, 0,
                                          p.n.Tq);
            for (int64_t i = 0; i < n; i++) got[i] = w[i];
            check("weights", difference(got, want, n), 2e-6, &p);
            for (int64_t i = 0; i < p.n.Tq; i++) {
                double sum = 0;
                for (int64_t j = 0; j < p.n.Tk; j++) {
                    sum += got[i * p.n.Tk + j];
                    if (want[i * p.n.Tk + j] == 0)
                        check("a masked weight", got[i * p.n.Tk + j], 0, &p);
                }
                check("sum of weights", sum == 0 ? 0 : fabs(sum - 1), 2e-6, &p);
            }
            dev->k[FV_F32]->attention_weights(&s, (fv_sink){w, FV_F32, false}, &x.a, h % 2, h, 3,
                                              5);
            for (int64_t i = 0; i < 2 * p.n.Tk; i++)
                check("weights of some rows", w[i] != (float)got[3 * p.n.Tk + i], 0, &p);
        }
        free(w);
        free(want);
        free(got);
        prepared_free(&x);
        prepared_free(&y);
        problem_free(&p);
        stream_free(&s);
    }
}

/* Half of the last place of a number of t. */
static double half_place(fv_dtype t, double x)
{
    return t == FV_BF16 ? fmax(x * 0x1p-8, 0x1p-134) : fmax(x * 0x1p-11, 0x1p-25);
}

/* As the table's own dtype they are those of f32, rounded once, whoever asks for which rows; or are
 * added to what is there. */
static void weights_are_rounded_once(void **state)
{
    (void)state;
    for (int options = 0; options < 128; options++)
        for (fv_dtype t = FV_BF16; t <= FV_F16; t++) {
            fv_stream s = stream(2);
            problem p = problem_new((sizes){1, 9, 230, 2, 1, 20, 5}, options, (uint64_t)options);
            prepared x = prepare(&p, t);
            int64_t n = p.n.Tq * p.n.Tk, from = 3 * p.n.Tk;
            float *wide = malloc((size_t)n * sizeof *wide);
            uint16_t *own = malloc((size_t)n * sizeof *own),
                     *some = malloc((size_t)n * sizeof *some);
            dev->k[t]->attention(&s, &x.a);
            dev->k[t]->attention_weights(&s, (fv_sink){wide, FV_F32, false}, &x.a, 0, 1, 0, p.n.Tq);
            dev->k[t]->attention_weights(&s, (fv_sink){own, t, false}, &x.a, 0, 1, 0, p.n.Tq);
            dev->k[t]->attention_weights(&s, (fv_sink){some, t, false}, &x.a, 0, 1, 3, 5);
            for (int64_t i = 0; i < n; i++)
                check("a rounded weight", fabs(read_as(own, t, i) - (double)wide[i]),
                      half_place(t, (double)wide[i]), &p);
            check("weights of some rows",
                  memcmp(some, own + from, (size_t)(2 * p.n.Tk) * sizeof *some) != 0, 0, &p);
            dev->k[t]->attention_weights(&s, (fv_sink){wide, FV_F32, true}, &x.a, 0, 1, 0, p.n.Tq);
            for (int64_t i = 0; i < n; i++)
                check("twice a weight", fabs(read_as(own, t, i) - (double)wide[i] / 2),
                      half_place(t, (double)wide[i] / 2), &p);
            free(wide);
            free(own);
            free(some);
            prepared_free(&x);
            problem_free(&p);
            stream_free(&s);
        }
}

/* Also by the reference, whose f32 table no device runs. */
static void weights_sum_to_one_at_any_score(void **state)
{
    (void)state;
    for (int log10 = 1; log10 <= 9; log10++)
        for (int of = 0; of < 3; of++) {
            const fv_kernels *k = of == 0 ? dev->k[FV_F32] : of == 1 ? &ref[FV_F32] : &ref[FV_F64];
            fv_stream s = stream(1);
            problem p = problem_new((sizes){1, 9, 40, 2, 2, 16, 16}, CAUSAL, 1);
            for (int64_t i = 0; i < p.n_q; i++) p.q[i] *= pow(10, log10);
            for (int64_t i = 0; i < p.n_k; i++) p.k[i] *= pow(10, log10);
            prepared x = prepare(&p, k->dtype);
            double w[9 * 40];
            k->attention(&s, &x.a);
            k->attention_weights(&s, (fv_sink){w, k->dtype, false}, &x.a, 0, 1, 0, 9);
            for (int64_t i = 0; i < 9; i++) {
                double sum = 0;
                for (int64_t j = 0; j < 40; j++) {
                    double one_of = read_as(w, k->dtype, i * 40 + j);
                    check("a weight above 1", one_of, 1, &p);
                    sum += one_of;
                }
                check("the sum of a row's weights", fabs(sum - 1), 2e-6, &p);
            }
            prepared_free(&x);
            problem_free(&p);
            stream_free(&s);
        }
}

/* Row 4 of everything is masked, once by mask and once by a bias of -inf. */
static void empty_rows_give_zeros(void **state)
{
    (void)state;
    for (int impl = 0; impl < 4; impl++) {
        fv_stream s = stream(1);
        problem p = problem_new((sizes){1, impl < 2 ? 9 : 1, 40, 2, 2, 16, 16},
                                impl % 2 ? MASK : BIAS, 0);
        int64_t row = impl < 2 ? 4 : 0;
        for (int64_t h = 0; h < p.n.H; h++)
            for (int64_t j = 0; j < p.n.Tk; j++) {
                if (impl % 2)
                    p.mask[h * p.mask_s[1] + row * p.mask_s[2] + j] = 0;
                else
                    p.bias[h * p.bias_s[1] + row * p.bias_s[2] + j] = -INFINITY;
            }
        answer got = answer_new(&p, dev->k[FV_F32], &s), want = answer_new(&p, &ref[FV_F64], &s);
        for (int64_t c = 0; c < p.n.H * p.n.Wv; c++)
            assert_true(got.y[row * p.n.H * p.n.Wv + c] == 0);
        for (int64_t c = 0; c < p.n.H * p.n.Wk; c++)
            assert_true(got.dq[row * p.n.H * p.n.Wk + c] == 0);
        for (int64_t h = 0; h < p.n.H; h++) assert_true(got.lse[h * p.n.Tq + row] == -INFINITY);
        compare(&p, &got, &want, f32);
        answer_free(&got);
        answer_free(&want);
        problem_free(&p);
        stream_free(&s);
    }
}

/* v = 1 makes y the sum of kept weights over 0.75; q = 0 makes weights equal: y counts what is
 * kept. */
static void dropout_keeps_its_share(void **state)
{
    fv_stream s = stream(2);
    problem p = problem_new((sizes){2, 150, 400, 2, 2, 4, 4}, DROPOUT, 1);
    double sum = 0, other = 0, least = 1e9, most = 0;
    (void)state;
    for (int64_t i = 0; i < p.n_q; i++) p.q[i] = 0;
    for (int64_t i = 0; i < p.n_v; i++) p.v[i] = 1;
    answer a = answer_new(&p, dev->k[FV_F32], &s);
    for (int64_t i = 0; i < p.n_y; i++) {
        sum += a.y[i];
        least = fmin(least, a.y[i]);
        most = fmax(most, a.y[i]);
    }
    assert_true(fabs(sum / (double)p.n_y - 1) <
                5e-3); /* 240,000 draws: a standard deviation is 1.2e-3 */
    assert_true(least > 0.85 && most < 1.15 && most > least);

    p.step++; /* the next step draws others */
    answer b = answer_new(&p, dev->k[FV_F32], &s);
    for (int64_t i = 0; i < p.n_y; i++) other += a.y[i] != b.y[i];
    assert_true(other > 0.9 * (double)p.n_y);
    answer_free(&a);
    answer_free(&b);
    problem_free(&p);
    stream_free(&s);
}

static void memory_is_linear(void **state)
{
    size_t used[2];
    (void)state;
    for (int i = 0; i < 2; i++) {
        int64_t T = 8192 << i;
        fv_stream s = stream(2);
        problem p = problem_new((sizes){1, T, T, 1, 1, 64, 64}, CAUSAL | WINDOW,
                                1); /* a window keeps this test short */
        prepared x = prepare(&p, FV_F32);
        x.a.window = 300;
        dev->k[FV_F32]->attention(&s, &x.a);
        dev->k[FV_F32]->attention_bwd(&s, &x.a, &x.g);
        used[i] = s.scratch_bytes;
        prepared_free(&x);
        problem_free(&p);
        stream_free(&s);
    }
    assert_true(used[1] <= (size_t)64 << 20);
    assert_true(used[1] <= 2 * used[0]);
}

static void lens_beyond_the_keys_are_refused(void **state)
{
    (void)state;
    for (int32_t bad = -1; bad <= 8; bad += 9) {
        fv_stream s = stream(1);
        problem p = problem_new((sizes){2, 3, 7, 1, 1, 4, 4}, LENS, 1);
        prepared x = prepare(&p, FV_F32);
        p.lens[1] = bad;
        dev->k[FV_F32]->attention(&s, &x.a);
        assert_int_equal(s.err.code, FV_EARG);
        assert_non_null(strstr(s.err.text, "lens[1]"));
        prepared_free(&x);
        problem_free(&p);
        stream_free(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_combination_of_options),
        cmocka_unit_test(every_size),
        cmocka_unit_test(narrow_dtypes),
        cmocka_unit_test(reference_gradient_is_the_slope),
        cmocka_unit_test(same_bits_for_any_number_of_threads),
        cmocka_unit_test(same_bits_for_a_row_alone),
        cmocka_unit_test(weights_are_exact),
        cmocka_unit_test(weights_are_rounded_once),
        cmocka_unit_test(weights_sum_to_one_at_any_score),
        cmocka_unit_test(empty_rows_give_zeros),
        cmocka_unit_test(dropout_keeps_its_share),
        cmocka_unit_test(memory_is_linear),
        cmocka_unit_test(lens_beyond_the_keys_are_refused),
    };
    fv_err e;
    if (fv_device_open(&dev, "cpu", (fv_device_opt){0}, &e))
        return fprintf(stderr, "%s\n", e.text), 1;
    fv__ref_fill(ref);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    fv_device_close(dev);
    return failed;
}
