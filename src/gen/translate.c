/* translate.c - lines of text in, translations out, in order.
 *
 * A window of some hundred lines is encoded, sorted by length and cut into batches, so that lines
 * of one batch need little padding.  The batch that holds the earliest line runs first, and lines
 * are handed on as soon as all before them are done: output starts after one batch.  Sorting the
 * whole input would pad a little less, and show nothing until the end.
 *
 *     lines -> encode (window of 16 batches) -> sort by length -> batches -> fv_generate -> in
 * order
 *
 * Memory is bounded by the window, not by the file: an item is freed as soon as the callback
 * has seen it. A line's own number goes along as its random stream (fv_gen_opt.numbers), so
 * that neither the batch nor the window a line falls into changes what is drawn for it.
 *
 * One translator serves one thread: encoder, line buffer and options are its own; the model
 * behind it is const and may be shared. */
#include "fovea/translate.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/base.h"
#include "fovea/author/family.h"
#include "fovea/author/gen.h"
#include "gen/languages.h"

#define WINDOW 16 /* batches that are sorted together */

struct fv_translator {
    fv_env env;
    fv_device *dev;
    fv_translate_opt opt;
    fv_model *model;
    fv_tok *tok;
    fv_encoding *enc;
    fv_gen_config *config;
    fv_gen_opt gen;
    int64_t n_positions; /* tokens a sequence may have; 0: any number */
    fv__languages languages;
    fv_buf line; /* of a source with what the languages put before it */
};

/* ---- opening ---- */

void fv_translator_close(fv_translator *t)
{
    if (!t) return;
    fv_env env = t->env;
    fv_gen_config_close(t->config);
    fv_encoding_free(t->enc);
    fv_tok_close(t->tok);
    fv_model_free(t->model);
    fv__buf_free(&t->line);
    fv__free(&env, t, sizeof *t);
}

/* Whether the model's files set this key; if not, the translator's own default applies.
 * Older models keep generation keys in config.json: there is one file or the other. */
static bool says(const fv_dir *d, const char *key)
{
    const fv_json *j = fv_dir_generation(d) ? fv_dir_generation(d) : fv_dir_config(d);
    return fv_json_has(j, key);
}

/* Marian's defaults where the files say nothing: 4 beams, 512 tokens. */
static fv_status read_settings(fv_translator *t, const char *dir, fv_err *e)
{
    fv_dir *files;
    fv_status st = fv_dir_open(&files, &t->env, dir, e);
    if (st) return st;
    st = fv_gen_config_open(&t->config, &t->env, dir, NULL, e);
    if (!st) t->gen = *fv_gen_config_options(t->config);
    /* 0 where positions are computed (relative bias, sinusoids without a table): no limit but
     * max_length. */
    t->n_positions = fv_model_context(t->model);
    if (!st && !says(files, "num_beams") && !t->gen.do_sample) t->gen.num_beams = 4;
    if (!st && !says(files, "max_length")) t->gen.max_length = 512;
    if (!st && t->n_positions && t->gen.max_length > t->n_positions)
        t->gen.max_length = t->n_positions;
    if (!st)
        st = fv__languages_choose(&t->languages, &t->gen, t->tok, fv_dir_config(files), t->opt.from,
                                  t->opt.to, e);
    fv_dir_close(files);
    return st;
}

/* A decoder alone could continue a line, which is no translation. */
static fv_status check_model(const fv_translator *t, const char *dir, fv_err *e)
{
    const fv_family *f = fv_model_family(t->model);
    if (!f->begin || !f->step)
        return fv_fail(e, FV_EARG, "%s: a %s has no encoder and decoder, so it does not translate",
                       dir, f->type);
    if (t->gen.start < 0 || t->gen.eos < 0)
        return fv_fail(e, FV_EFORMAT,
                       "%s: decoder_start_token_id and eos_token_id are needed, and not given",
                       dir);
    return FV_OK;
}

fv_status fv_translator_open(fv_translator **out, fv_device *d, const char *dir,
                             fv_translate_opt opt, fv_err *e)
{
    fv_translator *t = *out = fv__alloc(fv_device_env(d), sizeof *t);
    if (!t) return fv_fail(e, FV_ENOMEM, "%s: out of memory", dir);
    if (!opt.batch) opt.batch = 32;
    if (!opt.tokens) opt.tokens = 8192;
    /* batch is in lines, tokens in source tokens with padding: whichever is reached first closes
     * a batch. */
    *t = (fv_translator){.env = *fv_device_env(d), .dev = d, .opt = opt};
    t->line.env = &t->env;
    fv_status st = fv_model_open(&t->model, d, dir,
                                 (fv_model_opt){.serve = true,
                                                .weights = opt.weights,
                                                .widen = opt.widen,
                                                .adapters = opt.adapters},
                                 e);
    if (!st) st = fv_tok_open(&t->tok, &t->env, dir, e);
    if (!st) st = fv_encoding_new(&t->enc, t->tok, e);
    if (!st) st = read_settings(t, dir, e);
    if (!st) st = check_model(t, dir, e);
    if (st) {
        fv_translator_close(t);
        *out = NULL;
    }
    return st;
}

fv_gen_opt *fv_translator_gen(fv_translator *t) { return &t->gen; }
const fv_tok *fv_translator_tok(const fv_translator *t) { return t->tok; }
const fv_model *fv_translator_model(const fv_translator *t) { return t->model; }

/* ---- lines in flight ---- */

/* The views in `out` point into the memory of the item; valid during the callback only. */
typedef struct item {
    fv_translation out;
    int32_t *source; /* out.source, ours to free */
    fv_translated *best;
    float *attention;
    size_t attention_bytes;
    bool done;
} item;

typedef struct job {
    fv_translator *t;
    fv_lines lines;
    int64_t from, n; /* the window: lines [from, from + n) */
    item *items;     /* of the window */
    int64_t *order;  /* indices of lines that are not empty, by length */
    int64_t pending; /* entries of order */
    int64_t ready;   /* items given to the callback */
    fv_translated_fn *done;
    void *user;
    bool stop;
    fv_err *e;
} job;

/* Frees an item's memory, but keeps its done flag. */
static void drop(fv_translator *t, item *x)
{
    for (int64_t i = 0; x->best && i < x->out.n_best; i++) {
        if (x->best[i].text)
            fv_tok_free_text(t->tok, (char *)(uintptr_t)x->best[i].text, x->best[i].len);
        fv__free(&t->env, (int32_t *)(uintptr_t)x->best[i].ids,
                 (size_t)x->best[i].n * sizeof(int32_t));
    }
    fv__free(&t->env, x->best, (size_t)x->out.n_best * sizeof *x->best);
    fv__free(&t->env, x->attention, x->attention_bytes);
    fv__free(&t->env, x->source, (size_t)x->out.n_source * sizeof *x->source);
    /* n_source stays for sorting, done so that the line is not translated again. */
    *x = (item){.out.n_source = x->out.n_source, .done = x->done};
}

/* Before anything is translated: a file with a bad line should not stop half way. */
static fv_status check_text(const fv_lines *l, fv_err *e)
{
    for (int64_t i = 0; i < l->n; i++) {
        size_t bad = fv__utf8_check(l->text[i], l->len[i]);
        if (bad < l->len[i])
            return fv_fail(e, FV_EFORMAT, "%s%sline %lld: not UTF-8 at byte %zu",
                           l->name ? l->name : "", l->name ? ": " : "", (long long)(l->first + i),
                           bad + 1);
    }
    return FV_OK;
}

static bool is_blank(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!strchr(" \t\r\n\v\f", s[i]) || !s[i]) return false;
    return true;
}

/* Encodes one line with its language, and appends the end token where the tokenizer does not. */
static fv_status encode(job *j, int64_t i)
{
    fv_translator *t = j->t;
    item *x = &j->items[i];
    const char *text = j->lines.text[j->from + i];
    size_t len = j->lines.len[j->from + i];
    x->out.line = j->lines.first + j->from + i;
    if (is_blank(text, len)) return FV_OK;
    t->line.len = 0;
    fv__buf_str(&t->line, t->languages.prefix);
    fv__buf_add(&t->line, text, len);
    if (t->line.failed) return fv_fail(j->e, FV_ENOMEM, "translate: out of memory");
    fv_tok_opts how = {.specials = true};
    fv_status st = fv_tok_encode(t->enc, t->line.data, t->line.len, how, j->e);
    /* A tokenizer whose template ends with </s> has written the end already; others
     * (SentencePiece files without a template) leave it to us. */
    bool end = !st && t->enc->n > 0 && t->enc->special[t->enc->n - 1];
    bool front = !st && fv__languages_before(&t->languages, t->enc, t->tok);
    /* Cut by the tokenizer, which keeps its special tokens, instead of here. */
    if (!st && t->n_positions && t->enc->n + !end + front > t->n_positions) {
        x->out.cut = true;
        how.max_len = t->n_positions - !end - front;
        st = fv_tok_encode(t->enc, t->line.data, t->line.len, how, j->e);
    }
    if (st) return st;
    fv__languages_set(&t->languages, t->enc, t->tok);
    x->out.n_source = t->enc->n + !end + front;
    x->out.source = x->source = fv__alloc(&t->env, (size_t)x->out.n_source * sizeof *x->source);
    if (!x->source) return fv_fail(j->e, FV_ENOMEM, "translate: out of memory");
    if (front) x->source[0] = t->languages.source;
    memcpy(x->source + front, t->enc->ids, (size_t)t->enc->n * sizeof *x->source);
    if (!end) x->source[t->enc->n + front] = t->gen.eos;
    return FV_OK;
}

/* ---- how the best translation attends ---- */

typedef struct looking {
    int64_t rows, cols;
    float *sum, *one;
    double maps; /* added up so far */
    fv_status st;
} looking;

static void look(void *user, fv_ctx *c, const char *site, const char *name, const void *what)
{
    looking *l = user;
    (void)name;
    if (l->st || strcmp(site, "attention") || fv_attn_view_role(what) != FV_ATTN_CROSS) return;
    fv_shape s = fv_attn_view_shape(what);
    /* Only a map of the whole translation by the whole source is added up. */
    if (s.d[2] != l->rows || s.d[3] != l->cols) return;
    /* Added up as float, map by map in the order of layers and heads, so the result is
     * reproducible. */
    for (int64_t h = 0; h < s.d[1] && !l->st; h++, l->maps++) {
        l->st = fv_attn_view_weights(c, what, 0, h, 0, l->rows, l->one);
        for (int64_t i = 0; !l->st && i < l->rows * l->cols; i++) l->sum[i] += l->one[i];
    }
}

/* Cross-attention of the best translation, averaged over layers and heads: the decoder reads start
 * token and translation once more, and row i is the step that chose token i. */
static fv_status attend(fv_translator *t, item *x, fv_err *e)
{
    int64_t rows = x->best[0].n, cols = x->out.n_source;
    size_t bytes = (size_t)(rows * cols) * sizeof(float),
           ids_bytes = (size_t)rows * sizeof(int32_t);
    fv_ctx *c = NULL;
    int32_t *ids = fv__alloc(&t->env, ids_bytes);
    looking l = {.rows = rows,
                 .cols = cols,
                 .one = fv__alloc(&t->env, bytes),
                 .sum = fv__alloc(&t->env, bytes)};
    x->attention = l.sum;
    x->attention_bytes = bytes;
    fv_status st = ids && l.one && l.sum ? FV_OK
                                         : fv_fail(e, FV_ENOMEM, "translate: out of memory");
    if (!st) st = fv_ctx_new(&c, t->dev, (fv_ctx_opt){0}, e);
    if (!st) {
        /* Teacher forcing: the decoder's inputs are the start token and all tokens but the last. */
        ids[0] = t->gen.start;
        memcpy(ids + 1, x->best[0].ids, (size_t)(rows - 1) * sizeof *ids);
        fv_items in = {0}, out = {0};
        fv_items_put(&in, "input_ids", fv_ints(c, x->source, FV_SHAPE(1, cols)));
        fv_items_put(&in, "decoder_input_ids", fv_ints(c, ids, FV_SHAPE(1, rows)));
        fv_ctx_set_tap(c, look, &l);
        fv_model_forward(c, t->model, &in, &out);
        if (fv_ctx_status(c)) st = fv_fail(e, fv_ctx_err(c)->code, "%s", fv_ctx_err(c)->text);
    }
    for (int64_t i = 0; !st && l.maps > 0 && i < rows * cols; i++)
        l.sum[i] = (float)((double)l.sum[i] / l.maps);
    fv_ctx_free(c);
    fv__free(&t->env, ids, ids_bytes);
    fv__free(&t->env, l.one, bytes);
    x->out.attention = x->attention;
    return st;
}

/* ---- batches ---- */

/* Texts and ids are copied: the generator's memory is gone with the batch. */
static fv_status keep(job *j, item *x, const fv_hyp *hyp, int64_t n)
{
    fv_translator *t = j->t;
    x->best = fv__alloc(&t->env, (size_t)n * sizeof *x->best);
    if (!x->best) return fv_fail(j->e, FV_ENOMEM, "translate: out of memory");
    x->out.best = x->best;
    x->out.n_best = n;
    for (int64_t i = 0; i < n; i++) {
        fv_translated *b = &x->best[i];
        size_t bytes = (size_t)hyp[i].n * sizeof(int32_t);
        char *text;
        int32_t *ids = fv__alloc(&t->env, bytes);
        if (bytes && !ids) return fv_fail(j->e, FV_ENOMEM, "translate: out of memory");
        if (bytes) memcpy(ids, hyp[i].ids, bytes);
        *b = (fv_translated){.ids = ids, .n = hyp[i].n, .score = hyp[i].score};
        fv_status st = fv_tok_decode(t->tok, &text, &b->len, ids, b->n, true, j->e);
        if (st) return st;
        b->text = text;
    }
    x->done = true;
    return t->opt.attention && x->out.n_source && x->best[0].n ? attend(t, x, j->e) : FV_OK;
}

/* Generates for lines order[from .. from+n) in one batch. */
static fv_status run_batch(job *j, const int64_t *order, int64_t n)
{
    fv_translator *t = j->t;
    size_t bytes = (size_t)n * (sizeof(int32_t *) + 2 * sizeof(int64_t));
    const int32_t **source = fv__alloc(&t->env, bytes);
    if (!source) return fv_fail(j->e, FV_ENOMEM, "translate: out of memory");
    int64_t *len = (int64_t *)(source + n), *numbers = len + n;
    for (int64_t i = 0; i < n; i++) {
        const fv_translation *x = &j->items[order[i]].out;
        source[i] = x->source;
        len[i] = x->n_source;
        numbers[i] = x->line;
    }
    fv_generated g = {0};
    /* A copy: `numbers` belongs to this batch. */
    fv_gen_opt how = t->gen;
    how.numbers = numbers;
    fv_status st = fv_generate(&g, t->dev, t->model, source, len, n, &how, j->e);
    for (int64_t i = 0; !st && i < n; i++)
        st = keep(j, &j->items[order[i]], g.hyp + i * g.each, g.each);
    fv_generated_free(&g);
    fv__free(&t->env, source, bytes);
    return st;
}

static int by_length(const void *a, const void *b, void *items)
{
    const item *all = items;
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b,
            d = all[x].out.n_source - all[y].out.n_source;
    /* Lines of equal length stay in the order of the file. */
    return d ? (d < 0 ? -1 : 1) : x < y ? -1 : 1;
}

/* The size of the batch that begins at order[from]: lines are sorted, so its last one is the
 * longest and decides the padding. */
static int64_t batch_size(const job *j, int64_t from)
{
    const fv_translate_opt *o = &j->t->opt;
    int64_t n = 1;
    while (from + n < j->pending && n < o->batch &&
           (n + 1) * j->items[j->order[from + n]].out.n_source <= o->tokens)
        n++;
    return n;
}

/* The next batch: the one that holds the earliest line not done; *n is 0 when none is left. */
static int64_t next_batch(const job *j, int64_t *n)
{
    int64_t best = 0, earliest = j->n;
    *n = 0;
    for (int64_t from = 0, size; from < j->pending; from += size) {
        size = batch_size(j, from);
        /* A batch is done as a whole or not at all, so its first line tells. */
        if (j->items[j->order[from]].done) continue;
        for (int64_t i = from; i < from + size; i++)
            if (j->order[i] < earliest) {
                earliest = j->order[i];
                best = from;
                *n = size;
            }
    }
    return best;
}

static void emit_translations(job *j)
{
    for (; j->ready < j->n && j->items[j->ready].done && !j->stop; j->ready++) {
        j->stop = !j->done(j->user, &j->items[j->ready].out);
        drop(j->t, &j->items[j->ready]);
    }
}

/* Empty lines are done at once; the others wait for their batch. */
static fv_status run_window(job *j)
{
    fv_status st = FV_OK;
    int64_t n = 1;
    j->ready = j->pending = 0;
    memset(j->items, 0, (size_t)j->n * sizeof *j->items);
    for (int64_t i = 0; i < j->n && !st; i++) {
        st = encode(j, i);
        if (!st && j->items[i].out.n_source)
            j->order[j->pending++] = i;
        else if (!st)
            st = keep(j, &j->items[i], &(fv_hyp){0}, 1);
    }
    if (!st) qsort_r(j->order, (size_t)j->pending, sizeof *j->order, by_length, j->items);
    while (!st && n) {
        emit_translations(j);
        /* The callback may ask to stop; what was computed and not shown is dropped below. */
        int64_t from = j->stop ? n = 0 : next_batch(j, &n);
        if (n) st = run_batch(j, j->order + from, n);
    }
    for (int64_t i = 0; i < j->n; i++) drop(j->t, &j->items[i]);
    return st;
}

fv_status fv_translate(fv_translator *t, fv_lines lines, fv_translated_fn *done, void *user,
                       fv_err *e)
{
    /* A shorter file needs no more than its own lines. */
    int64_t window = t->opt.batch * WINDOW < lines.n ? t->opt.batch * WINDOW : lines.n;
    size_t items = (size_t)window * sizeof(item), order = (size_t)window * sizeof(int64_t);
    if (!lines.first) lines.first = 1;
    job j = {.t = t, .lines = lines, .done = done, .user = user, .e = e};
    fv_status st = check_text(&lines, e);
    if (st || !lines.n) return st;
    j.items = fv__alloc(&t->env, items);
    j.order = fv__alloc(&t->env, order);
    if (!j.items || !j.order) st = fv_fail(e, FV_ENOMEM, "translate: out of memory");
    for (; !st && !j.stop && j.from < lines.n; j.from += window) {
        j.n = lines.n - j.from < window ? lines.n - j.from : window;
        st = run_window(&j);
    }
    fv__free(&t->env, j.items, items);
    fv__free(&t->env, j.order, order);
    return st;
}
