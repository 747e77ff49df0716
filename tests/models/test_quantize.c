/* test_quantize.c - a quantised directory computes the bits that its original does with weights
 * quantised on opening; a copy in floats is what saving gives. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "fovea/fovea.h"
#include "fovea/author/config.h"
#include "helper/device.h"
#include "helper/files.h"

static fv_device *maker; /* the CPU: where directories are made */

#define CASES FOVEA_TESTS "/golden/models/"

static void ok(fv_status st, const char *which, const fv_err *e)
{
    if (st) fail_msg("%s: %s", which, e->text);
}

static void run_model(const char *dir, fv_dtype weights, const char *in, const char *out)
{
    fv_model *m;
    fv_err e;
    ok(fv_model_open(&m, device, dir, (fv_model_opt){.serve = true, .weights = weights}, &e), dir,
       &e);
    ok(fv_model_run(m, device, in, out, (fv_run_opt){0}, &e), dir, &e);
    fv_model_free(m);
}

static void same_file(const char *which, const char *a, const char *b)
{
    fv_st *x, *y;
    fv_err e;
    ok(fv_st_open(&x, NULL, a, &e), a, &e);
    ok(fv_st_open(&y, NULL, b, &e), b, &e);
    assert_true(fv_st_count(x) > 0 && fv_st_count(x) == fv_st_count(y));
    for (int i = 0; i < fv_st_count(x); i++) {
        fv_st_info s = fv_st_at(x, i), t = fv_st_at(y, i);
        if (strcmp(s.name, t.name) || s.bytes != t.bytes || memcmp(s.data, t.data, s.bytes))
            fail_msg("%s: %s", which, s.name);
    }
    fv_st_close(x);
    fv_st_close(y);
}

/* One family with weights (N,K), one with (K,N), shared key heads, two sides, odd widths; poolers,
 * which are looked at when a model is opened. */
static const char *const cases[] = {"gpt2-language", "llama-language", "qwen2",   "t5-gated",
                                    "bart",          "marian",         "roberta", "esm"};
static const fv_dtype dtypes[] = {FV_Q8, FV_Q4, FV_I8};

static void test_same_bits(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int d = 0; d < (test_on_cpu() ? 3 : 2); d++) { /* int8 is the CPU's alone */
            char from[256], in[300], which[80];
            fv_quantised q;
            fv_err e;
            snprintf(from, sizeof from, CASES "%s", cases[i]);
            snprintf(in, sizeof in, "%s/in.safetensors", from);
            snprintf(which, sizeof which, "%s as %s", cases[i], fv_dtype_name(dtypes[d]));
            ok(fv_model_quantize(maker, from, scratch("small"), dtypes[d], &q, &e), which, &e);
            assert_true(q.weights > 0 && q.others > 0);
            run_model(from, dtypes[d], in, scratch("one.safetensors"));
            run_model(scratch("small"), FV_F32, in, scratch("two.safetensors"));
            same_file(which, scratch("one.safetensors"), scratch("two.safetensors"));
            scratch_drop("small");
        }
}

/* Floats are those that saving the model gives, and what the copy says of itself is true. */
static void test_floats(void **state)
{
    (void)state;
    static const fv_dtype floats[] = {FV_BF16, FV_F16, FV_F32};
    static const char *const said[] = {"bfloat16", "float16", "float32"};
    for (int i = 0; i < 3; i++) {
        fv_quantised q;
        fv_model *m;
        fv_dir *dir;
        fv_err e;
        ok(fv_model_quantize(maker, CASES "t5-gated", scratch("small"), floats[i], &q, &e), said[i],
           &e);
        assert_true(q.weights > 0 && q.others == 0 &&
                    q.after == q.before * fv_dtype_size(floats[i]) / 4);
        ok(fv_model_open(&m, device, CASES "t5-gated", (fv_model_opt){0}, &e), said[i], &e);
        ok(fv_model_save(m, scratch("saved"), floats[i], &e), said[i], &e);
        same_file(said[i], scratch("small/model.safetensors"), scratch("saved/model.safetensors"));
        fv_model_free(m);
        const char *both[] = {"small", "saved"};
        for (int k = 0; k < 2; k++) {
            ok(fv_dir_open(&dir, NULL, scratch("%s", both[k]), &e), both[k], &e);
            assert_string_equal(fv_json_text(fv_dir_config(dir), "dtype"), said[i]);
            fv_dir_close(dir);
            scratch_drop(both[k]);
        }
    }
}

static void test_what_f16_cannot_hold(void **state)
{
    (void)state;
    fv_quantised q;
    fv_model *m;
    fv_err e;
    ok(fv_model_open(&m, device, CASES "bert-token", (fv_model_opt){0}, &e), "bert", &e);
    fv_tensor *bias = fv_params_find(fv_model_params(m), "classifier.bias");
    const float large[] = {1, -65520, 2, 3, 4};
    assert_int_equal(fv_len(bias), 5);
    ok(fv_params_set(fv_model_params(m), bias, large, 5, &e), "bias", &e);
    ok(fv_model_save(m, scratch("large"), FV_F32, &e), "large", &e);
    fv_model_free(m);
    assert_int_equal(fv_model_quantize(maker, scratch("large"), scratch("small"), FV_F16, &q, &e),
                     FV_EARG);
    assert_non_null(strstr(e.text, "classifier.bias: -65520 is beyond"));
    assert_int_equal(access(scratch("small"), F_OK), -1);
    ok(fv_model_quantize(maker, scratch("large"), scratch("small"), FV_BF16, &q, &e), "bf16", &e);
    scratch_drop("small");
    scratch_drop("large");
}

static void test_refusals(void **state)
{
    (void)state;
    const char *from = CASES "gpt2-language", *small = scratch("small");
    fv_quantised q;
    fv_model *m;
    fv_err e;
    assert_int_equal(fv_model_quantize(maker, from, small, FV_F64, &q, &e), FV_EDTYPE);
    assert_int_equal(access(small, F_OK), -1);
    ok(fv_model_quantize(maker, from, small, FV_Q8, &q, &e), "q8", &e);
    /* there is one already */
    assert_int_equal(fv_model_quantize(maker, from, small, FV_Q8, &q, &e), FV_EIO);
    assert_int_equal(fv_model_quantize(maker, small, scratch("again"), FV_Q8, &q, &e), FV_ESTATE);
    assert_int_equal(fv_model_open(&m, device, small, (fv_model_opt){.train = true}, &e),
                     FV_EMISSING);
    assert_int_equal(fv_model_open(&m, device, small,
                                   (fv_model_opt){.serve = true, .weights = FV_Q4}, &e),
                     FV_EDTYPE);
    assert_non_null(strstr(e.text, "stored as q8, not q4"));
    ok(fv_model_open(&m, device, small, (fv_model_opt){.serve = true}, &e), "served", &e);
    /* numbers that are not there any more */
    assert_int_equal(fv_model_save(m, scratch("again"), FV_F32, &e), FV_EDTYPE);
    fv_model_free(m);
    scratch_drop("small");
}

static void test_int8_is_for_the_cpu(void **state)
{
    (void)state;
    fv_quantised q;
    fv_model *m;
    fv_err e;
    if (test_on_cpu()) skip();
    ok(fv_model_quantize(maker, CASES "gpt2-language", scratch("small"), FV_I8, &q, &e), "int8",
       &e);
    assert_int_equal(fv_model_open(&m, device, scratch("small"), (fv_model_opt){.serve = true}, &e),
                     FV_EMISSING);
    assert_non_null(strstr(e.text, "stored as int8: such a model can be run on the cpu alone"));
    scratch_drop("small");
}

static int set_up(void **state)
{
    fv_err e;
    return scratch_open(state) || open_device(state) ||
           fv_device_open(&maker, "cpu", (fv_device_opt){.threads = 2}, &e);
}

static int tear_down(void **state)
{
    fv_device_close(maker);
    return close_device(state) || scratch_close(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_same_bits),
                                       cmocka_unit_test(test_floats),
                                       cmocka_unit_test(test_what_f16_cannot_hold),
                                       cmocka_unit_test(test_refusals),
                                       cmocka_unit_test(test_int8_is_for_the_cpu)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
