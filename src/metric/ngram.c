/* ngram.c - shared n-grams by sorting: the starts of all n-grams of both sequences in order, then
 * one merge.
 *
 * O(n log n) for any order, with no hash table: n-grams are never copied, only their starts are
 * sorted. A multiset intersection then falls out of one merge, which is BLEU's clipping of
 * counts. */
#include <stdlib.h>

#include "metric/ngram.h"

void fv__symbols_add(fv_symbols *s, uint32_t symbol)
{
    void *p = s->at;
    if (s->failed || !fv__grow(s->env, &p, &s->bytes, (s->n + 1) * sizeof *s->at)) {
        s->failed = true;
        return;
    }
    s->at = p;
    s->at[s->n++] = symbol;
}

void fv__symbols_free(fv_symbols *s)
{
    fv__free(s->env, s->at, s->bytes);
    *s = (fv_symbols){.env = s->env};
}

bool fv__symbols_done(fv_symbols *const *s, size_t n)
{
    bool ok = true;
    for (size_t i = 0; i < n; i++) {
        ok = ok && !s[i]->failed;
        fv__symbols_free(s[i]);
    }
    return ok;
}

const char *fv__reference(const char *all, int i, size_t *len)
{
    for (; i > 0 && all; i--) {
        all = strchr(all, *FV_NEXT_TEXT);
        if (all) all++;
    }
    if (all) *len = strcspn(all, FV_NEXT_TEXT);
    return all;
}

int fv__references_of_each(const char *const *all, int64_t n)
{
    int each = 0;
    for (int64_t i = 0; i < n; i++) {
        int k = 0;
        for (const char *s = all[i]; s; s = strchr(s + (k > 1), *FV_NEXT_TEXT)) k++;
        if (i && k != each) return 0;
        each = k;
    }
    return each ? each : 1;
}

void fv__symbols_text(fv_symbols *s, const char *text, size_t len)
{
    uint32_t cp;
    s->n = 0;
    for (size_t i = 0; i < len;) {
        int n = fv__utf8_get(&cp, text + i, len - i);
        fv__symbols_add(s, n ? cp : 0xFFFD);
        i += n ? (size_t)n : 1;
    }
}

/* What Python's str.split() and \s take as white space, since the reference scores are Python's. */
bool fv__is_blank(uint32_t c)
{
    return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
           c == 0x205F || c == 0x3000;
}

static int compare(const uint32_t *x, const uint32_t *y, size_t order)
{
    for (size_t i = 0; i < order; i++)
        if (x[i] != y[i]) return x[i] < y[i] ? -1 : 1;
    return 0;
}

typedef struct corpus {
    const uint32_t *at;
    size_t order;
} corpus;

static int by_ngram(const void *x, const void *y, void *arg)
{
    const corpus *c = arg;
    return compare(c->at + *(const uint32_t *)x, c->at + *(const uint32_t *)y, c->order);
}

static void sort_starts(fv_symbols *starts, const fv_symbols *s, size_t order)
{
    starts->n = 0;
    for (int64_t i = 0; i < fv__ngram_count(s, order); i++) fv__symbols_add(starts, (uint32_t)i);
    if (starts->n > 1)
        qsort_r(starts->at, starts->n, sizeof *starts->at, by_ngram, &(corpus){s->at, order});
}

/* Equal n-grams of a stand side by side, and the merge matches the first of them, as many as b has.
 * What several sequences match is therefore the longest of these runs: the union of their marks,
 * which is BLEU's maximum over references. */
static int64_t merge(const fv_symbols *a, const fv_symbols *b, size_t order, fv_symbols scratch[2],
                     uint32_t *mark)
{
    int64_t matches = 0;
    sort_starts(&scratch[0], a, order);
    sort_starts(&scratch[1], b, order);
    for (size_t i = 0, j = 0; i < scratch[0].n && j < scratch[1].n;) {
        int d = compare(a->at + scratch[0].at[i], b->at + scratch[1].at[j], order);
        matches += d == 0 && !(mark && mark[i]);
        if (d == 0 && mark) mark[i] = 1;
        i += d <= 0;
        j += d >= 0;
    }
    return matches;
}

int64_t fv__ngram_matches(const fv_symbols *a, const fv_symbols *b, size_t order,
                          fv_symbols scratch[2])
{
    return merge(a, b, order, scratch, NULL);
}

int64_t fv__ngram_new_matches(const fv_symbols *a, const fv_symbols *b, size_t order,
                              fv_symbols scratch[2], fv_symbols *matched)
{
    while ((int64_t)matched->n < fv__ngram_count(a, order) && !matched->failed)
        fv__symbols_add(matched, 0);
    return matched->failed ? 0 : merge(a, b, order, scratch, matched->at);
}
