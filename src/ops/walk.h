/* walk.h - index arithmetic the ops share: axes, broadcasting, and the loops a kernel is given. */
#ifndef FV_WALK_H
#define FV_WALK_H

#include <string.h>

#include "fovea/author/op.h"

/* axis in 0..n-1, counted from the end if negative; raises and returns -1 where x has no such
 * axis. */
int fv__axis(fv_ctx *c, const char *op, const fv_tensor *x, int axis);

/* Row-major x seen from one axis: element (o, i, r) lies at (o * n + i) * inner + r. */
typedef struct fv_axes {
    int64_t outer, n, inner;
} fv_axes;
fv_axes fv__axes(fv_shape s, int axis);

fv_shape fv__without(fv_shape s, int axis);

/* The shape that a and b broadcast to, as NumPy does it; false if they do not fit. */
bool fv__broadcast(fv_shape *out, fv_shape a, fv_shape b);

/* The walk over `shape` with a row-major y; a and b still repeat their first element everywhere. */
fv_walk fv__walk(fv_shape shape);
/* The strides of a row-major operand of shape s that is broadcast to the walk; s has no more axes
 * than it. */
void fv__walk_operand(const fv_walk *w, int64_t *stride, fv_shape s);
/* Drops axes of length 1 and joins neighbours that all operands walk as one; at least one axis is
 * left.  Call last. */
void fv__walk_join(fv_walk *w);

/* Forward outputs as sinks, for kernels that serve both directions. */
static inline fv_sink fv__out(const fv_tensor *y) { return (fv_sink){y->data, y->dtype, false}; }
/* Zeros a fresh gradient of n elements, for a kernel that then reaches only a part of it. */
void fv__clear(fv_ctx *c, fv_sink g, int64_t n);

/* "f32(2,3)" for a shape that no tensor has yet. */
fv_desc_text fv__desc_shape(fv_dtype t, fv_shape s);

#endif
