/* shared_words.c - how much texts have in common, by their words.
 *
 *     idf(w) = log(texts / texts with w)
 *     s(a,b) = sum over words of both of idf^2 / (|a| |b|),   |a|^2 = sum over words of a of idf^2
 *     share(a,b) = s(a,b)^2 / sum over c of s(a,c)^2
 *
 * the cosine of two bags of words in which a word that few texts have weighs more.  Squared, the
 * text itself stays ahead of many that share one common word with it.  Tokens that all texts have
 * (start and end) weigh nothing by their idf. */
#include "objective/part/shared_words.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int ascending(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

bool fv__shared_words_add(fv__shared_words *o, int32_t *ids, int64_t n, int32_t unknown)
{
    int64_t kept = 0;
    qsort(ids, (size_t)n, sizeof *ids, ascending);
    for (int64_t i = 0; i < n; i++)
        if (ids[i] != unknown && (!kept || ids[i] != ids[kept - 1])) ids[kept++] = ids[i];
    o->words.env = o->env;
    return fv__ragged_add(&o->words, ids, kept);
}

bool fv__shared_words_weigh(fv__shared_words *o, int64_t vocab)
{
    int64_t n, texts = o->words.n;
    o->weight_bytes = (size_t)(vocab + texts) * sizeof *o->weight;
    o->weight = fv__alloc(o->env, o->weight_bytes);
    if (!o->weight) return false;
    o->length = o->weight + vocab;
    memset(o->weight, 0, o->weight_bytes);
    for (int64_t i = 0; i < texts; i++) {
        const int32_t *id = fv__ragged_row(&o->words, i, &n);
        for (int64_t k = 0; k < n; k++) o->weight[id[k]]++;
    }
    for (int64_t w = 0; w < vocab; w++)
        if (o->weight[w] > 0) {
            float idf = logf((float)texts / o->weight[w]);
            o->weight[w] = idf * idf;
        }
    for (int64_t i = 0; i < texts; i++) {
        const int32_t *id = fv__ragged_row(&o->words, i, &n);
        for (int64_t k = 0; k < n; k++) o->length[i] += o->weight[id[k]];
        o->length[i] = sqrtf(o->length[i]);
    }
    return true;
}

/* s(a,b): both rows are sorted, so one pass meets every common word. */
static float similarity(const fv__shared_words *o, int32_t a, int32_t b)
{
    int64_t na, nb, i = 0, k = 0;
    const int32_t *x = fv__ragged_row(&o->words, a, &na), *y = fv__ragged_row(&o->words, b, &nb);
    float sum = 0;
    while (i < na && k < nb) {
        if (x[i] == y[k]) sum += o->weight[x[i]];
        bool step = x[i] <= y[k], other = y[k] <= x[i];
        i += step, k += other;
    }
    return sum > 0 ? sum / (o->length[a] * o->length[b]) : 0;
}

/* A text without a word of weight shares with itself alone. */
void fv__shared_words_put(const fv__shared_words *o, float *share, const int32_t *rows, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t k = i; k < n; k++) {
            float s = i == k ? 1 : similarity(o, rows[i], rows[k]);
            share[i * n + k] = share[k * n + i] = s * s;
        }
    for (int64_t i = 0; i < n; i++) {
        float sum = 0;
        for (int64_t k = 0; k < n; k++) sum += share[i * n + k];
        for (int64_t k = 0; k < n; k++) share[i * n + k] /= sum;
    }
}

void fv__shared_words_free(fv__shared_words *o)
{
    fv__ragged_free(&o->words);
    fv__free(o->env, o->weight, o->weight_bytes);
}
