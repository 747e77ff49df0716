/* words.h - words of texts as numbers: equal words of a text and its reference get the same one. */
#ifndef FV_WORDS_H
#define FV_WORDS_H

#include "metric/ngram.h"

typedef struct fv_words {
    fv_symbols seen; /* the different words, one after the other */
    fv_symbols from; /* where each begins in seen; one more at the end */
} fv_words;

/* Numbers begin anew. */
static inline void fv__words_forget(fv_words *w) { w->seen.n = w->from.n = 0; }
/* out = the numbers of the words that blanks separate in text. */
void fv__words_split(fv_words *w, fv_symbols *out, const fv_symbols *text);
/* The code points of a text in lower case, as Python's str.lower has them (a final sigma aside). */
void fv__symbols_lower(fv_symbols *s, const char *text, size_t len);

#endif
