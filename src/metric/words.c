/* words.c - words of texts as numbers. */
#include "metric/words.h"

#include <utf8proc.h>

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

void fv__words_split(fv_words *w, fv_symbols *out, const fv_symbols *text)
{
    out->n = 0;
    for (size_t i = 0, from = 0; i <= text->n; i++) {
        if (i < text->n && !fv__is_blank(text->at[i])) continue;
        if (i > from) number_word(w, out, text->at + from, i - from);
        from = i + 1;
    }
}

void fv__symbols_lower(fv_symbols *s, const char *text)
{
    size_t len = strlen(text);
    uint32_t cp;
    s->n = 0;
    for (size_t i = 0; i < len;) {
        int n = fv__utf8_get(&cp, text + i, len - i);
        fv__symbols_add(s, n ? (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp) : 0xFFFD);
        if (n && cp == 0x130) fv__symbols_add(s, 0x307); /* a capital I with a dot is an i and a dot above */
        i += n ? (size_t)n : 1;
    }
}
