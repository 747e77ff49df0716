/* test_image_run.c - an image classifier from the outside: trained by a recipe on a folder of
 * images, asked for labels and vectors, evaluated. */
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
#include "helper/program.h"

enum { SIDE = 16, EACH = 12 };

/* Dark ones and bright ones, with some noise. */
static void put_image(const char *path, int level, unsigned seed)
{
    fv_image im = {0};
    fv_err e;
    check(fv_image_new(&im, NULL, SIDE, SIDE, 3, &e), &e);
    for (int i = 0; i < SIDE * SIDE * 3; i++)
        im.data[i] = (uint8_t)(level + (int)((seed += 0x9E3779B9u) >> 26));
    check(fv_image_save(&im, path, &e), &e);
    fv_image_free(&im);
}

static int set_up(void **state)
{
    if (scratch_open(state)) return -1;
    mkdir(scratch("data"), 0777);
    mkdir(scratch("data/dark"), 0777);
    mkdir(scratch("data/light"), 0777);
    for (int i = 0; i < EACH; i++) {
        put_image(scratch("data/dark/%02d.png", i), 20 + 2 * i, (unsigned)i);
        put_image(scratch("data/light/%02d.png", i), 140 + 2 * i, (unsigned)i + 99);
    }
    scratch_text("r.ini", "[model]\nmodel_type = vit\nhidden_size = 16\nnum_hidden_layers = 1\n"
                          "num_attention_heads = 2\nintermediate_size = 24\npatch_size = 8\n"
                          "[data]\nobjective = image_classify\ntrain = data\nhold_out = 0.25\n"
                          "flip = true\nshift = 1\nmixup = 0.2\n"
                          "[train]\nupdates = 40\nbatch_rows = 8\nlr = 5e-3\nwarmup = 4\n"
                          "eval_every = 20\nprefetch = 4\nworkers = 2\n");
    return 0;
}

static void a_classifier_learns_and_answers(void **state)
{
    (void)state;
    char dir[400]; /* scratch's own last for fifteen calls */
    snprintf(dir, sizeof dir, "%s", scratch("run"));
    const char *r = scratch("r.ini");
    succeeded(fovea("train %s -o %s --set data.dir=%s", r, dir, scratch(".")));
    const char *out = succeeded(fovea("classify -m %s/model %s %s --top 2", dir,
                                      scratch("data/dark/03.png"), scratch("data/light/04.png")))
                          ->out;
    assert_non_null(strstr(out, "03.png\tdark "));
    assert_non_null(strstr(out, "04.png\tlight "));
    out = succeeded(fovea("classify -m %s/model --json %s", dir, scratch("data/light")))->out;
    assert_non_null(strstr(out, "{\"image\":"));
    assert_non_null(strstr(out, "[{\"label\":\"light\""));
    out = succeeded(fovea("eval -m %s/model --json %s", dir, scratch("data")))->out;
    assert_non_null(strstr(out, "\"records\":24,\"accuracy\":100"));
    out = succeeded(fovea("embed -m %s/model %s", dir, scratch("data/dark/03.png")))->out;
    assert_non_null(strchr(out, ' '));
    assert_true(scratch_has("run/model/preprocessor_config.json"));
}

static void an_image_that_cannot_be_read_is_named(void **state)
{
    (void)state;
    scratch_text("broken.png", "no image");
    refused(fovea("classify -m %s/model %s %s", scratch("run"), scratch("broken.png"),
                  scratch("data/dark/01.png")),
            1, "broken.png: neither a PNG nor a JPEG file");
    refused(fovea("classify -m %s/model %s %s", scratch("run"), scratch("data/dark/01.png"),
                  scratch("r.ini")),
            2, "neither an image nor a folder");
}

static void mistakes_of_a_recipe_are_named(void **state)
{
    (void)state;
    const char *r = scratch("r.ini"), *d = scratch(".");
    refused(fovea("train %s -o %s --set data.dir=%s --set data.train=nowhere", r, scratch("bad"),
                  d),
            1, "nowhere");
    refused(fovea("train %s -o %s --set data.dir=%s --set data.mean=a", r, scratch("bad"), d), 1,
            "mean \"a\": expected one number, or 3");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_classifier_learns_and_answers),
        cmocka_unit_test(an_image_that_cannot_be_read_is_named),
        cmocka_unit_test(mistakes_of_a_recipe_are_named),
    };
    return cmocka_run_group_tests(tests, set_up, scratch_close);
}
