/* vectors.h - word vectors: trained on text (skip-gram, CBOW, subwords, GloVe), read and written
 * in the forms of word2vec and fastText, and asked for what is near.  A set of vectors is
 * read-only once it is made, and may be shared by threads. */
#ifndef FOVEA_AUTHOR_VECTORS_H
#define FOVEA_AUTHOR_VECTORS_H

#include "fovea/env.h"
#include "fovea/error.h"

typedef struct fv_vectors fv_vectors;

FV_API void fv_vectors_free(fv_vectors *v); /* NULL is allowed */
FV_API int64_t fv_vectors_count(const fv_vectors *v);
FV_API int64_t fv_vectors_width(const fv_vectors *v);
FV_API const char *fv_vectors_word(const fv_vectors *v, int64_t i);    /* the most frequent first */
FV_API const float *fv_vectors_row(const fv_vectors *v, int64_t i);    /* (width) */
FV_API int64_t fv_vectors_find(const fv_vectors *v, const char *word); /* or -1 */

/* ---- files ---- */

typedef enum fv_vectors_form {
    FV_VECTORS_AUTO = 0, /* by the name: .bin is binary, everything else text */
    FV_VECTORS_TEXT,  /* a line "words width", then a line for each word: word2vec's text, .vec */
    FV_VECTORS_BINARY /* the same line, then each word, a blank and width little-endian floats */
} fv_vectors_form;
FV_DATA const char *const fv_vectors_forms[]; /* words for the above, ending in NULL */

/* Text may be gzip, and may lack the first line (GloVe's files). */
FV_API fv_status fv_vectors_open(fv_vectors **out, const fv_env *env, const char *path,
                                 fv_vectors_form form, fv_err *e);
FV_API fv_status fv_vectors_save(const fv_vectors *v, const char *path, fv_vectors_form form,
                                 fv_err *e);

/* ---- questions ---- */

typedef struct fv_near {
    int64_t word;
    float cosine;
} fv_near;

/* The k words whose vectors have the greatest cosine with query (width), best first, without the
 * n_left words of `left`; returns how many there are. */
FV_API int64_t fv_vectors_nearest(const fv_vectors *v, const float *query, int64_t k,
                                  const int64_t *left, int64_t n_left, fv_near *out);
/* query (width) = the unit vectors b - a + c: what is to c as b is to a. */
FV_API void fv_vectors_analogy(const fv_vectors *v, int64_t a, int64_t b, int64_t c, float *query);

/* ---- pictures ---- */

/* How words get into the plane: principal components, or t-SNE. */
typedef enum fv_projection { FV_PCA = 0, FV_TSNE } fv_projection;
FV_DATA const char *const fv_projections[];

/* xy (n,2): words in the plane, along the two directions of greatest variance, or by t-SNE
 * (exact, its gradient in order: the same picture each time). */
FV_API fv_status fv_vectors_project(const fv_vectors *v, const int64_t *words, int64_t n,
                                    fv_projection how, uint64_t seed, double *xy, fv_err *e);
/* The same as SVG. */
FV_API fv_status fv_vectors_plot(const fv_vectors *v, const int64_t *words, int64_t n,
                                 const double *xy, const char *path, fv_err *e);

/* ---- training ---- */

/* What vectors are learnt by: the words around one, one by the words around it, or their counts. */
typedef enum fv_vectors_model { FV_SKIPGRAM = 0, FV_CBOW, FV_GLOVE } fv_vectors_model;
FV_DATA const char *const fv_vectors_models[];

typedef struct fv_vectors_opt {
    fv_vectors_model model;
    int64_t width;       /* 0: 100 */
    int64_t window;      /* words to each side at most; 0: 5, of GloVe 10 */
    int64_t negatives;   /* drawn for each position; 0: 5 */
    int64_t epochs;      /* 0: 5, of GloVe 25 */
    int64_t least;       /* words that occur less often are left out; 0: 5 */
    int64_t ngram_least; /* letters of a subword, from and to; 0: words are whole */
    int64_t ngram_most;
    int64_t buckets; /* rows that subwords share by a hash; 0: 2,000,000 */
    double lr;       /* 0: 0.05, of GloVe 0.05; falls to 0 */
    double sample;   /* frequent words are left out at random above this share; 0: 1e-3 */
    uint64_t seed;
    int threads;                                /* 0: all cores this process may use */
    bool lowercase;                             /* ASCII letters */
    void (*progress)(void *user, double share); /* or NULL */
    void *user;
} fv_vectors_opt;

/* files: n texts, plain or gzip; words are what blanks separate, a line is a sentence.  The bits of
 * the result do not depend on the number of threads.  words_per_s, or NULL: of training, without
 * reading. */
FV_API fv_status fv_vectors_train(fv_vectors **out, const fv_env *env, const char *const *files,
                                  int n, fv_vectors_opt opt, double *words_per_s, fv_err *e);

#endif
