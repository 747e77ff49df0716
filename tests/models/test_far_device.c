/* test_far_device.c - a device whose memory is not the host's: weights of products stay in their
 * file until they are packed, and all else gets memory there.  Here it is the CPU by another
 * name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/core.h"
#include "core/params.h"
#include "fovea/fovea.h"
#include "helper/device.h"
#include "helper/files.h"

#define CASES FOVEA_TESTS "/golden/models/"

static fv_device *far_device;
static fv_backend far_backend;

static void run_model(fv_device *d, const char *dir, fv_dtype weights, const char *in,
                      const char *out)
{
    fv_model *m;
    fv_err e;
    fv_model_opt opt = {.serve = true, .weights = weights, .widen = weights == FV_F32};
    check(fv_model_open(&m, d, dir, opt, &e), &e);
    fv_params *p = fv_model_params(m);
    for (int i = 0; d == far_device && i < fv_params_count(p); i++) {
        bool in_out, packed = fv__params_packed_only(fv_params_at(p, i), &in_out);
        const fv_tensor *t = fv_params_at(p, i);
        bool waited = packed && fv_dtype_size(t->dtype) && fv__param_linear(t);
        if (fv_params_borrowed(t) != waited)
            fail_msg("%s: %s is%s in its file", dir, t->name, waited ? " not" : "");
    }
    check(fv_model_run(m, d, in, out, (fv_run_opt){0}, &e), &e);
    fv_model_free(m);
}

static void same_file(const char *which, const char *a, const char *b)
{
    fv_st *x, *y;
    fv_err e;
    check(fv_st_open(&x, NULL, a, &e), &e);
    check(fv_st_open(&y, NULL, b, &e), &e);
    assert_true(fv_st_count(x) > 0 && fv_st_count(x) == fv_st_count(y));
    for (int i = 0; i < fv_st_count(x); i++) {
        fv_st_info s = fv_st_at(x, i), t = fv_st_at(y, i);
        if (strcmp(s.name, t.name) || s.bytes != t.bytes || memcmp(s.data, t.data, s.bytes))
            fail_msg("%s: %s", which, s.name);
    }
    fv_st_close(x);
    fv_st_close(y);
}

static void test_same_bits(void **state)
{
    static const char *const cases[] = {"gpt2-language", "llama-language", "qwen2",     "t5-gated",
                                        "bart",          "marian",         "bert-token"};
    static const fv_dtype files[] = {FV_F32, FV_BF16, FV_Q8},
                          weights[] = {FV_F32, FV_BF16, FV_Q8, FV_Q4};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int f = 0; f < 3; f++) {
            char in[300], from[256];
            fv_quantised q;
            fv_err e;
            snprintf(from, sizeof from, CASES "%s", cases[i]);
            snprintf(in, sizeof in, "%s/in.safetensors", from);
            if (files[f])
                check(fv_model_quantize(device, from, scratch("made"), files[f], &q, &e), &e);
            const char *dir = files[f] ? scratch("made") : from;
            for (int w = 0; w < 4; w++) {
                if (files[f] == FV_Q8 && weights[w] && weights[w] != FV_Q8) continue;
                run_model(device, dir, weights[w], in, scratch("near.safetensors"));
                run_model(far_device, dir, weights[w], in, scratch("far.safetensors"));
                same_file(cases[i], scratch("near.safetensors"), scratch("far.safetensors"));
            }
            if (files[f]) scratch_drop("made");
        }
}

/* Numbers that only the file has are read from there. */
static void test_numbers(void **state)
{
    (void)state;
    fv_model *near, *far;
    fv_quantised q;
    fv_err e;
    check(fv_model_quantize(device, CASES "llama-language", scratch("made"), FV_BF16, &q, &e), &e);
    fv_model_opt opt = {.serve = true, .weights = FV_Q8};
    check(fv_model_open(&near, device, scratch("made"), opt, &e), &e);
    check(fv_model_open(&far, far_device, scratch("made"), opt, &e), &e);
    for (int i = 0; i < fv_params_count(fv_model_params(near)); i++) {
        const fv_tensor *a = fv_params_at(fv_model_params(near), i),
                        *b = fv_params_at(fv_model_params(far), i);
        int64_t n = fv_len(a);
        float *x = malloc((size_t)n * sizeof *x), *y = malloc((size_t)n * sizeof *y);
        assert_true(x && y);
        check(fv_params_get(fv_model_params(near), a, x, n, &e), &e);
        check(fv_params_get(fv_model_params(far), b, y, n, &e), &e);
        assert_memory_equal(x, y, (size_t)n * sizeof *x);
        free(x), free(y);
    }
    fv_model_free(near);
    fv_model_free(far);
    scratch_drop("made");
}

static int set_up(void **state)
{
    fv_err e;
    if (scratch_open(state) || open_device(state) ||
        fv_device_open(&far_device, "cpu", (fv_device_opt){.threads = 2}, &e))
        return -1;
    far_backend = *far_device->backend;
    far_backend.name = "far";
    far_device->backend = &far_backend;
    return 0;
}

static int tear_down(void **state)
{
    fv_device_close(far_device);
    return close_device(state) || scratch_close(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_same_bits),
                                       cmocka_unit_test(test_numbers)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
