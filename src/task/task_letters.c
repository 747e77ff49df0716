/* task_letters.c - what taggers of words need beside tokens: the letters of each token's word, and
 * the labels that score highest together. */
#include "data/word_bytes.h"
#include "model/crf.h"
#include "task.h"

/* A word is what the tokenizer's own splitting makes; it reaches from its first token's
 * beginning to its last token's end.  Special tokens have no letters. */
fv_status fv__task_letters(fv_task *t, fv_seq *s, const fv_text *x, fv_err *e)
{
    fv_chars chars;
    int64_t most = t->word_bytes;
    if (!most) return FV_OK;
    s->letters = fv__task_claim(t, (size_t)(s->n * most) * sizeof *s->letters, e);
    if (!s->letters) return FV_ENOMEM;
    fv_status st = fv__task_chars(t, &chars, x->s, x->n, e);
    for (int64_t i = 0, end; !st && i < s->n; i = end) {
        for (end = i + 1; end < s->n && s->words[i] >= 0 && s->words[end] == s->words[i];) end++;
        if (s->special[i]) continue;
        size_t n;
        const char *word = fv__chars_slice(&chars, s->spans[i].from, s->spans[end - 1].to, &n);
        for (int64_t j = i; j < end; j++) fv__word_bytes(s->letters + j * most, most, word, n);
    }
    return st;
}

static int32_t own_best(const float *x, int64_t width)
{
    int32_t best = 0;
    for (int32_t k = 1; k < width; k++) best = x[k] > x[best] ? k : best;
    return best;
}

fv_status fv__task_decode(fv_task *t, int32_t *best, const float *x, const int64_t *at, int64_t n,
                          int64_t width, fv_err *e)
{
    if (!t->transitions || width != t->labels) {
        for (int64_t i = 0; i < n; i++) best[i] = own_best(x + at[i] * width, width);
        return FV_OK;
    }
    const float **row = fv__task_claim(t, (size_t)n * sizeof *row, e);
    void *scratch = fv__task_claim(t, fv__crf_scratch(n, width), e);
    if (!row || !scratch) return FV_ENOMEM;
    for (int64_t i = 0; i < n; i++) row[i] = x + at[i] * width;
    fv__crf_decode(best, row, n, t->transitions, width, scratch);
    return FV_OK;
}
