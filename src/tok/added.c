/* added.c - added tokens: found in the text before (or after) it is normalised, never given to the
 * model.
 *
 *    "raw" ones     found in the text as it came                 special tokens, mostly
 *    "normal" ones  found after normalising, themselves normalised
 *
 * Longest match from the left; flags: single_word (not inside a word), lstrip and rstrip (take
 * the white space beside them along).
 *
 * The reference compiles both kinds into Aho-Corasick automata; here a trie is entered at every
 * byte that starts some token, which is as fast on text (few bytes do) and needs no failure
 * links. fv__added_find is called again and again by encode.c, with *at as the cursor. */
#include <stdlib.h>

#include "work.h"

/* by_id: indices of `all` in the order of ids, so that ids may have holes. */
const fv__added *fv__added_by_id(const fv_tok *t, int32_t id)
{
    int32_t lo = 0, hi = t->added.n;
    while (lo < hi) {
        int32_t mid = (lo + hi) / 2;
        const fv__added *a = t->added.all + t->added.by_id[mid];
        if (a->id == id) return a;
        if (a->id < id)
            lo = mid + 1;
        else
            hi = mid;
    }
    return NULL;
}

/* A token of the vocabulary keeps its id; others are numbered behind it, in the order of the
 * file, as the reference does on adding. */
int32_t fv__added_number(fv_tok *t, fv__str content)
{
    int32_t id = fv__vocab_id(&t->model.vocab, content.s, content.n);
    return id >= 0 ? id : t->model.vocab.n + t->added.fresh++;
}

/* ---- tables ---- */

/* Content as it will be met in normalised text. */
static bool normal_content(fv_tok *t, fv__work *w, fv__str content, fv__str *out)
{
    /* Two texts in turn; nothing is tracked, since the content has no source. */
    fv__text *cur = &w->norm[0], *next = &w->norm[1];
    fv__text_view(&w->clean, content.s, content.n, false);
    const fv__text *in = &w->clean;
    for (int i = 0; i < t->n_norm; i++) {
        if (!fv__normalise(t->norm + i, w, in, next)) return false;
        in = next;
        next = cur;
        cur = (fv__text *)(uintptr_t)in;
    }
    return fv__pool_str(&t->pool, out, in->s, in->n) || fv__no_memory(w);
}

/* Contents of the "normal" kind pass through the tokenizer's own normaliser first: <MASK> is
 * looked for as <mask> where the text will be lower case by then. */
static bool build_tries(fv_tok *t, fv__work *w, fv__str *keys, int32_t *values)
{
    fv__added_set *s = &t->added;
    for (int normal = 0; normal < 2; normal++) {
        bool *first = normal ? s->first_normal : s->first_raw;
        int32_t n = 0;
        for (int32_t i = 0; i < s->n; i++) {
            if (s->all[i].normalized != normal) continue;
            keys[n] = s->all[i].content;
            if (normal && !normal_content(t, w, s->all[i].content, &keys[n])) return false;
            if (!keys[n].n) continue;
            first[(unsigned char)*keys[n].s] = true;
            values[n++] = i;
        }
        if (!fv__trie_build(normal ? &s->normal : &s->raw, &t->pool, keys, values, n))
            return fv__no_memory(w);
    }
    return true;
}

/* Sorted apart from the tokens themselves, which keep the order of the file. */
typedef struct numbered {
    int32_t id, index;
} numbered;

static int by_id(const void *a, const void *b)
{
    int32_t x = ((const numbered *)a)->id, y = ((const numbered *)b)->id;
    return (x > y) - (x < y);
}

fv_status fv__added_finish(fv_tok *t, const char *file, fv_err *e)
{
    fv__added_set *s = &t->added;
    size_t n = (size_t)s->n + 1, text = 0;
    for (int32_t i = 0; i < s->n; i++) text += s->all[i].content.n;
    s->by_id = fv__pool_array(&t->pool, n, sizeof *s->by_id);
    numbered *order = fv__alloc(t->env, n * sizeof *order);
    fv__str *keys = fv__alloc(t->env, n * sizeof *keys);
    int32_t *values = fv__alloc(t->env, n * sizeof *values);
    fv__work *w = fv__alloc(t->env, sizeof *w); /* normalising needs one */
    bool ok = s->by_id && order && keys && values && w &&
              fv__vocab_init(&s->names, &t->pool, s->n, s->n, text);
    fv_status st = ok ? FV_OK : fv_fail(e, FV_ENOMEM, "%s: out of memory", file);
    if (ok) {
        w->t = t;
        w->env = t->env;
        fv__work_limits(w, text);
        for (int32_t i = 0; i < s->n; i++) {
            order[i] = (numbered){s->all[i].id, i};
            if (fv__vocab_put(&s->names, s->all[i].content.s, s->all[i].content.n, i) !=
                    FV__ADDED &&
                st == FV_OK)
                st = fv_fail(e, FV_EFORMAT, "%s: added_tokens: \"%.60s\" is there twice", file,
                             s->all[i].content.s);
        }
        qsort(order, (size_t)s->n, sizeof *order, by_id);
        for (int32_t i = 0; i < s->n; i++) s->by_id[i] = order[i].index;
        if (st == FV_OK && !build_tries(t, w, keys, values))
            st = fv_fail(e, w->err.code, "%s: added_tokens: %s", file, w->err.text);
        fv__text_free(&w->norm[0]);
        fv__text_free(&w->norm[1]);
        fv__pattern_release(w);
    }
    fv__free(t->env, order, n * sizeof *order);
    fv__free(t->env, keys, n * sizeof *keys);
    fv__free(t->env, values, n * sizeof *values);
    fv__free(t->env, w, sizeof *w);
    return st;
}

/* ---- finding ---- */

/* i is behind the character asked about, never 0. */
static bool word_before(const char *s, size_t i)
{
    uint32_t cp;
    do i--;
    while (i && (s[i] & 0xC0) == 0x80);
    fv__char_at(&cp, s + i);
    return fv__is_word(cp);
}

static bool word_after(const char *s, size_t i)
{
    uint32_t cp;
    fv__char_at(&cp, s + i);
    return fv__is_word(cp);
}

/* Never before `done`, the end of the token found last: a space belongs to one token at most. */
static size_t spaces_before(const char *s, size_t i, size_t least)
{
    while (i > least) {
        uint32_t cp;
        size_t at = i;
        do at--;
        while (at && (s[at] & 0xC0) == 0x80);
        fv__char_at(&cp, s + at);
        if (!fv__is_space(cp)) break;
        i = at;
    }
    return i;
}

static size_t spaces_after(const char *s, size_t i, size_t n)
{
    while (i < n) {
        uint32_t cp;
        size_t len = (size_t)fv__char_at(&cp, s + i);
        if (!fv__is_space(cp)) break;
        i += len;
    }
    return i;
}

/* first[] answers most bytes with one load, before the trie is entered. */
const fv__added *fv__added_find(const fv_tok *t, fv__work *w, bool normal, const char *s, size_t n,
                                size_t *at, size_t done, size_t *a, size_t *b)
{
    const fv__added_set *set = &t->added;
    const fv__trie *trie = normal ? &set->normal : &set->raw;
    const bool *first = normal ? set->first_normal : set->first_raw;
    if (trie->n <= 1) return NULL;
    for (size_t i = *at; i < n && w->steps <= w->most_steps;) {
        size_t len;
        int32_t hit = -1;
        if (first[(unsigned char)s[i]])
            hit = fv__trie_longest(trie, 0, s + i, n - i, &len, &w->steps);
        if (hit < 0) {
            i++;
            continue;
        }
        const fv__added *tok = set->all + hit;
        size_t from = i, to = i + len;
        /* A match that is refused is passed over as a whole, and the search goes on behind it. */
        i = *at = to;
        bool inside = (from && word_before(s, from)) || (to < n && word_after(s, to));
        if (tok->single_word && inside) continue;
        if (tok->lstrip) from = spaces_before(s, from, done);
        if (tok->rstrip) to = spaces_after(s, to, n);
        *a = from;
        *b = to;
        return tok;
    }
    *at = n;
    return NULL;
}
