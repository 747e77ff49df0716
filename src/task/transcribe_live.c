/* transcribe_live.c - standard input transcribed while it is spoken, by models that generate and
 * hear a clip as a whole (Moonshine).
 *
 * Such a model has no state that could go on: what has been heard of a piece is encoded again, 0.16
 * seconds after the last time or later (the longer the piece, the longer, so that the work for a
 * second of sound is bounded), and written anew.  Words on which two hypotheses in a row
 * agree are certain (local agreement, Liu et al. 2020): they are handed on, and the next hypotheses
 * begin with their tokens, so that a pass decodes only what is new.
 *
 *     heard        hypothesis        certain
 *     0.75 s       And so,
 *     1.00 s       And so?           And so
 *     1.25 s       And so my         And so
 *
 * A piece ends where it would end in a recording, and is then heard once more, with nothing given:
 * that text and its ids are those of the recording, whatever was certain before.  Cutting at pauses
 * and trimming the window to the last seconds were the alternatives; both lose the sentence around
 * a word, and the text would no longer be that of the file. */
#include <ctype.h>
#include <math.h>

#include "base/base.h"
#include "media/audio/wav.h"
#include "task/transcribe.h"

enum {
    BLOCK = 1 << 16,      /* bytes of a read: all that a pipe holds, so that a slow machine skips */
    MOST_HEADER = 1 << 20 /* bytes of a WAV file in front of its samples */
};

#define STEP 0.16  /* seconds between two hypotheses, at least */
#define STEPS 8    /* and at least this part of the piece */
#define QUIET 0.05 /* of the loudest step: a pause */

typedef struct live {
    const fv__live *how;
    fv_pipeline *p;
    fv_buf bytes;       /* a header, if there is one, and the samples that are still needed */
    size_t header;      /* bytes of it */
    size_t frame;       /* bytes of a sample of all channels; 0: the header is not complete */
    uint64_t left;      /* bytes of samples that may still come */
    int rate;           /* of the stream */
    int64_t gone;       /* seconds that were dropped */
    fv_clip raw;        /* the samples, as they came */
    int64_t from;       /* where the piece begins, and */
    int64_t heard;      /* where the last hypothesis ended, both in samples of the clip */
    double loudest;     /* root mean square of the loudest step of the piece */
    fv_buf before, now; /* ids of the last two hypotheses, the certain ones in front */
    int64_t certain;    /* how many of them are */
    fv_buf said, text;  /* of the piece: what was handed on, and what is certain */
} live;

/* ---- samples ---- */

static bool begins_with(const fv_buf *b, const char *magic)
{
    size_t n = strlen(magic);
    return b->len >= n && !memcmp(b->data, magic, n);
}

/* A WAV file begins with a header, raw samples with themselves. */
static fv_status read_header(live *l, int rate, fv_err *e)
{
    fv__wav w;
    if (l->bytes.len < 4) return FV_OK;
    if (begins_with(&l->bytes, "fLaC") || begins_with(&l->bytes, "OggS") ||
        begins_with(&l->bytes, "ID3"))
        return fv_fail(e, FV_EFORMAT,
                       "standard input: --stream hears raw samples and WAV files only");
    if (!begins_with(&l->bytes, "RIFF")) {
        l->rate = rate;
        l->frame = 2;
        l->left = UINT64_MAX;
        return FV_OK;
    }
    if (!fv__wav_find(&w, l->bytes.data, l->bytes.len))
        return l->bytes.len < MOST_HEADER
                   ? FV_OK
                   : fv_fail(e, FV_EFORMAT, "standard input: a WAV file without plain samples");
    const uint8_t *len = w.data - 4;
    l->header = (size_t)(w.data - (const uint8_t *)l->bytes.data);
    l->frame = (size_t)(w.channels * (w.bits / 8));
    l->rate = w.rate;
    l->left = len[0] | (uint64_t)len[1] << 8 | (uint64_t)len[2] << 16 | (uint64_t)len[3] << 24;
    if (l->left == UINT32_MAX) l->left = UINT64_MAX; /* what writes to a pipe does not know it */
    size_t have = l->bytes.len - l->header;
    if (have > l->left) l->bytes.len = l->header + (size_t)l->left;
    if (l->left != UINT64_MAX) l->left -= l->bytes.len - l->header;
    return FV_OK;
}

static fv_status add_bytes(live *l, const uint8_t *block, int64_t n, int rate, fv_err *e)
{
    size_t take = (size_t)n;
    if (l->frame && take > l->left) take = (size_t)l->left; /* chunks behind the samples */
    if (l->frame && l->left != UINT64_MAX) l->left -= take;
    fv__buf_add(&l->bytes, block, take);
    if (l->bytes.failed) return fv_fail(e, FV_ENOMEM, "out of memory");
    return l->frame ? FV_OK : read_header(l, rate, e);
}

static int64_t samples(const live *l)
{
    return l->frame ? (int64_t)((l->bytes.len - l->header) / l->frame) : 0;
}

/* What is there as the clip at the model's rate.  A sample that has half come waits. */
static fv_status decode(live *l, fv_err *e)
{
    size_t n = l->header + (size_t)samples(l) * l->frame;
    const char *name = "standard input";
    fv_status st = l->header ? fv_clip_decode(&l->raw, &l->p->env, l->bytes.data, n, name, e)
                             : fv_clip_pcm(&l->raw, &l->p->env, l->bytes.data, n, l->rate, name, e);
    return st ? st : fv_clip_resample(l->how->clip, &l->raw, l->how->rate, e);
}

/* Whole seconds before the piece are dropped, but for one, which the resampler's filter looks back
 * into: the samples of the piece stay the same, bit for bit. */
static void drop(live *l)
{
    int64_t seconds = l->from / l->how->rate - 1;
    if (seconds < 1) return;
    size_t n = (size_t)(seconds * l->rate) * l->frame;
    memmove(l->bytes.data + l->header, l->bytes.data + l->header + n, l->bytes.len - l->header - n);
    l->bytes.len -= n;
    l->gone += seconds;
    l->from -= seconds * l->how->rate;
    l->heard = l->from;
}

/* ---- agreement ---- */

static bool is_break(char kind) { return kind != 'a'; }

/* How each token goes on: ' ' it begins a word, '.' with punctuation, 'a' inside a word; 'e' behind
 * the last. */
static fv_status kinds_of(const live *l, const fv_buf *ids, char *kind, fv_err *e)
{
    fv_tok_stream *stream = NULL;
    int64_t n = fv__n_ids(ids);
    fv_status st = fv_tok_stream_new(&stream, l->p->writer.tok, true, e);
    for (int64_t i = 0; !st && i < n; i++) {
        const char *s;
        size_t len;
        st = fv_tok_stream_push(stream, fv__ids(ids)[i], &s, &len, e);
        if (st) break;
        kind[i] = 'a';
        if (len && ispunct((unsigned char)*s)) kind[i] = '.';
        if (len && *s == ' ') kind[i] = ' ';
    }
    kind[n] = 'e';
    fv_tok_stream_free(stream);
    return st;
}

/* Tokens on which the two hypotheses agree, whole words only, without the punctuation at the end of
 * one: a sentence seems to end wherever the sound does. */
static int64_t agreed(const live *l, const char *before, const char *now)
{
    int64_t nb = fv__n_ids(&l->before), nn = fv__n_ids(&l->now), k = 0;
    while (k < nb && k < nn && fv__ids(&l->before)[k] == fv__ids(&l->now)[k]) k++;
    while (k > l->certain && !(is_break(before[k]) && is_break(now[k]))) k--;
    while (k > l->certain && now[k - 1] == '.' && (k == nb || k == nn)) k--;
    return k > l->certain ? k : l->certain;
}

static fv_status agree(live *l, fv_err *e)
{
    size_t nb = (size_t)fv__n_ids(&l->before) + 1, bytes = nb + (size_t)fv__n_ids(&l->now) + 1;
    char *kind = fv__alloc(&l->p->env, bytes);
    if (!kind) return fv_fail(e, FV_ENOMEM, "out of memory");
    fv_status st = kinds_of(l, &l->before, kind, e);
    if (!st) st = kinds_of(l, &l->now, kind + nb, e);
    if (!st) l->certain = agreed(l, kind, kind + nb);
    fv__free(&l->p->env, kind, bytes);
    return st;
}

/* ---- results ---- */

static fv_status hand_on(live *l, fv_err *e)
{
    fv_pipeline *p = l->p;
    fv_status st = p->out.failed ? fv_fail(e, FV_ENOMEM, "out of memory")
                                 : fv__task_emit_part(p, p->out.data, p->out.len, e);
    p->out.len = 0;
    return st;
}

/* What has become certain of the piece: text is continued, an object of JSON has all of it. */
static fv_status say_certain(live *l, fv_err *e)
{
    fv_buf none = {.env = &l->p->env}, *out = &l->p->out;
    size_t shown = l->said.len;
    l->text.len = 0;
    fv_status st = fv__writer_decode(&l->p->writer, &l->text, &none, fv__ids(&l->now), l->certain,
                                     e);
    if (st || l->text.len <= shown) return st;
    out->len = l->said.len = 0;
    if (l->p->opt.json)
        fv__transcript_partial(out, l->text.data, l->text.len);
    else
        fv__put_flat(out, l->text.data + shown, l->text.len - shown);
    fv__buf_add(&l->said, l->text.data, l->text.len);
    if (l->said.failed) return fv_fail(e, FV_ENOMEM, "out of memory");
    return hand_on(l, e);
}

/* The last pass decides: where it does not go on from what was printed, the piece is printed again
 * on a line of its own. */
static fv_status say_piece(live *l, fv_err *e)
{
    fv_buf *out = &l->p->out;
    int64_t n;
    const fv__heard *h = fv__heard_at(l->how->heard, &n);
    if (!n) return FV_OK;
    const char *text = h->text_n ? l->how->heard->text.data + h->text : "";
    size_t said = l->said.len;
    bool goes_on = said <= h->text_n && !memcmp(text, said ? l->said.data : "", said);
    if (!goes_on) said = 0;
    out->len = 0;
    if (l->p->opt.json) {
        fv__transcript_piece(out, l->how->heard, h);
    } else {
        if (!goes_on) fv__buf_str(out, "\n");
        fv__put_flat(out, text + said, h->text_n - said);
        if (h->text_n) fv__buf_str(out, "\n");
    }
    return hand_on(l, e);
}

static bool same_ids(const fv_buf *a, const fv_buf *b)
{
    return a->len == b->len && (!a->len || !memcmp(a->data, b->data, a->len));
}

/* Whether nothing was said since the last hypothesis, and that is settled. */
static bool is_quiet(live *l)
{
    const fv_clip *x = l->how->clip;
    double sum = 0;
    for (int64_t i = l->heard; i < x->n; i++) sum += (double)x->data[i] * (double)x->data[i];
    double level = sqrt(sum / (double)(x->n - l->heard));
    if (level > l->loudest) l->loudest = level;
    return level <= QUIET * l->loudest && same_ids(&l->before, &l->now);
}

/* A hypothesis of the piece as far as it was heard. */
static fv_status guess(live *l, fv_err *e)
{
    bool quiet = is_quiet(l);
    l->heard = l->how->clip->n;
    if (quiet) return FV_OK;
    fv_buf old = l->before;
    l->before = l->now;
    l->now = old;
    l->now.len = 0;
    fv_status st = fv__ids_add(&l->now, fv__ids(&l->before), l->certain, e);
    if (!st) st = l->how->guess(l->how->user, l->from, l->heard, &l->now, e);
    if (!st) st = agree(l, e);
    return st ? st : say_certain(l, e);
}

/* The end of a piece: what a recording of it would give. */
static fv_status settle(live *l, int64_t to, fv_err *e)
{
    fv__transcript_clear(l->how->heard, &l->p->env);
    fv_status st = l->how->piece(l->how->user, l->from, to, (double)l->gone, e);
    if (!st) st = say_piece(l, e);
    l->from = l->heard = to;
    l->before.len = l->now.len = l->said.len = 0;
    l->certain = 0;
    l->loudest = 0;
    return st;
}

/* Pieces that are complete, then a guess at the one that is not. */
static fv_status hear(live *l, fv_err *e)
{
    int64_t most = (int64_t)(l->how->chunk * l->how->rate);
    fv_status st = decode(l, e);
    while (!st && l->how->clip->n - l->from > most) {
        st = settle(l, l->how->end(l->how->user, l->from, most), e);
        drop(l);
        if (!st) st = decode(l, e);
    }
    /* just behind a cut there may be less than a model can hear */
    return st || l->how->clip->n - l->from < (int64_t)(STEP * l->how->rate) ? st : guess(l, e);
}

/* Whether enough has come since the last hypothesis. */
static bool is_due(const live *l)
{
    double now = (double)samples(l) / l->rate, last = (double)l->heard / l->how->rate,
           step = (now - (double)l->from / l->how->rate) / STEPS;
    return now - last >= (step > STEP ? step : STEP);
}

static fv_status finish(live *l, fv_err *e)
{
    if (!samples(l)) return fv_fail(e, FV_EFORMAT, "standard input: there are no samples in it");
    int64_t most = (int64_t)(l->how->chunk * l->how->rate);
    fv_status st = decode(l, e);
    while (!st && l->from < l->how->clip->n)
        st = settle(l, l->how->end(l->how->user, l->from, most), e);
    return st;
}

fv_status fv__live_run(const fv__live *how, fv_pipeline *p, int rate, fv_err *e)
{
    live l = {.how = how, .p = p};
    const fv_io *io = fv__io(&p->env);
    uint8_t *block = fv__alloc(&p->env, BLOCK);
    int64_t got = 0;
    int fd = block ? io->open_read(io->self, "/dev/stdin") : -1;
    l.bytes.env = l.before.env = l.now.env = l.said.env = l.text.env = &p->env;
    fv_status st = FV_OK;
    if (!block) st = fv_fail(e, FV_ENOMEM, "out of memory");
    if (block && fd < 0) st = fv_fail(e, FV_EIO, "standard input cannot be opened");
    while (!st && (got = io->read(io->self, fd, block, BLOCK)) > 0) {
        st = add_bytes(&l, block, got, rate, e);
        if (!st && l.frame && is_due(&l)) st = hear(&l, e);
    }
    if (fd >= 0) io->close(io->self, fd);
    if (!st && got < 0) st = fv_fail(e, FV_EIO, "standard input cannot be read");
    if (!st) st = finish(&l, e);
    fv_clip_free(&l.raw);
    fv__buf_free(&l.bytes);
    fv__buf_free(&l.before);
    fv__buf_free(&l.now);
    fv__buf_free(&l.said);
    fv__buf_free(&l.text);
    fv__free(&p->env, block, BLOCK);
    return st;
}
