/* split.h - linear maps whose weight is divided among ranks: where a sum over ranks is needed.
 *
 * Of two maps with something between them that works on each column (heads, an activation), the
 * first is divided by its outputs, the second by its inputs; then two sums a pass are enough:
 *
 *     h_r = f(x W_r'),  y = sum over r of h_r V_r'     forward: y is summed
 *     dx = sum over r of dh_r W_r                      backward: dx is summed */
#ifndef FV_OPS_SPLIT_H
#define FV_OPS_SPLIT_H

#include "fovea/author/op.h"

/* How the weight is divided (fv__split_kind); 0: it is whole.  w may be NULL. */
int fv__weight_split(const fv_tensor *w);

/* x, of which every rank uses all for its own columns of w: the gradient is summed over ranks.  x
 * itself where w is whole. */
fv_tensor *fv__split_enter(fv_ctx *c, fv_tensor *x, const fv_tensor *w);
/* The sum over ranks of y, which is what each has made of its rows of w; its gradient is that of
 * each. */
fv_tensor *fv__split_leave(fv_ctx *c, fv_tensor *y, const fv_tensor *w);

/* Around what draws dropout masks for this rank's columns of w alone: each rank draws its own.
 * Called again it undoes itself. */
void fv__split_masks(fv_ctx *c, const fv_tensor *w);

#endif
