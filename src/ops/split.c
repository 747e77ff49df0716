/* split.c - see split.h: an identity whose gradient is summed over ranks, and a sum over ranks
 * whose gradient is passed on.
 *
 * Sums are f32 and the engine's, the same on every rank, not the same bits as one rank's product.
 * Memory of a device is staged through the host's. */
#include "ops/split.h"

#include "core/core.h"
#include "core/params.h"
#include "fovea/author/comm.h"
#include "fovea/author/ops.h"

int fv__weight_split(const fv_tensor *w)
{
    return w && w->is_param && ((const fv_entry *)w)->ranks ? (int)((const fv_entry *)w)->split.kind
                                                            : FV__WHOLE;
}

/* x = the sum of x over all ranks, n numbers of dtype t. */
static void sum_over_ranks(fv_ctx *c, struct fv_comm *ranks, void *x, fv_dtype t, int64_t n)
{
    const fv_backend *b = c->dev->backend;
    fv_stream *s = fv_ctx_stream(c);
    bool direct = fv__device_is_host(c->dev) && t == FV_F32;
    size_t bytes = (size_t)n * sizeof(float);
    float *wide = x, *host = x;
    fv_err e = {0};
    if (t != FV_F32 && !(wide = fv__block_alloc(c, bytes))) return;
    if (!direct && !(host = fv__alloc_raw(&c->dev->env, bytes))) {
        fv_raise(c, FV_ENOMEM, "sum over ranks: out of memory");
        return;
    }
    if (t != FV_F32) c->dev->k[t]->cast(s, (fv_sink){.data = wide, .dtype = FV_F32}, x, n);
    if (!direct) b->download(s, host, wide, bytes);
    if (fv_comm_all_reduce(ranks, host, n, &e)) fv_raise(c, e.code, "%s", e.text);
    if (!direct) b->upload(s, wide, host, bytes);
    if (t != FV_F32) c->dev->k[FV_F32]->cast(s, (fv_sink){.data = x, .dtype = t}, wide, n);
    if (!direct) fv__free(&c->dev->env, host, bytes);
}

typedef struct split_node {
    fv_node node;
    struct fv_comm *ranks;
} split_node;

/* y = x:  dx = the sum over ranks of dy */
static void enter_backward(fv_ctx *c, fv_node *n)
{
    fv_tensor *y = n->y;
    sum_over_ranks(c, ((split_node *)n)->ranks, y->grad, y->dtype, fv_len(y));
    fv_grad_pass(c, n->in[0], n);
}

/* y = the sum over ranks of x:  dx = dy */
static void leave_backward(fv_ctx *c, fv_node *n) { fv_grad_pass(c, n->in[0], n); }

/* y shares x's memory.  A failure to sum is the context's. */
static fv_tensor *record(fv_ctx *c, fv_tensor *x, const fv_tensor *w,
                         void (*backward)(fv_ctx *c, fv_node *n))
{
    fv_tensor *y = fv_alias(c, x, x->shape);
    split_node *s = fv_record(c, sizeof *s, backward, y, x);
    if (s) s->ranks = ((const fv_entry *)w)->ranks;
    return fv__failed(c) ? NULL : y;
}

fv_tensor *fv__split_enter(fv_ctx *c, fv_tensor *x, const fv_tensor *w)
{
    return x && fv__weight_split(w) == FV__COLUMNS ? record(c, x, w, enter_backward) : x;
}

/* In place: nobody has read y yet. */
fv_tensor *fv__split_leave(fv_ctx *c, fv_tensor *y, const fv_tensor *w)
{
    if (!y || fv__failed(c)) return NULL;
    sum_over_ranks(c, ((const fv_entry *)w)->ranks, y->data, y->dtype, fv_len(y));
    return record(c, y, w, leave_backward);
}

/* Masks are functions of a seed: that of a rank differs from those of others, and of one rank by
 * nothing for rank 0.  The masks of one rank with all columns would need kernels that know which
 * columns they have. */
void fv__split_masks(fv_ctx *c, const fv_tensor *w)
{
    if (fv__weight_split(w))
        c->seed ^= (uint64_t)fv_comm_rank(((const fv_entry *)w)->ranks) * 0x9E3779B97F4A7C15u;
}
