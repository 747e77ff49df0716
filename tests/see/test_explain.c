/* test_explain.c - explanations against torch and networkx (tests/golden/explain.json, made by
 * tools/golden/explain.py), and what must hold of any model. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "fovea/author/config.h"
#include "fovea/author/explain.h"
#include "fovea/fovea.h"
#include "helper/device.h"
#include "see/explain.h"

#define GOLDEN FOVEA_TESTS "/golden/"
#define PHOTO GOLDEN "images/rgb.png"

static fv_explainer *opened(const char *folder, fv_explain_opt opt)
{
    char path[512];
    fv_explainer *x;
    fv_err e;
    snprintf(path, sizeof path, GOLDEN "%s", folder);
    if (fv_explainer_open(&x, device, path, opt, &e)) fail_msg("%s: %s", folder, e.text);
    return x;
}

static const fv_explained *explained(fv_explainer *x, const char *text)
{
    const fv_explained *out;
    fv_err e;
    if (fv_explain(x, text, NULL, &out, &e)) fail_msg("%s: %s", text, e.text);
    return out;
}

/* Scores of all methods, token by token. */
static void test_golden(void **state)
{
    (void)state;
    fv_json *j;
    fv_err e;
    assert_int_equal(fv_json_open(&j, NULL, GOLDEN "explain.json", &e), FV_OK);
    for (int i = 0; i < fv_json_count(j, "cases"); i++) {
        char key[96];
        double want;
        snprintf(key, sizeof key, "cases.%d.folder", i);
        fv_explainer *x = opened(fv_json_text(j, key), (fv_explain_opt){0});
        snprintf(key, sizeof key, "cases.%d.text", i);
        const char *text = fv_json_text(j, key);
        bool image = !strncmp(text, "images/", 7);
        const fv_explained *r = explained(x, image ? PHOTO : text);
        snprintf(key, sizeof key, "cases.%d.log_p_blank", i);
        assert_true(fv_json_number(j, key, &want));
        assert_true(fabs(want - r->log_p_blank) < 1e-5);
        for (int m = 0; m < FV_EXPLAIN_METHODS; m++)
            for (int64_t t = 0; t < r->n; t++) {
                snprintf(key, sizeof key, "cases.%d.%s.%d", i,
                         fv_explain_name((fv_explain_method)m), (int)t);
                assert_true(fv_json_number(j, key, &want));
                if (!(fabs(want - (double)r->score[m][t]) < 1e-5))
                    fail_msg("%s: %.9g", key, (double)r->score[m][t]);
            }
        fv_explainer_close(x);
    }
    fv_json_close(j);
}

/* Completeness: integrated gradients add up to what the blanks take away.  A causal model reads its
 * prediction from the last token alone, so its attention is a row of the last layer. */
static void test_next_token(void **state)
{
    (void)state;
    fv_explainer *x = opened("stories260K", (fv_explain_opt){.steps = 256, .heads = true});
    const fv_explained *r = explained(x, "Once upon a time there was a little");
    double sum = 0, share = 0;
    for (int64_t t = 0; t < r->n; t++) {
        sum += (double)r->score[FV_EXPLAIN_INTEGRATED][t];
        share += (double)r->score[FV_EXPLAIN_ATTENTION][t];
    }
    assert_true(fabs(sum - (r->log_p - r->log_p_blank)) < 0.02 * fabs(r->log_p_blank));
    assert_true(fabs(share - 1) < 1e-4);
    assert_true(r->layers > 1 && r->heads > 1 && r->head);
    int64_t idle = 0;
    for (int64_t i = 0; i < r->layers * r->heads; i++) idle += r->head[i] == 0;
    assert_int_equal(idle, 0);
    fv_explainer_close(x);
}

/* Blanking no token is the prediction itself, blanking all the blank text; insertion ends where
 * deletion begins. */
static void test_curves(void **state)
{
    (void)state;
    fv_explainer *x = opened("tasks/classify-bert", (fv_explain_opt){.curves = true});
    const fv_explained *r = explained(x, "the cat sat on the mat");
    const fv_explain_set *s = fv_explain_set_of(x);
    int last = FV_EXPLAIN_POINTS - 1;
    for (int m = 0; m <= FV_EXPLAIN_METHODS; m++) {
        assert_true(fabs(s->deletion[m][0] - exp(r->log_p)) < 1e-6);
        assert_true(fabs(s->deletion[m][last] - exp(r->log_p_blank)) < 1e-6);
        assert_true(fabs(s->insertion[m][0] - s->deletion[m][last]) < 1e-6);
        assert_true(fabs(s->insertion[m][last] - s->deletion[m][0]) < 1e-6);
    }
    explained(x, "it was good");
    assert_int_equal(s->texts, 2);
    fv_explainer_close(x);
}

/* Patches are tokens: integrated gradients add up, and the page holds the image. */
static void test_image(void **state)
{
    (void)state;
    fv_err e;
    const char *text;
    size_t n;
    fv_explain_opt opt = {.steps = 256, .heads = true, .curves = true};
    fv_explainer *x = opened("models/vit-classify", opt);
    const fv_explained *r = explained(x, PHOTO), *none;
    double sum = 0;
    assert_int_equal(r->n, 10);
    assert_string_equal(r->token[9], "2,2");
    for (int64_t t = 0; t < r->n; t++) {
        assert_int_equal(r->special[t], t == 0);
        sum += (double)r->score[FV_EXPLAIN_INTEGRATED][t];
    }
    assert_true(fabs(sum - (r->log_p - r->log_p_blank)) < 1e-3);
    const fv_explain_set *s = fv_explain_set_of(x);
    assert_true(fabs(s->deletion[0][FV_EXPLAIN_POINTS - 1] - exp(r->log_p_blank)) < 1e-6);
    assert_int_equal(fv_explain_report(x, "html", &text, &n, &e), FV_OK);
    assert_non_null(strstr(text, "data:image/bmp;base64,Qk"));
    assert_int_equal(fv_explain_report(x, "json", &text, &n, &e), FV_OK);
    assert_non_null(strstr(text, "\"file\": "));
    assert_int_equal(fv_explain(x, PHOTO, PHOTO, &none, &e), FV_EARG);
    assert_int_not_equal(fv_explain(x, GOLDEN "none.png", NULL, &none, &e), FV_OK);
    assert_non_null(strstr(e.text, "none.png"));
    fv_explainer_close(x);
    opt.blank = "[MASK]";
    assert_int_equal(fv_explainer_open(&x, device, GOLDEN "models/vit-classify", opt, &e), FV_EARG);
}

/* As scipy.stats.spearmanr has it of magnitudes, ties among them. */
static void test_ranks(void **state)
{
    (void)state;
    const float a[] = {1, -2, 3, 3, 0}, b[] = {2, 1, 4, -5, 0};
    const uint8_t skip[] = {0, 0, 0, 0, 1};
    double order[10];
    assert_true(fabs(fv__explain_rank(a, b, NULL, 5, order) - 0.872081599) < 1e-8);
    assert_true(fabs(fv__explain_rank(a, b, skip, 5, order) - 0.737864787) < 1e-8);
    const float same[] = {1, 1, 1, 1, 1};
    assert_true(isnan(fv__explain_rank(a, same, NULL, 5, order)));
}

/* Two ways of 0.5 each that meet in an edge of 0.25 below, and a way round it. */
static void test_flow(void **state)
{
    (void)state;
    const float cap[] = {0.25f, 0.75f, 0, 1, /* layer 0 */ 0.5f, 0.5f, 0, 1};
    const double top[] = {1, 0};
    float out[2];
    fv_err e;
    assert_int_equal(fv__explain_flow(NULL, cap, 2, 2, top, out, &e), FV_OK);
    assert_true(fabsf(out[0] - 0.25f) < 1e-6f);
    assert_true(fabsf(out[1] - 1) < 1e-6f);
}

static void test_reports(void **state)
{
    (void)state;
    fv_explainer *x = opened("tasks/classify-bert",
                             (fv_explain_opt){.heads = true, .curves = true});
    const char *text;
    size_t n;
    fv_err e;
    fv_json *j;
    assert_int_equal(fv_explain_report(x, "text", &text, &n, &e), FV_ESTATE);
    explained(x, "the <cat> & \"mat\"");
    assert_int_equal(fv_explain_report(x, "json", &text, &n, &e), FV_OK);
    if (fv_json_parse(&j, NULL, text, "report", &e)) fail_msg("%s", e.text);
    assert_int_equal(fv_json_count(j, "curves"), FV_EXPLAIN_METHODS + 1);
    assert_string_equal(fv_json_text(j, "text"), "the <cat> & \"mat\"");
    fv_json_close(j);
    assert_int_equal(fv_explain_report(x, "html", &text, &n, &e), FV_OK);
    assert_non_null(strstr(text, "&lt;cat> &amp;"));
    assert_int_equal(fv_explain_report(x, "text", &text, &n, &e), FV_OK);
    assert_int_equal(fv_explain_report(x, "xml", &text, &n, &e), FV_EARG);
    assert_int_equal(fv_explain_save(x, "explained.txt", &e), FV_EARG);
    fv_explainer_close(x);
}

/* Each with a sentence, and nothing left open. */
static void test_refused(void **state)
{
    (void)state;
    fv_explainer *x;
    const fv_explained *r;
    fv_err e;
    const char *bert = GOLDEN "tasks/classify-bert";
    assert_int_equal(fv_explainer_open(&x, device, GOLDEN "tasks/tag-bert", (fv_explain_opt){0},
                                       &e),
                     FV_EMISSING);
    assert_int_equal(fv_explainer_open(&x, device, bert, (fv_explain_opt){.label = "nothing"}, &e),
                     FV_EARG);
    assert_int_equal(fv_explainer_open(&x, device, bert, (fv_explain_opt){.blank = "[GAP]"}, &e),
                     FV_EARG);
    x = opened("tasks/classify-bert", (fv_explain_opt){.label = "1"});
    assert_int_equal(fv_explain(x, "", NULL, &r, &e), FV_EARG);
    fv_explainer_close(x);
    x = opened("tasks/classify-bert", (fv_explain_opt){.label = "99"});
    assert_int_equal(fv_explain(x, "the cat", NULL, &r, &e), FV_EARG);
    fv_explainer_close(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),  cmocka_unit_test(test_next_token),
        cmocka_unit_test(test_curves),  cmocka_unit_test(test_image),
        cmocka_unit_test(test_ranks),   cmocka_unit_test(test_flow),
        cmocka_unit_test(test_reports), cmocka_unit_test(test_refused)};
    return cmocka_run_group_tests(tests, open_device, close_device);
}
