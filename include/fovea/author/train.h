/* train.h - the parts of a training run: the optimiser's state, updates one after another. */
#ifndef FOVEA_AUTHOR_TRAIN_H
#define FOVEA_AUTHOR_TRAIN_H

#include "fovea/author/feed.h"
#include "fovea/recipe.h"
#include "fovea/train.h"

/* The dtype that the option names: of parameters and arithmetic; f32 master weights are kept for
 * narrow ones. */
FV_API fv_dtype fv_train_dtype(const fv_train_opt *o);
/* How frozen weights below an adapter are held. */
FV_API fv_dtype fv_train_base(const fv_train_opt *o);

/* The learning rate of update `step`, which counts from 1. */
FV_API double fv_learning_rate(const fv_train_opt *o, int64_t step);

/* ---- the optimiser ---- */

/* Exchanges the parameters and their moving average; a second call exchanges them back.  Does
 * nothing where there is no average. */
FV_API fv_status fv_adam_swap(fv_adam *a, fv_err *e);
/* All its state but the parameters, as a safetensors file; of several ranks, all of which call it,
 * a file of each beside that path, and an index. */
FV_API fv_status fv_adam_save(fv_adam *a, const fv_env *env, const char *path, fv_err *e);
FV_API fv_status fv_adam_load(fv_adam *a, const fv_env *env, const char *path, fv_err *e);

/* ---- updates, one after another ----
 * Nothing waits for the device but fv_updater_read: losses stay there and are read for several
 * updates at once.  Work whose shapes repeat is captured as a graph and replayed where the device
 * can; the numbers are the same. */
typedef struct fv_updater fv_updater;
typedef struct fv_updated { /* the result of an update */
    double loss;            /* mean over its labels */
    double norm;            /* of the gradient, before clipping */
} fv_updated;

FV_API fv_status fv_updater_new(fv_updater **out, fv_model *m, fv_device *d, const fv_train_opt *o,
                                fv_err *e);
FV_API void fv_updater_free(fv_updater *u);                 /* NULL is allowed */
FV_API int64_t fv_updater_max_pending(const fv_updater *u); /* updates that may go unread */
FV_API size_t fv_updater_bytes(const fv_updater *u);        /* held for batches */
/* Update `step`, counted from 1 without gaps, with the gradient of n batches.  Batches may change
 * after return. */
FV_API fv_status fv_updater_step(fv_updater *u, int64_t step, const fv_batch *const *batch,
                                 int64_t n, fv_err *e);
/* Waits.  out gets the *n updates since the last call, at most fv_updater_max_pending.  One with a
 * loss or gradient that was not finite is FV_ENUMERIC; it and those behind it changed nothing, *n
 * are those before it. */
FV_API fv_status fv_updater_read(fv_updater *u, fv_updated *out, int64_t *n, fv_err *e);

/* Bytes that a run holds on its device.  batch: all that the largest batch of an epoch makes, of
 * that many rows and columns. */
typedef struct fv_train_memory {
    size_t parameters, gradients, optimiser, batch;
    int64_t rows, columns;
} fv_train_memory;
/* Takes the gradient of the largest batch and leaves the model as it was: what does not fit is an
 * error now, not later. */
FV_API fv_status fv_train_dry_run(const fv_train_job *job, fv_train_memory *out, fv_err *e);

/* The recipe with every key written out, as it can be read again; owned by r, valid until the next
 * call. */
FV_API const char *fv_recipe_text(fv_recipe *r, fv_err *e);

#endif
