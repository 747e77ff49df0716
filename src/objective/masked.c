/* masked.c - the objective of BERT-like encoders: hidden tokens of running text, chosen anew
 * whenever a window is used.
 *
 * An example is a window of `context` tokens of the token stream, minus the special tokens of
 * its frame.  Which tokens are hidden is decided here and not when the data are read: RoBERTa's
 * dynamic masking.  Static masks of BERT's preprocessing repeat in each epoch, and a small
 * corpus is then learned by heart.  Positions follow from Philox by (seed, epoch, row), so a
 * resumed run masks the same tokens.
 *
 * The frame is whatever the tokenizer has: without cls or sep (id -1) the window stands alone.
 * Padding occurs only where the stream ends inside a window. */
#include "data/feed_parts.h"
#include "data/masking.h"
#include "data/token_stream.h"
#include "fovea/author/objective.h"

typedef struct windows {
    /* owned; its task is a copy of the fv_feed_opt */
    fv__token_stream *text;
    float share; /* of tokens that are hidden */
} windows;

/* [CLS] window [SEP] as input_ids with attention_mask and labels (n,T): -100 where nothing is
 * hidden. */
static fv_status make(const void *self, fv_batch *out, const int32_t *rows, int64_t n,
                      fv_data_rng how, fv_err *e)
{
    const windows *w = self;
    const fv__token_stream *r = w->text;
    const fv_feed_opt *k = &r->task;
    /* r->width is the context without the frame, so T is the context itself, in every batch:
     * shapes repeat, and a GPU step can be captured once */
    int64_t front = k->cls >= 0, frame = front + (k->sep >= 0), T = r->width + frame, len;
    int32_t *ids = fv_batch_put(out, "input_ids", FV_I32, FV_SHAPE(n, T));
    uint8_t *mask = fv_batch_put(out, "attention_mask", FV_U8, FV_SHAPE(n, T));
    int32_t *label = fv_batch_put(out, "labels", FV_I32, FV_SHAPE(n, T));
    if (!label) return fv_fail(e, out->err.code, "%s", out->err.text);
    for (int64_t i = 0; i < n; i++, ids += T, mask += T, label += T) {
        const int32_t *from = fv__token_stream_window(r, rows[i], how, &len);
        int64_t all = len + frame;
        if (front) ids[0] = k->cls;
        memcpy(ids + front, from, (size_t)len * sizeof *ids);
        if (k->sep >= 0) ids[all - 1] = k->sep;
        for (int64_t t = 0; t < T; t++) mask[t] = t < all;
        for (int64_t t = all; t < T; t++) ids[t] = k->pad, label[t] = -100;
        out->tokens += (double)all;
        /* special tokens are never hidden; what is hidden becomes the mask token, another token
         * or stays (data/masking.h) */
        out->labels += (double)fv__mask_row(ids, label, all, k, w->share, rows[i], how);
    }
    return FV_OK;
}

static int64_t count(const void *self, int64_t epoch)
{
    return fv__token_stream_count(((const windows *)self)->text, epoch);
}

static void size(const void *self, int64_t i, int64_t *source, int64_t *target)
{
    fv__token_stream_size(((const windows *)self)->text, i, source, target);
}

static void close_feed(void *self)
{
    windows *w = self;
    const fv_env *env = w->text->env;
    fv__token_stream_close(w->text);
    fv__free(env, w, sizeof *w);
}

static fv_status open_feed(fv_feed *out, const fv_feed_opt *t, const fv_records *from,
                           fv_data_report *report, fv_err *e)
{
    const fv__stream_opt *o = t->options;
    int64_t frame = (t->cls >= 0) + (t->sep >= 0);
    *out = (fv_feed){0};
    if (t->mask < 0)
        return fv_fail(e, FV_EARG, "the tokenizer has no mask token, so nothing can be hidden");
    windows *w = fv__alloc(t->env, sizeof *w);
    if (!w) return fv_fail(e, FV_ENOMEM, "%s: out of memory", from->file);
    w->share = o->mask;
    fv_status st = fv__token_stream_open(&w->text, t, from, o->context - frame, false, report, e);
    if (st)
        fv__free(t->env, w, sizeof *w);
    else
        *out =
            (fv_feed){.self = w, .count = count, .size = size, .make = make, .close = close_feed};
    return st;
}

/* ---- the objective ---- */

static const fv_field keys[] = {FV__KEY_CONTEXT, FV__KEY_MASK, {0}};
static const char *const loss_inputs[] = {"labels", NULL};

const fv_objective fv__objective_masked = {
    .name = "masked",
    .help = "hidden tokens of running text",
    .keys = keys,
    .options_size = sizeof(fv__stream_opt),
    FV__ENCODER_TEXTS,
    .texts = fv_texts_first,
    .head = FV_HEAD_MASKED_LM,
    .loss_inputs = loss_inputs,
    .open = open_feed,
};
