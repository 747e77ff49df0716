/* task.h - what a task knows of its model. */
#ifndef FOVEA_AUTHOR_TASK_H
#define FOVEA_AUTHOR_TASK_H

#include "fovea/task.h"

/* Tokens it sees at once, special ones included; longer texts are cut, except by fv_task_answer. */
FV_API int64_t fv_task_max_len(const fv_task *t);
/* How a mask is written: "[MASK]". */
FV_API const char *fv_task_mask(const fv_task *t);

/* The numbers that a regression finds for each of n series (texts of numbers, fv_series_parse), (n,
 * fv_task_targets(t)). */
FV_API fv_status fv_task_regress(fv_task *t, const fv_text *texts, int64_t n, float *out,
                                 fv_err *e);
FV_API int64_t fv_task_targets(const fv_task *t);

#endif
