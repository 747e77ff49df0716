/* terms_rank.c - weights of terms and ranking of documents: TF-IDF and BM25.
 *
 * With N documents, df those that have a term, f how often one has it, l its length in terms:
 *
 *     TF-IDF    f (1 + ln((1 + N) / (1 + df))), vectors of length 1           as scikit-learn
 *     Okapi     idf f (k1 + 1) / (f + k1 (1 - b + b l / mean l)),
 *               idf = ln(N - df + 0.5) - ln(df + 0.5), or mean idf / 4 where that is negative
 *     Lucene    idf f / (f + k1 (1 - b + b l / mean l)),  idf = ln(1 + (N - df + 0.5) / (df + 0.5))
 *
 * The sums go through terms in order of first appearance, as those of rank_bm25 do. */
#include <math.h>

#include "data/terms.h"

/* scikit-learn's smooth idf: 1 is added as if one document had every term, so none is divided by 0,
 * and outside, so a term of all documents keeps some weight. The L2 norm makes products of
 * documents cosines. */
void fv_words_tfidf(const fv_words *w, int64_t document, double *weights)
{
    int64_t n;
    const fv_term_count *x = fv_words_document(w, document, &n);
    double square = 0;
    for (int64_t i = 0; i < n; i++) {
        double idf = 1 + log((1 + (double)w->n) / (1 + (double)w->documents[x[i].term]));
        weights[i] = x[i].count * idf;
        square += weights[i] * weights[i];
    }
    for (int64_t i = 0; i < n; i++) weights[i] /= sqrt(square);
}

/* Robertson's, which is negative for a term of more than half of the documents. */
static double okapi_idf(const fv_words *w, int64_t term)
{
    double df = (double)w->documents[term];
    return log((double)w->n - df + 0.5) - log(df + 0.5);
}

/* rank_bm25 replaces a negative idf by a quarter of this. */
static double mean_idf(const fv_words *w)
{
    double sum = 0;
    for (int64_t t = 0; t < w->terms.n; t++) sum += okapi_idf(w, t);
    return w->terms.n ? sum / (double)w->terms.n : 0;
}

typedef struct ranking {
    const fv_words *w;
    fv_bm25_opt opt;
    double mean_length, floor; /* floor: instead of a negative idf */
    double *score;
    int32_t before[8]; /* the words before, for n-grams; -1: that term is not known */
    int64_t n;         /* words of the query so far */
    fv_buf term;
} ranking;

/* score(d) += idf (k1 + 1) f / (f + k1 (1 - b + b length(d) / mean length)), over the documents
 * that have the term; Lucene leaves the factor k1 + 1 out, which changes no order. A query's word
 * counts as often as it stands there. */
static void add_term(ranking *r, int64_t t)
{
    const fv_words *w = r->w;
    double df = (double)w->documents[t], N = (double)w->n;
    bool lucene = r->opt.formula == FV_BM25_LUCENE;
    double idf = lucene ? log(1 + (N - df + 0.5) / (df + 0.5)) : okapi_idf(w, t);
    if (idf < 0) idf = r->floor;
    for (int64_t i = w->posting[t]; i < w->posting[t + 1]; i++) {
        int32_t d = w->postings[i].term;
        double f = w->postings[i].count, l = w->length[d] / r->mean_length;
        double x = f / (f + r->opt.k1 * (1 - r->opt.b + r->opt.b * l));
        r->score[d] += idf * x * (lucene ? 1 : r->opt.k1 + 1);
    }
}

/* A word of the query, and the n-grams that end with it. */
static fv_status add_word(void *user, const char *s, size_t n, fv_err *e)
{
    ranking *r = user;
    const fv_words *w = r->w;
    int32_t id = fv_labels_find(&w->terms, s, n);
    if (id >= 0) add_term(r, id);
    r->before[r->n++ % 8] = id;
    for (int64_t k = 2; k <= w->opt.ngram && k <= r->n; k++) {
        bool known = true;
        r->term.len = 0;
        for (int64_t i = r->n - k; i < r->n; i++) {
            known = known && r->before[i % 8] >= 0;
            if (known)
                fv__buf_fmt(&r->term, "%s%s", r->term.len ? " " : "",
                            w->terms.name[r->before[i % 8]]);
        }
        if (r->term.failed) return fv_fail(e, FV_ENOMEM, "words: out of memory");
        int32_t t = known ? fv_labels_find(&w->terms, r->term.data, r->term.len) : -1;
        if (t >= 0) add_term(r, t);
    }
    return FV_OK;
}

/* The query goes through the same splitting as the documents; its words that no document has add
 * nothing. */
fv_status fv_words_bm25(const fv_words *w, const char *query, size_t n, fv_bm25_opt opt,
                        double *score, fv_err *e)
{
    bool lucene = opt.formula == FV_BM25_LUCENE;
    if (!w->ended) return fv_fail(e, FV_EARG, "words: ranking comes after the end");
    if (opt.k1 == 0) opt.k1 = lucene ? 0.9 : 1.5;
    if (opt.b == 0) opt.b = lucene ? 0.4 : 0.75;
    if (opt.b < 0) opt.b = 0;
    ranking r = {.w = w, .opt = opt, .score = score, .term = {.env = &w->env}};
    for (int64_t d = 0; d < w->n; d++) r.mean_length += w->length[d];
    r.mean_length /= w->n ? (double)w->n : 1;
    r.floor = lucene ? 0 : 0.25 * mean_idf(w);
    for (int64_t d = 0; d < w->n; d++) score[d] = 0;
    fv_status st = fv__terms_split(w, query, n, add_word, &r, e);
    fv__buf_free(&r.term);
    return st;
}
