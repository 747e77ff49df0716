/* test_translate.c - fovea translate and fovea eval from outside, against transformers and
 * sacreBLEU. */
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include <setjmp.h>
#include <cmocka.h>

#include "helper/program.h"

#define MODEL FOVEA_TESTS "/golden/translate"
enum { LINES = 8, BEST = 3 };

static char source[LINES][256]; /* the golden lines */
static json_t *expected[LINES];

static int set_up(void **state)
{
    size_t n;
    if (scratch_open(state) || setenv("model", MODEL, 1)) return -1;
    char *text = slurp(MODEL "/lines.txt", &n), *p = strtok(text, "\n");
    for (int i = 0; i < LINES; i++, p = strtok(NULL, "\n"))
        snprintf(source[i], sizeof source[i], "%s", p ? p : "");
    free(text);
    text = slurp(MODEL "/expected.jsonl", &n);
    p = strtok(text, "\n");
    for (int i = 0; i < LINES && p; i++, p = strtok(NULL, "\n"))
        expected[i] = json_loads(p, 0, NULL);
    free(text);
    return expected[LINES - 1] ? 0 : -1;
}

static int tear_down(void **state)
{
    for (int i = 0; i < LINES; i++) json_decref(expected[i]);
    return scratch_close(state);
}

static const char *text_of(int line, int k)
{
    return json_string_value(json_array_get(json_object_get(expected[line], "texts"), (size_t)k));
}

static double score_of(int line, int k)
{
    return json_number_value(json_array_get(json_object_get(expected[line], "scores"), (size_t)k));
}

/* ---- translate ---- */

/* Lines in any number and order, with empty ones between, through batches of any size, from a file
 * or a pipe. */
static void lines_come_out_as_transformers_translates_them(void **state)
{
    (void)state;
    static const char *const ways[] = {
        "$fovea translate -m $model in", "$fovea translate -m $model --batch 1 < in",
        "cat in | $fovea translate -m $model --batch 3 --threads 1",
        "gzip -c in > in.gz; $fovea translate -m $model --batch 5 in.gz",
        "(head -n 7 in; sleep 0.1; tail -n +8 in) | $fovea translate -m $model"};
    char text[1 << 14] = "", want[1 << 14] = "";
    for (int i = 0; i < 30; i++) {
        int line = i * 5 % (LINES + 1);
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s\n",
                 line < LINES ? source[line]
                 : i % 2      ? ""
                              : "  \t");
        snprintf(want + strlen(want), sizeof want - strlen(want), "%s\n",
                 line < LINES ? text_of(line, 0) : "");
    }
    scratch_text("in", text);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        const result *r = sh("%s", ways[i]);
        succeeded(r);
        assert_string_equal(r->out, want);
        assert_string_equal(r->err, "");
    }
}

static void the_best_come_with_their_scores(void **state)
{
    (void)state;
    const result *r = sh("$fovea translate -m $model --nbest 3 $model/lines.txt");
    succeeded(r);
    char *p = r->out;
    for (int i = 0; i < LINES; i++)
        for (int k = 0; k < BEST; k++) {
            char *end = strchr(p, '\n'), text[512];
            assert_non_null(end);
            *end = 0;
            assert_int_equal(strtol(p, &p, 10), i + 1);
            assert_true(fabs(strtod(p, &p) - score_of(i, k)) < 1e-4);
            snprintf(text, sizeof text, "\t%s", text_of(i, k));
            assert_string_equal(p, text);
            p = end + 1;
        }
    assert_string_equal(p, "");
    refused(sh("$fovea translate -m $model --nbest 5 $model/lines.txt"), 2, "--beam 5");
}

static void attention_is_exact(void **state)
{
    (void)state;
    const result *r = sh("$fovea translate -m $model --attention $model/lines.txt");
    succeeded(r);
    char *p = r->out;
    for (int i = 0; i < LINES; i++) {
        char *end = strchr(p, '\n');
        assert_non_null(end);
        *end = 0;
        json_t *j = json_loads(p, JSON_REJECT_DUPLICATES, NULL),
               *got = json_object_get(j, "attention");
        json_t *want = json_object_get(expected[i], "attention"),
               *best = json_array_get(json_object_get(j, "translations"), 0);
        assert_true(json_equal(json_object_get(best, "ids"), json_object_get(expected[i], "ids")));
        assert_string_equal(json_string_value(json_object_get(best, "text")), text_of(i, 0));
        assert_int_equal(json_array_size(got), json_array_size(want));
        assert_int_equal(json_array_size(json_object_get(best, "tokens")), json_array_size(want));
        for (size_t a = 0; a < json_array_size(want); a++) {
            json_t *row = json_array_get(got, a), *row_want = json_array_get(want, a);
            assert_int_equal(json_array_size(row), json_array_size(row_want));
            assert_int_equal(json_array_size(row), json_array_size(json_object_get(j, "source")));
            for (size_t b = 0; b < json_array_size(row); b++)
                assert_true(fabs(json_number_value(json_array_get(row, b)) -
                                 json_number_value(json_array_get(row_want, b))) < 1e-4);
        }
        json_decref(j);
        p = end + 1;
    }
}

/* What is drawn depends on the seed and the line's number, and on nothing else. */
static void drawing_does_not_depend_on_the_batch(void **state)
{
    (void)state;
    static const char *const ways[] = {"--batch 1 in", "--batch 4 in", "--batch 32 --threads 1 in",
                                       "< in", "--seed 8 in"};
    char *first = NULL;
    char text[1 << 12] = "";
    for (int i = 0; i < 12; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s\n", source[i % 3]);
    scratch_text("in", text);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        const result *r = sh("$fovea translate -m $model --do-sample --num-beams 1 --seed 7 %s",
                             ways[i]);
        succeeded(r);
        if (!i) first = strdup(r->out);
        assert_non_null(first);
        assert_int_equal(!strcmp(r->out, first), i < 4);
    }
    free(first);
}

static void options_override_what_the_model_says(void **state)
{
    (void)state;
    const result *r = sh("$fovea translate -m $model --json $model/lines.txt");
    succeeded(r);
    char *usual = strdup(r->out);
    assert_non_null(usual);
    static const char *const same[] = {"--beam 4", "--num-beams=4", "--max-length 20",
                                       "--renormalize-logits"};
    static const char *const other[] = {"--beam 1",
                                        "--max-length 5",
                                        "--dtype q8",
                                        "--dtype q4",
                                        "--dtype bf16",
                                        "--dtype int8",
                                        "--renormalize-logits=false",
                                        "--length-penalty 3"};
    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        assert_string_equal(
            sh("$fovea translate -m $model --json %s $model/lines.txt", same[i])->out, usual);
    for (size_t i = 0; i < sizeof other / sizeof *other; i++) {
        r = sh("$fovea translate -m $model --json %s $model/lines.txt", other[i]);
        succeeded(r);
        if (!strcmp(r->out, usual)) print_error("%s changed nothing\n", other[i]);
        assert_string_not_equal(r->out, usual);
    }
    free(usual);
}

static void a_line_that_is_too_long_is_cut_and_named(void **state)
{
    (void)state;
    char text[1 << 12] = "the dog sat\n";
    for (int i = 0; i < 40; i++) strcat(text, "cat ");
    scratch_text("in", strcat(text, "\nthe dog sat\n"));
    const result *r = sh("$fovea translate -m $model --json in");
    succeeded(r);
    assert_non_null(strstr(r->err, "line 2 has too many tokens"));
    assert_non_null(strstr(r->err, "beyond 24 "));
    json_t *j = json_loads(strchr(r->out, '\n') + 1, JSON_DISABLE_EOF_CHECK, NULL);
    assert_true(json_is_true(json_object_get(j, "cut")));
    assert_int_equal(json_array_size(json_object_get(j, "source")), 24);
    json_decref(j);
}

static void what_cannot_be_done_is_said(void **state)
{
    (void)state;
    scratch_text("bad", "the cat\nthe \xff dog\n");
    scratch_text("tiny.json", "{}");
    static const struct {
        const char *line;
        int code;
        const char *says;
    } cases[] = {
        {"$fovea translate -m $model nothing", 1, "nothing"},
        {"$fovea translate", 2, "-m DIR"},
        {"$fovea translate -m nowhere", 1, "nowhere"},
        {"$fovea translate -m $model --num-beam 3", 2, "did you mean '--num-beams'?"},
        {"$fovea translate -m $model --num-beams 0", 2, "--num-beams: expected an integer from 1"},
        {"$fovea translate -m $model --early-stopping perhaps", 2, "--early-stopping"},
        {"$fovea translate -m $model --max-length 25 in", 2, "24 positions"},
        {"mkdir -p m; cp $model/config.json $model/model.safetensors m; $fovea translate -m m in",
         1, "m"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const result *r = sh("%s", cases[i].line);
        refused(r, cases[i].code, cases[i].says);
        assert_string_equal(r->out, "");
    }
    /* the other lines go on */
    const result *r = sh("$fovea translate -m $model bad");
    refused(r, 1, "bad: line 2: not UTF-8 at byte 5");
    const char *second = strchr(r->out, '\n');
    assert_true(second && second > r->out && !strcmp(second, "\n\n"));
    r = sh("cat bad | $fovea translate -m $model");
    refused(r, 1, "line 2: not UTF-8 at byte 5");
    r = sh("cat bad | $fovea translate -m $model --json | tail -n 1");
    assert_string_equal(r->out, "{\"line\":2,\"error\":\"not UTF-8 at byte 5\"}\n");
    succeeded(sh("$fovea translate -m $model < /dev/null"));
    r = sh("$fovea translate -m $model --stats $model/lines.txt > /dev/null");
    assert_non_null(strstr(r->err, "\"lines\":8,"));
    r = sh("$fovea translate --help");
    assert_non_null(strstr(r->out, "--length-penalty X"));
    assert_non_null(strstr(r->out, "--early-stopping false|true|never"));
}

/* ---- eval ---- */

/* The numbers are those sacreBLEU 2.6.0 printed for these files. */
static void scores_are_sacrebleus(void **state)
{
    (void)state;
    scratch_text("hyp", "The cat sat on the mat.\nPrices rose 3.5% (to $1,234.50) in 2019-20, "
                        "didn't they?\n\nA B C D e\n");
    scratch_text("ref", "The cat is sitting on the mat.\nPrices rose by 3.5% (to $1,234.50) in "
                        "2019-2020, did n't they?\nempty\n"
                        "a b c d e\n");
    const result *r = sh("$fovea eval --hypothesis hyp --reference ref");
    succeeded(r);
    double want[3] = {45.757891, 22.000465, 70.944437}, got[3];
    assert_int_equal(sscanf(r->out, "BLEU %lf %*[^\n] BLEU, tokenised %lf %*[^\n] chrF2 %lf",
                            &got[0], &got[1], &got[2]),
                     3);
    for (int i = 0; i < 3; i++) assert_true(fabs(got[i] - want[i]) < 0.0051);
    assert_non_null(strstr(r->out, "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0"));
    r = sh("$fovea eval --hypothesis hyp --reference ref --json");
    json_t *j = json_loads(r->out, JSON_REJECT_DUPLICATES, NULL);
    assert_true(fabs(json_number_value(json_object_get(json_object_get(j, "bleu"), "score")) -
                     want[0]) < 1e-4);
    assert_true(fabs(json_number_value(json_object_get(json_object_get(j, "chrf"), "score")) -
                     want[2]) < 1e-4);
    assert_int_equal(json_integer_value(json_object_get(j, "lines")), 4);
    json_decref(j);
}

/* Pronunciations: any of several references is right, and the nearest one counts. */
static void errors_count_against_the_nearest_reference(void **state)
{
    (void)state;
    scratch_text("said.jsonl", "{\"w\": \"x\", \"said\": [\"A B C\", \"A B\"]}\n");
    const result *r = sh("$fovea eval -m $model --source-field w --target-field said said.jsonl");
    succeeded(r);
    assert_non_null(strstr(r->out, "texts not exact"));
    scratch_text("hyp", "A X C D\nP Q\n");
    scratch_text("ref", "Z Z Z Z Z\x1E"
                        "A B C\nP\x1E"
                        "P Q\n");
    r = sh("$fovea eval --hypothesis hyp --reference ref");
    succeeded(r);
    assert_non_null(
        strstr(r->out, "word error rate   40.00  1 substituted, 0 deleted, 1 inserted"));
    assert_non_null(strstr(r->out, "texts not exact   50.00  1 of 2"));
}

static void a_model_is_judged_by_what_it_translates(void **state)
{
    (void)state;
    char want[1 << 12] = "";
    for (int i = 0; i < LINES; i++)
        snprintf(want + strlen(want), sizeof want - strlen(want), "%s\n", text_of(i, 0));
    scratch_text("want", want);
    const result *r = sh("$fovea eval -m $model --source $model/lines.txt --reference want -o made "
                         "--json && cmp made want");
    succeeded(r);
    json_t *j = json_loads(r->out, JSON_REJECT_DUPLICATES, NULL);
    assert_true(json_number_value(json_object_get(json_object_get(j, "chrf"), "score")) > 99.99);
    json_decref(j);
    r = sh("$fovea eval -m $model --source $model/lines.txt --reference want --max-length 4");
    succeeded(r);
    assert_null(strstr(r->out, "100.00  100.0/"));
    refused(sh("$fovea eval -m $model --source $model/lines.txt"), 2, "--reference FILE");
    refused(sh("$fovea eval --hypothesis want --reference $model/expected.jsonl -m $model"), 2,
            "written already");
    scratch_text("short", "a\n");
    refused(sh("$fovea eval --hypothesis short --reference want"), 1,
            "short has 1 lines and want 8");
    refused(sh("$fovea eval --hypothesis nothing --reference want"), 1, "nothing");
}

/* The cases of a folder, with the target's name cut to so many letters. */
static void check_languages(const char *folder, size_t letters)
{
    size_t n, i, k;
    char path[256];
    snprintf(path, sizeof path, FOVEA_TESTS "/golden/%s/expected.json", folder);
    char *text = slurp(path, &n);
    json_t *all = json_loads(text, 0, NULL), *x, *line, *lines = json_object_get(all, "lines");
    free(text);
    snprintf(path, sizeof path, FOVEA_TESTS "/golden/%s", folder);
    setenv("languages", path, 1);
    json_array_foreach(json_object_get(all, "cases"), i, x)
    {
        char to[8] = "";
        memcpy(to, json_string_value(json_object_get(x, "to")), letters);
        const result *r = succeeded(
            sh("printf '%s\\n%s\\n' | $fovea translate -m $languages --json --from %s --to %s",
               json_string_value(json_array_get(lines, 0)),
               json_string_value(json_array_get(lines, 1)),
               json_string_value(json_object_get(x, "from")), to));
        json_array_foreach(json_object_get(x, "ids"), k, line)
        {
            json_t *got = json_line(r, (int)k),
                   *best = json_array_get(json_object_get(got, "translations"), 0);
            assert_true(json_equal(json_object_get(best, "ids"), line));
            json_decref(got);
        }
    }
    json_decref(all);
}

/* A model of several languages, from and into each as transformers does; names may be short.  mBART
 * and NLLB have the source's language in front, NLLB as it once was behind the end. */
static void languages_are_chosen(void **state)
{
    (void)state;
    check_languages("languages-nllb-legacy", 3);
    check_languages("languages-nllb", 3);
    refused(sh("echo a | $fovea translate -m $languages --to de"), 2, "deu_Latn, eng_Latn");
    check_languages("languages-m2m", 2);
    check_languages("languages", 2);
    refused(sh("echo a | $fovea translate -m $languages --to pt"), 2, "pt_BR, pt_PT");
    refused(sh("echo a | $fovea translate -m $model --to de"), 2, "no languages to choose");
}

/* T5's prefixes are those of config.json; multilingual Marian models have tokens in the text. */
static void prefixes_are_languages(void **state)
{
    (void)state;
    setenv("t5", FOVEA_TESTS "/golden/eval/summarize-t5", 1);
    succeeded(sh("cp -r $t5 t5 && chmod -R u+w t5 && sed -i 's/\"task_specific_params\": "
                 "{/&\"translation_en_to_de\": {\"prefix\": \"so good: \"},/' t5/config.json"));
    prints("echo 'so good: the cat' | $fovea translate -m t5 --max-length 8 > want; "
           "echo 'the cat' | $fovea translate -m t5 --max-length 8 --from en --to de | cmp - want "
           "&& echo 'the cat' | $fovea translate -m t5 --max-length 8 --to de | cmp - want && "
           "echo same",
           "same\n");
    refused(sh("echo a | $fovea translate -m t5 --to fr"), 2, "0 translations from anything to fr");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_come_out_as_transformers_translates_them),
        cmocka_unit_test(the_best_come_with_their_scores),
        cmocka_unit_test(attention_is_exact),
        cmocka_unit_test(drawing_does_not_depend_on_the_batch),
        cmocka_unit_test(options_override_what_the_model_says),
        cmocka_unit_test(a_line_that_is_too_long_is_cut_and_named),
        cmocka_unit_test(what_cannot_be_done_is_said),
        cmocka_unit_test(languages_are_chosen),
        cmocka_unit_test(prefixes_are_languages),
        cmocka_unit_test(scores_are_sacrebleus),
        cmocka_unit_test(errors_count_against_the_nearest_reference),
        cmocka_unit_test(a_model_is_judged_by_what_it_translates),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
