/* test_eval.c - fovea eval and fovea summarize from outside: the same numbers as transformers with
 * scikit-learn, seqeval, SQuAD's script and rouge-score, which tools/golden/eval.py has written
 * down. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include <cmocka.h>

#include "helper/program.h"

static json_t *expect; /* tests/golden/eval/expect.json */

/* $g is tests/golden and $e tests/golden/eval. */
static int set_up(void **state)
{
    expect = json_load_file(FOVEA_TESTS "/golden/eval/expect.json", 0, NULL);
    setenv("g", FOVEA_TESTS "/golden", 1);
    setenv("e", FOVEA_TESTS "/golden/eval", 1);
    return expect ? scratch_open(state) : -1;
}

static int tear_down(void **state)
{
    json_decref(expect);
    return scratch_close(state);
}

/* What a line prints, as JSON. */
static json_t *object(const char *line)
{
    json_t *j = json_loads(succeeded(sh("%s", line))->out, 0, NULL);
    assert_non_null(j);
    return j;
}

static void same_number(const json_t *got, const json_t *want, const char *key)
{
    double a = json_number_value(json_object_get(got, key)),
           b = json_number_value(json_object_get(want, key));
    if (!json_object_get(got, key) || !json_object_get(want, key) ||
        fabs(a - b) > 1e-5 * (1 + fabs(b)))
        fail_msg("%s: %.9g, not %.9g", key, a, b);
}

/* Every number of want that is not in a list. */
static void same_numbers(const json_t *got, json_t *want)
{
    const char *key;
    json_t *x;
    json_object_foreach(want, key, x) if (json_is_number(x)) same_number(got, want, key);
}

/* ---- labels ---- */

static void labels_are_those_of_transformers(void **state)
{
    (void)state;
    json_t *want = json_object_get(expect, "classify");
    json_t *got = object("$fovea eval -m $e/classify --source-field text --target-field label -o "
                         "given.tsv --json $e/labels.tsv");
    same_numbers(got, want);
    assert_true(json_equal(json_object_get(got, "confusion"), json_object_get(want, "confusion")));
    assert_int_equal(json_integer_value(json_object_get(got, "records")), 12);
    json_decref(got);
    char text[512] = "";
    size_t i;
    json_t *x;
    json_array_foreach(json_object_get(want, "given"), i, x)
    {
        strcat(text, json_string_value(x));
        strcat(text, "\n");
    }
    prints("cut -f 1 given.tsv", text);
    /* by number, piece by piece, and with eight threads: the same */
    prints("$fovea eval -m $e/classify --header --source-field 3 --target-field 2 --batch 5 "
           "--threads 8 -o again.tsv $e/labels.tsv "
           "> said && cmp given.tsv again.tsv && head -n 2 said",
           "accuracy     33.33  of 12 records\nmacro F1     33.33\n");
    /* labels as numbers; and in front of a text, with a finer one behind a colon, in ISO-8859-1 */
    prints("tail -n +2 $e/labels.tsv | sed 's/.*\\t\\(.*\\)\\t\\(.*\\)/\\2\\t\\1/; s/bad$/0/; "
           "s/fair$/1/; s/good$/2/' > n.tsv; "
           "$fovea eval -m $e/classify n.tsv | head -n 1",
           "accuracy     33.33  of 12 records\n");
    succeeded(sh("$fovea eval -m $e/classify --latin1 --label-until : $e/words.label"));
    refused(sh("$fovea eval -m $e/classify --label-until : $e/words.label"), 1,
            "words.label:1: not UTF-8");
    refused(sh("$fovea eval -m $e/classify --latin1 $e/words.label"), 1,
            "words.label:1: the label \"good:fine\"");
    refused(sh("$fovea eval -m $e/classify $e/labels.tsv"), 1, "labels.tsv:1: 3 fields");
    refused(sh("$fovea eval -m $e/classify"), 2, "a file with texts and their labels");
    refused(sh("$fovea eval -m $g/tasks/classify-many n.tsv"), 1, "do not exclude each other");
    refused(sh("$fovea eval -m $e/classify -o no/such n.tsv"), 1, "no/such: cannot be written");
    refused(sh("$fovea eval -m $e/classify --task tag $e/tags.conll"), 1, "ForTokenClassification");
}

/* Of a model whose labels are finer, those that read alike are one, and their probabilities add
 * up. */
static void finer_labels_are_taken_together(void **state)
{
    (void)state;
    succeeded(sh("mkdir fine && ln -s $e/classify/[mt]* fine && sed 's/\"bad\"/\"x:a\"/; "
                 "s/\"fair\"/\"x:b\"/' "
                 "$e/classify/config.json > fine/config.json && sed 's/bad/x:1/; s/fair/x:2/' "
                 "$e/labels.tsv > x.tsv"));
    const result *said = succeeded(
        sh("tail -n +2 x.tsv | cut -f 3 | $fovea classify -m fine --json"));
    int alone = 0; /* records whose likeliest label is outvoted by the two others */
    for (int i = 0; i < 12; i++) {
        json_t *j = json_line(said, i), *labels = json_object_get(j, "labels");
        alone += !strcmp(json_string_value(json_object_get(json_array_get(labels, 0), "label")),
                         "good");
        assert_true(json_number_value(json_object_get(json_array_get(labels, 0), "score")) < 0.5);
        json_decref(j);
    }
    assert_true(alone > 0);
    prints("$fovea eval -m fine --header --source-field 3 --target-field 2 --label-until : -o "
           "sums.tsv x.tsv > /dev/null; "
           "cut -f 1 sums.tsv | sort | uniq -c",
           "     12 x\n");
    refused(sh("$fovea eval -m fine --header --source-field 3 --target-field 2 x.tsv"), 1,
            "the label \"x:");
}

/* ---- tags ---- */

static void entities_are_those_of_conlleval(void **state)
{
    (void)state;
    json_t *want = json_object_get(expect, "tag"), *types = json_object_get(want, "types"), *one;
    json_t *got = object("$fovea eval -m $e/tag -o tags.txt --json $e/tags.conll");
    static const char *const keys[] = {"precision", "recall", "f1", "gold"};
    size_t i;
    same_number(got, want, "accuracy");
    for (size_t k = 0; k < 4; k++)
        assert_true(fabs(json_number_value(json_object_get(got, keys[k])) -
                         json_number_value(json_array_get(json_object_get(want, "all"), k))) <
                    1e-6);
    json_array_foreach(json_object_get(got, "types"), i, one) for (size_t k = 0; k < 4; k++)
    {
        const json_t *right = json_object_get(types,
                                              json_string_value(json_object_get(one, "type")));
        assert_true(fabs(json_number_value(json_object_get(one, keys[k])) -
                         json_number_value(json_array_get(right, k))) < 1e-6);
    }
    assert_int_equal(i, 2);
    json_decref(got);
    prints("cat tags.txt", json_string_value(json_object_get(want, "predictions")));
    prints("$fovea eval -m $e/tag --batch 1 -o again.txt $e/tags.conll > said && cmp tags.txt "
           "again.txt && sed -n '1p;3p' said",
           "accuracy     13.85  of 65 words in 4 sentences\nentities     17.24     58.82     26.67 "
           "       10        58        17\n");
    refused(sh("echo word > bad.conll; $fovea eval -m $e/tag bad.conll"), 1,
            "bad.conll:1: expected a word, a blank and a tag");
    refused(sh("printf '\\n\\n' > bad.conll; $fovea eval -m $e/tag bad.conll"), 1, "no sentence");
}

/* ---- answers ---- */

static void answers_are_judged_as_squad_does(void **state)
{
    (void)state;
    json_t *want = json_object_get(expect, "answer"), *x;
    json_t *got = object(
        "$fovea eval -m $g/tasks/answer-bert -o answers.json --json $e/squad.json");
    same_numbers(got, want);
    json_decref(got);
    got = object("wc -l < answers.json > lines && cat answers.json");
    size_t i;
    char id[32];
    json_array_foreach(json_object_get(want, "given"), i, x)
    {
        snprintf(id, sizeof id, "q%zu", i);
        assert_string_equal(json_string_value(json_object_get(got, id)), json_string_value(x));
    }
    assert_int_equal(json_object_size(got), i);
    json_decref(got);
    prints("cat lines", "4\n");
    prints("gzip -c $e/squad.json > q.json.gz; $fovea eval -m $g/tasks/answer-bert --batch 1 "
           "q.json.gz",
           "exact   25.00  of 4 questions\nF1      55.56\n");
    refused(sh("$fovea eval -m $g/tasks/answer-bert $e/labels.tsv"), 1, "not JSON");
    refused(sh("echo '{\"data\": []}' > none.json; $fovea eval -m $g/tasks/answer-bert none.json"),
            1, "no questions");
}

/* ---- perplexity ---- */

static void perplexities_are_those_of_transformers(void **state)
{
    (void)state;
    json_t *want = json_object_get(expect, "perplexity");
    json_t *got = object("$fovea eval -m $g/stories260K --json $g/stories260K/greedy.txt");
    same_numbers(got, json_object_get(want, "story"));
    json_decref(got);
    got = object("$fovea eval -m $g/tasks/fill-bert --json $e/lines.txt");
    same_numbers(got, json_object_get(want, "masked"));
    assert_true(json_is_true(json_object_get(got, "masked")));
    json_decref(got);
    prints("$fovea eval -m $g/tasks/fill-bert $e/lines.txt | head -n 1",
           "pseudo-perplexity  127.9346  a token, of 12\n");
    /* with an encoder it is the target's: as fovea score has it */
    succeeded(sh("printf 'the cat\\tit was\\nnew york\\tso good\\n' > p.tsv; $fovea eval -m "
                 "$e/summarize-t5 --task perplexity "
                 "--json p.tsv > a; $fovea score -m $e/summarize-t5 --json p.tsv | tail -n 1 > b"));
    got = object("cat a");
    json_t *score = object("cat b");
    same_number(got, score, "perplexity");
    same_number(got, score, "log_probability");
    same_number(got, score, "bits_per_byte");
    json_decref(got);
    json_decref(score);
    refused(sh("$fovea eval -m $g/stories260K"), 2, "a file of text");
    refused(sh("$fovea eval -m $g/stories260K -o x $e/lines.txt"), 2, "--predictions");
    refused(sh(": > empty.txt; $fovea eval -m $g/stories260K empty.txt"), 1, "empty.txt: no text");
}

/* The model's own figure stays; a cache of next to no weight changes nothing. */
static void a_cache_has_a_figure_of_its_own(void **state)
{
    (void)state;
    json_t *plain = object("$fovea eval -m $g/stories260K --json $g/stories260K/greedy.txt"),
           *light = object("$fovea eval -m $g/stories260K --json --window 64 --cache 50 "
                           "--cache-weight 1e-9 $g/stories260K/greedy.txt"),
           *heavy = object("$fovea eval -m $g/stories260K --json --cache 50 --cache-theta 0.01 "
                           "--cache-weight 0.5 $g/stories260K/greedy.txt");
    assert_null(json_object_get(plain, "cached_perplexity"));
    same_number(heavy, plain, "perplexity");
    json_object_set(plain, "cached_perplexity", json_object_get(light, "perplexity"));
    same_number(light, plain, "cached_perplexity");
    assert_true(json_number_value(json_object_get(heavy, "cached_perplexity")) !=
                json_number_value(json_object_get(heavy, "perplexity")));
    json_decref(plain);
    json_decref(light);
    json_decref(heavy);
    assert_non_null(strstr(
        succeeded(sh("$fovea eval -m $g/stories260K --cache 50 $g/stories260K/greedy.txt"))->out,
        " a token, beside the last 50 states\n"));
    refused(sh("$fovea eval -m $g/tasks/fill-bert --cache 5 $e/lines.txt"), 2, "running text");
    refused(sh("$fovea eval -m $e/summarize-t5 --task perplexity --cache 5 p.tsv"), 2,
            "too short to have one");
}

/* ---- summaries ---- */

static void summaries_are_those_of_transformers(void **state)
{
    (void)state;
    static const char *const names[] = {"t5", "bart"};
    for (int k = 0; k < 2; k++) {
        json_t *want = json_object_get(json_object_get(expect, "summarize"), names[k]), *x;
        char line[512], text[1024] = "";
        size_t i;
        json_array_foreach(json_object_get(want, "given"), i, x)
        {
            strcat(text, json_string_value(x));
            strcat(text, "\n");
        }
        snprintf(line, sizeof line,
                 "$fovea eval -m $e/summarize-%s --task summarize --source-field article "
                 "--target-field highlights -o made --json "
                 "$e/articles.jsonl",
                 names[k]);
        json_t *got = object(line);
        same_numbers(got, want);
        json_decref(got);
        prints("cat made", text);
        /* the command itself: a text a line, with the words before it that config.json asks for */
        snprintf(line, sizeof line,
                 "sed 's/.*\"article\": \"\\(.*\\)\", \"h.*/\\1/' $e/articles.jsonl > articles; "
                 "$fovea summarize -m $e/summarize-%s "
                 "articles",
                 names[k]);
        prints(line, text);
        snprintf(line, sizeof line,
                 "$fovea summarize -m $e/summarize-%s --batch 1 --threads 2 < articles", names[k]);
        prints(line, text);
    }
}

/* A record may name several references, and its fields may be inside others. */
static void several_references(void **state)
{
    (void)state;
    prints("sed 's/\"highlights\": \"\\(.*\\)\"}/\"to\": {\"all\": [\"\\1\", \"nothing\"]}}/' "
           "$e/articles.jsonl > lists.jsonl; $fovea eval -m $e/summarize-t5 --task summarize "
           "--source-field article --target-field to.all lists.jsonl > lists; "
           "$fovea eval -m $e/summarize-t5 --task summarize --source-field article "
           "--target-field highlights $e/articles.jsonl | cmp - lists && echo same",
           "same\n");
    refused(sh("$fovea eval -m $e/summarize-t5 --task summarize --source-field to.all "
               "--target-field article lists.jsonl"),
            1, "to.all[0]");
}

static void summarize_has_its_options(void **state)
{
    (void)state;
    json_t *want = json_object_get(json_object_get(expect, "summarize"), "t5");
    char first[512];
    snprintf(first, sizeof first, "%s\n",
             json_string_value(json_array_get(json_object_get(want, "given"), 0)));
    prints(
        "head -n 1 articles | tr -d '\\n' > one; $fovea summarize -m $e/summarize-t5 --whole one",
        first);
    prints("sed 's/^/so good: /' one | $fovea summarize -m $e/summarize-t5 --whole --prefix ''",
           first); /* what the model asks for */
    json_t *got = object(
        "$fovea summarize -m $e/summarize-t5 --json --max-new-tokens 6 --whole one");
    assert_int_equal(json_integer_value(json_object_get(got, "tokens")), 6);
    assert_true(json_integer_value(json_object_get(got, "source_tokens")) > 10);
    json_decref(got);
    prints("$fovea summarize -m $e/summarize-t5 --num-return-sequences 2 --whole one | wc -l",
           "2\n");
    refused(sh("$fovea summarize < one"), 2, "-m DIR");
    refused(sh("$fovea summarize -m $g/tasks/fill-bert one"), 1, "does not write text");
    refused(sh("$fovea summarize -m $e/summarize-t5 missing"), 1, "missing");
    refused(sh("$fovea summarize -m $e/summarize-t5 --num-beams 0 one"), 2, "--num-beams");
    /* ROUGE of what is there already */
    prints("sed 's/.*\"highlights\": \"\\(.*\\)\"}/\\1/' $e/articles.jsonl > right; $fovea eval "
           "--task summarize --hypothesis right "
           "--reference right",
           "ROUGE-1 100.00  of 3 records\nROUGE-2 100.00\nROUGE-L 100.00\n");
    refused(sh("$fovea eval --task summarize --hypothesis right"), 2, "--reference FILE");
}

static void what_to_evaluate_must_be_clear(void **state)
{
    (void)state;
    refused(sh("$fovea eval"), 2, "a model is needed");
    refused(sh("$fovea eval -m nowhere x"), 1, "nowhere");
    refused(sh("$fovea eval -m $g/tasks/embed-mean x"), 1, "BertModel");
    refused(sh("$fovea eval -m $e/classify --task nothing x"), 2, "nothing");
    refused(sh("$fovea eval -m $e/classify missing.tsv"), 1, "missing.tsv");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(labels_are_those_of_transformers),
        cmocka_unit_test(finer_labels_are_taken_together),
        cmocka_unit_test(entities_are_those_of_conlleval),
        cmocka_unit_test(answers_are_judged_as_squad_does),
        cmocka_unit_test(perplexities_are_those_of_transformers),
        cmocka_unit_test(a_cache_has_a_figure_of_its_own),
        cmocka_unit_test(summaries_are_those_of_transformers),
        cmocka_unit_test(several_references),
        cmocka_unit_test(summarize_has_its_options),
        cmocka_unit_test(what_to_evaluate_must_be_clear),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
