/* words.c - fovea words: texts prepared, counted, weighed and searched. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli.h"
#include "fovea/author/words.h"
#include "json.h"

enum { COUNTS, PREPARED, TFIDF };
static const char *const results[] = {"counts", "prepared", "tfidf", NULL};
static const char *const formulas[] = {"okapi", "lucene", NULL};

typedef struct values {
    cli_list queries;
    const char *stop, *stem;
    int result, formula;
    int64_t ngram, rarest, top;
    double stop_share, k1, b;
    bool lines, cased, no_accents, json;
} values;

static const values defaults = {.ngram = 1, .top = 20};

static const cli_option options[] = {
    CLI_CHOICE(values, result, 0, "print", results,
               "terms and their counts, the documents as prepared words, or the terms of each "
               "document with the greatest TF-IDF weights"),
    CLI_LIST(values, queries, 0, "query", "TEXT",
             "rank the documents for this query by BM25 instead; may be repeated"),
    CLI_FLAG(values, lines, 0, "lines", "each line is a document, else each file"),
    CLI_FLAG(values, cased, 0, "cased", "keep capitals"),
    CLI_FLAG(values, no_accents, 0, "no-accents", "leave out accents and other marks"),
    CLI_FILE(values, stop, 0, "stop", "FILE", "words to leave out, one a line"),
    CLI_REAL(values, stop_share, 0, "stop-share", "X", 0, 1,
             "leave out words of more than this share of the documents; 0: none"),
    CLI_INT(values, rarest, 0, "rarest", "N", 0, 1LL << 40,
            "leave out words that occur less often than that"),
    CLI_TEXT(values, stem, 0, "stem", "LANGUAGE",
             "stems by Snowball: english, german, french, ..."),
    CLI_INT(values, ngram, 0, "ngram", "N", 1, 8, "terms are up to N words"),
    CLI_INT(values, top, 'k', "top", "N", 0, 1LL << 40,
            "terms or documents that are printed; 0: all"),
    CLI_CHOICE(values, formula, 0, "formula", formulas,
               "of BM25: as rank_bm25's BM25Okapi, or as Lucene"),
    CLI_REAL(values, k1, 0, "k1", "X", 0, 100, "of BM25; 0: 1.5, of Lucene 0.9"),
    CLI_REAL(values, b, 0, "b", "X", -1, 1, "of BM25; 0: 0.75, of Lucene 0.4; -1: no lengths"),
    CLI_FLAG(values, json, 0, "json", "one JSON object a line"),
    {0},
};

static const cli_example examples[] = {
    {"fovea words docs/series.md --top 10", "the ten commonest words"},
    {"fovea words --print tfidf --stem english --top 5 docs", "what each file is about"},
    {"fovea words --lines --query 'missing values' docs/series.md", "the lines that answer best"},
    {0},
};

/* ---- documents ---- */

typedef struct names {
    char **at; /* of each document */
    int64_t n, capacity;
} names;

static bool add_name(names *l, const char *path, int64_t line)
{
    size_t size = strlen(path) + 24;
    char *name = malloc(size);
    if (l->n == l->capacity) {
        char **grown = realloc(l->at, (size_t)(l->capacity * 2 + 64) * sizeof *grown);
        if (grown) l->at = grown, l->capacity = l->capacity * 2 + 64;
    }
    if (!name || l->n == l->capacity) return free(name), false;
    snprintf(name, size, line ? "%s:%lld" : "%s", path, (long long)line);
    l->at[l->n++] = name;
    return true;
}

static int add_file(const cli *c, const values *v, fv_words *w, names *l, const char *path)
{
    fv_reader *r;
    const fv_line *line;
    int64_t n = 1;
    fv_err e;
    int code = CLI_OK;
    const char *shown = path ? path : "standard input";
    if (fv_reader_open(&r, NULL, path, (fv_reader_opt){.whole = !v->lines}, &e))
        return cli_error(c, &e);
    while (code == CLI_OK && n) {
        if (fv_reader_next(r, 4096, &line, &n, &e)) code = cli_error(c, &e);
        for (int64_t i = 0; code == CLI_OK && i < n; i++) {
            if (line[i].error.code)
                code = cli_fail(c, "%s: line %lld: %s", shown, (long long)line[i].number,
                                line[i].error.text);
            else if (fv_words_add(w, line[i].text.s, line[i].text.n, &e))
                code = cli_fail(c, "%s: %s", shown, e.text);
            else if (!add_name(l, shown, v->lines ? line[i].number : 0))
                code = cli_fail(c, "out of memory");
        }
    }
    fv_reader_close(r);
    return code;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The files of a folder in order of their names, hidden ones and folders inside left out. */
static int add_folder(const cli *c, const values *v, fv_words *w, names *l, const char *path)
{
    DIR *d = opendir(path);
    names files = {0};
    int code = d ? CLI_OK : cli_fail(c, "%s: cannot be read as a folder", path);
    for (struct dirent *x; d && code == CLI_OK && (x = readdir(d));) {
        char file[4096];
        struct stat s;
        bool fits = snprintf(file, sizeof file, "%s/%s", path, x->d_name) < (int)sizeof file;
        if (x->d_name[0] == '.' || !fits || stat(file, &s) || !S_ISREG(s.st_mode)) continue;
        if (!add_name(&files, file, 0)) code = cli_fail(c, "out of memory");
    }
    if (d) closedir(d);
    if (files.n) qsort(files.at, (size_t)files.n, sizeof *files.at, by_name);
    for (int64_t i = 0; code == CLI_OK && i < files.n; i++)
        code = add_file(c, v, w, l, files.at[i]);
    for (int64_t i = 0; i < files.n; i++) free(files.at[i]);
    free(files.at);
    return code;
}

/* ---- results ---- */

/* A number and what it is of; of equal ones the first. */
typedef struct ranked {
    double x;
    int64_t i;
} ranked;

static int greatest_first(const void *a, const void *b)
{
    const ranked *x = a, *y = b;
    return x->x != y->x ? (x->x < y->x) - (x->x > y->x) : (x->i > y->i) - (x->i < y->i);
}

static int64_t shown_of(const values *v, int64_t n) { return v->top && v->top < n ? v->top : n; }

static void print_counts(const values *v, const fv_words *w, ranked *r)
{
    int64_t n = fv_words_terms(w), documents;
    for (int64_t i = 0; i < n; i++) r[i] = (ranked){(double)fv_words_count(w, i, NULL), i};
    qsort(r, (size_t)n, sizeof *r, greatest_first);
    for (int64_t i = 0; i < shown_of(v, n); i++) {
        cli_json j = {0};
        const char *term = fv_words_term(w, r[i].i);
        int64_t count = fv_words_count(w, r[i].i, &documents);
        if (!v->json) {
            printf("%lld\t%lld\t%s\n", (long long)count, (long long)documents, term);
            continue;
        }
        cli_json_put(&j, "{s:s, s:I, s:I}", "term", term, "count", count, "documents", documents);
        cli_json_end();
    }
}

static void print_prepared(const values *v, const fv_words *w, const names *l)
{
    for (int64_t d = 0; d < fv_words_documents(w); d++) {
        int64_t n;
        const int32_t *word = fv_words_sequence(w, d, &n);
        cli_json j = {0};
        if (v->json) cli_json_put(&j, "{s:s, s:[", "document", l->at[d], "words");
        for (int64_t i = 0; i < n; i++) {
            if (v->json)
                cli_json_put(&j, "s", fv_words_term(w, word[i]));
            else
                printf("%s%s", i ? " " : "", fv_words_term(w, word[i]));
        }
        if (v->json) cli_json_put(&j, "]}");
        cli_json_end();
    }
}

static void print_tfidf(const values *v, const fv_words *w, const names *l, ranked *r, double *x)
{
    for (int64_t d = 0; d < fv_words_documents(w); d++) {
        int64_t n;
        const fv_term_count *t = fv_words_document(w, d, &n);
        cli_json j = {0};
        fv_words_tfidf(w, d, x);
        for (int64_t i = 0; i < n; i++) r[i] = (ranked){x[i], i};
        qsort(r, (size_t)n, sizeof *r, greatest_first);
        if (v->json) cli_json_put(&j, "{s:s, s:[", "document", l->at[d], "terms");
        for (int64_t i = 0; i < shown_of(v, n); i++) {
            const char *term = fv_words_term(w, t[r[i].i].term);
            if (v->json)
                cli_json_put(&j, "{s:s, s:f}", "term", term, "weight", r[i].x);
            else
                printf("%s\t%.4f\t%s\n", l->at[d], r[i].x, term);
        }
        if (v->json) cli_json_put(&j, "]}");
        if (v->json) cli_json_end();
    }
}

/* Documents without any word of the query are left out. */
static int print_ranking(const cli *c, const values *v, const fv_words *w, const names *l,
                         const char *query, ranked *r, double *score)
{
    fv_err e;
    int64_t n = fv_words_documents(w), found = 0;
    fv_bm25_opt how = {(fv_bm25_formula)v->formula, v->k1, v->b};
    if (fv_words_bm25(w, query, strlen(query), how, score, &e)) return cli_error(c, &e);
    for (int64_t d = 0; d < n; d++)
        if (score[d] != 0) r[found++] = (ranked){score[d], d};
    qsort(r, (size_t)found, sizeof *r, greatest_first);
    cli_json j = {0};
    if (v->json) cli_json_put(&j, "{s:s, s:[", "query", query, "documents");
    for (int64_t i = 0; i < shown_of(v, found); i++) {
        if (v->json)
            cli_json_put(&j, "{s:s, s:f}", "document", l->at[r[i].i], "score", r[i].x);
        else
            printf("%.6f\t%s\n", r[i].x, l->at[r[i].i]);
    }
    if (v->json) cli_json_put(&j, "]}");
    if (v->json) cli_json_end();
    return CLI_OK;
}

static int print(const cli *c, const values *v, const fv_words *w, const names *l)
{
    int64_t n = fv_words_terms(w) + fv_words_documents(w) + 1;
    ranked *r = malloc((size_t)n * sizeof *r);
    double *x = malloc((size_t)n * sizeof *x);
    int code = r && x ? CLI_OK : cli_fail(c, "out of memory");
    for (int i = 0; code == CLI_OK && i < v->queries.n; i++)
        code = print_ranking(c, v, w, l, v->queries.at[i], r, x);
    if (code == CLI_OK && !v->queries.n) {
        if (v->result == COUNTS) print_counts(v, w, r);
        if (v->result == PREPARED) print_prepared(v, w, l);
        if (v->result == TFIDF) print_tfidf(v, w, l, r, x);
    }
    free(r);
    free(x);
    return code;
}

static int run(const cli *c, const void *vals, int n, char **operand)
{
    const values *v = vals;
    fv_words *w;
    fv_err e;
    names l = {0};
    fv_words_opt how = {.cased = v->cased,
                        .no_accents = v->no_accents,
                        .stop = v->stop,
                        .stem = v->stem,
                        .ngram = v->ngram,
                        .rarest = v->rarest,
                        .stop_share = v->stop_share};
    if (fv_words_new(&w, NULL, how, &e)) return cli_error(c, &e);
    int code = n ? CLI_OK : add_file(c, v, w, &l, NULL);
    for (int i = 0; code == CLI_OK && i < n; i++) {
        struct stat s;
        bool folder = !stat(operand[i], &s) && S_ISDIR(s.st_mode);
        code = (folder ? add_folder : add_file)(c, v, w, &l, operand[i]);
    }
    if (code == CLI_OK && fv_words_end(w, &e)) code = cli_error(c, &e);
    if (code == CLI_OK) code = print(c, v, w, &l);
    fv_words_free(w);
    for (int64_t i = 0; i < l.n; i++) free(l.at[i]);
    free(l.at);
    return code;
}

const cli_command words_command = {
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
    .options = options,
    .size = sizeof(values),
    .defaults = &defaults,
    .operands = "[FILE | FOLDER...]",
    .max_operands = 4096,
    .examples = examples,
    .run = run,
};
