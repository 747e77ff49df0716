/* tag.c - the objective of taggers: a label for each word, which stands on its first token.
 *
 * Words are encoded one by one, as the columns of a file separate them, so the tokenizer never
 * joins two.  The metric is F1 of entities as conlleval counts them, or accuracy where tags are
 * no entities.
 *
 * Labels stand on the first token of a word and -100 on all others, as in transformers' token
 * classification examples: a label on every token would count long words several times.  A
 * sentence is encoded without the tokenizer's own frame and gets [CLS] and [SEP] here, since
 * words are encoded one by one.
 *
 * The metric is chosen by the data: with B- tags it is F1 over whole entities (type and both
 * ends must be right), else accuracy over words.  Where the model scores labels behind labels
 * (a conditional random field: it gives "transitions") those of a sentence are chosen together.
 *
 * With word_bytes every token has the letters of its word beside it (char_ids), for models that
 * read words by both. */
#include "data/feed_parts.h"
#include "data/labels.h"
#include "data/masking.h"
#include "data/ragged.h"
#include "data/records.h"
#include "data/word_bytes.h"
#include "fovea/author/metric.h"
#include "fovea/author/op.h"
#include "fovea/author/objective.h"
#include "model/crf.h"

typedef struct options {
    float drop;
    int64_t word_bytes;
} options;

typedef struct tagging {
    /* token ids with the rows' environment */
    fv__text_rows rows;
    fv_feed_opt task;
    options opt;
    fv__ragged label;   /* of the lengths of the texts */
    fv__ragged letters; /* word_bytes for each token */
    fv_encoding *enc;
    /* kept from sentence to sentence, so that reading allocates only when a longer one comes */
    int32_t *ids, *tags, *bytes; /* the sentence under way */
    size_t ids_bytes, tags_bytes, bytes_bytes;
    int64_t n;
} tagging;

/* One more token of the sentence with its label and its word; -100 does not count. */
static bool push(tagging *g, int32_t id, int32_t tag, const char *word)
{
    void *a = g->ids, *b = g->tags, *w = g->bytes;
    int64_t most = g->opt.word_bytes;
    bool ok = fv__grow(g->rows.env, &a, &g->ids_bytes, (size_t)(g->n + 1) * sizeof *g->ids);
    g->ids = a;
    ok = fv__grow(g->rows.env, &b, &g->tags_bytes, (size_t)(g->n + 1) * sizeof *g->tags) && ok;
    g->tags = b;
    if (most)
        ok = fv__grow(g->rows.env, &w, &g->bytes_bytes,
                      (size_t)((g->n + 1) * most) * sizeof *g->bytes) &&
             ok;
    g->bytes = w;
    if (!ok) return false;
    if (most) fv__word_bytes(g->bytes + g->n * most, most, word, strlen(word));
    g->ids[g->n] = id;
    g->tags[g->n++] = tag;
    return true;
}

static fv_status no_memory(const fv__reading *rd)
{
    return fv_fail(rd->e, FV_ENOMEM, "%s: out of memory", rd->from->file);
}

/* The first token of a word has its label, the others none. */
static fv_status add_word(fv__reading *rd, tagging *g, const char *word, const char *tag,
                          int64_t line)
{
    int32_t label;
    fv_status st = fv__label(g->task.labels, &label, rd->from->file, line, tag, strlen(tag), rd->e);
    if (!st) st = fv_tok_encode(g->enc, word, strlen(word), (fv_tok_opts){0}, rd->e);
    if (st) return st;
    bool ok = true;
    for (int64_t i = 0; ok && i < g->enc->n; i++)
        ok = push(g, g->enc->ids[i], i ? -100 : label, word);
    return ok ? FV_OK : no_memory(rd);
}

/* Cuts or leaves out a sentence that is too long, and puts [SEP] behind it.  The label list is
 * cut with the ids, so both ragged arrays keep equal lengths. */
static fv_status end_sentence(fv__reading *rd, tagging *g, int64_t line)
{
    bool end = g->task.sep >= 0;
    if (g->n + end > fv__records_most(rd)) {
        fv__record rec = {.file = {rd->from->file, NULL}, .line = line};
        int64_t keep;
        fv_status st = fv__records_long(rd, &rec, 0, g->n + end, &keep);
        if (st || !keep) return st;
        g->n = keep - end;
    }
    bool ok = !end || push(g, g->task.sep, -100, "");
    ok = ok && fv__ragged_add(&g->rows.text, g->ids, g->n) &&
         fv__ragged_add(&g->label, g->tags, g->n) &&
         (!g->opt.word_bytes || fv__ragged_add(&g->letters, g->bytes, g->n * g->opt.word_bytes));
    rd->report->kept++;
    rd->report->tokens[0] += g->n;
    return ok ? FV_OK : no_memory(rd);
}

/* -100 on tokens that no word begins with: the loss leaves them out. */
static fv_status add_sentence(fv__reading *rd, tagging *g, const fv_tagged *t, int64_t i)
{
    const char *const *word, *const *tag;
    int64_t line, n = fv_tagged_sentence(t, i, &word, &tag, &line);
    g->n = 0;
    fv_status st = g->task.cls < 0 || push(g, g->task.cls, -100, "") ? FV_OK : no_memory(rd);
    for (int64_t k = 0; !st && k < n; k++) st = add_word(rd, g, word[k], tag[k], line);
    bool empty = g->n == (g->task.cls >= 0);
    return st || empty ? st : end_sentence(rd, g, line);
}

/* Sentences in order, up to the number that is wanted. */
static fv_status read_all(fv__reading *rd, tagging *g)
{
    fv_tagged *t;
    fv_status st = fv_tagged_open(&t, rd->env, rd->from, rd->report, rd->e);
    for (int64_t i = 0;
         !st && i < fv_tagged_count(t) && !(rd->from->most && rd->report->kept >= rd->from->most);
         i++)
        st = add_sentence(rd, g, t, i);
    fv_tagged_close(t);
    return st;
}

/* ---- the feed ---- */

/* char_ids (n,T,word_bytes); padding has none. */
static fv_status put_letters(const tagging *g, fv_batch *out, const int32_t *rows, int64_t n,
                             int64_t T, fv_err *e)
{
    int64_t most = g->opt.word_bytes;
    int32_t *to = fv_batch_put(out, "char_ids", FV_I32, FV_SHAPE(n, T, most));
    if (!to) return fv_fail(e, out->err.code, "%s", out->err.text);
    memset(to, 0, (size_t)(n * T * most) * sizeof *to);
    for (int64_t i = 0; i < n; i++) {
        int64_t len;
        const int32_t *row = fv__ragged_row(&g->letters, rows[i], &len);
        memcpy(to + i * T * most, row, (size_t)len * sizeof *row);
    }
    return FV_OK;
}

/* input_ids, attention_mask and labels (n,T), and the letters. */
static fv_status make(const void *self, fv_batch *out, const int32_t *rows, int64_t n,
                      fv_data_rng how, fv_err *e)
{
    const tagging *g = self;
    int64_t T = fv__ragged_put(&g->rows.text, out, rows, n, g->task.pad);
    int32_t *label = fv_batch_put(out, "labels", FV_I32, FV_SHAPE(n, T));
    if (!label) return fv_fail(e, out->err.code, "%s", out->err.text);
    fv__batch_drop(&out->part[0], &g->task, g->opt.drop, rows, how);
    for (int64_t i = 0; i < n; i++) {
        int64_t len;
        const int32_t *row = fv__ragged_row(&g->label, rows[i], &len);
        for (int64_t t = 0; t < T; t++) {
            label[i * T + t] = t < len ? row[t] : -100;
            out->labels += label[i * T + t] >= 0;
        }
    }
    return g->opt.word_bytes ? put_letters(g, out, rows, n, T, e) : FV_OK;
}

/* ---- the metric ---- */

/* best (rows,T) at positions with a label: those that score highest together. */
static fv_status decode(const tagging *g, fv_ctx *c, const fv_items *out, const int32_t *labels,
                        int64_t rows, int64_t T, int32_t *best)
{
    const fv_env *env = g->rows.env;
    const fv_tensor *logits = fv_items_get(out, "logits"),
                    *steps = fv_items_get(out, "transitions");
    int64_t K = fv_dim(logits, 2), n_x = rows * T * K, n_steps = (K + 2) * K;
    size_t x_bytes = (size_t)(n_x + n_steps) * sizeof(float),
           row_bytes = (size_t)T * sizeof(float *), scratch_bytes = fv__crf_scratch(T, K),
           path_bytes = (size_t)T * sizeof(int32_t);
    float *x = fv__alloc(env, x_bytes), *transitions = x + n_x;
    const float **row = fv__alloc(env, row_bytes);
    void *scratch = fv__alloc(env, scratch_bytes);
    int32_t *path = fv__alloc(env, path_bytes);
    fv_status st = x && row && scratch && path ? FV_OK : FV_ENOMEM;
    if (st) fv_raise(c, FV_ENOMEM, "evaluation: out of memory");
    if (!st) st = fv_read(c, logits, x, n_x);
    if (!st) st = fv_read(c, steps, transitions, n_steps);
    for (int64_t i = 0; !st && i < rows; i++) {
        int64_t n = 0;
        for (int64_t t = i * T; t < (i + 1) * T; t++)
            if (labels[t] >= 0) row[n++] = x + t * K;
        fv__crf_decode(path, row, n, transitions, K, scratch);
        n = 0;
        for (int64_t t = i * T; t < (i + 1) * T; t++)
            if (labels[t] >= 0) best[t] = path[n++];
    }
    fv__free(env, path, path_bytes);
    fv__free(env, scratch, scratch_bytes);
    fv__free(env, row, row_bytes);
    fv__free(env, x, x_bytes);
    return st;
}

static fv_status best_labels(const tagging *g, fv_ctx *c, const fv_items *out,
                             const int32_t *labels, int64_t rows, int64_t T, int32_t *best)
{
    if (fv_items_get(out, "transitions")) return decode(g, c, out, labels, rows, T, best);
    return fv__argmax_labels(c, fv_items_get(out, "logits"), best);
}

/* Accuracy over words: continuation tokens have label -100. */
static fv_status count_correct_words(const void *self, fv_ctx *c, const fv_batch *b,
                                     const fv_items *out, double *hits, double *of)
{
    const tagging *g = self;
    const int32_t *labels = fv__batch_ints(b, "labels");
    int64_t rows = b->part[0].shape.d[0], T = b->part[0].shape.d[1];
    size_t bytes = (size_t)(rows * T) * sizeof(int32_t);
    int32_t *best = fv__alloc(g->rows.env, bytes);
    if (!best) fv_raise(c, FV_ENOMEM, "evaluation: out of memory");
    fv_status st = best ? best_labels(g, c, out, labels, rows, T, best) : FV_ENOMEM;
    for (int64_t i = 0; !st && i < rows * T; i++) {
        *hits += labels[i] >= 0 && best[i] == labels[i];
        *of += labels[i] >= 0;
    }
    fv__free(g->rows.env, best, bytes);
    return st;
}

/* F1 = 2 right / (given + gold): hits are counted twice, so that hits / of is F1. */
static fv_status count_correct_entities(const void *self, fv_ctx *c, const fv_batch *b,
                                        const fv_items *out, double *hits, double *of)
{
    const tagging *g = self;
    const int32_t *labels = fv__batch_ints(b, "labels");
    int64_t rows = b->part[0].shape.d[0], T = b->part[0].shape.d[1];
    size_t best_bytes = (size_t)(rows * T) * sizeof(int32_t),
           name_bytes = 2 * (size_t)T * sizeof(char *);
    /* names of gold and given tags share one allocation: gold first, given behind it */
    int32_t *best = fv__alloc(g->rows.env, best_bytes);
    const char **gold = fv__alloc(g->rows.env, name_bytes), **given = gold + T;
    fv_entities found = {0};
    if (!best || !gold) fv_raise(c, FV_ENOMEM, "evaluation: out of memory");
    fv_status st = best && gold ? best_labels(g, c, out, labels, rows, T, best) : FV_ENOMEM;
    for (int64_t i = 0; !st && i < rows; i++) {
        int64_t n = 0;
        for (int64_t t = i * T; t < (i + 1) * T; t++) {
            if (labels[t] < 0) continue;
            gold[n] = g->task.labels->name[labels[t]];
            /* a head may have more outputs than labels; such a prediction is no entity */
            given[n++] = best[t] < g->task.labels->n ? g->task.labels->name[best[t]] : "O";
        }
        fv_entities_add(&found, gold, given, n);
    }
    *hits += 2 * (double)found.all.right;
    *of += (double)(found.all.given + found.all.gold);
    fv__free(g->rows.env, gold, name_bytes);
    fv__free(g->rows.env, best, best_bytes);
    return st;
}

static void close_feed(void *self)
{
    tagging *g = self;
    const fv_env *env = g->rows.env;
    fv__ragged_free(&g->rows.text);
    fv__ragged_free(&g->label);
    fv__ragged_free(&g->letters);
    fv__free(env, g->bytes, g->bytes_bytes);
    fv__free(env, g->ids, g->ids_bytes);
    fv__free(env, g->tags, g->tags_bytes);
    fv__free(env, g, sizeof *g);
}

/* Without B- tags there are no entities (parts of speech): the metric is the share of right
 * words. */
static bool has_entities(const fv_labels *l)
{
    for (int i = 0; i < l->n; i++)
        if (!strncmp(l->name[i], "B-", 2)) return true;
    return false;
}

/* Sentences are encoded once, word by word, since a tokenizer may join what blanks separate. */
static fv_status open_feed(fv_feed *out, const fv_feed_opt *t, const fv_records *from,
                           fv_data_report *report, fv_err *e)
{
    *out = (fv_feed){0};
    tagging *g = fv__alloc(t->env, sizeof *g);
    if (!g) return fv_fail(e, FV_ENOMEM, "%s: out of memory", from->file);
    *g = (tagging){.rows = {.env = t->env, .text = {.env = t->env}},
                   .task = *t,
                   .opt = *(const options *)t->options,
                   .label = {.env = t->env},
                   .letters = {.env = t->env}};
    fv__reading rd = {
        .env = t->env, .from = from, .n_texts = 1, .user = g, .report = report, .e = e};
    fv_status st = fv_encoding_new(&g->enc, t->tok, e);
    if (!st) st = read_all(&rd, g);
    fv_encoding_free(g->enc);
    g->enc = NULL;
    if (!st && !g->rows.text.n)
        st = fv_fail(e, FV_EFORMAT, "%s: no sentence can be used", from->file);
    if (st) {
        close_feed(g);
        return st;
    }
    bool entities = has_entities(t->labels);
    *out = (fv_feed){.self = g,
                     .metric = entities ? "f1" : "accuracy",
                     .count = fv__text_rows_count,
                     .size = fv__text_rows_size,
                     .make = make,
                     .count_correct = entities ? count_correct_entities : count_correct_words,
                     .close = close_feed};
    return FV_OK;
}

/* The words of each sentence, with blanks between them.  For training a tokenizer: words as a
 * reader would see them, with blanks, because the pre-tokenizer splits there. */
static fv_status texts(const fv_env *env, const void *own, const fv_records *from, fv_text_fn *each,
                       void *user, fv_err *e)
{
    (void)own;
    fv_data_report unread = {0};
    fv_tagged *t;
    fv_buf b = {.env = env};
    fv_status st = fv_tagged_open(&t, env, from, &unread, e);
    for (int64_t i = 0; !st && i < fv_tagged_count(t); i++) {
        const char *const *word, *const *tag;
        int64_t line, n = fv_tagged_sentence(t, i, &word, &tag, &line);
        b.len = 0;
        for (int64_t k = 0; k < n; k++) fv__buf_fmt(&b, "%s ", word[k]);
        if (b.failed) st = fv_fail(e, FV_ENOMEM, "%s: out of memory", from->file);
        if (!st) each(user, b.data, b.len);
    }
    fv_tagged_close(t);
    fv__buf_free(&b);
    return st;
}

static const fv_field keys[] = {
    FV_FLOAT(options, drop, 0, 0, 0.9,
             "share of tokens hidden in training, so that none is relied on"),
    FV_INT(options, word_bytes, 0, 0, 256,
           "bytes of each word that the model reads beside its tokens (tener)"),
    {0},
};

static int64_t config_value(const void *own, const fv_processor *p, const char *key)
{
    (void)p;
    return strcmp(key, "max_word_bytes") ? -1 : ((const options *)own)->word_bytes;
}

const fv_objective fv__objective_tag = {
    .name = "tag",
    .help = "a label for each word (CoNLL columns)",
    .keys = keys,
    .options_size = sizeof(options),
    FV__ENCODER_TEXTS,
    .texts = texts,
    .config_value = config_value,
    .head = FV_HEAD_TAG,
    .loss_inputs = fv__labels_alone,
    .names_labels = true,
    .open = open_feed,
};
