/* masked.c - the feed for models that fill in hidden words, drawn anew each time a window is seen.
 *
 * Of the tokens that are chosen 80 % become the mask, 10 % any token, and 10 % stay: BERT's
 * recipe. */
#include "objective/masking.h"
#include "data/token_stream.h"

int64_t fv__mask_row(int32_t *ids, int32_t *labels, int64_t n, const fv_feed_opt *t, int64_t row,
                     fv_data_rng how)
{
    int64_t hidden = 0, forced = fv__rng_below(how, 1, row, 0, n);
    int32_t vocab = fv_tok_size(t->tok);
    for (int64_t i = 0; i < n; i++) {
        labels[i] = -100;
        if (fv_tok_special(t->tok, ids[i])) continue;
        if (fv__rng_uniform(how, 0, row, i) >= (double)t->share && i != forced) continue;
        labels[i] = ids[i];
        hidden++;
        uint32_t w = fv__rng_word(how, 0, row, i, 2) % 10;
        if (w < 8)
            ids[i] = t->mask;
        else if (w == 8)
            ids[i] = (int32_t)(fv__rng_word(how, 0, row, i, 3) % (uint32_t)vocab);
    }
    return hidden;
}

void fv__batch_drop(fv_batch *b, const fv_feed_opt *t, const int32_t *rows, fv_data_rng how)
{
    int32_t *ids = b->part[0].data, with = t->mask >= 0 ? t->mask : fv_tok_unknown(t->tok);
    int64_t n = b->part[0].shape.d[0], T = b->part[0].shape.d[1];
    if (how.epoch < 0 || !(t->drop > 0) || with < 0) return;
    for (int64_t i = 0; i < n * T; i++)
        if (fv__rng_uniform(how, 10, rows[i / T], i % T) < (double)t->drop &&
            !fv_tok_special(t->tok, ids[i]))
            ids[i] = with;
}

static fv_status make(const void *self, fv_batch *out, const int32_t *rows, int64_t n,
                      fv_data_rng how, fv_err *e)
{
    const fv__token_stream *r = self;
    const fv_feed_opt *k = &r->task;
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
        out->labels += (double)fv__mask_row(ids, label, all, k, rows[i], how);
    }
    return FV_OK;
}

fv_status fv_feed_masked(fv_feed *out, const fv_feed_opt *t, const fv_records *from,
                         fv_data_report *report, fv_err *e)
{
    fv__token_stream *r;
    int64_t frame = (t->cls >= 0) + (t->sep >= 0);
    *out = (fv_feed){0};
    if (t->mask < 0)
        return fv_fail(e, FV_EARG, "the tokenizer has no mask token, so nothing can be hidden");
    fv_status st = fv__token_stream_open(&r, t, from, t->context - frame, false, report, e);
    if (!st)
        *out = (fv_feed){.self = r,
                         .count = fv__token_stream_count,
                         .size = fv__token_stream_size,
                         .make = make,
                         .close = fv__token_stream_close};
    return st;
}
