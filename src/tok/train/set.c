/* set.c - strings with counts, for the trainers.
 *
 * Open addressing at a load of 3/4; slots hold index + 1, so that 0 is empty and memory that
 * comes cleared needs no filling.  Strings lie back to back in one block, which moves when it
 * grows: hence offsets, not pointers. */
#include <stdlib.h>

#include "train.h"

static bool rehash(fv__set *s)
{
    if (!s->mask) s->seed = fv__hash_seed();
    uint32_t slots = s->mask ? (s->mask + 1) * 2 : 1024;
    int32_t *fresh = fv__alloc(s->env, slots * sizeof *fresh);
    if (!fresh) return false;
    for (int32_t i = 0; i < s->n; i++) {
        uint32_t at = s->v[i].hash & (slots - 1);
        while (fresh[at]) at = (at + 1) & (slots - 1);
        fresh[at] = i + 1;
    }
    fv__free(s->env, s->slots, s->slots_size);
    s->slots = fresh;
    s->slots_size = slots * sizeof *fresh;
    s->mask = slots - 1;
    return true;
}

static uint32_t find(const fv__set *s, const char *text, size_t n, uint32_t hash)
{
    uint32_t at = hash & s->mask;
    for (; s->slots[at]; at = (at + 1) & s->mask) {
        const struct fv__counted *c = s->v + s->slots[at] - 1;
        if (c->hash == hash && c->len == n && !memcmp(s->text + c->at, text, n)) break;
    }
    return at;
}

int32_t fv__set_find(const fv__set *s, const char *text, size_t n)
{
    return s->slots ? s->slots[find(s, text, n, fv__hash(s->seed, text, n))] - 1 : -1;
}

int32_t fv__set_add(fv__set *s, const char *text, size_t n)
{
    if ((uint32_t)s->n >= s->mask / 4 * 3 && (s->n >= INT32_MAX / 2 || !rehash(s))) return -1;
    uint32_t hash = fv__hash(s->seed, text, n);
    uint32_t slot = find(s, text, n, hash);
    if (s->slots[slot]) return s->slots[slot] - 1;
    void *v = s->v, *t = s->text;
    bool ok = fv__grow(s->env, &v, &s->cap_v, ((size_t)s->n + 1) * sizeof *s->v);
    s->v = v;
    ok = ok && fv__grow(s->env, &t, &s->cap_text, s->used + n + 1);
    s->text = t;
    if (!ok) return -1;
    memcpy(s->text + s->used, text, n);
    s->v[s->n] = (struct fv__counted){s->used, (uint32_t)n, hash, 0};
    s->used += n;
    s->slots[slot] = ++s->n;
    return s->n - 1;
}

void fv__set_free(fv__set *s)
{
    fv__free(s->env, s->text, s->cap_text);
    fv__free(s->env, s->v, s->cap_v);
    fv__free(s->env, s->slots, s->slots_size);
    *s = (fv__set){.env = s->env};
}

/* Sorting keys that carry their text: comparison functions see nothing else. */
typedef struct key {
    const char *text;
    struct fv__counted c;
} key;

static int by_text(const void *pa, const void *pb)
{
    const key *a = pa, *b = pb;
    size_t n = a->c.len < b->c.len ? a->c.len : b->c.len;
    int d = n ? memcmp(a->text, b->text, n) : 0;
    return d ? d : (a->c.len > b->c.len) - (a->c.len < b->c.len);
}

static int by_count(const void *pa, const void *pb)
{
    const key *a = pa, *b = pb;
    return a->c.count != b->c.count ? (a->c.count > b->c.count ? -1 : 1) : by_text(pa, pb);
}

/* Indices change, the hash table is filled anew; ties by text make the order a function of the
 * contents. */
bool fv__set_sort(fv__set *s, bool count_first)
{
    size_t bytes = (size_t)s->n * sizeof(key);
    if (!s->n) return true;
    key *keys = fv__alloc(s->env, bytes);
    if (!keys) return false;
    for (int32_t i = 0; i < s->n; i++) keys[i] = (key){s->text + s->v[i].at, s->v[i]};
    qsort(keys, (size_t)s->n, sizeof *keys, count_first ? by_count : by_text);
    memset(s->slots, 0, s->slots_size);
    for (int32_t i = 0; i < s->n; i++) {
        s->v[i] = keys[i].c;
        uint32_t at = s->v[i].hash & s->mask;
        while (s->slots[at]) at = (at + 1) & s->mask;
        s->slots[at] = i + 1;
    }
    fv__free(s->env, keys, bytes);
    return true;
}
