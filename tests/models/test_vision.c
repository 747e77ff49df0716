/* test_vision.c - what families of images share: the assignment of objects, captions token by
 * token, both players of a GAN, and inputs that are refused. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fovea/author/family.h"
#include "fovea/author/train.h"
#include "fovea/fovea.h"
#include "helper/device.h"
#include "helper/files.h"
#include "model/detect.h"

#define CASES FOVEA_TESTS "/golden/models/"

static int set_up(void **state) { return scratch_open(state) || open_device(state) ? -1 : 0; }
static int tear_down(void **state) { return scratch_close(state) || close_device(state) ? -1 : 0; }

/* ---- assignments ---- */

/* The least sum over all ways to give rows i.. a column that is not taken. */
static double least(const double *cost, int64_t n, int64_t m, int64_t i, unsigned taken)
{
    double best = i == n ? 0 : 1e300;
    for (int64_t j = 0; i < n && j < m; j++) {
        if (taken >> j & 1) continue;
        best = fmin(best, cost[i * m + j] + least(cost, n, m, i + 1, taken | 1u << j));
    }
    return best;
}

static void an_assignment_costs_the_least(void **state)
{
    (void)state;
    double cost[6 * 7], work[FV__ASSIGN_WORK(6, 7)];
    int64_t column[6];
    uint64_t draw = 1;
    for (int round = 0; round < 300; round++) {
        int64_t n = 1 + round % 6, m = n + round % (8 - n);
        for (int64_t i = 0; i < n * m; i++) {
            draw = draw * 6364136223846793005u + 1442695040888963407u;
            /* small integers too, so that many assignments are as good */
            cost[i] = round % 3 ? (double)(draw >> 33) / 1e9 - 1 : (double)(draw >> 62);
        }
        if (round % 10 == 9) cost[round % (n * m)] = 1e30;
        fv__assign(cost, n, m, column, work);
        double sum = 0;
        unsigned taken = 0;
        for (int64_t i = 0; i < n; i++) {
            assert_in_range(column[i], 0, m - 1);
            assert_false(taken >> column[i] & 1);
            taken |= 1u << column[i];
            sum += cost[i * m + column[i]];
        }
        assert_float_equal(sum, least(cost, n, m, 0, 0), 1e-9);
    }
}

/* ---- captions ---- */

static fv_model *open_case(const char *name, fv_model_opt opt)
{
    fv_model *m;
    fv_err e;
    char dir[512];
    snprintf(dir, sizeof dir, CASES "%s", name);
    check(fv_model_open(&m, device, dir, opt, &e), &e);
    return m;
}

static float *array(const char *name, const char *file, const char *what, fv_shape *shape)
{
    fv_st *s;
    fv_st_info t;
    fv_err e;
    char path[512];
    snprintf(path, sizeof path, CASES "%s/%s.safetensors", name, file);
    check(fv_st_open(&s, NULL, path, &e), &e);
    check(fv_st_find(s, what, &t, &e), &e);
    float *x = malloc((size_t)t.count * sizeof *x);
    check(fv_st_read(s, &t, x, FV_F32, t.count, &e), &e);
    *shape = t.shape;
    fv_st_close(s);
    return x;
}

/* transformers' generate() gives the same tokens, from the first one on. */
static void captions_are_transformers(void **state)
{
    (void)state;
    static const char *const cases[] = {"vision-encoder-decoder",
                                        "vision-encoder-decoder-projected"};
    for (int i = 0; i < 4; i++) {
        const char *name = cases[i / 2];
        fv_model *m = open_case(name, (fv_model_opt){.serve = i % 2});
        fv_shape pixels, sequences;
        float *image = array(name, "in", "pixel_values", &pixels);
        float *want = array(name, "out", "sequences", &sequences);
        int64_t B = sequences.d[0], T = sequences.d[1];
        fv_session *s;
        fv_ctx *c;
        fv_err e;
        check(fv_session_new(&s, m, device, B, T + 1, &e), &e);
        check(fv_ctx_new(&c, device, (fv_ctx_opt){0}, &e), &e);
        fv_items in = {0};
        fv_items_put(&in, "pixel_values", fv_floats(c, image, pixels));
        fv_session_begin(c, s, &in);
        int32_t first[8], got[8 * 16];
        for (int64_t b = 0; b < B; b++) first[b] = (int32_t)want[b * T];
        fv_ctx_status(c);
        fv_ctx_reset(c, 0);
        check(fv_session_greedy(c, s, first, got, T - 1), fv_ctx_err(c));
        for (int64_t b = 0; b < B; b++)
            for (int64_t t = 1; t < T; t++) {
                assert_int_equal(got[(t - 1) * B + b], (int32_t)want[b * T + t]);
                if ((int32_t)want[b * T + t] == 36) break; /* what follows the end is padding */
            }
        free(image);
        free(want);
        fv_ctx_free(c);
        fv_session_free(s);
        fv_model_free(m);
    }
}

/* ---- a GAN ---- */

/* Both players learn from one pass, each from its own loss, and the singular vectors move. */
static void both_players_learn(void **state)
{
    (void)state;
    fv_model *m = open_case("sagan", (fv_model_opt){.train = true});
    fv_params *p = fv_model_params(m);
    fv_train_opt how = {0};
    fv_fields_default(&how, fv_train_fields);
    how.lr = 1e-3f;
    how.warmup = 0;
    how.beta1 = 0;
    fv_updater *u;
    fv_err e;
    check(fv_updater_new(&u, m, device, &how, &e), &e);
    fv_batch b = {.env = fv_device_env(device)};
    fv_shape zs, xs;
    float *z = array("sagan", "in", "latents", &zs), *x = array("sagan", "in", "pixel_values", &xs);
    memcpy(fv_batch_put(&b, "latents", FV_F32, zs), z, (size_t)fv_shape_len(zs) * sizeof *z);
    memcpy(fv_batch_put(&b, "pixel_values", FV_F32, xs), x, (size_t)fv_shape_len(xs) * sizeof *x);
    memcpy(fv_batch_put(&b, "labels", FV_I32, FV_SHAPE(2)), (int32_t[]){2, 0}, 8);
    b.labels = 2;
    static const char *const names[] = {"generator.last.weight", "discriminator.judge.weight",
                                        "generator.blocks.0.conv1.weight_u",
                                        "generator.norm.running_mean"};
    float before[4][16], after[4][16];
    for (int i = 0; i < 4; i++) {
        fv_tensor *t = fv_params_find(p, names[i]);
        float all[512];
        assert_non_null(t);
        check(fv_params_get(p, t, all, fv_len(t), &e), &e);
        memcpy(before[i], all, 4 * sizeof(float));
    }
    const fv_batch *batch = &b;
    fv_updated came[64];
    int64_t n;
    check(fv_updater_step(u, 1, &batch, 1, &e), &e);
    check(fv_updater_read(u, came, &n, &e), &e);
    assert_true(isfinite(came[0].loss) && came[0].norm > 0);
    for (int i = 0; i < 4; i++) {
        fv_tensor *t = fv_params_find(p, names[i]);
        float all[512];
        check(fv_params_get(p, t, all, fv_len(t), &e), &e);
        memcpy(after[i], all, 4 * sizeof(float));
        if (!memcmp(before[i], after[i], 4 * sizeof(float))) fail_msg("%s stayed", names[i]);
    }
    free(z);
    free(x);
    fv_batch_free(&b);
    fv_updater_free(u);
    fv_model_free(m);
}

/* Running statistics belong to the weights that run: swapping the average in leaves them as they
 * are, and so does swapping it out. */
static void buffers_are_not_averaged(void **state)
{
    (void)state;
    static const fv_dtype dtypes[] = {FV_F32, FV_BF16};
    for (int i = 0; i < 2; i++) {
        fv_model *m = open_case("sagan", (fv_model_opt){.train = true, .dtype = dtypes[i]});
        fv_params *p = fv_model_params(m);
        fv_tensor *t = fv_params_find(p, "generator.norm.running_mean");
        fv_train_opt how = {0};
        fv_adam *a;
        fv_err e;
        float values[8], got[8];
        fv_fields_default(&how, fv_train_fields);
        how.ema = 0.9f;
        check(fv_adam_new(&a, p, device, &how, &e), &e);
        for (int k = 0; k < 8; k++) values[k] = 3 + (float)k;
        check(fv_params_set(p, t, values, 8, &e), &e);
        for (int swap = 0; swap < 2; swap++) {
            check(fv_adam_swap(a, &e), &e);
            check(fv_params_get(p, t, got, 8, &e), &e);
            assert_memory_equal(got, values, sizeof got);
        }
        fv_adam_free(a);
        fv_model_free(m);
    }
}

/* ---- training ---- */

#define SMALL                                                                                      \
    "\"hidden_size\":16,\"num_hidden_layers\":2,\"num_attention_heads\":2,\"intermediate_size\":"  \
    "32,"                                                                                          \
    "\"image_size\":8,\"patch_size\":4,\"initializer_range\":0.2"
#define THREE "\"id2label\":{\"0\":\"a\",\"1\":\"b\",\"2\":\"c\"}"

/* Batches are f32 whatever the model computes in; with or without stochastic depth a few images are
 * learned by heart. */
static void a_few_images_are_learned(void **state)
{
    (void)state;
    static const char *const configs[] = {
        "{\"model_type\":\"vit\",\"architectures\":[\"ViTForImageClassification\"]," SMALL "," THREE
        "}",
        "{\"model_type\":\"dinov2\",\"architectures\":[\"Dinov2ForImageClassification\"]," SMALL
        ",\"drop_path_rate\":0.1," THREE "}",
    };
    static const fv_dtype dtypes[] = {FV_F32, FV_BF16};
    float pixels[3 * 3 * 8 * 8];
    for (int i = 0; i < 3 * 3 * 8 * 8; i++) pixels[i] = (float)(i * 37 % 101) / 50 - 1;
    for (int i = 0; i < 4; i++) {
        fv_model *m;
        fv_updater *u;
        fv_err e;
        fv_train_opt how = {0};
        fv_updated came[64];
        int64_t n;
        double first = 0, last = 0;
        fv_model_opt opt = {.train = true, .dtype = dtypes[i / 2]};
        check(fv_model_new(&m, device, configs[i % 2], opt, 3, &e), &e);
        fv_fields_default(&how, fv_train_fields);
        how.lr = 1e-2f;
        how.warmup = 0;
        how.smooth = 0;
        check(fv_updater_new(&u, m, device, &how, &e), &e);
        fv_batch b = {.env = fv_device_env(device), .labels = 3};
        memcpy(fv_batch_put(&b, "pixel_values", FV_F32, FV_SHAPE(3, 3, 8, 8)), pixels,
               sizeof pixels);
        memcpy(fv_batch_put(&b, "labels", FV_I32, FV_SHAPE(3)), (int32_t[]){2, 0, 1}, 12);
        const fv_batch *batch = &b;
        for (int step = 1; step <= 60; step++) {
            check(fv_updater_step(u, step, &batch, 1, &e), &e);
            check(fv_updater_read(u, came, &n, &e), &e);
            last = came[0].loss;
            if (step == 1) first = last;
        }
        if (!(last < 0.3 * first)) fail_msg("%s: %g, then %g", configs[i % 2], first, last);
        fv_batch_free(&b);
        fv_updater_free(u);
        fv_model_free(m);
    }
}

/* Of each row all or nothing, and the same mean. */
static void rows_are_dropped_as_a_whole(void **state)
{
    (void)state;
    enum { ROWS = 400, EACH = 6 };
    fv_ctx *c;
    fv_err e;
    float y[ROWS * EACH];
    int kept = 0;
    check(fv_ctx_new(&c, device, (fv_ctx_opt){.train = true, .seed = 5}, &e), &e);
    fv_tensor *x = fv_full(c, FV_SHAPE(ROWS, 2, 3), 3), *t = fv_drop_path(c, x, 0.25f);
    check(fv_read(c, t, y, ROWS * EACH), fv_ctx_err(c));
    for (int i = 0; i < ROWS * EACH; i++) {
        assert_true(y[i] == 0 || fabsf(y[i] - 4) < 1e-5f);
        assert_true(y[i] == y[i / EACH * EACH]);
        kept += i % EACH == 0 && y[i] > 0;
    }
    assert_in_range(kept, 260, 340);
    fv_ctx_set_train(c, false);
    assert_ptr_equal(fv_drop_path(c, x, 0.25f), x);
    fv_ctx_free(c);
}

/* ---- refusals ---- */

static void wrong_inputs_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *name, *input, *says;
        fv_shape shape;
    } cases[] = {
        {"vit", "pixel_values", "expected (B,3,height,width)", {4, {1, 4, 12, 12}}},
        {"vit", "pixel_values", "patches", {4, {1, 3, 3, 12}}},
        {"clip", "nothing", "neither input_ids nor pixel_values", {1, {1}}},
        {"videomae", "pixel_values", "expected (B,5,3,8,8)", {5, {1, 4, 3, 8, 8}}},
        {"sagan", "latents", "expected (B,6)", {2, {1, 5}}},
        {"sagan", "latents", "labels are missing", {2, {1, 6}}},
        {"vision-encoder-decoder", "pixel_values", "neither decoder_input_ids", {4, {1, 3, 8, 8}}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fv_model *m = open_case(cases[i].name, (fv_model_opt){0});
        fv_ctx *c;
        fv_err e;
        fv_items in = {0}, out = {0};
        check(fv_ctx_new(&c, device, (fv_ctx_opt){0}, &e), &e);
        fv_items_put(&in, cases[i].input, fv_zeros(c, cases[i].shape));
        fv_model_forward(c, m, &in, &out);
        assert_int_not_equal(fv_ctx_status(c), FV_OK);
        if (!strstr(fv_ctx_err(c)->text, cases[i].says))
            fail_msg("%s: %s", cases[i].name, fv_ctx_err(c)->text);
        fv_ctx_free(c);
        fv_model_free(m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_assignment_costs_the_least),
        cmocka_unit_test(captions_are_transformers),
        cmocka_unit_test(both_players_learn),
        cmocka_unit_test(buffers_are_not_averaged),
        cmocka_unit_test(a_few_images_are_learned),
        cmocka_unit_test(rows_are_dropped_as_a_whole),
        cmocka_unit_test(wrong_inputs_are_named),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
