/* words.c - the task of counting, weighing and searching words: what is done with texts before any
 * model, and what a model has to beat.
 *
 * A record is the path of a file or of a folder; "-" is standard input.  Nothing can be said of a
 * document before all are known (a term's weight needs the number of documents that have it), so
 * run only notes the path, and finish reads, counts and prints.  The counting is fv_words' in
 * data/.
 *
 *     counts    count <tab> documents <tab> term      the commonest first
 *     prepared  the words of a document on a line
 *     tfidf     document <tab> weight <tab> term      the heaviest of each document
 *     --query   score <tab> document                  the best first; documents of score 0 are left
 *                                                     out
 *
 * Equal numbers stand in the order of first appearance, so the output repeats. */
#include <stdio.h>
#include <stdlib.h>

#include "fovea/author/words.h"
#include "task_pipeline.h"

enum { COUNTS, PREPARED, TFIDF };
static const char *const results[] = {"counts", "prepared", "tfidf", NULL};
static const char *const formulas[] = {"okapi", "lucene", NULL};

/* query holds the last one given; fv__setting_at finds all of them. */
typedef struct words_options {
    int print, formula;
    char query[16384], stop[FV_PATH], stem[64];
    int64_t ngram, rarest, top;
    double stop_share, k1, b;
    bool lines, cased, no_accents, json;
} words_options;

static const fv_field options[] = {
    FV_CHOICE(words_options, print, COUNTS, results,
              "terms and their counts, the documents as prepared words, or the terms of each "
              "document with the greatest TF-IDF weights"),
    FV_TEXT(words_options, query, "",
            "TEXT: rank the documents for this query by BM25 instead; may be repeated"),
    FV_BOOL(words_options, lines, false, "each line is a document, else each file"),
    FV_BOOL(words_options, cased, false, "keep capitals"),
    FV_BOOL(words_options, no_accents, false, "leave out accents and other marks"),
    FV_TEXT(words_options, stop, "", "FILE: words to leave out, one a line"),
    FV_FLOAT(words_options, stop_share, 0, 0, 1,
             "leave out words of more than this share of the documents; 0: none"),
    FV_INT(words_options, rarest, 0, 0, 0x1p40, "leave out words that occur less often than that"),
    FV_TEXT(words_options, stem, "", "LANGUAGE: stems by Snowball: english, german, french, ..."),
    FV_INT(words_options, ngram, 1, 1, 8, "terms are up to N words"),
    FV_INT(words_options, top, 0, 20, 0x1p40, "terms or documents that are printed; 0: all"),
    FV_CHOICE(words_options, formula, FV_BM25_OKAPI, formulas,
              "of BM25: as rank_bm25's BM25Okapi, or as Lucene"),
    FV_FLOAT(words_options, k1, 0, 0, 100, "of BM25; 0: 1.5, of Lucene 0.9"),
    FV_FLOAT(words_options, b, -1, 0, 1, "of BM25; 0: 0.75, of Lucene 0.4; -1: no lengths"),
    FV_BOOL(words_options, json, false, "one JSON object a line"),
    {0}};

/* A number and what it is of. */
typedef struct ranked {
    double x;
    int64_t i;
} ranked;

typedef struct work {
    fv_words *words;
    fv_buf paths; /* of the records, each with a NUL behind it */
    fv_buf names; /* of the documents: "FILE" or "FILE:LINE", likewise */
    fv_buf start; /* size_t: where the name of each document begins */
    ranked *order;
    double *x;     /* weights of a document's terms, or scores of documents */
    size_t n_rank; /* entries of both: whichever of terms and documents are more */
} work;

/* ---- documents ---- */

/* Names are kept by offset: the buffer moves as it grows. */
static bool add_name(work *w, const char *path, int64_t line)
{
    size_t at = w->names.len;
    fv__buf_add(&w->start, &at, sizeof at);
    fv__buf_str(&w->names, path);
    if (line) fv__buf_fmt(&w->names, ":%lld", (long long)line);
    fv__buf_add(&w->names, "", 1);
    return !w->start.failed && !w->names.failed;
}

static const char *name_of(const work *w, int64_t document)
{
    return w->names.data + ((const size_t *)(void *)w->start.data)[document];
}

static fv_status add_line(work *w, const fv_line *line, const char *name, bool lines, fv_err *e)
{
    fv_err why;
    if (line->error.code)
        return fv_fail(e, FV_EFORMAT, "%s: line %lld: %s", name, (long long)line->number,
                       line->error.text);
    if (fv_words_add(w->words, line->text.s, line->text.n, &why))
        return fv_fail(e, why.code, "%s: %s", name, why.text);
    return add_name(w, name, lines ? line->number : 0) ? FV_OK
                                                       : fv_fail(e, FV_ENOMEM, "out of memory");
}

static fv_status add_file(void *user, const char *path, fv_err *e)
{
    fv_pipeline *p = user;
    const words_options *o = p->options;
    bool standard_input = !strcmp(path, "-");
    fv_reader *r;
    const fv_line *line;
    int64_t n = 1;
    fv_reader_opt how = {.whole = !o->lines};
    fv_status st = fv_reader_open(&r, &p->env, standard_input ? NULL : path, how, e);
    while (!st && n) {
        st = fv_reader_next(r, 4096, &line, &n, e);
        for (int64_t i = 0; !st && i < n; i++)
            st = add_line(p->self, &line[i], standard_input ? "standard input" : path, o->lines, e);
    }
    fv_reader_close(r);
    return st;
}

static fv_status add_path(fv_pipeline *p, const char *path, fv_err *e)
{
    fv_path_kind kind;
    fv_status st = fv__path_kind(&kind, &p->env, path, e);
    if (st) return st;
    return kind == FV_PATH_DIR ? fv__each_file(&p->env, path, add_file, p, e)
                               : add_file(p, path, e);
}

/* ---- results ---- */

static int greatest_first(const void *a, const void *b)
{
    const ranked *x = a, *y = b;
    return x->x != y->x ? (x->x < y->x) - (x->x > y->x) : (x->i > y->i) - (x->i < y->i);
}

/* Sorts n entries of w->order; as many of them as are to be printed. */
static int64_t rank(const fv_pipeline *p, int64_t n)
{
    const words_options *o = p->options;
    const work *w = p->self;
    qsort(w->order, (size_t)n, sizeof *w->order, greatest_first);
    return o->top && o->top < n ? o->top : n;
}

/* What was written so far goes out: a collection's results need not fit memory at once. */
static fv_status hand_on(fv_pipeline *p, fv_err *e)
{
    if (p->out.failed) return fv_fail(e, FV_ENOMEM, "out of memory");
    fv_status st = fv__task_emit_part(p, p->out.data, p->out.len, e);
    p->out.len = 0;
    return st;
}

/* {"KEY": "name", "LIST": [ */
static void begin_object(fv_buf *b, const char *key, const char *name, const char *list)
{
    fv__json_begin(b, '{');
    fv__json_text_at(b, key, name, strlen(name));
    fv__json_key(b, list);
    fv__json_begin(b, '[');
}

/* {"KEY": "name", "NUMBER": x} */
static void put_pair(fv_buf *b, const char *key, const char *name, const char *number, double x)
{
    fv__json_begin(b, '{');
    fv__json_text_at(b, key, name, strlen(name));
    fv__json_number_at(b, number, x);
    fv__json_end(b, '}');
}

static fv_status put_counts(fv_pipeline *p, fv_err *e)
{
    const words_options *o = p->options;
    const work *w = p->self;
    fv_buf *b = &p->out;
    int64_t n = fv_words_terms(w->words), documents;
    for (int64_t i = 0; i < n; i++)
        w->order[i] = (ranked){(double)fv_words_count(w->words, i, NULL), i};
    int64_t shown = rank(p, n);
    for (int64_t i = 0; i < shown; i++) {
        const char *term = fv_words_term(w->words, w->order[i].i);
        int64_t count = fv_words_count(w->words, w->order[i].i, &documents);
        if (!o->json) {
            fv__buf_fmt(b, "%lld\t%lld\t%s\n", (long long)count, (long long)documents, term);
            continue;
        }
        fv__json_begin(b, '{');
        fv__json_text_at(b, "term", term, strlen(term));
        fv__json_int_at(b, "count", count);
        fv__json_int_at(b, "documents", documents);
        fv__buf_str(b, "}\n");
    }
    return hand_on(p, e);
}

static fv_status put_prepared(fv_pipeline *p, int64_t document, fv_err *e)
{
    const words_options *o = p->options;
    const work *w = p->self;
    int64_t n;
    const int32_t *word = fv_words_sequence(w->words, document, &n);
    if (o->json) begin_object(&p->out, "document", name_of(w, document), "words");
    for (int64_t i = 0; i < n; i++) {
        const char *term = fv_words_term(w->words, word[i]);
        if (o->json)
            fv__json_put_text(&p->out, term, strlen(term));
        else
            fv__buf_fmt(&p->out, "%s%s", i ? " " : "", term);
    }
    fv__buf_str(&p->out, o->json ? "]}\n" : "\n");
    return hand_on(p, e);
}

static fv_status put_tfidf(fv_pipeline *p, int64_t document, fv_err *e)
{
    const words_options *o = p->options;
    const work *w = p->self;
    int64_t n;
    const fv_term_count *t = fv_words_document(w->words, document, &n);
    const char *name = name_of(w, document);
    fv_words_tfidf(w->words, document, w->x);
    for (int64_t i = 0; i < n; i++) w->order[i] = (ranked){w->x[i], i};
    if (o->json) begin_object(&p->out, "document", name, "terms");
    int64_t shown = rank(p, n);
    for (int64_t i = 0; i < shown; i++) {
        const char *term = fv_words_term(w->words, t[w->order[i].i].term);
        if (o->json)
            put_pair(&p->out, "term", term, "weight", w->order[i].x);
        else
            fv__buf_fmt(&p->out, "%s\t%.4f\t%s\n", name, w->order[i].x, term);
    }
    if (o->json) fv__buf_str(&p->out, "]}\n");
    return hand_on(p, e);
}

/* A score of exactly 0 says that no word of the query occurs: BM25 adds one number for each. */
static fv_status put_ranking(fv_pipeline *p, const char *query, fv_err *e)
{
    const words_options *o = p->options;
    const work *w = p->self;
    int64_t n = fv_words_documents(w->words), found = 0;
    fv_bm25_opt how = {(fv_bm25_formula)o->formula, o->k1, o->b};
    fv_status st = fv_words_bm25(w->words, query, strlen(query), how, w->x, e);
    if (st) return st;
    for (int64_t d = 0; d < n; d++)
        if (w->x[d] != 0) w->order[found++] = (ranked){w->x[d], d};
    if (o->json) begin_object(&p->out, "query", query, "documents");
    int64_t shown = rank(p, found);
    for (int64_t i = 0; i < shown; i++) {
        const char *name = name_of(w, w->order[i].i);
        if (o->json)
            put_pair(&p->out, "document", name, "score", w->order[i].x);
        else
            fv__buf_fmt(&p->out, "%.6f\t%s\n", w->order[i].x, name);
    }
    if (o->json) fv__buf_str(&p->out, "]}\n");
    return hand_on(p, e);
}

/* ---- the task ---- */

static fv_status open_task(fv_pipeline *p, fv_err *e)
{
    const words_options *o = p->options;
    fv_status st = fv__pipeline_self(p, sizeof(work), e);
    if (st) return st;
    work *w = p->self;
    w->paths.env = w->names.env = w->start.env = &p->env;
    fv_words_opt how = {.cased = o->cased,
                        .no_accents = o->no_accents,
                        .stop = o->stop[0] ? o->stop : NULL,
                        .stem = o->stem[0] ? o->stem : NULL,
                        .ngram = o->ngram,
                        .rarest = o->rarest,
                        .stop_share = o->stop_share};
    return fv_words_new(&w->words, &p->env, how, e);
}

static void close_task(fv_pipeline *p)
{
    work *w = p->self;
    if (!w) return;
    fv_words_free(w->words);
    fv__buf_free(&w->paths);
    fv__buf_free(&w->names);
    fv__buf_free(&w->start);
    fv__free(&p->env, w->order, w->n_rank * sizeof *w->order);
    fv__free(&p->env, w->x, w->n_rank * sizeof *w->x);
}

static fv_status note_path(fv_pipeline *p, const char *path, fv_err *e)
{
    work *w = p->self;
    fv__buf_add(&w->paths, path, strlen(path) + 1);
    return w->paths.failed ? fv_fail(e, FV_ENOMEM, "out of memory") : fv__task_emit(p, e);
}

static fv_status run(fv_pipeline *p, const fv_text *in, int64_t n, fv_err *e)
{
    return fv__task_each_path(p, in, n, note_path, e);
}

static fv_status read_all(fv_pipeline *p, fv_err *e)
{
    work *w = p->self;
    fv_status st = FV_OK;
    for (size_t at = 0; !st && at < w->paths.len; at += strlen(w->paths.data + at) + 1)
        st = add_path(p, w->paths.data + at, e);
    if (!st) st = fv_words_end(w->words, e);
    if (st) return st;
    w->n_rank = (size_t)(fv_words_terms(w->words) + fv_words_documents(w->words) + 1);
    w->order = fv__alloc(&p->env, w->n_rank * sizeof *w->order);
    w->x = fv__alloc(&p->env, w->n_rank * sizeof *w->x);
    return w->order && w->x ? FV_OK : fv_fail(e, FV_ENOMEM, "out of memory");
}

static fv_status finish(fv_pipeline *p, fv_err *e)
{
    const words_options *o = p->options;
    const work *w = p->self;
    const char *query;
    fv_status st = read_all(p, e);
    if (!st && fv__setting_at(p, "query", 0)) {
        for (int i = 0; !st && (query = fv__setting_at(p, "query", i)); i++)
            st = put_ranking(p, query, e);
        return st;
    }
    if (!st && o->print == COUNTS) return put_counts(p, e);
    for (int64_t d = 0; !st && d < fv_words_documents(w->words); d++)
        st = (o->print == PREPARED ? put_prepared : put_tfidf)(p, d, e);
    return st;
}

static const fv_task_example examples[] = {
    {"fovea words docs/series.md --top 10", "the ten commonest words"},
    {"fovea words --print tfidf --stem english --top 5 docs", "what each file is about"},
    {"fovea words --lines --query 'missing values' docs/series.md", "the lines that answer best"},
    {0}};

const fv_task_kind fv__words_task = {
    .name = "words",
    .summary = "count, weigh and search the words of texts",
    .about =
        "Reads files, all files of folders, or standard input (plain or gzip), normalises them "
        "(Unicode's compatibility form, lower case), splits them into words and prints the terms "
        "that occur most: count, documents that have it, term.\n\n"
        "--print prepared writes each document as its words instead, --print tfidf the terms that "
        "tell it from the others.  --query ranks the documents by BM25.  Stop words are left out "
        "by a list or by how many documents have them; --stem joins forms of one word; --ngram "
        "counts neighbours too.",
    .examples = examples,
    .options = options,
    .size = sizeof(words_options),
    .no_model = true,
    .files = true,
    .open = open_task,
    .run = run,
    .finish = finish,
    .close = close_task,
};
