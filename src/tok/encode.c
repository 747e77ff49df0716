/* encode.c - text to tokens: the stages in their order.
 *
 *    bytes -> valid UTF-8 -> cut at added tokens -> normalise -> cut at normalised added tokens
 *          -> pre-tokenise (pieces) -> model (tokens) -> post-processing (specials, pairs; post.c)
 *
 * Every text carries spans back to the clean input (text.h), so that offsets survive normal forms
 * and inserted characters.  All buffers belong to the fv__work and are used again by the next
 * call. */
#include "work.h"

#define MAX_TEXT (UINT32_MAX / 8) /* so that no stage's growth overflows 32-bit offsets */
#define CACHE_FROM 2048           /* bytes of text from which a cache pays */

/* ---- stages ---- */

static bool run_model(const fv_tok *t, fv__work *w, uint32_t a, uint32_t b)
{
    if (w->on_piece)
        return w->on_piece(w->on_piece_self, w->text->s + a, b - a) || fv__no_memory(w);
    switch (t->model.kind) {
    case FV__MODEL_BPE: return fv__bpe(&t->model, w, a, b);
    case FV__MODEL_WORDPIECE: return fv__wordpiece(&t->model, w, a, b);
    case FV__MODEL_UNIGRAM: return fv__unigram(&t->model, w, a, b);
    case FV__MODEL_WORDLEVEL: return fv__wordlevel(&t->model, w, a, b);
    case FV__MODEL_CHAR: return fv__charmodel(&t->model, w, a, b);
    }
    return false;
}

/* Marian and M2M-100: the id of a piece in the SentencePiece model says nothing to the network,
 * vocab.json does; a piece that the model does not know may be there. */
static void renumber(const fv_tok *by, fv__work *w, size_t first)
{
    const fv__vocab *numbers = w->t->pieces;
    for (size_t i = first; i < w->sink->n; i++) {
        fv__token *token = w->sink->v + i;
        fv__str s = fv__vocab_str(&by->model.vocab, token->id);
        if (token->id == by->model.unk) s = (fv__str){w->text->s + token->a, token->b - token->a};
        int32_t id = fv__vocab_id(numbers, s.s, s.n);
        token->id = id >= 0 ? id : w->t->pieces_unk;
    }
}

/* text[a, b) holds no added token any more.
 * Two arrays of pieces are swapped after every step: each step reads one and fills the other. */
static bool encode_plain(const fv_tok *t, fv__work *w, const fv__text *text, size_t a, size_t b)
{
    size_t first = w->sink->n;
    w->text = text;
    w->n_next = 0;
    if (!fv__add_piece(w, a, b)) return false;
    fv__piece *pieces = w->pieces;
    size_t cap = w->cap_pieces;
    w->pieces = w->next_pieces, w->cap_pieces = w->cap_next, w->n_pieces = w->n_next;
    w->next_pieces = pieces, w->cap_next = cap;
    for (int i = 0; i < t->n_split; i++)
        if (!fv__split_text(t->split + i, w)) return false;
    for (size_t i = 0; i < w->n_pieces; i++, w->word++)
        if (!run_model(t, w, w->pieces[i].a, w->pieces[i].b)) return false;
    if (w->t->pieces) renumber(t, w, first);
    return true;
}

typedef bool (*between)(const fv_tok *t, fv__work *w, const fv__text *text, size_t a, size_t b);

/* Cuts text[from, to) at its added tokens and gives what lies between to `rest`. */
static bool cut_added(const fv_tok *t, fv__work *w, const fv__text *text, bool normal, between rest)
{
    size_t at = 0, done = 0, a, b;
    const fv__added *hit;
    while ((hit = fv__added_find(t, w, normal, text->s, text->n, &at, done, &a, &b))) {
        if (a < done) a = done;
        if (b <= a) continue;
        if (done < a && !rest(t, w, text, done, a)) return false;
        if (!fv__emit_added(w, hit, text, a, b)) return false;
        done = b;
    }
    if (!fv__within_limits(w)) return false;
    return done >= text->n || rest(t, w, text, done, text->n);
}

/* Normalisers also read two texts by turns; the input is never written to. */
static bool normalise(const fv_tok *t, fv__work *w, const fv__text *text, size_t a, size_t b)
{
    if (!t->n_norm && t->added.normal.n <= 1) return encode_plain(t, w, text, a, b);
    fv__text part = *text, *out = NULL;
    const fv__text *in = &part;
    if (a || b < text->n) { /* steps look at the ends of their text: give them this part alone */
        fv__text_start(&w->norm[0], w->env, w->track, b - a);
        fv__text_copy(&w->norm[0], text, a, b);
        if (w->norm[0].failed) return fv__no_memory(w);
        in = &w->norm[0];
    }
    for (int i = 0; i < t->n_norm; i++) {
        out = in == &w->norm[0] ? &w->norm[1] : &w->norm[0];
        if (!fv__normalise(t->norm + i, w, in, out)) return false;
        in = out;
    }
    return cut_added(t, w, in, true, encode_plain);
}

/* Valid UTF-8 passes as it is; what is not is replaced, and every byte keeps its place. */
static bool sanitise(fv__work *w, const char *s, size_t n)
{
    size_t good = fv__utf8_check(s, n);
    fv__text_free(&w->clean);
    if (good == n) {
        fv__text_view(&w->clean, s, n, w->track);
        return true;
    }
    fv__text whole;
    fv__text_view(&whole, s, n, true);
    fv__text_start(&w->clean, w->env, w->track, n);
    for (size_t i = 0; i < n && !w->clean.failed;) {
        good = i + fv__utf8_check(s + i, n - i);
        fv__text_copy(&w->clean, &whole, i, good);
        if (good == n) break;
        size_t bad = fv__utf8_bad(s + good, n - good);
        fv__text_put(&w->clean, "\xEF\xBF\xBD", 3, (uint32_t)good, (uint32_t)(good + bad));
        i = good + bad;
    }
    return !w->clean.failed || fv__no_memory(w);
}

static void prepare_cache(const fv_tok *t, fv__work *w, size_t n)
{
    /* Without one encoding is slower, not different: a failure here is none.  Two vocabularies must
     * not share one. */
    if (!w->cache && n >= CACHE_FROM && t->model.kind == FV__MODEL_BPE && !w->t->target)
        w->cache = fv__alloc(w->env, FV__CACHE_SLOTS * sizeof *w->cache);
}

bool fv__encode_text(const fv_tok *t, fv__work *w, const char *s, size_t n, fv__tokens *sink)
{
    w->by = t;
    w->sink = sink;
    w->last_unknown = false;
    w->word = 0;
    sink->n = 0;
    if (n > MAX_TEXT) {
        fv_fail(&w->err, FV_EARG, "a text of %zu bytes is too long to encode at once (at most %u)",
                n, (unsigned)MAX_TEXT);
        return false;
    }
    fv__work_limits(w, n);
    prepare_cache(t, w, n);
    return sanitise(w, s ? s : "", n) && cut_added(t, w, &w->clean, false, normalise);
}
