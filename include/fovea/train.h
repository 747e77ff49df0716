/* train.h - training a model on a feed: optimiser, schedule, evaluation, checkpoints, resuming.
 *
 * A run is a function of its data, options and seed: the thread count does not change its bits,
 * nor does stopping it anywhere and resuming it, nor, with train.shards, the number of ranks.  A
 * loss or gradient that is not finite is caught before it reaches the parameters, a parameter or
 * validation loss that is not before anything is saved. */
#ifndef FOVEA_TRAIN_H
#define FOVEA_TRAIN_H

#include "fovea/comm.h"
#include "fovea/fields.h"
#include "fovea/model.h"
#include "fovea/processor.h"

typedef struct fv_feed fv_feed; /* examples as batches; author/feed.h says how one is made */

typedef enum fv_schedule { FV_INVERSE_SQRT = 0, FV_COSINE, FV_LINEAR, FV_CONSTANT } fv_schedule;
typedef enum fv_result {
    FV_RESULT_LAST = 0,
    FV_RESULT_BEST,
    FV_RESULT_AVERAGE,
    FV_RESULT_EMA
} fv_result;

typedef struct fv_train_opt {
    int64_t updates, batch_tokens, batch_rows, accumulate;
    float lr, lr_min;
    int schedule; /* fv_schedule */
    int64_t warmup;
    float beta1, beta2, eps, decay, clip, smooth;
    float layer_decay;
    char freeze[512], lr_scale[512];
    int dtype; /* fv_train_dtypes */
    int base;  /* frozen weights below an adapter: f32, q8, q4 */
    bool recompute;
    int64_t seed, prefetch, workers;
    int64_t log_every, eval_every, save_every, keep, patience;
    int best_by; /* 0: loss, 1: metric */
    int64_t bleu;
    float ema;
    int result; /* fv_result */
    int64_t average;
    int64_t shards; /* pieces of a batch that ranks share; 0: none */
    bool fast_sums;
    const void *own; /* a recipe's further keys of [train]; NULL: their defaults */
} fv_train_opt;

/* Keys, ranges, defaults and help of the above, and whether a resumed run may change them.  own is
 * none of them: begin with fv_train_opt o = {0}, then fv_fields_default. */
FV_DATA const fv_field fv_train_fields[];

/* ---- the optimiser ---- */

typedef struct fv_adam fv_adam;
/* Moments for every parameter of p, for narrow ones an f32 master copy, and a moving average if o
 * asks for one.  Freezes what o->freeze names; a pattern that no parameter matches is an error. */
FV_API fv_status fv_adam_new(fv_adam **out, fv_params *p, fv_device *d, const fv_train_opt *o,
                             fv_err *e);
FV_API void fv_adam_free(fv_adam *a);
/* One step with the gradients in p, scaled so that their norm is at most o->clip (0: no limit);
 * *norm gets it as it was.  Vectors (norms, biases) are not decayed.  A norm that is not finite is
 * FV_ENUMERIC and changes nothing. */
FV_API fv_status fv_adam_step(fv_adam *a, const fv_train_opt *o, int64_t step, double *norm,
                              fv_err *e);

/* ---- a run ---- */

typedef struct fv_train_state {
    int64_t step;    /* updates done */
    int64_t updates; /* of the whole run, when it has ended: fewer where it was fitted to time */
    int64_t epoch, batch; /* where the data stands: batches of this epoch that were used */
    double loss;          /* of the last update, a label; NaN before the first */
    double valid, metric; /* last evaluation; NaN before the first, and where there is no metric */
    double best;          /* the least loss or the greatest metric so far */
    int64_t best_step, worse; /* evaluations since then */
    double lr, norm;
    /* seen by this process: of the text, and where it has two sides of the target */
    int64_t tokens;
    double seconds; /* spent by this process */
    double waited;  /* of them, for batches that the loader had not made yet */
    /* of them, between ranks: in all, and those that computing did not hide */
    double comm, comm_exposed;
} fv_train_state;

typedef struct fv_train_job {
    fv_model *model; /* opened with train */
    fv_device *device;
    const fv_feed *train, *valid;  /* valid may be NULL */
    const fv_processor *processor; /* saved beside the model; NULL: none */
    fv_train_opt opt;
    /* the run: checkpoints/, best/, model/, train.jsonl, curve.svg, events; NULL: nothing is
     * written */
    const char *dir;
    bool locked;              /* the caller has locked dir; else fv_train does */
    const char *config;       /* text that must be the same to resume; NULL: none */
    bool resume;              /* go on from the newest checkpoint, if there is one */
    const volatile int *stop; /* non-zero: finish the update, save, return; NULL: never */
    /* "step", "valid", "saved"; may be NULL */
    void (*progress)(void *user, const fv_train_state *s, const char *event);
    void (*on_message)(void *user, const char *text); /* what a reader should know; may be NULL */
    void *user;
    /* A metric of its own at each evaluation, instead of the feed's; greater is better. */
    const char *score_name; /* NULL: none */
    fv_status (*score)(void *user, double *value, fv_err *e);
    void *score_user;
    /* Writes what else belongs into a model's directory; may be NULL. */
    fv_status (*extra)(void *user, const char *dir, fv_err *e);
    void *extra_user;
    /* The ranks that train together, each of which calls fv_train with the same job; NULL: one.
     * opt.shards must be at least their number.  Where they share the model (author/parallel.h),
     * copies are those that have the same part of it as this one, and opt.shards is for their
     * number; NULL: this one alone. */
    fv_comm *comm, *copies;
    const char *trace; /* a file: what each rank did when, for Perfetto; NULL: none */
} fv_train_job;

/* Runs to the end, or until stopped.  What was saved stays good whatever happens. */
FV_API fv_status fv_train(const fv_train_job *job, fv_train_state *out, fv_err *e);

#endif
