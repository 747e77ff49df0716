/* test_generate_cli.c - fovea generate, score and summarize from outside, with a real model. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include <jansson.h>

#include <cmocka.h>

#define STORIES FOVEA_TESTS "/golden/stories260K"

static char out[65536], err[4096];

/* Runs a shell line in which $F is the program and $M the model; keeps what it prints; returns its exit code. */
static int run(const char *line)
{
    char command[4096];
    char text[] = "/tmp/fovea-write-XXXXXX", said[] = "/tmp/fovea-write-XXXXXX";
    int a = mkstemp(text), b = mkstemp(said);
    assert_true(a >= 0 && b >= 0);
    snprintf(command, sizeof command, "export F='%s' M='%s'; { %s ; } > %s 2> %s", FOVEA_PROGRAM, STORIES, line, text, said);
    int status = system(command);
    FILE *f = fdopen(a, "rb"), *g = fdopen(b, "rb");
    out[fread(out, 1, sizeof out - 1, f)] = 0;
    err[fread(err, 1, sizeof err - 1, g)] = 0;
    fclose(f);
    fclose(g);
    remove(text);
    remove(said);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void prints(const char *line, const char *text)
{
    int code = run(line);
    if (code) print_error("%s", err);
    assert_int_equal(code, 0);
    assert_string_equal(out, text);
}

static void refuses(const char *line, int code, const char *part)
{
    assert_int_equal(run(line), code);
    assert_string_equal(out, "");
    if (!strstr(err, part)) print_error("%s", err);
    assert_non_null(strstr(err, part));
}

/* The JSON object on line i of what was printed. */
static json_t *object(int i)
{
    char *at = out;
    for (; i > 0; i--) at = strchr(at, '\n') + 1;
    json_t *j = json_loads(at, JSON_DISABLE_EOF_CHECK, NULL);
    assert_non_null(j);
    return j;
}

static double number(const json_t *j, const char *key) { return json_number_value(json_object_get(j, key)); }

static void a_prompt_is_continued(void **state)
{
    (void)state;
    prints("$F generate -m $M --max-new-tokens 12 'Once upon a time'", ", there was a little girl named Lily. She\n");
    prints("$F generate -m $M --max-new-tokens 12 --echo --threads 1 'Once upon a time'",
           "Once upon a time, there was a little girl named Lily. She\n");
    prints("$F generate -m $M --max-new-tokens 12 --num-beams 2 'Once upon a time'",
           ", there was a little girl named Lily. She\n");
}

static void lines_give_what_each_gives_alone(void **state)
{
    (void)state;
    assert_int_equal(run("printf 'The dog\\nOnce upon a time\\n\\n' | $F generate -m $M --max-new-tokens 9 --json --batch 2"), 0);
    static const char *const want[] = {" was a big, red ball.", ", there was a little girl named", "Once upon a time, there was"};
    for (int i = 0; i < 3; i++) {
        json_t *j = object(i);
        const char *text = json_string_value(json_object_get(j, "text"));
        assert_non_null(text);
        assert_int_equal(strncmp(text, want[i], strlen(want[i])), 0);
        assert_int_equal((int)number(j, "tokens"), 9);
        assert_true(number(j, "score") < 0);
        json_decref(j);
    }
    assert_int_equal(run("$F generate -m $M --max-new-tokens 9 'The dog'"), 0);
    assert_int_equal(strncmp(out, want[0], strlen(want[0])), 0);
}

static void drawing_follows_the_seed(void **state)
{
    (void)state;
    char first[sizeof out];
    assert_int_equal(run("$F generate -m $M --max-new-tokens 30 --temperature 1 --seed 5 'The'"), 0);
    memcpy(first, out, sizeof out);
    prints("$F generate -m $M --max-new-tokens 30 --temperature 1 --seed 5 --threads 1 'The'", first);
    assert_int_equal(run("$F generate -m $M --max-new-tokens 30 --temperature 1 --seed 6 'The'"), 0);
    assert_string_not_equal(out, first);
}

/* Numbers of transformers 5.22.2 on the same ids. */
static void texts_have_the_probability_transformers_gives(void **state)
{
    (void)state;
    assert_int_equal(run("printf 'Once upon a time\\nThe dog\\n' | $F score -m $M --json"), 0);
    static const double want[] = {-0.274090, -12.766628};
    for (int i = 0; i < 2; i++) {
        json_t *j = object(i);
        assert_true(fabs(number(j, "log_probability") - want[i]) < 1e-4);
        assert_true(fabs(number(j, "perplexity") - exp(-want[i] / number(j, "tokens"))) < 1e-3);
        json_decref(j);
    }
    json_t *all = object(2);
    assert_true(fabs(number(all, "log_probability") - want[0] - want[1]) < 2e-4);
    assert_int_equal((int)number(all, "bytes"), 23);
    json_decref(all);
    assert_int_equal(run("$F score -m $M --whole --json $M/greedy.txt"), 0);
    json_t *whole = object(0);
    assert_true(fabs(number(whole, "log_probability") + 107.934941) < 1e-3);
    double best = number(whole, "perplexity");
    json_decref(whole);
    assert_int_equal(run("$F score -m $M --whole --json --window 64 --stride 16 $M/greedy.txt"), 0);
    whole = object(0);
    assert_true(number(whole, "perplexity") > best && number(whole, "perplexity") < 1.1 * best); /* less context */
    assert_int_equal((int)number(whole, "tokens"), 201);
    json_decref(whole);
}

static void a_line_is_a_message(void **state)
{
    (void)state;
    assert_int_equal(run("D=$(mktemp -d) && cp $M/* $D && cp '" FOVEA_TESTS "/golden/chatml.jinja' $D/chat_template.jinja && "
                         "printf 'Hi\\n\\nAnd?\\n' | $F chat -m $D --max-new-tokens 6 --json; C=$?; rm -r $D; exit $C"),
                     0);
    json_t *j = object(1);
    assert_string_equal(json_string_value(json_object_get(j, "role")), "assistant");
    json_decref(j);
    refuses("echo Hi | $F chat -m $M", 1, "no chat template");
}

static void wrong_calls_are_told(void **state)
{
    (void)state;
    refuses("$F generate x", 2, "a model is needed");
    refuses("$F generate -m $M --top-p 1.5 x", 2, "top_p");
    refuses("$F generate -m $M --num-beams 2 --do-sample true x", 1, "one beam");
    refuses("$F generate -m $M --file x y", 2, "too many");
    refuses("$F generate -m /nowhere x", 1, "/nowhere");
    refuses("$F score -m $M < /dev/null", 1, "nothing");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_prompt_is_continued),    cmocka_unit_test(lines_give_what_each_gives_alone),
        cmocka_unit_test(drawing_follows_the_seed), cmocka_unit_test(texts_have_the_probability_transformers_gives),
        cmocka_unit_test(a_line_is_a_message),      cmocka_unit_test(wrong_calls_are_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
