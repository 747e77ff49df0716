/* test_tok_regex.c - texts cut by regexes where tokenizers cuts them, by Oniguruma's rules. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "fovea/tok.h"
#include "helper/files.h"

/* A tokenizer that gives one unknown token for each piece of the text. */
static fv_status try_split(fv_tok **t, const char *regex, fv_err *e)
{
    json_t *root = json_pack("{s:s, s:{s:s, s:{s:s}, s:s, s:b}, s:{s:s, s:{s:i}, s:s}}", "version",
                             "1.0", "pre_tokenizer", "type", "Split", "pattern", "Regex", regex,
                             "behavior", "Isolated", "invert", 0, "model", "type", "WordLevel",
                             "vocab", "<unk>", 0, "unk_token", "<unk>");
    assert_non_null(root);
    json_dump_file(root, scratch("tokenizer.json"), 0);
    json_decref(root);
    return fv_tok_open(t, NULL, scratch("tokenizer.json"), e);
}

static fv_tok *open_split(const char *regex)
{
    fv_tok *t;
    fv_err e;
    if (try_split(&t, regex, &e)) fail_msg("%s: %s", regex, e.text);
    return t;
}

static void compare(const char *regex, const char *text, const fv_encoding *enc, const json_t *want)
{
    bool same = (size_t)enc->n == json_array_size(want);
    for (int64_t i = 0; same && i < enc->n; i++) {
        const json_t *at = json_array_get(want, (size_t)i);
        same = json_integer_value(json_array_get(at, 0)) == (json_int_t)enc->spans[i].from &&
               json_integer_value(json_array_get(at, 1)) == (json_int_t)enc->spans[i].to;
    }
    if (same) return;
    for (int64_t i = 0; i < enc->n; i++)
        print_error("[%d,%d] ", (int)enc->spans[i].from, (int)enc->spans[i].to);
    fail_msg("%s on \"%s\"", regex, text);
}

static void regexes_cut_as_oniguruma_does(void **state)
{
    (void)state;
    fv_err e;
    json_t *all = json_load_file(FOVEA_TESTS "/golden/tok/regexes.json", 0, NULL), *one, *text;
    assert_non_null(all);
    size_t i, k;
    json_array_foreach(json_object_get(all, "cases"), i, one)
    {
        const char *regex = json_string_value(json_object_get(one, "regex"));
        fv_tok *t = open_split(regex);
        fv_encoding *enc;
        assert_int_equal(fv_encoding_new(&enc, t, &e), FV_OK);
        json_array_foreach(json_object_get(all, "texts"), k, text)
        {
            const char *s = json_string_value(text);
            fv_tok_opts o = {.offsets = FV_OFFSETS_CHARS};
            if (fv_tok_encode(enc, s, strlen(s), o, &e)) fail_msg("%s: %s", regex, e.text);
            compare(regex, s, enc, json_array_get(json_object_get(one, "offsets"), k));
        }
        fv_encoding_free(enc);
        fv_tok_close(t);
    }
    assert_true(i > 30);
    json_decref(all);
}

/* What PCRE2 would take for something else. */
static void other_meanings_are_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {"(?i)\\p{Lu}",
                                      "(?i)[\\p{^Uppercase_Letter}]",
                                      "(?i)[[:lower:]x]",
                                      "(?i:[a-z&&[^b]])",
                                      "(?i)[A[^a]]",
                                      "\\xE9",
                                      "\\x",
                                      "\\x{}",
                                      "\\x{41",
                                      "\\u41} x"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        fv_tok *t;
        fv_err e = {0};
        assert_int_equal(try_split(&t, bad[i], &e), FV_EFORMAT);
        if (!strstr(e.text, "is not implemented")) fail_msg("%s: %s", bad[i], e.text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(regexes_cut_as_oniguruma_does),
        cmocka_unit_test(other_meanings_are_refused),
    };
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
