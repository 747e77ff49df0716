/* test_tok_golden.c - tokenizers beside Hugging Face's and SentencePiece: every component, and the
 * real vocabularies. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "fovea/tok.h"
#include "fovea/author/tok.h"

#define GOLDEN FOVEA_TESTS "/golden/tok/"
#define SHARED FOVEA_TESTS "/../../shared/data/tokenizers/"

/* ---- helpers ---- */

static json_t *read_line(FILE *f)
{
    char *line = NULL;
    size_t cap = 0;
    ssize_t n = getline(&line, &cap, f);
    json_t *j = n > 0 ? json_loadb(line, (size_t)n, JSON_ALLOW_NUL, NULL) : NULL;
    free(line);
    return j;
}

static fv_encoding *new_encoding(const fv_tok *t)
{
    fv_encoding *enc;
    fv_err e;
    assert_int_equal(fv_encoding_new(&enc, t, &e), FV_OK);
    return enc;
}

static void explain(const char *what, const char *name, const json_t *c, const fv_encoding *enc)
{
    char *want = json_dumps(c, JSON_COMPACT | JSON_ENSURE_ASCII);
    fprintf(stderr, "%s: %s differ for %.600s\n  got", name, what, want);
    for (int64_t i = 0; i < enc->n; i++) fprintf(stderr, " %d", enc->ids[i]);
    if (enc->spans)
        for (int64_t i = 0; i < enc->n; i++)
            fprintf(stderr, " [%d,%d]", (int)enc->spans[i].from, (int)enc->spans[i].to);
    fprintf(stderr, "\n");
    free(want);
}

static bool same_ids(const json_t *want, const fv_encoding *enc)
{
    if ((int64_t)json_array_size(want) != enc->n) return false;
    for (int64_t i = 0; i < enc->n; i++)
        if (json_integer_value(json_array_get(want, (size_t)i)) != enc->ids[i]) return false;
    return true;
}

static bool same_types(const json_t *want, const fv_encoding *enc)
{
    for (int64_t i = 0; i < enc->n; i++)
        if ((want ? json_integer_value(json_array_get(want, (size_t)i)) : 0) != enc->token_types[i])
            return false;
    return true;
}

static bool same_offsets(const json_t *want, const fv_encoding *enc)
{
    for (int64_t i = 0; want && i < enc->n; i++)
        if (json_integer_value(json_array_get(want, 2 * (size_t)i)) != enc->spans[i].from ||
            json_integer_value(json_array_get(want, 2 * (size_t)i + 1)) != enc->spans[i].to)
            return false;
    return true;
}

static bool same_text(const fv_tok *t, const json_t *want, const fv_encoding *enc, bool skip)
{
    char *text;
    size_t n;
    fv_err e;
    if (!want) return true;
    assert_int_equal(fv_tok_decode(t, &text, &n, enc->ids, enc->n, skip, &e), FV_OK);
    bool same = n == json_string_length(want) && !memcmp(text, json_string_value(want), n);
    fv_tok_free_text(t, text, n);
    return same;
}

/* ---- components ---- */

static int check_case(const fv_tok *t, fv_encoding *enc, const char *name, json_t *c)
{
    fv_err e = {0};
    json_t *text = json_object_get(c, "text"), *pair = json_object_get(c, "pair");
    fv_tok_opts o = {.specials = json_is_true(json_object_get(c, "special")),
                     .offsets = FV_OFFSETS_CHARS,
                     .pair = pair ? json_string_value(pair) : NULL,
                     .pair_len = json_string_length(pair)};
    if (fv_tok_encode(enc, json_string_value(text), json_string_length(text), o, &e)) {
        fprintf(stderr, "%s: %s\n", name, e.text);
        return 1;
    }
    const char *what = !same_ids(json_object_get(c, "ids"), enc)                  ? "ids"
                       : !same_types(json_object_get(c, "types"), enc)            ? "types"
                       : !same_offsets(json_object_get(c, "offsets"), enc)        ? "offsets"
                       : !same_text(t, json_object_get(c, "decoded"), enc, false) ? "decoded texts"
                       : !same_text(t, json_object_get(c, "skipped"), enc, true)
                           ? "decoded texts without specials"
                           : NULL;
    if (what) explain(what, name, c, enc);
    return what != NULL;
}

static int check_tokenizer(const char *name, const char *json, size_t n, json_t *cases)
{
    fv_tok *t;
    fv_err e = {0};
    int bad = 0;
    size_t i;
    json_t *c;
    if (fv_tok_read(&t, NULL, json, n, name, &e)) {
        fprintf(stderr, "%s\n", e.text);
        return 1;
    }
    fv_encoding *enc = new_encoding(t);
    json_array_foreach(cases, i, c) bad += check_case(t, enc, name, c);
    fv_encoding_free(enc);
    /* What we save gives the same again. */
    char path[] = "/tmp/fovea-tok-XXXXXX";
    fv_tok *again;
    assert_true(mkstemp(path) >= 0);
    assert_int_equal(fv_tok_save(t, path, &e), FV_OK);
    if (fv_tok_open(&again, NULL, path, &e)) fail_msg("%s", e.text);
    enc = new_encoding(again);
    json_array_foreach(cases, i, c) bad += check_case(again, enc, "saved again", c);
    fv_encoding_free(enc);
    fv_tok_close(again);
    fv_tok_close(t);
    remove(path);
    return bad;
}

static void components_are_the_references(void **state)
{
    (void)state;
    FILE *f = fopen(GOLDEN "components.jsonl", "r");
    assert_non_null(f);
    int n = 0, bad = 0;
    for (json_t *line; (line = read_line(f)); n++) {
        char *text = json_dumps(json_object_get(line, "tokenizer"), JSON_COMPACT);
        bad += check_tokenizer(json_string_value(json_object_get(line, "name")), text, strlen(text),
                               json_object_get(line, "cases"));
        free(text);
        json_decref(line);
    }
    fclose(f);
    assert_true(n > 50);
    assert_int_equal(bad, 0);
}

/* ---- SentencePiece ---- */

static void models_are_sentencepieces(void **state)
{
    (void)state;
    FILE *f = fopen(GOLDEN "spm.jsonl", "r");
    assert_non_null(f);
    int n = 0, bad = 0;
    for (json_t *line; (line = read_line(f)); n++) {
        char path[512];
        fv_tok *t;
        fv_err e = {0};
        size_t i;
        json_t *c;
        snprintf(path, sizeof path, GOLDEN "spm/%s",
                 json_string_value(json_object_get(line, "model")));
        if (fv_tok_open(&t, NULL, path, &e)) fail_msg("%s", e.text);
        fv_encoding *enc = new_encoding(t);
        json_array_foreach(json_object_get(line, "cases"), i, c)
        {
            json_t *text = json_object_get(c, "text");
            assert_int_equal(fv_tok_encode(enc, json_string_value(text), json_string_length(text),
                                           (fv_tok_opts){0}, &e),
                             FV_OK);
            bool same = same_ids(json_object_get(c, "ids"), enc),
                 back = same && same_text(t, json_object_get(c, "decoded"), enc, false);
            if (!same || !back) explain(same ? "decoded texts" : "ids", path, c, enc), bad++;
        }
        fv_encoding_free(enc);
        fv_tok_close(t);
        json_decref(line);
    }
    fclose(f);
    assert_true(n >= 8);
    assert_int_equal(bad, 0);
}

/* ---- the real ones, where they are at hand ---- */

static bool open_real(fv_tok **t, const char *name, fv_err *e)
{
    char path[512];
    snprintf(path, sizeof path, SHARED "%s%s", name, strchr(name, '/') ? ".model" : "");
    return fv_tok_open(t, NULL, path, e) == FV_OK;
}

static void real_vocabularies_give_golden_ids(void **state)
{
    (void)state;
    FILE *f = fopen(SHARED "golden.jsonl", "r");
    if (!f) {
        print_message("no shared data here: the real tokenizers were not tried\n");
        skip();
    }
    fv_tok *t = NULL;
    fv_encoding *enc = NULL;
    char last[128] = "";
    int n = 0, bad = 0;
    for (json_t *c; (c = read_line(f)); n++) {
        const char *name = json_string_value(json_object_get(c, "tokenizer"));
        json_t *text = json_object_get(c, "text");
        fv_err e = {0};
        assert_non_null(name);
        if (strcmp(name, last)) {
            fv_encoding_free(enc);
            fv_tok_close(t);
            snprintf(last, sizeof last, "%s", name ? name : "");
            if (!open_real(&t, name, &e)) fail_msg("%s", e.text);
            enc = new_encoding(t);
        }
        assert_int_equal(fv_tok_encode(enc, json_string_value(text), json_string_length(text),
                                       (fv_tok_opts){0}, &e),
                         FV_OK);
        if (!same_ids(json_object_get(c, "ids"), enc)) explain("ids", name, c, enc), bad++;
        bool exact = !strcmp(name, "gpt2") || !strcmp(name, "roberta-base") ||
                     !strcmp(name, "whisper-tiny");
        if (exact && !same_text(t, text, enc, false))
            explain("texts decoded from ids", name, c, enc), bad++;
        json_decref(c);
    }
    fv_encoding_free(enc);
    fv_tok_close(t);
    fclose(f);
    assert_int_equal(n, 847);
    assert_int_equal(bad, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(components_are_the_references),
        cmocka_unit_test(models_are_sentencepieces),
        cmocka_unit_test(real_vocabularies_give_golden_ids),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
