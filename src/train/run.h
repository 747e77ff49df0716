/* run.h - the directory of a training run: checkpoints, log, result. */
#ifndef FV_RUN_H
#define FV_RUN_H

#include "base/base.h"
#include "fovea/train.h"
#include "train/log.h"

typedef struct fv_run {
    const fv_env *env;
    const fv_train_job *job;
    char dir[FV_PATH], checkpoints[FV_PATH];
    fv__log *log;
    bool writes; /* this is rank 0: the others read only, and have no log */
    int lock;
    int64_t last; /* the newest checkpoint, -1: none */
} fv_run;

/* Makes job->dir and, where job->resume finds a checkpoint, fills model, moments and state from
 * it. */
fv_status fv__run_open(fv_run **out, const fv_train_job *job, fv_adam *adam, fv_train_state *s,
                       fv_err *e);
void fv__run_close(fv_run *r); /* NULL is allowed */
/* An entry of the log: "train" or "valid". */
fv_status fv__run_log(fv_run *r, const fv_train_job *job, const fv_train_state *s,
                      const char *event, fv_err *e);
/* A checkpoint of everything that resuming needs. */
fv_status fv__run_save(fv_run *r, const fv_train_job *job, fv_adam *adam, const fv_train_state *s,
                       fv_err *e);
/* best/: the parameters as they are now. */
fv_status fv__run_best(fv_run *r, const fv_train_job *job, fv_err *e);
/* The picture and, when the run is whole, model/: the parameters that the options call the
 * result. */
fv_status fv__run_finish(fv_run *r, const fv_train_job *job, fv_adam *adam, bool whole, fv_err *e);
int64_t fv__run_last(const fv_run *r);

/* ---- for average.c ---- */

fv_status fv__run_join(char out[FV_PATH], const char *dir, const char *name, fv_err *e);
/* Fills the parameters from a model's directory. */
fv_status fv__run_params(const fv_run *r, const char *dir, fv_err *e);
/* Whether every run with these options has a checkpoint of this update, however often it was
 * interrupted; the last one aside. */
bool fv__run_regular(const fv_run *r, int64_t step);
/* Replaces the parameters by the mean of the newest n such checkpoints, or of as many as there
 * are. */
fv_status fv__run_average(fv_run *r, int64_t n, fv_err *e);
/* Running statistics of batch norms for weights that were averaged: batches of the first epoch go
 * forward as in training.  Nothing happens to models without any. */
fv_status fv__run_statistics(const fv_train_job *j, fv_err *e);

#endif
