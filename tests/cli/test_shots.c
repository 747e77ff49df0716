/* test_shots.c - fovea eval --shots: figures that classify's own answers give, draws, calibration,
 * templates of a recipe, refusals. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "helper/program.h"
#include "task/eval_shots.h"

static const char records[] =
    "text\tlabel\nThe cat sat on a mat.\t0\nIt was a good day.\t1\n"
    "The old man was sad.\t0\nShe was very happy.\t1\nA big dog ran.\t0\n";

static int set_up(void **state)
{
    if (scratch_open(state)) return -1;
    scratch_text("records.tsv", records);
    scratch_text("shots.ini", "[shots]\nprompt = Review: {}\\nSentiment:\nlabels = 0=bad 1=good\n"
                              "examples = records.tsv\nshots = 0 2 3\nseeds = 3\n");
    return 0;
}

static json_t *shots(const char *more)
{
    return json_line(succeeded(sh("$fovea eval -m %s --recipe shots.ini --header --json "
                                  "--threads 1 %s records.tsv",
                                  FOVEA_TESTS "/golden/stories260K", more)),
                     0);
}

static double mean(json_t *all, size_t i, const char *figure)
{
    json_t *one = json_array_get(json_object_get(all, "shots"), i);
    return json_number_value(json_object_get(json_object_get(one, figure), "mean"));
}

/* Without examples the accuracy is that of classify with the same prompt. */
static void zero_shots_are_those_of_classify(void **state)
{
    (void)state;
    json_t *all = shots("");
    const result *r = succeeded(
        sh("sed 1d records.tsv | cut -f1 | $fovea classify -m %s --labels bad,good --prompt "
           "'Review: {}\\nSentiment:' --threads 1",
           FOVEA_TESTS "/golden/stories260K"));
    const char *want[] = {"bad", "good", "bad", "good", "bad"}, *at = r->out;
    double right = 0;
    for (int i = 0; i < 5; i++) {
        right += !strncmp(at, want[i], strlen(want[i]));
        at = strchr(at, '\n') + 1;
    }
    assert_true(fabs(mean(all, 0, "accuracy") - 20 * right) < 1e-9);
    json_decref(all);
}

/* The same seeds give the same figures, whatever other numbers stand beside. */
static void draws_are_functions_of_the_seed(void **state)
{
    (void)state;
    json_t *all = shots(""), *alone = shots("--shots 3");
    assert_true(json_equal(json_array_get(json_object_get(all, "shots"), 2),
                           json_array_get(json_object_get(alone, "shots"), 0)));
    json_t *seeds = json_object_get(
        json_object_get(json_array_get(json_object_get(all, "shots"), 2), "calibrated"), "seeds");
    assert_int_equal(json_array_size(seeds), 3);
    json_decref(all);
    json_decref(alone);
}

static void other_tasks(void **state)
{
    (void)state;
    json_t *all = shots("--task translate --seeds 1 --shots 1 --most 2 --max-new-tokens 8");
    assert_true(mean(all, 0, "chrF") >= 0);
    json_decref(all);
    succeeded(sh("$fovea eval -m %s --task answer --shots 0,1 --seeds 1 --most 1 --examples "
                 "%s/golden/eval/squad.json --threads 1 --max-new-tokens 4 "
                 "%s/golden/eval/squad.json",
                 FOVEA_TESTS "/golden/stories260K", FOVEA_TESTS, FOVEA_TESTS));
}

/* p / prior decides, among the hundred likeliest tokens alone. */
static void first_tokens_are_divided(void **state)
{
    enum { V = 150 };
    float logits[V], prior[V];
    (void)state;
    for (int i = 0; i < V; i++) {
        logits[i] = -(float)i;
        prior[i] = 1e-9f;
    }
    prior[0] = 0.9f;
    prior[1] = 0.01f;
    prior[2] = 0.05f;
    for (int i = 3; i < 100; i++) prior[i] = 0.04f;
    logits[3] = -INFINITY; /* a rule that came before has banned it */
    fv__shots_calibrate(logits, prior, V);
    assert_true(fabsf(logits[0] + logf(0.9f)) < 1e-6f);
    assert_true(fabsf(logits[1] + 1 + logf(0.01f)) < 1e-6f);
    for (int i = 0; i < V; i++) {
        assert_true(i == 1 || logits[i] < logits[1]);
        /* 100 is among them in the place of 3 */
        if (i == 3 || i > 100) assert_true(isinf(logits[i]));
    }
}

/* Figures of written texts come twice; without calibration both are those of the plain texts. */
static void written_texts_are_calibrated(void **state)
{
    (void)state;
    scratch_text("plain.ini", "[shots]\nprompt = {}\\nAfter that\ncalibrate = false\n");
    scratch_text("pairs.tsv", "text\tlabel\nLily likes the big red ball .\tShe likes to play .\n"
                              "Tom saw a bird .\tThe bird can fly .\n");
    scratch_text("both.ini", "[shots]\nprompt = {}\\nAfter that\n");
    json_t *run[2];
    for (int i = 0; i < 2; i++)
        run[i] = json_line(
            succeeded(
                sh("$fovea eval -m %s --recipe %s.ini --task translate --header --json --seeds 1 "
                   "--threads 1 --max-new-tokens 8 pairs.tsv",
                   FOVEA_TESTS "/golden/stories260K", i ? "both" : "plain")),
            0);
    assert_true(mean(run[0], 0, "chrF") == mean(run[1], 0, "chrF"));
    assert_true(mean(run[0], 0, "chrF") == mean(run[0], 0, "calibrated chrF"));
    assert_true(mean(run[1], 0, "chrF") != mean(run[1], 0, "calibrated chrF"));
    json_decref(run[0]);
    json_decref(run[1]);
}

static void refusals(void **state)
{
    (void)state;
    const char *m = FOVEA_TESTS "/golden/stories260K";
    refused(sh("$fovea eval -m %s --shots 9 --examples records.tsv --header records.tsv", m), 2,
            "numbers from 0 to 5");
    refused(sh("$fovea eval -m %s --shots one --header records.tsv", m), 2, "shots");
    refused(sh("$fovea eval -m %s --shots 0 --prompt nothing records.tsv", m), 2, "no {}");
    refused(sh("$fovea eval -m %s --shots 0 --task tag records.tsv", m), 2, "tag");
    refused(sh("$fovea eval -m %s --shots 0", m), 2, "file of records");
    scratch_text("bad.ini", "[shots]\nshot = 1\n");
    refused(sh("$fovea eval -m %s --recipe bad.ini records.tsv", m), 2, "shot");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(zero_shots_are_those_of_classify),
        cmocka_unit_test(draws_are_functions_of_the_seed),
        cmocka_unit_test(other_tasks),
        cmocka_unit_test(first_tokens_are_divided),
        cmocka_unit_test(written_texts_are_calibrated),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, set_up, scratch_close);
}
