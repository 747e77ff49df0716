/* layernorm.c - y = gain * (x - mean) / sqrt(var + eps) + bias, over the last axis; also of a
 * residual sum. */
#include "fovea/author/op.h"
#include "ops/product.h"
#include "ops/residual.h"
#include "ops/stat.h"

typedef struct {
    fv_node node;
    fv_stat *mean, *rstd; /* one per row */
} layernorm;

static void backward(fv_ctx *c, fv_node *n)
{
    const layernorm *s = (layernorm *)n;
    fv_tensor *x = n->in[0], *gain = n->in[1], *bias = n->in[2];
    const fv_kernels *k = fv_kernels_of(c, x->dtype);
    if (!fv_need(c, k->layernorm_bwd, "layernorm_bwd", x->dtype)) return;
    fv_sink dx = fv_grad(c, x), dgain = fv_grad(c, gain), dbias = fv_grad(c, bias);
    const void *by = gain ? gain->data : NULL;
    fv_stream *st = fv_ctx_stream(c);
    /* who made x has no other reader before this one: its gradient is whole now */
    fv_sink sums = {0};
    if (dx.data && k->layernorm_bwd_sums) sums = fv__linear_bias_sums(c, n->prev, x);
    if (sums.data)
        k->layernorm_bwd_sums(st, dx, dgain, dbias, sums, n->y->grad, x->data, by, s->mean, s->rstd,
                              fv_rows(x), fv_cols(x));
    else
        k->layernorm_bwd(st, dx, dgain, dbias, n->y->grad, x->data, by, s->mean, s->rstd,
                         fv_rows(x), fv_cols(x));
}

static bool check(fv_ctx *c, const char *op, const fv_tensor *x, const fv_tensor *of_row,
                  const char *what)
{
    if (!of_row) return true;
    if (!fv_same_dtype(c, op, x, of_row)) return false;
    if (fv_len(of_row) != fv_cols(x))
        fv_raise(c, FV_ESHAPE, "%s: x %s, %s %s", op, fv_desc(x).s, what, fv_desc(of_row).s);
    return fv_len(of_row) == fv_cols(x);
}

/* The norm of x, or of *sum = x + a where a is given.
 * mean and rstd are kept for backward, 8 bytes a row; the normalised row is computed again from
 * x. Where nobody wants the sum and nothing is recorded it is never stored: y takes its memory. */
static fv_tensor *norm(fv_ctx *c, const char *op, fv_tensor **sum, fv_tensor *x, fv_tensor *a,
                       fv_tensor *gain, fv_tensor *bias, float eps)
{
    const fv_kernels *k = fv_kernels_of(c, x->dtype);
    if (!k || !check(c, op, x, gain, "gain") || !check(c, op, x, bias, "bias")) return NULL;
    if (!fv_need(c, k->layernorm, "layernorm", x->dtype)) return NULL;

    fv_tensor *in = a ? fv__residual(c, op, x, a, sum) : x;
    fv_tensor *y = fv_new(c, x->dtype, x->shape);
    fv_dtype st = fv__stat_dtype(x->dtype);
    size_t bytes = (size_t)fv_rows(x) * fv_dtype_size(st);
    char *stats = fv_scratch(c, st, 2 * fv_rows(x));
    if (!stats) return NULL;
    k->layernorm(fv_ctx_stream(c), y->data, stats, stats + bytes,
                 a ? in ? in->data : y->data : NULL, x->data, a ? a->data : NULL,
                 gain ? gain->data : NULL, bias ? bias->data : NULL, fv_rows(x), fv_cols(x), eps);

    layernorm *s = fv_record(c, sizeof *s, backward, y, in, gain, bias);
    if (s) {
        s->mean = s->node.temp = stats;
        s->rstd = stats + bytes;
        s->node.temp_bytes = 2 * bytes;
    }
    if (sum) *sum = in;
    return y;
}

fv_tensor *fv_layernorm(fv_ctx *c, fv_tensor *x, fv_tensor *gain, fv_tensor *bias, float eps)
{
    return x ? norm(c, "layernorm", NULL, x, NULL, gain, bias, eps) : NULL;
}

fv_tensor *fv_add_layernorm(fv_ctx *c, fv_tensor **sum, fv_tensor *x, fv_tensor *a, fv_tensor *gain,
                            fv_tensor *bias, float eps)
{
    if (sum) *sum = NULL;
    return x && a ? norm(c, "add_layernorm", sum, x, a, gain, bias, eps) : NULL;
}
