/* test_words.c - words: how texts are split, what is left out, counts and n-grams; BM25 and TF-IDF
 * against rank_bm25 and the formulas (tools/golden/words.py). */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "fovea/author/words.h"
#include "helper/files.h"

static void ok(fv_status st, const fv_err *e)
{
    if (st) fail_msg("%s", e->text);
}

static fv_words *collect(fv_words_opt opt, const char *const *text, size_t n)
{
    fv_words *w;
    fv_err e;
    ok(fv_words_new(&w, NULL, opt, &e), &e);
    for (size_t i = 0; i < n; i++) ok(fv_words_add(w, text[i], strlen(text[i]), &e), &e);
    ok(fv_words_end(w, &e), &e);
    return w;
}

/* The words of document d with blanks between. */
static const char *joined(const fv_words *w, int64_t d)
{
    static char out[512];
    int64_t n;
    const int32_t *id = fv_words_sequence(w, d, &n);
    out[0] = 0;
    for (int64_t i = 0; i < n; i++) {
        if (i) strcat(out, " ");
        strcat(out, fv_words_term(w, id[i]));
    }
    return out;
}

static void texts_become_words(void **state)
{
    (void)state;
    static const char *const text[] = {"Don\xe2\x80\x99t STOP: the caf\xc3\xa9's 2 _x 'quoted'",
                                       "\xe6\x97\xa5\xe6\x9c\xac go", "", "\xef\xac\x81ne"};
    fv_words *w = collect((fv_words_opt){0}, text, 4);
    assert_string_equal(joined(w, 0), "don't stop the caf\xc3\xa9's 2 _x quoted");
    assert_string_equal(joined(w, 1), "\xe6\x97\xa5 \xe6\x9c\xac go");
    assert_string_equal(joined(w, 2), "");
    assert_string_equal(joined(w, 3), "fine"); /* the ligature's compatibility form */
    fv_words_free(w);
    w = collect((fv_words_opt){.cased = true, .no_accents = true}, text, 1);
    assert_string_equal(joined(w, 0), "Don't STOP the cafe's 2 _x quoted");
    fv_words_free(w);
    fv_err e;
    ok(fv_words_new(&w, NULL, (fv_words_opt){0}, &e), &e);
    assert_int_equal(fv_words_add(w, "a \xff", 3, &e), FV_EFORMAT);
    assert_string_equal(e.text, "not UTF-8 at byte 3");
    fv_words_free(w);
    assert_int_equal(fv_words_new(&w, NULL, (fv_words_opt){.stem = "klingon"}, &e), FV_EARG);
    assert_non_null(strstr(e.text, "stem"));
}

static int64_t count_of(const fv_words *w, const char *term, int64_t *documents)
{
    for (int64_t i = 0; i < fv_words_terms(w); i++)
        if (!strcmp(fv_words_term(w, i), term)) return fv_words_count(w, i, documents);
    return 0;
}

static void words_are_left_out_and_joined(void **state)
{
    (void)state;
    static const char *const text[] = {"the new york times of new york", "the old times",
                                       "the sun"};
    int64_t documents;
    fv_words *w = collect((fv_words_opt){.ngram = 2}, text, 3);
    assert_int_equal(count_of(w, "new york", &documents), 2);
    assert_int_equal(documents, 1);
    assert_int_equal(count_of(w, "the", &documents), 3);
    assert_int_equal(count_of(w, "sun", NULL), 1);
    fv_words_free(w);
    fv_words_opt some = {.stop = scratch_text("stop.txt", "of\nold \n"),
                         .stop_share = 0.9,
                         .rarest = 2,
                         .ngram = 3};
    w = collect(some, text, 3);
    assert_string_equal(joined(w, 0), "new york times new york");
    assert_string_equal(joined(w, 1), "times");
    assert_string_equal(joined(w, 2), "");
    assert_int_equal(count_of(w, "york times new", NULL), 1);
    double score[3];
    fv_err e;
    ok(fv_words_bm25(w, "Old York of Times", 17, (fv_bm25_opt){0}, score, &e), &e);
    assert_true(score[0] != 0 && score[2] == 0);
    fv_words_free(w);
}

static void near(double x, double y, const char *what)
{
    if (!(fabs(x - y) <= 1e-12 * (1 + fabs(y)))) fail_msg("%s: %.17g instead of %.17g", what, x, y);
}

static void same_scores(const fv_words *w, const json_t *query, const char *name, fv_bm25_opt opt)
{
    const char *text = json_string_value(json_object_get(query, "text"));
    const json_t *want = json_object_get(query, name);
    double score[16];
    fv_err e;
    assert_true(json_array_size(want) == (size_t)fv_words_documents(w));
    ok(fv_words_bm25(w, text, strlen(text), opt, score, &e), &e);
    for (size_t i = 0; i < json_array_size(want); i++)
        near(score[i], json_number_value(json_array_get(want, i)), text);
}

static void scores_are_those_of_rank_bm25(void **state)
{
    (void)state;
    json_t *all = json_load_file(FOVEA_TESTS "/golden/words.json", 0, NULL);
    const json_t *documents = json_object_get(all, "documents"),
                 *queries = json_object_get(all, "queries"), *tfidf = json_object_get(all, "tfidf");
    const char *text[16];
    size_t n = json_array_size(documents);
    assert_true(n > 0 && n <= 16);
    for (size_t i = 0; i < n; i++) text[i] = json_string_value(json_array_get(documents, i));
    fv_words *w = collect((fv_words_opt){0}, text, n);
    for (size_t i = 0; i < json_array_size(queries); i++) {
        const json_t *q = json_array_get(queries, i);
        same_scores(w, q, "okapi", (fv_bm25_opt){0});
        same_scores(w, q, "lucene", (fv_bm25_opt){.formula = FV_BM25_LUCENE});
    }
    for (size_t d = 0; d < n; d++) {
        int64_t terms;
        double weight[64];
        const fv_term_count *t = fv_words_document(w, (int64_t)d, &terms);
        const json_t *want = json_array_get(tfidf, d);
        assert_int_equal(terms, json_object_size(want));
        fv_words_tfidf(w, (int64_t)d, weight);
        for (int64_t i = 0; i < terms; i++) {
            const char *term = fv_words_term(w, t[i].term);
            near(weight[i], json_number_value(json_object_get(want, term)), term);
        }
    }
    fv_words_free(w);
    json_decref(all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_become_words),
        cmocka_unit_test(words_are_left_out_and_joined),
        cmocka_unit_test(scores_are_those_of_rank_bm25),
    };
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
