/* test_gen_config.c - what files say about generating: lists, words that are nothing but an end
 * token, limits that mean none. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "fovea/chat.h"
#include "fovea/gen.h"
#include "fovea/author/config.h"
#include "helper/device.h"

static char dir[] = "/tmp/fovea-gen-XXXXXX";

static void put(const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void drop(const char *name)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    unlink(path);
}

/* transformers leaves out a ban of an end token, and keeps longer words that begin with it. */
static void an_end_token_is_no_bad_word(void **state)
{
    (void)state;
    static const char *const eos[] = {"[2, 5]", "2"};
    fv_gen_config *c;
    fv_err e;
    for (int i = 0; i < 2; i++) {
        char text[256];
        snprintf(text, sizeof text,
                 "{\"eos_token_id\": %s, \"bad_words_ids\": [[2], [7], [5, 6], [5]]}", eos[i]);
        put("generation_config.json", text);
        check(fv_gen_config_open(&c, NULL, dir, NULL, &e), &e);
        const fv_gen_opt *o = fv_gen_config_options(c);
        assert_int_equal(o->n_banned, 1 + i);
        assert_int_equal(o->banned[0], 7);
        if (i) assert_int_equal(o->banned[1], 5);
        assert_int_equal(o->n_bad_words, 3);
        assert_memory_equal(o->bad_words, ((int32_t[]){5, 6, -1}), 12);
        fv_gen_config_close(c);
    }
}

/* Options are copied freely: what they point to belongs to the config, which is closed once. */
static void options_are_copied(void **state)
{
    (void)state;
    fv_gen_config *c;
    fv_err e;
    put("generation_config.json", "{\"eos_token_id\": [2, 5], \"suppress_tokens\": [3]}");
    check(fv_gen_config_open(&c, NULL, dir, NULL, &e), &e);
    fv_gen_opt a = *fv_gen_config_options(c), b = a;
    b.num_beams = 4;
    assert_int_equal(fv_gen_config_options(c)->num_beams, 1);
    assert_ptr_equal(a.ends, b.ends);
    assert_int_equal(b.ends[0], 5);
    fv_gen_config_close(c);
    fv_gen_config_close(NULL);
}

/* model_max_length as transformers writes "no limit", in the readers that look at that file. */
static void integers_of_any_size_are_read(void **state)
{
    (void)state;
    fv_chat_template *t;
    fv_json *j;
    fv_err e;
    double x = 0;
    char *text, path[256];
    put("tokenizer_config.json",
        "{\"model_max_length\": 1000000000000000019884624838656,\n \"a\": "
        "\"1\\\"23456789012345678901234\","
        " \"b\": -12345678901234567890123, \"n\": 12, \"eos_token\": {\"content\": \"</s>\"},"
        " \"chat_template\": [{\"name\": \"rag\", \"template\": \"{{ x|nothing }}\"},"
        " {\"name\": \"default\", \"template\": \"{{ messages[0].content }}{{ eos_token }}\"}]}");
    check(fv_chat_template_open(&t, NULL, dir, &e), &e);
    check(fv_chat_template_render(t, &text, &(fv_message){"user", "Hi"}, 1, NULL, &e), &e);
    assert_string_equal(text, "Hi</s>");
    fv_chat_template_free_text(t, text);
    fv_chat_template_close(t);
    snprintf(path, sizeof path, "%s/tokenizer_config.json", dir);
    check(fv_json_open(&j, NULL, path, &e), &e);
    assert_true(fv_json_number(j, "model_max_length", &x) && x == 1e30);
    assert_true(fv_json_number(j, "b", &x) && x == -12345678901234567890123.0);
    assert_true(fv_json_number(j, "n", &x) && x == 12);
    assert_string_equal(fv_json_text(j, "a"), "1\"23456789012345678901234");
    fv_json_close(j);
    put("tokenizer_config.json", "{\"x\": 1e999}");
    assert_int_equal(fv_json_open(&j, NULL, path, &e), FV_EFORMAT);
}

static int set_up(void **state)
{
    (void)state;
    if (!mkdtemp(dir)) return 1;
    put("config.json", "{\"model_type\": \"gpt2\"}");
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    drop("config.json");
    drop("generation_config.json");
    drop("tokenizer_config.json");
    return rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_end_token_is_no_bad_word),
        cmocka_unit_test(options_are_copied),
        cmocka_unit_test(integers_of_any_size_are_read),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
