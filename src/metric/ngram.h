/* ngram.h - sequences of symbols, and how many n-grams two of them share; for BLEU and chrF. */
#ifndef FV_NGRAM_H
#define FV_NGRAM_H

#include "base/base.h"

/* Symbols (code points, or numbers of words) in an array that grows and is used again. */
typedef struct fv_symbols {
    const fv_env *env;
    uint32_t *at;
    size_t n, bytes;
    bool failed; /* memory ran out; stays set */
} fv_symbols;

void fv__symbols_add(fv_symbols *s, uint32_t symbol);
void fv__symbols_free(fv_symbols *s);
/* Frees n of them; false if memory had run out for any. */
bool fv__symbols_done(fv_symbols *const *s, size_t n);

/* The code points of a text of len bytes. */
void fv__symbols_text(fv_symbols *s, const char *text, size_t len);
/* Reference i of a string that holds several, or NULL behind the last. */
const char *fv__reference(const char *all, int i, size_t *len);
/* How many each of n strings holds: their number, or 0 where they differ. */
int fv__references_of_each(const char *const *all, int64_t n);
/* What Python's str.split takes for a blank. */
bool fv__is_blank(uint32_t cp);

/* n-grams of `order` in a that b has too, each as often as in the one that has fewer.  Scratch is
 * reused. */
int64_t fv__ngram_matches(const fv_symbols *a, const fv_symbols *b, size_t order,
                          fv_symbols scratch[2]);
/* The same against one of several sequences: only matches that those before it did not have.
 * matched keeps them, and is empty before the first; it belongs to a and the order. */
int64_t fv__ngram_new_matches(const fv_symbols *a, const fv_symbols *b, size_t order,
                              fv_symbols scratch[2], fv_symbols *matched);
static inline int64_t fv__ngram_count(const fv_symbols *a, size_t order)
{
    return a->n < order ? 0 : (int64_t)(a->n - order + 1);
}

#endif
