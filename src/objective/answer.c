/* answer.c - the objective of extractive question answering: SQuAD's JSON, question and context in
 * one row,
 *
 *     [CLS] question [SEP] context [SEP]
 *
 * with token types 0 and 1; start and end are the answer's first and last token.
 *
 * A context that is too long is cut to a window around the answer.  The position of the answer in
 * the window is random (by the number of the question), so that the model cannot learn it.  Only
 * the first answer of a question is used. */
#include "data/feed_parts.h"
#include "data/labels.h"
#include "data/masking.h"
#include "data/token_stream.h"
#include "fovea/author/objective.h"

typedef struct options {
    float drop;
} options;

typedef struct asked {
    fv__text_rows rows;
    fv_feed_opt task;
    options opt;
    /* indices into the row as it is stored, [CLS] included */
    int32_t (*positions)[3]; /* first token of the context, of the answer, last of the answer */
    size_t positions_bytes;
    fv_encoding *question, *context;
} asked;

/* Tokens of the context that hold the characters [from, to). */
static bool find_tokens(const fv_encoding *x, int64_t from, int64_t to, int64_t *first,
                        int64_t *last)
{
    *first = *last = -1;
    for (int64_t i = 0; i < x->n; i++) {
        /* Offsets of special or empty tokens have from == to; they hold no character. */
        if (*first < 0 && x->spans[i].to > from && x->spans[i].to > x->spans[i].from) *first = i;
        if (x->spans[i].from < to && x->spans[i].to > x->spans[i].from) *last = i;
    }
    return *first >= 0 && *last >= *first;
}

/* One example: the question takes at most half of the row, the context the rest. */
static fv_status add_row(fv__reading *rd, asked *a, int64_t first, int64_t last)
{
    /* 4096 tokens bound the stack; longer contexts are cut to a window like any other */
    int32_t row[4096];
    int64_t most = fv__records_most(rd) < 4096 ? fv__records_most(rd) : 4096, q = a->question->n,
            budget, from = 0, n = a->context->n;
    if (q > most / 2) q = most / 2;
    budget = most - q - 3;
    if (last - first + 1 > budget) {
        rd->report->too_long++;
        fv__records_note(rd, rd->from->file, rd->report->records,
                         "question %lld: the answer is too long", (long long)rd->report->records);
        return FV_OK;
    }
    if (n > budget) { /* the window may begin anywhere that keeps the answer inside */
        int64_t low = last + 1 > budget ? last + 1 - budget : 0,
                high = first < n - budget ? first : n - budget;
        /* A fixed seed: windows belong to the data and must not change between epochs or ranks. */
        from = low + fv__rng_below((fv_data_rng){0, 0}, 6, a->rows.text.n, 0, high - low + 1);
        n = budget;
        rd->report->cut++;
    }
    row[0] = a->task.cls;
    if (q) memcpy(row + 1, a->question->ids, (size_t)q * sizeof *row);
    row[q + 1] = a->task.sep;
    memcpy(row + q + 2, a->context->ids + from, (size_t)n * sizeof *row);
    row[q + n + 2] = a->task.sep;
    void *p = a->positions;
    bool ok = fv__grow(a->rows.env, &p, &a->positions_bytes,
                       (size_t)(a->rows.text.n + 1) * sizeof *a->positions);
    a->positions = p;
    if (ok) {
        int32_t *positions = a->positions[a->rows.text.n];
        positions[0] = (int32_t)(q + 2);
        positions[1] = (int32_t)(q + 2 + first - from);
        positions[2] = (int32_t)(q + 2 + last - from);
    }
    if (!ok || !fv__ragged_add(&a->rows.text, row, q + n + 3))
        return fv_fail(rd->e, FV_ENOMEM, "%s: out of memory", rd->from->file);
    rd->report->kept++;
    rd->report->tokens[0] += q + n + 3;
    return FV_OK;
}

/* Code points: SQuAD counts positions in them. */
static int64_t characters(const char *s)
{
    int64_t n = 0;
    for (; *s; s++) n += ((unsigned char)*s & 0xc0) != 0x80;
    return n;
}

/* An answer whose tokens are not found in the context (a character span that cuts a token) is
 * counted and left out. */
static fv_status add_question(fv__reading *rd, asked *a, const fv_question *q)
{
    int64_t first, last;
    rd->report->records++;
    fv_status st = fv_tok_encode(a->question, q->text, strlen(q->text), (fv_tok_opts){0}, rd->e);
    if (st) return st;
    /* a start that no context reaches would overflow when the answer's length is added; spans
     * are in code points, as SQuAD's answer_start is (FV_OFFSETS_CHARS) */
    if (q->n && q->start < INT32_MAX &&
        find_tokens(a->context, q->start, q->start + characters(q->answer[0]), &first, &last))
        return add_row(rd, a, first, last);
    rd->report->empty++;
    fv__records_note(rd, rd->from->file, rd->report->records,
                     "question %lld: its answer is not in the context",
                     (long long)rd->report->records);
    return FV_OK;
}

/* A cut between two parts moves on to the next context: else questions about one context would
 * stand on both sides of it. */
static int64_t next_context(const fv_questions *all, int64_t i)
{
    int64_t n = fv_questions_count(all);
    if (!i) return 0;
    while (i < n && fv_questions_at(all, i)->context == fv_questions_at(all, i - 1)->context) i++;
    return i;
}

/* Parts end between contexts, so that no text is in training and in validation. */
static fv_status read_all(fv__reading *rd, asked *a)
{
    fv_questions *all;
    const char *context = NULL; /* the one that is encoded */
    fv_status st = fv_questions_open(&all, rd->env, rd->from->file, rd->e);
    int64_t i = 0, last = 0;
    if (!st) {
        fv__records_part(rd->from, fv_questions_count(all), &i, &last);
        i = next_context(all, i);
        last = next_context(all, last);
    }
    for (; !st && i < last && !(rd->from->most && rd->report->kept >= rd->from->most); i++) {
        const fv_question *q = fv_questions_at(all, i);
        /* contexts are compared by address: questions of one paragraph share the string */
        if (q->context != context)
            st = fv_tok_encode(a->context, q->context, strlen(q->context),
                               (fv_tok_opts){.offsets = FV_OFFSETS_CHARS}, rd->e);
        context = q->context;
        if (!st) st = add_question(rd, a, q);
    }
    fv_questions_close(all);
    return st;
}

/* ---- the feed ---- */

/* input_ids, attention_mask and token_type_ids (n,T), start_positions and end_positions (n). */
static fv_status make(const void *self, fv_batch *out, const int32_t *rows, int64_t n,
                      fv_data_rng how, fv_err *e)
{
    const asked *a = self;
    int64_t T = fv__ragged_put(&a->rows.text, out, rows, n, a->task.pad);
    int32_t *type = fv_batch_put(out, "token_type_ids", FV_I32, FV_SHAPE(n, T));
    int32_t *start = fv_batch_put(out, "start_positions", FV_I32, FV_SHAPE(n));
    int32_t *end = fv_batch_put(out, "end_positions", FV_I32, FV_SHAPE(n));
    if (!end) return fv_fail(e, out->err.code, "%s", out->err.text);
    fv__batch_drop(&out->part[0], &a->task, a->opt.drop, rows, how);
    for (int64_t i = 0; i < n; i++) {
        int64_t len;
        fv__ragged_row(&a->rows.text, rows[i], &len);
        const int32_t *positions = a->positions[rows[i]];
        /* type 1 from the first token of the context up to the last [SEP] */
        for (int64_t t = 0; t < T; t++) type[i * T + t] = t >= positions[0] && t < len;
        start[i] = positions[1];
        end[i] = positions[2];
    }
    out->labels = (double)n;
    return FV_OK;
}

/* The index of the greatest score. */
static int64_t best(const float *x, int64_t n)
{
    int64_t at = 0;
    for (int64_t i = 1; i < n; i++)
        if (x[i] > x[at]) at = i;
    return at;
}

/* Exact match: both ends of the span are right. */
static fv_status count_correct(const void *self, fv_ctx *c, const fv_batch *b, const fv_items *out,
                               double *hits, double *of)
{
    (void)self;
    const fv_env *env = fv_device_env(fv_ctx_device(c));
    const fv_tensor *first = fv_items_get(out, "start_logits"),
                    *last = fv_items_get(out, "end_logits");
    const int32_t *start = fv__batch_ints(b, "start_positions"),
                  *end = fv__batch_ints(b, "end_positions");
    int64_t n = fv_len(first), T = fv_cols(first);
    size_t bytes = 2 * (size_t)n * sizeof(float);
    float *x = fv__alloc(env, bytes);
    if (!x) fv_raise(c, FV_ENOMEM, "evaluation: out of memory for %zu bytes", bytes);
    fv_status st = x ? fv_read(c, first, x, n) : FV_ENOMEM;
    if (!st) st = fv_read(c, last, x + n, n);
    for (int64_t i = 0; !st && i < fv_rows(first); i++) {
        /* start and end are judged apart, without the constraint start <= end that
         * fv_task_answer adds */
        *hits += best(x + i * T, T) == start[i] && best(x + n + i * T, T) == end[i];
        *of += 1;
    }
    fv__free(env, x, bytes);
    return st;
}

static void close_feed(void *self)
{
    asked *a = self;
    const fv_env *env = a->rows.env;
    fv__ragged_free(&a->rows.text);
    fv__free(env, a->positions, a->positions_bytes);
    fv__free(env, a, sizeof *a);
}

static const fv_feed feed = {.metric = "exact",
                             .count = fv__text_rows_count,
                             .size = fv__text_rows_size,
                             .make = make,
                             .count_correct = count_correct,
                             .close = close_feed};

static fv_status open_feed(fv_feed *out, const fv_feed_opt *t, const fv_records *from,
                           fv_data_report *report, fv_err *e)
{
    *out = (fv_feed){0};
    if (t->cls < 0 || t->sep < 0)
        return fv_fail(e, FV_EARG,
                       "the tokenizer has no [CLS] and [SEP], or <s> and </s>, to put around a "
                       "question and its "
                       "context");
    asked *a = fv__alloc(t->env, sizeof *a);
    if (!a) return fv_fail(e, FV_ENOMEM, "%s: out of memory", from->file);
    *a = (asked){.rows = {.env = t->env, .text = {.env = t->env}},
                 .task = *t,
                 .opt = *(const options *)t->options};
    fv__reading rd = {
        .env = t->env, .from = from, .n_texts = 1, .user = a, .report = report, .e = e};
    fv_status st = fv_encoding_new(&a->question, t->tok, e);
    if (!st) st = fv_encoding_new(&a->context, t->tok, e);
    if (!st) st = read_all(&rd, a);
    fv_encoding_free(a->question);
    fv_encoding_free(a->context);
    if (!st && !a->rows.text.n)
        st = fv_fail(e, FV_EFORMAT, "%s: no question can be used", from->file);
    return fv__feed_give(out, &feed, a, st);
}

/* Every context once, and every question. */
static fv_status texts(const fv_env *env, const void *own, const fv_records *from, fv_text_fn *each,
                       void *user, fv_err *e)
{
    (void)own;
    fv_questions *all;
    const char *context = NULL;
    fv_status st = fv_questions_open(&all, env, from->file, e);
    for (int64_t i = 0; !st && i < fv_questions_count(all); i++) {
        const fv_question *q = fv_questions_at(all, i);
        if (q->context != context) each(user, q->context, strlen(q->context));
        context = q->context;
        each(user, q->text, strlen(q->text));
    }
    fv_questions_close(all);
    return st;
}

static const fv_field keys[] = {
    FV_FLOAT(options, drop, 0, 0, 0.9,
             "share of tokens hidden in training, so that none is relied on"),
    {0},
};
static const char *const loss_inputs[] = {"start_positions", "end_positions", NULL};

const fv_objective fv__objective_answer = {
    .name = "answer",
    .help = "first and last token of an answer in its context (SQuAD's JSON)",
    .keys = keys,
    .options_size = sizeof(options),
    FV__ENCODER_TEXTS,
    .texts = texts,
    .head = FV_HEAD_ANSWER,
    .loss_inputs = loss_inputs,
    .open = open_feed,
};
