/* vocab.h - the two tables of a vocabulary (text to id, id to text) and a trie over it. */
#ifndef FV_TOK_VOCAB_H
#define FV_TOK_VOCAB_H

#include "base/pool.h"

/* ---- vocabulary: ids may have holes ---- */

typedef struct fv__vocab {
    int32_t n;      /* tokens */
    int32_t size;   /* one more than the greatest id */
    int32_t cap;    /* ids must be below */
    uint32_t mask;  /* slots - 1 */
    size_t longest; /* bytes of the longest token */
    char *text;     /* all tokens, each NUL-terminated */
    size_t used, capacity;
    struct fv__entry {
        uint32_t at, len;
        bool set;
    } * ids;
    struct fv__slot {
        uint32_t hash;
        int32_t id; /* -1: free */
    } * slots;
    uint64_t seed; /* of its hash */
} fv__vocab;

typedef enum fv__vocab_add { FV__ADDED, FV__SAME_TEXT, FV__SAME_ID, FV__NO_SPACE } fv__vocab_add;

/* Room for `tokens` tokens with ids below `ids` and `bytes` bytes of text in all. */
bool fv__vocab_init(fv__vocab *v, fv__pool *p, int64_t tokens, int64_t ids, size_t bytes);
fv__vocab_add fv__vocab_put(fv__vocab *v, const char *s, size_t n, int32_t id);
int32_t fv__vocab_id(const fv__vocab *v, const char *s, size_t n); /* or -1 */
bool fv__vocab_has(const fv__vocab *v, int32_t id);
fv__str fv__vocab_str(const fv__vocab *v, int32_t id); /* s is NULL where there is none */

uint64_t fv__hash_seed(void); /* random */
uint32_t fv__hash(uint64_t seed, const char *s, size_t n);

/* ---- trie ----
 *
 * Children of a node stand side by side, sorted by byte; nodes with many have a bitmap, so that a
 * step is a load, a test and a population count.  Memory is bounded by the bytes of the keys, which
 * a double array's is not. */

typedef struct fv__trie {
    struct fv__node {
        uint32_t kids; /* the first child */
        int32_t value; /* -1: no key ends here */
        uint16_t n_kids;
        uint16_t dense; /* 1 + index of its bitmap, 0: none */
    } * nodes;
    uint8_t *bytes; /* of each node: the byte that leads to it */
    struct fv__bits {
        uint64_t set[4];
        uint16_t before[4]; /* members below each word */
    } * bits;
    uint32_t n;
} fv__trie;

/* keys need not be sorted; values[i] belongs to keys[i]; of equal keys the first wins.  tmp is used
 * while building. */
bool fv__trie_build(fv__trie *t, fv__pool *p, const fv__str *keys, const int32_t *values,
                    int32_t n);

#define FV__TRIE_NONE UINT32_MAX

static inline uint32_t fv__trie_step(const fv__trie *t, uint32_t node, unsigned char byte)
{
    const struct fv__node *d = t->nodes + node;
    if (d->dense) {
        const struct fv__bits *b = t->bits + d->dense - 1;
        uint64_t word = b->set[byte >> 6], bit = 1ull << (byte & 63);
        if (!(word & bit)) return FV__TRIE_NONE;
        return d->kids + b->before[byte >> 6] + (uint32_t)__builtin_popcountll(word & (bit - 1));
    }
    for (uint32_t k = d->kids, end = k + d->n_kids; k < end; k++)
        if (t->bytes[k] == byte) return k;
    return FV__TRIE_NONE;
}

/* Value of the longest key that starts s (its length in *len), or -1.  *steps grows by the bytes
 * that were looked at. */
int32_t fv__trie_longest(const fv__trie *t, uint32_t root, const char *s, size_t n, size_t *len,
                         uint64_t *steps);

#endif
