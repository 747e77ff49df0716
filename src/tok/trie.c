/* trie.c - building the trie of vocab.h from sorted keys, level by level.
 *
 *    nodes[i] = { value, first child, number of children }      children of a node are adjacent
 *    bytes[i] = the byte that leads to node i                   searched, or by bitmap where dense
 *    bits     = 256-bit set + popcounts, for nodes with DENSE children or more
 *
 * Breadth first, so that siblings are neighbours and the top levels share cache lines.  A double
 * array (Darts) would save the search and cost several passes to build; a hash table of prefixes
 * has no order. */
#include <stdlib.h>

#include "vocab.h"

#define DENSE 6 /* children from which a bitmap beats a search */

typedef struct item {
    fv__str key;
    int32_t value, order;
} item;

static int by_key(const void *pa, const void *pb)
{
    const item *a = pa, *b = pb;
    size_t n = a->key.n < b->key.n ? a->key.n : b->key.n;
    int d = n ? memcmp(a->key.s, b->key.s, n) : 0;
    if (d) return d;
    if (a->key.n != b->key.n) return a->key.n < b->key.n ? -1 : 1;
    return a->order < b->order ? -1 : 1;
}

/* Nodes needed: the root, and for each key the bytes it does not share with the one before.
 * Sorted keys share their longest common prefix with the key before: one pass gives the exact
 * size. */
static void measure(const item *items, int32_t n, size_t *nodes)
{
    *nodes = 1;
    for (int32_t i = 0; i < n; i++) {
        size_t same = 0;
        if (i)
            while (same < items[i].key.n && same < items[i - 1].key.n &&
                   items[i].key.s[same] == items[i - 1].key.s[same])
                same++;
        *nodes += items[i].key.n - same;
    }
}

typedef struct range {
    int32_t lo, hi; /* the keys below a node */
    uint32_t depth;
} range;

/* Gives node its children and their ranges; nodes are numbered in the order they are reached, so
 * children are adjacent. */
static void expand(fv__trie *t, const item *items, range *ranges, uint32_t node, uint32_t *n_bits)
{
    range r = ranges[node];
    struct fv__node *d = t->nodes + node;
    d->value = -1;
    d->kids = t->n;
    int32_t i = r.lo;
    if (items[i].key.n == r.depth) d->value = items[i].value;
    while (i < r.hi && items[i].key.n == r.depth) i++;
    while (i < r.hi) {
        int32_t from = i;
        uint8_t byte = (uint8_t)items[i].key.s[r.depth];
        while (i < r.hi && (uint8_t)items[i].key.s[r.depth] == byte) i++;
        ranges[t->n] = (range){from, i, r.depth + 1};
        t->bytes[t->n++] = byte;
        d->n_kids++;
    }
    if (d->n_kids < DENSE || *n_bits == UINT16_MAX) return;
    struct fv__bits *b = t->bits + *n_bits;
    for (uint32_t k = d->kids; k < d->kids + d->n_kids; k++)
        b->set[t->bytes[k] >> 6] |= 1ull << (t->bytes[k] & 63);
    for (int w = 1; w < 4; w++)
        b->before[w] = (uint16_t)(b->before[w - 1] + __builtin_popcountll(b->set[w - 1]));
    d->dense = (uint16_t)++ * n_bits;
}

static bool build(fv__trie *t, fv__pool *p, const item *items, int32_t n)
{
    size_t nodes;
    measure(items, n, &nodes);
    if (nodes > UINT32_MAX / 2) return false;
    size_t most_bits = nodes / DENSE + 1 < UINT16_MAX ? nodes / DENSE + 1 : UINT16_MAX;
    t->nodes = fv__pool_array(p, nodes, sizeof *t->nodes);
    t->bytes = fv__pool_alloc(p, nodes);
    struct fv__bits *bits = fv__alloc(p->env, most_bits * sizeof *bits);
    range *ranges = fv__alloc(p->env, nodes * sizeof *ranges);
    bool ok = t->nodes && t->bytes && bits && ranges;
    uint32_t n_bits = 0;
    if (ok) {
        t->n = 1;
        t->bits = bits;
        t->nodes[0].value = -1;
        if (n) ranges[0] = (range){0, n, 0};
        for (uint32_t node = 0; n && node < t->n; node++) expand(t, items, ranges, node, &n_bits);
        t->bits = fv__pool_array(p, n_bits, sizeof *bits);
        ok = t->bits != NULL;
        if (ok) memcpy(t->bits, bits, n_bits * sizeof *bits);
    }
    fv__free(p->env, bits, most_bits * sizeof *bits);
    fv__free(p->env, ranges, nodes * sizeof *ranges);
    return ok;
}

bool fv__trie_build(fv__trie *t, fv__pool *p, const fv__str *keys, const int32_t *values, int32_t n)
{
    size_t bytes = (size_t)n * sizeof(item);
    *t = (fv__trie){0};
    item *items = n ? fv__alloc(p->env, bytes) : NULL;
    if (n && !items) return false;
    for (int32_t i = 0; i < n; i++) items[i] = (item){keys[i], values ? values[i] : i, i};
    if (n) qsort(items, (size_t)n, sizeof *items, by_key);
    bool ok = build(t, p, items, n);
    fv__free(p->env, items, bytes);
    return ok;
}

/* *len is set only where something is found; steps are counted for the work budget. */
int32_t fv__trie_longest(const fv__trie *t, uint32_t root, const char *s, size_t n, size_t *len,
                         uint64_t *steps)
{
    int32_t best = -1;
    uint32_t node = root;
    size_t i;
    for (i = 0; i < n; i++) {
        node = fv__trie_step(t, node, (unsigned char)s[i]);
        if (node == FV__TRIE_NONE) break;
        if (t->nodes[node].value >= 0) {
            best = t->nodes[node].value;
            *len = i + 1;
        }
    }
    *steps += i;
    return best;
}
