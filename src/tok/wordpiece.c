/* wordpiece.c - the longest token first, again and again; and two models that hardly are one: whole
 * words, characters.
 *
 * Greedy longest match (BERT): "unaffable" -> un ##aff ##able.  Tokens that continue a word are
 * stored with the prefix "##", so they are found from the trie node that the prefix leads to. */
#include "work.h"

bool fv__wordpiece_finish(fv__model *m, fv__pool *p)
{
    size_t n = (size_t)m->vocab.n, bytes = (n + 1) * sizeof(fv__str);
    fv__str *keys = fv__alloc(p->env, bytes);
    int32_t *ids = fv__alloc(p->env, (n + 1) * sizeof *ids), k = 0;
    bool ok = keys && ids;
    for (int32_t id = 0; ok && id < m->vocab.size; id++)
        if (fv__vocab_has(&m->vocab, id)) keys[k] = fv__vocab_str(&m->vocab, id), ids[k++] = id;
    ok = ok && fv__trie_build(&m->trie, p, keys, ids, k);
    fv__free(p->env, keys, bytes);
    fv__free(p->env, ids, (n + 1) * sizeof *ids);
    if (!ok) return false;
    m->has_continuing = true;
    m->continuing = 0;
    for (size_t i = 0; i < m->prefix.n && m->has_continuing; i++) {
        m->continuing = fv__trie_step(&m->trie, m->continuing, (unsigned char)m->prefix.s[i]);
        m->has_continuing = m->continuing != FV__TRIE_NONE;
    }
    return true;
}

static bool unknown(const fv__model *m, fv__work *w, uint32_t a, uint32_t b)
{
    if (m->unk >= 0) return fv__emit(w, m->unk, a, b);
    fv_fail(&w->err, FV_EFORMAT,
            "the text needs the unknown token \"%.80s\", which the vocabulary lacks",
            m->unk_token.s ? m->unk_token.s : "");
    return false;
}

static bool too_long(const char *s, size_t n, int64_t most)
{
    int64_t chars = 0;
    if ((int64_t)n <= most) return false;
    for (size_t i = 0; i < n; i++) chars += (s[i] & 0xC0) != 0x80;
    return chars > most;
}

bool fv__wordpiece(const fv__model *m, fv__work *w, uint32_t a, uint32_t b)
{
    const char *s = w->text->s;
    size_t before = w->sink->n;
    if (too_long(s + a, b - a, m->max_chars)) return unknown(m, w, a, b);
    for (uint32_t i = a; i < b;) {
        size_t len = 0;
        int32_t id = -1;
        if (i == a)
            id = fv__trie_longest(&m->trie, 0, s + i, b - i, &len, &w->steps);
        else if (m->has_continuing)
            id = fv__trie_longest(&m->trie, m->continuing, s + i, b - i, &len, &w->steps);
        if (!fv__within_limits(w)) return false;
        if (id < 0) { /* one part unknown makes the whole word unknown */
            w->sink->n = before;
            return unknown(m, w, a, b);
        }
        if (!fv__emit(w, id, i, i + (uint32_t)len)) return false;
        i += (uint32_t)len;
    }
    return true;
}

bool fv__wordlevel(const fv__model *m, fv__work *w, uint32_t a, uint32_t b)
{
    int32_t id = fv__vocab_id(&m->vocab, w->text->s + a, b - a);
    return id >= 0 ? fv__emit(w, id, a, b) : unknown(m, w, a, b);
}

bool fv__charmodel(const fv__model *m, fv__work *w, uint32_t a, uint32_t b)
{
    for (uint32_t i = a, len; i < b; i += len) {
        uint32_t cp;
        len = (uint32_t)fv__char_at(&cp, w->text->s + i);
        if (!fv__wordlevel(m, w, i, i + len)) return false;
    }
    return true;
}
