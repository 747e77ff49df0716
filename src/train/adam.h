/* adam.h - an update in pieces, none of which waits for the device but the last. */
#ifndef FV_ADAM_H
#define FV_ADAM_H

#include "core/core.h"
#include "fovea/train.h"

#define FV__UPDATES 16 /* as many may go before what they came to is read */

/* What differs from update to update: the learning rate and its like, for update `step`. */
void fv__adam_upload(fv_adam *a, const fv_train_opt *o, int64_t step);
/* The loss of the update, or more of it. */
void fv__adam_prepare_step(fv_adam *a, fv_stream *s, const void *loss, fv_dtype t, bool more);
/* The step itself, with the gradients that the parameters have.  It may be captured and
 * replayed. */
void fv__adam_run(fv_adam *a, fv_stream *s, const fv_train_opt *o);
/* Waits; loss and norm of n updates from number `from` on.  The first that is not finite is
 * FV_ENUMERIC. */
fv_status fv__adam_read(fv_adam *a, int64_t from, int64_t n, float (*out)[2], fv_err *e);

#endif
