/* labels.c - names of labels, and the share of rows whose greatest score is right.
 *
 * Names are numbered in the order in which they come, and found again by a hash table with linear
 * probing: a corpus may have thousands of labels and millions of records. */
#include "data/labels.h"

#include "base/base.h"
#include "fovea/author/op.h"
#include "tok/vocab.h"

/* The slot that holds the name, or the free one where it belongs; a slot is a number plus 1. */
static uint32_t find_slot(const fv_labels *l, const char *s, size_t n)
{
    uint32_t at = fv__hash(l->seed, s, n) & (l->slots - 1);
    for (int32_t id; (id = l->slot[at]); at = (at + 1) & (l->slots - 1))
        if (strlen(l->name[id - 1]) == n && !memcmp(l->name[id - 1], s, n)) break;
    return at;
}

int32_t fv_labels_find(const fv_labels *l, const char *s, size_t n)
{
    return l->slots ? l->slot[find_slot(l, s, n)] - 1 : -1;
}

/* Keeps the table at most half full. */
static bool widen(fv_labels *l)
{
    if (l->slots && (uint32_t)l->n * 2 < l->slots) return true;
    uint32_t slots = l->slots ? l->slots * 2 : 64;
    if (!l->slots) l->seed = fv__hash_seed();
    int32_t *slot = fv__alloc(l->env, slots * sizeof *slot);
    if (!slot) return false;
    memset(slot, 0, slots * sizeof *slot);
    fv__free(l->env, l->slot, l->slots * sizeof *slot);
    l->slot = slot;
    l->slots = slots;
    for (int32_t i = 0; i < l->n; i++)
        l->slot[find_slot(l, l->name[i], strlen(l->name[i]))] = i + 1;
    return true;
}

/* The name is copied; its number is the count of those before it. */
fv_status fv_labels_add(fv_labels *l, int32_t *id, const char *s, size_t n, fv_err *e)
{
    void *names = l->name;
    *id = fv_labels_find(l, s, n);
    if (*id >= 0) return FV_OK;
    bool ok = fv__grow(l->env, &names, &l->name_bytes, (size_t)(l->n + 1) * sizeof *l->name);
    l->name = names;
    ok = ok && widen(l);
    char *copy = ok ? fv__alloc(l->env, n + 1) : NULL;
    if (!copy) return fv_fail(e, FV_ENOMEM, "labels: out of memory after %d", l->n);
    memcpy(copy, s, n);
    copy[n] = 0;
    l->slot[find_slot(l, s, n)] = l->n + 1;
    l->name[l->n] = copy;
    *id = l->n++;
    return FV_OK;
}

void fv_labels_free(fv_labels *l)
{
    for (int32_t i = 0; i < l->n; i++) fv__free(l->env, l->name[i], strlen(l->name[i]) + 1);
    fv__free(l->env, l->name, l->name_bytes);
    fv__free(l->env, l->slot, l->slots * sizeof *l->slot);
    *l = (fv_labels){.env = l->env};
}

/* An open list grows by what training data says; a closed one is the model's, and an unknown label
 * is an error of the data. */
fv_status fv__label(fv_labels *l, int32_t *id, const char *file, int64_t line, const char *s,
                    size_t n, fv_err *e)
{
    *id = fv_labels_find(l, s, n);
    if (*id >= 0) return FV_OK;
    if (!n || memchr(s, 0, n))
        return fv_fail(e, FV_EFORMAT, "%s:%lld: the label is empty or holds a NUL byte", file,
                       (long long)line);
    if (l->closed)
        return fv_fail(e, FV_EFORMAT,
                       "%s:%lld: the label \"%.*s\" does not occur in the training data", file,
                       (long long)line, (int)(n < 80 ? n : 80), s);
    return fv_labels_add(l, id, s, n, e);
}

/* Ties go to the lower label, as in NumPy. */
fv_status fv__argmax_labels(fv_ctx *c, const fv_tensor *logits, int32_t *best)
{
    const fv_env *env = fv_device_env(fv_ctx_device(c));
    int64_t n = fv_len(logits), classes = fv_cols(logits);
    size_t bytes = (size_t)n * sizeof(float);
    float *x = fv__alloc(env, bytes);
    if (!x) fv_raise(c, FV_ENOMEM, "evaluation: out of memory for %zu bytes", bytes);
    fv_status st = x ? fv_read(c, logits, x, n) : FV_ENOMEM;
    for (int64_t i = 0; !st && i < n / classes; i++) {
        best[i] = 0;
        for (int32_t k = 1; k < classes; k++)
            if (x[i * classes + k] > x[i * classes + best[i]]) best[i] = k;
    }
    fv__free(env, x, bytes);
    return st;
}

/* A label below 0 (-100) is not counted, neither in hits nor in of. */
fv_status fv__count_correct_rows(fv_ctx *c, const fv_items *out, const int32_t *labels,
                                 int64_t rows, double *hits, double *of)
{
    const fv_env *env = fv_device_env(fv_ctx_device(c));
    size_t bytes = (size_t)rows * sizeof(int32_t);
    int32_t *best = fv__alloc(env, bytes);
    if (!best) fv_raise(c, FV_ENOMEM, "evaluation: out of memory for %zu bytes", bytes);
    fv_status st = best ? fv__argmax_labels(c, fv_items_get(out, "logits"), best) : FV_ENOMEM;
    for (int64_t i = 0; !st && i < rows; i++) {
        if (labels[i] < 0) continue;
        *hits += best[i] == labels[i];
        *of += 1;
    }
    fv__free(env, best, bytes);
    return st;
}

const int32_t *fv__batch_ints(const fv_batch *b, const char *name)
{
    const fv_batch_part *p = fv_batch_get(b, name);
    return p ? p->data : NULL;
}
