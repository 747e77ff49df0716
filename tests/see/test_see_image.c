/* test_see_image.c - seeing on an image: which tokens are patches, what they look at, the objects
 * of a detector, and the files that show it. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fovea/see.h"
#include "fovea/author/audio.h"
#include "fovea/author/processor.h"
#include "fovea/author/see.h"
#include "helper/device.h"
#include "helper/files.h"
#include "helper/golden.h"

#define PHOTO FOVEA_TESTS "/golden/images/rgb.png"

/* Images of 16 by 20 pixels: 4 by 5 patches. */
static const char vit[] =
    "{\"model_type\": \"vit\", \"architectures\": [\"ViTForImageClassification\"], "
    "\"image_size\": [16, 20], \"patch_size\": 4, \"hidden_size\": 16, "
    "\"num_hidden_layers\": 3, \"num_attention_heads\": 2, "
    "\"intermediate_size\": 32, \"num_labels\": 3}";
static const char yolos[] =
    "{\"model_type\": \"yolos\", \"architectures\": [\"YolosForObjectDetection\"], "
    "\"image_size\": [16, 20], \"patch_size\": 4, \"hidden_size\": 16, \"num_hidden_layers\": 2, "
    "\"num_attention_heads\": 2, \"intermediate_size\": 32, \"num_detection_tokens\": 6, "
    "\"id2label\": {\"0\": \"cell\"}, \"label2id\": {\"cell\": 0}, \"num_labels\": 1}";

static const char clip[] =
    "{\"model_type\": \"clip\", \"architectures\": [\"CLIPModel\"], \"projection_dim\": 8, "
    "\"vision_config\": {\"image_size\": 16, \"patch_size\": 4, \"hidden_size\": 16, "
    "\"num_hidden_layers\": 2, \"num_attention_heads\": 2, \"intermediate_size\": 32}, "
    "\"text_config\": {\"vocab_size\": 20, \"hidden_size\": 16, \"num_hidden_layers\": 1, "
    "\"num_attention_heads\": 2, \"intermediate_size\": 32, \"max_position_embeddings\": 8, "
    "\"eos_token_id\": 2}}";

/* A model with random weights and the processor of the golden ViT, in a folder. */
static const char *make_model(const char *name, const char *config)
{
    fv_model *m;
    fv_err e;
    size_t n;
    char *steps = slurp(FOVEA_TESTS "/golden/images/vit/preprocessor_config.json", &n);
    check(fv_model_new(&m, device, config, (fv_model_opt){0}, 5, &e), &e);
    check(fv_model_save(m, scratch("%s", name), FV_F32, &e), &e);
    fv_model_free(m);
    char path[64];
    snprintf(path, sizeof path, "%s/preprocessor_config.json", name);
    scratch_text(path, steps);
    free(steps);
    return scratch("%s", name);
}

typedef struct lab {
    fv_model *m;
    fv_see *s;
} lab;

static void open_lab(lab *l, const char *dir)
{
    fv_err e;
    check(fv_model_open(&l->m, device, dir, (fv_model_opt){.serve = true}, &e), &e);
    check(fv_see_run(&l->s, device, l->m, (fv_see_in){.image = PHOTO, .dir = dir}, &e), &e);
}

static void close_lab(lab *l)
{
    fv_see_free(l->s);
    fv_model_free(l->m);
}

static int set_up(void **state)
{
    if (scratch_open(state) || open_device(state)) return -1;
    make_model("vit", vit);
    make_model("yolos", yolos);
    return 0;
}
static int tear_down(void **state) { return close_device(state) || scratch_close(state); }

static void patches_stand_behind_the_class_token(void **state)
{
    (void)state;
    lab l;
    open_lab(&l, scratch("vit"));
    fv_see_shape shape = fv_see_shape_of(l.s, FV_SEE_ENCODER);
    assert_int_equal(shape.layers, 3);
    assert_int_equal(shape.heads, 2);
    assert_int_equal(shape.rows, 21);
    assert_int_equal(shape.cols, 21);
    assert_string_equal(fv_see_row(l.s, FV_SEE_ENCODER, 0), "class");
    assert_string_equal(fv_see_col(l.s, FV_SEE_ENCODER, 1), "0,0");
    assert_string_equal(fv_see_col(l.s, FV_SEE_ENCODER, 20), "3,4");
    close_lab(&l);
}

/* The weights are those of a pass on pixel_values that somebody else made. */
static void weights_are_those_of_a_pass_on_its_pixels(void **state)
{
    (void)state;
    fv_err e;
    lab l;
    fv_processor *p;
    fv_image raw = {0}, fit = {0};
    float x[3 * 16 * 20], a[21 * 21], b[21 * 21];
    open_lab(&l, scratch("vit"));
    check(fv_processor_open(&p, NULL, "image", scratch("vit"), &e), &e);
    check(fv_image_open(&raw, NULL, PHOTO, &e), &e);
    check(fv_processor_image_fit(p, &fit, &raw, &e), &e);
    assert_int_equal(fit.height, 16);
    fv_processor_image_floats(p, &fit, x, 0, 0);
    fv_ctx *c;
    fv_see *other;
    fv_items in = {0}, out = {0};
    check(fv_ctx_new(&c, device, (fv_ctx_opt){.record = true}, &e), &e);
    check(fv_see_watch(&other, c, 0, &e), &e);
    fv_items_put(&in, "pixel_values", fv_floats(c, x, FV_SHAPE(1, 3, 16, 20)));
    fv_model_forward(c, l.m, &in, &out);
    for (int layer = 0; layer < 3; layer++) {
        fv_see_pick pick = {FV_SEE_ENCODER, layer, 1, false, false};
        check(fv_see_weights(l.s, pick, 0, 21, a, &e), &e);
        check(fv_see_weights(other, pick, 0, 21, b, &e), &e);
        assert_memory_equal(a, b, sizeof a);
    }
    fv_see_free(other);
    fv_ctx_free(c);
    fv_image_free(&raw);
    fv_image_free(&fit);
    fv_processor_close(p);
    close_lab(&l);
}

/* With one class and random weights some objects are found and others are not. */
static void objects_that_are_found_have_names(void **state)
{
    (void)state;
    lab l;
    open_lab(&l, scratch("yolos"));
    assert_int_equal(fv_see_shape_of(l.s, FV_SEE_ENCODER).rows, 1 + 20 + 6);
    int found = 0;
    for (int64_t i = 21; i < 27; i++) {
        const char *name = fv_see_row(l.s, FV_SEE_ENCODER, i);
        bool named = !strncmp(name, "cell 0.", 7);
        assert_true(named || !strncmp(name, "object ", 7));
        found += named;
    }
    assert_true(found >= 0 && found <= 6);
    assert_string_equal(fv_see_row(l.s, FV_SEE_ENCODER, 20), "3,4");
    close_lab(&l);
}

static void save(fv_see *s, const char *name, fv_see_opt o)
{
    fv_err e;
    check(fv_see_save(s, NULL, scratch("%s", name), o, &e), &e);
    assert_true(scratch_has(name));
}

static void pictures_and_pages_hold_the_image(void **state)
{
    (void)state;
    lab l;
    open_lab(&l, scratch("vit"));
    fv_see_opt all = {.pick = {.layer = FV_SEE_ALL, .head = FV_SEE_ALL}, .every_kind = true};
    save(l.s, "a.html", all);
    size_t n;
    char *page = slurp(scratch("a.html"), &n);
    assert_non_null(strstr(page, "id=\"image\""));
    assert_non_null(strstr(page, "\"image\": {\"size\": [20, 16]"));
    assert_non_null(strstr(page, "\"cols_grid\": [1, 4, 5]"));
    free(page);
#ifdef HAVE_CAIRO
    save(l.s, "heads.svg", all);
    char *svg = slurp(scratch("heads.svg"), &n);
    assert_non_null(strstr(svg, "data:image/png;base64,"));
    assert_non_null(strstr(svg, "all layers and heads: class</title>"));
    free(svg);
    fv_see_opt one = all;
    one.pick.rollout = true;
    one.patch = (int64_t[]){1, 1};
    save(l.s, "patch.svg", one);
    svg = slurp(scratch("patch.svg"), &n);
    assert_non_null(strstr(svg, "patch 1,1</title>"));
    free(svg);
    one.patch = NULL;
    one.from = 0;
    one.to = 21;
    save(l.s, "rows.png", one);
    one.view = FV_VIEW_HEAT; /* a map is still to be had */
    save(l.s, "heat.png", one);
#endif
    close_lab(&l);
}

/* A sound is an image of its spectrogram, its positions patches of full height: of samples
 * (Moonshine) all of them, of Whisper those of its window that are sound. */
static void sounds_are_seen_as_spectrograms(void **state)
{
    (void)state;
    static const char whisper[] =
        "{\"model_type\": \"whisper\", \"architectures\": [\"WhisperForConditionalGeneration\"], "
        "\"vocab_size\": 12, \"num_mel_bins\": 5, \"d_model\": 12, \"encoder_layers\": 1, "
        "\"decoder_layers\": 2, \"encoder_attention_heads\": 2, \"decoder_attention_heads\": 2, "
        "\"encoder_ffn_dim\": 8, \"decoder_ffn_dim\": 8, \"max_source_positions\": 50, "
        "\"max_target_positions\": 8, \"pad_token_id\": 0, \"decoder_start_token_id\": 1}";
    fv_err e;
    fv_clip x = {0};
    lab l;
    size_t n;
    char path[300];
    check(fv_clip_new(&x, NULL, 16000, 6400, &e), &e); /* 0.4 s of a window of 1 s */
    for (int64_t i = 0; i < x.n; i++) x.data[i] = (float)sin(0.2 * (double)i);
    snprintf(path, sizeof path, "%s", scratch("sound.wav"));
    check(fv_clip_save(&x, path, &e), &e);
    fv_clip_free(&x);
    const char *dir = make_model("whisper", whisper);
    scratch_text("whisper/preprocessor_config.json",
                 "{\"feature_extractor_type\": \"WhisperFeatureExtractor\", \"feature_size\": 5, "
                 "\"chunk_length\": 1}");
    check(fv_model_open(&l.m, device, dir, (fv_model_opt){.serve = true}, &e), &e);
    fv_see_in in = {
        .image = path, .dir = dir, .target = (int32_t[]){3, 4, 5}, .n_target = 3, .start = 1};
    check(fv_see_run(&l.s, device, l.m, in, &e), &e);
    fv_see_shape shape = fv_see_shape_of(l.s, FV_SEE_CROSS);
    assert_int_equal(shape.rows, 3);
    assert_int_equal(shape.cols, 50);
    assert_string_equal(fv_see_col(l.s, FV_SEE_CROSS, 10), "0.20 s");
    assert_string_equal(fv_see_col(l.s, FV_SEE_CROSS, 20), "padding");
    fv_see_opt o = {.pick = {.kind = FV_SEE_CROSS, .layer = 1, .head = 0}, .words = true};
    save(l.s, "sound.html", o);
    char *page = slurp(scratch("sound.html"), &n);
    assert_non_null(strstr(page, "\"seconds\": 0.4"));
    free(page);
#ifdef HAVE_CAIRO
    save(l.s, "sound.svg", o);
    save(l.s, "sound.png", o);
#endif
    close_lab(&l);
}

/* A pass that must fail, and the sentence that says why. */
static void refused(const fv_model *m, fv_see_in in, const char *why)
{
    fv_err e;
    fv_see *s;
    assert_int_not_equal(fv_see_run(&s, device, m, in, &e), FV_OK);
    assert_null(s);
    if (!strstr(e.text, why)) print_error("%s\n", e.text);
    assert_non_null(strstr(e.text, why));
}

static void what_is_no_image_is_refused(void **state)
{
    (void)state;
    fv_err e;
    fv_model *m;
    lab l;
    const char *dir = scratch("vit");
    check(fv_model_open(&m, device, dir, (fv_model_opt){.serve = true}, &e), &e);
    refused(m, (fv_see_in){.image = scratch_text("no.png", "no picture"), .dir = dir}, "no.png");
    refused(m, (fv_see_in){.image = scratch("missing.png"), .dir = dir}, "missing.png");
    refused(m, (fv_see_in){.image = PHOTO, .dir = scratch("nowhere")}, "nowhere");
    refused(m, (fv_see_in){.image = PHOTO}, "which directory");
    refused(m, (fv_see_in){0}, "no token");
    fv_model_free(m);
    check(fv_model_open(&m, device, FOVEA_TESTS "/golden/models/bert",
                        (fv_model_opt){.serve = true}, &e),
          &e);
    refused(m, (fv_see_in){.image = PHOTO, .dir = dir}, "takes neither an image nor a sound");
    fv_model_free(m);
    open_lab(&l, dir);
    fv_see_opt o = {.pick = {.layer = FV_SEE_ALL, .head = FV_SEE_ALL}, .patch = (int64_t[]){4, 0}};
    assert_int_equal(fv_see_save(l.s, NULL, scratch("no.json"), o, &e), FV_EARG);
    assert_non_null(strstr(e.text, "4 rows of 5 patches"));
    close_lab(&l);
}

enum { N = 17 }; /* tokens of the image that CLIP sees here */

/* The greatest row sum of a layer's mean over heads, whose weights are shares. */
static float greatest_sum(fv_see *s, int layer, float a[N * N])
{
    fv_err e;
    fv_see_pick pick = {.kind = FV_SEE_ENCODER, .layer = layer, .head = FV_SEE_ALL};
    float most = 0;
    check(fv_see_weights(s, pick, 0, N, a, &e), &e);
    for (int i = 0; i < N; i++) {
        float sum = 0;
        for (int j = 0; j < N; j++) {
            assert_true(a[i * N + j] >= 0 && a[i * N + j] <= 1);
            sum += a[i * N + j];
        }
        if (sum > most) most = sum;
    }
    return most;
}

/* A text looks at what counts for it: weights are not negative, the greatest row sum of any layer
 * is 1, and those of another text differ. */
static void a_text_weighs_the_attention_over_an_image(void **state)
{
    (void)state;
    fv_err e;
    fv_model *m;
    fv_see *s;
    float a[2][N * N];
    const int32_t texts[2][4] = {{1, 5, 6, 2}, {1, 9, 13, 2}};
    const char *dir = make_model("clip", clip);
    scratch_text("clip/preprocessor_config.json",
                 "{\"image_processor_type\": \"ViTImageProcessor\", \"do_resize\": true, "
                 "\"size\": {\"height\": 16, \"width\": 16}}");
    check(fv_model_open(&m, device, dir, (fv_model_opt){0}, &e), &e);
    for (int t = 0; t < 2; t++) {
        fv_see_in in = {.image = PHOTO, .dir = dir, .source = texts[t], .n_source = 4};
        in.guided = true;
        check(fv_see_run(&s, device, m, in, &e), &e);
        float first = greatest_sum(s, 0, a[t]), second = greatest_sum(s, 1, a[t]);
        assert_float_equal(first > second ? first : second, 1, 1e-5);
        fv_see_free(s);
    }
    assert_memory_not_equal(a[0], a[1], sizeof a[0]);
    refused(m, (fv_see_in){.image = PHOTO, .dir = dir, .guided = true},
            "an image file and a text are needed");
    fv_model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(patches_stand_behind_the_class_token),
        cmocka_unit_test(weights_are_those_of_a_pass_on_its_pixels),
        cmocka_unit_test(a_text_weighs_the_attention_over_an_image),
        cmocka_unit_test(objects_that_are_found_have_names),
        cmocka_unit_test(pictures_and_pages_hold_the_image),
        cmocka_unit_test(sounds_are_seen_as_spectrograms),
        cmocka_unit_test(what_is_no_image_is_refused),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
