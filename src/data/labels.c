/* labels.c - names of labels, and judging answers by the greatest score. */
#include "data/labels.h"

#include <stdio.h>

#include "base/base.h"

int fv__label(fv_labels *l, const char *s, size_t n)
{
    for (int i = 0; i < l->n; i++)
        if (strlen(l->name[i]) == n && !memcmp(l->name[i], s, n)) return i;
    if (l->closed || l->n == (int)(sizeof l->name / sizeof *l->name) || n >= sizeof l->name[0] || !n) return -1;
    snprintf(l->name[l->n], sizeof l->name[0], "%.*s", (int)n, s);
    return l->n++;
}

fv_status fv__label_unknown(const fv_labels *l, const char *file, int64_t line, const char *s, size_t n, fv_err *e)
{
    if (!l->closed)
        return fv_fail(e, FV_EFORMAT,
                       "%s:%lld: \"%.*s\" cannot be a label: names have at most 63 bytes, and there are at most 256", file,
                       (long long)line, (int)(n < 80 ? n : 80), s);
    return fv_fail(e, FV_EFORMAT, "%s:%lld: the label \"%.*s\" does not occur in the training data", file, (long long)line,
                   (int)(n < 80 ? n : 80), s);
}

fv_status fv__judge_rows(fv_ctx *c, const fv_items *out, const int32_t *labels, int64_t rows, double *hits, double *of)
{
    fv_tensor *logits = fv_items_get(out, "logits");
    const fv_env *env = fv_device_env(fv_ctx_device(c));
    int64_t n = fv_len(logits), classes = fv_cols(logits);
    size_t bytes = (size_t)n * sizeof(float);
    float *x = fv__alloc(env, bytes);
    fv_status st = fv_read(c, logits, x, n);
    for (int64_t i = 0; !st && x && i < rows; i++) {
        int64_t best = 0;
        if (labels[i] < 0) continue;
        for (int64_t k = 1; k < classes; k++)
            if (x[i * classes + k] > x[i * classes + best]) best = k;
        *hits += best == labels[i];
        *of += 1;
    }
    fv__free(env, x, bytes);
    return st;
}

const int32_t *fv__batch_ints(const fv_batch *b, const char *name)
{
    for (int i = 0; i < b->n; i++)
        if (!strcmp(b->part[i].name, name)) return b->part[i].data;
    return NULL;
}
