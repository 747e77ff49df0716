/* test_caption.c - captions: generated ids against transformers, a captioner that learns from a
 * table, its evaluation beside the nearest image, and where its words looked. */
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
#include "helper/images.h"
#include "helper/golden.h"
#include "helper/program.h"

#define MODEL FOVEA_TESTS "/golden/models/vision-encoder-decoder"

/* ---- generation ---- */

static void put_source(void *user, fv_ctx *c, fv_items *in)
{
    fv_items_put(in, "pixel_values", fv_floats(c, user, FV_SHAPE(3, 3, 8, 8)));
}

/* want: (3,n), the start token in front; what follows an end is padding. */
static void searches_equal(const fv_model *m, float *x, const float *want, int64_t n, int64_t beams)
{
    fv_generated g;
    fv_err e;
    fv_gen_config *config;
    check(fv_gen_config_open(&config, NULL, MODEL, NULL, &e), &e);
    fv_gen_opt o = *fv_gen_config_options(config);
    o.num_beams = beams;
    o.max_new_tokens = 8;
    o.start = 35;
    o.eos = 36;
    o.pad = 0;
    check(fv_generate_from(&g, device, m, put_source, x, 3, &o, &e), &e);
    for (int64_t b = 0; b < 3; b++)
        for (int64_t t = 1; t < n && (t < 2 || want[b * n + t - 1] != 36); t++) {
            assert_true(t <= g.hyp[b].n);
            assert_int_equal(g.hyp[b].ids[t - 1], (int)want[b * n + t]);
        }
    fv_generated_free(&g);
    fv_gen_config_close(config);
}

static void what_is_written_is_what_transformers_writes(void **state)
{
    (void)state;
    static const char *const names[] = {"sequences", "sequences_beams"};
    fv_st *in, *out;
    fv_model *m;
    fv_err e;
    int64_t n, pixels;
    check(fv_st_open(&in, NULL, MODEL "/in.safetensors", &e), &e);
    check(fv_st_open(&out, NULL, MODEL "/out.safetensors", &e), &e);
    check(fv_model_open(&m, device, MODEL, (fv_model_opt){.serve = true}, &e), &e);
    float *x = golden_numbers(in, "pixel_values", &pixels);
    for (int i = 0; i < 2; i++) {
        float *want = golden_numbers(out, names[i], &n);
        searches_equal(m, x, want, n / 3, i ? 3 : 1);
        free(want);
    }
    free(x);
    fv_model_free(m);
    fv_st_close(in);
    fv_st_close(out);
}

/* ---- the program ---- */

enum { SIDE = 16, EACH = 8 };

/* Dark and light images with captions; of each the last two are for testing. */
static int set_up(void **state)
{
    if (scratch_open(state) || open_device(state)) return -1;
    char table[4000];
    int n = snprintf(table, sizeof table, "image\tpart\tcaption\n");
    mkdir(scratch("images"), 0777);
    for (int i = 0; i < 2 * EACH; i++) {
        bool light = i % 2;
        put_noise(SIDE, scratch("images/%02d.png", i), (light ? 180 : 20) + i, (unsigned)i);
        n += snprintf(table + n, sizeof table - (size_t)n, "images/%02d.png\t%s\t%s\n", i,
                      i < 2 * EACH - 4 ? "train" : "test",
                      light ? "a light day" : "in the dark of night");
    }
    scratch_text("captions.tsv", table);
    scratch_text("r.ini",
                 "[model]\nmodel_type = vision-encoder-decoder\nencoder.model_type = vit\n"
                 "encoder.patch_size = 8\nencoder.hidden_size = 16\nencoder.num_hidden_layers = 1\n"
                 "encoder.num_attention_heads = 2\nencoder.intermediate_size = 24\n"
                 "decoder.model_type = gpt2\ndecoder.add_cross_attention = true\n"
                 "decoder.n_embd = 16\ndecoder.n_layer = 1\ndecoder.n_head = 2\n"
                 "decoder.n_positions = 32\n"
                 "[data]\nobjective = caption\ntrain = captions.tsv\nvalid = captions.tsv\n"
                 "source_field = image\ntarget_field = caption\nwhere = part=train\n"
                 "valid_where = part=test\n[tokenizer]\nvocab = 40\n"
                 "[train]\nupdates = 120\nbatch_rows = 8\nlr = 1e-2\nwarmup = 4\n"
                 "eval_every = 60\n[generate]\nnum_beams = 2\nmax_new_tokens = 20\n");
    return 0;
}
static int tear_down(void **state) { return close_device(state) || scratch_close(state); }

static void a_captioner_learns_and_writes(void **state)
{
    (void)state;
    char dir[400];
    snprintf(dir, sizeof dir, "%s", scratch("run"));
    succeeded(fovea("train %s -o %s --set data.dir=%s", scratch("r.ini"), dir, scratch(".")));
    const char *out = succeeded(fovea("caption -m %s/model %s %s", dir, scratch("images/14.png"),
                                      scratch("images/15.png")))
                          ->out;
    assert_non_null(strstr(out, "in the dark of night\n"));
    assert_non_null(strstr(out, "a light day\n"));
    out = succeeded(
              fovea("caption -m %s/model --json --num-beams 1 %s", dir, scratch("images/15.png")))
              ->out;
    assert_non_null(strstr(out, "\"caption\":\"a light day\",\"score\":"));
    out = succeeded(fovea("eval -m %s/model --source-field image --target-field caption --where "
                          "part=test --baseline part=train --json %s",
                          dir, scratch("captions.tsv")))
              ->out;
    assert_non_null(strstr(out, "\"images\":4"));
    assert_non_null(strstr(out, "\"model\":{\"exact_match\":100.0,\"bleu\":100.0"));
    assert_non_null(strstr(out, "\"nearest\":{\"exact_match\":100.0,"));
}

/* The caption is made and printed; each of its words has a picture, and the page has the image. */
static void words_show_where_they_looked(void **state)
{
    (void)state;
    char dir[400];
    size_t n;
    snprintf(dir, sizeof dir, "%s", scratch("run"));
    const result *r = fovea("see -m %s/model %s -o words.html", dir, scratch("images/14.png"));
    assert_string_equal(succeeded(r)->out, "in the dark of night\n");
    char *page = slurp(scratch("words.html"), &n);
    assert_non_null(strstr(page, "\"kind\": \"cross\""));
    assert_non_null(strstr(page, "\"cols_grid\": [1, 2, 2]"));
    free(page);
#ifdef HAVE_CAIRO
    r = fovea("see -m %s/model %s --target 'a light day' -o words.svg", dir,
              scratch("images/14.png"));
    assert_string_equal(succeeded(r)->out, "");
    char *svg = slurp(scratch("words.svg"), &n);
    assert_non_null(strstr(svg, "data:image/png;base64,"));
    free(svg);
#endif
}

static void what_cannot_be_captioned_is_refused(void **state)
{
    (void)state;
    char dir[400];
    snprintf(dir, sizeof dir, "%s", scratch("run"));
    refused(fovea("caption -m %s/model %s", dir, scratch("none.png")), 1, "none.png");
    refused(fovea("caption -m %s %s", FOVEA_TESTS "/golden/tasks/none", scratch("images/14.png")),
            1, "none");
    refused(fovea("train %s -o %s --set data.dir=%s --set model.encoder.no_such=1",
                  scratch("r.ini"), scratch("other"), scratch(".")),
            1, "no_such");
    refused(fovea("eval -m %s/model --source-field image --target-field caption --where part=none "
                  "%s",
                  dir, scratch("captions.tsv")),
            1, "no image");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_is_what_transformers_writes),
        cmocka_unit_test(a_captioner_learns_and_writes),
        cmocka_unit_test(words_show_where_they_looked),
        cmocka_unit_test(what_cannot_be_captioned_is_refused),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
