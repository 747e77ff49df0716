/* stream.c - decoding as ids arrive.
 *
 * A decoder's output for some ids need not start with its output for fewer: half a character, a
 * space that only a following token shows.  So each push decodes a window of recent ids and gives
 * what is new in it, once that does not end in U+FFFD.  The window starts at ids whose text was
 * given before: what decoders do to a first token happens there.  Ids of blanks alone do not start
 * one, since SentencePiece leaves out all blanks before the first word. */
#include "decode.h"

/* ids held back at most: longer than any character, so what is still broken then stays broken; and
 * those of a window at most, however long a run of blanks is */
#define HOLD 16
#define WINDOW 512

struct fv_tok_stream {
    const fv_tok *t;
    bool skip;
    int32_t *ids; /* those before `known` have been given out */
    size_t n, cap, known;
    fv_buf text;         /* the last answer */
    fv__decoding before; /* of those before `known`, unless it is to be decoded again */
    bool decoded;
    fv__decoding now; /* of all */
};

fv_status fv_tok_stream_new(fv_tok_stream **out, const fv_tok *t, bool skip_specials, fv_err *e)
{
    fv_tok_stream *s = fv__alloc(t->env, sizeof *s);
    *out = s;
    if (!s) return fv_fail(e, FV_ENOMEM, "out of memory for a stream");
    s->t = t;
    s->skip = skip_specials;
    s->text.env = t->env;
    return FV_OK;
}

void fv_tok_stream_free(fv_tok_stream *s)
{
    if (!s) return;
    fv__decoding_free(s->t, &s->before);
    fv__decoding_free(s->t, &s->now);
    fv__buf_free(&s->text);
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

/* Makes the answer, and the ids just answered for the next window's start.  A window that stays
 * begins with what was decoded just now. */
static fv_status give(fv_tok_stream *s, const char *text, size_t n, fv_err *e)
{
    s->text.len = 0;
    fv__buf_add(&s->text, text, n);
    if (s->text.failed) {
        s->text.failed = false;
        return fv_fail(e, FV_ENOMEM, "out of memory while decoding");
    }
    s->decoded = blank(text, n) && s->n <= WINDOW;
    if (!s->decoded) {
        memmove(s->ids, s->ids + s->known, (s->n - s->known) * sizeof *s->ids);
        s->n -= s->known;
    } else {
        fv__decoding now = s->now;
        s->now = s->before;
        s->before = now;
    }
    s->known = s->n;
    return FV_OK;
}

/* Gives what the ids after `known` add, unless it may still change.
 * One or two decodes of a short window a token, O(1) in the length of the answer. */
static fv_status advance(fv_tok_stream *s, bool last, const char **text, size_t *len, fv_err *e)
{
    fv_status st = FV_OK;
    *text = "";
    *len = 0;
    if (!s->decoded) st = fv__decode_ids(s->t, &s->before, s->ids, (int64_t)s->known, s->skip, e);
    s->decoded = st == FV_OK;
    if (st == FV_OK) st = fv__decode_ids(s->t, &s->now, s->ids, (int64_t)s->n, s->skip, e);
    const char *before = s->before.text.data, *now = s->now.text.data;
    size_t n_before = s->before.text.len, n_now = s->now.text.len;
    if (st == FV_OK && (last || !ends_broken(now, n_now) || s->n - s->known > HOLD)) {
        size_t same = 0; /* all of `before`, except where a decoder changes what it gave */
        while (same < n_before && same < n_now && before[same] == now[same]) same++;
        while (same && same < n_now && (now[same] & 0xC0) == 0x80) same--;
        st = give(s, now + same, n_now - same, e);
        if (st == FV_OK) *text = s->text.data, *len = s->text.len;
    }
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
    if (st == FV_OK) s->n = s->known = 0, s->decoded = false;
    return st;
}
