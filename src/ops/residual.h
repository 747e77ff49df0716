/* residual.h - the sum in front of a fused norm. */
#ifndef FV_RESIDUAL_H
#define FV_RESIDUAL_H

#include "fovea/author/op.h"

/* x + a as a recorded tensor whose data the norm kernel, called next, writes: the tape sees an
 * addition and a norm, memory sees one pass.  Raises unless both have one shape and dtype.  Where
 * neither the caller nor the tape needs the sum it is NULL: the kernel may then use its output's
 * memory for it. */
fv_tensor *fv__residual(fv_ctx *c, const char *op, fv_tensor *x, fv_tensor *a, bool wanted);

#endif
