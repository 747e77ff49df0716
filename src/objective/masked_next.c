/* masked_next.c - the objective BERT was pre-trained with: hidden tokens, and whether one sentence
 * follows another.
 *
 * Every line is a sentence, a blank one ends a document.  Half of the time the second sentence is
 * the next one of the document (next_sentence_label 0), else any other (1).
 *
 * Rows are made at batch time, so that pairing and masking change in every epoch; only
 * sentences are encoded when the data are opened.  The label's polarity is BERT's:
 * next_sentence_label 0 means that the second sentence does follow.
 *
 * BERT packs several sentences into a segment until a row is full.  Here a segment is one
 * sentence: a row is shorter, and the batch plan (fv_feed.size) puts rows of like length
 * together instead.  Sentences of a pair are at most (context - 3) / 2 tokens each, which needs
 * no decision about which of two to cut. */
#include "data/feed_parts.h"
#include "data/masking.h"
#include "data/ragged.h"
#include "data/records.h"
#include "data/token_stream.h"
#include "fovea/author/objective.h"

typedef struct sentences {
    const fv_env *env;
    /* a copy; special tokens are taken from it */
    fv_feed_opt task;
    fv__stream_opt opt;
    fv__ragged text;
    int32_t *document; /* of each sentence */
    size_t document_bytes;
    /* only while the file is read */
    fv_encoding *enc;
    int32_t documents;
} sentences;

/* Tokens of one sentence: two of them share a row with three special tokens. */
static int64_t budget(const sentences *s) { return (s->opt.context - 3) / 2; }

/* A sentence of a document; longer than its half of a row it is cut. */
static fv_status add(fv__reading *rd, const fv__record *rec)
{
    sentences *s = rd->user;
    fv_status st = fv_tok_encode(s->enc, rec->text[0].s, rec->text[0].n, (fv_tok_opts){0}, rd->e);
    if (st || !s->enc->n) return st;
    int64_t n = s->enc->n < budget(s) ? s->enc->n : budget(s);
    rd->report->cut += n < s->enc->n;
    void *p = s->document;
    bool ok = fv__grow(s->env, &p, &s->document_bytes,
                       (size_t)(s->text.n + 1) * sizeof *s->document);
    s->document = p;
    if (ok) s->document[s->text.n] = s->documents;
    if (!ok || !fv__ragged_add(&s->text, s->enc->ids, n))
        return fv_fail(rd->e, FV_ENOMEM, "%s: out of memory", rd->from->file);
    rd->report->kept++;
    rd->report->tokens[0] += n;
    return FV_OK;
}

static fv_status read_sentences(fv__reading *rd, sentences *s)
{
    fv_textfile *t;
    fv_status st = fv_textfile_open(&t, rd->env, rd->from->file, rd->e);
    int64_t i = 0, last = 0;
    if (!st) fv__records_part(rd->from, fv_textfile_count(t), &i, &last);
    /* rd->from->most limits the sentences that are kept, not lines */
    for (; !st && i < last && !(rd->from->most && rd->report->kept >= rd->from->most); i++) {
        fv__record rec = {.file = {rd->from->file, NULL}, .line = i + 1};
        rec.text[0].s = fv_textfile_line(t, i, &rec.text[0].n);
        size_t k = 0;
        /* a line of blanks ends a document like an empty one */
        while (k < rec.text[0].n && (rec.text[0].s[k] == ' ' || rec.text[0].s[k] == '\t')) k++;
        if (k == rec.text[0].n)
            s->documents++;
        else
            st = fv__records_give(rd, &rec);
    }
    fv_textfile_close(t);
    return st;
}

/* The second sentence of example i: half of the time the next one of its document.  Called twice
 * for a row, for its length and for its content: both draw the same numbers, since the
 * generator is counter-based and has no state. */
static int64_t partner(const sentences *s, int64_t i, fv_data_rng how, bool *next)
{
    int64_t n = s->text.n;
    *next = i + 1 < n && s->document[i + 1] == s->document[i] &&
            fv__rng_uniform(how, 4, i, 0) < 0.5;
    if (*next) return i + 1;
    /* a random sentence that happens to be the next one would have the wrong label */
    int64_t j = fv__rng_below(how, 5, i, 0, n);
    return j == i + 1 ? (j + 1) % n : j;
}

/* [CLS] a [SEP] b [SEP] with token types 0 and 1, labels of hidden tokens (n,T),
 * next_sentence_label (n). */
static fv_status make(const void *self, fv_batch *out, const int32_t *rows, int64_t n,
                      fv_data_rng how, fv_err *e)
{
    const sentences *s = self;
    const fv_feed_opt *k = &s->task;
    int64_t T = 0, a, b;
    bool next;
    /* the first pass only finds T, the longest row */
    for (int64_t i = 0; i < n; i++) {
        fv__ragged_row(&s->text, rows[i], &a);
        fv__ragged_row(&s->text, partner(s, rows[i], how, &next), &b);
        if (a + b + 3 > T) T = a + b + 3;
    }
    int32_t *ids = fv_batch_put(out, "input_ids", FV_I32, FV_SHAPE(n, T));
    uint8_t *mask = fv_batch_put(out, "attention_mask", FV_U8, FV_SHAPE(n, T));
    int32_t *type = fv_batch_put(out, "token_type_ids", FV_I32, FV_SHAPE(n, T));
    int32_t *label = fv_batch_put(out, "labels", FV_I32, FV_SHAPE(n, T));
    int32_t *follows = fv_batch_put(out, "next_sentence_label", FV_I32, FV_SHAPE(n));
    if (!follows) return fv_fail(e, out->err.code, "%s", out->err.text);
    for (int64_t i = 0; i < n; i++, ids += T, mask += T, type += T, label += T) {
        const int32_t *first = fv__ragged_row(&s->text, rows[i], &a);
        const int32_t *second = fv__ragged_row(&s->text, partner(s, rows[i], how, &next), &b);
        int64_t all = a + b + 3;
        follows[i] = !next;
        ids[0] = k->cls;
        memcpy(ids + 1, first, (size_t)a * sizeof *ids);
        ids[a + 1] = k->sep;
        memcpy(ids + a + 2, second, (size_t)b * sizeof *ids);
        ids[all - 1] = k->sep;
        for (int64_t t = 0; t < T; t++) {
            mask[t] = t < all;
            /* token type 1 begins behind the first [SEP]; [CLS] a [SEP] are of type 0 */
            type[t] = t > a + 1 && t < all;
            if (t >= all) ids[t] = k->pad, label[t] = -100;
        }
        out->tokens += (double)all;
        out->labels += (double)fv__mask_row(ids, label, all, k, s->opt.mask, rows[i], how);
    }
    return FV_OK;
}

static int64_t count(const void *self, int64_t epoch)
{
    (void)epoch;
    return ((const sentences *)self)->text.n;
}

static void size(const void *self, int64_t i, int64_t *source, int64_t *target)
{
    const sentences *s = self;
    fv__ragged_row(&s->text, i, source);
    *source = *source * 2 + 3; /* its partner is chosen later and about as long */
    *target = 0;
}

static void close_feed(void *self)
{
    sentences *s = self;
    const fv_env *env = s->env;
    fv__ragged_free(&s->text);
    fv__free(env, s->document, s->document_bytes);
    fv__free(env, s, sizeof *s);
}

static const fv_feed feed = {.count = count, .size = size, .make = make, .close = close_feed};

static fv_status open_feed(fv_feed *out, const fv_feed_opt *t, const fv_records *from,
                           fv_data_report *report, fv_err *e)
{
    *out = (fv_feed){0};
    if (t->mask < 0 || t->cls < 0 || t->sep < 0)
        return fv_fail(e, FV_EARG, "the tokenizer has no mask token, or no frame for pairs");
    sentences *s = fv__alloc(t->env, sizeof *s);
    if (!s) return fv_fail(e, FV_ENOMEM, "%s: out of memory", from->file);
    *s = (sentences){.env = t->env,
                     .task = *t,
                     .opt = *(const fv__stream_opt *)t->options,
                     .text = {.env = t->env}};
    fv__reading rd = {.env = t->env,
                      .from = from,
                      .n_texts = 1,
                      .each = add,
                      .user = s,
                      .report = report,
                      .e = e};
    fv_status st = fv_encoding_new(&s->enc, t->tok, e);
    if (!st) st = read_sentences(&rd, s);
    fv_encoding_free(s->enc);
    s->enc = NULL;
    /* with two sentences a random partner could only be the sentence itself or the next one */
    if (!st && s->text.n < 3)
        st = fv_fail(e, FV_EFORMAT, "%s: has fewer than three sentences", from->file);
    return fv__feed_give(out, &feed, s, st);
}

static const fv_field keys[] = {FV__KEY_CONTEXT, FV__KEY_MASK, {0}};
static const char *const loss_inputs[] = {"labels", "next_sentence_label", NULL};

const fv_objective fv__objective_masked_next = {
    .name = "masked_next",
    .help = "hidden tokens and whether a sentence follows another; a sentence a line",
    .keys = keys,
    .options_size = sizeof(fv__stream_opt),
    FV__ENCODER_TEXTS,
    .texts = fv_texts_first,
    .head = FV_HEAD_PRETRAINING,
    .loss_inputs = loss_inputs,
    .open = open_feed,
};
