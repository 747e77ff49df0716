/* matmul.c - y = alpha * a b for each pair of a batch, either factor stored transposed. */
#include "fovea/op.h"

typedef struct { fv_node node; fv_gemm gemm; } matmul;

/* One factor's gradient is again a product: of dy (m,n) and the other factor, with the flags turned around. */
typedef struct { const void *a, *b; bool ta, tb; int64_t m, n, k, lda, ldb, stride_a, stride_b; } product;

static void deliver(fv_ctx *c, const fv_kernels *k, const fv_gemm *f, fv_sink g, int64_t stride_g, product p)
{
    fv_gemm d = {.m = p.m, .n = p.n, .k = p.k, .batch = f->batch, .a = p.a, .b = p.b, .c = g.data, .lda = p.lda, .ldb = p.ldb,
                 .ldc = p.n, .stride_a = p.stride_a, .stride_b = p.stride_b, .stride_c = stride_g, .ta = p.ta, .tb = p.tb,
                 .bt = k->dtype, .ct = g.dtype, .add = g.add, .alpha = f->alpha};
    if (!g.data) return;
    if (stride_g || f->batch == 1) {
        k->gemm(fv_ctx_stream(c), &d);
        return;
    }
    size_t size = fv_dtype_size(k->dtype);
    d.batch = 1;
    for (int64_t i = 0; i < f->batch; i++) { /* a factor that served all collects from all */
        k->gemm(fv_ctx_stream(c), &d);
        d.a = (const char *)d.a + (size_t)p.stride_a * size;
        d.b = (const char *)d.b + (size_t)p.stride_b * size;
        d.add = true;
    }
}

/* y = A B:  dA = dy B',  dB = A' dy;  where a factor is stored transposed so is its gradient. */
static void backward(fv_ctx *c, fv_node *node)
{
    const fv_gemm *f = &((matmul *)node)->gemm;
    fv_tensor *a = node->in[0], *b = node->in[1];
    const fv_kernels *k = fv_kernels_of(c, a->dtype);
    if (!fv_need(c, k && k->gemm, "gemm", a->dtype)) return;
    const void *dy = node->y->grad;
    int64_t m = f->m, n = f->n, kk = f->k, sy = f->stride_c;

    product da = !f->ta ? (product){dy, b->data, false, !f->tb, m, kk, n, n, f->ldb, sy, f->stride_b}
                        : (product){b->data, dy, f->tb, true, kk, m, n, f->ldb, n, f->stride_b, sy};
    deliver(c, k, f, fv_grad(c, a), f->stride_a, da);
    product db = !f->tb ? (product){a->data, dy, !f->ta, false, kk, n, m, f->lda, n, f->stride_a, sy}
                        : (product){dy, a->data, true, f->ta, n, kk, m, n, f->lda, sy, f->stride_a};
    deliver(c, k, f, fv_grad(c, b), f->stride_b, db);
}

/* The sizes of a product, or false: the inner lengths and the leading axes must agree, or b has no leading axes. */
static bool fit(fv_gemm *g, const fv_tensor *a, const fv_tensor *b, fv_mm opt)
{
    int na = a->shape.n, nb = b->shape.n;
    if (na < 2 || nb < 2 || (nb > 2 && nb != na)) return false;
    const int64_t *da = a->shape.d + na - 2, *db = b->shape.d + nb - 2;
    *g = (fv_gemm){.m = da[opt.ta], .k = da[!opt.ta], .n = db[!opt.tb], .batch = 1, .lda = da[1], .ldb = db[1],
                   .ldc = db[!opt.tb], .ta = opt.ta, .tb = opt.tb, .bt = b->dtype, .ct = a->dtype, .alpha = opt.alpha};
    for (int i = 0; i < na - 2; i++) {
        if (nb > 2 && a->shape.d[i] != b->shape.d[i]) return false;
        g->batch *= a->shape.d[i];
    }
    g->stride_a = g->m * g->k;
    g->stride_b = nb > 2 ? g->n * g->k : 0;
    g->stride_c = g->m * g->n;
    return db[opt.tb] == g->k;
}

fv_tensor *fv_matmul(fv_ctx *c, fv_tensor *a, fv_tensor *b, fv_mm opt)
{
    fv_gemm g;
    if (!fv_same_dtype(c, "matmul", a, b)) return NULL;
    if (!fit(&g, a, b, opt))
        return fv_raise(c, FV_ESHAPE, "matmul: a %s%s, b %s%s", fv_desc(a).s, opt.ta ? " transposed" : "", fv_desc(b).s,
                        opt.tb ? " transposed" : "");
    const fv_kernels *k = fv_kernels_of(c, a->dtype);
    if (!fv_need(c, k && k->gemm, "gemm", a->dtype)) return NULL;

    fv_shape shape = a->shape;
    shape.d[shape.n - 2] = g.m;
    shape.d[shape.n - 1] = g.n;
    fv_tensor *y = fv_new(c, a->dtype, shape);
    if (!y) return NULL;
    if (!g.stride_b && !g.ta) { /* one b for all rows of all a: a single tall product */
        g.m *= g.batch;
        g.batch = 1;
        g.stride_a = g.stride_c = 0;
    }
    g.a = a->data, g.b = b->data, g.c = y->data;
    k->gemm(fv_ctx_stream(c), &g);

    matmul *s = fv_record(c, sizeof *s, backward, y, a, b);
    if (s) s->gemm = g;
    return y;
}
