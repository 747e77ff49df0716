/* work.c - what every stage of encoding needs: buffers that grow, pieces and tokens to add. */
#include "work.h"

bool fv__no_memory(fv__work *w)
{
    fv_fail(&w->err, FV_ENOMEM, "out of memory while encoding");
    return false;
}

/* Normal forms grow text to at most 18 times its bytes; a file can ask for any number of
 * replacements by something longer, which multiply. */
#define MOST_GROWTH 64
/* A step takes some 3 ns.  Published vocabularies need 5 to 20 for a byte of text, up to 130 where
 * it is one long run of spaces, and about as much for all stages before the model. */
#define MOST_STEPS 256
#define FREE_STEPS (64 << 20)

void fv__work_limits(fv__work *w, size_t n)
{
    w->bytes = n;
    w->most_text = n * MOST_GROWTH + (1 << 20);
    w->most_steps = (uint64_t)n * MOST_STEPS + FREE_STEPS;
    w->steps = w->matches = w->match_calls = 0;
}

/* A tokenizer file is input from outside: without a budget a crafted one makes a short text take
 * hours. Steps are counted, not timed, so that a refusal does not depend on the machine. */
bool fv__within_limits(fv__work *w)
{
    if (w->steps <= w->most_steps) return true;
    fv_fail(&w->err, FV_EFORMAT,
            "the tokenizer takes more than %llu steps for a text of %zu bytes, which is refused",
            (unsigned long long)w->most_steps, w->bytes);
    return false;
}

bool fv__text_made(fv__work *w, const fv__text *t)
{
    if (t->failed && t->most && t->over) {
        fv_fail(&w->err, FV_EFORMAT, "the tokenizer makes more than %zu bytes of it", t->most);
        return false;
    }
    if (t->failed) return fv__no_memory(w);
    return fv__within_limits(w);
}

/* The one place where encoding allocates; after warm-up it never does. */
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

/* [a, b) is in the model's text; from and to are looked up only when offsets are asked for. */
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
