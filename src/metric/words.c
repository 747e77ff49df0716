/* words.c - words of texts as numbers, so that n-grams of words are compared as those of characters
 * are.  A text has some hundred words: those seen are searched one by one. */
#include "metric/words.h"

#include <utf8proc.h>

/* The number of a word: that of an equal one before it, else the next. */
static void number_word(fv_words *w, fv_symbols *out, const uint32_t *word, size_t len)
{
    size_t n = w->from.n ? w->from.n - 1 : 0;
    for (size_t i = 0; i < n; i++) {
        size_t at = w->from.at[i], have = w->from.at[i + 1] - at;
        if (have == len && !memcmp(w->seen.at + at, word, len * sizeof *word)) {
            fv__symbols_add(out, (uint32_t)i);
            return;
        }
    }
    if (!w->from.n) fv__symbols_add(&w->from, 0);
    for (size_t i = 0; i < len; i++) fv__symbols_add(&w->seen, word[i]);
    fv__symbols_add(&w->from, (uint32_t)w->seen.n);
    fv__symbols_add(out, (uint32_t)n);
}

/* Numbers are valid until fv__words_forget; both texts of a pair must share one fv_words. */
void fv__words_split(fv_words *w, fv_symbols *out, const fv_symbols *text)
{
    out->n = 0;
    for (size_t i = 0, from = 0; i <= text->n; i++) {
        if (i < text->n && !fv__is_blank(text->at[i])) continue;
        if (i > from) number_word(w, out, text->at + from, i - from);
        from = i + 1;
    }
}

void fv__symbols_lower(fv_symbols *s, const char *text, size_t len)
{
    const uint32_t dotted = 0x130; /* a capital I with a dot becomes two: an i, and a dot above */
    fv__symbols_text(s, text, len);
    size_t n = s->n, more = 0;
    for (size_t i = 0; i < n; i++) more += s->at[i] == dotted;
    for (size_t i = 0; i < more; i++) fv__symbols_add(s, 0);
    if (s->failed) return;
    for (size_t from = n, to = s->n; from-- > 0;) {
        uint32_t c = s->at[from];
        if (c == dotted) s->at[--to] = 0x307;
        s->at[--to] = (uint32_t)utf8proc_tolower((utf8proc_int32_t)c);
    }
}
