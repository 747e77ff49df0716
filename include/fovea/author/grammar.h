/* grammar.h - the demonstration corpus: English sentences and their French translations, made by a
 * small grammar.
 *
 * The French is real as far as it goes: gender and number agree, "le" and "je" lose their vowel,
 * "de le" becomes "du", "vieux" becomes "vieil", partitives and their negation are right.  There
 * are millions of sentences over some hundreds of words.  One pair of words in eight (a verb with
 * its object, an adjective with its noun, ...) is held out: a test sentence always has a pair that
 * no training sentence has. */
#ifndef FOVEA_AUTHOR_GRAMMAR_H
#define FOVEA_AUTHOR_GRAMMAR_H

#include "fovea/env.h"
#include "fovea/error.h"

typedef struct fv_grammar_pair {
    char en[160], fr[200]; /* UTF-8, one sentence each */
    bool held_out;
} fv_grammar_pair;

/* Sentence i of the corpus with this seed: the same on every machine.  Different i may give equal
 * sentences. */
FV_API void fv_grammar_sentence(fv_grammar_pair *out, uint64_t seed, uint64_t i);

/* Distinct sentences of a seed: first n_train to learn from, then n_test that are held out. */
typedef struct fv_grammar_corpus {
    const char **en, **fr; /* n_train + n_test of each */
    int64_t n_train, n_test;
    fv_grammar_pair *pair; /* what en and fr point into */
    fv_env env;
} fv_grammar_corpus;

FV_API fv_status fv_grammar_corpus_new(fv_grammar_corpus *out, const fv_env *env, uint64_t seed,
                                       int64_t n_train, int64_t n_test, fv_err *e);
FV_API void fv_grammar_corpus_free(fv_grammar_corpus *k); /* all zero is allowed */

#endif
