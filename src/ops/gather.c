/* gather.c - rows of a table by id, and the sum of rows into a table by id: each is the other's
 * gradient. */
#include "core/core.h"
#include "fovea/author/op.h"
#include "fovea/author/ops.h"
#include "ops/embed.h"

static bool ids_ok(fv_ctx *c, const char *op, const fv_tensor *ids)
{
    if (ids->dtype != FV_I32) fv_raise(c, FV_EDTYPE, "%s: ids %s are not i32", op, fv_desc(ids).s);
    return ids->dtype == FV_I32;
}

/* ---- y = table[ids] ---- */

typedef struct {
    fv_node node;
    int32_t skip;
} gather;

/* dtable[id] = sum of dy over the positions with that id, in their order; `skip` is padding_idx. */
static void gather_backward(fv_ctx *c, fv_node *n)
{
    fv_tensor *table = n->in[0], *ids = n->in[1];
    const fv_kernels *k = fv_kernels_of(c, table->dtype);
    if (!fv_need(c, k->gather_bwd, "gather_bwd", table->dtype)) return;
    k->gather_bwd(fv_ctx_stream(c), fv_grad(c, table), n->y->grad, ids->data, fv_len(ids),
                  table->shape.d[0], table->shape.d[1], ((gather *)n)->skip);
}

bool fv__is_prompted(const fv_ctx *c, const fv_tensor *ids)
{
    return ids && c->prompt && c->prompt->ids == ids;
}

fv_tensor *fv__ids_behind_prompt(fv_ctx *c, fv_tensor *ids)
{
    int64_t n = c->prompt->n, T = fv_dim(ids, 1);
    return n < T ? fv_slice(c, ids, 1, n, T) : NULL;
}

fv_tensor *fv__behind_prompt(fv_ctx *c, const fv_tensor *ids, fv_tensor *x)
{
    const fv__prompt *p = c->prompt;
    fv_shape shape = FV_SHAPE(fv_dim(ids, 0), p->n, fv_cols(p->rows));
    fv_tensor *front = fv_expand(c, fv_reshape(c, p->rows, FV_SHAPE(1, p->n, -1)), shape);
    if (!x) return front;
    return fv_concat(c, (fv_tensor *[]){fv_cast(c, front, x->dtype), x}, 2, 1);
}

fv_tensor *fv_gather(fv_ctx *c, fv_tensor *table, fv_tensor *ids, int32_t skip)
{
    if (fv__is_prompted(c, ids)) {
        fv_tensor *rest = fv__ids_behind_prompt(c, ids);
        return fv__behind_prompt(c, ids, rest ? fv_gather(c, table, rest, skip) : NULL);
    }
    if (!table || !ids || !ids_ok(c, "gather", ids)) return NULL;
    if (table->shape.n != 2 || ids->shape.n >= FV_MAX_DIM)
        return fv_raise(c, FV_ESHAPE, "gather: table %s, ids %s", fv_desc(table).s, fv_desc(ids).s);
    const fv_kernels *k = fv_kernels_of(c, table->dtype);
    if (!k || !fv_need(c, k->gather, "gather", table->dtype)) return NULL;

    fv_shape shape = ids->shape;
    shape.d[shape.n++] = table->shape.d[1];
    fv_tensor *y = fv_new(c, table->dtype, shape);
    if (!y) return NULL;
    k->gather(fv_ctx_stream(c), y->data, table->data, table->dtype, ids->data, fv_len(ids),
              table->shape.d[0], table->shape.d[1]);

    gather *s = fv_record(c, sizeof *s, gather_backward, y, table, ids);
    if (s) s->skip = skip;
    return y;
}

/* ---- y[ids[i]] += x[i] ---- */

static void scatter_backward(fv_ctx *c, fv_node *n)
{
    fv_tensor *x = n->in[0], *ids = n->in[1], *y = n->y;
    const fv_kernels *k = fv_kernels_of(c, x->dtype);
    fv_sink dx = fv_grad(c, x);
    if (!dx.data || !fv_need(c, k->gather && k->cast, "gather", x->dtype)) return;
    /* else through a copy: gather only writes, in the table's dtype */
    bool direct = !dx.add && dx.dtype == x->dtype;
    void *rows = direct ? dx.data : fv_scratch(c, x->dtype, fv_len(x));
    if (!rows) return;
    k->gather(fv_ctx_stream(c), rows, y->grad, y->dtype, ids->data, fv_len(ids), y->shape.d[0],
              y->shape.d[1]);
    if (!direct) k->cast(fv_ctx_stream(c), dx, rows, fv_len(x));
}

fv_tensor *fv_scatter_add(fv_ctx *c, fv_tensor *x, fv_tensor *ids, int64_t vocab)
{
    if (!x || !ids || !ids_ok(c, "scatter_add", ids)) return NULL;
    if (x->shape.n < 1 || fv_rows(x) != fv_len(ids) || vocab < 1)
        return fv_raise(c, FV_ESHAPE, "scatter_add: x %s, ids %s into %lld rows", fv_desc(x).s,
                        fv_desc(ids).s, (long long)vocab);
    const fv_kernels *k = fv_kernels_of(c, x->dtype);
    if (!k || !fv_need(c, k->gather_bwd, "gather_bwd", x->dtype)) return NULL;

    fv_tensor *y = fv_new(c, x->dtype, FV_SHAPE(vocab, fv_cols(x)));
    if (!y) return NULL;
    k->gather_bwd(fv_ctx_stream(c), (fv_sink){y->data, y->dtype, false}, x->data, ids->data,
                  fv_len(ids), vocab, fv_cols(x), -1);
    fv_record(c, sizeof(fv_node), scatter_backward, y, x, ids);
    return y;
}
