/* test_gan.c - a GAN: trained by a recipe on a folder of images, asked for pictures. */
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

#include "fovea/author/gan.h"
#include "fovea/author/processor.h"
#include "fovea/fovea.h"
#include "helper/device.h"
#include "helper/golden.h"
#include "helper/images.h"
#include "helper/program.h"

enum { SIDE = 16, EACH = 8 };

static int set_up(void **state)
{
    if (scratch_open(state) || open_device(state)) return -1;
    mkdir(scratch("data"), 0777);
    mkdir(scratch("data/dark"), 0777);
    mkdir(scratch("data/light"), 0777);
    for (int i = 0; i < EACH; i++) {
        put_noise(SIDE, scratch("data/dark/%02d.png", i), 10 + i, (unsigned)i);
        put_noise(SIDE, scratch("data/light/%02d.png", i), 200 + i, (unsigned)i + 99);
    }
    scratch_text("r.ini", "[model]\nmodel_type = sagan\ngenerator_channels = 8\n"
                          "discriminator_channels = 8\nattention_size = 8\n"
                          "[data]\nobjective = gan\ntrain = data\nlatent_size = 6\nflip = true\n"
                          "[train]\nupdates = 60\nbatch_rows = 8\nlr = 2e-3\nwarmup = 0\n"
                          "beta1 = 0\nbeta2 = 0.9\nlr_scale = generator.*=0.5\neval_every = 0\n"
                          "ema = 0.9\nresult = ema\nprefetch = 4\nworkers = 2\n");
    const result *r = fovea("train %s -o %s --set data.dir=%s", scratch("r.ini"), scratch("run"),
                            scratch("."));
    if (r->code) print_error("%s\n", r->err);
    return r->code;
}
static int tear_down(void **state) { return close_device(state) || scratch_close(state); }

/* The mean level of an image, and its bytes. */
typedef struct taken {
    uint8_t bytes[8][SIDE * SIDE * 3];
    double mean[8];
} taken;

static fv_status take(void *user, int64_t i, fv_image *im, fv_err *e)
{
    taken *t = user;
    (void)e;
    assert_int_equal(im->width, SIDE);
    assert_int_equal(im->channels, 3);
    memcpy(t->bytes[i], im->data, sizeof t->bytes[i]);
    t->mean[i] = 0;
    for (size_t k = 0; k < sizeof t->bytes[i]; k++) t->mean[i] += im->data[k];
    return FV_OK;
}

/* An image depends on the seed, its number and its class alone. */
static void an_image_is_drawn_again(void **state)
{
    (void)state;
    static const int32_t label[] = {0, 1, 0, 1, 1, 0, 0, 1};
    taken all, some;
    fv_gan *g;
    fv_err e;
    check(fv_gan_open(&g, device, scratch("run/model"), (fv_model_opt){.serve = true}, &e), &e);
    assert_int_equal(fv_gan_classes(g), 2);
    assert_int_equal(fv_gan_class(g, "light"), 1);
    assert_int_equal(fv_gan_class(g, "grey"), -1);
    assert_string_equal(fv_gan_name(g, 0), "dark");
    check(fv_gan_draw(g, label, 0, 8, (fv_gan_opt){.seed = 5}, take, &all, &e), &e);
    check(fv_gan_draw(g, label + 3, 3, 2, (fv_gan_opt){.seed = 5}, take, &some, &e), &e);
    assert_memory_equal(some.bytes[0], all.bytes[3], sizeof some.bytes[0]);
    assert_memory_equal(some.bytes[1], all.bytes[4], sizeof some.bytes[0]);
    check(fv_gan_draw(g, label, 0, 1, (fv_gan_opt){.seed = 6}, take, &some, &e), &e);
    assert_memory_not_equal(some.bytes[0], all.bytes[0], sizeof some.bytes[0]);
    check(fv_gan_draw(g, label, 0, 1, (fv_gan_opt){.seed = 5, .truncation = 0.1}, take, &some, &e),
          &e);
    assert_memory_not_equal(some.bytes[0], all.bytes[0], sizeof some.bytes[0]);
    assert_int_equal(fv_gan_draw(g, (int32_t[]){2}, 0, 1, (fv_gan_opt){0}, take, &some, &e),
                     FV_EARG);
    fv_gan_close(g);
}

static void pictures_are_written(void **state)
{
    (void)state;
    fv_image im = {0};
    fv_err e;
    char model[400];
    snprintf(model, sizeof model, "%s", scratch("run/model"));
    succeeded(fovea("sample -m %s --n 6 -o grid.png --size 3", model));
    check(fv_image_open(&im, NULL, scratch("grid.png"), &e), &e);
    assert_int_equal(im.width, 2 * (3 * SIDE + 2) + 2);
    assert_int_equal(im.height, 3 * (3 * SIDE + 2) + 2);
    fv_image_free(&im);
    const char *out =
        succeeded(
            fovea("sample -m %s --n 3 --label light --folder drawn --json -o three.png", model))
            ->out;
    assert_true(scratch_has("drawn/000002-light.png"));
    assert_non_null(
        strstr(out, "{\"file\":\"drawn/000002-light.png\",\"images\":1,\"label\":\"light\"}\n"
                    "{\"file\":\"three.png\",\"images\":3,\"label\":\"light\"}\n"));
    scratch_text("c.ini", "[model]\nmodel_type = vit\nhidden_size = 16\nnum_hidden_layers = 1\n"
                          "num_attention_heads = 2\nintermediate_size = 24\npatch_size = 8\n"
                          "[data]\nobjective = image_classify\ntrain = data\n"
                          "[train]\nupdates = 40\nbatch_rows = 8\nlr = 5e-3\nwarmup = 4\n"
                          "eval_every = 0\n");
    succeeded(fovea("train %s -o %s --set data.dir=%s", scratch("c.ini"), scratch("judge"),
                    scratch(".")));
    out = succeeded(fovea("sample -m %s --n 16 --judge %s --real %s", model, scratch("judge/model"),
                          scratch("data")))
              ->out;
    assert_non_null(strstr(out, "% of 16 images"));
    assert_non_null(strstr(out, " of 2\n"));
    assert_non_null(strstr(out, "Frechet distance"));
    out = succeeded(fovea("sample -m %s --n 16 --json --judge %s", model, scratch("judge/model")))
              ->out;
    assert_non_null(strstr(out, "{\"images\":16,\"recognised\":"));
    assert_null(strstr(out, "frechet"));
    refused(fovea("sample -m %s --real x", model), 2, "--judge");
    scratch_text("s.ini", "[model]\nmodel_type = segformer\nnum_encoder_blocks = 1\ndepths = 1\n"
                          "architecture = SegformerForImageClassification\nhidden_sizes = 8\n"
                          "sr_ratios = 1\npatch_sizes = 3\nstrides = 4\nmlp_ratios = 1\n"
                          "num_attention_heads = 1\n[data]\nobjective = image_classify\n"
                          "train = data\n[train]\nupdates = 1\nbatch_rows = 8\neval_every = 0\n");
    succeeded(
        fovea("train %s -o %s --set data.dir=%s", scratch("s.ini"), scratch("map"), scratch(".")));
    refused(fovea("sample -m %s --n 4 --judge %s --real %s", model, scratch("map/model"),
                  scratch("data")),
            1, "no class token");
    succeeded(fovea("see -m %s --drawn 1,3,1 -o drawn.html", model));
    assert_true(scratch_has("drawn.html"));
    succeeded(fovea("see -m %s --drawn 1,3,1 -o drawn.json", model));
    refused(fovea("see -m " FOVEA_TESTS "/golden/models/vit --drawn 1,0,0 -o x.json"), 1, "");
    refused(fovea("see -m %s --drawn 1,3 -o x.json", model), 1, "three numbers");
    refused(fovea("sample -m %s --label grey -o x.png", model), 1, "no such class");
    refused(fovea("sample -m %s", model), 2, "--output");
    refused(fovea("sample -m " FOVEA_TESTS "/golden/models/vit -o x.png"), 1, "draws no images");
}

/* The running variance of the generator's last norm after so many updates that change nothing. */
static double variance_after(int updates, const char *kind)
{
    fv_st *s;
    fv_err e;
    int64_t n;
    succeeded(fovea("train %s -o %s --set data.dir=%s --set train.lr=0 --set train.updates=%d "
                    "--set train.result=%s",
                    scratch("r.ini"), scratch("still-%d-%s", updates, kind), scratch("."), updates,
                    kind));
    check(fv_st_open(&s, NULL, scratch("still-%d-%s/model/model.safetensors", updates, kind), &e),
          &e);
    float *x = golden_numbers(s, "generator.norm.running_var", &n);
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)x[i] / (double)n;
    free(x);
    fv_st_close(s);
    return sum;
}

/* What an average of weights is saved with are its own statistics, however long the run was; those
 * of the last weights have come a tenth of the way with each update. */
static void averages_get_statistics_of_their_own(void **state)
{
    (void)state;
    double soon = variance_after(2, "ema"), late = variance_after(40, "ema"),
           last = variance_after(2, "last");
    assert_true(fabs(soon / late - 1) < 0.05);
    assert_true(fabs(last / late - 1) > 0.2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_image_is_drawn_again),
        cmocka_unit_test(pictures_are_written),
        cmocka_unit_test(averages_get_statistics_of_their_own),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
