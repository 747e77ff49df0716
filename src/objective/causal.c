/* causal.c - the objective of autoregressive language models: the next token of running text.
 *
 * As in transformers the labels are the ids themselves, and the model compares its logits at t with
 * the id at t+1.  So the first token of a window is not predicted, and windows overlap by one
 * token: every token but the very first is predicted once. */
#include "data/feed_parts.h"
#include "data/token_stream.h"
#include "fovea/author/objective.h"

/* input_ids and labels (n,T): the same ids, padding aside. */
static fv_status make(const void *self, fv_batch *out, const int32_t *rows, int64_t n,
                      fv_data_rng how, fv_err *e)
{
    const fv__token_stream *r = self;
    int64_t T = 0, len;
    for (int64_t i = 0; i < n; i++) {
        fv__token_stream_window(r, rows[i], how, &len);
        if (len > T) T = len;
    }
    int32_t *ids = fv_batch_put(out, "input_ids", FV_I32, FV_SHAPE(n, T)),
            *label = fv_batch_put(out, "labels", FV_I32, FV_SHAPE(n, T));
    if (!label) return fv_fail(e, out->err.code, "%s", out->err.text);
    for (int64_t i = 0; i < n; i++) {
        const int32_t *from = fv__token_stream_window(r, rows[i], how, &len);
        for (int64_t t = 0; t < T; t++) {
            ids[i * T + t] = t < len ? from[t] : r->task.pad;
            label[i * T + t] = t < len ? from[t] : -100;
        }
        out->labels += (double)(len - 1);
    }
    return FV_OK;
}

static fv_status open_feed(fv_feed *out, const fv_feed_opt *t, const fv_records *from,
                           fv_data_report *report, fv_err *e)
{
    const fv__stream_opt *o = t->options;
    fv__token_stream *r;
    *out = (fv_feed){0};
    fv_status st = fv__token_stream_open(&r, t, from, o->context, true, report, e);
    if (!st)
        *out = (fv_feed){.self = r,
                         .count = fv__token_stream_count,
                         .size = fv__token_stream_size,
                         .make = make,
                         .close = fv__token_stream_close};
    return st;
}

static const fv_field keys[] = {FV__KEY_CONTEXT, {0}};

const fv_objective fv__objective_causal = {
    .name = "causal",
    .help = "the next token of running text",
    .keys = keys,
    .options_size = sizeof(fv__stream_opt),
    FV__CAUSAL_TEXTS,
    .open = open_feed,
};
