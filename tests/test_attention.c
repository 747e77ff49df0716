/* test_attention.c - the attention kernels of this level against the reference in f64, and their promises. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "attention_case.h"
#include "backend/ref/tables.h"
#include "fovea/fovea.h"

static fv_device *dev;
static fv_kernels ref[FV_FLOATS];

/* A stream without a context. */
static fv_stream stream(int threads) { return (fv_stream){.dev = dev, .threads = threads}; }

static void stream_free(fv_stream *s)
{
    if (s->work) dev->backend->release(dev, s->work, s->work_bytes);
    *s = (fv_stream){0};
}

/* ---- value and gradient ---- */

typedef struct bound { double y, lse, grad; } bound; /* largest relative errors allowed */

static void check(const char *what, double got, double most, const problem *p)
{
    sizes n = p->n;
    if (got <= most) return;
    fail_msg("%s is off by %.3g > %.3g: B%d Tq%d Tk%d H%d G%d Wk%d Wv%d options %#x seed %d", what, got, most, (int)n.B, (int)n.Tq,
             (int)n.Tk, (int)n.H, (int)n.G, (int)n.Wk, (int)n.Wv, (unsigned)p->options, (int)p->seed);
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
    {1, 1, 1, 1, 1, 3, 3},  {2, 7, 7, 2, 2, 16, 16},  {3, 5, 9, 4, 2, 3, 5},  {2, 1, 13, 2, 1, 16, 8},
    {2, 2, 33, 1, 1, 40, 3}, {2, 17, 33, 2, 1, 8, 16}, {1, 49, 50, 2, 2, 4, 4}, {2, 13, 100, 1, 1, 8, 8},
};
#define N_SMALL (sizeof small / sizeof *small)

static void every_combination_of_options(void **state)
{
    (void)state;
    for (int options = 0; options < 1024; options++)
        one(small[(size_t)options % N_SMALL], options, (uint64_t)options + 1, FV_F32, f32, 1 + options % 3);
}

static void every_size(void **state)
{
    static const sizes sizes_[] = {
        {1, 33, 33, 2, 2, 64, 64},    {1, 65, 65, 1, 1, 64, 64},   {1, 130, 130, 2, 1, 128, 128}, {2, 130, 65, 2, 2, 80, 40},
        {1, 65, 130, 4, 1, 40, 80},   {1, 7, 300, 2, 2, 64, 64},   {1, 300, 7, 2, 2, 16, 16},     {2, 1, 300, 4, 2, 64, 64},
        {1, 3, 257, 1, 1, 3, 128},    {1, 200, 200, 1, 1, 128, 3}, {1, 97, 193, 1, 1, 16, 16},    {1, 1, 1000, 1, 1, 64, 64},
        {1, 250, 250, 3, 3, 8, 8},
    };
    static const int options[] = {0, CAUSAL, CAUSAL | WINDOW, LENS | CAUSAL, MASK, BIAS | APART, REL | CAUSAL, DROPOUT, KEY_MASK | ADD};
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_combination_of_options),
        cmocka_unit_test(every_size),
        cmocka_unit_test(narrow_dtypes),
    };
    fv_err e;
    if (fv_device_open(&dev, "cpu", (fv_device_opt){0}, &e)) return fprintf(stderr, "%s\n", e.text), 1;
    fv__ref_fill(ref);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    fv_device_close(dev);
    return failed;
}
