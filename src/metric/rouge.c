/* rouge.c - ROUGE-1, ROUGE-2 and ROUGE-L of summaries: words are runs of ASCII letters and digits,
 * in lower case, as in Google's rouge_score.
 *
 * ROUGE-n is F1 of matched n-grams, ROUGE-L F1 of the longest common subsequence; each is computed
 * for a text, of several references with the best, and averaged over the texts. */
#include <math.h>

#include "fovea/author/metric.h"

#include "metric/words.h"

static void read_words(fv_words *w, fv_symbols *out, fv_symbols *scratch, const char *text,
                       size_t len)
{
    fv__symbols_lower(scratch, text, len);
    for (size_t i = 0; i < scratch->n; i++) {
        uint32_t c = scratch->at[i];
        if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'))) scratch->at[i] = ' ';
    }
    fv__words_split(w, out, scratch);
}

/* Words of the longest common subsequence: row i holds, for each beginning of b, its length with
 * the first i words of a.
 * O(n m) time and one row of memory: only the length is needed, not the subsequence. */
static int64_t common(const fv_symbols *a, const fv_symbols *b, fv_symbols *row)
{
    row->n = 0;
    for (size_t j = 0; j <= b->n; j++) fv__symbols_add(row, 0);
    if (row->failed) return 0;
    for (size_t i = 0; i < a->n; i++) {
        uint32_t corner = 0; /* of the row above, one to the left */
        for (size_t j = 1; j <= b->n; j++) {
            uint32_t above = row->at[j], left = row->at[j - 1];
            row->at[j] = a->at[i] == b->at[j - 1] ? corner + 1 : above > left ? above : left;
            corner = above;
        }
    }
    return row->at[b->n];
}

/* F1 of matched n-grams. */
static double of_ngrams(const fv_symbols *text, const fv_symbols *reference, size_t order,
                        fv_symbols scratch[2])
{
    return fv_f1((fv_match){.right = fv__ngram_matches(text, reference, order, scratch),
                            .given = fv__ngram_count(text, order),
                            .gold = fv__ngram_count(reference, order)});
}

fv_status fv_rouge_score(fv_rouge *out, const fv_env *env, const char *const *texts,
                         const char *const *references, int64_t n, fv_err *e)
{
    fv_words w = {.seen = {.env = env}, .from = {.env = env}};
    fv_symbols text = {.env = env}, ref = {.env = env}, scratch[2] = {{.env = env}, {.env = env}};
    *out = (fv_rouge){0};
    for (int64_t i = 0; i < n; i++) {
        const char *reference;
        size_t len;
        fv_rouge best = {0};
        fv__words_forget(&w);
        read_words(&w, &text, &scratch[0], texts[i], strlen(texts[i]));
        for (int k = 0; (reference = fv__reference(references[i], k, &len)); k++) {
            read_words(&w, &ref, &scratch[0], reference, len);
            fv_match l = {common(&text, &ref, &scratch[0]), (int64_t)text.n, (int64_t)ref.n};
            best.rouge1 = fmax(best.rouge1, of_ngrams(&text, &ref, 1, scratch));
            best.rouge2 = fmax(best.rouge2, of_ngrams(&text, &ref, 2, scratch));
            best.rougeL = fmax(best.rougeL, fv_f1(l));
        }
        out->rouge1 += best.rouge1 / (double)n;
        out->rouge2 += best.rouge2 / (double)n;
        out->rougeL += best.rougeL / (double)n;
    }
    fv_symbols *all[] = {&w.seen, &w.from, &text, &ref, &scratch[0], &scratch[1]};
    return fv__symbols_done(all, sizeof all / sizeof *all)
               ? FV_OK
               : fv_fail(e, FV_ENOMEM, "rouge: out of memory");
}
