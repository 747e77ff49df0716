/* shared_words.h - how much texts have in common, by their words. */
#ifndef FV_OBJECTIVE_SHARED_WORDS_H
#define FV_OBJECTIVE_SHARED_WORDS_H

#include "data/ragged.h"

/* Bags of words, a row for each text.  Zero but for env at first. */
typedef struct fv__shared_words {
    const fv_env *env;
    fv__ragged words; /* ids of each text, ascending, each once */
    float *weight;    /* of each id, squared; then the length of each row */
    float *length;
    size_t weight_bytes;
} fv__shared_words;

/* One more text of n ids, which are sorted; `unknown` stands for no word.  False: out of memory. */
bool fv__shared_words_add(fv__shared_words *o, int32_t *ids, int64_t n, int32_t unknown);
/* When all texts are there, whose ids lie below vocab: what each word weighs.  False: out of
 * memory. */
bool fv__shared_words_weigh(fv__shared_words *o, int64_t vocab);
/* share (n,n): row i sums to 1 and says which texts of rows share words with text i, itself
 * first. */
void fv__shared_words_put(const fv__shared_words *o, float *share, const int32_t *rows, int64_t n);
void fv__shared_words_free(fv__shared_words *o);

#endif
