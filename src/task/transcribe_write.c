/* transcribe_write.c - what was heard, as text, subtitles or JSON.
 *
 *     text    words alone, on one line
 *     times   from <tab> to <tab> text, seconds
 *     srt     SubRip
 *     vtt     WebVTT
 *     json    one object with pieces, their times and ids */
#include <math.h>

#include "task/transcribe.h"

void fv__transcript_clear(fv__transcript *t, const fv_env *env)
{
    t->text.env = t->ids.env = t->heard.env = t->words.env = env;
    t->text.len = t->ids.len = t->heard.len = t->words.len = 0;
}

void fv__transcript_free(fv__transcript *t)
{
    fv__buf_free(&t->text);
    fv__buf_free(&t->ids);
    fv__buf_free(&t->heard);
    fv__buf_free(&t->words);
}

/* Text and ids of all pieces stand in two buffers; a piece is offsets into them. */
fv_status fv__transcript_add(fv__transcript *t, double from, double to, const char *s, size_t n,
                             const int32_t *ids, int64_t n_ids, fv_err *e)
{
    while (n && *s == ' ') s++, n--;
    while (n && s[n - 1] == ' ') n--;
    fv__heard h = {.from = from,
                   .to = to,
                   .text = t->text.len,
                   .text_n = n,
                   .ids = fv__n_ids(&t->ids),
                   .n_ids = n_ids};
    if (n) fv__buf_add(&t->text, s, n);
    fv_status st = fv__ids_add(&t->ids, ids, n_ids, e);
    fv__buf_add(&t->heard, &h, sizeof h);
    if (!st && (t->text.failed || t->heard.failed)) st = fv_fail(e, FV_ENOMEM, "out of memory");
    return st;
}

fv_status fv__transcript_word(fv__transcript *t, double from, double to, const char *s, size_t n,
                              fv_err *e)
{
    fv__heard h = {.from = from, .to = to, .text = t->text.len, .text_n = n};
    fv__buf_add(&t->text, s, n);
    fv__buf_add(&t->words, &h, sizeof h);
    return t->text.failed || t->words.failed ? fv_fail(e, FV_ENOMEM, "out of memory") : FV_OK;
}

/* ---- formats ---- */

/* 00:01:02,340 */
static void put_clock(fv_buf *out, double seconds, char point)
{
    long long ms = llround(seconds * 1000);
    fv__buf_fmt(out, "%02lld:%02lld:%02lld%c%03lld", ms / 3600000, ms / 60000 % 60, ms / 1000 % 60,
                point, ms % 1000);
}

/* SubRip numbers its subtitles and has a comma in times; WebVTT has a point and needs no number. */
static void put_subtitle(fv_buf *out, const fv__heard *h, const char *text, int64_t number,
                         bool srt)
{
    if (srt) fv__buf_fmt(out, "%lld\n", (long long)number);
    put_clock(out, h->from, srt ? ',' : '.');
    fv__buf_str(out, " --> ");
    put_clock(out, h->to, srt ? ',' : '.');
    fv__buf_str(out, "\n");
    fv__put_flat(out, text, h->text_n);
    fv__buf_str(out, "\n\n");
}

static void put_json_words(fv_buf *out, const fv__transcript *t)
{
    int64_t n;
    const fv__heard *w = fv__words_at(t, &n);
    if (!n) return;
    fv__json_key(out, "words");
    fv__json_begin(out, '[');
    for (int64_t i = 0; i < n; i++, w++) {
        fv__json_begin(out, '{');
        fv__json_number_at(out, "from", w->from);
        fv__json_number_at(out, "to", w->to);
        fv__json_text_at(out, "word", t->text.data + w->text, w->text_n);
        fv__json_end(out, '}');
    }
    fv__json_end(out, ']');
}

/* Times, text and ids of a piece. */
static void put_json_piece(fv_buf *out, const fv__transcript *t, const fv__heard *h)
{
    fv__json_begin(out, '{');
    fv__json_number_at(out, "from", h->from);
    fv__json_number_at(out, "to", h->to);
    fv__json_text_at(out, "text", t->text.data ? t->text.data + h->text : "", h->text_n);
    fv__json_key(out, "ids");
    fv__json_begin(out, '[');
    for (int64_t k = 0; k < h->n_ids; k++) fv__json_put_int(out, fv__ids(&t->ids)[h->ids + k]);
    fv__json_end(out, ']');
    fv__json_end(out, '}');
}

void fv__transcript_partial(fv_buf *out, const char *text, size_t n)
{
    fv__json_begin(out, '{');
    fv__json_text_at(out, "partial", text, n);
    fv__json_end(out, '}');
    fv__buf_str(out, "\n");
}

void fv__transcript_piece(fv_buf *out, const fv__transcript *t, const fv__heard *h)
{
    put_json_piece(out, t, h);
    fv__buf_str(out, "\n");
}

static void put_json(fv_buf *out, const fv__transcript *t, const fv_text *name, double seconds)
{
    int64_t n;
    const fv__heard *h = fv__heard_at(t, &n);
    fv__json_begin(out, '{');
    fv__json_text_at(out, "sound", name->s, name->n);
    fv__json_number_at(out, "seconds", seconds);
    fv__json_key(out, "pieces");
    fv__json_begin(out, '[');
    for (int64_t i = 0; i < n; i++) put_json_piece(out, t, &h[i]);
    fv__json_end(out, ']');
    put_json_words(out, t);
    fv__json_end(out, '}');
    fv__buf_str(out, "\n");
}

/* Pieces without text are silence: no subtitle, and no blank in running text. */
void fv__transcript_write(fv_buf *out, const fv__transcript *t, fv__transcript_format how,
                          const fv_text *name, double seconds)
{
    int64_t n, number = 0;
    bool words = how == FV__TRANSCRIPT_WORDS;
    const fv__heard *h = words ? fv__words_at(t, &n) : fv__heard_at(t, &n);
    bool plain = how == FV__TRANSCRIPT_TEXT, begun = false;
    if (how == FV__TRANSCRIPT_JSON) {
        put_json(out, t, name, seconds);
        return;
    }
    if (how == FV__TRANSCRIPT_VTT) fv__buf_str(out, "WEBVTT\n\n");
    for (int64_t i = 0; i < n; i++, h++) {
        const char *text = t->text.data ? t->text.data + h->text : "";
        if (how == FV__TRANSCRIPT_TIMES || words) fv__buf_fmt(out, "%.2f\t%.2f\t", h->from, h->to);
        if (how == FV__TRANSCRIPT_SRT || how == FV__TRANSCRIPT_VTT) {
            if (h->text_n) put_subtitle(out, h, text, ++number, how == FV__TRANSCRIPT_SRT);
            continue;
        }
        if (plain && begun && h->text_n) fv__buf_str(out, " ");
        begun |= h->text_n > 0;
        fv__put_flat(out, text, h->text_n);
        if (!plain) fv__buf_str(out, "\n");
    }
    if (plain) fv__buf_str(out, "\n");
}
