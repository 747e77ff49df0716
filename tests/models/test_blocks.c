/* test_blocks.c - adapters above weights of 8 and 4 bits: outputs and gradients are those of the
 * same adapter above a float model that has the numbers which the blocks stand for. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/adapter.h"
#include "core/blocks.h"
#include "core/core.h"
#include "core/params.h"
#include "fovea/author/family.h"
#include "fovea/author/params.h"
#include "fovea/author/tensor.h"
#include "fovea/fovea.h"
#include "helper/device.h"
#include "store/store.h"

#define MODELS FOVEA_TESTS "/golden/models/"

static char *config_of(const char *dir)
{
    char path[512];
    snprintf(path, sizeof path, "%s/config.json", dir);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    char *text = calloc(1, 1 << 16);
    assert_true(text && fread(text, 1, (1 << 16) - 1, f) > 0);
    fclose(f);
    return text;
}

/* A LoRA of rank 2 on everything that PEFT would adapt, above weights held as asked. */
static fv_model *above(const char *dir, const char *config, fv_dtype weights)
{
    fv_adapter_opt lora;
    fv_model *m;
    fv_err e;
    fv_fields_default(&lora, fv_adapter_fields);
    lora.peft_type = FV_PEFT_LORA;
    lora.r = 2;
    fv_model_opt how = {.train = true, .adapter = &lora, .weights = weights};
    check(fv_model_new(&m, device, config, how, 7, &e), &e);
    const fv_family *f = fv_model_family(m);
    fv_load_opt from = f->load ? f->load(fv_model_self(m)) : (fv_load_opt){0};
    check(fv_params_load(fv_model_params(m), NULL, dir, from, &e), &e);
    return m;
}

/* B of a LoRA begins as zero, which would hide A's gradient. */
static void fill_added(fv_model *m)
{
    fv_params *p = fv_model_params(m);
    fv_err e;
    for (int i = 0; i < fv_params_count(p); i++) {
        fv_tensor *t = fv_params_at(p, i);
        if (!fv__param_added(t)) continue;
        int64_t n = fv_len(t);
        float *x = malloc((size_t)n * sizeof *x);
        for (int64_t k = 0; k < n; k++) x[k] = 0.1f * (float)((k * 7 + i) % 11 - 5);
        check(fv_params_set(p, t, x, n, &e), &e);
        free(x);
    }
}

/* The float model gets what the blocks of the other stand for; returns how many there are. */
static int copy_widened(fv_model *to, fv_model *from)
{
    fv_params *p = fv_model_params(from), *q = fv_model_params(to);
    fv_err e;
    int held = 0;
    for (int i = 0; i < fv_params_count(p); i++) {
        const fv_tensor *t = fv_params_at(p, i);
        if (!fv__in_blocks(t)) continue;
        held++;
        bool in_out = fv__param_linear(t) == FV_LINEAR_IN_OUT;
        int64_t out = t->shape.d[in_out], in = t->shape.d[!in_out];
        size_t step = fv_dtype_row(t->dtype, in);
        float *x = malloc((size_t)(out * in) * sizeof *x), *row = malloc((size_t)in * sizeof *row);
        char *rows = malloc((size_t)out * step);
        p->dev->backend->download(&p->stream, rows, t->data, (size_t)out * step);
        for (int64_t o = 0; o < out; o++) {
            fv__widen_row(row, t->dtype, rows + (size_t)o * step, in);
            for (int64_t k = 0; k < in; k++) x[in_out ? k * out + o : o * in + k] = row[k];
        }
        check(fv_params_set(q, fv_params_at(q, i), x, out * in, &e), &e);
        free(x);
        free(row);
        free(rows);
    }
    return held;
}

static double loss_of(fv_model *m)
{
    const int32_t ids[] = {3, 5, 7, 2, 9, 4}, next[] = {5, 7, 2, 9, 4, 1};
    fv_ctx *c;
    fv_err e;
    fv_items in = {0}, out = {0};
    float loss = 0;
    check(fv_ctx_new(&c, device, (fv_ctx_opt){.record = true, .train = true}, &e), &e);
    fv_items_put(&in, "input_ids", fv_ints(c, ids, FV_SHAPE(1, 6)));
    fv_items_put(&in, "labels", fv_ints(c, next, FV_SHAPE(1, 6)));
    fv_model_forward(c, m, &in, &out);
    fv_tensor *y = fv_items_get(&out, "loss");
    if (!y || fv_read(c, y, &loss, 1) || fv_backward(c, y)) fail_msg("%s", fv_ctx_err(c)->text);
    fv_ctx_free(c);
    return (double)loss;
}

/* On the CPU both take the same products; elsewhere weights that were widened, (out,in), and those
 * that lie (in,out) go to different kernels, whose sums have different orders. */
static void same_gradients(fv_model *a, fv_model *b)
{
    double tolerance = test_on_cpu() ? 1e-5 : 1e-4;
    fv_params *p = fv_model_params(a), *q = fv_model_params(b);
    fv_err e;
    for (int i = 0; i < fv_params_count(p); i++) {
        const fv_tensor *t = fv_params_at(p, i);
        int64_t n = fv_len(t);
        if (!fv__param_added(t)) continue;
        float *x = malloc((size_t)(2 * n) * sizeof *x);
        check(fv_params_get_grad(p, t, x, n, &e), &e);
        check(fv_params_get_grad(q, fv_params_at(q, i), x + n, n, &e), &e);
        double most = 0;
        for (int64_t k = 0; k < n; k++)
            if (fabs((double)x[n + k]) > most) most = fabs((double)x[n + k]);
        assert_true(most > 0);
        for (int64_t k = 0; k < n; k++) {
            double off = fabs((double)(x[k] - x[n + k]));
            if (!(off < tolerance * most))
                fail_msg("gradient of %s [%lld]: %g, expected %g of at most %g", t->name,
                         (long long)k, (double)x[k], (double)x[n + k], most);
        }
        free(x);
    }
}

static void adapters_above_blocks(void **state)
{
    (void)state;
    static const char *const dirs[] = {MODELS "gpt2-language", MODELS "llama-language"};
    static const fv_dtype held[] = {FV_Q8, FV_Q4};
    for (int i = 0; i < 4; i++) {
        const char *dir = dirs[i / 2];
        char *config = config_of(dir);
        fv_model *blocks = above(dir, config, held[i % 2]), *plain = above(dir, config, FV_F32);
        size_t small = fv__params_frozen_bytes(fv_model_params(blocks)),
               large = fv__params_frozen_bytes(fv_model_params(plain));
        fill_added(blocks);
        fill_added(plain);
        double before = loss_of(plain);
        assert_true(copy_widened(plain, blocks) > 3);
        fv_params_zero_grad(fv_model_params(plain));
        double loss = loss_of(blocks), want = loss_of(plain);
        assert_true(fabs(loss - want) < 1e-5);
        assert_true(before != want && fabs(before - want) < 0.1 * before);
        same_gradients(blocks, plain);
        assert_true(small < large);
        fv_model_free(blocks);
        fv_model_free(plain);
        free(config);
    }
}

/* Rows that are no multiple of a block, both ways. */
static void rows_come_back(void **state)
{
    (void)state;
    float x[45], y[45];
    uint8_t row[256];
    for (int i = 0; i < 45; i++) x[i] = sinf((float)i) * 3;
    fv__quantise_row(row, FV_Q8, x, 45);
    fv__widen_row(y, FV_Q8, row, 45);
    for (int i = 0; i < 45; i++) assert_true(fabsf(x[i] - y[i]) <= 3.0f / 254 + 1e-6f);
    fv__quantise_row(row, FV_Q4, x, 45);
    fv__widen_row(y, FV_Q4, row, 45);
    for (int i = 0; i < 45; i++) assert_true(fabsf(x[i] - y[i]) <= 3.0f / 8 + 1e-6f);
}

/* A NaN or an infinity is not turned into a number: its block shows it, the next one does not. */
static void blocks_that_are_not_finite(void **state)
{
    (void)state;
    const float bad[] = {NAN, INFINITY, -INFINITY};
    const fv_dtype kinds[] = {FV_Q8, FV_Q4};
    float x[64], y[64];
    uint8_t row[256];
    for (int q = 0; q < 6; q++) {
        for (int i = 0; i < 64; i++) x[i] = sinf((float)i) * 3;
        x[5] = bad[q % 3];
        fv__quantise_row(row, kinds[q / 3], x, 64);
        fv__widen_row(y, kinds[q / 3], row, 64);
        for (int i = 0; i < 64; i++) assert_int_equal(isfinite(y[i]) != 0, i >= 32);
    }
}

static void refusals(void **state)
{
    (void)state;
    const char *dir = MODELS "gpt2-language";
    char *config = config_of(dir);
    fv_model *m;
    fv_err e;
    fv_model_opt bare = {.train = true, .weights = FV_Q8};
    assert_int_equal(fv_model_new(&m, device, config, bare, 1, &e), FV_EARG);
    assert_non_null(strstr(e.text, "only through an adapter"));
    free(config);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(adapters_above_blocks),
                                       cmocka_unit_test(rows_come_back),
                                       cmocka_unit_test(blocks_that_are_not_finite),
                                       cmocka_unit_test(refusals)};
    return cmocka_run_group_tests(tests, open_device, close_device);
}
