/* labels.h - names of labels, and judging answers by the greatest score. */
#ifndef FV_LABELS_H
#define FV_LABELS_H

#include "fovea/data.h"

/* The number of a label, a new one where the list is open; -1: it cannot be one. */
int fv__label(fv_labels *l, const char *s, size_t n);
fv_status fv__label_unknown(const fv_labels *l, const char *file, int64_t line, const char *s,
                            size_t n, fv_err *e);
/* The label of the greatest score in each row of logits. */
fv_status fv__argmax_labels(fv_ctx *c, const fv_tensor *logits, int32_t *best);
/* Adds how many rows of "logits" have their greatest score at the label; negative labels do not
 * count. */
fv_status fv__count_correct_rows(fv_ctx *c, const fv_items *out, const int32_t *labels,
                                 int64_t rows, double *hits, double *of);
const int32_t *fv__batch_ints(const fv_batch *b, const char *name);

#endif
