/* answer.c - answers compared as SQuAD does: lower case, no punctuation, no articles, then by their
 * words. */
#include "fovea/author/metric.h"

#include <utf8proc.h>

#include "metric/words.h"

/* Python's string.punctuation, which SQuAD's script removes: ASCII alone. */
static bool is_punctuation(uint32_t c)
{
    return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') ||
           (c >= '{' && c <= '~');
}

/* What Python's \w matches; the underscore is gone already. */
static bool is_wordlike(uint32_t c)
{
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    return (k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO) ||
           (k >= UTF8PROC_CATEGORY_ND && k <= UTF8PROC_CATEGORY_NO);
}

static bool is_article(const uint32_t *x, size_t n)
{
    return (n == 1 && x[0] == 'a') || (n == 2 && x[0] == 'a' && x[1] == 'n') ||
           (n == 3 && x[0] == 't' && x[1] == 'h' && x[2] == 'e');
}

/* Punctuation goes, articles become blanks, in SQuAD's order. */
static void read_words(fv_words *w, fv_symbols *out, fv_symbols *scratch, const char *text)
{
    size_t n = 0;
    fv__symbols_lower(scratch, text, strlen(text));
    for (size_t i = 0; i < scratch->n; i++)
        if (!is_punctuation(scratch->at[i])) scratch->at[n++] = scratch->at[i];
    scratch->n = n;
    for (size_t from = 0, to; from < n; from = to + 1) {
        for (to = from; to < n && is_wordlike(scratch->at[to]);) to++;
        if (!is_article(scratch->at + from, to - from)) continue;
        for (size_t i = from; i < to; i++) scratch->at[i] = ' ';
    }
    fv__words_split(w, out, scratch);
}

/* The best over all gold answers, for each score by itself, in percent; no gold answer means
 * that the question has none, and only an empty text is right. */
fv_status fv_answer_score(double *exact, double *f1, const fv_env *env, const char *text,
                          const char *const *answers, int64_t n, fv_err *e)
{
    fv_words w = {.seen = {.env = env}, .from = {.env = env}};
    fv_symbols given = {.env = env}, gold = {.env = env}, scratch[2] = {{.env = env}, {.env = env}};
    read_words(&w, &given, &scratch[0], text);
    *exact = *f1 = n || given.n ? 0 : 100;
    for (int64_t i = 0; i < n; i++) {
        read_words(&w, &gold, &scratch[0], answers[i]);
        bool same = given.n == gold.n &&
                    (!gold.n || !memcmp(given.at, gold.at, gold.n * sizeof *gold.at));
        fv_match m = {fv__ngram_matches(&given, &gold, 1, scratch), (int64_t)given.n,
                      (int64_t)gold.n};
        if (same) *exact = 100;
        if (fv_f1(m) > *f1) *f1 = fv_f1(m);
    }
    fv_symbols *all[] = {&w.seen, &w.from, &given, &gold, &scratch[0], &scratch[1]};
    return fv__symbols_done(all, sizeof all / sizeof *all)
               ? FV_OK
               : fv_fail(e, FV_ENOMEM, "answers: out of memory");
}
