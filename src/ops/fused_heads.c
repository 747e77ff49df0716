/* fused_heads.c - q, k and v of one token of each sequence on their way from one product to
 * attention: heads normed, rotated, appended to the caches.
 *
 *     q, k = rot(norm q), rot(norm k);   caches[pos] = k, v
 *
 * A product that rotates (fused_linear) sees pairs of columns, but not a head as a whole, which a
 * norm of heads needs; nor can it sort what a file has head by head.  By general ops that is seven
 * kernels between two products.  Like fused_linear this is no public op: it exists where a device's
 * kernel says so. */
#include "ops/fused_heads.h"

#include "core/core.h"
#include "ops/fused_linear.h"

/* A warp of a GPU holds a head, as many neighbouring elements in each lane, of which pairs to be
 * rotated are a whole number of lanes apart. */
#define LANES 32

bool fv__fused_heads_supported(const fv_ctx *c, int64_t head, const fv_tensor *freq)
{
    int64_t each = head / LANES, half = freq ? fv_cols(freq) : 0;
    return c->dev->k[FV_F32]->fused_heads && head % (2 * LANES) == 0 && head <= 8 * LANES &&
           half % each == 0 && 2 * half <= head;
}

static bool fit(const fv_tensor *x, const fv_fused_heads_arg *a)
{
    int64_t B = fv_rows(x), kv = a->n_kv_head * a->head;
    bool ok = fv_cols(x) == a->n_head * a->head + 2 * kv && x->dtype == FV_F32 &&
              (!a->by_head || a->n_head == a->n_kv_head) && !a->q_gain == !a->k_gain &&
              (!a->q_gain || (fv_len(a->q_gain) == a->head && fv_len(a->k_gain) == a->head));
    if (a->rope_freq)
        ok = ok && a->rope_pos && fv_len(a->rope_pos) == B &&
             (a->rope_freq->shape.n == 1 || fv_dim(a->rope_freq, 0) == B);
    return ok && fv_shape_same(a->k->shape, a->v->shape) && fv_cols(a->k) == kv &&
           a->k->dtype == a->v->dtype && a->k->row_step == a->v->row_step &&
           a->k->batch_step == a->v->batch_step && fv_dim(a->k, 0) == B && fv_len(a->pos) == B;
}

fv_tensor *fv__fused_heads(fv_ctx *c, fv_tensor *x, fv_fused_heads_arg a)
{
    if (!x || fv__failed(c)) return NULL;
    if (!fit(x, &a))
        return fv_raise(c, FV_ESHAPE,
                        "fused_heads: x %s, %lld and %lld heads of %lld: expected q, k and v of "
                        "one row for each sequence of the caches, and gains of a head's width",
                        fv_desc(x).s, (long long)a.n_head, (long long)a.n_kv_head,
                        (long long)a.head);
    fv_tensor *q = fv_new(c, a.k->dtype, FV_SHAPE(fv_dim(x, 0), 1, a.n_head * a.head));
    if (!q) return NULL;
    fv_fused_heads r = {.rows = fv_rows(x),
                        .cap = fv_dim(a.k, 1),
                        .H = (int32_t)a.n_head,
                        .G = (int32_t)a.n_kv_head,
                        .W = (int32_t)a.head,
                        .by_head = a.by_head,
                        .x = x->data,
                        .q_gain = a.q_gain ? a.q_gain->data : NULL,
                        .k_gain = a.k_gain ? a.k_gain->data : NULL,
                        .eps = a.eps,
                        .factor = a.factor,
                        .yt = q->dtype,
                        .y = q->data,
                        .k_cache = a.k->data,
                        .v_cache = a.v->data,
                        .cache_row = fv__row_step(a.k),
                        .cache_batch = fv__batch_step(a.k),
                        .pos = a.pos->data};
    r.rope = fv__fused_rope(a.rope_freq, a.rope_pos, a.head, a.adjacent);
    if (!c->dev->k[FV_F32]->fused_heads(&c->stream, &r))
        return fv_raise(c, FV_EMISSING, "fused_heads: %s has no kernel for heads of %lld in %s",
                        fv_device_name(c->dev), (long long)a.head, fv_dtype_name(q->dtype));
    return q;
}
