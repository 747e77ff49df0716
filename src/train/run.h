/* run.h - the directory of a training run: checkpoints, log, result. */
#ifndef FV_RUN_H
#define FV_RUN_H

#include "base/base.h"
#include "fovea/train.h"

typedef struct fv_run fv_run;

/* Makes job->dir and, where job->resume finds a checkpoint, fills model, moments and state from it. */
fv_status fv__run_open(fv_run **out, const fv_train_job *job, fv_adam *adam, fv_train_state *s, fv_err *e);
void fv__run_close(fv_run *r); /* NULL is allowed */
/* One line of train.jsonl. */
fv_status fv__run_log(fv_run *r, const fv_train_state *s, const char *event, fv_err *e);
/* A checkpoint of everything that resuming needs. */
fv_status fv__run_save(fv_run *r, const fv_train_job *job, fv_adam *adam, const fv_train_state *s, fv_err *e);
/* model/: the parameters as they are, or the mean of the last checkpoints. */
fv_status fv__run_finish(fv_run *r, const fv_train_job *job, fv_err *e);

#endif
