/* cache.c - new keys or values written into a cache that outlives the step. */
#include "core/core.h"
#include "fovea/author/op.h"
#include "fovea/author/ops.h"

fv_tensor *fv_cache_write(fv_ctx *c, fv_tensor *cache, fv_tensor *x, fv_tensor *pos)
{
    if (!pos || !fv_same_dtype(c, "cache_write", cache, x)) return NULL;
    bool fit = cache->shape.n == 3 && x->shape.n == 3 && fv_dim(cache, 0) == fv_dim(x, 0) &&
               fv_cols(cache) == fv_cols(x) && fv_dim(x, 1) <= fv_dim(cache, 1) &&
               pos->dtype == FV_I32 && fv_shape_same(pos->shape, FV_SHAPE(fv_dim(x, 0)));
    if (!fit)
        return fv_raise(c, FV_ESHAPE, "cache_write: cache %s, x %s, pos %s", fv_desc(cache).s,
                        fv_desc(x).s, fv_desc(pos).s);
    const fv_kernels *k = fv_kernels_of(c, x->dtype);
    if (!k || !fv_need(c, k->cache_write, "cache_write", x->dtype)) return NULL;
    fv_tensor *y = fv_alias(c, cache, cache->shape);
    fv_record(c, sizeof(fv_node), NULL, y, cache, x);
    if (!y || fv_ctx_err(c)->code) return NULL;
    y->row_step = cache->row_step;
    y->batch_step = cache->batch_step;
    k->cache_write(fv_ctx_stream(c), cache->data, x->data, pos->data, fv_dim(x, 0), fv_dim(x, 1),
                   fv_dim(cache, 1), fv_cols(x), fv__row_step(cache), fv__batch_step(cache));
    return y;
}
