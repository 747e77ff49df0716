/* rmsnorm.c - y = gain * x / sqrt(mean(x^2) + eps), over the last axis; also of a residual sum. */
#include "fovea/author/op.h"
#include "ops/residual.h"
#include "ops/stat.h"

typedef struct {
    fv_node node;
    fv_stat *rstd; /* one per row */
} rmsnorm;

/* y = gain x rstd, rstd = (mean(x^2) + eps)^-1/2:  dx = rstd (g - n mean(g n)), g = dy gain, n =
 * x rstd */
static void backward(fv_ctx *c, fv_node *n)
{
    fv_tensor *x = n->in[0], *gain = n->in[1];
    const fv_kernels *k = fv_kernels_of(c, x->dtype);
    if (!fv_need(c, k->rmsnorm_bwd, "rmsnorm_bwd", x->dtype)) return;
    fv_sink dx = fv_grad(c, x), dgain = fv_grad(c, gain);
    k->rmsnorm_bwd(fv_ctx_stream(c), dx, dgain, n->y->grad, x->data, gain ? gain->data : NULL,
                   ((rmsnorm *)n)->rstd, fv_rows(x), fv_cols(x));
}

/* The norm of x, or of *sum = x + a where a is given. */
static fv_tensor *norm(fv_ctx *c, const char *op, fv_tensor **sum, fv_tensor *x, fv_tensor *a,
                       fv_tensor *gain, float eps)
{
    const fv_kernels *k = fv_kernels_of(c, x->dtype);
    if (!k || (gain && !fv_same_dtype(c, op, x, gain))) return NULL;
    if (gain && fv_len(gain) != fv_cols(x))
        return fv_raise(c, FV_ESHAPE, "%s: x %s, gain %s", op, fv_desc(x).s, fv_desc(gain).s);
    if (!fv_need(c, k->rmsnorm, "rmsnorm", x->dtype)) return NULL;

    fv_tensor *in = a ? fv__residual(c, op, x, a, sum) : x;
    fv_tensor *y = fv_new(c, x->dtype, x->shape);
    fv_dtype st = fv__stat_dtype(x->dtype);
    fv_stat *rstd = fv_scratch(c, st, fv_rows(x));
    if (!rstd) return NULL;
    k->rmsnorm(fv_ctx_stream(c), y->data, rstd, a ? in ? in->data : y->data : NULL, x->data,
               a ? a->data : NULL, gain ? gain->data : NULL, fv_rows(x), fv_cols(x), eps);

    rmsnorm *s = fv_record(c, sizeof *s, backward, y, in, gain);
    if (s) {
        s->rstd = s->node.temp = rstd;
        s->node.temp_bytes = (size_t)fv_rows(x) * fv_dtype_size(st);
    }
    if (sum) *sum = in;
    return y;
}

fv_tensor *fv_rmsnorm(fv_ctx *c, fv_tensor *x, fv_tensor *gain, float eps)
{
    return x ? norm(c, "rmsnorm", NULL, x, NULL, gain, eps) : NULL;
}

fv_tensor *fv_add_rmsnorm(fv_ctx *c, fv_tensor **sum, fv_tensor *x, fv_tensor *a, fv_tensor *gain,
                          float eps)
{
    if (sum) *sum = NULL;
    return x && a ? norm(c, "add_rmsnorm", sum, x, a, gain, eps) : NULL;
}
