/* train.h - what the trainers share: counted strings, and the list of words they learn from. */
#ifndef FV_TOK_TRAIN_H
#define FV_TOK_TRAIN_H

#include "tok/tok.h"

/* A growing set of strings with a count each, in order of arrival. */
typedef struct fv__set {
    const fv_env *env;
    char *text;
    struct fv__counted {
        size_t at;
        uint32_t len, hash;
        int64_t count;
    } * v;
    int32_t n;
    int32_t *slots; /* index + 1, 0: free */
    uint32_t mask;
    uint64_t seed; /* of its hash */
    size_t used, cap_text, cap_v, slots_size;
} fv__set;

/* Index of s, added with count 0 if it is new; -1 when memory is out. */
int32_t fv__set_add(fv__set *s, const char *text, size_t n);
int32_t fv__set_find(const fv__set *s, const char *text, size_t n); /* or -1 */
static inline fv__str fv__set_str(const fv__set *s, int32_t i)
{
    return (fv__str){s->text + s->v[i].at, s->v[i].len};
}
void fv__set_free(fv__set *s);

typedef struct fv__trainer {
    fv_tok *t;
    const fv_tok_train_opts *o;
    int32_t vocab;
    int64_t min_count;
    fv__set words;    /* pieces of the texts, each with how often it was seen; sorted by text */
    fv__set specials; /* first ids of the vocabulary */
    fv_err *e;
} fv__trainer;

fv_status fv__train_bpe(fv__trainer *r);
fv_status fv__train_unigram(fv__trainer *r);

/* The characters to keep: all, or the most frequent; sorted by text. */
bool fv__alphabet(fv__trainer *r, fv__set *out);
/* Sorts a set by count (greatest first) and text, or by text alone. */
bool fv__set_sort(fv__set *s, bool by_count);
void fv__progress(fv__trainer *r, const char *stage, double done);
fv_status fv__train_no_memory(fv__trainer *r);

#endif
