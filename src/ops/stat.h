/* stat.h - what statistics and losses are kept in: f32, and f64 where the data is f64. */
#ifndef FV_STAT_H
#define FV_STAT_H

#include "fovea/author/op.h"
#include "fovea/author/ops.h"

static inline fv_dtype fv__stat_dtype(fv_dtype t) { return t == FV_F64 ? FV_F64 : FV_F32; }

/* x itself, or its copy in f32 where it is stored in 16 bits. */
static inline fv_tensor *fv__widen(fv_ctx *c, fv_tensor *x)
{
    return !x || x->dtype == fv__stat_dtype(x->dtype) ? x : fv_cast(c, x, FV_F32);
}

#endif
