/* labels.h - names of labels met in files, and the share of rows whose greatest score is right. */
#ifndef FV_LABELS_H
#define FV_LABELS_H

#include "fovea/author/data.h"

/* The number of the label that stands in a line of a file: a new one where the list is open, an
 * error that names the line where it is closed. */
fv_status fv__label(fv_labels *l, int32_t *id, const char *file, int64_t line, const char *s,
                    size_t n, fv_err *e);
/* The label of the greatest score in each row of logits. */
fv_status fv__argmax_labels(fv_ctx *c, const fv_tensor *logits, int32_t *best);
/* Adds how many rows of "logits" have their greatest score at the label; negative labels do not
 * count. */
fv_status fv__count_correct_rows(fv_ctx *c, const fv_items *out, const int32_t *labels,
                                 int64_t rows, double *hits, double *of);
/* The data of an array of a batch; NULL if there is none of that name. */
const int32_t *fv__batch_ints(const fv_batch *b, const char *name);

#endif
