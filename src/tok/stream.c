/* stream.c - decoding as ids arrive.
 *
 * A decoder's output for some ids need not start with its output for fewer: half a character, a
 * space that only a following token shows.  So each push decodes a window of recent ids and gives
 * what is new in it, once that does not end in U+FFFD.  The window starts at ids whose text was
 * given before: what decoders do to a first token happens there.  Ids of blanks alone do not start
 * one, since SentencePiece leaves out all blanks before the first word. */
#include "tok.h"

/* ids held back at most: longer than any character, so what is still broken then stays broken; and
 * those of a window at most, however long a run of blanks is */
#define HOLD 16
#define WINDOW 512

struct fv_tok_stream {
    const fv_tok *t;
    bool skip;
    int32_t *ids; /* those before `known` have been given out */
    size_t n, cap, known;
    char *text; /* the last answer */
    size_t text_len;
};

fv_status fv_tok_stream_new(fv_tok_stream **out, const fv_tok *t, bool skip_specials, fv_err *e)
{
    fv_tok_stream *s = fv__alloc(t->env, sizeof *s);
    *out = s;
    if (!s) return fv_fail(e, FV_ENOMEM, "out of memory for a stream");
    s->t = t;
    s->skip = skip_specials;
    return FV_OK;
}

void fv_tok_stream_free(fv_tok_stream *s)
{
    if (!s) return;
    fv_tok_free_text(s->t, s->text, s->text_len);
    fv__free(s->t->env, s->ids, s->cap);
    fv__free(s->t->env, s, sizeof *s);
}

static bool ends_broken(const char *s, size_t n)
{
    return n >= 3 && !memcmp(s + n - 3, "\xEF\xBF\xBD", 3);
}

static bool blank(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (s[i] != ' ') return false;
    return true;
}

/* Makes the answer, and the ids just answered for the next window's start. */
static fv_status give(fv_tok_stream *s, const char *text, size_t n, fv_err *e)
{
    fv_tok_free_text(s->t, s->text, s->text_len);
    s->text_len = 0;
    s->text = fv__alloc(s->t->env, n + 1);
    if (!s->text) return fv_fail(e, FV_ENOMEM, "out of memory while decoding");
    memcpy(s->text, text, n);
    s->text_len = n;
    if (!blank(text, n) || s->n > WINDOW) {
        memmove(s->ids, s->ids + s->known, (s->n - s->known) * sizeof *s->ids);
        s->n -= s->known;
    }
    s->known = s->n;
    return FV_OK;
}

/* Gives what the ids after `known` add, unless it may still change.
 * Two decodes of a short window a token, O(1) in the length of the answer. */
static fv_status advance(fv_tok_stream *s, bool last, const char **text, size_t *len, fv_err *e)
{
    char *before = NULL, *now = NULL;
    size_t n_before = 0, n_now = 0;
    *text = "";
    *len = 0;
    fv_status st = fv_tok_decode(s->t, &before, &n_before, s->ids, (int64_t)s->known, s->skip, e);
    if (st == FV_OK) st = fv_tok_decode(s->t, &now, &n_now, s->ids, (int64_t)s->n, s->skip, e);
    if (st == FV_OK && (last || !ends_broken(now, n_now) || s->n - s->known > HOLD)) {
        size_t same = 0; /* all of `before`, except where a decoder changes what it gave */
        while (same < n_before && same < n_now && before[same] == now[same]) same++;
        while (same && same < n_now && (now[same] & 0xC0) == 0x80) same--;
        st = give(s, now + same, n_now - same, e);
        *text = s->text ? s->text : "";
        *len = s->text_len;
    }
    fv_tok_free_text(s->t, before, n_before);
    fv_tok_free_text(s->t, now, n_now);
    return st;
}

fv_status fv_tok_stream_push(fv_tok_stream *s, int32_t id, const char **text, size_t *len,
                             fv_err *e)
{
    void *ids = s->ids;
    *text = "";
    *len = 0;
    if (!fv_tok_token(s->t, id)) return fv_fail(e, FV_EARG, "id %d is not in the vocabulary", id);
    if (!fv__grow(s->t->env, &ids, &s->cap, (s->n + 1) * sizeof *s->ids))
        return fv_fail(e, FV_ENOMEM, "out of memory while decoding");
    s->ids = ids;
    s->ids[s->n++] = id;
    return advance(s, false, text, len, e);
}

fv_status fv_tok_stream_finish(fv_tok_stream *s, const char **text, size_t *len, fv_err *e)
{
    fv_status st = advance(s, true, text, len, e);
    if (st == FV_OK) s->n = s->known = 0;
    return st;
}
