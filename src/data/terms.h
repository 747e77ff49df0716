/* terms.h - what the files of word collections share: the collection, and text split into words. */
#ifndef FV_DATA_TERMS_H
#define FV_DATA_TERMS_H

#include "base/base.h"
#include "fovea/author/data.h"
#include "fovea/author/words.h"

struct fv_words {
    fv_env env;
    fv_words_opt opt;
    fv_labels stop, words, terms;
    void *stemmer;
    fv_buf seq;   /* int32_t: words of all documents, numbers of `words`, then of `terms` */
    fv_buf ends;  /* int64_t: where each document ends in seq */
    fv_buf found; /* fv_term_count: terms of each document, one document after the other */
    fv_buf until; /* int64_t: where each document ends in found */
    int64_t *count, *documents; /* (terms) */
    double *length;             /* (documents): terms of each, repeated ones too */
    int64_t *posting;           /* (terms + 1): where each begins in postings */
    fv_term_count *postings;    /* of each term its documents, in order, and counts */
    size_t bytes[5];            /* of these five */
    int64_t n;
    bool ended;
};

static inline int64_t fv__terms_n(const fv_buf *b, size_t size) { return (int64_t)(b->len / size); }
/* [*from, result) of document d in a list of ends. */
static inline int64_t fv__terms_range(const fv_buf *ends, int64_t d, int64_t *from)
{
    const int64_t *at = (const int64_t *)(const void *)ends->data;
    *from = d ? at[d - 1] : 0;
    return at[d];
}

/* A word of a text, prepared: n bytes, no NUL behind them. */
typedef fv_status fv__term_fn(void *user, const char *s, size_t n, fv_err *e);
/* Each word of a text in turn that is no stop word, normalised and stemmed. */
fv_status fv__terms_split(const fv_words *w, const char *text, size_t n, fv__term_fn *fn,
                          void *user, fv_err *e);
fv_status fv__terms_stemmer_open(fv_words *w, fv_err *e);
void fv__terms_stemmer_close(fv_words *w);

#endif
