/* test_images.c - images against Pillow and image processors against transformers: decoding, sizes,
 * levels, normalised numbers; and files that are not what they say. */
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

#include "fovea/author/processor.h"
#include "fovea/fovea.h"
#include "helper/device.h"
#include "helper/failing.h"
#include "helper/files.h"

#define GOLDEN FOVEA_TESTS "/golden/images/"

static fv_st *open_golden(const char *name)
{
    fv_err e;
    fv_st *s;
    char path[400];
    snprintf(path, sizeof path, GOLDEN "%.100s.safetensors", name);
    check(fv_st_open(&s, NULL, path, &e), &e);
    return s;
}

static void open_image(fv_image *im, const char *name)
{
    fv_err e;
    char path[400];
    snprintf(path, sizeof path, GOLDEN "%.100s", name);
    check(fv_image_open(im, NULL, path, &e), &e);
}

/* The greatest difference of a level. */
static int difference(const fv_image *im, const fv_st_info *t)
{
    const uint8_t *want = t->data;
    int most = 0;
    assert_int_equal(im->height, t->shape.d[0]);
    assert_int_equal(im->width, t->shape.d[1]);
    assert_int_equal(im->channels, t->shape.n > 2 ? t->shape.d[2] : 1);
    for (int64_t i = 0; i < t->count; i++) {
        int d = abs(im->data[i] - want[i]);
        if (d > most) most = d;
    }
    return most;
}

static void images_are_decoded_as_pillow_does(void **state)
{
    (void)state;
    fv_st *golden = open_golden("decoded");
    fv_image im = {0};
    fv_err e;
    for (int i = 0; i < fv_st_count(golden); i++) {
        fv_st_info t = fv_st_at(golden, i);
        open_image(&im, t.name);
        check(fv_image_convert(&im, t.shape.n > 2 ? 3 : 1, &e), &e);
        if (difference(&im, &t)) fail_msg("%s: differs by %d levels", t.name, difference(&im, &t));
    }
    fv_image_free(&im);
    fv_st_close(golden);
}

static void sizes_have_the_levels_of_pillow(void **state)
{
    (void)state;
    fv_st *golden = open_golden("resized");
    fv_image in = {0}, out = {0};
    fv_err e;
    for (int i = 0; i < fv_st_count(golden); i++) {
        fv_st_info t = fv_st_at(golden, i);
        char name[40];
        int filter, w, h;
        assert_int_equal(sscanf(t.name, "%[a-z].png.%d.%dx%d", name, &filter, &w, &h), 4);
        strcat(name, ".png");
        open_image(&in, name);
        check(fv_image_resize(&out, &in, w, h, (fv_resample)filter, (fv_window){0}, &e), &e);
        if (difference(&out, &t))
            fail_msg("%s: differs by %d levels", t.name, difference(&out, &t));
        /* a window is the same as a crop of all of it */
        fv_window part = {w / 3, h / 4, w / 2, h / 3};
        fv_image all = out, crop = {0};
        out = (fv_image){0};
        check(fv_image_resize(&out, &in, w, h, (fv_resample)filter, part, &e), &e);
        check(fv_image_crop(&crop, &all, part, &e), &e);
        assert_memory_equal(out.data, crop.data,
                            (size_t)part.width * (size_t)part.height * (size_t)out.channels);
        fv_image_free(&all);
        fv_image_free(&crop);
    }
    fv_image_free(&in);
    fv_image_free(&out);
    fv_st_close(golden);
}

/* One image through one processor, and the processor's file written back. */
static void compare_processor(const char *dir, const fv_processor *p, const fv_st_info *t)
{
    fv_image in = {0}, fit = {0};
    fv_err e;
    int w, h;
    open_image(&in, t->name);
    check(fv_processor_image_size(p, in.width, in.height, &w, &h, &e), &e);
    check(fv_processor_image_fit(p, &fit, &in, &e), &e);
    assert_int_equal(fit.width, w);
    assert_int_equal(fit.height, h);
    assert_int_equal(fit.channels, t->shape.d[0]);
    assert_int_equal(h, t->shape.d[1]);
    assert_int_equal(w, t->shape.d[2]);
    float *got = malloc((size_t)t->count * sizeof *got), *want = malloc(t->bytes);
    memcpy(want, t->data, t->bytes);
    fv_processor_image_floats(p, &fit, got, 0, 0);
    for (int64_t i = 0; i < t->count; i++)
        if (fabsf(got[i] - want[i]) > 1e-6f)
            fail_msg("%s, %s: %g instead of %g", dir, t->name, (double)got[i], (double)want[i]);
    free(got);
    free(want);
    fv_image_free(&in);
    fv_image_free(&fit);
}

static void processors_are_those_of_transformers(void **state)
{
    (void)state;
    static const char *const dirs[] = {"vit",    "vit-grey", "deit",      "clip", "clip-padded",
                                       "siglip", "dinov2",   "segformer", "yolos"};
    fv_err e;
    mkdir(scratch("again"), 0777);
    for (size_t i = 0; i < sizeof dirs / sizeof *dirs; i++) {
        char path[400];
        fv_processor *p, *again;
        snprintf(path, sizeof path, GOLDEN "%s", dirs[i]);
        check(fv_processor_open(&p, NULL, NULL, path, &e), &e);
        assert_string_equal(fv_processor_kind(p), "image");
        assert_null(fv_processor_tok(p));
        check(fv_processor_save(p, scratch("again"), &e), &e);
        check(fv_processor_open(&again, NULL, "image", scratch("again"), &e), &e);
        snprintf(path, sizeof path, "%.40s/out", dirs[i]);
        fv_st *golden = open_golden(path);
        for (int k = 0; k < fv_st_count(golden); k++) {
            fv_st_info t = fv_st_at(golden, k);
            compare_processor(dirs[i], again, &t);
        }
        fv_st_close(golden);
        fv_processor_close(p);
        fv_processor_close(again);
    }
}

static void a_new_processor_is_written_and_read(void **state)
{
    (void)state;
    fv_err e;
    fv_processor *p, *q;
    fv_image_steps steps = {.channels = 1,
                            .resize = true,
                            .width = 28,
                            .height = 26,
                            .resample = FV_BICUBIC,
                            .rescale = true,
                            .normalise = true,
                            .mean = {0.1307},
                            .deviation = {0.3081}};
    mkdir(scratch("new"), 0777);
    check(fv_processor_from_steps(&p, NULL, &steps, NULL, &e), &e);
    check(fv_processor_save(p, scratch("new"), &e), &e);
    check(fv_processor_open(&q, NULL, NULL, scratch("new"), &e), &e);
    const fv_image_steps *a = fv_processor_steps(p), *b = fv_processor_steps(q);
    assert_true(a->channels == b->channels && a->width == b->width && a->height == b->height &&
                a->resample == b->resample && a->mean[0] == b->mean[0] &&
                a->deviation[0] == b->deviation[0] && a->factor == b->factor && !b->crop_height);
    fv_processor_close(p);
    fv_processor_close(q);
    static const char *const bad[][2] = {
        {"{\"image_mean\": [1, 2], \"image_std\": [1, 2]}", "one number each, or three"},
        {"{\"image_mean\": [1], \"image_std\": [0]}", "above 0"},
        {"{\"image_processor_type\": \"ViT\", \"size\": 0}", "1 to 65536"},
        {"{\"image_processor_type\": \"ViT\", \"size\": {\"depth\": 3}}", "height and width"},
        {"{\"image_processor_type\": \"ViT\", \"resample\": 9}", "0 to 5"},
        {"{\"image_processor_type\": \"ViT\", \"do_center_crop\": true}", "crop_size"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        scratch_text("new/preprocessor_config.json", bad[i][0]);
        assert_int_equal(fv_processor_open(&p, NULL, NULL, scratch("new"), &e), FV_EFORMAT);
        if (!strstr(e.text, bad[i][1])) fail_msg("%s: %s", bad[i][0], e.text);
    }
}

/* Every refusal has its sentence. */
static void bad_files_are_refused(void **state)
{
    (void)state;
    fv_image im = {0};
    fv_err e;
    size_t n;
    assert_int_equal(fv_image_open(&im, NULL, GOLDEN "cmyk.jpg", &e), FV_EFORMAT);
    assert_non_null(strstr(e.text, "CMYK"));
    assert_int_equal(fv_image_decode(&im, NULL, "GIF89a", 6, "x.gif", &e), FV_EFORMAT);
    assert_string_equal(e.text, "x.gif: neither a PNG nor a JPEG file");
    static const char *const names[] = {"rgb.png", "rgb.jpg", "progressive.jpg"};
    for (int i = 0; i < 3; i++) { /* every truncation */
        char path[400];
        snprintf(path, sizeof path, GOLDEN "%.100s", names[i]);
        char *bytes = slurp(path, &n);
        for (size_t k = 0; k + 2 < n; k += 7)
            assert_int_equal(fv_image_decode(&im, NULL, bytes, k, "cut", &e), FV_EFORMAT);
        free(bytes);
    }
    char *png = slurp(GOLDEN "rgb.png", &n);
    /* 60,000 x 2,000 pixels: the sum over the header is wrong, too, but nothing is allocated either
     * way */
    memcpy(png + 16, "\0\0\xea\x60\0\0\x07\xd0", 8);
    assert_int_equal(fv_image_decode(&im, NULL, png, n, "bomb.png", &e), FV_EFORMAT);
    free(png);
    char *jpg = slurp(GOLDEN "rgb.jpg", &n);
    for (size_t i = 0; i + 9 < n; i++)
        if ((uint8_t)jpg[i] == 0xff && (uint8_t)jpg[i + 1] == 0xc0)
            memcpy(jpg + i + 5, "\xea\x60\xea\x60", 4);
    assert_int_equal(fv_image_decode(&im, NULL, jpg, n, "bomb.jpg", &e), FV_EFORMAT);
    assert_non_null(strstr(e.text, "60000 x 60000 pixels"));
    free(jpg);
    fv_image_free(&im);
}

/* A PNG whose header is whole and promises much more than its bytes can hold. */
static void a_bomb_is_refused_before_it_is_unpacked(void **state)
{
    (void)state;
    static const uint8_t bomb[] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n', 0,    0, 0,    13,
                                   'I',  'H', 'D', 'R', 0,    0,    0x20, 0,    0,    0, 0x20, 0,
                                   8,    2,   0,   0,   0,    0xfd, 0xc8, 0x5d, 0x0e, 0, 0,    0,
                                   0,    'I', 'D', 'A', 'T',  0x35, 0xaf, 0x06, 0x1e};
    fv_mem_counter m;
    fv_err e;
    fv_image im = {0};
    fv_mem_counter_init(&m);
    const fv_env env = {.mem = &m.mem};
    assert_int_equal(fv_image_decode(&im, &env, bomb, sizeof bomb, "bomb.png", &e), FV_EFORMAT);
    assert_true(m.peak < 1 << 16);
    fv_image_free(&im);
}

static void a_picture_is_written_and_read(void **state)
{
    (void)state;
    fv_image im = {0}, again = {0};
    fv_err e;
    static const char *const names[] = {"rgb.png", "grey.png", "alpha.png"};
    for (int i = 0; i < 3; i++) {
        open_image(&im, names[i]);
        check(fv_image_save(&im, scratch("out.png"), &e), &e);
        check(fv_image_open(&again, NULL, scratch("out.png"), &e), &e);
        assert_int_equal(again.channels, im.channels);
        assert_memory_equal(im.data, again.data,
                            (size_t)im.width * (size_t)im.height * (size_t)im.channels);
    }
    fv_image_mirror(&again);
    fv_image_mirror(&again);
    assert_memory_equal(im.data, again.data,
                        (size_t)im.width * (size_t)im.height * (size_t)im.channels);
    fv_image_free(&im);
    fv_image_free(&again);
}

static void put_files(memfs *fs, void *arg)
{
    (void)arg;
    size_t n;
    char *png = slurp(GOLDEN "turn6.png", &n);
    memfs_put(fs, "a.png", png, n);
    free(png);
    char *config = slurp(GOLDEN "clip/preprocessor_config.json", &n);
    memfs_put(fs, "p/preprocessor_config.json", config, n);
    free(config);
}

static fv_status prepare(memfs *fs, const fv_env *env, void *arg, fv_err *e)
{
    (void)fs, (void)arg;
    fv_image im = {0}, fit = {0};
    fv_processor *p = NULL;
    fv_status st = fv_image_open(&im, env, "a.png", e);
    if (!st) st = fv_processor_open(&p, env, "image", "p", e);
    if (!st) st = fv_processor_image_fit(p, &fit, &im, e);
    if (!st) st = fv_image_save(&fit, "out.png", e);
    fv_processor_close(p);
    fv_image_free(&im);
    fv_image_free(&fit);
    return st;
}

static void every_failure_is_reported(void **state)
{
    (void)state;
    fail_in_turn(put_files, prepare, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(images_are_decoded_as_pillow_does),
        cmocka_unit_test(sizes_have_the_levels_of_pillow),
        cmocka_unit_test(processors_are_those_of_transformers),
        cmocka_unit_test(a_new_processor_is_written_and_read),
        cmocka_unit_test(bad_files_are_refused),
        cmocka_unit_test(a_bomb_is_refused_before_it_is_unpacked),
        cmocka_unit_test(a_picture_is_written_and_read),
        cmocka_unit_test(every_failure_is_reported),
    };
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
