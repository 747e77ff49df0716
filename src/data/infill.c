/* infill.c - windows of running text with hidden spans, for encoder-decoders that restore them.
 *
 *     text      a b c d e f g h
 *     spans     a <0> d e <1> h          ->  <0> b c <1> f g </s>          (T5: sentinels)
 *     denoise   a <mask> d e <mask> h    ->  a b c d e f g h               (BART: masks)
 *
 * The number of hidden tokens and of spans is the same for all windows of one length; the positions
 * and lengths of the spans are random. */
#include "data/infill.h"

#include <stdio.h>

#include "data/token_stream.h"

enum { MAX_SPANS = 100 };

typedef struct corrupting {
    fv__token_stream *text;
    fv__stream_opt opt;
    bool sentinels;
    int n_sentinel;
    int32_t sentinel[MAX_SPANS];
} corrupting;

/* How a window is divided: kept and hidden parts alternate, beginning with a kept one. */
typedef struct cutting {
    int64_t hidden, spans;
    int64_t keep[MAX_SPANS + 1], hide[MAX_SPANS];
} cutting;

/* hidden tokens = share n, spans = hidden / mean length, both at least one and small enough for
 * kept and hidden parts to alternate. */
static void amounts(const corrupting *c, int64_t n, cutting *k)
{
    const fv__stream_opt *t = &c->opt;
    int64_t most = c->sentinels ? c->n_sentinel : MAX_SPANS;
    k->hidden = (int64_t)((double)n * (double)t->mask + 0.5);
    if (k->hidden < 1) k->hidden = 1;
    if (k->hidden > n - 1) k->hidden = n - 1;
    k->spans = (int64_t)((double)k->hidden / (double)t->span + 0.5);
    if (k->spans < 1) k->spans = 1;
    if (k->spans > most) k->spans = most;
    if (k->spans > n - k->hidden) k->spans = n - k->hidden;
    if (k->spans > k->hidden) k->spans = k->hidden;
}

/* Divides total into `parts` random parts of at least one token each. */
static void divide(int64_t *part, int64_t parts, int64_t total, uint64_t stream, int64_t row,
                   fv_data_rng how)
{
    for (int64_t i = 0; i < parts; i++) part[i] = 1;
    for (int64_t i = parts; i < total; i++) part[fv__rng_below(how, stream, row, i, parts)]++;
}

/* Hidden and kept lengths are divided by draws of their own (streams 8 and 9), then alternate along
 * the text. */
static cutting cut(const corrupting *c, int64_t n, int64_t row, fv_data_rng how)
{
    cutting k = {0};
    amounts(c, n, &k);
    divide(k.hide, k.spans, k.hidden, 8, row, how);
    divide(k.keep, k.spans, n - k.hidden, 9, row, how);
    return k;
}

/* Lengths of both sides for a window of n tokens, the end token included. */
static void lengths(const corrupting *c, int64_t n, int64_t *source, int64_t *target)
{
    cutting k;
    amounts(c, n, &k);
    *source = n - k.hidden + k.spans + 1;
    *target = c->sentinels ? k.hidden + k.spans + 1 : n + 1;
}

/* Writes source and target of one window; both end in the end token. */
static void corrupt(const corrupting *c, const int32_t *from, int64_t n, int64_t row,
                    fv_data_rng how, int32_t *source, int32_t *target)
{
    const fv_feed_opt *t = &c->text->task;
    cutting k = cut(c, n, row, how);
    for (int64_t i = 0; i < k.spans; i++) {
        for (int64_t j = 0; j < k.keep[i]; j++) *source++ = *from++;
        int32_t sign = c->sentinels ? c->sentinel[i] : t->mask;
        *source++ = sign;
        if (c->sentinels) *target++ = sign;
        for (int64_t j = 0; j < k.hide[i]; j++, from++)
            if (c->sentinels) *target++ = *from;
    }
    *source = t->eos;
    if (!c->sentinels) memcpy(target, from - n, (size_t)n * sizeof *target), target += n;
    *target = t->eos;
}

/* Windows shorter than two tokens have nothing to hide: they stay empty rows without labels. */
static fv_status make(const void *self, fv_batch *out, const int32_t *rows, int64_t n,
                      fv_data_rng how, fv_err *e)
{
    const corrupting *c = self;
    const fv_feed_opt *k = &c->text->task;
    int64_t S, T, len;
    lengths(c, c->text->width, &S, &T);
    int32_t *source = fv_batch_put(out, "input_ids", FV_I32, FV_SHAPE(n, S));
    uint8_t *mask = fv_batch_put(out, "attention_mask", FV_U8, FV_SHAPE(n, S));
    int32_t *input = fv_batch_put(out, "decoder_input_ids", FV_I32, FV_SHAPE(n, T));
    int32_t *label = fv_batch_put(out, "labels", FV_I32, FV_SHAPE(n, T));
    if (!label) return fv_fail(e, out->err.code, "%s", out->err.text);
    for (int64_t i = 0; i < n; i++, source += S, mask += S, input += T, label += T) {
        const int32_t *from = fv__token_stream_window(c->text, rows[i], how, &len);
        int64_t s = 0, t = 0;
        if (len > 1) {
            lengths(c, len, &s, &t);
            corrupt(c, from, len, rows[i], how, source, label);
        }
        for (int64_t j = 0; j < S; j++) mask[j] = j < s;
        for (int64_t j = s; j < S; j++) source[j] = k->pad;
        for (int64_t j = t; j < T; j++) label[j] = -100;
        for (int64_t j = 0; j < T; j++)
            input[j] = j == 0 ? k->start : j <= t && label[j - 1] >= 0 ? label[j - 1] : k->pad;
        out->labels += (double)t;
    }
    return FV_OK;
}

static int64_t count(const void *self, int64_t epoch)
{
    const corrupting *c = self;
    return fv__token_stream_count(c->text, epoch);
}

static void size(const void *self, int64_t i, int64_t *source, int64_t *target)
{
    const corrupting *c = self;
    (void)i;
    lengths(c, c->text->width, source, target);
}

static void close_feed(void *self)
{
    corrupting *c = self;
    const fv_env *env = c->text ? c->text->env : NULL;
    fv__token_stream_close(c->text);
    fv__free(env, c, sizeof *c);
}

/* <extra_id_0>, <extra_id_1>, ... as far as the vocabulary has them. */
static void find_sentinels(corrupting *c, const fv_tok *tok)
{
    for (; c->n_sentinel < MAX_SPANS; c->n_sentinel++) {
        char name[32];
        snprintf(name, sizeof name, "<extra_id_%d>", c->n_sentinel);
        int32_t id = fv_tok_id(tok, name);
        if (id < 0) return;
        c->sentinel[c->n_sentinel] = id;
    }
}

/* T5's spans replace each by a sentinel <extra_id_N> and predict what they hid; BART's replace each
 * by one mask and predict the whole text. Both need an end token. */
fv_status fv__infill_open(fv_feed *out, const fv_feed_opt *t, const fv_records *from,
                          bool sentinels, fv_data_report *report, fv_err *e)
{
    *out = (fv_feed){0};
    corrupting *c = fv__alloc(t->env, sizeof *c);
    if (!c) return fv_fail(e, FV_ENOMEM, "%s: out of memory", from->file);
    c->sentinels = sentinels;
    c->opt = *(const fv__stream_opt *)t->options;
    find_sentinels(c, t->tok);
    fv_status st = FV_OK;
    if (sentinels && !c->n_sentinel)
        st = fv_fail(e, FV_EARG, "the tokenizer has no <extra_id_0> to stand for a hidden span");
    if (!sentinels && t->mask < 0)
        st = fv_fail(e, FV_EARG, "the tokenizer has no mask token, so nothing can be hidden");
    if (!st && t->eos < 0) st = fv_fail(e, FV_EARG, "the tokenizer has no end token");
    if (!st) st = fv__token_stream_open(&c->text, t, from, c->opt.context, false, report, e);
    if (st)
        fv__free(t->env, c, sizeof *c);
    else
        *out =
            (fv_feed){.self = c, .count = count, .size = size, .make = make, .close = close_feed};
    return st;
}
