/* feed.c - batches as arrays in host memory, and as tensors. */
#include "fovea/feed.h"

#include "base/base.h"
#include "fovea/author/op.h"

void *fv_batch_put(fv_batch *b, const char *name, fv_dtype t, fv_shape s)
{
    if (b->err.code) return NULL;
    size_t bytes = (size_t)fv_shape_len(s) * fv_dtype_size(t);
    if (b->n == FV_MAX_PARTS) {
        fv_fail(&b->err, FV_EARG, "batch: %s is one array too many", name);
        return NULL;
    }
    void *data = b->part[b->n].data;
    if (!fv__grow(b->env, &data, &b->part[b->n].capacity, bytes + 1)) {
        fv_fail(&b->err, FV_ENOMEM, "batch: out of memory for %s, %zu bytes", name, bytes);
        return NULL;
    }
    b->part[b->n].name = name;
    b->part[b->n].dtype = t;
    b->part[b->n].shape = s;
    b->part[b->n].data = data;
    b->n++;
    return data;
}

void fv_batch_clear(fv_batch *b)
{
    b->n = 0;
    b->labels = b->tokens = 0;
    b->err = (fv_err){0};
}

void fv_batch_free(fv_batch *b)
{
    for (int i = 0; i < FV_MAX_PARTS; i++) fv__free(b->env, b->part[i].data, b->part[i].capacity);
    *b = (fv_batch){.env = b->env};
}

fv_items fv_batch_items(fv_ctx *c, const fv_batch *b)
{
    fv_items out = {.n_labels = b->labels};
    for (int i = 0; i < b->n; i++) {
        fv_shape s = b->part[i].shape;
        fv_tensor *t = b->part[i].dtype == FV_U8 ? fv_bytes(c, b->part[i].data, s)
                                                 : fv_ints(c, b->part[i].data, s);
        fv_items_put(&out, b->part[i].name, t);
    }
    return out;
}

void fv_feed_close(fv_feed *f)
{
    if (f && f->close) f->close(f->self);
    if (f) *f = (fv_feed){0};
}
