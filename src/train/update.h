/* update.h - what the loop asks of an updater besides updates. */
#ifndef FV_UPDATE_H
#define FV_UPDATE_H

#include "fovea/author/comm.h"
#include "fovea/author/train.h"
#include "fovea/train.h"
#include "train/trace.h"

/* What batches hold, together. */
typedef struct fv__batch_counts {
    double labels, rows, tokens;
} fv__batch_counts;
fv__batch_counts fv__batch_counts_of(const fv_batch *const *batch, int64_t n);

/* As fv_updater_new, for a rank of c. */
fv_status fv__updater_new(fv_updater **out, fv_model *m, fv_device *d, const fv_train_opt *o,
                          fv_comm *c, fv_err *e);

/* The leaves of an update (ranks.h): `all` of them, of which this rank has n from `from` on. */
typedef struct fv__leaves {
    const fv_batch *const *leaf; /* one without arrays has no rows */
    int64_t all, from, n;
} fv__leaves;
/* As fv_updater_step, with train.shards: every rank calls it with its own leaves.  *counts gets
 * what all leaves hold; *stop is set where any rank brings it set. */
fv_status fv__updater_step_shards(fv_updater *u, int64_t step, const fv__leaves *l,
                                  fv__batch_counts *counts, bool *stop, fv_err *e);

/* The learning rate shall reach its end at another update than fv_train_opt said. */
void fv__updater_set_updates(fv_updater *u, int64_t updates);
void fv__updater_set_trace(fv_updater *u, fv__trace *t);
/* Seconds of communication so far: all, and those that computing did not hide. */
void fv__updater_spent(const fv_updater *u, double *all, double *exposed);
fv_adam *fv__updater_adam(fv_updater *u);
/* The gradient of one batch; the parameters stay as they are. */
fv_status fv__updater_dry_run(fv_updater *u, const fv_batch *b, fv_err *e);

/* The feed's own forward pass where it has one, else the family's.  f may be NULL. */
void fv__train_forward(const fv_feed *f, fv_ctx *c, const fv_model *m, const fv_items *in,
                       fv_items *out);
/* Batches come from this feed, which may have a forward pass of its own. */
void fv__updater_set_feed(fv_updater *u, const fv_feed *f);

#endif
