/* recognise.c - what the objectives of recognisers share: batches of recordings and texts, and the
 * word error rate of what the model hears in them.
 *
 * Rows of a batch are filled up with 0 at their end, and masked there.  To train one model for
 * whole recordings and for streams, a share of the rows (`stream`) gets the mask that chunks make:
 * frame q sees frames from the beginning of its chunk minus `left` to the end of its chunk.
 *
 * The metric is what a user would get: each row goes through a recogniser, greedily, and its words
 * are held against the text. */
#include "objective/part/recognise.h"

#include "base/base.h"
#include "data/feed_parts.h"
#include "fovea/author/metric.h"
#include "fovea/author/op.h"
#include "fovea/author/recognise.h"

const fv_field fv__recognise_fields[] = {
    FV__SPEECH_KEYS(fv__recognise_keys),
    FV_INT(fv__recognise_keys, chunk, 1, 8, 1 << 16,
           "frames of a stream that are heard together: the look-ahead"),
    FV_INT(fv__recognise_keys, left, 0, 32, 1 << 16, "frames before a chunk that each layer sees"),
    FV_FLOAT(fv__recognise_keys, stream, 0, 0, 1,
             "share of the examples that is heard as a stream"),
    FV_BOOL(fv__recognise_keys, valid_stream, false,
            "evaluate on streams, not on whole recordings"),
    {0},
};
const char *const fv__recognise_specials[] = {"<pad>", "<unk>", NULL};

typedef struct recognise {
    fv__speech speech;
    fv__recognise_keys keys;
    const fv_env *env;
    const fv_model *model; /* known once training begins */
    fv_device *device;
    int32_t blank;
    bool with_blank;
} recognise;

/* ---- batches ---- */

/* The examples of a batch, before their lengths are known. */
typedef struct gathered {
    fv_buf x, ids; /* floats, int32_t */
    int64_t frames[1024], labels[1024];
    int64_t T, U, width;
} gathered;

enum { MOST_ROWS = 1024 };

static bool is_samples(const recognise *p) { return p->speech.steps->kind == FV_SOUND_RAW; }

/* Sounds and ids of all rows first: only then is it known how long the batch is. */
static fv_status gather(const recognise *p, gathered *g, const int32_t *rows, int64_t n,
                        fv_data_rng how, fv_err *e)
{
    fv__spoken x;
    fv_status st = fv__spoken_open(&x, &p->speech, e);
    for (int64_t i = 0; !st && i < n; i++) {
        st = fv__speech_get(&p->speech, &x, rows[i], how, e);
        if (st) break;
        g->frames[i] = x.shape.d[0];
        g->labels[i] = x.enc->n;
        g->width = is_samples(p) ? 1 : x.shape.d[1];
        if (g->frames[i] > g->T) g->T = g->frames[i];
        if (g->labels[i] > g->U) g->U = g->labels[i];
        fv__buf_add(&g->x, x.x.data, (size_t)(g->frames[i] * g->width) * sizeof(float));
        fv__buf_add(&g->ids, x.enc->ids, (size_t)x.enc->n * sizeof(int32_t));
        if (g->x.failed || g->ids.failed) st = fv_fail(e, FV_ENOMEM, "a batch: out of memory");
    }
    fv__spoken_close(&x);
    return st;
}

/* (n,T): the frames that exist; or (n,T,T) with chunks. */
static void put_mask(const recognise *p, fv_batch *out, const gathered *g, const int32_t *rows,
                     int64_t n, fv_data_rng how)
{
    int64_t T = g->T, chunk = p->keys.chunk, left = p->keys.left;
    bool square = how.epoch >= 0 && p->keys.stream > 0;
    uint8_t *m = fv_batch_put(out, "attention_mask", FV_U8,
                              square ? FV_SHAPE(n, T, T) : FV_SHAPE(n, T));
    for (int64_t i = 0; m && i < n; i++) {
        fv__dice d = fv__dice_of(how, FV__DICE_MIX, rows[i]);
        bool chunks = square && fv__dice_unit(&d) < (double)p->keys.stream;
        for (int64_t q = 0; q < (square ? T : 1); q++) {
            int64_t from = chunks ? q / chunk * chunk - left : 0,
                    to = chunks ? (q / chunk + 1) * chunk : T;
            for (int64_t k = 0; k < T; k++) *m++ = k < g->frames[i] && k >= from && k < to;
        }
    }
}

/* (n,T,width) with zeros behind each sound, and input_lengths (n): the frames that are one's
 * own. */
static void put_sound(const recognise *p, fv_batch *out, const gathered *g, int64_t n)
{
    const float *from = (const float *)(const void *)g->x.data;
    int64_t row = g->T * g->width;
    float *x = fv_batch_put(out, fv_processor_sound_input(p->speech.processor), FV_F32,
                            is_samples(p) ? FV_SHAPE(n, g->T) : FV_SHAPE(n, g->T, g->width));
    int32_t *lens = fv_batch_put(out, "input_lengths", FV_I32, FV_SHAPE(n));
    for (int64_t i = 0; lens && i < n; i++, x += row) {
        int64_t have = g->frames[i] * g->width;
        memcpy(x, from, (size_t)have * sizeof *x);
        memset(x + have, 0, (size_t)(row - have) * sizeof *x);
        from += have;
        lens[i] = (int32_t)g->frames[i];
    }
}

/* labels (n,U) and their lengths; a transducer's decoder reads a blank before them. */
static void put_labels(const recognise *p, fv_batch *out, const gathered *g, int64_t n)
{
    const int32_t *ids = (const int32_t *)(const void *)g->ids.data;
    int64_t U = g->U > 0 ? g->U : 1;
    int32_t *label = fv_batch_put(out, "labels", FV_I32, FV_SHAPE(n, U)),
            *lens = fv_batch_put(out, "label_lengths", FV_I32, FV_SHAPE(n)), *in = NULL;
    if (p->with_blank) in = fv_batch_put(out, "decoder_input_ids", FV_I32, FV_SHAPE(n, U + 1));
    if (!label || !lens || (p->with_blank && !in)) return;
    for (int64_t i = 0; i < n; i++) {
        for (int64_t u = 0; u < U; u++) *label++ = u < g->labels[i] ? ids[u] : -100;
        for (int64_t u = 0; in && u <= U; u++)
            *in++ = u && u <= g->labels[i] ? ids[u - 1] : p->blank;
        lens[i] = (int32_t)g->labels[i];
        out->labels += (double)g->labels[i];
        out->tokens += (double)g->frames[i];
        ids += g->labels[i];
    }
}

static fv_status make(const void *self, fv_batch *out, const int32_t *rows, int64_t n,
                      fv_data_rng how, fv_err *e)
{
    const recognise *p = self;
    if (n > MOST_ROWS)
        return fv_fail(e, FV_EARG, "[train] batch_rows: at most %d recordings", (int)MOST_ROWS);
    gathered *g = fv__alloc(p->env, sizeof *g);
    if (!g) return fv_fail(e, FV_ENOMEM, "a batch: out of memory");
    g->x.env = g->ids.env = p->env;
    fv_status st = gather(p, g, rows, n, how, e);
    if (!st) {
        put_sound(p, out, g, n);
        put_mask(p, out, g, rows, n, how);
        put_labels(p, out, g, n);
        if (out->err.code) st = fv_fail(e, out->err.code, "%s", out->err.text);
    }
    fv__buf_free(&g->x);
    fv__buf_free(&g->ids);
    fv__free(p->env, g, sizeof *g);
    return st;
}

/* ---- the metric ---- */

/* Evaluation recognises with the model itself, so it is kept from the start of the run. */
static fv_status prepare(void *self, const fv_model *m, fv_device *d, fv_err *e)
{
    recognise *p = self;
    (void)e;
    p->model = m;
    p->device = d;
    return FV_OK;
}

/* Ids as text; 0-terminated. */
static fv_status text_of(const recognise *p, fv_buf *out, const int32_t *ids, int64_t n, fv_err *e)
{
    char *text = NULL;
    size_t len = 0;
    fv_status st = fv_tok_decode(p->speech.tok, &text, &len, ids, n, true, e);
    out->len = 0;
    if (!st) fv__buf_add(out, text, len);
    if (!st) fv_tok_free_text(p->speech.tok, text, len);
    return st;
}

/* Adds the edits between what is heard in a row and its labels. */
static fv_status count_row(const recognise *p, fv_recogniser *r, const fv_batch *b, int64_t i,
                           fv_edits *edits, fv_err *e)
{
    const fv_batch_part *x = &b->part[0], *labels = fv_batch_get(b, "labels");
    int64_t width = is_samples(p) ? 1 : x->shape.d[2], U = labels->shape.d[1], n;
    int64_t frames = ((const int32_t *)fv_batch_get(b, "input_lengths")->data)[i];
    fv_buf said = {.env = p->env}, heard = {.env = p->env}, ids = {.env = p->env};
    fv_recogniser_reset(r);
    fv_status st = fv_recogniser_add(r, (const float *)x->data + i * x->shape.d[1] * width, frames,
                                     width, e);
    if (!st) st = fv_recogniser_end(r, e);
    const fv_recognised *token = fv_recogniser_tokens(r, &n);
    for (int64_t k = 0; k < n; k++) fv__buf_add(&ids, &token[k].id, sizeof token[k].id);
    if (!st) st = text_of(p, &heard, (const int32_t *)(const void *)ids.data, n, e);
    int64_t len = ((const int32_t *)fv_batch_get(b, "label_lengths")->data)[i];
    if (!st) st = text_of(p, &said, (const int32_t *)labels->data + i * U, len, e);
    if (!st)
        st = fv_edits_add(edits, p->env, heard.len ? heard.data : "", said.len ? said.data : "",
                          (fv_edit_opt){0}, NULL, NULL, e);
    fv__buf_free(&said);
    fv__buf_free(&heard);
    fv__buf_free(&ids);
    return st;
}

/* Word errors, substituted, deleted and inserted, over the words that were spoken: less is
 * better. */
static fv_status count_correct(const void *self, fv_ctx *c, const fv_batch *b, const fv_items *out,
                               double *hits, double *of)
{
    const recognise *p = self;
    fv_recognise_opt how = {.stream = p->keys.valid_stream,
                            .input = b->part[0].name,
                            .blank = p->blank};
    fv_recogniser *r = NULL;
    fv_edits edits = {0};
    fv_err e;
    (void)out;
    if (!p->model) return FV_OK;
    fv_status st = fv_recogniser_new(&r, p->device, p->model, how, &e);
    for (int64_t i = 0; !st && i < b->part[0].shape.d[0]; i++)
        st = count_row(p, r, b, i, &edits, &e);
    fv_recogniser_free(r);
    if (st) fv_raise(c, st, "%s", e.text);
    *hits += (double)(edits.substituted + edits.deleted + edits.inserted);
    *of += (double)(edits.right + edits.substituted + edits.deleted);
    return st;
}

/* ---- opening ---- */

/* As many in every epoch. */
static int64_t count(const void *self, int64_t epoch)
{
    (void)epoch;
    return fv__speech_count(&((const recognise *)self)->speech);
}

/* What is joined is drawn anew, and all are of like length then; else recordings are. */
static void size(const void *self, int64_t i, int64_t *source, int64_t *target)
{
    const recognise *p = self;
    *source = p->keys.speech.join > 1 ? 1 : fv__speech_frames(&p->speech, i);
    *target = 0;
}

static void close_feed(void *self)
{
    recognise *p = self;
    fv__speech_close(&p->speech);
    fv__free(p->env, p, sizeof *p);
}

static const fv_feed feed = {.metric = "WER",
                             .less_is_better = true,
                             .count = count,
                             .size = size,
                             .make = make,
                             .count_correct = count_correct,
                             .prepare = prepare,
                             .close = close_feed};

fv_status fv__recognise_open(fv_feed *out, const fv_feed_opt *t, const fv_records *from,
                             bool with_blank, fv_data_report *report, fv_err *e)
{
    *out = (fv_feed){0};
    recognise *p = fv__alloc(t->env, sizeof *p);
    if (!p) return fv_fail(e, FV_ENOMEM, "%s: out of memory", from->file);
    *p = (recognise){.env = t->env,
                     .keys = *(const fv__recognise_keys *)t->options,
                     .blank = t->pad,
                     .with_blank = with_blank};
    fv_status st = fv__speech_open(&p->speech, t, from, &p->keys.speech, NULL, report, e);
    return fv__feed_give(out, &feed, p, st);
}

/* ---- for new models ---- */

fv_status fv__recognise_processor(fv_processor **out, const fv_env *env, const void *own,
                                  const fv_records *from, fv_processor *tok, fv_err *e)
{
    return fv__speech_processor(out, env, &((const fv__recognise_keys *)own)->speech, from, tok, e);
}

/* What a new model takes from the data: the width of its features, and how it streams. */
int64_t fv__recognise_value(const void *own, const fv_processor *p, const char *key)
{
    const fv__recognise_keys *k = own;
    const fv_sound_steps *s = fv_processor_sound_steps(p);
    if (!strcmp(key, "num_features")) return s ? s->features : -1;
    if (!strcmp(key, "chunk_size")) return k->chunk;
    return strcmp(key, "left_context") ? -1 : k->left;
}
