/* test_tok_rules.c - rules of the references that are easy to miss: how serde_json rounds, what
 * Oniguruma's patterns mean, what SentencePiece and transformers do without saying so. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <zlib.h>

#include "helper/files.h"
#include "helper/tok.h"
#include "tok/json/load.h"
#include "tok/oniguruma.h"
#include "fovea/author/tok.h"

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
    static const char *const refusals[] = {"(?i)ss", "(?i:fish)", "(?i)\xC3\x9F", "a{3,2}",
                                           "{2}",    "\\pL",      "a\\p",         "\\p{^",
                                           "[a&&]",  "[[:x:]]",   "(?i)a(st)"};
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

/* ---- SentencePiece models in a directory ---- */

static void put_model(const char *name)
{
    size_t n;
    char *model = slurp(FOVEA_TESTS "/golden/tok/spm/unigram.model", &n);
    scratch_put(name, model, n);
    free(model);
}

/* The last id of a text and the first, with the tokens that the class adds. */
static void ends(int32_t *first, int32_t *last)
{
    fv_tok *t;
    fv_err e = {0};
    if (fv_tok_open(&t, NULL, scratch("."), &e)) fail_msg("%s", e.text);
    fv_encoding *enc = tok_encode(t, "a b", 3, (fv_tok_opts){.specials = true});
    *first = enc->ids[0] == fv_tok_id(t, "<s>");
    *last = enc->ids[enc->n - 1] == fv_tok_id(t, "</s>");
    fv_encoding_free(enc);
    fv_tok_close(t);
}

/* Without tokenizer_class transformers goes by the model's type. */
static void the_model_type_names_the_class(void **state)
{
    (void)state;
    int32_t first, last;
    put_model("spiece.model");
    ends(&first, &last);
    assert_true(!first && !last);
    scratch_text("config.json", "{\"model_type\": \"t5\"}");
    ends(&first, &last);
    assert_true(!first && last);
    scratch_text("config.json", "{\"model_type\": \"llama\"}");
    ends(&first, &last);
    assert_true(first && !last);
    scratch_text("config.json",
                 "{\"model_type\": \"llama\", \"tokenizer_class\": \"T5TokenizerFast\"}");
    ends(&first, &last);
    assert_true(!first && last);
    scratch_drop("config.json");
    scratch_drop("spiece.model");
}

/* ---- files that are made to hurt ---- */

static fv_status opened(const char *file, size_t n, fv_err *e)
{
    fv_tok *t;
    fv_status st = fv_tok_read(&t, NULL, file, n, "hostile", e);
    if (!st) fv_tok_close(t);
    return st;
}

/* Twenty replacements, each by ten times as much: 2 KB of tokenizer, one letter of text. */
static void replacements_are_bounded(void **state)
{
    (void)state;
    fv_tok *t;
    fv_encoding *enc;
    fv_err e = {0};
    fv_buf b = {0};
    fv__buf_str(&b, "{\"model\":{\"type\":\"WordLevel\",\"vocab\":{\"<unk>\":0},\"unk_token\":"
                    "\"<unk>\"},\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[");
    for (int i = 0; i < 20; i++)
        fv__buf_fmt(&b,
                    "%s{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":"
                    "\"aaaaaaaaaa\"}",
                    i ? "," : "");
    fv__buf_str(&b, "]}}");
    if (fv_tok_read(&t, NULL, b.data, b.len, "hostile", &e)) fail_msg("%s", e.text);
    assert_int_equal(fv_encoding_new(&enc, t, &e), FV_OK);
    assert_int_equal(fv_tok_encode(enc, "a", 1, (fv_tok_opts){0}, &e), FV_EFORMAT);
    assert_non_null(strstr(e.text, "the tokenizer makes more than"));
    fv_encoding_free(enc);
    fv_tok_close(t);
    fv__buf_free(&b);
}

static void long_tokens_and_no_tokens_are_refused(void **state)
{
    (void)state;
    static const char *const kinds[][2] = {
        {"{\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[[\"", "\",-1]]}}"},
        {"{\"model\":{\"type\":\"WordPiece\",\"continuing_subword_prefix\":\"##\",\"unk_token\":"
         "\"[UNK]\",\"vocab\":{\"",
         "\":0}}}"}};
    fv_err e = {0};
    for (int i = 0; i < 2; i++) {
        fv_buf b = {0};
        fv__buf_str(&b, kinds[i][0]);
        for (int k = 0; k < 5000; k++) fv__buf_str(&b, "a");
        fv__buf_str(&b, kinds[i][1]);
        assert_int_equal(opened(b.data, b.len, &e), FV_EFORMAT);
        assert_non_null(strstr(e.text, "a token of 5000 bytes"));
        fv__buf_free(&b);
    }
    static const char empty[] =
        "{\"model\":{\"type\":\"WordLevel\",\"vocab\":{},\"unk_token\":\"<unk>\"}}";
    assert_int_equal(opened(empty, sizeof empty - 1, &e), FV_EFORMAT);
    assert_non_null(strstr(e.text, "empty"));
}

/* 32 MiB of zeros in 32 KiB. */
static void gzip_bombs_are_refused(void **state)
{
    (void)state;
    fv_tok *t;
    fv_err e = {0};
    size_t n = 32 << 20;
    char *zeros = calloc(1, n);
    gzFile f = gzopen(scratch("tokenizer.json.gz"), "wb9");
    assert_non_null(f);
    assert_int_equal(gzwrite(f, zeros, (unsigned)n), (int)n);
    gzclose(f);
    free(zeros);
    assert_int_equal(fv_tok_open(&t, NULL, scratch("tokenizer.json.gz"), &e), FV_EFORMAT);
    assert_non_null(strstr(e.text, "unpack to more than"));
}

static void numbers_at_the_edge_are_survived(void **state)
{
    (void)state;
    fv_err e = {0};
    static const char least[] = "{\"model\":{\"type\":\"WordLevel\",\"vocab\":{\"a\":"
                                "-9223372036854775808},\"unk_token\":\"a\"}}";
    assert_int_equal(opened(least, sizeof least - 1, &e), FV_EFORMAT);
    fv__json j = {.s = "-9223372036854775808", .n = 20, .file = "x"};
    int64_t x;
    assert_true(fv__json_whole(&x, (fv__jval){.j = &j}) && x == INT64_MIN);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scores_round_as_serde_json_does),
        cmocka_unit_test(patterns_mean_what_oniguruma_reads),
        cmocka_unit_test(patterns_cut_as_oniguruma_does),
        cmocka_unit_test(the_model_type_names_the_class),
        cmocka_unit_test(replacements_are_bounded),
        cmocka_unit_test(long_tokens_and_no_tokens_are_refused),
        cmocka_unit_test(gzip_bombs_are_refused),
        cmocka_unit_test(numbers_at_the_edge_are_survived),
    };
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
