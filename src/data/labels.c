/* labels.c - names of labels, and judging answers by the greatest score. */
#include "data/labels.h"

#include <stdio.h>

#include "base/base.h"
#include "fovea/author/op.h"

int fv__label(fv_labels *l, const char *s, size_t n)
{
    for (int i = 0; i < l->n; i++)
        if (strlen(l->name[i]) == n && !memcmp(l->name[i], s, n)) return i;
    if (l->closed || l->n == (int)(sizeof l->name / sizeof *l->name) || n >= sizeof l->name[0] ||
        !n)
        return -1;
    snprintf(l->name[l->n], sizeof l->name[0], "%.*s", (int)n, s);
    return l->n++;
}

fv_status fv__label_unknown(const fv_labels *l, const char *file, int64_t line, const char *s,
                            size_t n, fv_err *e)
{
    if (!l->closed)
        return fv_fail(e, FV_EFORMAT,
                       "%s:%lld: \"%.*s\" cannot be a label: names have at most 63 bytes, and "
                       "there are at most 256",
                       file, (long long)line, (int)(n < 80 ? n : 80), s);
    return fv_fail(e, FV_EFORMAT, "%s:%lld: the label \"%.*s\" does not occur in the training data",
                   file, (long long)line, (int)(n < 80 ? n : 80), s);
}

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
    for (int i = 0; i < b->n; i++)
        if (!strcmp(b->part[i].name, name)) return b->part[i].data;
    return NULL;
}
