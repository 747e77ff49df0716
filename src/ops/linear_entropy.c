/* linear_entropy.c - the loss of y = x w' against labels, without y: for a vocabulary of any size.
 *
 * Logits are the largest numbers of a language model's step, and nobody asks for them while it
 * trains.  So they stay in memory of this op, with rows padded to what products are fast with, and
 * become their own gradient, for dloss = 1, while they are still in the device's cache.
 * Backward only multiplies by dloss of each row, dl:
 *
 *     dx = dl (g w),   dw = g' (dl x),   g = softmax(x w') - target
 *
 * A device without these kernels composes the loss of fv_linear and fv_cross_entropy. */
#include "core/core.h"
#include "core/params.h"
#include "ops/product.h"
#include "ops/stat.h"

/* A row of 64 elements of 16 bits is 128 bytes: rows of logits then start at cache lines, and
 * products over an odd vocabulary take the fast kernels. */
#define WHOLE 64 /* elements that a row is padded to a multiple of */

typedef struct {
    fv_node node;
    void *dlogits; /* (rows,step) */
    int64_t step;
} linear_entropy;

/* The scale by dl goes to the smaller side of each product, x (rows,D), never to g (rows,vocab). */
static void backward(fv_ctx *c, fv_node *node)
{
    const linear_entropy *s = (linear_entropy *)node;
    fv_tensor *x = node->in[0], *w = node->in[1];
    const fv_kernels *k = fv_kernels_of(c, x->dtype);
    int64_t rows = fv_rows(x), cols = fv_cols(x), n = w->shape.d[0];
    const fv_stat *dl = node->y->grad;
    fv_stream *st = fv_ctx_stream(c);
    fv_factor g = {s->dlogits, false, 0}, transposed = {s->dlogits, true, 0},
              of_w = {w->data, false, 0};
    fv_sink dw = fv_grad(c, w), dx = fv_grad(c, x);
    size_t bytes = fv__tensor_bytes(x->dtype, fv_len(x));
    void *part = fv__block_alloc(c, bytes); /* x by rows of dl, and then dx */
    if (!part) {
        fv_raise(c, FV_ENOMEM, "linear_cross_entropy: out of memory");
        return;
    }
    if (dw.data) {
        k->scale_rows(st, (fv_sink){part, x->dtype, false}, x->data, dl, rows, cols);
        fv_gemm by_w = fv__product(dw, transposed, (fv_factor){part, false, 0}, n, cols, rows,
                                   x->dtype);
        by_w.lda = s->step;
        k->gemm(st, &by_w);
    }
    if (dx.data && fv__param_fetch(c, w)) {
        fv_gemm by_x = fv__product((fv_sink){part, x->dtype, false}, g, of_w, rows, cols, n,
                                   x->dtype);
        by_x.lda = s->step;
        k->gemm(st, &by_x);
        fv__param_release(w);
        k->scale_rows(st, dx, part, dl, rows, cols);
    }
    fv__block_free(c, part, bytes);
}

static bool fit(fv_ctx *c, const fv_tensor *x, const fv_tensor *w, const fv_tensor *labels)
{
    if (!fv_same_dtype(c, "linear_cross_entropy", x, w)) return false;
    if (labels->dtype == FV_I32 && w->shape.n == 2 && x->shape.n > 0 &&
        fv_cols(x) == w->shape.d[1] && fv_rows(x) == fv_len(labels))
        return true;
    fv_raise(c, FV_ESHAPE, "linear_cross_entropy: x %s, w %s, labels %s", fv_desc(x).s,
             fv_desc(w).s, fv_desc(labels).s);
    return false;
}

/* Logits are asked for by nobody while a context trains. */
static bool alone(const fv_ctx *c, const fv_tensor *x, const fv_tensor *w)
{
    const fv_kernels *k = (unsigned)x->dtype < FV_FLOATS ? c->dev->k[x->dtype] : NULL;
    return c->train && c->record && !w->packed && fv_dtype_size(w->dtype) && k &&
           k->cross_entropy_fused && k->scale_rows;
}

fv_tensor *fv_linear_cross_entropy(fv_ctx *c, fv_tensor **logits, fv_tensor *x, fv_tensor *w,
                                   fv_tensor *labels, fv_ce_opt opt)
{
    *logits = NULL;
    if (!x || !w || !labels) return NULL;
    if (!alone(c, x, w)) {
        *logits = fv_linear(c, x, w, NULL, FV_ACT_NONE);
        return fv_cross_entropy(c, *logits, labels, opt);
    }
    if (!fit(c, x, w, labels)) return NULL;
    if (!(opt.smooth >= 0 && opt.smooth <= 1))
        return fv_raise(c, FV_EARG, "linear_cross_entropy: smoothing %g is outside 0..1",
                        (double)opt.smooth);
    const fv_kernels *k = fv_kernels_of(c, x->dtype);
    if (!fv_need(c, k->gemm, "gemm", x->dtype)) return NULL;

    int64_t rows = fv_rows(x), n = w->shape.d[0], step = (n + WHOLE - 1) / WHOLE * WHOLE;
    fv_tensor *y = fv_new(c, fv__stat_dtype(x->dtype), labels->shape);
    void *own = fv_scratch(c, x->dtype, rows * step);
    if (!y || !own || !fv__param_fetch(c, w)) return NULL;
    fv_factor of_x = {x->data, false, 0}, of_w = {w->data, true, 0};
    fv_gemm g = fv__product((fv_sink){own, x->dtype, false}, of_x, of_w, rows, n, fv_cols(x),
                            x->dtype);
    g.ldc = step;
    k->gemm(fv_ctx_stream(c), &g);
    k->cross_entropy_fused(fv_ctx_stream(c), y->data, own, labels->data, rows, n, step, opt.smooth,
                           opt.ignore);

    linear_entropy *s = fv_record(c, sizeof *s, backward, y, x, w, labels);
    fv__param_release(w);
    if (s) {
        s->dlogits = s->node.temp = own;
        s->node.temp_bytes = fv__tensor_bytes(x->dtype, rows * step);
        s->step = step;
    }
    return y;
}
