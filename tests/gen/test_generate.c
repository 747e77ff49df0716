/* test_generate.c - generating as transformers does: every search of the golden cases, in a batch
 * and alone; drawing; rules. */
#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fovea/fovea.h"
#include "fovea/gen.h"
#include "gen/sample.h"
#include "helper/device.h"

#define CASES FOVEA_TESTS "/golden/models"
#define MAX_ROWS 16

static void ok(fv_status st, const char *which, const fv_err *e)
{
    if (st) fail_msg("%s: %s", which, e->text);
}

/* ---- golden cases ---- */

typedef struct prompts {
    int64_t n, len[MAX_ROWS];
    int32_t *ids[MAX_ROWS];
} prompts;

static int32_t *integers(const fv_st *s, const char *name, fv_st_info *t)
{
    fv_err e;
    ok(fv_st_find(s, name, t, &e), name, &e);
    int32_t *x = malloc((size_t)t->count * sizeof *x);
    assert_non_null(x);
    ok(fv_st_read(s, t, x, FV_I32, t->count, &e), name, &e);
    return x;
}

/* The inputs of a case without their padding. */
static prompts read_prompts(const char *name)
{
    char path[512];
    fv_err e;
    fv_st *s;
    fv_st_info t;
    prompts p = {0};
    snprintf(path, sizeof path, "%s/%s/in.safetensors", CASES, name);
    ok(fv_st_open(&s, NULL, path, &e), name, &e);
    int32_t *mask = integers(s, "attention_mask", &t), *ids = integers(s, "input_ids", &t);
    p.n = t.shape.d[0];
    assert_true(p.n <= MAX_ROWS);
    for (int64_t i = 0; i < p.n; i++) {
        p.ids[i] = malloc((size_t)t.shape.d[1] * sizeof **p.ids);
        for (int64_t j = 0; j < t.shape.d[1]; j++)
            if (mask[i * t.shape.d[1] + j]) p.ids[i][p.len[i]++] = ids[i * t.shape.d[1] + j];
    }
    free(mask);
    free(ids);
    fv_st_close(s);
    return p;
}

static void free_prompts(prompts *p)
{
    for (int64_t i = 0; i < p->n; i++) free(p->ids[i]);
}

/* "sequences:num_beams=3,max_length=9" */
static void set_options(fv_gen_opt *o, const char *name)
{
    char text[256], *rest = text;
    fv_err e;
    snprintf(text, sizeof text, "%s", strchr(name, ':') + 1);
    for (char *pair; (pair = strsep(&rest, ","));) {
        char *value = strchr(pair, '=');
        *value++ = 0;
        ok(fv_fields_set(o, fv_gen_fields, pair, value, &e), name, &e);
    }
}

static void compare(const char *name, const fv_hyp *got, const int32_t *want, int64_t width)
{
    for (int64_t k = 0; k < width; k++) {
        int32_t id = k < got->n ? got->ids[k] : -1;
        if (id != want[k]) fail_msg("%s: token %d is %d, expected %d", name, (int)k, id, want[k]);
    }
    assert_true(got->n <= width && got->score < 0);
}

static void search(fv_model *m, const char *dir, const fv_st *golden, const char *name, prompts *p)
{
    char which[1024];
    fv_st_info t;
    fv_gen_config *config;
    fv_gen_opt o;
    fv_err e;
    int32_t *want = integers(golden, name, &t);
    snprintf(which, sizeof which, "%s: %s", dir, name);
    ok(fv_gen_config_open(&config, NULL, dir, NULL, &e), which, &e);
    o = *fv_gen_config_options(config);
    set_options(&o, name);
    int64_t each = o.num_return_sequences, width = t.shape.d[1];
    /* all together, then one by one */
    for (int64_t alone = 0; alone <= (test_brief() ? 0 : p->n); alone++) {
        int64_t first = alone ? alone - 1 : 0, n = alone ? 1 : p->n;
        fv_generated out;
        ok(fv_generate(&out, device, m, (const int32_t *const *)p->ids + first, p->len + first, n,
                       &o, &e),
           which, &e);
        for (int64_t i = 0; i < n * each; i++)
            compare(which, &out.hyp[i], want + (first * each + i) * width, width);
        fv_generated_free(&out);
    }
    fv_gen_config_close(config);
    free(want);
}

/* Runs all searches of a case; returns how many. */
static int searches(const char *name)
{
    char path[512];
    int found = 0;
    fv_err e;
    fv_st *golden;
    fv_model *m = NULL;
    prompts p = {0};
    snprintf(path, sizeof path, "%s/%s/out.safetensors", CASES, name);
    ok(fv_st_open(&golden, NULL, path, &e), name, &e);
    snprintf(path, sizeof path, "%s/%s", CASES, name);
    for (int i = 0; i < fv_st_count(golden); i++) {
        fv_st_info t = fv_st_at(golden, i);
        if (strncmp(t.name, "sequences:", 10) || (test_brief() && found)) continue;
        if (!m) {
            ok(fv_model_open(&m, device, path, (fv_model_opt){0}, &e), name, &e);
            p = read_prompts(name);
        }
        search(m, path, golden, t.name, &p);
        found++;
    }
    free_prompts(&p);
    fv_model_free(m);
    fv_st_close(golden);
    return found;
}

static void it_generates_what_transformers_does(void **state)
{
    (void)state;
    int found = 0;
    DIR *d = opendir(CASES);
    assert_non_null(d);
    for (struct dirent *f; (f = readdir(d));)
        if (f->d_name[0] != '.') found += searches(f->d_name);
    closedir(d);
    assert_true(found >= 10);
}

/* A real model, and the text its own program writes. */
static void stories_are_told_as_they_were(void **state)
{
    (void)state;
    static const char dir[] = FOVEA_TESTS "/golden/stories260K";
    static const int32_t begin[] = {1};
    const int32_t *prompt = begin;
    int64_t one = 1;
    char *text, want[1024] = "";
    size_t len, n;
    fv_err e;
    fv_tok *tok;
    fv_model *m;
    fv_gen_config *config;
    fv_gen_opt o;
    fv_generated out;
    FILE *f = fopen(FOVEA_TESTS "/golden/stories260K/greedy.txt", "rb");
    assert_non_null(f);
    n = fread(want, 1, sizeof want - 1, f);
    fclose(f);
    while (n && want[n - 1] == '\n') want[--n] = 0;
    ok(fv_tok_open(&tok, NULL, dir, &e), dir, &e);
    ok(fv_model_open(&m, device, dir, (fv_model_opt){0}, &e), dir, &e);
    ok(fv_gen_config_open(&config, NULL, dir, NULL, &e), dir, &e);
    o = *fv_gen_config_options(config);
    o.max_new_tokens = 200;
    ok(fv_generate(&out, device, m, &prompt, &one, 1, &o, &e), dir, &e);
    assert_int_equal(out.hyp[0].n, 200);
    ok(fv_tok_decode(tok, &text, &len, out.hyp[0].ids, out.hyp[0].n, true, &e), dir, &e);
    assert_string_equal(text, want);
    fv_tok_free_text(tok, text, len);
    fv_generated_free(&out);
    fv_gen_config_close(config);
    fv_model_free(m);
    fv_tok_close(tok);
}

/* ---- tokens as they come ---- */

typedef struct heard {
    int32_t ids[2][32];
    int n[2], stop_after;
} heard;

static bool hear(void *user, int64_t source, int32_t token)
{
    heard *h = user;
    h->ids[source][h->n[source]++] = token;
    return h->n[source] != h->stop_after;
}

static fv_gen_opt open_with_options(const char *dir, fv_model **m, fv_gen_config **config)
{
    fv_err e;
    ok(fv_model_open(m, device, dir, (fv_model_opt){0}, &e), dir, &e);
    ok(fv_gen_config_open(config, NULL, dir, NULL, &e), dir, &e);
    return *fv_gen_config_options(*config);
}

static void tokens_are_told_as_they_come_and_can_be_the_last(void **state)
{
    (void)state;
    const char *dir = CASES "/gpt2-language";
    fv_model *m;
    fv_gen_config *config;
    fv_err e;
    fv_generated out;
    prompts p = read_prompts("gpt2-language");
    fv_gen_opt o = open_with_options(dir, &m, &config);
    o.max_new_tokens = 9;
    o.min_new_tokens = 5;
    o.token = hear;
    for (int stop = 0; stop <= 3; stop += 3) {
        heard h = {.stop_after = stop};
        o.user = &h;
        ok(fv_generate(&out, device, m, (const int32_t *const *)p.ids, p.len, 2, &o, &e), dir, &e);
        for (int i = 0; i < 2; i++) {
            assert_int_equal(out.hyp[i].n, h.n[i]);
            assert_memory_equal(out.hyp[i].ids, h.ids[i], (size_t)h.n[i] * sizeof(int32_t));
            if (stop) assert_int_equal(h.n[i], stop);
        }
        fv_generated_free(&out);
    }
    fv_gen_config_close(config);
    fv_model_free(m);
    free_prompts(&p);
}

/* ---- drawing ---- */

static fv_gen_opt defaults(void)
{
    fv_gen_opt o = {0};
    fv_fields_default(&o, fv_gen_fields);
    o.top_k = 0;
    return o;
}

/* The share of draws that each of 5 tokens gets, over evenly spread numbers. */
static void shares(double out[5], const fv_gen_opt *o)
{
    static const float score[5] = {0.0f, 2.0f, 1.0f, -1.0f, 1.5f};
    fv_candidate scratch[5];
    memset(out, 0, 5 * sizeof *out);
    for (int i = 0; i < 4000; i++)
        out[fv__sample_token(score, 5, o, (i + 0.5) / 4000, scratch)] += 1.0 / 4000;
}

static void near_shares(const char *what, const fv_gen_opt *o, const double want[5])
{
    double got[5], sum = 0;
    shares(got, o);
    for (int i = 0; i < 5; i++) sum += want[i];
    for (int i = 0; i < 5; i++)
        if (fabs(got[i] - want[i] / sum) > 1e-3)
            fail_msg("%s: token %d gets %g, expected %g", what, i, got[i], want[i] / sum);
}

static void draws_follow_the_distribution_and_its_cuts(void **state)
{
    (void)state;
    const double w[5] = {exp(0), exp(2), exp(1), exp(-1), exp(1.5)}; /* in order: 1, 4, 2, 0, 3 */
    fv_gen_opt o = defaults();
    near_shares("all", &o, w);
    o.temperature = 0.5f;
    near_shares("temperature", &o,
                (double[]){w[0] * w[0], w[1] * w[1], w[2] * w[2], w[3] * w[3], w[4] * w[4]});
    o = defaults();
    o.top_k = 2;
    near_shares("top_k", &o, (double[]){0, w[1], 0, 0, w[4]});
    o = defaults();
    o.top_p = 0.6f; /* the first holds 0.465, the first two 0.747 */
    near_shares("top_p", &o, (double[]){0, w[1], 0, 0, w[4]});
    o.top_k = 4;
    o.top_p = 0.7f;
    near_shares("top_k and top_p", &o, (double[]){0, w[1], 0, 0, w[4]});
    o = defaults();
    o.min_p = 0.3f; /* of the best: 1, 0.61, 0.37 */
    near_shares("min_p", &o, (double[]){0, w[1], w[2], 0, w[4]});
    o = defaults();
    o.typical_p =
        /* 1.28 is expected: 1.27 of the second is nearest and holds 0.28, then 1.77 of the third,
         * not the first */
        0.4f;
    near_shares("typical_p", &o, (double[]){0, 0, w[2], 0, w[4]});
}

static void no_numbers_draw_a_token_all_the_same(void **state)
{
    (void)state;
    const float score[][5] = {{NAN, NAN, NAN, NAN, NAN},
                              {NAN, NAN, 1, 0, 2},
                              {1, 0, INFINITY, NAN, 2}};
    const fv_gen_opt all = defaults();
    fv_gen_opt o[4] = {all, all, all, all};
    o[1].top_k = 2, o[2].top_p = 0.5f, o[3].min_p = 0.1f;
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 4; k++) {
            fv_candidate scratch[5];
            int32_t token = fv__sample_token(score[i], 5, &o[k], 0.5, scratch);
            assert_true(token >= 0 && token < 5);
        }
}

static void copies_of_a_prompt_draw_for_themselves(void **state)
{
    (void)state;
    const char *dir = CASES "/gpt2-language";
    fv_model *m;
    fv_gen_config *config;
    fv_err e;
    fv_generated a, b;
    prompts p = read_prompts("gpt2-language");
    fv_gen_opt o = open_with_options(dir, &m, &config);
    o.do_sample = true;
    o.num_return_sequences = 8;
    o.max_new_tokens = o.min_new_tokens = 12;
    ok(fv_generate(&a, device, m, (const int32_t *const *)p.ids, p.len, 1, &o, &e), dir, &e);
    ok(fv_generate(&b, device, m, (const int32_t *const *)p.ids, p.len, 1, &o, &e), dir, &e);
    int differ = 0;
    assert_int_equal(a.each, 8);
    for (int i = 0; i < 8; i++) {
        assert_int_equal(a.hyp[i].n, 12);
        assert_memory_equal(a.hyp[i].ids, b.hyp[i].ids, 12 * sizeof(int32_t));
        differ += memcmp(a.hyp[i].ids, a.hyp[0].ids, 12 * sizeof(int32_t)) != 0;
    }
    assert_true(differ >= 4);
    fv_generated_free(&a);
    fv_generated_free(&b);
    fv_gen_config_close(config);
    fv_model_free(m);
    free_prompts(&p);
}

/* ---- refusals ---- */

static void what_cannot_be_is_refused(void **state)
{
    (void)state;
    const char *dir = CASES "/gpt2-language";
    fv_model *m;
    fv_gen_config *config;
    fv_generated out;
    fv_err e;
    static const int32_t fine[] = {1, 2, 3}, outside[] = {1, 99};
    const int32_t *one = fine, *other = outside;
    int64_t three = 3, two = 2, none = 0;
    fv_gen_opt o = open_with_options(dir, &m, &config);
    assert_int_equal(fv_generate(&out, device, m, &other, &two, 1, &o, &e), FV_EARG);
    assert_non_null(strstr(e.text, "99"));
    assert_int_equal(fv_generate(&out, device, m, &one, &none, 1, &o, &e), FV_EARG);
    o.max_length = 3;
    assert_int_equal(fv_generate(&out, device, m, &one, &three, 1, &o, &e), FV_EARG);
    assert_non_null(strstr(e.text, "prompt"));
    o.max_length = 9;
    o.num_beams = 2;
    o.num_return_sequences = 3;
    for (int sample = 0; sample < 2; sample++) {
        o.do_sample = sample;
        assert_int_equal(fv_generate(&out, device, m, &one, &three, 1, &o, &e), FV_EARG);
        assert_non_null(strstr(e.text, "3 hypotheses asked of 2 beams"));
    }
    fv_model_free(m);
    fv_gen_config_close(config);
    dir = CASES "/gpt2";
    ok(fv_model_open(&m, device, dir, (fv_model_opt){0}, &e), dir, &e);
    o = defaults();
    assert_int_equal(fv_generate(&out, device, m, &one, &three, 1, &o, &e), FV_EMISSING);
    assert_non_null(strstr(e.text, "GPT2Model"));
    fv_model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_generates_what_transformers_does),
        cmocka_unit_test(stories_are_told_as_they_were),
        cmocka_unit_test(tokens_are_told_as_they_come_and_can_be_the_last),
        cmocka_unit_test(draws_follow_the_distribution_and_its_cuts),
        cmocka_unit_test(no_numbers_draw_a_token_all_the_same),
        cmocka_unit_test(copies_of_a_prompt_draw_for_themselves),
        cmocka_unit_test(what_cannot_be_is_refused),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
