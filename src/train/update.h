/* update.h - what the loop asks of an updater besides updates. */
#ifndef FV_UPDATE_H
#define FV_UPDATE_H

#include "fovea/train.h"
#include "fovea/author/train.h"

/* What batches hold, together. */
typedef struct fv__batch_counts {
    double labels, rows, tokens;
} fv__batch_counts;
fv__batch_counts fv__batch_counts_of(const fv_batch *const *batch, int64_t n);

fv_adam *fv__updater_adam(fv_updater *u);
/* The gradient of one batch; the parameters stay as they are. */
fv_status fv__updater_dry_run(fv_updater *u, const fv_batch *b, fv_err *e);

/* The feed's own forward pass where it has one, else the family's.  f may be NULL. */
void fv__train_forward(const fv_feed *f, fv_ctx *c, const fv_model *m, const fv_items *in,
                       fv_items *out);
/* Batches come from this feed, which may have a forward pass of its own. */
void fv__updater_set_feed(fv_updater *u, const fv_feed *f);

#endif
