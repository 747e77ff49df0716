/* test_tasks.c - embed, classify, fill, tag and answer against transformers' pipelines and
 * sentence-transformers.
 *
 * A case is a folder of tests/golden/tasks, made by tools/golden/tasks.py: a tiny model with its
 * tokenizer, and expect.json with texts and results.  Where $FOVEA_MINILM names the directory of a
 * real all-MiniLM-L6-v2, what is known of its sentences is checked too. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fovea/author/task.h"
#include "fovea/fovea.h"
#include "fovea/task.h"
#include "fovea/author/config.h"
#include "helper/device.h"

#define CASES FOVEA_TESTS "/golden/tasks/"
#define MOST 16 /* texts of a case */

typedef struct golden {
    const char *name;
    fv_task *task;
    fv_json *expect;
    fv_text texts[MOST];
    int64_t n;
} golden;

static void ok(const golden *g, fv_status st, const fv_err *e)
{
    if (st) fail_msg("%s: %s", g->name, e->text);
}

static const char *at(const char *fmt, ...) FV_PRINTF(1, 2);
static const char *at(const char *fmt, ...)
{
    static char place[16][96];
    static int turn;
    va_list ap;
    va_start(ap, fmt);
    turn = (turn + 1) % 16;
    vsnprintf(place[turn], sizeof place[turn], fmt, ap);
    va_end(ap);
    return place[turn];
}

static double number(const golden *g, const char *place)
{
    double x = NAN;
    if (!fv_json_number(g->expect, place, &x)) fail_msg("%s: no number %s", g->name, place);
    return x;
}

static const char *word(const golden *g, const char *place)
{
    const char *s = fv_json_text(g->expect, place);
    if (!s) fail_msg("%s: no text %s", g->name, place);
    return s;
}

static golden open_case(const char *name, fv_job job)
{
    golden g = {.name = name};
    fv_err e;
    char path[512];
    snprintf(path, sizeof path, CASES "%s", name);
    ok(&g, fv_task_open(&g.task, device, path, job, (fv_model_opt){0}, &e), &e);
    snprintf(path, sizeof path, CASES "%s/expect.json", name);
    ok(&g, fv_json_open(&g.expect, NULL, path, &e), &e);
    int n = fv_json_count(g.expect, "texts");
    for (g.n = 0; g.n < n && g.n < MOST; g.n++) {
        const char *s = word(&g, at("texts.%d", (int)g.n));
        g.texts[g.n] = (fv_text){.s = s, .n = strlen(s)};
    }
    return g;
}

static void close_case(golden *g)
{
    fv_task_close(g->task);
    fv_json_close(g->expect);
}

static void near(const golden *g, const char *what, double got, double want)
{
    if (!(fabs(got - want) <= 2e-5))
        fail_msg("%s: %s is %.8f, expected %.8f", g->name, what, got, want);
}

/* ---- embed ---- */

static void vectors_are_those_of_sentence_transformers(void **state)
{
    (void)state;
    static const char *const cases[] = {"embed-mean",         "embed-cls",   "embed-max",
                                        "embed-lasttoken",    "embed-root",  "embed-dense",
                                        "embed-weightedmean", "embed-prompt"};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        golden g = open_case(cases[k], FV_JOB_EMBED);
        fv_err e;
        float x[MOST * 16], alone[16];
        int width = strcmp(cases[k], "embed-dense") ? 16 : 6;
        assert_int_equal(fv_task_width(g.task), width);
        assert_int_equal(fv_task_max_len(g.task), 20);
        ok(&g, fv_task_embed(g.task, g.texts, g.n, (fv_embed_opt){0}, x, &e), &e);
        for (int i = 0; i < g.n; i++)
            for (int j = 0; j < width; j++)
                near(&g, "a vector", (double)x[i * width + j],
                     number(&g, at("results.%d.%d", i, j)));
        for (int i = 0; i < g.n; i++) { /* the same bits in any company, on the CPU */
            ok(&g, fv_task_embed(g.task, &g.texts[i], 1, (fv_embed_opt){0}, alone, &e), &e);
            for (int j = 0; j < width; j++)
                near(&g, "a vector alone", (double)alone[j], (double)x[i * width + j]);
            if (test_on_cpu()) assert_memory_equal(alone, x + i * width, (size_t)width * sizeof *x);
        }
        close_case(&g);
    }
}

/* ---- classify ---- */

static void same_labels(const golden *g, const float *scores, const char *place)
{
    for (int k = 0; k < fv_task_labels(g->task); k++) {
        const char *label = word(g, at("%s.%d.label", place, k));
        int i = 0;
        while (strcmp(fv_task_label(g->task, i), label)) i++;
        near(g, label, (double)scores[i], number(g, at("%s.%d.score", place, k)));
    }
}

static void labels_are_those_of_the_pipeline(void **state)
{
    (void)state;
    static const char *const cases[] = {"classify-bert", "classify-roberta", "classify-many"};
    for (size_t k = 0; k < 3; k++) {
        golden g = open_case(cases[k], FV_JOB_CLASSIFY);
        fv_err e;
        float scores[MOST * 3];
        int labels = fv_task_labels(g.task);
        assert_int_equal(fv_task_many(g.task), k == 2);
        ok(&g, fv_task_classify(g.task, g.texts, g.n, scores, &e), &e);
        for (int i = 0; i < g.n; i++) same_labels(&g, scores + i * labels, at("results.%d", i));
        int pairs = fv_json_count(g.expect, "pairs");
        assert_true(pairs > 0 && pairs <= MOST);
        for (int i = 0; i < pairs; i++) {
            const char *a = word(&g, at("pairs.%d.0", i)), *b = word(&g, at("pairs.%d.1", i));
            g.texts[i] = (fv_text){.s = a, .n = strlen(a), .pair = b, .pair_n = strlen(b)};
        }
        ok(&g, fv_task_classify(g.task, g.texts, pairs, scores, &e), &e);
        for (int i = 0; i < pairs; i++)
            same_labels(&g, scores + i * labels, at("pair_results.%d", i));
        close_case(&g);
    }
}

/* ---- fill ---- */

static void words_are_those_of_the_pipeline(void **state)
{
    (void)state;
    static const char *const cases[] = {"fill-bert", "fill-roberta"};
    for (size_t c = 0; c < 2; c++) {
        golden g = open_case(cases[c], FV_JOB_FILL);
        fv_err e;
        fv_mask_found *found;
        int64_t n, len;
        ok(&g, fv_task_fill(g.task, g.texts, g.n, 4, &found, &n, &e), &e);
        assert_int_equal(n, 3);
        for (int i = 0; i < n; i++) {
            int mask = i && found[i].text == found[i - 1].text;
            bool alone = fv_json_count(g.expect, at("results.%d", (int)found[i].text)) == 1;
            for (int k = 0; k < 4; k++) {
                const char *place = at("results.%d.%d.%d", (int)found[i].text, mask, k);
                char *line;
                size_t bytes;
                assert_int_equal(found[i].top[k].id, (int)number(&g, at("%s.token", place)));
                near(&g, "a word", (double)found[i].top[k].score,
                     number(&g, at("%s.score", place)));
                const int32_t *ids = fv_task_filled(g.task, &found[i], found[i].top[k].id, &len);
                ok(&g, fv_tok_decode(fv_task_tok(g.task), &line, &bytes, ids, len, alone, &e), &e);
                assert_string_equal(line, word(&g, at("%s.sequence", place)));
                fv_tok_free_text(fv_task_tok(g.task), line, bytes);
            }
        }
        fv_text none = {.s = "no mask here", .n = 12};
        assert_int_equal(fv_task_fill(g.task, &none, 1, 4, &found, &n, &e), FV_EARG);
        assert_non_null(strstr(e.text, fv_task_mask(g.task)));
        close_case(&g);
    }
}

/* ---- tag ---- */

static void same_entities(const golden *g, fv_join join, const char *results)
{
    fv_err e;
    fv_entity *found;
    int64_t n, done = 0;
    ok(g, fv_task_tag(g->task, g->texts, g->n, join, &found, &n, &e), &e);
    for (int i = 0; i < g->n; i++) {
        int want = fv_json_count(g->expect, at("%s.%d", results, i));
        for (int k = 0; k < want; k++, done++) {
            const fv_entity *x = &found[done];
            const char *place = at("%s.%d.%d", results, i, k);
            assert_true(done < n);
            assert_int_equal(x->text, i);
            assert_string_equal(x->label, word(g, at("%s.entity_group", place)));
            assert_int_equal(x->from, (int64_t)number(g, at("%s.start", place)));
            assert_int_equal(x->to, (int64_t)number(g, at("%s.end", place)));
            near(g, x->label, (double)x->score, number(g, at("%s.score", place)));
            assert_true(x->s >= g->texts[i].s && x->s + x->n <= g->texts[i].s + g->texts[i].n);
        }
    }
    assert_int_equal(done, n);
    assert_true(n > 5);
}

static void entities_are_those_of_the_pipeline(void **state)
{
    (void)state;
    static const char *const cases[] = {"tag-bert", "tag-roberta"};
    for (size_t c = 0; c < 2; c++) {
        golden g = open_case(cases[c], FV_JOB_TAG);
        same_entities(&g, FV_JOIN_SIMPLE, "results");
        same_entities(&g, FV_JOIN_FIRST, "first_results");
        close_case(&g);
    }
}

/* ---- answer ---- */

static void same_answers(const golden *g, const fv_answer *found, int64_t n, const char *results,
                         const char *context)
{
    int64_t done = 0;
    for (int i = 0; i < 2; i++) {
        int want = fv_json_count(g->expect, at("%s.%d", results, i));
        for (int k = 0; k < want; k++, done++) {
            const fv_answer *x = &found[done];
            const char *place = at("%s.%d.%d", results, i, k),
                       *text = word(g, at("%s.answer", place));
            assert_true(done < n);
            assert_int_equal(x->text, i);
            near(g, text, (double)x->score, number(g, at("%s.score", place)));
            assert_int_equal(x->from, (int64_t)number(g, at("%s.start", place)));
            assert_int_equal(x->to, (int64_t)number(g, at("%s.end", place)));
            assert_int_equal(x->n, strlen(text));
            assert_memory_equal(x->s, text, x->n);
            assert_true(x->s >= context && x->s + x->n <= context + strlen(context));
        }
    }
    assert_int_equal(done, n);
    assert_true(n > 0);
}

static void answers_are_those_of_the_pipeline(void **state)
{
    (void)state;
    static const char *const cases[] = {"answer-bert", "answer-roberta"};
    for (size_t c = 0; c < 2; c++) {
        golden g = open_case(cases[c], FV_JOB_ANSWER);
        fv_err e;
        fv_answer *found;
        int64_t n;
        const char *context = word(&g, "context.0"), *shorter = word(&g, "none_context");
        fv_text asked[2];
        for (int i = 0; i < 2; i++) {
            const char *q = word(&g, at("question.%d", i));
            asked[i] =
                (fv_text){.s = q, .n = strlen(q), .pair = context, .pair_n = strlen(context)};
        }
        fv_answer_opt windows = {.k = 5, .window = 40, .stride = 8};
        ok(&g, fv_task_answer(g.task, asked, 2, windows, &found, &n, &e), &e);
        same_answers(&g, found, n, "results", context);

        for (int i = 0; i < 2; i++) asked[i].pair = shorter, asked[i].pair_n = strlen(shorter);
        fv_answer_opt none = {.k = 3, .longest = 4, .window = 48, .or_none = true};
        ok(&g, fv_task_answer(g.task, asked, 2, none, &found, &n, &e), &e);
        same_answers(&g, found, n, "none_results", shorter);

        asked[0].pair_n = 0;
        assert_int_equal(fv_task_answer(g.task, asked, 1, none, &found, &n, &e), FV_EARG);
        none.window = 8;
        assert_int_equal(fv_task_answer(g.task, asked + 1, 1, none, &found, &n, &e), FV_EARG);
        assert_non_null(strstr(e.text, "window"));
        close_case(&g);
    }
}

/* ---- refusals, and the real one ---- */

static void a_model_for_another_job_is_refused(void **state)
{
    (void)state;
    fv_task *t;
    fv_err e;
    assert_int_equal(fv_task_open(&t, device, CASES "tag-bert", FV_JOB_FILL, (fv_model_opt){0}, &e),
                     FV_EARG);
    assert_null(t);
    assert_non_null(strstr(e.text, "BertForTokenClassification"));
    assert_int_not_equal(fv_task_open(&t, device, CASES "nowhere", FV_JOB_FILL, (fv_model_opt){0},
                                      &e),
                         FV_OK);
}

/* Any encoder gives vectors, whatever head stands on it and whether or not its file has a
 * pooler. */
static void an_encoder_is_taken_from_under_its_head(void **state)
{
    (void)state;
    static const char *const cases[] = {"fill-bert", "tag-roberta", "classify-bert",
                                        "answer-roberta"};
    static const fv_dtype weights[] = {FV_F32, FV_BF16, FV_Q8, FV_I8};
    for (size_t i = 0; i < (test_on_cpu() ? 4 : 3); i++) { /* int8 is the CPU's alone */
        golden g = {.name = cases[i]};
        char path[512];
        fv_err e;
        float x[16];
        double length = 0;
        fv_text text = {.s = "the cat", .n = 7};
        snprintf(path, sizeof path, CASES "%s", cases[i]);
        ok(&g,
           fv_task_open(&g.task, device, path, FV_JOB_EMBED, (fv_model_opt){.weights = weights[i]},
                        &e),
           &e);
        ok(&g, fv_task_embed(g.task, &text, 1, (fv_embed_opt){0}, x, &e), &e);
        for (int j = 0; j < 16; j++) length += (double)x[j] * (double)x[j];
        near(&g, "the length", length, 1);
        fv_task_close(g.task);
    }
}

static void a_real_encoder_knows_what_belongs_together(void **state)
{
    (void)state;
    const char *dir = getenv("FOVEA_MINILM");
    if (!dir) skip();
    static const char *const lines[] = {"A man is eating food.",
                                        "A man is eating a piece of bread.",
                                        "The girl is carrying a baby."};
    golden g = {.name = dir};
    fv_err e;
    fv_text texts[3];
    static float x[3 * 384];
    for (int i = 0; i < 3; i++) texts[i] = (fv_text){.s = lines[i], .n = strlen(lines[i])};
    ok(&g, fv_task_open(&g.task, device, dir, FV_JOB_EMBED, (fv_model_opt){0}, &e), &e);
    assert_int_equal(fv_task_width(g.task), 384);
    assert_int_equal(fv_task_max_len(g.task), 256);
    ok(&g, fv_task_embed(g.task, texts, 3, (fv_embed_opt){0}, x, &e), &e);
    static const int pairs[3][2] = {{0, 1}, {0, 2}, {1, 2}};
    static const double cosines[3] = {0.7553371, -0.1049586, -0.0610172};
    for (int k = 0; k < 3; k++) {
        double product = 0;
        for (int j = 0; j < 384; j++)
            product += (double)x[pairs[k][0] * 384 + j] * (double)x[pairs[k][1] * 384 + j];
        near(&g, "a cosine", product, cosines[k]);
    }
    fv_task_close(g.task);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vectors_are_those_of_sentence_transformers),
        cmocka_unit_test(labels_are_those_of_the_pipeline),
        cmocka_unit_test(words_are_those_of_the_pipeline),
        cmocka_unit_test(entities_are_those_of_the_pipeline),
        cmocka_unit_test(answers_are_those_of_the_pipeline),
        cmocka_unit_test(a_model_for_another_job_is_refused),
        cmocka_unit_test(an_encoder_is_taken_from_under_its_head),
        cmocka_unit_test(a_real_encoder_knows_what_belongs_together),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
