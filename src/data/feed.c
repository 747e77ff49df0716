/* feed.c - batches as arrays in host memory, and as tensors.
 *
 * A batch is filled again and again, so its arrays keep their memory: slot i of this batch reuses
 * what slot i of the last one had, whatever its name was. */
#include "fovea/author/feed.h"

#include "base/base.h"
#include "fovea/author/op.h"

/* A slot for one more array.  Slots that an earlier batch used keep their memory. */
static fv_batch_part *next_part(fv_batch *b)
{
    size_t had = b->part_bytes / sizeof *b->part;
    void *p = b->part;
    if (!fv__grow(b->env, &p, &b->part_bytes, (size_t)(b->n + 1) * sizeof *b->part)) return NULL;
    b->part = p;
    size_t have = b->part_bytes / sizeof *b->part;
    if (have > had) memset(b->part + had, 0, (have - had) * sizeof *b->part);
    return &b->part[b->n];
}

/* Memory of a part is kept when the batch is cleared, so that batches of a run stop allocating once
 * the largest has been seen. The name must outlive the batch: it is a literal everywhere. */
void *fv_batch_put(fv_batch *b, const char *name, fv_dtype t, fv_shape s)
{
    if (b->err.code) return NULL;
    size_t bytes = (size_t)fv_shape_len(s) * fv_dtype_size(t);
    fv_batch_part *part = next_part(b);
    if (!part || !fv__grow(b->env, &part->data, &part->capacity, bytes + 1)) {
        fv_fail(&b->err, FV_ENOMEM, "batch: out of memory for %s, %zu bytes", name, bytes);
        return NULL;
    }
    part->name = name;
    part->dtype = t;
    part->shape = s;
    b->n++;
    return part->data;
}

/* Parts keep their memory. */
void fv_batch_clear(fv_batch *b)
{
    b->n = 0;
    b->labels = b->tokens = 0;
    b->err = (fv_err){0};
}

void fv_batch_free(fv_batch *b)
{
    for (size_t i = 0; i < b->part_bytes / sizeof *b->part; i++)
        fv__free(b->env, b->part[i].data, b->part[i].capacity);
    fv__free(b->env, b->part, b->part_bytes);
    *b = (fv_batch){.env = b->env};
}

const fv_batch_part *fv_batch_get(const fv_batch *b, const char *name)
{
    for (int i = 0; i < b->n; i++)
        if (!strcmp(b->part[i].name, name)) return &b->part[i];
    return NULL;
}

/* A copy onto the device; the batch may be filled anew at once. */
static fv_tensor *tensor_of(fv_ctx *c, const fv_batch_part *p)
{
    switch (p->dtype) {
    case FV_U8: return fv_bytes(c, p->data, p->shape);
    case FV_I32: return fv_ints(c, p->data, p->shape);
    case FV_F32: return fv_floats(c, p->data, p->shape);
    default:
        return fv_raise(c, FV_EDTYPE, "batch: %s is %s; arrays of a batch are i32, u8 or f32",
                        p->name, fv_dtype_name(p->dtype));
    }
}

/* Fails by the context's sticky error, as everything in a step does. */
fv_items fv_batch_items(fv_ctx *c, const fv_batch *b)
{
    fv_items out = {.n_labels = b->labels};
    if (b->n > FV_MAX_ITEMS)
        fv_raise(c, FV_EARG, "batch: %d arrays; a model takes at most %d", b->n, FV_MAX_ITEMS);
    for (int i = 0; i < b->n; i++) fv_items_put(&out, b->part[i].name, tensor_of(c, &b->part[i]));
    return out;
}

void fv_feed_close(fv_feed *f)
{
    if (f && f->close) f->close(f->self);
    if (f) *f = (fv_feed){0};
}
