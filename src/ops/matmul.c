/* matmul.c - y = alpha * a b for each pair of a batch, either factor stored transposed. */
#include "ops/product.h"
#include "ops/walk.h"
#include "fovea/ops.h"

typedef struct {
    fv_node node;
    fv_gemm gemm;
} matmul;

/* One factor's gradient is again a product, for each of the batch.  A factor that served all
 * collects from all.
 * Products of the batch are added to a shared factor's gradient one after the other, in their
 * order. */
static void store_product(fv_ctx *c, const fv_kernels *k, const fv_gemm *y, fv_gemm d,
                          int64_t stride)
{
    size_t size = fv_dtype_size(k->dtype);
    bool shared = !stride && y->batch > 1;
    d.alpha = y->alpha;
    d.batch = shared ? 1 : y->batch;
    d.stride_c = stride;
    k->gemm(fv_ctx_stream(c), &d);
    for (int64_t i = 1; shared && i < y->batch; i++) {
        d.a = (const char *)d.a + (size_t)d.stride_a * size;
        d.b = (const char *)d.b + (size_t)d.stride_b * size;
        d.add = true;
        k->gemm(fv_ctx_stream(c), &d);
    }
}

/* y = A B:  dA = dy B',  dB = A' dy;  where a factor is stored transposed so is its gradient: dA' =
 * B dy',  dB' = dy' A */
static void backward(fv_ctx *c, fv_node *node)
{
    const fv_gemm *y = &((matmul *)node)->gemm;
    fv_tensor *a = node->in[0], *b = node->in[1];
    fv_dtype t = a->dtype;
    const fv_kernels *k = fv_kernels_of(c, t);
    if (!fv_need(c, k && k->gemm, "gemm", t)) return;

    const void *dy = node->y->grad;
    fv_factor of_y = {dy, false, y->stride_c}, turned_y = {dy, true, y->stride_c};
    fv_factor of_a = {a->data, y->ta, y->stride_a}, turned_a = {a->data, !y->ta, y->stride_a};
    fv_factor of_b = {b->data, y->tb, y->stride_b}, turned_b = {b->data, !y->tb, y->stride_b};
    fv_sink da = fv_grad(c, a);
    if (da.data && !y->ta)
        store_product(c, k, y, fv__product(da, of_y, turned_b, y->m, y->k, y->n, t), y->stride_a);
    if (da.data && y->ta)
        store_product(c, k, y, fv__product(da, of_b, turned_y, y->k, y->m, y->n, t), y->stride_a);
    fv_sink db = fv_grad(c, b);
    if (db.data && !y->tb)
        store_product(c, k, y, fv__product(db, turned_a, of_y, y->k, y->n, y->m, t), y->stride_b);
    if (db.data && y->tb)
        store_product(c, k, y, fv__product(db, turned_y, of_a, y->n, y->k, y->m, t), y->stride_b);
}

/* The product, still without its output; false unless the inner lengths and the leading axes agree,
 * or b has none. */
static bool fit(fv_gemm *g, const fv_tensor *a, const fv_tensor *b, fv_mm opt)
{
    int na = a->shape.n, nb = b->shape.n;
    if (na < 2 || nb < 2 || (nb > 2 && nb != na)) return false;
    const int64_t *da = a->shape.d + na - 2, *db = b->shape.d + nb - 2;
    int64_t m = da[opt.ta], n = db[!opt.tb], k = da[!opt.ta], batch = 1;
    for (int i = 0; i < na - 2; i++) {
        if (nb > 2 && a->shape.d[i] != b->shape.d[i]) return false;
        batch *= a->shape.d[i];
    }
    fv_factor left = {a->data, opt.ta, m * k}, right = {b->data, opt.tb, nb > 2 ? n * k : 0};
    *g = fv__product((fv_sink){.dtype = a->dtype}, left, right, m, n, k, b->dtype);
    g->alpha = opt.alpha;
    g->batch = batch;
    g->stride_c = m * n;
    return db[opt.tb] == k;
}

fv_tensor *fv_matmul(fv_ctx *c, fv_tensor *a, fv_tensor *b, fv_mm opt)
{
    fv_gemm g;
    if (!fv_same_dtype(c, "matmul", a, b)) return NULL;
    if (!fit(&g, a, b, opt))
        return fv_raise(c, FV_ESHAPE, "matmul: a %s%s, b %s%s", fv_desc(a).s,
                        opt.ta ? " transposed" : "", fv_desc(b).s, opt.tb ? " transposed" : "");
    const fv_kernels *k = fv_kernels_of(c, a->dtype);
    if (!fv_need(c, k && k->gemm, "gemm", a->dtype)) return NULL;

    fv_shape shape = a->shape;
    shape.d[shape.n - 2] = g.m;
    shape.d[shape.n - 1] = g.n;
    fv_tensor *y = fv_new(c, a->dtype, shape);
    if (!y) return NULL;
    g.c = y->data;
    if (!g.stride_b && !g.ta) { /* one b for all rows of all a: a single tall product */
        g.m *= g.batch;
        g.batch = 1;
        g.stride_a = g.stride_c = 0;
    }
    k->gemm(fv_ctx_stream(c), &g);

    matmul *s = fv_record(c, sizeof *s, backward, y, a, b);
    if (s) s->gemm = g;
    return y;
}
