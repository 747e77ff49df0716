/* adapted.h - a linear map whose weight has an adapter. */
#ifndef FV_OPS_ADAPTED_H
#define FV_OPS_ADAPTED_H

#include "core/adapter.h"
#include "fovea/author/ops.h"

/* x w' + bias, w (N,K) or, in_out, (K,N), without a look at adapters. */
fv_tensor *fv__linear_plain(fv_ctx *c, fv_tensor *x, fv_tensor *w, fv_tensor *bias, bool in_out);
/* The same as its adapter changes it (core/adapter.h has the formulas). */
fv_tensor *fv__linear_adapted(fv_ctx *c, const fv_adapter *a, fv_tensor *x, fv_tensor *w,
                              fv_tensor *bias, bool in_out);
/* Rows of a table (V,D) that ids name, or first .. first+count-1 where ids is NULL, in the
 * context's dtype and as the table's adapter changes them; skip: an id without a gradient, or
 * -1. */
fv_tensor *fv__table_rows(fv_ctx *c, fv_tensor *table, fv_tensor *ids, int32_t skip, int64_t first,
                          int64_t count);

#endif
