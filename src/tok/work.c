/* work.c - what every stage of encoding needs: buffers that grow, pieces and tokens to add. */
#include "work.h"

bool fv__no_memory(fv__work *w)
{
    fv_fail(&w->err, FV_ENOMEM, "out of memory while encoding");
    return false;
}

bool fv__want(fv__work *w, void **p, size_t *cap, size_t n, size_t size)
{
    size_t bytes;
    if (n && n <= *cap / size) return true;
    if (fv__mul_size(&bytes, n ? n : 1, size) && fv__grow(w->env, p, cap, bytes)) return true;
    return fv__no_memory(w);
}

bool fv__add_piece(fv__work *w, size_t a, size_t b)
{
    void *p = w->next_pieces;
    if (a == b) return true;
    bool ok = fv__want(w, &p, &w->cap_next, w->n_next + 1, sizeof *w->next_pieces);
    w->next_pieces = p;
    if (ok) w->next_pieces[w->n_next++] = (fv__piece){(uint32_t)a, (uint32_t)b};
    return ok;
}

static bool push(fv__work *w, fv__token token)
{
    fv__tokens *k = w->sink;
    void *v = k->v;
    bool ok = fv__want(w, &v, &k->cap, k->n + 1, sizeof *k->v);
    k->v = v;
    token.word = w->word;
    if (ok) k->v[k->n++] = token;
    return ok;
}

/* Spaces at the ends of a token, plain or as GPT-2 writes them. */
static void edges(fv__str s, fv__token *out)
{
    uint32_t cp;
    size_t i = 0, end = s.n;
    while (i < s.n) {
        size_t len = (size_t)fv__char_at(&cp, s.s + i);
        if (cp != 0x120 && !fv__is_space(cp)) break;
        i += len;
        out->lead++;
    }
    while (end) {
        size_t at = end - 1;
        while (at && (s.s[at] & 0xC0) == 0x80) at--;
        fv__char_at(&cp, s.s + at);
        if (cp != 0x120 && !fv__is_space(cp)) break;
        end = at;
        out->trail++;
    }
}

bool fv__emit(fv__work *w, int32_t id, uint32_t a, uint32_t b)
{
    fv__token token = {.id = id, .a = a, .b = b};
    if (w->want) {
        fv__text_span(w->text, a, b, &token.from, &token.to);
        if (w->by->post.trim) edges(fv__vocab_str(&w->by->model.vocab, id), &token);
    }
    /* SentencePiece gives one for a run of unknown pieces */
    if (w->by->spm && id == w->by->model.unk && w->last_unknown) {
        w->sink->v[w->sink->n - 1].to = token.to;
        w->sink->v[w->sink->n - 1].b = b;
        return true;
    }
    w->last_unknown = id == w->by->model.unk;
    return push(w, token);
}

bool fv__emit_added(fv__work *w, const fv__added *added, const fv__text *text, size_t a, size_t b)
{
    fv__token token = {.id = added->id};
    if (w->want) {
        fv__text_span(text, a, b, &token.from, &token.to);
        if (w->by->post.trim) edges((fv__str){text->s + a, b - a}, &token);
    }
    w->last_unknown = false;
    bool ok = push(w, token);
    w->word++;
    return ok;
}
