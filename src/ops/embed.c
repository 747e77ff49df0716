/* embed.c - rows of tables, their sum and its norm: in one pass where nothing is recorded and the
 * device can.
 *
 *    BERT:  word[ids] + position[0..T) + type[types], then layer norm      three tables, one pass
 *
 * The fused kernel rounds after every addition, as the separate ops would, and gives the same
 * bits. */
#include "ops/embed.h"

#include "core/core.h"
#include "fovea/author/ops.h"
#include "ops/adapted.h"

static bool fits(const fv_ctx *c, const fv_some_rows *r, const fv_some_rows *first)
{
    const fv_tensor *t = r->table, *ids = r->ids;
    bool named = ids && ids->dtype == FV_I32 && fv_shape_same(ids->shape, first->ids->shape);
    bool counted = r->first >= 0 && t && r->first + r->count <= fv_dim(t, 0) &&
                   (r->count == 1 || r->count == fv_cols(first->ids));
    return t && t->dtype == c->dtype && t->shape.n == 2 && fv_cols(t) == fv_cols(first->table) &&
           (ids ? named : counted);
}

/* NULL without an error where it cannot. */
static fv_tensor *at_once(fv_ctx *c, const fv_some_rows *of, int n, fv_embed a,
                          const fv_tensor *gain, const fv_tensor *bias)
{
    const fv_kernels *k = c->record || fv__is_prompted(c, of[0].ids) ? NULL
                                                                     : fv_kernels_of(c, c->dtype);
    bool can = k && k->embed && n <= FV_EMBED_MAX_TABLES && of[0].ids && of[0].table &&
               of[0].ids->shape.n < FV_MAX_DIM;
    if (!can || (gain && gain->dtype != c->dtype) || (bias && bias->dtype != c->dtype)) return NULL;
    fv_shape shape = of[0].ids->shape;
    shape.d[shape.n++] = fv_cols(of[0].table);
    a.rows = fv_len(of[0].ids);
    a.cols = fv_cols(of[0].table);
    a.n = n;
    if ((gain && fv_len(gain) != a.cols) || (bias && fv_len(bias) != a.cols)) return NULL;
    for (int i = 0; i < n; i++) {
        if (!fits(c, &of[i], &of[0]) || fv__param_table_adapter(of[i].table)) return NULL;
        a.of[i].table = of[i].table->data;
        a.of[i].ids = of[i].ids ? of[i].ids->data : NULL;
        a.of[i].vocab = of[i].table->shape.d[0];
        a.of[i].first = of[i].first;
        a.of[i].count = of[i].count;
    }
    fv_tensor *y = fv_new(c, c->dtype, shape);
    if (!y) return NULL;
    a.y = y->data;
    a.gain = gain ? gain->data : NULL;
    a.bias = bias ? bias->data : NULL;
    return k->embed(fv_ctx_stream(c), &a) ? y : NULL;
}

static fv_tensor *one_by_one(fv_ctx *c, const fv_some_rows *of, int n)
{
    fv_tensor *y = NULL;
    for (int i = 0; i < n; i++) {
        fv_tensor *rows = fv__table_rows(c, of[i].table, of[i].ids, of[i].skip, of[i].first,
                                         of[i].count);
        y = i ? fv_add(c, y, rows) : rows;
    }
    return y;
}

fv_tensor *fv__embed(fv_ctx *c, const fv_some_rows *of, int n, fv_tensor *gain, fv_tensor *bias,
                     float eps)
{
    fv_tensor *y = fv__failed(c) ? NULL : at_once(c, of, n, (fv_embed){.eps = eps}, gain, bias);
    return y || fv__failed(c) ? y : fv_layernorm(c, one_by_one(c, of, n), gain, bias, eps);
}

fv_tensor *fv__embed_bare(fv_ctx *c, const fv_some_rows *of, int n)
{
    fv_tensor *y = fv__failed(c) ? NULL : at_once(c, of, n, (fv_embed){.eps = -1}, NULL, NULL);
    return y || fv__failed(c) ? y : one_by_one(c, of, n);
}
