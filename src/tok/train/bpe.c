/* bpe.c - learning merges: join the most frequent pair of neighbours, again and again (BPE and
 * WordPiece).
 *
 * Each pair knows its count and the words it was seen in.  A heap gives the best pair; counts that
 * fell since an entry was made are found out when it comes up.  Ties go to the pair with the lower
 * ids, so the result depends on the texts alone.
 *
 * WordPiece is trained by the same merges on tokens with "##" and keeps only the vocabulary, as
 * tokenizers does (Google's own trainer, which scores pairs by likelihood, was never
 * published). Counts are of words: a pair in a word of count 10 counts 10.
 *
 * The alternative, counting all pairs anew after each merge, is what short scripts do: simple
 * and (merges * text). This one holds an occurrence (8 bytes) for every pair of every distinct
 * word and visits each word once a merge that concerns it. */
#include "train.h"

typedef struct word {
    int32_t *s; /* symbols; -1 for a character that was not kept */
    int32_t n;
    int64_t count;
} word;

/*    pairs (hash table)      count, seen ->  occurrences[]: word, next -> .. -> 0
 *    heap                    (count, a, b); entries may be out of date, checked when on top */
typedef struct pair {
    int32_t a, b; /* a < 0: a free slot */
    int64_t count;
    int32_t seen; /* first of its occurrences, 0: none */
} pair;

typedef struct occurrence {
    int32_t word, next;
} occurrence;

/* A copy of a pair's count at the time it was pushed. */
typedef struct entry {
    int64_t count;
    int32_t a, b;
} entry;

/* Everything belongs to fv__train_bpe. `failed` is sticky: out of memory, or more than 2^31
 * occurrences. */
typedef struct state {
    fv__trainer *r;
    const fv_env *env;
    fv__set tokens;
    word *words;
    int32_t n_words;
    int32_t *symbols;
    size_t symbols_size, words_size;
    pair *pairs;
    uint32_t n_pairs, mask;
    size_t pairs_size;
    occurrence *occurrences;
    int32_t n_occurrences;
    size_t occurrences_size;
    entry *heap;
    size_t n_heap, heap_size;
    int32_t (*merges)[2];
    int32_t n_merges;
    size_t merges_size;
    fv__str prefix; /* of continuing tokens: WordPiece */
    bool failed;
} state;

/* ---- pairs ---- */

static uint32_t slot_of(const state *s, int32_t a, int32_t b)
{
    uint32_t h = ((uint32_t)a * 0x9E3779B1u) ^ ((uint32_t)b * 0x85EBCA6Bu),
             i = (h ^ h >> 15) & s->mask;
    while (s->pairs[i].a >= 0 && (s->pairs[i].a != a || s->pairs[i].b != b)) i = (i + 1) & s->mask;
    return i;
}

static bool grow_pairs(state *s)
{
    pair *old = s->pairs;
    uint32_t n = old ? s->mask + 1 : 0, size = n ? n * 2 : 4096;
    size_t bytes = size * sizeof *old;
    pair *fresh = fv__alloc(s->env, bytes);
    if (!fresh) return false;
    for (uint32_t i = 0; i < size; i++) fresh[i].a = -1;
    s->pairs = fresh;
    s->mask = size - 1;
    for (uint32_t i = 0; i < n; i++)
        if (old[i].a >= 0) fresh[slot_of(s, old[i].a, old[i].b)] = old[i];
    fv__free(s->env, old, s->pairs_size);
    s->pairs_size = bytes;
    return true;
}

static pair *get_pair(state *s, int32_t a, int32_t b)
{
    /* At most three quarters full, or linear probing degenerates. */
    bool full = !s->pairs || s->n_pairs >= s->mask / 4 * 3;
    if (full && !grow_pairs(s)) {
        s->failed = true;
        return NULL;
    }
    pair *p = s->pairs + slot_of(s, a, b);
    if (p->a < 0) *p = (pair){a, b, 0, 0}, s->n_pairs++;
    return p;
}

/* Notes that the pair is (again) in a word; words are noted in runs, so looking at the last one is
 * enough. */
static void add_occurrence(state *s, pair *p, int32_t w)
/* Index 0 is never used, so that 0 can mean "none" in seen and next. */
{
    void *occurrences = s->occurrences;
    if (p->seen && s->occurrences[p->seen].word == w) return;
    if (s->n_occurrences == INT32_MAX - 1 ||
        !fv__grow(s->env, &occurrences, &s->occurrences_size,
                  ((size_t)s->n_occurrences + 2) * sizeof *s->occurrences)) {
        s->failed = true;
        return;
    }
    s->occurrences = occurrences;
    s->occurrences[++s->n_occurrences] = (occurrence){w, p->seen};
    p->seen = s->n_occurrences;
}

/* ---- the heap ---- */

/* More first, then lower ids: those of letters and earlier merges. */
static bool better(entry x, entry y)
{
    if (x.count != y.count) return x.count > y.count;
    return x.a != y.a ? x.a < y.a : x.b < y.b;
}

static void heap_push(state *s, entry x)
{
    void *heap = s->heap;
    if (!fv__grow(s->env, &heap, &s->heap_size, (s->n_heap + 1) * sizeof *s->heap)) {
        s->failed = true;
        return;
    }
    s->heap = heap;
    size_t i = s->n_heap++;
    for (; i && better(x, s->heap[(i - 1) / 2]); i = (i - 1) / 2) s->heap[i] = s->heap[(i - 1) / 2];
    s->heap[i] = x;
}

static entry heap_pop(state *s)
{
    entry top = s->heap[0], x = s->heap[--s->n_heap];
    size_t i = 0;
    for (size_t k; (k = 2 * i + 1) < s->n_heap; i = k) {
        if (k + 1 < s->n_heap && better(s->heap[k + 1], s->heap[k])) k++;
        if (!better(s->heap[k], x)) break;
        s->heap[i] = s->heap[k];
    }
    s->heap[i] = x;
    return top;
}

/* ---- words ---- */

/* Adds a word's pairs, or takes them away; `only`: note occurrences of pairs with this symbol alone
 * (-1: of all).
 * A merge changes a word's pairs near the merge only, but all are taken off and added again:
 * words are short, and one rule covers "aaa" and its kin. */
static void count_word(state *s, int32_t w, int64_t sign, int32_t only)
{
    const word *x = s->words + w;
    for (int32_t i = 0; i + 1 < x->n && !s->failed; i++) {
        int32_t a = x->s[i], b = x->s[i + 1];
        pair *p = a >= 0 && b >= 0 ? get_pair(s, a, b) : NULL;
        if (!p) continue;
        p->count += sign * x->count;
        if (sign > 0 && (only < 0 || a == only || b == only)) add_occurrence(s, p, w);
    }
}

/* "##" in front of what continues a word. 256 bytes hold any prefix and a character of at most
 * 4. */
static int32_t token_of(state *s, fv__str text, bool first)
{
    char buf[256];
    if (first || !s->prefix.n) return fv__set_add(&s->tokens, text.s, text.n);
    if (s->prefix.n + text.n > sizeof buf) return -1;
    memcpy(buf, s->prefix.s, s->prefix.n);
    memcpy(buf + s->prefix.n, text.s, text.n);
    return fv__set_add(&s->tokens, buf, s->prefix.n + text.n);
}

/* The alphabet becomes tokens (continuing forms too, as they occur), words become their symbols. */
static bool start_words(state *s, const fv__set *alphabet)
{
    const fv__set *words = &s->r->words;
    size_t total = 0;
    /* Never more symbols than bytes: one array for all words, which only shrink. */
    for (int32_t i = 0; i < words->n; i++) total += words->v[i].len;
    s->symbols_size = (total + 1) * sizeof *s->symbols;
    s->words_size = ((size_t)words->n + 1) * sizeof *s->words;
    s->symbols = fv__alloc(s->env, s->symbols_size);
    s->words = fv__alloc(s->env, s->words_size);
    if (!s->symbols || !s->words) return false;
    for (int32_t i = 0; i < alphabet->n; i++)
        if (fv__set_add(&s->tokens, fv__set_str(alphabet, i).s, alphabet->v[i].len) < 0)
            return false;
    int32_t *at = s->symbols;
    for (int32_t i = 0; i < words->n; i++) {
        fv__str text = fv__set_str(words, i);
        word *w = s->words + s->n_words++;
        *w = (word){at, 0, words->v[i].count};
        for (size_t k = 0; k < text.n;) {
            uint32_t cp;
            size_t len = (size_t)fv__char_at(&cp, text.s + k);
            bool kept = fv__set_find(alphabet, text.s + k, len) >= 0;
            int32_t id = kept ? token_of(s, (fv__str){text.s + k, len}, !k) : -1;
            if (kept && id < 0) return false;
            w->s[w->n++] = id;
            k += len;
        }
        at += w->n;
    }
    return true;
}

/* ---- merging ---- */

static int32_t joined(state *s, int32_t a, int32_t b)
{
    fv__str x = fv__set_str(&s->tokens, a), y = fv__set_str(&s->tokens, b);
    bool continuing = s->prefix.n && y.n > s->prefix.n && !memcmp(y.s, s->prefix.s, s->prefix.n);
    size_t skip = continuing ? s->prefix.n : 0, n = x.n + y.n - skip;
    char *buf = fv__alloc(s->env, n);
    if (!buf) return -1;
    memcpy(buf, x.s, x.n);
    memcpy(buf + x.n, y.s + skip, y.n - skip);
    int32_t id = fv__set_add(&s->tokens, buf, n);
    fv__free(s->env, buf, n);
    return id;
}

/* Left to right, non-overlapping: "aaa" with (a, a) becomes "aa a", as encoding does it. */
static void merge_word(state *s, int32_t w, int32_t a, int32_t b, int32_t id)
{
    word *x = s->words + w;
    bool there = false;
    /* An occurrence may be stale: an earlier merge has taken the pair apart in this word. */
    for (int32_t i = 0; i + 1 < x->n && !there; i++) there = x->s[i] == a && x->s[i + 1] == b;
    if (!there) return;
    count_word(s, w, -1, -1);
    int32_t out = 0;
    for (int32_t i = 0; i < x->n; i++) {
        bool here = i + 1 < x->n && x->s[i] == a && x->s[i + 1] == b;
        x->s[out++] = here ? id : x->s[i];
        if (here) i++;
    }
    x->n = out;
    count_word(s, w, 1, id);
}

/* New neighbours of a fresh symbol enter the heap once all words are done, with their final
 * counts. */
static void push_fresh(state *s, int32_t first_occurrence, int32_t id)
{
    for (int32_t p = first_occurrence + 1; p <= s->n_occurrences && !s->failed; p++) {
        const word *w = s->words + s->occurrences[p].word;
        for (int32_t i = 0; i + 1 < w->n; i++) {
            if ((w->s[i] != id && w->s[i + 1] != id) || w->s[i] < 0 || w->s[i + 1] < 0) continue;
            pair *q = get_pair(s, w->s[i], w->s[i + 1]);
            /* only at a pair's last occurrence: once */
            if (!q || q->seen != p || !q->count) continue;
            heap_push(s, (entry){q->count, q->a, q->b});
        }
    }
}

static bool add_merge(state *s, int32_t a, int32_t b)
{
    void *m = s->merges;
    if (!fv__grow(s->env, &m, &s->merges_size, ((size_t)s->n_merges + 1) * sizeof *s->merges))
        return false;
    s->merges = m;
    s->merges[s->n_merges][0] = a;
    s->merges[s->n_merges++][1] = b;
    return true;
}

/* Each merge visits the words that hold its pair and no others, so training is near linear in
 * the text of distinct words instead of (number of merges) * (all words). */
static bool learn(state *s)
{
    int32_t start = s->tokens.n;
    for (int32_t w = 0; w < s->n_words; w++) count_word(s, w, 1, -1);
    for (uint32_t i = 0; i <= s->mask && s->pairs && !s->failed; i++)
        if (s->pairs[i].a >= 0)
            heap_push(s, (entry){s->pairs[i].count, s->pairs[i].a, s->pairs[i].b});
    while (s->n_heap && s->tokens.n < s->r->vocab && !s->failed) {
        entry top = heap_pop(s);
        pair *p = get_pair(s, top.a, top.b);
        /* The heap's top bounds all others, so the first entry below min_count ends the
         * training. */
        if (!p || top.count < s->r->min_count) break;
        if (p->count != top.count) {
            /* Stale: counts only fall between pushes, so the pair goes back with what it has
             * now. */
            if (p->count > 0) heap_push(s, (entry){p->count, top.a, top.b});
            continue;
        }
        int32_t seen = p->seen, first = s->n_occurrences, id = joined(s, top.a, top.b);
        if (id < 0 || !add_merge(s, top.a, top.b)) return false;
        /* The list is detached first: merging adds occurrences of new pairs, and this pair must
         * not grow while it is walked. */
        p->seen = 0;
        for (int32_t i = seen; i && !s->failed; i = s->occurrences[i].next)
            merge_word(s, s->occurrences[i].word, top.a, top.b, id);
        push_fresh(s, first, id);
        fv__progress(s->r, "merges", (double)(s->tokens.n - start) / (s->r->vocab - start));
    }
    return !s->failed;
}

/* ---- the model ---- */

static bool to_model(state *s)
{
    fv__model *m = &s->r->t->model;
    fv__pool *p = &s->r->t->pool;
    if (!fv__vocab_init(&m->vocab, p, s->tokens.n, s->tokens.n, s->tokens.used)) return false;
    for (int32_t i = 0; i < s->tokens.n; i++)
        fv__vocab_put(&m->vocab, fv__set_str(&s->tokens, i).s, s->tokens.v[i].len, i);
    if (m->kind != FV__MODEL_BPE) return true;
    if (!fv__merge_table(m, p, s->n_merges)) return false;
    for (int32_t i = 0; i < s->n_merges; i++) {
        /* joined finds the token that learning made; it is never a new one here. */
        int32_t a = s->merges[i][0], b = s->merges[i][1], id = joined(s, a, b);
        if (id < 0) return false;
        m->pairs[i][0] = a;
        m->pairs[i][1] = b;
        fv__merge_put(m, a, b, i, id);
    }
    m->n_pairs = s->n_merges;
    return true;
}

fv_status fv__train_bpe(fv__trainer *r)
{
    state s = {.r = r, .env = r->t->env, .tokens = {.env = r->t->env}};
    fv__set alphabet = {.env = s.env};
    if (r->o->kind == FV_TOK_WORDPIECE) s.prefix = (fv__str){"##", 2};
    bool ok = true;
    for (int32_t i = 0; i < r->specials.n && ok; i++)
        ok = fv__set_add(&s.tokens, fv__set_str(&r->specials, i).s, r->specials.v[i].len) >= 0;
    ok = ok && fv__alphabet(r, &alphabet) && start_words(&s, &alphabet) && learn(&s) &&
         to_model(&s);
    fv__set_free(&alphabet);
    fv__set_free(&s.tokens);
    fv__free(s.env, s.words, s.words_size);
    fv__free(s.env, s.symbols, s.symbols_size);
    fv__free(s.env, s.pairs, s.pairs_size);
    fv__free(s.env, s.occurrences, s.occurrences_size);
    fv__free(s.env, s.heap, s.heap_size);
    fv__free(s.env, s.merges, s.merges_size);
    return ok ? FV_OK : fv__train_no_memory(r);
}
