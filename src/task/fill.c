/* fill.c - the likeliest words for each mask. */
#include <math.h>

#include "task.h"

typedef struct filling {
    int32_t mask;
    int64_t k;
    fv_mask_found *found;
    const int64_t *first; /* of each text: which of found is its first mask */
} filling;

/* The k largest, largest first; of equals the one with the smaller id. */
static void keep_best(fv_word *top, int64_t k, const float *x, int64_t n)
{
    int64_t have = 0;
    for (int64_t i = 0; i < n; i++) {
        if (have == k && !(x[i] > top[k - 1].score)) continue;
        int64_t at = have < k ? have++ : k - 1;
        for (; at > 0 && x[i] > top[at - 1].score; at--) top[at] = top[at - 1];
        top[at] = (fv_word){(int32_t)i, x[i]};
    }
}

static fv_status fill_row(void *user, int64_t i, const fv_seq *s, const float *const out[2],
                          int64_t width, fv_err *e)
{
    const filling *f = user;
    fv_mask_found *m = f->found + f->first[i];
    (void)e;
    for (int64_t j = 0; j < s->n; j++) {
        if (s->ids[j] != f->mask) continue;
        const float *x = out[0] + j * width;
        double total = 0, top;
        keep_best(m->top, f->k, x, width);
        top = m->top[0].score;
        for (int64_t v = 0; v < width; v++) total += exp((double)x[v] - top);
        for (int64_t v = 0; v < f->k; v++)
            m->top[v].score = (float)(exp((double)m->top[v].score - top) / total);
        m++;
    }
    return FV_OK;
}

static fv_status find_masks(fv_task *t, filling *f, const fv_seq *seqs, int64_t n, int64_t *count,
                            fv_err *e)
{
    int64_t *first = fv__task_claim(t, (size_t)n * sizeof *first, e), longest = 0;
    if (!first) return FV_ENOMEM;
    *count = 0;
    for (int64_t i = 0; i < n; i++) {
        longest = seqs[i].n > longest ? seqs[i].n : longest;
        first[i] = *count;
        for (int64_t j = 0; j < seqs[i].n; j++) *count += seqs[i].ids[j] == f->mask;
        if (*count == first[i])
            return fv_fail(e, FV_EARG, "text %lld has no %s", (long long)i + 1, t->mask);
    }
    f->first = first;
    f->found = fv__task_claim(t, (size_t)*count * sizeof *f->found, e);
    fv_word *words = fv__task_claim(t, (size_t)(*count * f->k) * sizeof *words, e);
    t->copy = fv__task_claim(t, (size_t)longest * sizeof *t->copy, e);
    if (!f->found || !words || !t->copy) return FV_ENOMEM;
    for (int64_t i = 0, at = 0; i < n; i++)
        for (int64_t j = 0; j < seqs[i].n; j++)
            if (seqs[i].ids[j] == f->mask) {
                f->found[at] = (fv_mask_found){.text = i, .token = j, .top = words + at * f->k};
                at++;
            }
    return FV_OK;
}

fv_status fv_task_fill(fv_task *t, const fv_text *texts, int64_t n, int64_t k,
                       fv_mask_found **found, int64_t *n_found, fv_err *e)
{
    filling f = {.mask = fv_tok_id(t->tok, t->mask), .k = k};
    int64_t V = fv__task_setting(t, "vocab_size");
    if (k < 1 || k > V)
        return fv_fail(e, FV_EARG, "%lld words of a vocabulary of %lld", (long long)k,
                       (long long)V);
    fv__task_begin(t);
    fv_status st = fv__task_encode_all(t, &t->filled, texts, n, e);
    if (!st) st = find_masks(t, &f, t->filled, n, n_found, e);
    *found = f.found;
    fv_wanted w = {.names = {"logits"}, .per_token = V, .fn = fill_row, .user = &f};
    return st ? st : fv__task_run(t, t->filled, n, &w, e);
}

const int32_t *fv_task_filled(fv_task *t, const fv_mask_found *m, int32_t id, int64_t *n)
{
    const fv_seq *s = &t->filled[m->text];
    memcpy(t->copy, s->ids, (size_t)s->n * sizeof *t->copy);
    t->copy[m->token] = id;
    *n = s->n;
    return t->copy;
}
