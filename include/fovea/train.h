/* train.h - training a model on pairs of sentences: optimiser, schedule, evaluation, checkpoints, resuming.
 *
 * A run is a function of its data, options and seed: the same numbers come out whatever the thread count, and a run that
 * was stopped anywhere and resumed ends with the same bits as one that was not.  A loss or gradient that is not finite
 * is caught before it reaches the parameters. */
#ifndef FOVEA_TRAIN_H
#define FOVEA_TRAIN_H

#include "fovea/data.h"
#include "fovea/model.h"

typedef enum fv_schedule { FV_INVERSE_SQRT = 0, FV_COSINE, FV_LINEAR, FV_CONSTANT } fv_schedule;

typedef struct fv_train_opt {
    int64_t updates, batch_tokens, accumulate;
    float lr;
    int schedule; /* fv_schedule */
    int64_t warmup;
    float beta1, beta2, eps, decay, clip, smooth;
    int64_t seed;
    int64_t log_every, eval_every, save_every, keep, average, patience;
} fv_train_opt;

/* Keys, ranges, defaults and help of the above. */
FV_DATA const fv_field fv_train_fields[];

/* The learning rate of update `step`, which counts from 1. */
FV_API double fv_learning_rate(const fv_train_opt *o, int64_t step);

/* ---- the optimiser ---- */

typedef struct fv_adam fv_adam;
/* Moments for every parameter of p, and for narrow ones an f32 master copy. */
FV_API fv_status fv_adam_new(fv_adam **out, fv_params *p, fv_device *d, fv_err *e);
FV_API void fv_adam_free(fv_adam *a);
/* One step with the gradients in p, scaled so that their norm is at most o->clip (0: no limit); *norm gets it as it was.
 * Vectors (norms, biases) are not decayed.  A norm that is not finite is FV_ENUMERIC and changes nothing. */
FV_API fv_status fv_adam_step(fv_adam *a, const fv_train_opt *o, int64_t step, double *norm, fv_err *e);
FV_API fv_status fv_adam_save(fv_adam *a, const fv_env *env, const char *path, fv_err *e);
FV_API fv_status fv_adam_load(fv_adam *a, const fv_env *env, const char *path, fv_err *e);

/* ---- a run ---- */

typedef struct fv_train_state {
    int64_t step;             /* updates done */
    int64_t epoch, batch;     /* where the data stands: batches of this epoch that were used */
    double loss;              /* of the last update, a label */
    double valid;             /* last evaluation; NaN before the first */
    double best;              /* least so far */
    int64_t best_step, worse; /* evaluations since then */
    double lr, norm;
    int64_t tokens; /* labels seen by this process */
    double seconds; /* spent by this process */
} fv_train_state;

typedef struct fv_train_job {
    fv_model *model; /* opened with train */
    fv_device *device;
    const fv_pairs *train, *valid; /* valid may be NULL */
    const fv_tok *tok;             /* saved beside the model; NULL: none */
    int32_t pad, start;            /* ids */
    fv_train_opt opt;
    const char *dir;          /* the run: checkpoints/, train.jsonl, model/; NULL: nothing is written */
    const char *config;       /* text that must be the same to resume; NULL: none */
    bool resume;              /* go on from the newest checkpoint, if there is one */
    const volatile int *stop; /* non-zero: finish the update, save, return; NULL: never */
    void (*progress)(void *user, const fv_train_state *s, const char *event); /* "step", "valid", "saved", ...; may be NULL */
    void *user;
} fv_train_job;

/* Runs to the end, or until stopped.  What was saved stays good whatever happens. */
FV_API fv_status fv_train(const fv_train_job *job, fv_train_state *out, fv_err *e);

/* The mean loss of a label over all pairs. */
FV_API fv_status fv_train_evaluate(const fv_train_job *job, const fv_pairs *pairs, double *loss, fv_err *e);

#endif
