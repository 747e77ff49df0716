/* vocab.c - text to id by open addressing, id to text by index.
 *
 *    slots[hash & mask] -> id -> ids[id] = {offset, length} -> text     one block of strings
 *
 * Tables are written while a tokenizer is opened and only read after that: any number of threads
 * share one tokenizer without locks. */
#include "vocab.h"

#include <sys/random.h>

/* Up to seven bytes as a number; overlapping loads instead of a loop. */
static uint64_t tail(const char *s, size_t n)
{
    uint32_t lo, hi;
    if (n >= 4) {
        memcpy(&lo, s, 4);
        memcpy(&hi, s + n - 4, 4);
        return (uint64_t)hi << 32 | lo;
    }
    return n ? (uint64_t)(unsigned char)s[0] << 16 | (uint64_t)(unsigned char)s[n / 2] << 8 |
                   (unsigned char)s[n - 1]
             : 0;
}

/* A file can be made so that all its tokens fall into one slot of a known hash, and opening it
 * takes minutes; it cannot know the seed. */
uint64_t fv__hash_seed(void)
{
    uint64_t seed = 0;
    if (getrandom(&seed, sizeof seed, GRND_NONBLOCK) != (ssize_t)sizeof seed)
        seed = (uint64_t)(uintptr_t)&seed * 0x9E3779B97F4A7C15ull; /* where the stack lies */
    return seed;
}

/* Multiply and fold, eight bytes at a time; good enough to be used modulo a power of two.  The seed
 * is in the multiplier too: a start alone would not keep differences of texts from cancelling. */
uint32_t fv__hash(uint64_t seed, const char *s, size_t n)
{
    const uint64_t k = (0x9E3779B97F4A7C15ull ^ seed) | 1;
    uint64_t h = n * k + seed, w;
    for (; n >= 8; s += 8, n -= 8) {
        memcpy(&w, s, 8);
        h = (h ^ w) * k;
        h ^= h >> 32;
    }
    h = (h ^ tail(s, n)) * k;
    h ^= h >> 29;
    h *= 0xBF58476D1CE4E5B9ull;
    return (uint32_t)(h >> 32);
}

/* A load of at most 3/4.  Ids may have holes: their number and that of tokens are apart. */
bool fv__vocab_init(fv__vocab *v, fv__pool *p, int64_t tokens, int64_t ids, size_t bytes)
{
    if (tokens < 0 || ids < 0 || tokens > INT32_MAX / 2 || ids > INT32_MAX / 2) return false;
    uint32_t slots = 16;
    while (slots < tokens + tokens / 3) slots *= 2;
    *v = (fv__vocab){.cap = (int32_t)ids, .mask = slots - 1, .seed = fv__hash_seed()};
    v->capacity = bytes + (size_t)tokens;
    if (v->capacity > UINT32_MAX) return false;
    v->text = fv__pool_alloc(p, v->capacity);
    v->ids = fv__pool_array(p, (size_t)ids, sizeof *v->ids);
    v->slots = fv__pool_array(p, slots, sizeof *v->slots);
    if (!v->text || !v->ids || !v->slots) return false;
    for (uint32_t i = 0; i < slots; i++) v->slots[i].id = -1;
    return true;
}

static struct fv__slot *find(const fv__vocab *v, const char *s, size_t n, uint32_t hash)
{
    for (uint32_t i = hash & v->mask;; i = (i + 1) & v->mask) {
        struct fv__slot *slot = v->slots + i;
        if (slot->id < 0) return slot;
        const struct fv__entry *t = v->ids + slot->id;
        if (slot->hash == hash && t->len == n && !memcmp(v->text + t->at, s, n)) return slot;
    }
}

fv__vocab_add fv__vocab_put(fv__vocab *v, const char *s, size_t n, int32_t id)
{
    uint32_t hash = fv__hash(v->seed, s, n);
    if (id < 0 || id >= v->cap || v->capacity - v->used < n + 1 || (uint32_t)v->n == v->mask)
        return FV__NO_SPACE;
    struct fv__slot *slot = find(v, s, n, hash);
    if (slot->id >= 0) return FV__SAME_TEXT;
    if (v->ids[id].set) return FV__SAME_ID;
    *slot = (struct fv__slot){hash, id};
    v->ids[id] = (struct fv__entry){(uint32_t)v->used, (uint32_t)n, true};
    if (n) memcpy(v->text + v->used, s, n);
    v->used += n + 1;
    v->n++;
    if (id >= v->size) v->size = id + 1;
    if (n > v->longest) v->longest = n;
    return FV__ADDED;
}

int32_t fv__vocab_id(const fv__vocab *v, const char *s, size_t n)
{
    return v->slots && n <= v->longest ? find(v, s, n, fv__hash(v->seed, s, n))->id : -1;
}

bool fv__vocab_has(const fv__vocab *v, int32_t id)
{
    return id >= 0 && id < v->size && v->ids[id].set;
}

fv__str fv__vocab_str(const fv__vocab *v, int32_t id)
{
    return fv__vocab_has(v, id) ? (fv__str){v->text + v->ids[id].at, v->ids[id].len}
                                : (fv__str){NULL, 0};
}
