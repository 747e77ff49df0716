/* chrf.c - chrF2: the F-score of character n-grams, recall weighing twice as much as precision.
 *
 *     chrF = (1 + b^2) P R / (b^2 P + R)     b = 2, P and R averaged over n-grams of 1 to 6
 *
 * White space is removed first; counts are summed over the corpus, as sacrebleu does. */
#include <stdio.h>

#include "fovea/author/metric.h"
#include "metric/ngram.h"

#define ORDERS 6
#define BETA2 4.0 /* beta squared */

/* Code points without blanks. */
static void read_chars(fv_symbols *s, const char *text, size_t len)
{
    size_t n = 0;
    fv__symbols_text(s, text, len);
    for (size_t i = 0; i < s->n; i++)
        if (!fv__is_blank(s->at[i])) s->at[n++] = s->at[i];
    s->n = n;
}

typedef struct counts {
    int64_t text, reference, match;
} counts;

/* Precision and recall are averaged over the orders that both sides have at all. */
static double f_score(const counts c[ORDERS])
{
    double precision = 0, recall = 0;
    int used = 0;
    for (int i = 0; i < ORDERS; i++) {
        if (!c[i].text || !c[i].reference) continue;
        precision += (double)c[i].match / (double)c[i].text;
        recall += (double)c[i].match / (double)c[i].reference;
        used++;
    }
    if (precision + recall == 0) return 0;
    precision /= used;
    recall /= used;
    return 100 * (1 + BETA2) * precision * recall / (BETA2 * precision + recall);
}

/* The counts of a text against the reference that scores best, the first of equal ones. */
static void add(counts sum[ORDERS], const fv_symbols *hyp, const char *references, fv_symbols *ref,
                fv_symbols scratch[2])
{
    counts best[ORDERS] = {0};
    double highest = -1;
    const char *reference;
    size_t len;
    for (int i = 0; (reference = fv__reference(references, i, &len)); i++) {
        counts c[ORDERS];
        read_chars(ref, reference, len);
        for (size_t k = 0; k < ORDERS; k++) {
            c[k].reference = fv__ngram_count(ref, k + 1);
            /* what no reference could match does not count */
            c[k].text = c[k].reference ? fv__ngram_count(hyp, k + 1) : 0;
            c[k].match = fv__ngram_matches(hyp, ref, k + 1, scratch);
        }
        double f = f_score(c);
        if (f <= highest) continue;
        highest = f;
        memcpy(best, c, sizeof best);
    }
    for (int k = 0; k < ORDERS; k++) {
        sum[k].reference += best[k].reference;
        sum[k].text += best[k].text;
        sum[k].match += best[k].match;
    }
}

fv_status fv_chrf_score(fv_chrf *out, const fv_env *env, const char *const *texts,
                        const char *const *references, int64_t n, fv_err *e)
{
    fv_symbols hyp = {.env = env}, ref = {.env = env}, scratch[2] = {{.env = env}, {.env = env}};
    counts c[ORDERS] = {0};
    for (int64_t i = 0; i < n; i++) {
        read_chars(&hyp, texts[i], strlen(texts[i]));
        add(c, &hyp, references[i], &ref, scratch);
    }
    fv_symbols *all[] = {&hyp, &ref, &scratch[0], &scratch[1]};
    if (!fv__symbols_done(all, sizeof all / sizeof *all))
        return fv_fail(e, FV_ENOMEM, "chrf: out of memory");
    out->score = f_score(c);
    int each = fv__references_of_each(references, n);
    char refs[16] = "var";
    if (each) snprintf(refs, sizeof refs, "%d", each);
    snprintf(out->signature, sizeof out->signature,
             "nrefs:%s|case:mixed|eff:yes|nc:6|nw:0|space:no|version:2.6.0", refs);
    return FV_OK;
}
