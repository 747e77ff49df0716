/* prefix_cache.c - keys and values of sequences that were read, for prompts that begin alike.
 *
 * What is kept are blocks of 16 tokens.  A block is found by its tokens and by the block before
 * it, so it stands for everything from the first token on, and sequences that begin alike share
 * their blocks: a system prompt is kept once, however many conversations follow it.  Rows of a
 * session whose memory is paged show the blocks that are found in place of tokens of their own, so
 * that they are stored once as well (model/session_share.c); elsewhere a block is copied into the
 * row, which costs a small part of what reading its tokens would.  The least recently used one that
 * no row shows gives way when the budget is full.
 *
 * Equal tokens behind equal tokens give equal keys and values, bit for bit, whatever step they
 * were computed in: so a sequence gets the same tokens with the cache and without.  That does not
 * hold where keys depend on the length of the whole prompt (dynamic rotary positions); such a
 * model asks its session for it (fv_session_span), and the cache switches itself off. */
#include "gen/prefix_cache.h"

#include "base/base.h"

static uint64_t hash_of(uint64_t parent, const int32_t *ids)
{
    uint64_t h = parent * 0x9E3779B97F4A7C15u + 1;
    for (int i = 0; i < FV_PREFIX_BLOCK; i++) {
        h = (h ^ (uint32_t)ids[i]) * 0xBF58476D1CE4E5B9u;
        h ^= h >> 29;
    }
    return h;
}

static int32_t *bucket_of(fv_prefix_cache *p, uint64_t parent, const int32_t *ids)
{
    return &p->bucket[hash_of(parent, ids) % (uint64_t)p->room];
}

/* Makes it the one that was used last. */
static void touch(fv_prefix_cache *p, fv_prefix_block *b)
{
    int32_t i = (int32_t)(b - p->block);
    if (b->used && p->newest != i) { /* and so has one behind it */
        *(b->older < 0 ? &p->oldest : &p->block[b->older].newer) = b->newer;
        p->block[b->newer].older = b->older;
    }
    if (!b->used || p->newest != i) {
        *(p->newest < 0 ? &p->oldest : &p->block[p->newest].newer) = i;
        b->older = p->newest;
        b->newer = -1;
        p->newest = i;
    }
    b->used = ++p->clock;
}

static fv_prefix_block *find(fv_prefix_cache *p, uint64_t parent, const int32_t *ids)
{
    for (int32_t i = *bucket_of(p, parent, ids); i >= 0; i = p->block[i].next) {
        fv_prefix_block *b = &p->block[i];
        if (b->parent == parent && !memcmp(b->ids, ids, sizeof b->ids)) {
            touch(p, b);
            return b;
        }
    }
    return NULL;
}

static size_t table_bytes(const fv_prefix_cache *p)
{
    return (size_t)p->room * (sizeof *p->block + sizeof *p->bucket);
}

/* The table, once a step has shown how many bytes a token has. */
static bool prepare(fv_prefix_cache *p, fv_session *s)
{
    if (s->spans) p->off = true;
    if (!p->budget || p->off) return false;
    if (p->block) return true;
    p->each = fv__session_token_bytes(s) * FV_PREFIX_BLOCK;
    p->room = p->each ? p->budget / (int64_t)p->each : 0;
    if (p->room > 1 << 24) p->room = 1 << 24;
    if (p->room < 1) return false;
    p->block = fv__alloc(&p->env, table_bytes(p));
    p->off = !p->block;
    if (p->off) return false;
    p->bucket = (int32_t *)(p->block + p->room);
    p->oldest = p->newest = -1;
    for (int64_t i = 0; i < p->room; i++) {
        p->bucket[i] = -1;
        p->block[i].next = i + 1 < p->room ? (int32_t)i + 1 : -1;
    }
    p->shares = fv__session_share(s, FV_PREFIX_BLOCK, p->room);
    return true;
}

/* Takes the least recently used block that no row shows out of its bucket, or -1; what followed it
 * in a sequence can no longer be found and is, in its turn, the least recently used. */
static int32_t evict(fv_prefix_cache *p, const fv_session *s)
{
    int32_t oldest = p->oldest;
    while (oldest >= 0 && fv__session_block_used(s, oldest)) oldest = p->block[oldest].newer;
    if (oldest < 0 || p->block[oldest].used > p->begun) return -1;
    fv_prefix_block *b = &p->block[oldest];
    int32_t *at = bucket_of(p, b->parent, b->ids);
    while (*at != oldest) at = &p->block[*at].next;
    *at = b->next;
    return oldest;
}

/* A block with memory for its keys and values, in no bucket; NULL: there is no memory. */
static fv_prefix_block *fresh(fv_prefix_cache *p, fv_session *s)
{
    if (p->n >= p->room) {
        int32_t oldest = evict(p, s);
        return oldest < 0 ? NULL : &p->block[oldest];
    }
    void *data = p->shares ? NULL : s->dev->backend->alloc(s->dev, p->each);
    if (p->shares ? !fv__session_block_take(s, p->free) : !data) return NULL;
    fv_prefix_block *b = &p->block[p->free];
    p->free = b->next;
    p->n++;
    b->data = data;
    return b;
}

/* What stands before the first block of a sequence: a number that is no block's serial. */
static uint64_t root_of(int model) { return UINT64_MAX - (uint64_t)model; }

/* Blocks of a row, from its at-th on, that follow one another in memory too: one map shows all. */
typedef struct run {
    int64_t row, at, block, n;
    bool same; /* the row has their tokens */
} run;

static void show(fv_session *s, const run *r)
{
    if (r->n) fv__session_block_show(s, r->row, r->at, r->block, r->n, r->same);
}

static void show_later(fv_session *s, run *r, int64_t at, int64_t block)
{
    if (r->n && block == r->block + r->n) {
        r->n++;
        return;
    }
    show(s, r);
    *r = (run){.row = r->row, .at = at, .block = block, .n = 1, .same = r->same};
}

/* Blocks that follow one another in a row, copied by one launch: each would cost the stepping
 * thread some microseconds, while the device waits. */
enum { MOST_COPIES = 64 };
typedef struct copies {
    int64_t row, from; /* of the first of them */
    void *data[MOST_COPIES];
    int64_t n;
} copies;

static bool paste(copies *k, fv_ctx *c, fv_session *s)
{
    bool ok = !k->n || fv__session_paste(c, s, k->row, FV_PREFIX_BLOCK, k->data, k->n);
    k->n = 0;
    return ok;
}

static void copy(copies *k, fv_ctx *c, fv_session *s)
{
    if (k->n) fv__session_copy(c, s, k->row, k->from, FV_PREFIX_BLOCK, k->data, k->n);
    k->n = 0;
}

int64_t fv__prefix_load(fv_prefix_cache *p, fv_ctx *c, fv_session *s, int model, int64_t row,
                        const int32_t *ids, int64_t most)
{
    uint64_t parent = root_of(model);
    int64_t n = 0;
    run r = {.row = row};
    copies k = {.row = row};
    if (!prepare(p, s)) return 0;
    for (fv_prefix_block *b; n + FV_PREFIX_BLOCK <= most; n += FV_PREFIX_BLOCK) {
        b = find(p, parent, ids + n);
        if (!b || (k.n == MOST_COPIES && !paste(&k, c, s))) break;
        if (p->shares)
            show_later(s, &r, n / FV_PREFIX_BLOCK, b - p->block);
        else
            k.data[k.n++] = b->data;
        parent = b->serial;
    }
    show(s, &r);
    if (p->shares) s->len[row] = (int32_t)n;
    return paste(&k, c, s) ? n : 0;
}

/* A new block behind `parent`, with the tokens of a row from `from` on; NULL: there is no memory,
 * or no block that could give way. */
static fv_prefix_block *keep(fv_prefix_cache *p, copies *k, fv_session *s, uint64_t parent,
                             const int32_t *ids, int64_t from)
{
    fv_prefix_block *b = fresh(p, s);
    if (!b) return NULL;
    int32_t *bucket = bucket_of(p, parent, ids + from);
    memcpy(b->ids, ids + from, sizeof b->ids);
    b->serial = ++p->serial;
    b->parent = parent;
    touch(p, b);
    b->next = *bucket;
    *bucket = (int32_t)(b - p->block);
    if (p->shares) {
        fv__session_block_keep(s, k->row, from / FV_PREFIX_BLOCK, b - p->block);
        return b;
    }
    if (!k->n) k->from = from;
    k->data[k->n++] = b->data;
    return b;
}

void fv__prefix_store(fv_prefix_cache *p, fv_ctx *c, fv_session *s, int model, int64_t row,
                      const int32_t *ids, int64_t n, bool goes_on)
{
    uint64_t parent = root_of(model);
    run r = {.row = row, .same = true};
    copies k = {.row = row};
    if (!prepare(p, s)) return;
    int64_t shared = fv__session_shared(s, row);
    p->begun = p->clock;
    for (int64_t i = 0; i + FV_PREFIX_BLOCK <= n; i += FV_PREFIX_BLOCK) {
        fv_prefix_block *b = find(p, parent, ids + i);
        if (k.n == MOST_COPIES) copy(&k, c, s);
        if (!b) b = keep(p, &k, s, parent, ids, i);
        if (!b) break;
        if (p->shares && goes_on && i >= shared)
            show_later(s, &r, i / FV_PREFIX_BLOCK, b - p->block);
        parent = b->serial;
    }
    show(s, &r);
    copy(&k, c, s);
}

int64_t fv__prefix_bytes(const fv_prefix_cache *p) { return p->n * (int64_t)p->each; }

void fv__prefix_free(fv_prefix_cache *p, fv_device *d)
{
    for (int64_t i = 0; p->block && i < p->n; i++)
        if (p->block[i].data) d->backend->release(d, p->block[i].data, p->each);
    fv__free(&p->env, p->block, table_bytes(p));
    p->block = NULL;
}
