/* test_serve_tasks.c - models with heads of their own behind the server: what transformers gives,
 * by the golden files of the tasks. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include <cmocka.h>

#include "helper/http.h"

#define TASKS FOVEA_TESTS "/golden/tasks/"

static int start(void **state)
{
    scratch_open(state);
    serve_start("-m '%sclassify-bert' -m '%stag-bert' -m '%sanswer-bert' -m '%sfill-bert' -m "
                "'%sembed-mean' -m marian='%s/golden/translate' -m rank='%sclassify-roberta' "
                "--quiet",
                TASKS, TASKS, TASKS, TASKS, TASKS, FOVEA_TESTS, TASKS);
    return 0;
}

static json_t *golden(const char *name)
{
    char path[1024];
    snprintf(path, sizeof path, "%s%s/expect.json", TASKS, name);
    json_t *j = json_load_file(path, 0, NULL);
    assert_non_null(j);
    return j;
}

/* Posts {"model": name, key: value} and what else is given. */
static json_t *ask(const char *path, const char *model, const char *key, const json_t *value,
                   json_t *more)
{
    json_t *body = json_pack("{s:s, s:O}", "model", model, key, value);
    if (more) json_object_update(body, more);
    json_decref(more);
    char *text = json_dumps(body, 0);
    json_t *j = post(path, text);
    free(text);
    json_decref(body);
    return j;
}

static void near(double got, double want)
{
    if (fabs(got - want) > 2e-5) fail_msg("%.8f, expected %.8f", got, want);
}

static void texts_get_labels(void **state)
{
    (void)state;
    json_t *g = golden("classify-bert"),
           *j = ask("/v1/classify", "classify-bert", "input", at(g, "texts"), NULL);
    for (int i = 0; i < 6; i++)
        for (int k = 0; k < 3; k++) {
            char want[64], got[64];
            snprintf(want, sizeof want, "results.%d.%d.label", i, k);
            snprintf(got, sizeof got, "data.%d.labels.%d.label", i, k);
            assert_string_equal(text_at(j, got), text_at(g, want));
            snprintf(want, sizeof want, "results.%d.%d.score", i, k);
            snprintf(got, sizeof got, "data.%d.labels.%d.score", i, k);
            near(number_at(j, got), number_at(g, want));
        }
    json_decref(j);
    json_decref(g);
}

static void texts_get_entities(void **state)
{
    (void)state;
    json_t *g = golden("tag-bert"), *j = ask("/v1/tag", "tag-bert", "input", at(g, "texts"),
                                             json_pack("{s:s}", "join", "simple"));
    assert_int_equal(json_array_size(at(j, "data")), 6);
    assert_string_equal(text_at(j, "data.0.entities.0.label"), "LOC");
    assert_true(number_at(j, "data.0.entities.0.score") > 0);
    json_decref(j);
    json_decref(g);
}

static void questions_get_answers(void **state)
{
    (void)state;
    json_t *g = golden("answer-bert"),
           *j = ask("/v1/answer", "answer-bert", "question", at(g, "question.0"),
                    json_pack("{s:O, s:i}", "context", at(g, "context.0"), "top", 2));
    assert_int_equal(json_array_size(at(j, "answers")), 2);
    double from = number_at(j, "answers.0.from"), to = number_at(j, "answers.0.to");
    assert_true(to > from);
    assert_true(number_at(j, "answers.0.score") >= number_at(j, "answers.1.score"));
    json_decref(j);
    json_decref(g);
}

static void masks_get_words(void **state)
{
    (void)state;
    json_t *g = golden("fill-bert"),
           *j = ask("/v1/fill", "fill-bert", "input", at(g, "texts"), json_pack("{s:i}", "top", 4));
    for (int k = 0; k < 4; k++) {
        char want[64], got[64];
        snprintf(want, sizeof want, "results.0.0.%d.token_str", k);
        snprintf(got, sizeof got, "data.0.masks.0.words.%d.token", k);
        assert_string_equal(text_at(j, got), text_at(g, want));
        snprintf(want, sizeof want, "results.0.0.%d.score", k);
        snprintf(got, sizeof got, "data.0.masks.0.words.%d.score", k);
        near(number_at(j, got), number_at(g, want));
    }
    assert_int_equal(json_array_size(at(j, "data.1.masks")), 2);
    json_decref(j);
    json_decref(g);
}

static void texts_get_vectors(void **state)
{
    (void)state;
    json_t *g = golden("embed-mean"),
           *j = ask("/v1/embeddings", "embed-mean", "input", at(g, "texts"), NULL);
    for (int i = 0; i < 6; i++)
        for (int k = 0; k < 16; k++) {
            char want[64], got[64];
            snprintf(want, sizeof want, "results.%d.%d", i, k);
            snprintf(got, sizeof got, "data.%d.embedding.%d", i, k);
            near(number_at(j, got), number_at(g, want));
        }
    json_decref(j);
    json_decref(g);
}

static void lines_are_translated(void **state)
{
    (void)state;
    char path[1024];
    snprintf(path, sizeof path, "%s/golden/translate/lines.txt", FOVEA_TESTS);
    size_t n;
    char *lines = slurp(path, &n), *first = strndup(lines, strcspn(lines, "\n"));
    json_t *text = json_string(first);
    snprintf(path, sizeof path, "%s/golden/translate/expected.jsonl", FOVEA_TESTS);
    char *expected = slurp(path, &n);
    expected[strcspn(expected, "\n")] = 0;
    json_t *want = json_loads(expected, 0, NULL);
    json_t *j = ask("/v1/translate", "marian", "input", text,
                    json_pack("{s:i, s:i, s:b}", "num_beams", 4, "n", 3, "attention", 1));
    assert_string_equal(text_at(j, "data.0.text"), text_at(want, "texts.0"));
    assert_string_equal(text_at(j, "data.0.alternatives.1.text"), text_at(want, "texts.2"));
    near(number_at(j, "data.0.attention.1.2"), number_at(want, "attention.1.2"));
    json_decref(j);
    json_decref(want);
    j = ask("/v1/attention", "marian", "input", text,
            json_pack("{s:s, s:s, s:{s:[i], s:[i]}}", "target", "a dog", "kind", "cross",
                      "attention", "layers", 0, "heads", 0));
    assert_string_equal(text_at(j, "kind"), "cross");
    double sum = 0;
    for (size_t i = 0; i < json_array_size(at(j, "weights.0.0.0")); i++)
        sum += json_number_value(json_array_get(at(j, "weights.0.0.0"), i));
    near(sum, 1);
    json_decref(j);
    json_decref(text);
    free(expected);
    free(first);
    free(lines);
}

static void what_a_model_cannot_is_refused(void **state)
{
    (void)state;
    http_refused(400, "does not generate", "/v1/completions",
                 "{\"model\":\"tag-bert\",\"prompt\":\"a\"}");
    http_refused(400, "ForMaskedLM", "/v1/fill", "{\"model\":\"tag-bert\",\"input\":\"a\"}");
    http_refused(400, "one or two labels", "/v1/rerank",
                 "{\"model\":\"classify-bert\",\"query\":\"a\",\"documents\":[\"b\"]}");
    http_refused(400, "a question and a context", "/v1/answer",
                 "{\"model\":\"answer-bert\",\"question\":\"a\"}");
    http_refused(400, "[MASK]", "/v1/fill", "{\"model\":\"fill-bert\",\"input\":\"none\"}");
    json_t *j = post("/v1/models", NULL);
    assert_string_equal(text_at(j, "data.5.tasks.0"), "translate");
    json_decref(j);
    j = post("/v1/attention", "{\"model\":\"classify-bert\",\"input\":\"a cat\",\"attention\":"
                              "{\"layers\":0,\"heads\":0}}");
    assert_string_equal(text_at(j, "kind"), "encoder");
    json_decref(j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_get_labels),
        cmocka_unit_test(texts_get_entities),
        cmocka_unit_test(questions_get_answers),
        cmocka_unit_test(masks_get_words),
        cmocka_unit_test(texts_get_vectors),
        cmocka_unit_test(lines_are_translated),
        cmocka_unit_test(what_a_model_cannot_is_refused),
    };
    return cmocka_run_group_tests(tests, start, serve_close);
}
