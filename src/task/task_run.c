/* run.c - many texts through a model: encoded, sorted by length, padded into batches, and each
 * one's outputs handed back.
 *
 * Texts of a call are encoded first, then sorted by length and run in batches, and each result is
 * handed to the task with its own length, so that no task sees padding. Memory of a call is an
 * arena, which the next call empties: in the steady state nothing is allocated. */
#include <math.h>
#include <stdlib.h>

#include "task.h"

#define BATCH_TOKENS 2048 /* more at once is no faster, and takes more memory */
/* of an output: masked words have one for each word of the vocabulary */
#define BATCH_FLOATS (1 << 24)

void fv__task_begin(fv_task *t) { fv__arena_rewind(&t->host, (fv_mark){0}); }

/* Memory of a call, zeroed; it is there until fv__task_begin of the next. Never NULL without *e. */
void *fv__task_claim(fv_task *t, size_t bytes, fv_err *e)
{
    void *p = fv__arena_alloc(&t->host, bytes ? bytes : 1);
    if (!p)
        fv_fail(e, FV_ENOMEM, "out of memory for %zu bytes", bytes);
    else
        memset(p, 0, bytes);
    return p;
}

static void *copy(fv_task *t, const void *from, size_t bytes, fv_err *e)
{
    void *p = fv__task_claim(t, bytes, e);
    return p && bytes ? memcpy(p, from, bytes) : p;
}

/* Copied out of the encoding, which the next text overwrites. most 0: not cut. */
fv_status fv__task_encode(fv_task *t, fv_seq *out, const fv_text *x, int64_t most, fv_err *e)
{
    fv_tok_opts o = {.specials = true,
                     .offsets = FV_OFFSETS_CHARS,
                     .pair = x->pair,
                     .pair_len = x->pair_n,
                     .max_len = most};
    fv_status st = fv_tok_encode(t->enc, x->s, x->n, o, e);
    if (st) return st;
    size_t n = (size_t)t->enc->n;
    *out = (fv_seq){.n = t->enc->n};
    out->ids = copy(t, t->enc->ids, n * sizeof *out->ids, e);
    out->types = copy(t, t->enc->token_types, n * sizeof *out->types, e);
    out->spans = copy(t, t->enc->spans, n * sizeof *out->spans, e);
    out->words = copy(t, t->enc->words, n * sizeof *out->words, e);
    out->special = copy(t, t->enc->special, n, e);
    if (!out->ids || !out->types || !out->spans || !out->words || !out->special) return FV_ENOMEM;
    if (!n) return fv_fail(e, FV_EARG, "a text has no tokens");
    return fv__task_letters(t, out, x, e);
}

/* Texts that are too long are cut, or refused where the task is strict. */
fv_status fv__task_encode_all(fv_task *t, fv_seq **out, const fv_text *texts, int64_t n, fv_err *e)
{
    *out = fv__task_claim(t, (size_t)n * sizeof **out, e);
    if (!*out) return FV_ENOMEM;
    for (int64_t i = 0; i < n; i++) {
        fv_seq *x = &(*out)[i];
        fv_status st = fv__task_encode(t, x, &texts[i], t->strict ? 0 : t->longest, e);
        if (!st && t->longest && x->n > t->longest)
            st = fv_fail(e, FV_EARG, "%lld tokens, and the model sees %lld", (long long)x->n,
                         (long long)t->longest);
        if (st) return st;
    }
    return FV_OK;
}

/* ---- batches ---- */

typedef struct by_length {
    int64_t n, i; /* its length, and which one it is */
} by_length;

static int longest_first(const void *a, const void *b)
{
    const by_length *x = a, *y = b;
    return x->n != y->n ? (x->n < y->n) - (x->n > y->n) : (x->i > y->i) - (x->i < y->i);
}

/* The inputs of rows sequences, padded to T. */
static fv_status fill(fv_task *t, fv_items *in, const fv_seq *seqs, const by_length *order,
                      int64_t rows, int64_t T, fv_err *e)
{
    int32_t *ids = fv__task_claim(t, (size_t)(rows * T) * sizeof *ids, e);
    int32_t *types = fv__task_claim(t, (size_t)(rows * T) * sizeof *types, e);
    uint8_t *mask = fv__task_claim(t, (size_t)(rows * T), e);
    int64_t most = t->word_bytes;
    int32_t *letters = fv__task_claim(t, (size_t)(rows * T * most) * sizeof *letters, e);
    if (!ids || !types || !mask || !letters) return FV_ENOMEM;
    for (int64_t b = 0; b < rows; b++) {
        const fv_seq *s = &seqs[order[b].i];
        for (int64_t j = 0; j < T; j++) {
            ids[b * T + j] = j < s->n ? s->ids[j] : t->pad;
            types[b * T + j] = j < s->n ? s->types[j] : 0;
            mask[b * T + j] = j < s->n;
        }
        if (most && s->letters)
            memcpy(letters + b * T * most, s->letters, (size_t)(s->n * most) * sizeof *letters);
    }
    fv_items_put(in, "input_ids", fv_ints(t->ctx, ids, FV_SHAPE(rows, T)));
    fv_items_put(in, "attention_mask", fv_bytes(t->ctx, mask, FV_SHAPE(rows, T)));
    if (most) fv_items_put(in, "char_ids", fv_ints(t->ctx, letters, FV_SHAPE(rows, T, most)));
    if (t->types) fv_items_put(in, "token_type_ids", fv_ints(t->ctx, types, FV_SHAPE(rows, T)));
    return FV_OK;
}

/* Up to two outputs go to the host at once; fn gets a row's part of both. Rows are padded to the
 * longest, which is the first, and fn sees its own length only. */
static fv_status run_batch(fv_task *t, const fv_seq *seqs, const by_length *order, int64_t rows,
                           const fv_wanted *w, fv_err *e)
{
    fv_items in = {0}, out = {0};
    fv_ctx_reset(t->ctx, 0);
    fv_status st = fill(t, &in, seqs, order, rows, order[0].n, e);
    if (st) return st;
    fv_model_forward(t->ctx, t->model, &in, &out);
    if (fv_ctx_status(t->ctx))
        return fv_fail(e, fv_ctx_err(t->ctx)->code, "%s", fv_ctx_err(t->ctx)->text);
    float *host[2] = {NULL, NULL};
    int64_t each[2] = {0, 0}, width = 0;
    for (int k = 0; k < 2 && w->names[k]; k++) {
        const fv_tensor *y = fv_items_get(&out, w->names[k]);
        if (!y) return fv_fail(e, FV_EARG, "%s gives no %s", fv_model_head(t->model), w->names[k]);
        host[k] = fv__task_claim(t, (size_t)fv_len(y) * sizeof(float), e);
        if (!host[k]) return FV_ENOMEM;
        if (fv_read(t->ctx, y, host[k], fv_len(y)))
            return fv_fail(e, fv_ctx_err(t->ctx)->code, "%s", fv_ctx_err(t->ctx)->text);
        each[k] = fv_len(y) / rows;
        width = fv_cols(y);
    }
    for (int64_t b = 0; b < rows && !st; b++) {
        const float *mine[2] = {host[0] + b * each[0], host[1] ? host[1] + b * each[1] : NULL};
        st = w->fn(w->user, order[b].i, &seqs[order[b].i], mine, width, e);
    }
    return st;
}

/* Longest first: the largest batch comes first and sizes the arena once, and rows of a batch are
 * alike. The batch is as many rows as BATCH_TOKENS and BATCH_FLOATS of output allow. */
fv_status fv__task_run(fv_task *t, const fv_seq *seqs, int64_t n, const fv_wanted *w, fv_err *e)
{
    by_length *order = fv__task_claim(t, (size_t)n * sizeof *order, e);
    if (!order) return FV_ENOMEM;
    for (int64_t i = 0; i < n; i++) order[i] = (by_length){seqs[i].n, i};
    qsort(order, (size_t)n, sizeof *order, longest_first);
    int64_t most = BATCH_FLOATS / (w->per_token > 0 ? w->per_token : 1);
    if (most > BATCH_TOKENS) most = BATCH_TOKENS;
    for (int64_t at = 0; at < n;) {
        int64_t rows = most / order[at].n;
        if (rows < 1) rows = 1;
        if (rows > n - at) rows = n - at;
        /* a batch's copies go with it; what fn keeps was taken before */
        fv_mark mark = {t->host.at, t->host.used};
        fv_status st = run_batch(t, seqs, order + at, rows, w, e);
        if (st) return st;
        fv__arena_rewind(&t->host, mark);
        at += rows;
    }
    return FV_OK;
}

/* In place, with the maximum taken off and the sum in f64. */
void fv__softmax_row(float *x, int64_t n)
{
    double total = 0;
    float top = x[0];
    for (int64_t i = 1; i < n; i++) top = x[i] > top ? x[i] : top;
    for (int64_t i = 0; i < n; i++) total += exp((double)(x[i] - top));
    for (int64_t i = 0; i < n; i++) x[i] = (float)(exp((double)(x[i] - top)) / total);
}

/* ---- characters ---- */

/* Offsets of the tokenizer count characters; at[i] is the byte where character i begins, so that a
 * slice costs nothing. */
fv_status fv__task_chars(fv_task *t, fv_chars *out, const char *s, size_t n, fv_err *e)
{
    *out = (fv_chars){.s = s, .at = fv__task_claim(t, (n + 1) * sizeof *out->at, e)};
    if (!out->at) return FV_ENOMEM;
    for (size_t i = 0; i < n; i++)
        if ((s[i] & 0xC0) != 0x80) out->at[out->n++] = i;
    out->at[out->n] = n;
    return FV_OK;
}

/* Clamped to the text: a span behind a truncated text must not read past it. */
const char *fv__chars_slice(const fv_chars *c, int64_t from, int64_t to, size_t *n)
{
    if (to > c->n) to = c->n;
    if (from > to) from = to;
    *n = c->at[to] - c->at[from];
    return c->s + c->at[from];
}
