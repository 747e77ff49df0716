/* test_tok_rules.c - rules of the references that are easy to miss: how serde_json rounds, what
 * Oniguruma's patterns mean, what SentencePiece and transformers do without saying so. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "helper/files.h"
#include "helper/tok.h"
#include "tok/json/load.h"
#include "tok/oniguruma.h"

/* ---- scores ---- */

static double score(const char *s) { return fv__json_score(s, strlen(s)); }

static void scores_round_as_serde_json_does(void **state)
{
    (void)state;
    /* the digits as an integer, divided once */
    assert_true(score("-13.28949546813965") == -1328949546813965.0 / 1e14);
    assert_true(score("0.1234567890123456789") == (double)1234567890123456789ull / 1e19);
    assert_true(score("-2.0") == -2 && score("0") == 0 && score("1e3") == 1000);
    assert_true(score("25e-1") == 2.5 && score("1.5E+2") == 150);
    /* digits beyond 64 bits are dropped behind the point and counted before it */
    assert_true(score("1.00000000000000000000000001") == 1);
    assert_true(score("184467440737095516160") == 18446744073709551616.0 * 10);
    assert_true(score("1e-400") == 0);
    /* and a number for which that is not the nearest double: an exact reader differs */
    assert_true(score("-9.836472511291504") != strtod("-9.836472511291504", NULL) ||
                score("-11.80385684967041") != strtod("-11.80385684967041", NULL) ||
                score("-5.132511138916016") != strtod("-5.132511138916016", NULL) ||
                score("-7.2353105545043945") != strtod("-7.2353105545043945", NULL) ||
                score("0.30000000000000004") != strtod("0.30000000000000004", NULL));
}

/* ---- patterns ---- */

static bool any_script(const char *name, size_t n) { return n == 3 && !memcmp(name, "Han", 3); }

static void patterns_mean_what_oniguruma_reads(void **state)
{
    (void)state;
    static const struct {
        const char *pattern, *translation;
    } cases[] = {
        {"\\p{N}{1,3}+", "(?:\\p{N}{1,3})+"},
        {"a{2}?", "(?:a{2})?"},
        {"a{2,}?b{3}", "a{2,}?b{3}"},
        {"(ab){,3}", "(ab){0,3}"},
        {"[^x]{1,2}+y", "(?:[^x]{1,2})+y"},
        {"x(?:a|(b)){2,5}+", "x(?:(?:a|(b)){2,5})+"},
        {"a{x}{", "a\\{x}\\{"},
        {"\\p{Han}\\P{Han}\\p{^Han}\\p{Lu}", "\\p{sc:Han}\\P{sc:Han}\\P{sc:Han}\\p{Lu}"},
        {"(?i:'s|'t|'re|'ve|'m|'ll|'d)", "(?i:'s|'t|'re|'ve|'m|'ll|'d)"},
        {"(?i:s)s", "(?i:s)s"},
        {"[]a]{2}", "[]a]{2}"},
        {"a++b*+c?+", "a++b*+c?+"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fv_buf out = {0};
        const char *refused;
        size_t at;
        fv__oniguruma(&out, cases[i].pattern, strlen(cases[i].pattern), any_script, &refused, &at);
        if (refused || strcmp(out.data, cases[i].translation))
            fail_msg("%s: %s%s", cases[i].pattern, out.data, refused ? refused : "");
        fv__buf_free(&out);
    }
    static const char *const refusals[] = {"(?i)ss", "(?i:fish)", "(?i)\xC3\x9F", "a{3,2}",   "{2}",
                                           "\\pL",   "[a[b]]",    "\\h",          "(?i)a(st)"};
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        fv_buf out = {0};
        const char *refused;
        size_t at;
        fv__oniguruma(&out, refusals[i], strlen(refusals[i]), any_script, &refused, &at);
        if (!refused) fail_msg("%s passes as %s", refusals[i], out.data);
        fv__buf_free(&out);
    }
}

#define SPLIT(pattern)                                                                             \
    "{\"model\":{\"type\":\"WordLevel\",\"vocab\":{\"<unk>\":0},\"unk_token\":\"<unk>\"},"         \
    "\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" pattern                      \
    "\"},\"behavior\":\"Isolated\",\"invert\":false}}"

static int64_t pieces(const char *file, const char *text)
{
    fv_tok *t;
    fv_err e = {0};
    if (fv_tok_read(&t, NULL, file, strlen(file), "rules", &e)) fail_msg("%s", e.text);
    fv_encoding *enc = tok_encode(t, text, strlen(text), (fv_tok_opts){0});
    int64_t n = enc->n;
    fv_encoding_free(enc);
    fv_tok_close(t);
    return n;
}

static void patterns_cut_as_oniguruma_does(void **state)
{
    (void)state;
    assert_int_equal(pieces(SPLIT("\\\\p{N}{1,3}+"), "1234567"), 1);
    assert_int_equal(pieces(SPLIT("\\\\p{N}{1,3}"), "1234567"), 3);
    /* an ideographic full stop is used with Han, and is not Han */
    assert_int_equal(pieces(SPLIT("\\\\p{Han}+"), "\xE5\xAD\x97\xE3\x80\x82"), 2);
    /* superscript two: a word character alone, none in a class */
    assert_int_equal(pieces(SPLIT("\\\\w+"), "x\xC2\xB2"), 1);
    assert_int_equal(pieces(SPLIT("[\\\\w']+"), "x\xC2\xB2"), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scores_round_as_serde_json_does),
        cmocka_unit_test(patterns_mean_what_oniguruma_reads),
        cmocka_unit_test(patterns_cut_as_oniguruma_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
