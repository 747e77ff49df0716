/* stage.h - activations that go from one rank to another: layers of a model in stages. */
#ifndef FV_OPS_STAGE_H
#define FV_OPS_STAGE_H

#include "fovea/author/op.h"

struct fv_comm;

/* x of rank `from`, at rank `to` or, where that is negative, at every rank; x itself at others,
 * where it is of that shape and means nothing.  Every rank calls it.  Not while recording. */
fv_tensor *fv__stage_pass(fv_ctx *c, fv_tensor *x, struct fv_comm *ranks, int from, int to);

#endif
