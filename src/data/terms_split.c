/* terms_split.c - a text as words: Unicode's compatibility form, lower case, cut, stop words left
 * out, stemmed.
 *
 * A word is a run of letters, digits, marks and underscores; an apostrophe between two of them
 * belongs to it.  Characters of Chinese and Japanese, which no blanks separate, are words by
 * themselves.  Stop words are compared before stemming, as lists of them are written. */
#include "data/terms.h"
#include "tok/tok.h"

#ifdef HAVE_STEMMER
#include <libstemmer.h>
#endif

/* ---- stems ---- */

/* A message for an unknown language lists those that libstemmer has: its names are not all
 * guessable ("porter"). */
fv_status fv__terms_stemmer_open(fv_words *w, fv_err *e)
{
    if (!w->opt.stem) return FV_OK;
#ifdef HAVE_STEMMER
    w->stemmer = sb_stemmer_new(w->opt.stem, "UTF_8");
    if (w->stemmer) return FV_OK;
    fv_buf known = {.env = &w->env};
    for (const char **name = sb_stemmer_list(); *name; name++)
        fv__buf_fmt(&known, "%s%s", known.len ? ", " : "", *name);
    fv_fail(e, FV_EARG, "stem: there is no stemmer for \"%.40s\"; there is %s", w->opt.stem,
            known.data ? known.data : "none");
    fv__buf_free(&known);
    return FV_EARG;
#else
    return fv_fail(e, FV_EARG, "stem: this build has no stemmer; it needs libstemmer");
#endif
}

void fv__terms_stemmer_close(fv_words *w)
{
#ifdef HAVE_STEMMER
    sb_stemmer_delete(w->stemmer);
#endif
    w->stemmer = NULL;
}

/* The stem, or the word itself; valid until the next. */
static const char *stem(const fv_words *w, const char *s, size_t *n)
{
#ifdef HAVE_STEMMER
    if (!w->stemmer || *n > INT32_MAX) return s;
    const sb_symbol *y = sb_stemmer_stem(w->stemmer, (const sb_symbol *)s, (int)*n);
    if (!y) return s;
    *n = (size_t)sb_stemmer_length(w->stemmer);
    return (const char *)y;
#else
    (void)w, (void)n;
    return s;
#endif
}

/* ---- words ---- */

typedef struct splitting {
    const fv_words *w;
    fv__term_fn *fn;
    void *user;
    fv_buf word;
    fv_err *e;
} splitting;

/* Hands the word on that has ended, unless there is none. */
static fv_status end_word(splitting *x)
{
    size_t n = x->word.len;
    x->word.len = 0;
    if (x->word.failed) return fv_fail(x->e, FV_ENOMEM, "words: out of memory");
    if (!n || fv_labels_find(&x->w->stop, x->word.data, n) >= 0) return FV_OK;
    const char *s = stem(x->w, x->word.data, &n);
    return n ? x->fn(x->user, s, n, x->e) : FV_OK;
}

static bool in_word(uint32_t cp) { return fv__is_word(cp) || fv__is_mark(cp); }

static void put(splitting *x, uint32_t cp)
{
    char c[4];
    if (!x->w->opt.cased) cp = fv__lower(cp);
    fv__buf_add(&x->word, c, (size_t)fv__utf8_put(c, cp));
}

/* Letters, digits and marks make words; an apostrophe joins ("don't") only between letters; a CJK
 * character is a word, since nothing separates words there. */
static fv_status split(splitting *x, const char *s, size_t n)
{
    fv_status st = FV_OK;
    for (size_t i = 0; !st && i < n;) {
        uint32_t cp, next = 0;
        i += (size_t)fv__char_at(&cp, s + i);
        if (i < n) fv__char_at(&next, s + i);
        bool apostrophe = cp == '\'' || cp == 0x2019;
        if (x->w->opt.no_accents && fv__is_nonspacing(cp)) continue;
        if (fv__is_cjk(cp)) {
            st = end_word(x);
            put(x, cp);
            if (!st) st = end_word(x);
        } else if (in_word(cp)) {
            put(x, cp);
        } else if (apostrophe && x->word.len && in_word(next) && !fv__is_cjk(next)) {
            put(x, '\'');
        } else {
            st = end_word(x);
        }
    }
    return st ? st : end_word(x);
}

/* Compatibility composition (NFKC), so that a ligature or a wide letter is the letter; without
 * accents the decomposed form, whose marks are dropped one by one. */
fv_status fv__terms_split(const fv_words *w, const char *text, size_t n, fv__term_fn *fn,
                          void *user, fv_err *e)
{
    size_t bad = fv__utf8_check(text, n);
    if (bad < n) return fv_fail(e, FV_EFORMAT, "not UTF-8 at byte %zu", bad + 1);
    fv__text in = {0}, out = {0};
    splitting x = {.w = w, .fn = fn, .user = user, .word = {.env = &w->env}, .e = e};
    fv__text_view(&in, text, n, false);
    fv__text_start(&out, &w->env, false, n + 16);
    /* marks that are to be left out stand apart in the decomposed form */
    fv__unicode_form(&out, &in, !w->opt.no_accents, true);
    fv_status st = out.failed ? fv_fail(e, FV_ENOMEM, "words: out of memory")
                              : split(&x, out.s, out.n);
    fv__buf_free(&x.word);
    fv__text_free(&out);
    return st;
}
