/* topk.c - the k largest of each row, largest first, and where they stood. */
#include "fovea/author/op.h"
#include "fovea/author/ops.h"

typedef struct {
    fv_node node;
    const int32_t *index;
} topk;

/* dx = dy at the selected indices, 0 elsewhere */
static void backward(fv_ctx *c, fv_node *n)
{
    fv_tensor *x = n->in[0];
    const fv_kernels *k = fv_kernels_of(c, x->dtype);
    if (!fv_need(c, k && k->topk_bwd, "topk_bwd", x->dtype)) return;
    k->topk_bwd(fv_ctx_stream(c), fv_grad(c, x), n->y->grad, ((topk *)n)->index, fv_rows(x),
                fv_cols(x), fv_cols(n->y));
}

/* (..,n) -> values (..,k) and, if asked for, indices (..,k) i32; ties go to the lower index. */
fv_tensor *fv_topk(fv_ctx *c, fv_tensor *x, int64_t k, fv_tensor **index)
{
    if (index) *index = NULL;
    if (!fv_same_dtype(c, "topk", x, x)) return NULL;
    if (!x->shape.n || k < 1 || k > fv_cols(x))
        return fv_raise(c, FV_ESHAPE, "topk: the %lld largest of each row of %s", (long long)k,
                        fv_desc(x).s);
    const fv_kernels *kernels = fv_kernels_of(c, x->dtype);
    if (!fv_need(c, kernels && kernels->topk, "topk", x->dtype)) return NULL;

    fv_shape shape = x->shape;
    shape.d[shape.n - 1] = k;
    fv_tensor *y = fv_new(c, x->dtype, shape), *at = fv_new(c, FV_I32, shape);
    if (!at) return NULL;
    kernels->topk(fv_ctx_stream(c), y->data, at->data, x->data, fv_rows(x), fv_cols(x), k);

    topk *s = fv_record(c, sizeof *s, backward, y, x);
    if (s) s->index = at->data;
    if (index) *index = at;
    return y;
}
