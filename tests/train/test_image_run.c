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

/* Black, but for a white square. */
static void put_mask(const char *path)
{
    fv_image im = {0};
    fv_err e;
    check(fv_image_new(&im, NULL, SIDE, SIDE, 1, &e), &e);
    for (int i = 0; i < SIDE * SIDE; i++)
        im.data[i] = i / SIDE < SIDE / 2 && i % SIDE < SIDE / 2 ? 255 : 0;
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

/* The same folder as a table of images and texts. */
static void images_and_texts_meet(void **state)
{
    (void)state;
    char table[4096] = "image\ttext\tstyle\twords\n";
    for (int i = 0; i < EACH; i++) {
        size_t n = strlen(table);
        snprintf(table + n, sizeof table - n,
                 "data/dark/%02d.png\ta dark square\t%s\tdark|night|black\n"
                 "data/light/%02d.png\ta light one, number %d\t%s\tlight\n",
                 i, i % 2 ? "old" : "new", i, i / 2, i % 2 ? "old" : "new");
    }
    scratch_text("pairs.tsv", table);
    scratch_text("clip.ini",
                 "[model]\nmodel_type = clip\nprojection_dim = 12\nvision_config.patch_size = 8\n"
                 "vision_config.hidden_size = 16\nvision_config.intermediate_size = 24\n"
                 "vision_config.num_hidden_layers = 1\nvision_config.num_attention_heads = 2\n"
                 "text_config.hidden_size = 16\ntext_config.intermediate_size = 24\n"
                 "text_config.num_hidden_layers = 1\ntext_config.num_attention_heads = 2\n"
                 "text_config.max_position_embeddings = 16\n"
                 "[data]\nobjective = contrastive\ntrain = pairs.tsv\nsource_field = image\n"
                 "target_field = text\nmore_field = words\nmax_len = 16\n"
                 "[tokenizer]\nvocab = 60\nmin_count = 1\n"
                 "[train]\nupdates = 20\nbatch_rows = 6\nlr = 1e-3\nwarmup = 2\n");
    succeeded(fovea("train %s -o %s --set data.dir=%s", scratch("clip.ini"), scratch("clip"),
                    scratch(".")));
    succeeded(fovea("train %s -o %s --set data.dir=%s --set data.image_weight=0.5",
                    scratch("clip.ini"), scratch("views"), scratch(".")));
    succeeded(fovea("train %s -o %s --set data.dir=%s --set data.image_weight=0.5 "
                    "--set data.joint_augment=0.5",
                    scratch("clip.ini"), scratch("joint"), scratch(".")));
    succeeded(fovea("train %s -o %s --set data.dir=%s --set data.text_overlap=0.5",
                    scratch("clip.ini"), scratch("shared"), scratch(".")));
    const char *out = succeeded(fovea("eval -m %s/model --json --source-field image "
                                      "--target-field text %s",
                                      scratch("clip"), scratch("pairs.tsv")))
                          ->out;
    assert_non_null(strstr(out, "\"text_to_image\":{\"recall@1\":"));
    assert_null(strstr(out, "image_to_image"));
    out = succeeded(fovea("eval -m %s/model --json --source-field image --target-field text "
                          "--between style %s",
                          scratch("clip"), scratch("pairs.tsv")))
              ->out;
    assert_non_null(strstr(out, "\"image_to_image\":{\"recall@1\":"));
    out = succeeded(fovea("eval -m %s/model --json --source-field image "
                          "--target-field text,words %s",
                          scratch("clip"), scratch("pairs.tsv")))
              ->out;
    assert_non_null(strstr(out, "\"image_to_text\":{\"recall@1\":"));
    refused(fovea("eval -m %s/model --source-field image --target-field text,none %s",
                  scratch("clip"), scratch("pairs.tsv")),
            1, "none");
    refused(fovea("train %s -o %s --set data.dir=%s --set data.more_field=none",
                  scratch("clip.ini"), scratch("none"), scratch(".")),
            1, "none");
    out = succeeded(fovea("classify -m %s/model --labels 'dark,light' --json %s", scratch("clip"),
                          scratch("data/dark/03.png")))
              ->out;
    assert_non_null(strstr(out, "\"label\":\"dark\""));
    out = succeeded(fovea("embed -m %s/model --text 'a dark square'", scratch("clip")))->out;
    assert_non_null(strchr(out, ' '));
    refused(fovea("embed -m %s/model --text dark %s", scratch("clip"), scratch("data/dark/01.png")),
            2, "one input too many");
    succeeded(fovea("see -m %s/model %s --text 'a dark square' -o %s", scratch("clip"),
                    scratch("data/dark/01.png"), scratch("dark.json")));
    refused(fovea("see -m %s/model %s --text dark -o %s", scratch("run"),
                  scratch("data/dark/01.png"), scratch("dark.json")),
            1, "tokenizer");
}

/* Images nearest to an image or to a text, by the model that images_and_texts_meet has trained. */
static void nearest_images_are_found(void **state)
{
    (void)state;
    /* an image is nearest to itself, also where it is asked for by its path */
    const char *out = succeeded(fovea("nearest -m %s/model --among %s --top 3 --draw %s %s",
                                      scratch("clip"), scratch("data"), scratch("near.png"),
                                      scratch("data/light/07.png")))
                          ->out;
    assert_int_equal(strncmp(out, "light/07.png 1.0000\t", 20), 0);
    assert_true(scratch_has("near.png"));
    out = succeeded(fovea("nearest -m %s/model --among %s --json --text 'a dark square'",
                          scratch("clip"), scratch("data")))
              ->out;
    assert_non_null(strstr(out, "\"nearest\":[{\"file\":\"dark/"));
    refused(fovea("nearest -m %s/model --text dark", scratch("clip")), 2, "--among");
    /* an image that cannot be read is left out, and it is said */
    mkdir(scratch("mixed"), 0777);
    put_image(scratch("mixed/good.png"), 90, 1);
    scratch_text("mixed/bad.png", "no image");
    const result *r = succeeded(
        fovea("nearest -m %s/model --among %s --text dark", scratch("clip"), scratch("mixed")));
    assert_int_equal(strncmp(r->out, "good.png ", 9), 0);
    assert_non_null(strstr(r->err, "without 1 of 2 images"));
    refused(fovea("classify -m %s/model x.tar.gz", scratch("run")), 1, "an archive, not lines");
    refused(fovea("see -m %s/model %s -o %s", scratch("run"), scratch("mixed"), scratch("x.png")),
            1, "a folder; one image");
    refused(fovea("nearest -m %s/model --among %s --text dark", scratch("run"), scratch("data")), 1,
            "one space");
}

/* A captioner whose encoder begins as the one that images_and_texts_meet has trained. */
static void half_of_a_model_begins_as_another(void **state)
{
    (void)state;
    scratch_text("caption.ini",
                 "[model]\nmodel_type = vision-encoder-decoder\n"
                 "encoder.model_type = clip_vision_model\nencoder.patch_size = 8\n"
                 "encoder.hidden_size = 16\nencoder.intermediate_size = 24\n"
                 "encoder.num_hidden_layers = 1\nencoder.num_attention_heads = 2\n"
                 "decoder.model_type = gpt2\ndecoder.add_cross_attention = true\n"
                 "decoder.n_embd = 16\ndecoder.n_layer = 1\ndecoder.n_head = 2\n"
                 "decoder.n_positions = 16\n"
                 "[data]\nobjective = caption\ntrain = pairs.tsv\nsource_field = image\n"
                 "target_field = text\nmax_len = 16\n[tokenizer]\nvocab = 60\nmin_count = 1\n"
                 "[train]\nupdates = 1\nbatch_rows = 2\nwarmup = 1\nfreeze = encoder.*\n");
    const char *err = succeeded(fovea("train %s -o %s --set data.dir=%s "
                                      "--set model.encoder.from=%s/model",
                                      scratch("caption.ini"), scratch("caption"), scratch("."),
                                      scratch("clip")))
                          ->err;
    assert_non_null(strstr(err, " parameters come from "));
    assert_null(strstr(err, "new: encoder."));
    refused(fovea("train -q %s -o %s --set data.dir=%s --set model.encoder.from=%s/model",
                  scratch("caption.ini"), scratch("other"), scratch("."), scratch("run")),
            1, "has no parameter of this model's encoder");
}

/* Images with one text are one example: of two texts with four images each, an epoch is one batch
 * of two. */
static void images_of_one_text_are_one_example(void **state)
{
    (void)state;
    char table[1024] = "image\ttext\n";
    for (int i = 0; i < 4; i++) {
        size_t n = strlen(table);
        snprintf(table + n, sizeof table - n,
                 "data/dark/%02d.png\tdark\ndata/light/%02d.png\tlight\n", i, i);
    }
    scratch_text("styles.tsv", table);
    succeeded(fovea("train %s -o %s --set data.dir=%s --set data.train=styles.tsv "
                    "--set data.more_field= --set train.log_every=20",
                    scratch("clip.ini"), scratch("styles"), scratch(".")));
    size_t n;
    char *log = slurp(scratch("styles/train.jsonl"), &n);
    assert_non_null(strstr(log, "\"step\": 20, \"epoch\": 19,"));
    assert_non_null(strstr(log, "\"wait\": "));
    free(log);
}

/* Of the model that was trained last, in one image, after suppression of boxes by their IoU. */
static int objects_found(double nms)
{
    const char *at = succeeded(fovea("detect -m %s/model --threshold 0 --nms %g --json %s",
                                     scratch("yolos"), nms, scratch("voc/JPEGImages/0.png")))
                         ->out;
    int n = 0;
    while ((at = strstr(at, "\"label\":"))) at++, n++;
    return n;
}

/* Boxes in Pascal VOC's folders, masks beside images: two updates, then what comes out. */
static void boxes_and_masks_are_learnt(void **state)
{
    (void)state;
    static const char *const dirs[] = {"voc", "voc/Annotations", "voc/JPEGImages",
                                       "seg", "seg/image",       "seg/label"};
    for (int i = 0; i < 6; i++) mkdir(scratch("%s", dirs[i]), 0777);
    for (int i = 0; i < 4; i++) {
        char name[40];
        put_image(scratch("voc/JPEGImages/%d.png", i), 90, (unsigned)i);
        put_image(scratch("seg/image/%d.png", i), 90, (unsigned)i);
        put_mask(scratch("seg/label/%d.png", i));
        snprintf(name, sizeof name, "voc/Annotations/%d.xml", i);
        scratch_text(name,
                     "<annotation><object><name>cell</name><bndbox><xmin>3</xmin><ymin>3</ymin>"
                     "<xmax>9</xmax><ymax>12</ymax></bndbox></object></annotation>");
    }
    scratch_text("yolos.ini",
                 "[model]\nmodel_type = yolos\nhidden_size = 16\nnum_hidden_layers = 1\n"
                 "num_attention_heads = 2\nintermediate_size = 24\npatch_size = 8\n"
                 "num_detection_tokens = 5\n[data]\nobjective = detect\ntrain = voc\n"
                 "image_size = 16\nflip = true\nzoom = 0.3\n"
                 "[train]\nupdates = 2\nbatch_rows = 4\nwarmup = 1\n");
    scratch_text("seg.ini",
                 "[model]\nmodel_type = segformer\nhidden_sizes = 8 8 8 8\ndepths = 1 1 1 1\n"
                 "num_attention_heads = 1 1 1 1\nsr_ratios = 1 1 1 1\nmlp_ratios = 2 2 2 2\n"
                 "strides = 2 2 1 1\ndecoder_hidden_size = 8\n"
                 "[data]\nobjective = segment\ntrain = seg\nnames = 0-2\ncrop = 12\n"
                 "[train]\nupdates = 2\nbatch_rows = 3\nwarmup = 1\n");
    succeeded(fovea("train %s -o %s --set data.dir=%s", scratch("yolos.ini"), scratch("yolos"),
                    scratch(".")));
    succeeded(fovea("train %s -o %s --set data.dir=%s --set data.cache=0", scratch("yolos.ini"),
                    scratch("yolos-anew"), scratch(".")));
    assert_true(same_files(scratch("yolos/model/model.safetensors"),
                           scratch("yolos-anew/model/model.safetensors")));
    const char *out =
        succeeded(fovea("eval -m %s/model --json %s", scratch("yolos"), scratch("voc")))->out;
    assert_non_null(strstr(out, "\"objects\":4,\"ap50\":"));
    out = succeeded(fovea("detect -m %s/model --threshold 0 --json --draw %s %s", scratch("yolos"),
                          scratch("seen"), scratch("voc/JPEGImages/0.png")))
              ->out;
    assert_non_null(strstr(out, "\"label\":\"cell\",\"score\":"));
    assert_true(scratch_has("seen/0.png.png"));
    /* a box for each of five tokens; hardly trained, they lie on one another */
    assert_int_equal(objects_found(0), 5);
    assert_int_equal(objects_found(1), 5);
    assert_int_equal(objects_found(0.01), 1);
    succeeded(fovea("train %s -o %s --set data.dir=%s", scratch("seg.ini"), scratch("segmenter"),
                    scratch(".")));
    succeeded(fovea("train %s -o %s --set data.dir=%s --set data.cache=0", scratch("seg.ini"),
                    scratch("segmenter-anew"), scratch(".")));
    assert_true(same_files(scratch("segmenter/model/model.safetensors"),
                           scratch("segmenter-anew/model/model.safetensors")));
    out = succeeded(
              fovea("eval -m %s/model --json --split 3-3 %s", scratch("segmenter"), scratch("seg")))
              ->out;
    assert_non_null(strstr(out, "\"images\":1,\"pixel_accuracy\":"));
    assert_non_null(strstr(out, "\"threshold_accuracy\":"));
    out = succeeded(fovea("segment -m %s/model --masks %s %s", scratch("segmenter"),
                          scratch("masks"), scratch("seg/image/3.png")))
              ->out;
    assert_non_null(strchr(out, '.'));
    assert_true(scratch_has("masks/3.png.png"));
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
        cmocka_unit_test(images_and_texts_meet),
        cmocka_unit_test(nearest_images_are_found),
        cmocka_unit_test(half_of_a_model_begins_as_another),
        cmocka_unit_test(images_of_one_text_are_one_example),
        cmocka_unit_test(boxes_and_masks_are_learnt),
        cmocka_unit_test(an_image_that_cannot_be_read_is_named),
        cmocka_unit_test(mistakes_of_a_recipe_are_named),
    };
    return cmocka_run_group_tests(tests, set_up, scratch_close);
}
