/* test_clips.c - clips as folders of frames: which frames are chosen, and what a model of video
 * makes of them. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "fovea/author/author.h"
#include "fovea/fovea.h"
#include "helper/device.h"
#include "helper/program.h"

#define MODEL FOVEA_TESTS "/golden/models/videomae-classify"

enum { SIDE = 8, HAS = 9, TAKES = 5, LABELS = 5 }; /* frames of the clip, and of the model */

static uint8_t level(int frame, int i) { return (uint8_t)((i * 37 + frame * 91) % 251); }

static int set_up(void **state)
{
    if (scratch_open(state) || open_device(state)) return -1;
    static const char *const files[] = {"config.json", "model.safetensors"};
    mkdir(scratch("model"), 0777);
    for (int i = 0; i < 2; i++) {
        size_t n;
        char path[500], name[64];
        snprintf(path, sizeof path, MODEL "/%s", files[i]);
        snprintf(name, sizeof name, "model/%s", files[i]);
        char *bytes = slurp(path, &n);
        scratch_put(name, bytes, n);
        free(bytes);
    }
    scratch_text("model/preprocessor_config.json",
                 "{\"image_processor_type\": \"VideoMAEImageProcessor\", \"do_resize\": false, "
                 "\"do_rescale\": true, \"rescale_factor\": 0.00392156862745098, \"do_normalize\": "
                 "true, \"image_mean\": [0.5, 0.5, 0.5], \"image_std\": [0.5, 0.5, 0.5]}");
    mkdir(scratch("clips"), 0777);
    mkdir(scratch("clips/jump"), 0777);
    mkdir(scratch("empty"), 0777);
    for (int f = 0; f < HAS; f++) {
        fv_image im = {0};
        fv_err e;
        check(fv_image_new(&im, NULL, SIDE, SIDE, 3, &e), &e);
        for (int i = 0; i < SIDE * SIDE * 3; i++) im.data[i] = level(f, i);
        check(fv_image_save(&im, scratch("clips/jump/%02d.png", f), &e), &e);
        fv_image_free(&im);
    }
    return 0;
}
static int tear_down(void **state) { return close_device(state) || scratch_close(state); }

/* Logits of frames 0, 2, 4, 6 and 8, by a pass of our own. */
static void expected(float out[LABELS])
{
    fv_model *m;
    fv_ctx *c;
    fv_err e;
    fv_items in = {0}, made = {0};
    static float x[TAKES * 3 * SIDE * SIDE];
    for (int f = 0; f < TAKES; f++)
        for (int i = 0; i < SIDE * SIDE * 3; i++)
            x[(f * 3 + i % 3) * SIDE * SIDE + i / 3] = ((float)level(2 * f, i) / 255 - 0.5F) / 0.5F;
    check(fv_model_open(&m, device, MODEL, (fv_model_opt){.serve = true}, &e), &e);
    check(fv_ctx_new(&c, device, (fv_ctx_opt){0}, &e), &e);
    fv_items_put(&in, "pixel_values", fv_floats(c, x, FV_SHAPE(1, TAKES, 3, SIDE, SIDE)));
    fv_model_forward(c, m, &in, &made);
    check(fv_read(c, fv_items_get(&made, "logits"), out, LABELS), fv_ctx_err(c));
    fv_ctx_free(c);
    fv_model_free(m);
}

static void a_clip_is_classified(void **state)
{
    (void)state;
    float y[LABELS];
    double sum = 0;
    expected(y);
    for (int i = 0; i < LABELS; i++) sum += exp((double)y[i]);
    const result *r = fovea("classify -m %s --json --top 5 %s", scratch("model"), scratch("clips"));
    json_t *line = json_line(succeeded(r), 0), *labels = json_object_get(line, "labels");
    assert_int_equal(json_array_size(labels), LABELS);
    for (size_t i = 0; i < LABELS; i++) {
        json_t *one = json_array_get(labels, i);
        const char *name = json_string_value(json_object_get(one, "label"));
        double p = json_number_value(json_object_get(one, "score"));
        assert_true(fabs(p - exp((double)y[name[1] - '0']) / sum) < 1e-5);
    }
    json_decref(line);
}

static void what_is_no_clip_is_refused(void **state)
{
    (void)state;
    char model[400];
    snprintf(model, sizeof model, "%s", scratch("model"));
    const result *r = fovea("classify -m %s %s", model, scratch("clips/jump/00.png"));
    assert_int_not_equal(r->code, 0);
    assert_non_null(strstr(r->err, "no folder of frames"));
    r = fovea_reads(scratch("empty"), "classify -m %s", model);
    assert_int_not_equal(r->code, 0);
    assert_non_null(strstr(r->err, "no frame"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_clip_is_classified),
        cmocka_unit_test(what_is_no_clip_is_refused),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
