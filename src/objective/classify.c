/* classify.c - the objective of text classifiers: one label for each text.
 *
 * Labels are numbered as they first appear in the training data and named in config.json
 * (id2label); validation data with another label is an error that names the line.  The metric is
 * accuracy.
 *
 * The label of a record is its second text.  `label_until` cuts a label like "ABBR:exp" (TREC)
 * down to its coarse class, so that one file serves both tasks.  `text_prefix` is part of the
 * text, not a special token: E5 and its kin were trained with the literal words. */
#include "data/feed_parts.h"
#include "data/labels.h"
#include "data/masking.h"
#include "data/records.h"
#include "fovea/author/objective.h"

typedef struct options {
    float drop; /* share of tokens, 0..0.9 */
    char label_until[8];
    char text_prefix[128];
} options;

typedef struct labelled {
    fv__text_rows rows;
    fv_feed_opt task;
    options opt;
    /* one id for each row of rows.text, in the same order */
    int32_t *label;
    size_t label_bytes;
    fv_encoding *enc; /* while the file is read */
    fv_buf prefixed;  /* likewise: a text with text_prefix before it */
} labelled;

/* The text as the model reads it. */
static fv__span prefixed(labelled *l, fv__span text)
{
    if (!l->opt.text_prefix[0]) return text;
    l->prefixed.len = 0;
    fv__buf_str(&l->prefixed, l->opt.text_prefix);
    fv__buf_add(&l->prefixed, text.s, text.n);
    return (fv__span){l->prefixed.data ? l->prefixed.data : "", l->prefixed.len};
}

/* A text that is too long is encoded again with a limit, so that it still ends in the end
 * token. */
static fv_status add(fv__reading *rd, const fv__record *rec)
{
    labelled *l = rd->user;
    fv__span text = prefixed(l, rec->text[0]), name = rec->text[1];
    size_t n = 0;
    if (l->prefixed.failed) return fv_fail(rd->e, FV_ENOMEM, "%s: out of memory", rd->from->file);
    int32_t label;
    /* strchr finds the NUL that ends label_until, too, so the empty string matches nothing else */
    while (n < name.n && (!name.s[n] || !strchr(l->opt.label_until, name.s[n]))) n++;
    fv_status st = fv__label(l->task.labels, &label, rec->file[1], rec->line, name.s, n, rd->e);
    if (!st) st = fv_tok_encode(l->enc, text.s, text.n, (fv_tok_opts){.specials = true}, rd->e);
    int64_t len = l->enc->n;
    if (!st && len > fv__records_most(rd)) {
        st = fv__records_long(rd, rec, 0, len, &len);
        if (st || !len) return st;
        st = fv_tok_encode(l->enc, text.s, text.n, (fv_tok_opts){.specials = true, .max_len = len},
                           rd->e);
    }
    if (st) return st;
    void *p = l->label;
    bool ok = fv__grow(l->rows.env, &p, &l->label_bytes,
                       (size_t)(l->rows.text.n + 1) * sizeof *l->label);
    l->label = p;
    if (ok) l->label[l->rows.text.n] = label;
    if (!ok || !fv__ragged_add(&l->rows.text, l->enc->ids, l->enc->n))
        return fv_fail(rd->e, FV_ENOMEM, "%s: out of memory", rd->from->file);
    rd->report->kept++;
    rd->report->tokens[0] += l->enc->n;
    return FV_OK;
}

/* input_ids and attention_mask (n,T), labels (n). */
static fv_status make(const void *self, fv_batch *out, const int32_t *rows, int64_t n,
                      fv_data_rng how, fv_err *e)
{
    const labelled *l = self;
    fv__ragged_put(&l->rows.text, out, rows, n, l->task.pad);
    int32_t *label = fv_batch_put(out, "labels", FV_I32, FV_SHAPE(n));
    if (!label) return fv_fail(e, out->err.code, "%s", out->err.text);
    /* Hides tokens as masked language models do, as regularisation for few examples; labels
     * stay. */
    fv__batch_drop(&out->part[0], &l->task, l->opt.drop, rows, how);
    for (int64_t i = 0; i < n; i++) label[i] = l->label[rows[i]];
    out->labels = (double)n;
    return FV_OK;
}

static void close_feed(void *self)
{
    labelled *l = self;
    const fv_env *env = l->rows.env;
    fv__ragged_free(&l->rows.text);
    fv__free(env, l->label, l->label_bytes);
    fv__free(env, l, sizeof *l);
}

static const fv_feed feed = {.metric = "accuracy",
                             .count = fv__text_rows_count,
                             .size = fv__text_rows_size,
                             .make = make,
                             .count_correct = fv__count_correct_labels,
                             .close = close_feed};

/* Reads and encodes the whole file; batches are only padded copies. */
static fv_status open_feed(fv_feed *out, const fv_feed_opt *t, const fv_records *from,
                           fv_data_report *report, fv_err *e)
{
    *out = (fv_feed){0};
    labelled *l = fv__alloc(t->env, sizeof *l);
    if (!l) return fv_fail(e, FV_ENOMEM, "%s: out of memory", from->file);
    /* `task` is copied: the feed outlives the caller's options */
    *l = (labelled){.rows = {.env = t->env, .text = {.env = t->env}},
                    .task = *t,
                    .opt = *(const options *)t->options,
                    .prefixed = {.env = t->env}};
    fv__reading rd = {.env = t->env,
                      .from = from,
                      .n_texts = 2,
                      .each = add,
                      .user = l,
                      .report = report,
                      .e = e};
    fv_status st = fv_encoding_new(&l->enc, t->tok, e);
    if (!st) st = fv__records_read(&rd);
    fv_encoding_free(l->enc);
    fv__buf_free(&l->prefixed);
    l->enc = NULL;
    if (!st && !l->rows.text.n)
        st = fv_fail(e, FV_EFORMAT, "%s: no record can be used", from->file);
    return fv__feed_give(out, &feed, l, st);
}

static const fv_field keys[] = {
    FV_FLOAT(options, drop, 0, 0, 0.9,
             "share of tokens hidden in training, so that none is relied on"),
    FV_TEXT(options, label_until, "", "a label ends before the first of these characters"),
    FV_TEXT(options, text_prefix, "",
            "words before each text, as some encoders were trained with: \"query: \""),
    {0},
};

const fv_objective fv__objective_classify = {
    .name = "classify",
    .help = "a label for each text",
    .keys = keys,
    .options_size = sizeof(options),
    FV__ENCODER_TEXTS,
    .texts = fv_texts_labelled,
    .head = FV_HEAD_CLASSIFY,
    .loss_inputs = fv__labels_alone,
    .names_labels = true,
    .open = open_feed,
};
