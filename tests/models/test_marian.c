/* test_marian.c - the marian family against transformers: logits, loss, every gradient, every
 * attention map, round trip. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "helper/device.h"
#include "fovea/fovea.h"
#include "fovea/gen.h"
#include "fovea/author/tensor.h"
#include "helper/golden.h"
#include "helper/files.h"

static const char *const names[] = {"marian-shared", "marian-apart"};

static fv_items inputs(fv_ctx *c, const fv_st *g)
{
    fv_items in = {0};
    fv_tensor *labels = golden_input(c, g, "labels", FV_I32);
    fv_items_put(&in, "input_ids", golden_input(c, g, "input_ids", FV_I32));
    fv_items_put(&in, "attention_mask", golden_input(c, g, "attention_mask", FV_U8));
    fv_items_put(&in, "decoder_input_ids", golden_input(c, g, "decoder_input_ids", FV_I32));
    fv_items_put(&in, "labels", labels);
    int32_t label[64];
    assert_int_equal(fv_read_i32(c, labels, label, fv_len(labels)), FV_OK);
    for (int64_t i = 0; i < fv_len(labels); i++) in.n_labels += label[i] != -100;
    return in;
}

static void near(const char *what, const double *got, const float *want, int64_t n,
                 double tolerance)
{
    double most = 0, scale = 1;
    for (int64_t i = 0; i < n; i++) {
        double off = fabs(got[i] - (double)want[i]), size = fabs((double)want[i]);
        if (!(off <= most)) most = off; /* NaN counts as far off */
        if (size > scale) scale = size;
    }
    if (!(most <= tolerance * scale)) print_error("%s: off by %g\n", what, most);
    assert_true(most <= tolerance * scale);
}

static void same_values(fv_ctx *c, const fv_items *out, const fv_st *g, const char *name,
                        double tolerance)
{
    int64_t n;
    float *want = golden_numbers(g, name, &n);
    double *got = malloc((size_t)n * sizeof *got);
    assert_int_equal(fv_read_f64(c, fv_items_get(out, name), got, n), FV_OK);
    near(name, got, want, n, tolerance);
    free(got);
    free(want);
}

/* The relative error of a gradient as a whole: the norm of the difference over the norm. */
static void same_gradients(fv_ctx *c, const fv_model *m, const fv_st *g)
{
    int compared = 0;
    for (int i = 0; i < fv_st_count(g); i++) {
        fv_st_info info = fv_st_at(g, i);
        if (strncmp(info.name, "grad.", 5)) continue;
        fv_tensor *p = fv_params_find(fv_model_params(m), info.name + 5);
        if (!p) print_error("%s is no parameter here\n", info.name + 5);
        assert_non_null(p);
        float *want = golden_numbers(g, info.name, &info.count);
        double *got = malloc((size_t)info.count * sizeof *got), off = 0, norm = 0;
        assert_int_equal(fv_read_grad(c, p, got, info.count), FV_OK);
        for (int64_t j = 0; j < info.count; j++) {
            off += (got[j] - (double)want[j]) * (got[j] - (double)want[j]);
            norm += (double)want[j] * (double)want[j];
        }
        if (sqrt(off) > 1e-3 * sqrt(norm) + 1e-7)
            print_error("%s: off by %g of %g\n", info.name, sqrt(off), sqrt(norm));
        assert_true(sqrt(off) <= 1e-3 * sqrt(norm) + 1e-7);
        free(got);
        free(want);
        compared++;
    }
    assert_true(compared > 70);
}

/* ---- attention maps, by tap ---- */

typedef struct maps {
    const fv_st *golden;
    int seen;
} maps;

static void compare_map(void *user, fv_ctx *c, const char *site, const char *name, const void *what)
{
    maps *m = user;
    char key[64];
    int layer;
    if (strcmp(site, "attention")) return;
    const char *kind = strstr(name, "encoder_attn")    ? "cross"
                       : strstr(name, "model.encoder") ? "encoder"
                                                       : "decoder";
    assert_int_equal(sscanf(strstr(name, "layers."), "layers.%d", &layer), 1);
    snprintf(key, sizeof key, "%s_attentions.%d", kind, layer);

    int64_t n;
    float *want = golden_numbers(m->golden, key, &n);
    fv_shape s = fv_attn_view_shape(what);
    assert_int_equal(fv_shape_len(s), n);
    int64_t rows = s.d[2], cols = s.d[3];
    float *w = malloc((size_t)(rows * cols) * sizeof *w);
    for (int64_t b = 0; b < s.d[0]; b++)
        for (int64_t h = 0; h < s.d[1]; h++) {
            assert_int_equal(fv_attn_view_weights(c, what, b, h, 0, rows, w), FV_OK);
            for (int64_t i = 0; i < rows * cols; i++)
                assert_true(fabsf(w[i] - want[(b * s.d[1] + h) * rows * cols + i]) < 1e-4f);
        }
    free(w);
    free(want);
    m->seen++;
}

static void path_of(char out[512], const char *name, const char *end)
{
    snprintf(out, 512, "%s/golden/%s%s", FOVEA_TESTS, name, end);
}

static void open_golden(fv_st **g, fv_model **m, const char *name, fv_model_opt how)
{
    char path[512];
    fv_err e;
    path_of(path, name, ".safetensors");
    check(fv_st_open(g, NULL, path, &e), &e);
    path_of(path, name, "");
    check(fv_model_open(m, device, path, how, &e), &e);
}

static void the_family_is_the_published_one(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        fv_err e;
        fv_st *g;
        fv_model *m;
        fv_ctx *c;
        open_golden(&g, &m, names[i], (fv_model_opt){.train = true});
        check(fv_ctx_new(&c, device, (fv_ctx_opt){.record = true}, &e), &e);
        maps seen = {.golden = g};
        fv_ctx_set_tap(c, compare_map, &seen);

        fv_items in = inputs(c, g), out = {0};
        fv_model_forward(c, m, &in, &out);
        fv_hold(c, fv_items_get(&out, "logits"));
        fv_hold(c, fv_items_get(&out, "encoder_last_hidden_state"));
        assert_int_equal(fv_backward(c, fv_items_get(&out, "loss")), FV_OK);
        same_values(c, &out, g, "encoder_last_hidden_state", 1e-4);
        same_values(c, &out, g, "logits", 1e-4);
        same_values(c, &out, g, "loss", 1e-5);
        same_gradients(c, m, g);
        assert_int_equal(seen.seen, 6);

        fv_ctx_free(c);
        fv_model_free(m);
        fv_st_close(g);
    }
}

/* Greedy search and beams give what transformers' generate gave, padding aside, and each source
 * alone the same. */
static void a_missing_input_is_an_error(void **state)
{
    (void)state;
    char path[512];
    fv_err e;
    fv_model *m;
    fv_ctx *c;
    fv_items in = {0}, out = {0};
    path_of(path, names[0], "");
    check(fv_model_open(&m, device, path, (fv_model_opt){0}, &e), &e);
    check(fv_ctx_new(&c, device, (fv_ctx_opt){0}, &e), &e);
    fv_model_forward(c, m, &in, &out);
    assert_int_equal(fv_ctx_status(c), FV_EARG);
    assert_string_equal(fv_ctx_err(c)->text, "marian: input_ids is missing");
    assert_int_equal(out.n, 0);
    fv_ctx_free(c);
    fv_model_free(m);
}

static void it_generates_what_the_published_one_does(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        fv_err e;
        fv_st *g;
        fv_model *m;
        open_golden(&g, &m, names[i], (fv_model_opt){0});

        fv_st_info info;
        int32_t ids[3 * 9];
        float *mask = golden_numbers(g, "attention_mask", &info.count);
        check(fv_st_find(g, "input_ids", &info, &e), &e);
        check(fv_st_read(g, &info, ids, FV_I32, info.count, &e), &e);
        const int32_t *source[3] = {ids, ids + 9, ids + 18};
        int64_t len[3] = {0};
        for (int k = 0; k < 27; k++) len[k / 9] += mask[k] != 0;
        free(mask);

        for (int beams = 1; beams <= 4; beams += 3) {
            char key[16];
            int32_t want[64];
            snprintf(key, sizeof key, "beam%d", beams);
            check(fv_st_find(g, key, &info, &e), &e);
            check(fv_st_read(g, &info, want, FV_I32, info.count, &e), &e);
            int64_t width = info.shape.d[1];
            fv_gen_opt opt = {0};
            fv_fields_default(&opt, fv_gen_fields);
            int32_t start = want[0];
            opt.num_beams = beams;
            opt.max_length = 12;
            opt.start = opt.pad = start;
            opt.eos = opt.forced_eos = 0;
            opt.banned = NULL;
            opt.n_banned = 0;
            /* all three, then one by one */
            for (int alone = 0; alone < (test_brief() ? 1 : 4); alone++) {
                int first = alone ? alone - 1 : 0, n = alone ? 1 : 3;
                fv_generated out;
                check(fv_generate(&out, device, m, source + first, len + first, n, &opt, &e), &e);
                for (int r = 0; r < n; r++) {
                    const int32_t *row = want + (first + r) * width + 1;
                    for (int64_t k = 0; k < out.hyp[r].n; k++)
                        assert_int_equal(out.hyp[r].ids[k], row[k]);
                    for (int64_t k = out.hyp[r].n; k < width - 1; k++)
                        assert_int_equal(row[k], start);
                    assert_true(out.hyp[r].score < 0);
                }
                fv_generated_free(&out);
            }
        }
        fv_model_free(m);
        fv_st_close(g);
    }
}

static void what_was_saved_opens_with_the_same_bits(void **state)
{
    (void)state;
    const char *dir = scratch("saved");
    char path[512];
    fv_err e;
    fv_model *one, *two;
    path_of(path, "marian-apart", "");
    check(fv_model_open(&one, device, path, (fv_model_opt){0}, &e), &e);
    check(fv_model_save(one, dir, FV_F32, &e), &e);
    check(fv_model_open(&two, device, dir, (fv_model_opt){0}, &e), &e);
    int64_t n, again;
    float *a = test_values(fv_model_params(one), &n),
          *b = test_values(fv_model_params(two), &again);
    assert_int_equal(n, again);
    assert_memory_equal(a, b, (size_t)n * sizeof *a);
    free(a);
    free(b);
    fv_model_free(one);
    fv_model_free(two);
}

static void a_config_it_cannot_follow_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *config, *says;
    } cases[] = {
        {"{\"model_type\":\"marian\",\"d_model\":15,\"encoder_attention_heads\":3,\"decoder_"
         "attention_heads\":3}",
         "odd"},
        {"{\"model_type\":\"marian\",\"d_model\":16,\"encoder_attention_heads\":3}", "multiple"},
        {"{\"model_type\":\"marian\",\"normalize_embedding\":true}", "normalize_embedding"},
        {"{\"model_type\":\"mariann\"}", "marian"},
        {"{\"model_type\":\"marian\",\"architectures\":[\"MarianModle\"]}", "MarianMTModel"},
        {"{}", "model_type"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fv_model *m;
        fv_err e;
        assert_int_not_equal(fv_model_new(&m, device, cases[i].config, (fv_model_opt){0}, 1, &e),
                             FV_OK);
        assert_null(m);
        if (!strstr(e.text, cases[i].says)) print_error("%s\n", e.text);
        assert_non_null(strstr(e.text, cases[i].says));
    }
}

static int set_up(void **state) { return scratch_open(state) || open_device(state); }
static int tear_down(void **state) { return close_device(state) || scratch_close(state); }

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_family_is_the_published_one),
        cmocka_unit_test(a_missing_input_is_an_error),
        cmocka_unit_test(it_generates_what_the_published_one_does),
        cmocka_unit_test(what_was_saved_opens_with_the_same_bits),
        cmocka_unit_test(a_config_it_cannot_follow_is_refused),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
