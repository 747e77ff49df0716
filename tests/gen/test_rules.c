/* test_rules.c - rules of generation_config.json against transformers, beams that are drawn, and
 * texts that end a sequence. */
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

#include "fovea/author/tensor.h"
#include "fovea/fovea.h"
#include "fovea/gen.h"
#include "fovea/model.h"
#include "helper/program.h"

#define MODELS FOVEA_TESTS "/golden/models"

static fv_device *device;

static void ok(fv_status st, const char *what, const fv_err *e)
{
    if (st) fail_msg("%s: %s", what, e->text);
}

static fv_model *open_model(const char *name)
{
    char path[512];
    fv_model *m;
    fv_err e;
    snprintf(path, sizeof path, "%s/%s", MODELS, name);
    ok(fv_model_open(&m, device, path, (fv_model_opt){0}, &e), name, &e);
    return m;
}

/* ---- golden cases ---- */

/* A directory with the model's own generation settings and the given keys over them. */
static void write_config(const char *name, json_t *keys)
{
    char path[512];
    static const char *const ids[] = {"eos_token_id", "pad_token_id", "decoder_start_token_id"};
    snprintf(path, sizeof path, "%s/%s/config.json", MODELS, name);
    json_t *config = json_load_file(path, 0, NULL), *all = json_object();
    assert_non_null(config);
    for (int i = 0; i < 3; i++)
        if (json_is_number(json_object_get(config, ids[i])))
            json_object_set(all, ids[i], json_object_get(config, ids[i]));
    json_dump_file(config, scratch("config.json"), 0);
    snprintf(path, sizeof path, "%s/%s/generation_config.json", MODELS, name);
    json_t *own = json_load_file(path, 0, NULL);
    if (own) json_object_update(all, own);
    json_object_update(all, keys);
    json_dump_file(all, scratch("generation_config.json"), 0);
    json_decref(own);
    json_decref(all);
    json_decref(config);
}

/* Input i of a case without its padding. */
static int64_t read_prompt(const char *name, size_t row, int32_t *out)
{
    char path[512];
    fv_st *s;
    fv_st_info t;
    fv_err e;
    int32_t ids[256], mask[256];
    snprintf(path, sizeof path, "%s/%s/in.safetensors", MODELS, name);
    ok(fv_st_open(&s, NULL, path, &e), path, &e);
    ok(fv_st_find(s, "input_ids", &t, &e), path, &e);
    assert_true(t.count <= 256);
    ok(fv_st_read(s, &t, ids, FV_I32, t.count, &e), path, &e);
    ok(fv_st_find(s, "attention_mask", &t, &e), path, &e);
    ok(fv_st_read(s, &t, mask, FV_I32, t.count, &e), path, &e);
    int64_t n = 0, T = t.shape.d[1];
    for (int64_t j = (int64_t)row * T; j < (int64_t)(row + 1) * T; j++)
        if (mask[j]) out[n++] = ids[j];
    fv_st_close(s);
    return n;
}

static void compare(const char *what, const fv_hyp *got, const json_t *want)
{
    size_t n = json_array_size(want);
    if ((size_t)got->n != n) fail_msg("%s: %d tokens, expected %zu", what, (int)got->n, n);
    for (size_t k = 0; k < n; k++)
        if (got->ids[k] != json_integer_value(json_array_get(want, k)))
            fail_msg("%s: token %zu is %d", what, k, got->ids[k]);
}

static void check_case(const fv_model *m, const char *name, json_t *one)
{
    fv_gen_config *config;
    fv_generated out;
    fv_err e;
    int32_t ids[8][256];
    const int32_t *source[8];
    int64_t len[8];
    json_t *rows = json_object_get(one, "sequences"), *keys = json_object_get(one, "config");
    size_t n = json_array_size(rows);
    char *what = json_dumps(one, JSON_COMPACT);
    assert_true(n <= 8);
    write_config(name, keys);
    for (size_t i = 0; i < n; i++) len[i] = read_prompt(name, i, ids[i]), source[i] = ids[i];
    ok(fv_gen_config_open(&config, NULL, scratch("."), NULL, &e), what, &e);
    ok(fv_generate(&out, device, m, source, len, (int64_t)n, fv_gen_config_options(config), &e),
       what, &e);
    for (size_t i = 0; i < n; i++) {
        const json_t *score = json_array_get(json_object_get(one, "scores"), i);
        compare(what, &out.hyp[i], json_array_get(rows, i));
        if (score && fabs(out.hyp[i].score - json_number_value(score)) > 1e-3)
            fail_msg("%s: score %g, expected %g", what, out.hyp[i].score, json_number_value(score));
    }
    fv_generated_free(&out);
    fv_gen_config_close(config);
    free(what);
}

static void rules_are_those_of_transformers(void **state)
{
    (void)state;
    size_t i;
    json_t *one, *all = json_load_file(FOVEA_TESTS "/golden/generate/rules.json", 0, NULL);
    const char *open = "";
    fv_model *m = NULL;
    json_array_foreach(all, i, one)
    {
        const char *name = json_string_value(json_object_get(one, "model"));
        if (strcmp(name, open)) {
            fv_model_free(m);
            m = open_model(name);
            open = name;
        }
        check_case(m, name, one);
    }
    assert_true(i >= 40);
    fv_model_free(m);
    json_decref(all);
}

/* ---- drawn beams ---- */

static fv_gen_opt two_beams(int64_t seed)
{
    fv_gen_opt o = {0};
    fv_fields_default(&o, fv_gen_fields);
    o.num_beams = o.num_return_sequences = 2;
    o.do_sample = true;
    o.max_new_tokens = 1;
    o.top_k = 0;
    o.length_penalty = 0;
    o.eos = o.pad = o.start = o.forced_bos = o.forced_eos = -1;
    o.seed = seed;
    return o;
}

/* Two continuations are drawn of one row, without replacement: how often a pair comes is known from
 * the probabilities, which the scores of all sequences of one token give. */
static void beams_are_drawn_by_their_probability(void **state)
{
    (void)state;
    enum { DRAWS = 3000, MOST = 128 };
    double p[MOST] = {0}, got[MOST] = {0}, want[MOST] = {0};
    fv_model *m = open_model("gpt2-apart");
    int32_t ids[256];
    const int32_t *source = ids;
    int64_t n = read_prompt("gpt2-apart", 0, ids);
    fv_err e;
    fv_generated out;
    fv_gen_opt o = two_beams(1);
    int64_t V = fv_params_find(fv_model_params(m), "transformer.wte.weight")->shape.d[0];
    assert_true(V <= MOST);
    o.do_sample = false;
    o.num_beams = o.num_return_sequences = V;
    ok(fv_generate(&out, device, m, &source, &n, 1, &o, &e), "all", &e);
    for (int64_t i = 0; i < V; i++) p[out.hyp[i].ids[0]] = exp(out.hyp[i].score);
    fv_generated_free(&out);
    for (int64_t a = 0; a < V; a++)
        for (int64_t b = 0; b < V; b++)
            if (a != b) want[p[a] > p[b] ? a : b] += p[a] * p[b] / (1 - p[a]);
    for (int64_t seed = 1; seed <= DRAWS; seed++) {
        o = two_beams(seed);
        ok(fv_generate(&out, device, m, &source, &n, 1, &o, &e), "drawn", &e);
        assert_true(out.hyp[0].score >= out.hyp[1].score);
        assert_int_not_equal(out.hyp[0].ids[0], out.hyp[1].ids[0]);
        got[out.hyp[0].ids[0]]++;
        fv_generated_free(&out);
    }
    double chi = 0;
    int cells = 0;
    for (int64_t v = 0; v < V; v++)
        if (want[v] * DRAWS >= 5)
            chi += pow(got[v] - want[v] * DRAWS, 2) / (want[v] * DRAWS), cells++;
    assert_true(cells > 5);
    assert_true(chi < cells + 5 * sqrt(2.0 * cells)); /* five standard deviations */
    fv_model_free(m);
}

/* With renormalize_logits the score of a drawn token is its share of what the draw could give: of
 * three tokens, whose probabilities are those of a search. */
static void drawn_scores_are_renormalised(void **state)
{
    (void)state;
    fv_model *m = open_model("gpt2-apart");
    int32_t ids[256];
    const int32_t *source = ids;
    int64_t n = read_prompt("gpt2-apart", 0, ids);
    fv_err e;
    fv_generated best, out;
    fv_gen_opt o = two_beams(1);
    double sum = 0;
    o.do_sample = false;
    o.num_beams = o.num_return_sequences = 3;
    ok(fv_generate(&best, device, m, &source, &n, 1, &o, &e), "all", &e);
    for (int i = 0; i < 3; i++) sum += exp(best.hyp[i].score);
    for (int64_t seed = 1; seed <= 20; seed++) {
        o = two_beams(seed);
        o.num_beams = o.num_return_sequences = 1;
        o.top_k = 3;
        o.renormalize_logits = true;
        ok(fv_generate(&out, device, m, &source, &n, 1, &o, &e), "drawn", &e);
        int i = 0;
        while (i < 2 && best.hyp[i].ids[0] != out.hyp[0].ids[0]) i++;
        assert_int_equal(best.hyp[i].ids[0], out.hyp[0].ids[0]);
        assert_true(fabs(out.hyp[0].score - (best.hyp[i].score - log(sum))) < 1e-4);
        fv_generated_free(&out);
    }
    fv_generated_free(&best);
    fv_model_free(m);
}

/* Cold, drawing is searching: the same hypotheses, with scores that are not cold. */
static void cold_drawn_beams_are_those_of_a_search(void **state)
{
    (void)state;
    fv_model *m = open_model("llama-language");
    int32_t ids[256];
    const int32_t *source = ids;
    int64_t n = read_prompt("llama-language", 0, ids);
    fv_err e;
    fv_generated drawn, best;
    fv_gen_opt o = two_beams(3);
    o.max_new_tokens = 6;
    o.temperature = 1e-4f;
    o.top_k = 1; /* beams keep two of each row at least */
    ok(fv_generate(&drawn, device, m, &source, &n, 1, &o, &e), "drawn", &e);
    o.do_sample = false;
    ok(fv_generate(&best, device, m, &source, &n, 1, &o, &e), "best", &e);
    assert_memory_equal(drawn.hyp[0].ids, best.hyp[0].ids, (size_t)best.hyp[0].n * sizeof *ids);
    fv_generated_free(&drawn);
    fv_generated_free(&best);
    fv_model_free(m);
}

/* ---- texts that end a sequence ---- */

/* transformers leaves the text of stop_strings where it is; --stop cuts its own away. */
static void stop_strings_end_a_text(void **state)
{
    (void)state;
    char first[512];
    succeeded(sh("cp -r %s/golden/stories260K stories", FOVEA_TESTS));
    snprintf(
        first, sizeof first, "%s",
        succeeded(sh("$fovea generate -m stories --max-new-tokens 40 'Once upon a time'"))->out);
    char *dot = strchr(first, '.');
    assert_non_null(dot);
    succeeded(sh("printf '{\"bos_token_id\": 1, \"eos_token_id\": 2, \"stop_strings\": [\".\"]}' > "
                 "stories/generation_config.json"));
    const char *out = succeeded(sh("$fovea generate -m stories --max-new-tokens 40 'Once upon a "
                                   "time'"))
                          ->out;
    assert_int_equal(strncmp(out, first, (size_t)(dot - first) + 1), 0);
    assert_string_equal(out + (dot - first) + 1, "\n");
    out =
        succeeded(sh("$fovea generate -m stories --max-new-tokens 40 --stop 'a' 'Once upon'"))->out;
    assert_null(strchr(out, 'a'));
}

static int set_up(void **state)
{
    fv_err e;
    if (fv_device_open(&device, "cpu", (fv_device_opt){.threads = 1}, &e)) return -1;
    return scratch_open(state);
}

static int tear_down(void **state)
{
    fv_device_close(device);
    return scratch_close(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rules_are_those_of_transformers),
        cmocka_unit_test(beams_are_drawn_by_their_probability),
        cmocka_unit_test(drawn_scores_are_renormalised),
        cmocka_unit_test(cold_drawn_beams_are_those_of_a_search),
        cmocka_unit_test(stop_strings_end_a_text),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
