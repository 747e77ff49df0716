/* segments.c - the objective of models with a memory (Transformer-XL): the next token of running
 * text, segment after segment.
 *
 * The text is cut into `streams` equal parts that are read side by side: row s of batch i is
 * segment i of part s.  What the model remembers of a batch stays on the device and goes into the
 * next one, without gradient; an epoch begins with none.  So an example here is a whole batch, and
 * the feed is ordered.  The memory is part of a checkpoint: a resumed run goes on with the same
 * bits.  (Computing it again from the segments before would use parameters that have changed.)
 *
 * Each epoch rotates every stream by a random number of tokens (partial shuffle, Press 2019):
 * segments begin elsewhere, and other segments share a batch.  With memory_min each row of a batch
 * sees as much of its memory as is drawn for it: a model that has always had all of it relies on
 * that, and finds there what it knows by heart.  An evaluation begins at the first token, reads all
 * of them, and has a memory of its own, all of which it sees. */
#include "core/core.h"
#include "data/feed_parts.h"
#include "data/token_stream.h"
#include "fovea/author/objective.h"
#include "model/memory.h"

typedef struct options {
    /* tokens of a segment; rows of a batch; hidden states kept per layer, in tokens */
    int64_t context, streams, memory;
    int64_t memory_min; /* of them at least so many are seen; -1: all */
} options;

typedef struct segments {
    fv__token_stream *text;
    options opt;
    fv_device *dev;
    fv_tensor *mems; /* (layers,streams,memory,width) on the device, once the model is known */
    size_t bytes;
} segments;

/* ---- batches ---- */

/* Tokens of a stream, without the one more that its last token predicts.  An evaluation covers all
 * tokens: its last stream may be shorter than the others. */
static int64_t stream_len(const segments *s, int64_t epoch)
{
    int64_t n = s->text->n - 1, S = s->opt.streams;
    return epoch < 0 ? (n + S - 1) / S : n / S;
}

/* In training the segments that are complete, in an evaluation all. */
static int64_t count(const void *self, int64_t epoch)
{
    const segments *s = self;
    int64_t len = stream_len(s, epoch), T = s->opt.context;
    if (epoch < 0) return (len + T - 1) / T;
    return len >= T ? len / T : 1;
}

/* By how many tokens stream r is rotated; drawn by (seed, epoch, r), so that every rank and a
 * resumed run rotate alike. */
static int64_t rotation(const options *o, int64_t len, int64_t r, fv_data_rng how)
{
    uint32_t w[4];
    if (how.epoch < 0 || len < o->context) return 0;
    fv_philox(w, how.seed, 2, (uint64_t)how.epoch, (uint64_t)r);
    return (int64_t)(w[0] % (uint64_t)len);
}

static void size(const void *self, int64_t i, int64_t *source, int64_t *target)
{
    const options *o = &((const segments *)self)->opt;
    (void)i;
    *source = o->streams * o->context;
    *target = 0;
}

/* How many of the `known` states before segment i its row r sees. */
static int64_t visible(const options *o, int64_t known, int64_t i, int64_t r, fv_data_rng how)
{
    uint32_t w[4];
    if (how.epoch < 0 || o->memory_min < 0) return known;
    fv_philox(w, how.seed, 3, (uint64_t)how.epoch, (uint64_t)(i * o->streams + r));
    int64_t n = o->memory_min + (int64_t)(w[0] % (uint64_t)(o->memory - o->memory_min + 1));
    return n < known ? n : known;
}

/* input_ids (S,T); labels (S,T+1), the last behind the segment; attention_mask (S,M+T). */
static fv_status make(const void *self, fv_batch *out, const int32_t *rows, int64_t n,
                      fv_data_rng how, fv_err *e)
{
    const segments *s = self;
    const options *o = &s->opt;
    int64_t S = o->streams, T = o->context, M = o->memory, at = rows[0] * T;
    int64_t len = stream_len(s, how.epoch);
    if (n != 1) return fv_fail(e, FV_ESTATE, "segments: %lld in a batch", (long long)n);
    int32_t *ids = fv_batch_put(out, "input_ids", FV_I32, FV_SHAPE(S, T)),
            *label = fv_batch_put(out, "labels", FV_I32, FV_SHAPE(S, T + 1));
    uint8_t *mask = fv_batch_put(out, "attention_mask", FV_U8, FV_SHAPE(S, M + T));
    if (!mask) return fv_fail(e, out->err.code, "%s", out->err.text);
    for (int64_t r = 0; r < S; r++) {
        int64_t first = r * len, rest = s->text->n - 1 - first, here = len < rest ? len : rest;
        int64_t from = at + rotation(o, len, r, how);
        /* keys of the memory that do not exist yet (first segments of an epoch) are masked out */
        fv__memory_mask(mask + r * (M + T), M, T, visible(o, at, rows[0], r, how));
        /* label t belongs to input t-1: the model shifts, and label 0 is never counted */
        label[r * (T + 1)] = -100;
        for (int64_t t = 0; t < T; t++) {
            bool there = at + t < here;
            int64_t i = first + (from + t) % len;
            ids[r * T + t] = there ? s->text->ids[i] : s->text->task.pad;
            label[r * (T + 1) + t + 1] = there ? s->text->ids[i + 1] : -100;
            out->labels += there;
        }
    }
    return FV_OK;
}

/* ---- memory ---- */

/* The memory needs the model's number of layers and its width, so it is allocated when the
 * model is known and not in open_feed.  It starts as zeros, which the attention mask hides. */
static fv_status prepare(void *self, const fv_model *m, fv_device *d, fv_err *e)
{
    segments *s = self;
    fv__memory memory;
    fv_status st = fv__memory_of(&memory, d, m, e);
    if (st) return st;
    if (!memory.layers)
        return fv_fail(e, FV_EARG,
                       "objective segments: %s carries no memory%s; objective causal trains it",
                       fv_model_head(m), fv__memory_taken(m) ? " with mem_len 0" : "");
    fv_dtype t = fv_params_at(fv_model_params(m), 0)->dtype;
    fv_shape shape = FV_SHAPE(memory.layers, s->opt.streams, s->opt.memory, memory.width);
    s->bytes = (size_t)fv_shape_len(shape) * fv_dtype_size(t);
    s->dev = d;
    /* a tensor outside every arena: it must live from step to step */
    s->mems->data = d->backend->alloc(d, s->bytes);
    s->mems->shape = shape;
    s->mems->dtype = t;
    if (!s->mems->data)
        return fv_fail(e, FV_ENOMEM, "objective segments: out of memory for %zu bytes", s->bytes);
    fv_ctx *c;
    st = fv_ctx_new(&c, d, (fv_ctx_opt){.dtype = t}, e);
    if (st) return st;
    d->backend->zero(&c->stream, s->mems->data, s->bytes);
    if (fv_ctx_status(c)) st = fv_fail(e, fv_ctx_err(c)->code, "%s", fv_ctx_err(c)->text);
    fv_ctx_free(c);
    return st;
}

/* The memory of every stream for `copies` of a batch. */
static fv_tensor *repeated(fv_ctx *c, fv_tensor *mems, int64_t copies)
{
    fv_tensor *all = mems;
    for (int64_t i = 1; i < copies; i++) all = fv_concat(c, (fv_tensor *[]){all, mems}, 2, 1);
    return all;
}

/* The old memory has been copied by the layers when the new one takes its place: all of it is on
 * one stream. */
static void pass(const void *self, fv_ctx *c, const fv_model *m, const fv_items *in, fv_items *out)
{
    const segments *s = self;
    fv_items with = *in;
    int64_t S = s->opt.streams, rows = fv_dim(fv_items_get(in, "input_ids"), 0);
    fv_items_put(&with, "mems", repeated(c, s->mems, rows / S));
    fv_model_forward(c, m, &with, out);
    fv_tensor *next = fv_items_get(out, "mems");
    if (next && rows > S) next = fv_slice(c, next, 1, rows - S, rows);
    if (!next || fv__failed(c)) return;
    if (!fv_shape_same(next->shape, s->mems->shape) || next->dtype != s->mems->dtype) {
        fv_raise(c, FV_ESHAPE, "objective segments: mems %s became %s", fv_desc(s->mems).s,
                 fv_desc(next).s);
        return;
    }
    /* on the stream of the step, so a captured graph contains the copy as well */
    s->dev->backend->move(&c->stream, s->mems->data, next->data, s->bytes);
}

/* ---- checkpoints ---- */

/* Reads or writes the memory through host memory; f32 holds every value of a narrower dtype. */
static fv_status exchange(const segments *s, const fv_env *env, const char *path, bool save,
                          fv_err *e)
{
    int64_t n = fv_len(s->mems);
    size_t bytes = (size_t)n * sizeof(float);
    fv_ctx *c = NULL;
    fv_st *file = NULL;
    fv_st_info found;
    float *host = fv__alloc(env, bytes);
    if (!host) return fv_fail(e, FV_ENOMEM, "%s: out of memory", path);
    fv_st_item item = {"mems", FV_F32, s->mems->shape, FV_F32, host};
    fv_status st = fv_ctx_new(&c, s->dev, (fv_ctx_opt){.dtype = s->mems->dtype}, e);
    if (!st && save && fv_read(c, s->mems, host, n)) st = fv_ctx_err(c)->code;
    if (!st && save) st = fv_st_save(env, path, &item, 1, (fv_st_save_opt){0}, e);
    if (!st && !save) st = fv_st_open(&file, env, path, e);
    if (!st && !save) st = fv_st_find(file, "mems", &found, e);
    if (!st && !save && !fv_shape_same(found.shape, s->mems->shape))
        st = fv_fail(e, FV_EFORMAT, "%s: the memory has another size than this run's", path);
    if (!st && !save) st = fv_st_read(file, &found, host, FV_F32, n, e);
    if (!st && !save && fv_write(c, s->mems, host, n)) st = fv_ctx_err(c)->code;
    if (c && fv_ctx_status(c)) st = fv_fail(e, fv_ctx_err(c)->code, "%s", fv_ctx_err(c)->text);
    fv_st_close(file);
    fv_ctx_free(c);
    fv__free(env, host, bytes);
    return st;
}

static fv_status save_state(const void *self, const fv_env *env, const char *path, fv_err *e)
{
    return exchange(self, env, path, true, e);
}

static fv_status load_state(void *self, const fv_env *env, const char *path, fv_err *e)
{
    return exchange(self, env, path, false, e);
}

/* ---- opening and closing ---- */

static void close_feed(void *self)
{
    segments *s = self;
    if (!s) return;
    const fv_env *env = s->text ? s->text->env : NULL;
    if (s->mems && s->mems->data) s->dev->backend->release(s->dev, s->mems->data, s->bytes);
    fv__free(env, s->mems, sizeof *s->mems);
    fv__token_stream_close(s->text);
    fv__free(env, s, sizeof *s);
}

static fv_status open_feed(fv_feed *out, const fv_feed_opt *t, const fv_records *from,
                           fv_data_report *report, fv_err *e)
{
    const options *o = t->options;
    fv__token_stream *text;
    *out = (fv_feed){0};
    fv_status st = fv__token_stream_open(&text, t, from, o->context, false, report, e);
    if (st) return st;
    if (o->memory_min > o->memory)
        st = fv_fail(e, FV_EARG, "memory_min %lld is more than memory, %lld",
                     (long long)o->memory_min, (long long)o->memory);
    int64_t least = t->evaluation ? o->streams : o->streams * o->context;
    if (!st && text->n <= least)
        st = fv_fail(e, FV_EFORMAT, "%s: %lld tokens, and %lld streams need more than %lld",
                     from->file, (long long)text->n, (long long)o->streams, (long long)least);
    segments *s = st ? NULL : fv__alloc(t->env, sizeof *s);
    fv_tensor *mems = s ? fv__alloc(t->env, sizeof *mems) : NULL;
    if (!st && !mems) st = fv_fail(e, FV_ENOMEM, "%s: out of memory", from->file);
    if (st) {
        fv__free(t->env, s, sizeof *s);
        fv__token_stream_close(text);
        return st;
    }
    *mems = (fv_tensor){0};
    *s = (segments){.text = text, .opt = *o, .mems = mems};
    *out = (fv_feed){.self = s,
                     .ordered = true,
                     .count = count,
                     .size = size,
                     .make = make,
                     .pass = pass,
                     .prepare = prepare,
                     .save_state = save_state,
                     .load_state = load_state,
                     .close = close_feed};
    return FV_OK;
}

static const fv_field keys[] = {
    FV_INT(options, context, 1, 64, 1 << 16, "tokens of a segment"),
    FV_INT(options, streams, 1, 16, 1 << 16, "parts of the text that are read side by side"),
    FV_INT(options, memory, 1, 64, 1 << 16, "states of earlier segments that are attended to"),
    FV_INT(options, memory_min, -1, -1, 1 << 16,
           "a random number of them, at least this, is seen; -1: always all"),
    {0},
};

const fv_objective fv__objective_segments = {
    .name = "segments",
    .help = "the next token of running text, for models with a memory of earlier segments",
    .keys = keys,
    .options_size = sizeof(options),
    FV__CAUSAL_TEXTS,
    .open = open_feed,
};
