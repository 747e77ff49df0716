/* blocks.h - frozen weights as blocks of 8 or 4 bits, below an adapter that is trained. */
#ifndef FV_CORE_BLOCKS_H
#define FV_CORE_BLOCKS_H

#include "core.h"

/* t, which is frozen and the weight of a linear map, will be held as rows of FV_Q8 or FV_Q4 (the
 * layout of files: (out, in), whichever way round its shape is).  Before fv_params_alloc. */
void fv__param_hold_as(fv_tensor *t, fv_dtype rows);

/* Bytes of all such weights. */
size_t fv__params_rows_bytes(const fv_params *p);

/* It is held so, and not in the layout that serving packs. */
static inline bool fv__in_blocks(const fv_tensor *w)
{
    return !w->packed && !fv_dtype_size(w->dtype);
}

/* Whether a device widens them in this dtype: a host in f32, others where they have a kernel. */
bool fv__blocks_supported(const fv_device *d, fv_dtype t);
/* The weight as numbers of dtype t, (out,in), into memory that the caller has; NULL there, and on
 * devices that cannot, is an error in c. */
void fv__blocks_widen(fv_ctx *c, void *to, fv_dtype t, const fv_tensor *w, int64_t out, int64_t in);

/* One row of n numbers. */
void fv__widen_row(float *y, fv_dtype t, const void *row, int64_t n);

#endif
