/* test_serve_runs.c - trainings that a server shows: their logs, and their checkpoints asked like
 * any other model, whichever of them are open. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "helper/http.h"
#include "helper/program.h"

#define STORIES FOVEA_TESTS "/golden/stories260K"
#define AT "runs/one/checkpoints/step-"

/* Steps 9, 20 and 100 are whole; 30 is being written, and 40 has lost its manifest. */
static int start(void **state)
{
    static const char *const steps[] = {"9", "20", "100", "30.tmp", "40"};
    scratch_open(state);
    for (int i = 0; i < 5; i++) {
        succeeded(sh("mkdir -p " AT "%s && cp '%s'/* " AT "%s", steps[i], STORIES, steps[i]));
        if (i < 4) succeeded(sh("echo '{}' > " AT "%s/MANIFEST.json", steps[i]));
    }
    scratch_text("runs/one/train.jsonl", "{\"event\":\"train\",\"step\":9,\"loss\":2.5}\n"
                                         "{\"event\":\"train\",\"step\":20,\"lo");
    serve_start("-m plain='%s' --runs runs --quiet", STORIES);
    return 0;
}

static void logs_and_steps_are_listed(void **state)
{
    (void)state;
    json_t *j = post("/v1/runs", NULL);
    assert_string_equal(text_at(j, "data.0.id"), "one");
    json_decref(j);
    j = post("/v1/runs/one", NULL);
    assert_int_equal(json_array_size(at(j, "lines")), 1); /* the second is not whole */
    assert_true(number_at(j, "lines.0.loss") == 2.5);
    char *steps = json_dumps(at(j, "checkpoints"), JSON_COMPACT);
    assert_string_equal(steps, "[9,20,100]");
    free(steps);
    json_decref(j);
}

/* More of them than stay open, again and again: each gives what the same model gives. */
static void checkpoints_answer(void **state)
{
    (void)state;
    static const char *const names[] = {"plain", "runs/one/step-9", "runs/one/step-20",
                                        "runs/one/step-100", "runs/one/step-9"};
    char *want = NULL;
    for (int i = 0; i < 5; i++) {
        char body[200];
        snprintf(body, sizeof body,
                 "{\"model\":\"%s\",\"prompt\":\"Once upon\",\"max_tokens\":8,\"temperature\":0,"
                 "\"attention\":{\"layers\":[1],\"heads\":[2]}}",
                 names[i]);
        json_t *j = post("/v1/completions", body);
        assert_string_equal(text_at(j, "model"), names[i]);
        char *got = json_dumps(at(j, "choices.0"), JSON_SORT_KEYS);
        if (want) assert_string_equal(got, want);
        free(want);
        want = got;
        json_decref(j);
    }
    free(want);
}

static void other_names_are_refused(void **state)
{
    (void)state;
    static const char *const names[] = {"runs/one/step-30",
                                        "runs/one/step-30.tmp",
                                        "runs/one/step-40",
                                        "runs/one/step-",
                                        "runs/one/../one/step-9",
                                        "runs/../runs/one/step-9",
                                        "runs/.one/step-9",
                                        "runs//step-9",
                                        "runs/one",
                                        "runs/",
                                        "runs/one/step-9/../..",
                                        "runs/two/step-9",
                                        "runs/one/step-99999999999999999999"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char body[200];
        snprintf(body, sizeof body, "{\"model\":\"%s\",\"prompt\":\"a\"}", names[i]);
        http_refused(404, "there is no such checkpoint", "/v1/completions", body);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logs_and_steps_are_listed),
        cmocka_unit_test(checkpoints_answer),
        cmocka_unit_test(other_names_are_refused),
    };
    return cmocka_run_group_tests(tests, start, serve_close);
}
