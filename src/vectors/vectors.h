/* vectors.h - what the files of word vectors share: the set, the text as numbers, rows of
 * floats. */
#ifndef FV_VECTORS_H
#define FV_VECTORS_H

#include "base/base.h"
#include "base/thread_pool.h"
#include "fovea/author/data.h"
#include "fovea/author/vectors.h"

struct fv_vectors {
    fv_env env;
    fv_labels words;
    int64_t width, stride; /* floats from one row to the next: width, filled up with zeros */
    float *rows;
    size_t rows_bytes;
    float *length; /* of each row */
    size_t length_bytes;
};

enum { FV__LANES = 16 }; /* rows are multiples of this, and sums have as many parts */

static inline int64_t fv__vectors_stride(int64_t width)
{
    return (width + FV__LANES - 1) / FV__LANES * FV__LANES;
}

/* sum x_i y_i in one order, whatever the compiler makes of it: sixteen sums, added pair by pair. */
static inline float fv__vectors_dot(const float *restrict x, const float *restrict y,
                                    int64_t stride)
{
    float part[FV__LANES] = {0};
    for (int64_t i = 0; i < stride; i += FV__LANES)
        for (int j = 0; j < FV__LANES; j++) part[j] += x[i + j] * y[i + j];
    for (int n = FV__LANES / 2; n; n /= 2)
        for (int j = 0; j < n; j++) part[j] += part[j + n];
    return part[0];
}

/* y += a x */
static inline void fv__vectors_add(float *restrict y, float a, const float *restrict x,
                                   int64_t stride)
{
    for (int64_t i = 0; i < stride; i++) y[i] += a * x[i];
}

/* A random number of a counter (splitmix64): the seed and what it is for decide it, not the
 * order in which numbers are drawn. */
static inline uint64_t fv__vectors_random(uint64_t seed, uint64_t at)
{
    uint64_t x = seed * 0x9E3779B97F4A7C15u + at + 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}
static inline double fv__vectors_unit(uint64_t random) { return (double)(random >> 11) * 0x1p-53; }

/* Words that were counted, and the text as their numbers. */
typedef struct fv__corpus {
    const fv_env *env;
    fv_labels words; /* by frequency; of equal ones the first in the text */
    int64_t *count;  /* (words) */
    int32_t *text;   /* numbers of words, -1 at the end of a line */
    int64_t n, kept; /* of text; of words in it */
    size_t count_bytes, text_bytes;
} fv__corpus;

fv_status fv__corpus_open(fv__corpus *c, const fv_env *env, const char *const *files, int n,
                          int64_t least, bool lowercase, fv_err *e);
void fv__corpus_close(fv__corpus *c);

/* Rows that a word is the mean of: its own and those of its subwords, of word i rows[start[i]] to
 * rows[start[i+1]]. */
typedef struct fv__subwords {
    int64_t *start;
    int32_t *rows;
    size_t start_bytes, rows_bytes;
} fv__subwords;

/* least 0: words alone. */
fv_status fv__subwords_make(fv__subwords *s, const fv_env *env, const fv_labels *words,
                            int64_t least, int64_t most, int64_t buckets, fv_err *e);
void fv__subwords_free(fv__subwords *s, const fv_env *env);

/* A set of the corpus's words, which it takes over, with rows to be filled in. */
fv_status fv__vectors_new(fv_vectors **out, fv__corpus *c, int64_t width, fv_err *e);
void fv__vectors_lengths(fv_vectors *v); /* once rows are filled in */

/* The trainers: options are complete, *out has rows to be filled in. */
fv_status fv__vectors_predict(fv_vectors *v, const fv__corpus *c, const fv_vectors_opt *o,
                              fv__thread_pool *pool, fv_err *e);
fv_status fv__vectors_glove(fv_vectors *v, const fv__corpus *c, const fv_vectors_opt *o,
                            fv__thread_pool *pool, fv_err *e);

#endif
