/* words.h - texts as words: normalised, split, without stop words, stemmed; counts, n-grams, TF-IDF
 * weights, and ranking by BM25.  A collection belongs to one thread. */
#ifndef FOVEA_AUTHOR_WORDS_H
#define FOVEA_AUTHOR_WORDS_H

#include "fovea/env.h"
#include "fovea/error.h"

typedef struct fv_words fv_words;

typedef struct fv_words_opt {
    bool cased;        /* letters stay as they are, else lower case */
    bool no_accents;   /* marks on letters are left out */
    const char *stop;  /* file of words that are left out, one a line, plain or gzip; NULL: none */
    const char *stem;  /* language of Snowball's stemmer ("english"); NULL: words stay whole */
    int64_t ngram;     /* terms are up to that many words with blanks between; 0: 1 */
    int64_t rarest;    /* words that occur less often in all are left out */
    double stop_share; /* > 0: words of more than this share of the documents are left out */
} fv_words_opt;

FV_API fv_status fv_words_new(fv_words **out, const fv_env *env, fv_words_opt opt, fv_err *e);
FV_API void fv_words_free(fv_words *w); /* NULL is allowed */

/* Adds a document of n bytes of UTF-8. */
FV_API fv_status fv_words_add(fv_words *w, const char *text, size_t n, fv_err *e);
/* After the last: leaves words out by frequency, makes n-grams, counts.  What follows needs it. */
FV_API fv_status fv_words_end(fv_words *w, fv_err *e);

FV_API int64_t fv_words_documents(const fv_words *w);
FV_API int64_t fv_words_terms(const fv_words *w); /* in order of first appearance */
FV_API const char *fv_words_term(const fv_words *w, int64_t term);
/* How often it occurs, and in how many documents. */
FV_API int64_t fv_words_count(const fv_words *w, int64_t term, int64_t *documents);

/* The words of a document in their order, as terms: *n of them. */
FV_API const int32_t *fv_words_sequence(const fv_words *w, int64_t document, int64_t *n);

typedef struct fv_term_count {
    int32_t term, count;
} fv_term_count;
/* The terms of a document, each once, in order of number: *n of them. */
FV_API const fv_term_count *fv_words_document(const fv_words *w, int64_t document, int64_t *n);
/* Their weights, (n): count (1 + ln((1 + documents) / (1 + documents with it))), divided by the
 * length of the vector of them; as scikit-learn has it. */
FV_API void fv_words_tfidf(const fv_words *w, int64_t document, double *weights);

typedef enum fv_bm25_formula {
    FV_BM25_OKAPI = 0, /* as rank_bm25's BM25Okapi: a negative idf becomes 1/4 of the mean idf */
    FV_BM25_LUCENE     /* as Lucene, and so Pyserini, but with exact lengths */
} fv_bm25_formula;
typedef struct fv_bm25_opt {
    fv_bm25_formula formula;
    double k1, b; /* 0: 1.5 and 0.75 (Okapi), 0.9 and 0.4 (Lucene); b < 0: 0 */
} fv_bm25_opt;
/* score (documents): how well each answers a query, which is prepared as they were. */
FV_API fv_status fv_words_bm25(const fv_words *w, const char *query, size_t n, fv_bm25_opt opt,
                               double *score, fv_err *e);

#endif
