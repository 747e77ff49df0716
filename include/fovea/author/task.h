/* task.h - what a task knows of its model. */
#ifndef FOVEA_AUTHOR_TASK_H
#define FOVEA_AUTHOR_TASK_H

#include "fovea/task.h"

/* Tokens it sees at once, special ones included; longer texts are cut, except by fv_task_answer. */
FV_API int64_t fv_task_max_len(const fv_task *t);
/* How a mask is written: "[MASK]". */
FV_API const char *fv_task_mask(const fv_task *t);

#endif
