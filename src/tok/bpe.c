/* bpe.c - byte pair encoding: the symbols of a piece, merged in the order of their ranks.
 *
 * Short runs of symbols are scanned for their best pair again and again; long ones go through a
 * heap, so that a megabyte without a space costs n log n.  Tokenizers without a splitter hand over
 * whole texts: these are cut first wherever no merge can reach across, which changes nothing and
 * makes the runs short again.
 *
 *    piece     l o w e r            symbols (id, bytes)
 *    rank 3    lo w e r             the pair of lowest rank anywhere, leftmost of equals
 *    rank 9    lo w er
 *    rank 40   low er               until no neighbours are in the table
 *
 * Sennrich et al., 2016.  Rank is the line of the pair in merges.txt; a merge keeps the byte
 * length, so offsets need no second pass.  Greedy by rank, not by length: the longest match would
 * give other ids. */
#include "work.h"

#define SHORT 40 /* symbols; up to here the scan wins */
#define NO_MERGE INT32_MAX

/* Open addressing with linear probing, at a load of at most 0.8. */
static const fv__merge *find(const fv__model *m, int32_t a, int32_t b)
{
    for (uint32_t i = fv__merge_slot(m, a, b);; i = (i + 1) & m->merge_mask) {
        const fv__merge *s = m->merges + i;
        if (s->id < 0) return NULL;
        if (s->a == (uint32_t)a && s->b == (uint32_t)b) return s;
    }
}

/* ---- merging a run ---- */

/* O(n^2) with arrays that stay in L1; ranks of pairs are kept, so a merge looks up two pairs
 * only. */
static size_t merge_short(const fv__model *m, fv__symbol *s, size_t n)
{
    int32_t rank[SHORT], id[SHORT];
    for (size_t i = 0; i + 1 < n; i++) {
        const fv__merge *g = find(m, s[i].id, s[i + 1].id);
        rank[i] = g ? g->rank : NO_MERGE;
        id[i] = g ? g->id : -1;
    }
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (rank[i] < rank[best]) best = i;
        if (rank[best] == NO_MERGE) break;
        s[best] = (fv__symbol){id[best], s[best].len + s[best + 1].len};
        n--;
        for (size_t i = best + 1; i < n; i++) s[i] = s[i + 1];
        for (size_t i = best; i + 1 < n; i++) rank[i] = rank[i + 1], id[i] = id[i + 1];
        for (size_t i = best ? best - 1 : 0; i <= best && i + 1 < n; i++) {
            const fv__merge *g = find(m, s[i].id, s[i + 1].id);
            rank[i] = g ? g->rank : NO_MERGE;
            id[i] = g ? g->id : -1;
        }
    }
    return n;
}

/* Symbols stay where they are and form a doubly linked list; merged ones drop out of it. */
typedef struct link {
    int32_t prev, next;
    int32_t rank, id; /* of the pair that starts here */
} link;

typedef struct heap {
    uint64_t *v; /* rank << 32 | position: lowest rank first, then leftmost */
    size_t n;
} heap;

static void heap_push(heap *h, uint64_t x)
{
    size_t i = h->n++;
    for (; i && h->v[(i - 1) / 2] > x; i = (i - 1) / 2) h->v[i] = h->v[(i - 1) / 2];
    h->v[i] = x;
}

static uint64_t heap_pop(heap *h)
{
    uint64_t top = h->v[0], x = h->v[--h->n];
    size_t i = 0;
    for (size_t k; (k = 2 * i + 1) < h->n; i = k) {
        if (k + 1 < h->n && h->v[k + 1] < h->v[k]) k++;
        if (h->v[k] >= x) break;
        h->v[i] = h->v[k];
    }
    h->v[i] = x;
    return top;
}

/* Old entries of the heap are not removed: when one comes up its rank no longer agrees with
 * l[i].rank. */
static void look(const fv__model *m, const fv__symbol *s, link *l, heap *h, int32_t i)
{
    const fv__merge *g = i >= 0 && l[i].next >= 0 ? find(m, s[i].id, s[l[i].next].id) : NULL;
    if (i < 0) return;
    l[i].rank = g ? g->rank : NO_MERGE;
    l[i].id = g ? g->id : -1;
    if (g) heap_push(h, (uint64_t)g->rank << 32 | (uint32_t)i);
}

/* Each merge takes one entry and adds two, so the heap holds at most n - 1 + 2 * (n - 1) of
 * them. */
static bool merge_long(const fv__model *m, fv__work *w, fv__symbol *s, size_t *count)
{
    size_t n = *count;
    if (!fv__want(w, &w->links, &w->cap_links, n, sizeof(link)) ||
        !fv__want(w, &w->heap, &w->cap_heap, 3 * n, sizeof(uint64_t)))
        return false;
    link *l = w->links;
    heap h = {.v = w->heap};
    for (size_t i = 0; i < n; i++)
        l[i] = (link){(int32_t)i - 1, i + 1 < n ? (int32_t)i + 1 : -1, NO_MERGE, -1};
    for (size_t i = 0; i < n; i++) look(m, s, l, &h, (int32_t)i);
    while (h.n) {
        uint64_t top = heap_pop(&h);
        int32_t i = (int32_t)(uint32_t)top, j = l[i].next;
        if (l[i].rank != (int32_t)(top >> 32)) continue; /* its pair is gone */
        s[i] = (fv__symbol){l[i].id, s[i].len + s[j].len};
        l[i].next = l[j].next;
        if (l[j].next >= 0) l[l[j].next].prev = i;
        l[j].rank = NO_MERGE;
        look(m, s, l, &h, l[i].prev);
        look(m, s, l, &h, i);
    }
    size_t out = 0;
    for (int32_t i = 0; i >= 0; i = l[i].next) s[out++] = s[i];
    *count = out;
    return true;
}

/* Merges s[0, n) in place, run by run.
 * joints is a Bloom-like bit set over (last symbol, first symbol) of every merge: a clear bit
 * proves that no merge can span that boundary; a set one may be a collision and only costs time. */
static bool merge_all(const fv__model *m, fv__work *w, fv__symbol *s, size_t *count)
{
    size_t n = *count, out = 0;
    for (size_t from = 0; from < n;) {
        size_t to = m->joints && n > SHORT / 4 ? from + 1 : n;
        while (to < n) {
            uint32_t bit = fv__joint((uint32_t)s[to - 1].id, (uint32_t)s[to].id);
            if (!(m->joints[bit >> 6] >> (bit & 63) & 1)) break;
            to++;
        }
        size_t len = to - from;
        if (len > SHORT) {
            if (!merge_long(m, w, s + from, &len)) return false;
        } else {
            len = merge_short(m, s + from, len);
        }
        memmove(s + out, s + from, len * sizeof *s);
        out += len;
        from = to;
    }
    *count = out;
    return true;
}

/* ---- the first symbols of a piece ---- */

/* From text to first symbols, three alphabets: GPT-2's 256 bytes, characters of the vocabulary,
 * or byte tokens <0x00>..<0xFF> for characters that it lacks (byte fallback). */
typedef struct starter {
    fv__symbol *s;
    size_t n;
    bool unknown; /* the last symbol is an unknown one that may grow */
    size_t lead;  /* bytes dropped before the first symbol */
} starter;

static void push(starter *t, int32_t id, size_t len)
{
    t->s[t->n++] = (fv__symbol){id, (uint32_t)len};
    t->unknown = false;
}

static void push_unknown(const fv__model *m, starter *t, size_t len)
{
    if (m->unk < 0) { /* no unknown token: the character vanishes */
        if (t->n)
            t->s[t->n - 1].len += (uint32_t)len;
        else
            t->lead += len;
    } else if (t->unknown && m->fuse_unk) {
        t->s[t->n - 1].len += (uint32_t)len;
    } else {
        push(t, m->unk, len);
        t->unknown = true;
    }
}

static void push_char(const fv__model *m, starter *t, const char *s, size_t len, bool first,
                      bool last)
{
    char buf[128];
    size_t n = 0;
    if (m->ascii && !(*s & 0x80) && m->ascii[(unsigned char)*s] >= 0) {
        push(t, m->ascii[(unsigned char)*s], 1);
        return;
    }
    if (!first) memcpy(buf, m->prefix.s, m->prefix.n), n = m->prefix.n;
    memcpy(buf + n, s, len), n += len;
    if (last) memcpy(buf + n, m->suffix.s, m->suffix.n), n += m->suffix.n;
    int32_t id = fv__vocab_id(&m->vocab, buf, n);
    if (id >= 0) {
        push(t, id, len);
        return;
    }
    bool bytes = m->byte_fallback;
    for (size_t i = 0; i < n && bytes; i++) bytes = m->byte_ids[(unsigned char)buf[i]] >= 0;
    for (size_t i = 0; i < n && bytes; i++) push(t, m->byte_ids[(unsigned char)buf[i]], i < len);
    if (!bytes) push_unknown(m, t, len);
}

static bool first_symbols(const fv__model *m, fv__work *w, const char *s, size_t n, starter *t)
{
    size_t most = m->byte_fallback ? n + (n + 1) * (m->prefix.n + m->suffix.n) : n;
    void *symbols = w->symbols;
    bool ok = fv__want(w, &symbols, &w->cap_symbols, most, sizeof *w->symbols);
    w->symbols = symbols;
    if (!ok) return false;
    *t = (starter){.s = w->symbols};
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        if (m->takes_bytes) {
            int32_t id = m->symbols[(i > 0) + 2 * (i + 1 == n)][(unsigned char)s[i]];
            if (id >= 0)
                push(t, id, 1);
            else
                push_unknown(m, t, 1);
            i++;
            continue;
        }
        size_t len = (size_t)fv__char_at(&cp, s + i);
        push_char(m, t, s + i, len, !i, i + len == n);
        i += len;
    }
    return true;
}

/* ---- a piece ---- */

static bool emit_all(fv__work *w, const fv__symbol *s, size_t n, uint32_t at)
{
    for (size_t i = 0; i < n; at += s[i++].len)
        if (!fv__emit(w, s[i].id, at, at + s[i].len)) return false;
    return true;
}

/* The id of a whole piece, for models that ask the vocabulary before they merge. */
static int32_t whole(const fv__model *m, const char *s, size_t n)
{
    char buf[512];
    size_t len = 0;
    if (!m->takes_bytes) return fv__vocab_id(&m->vocab, s, n);
    if (n > m->vocab.longest || n > sizeof buf / 2) return -1;
    for (size_t i = 0; i < n; i++)
        len += (size_t)fv__utf8_put(buf + len, fv__byte_to_char((unsigned char)s[i]));
    return fv__vocab_id(&m->vocab, buf, len);
}

/* The cache is direct-mapped by hash and compares the whole word: natural text repeats its
 * words, and a hit costs one hash instead of all merges. */
static bool encode(const fv__model *m, fv__work *w, uint32_t a, uint32_t b)
{
    const char *s = w->text->s + a;
    size_t n = b - a;
    fv__cached *slot = NULL;
    uint32_t hash = 0;
    if (m->ignore_merges) {
        int32_t id = whole(m, s, n);
        if (id >= 0) return fv__emit(w, id, a, b);
    }
    if (w->cache && n <= FV__CACHE_WORD) {
        hash = fv__hash(m->vocab.seed, s, n);
        slot = w->cache + hash % FV__CACHE_SLOTS;
        if (slot->hash == hash && slot->len == n && !memcmp(slot->word, s, n))
            return emit_all(w, slot->sym, slot->n, a);
    }
    starter t;
    if (!first_symbols(m, w, s, n, &t) || !merge_all(m, w, t.s, &t.n)) return false;
    if (slot && t.n <= FV__CACHE_IDS && !t.lead) {
        slot->hash = hash;
        slot->len = (uint8_t)n;
        slot->n = (uint8_t)t.n;
        memcpy(slot->word, s, n);
        memcpy(slot->sym, t.s, t.n * sizeof *t.s);
    }
    return emit_all(w, t.s, t.n, a + (uint32_t)t.lead);
}

/* frozen: user-defined symbols of a SentencePiece BPE, which are cut out first and never merged. */
bool fv__bpe(const fv__model *m, fv__work *w, uint32_t a, uint32_t b)
{
    uint32_t from = a;
    for (uint32_t i = a; m->frozen && i < b;) {
        size_t len = 1;
        int32_t id = fv__trie_longest(m->frozen, 0, w->text->s + i, b - i, &len, &w->steps);
        if (!fv__within_limits(w)) return false;
        if (id >= 0) {
            if (from < i && !encode(m, w, from, i)) return false;
            if (!fv__emit(w, id, i, i + (uint32_t)len)) return false;
            from = i + (uint32_t)len;
        }
        i += (uint32_t)len;
    }
    return from == b || encode(m, w, from, b);
}
