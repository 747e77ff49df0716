/* test_generate_cli.c - fovea generate, score and summarize from outside, with a real model. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include <cmocka.h>

#include "helper/program.h"

#define STORIES FOVEA_TESTS "/golden/stories260K"

static double number(const json_t *j, const char *key)
{
    return json_number_value(json_object_get(j, key));
}

static void a_prompt_is_continued(void **state)
{
    (void)state;
    prints("$fovea generate -m $model --max-new-tokens 12 'Once upon a time'",
           ", there was a little girl named Lily. She\n");
    prints("$fovea generate -m $model --max-new-tokens 12 --echo --threads 1 'Once upon a time'",
           "Once upon a time, there was a little girl named Lily. She\n");
    prints("$fovea generate -m $model --max-new-tokens 12 --num-beams 2 'Once upon a time'",
           ", there was a little girl named Lily. She\n");
}

static void lines_give_what_each_gives_alone(void **state)
{
    (void)state;
    const result *r = succeeded(sh("printf 'The dog\\nOnce upon a time\\n\\n' | $fovea generate -m "
                                   "$model --max-new-tokens 9 --json --batch 2"));
    static const char *const want[] = {" was a big, red ball.", ", there was a little girl named",
                                       "Once upon a time, there was"};
    for (int i = 0; i < 3; i++) {
        json_t *j = json_line(r, i);
        const char *text = json_string_value(json_object_get(j, "text"));
        assert_non_null(text);
        assert_int_equal(strncmp(text, want[i], strlen(want[i])), 0);
        assert_int_equal((int)number(j, "tokens"), 9);
        assert_true(number(j, "score") < 0);
        json_decref(j);
    }
    succeeded(sh("$fovea generate -m $model --max-new-tokens 9 'The dog'"));
    assert_int_equal(strncmp(r->out, want[0], strlen(want[0])), 0);
}

static void drawing_follows_the_seed(void **state)
{
    (void)state;
    char first[1000];
    const result *r = succeeded(
        sh("$fovea generate -m $model --max-new-tokens 30 --temperature 1 --seed 5 'The'"));
    snprintf(first, sizeof first, "%s", r->out);
    prints(
        "$fovea generate -m $model --max-new-tokens 30 --temperature 1 --seed 5 --threads 1 'The'",
        first);
    succeeded(sh("$fovea generate -m $model --max-new-tokens 30 --temperature 1 --seed 6 'The'"));
    assert_string_not_equal(r->out, first);
}

/* Numbers of transformers 5.22.2 on the same ids. */
static void texts_have_the_probability_transformers_gives(void **state)
{
    (void)state;
    const result *r = succeeded(
        sh("printf 'Once upon a time\\nThe dog\\n' | $fovea score -m $model --json"));
    static const double want[] = {-0.274090, -12.766628};
    for (int i = 0; i < 2; i++) {
        json_t *j = json_line(r, i);
        assert_true(fabs(number(j, "log_probability") - want[i]) < 1e-4);
        assert_true(fabs(number(j, "perplexity") - exp(-want[i] / number(j, "tokens"))) < 1e-3);
        json_decref(j);
    }
    json_t *all = json_line(r, 2);
    assert_true(fabs(number(all, "log_probability") - want[0] - want[1]) < 2e-4);
    assert_int_equal((int)number(all, "bytes"), 23);
    json_decref(all);
    succeeded(sh("$fovea score -m $model --whole --json $model/greedy.txt"));
    json_t *whole = json_line(r, 0);
    assert_true(fabs(number(whole, "log_probability") + 107.934941) < 1e-3);
    double best = number(whole, "perplexity");
    json_decref(whole);
    succeeded(
        sh("$fovea score -m $model --whole --json --window 64 --stride 16 $model/greedy.txt"));
    whole = json_line(r, 0);
    /* less context */
    assert_true(number(whole, "perplexity") > best && number(whole, "perplexity") < 1.1 * best);
    assert_int_equal((int)number(whole, "tokens"), 201);
    json_decref(whole);
}

static void a_line_is_a_message(void **state)
{
    (void)state;
    const result *r = succeeded(sh("D=$(mktemp -d) && cp $model/* $D && cp '" FOVEA_TESTS
                                   "/golden/chatml.jinja' $D/chat_template.jinja && "
                                   "printf 'Hi\\n\\nAnd?\\n' | $fovea chat -m $D --max-new-tokens "
                                   "6 --json; C=$?; rm -r $D; exit $C"));
    json_t *j = json_line(r, 1);
    assert_string_equal(json_string_value(json_object_get(j, "role")), "assistant");
    json_decref(j);
    refused_silently(sh("echo Hi | $fovea chat -m $model"), 1, "no chat template");
    r = succeeded(sh("D=$(mktemp -d) && cp $model/* $D && cp '" FOVEA_TESTS
                     "/golden/chatml.jinja' $D/chat_template.jinja && "
                     "printf 'Hi\\n/reset\\nAnd?\\n/save %%s\\n' $D/talk.json | $fovea chat -m $D "
                     "--system S --max-new-tokens 6 > /dev/null && cat $D/talk.json && "
                     "echo More | $fovea chat -m $D --load $D/talk.json --max-new-tokens 3; "
                     "C=$?; rm -r $D; exit $C"));
    assert_non_null(strstr(r->out, "\"content\": \"S\""));
    assert_non_null(strstr(r->out, "And?"));
    assert_null(strstr(r->out, "Hi"));
}

/* Every token is ruled out: beams have no probability, and JSON no infinity. */
static void scores_that_are_no_numbers_are_null(void **state)
{
    (void)state;
    const result *r = succeeded(
        sh("D=$(mktemp -d) && cp $model/* $D && "
           "printf '{\"eos_token_id\":2,\"num_beams\":2,\"max_length\":8,\"suppress_tokens\":[0' > "
           "$D/generation_config.json && seq -f ,%%g 1 511 | tr -d '\\n' >> "
           "$D/generation_config.json && echo ']}' >> $D/generation_config.json && "
           "$fovea generate -m $D --json Once; C=$?; rm -r $D; exit $C"));
    assert_non_null(strstr(r->out, "\"score\":null"));
}

/* Results as they are done: the first line is answered before the second is there. */
static void lines_are_answered_as_they_come(void **state)
{
    (void)state;
    succeeded(sh(
        "mkfifo in && ($fovea score -m $model < in > out &) && exec 3> in && echo The dog >&3 && "
        "for i in $(seq 200); do [ -s out ] && break; sleep 0.05; done; wc -l < out > n; "
        "exec 3>&-; cat n"));
    prints("cat n", "1\n");
}

/* Weights are used where they are mapped: a file that shrinks under them ends in a sentence. */
static void a_model_truncated_in_use_is_told(void **state)
{
    (void)state;
    refused_silently(
        sh("cp -r $model m && mkfifo lines && ($fovea score -m m < lines > first 2> said; echo $? "
           "> "
           "code) & while ! [ -p lines ]; do sleep 0.05; done; exec 3> lines && echo The dog >&3 "
           "&& "
           "for i in $(seq 200); do [ -s first ] && break; sleep 0.05; done; "
           "truncate -s 0 m/model.safetensors; echo Once upon a time >&3; exec 3>&-; wait; "
           "cat said >&2; exit $(cat code)"),
        1, "a file in use was truncated");
}

static void texts_end_at_a_stop_string(void **state)
{
    (void)state;
    prints("$fovea generate -m $model --max-new-tokens 12 --stop Lily 'Once upon a time'",
           ", there was a little girl named \n");
    prints("$fovea generate -m $model --max-new-tokens 12 --stop xyz --stop little --num-beams 2 "
           "'Once upon a time'",
           ", there was a \n");
    const result *r = succeeded(
        sh("printf 'Once upon a time\\nOnce upon a time\\n' | $fovea generate -m "
           "$model --max-new-tokens 12 --stop little --json"));
    json_t *j = json_line(r, 1);
    assert_string_equal(json_string_value(json_object_get(j, "text")), ", there was a ");
    assert_true(number(j, "tokens") < 12); /* it ended there, it was not only cut */
    json_decref(j);
    refused_silently(sh("$fovea generate -m $model --stop '' x"), 2, "--stop");
}

static void a_temperature_of_0_is_greedy(void **state)
{
    (void)state;
    prints("$fovea generate -m $model --max-new-tokens 12 --temperature 0 --top-p 0.9 'Once upon a "
           "time'",
           ", there was a little girl named Lily. She\n");
    refused_silently(sh("$fovea generate -m $model --temperature x y"), 2, "--temperature");
}

static void several_texts_can_be_told_apart(void **state)
{
    (void)state;
    prints("printf 'Once upon a time\\nOnce upon a time\\n' | $fovea generate -m $model "
           "--max-new-tokens 3",
           ", there was\n\n, there was\n");
}

static void threads_follow_the_environment(void **state)
{
    (void)state;
    const result *r = succeeded(sh("OMP_NUM_THREADS=3 $fovea info --json"));
    json_t *j = json_line(r, 0), *d = json_array_get(json_object_get(j, "devices"), 0);
    assert_int_equal(json_integer_value(json_object_get(d, "threads")), 3);
    json_decref(j);
}

static void wrong_calls_are_told(void **state)
{
    (void)state;
    refused_silently(sh("$fovea generate x"), 2, "a model is needed");
    refused_silently(sh("$fovea generate -m $model --top-p 1.5 x"), 2, "--top-p");
    refused_silently(sh("$fovea generate -m $model --num-beams 2 --do-sample "
                        "--num-return-sequences 3 x"),
                     1, "3 hypotheses asked of 2 beams");
    refused_silently(sh("$fovea generate -m $model --file x y"), 2, "too many");
    refused_silently(sh("$fovea generate -m /nowhere x"), 1, "/nowhere");
    refused_silently(sh("$fovea score -m $model < /dev/null"), 1, "no text in it");
}

static int set_up(void **state) { return scratch_open(state) || setenv("model", STORIES, 1); }

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_prompt_is_continued),
        cmocka_unit_test(lines_give_what_each_gives_alone),
        cmocka_unit_test(drawing_follows_the_seed),
        cmocka_unit_test(texts_have_the_probability_transformers_gives),
        cmocka_unit_test(lines_are_answered_as_they_come),
        cmocka_unit_test(a_model_truncated_in_use_is_told),
        cmocka_unit_test(texts_end_at_a_stop_string),
        cmocka_unit_test(a_temperature_of_0_is_greedy),
        cmocka_unit_test(several_texts_can_be_told_apart),
        cmocka_unit_test(threads_follow_the_environment),
        cmocka_unit_test(a_line_is_a_message),
        cmocka_unit_test(scores_that_are_no_numbers_are_null),
        cmocka_unit_test(wrong_calls_are_told),
    };
    return cmocka_run_group_tests(tests, set_up, scratch_close);
}
