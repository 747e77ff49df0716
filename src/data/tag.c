/* tag.c - the feed for labelling words: CoNLL columns, the word first and its tag last, an empty line after a sentence.
 *
 * Tags in IOB1, where B- stands only between neighbours of one kind, become IOB2, where every entity begins with B-.  Of a
 * word that has several pieces the first carries the label.  Lines that begin with -DOCSTART- are no words. */
#include "data/labels.h"
#include "data/masking.h"
#include "data/ragged.h"
#include "data/records.h"
#include "fovea/op.h"

#include <stdio.h>

typedef struct tagged {
    const fv_env *env;
    fv_feed_opt task;
    fv__ragged text, label; /* of the same lengths */
    fv_encoding *enc;
    int32_t *ids, *tags; /* the sentence under way */
    size_t ids_bytes, tags_bytes;
    int64_t n;
    char before[64]; /* tag of the word before, as it stood */
} tagged;

static bool push(tagged *g, int32_t id, int32_t tag)
{
    void *a = g->ids, *b = g->tags;
    bool ok = fv__grow(g->env, &a, &g->ids_bytes, (size_t)(g->n + 1) * sizeof *g->ids);
    g->ids = a;
    ok = fv__grow(g->env, &b, &g->tags_bytes, (size_t)(g->n + 1) * sizeof *g->tags) && ok;
    g->tags = b;
    if (!ok) return false;
    g->ids[g->n] = id;
    g->tags[g->n++] = tag;
    return true;
}

static fv_status end_sentence(fv__reading *rd, tagged *g, int64_t line)
{
    int64_t frame = g->task.cls >= 0, n = g->n;
    *g->before = 0;
    g->n = 0;
    if (n <= frame) return FV_OK;
    rd->report->records++;
    bool end = g->task.sep >= 0;
    if (n + end > fv__records_most(rd)) {
        fv__record rec = {.file = {rd->from->file, NULL}, .line = line};
        int64_t keep;
        fv_status st = fv__records_long(rd, &rec, 0, n + end, &keep);
        if (st || !keep) return st;
        n = keep - end;
    }
    g->n = n;
    bool ok = !end || push(g, g->task.sep, -100);
    ok = ok && fv__ragged_add(&g->text, g->ids, g->n) && fv__ragged_add(&g->label, g->tags, g->n);
    rd->report->kept++;
    rd->report->tokens[0] += g->n;
    g->n = 0;
    return ok ? FV_OK : fv_fail(rd->e, FV_ENOMEM, "%s: out of memory", rd->from->file);
}

/* I-X that follows no X begins an entity. */
static void to_iob2(const tagged *g, char out[64], fv__span tag)
{
    snprintf(out, 64, "%.*s", (int)tag.n, tag.s);
    if (out[0] != 'I' || out[1] != '-') return;
    bool inside = g->before[0] && g->before[0] != 'O' && !strcmp(g->before + 2, out + 2);
    if (!inside) out[0] = 'B';
}

static fv_status add_word(fv__reading *rd, tagged *g, fv__span word, fv__span tag, int64_t line)
{
    char name[64];
    if (tag.n >= sizeof name) return fv__label_unknown(g->task.labels, rd->from->file, line, tag.s, tag.n, rd->e);
    to_iob2(g, name, tag);
    snprintf(g->before, sizeof g->before, "%.*s", (int)tag.n, tag.s);
    int label = fv__label(g->task.labels, name, strlen(name));
    if (label < 0) return fv__label_unknown(g->task.labels, rd->from->file, line, name, strlen(name), rd->e);
    fv_status st = fv_tok_encode(g->enc, word.s, word.n, (fv_tok_opts){0}, rd->e);
    if (st) return st;
    bool ok = g->n || g->task.cls < 0 || push(g, g->task.cls, -100);
    for (int64_t i = 0; ok && i < g->enc->n; i++) ok = push(g, g->enc->ids[i], i ? -100 : label);
    return ok ? FV_OK : fv_fail(rd->e, FV_ENOMEM, "%s: out of memory", rd->from->file);
}

static fv_status read_line(fv__reading *rd, tagged *g, fv__span line, int64_t number)
{
    const char *first = memchr(line.s, ' ', line.n), *last = memrchr(line.s, ' ', line.n);
    const char *first_tab = memchr(line.s, '\t', line.n), *last_tab = memrchr(line.s, '\t', line.n);
    if (first_tab) first = first_tab, last = last_tab;
    size_t bad = fv__utf8_check(line.s, line.n);
    if (bad < line.n) {
        if (rd->from->malformed == FV_REFUSE)
            return fv_fail(rd->e, FV_EFORMAT, "%s:%lld: not UTF-8 at byte %zu", rd->from->file, (long long)number, bad + 1);
        rd->report->malformed++;
        fv__records_note(rd, rd->from->file, number, "not UTF-8 at byte %zu", bad + 1);
        return FV_OK;
    }
    if (!first || last + 1 == line.s + line.n)
        return fv_fail(rd->e, FV_EFORMAT, "%s:%lld: expected a word, a blank and a tag", rd->from->file, (long long)number);
    fv__span word = {line.s, (size_t)(first - line.s)}, tag = {last + 1, (size_t)(line.s + line.n - last - 1)};
    return add_word(rd, g, word, tag, number);
}

static fv_status read_all(fv__reading *rd, tagged *g)
{
    fv_textfile *t;
    fv_status st = fv_textfile_open(&t, rd->env, rd->from->file, rd->e);
    for (int64_t i = 0; !st && i < fv_textfile_count(t) && !(rd->from->most && rd->report->kept >= rd->from->most); i++) {
        fv__span line;
        line.s = fv_textfile_line(t, i, &line.n);
        bool start = line.n >= 10 && !memcmp(line.s, "-DOCSTART-", 10);
        st = start || !line.n ? end_sentence(rd, g, i) : read_line(rd, g, line, i + 1);
    }
    if (!st) st = end_sentence(rd, g, fv_textfile_count(t));
    fv_textfile_close(t);
    return st;
}

/* ---- the feed ---- */

static fv_status make(const void *self, fv_batch *out, const int32_t *rows, int64_t n, fv_draw how, fv_err *e)
{
    const tagged *g = self;
    int64_t T = fv__ragged_put(&g->text, out, rows, n, g->task.pad);
    int32_t *label = fv_batch_put(out, "labels", FV_I32, FV_SHAPE(n, T));
    if (!label) return fv_fail(e, out->err.code, "%s", out->err.text);
    fv__batch_drop(out, &g->task, rows, how);
    for (int64_t i = 0; i < n; i++) {
        int64_t len;
        const int32_t *row = fv__ragged_row(&g->label, rows[i], &len);
        for (int64_t t = 0; t < T; t++) {
            label[i * T + t] = t < len ? row[t] : -100;
            out->labels += label[i * T + t] >= 0;
        }
    }
    return FV_OK;
}

/* ---- judging: F1 of whole entities, as conlleval counts them ---- */

/* Entities of two readings of one sentence, the true and the found: each tag in turn. */
typedef struct matching {
    const char *open[2]; /* kind of the entity under way, or NULL */
    bool same;           /* both have begun at one place and are of one kind */
    double right, all;   /* all: of both readings */
} matching;

/* tag: as in IOB2; NULL ends the sentence. */
static void match_tags(matching *m, const char *const tag[2])
{
    bool ends[2], begins[2];
    for (int i = 0; i < 2; i++) {
        const char *kind = tag[i] && strlen(tag[i]) > 2 && tag[i][1] == '-' ? tag[i] + 2 : NULL;
        bool goes_on = kind && m->open[i] && tag[i][0] != 'B' && !strcmp(kind, m->open[i]);
        ends[i] = m->open[i] && !goes_on;
        begins[i] = kind && !goes_on;
        m->open[i] = kind;
        m->all += begins[i];
    }
    if (m->same && ends[0] && ends[1]) m->right++;
    if (ends[0] || ends[1]) m->same = false;
    if (begins[0] || begins[1]) m->same = begins[0] && begins[1] && !strcmp(m->open[0], m->open[1]);
}

static void match_row(matching *m, const tagged *g, const int32_t *label, const float *x, int64_t T, int64_t classes)
{
    const fv_labels *names = g->task.labels;
    for (int64_t t = 0; t < T; t++, x += classes) {
        int64_t best = 0;
        if (label[t] < 0) continue;
        for (int64_t k = 1; k < classes; k++) best = x[k] > x[best] ? k : best;
        match_tags(m, (const char *const[]){names->name[label[t]], names->name[best]});
    }
    match_tags(m, (const char *const[]){NULL, NULL});
}

/* F1 = 2 right / (true + found): both sums may be taken batch by batch. */
static fv_status judge(const void *self, fv_ctx *c, const fv_batch *b, const fv_items *out, double *hits, double *of)
{
    const tagged *g = self;
    const fv_env *env = fv_device_env(fv_ctx_device(c));
    const fv_tensor *logits = fv_items_get(out, "logits");
    const int32_t *labels = fv__batch_ints(b, "labels");
    int64_t n = fv_len(logits), classes = fv_cols(logits), T = b->part[0].shape.d[1];
    size_t bytes = (size_t)n * sizeof(float);
    float *x = fv__alloc(env, bytes);
    if (!x) return fv_raise(c, FV_ENOMEM, "f1: out of memory for %lld scores", (long long)n), FV_ENOMEM;
    fv_status st = fv_read(c, logits, x, n);
    matching m = {.right = 0};
    for (int64_t i = 0; !st && i < b->part[0].shape.d[0]; i++) match_row(&m, g, labels + i * T, x + i * T * classes, T, classes);
    *hits += 2 * m.right;
    *of += m.all;
    fv__free(env, x, bytes);
    return st;
}

static int64_t count(const void *self, int64_t epoch)
{
    (void)epoch;
    return ((const tagged *)self)->text.n;
}

static void size(const void *self, int64_t i, int64_t *source, int64_t *target)
{
    fv__ragged_row(&((const tagged *)self)->text, i, source);
    *target = 0;
}

static void close_feed(void *self)
{
    tagged *g = self;
    const fv_env *env = g->env;
    fv__ragged_free(&g->text);
    fv__ragged_free(&g->label);
    fv__free(env, g->ids, g->ids_bytes);
    fv__free(env, g->tags, g->tags_bytes);
    fv__free(env, g, sizeof *g);
}

fv_status fv_feed_tag(fv_feed *out, const fv_feed_opt *t, const fv_records *from, fv_data_report *report, fv_err *e)
{
    *out = (fv_feed){0};
    tagged *g = fv__alloc(t->env, sizeof *g);
    if (!g) return fv_fail(e, FV_ENOMEM, "%s: out of memory", from->file);
    *g = (tagged){.env = t->env, .task = *t, .text = {.env = t->env}, .label = {.env = t->env}};
    fv__reading rd = {.env = t->env, .from = from, .n_texts = 1, .user = g, .report = report, .e = e};
    fv_status st = fv_encoding_new(&g->enc, t->tok, e);
    if (!st) st = read_all(&rd, g);
    fv_encoding_free(g->enc);
    g->enc = NULL;
    if (!st && !g->text.n) st = fv_fail(e, FV_EFORMAT, "%s: no sentence can be used", from->file);
    if (st)
        close_feed(g);
    else
        *out = (fv_feed){
            .self = g, .metric = "f1", .count = count, .size = size, .make = make, .judge = judge, .close = close_feed};
    return st;
}
