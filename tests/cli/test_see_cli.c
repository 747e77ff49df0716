/* test_see_cli.c - fovea demo and fovea see from outside: what they write, and what they say when
 * called wrongly. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "helper/program.h"

#define TASKS FOVEA_TESTS "/golden/tasks/"

/* A model that has learnt next to nothing is enough to be looked at. */
static int set_up(void **state)
{
    if (scratch_open(state)) return -1;
    const result *r = fovea(
        "demo --quiet --updates 3 --sentences 300 --tests 5 --threads 1 -o demo");
    if (r->code) print_error("%s\n", r->err);
    return r->code;
}

static void the_demo_leaves_a_model_and_its_pictures(void **state)
{
    (void)state;
    static const char *const names[] = {"demo/model/config.json", "demo/model/model.safetensors",
                                        "demo/model/tokenizer.json",
                                        "demo/model/generation_config.json", "demo/attention.html"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) assert_true(scratch_has(names[i]));
#ifdef HAVE_CAIRO
    assert_true(scratch_has("demo/alignment.svg") && scratch_has("demo/alignment.png") &&
                scratch_has("demo/heads.svg"));
#endif
}

static void the_demo_is_the_same_for_a_seed(void **state)
{
    (void)state;
    const char *one = scratch("demo/model/model.safetensors");
    succeeded(fovea("demo --quiet --updates 3 --sentences 300 --tests 5 --threads 2 -o again"));
    assert_true(same_files(one, scratch("again/model/model.safetensors")));
    succeeded(fovea("demo --quiet --updates 3 --sentences 300 --tests 5 --seed 2 -o other"));
    assert_false(same_files(one, scratch("other/model/model.safetensors")));
}

static void every_format_is_written(void **state)
{
    (void)state;
    static const struct {
        const char *name, *begins;
    } files[] = {{"a.html", "<!DOCTYPE html>"},
                 {"a.json", "{\"attentions\""},
                 {"a.csv", "kind,layer,head"},
#ifdef HAVE_CAIRO
                 {"a.svg", "<?xml"},
                 {"a.pdf", "%PDF-"},
                 {"a.png", "\x89PNG"}
#endif
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        const result *r = fovea("see -m demo/model --source 'I like to eat apples.' --target "
                                "\"J'aime manger des pommes.\" -o %s",
                                files[i].name);
        if (r->code) print_error("%s\n", r->err);
        assert_int_equal(r->code, 0);
        assert_string_equal(r->out, "");
        size_t n;
        char *text = slurp(scratch("%s", files[i].name), &n);
        assert_int_equal(strncmp(text, files[i].begins, strlen(files[i].begins)), 0);
        free(text);
    }
    const result *r = fovea("see -m demo/model --source 'I like to eat apples.' -o b.csv");
    assert_int_equal(r->code, 0);
    /* the translation it made */
    assert_true(strlen(r->out) > 1 && strchr(r->out, '\n') == r->out + strlen(r->out) - 1);
}

static void rows_layers_and_heads_narrow_what_is_written(void **state)
{
    (void)state;
    const char *given =
        "see -m demo/model --source 'I like apples.' --target \"J'aime les pommes.\"";
    assert_int_equal(
        fovea("%s --kind decoder --layer 1 --head 3 --rows 2:4 -o c.json", given)->code, 0);
    json_t *j = json_load_file(scratch("c.json"), 0, NULL),
           *map = json_array_get(json_object_get(j, "attentions"), 0);
    assert_non_null(map);
    assert_int_equal(json_array_size(json_object_get(j, "attentions")), 1);
    assert_string_equal(json_string_value(json_object_get(map, "kind")), "decoder");
    assert_int_equal(json_integer_value(json_object_get(map, "first_row")), 2);
    assert_int_equal(json_array_size(json_object_get(map, "rows")), 2);
    json_t *layer = json_array_get(json_object_get(map, "layers"), 0),
           *head = json_array_get(json_object_get(layer, "heads"), 0);
    assert_int_equal(json_integer_value(json_object_get(layer, "layer")), 1);
    assert_int_equal(json_integer_value(json_object_get(head, "head")), 3);
    assert_int_equal(json_array_size(json_object_get(layer, "heads")), 1);
    assert_int_equal(json_array_size(json_object_get(head, "weights")), 2);
    json_decref(j);
}

/* The text is the same text wherever it comes from, and so is the file. */
static void texts_come_by_any_way(void **state)
{
    (void)state;
    static const char *const ways[] = {
        "'I like apples.' \"J'aime les pommes.\" -o w0.csv",
        "-f text.tsv -o w1.csv",
        "--target \"J'aime les pommes.\" -o w2.csv < text.txt",
        "-f - -o w3.csv < text.tsv",
        "'I like apples.' \"J'aime les pommes.\" --format csv -o - > w4.csv",
    };
    succeeded(sh("printf \"I like apples.\\tJ'aime les pommes.\\n\" > text.tsv"));
    succeeded(sh("printf 'I like apples.\\n' > text.txt"));
    succeeded(
        fovea("see -m demo/model --source 'I like apples.' --target \"J'aime les pommes.\" -o "
              "w.csv"));
    for (int i = 0; i < 5; i++) {
        succeeded(fovea("see -m demo/model %s", ways[i]));
        char want[512];
        snprintf(want, sizeof want, "%s", scratch("w.csv"));
        assert_true(same_files(want, scratch("w%d.csv", i)));
    }
}

/* A page of one layer is smaller, as JSON and CSV are. */
static void a_part_makes_a_smaller_page(void **state)
{
    (void)state;
    size_t all, part;
    const char *given = "see -m demo/model 'I like apples.' \"J'aime les pommes.\"";
    succeeded(fovea("%s -o all.html", given));
    succeeded(fovea("%s --kind cross --layer 1 --head 2 -o part.html", given));
    char *a = slurp(scratch("all.html"), &all), *b = slurp(scratch("part.html"), &part);
    assert_true(part < all);
    assert_non_null(strstr(a, "id=\"encoder.0.0\""));
    assert_null(strstr(b, "id=\"encoder.0.0\""));
    assert_null(strstr(b, "id=\"cross.1.1\""));
    assert_non_null(strstr(b, "id=\"cross.1.2\""));
    free(a);
    free(b);
}

/* Two sentences have token types, and words are known, where there are several tokens a word. */
static void sentences_and_words_are_marked(void **state)
{
    (void)state;
    size_t n;
    succeeded(fovea("see -m " TASKS "classify-bert 'the unbelievable cat' 'a dog' -o p.html"));
    char *page = slurp(scratch("p.html"), &n);
    assert_non_null(strstr(page, "\"rows_types\": [0,"));
    assert_non_null(strstr(page, ",1]"));
    assert_non_null(strstr(page, "\"rows_words\": [0,"));
    free(page);
}

/* A character that byte-level tokens cut into parts is shown, with the number of each part. */
static void parts_of_a_character_are_readable(void **state)
{
    (void)state;
    succeeded(fovea("see -m " TASKS "fill-roberta '\U0001F63A' --layer 0 --head 0 -o emoji.json"));
    json_t *j = json_load_file(scratch("emoji.json"), 0, NULL),
           *rows = json_object_get(json_array_get(json_object_get(j, "attentions"), 0), "rows");
    size_t n = json_array_size(rows);
    assert_true(n > 3);
    bool found = false;
    for (size_t i = 0; i < n; i++)
        found |= strstr(json_string_value(json_array_get(rows, i)), "\U0001F63A 2/") != NULL;
    assert_true(found);
    json_decref(j);
}

/* Quantised models are only run, and looking at one is running it. */
static void quantised_models_are_seen(void **state)
{
    (void)state;
    succeeded(fovea("quantize -m demo/model --weights q8 -o q8"));
    succeeded(fovea("see -m q8 'I like apples.' \"J'aime les pommes.\" -o q8.json"));
    json_t *j = json_load_file(scratch("q8.json"), 0, NULL);
    assert_int_equal(json_array_size(json_object_get(j, "attentions")), 3);
    json_decref(j);
    succeeded(fovea("see -m q8 'I like apples.' --ablate"));
}

static void heads_are_weighed(void **state)
{
    (void)state;
    const char *given =
        "see -m demo/model --source 'I like apples.' --target \"J'aime les pommes.\" --ablate";
    const result *r = fovea("%s --json", given);
    json_error_t je;
    json_t *j = json_loads(r->out, 0, &je);
    assert_int_equal(r->code, 0);
    assert_true(json_real_value(json_object_get(j, "loss")) > 0);
    assert_int_equal(json_array_size(json_object_get(j, "heads")), 3 * 2 * 4);
    json_decref(j);
    r = fovea("%s --kind cross", given);
    assert_int_equal(r->code, 0);
    assert_non_null(strstr(r->out, "cross    layer 1"));
    assert_null(strstr(r->out, "encoder"));
}

static void wrong_calls_are_explained(void **state)
{
    (void)state;
    static const struct {
        const char *arguments, *says;
        int code;
    } cases[] = {
        {"see --source x -o x.csv", "--model is missing", 2},
        {"see -m demo/model --source x", "--output is missing", 2},
        {"see -m demo/model -o x.csv < /dev/null", "--source", 2},
        {"see -m demo/model --source x y -o x.csv", "twice", 2},
        {"see -m demo/model x -o -", "--format", 2},
        {"see -m demo/model -f no-such-text -o x.csv", "no-such-text", 1},
        {"see -m demo/model --source x --json -o x.csv", "--json goes with --ablate", 2},
        {"see -m demo/model --text x --target y -o x.csv", "--target goes with --source", 2},
        {"see -m demo/model --text x -o x.csv", "give --source", 1},
        {"see -m demo/model --source '' -o x.csv", "empty", 1},
        {"see -m demo/model --source x --layer 2 -o x.csv", "layers 0 to 1", 1},
        {"see -m demo/model --source x --head 4 -o x.csv", "heads 0 to 3", 1},
        {"see -m demo/model --source x --rollout --head 1 -o x.csv", "rollout", 1},
        {"see -m demo/model --source x --rows 4:2 -o x.csv", "A:B", 1},
        {"see -m demo/model --source x --rows 0:9999 -o x.csv", "rows 0 to 9998", 1},
        {"see -m demo/model --source x -o x.gif", ".svg, .png, .pdf, .html, .json or .csv", 1},
        {"see -m demo/model --source x -o no/such/place.csv", "no/such/place.csv", 1},
        {"see -m nowhere --source x -o x.csv", "nowhere", 1},
        {"see -m demo/model --source x --kind crossed -o x.csv", "crossed", 2},
        {"see -m demo/model --source \"$(yes apple | head -n 99 | tr '\\n' ' ')\" -o x.csv",
         "at most 64", 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const result *r = fovea("%s", cases[i].arguments);
        if (r->code != cases[i].code || !strstr(r->err, cases[i].says))
            print_error("%s: %d, %s\n", cases[i].arguments, r->code, r->err);
        assert_int_equal(r->code, cases[i].code);
        assert_non_null(strstr(r->err, cases[i].says));
        assert_string_equal(r->out, "");
    }
    assert_false(scratch_has("x.csv") || scratch_has("x.csv.tmp"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_demo_leaves_a_model_and_its_pictures),
        cmocka_unit_test(the_demo_is_the_same_for_a_seed),
        cmocka_unit_test(every_format_is_written),
        cmocka_unit_test(rows_layers_and_heads_narrow_what_is_written),
        cmocka_unit_test(texts_come_by_any_way),
        cmocka_unit_test(a_part_makes_a_smaller_page),
        cmocka_unit_test(sentences_and_words_are_marked),
        cmocka_unit_test(parts_of_a_character_are_readable),
        cmocka_unit_test(quantised_models_are_seen),
        cmocka_unit_test(heads_are_weighed),
        cmocka_unit_test(wrong_calls_are_explained),
    };
    return cmocka_run_group_tests(tests, set_up, scratch_close);
}
