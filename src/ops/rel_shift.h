/* rel_shift.h - the relative shift of scores that are wide enough already. */
#ifndef FV_OPS_REL_SHIFT_H
#define FV_OPS_REL_SHIFT_H

#include "fovea/tensor.h"

/* (H,B,T,L+T) -> (B,H,T,L): y[b,h,i,j] = x[h,b,i, j + T-1-i], one copy.  fv_rel_shift of (..,T,L)
 * needs three, as it has to put zeros behind each row first; where a product makes the scores,
 * zeros behind its second operand give them for nothing.  The last column of x is not read: with it
 * rows stay multiples of 8 where T and L are. */
fv_tensor *fv__rel_bias(fv_ctx *c, fv_tensor *x);

#endif
