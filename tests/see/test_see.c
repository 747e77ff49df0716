/* test_see.c - the record of a pass: weights equal to transformers', rollouts equal to numpy's,
 * refusals, numbers in files. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "fovea/see.h"
#include "fovea/author/see.h"
#include "helper/device.h"
#include "helper/files.h"
#include "helper/golden.h"

static const char *const names[] = {"marian-shared", "marian-apart"};

static int set_up(void **state) { return scratch_open(state) || open_device(state); }
static int tear_down(void **state) { return close_device(state) || scratch_close(state); }

static void path_of(char out[512], const char *name, const char *end)
{
    snprintf(out, 512, "%s/golden/%s%s", FOVEA_TESTS, name, end);
}

static float *golden_of(const fv_st *g, const char *name, int64_t want)
{
    int64_t n;
    float *x = golden_numbers(g, name, &n);
    assert_int_equal(n, want);
    return x;
}

/* One of the golden models with the golden batch, watched at sequence b. */
typedef struct lab {
    fv_st *g, *rolls;
    fv_model *m;
    fv_ctx *c;
    fv_see *s;
} lab;

static void open_lab(lab *l, const char *name, int64_t b)
{
    char path[512];
    fv_err e;
    path_of(path, name, ".safetensors");
    check(fv_st_open(&l->g, NULL, path, &e), &e);
    path_of(path, "see", ".safetensors");
    check(fv_st_open(&l->rolls, NULL, path, &e), &e);
    path_of(path, name, "");
    check(fv_model_open(&l->m, device, path, (fv_model_opt){0}, &e), &e);
    check(fv_ctx_new(&l->c, device, (fv_ctx_opt){.record = true}, &e), &e);
    check(fv_see_watch(&l->s, l->c, b, &e), &e);
    fv_items in = {0}, out = {0};
    fv_items_put(&in, "input_ids", golden_input(l->c, l->g, "input_ids", FV_I32));
    fv_items_put(&in, "attention_mask", golden_input(l->c, l->g, "attention_mask", FV_U8));
    fv_items_put(&in, "decoder_input_ids", golden_input(l->c, l->g, "decoder_input_ids", FV_I32));
    fv_model_forward(l->c, l->m, &in, &out);
    assert_int_equal(fv_ctx_status(l->c), FV_OK);
}

static void close_lab(lab *l)
{
    fv_see_free(l->s);
    fv_ctx_free(l->c);
    fv_model_free(l->m);
    fv_st_close(l->g);
    fv_st_close(l->rolls);
}

static void near(const float *got, const float *want, int64_t n, float tolerance)
{
    for (int64_t i = 0; i < n; i++) {
        if (!(fabsf(got[i] - want[i]) <= tolerance))
            print_error("%lld: %g, not %g\n", (long long)i, (double)got[i], (double)want[i]);
        assert_true(fabsf(got[i] - want[i]) <= tolerance);
    }
}

/* Both models, each sequence of the batch. */
static void each_sequence(void (*compare)(lab *l, int which, int64_t b))
{
    for (int which = 0; which < 2; which++)
        for (int64_t b = 0; b < 3; b++) {
            lab l;
            open_lab(&l, names[which], b);
            compare(&l, which, b);
            close_lab(&l);
        }
}

static void weights_of(lab *l, int which, int64_t b)
{
    fv_err e;
    (void)which;
    for (int k = 0; k < FV_SEE_KINDS; k++) {
        fv_see_kind kind = (fv_see_kind)k;
        int64_t rows = fv_see_shape_of(l->s, kind).rows, cols = fv_see_shape_of(l->s, kind).cols,
                heads = fv_see_shape_of(l->s, kind).heads;
        assert_int_equal(fv_see_shape_of(l->s, kind).layers, 2);
        assert_int_equal(heads, kind == FV_SEE_ENCODER ? 4 : 2);
        assert_int_equal(rows, kind == FV_SEE_ENCODER ? 9 : 7);
        assert_int_equal(cols, kind == FV_SEE_DECODER ? 7 : 9);
        float *w = malloc((size_t)(rows * cols) * sizeof *w),
              *mean = calloc((size_t)(rows * cols), sizeof *mean);
        for (int64_t layer = 0; layer < 2; layer++) {
            char key[64];
            snprintf(key, sizeof key, "%s_attentions.%d", fv_see_kind_name(kind), (int)layer);
            float *all = golden_of(l->g, key, 3 * heads * rows * cols),
                  *mine = all + b * heads * rows * cols;
            for (int64_t h = 0; h < heads; h++) {
                check(fv_see_weights(l->s, (fv_see_pick){kind, layer, h, false, false}, 0, rows, w,
                                     &e),
                      &e);
                near(w, mine + h * rows * cols, rows * cols, 1e-5f);
                check(fv_see_weights(l->s, (fv_see_pick){kind, layer, h, false, false}, rows - 2,
                                     rows - 1, w, &e),
                      &e);
                near(w, mine + (h * rows + rows - 2) * cols, cols, 1e-5f);
                for (int64_t i = 0; i < rows * cols; i++)
                    mean[i] += mine[h * rows * cols + i] / (float)(2 * heads);
            }
            free(all);
        }
        check(fv_see_weights(l->s, (fv_see_pick){kind, FV_SEE_ALL, FV_SEE_ALL, false, false}, 0,
                             rows, w, &e),
              &e);
        near(w, mean, rows * cols, 1e-5f);
        free(w);
        free(mean);
    }
    assert_string_equal(fv_see_layer_name(l->s, FV_SEE_CROSS, 1),
                        "model.decoder.layers.1.encoder_attn");
    assert_null(fv_see_layer_name(l->s, FV_SEE_CROSS, 2));
}

static void weights_are_those_of_transformers(void **state)
{
    (void)state;
    each_sequence(weights_of);
}

static void rollouts_of(lab *l, int which, int64_t b)
{
    fv_err e;
    for (int k = 0; k < FV_SEE_KINDS; k++) {
        fv_see_kind kind = (fv_see_kind)k;
        int64_t rows = fv_see_shape_of(l->s, kind).rows, cols = fv_see_shape_of(l->s, kind).cols;
        char key[64];
        snprintf(key, sizeof key, "%s.%d.%s", names[which], (int)b, fv_see_kind_name(kind));
        float *want = golden_of(l->rolls, key, 2 * rows * cols),
              *got = malloc((size_t)(rows * cols) * sizeof *got);
        for (int64_t layer = 0; layer < 2; layer++) {
            fv_see_pick p = {kind, layer, FV_SEE_ALL, true, false};
            check(fv_see_weights(l->s, p, 0, rows, got, &e), &e);
            near(got, want + layer * rows * cols, rows * cols, 1e-5f);
            /* rows alone are the same rows */
            check(fv_see_weights(l->s, p, 3, 5, got, &e), &e);
            near(got, want + (layer * rows + 3) * cols, 2 * cols, 1e-5f);
        }
        check(fv_see_weights(l->s, (fv_see_pick){kind, FV_SEE_ALL, FV_SEE_ALL, true, false}, 0,
                             rows, got, &e),
              &e);
        near(got, want + rows * cols, rows * cols, 1e-5f);
        free(got);
        free(want);
    }
}

static void rollouts_are_those_of_numpy(void **state)
{
    (void)state;
    each_sequence(rollouts_of);
}

/* Capacities of a layer: half of a row is its own. */
static void capacities(const lab *l, fv_see_kind kind, int64_t layer, int64_t n, float *out)
{
    fv_err e;
    fv_see_pick mean = {.kind = kind, .layer = layer, .head = FV_SEE_ALL};
    check(fv_see_weights(l->s, mean, 0, n, out, &e), &e);
    for (int64_t i = 0; i < n; i++) {
        float sum = 1;
        for (int64_t j = 0; j < n; j++) sum += out[i * n + j];
        out[i * n + i] += 1;
        for (int64_t j = 0; j < n; j++) out[i * n + j] /= sum;
    }
}

/* Through one layer a flow is the capacity; through two, every token between is a path of its own,
 * as wide as the narrower of its edges. */
static void flows_of(lab *l, int which, int64_t b)
{
    fv_err e;
    (void)which, (void)b;
    for (int k = FV_SEE_ENCODER; k <= FV_SEE_DECODER; k++) {
        fv_see_kind kind = (fv_see_kind)k;
        int64_t n = fv_see_shape_of(l->s, kind).rows;
        float low[81], high[81], want[81] = {0}, got[81];
        fv_see_pick p = {.kind = kind, .layer = 0, .head = FV_SEE_ALL, .flow = true};
        capacities(l, kind, 0, n, low);
        capacities(l, kind, 1, n, high);
        check(fv_see_weights(l->s, p, 0, n, got, &e), &e);
        near(got, low, n * n, 1e-5f);
        for (int64_t i = 0; i < n * n; i++)
            for (int64_t m = 0; m < n; m++)
                want[i] += fminf(high[i / n * n + m], low[m * n + i % n]);
        p.layer = FV_SEE_ALL;
        check(fv_see_weights(l->s, p, 0, n, got, &e), &e);
        near(got, want, n * n, 1e-5f);
        check(fv_see_weights(l->s, p, 3, 5, got, &e), &e);
        near(got, want + 3 * n, 2 * n, 1e-5f);
    }
    fv_see_pick cross = {.kind = FV_SEE_CROSS, .layer = 0, .head = FV_SEE_ALL, .flow = true};
    float none[81];
    assert_int_equal(fv_see_weights(l->s, cross, 0, 1, none, &e), FV_EARG);
}

static void flows_are_those_of_their_paths(void **state)
{
    (void)state;
    each_sequence(flows_of);
}

/* ---- every family, by the names its attentions have ---- */

static void put_if_there(fv_ctx *c, fv_items *in, const fv_st *g, const char *name, fv_dtype as)
{
    fv_st_info info;
    if (!fv_st_find(g, name, &info, NULL)) fv_items_put(in, name, golden_input(c, g, name, as));
}

/* Sequence 0 of the golden batch of a model, all kinds, layers and heads. */
static void compare_family(const char *name, bool pair, fv_see_kind only)
{
    char path[512];
    fv_err e;
    fv_st *given, *want;
    lab l = {0};
    snprintf(path, sizeof path, "%s/golden/models/%s/in.safetensors", FOVEA_TESTS, name);
    check(fv_st_open(&given, NULL, path, &e), &e);
    snprintf(path, sizeof path, "%s/golden/models/%s/out.safetensors", FOVEA_TESTS, name);
    check(fv_st_open(&want, NULL, path, &e), &e);
    snprintf(path, sizeof path, "%s/golden/models/%s", FOVEA_TESTS, name);
    check(fv_model_open(&l.m, device, path, (fv_model_opt){0}, &e), &e);
    assert_int_equal(fv_model_has_cross(l.m), pair);
    check(fv_ctx_new(&l.c, device, (fv_ctx_opt){.record = true}, &e), &e);
    check(fv_see_watch(&l.s, l.c, 0, &e), &e);
    fv_items in = {0}, out = {0};
    put_if_there(l.c, &in, given, "input_ids", FV_I32);
    put_if_there(l.c, &in, given, "attention_mask", FV_U8);
    put_if_there(l.c, &in, given, "token_type_ids", FV_I32);
    put_if_there(l.c, &in, given, "decoder_input_ids", FV_I32);
    fv_model_forward(l.c, l.m, &in, &out);
    assert_int_equal(fv_ctx_status(l.c), FV_OK);
    for (int k = 0; k < FV_SEE_KINDS; k++) {
        fv_see_kind kind = (fv_see_kind)k;
        assert_int_equal(fv_see_shape_of(l.s, kind).layers, pair || kind == only ? 2 : 0);
        int64_t size = fv_see_shape_of(l.s, kind).rows * fv_see_shape_of(l.s, kind).cols,
                heads = fv_see_shape_of(l.s, kind).heads;
        float *w = malloc((size_t)(size + 1) * sizeof *w);
        for (int64_t i = 0; i < fv_see_shape_of(l.s, kind).layers * heads; i++) {
            char key[64];
            snprintf(key, sizeof key, "%s%sattentions.%d", pair ? fv_see_kind_name(kind) : "",
                     pair ? "_" : "", (int)(i / heads));
            float *all = golden_of(want, key, 3 * heads * size);
            check(fv_see_weights(l.s, (fv_see_pick){kind, i / heads, i % heads, false, false}, 0,
                                 fv_see_shape_of(l.s, kind).rows, w, &e),
                  &e);
            near(w, all + i % heads * size, size, 1e-4f);
            free(all);
        }
        free(w);
    }
    fv_see_free(l.s);
    fv_ctx_free(l.c);
    fv_model_free(l.m);
    fv_st_close(given);
    fv_st_close(want);
}

static void families_are_seen_by_their_roles(void **state)
{
    (void)state;
    compare_family("bert", false, FV_SEE_ENCODER);
    compare_family("roberta", false, FV_SEE_ENCODER);
    compare_family("distilbert", false, FV_SEE_ENCODER);
    compare_family("gpt2", false, FV_SEE_DECODER);
    compare_family("llama", false, FV_SEE_DECODER);
    compare_family("t5", true, FV_SEE_CROSS);
    compare_family("bart", true, FV_SEE_CROSS);
}

/* ---- a pass of one sentence ---- */

static const int32_t source[] = {5, 9, 3, 17, 0}, target[] = {4, 8, 15, 16, 23, 0};

static fv_see *look(fv_model **m)
{
    char path[512];
    fv_err e;
    fv_see *s;
    path_of(path, names[0], "");
    check(fv_model_open(m, device, path, (fv_model_opt){0}, &e), &e);
    assert_true(fv_model_has_cross(*m));
    fv_see_in in = {.source = source, .n_source = 5, .target = target, .n_target = 6, .start = 40};
    check(fv_see_run(&s, device, *m, in, &e), &e);
    return s;
}

static void tokens_stand_where_they_belong(void **state)
{
    (void)state;
    fv_model *m;
    fv_see *s = look(&m);
    assert_string_equal(fv_see_row(s, FV_SEE_ENCODER, 1), "9");
    assert_string_equal(fv_see_col(s, FV_SEE_CROSS, 4), "0");
    assert_string_equal(fv_see_row(s, FV_SEE_CROSS, 0), "4");    /* what position 0 says */
    assert_string_equal(fv_see_row(s, FV_SEE_DECODER, 0), "40"); /* what it reads: the start */
    assert_string_equal(fv_see_row(s, FV_SEE_DECODER, 5), "23");
    assert_null(fv_see_row(s, FV_SEE_CROSS, 6));

    fv_err e;
    const char *rows[] = {"a", "b", "c", "d", "e", "\xff"}, *cols[] = {"1", "2", "3", "4", "5"};
    assert_int_equal(fv_see_label(s, FV_SEE_CROSS, rows, 5, cols, 5, &e), FV_ESHAPE);
    assert_int_equal(fv_see_label(s, FV_SEE_CROSS, rows, 6, cols, 5, &e), FV_EARG);
    assert_non_null(strstr(e.text, "UTF-8"));
    fv_see_free(s);
    fv_model_free(m);
}

/* Shape and labels of a text without a pass over it. */
static void an_outline_has_no_weights(void **state)
{
    (void)state;
    fv_model *m;
    fv_see *s;
    fv_err e;
    float w[8];
    fv_see_in in = {.source = source, .n_source = 5, .outline = true};
    check(fv_model_open(&m, device, FOVEA_TESTS "/golden/stories260K", (fv_model_opt){0}, &e), &e);
    check(fv_see_run(&s, device, m, in, &e), &e);
    fv_see_shape shape = fv_see_shape_of(s, FV_SEE_DECODER);
    assert_int_equal(shape.layers, 5);
    assert_int_equal(shape.heads, 8);
    assert_int_equal(shape.rows, 5);
    assert_int_equal(shape.cols, 5);
    assert_string_equal(fv_see_row(s, FV_SEE_DECODER, 3), "17");
    assert_int_equal(fv_see_weights(s, (fv_see_pick){.kind = FV_SEE_DECODER}, 0, 1, w, &e),
                     FV_ESTATE);
    fv_see_free(s);
    fv_model_free(m);
    fv_see_free(look(&m));
    assert_int_equal(fv_see_run(&s, device, m, in, &e), FV_EMISSING); /* it reads a pair */
    fv_model_free(m);
}

static void what_is_not_there_is_named(void **state)
{
    (void)state;
    static const struct {
        fv_see_pick pick;
        const char *says;
    } cases[] = {
        {{FV_SEE_CROSS, 2, 0, false, false}, "layer 2: the cross attention has layers 0 to 1"},
        {{FV_SEE_ENCODER, 0, 4, false, false}, "head 4: the encoder attention has heads 0 to 3"},
        {{FV_SEE_DECODER, 0, -2, false, false}, "head -2"},
        {{FV_SEE_DECODER, 0, 1, true, false}, "rollout"},
        {{(fv_see_kind)7, 0, 1, true, false}, "no such kind"},
    };
    fv_model *m;
    fv_see *s = look(&m), *none;
    fv_err e;
    float w[64];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(fv_see_weights(s, cases[i].pick, 0, 1, w, &e), FV_EARG);
        if (!strstr(e.text, cases[i].says)) print_error("%s\n", e.text);
        assert_non_null(strstr(e.text, cases[i].says));
    }
    assert_int_equal(fv_see_weights(s, (fv_see_pick){FV_SEE_CROSS, 0, 0, false, false}, 5, 7, w,
                                    &e),
                     FV_EARG);
    assert_int_equal(fv_see_save(s, NULL, "picture.bmp", (fv_see_opt){0}, &e), FV_EARG);
    assert_non_null(strstr(e.text, "picture.bmp"));
    assert_non_null(strstr(e.text, ".svg"));
    assert_int_equal(fv_see_save(s, NULL, "/nowhere/at/all.csv", (fv_see_opt){0}, &e), FV_EIO);
    assert_non_null(strstr(e.text, "/nowhere/at/all.csv"));
    assert_int_equal(fv_see_save(s, NULL, "x.csv", (fv_see_opt){.from = 2, .to = 9}, &e), FV_EARG);
    fv_see_free(s);

    fv_see_in in = {.source = source, .n_source = 5};
    assert_int_equal(fv_see_run(&none, device, m, in, &e), FV_EARG); /* no target */
    assert_null(none);
    in = (fv_see_in){.source = (const int32_t[]){5, 4000},
                     .n_source = 2,
                     .target = target,
                     .n_target = 1};
    assert_int_not_equal(fv_see_run(&none, device, m, in, &e), FV_OK); /* no such id */
    assert_null(none);
    fv_model_free(m);
}

/* ---- numbers in files ---- */

static void json_and_csv_hold_the_same_weights(void **state)
{
    (void)state;
    const char *path = scratch("all.json");
    char line[512];
    fv_model *m;
    fv_see *s = look(&m);
    fv_err e;
    fv_see_opt all = {.pick = {.layer = FV_SEE_ALL, .head = FV_SEE_ALL}, .every_kind = true};
    check(fv_see_save(s, NULL, path, all, &e), &e);
    json_error_t je;
    json_t *j = json_load_file(path, JSON_REJECT_DUPLICATES, &je);
    assert_non_null(j);
    path = scratch("all.csv");
    check(fv_see_save(s, NULL, path, all, &e), &e);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    assert_non_null(fgets(line, sizeof line, f));
    assert_string_equal(line, "kind,layer,head,row,column,row_token,column_token,weight\n");

    size_t lines = 0;
    json_t *maps = json_object_get(j, "attentions");
    assert_int_equal(json_array_size(maps), 3);
    for (size_t k = 0; k < 3; k++) {
        json_t *map = json_array_get(maps, k), *layers = json_object_get(map, "layers");
        assert_string_equal(json_string_value(json_object_get(map, "kind")),
                            fv_see_kind_name((fv_see_kind)k));
        assert_int_equal(json_array_size(layers), 2);
        for (size_t l = 0; l < 2; l++) {
            json_t *heads = json_object_get(json_array_get(layers, l), "heads");
            assert_int_equal(json_array_size(heads), k == FV_SEE_ENCODER ? 4 : 2);
            for (size_t h = 0; h < json_array_size(heads); h++) {
                json_t *rows = json_object_get(json_array_get(heads, h), "weights");
                assert_int_equal(json_array_size(rows), fv_see_shape_of(s, (fv_see_kind)k).rows);
                for (size_t i = 0; i < json_array_size(rows); i++) {
                    json_t *row = json_array_get(rows, i);
                    float want[16];
                    int64_t cols = fv_see_shape_of(s, (fv_see_kind)k).cols;
                    check(fv_see_weights(s,
                                         (fv_see_pick){(fv_see_kind)k, (int64_t)l, (int64_t)h,
                                                       false, false},
                                         (int64_t)i, (int64_t)i + 1, want, &e),
                          &e);
                    assert_int_equal(json_array_size(row), cols);
                    for (size_t c = 0; c < (size_t)cols; c++) {
                        char kind[16];
                        int lay, head, r, col;
                        double v;
                        assert_true((float)json_number_value(json_array_get(row, c)) == want[c]);
                        assert_non_null(fgets(line, sizeof line, f));
                        assert_int_equal(sscanf(line, "%15[a-z],%d,%d,%d,%d,", kind, &lay, &head,
                                                &r, &col),
                                         5);
                        assert_int_equal(sscanf(strrchr(line, ','), ",%lf", &v), 1);
                        assert_true(lay == (int)l && head == (int)h && r == (int)i &&
                                    col == (int)c && (float)v == want[c]);
                        lines++;
                    }
                }
            }
        }
    }
    assert_null(fgets(line, sizeof line, f));
    assert_int_equal(lines, 2 * 4 * 25 + 2 * 2 * 36 + 2 * 2 * 30);
    fclose(f);
    json_decref(j);
    fv_see_free(s);
    fv_model_free(m);
}

/* ---- ablation ---- */

/* Silencing a head is the same as an output projection that does not read it. */
static void a_silenced_head_adds_nothing(void **state)
{
    (void)state;
    enum { D = 16 };
    static const struct {
        fv_see_pick head;
        const char *weight;
        int heads;
    } cases[] = {
        {{FV_SEE_ENCODER, 0, 2, false, false},
         "model.encoder.layers.0.self_attn.out_proj.weight",
         4},
        {{FV_SEE_DECODER, 1, 0, false, false},
         "model.decoder.layers.1.self_attn.out_proj.weight",
         2},
        {{FV_SEE_CROSS, 1, 1, false, false},
         "model.decoder.layers.1.encoder_attn.out_proj.weight",
         2},
    };
    fv_see_in in = {.source = source, .n_source = 5, .target = target, .n_target = 6, .start = 40};
    fv_see_pick none = {.layer = FV_SEE_ALL};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char path[512];
        fv_err e;
        fv_model *m;
        double before, silenced, cut;
        float w[D * D];
        path_of(path, names[0], "");
        check(fv_model_open(&m, device, path, (fv_model_opt){0}, &e), &e);
        check(fv_see_ablate(device, m, in, none, &before, &e), &e);
        check(fv_see_ablate(device, m, in, cases[i].head, &silenced, &e), &e);
        fv_tensor *p = fv_params_find(fv_model_params(m), cases[i].weight);
        check(fv_params_get(fv_model_params(m), p, w, D * D, &e), &e);
        int width = D / cases[i].heads;
        for (int k = 0; k < D * D; k++)
            if (k % D / width == cases[i].head.head) w[k] = 0;
        check(fv_params_set(fv_model_params(m), p, w, D * D, &e), &e);
        check(fv_see_ablate(device, m, in, none, &cut, &e), &e);
        assert_true(fabs(silenced - cut) < 1e-5);
        assert_true(fabs(silenced - before) > 1e-4); /* and it did something */
        assert_int_equal(fv_see_ablate(device, m, in,
                                       (fv_see_pick){FV_SEE_CROSS, 2, 0, false, false}, &cut, &e),
                         FV_EARG);
        assert_int_equal(fv_see_ablate(device, m, in,
                                       (fv_see_pick){FV_SEE_CROSS, 0, 9, false, false}, &cut, &e),
                         FV_EARG);
        fv_model_free(m);
    }
}

static void who_predicts_nothing_has_no_loss(void **state)
{
    (void)state;
    char path[512];
    fv_err e;
    fv_model *m;
    double loss;
    fv_see_in in = {.source = (const int32_t[]){3, 4, 5}, .n_source = 3};
    fv_see_pick none = {.layer = FV_SEE_ALL};
    path_of(path, "models/bert-masked", "");
    check(fv_model_open(&m, device, path, (fv_model_opt){0}, &e), &e);
    assert_int_equal(fv_see_ablate(device, m, in, none, &loss, &e), FV_EMISSING);
    fv_model_free(m);
    path_of(path, "models/gpt2-language", "");
    check(fv_model_open(&m, device, path, (fv_model_opt){0}, &e), &e);
    check(fv_see_ablate(device, m, in, none, &loss, &e), &e);
    assert_true(loss > 0);
    fv_model_free(m);
}

/* A head that copies is found among heads that stare or scatter. */
static fv_tensor *rows_of(fv_ctx *c, const float *x) { return fv_floats(c, x, FV_SHAPE(1, 3, 6)); }

static void the_head_that_aligns_is_found(void **state)
{
    (void)state;
    /* Three heads of width two on three tokens: head 0 looks everywhere, head 1 at the last token,
     * head 2 each at its own. */
    static const float q[] = {0, 0, 9, 0, 9, 0, 0, 0, 9, 0, -9, 0, 0, 0, 9, 0, 0, 9};
    static const float k[] = {0, 0, 0, 0, 9, 0, 0, 0, 0, 0, -9, 0, 0, 0, 9, 0, 0, 9};
    fv_ctx *c;
    fv_see *s;
    fv_err e;
    fv_see_pick best;
    double score;
    check(fv_ctx_new(&c, device, (fv_ctx_opt){.record = true}, &e), &e);
    check(fv_see_watch(&s, c, 0, &e), &e);
    fv_attention(c, rows_of(c, q), rows_of(c, k), rows_of(c, q),
                 (fv_attn){.n_head = 3, .role = FV_ATTN_CROSS});
    assert_int_equal(fv_ctx_status(c), FV_OK);
    check(fv_see_alignment(s, &best, &score, &e), &e);
    assert_int_equal(best.kind, FV_SEE_CROSS);
    assert_int_equal(best.layer, 0);
    assert_int_equal(best.head, 2);
    assert_true(score > 0.99);
    fv_see_free(s);
    fv_ctx_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_are_those_of_transformers),
        cmocka_unit_test(rollouts_are_those_of_numpy),
        cmocka_unit_test(flows_are_those_of_their_paths),
        cmocka_unit_test(families_are_seen_by_their_roles),
        cmocka_unit_test(tokens_stand_where_they_belong),
        cmocka_unit_test(an_outline_has_no_weights),
        cmocka_unit_test(what_is_not_there_is_named),
        cmocka_unit_test(json_and_csv_hold_the_same_weights),
        cmocka_unit_test(the_head_that_aligns_is_found),
        cmocka_unit_test(a_silenced_head_adds_nothing),
        cmocka_unit_test(who_predicts_nothing_has_no_loss),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
