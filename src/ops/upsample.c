/* upsample.c - larger images: every pixel repeated, or bilinear between pixel centres. */
#include "fovea/author/op.h"
#include "fovea/author/ops.h"

static bool image(fv_ctx *c, const char *op, const fv_tensor *x, int64_t oh, int64_t ow)
{
    bool fits = x->shape.n == 4 && fv_len(x) > 0 && oh > 0 && ow > 0;
    if (!fits)
        fv_raise(c, FV_ESHAPE, "%s: x %s to (%lld,%lld)", op, fv_desc(x).s, (long long)oh,
                 (long long)ow);
    return fits;
}

/* Each pixel gets two axes of its own, of length 1, that are then broadcast. */
fv_tensor *fv_upsample_nearest(fv_ctx *c, fv_tensor *x, int64_t times)
{
    if (!x || !image(c, "upsample_nearest", x, times, times)) return NULL;
    const int64_t *d = x->shape.d, planes = d[0] * d[1];
    fv_tensor *y = fv_reshape(c, x, FV_SHAPE(planes, d[2], 1, d[3], 1));
    y = fv_expand(c, y, FV_SHAPE(planes, d[2], times, d[3], times));
    return fv_reshape(c, y, FV_SHAPE(d[0], d[1], d[2] * times, d[3] * times));
}

/* y = a weighted mean of four pixels:  dx of a pixel collects dy times the weights it was read
 * with. */
static void backward(fv_ctx *c, fv_node *n)
{
    fv_tensor *x = n->in[0], *y = n->y;
    const fv_kernels *k = fv_kernels_of(c, x->dtype);
    if (!fv_need(c, k->bilinear_bwd, "bilinear_bwd", x->dtype)) return;
    k->bilinear_bwd(fv_ctx_stream(c), fv_grad(c, x), y->grad, x->shape.d[0] * x->shape.d[1],
                    x->shape.d[2], x->shape.d[3], y->shape.d[2], y->shape.d[3]);
}

fv_tensor *fv_upsample_bilinear(fv_ctx *c, fv_tensor *x, int64_t oh, int64_t ow)
{
    if (!x || !image(c, "upsample_bilinear", x, oh, ow)) return NULL;
    const fv_kernels *k = fv_kernels_of(c, x->dtype);
    if (!k || !fv_need(c, k->bilinear, "bilinear", x->dtype)) return NULL;
    const int64_t *d = x->shape.d;
    fv_tensor *y = fv_new(c, x->dtype, FV_SHAPE(d[0], d[1], oh, ow));
    if (!y) return NULL;
    k->bilinear(fv_ctx_stream(c), y->data, x->data, d[0] * d[1], d[2], d[3], oh, ow);
    fv_record(c, sizeof(fv_node), backward, y, x);
    return y;
}
