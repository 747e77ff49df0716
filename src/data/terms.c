/* terms.c - a collection of documents as numbered terms, with the counts that everything else is
 * computed from.
 *
 * Documents are kept as numbers of their words in order.  At the end, words are left out by
 * frequency, what is left is renumbered, and n-grams are made of neighbours.  Two lists follow:
 * the terms of each document (for TF-IDF) and the documents of each term (for BM25, which so
 * touches only documents that have a word of the query). */
#include "data/terms.h"

#include <stdlib.h>

enum { MOST_NGRAM = 8 };

static fv_status no_memory(fv_err *e) { return fv_fail(e, FV_ENOMEM, "words: out of memory"); }

/* ---- opening ---- */

/* A list of stop words is taken as it is: it must be in the case that words will have. */
static fv_status read_stop(fv_words *w, fv_err *e)
{
    fv_textfile *t;
    fv_status st = fv_textfile_open(&t, &w->env, w->opt.stop, e);
    for (int64_t i = 0; !st && i < fv_textfile_count(t); i++) {
        size_t n;
        int32_t id;
        const char *s = fv_textfile_line(t, i, &n);
        while (n && strchr(" \t", s[n - 1])) n--;
        if (n) st = fv_labels_add(&w->stop, &id, s, n, e);
    }
    fv_textfile_close(t);
    return st;
}

/* The stemmer and the list of stop words are opened here, so that what is wrong with them is said
 * before a document is read. */
fv_status fv_words_new(fv_words **out, const fv_env *env, fv_words_opt opt, fv_err *e)
{
    *out = NULL;
    if (opt.ngram < 0 || opt.ngram > MOST_NGRAM)
        return fv_fail(e, FV_EARG, "words: n-grams of %lld words; at most %d", (long long)opt.ngram,
                       MOST_NGRAM);
    fv_words *w = fv__alloc(env, sizeof *w);
    if (!w) return no_memory(e);
    if (env) w->env = *env;
    w->opt = opt;
    if (!w->opt.ngram) w->opt.ngram = 1;
    w->stop.env = w->words.env = w->terms.env = &w->env;
    w->seq.env = w->ends.env = w->found.env = w->until.env = &w->env;
    fv_status st = fv__terms_stemmer_open(w, e);
    if (!st && opt.stop) st = read_stop(w, e);
    if (st) fv_words_free(w);
    if (!st) *out = w;
    return st;
}

void fv_words_free(fv_words *w)
{
    if (!w) return;
    fv_env env = w->env;
    void *block[5] = {w->count, w->documents, w->length, w->posting, w->postings};
    fv_buf *buf[4] = {&w->seq, &w->ends, &w->found, &w->until};
    fv__terms_stemmer_close(w);
    fv_labels_free(&w->stop);
    fv_labels_free(&w->words);
    fv_labels_free(&w->terms);
    for (int i = 0; i < 4; i++) fv__buf_free(buf[i]);
    for (int i = 0; i < 5; i++) fv__free(&env, block[i], w->bytes[i]);
    fv__free(&env, w, sizeof *w);
}

/* ---- documents ---- */

/* A document is its words' numbers in order; terms are made of them when all documents are known.
 */
static fv_status add_word(void *user, const char *s, size_t n, fv_err *e)
{
    fv_words *w = user;
    int32_t id;
    fv_status st = fv_labels_add(&w->words, &id, s, n, e);
    if (!st) fv__buf_add(&w->seq, &id, sizeof id);
    return st;
}

/* ends[d] is where document d ends in the sequence of all words. */
fv_status fv_words_add(fv_words *w, const char *text, size_t n, fv_err *e)
{
    if (w->ended) return fv_fail(e, FV_EARG, "words: documents come before the end");
    fv_status st = fv__terms_split(w, text, n, add_word, w, e);
    int64_t end = fv__terms_n(&w->seq, sizeof(int32_t));
    if (!st) fv__buf_add(&w->ends, &end, sizeof end);
    if (!st && (w->seq.failed || w->ends.failed)) st = no_memory(e);
    w->n += !st;
    return st;
}

/* ---- the end: words left out ---- */

typedef struct word_use {
    int64_t count, documents, last; /* last: 1 + the document that was counted last */
} word_use;

/* Renumbers the words that stay, as terms; to[word] is -1 for those that go. */
static fv_status choose_words(fv_words *w, const word_use *use, int32_t *to, fv_err *e)
{
    fv_status st = FV_OK;
    for (int64_t i = 0; !st && i < w->words.n; i++) {
        bool common = w->opt.stop_share > 0 &&
                      (double)use[i].documents > w->opt.stop_share * (double)w->n;
        to[i] = -1;
        if (!common && use[i].count >= w->opt.rarest)
            st = fv_labels_add(&w->terms, &to[i], w->words.name[i], strlen(w->words.name[i]), e);
    }
    return st;
}

/* Words are renumbered and the sequence is squeezed in place: what is kept never stands behind
 * where it was. `last` counts a word once a document. */
static fv_status leave_out(fv_words *w, fv_err *e)
{
    size_t words = (size_t)w->words.n + 1;
    word_use *use = fv__alloc(&w->env, words * sizeof *use);
    int32_t *to = fv__alloc(&w->env, words * sizeof *to), *seq = (int32_t *)(void *)w->seq.data;
    fv_status st = use && to ? FV_OK : no_memory(e);
    int64_t from, kept = 0;
    for (int64_t d = 0; !st && d < w->n; d++)
        for (int64_t end = fv__terms_range(&w->ends, d, &from); from < end; from++) {
            word_use *u = &use[seq[from]];
            u->count++;
            u->documents += u->last != d + 1;
            u->last = d + 1;
        }
    if (!st) st = choose_words(w, use, to, e);
    int64_t *ends = (int64_t *)(void *)w->ends.data;
    for (int64_t d = 0, i = 0; !st && d < w->n; d++) {
        for (; i < ends[d]; i++)
            if (to[seq[i]] >= 0) seq[kept++] = to[seq[i]];
        ends[d] = kept;
    }
    if (!st) w->seq.len = (size_t)kept * sizeof *seq;
    fv__free(&w->env, use, words * sizeof *use);
    fv__free(&w->env, to, words * sizeof *to);
    return st;
}

/* ---- the end: terms ---- */

/* The number of the n-gram of words [0, n): a term of its own, the words joined by blanks. */
static fv_status ngram(fv_words *w, const int32_t *word, int64_t n, fv_buf *term, int32_t *id,
                       fv_err *e)
{
    term->len = 0;
    for (int64_t i = 0; i < n; i++) fv__buf_fmt(term, "%s%s", i ? " " : "", w->terms.name[word[i]]);
    if (term->failed) return no_memory(e);
    return fv_labels_add(&w->terms, id, term->data, term->len, e);
}

static int by_number(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

/* Appends each number of a sorted list once, with how often it is there. */
static void add_counts(fv_buf *out, const int32_t *sorted, int64_t n)
{
    for (int64_t i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && sorted[end] == sorted[i];) end++;
        fv_term_count x = {sorted[i], (int32_t)(end - i)};
        fv__buf_add(out, &x, sizeof x);
    }
}

/* Terms of all lengths are collected and sorted: equal ones stand together and are counted in one
 * walk, and a document's list comes out in order of term. */
static fv_status count_document(fv_words *w, int64_t d, fv_buf *all, fv_buf *term, fv_err *e)
{
    int64_t from, end = fv__terms_range(&w->ends, d, &from), until;
    const int32_t *seq = (const int32_t *)(const void *)w->seq.data;
    fv_status st = FV_OK;
    all->len = 0;
    for (int64_t k = 1; k <= w->opt.ngram; k++)
        for (int64_t i = from; !st && i + k <= end; i++) {
            int32_t id = seq[i];
            if (k > 1) st = ngram(w, seq + i, k, term, &id, e);
            fv__buf_add(all, &id, sizeof id);
        }
    int64_t n = fv__terms_n(all, sizeof(int32_t));
    if (!st && all->failed) st = no_memory(e);
    if (!st && n) qsort(all->data, (size_t)n, sizeof(int32_t), by_number);
    if (!st) add_counts(&w->found, (const int32_t *)(const void *)all->data, n);
    until = fv__terms_n(&w->found, sizeof(fv_term_count));
    fv__buf_add(&w->until, &until, sizeof until);
    return !st && (w->found.failed || w->until.failed) ? no_memory(e) : st;
}

/* Counts of terms, and for each its documents in order. */
static fv_status post(fv_words *w, fv_err *e)
{
    int64_t terms = w->terms.n, all = fv__terms_n(&w->found, sizeof(fv_term_count)), from;
    const fv_term_count *found = (const fv_term_count *)(const void *)w->found.data;
    void *block[5] = {NULL};
    size_t want[5] = {(size_t)terms * 8, (size_t)terms * 8, (size_t)w->n * 8,
                      (size_t)(terms + 1) * 8, (size_t)all * sizeof *found};
    bool fits = true;
    for (int i = 0; i < 5; i++)
        fits = fv__grow(&w->env, &block[i], &w->bytes[i], want[i] + 8) && fits;
    w->count = block[0], w->documents = block[1], w->length = block[2];
    w->posting = block[3], w->postings = block[4];
    if (!fits) return no_memory(e);
    for (int i = 0; i < 4; i++) memset(block[i], 0, w->bytes[i]);
    for (int64_t i = 0; i < all; i++) {
        w->count[found[i].term] += found[i].count;
        w->documents[found[i].term]++;
    }
    for (int64_t t = 0; t < terms; t++) w->posting[t + 1] = w->posting[t] + w->documents[t];
    for (int64_t d = 0; d < w->n; d++)
        for (int64_t end = fv__terms_range(&w->until, d, &from); from < end; from++) {
            w->postings[w->posting[found[from].term]++] = (fv_term_count){(int32_t)d,
                                                                          found[from].count};
            w->length[d] += found[from].count;
        }
    /* each start has moved to its end, which is the next one's start */
    for (int64_t t = terms; t > 0; t--) w->posting[t] = w->posting[t - 1];
    w->posting[0] = 0;
    return FV_OK;
}

/* Frequencies decide first which words remain; n-grams are made of those, so "the" never stands in
 * one where it was left out. */
fv_status fv_words_end(fv_words *w, fv_err *e)
{
    fv_buf all = {.env = &w->env}, term = {.env = &w->env};
    if (w->ended) return FV_OK;
    fv_status st = leave_out(w, e);
    for (int64_t d = 0; !st && d < w->n; d++) st = count_document(w, d, &all, &term, e);
    fv__buf_free(&all);
    fv__buf_free(&term);
    if (!st) st = post(w, e);
    w->ended = !st;
    return st;
}

/* ---- what is there ---- */

int64_t fv_words_documents(const fv_words *w) { return w->n; }
int64_t fv_words_terms(const fv_words *w) { return w->terms.n; }
const char *fv_words_term(const fv_words *w, int64_t term) { return w->terms.name[term]; }

int64_t fv_words_count(const fv_words *w, int64_t term, int64_t *documents)
{
    if (documents) *documents = w->documents[term];
    return w->count[term];
}

const int32_t *fv_words_sequence(const fv_words *w, int64_t document, int64_t *n)
{
    int64_t from, end = fv__terms_range(&w->ends, document, &from);
    *n = end - from;
    return (const int32_t *)(const void *)w->seq.data + (*n ? from : 0);
}

const fv_term_count *fv_words_document(const fv_words *w, int64_t document, int64_t *n)
{
    int64_t from, end = fv__terms_range(&w->until, document, &from);
    *n = end - from;
    return (const fv_term_count *)(const void *)w->found.data + (*n ? from : 0);
}
