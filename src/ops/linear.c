/* linear.c - y = act(x w' + bias) in one product, and weights packed for it.
 *
 *    forward    p = x w' + bias;  y = act(p)            one kernel call, epilogue included
 *    backward   dp = act'(p) dy;  dx = dp w;  dw = dp' x;  dbias = column sums of dp
 *
 * Memory is what this file is about.  p is kept only where act' needs it, and only while
 * recording; dp overwrites p; and where x itself is the output of such a layer, dx is multiplied
 * by that layer's act' inside the product (grad_through_act), so that neither dx nor a second
 * pass over it exists. */
#include "core/blocks.h"
#include "core/core.h"
#include "core/params.h"
#include "ops/act.h"
#include "ops/adapted.h"
#include "ops/product.h"
#include "ops/split.h"
#include "ops/walk.h"
#include "fovea/author/ops.h"

typedef struct {
    fv_node node;
    fv_act act;
    bool in_out;
    void *pre;
    bool through;        /* y's gradient is p's already, and bias has its own */
    fv_tensor *residual; /* y = onto + p; the last of in, or NULL */
    int joined;          /* weights of fv__linear_joined, or 0 */
} linear;

/* The derivative of these cannot be had from y alone, so the value before them is kept.
 * relu, tanh and sigmoid have derivatives in y, so their layers keep nothing besides y. */
static bool needs_pre(fv_act act)
{
    return act == FV_GELU || act == FV_GELU_TANH || act == FV_SILU || act == FV_QUICK_GELU;
}

/* Memory of y's size that comes free once the gradient is through.
 * temp belongs to the node and is handed on when the node has run. */
static void keep(linear *s, void *block)
{
    s->pre = s->node.temp = block;
    s->node.temp_bytes = fv__tensor_bytes(s->node.y->dtype, fv_len(s->node.y));
}

/* y = act(p):  dp = act'(p) dy.  It overwrites p where p was kept.  *dbias is done with
 * where one kernel does both. */
static const void *grad_before_act(fv_ctx *c, const fv_kernels *k, linear *s, fv_sink *dbias)
{
    const fv_tensor *y = s->node.y;
    const void *p = s->pre ? s->pre : y->data;
    fv_unary_op op;
    if (s->through) *dbias = (fv_sink){0};
    if (s->through || !fv__act_op(&op, s->act)) return y->grad;
    if (!s->pre) keep(s, fv__block_alloc(c, fv__tensor_bytes(y->dtype, fv_len(y))));
    if (!s->pre || !fv_need(c, k->unary_bwd, "unary_bwd", y->dtype)) return NULL;
    if (k->unary_bwd_sums && dbias->data) {
        k->unary_bwd_sums(fv_ctx_stream(c), op, s->pre, *dbias, y->grad, p, fv_rows(y), fv_cols(y));
        *dbias = (fv_sink){0};
        return s->pre;
    }
    k->unary_bwd(fv_ctx_stream(c), op, (fv_sink){s->pre, y->dtype, false}, y->grad, p, y->data,
                 fv_len(y), 0, 0);
    return s->pre;
}

static void backward(fv_ctx *c, fv_node *node);

/* Where x = act(q) was made just before this and nobody else has read it, the product that would
 * give dx gives dq, written over q, and the gradient of q's bias.
 * Only if the maker is the node before this one, since any node in between might read x, and
 * nobody holds x.  has_grad of the bias is restored when the kernel declines: nothing was
 * written. */
static bool grad_through_act(fv_ctx *c, const fv_kernels *k, const fv_node *node, fv_gemm by_x)
{
    linear *maker = (linear *)node->prev;
    fv_tensor *x = node->in[0];
    fv_unary_op op;
    if (!k->gemm_dact || !maker || maker->node.backward != backward || maker->node.y != x ||
        x->grad || x->held)
        return false;
    fv_tensor *bias = maker->node.in[2];
    if (!maker->pre || !fv__act_op(&op, maker->act)) return false;
    bool sums = bias && bias->wants_grad, had = sums && bias->has_grad; /* not below an adapter */
    fv_sink dbias = sums ? fv_grad(c, bias) : (fv_sink){0};
    by_x.c = maker->pre;
    if ((sums && !dbias.data) || !k->gemm_dact(fv_ctx_stream(c), &by_x, op, maker->pre, dbias)) {
        if (sums) bias->has_grad = had;
        return false;
    }
    x->grad = maker->pre;
    x->has_grad = maker->through = true;
    maker->pre = maker->node.temp = NULL;
    return true;
}

/* Of tensors whose gradients are written as one: where one has a gradient already, the others get
 * zeros to add to, and all have one afterwards but the first, which fv_grad marks. */
static void level_grads(fv_ctx *c, fv_tensor *first, fv_tensor *const *rest, int n)
{
    bool any = first && first->has_grad;
    if (!first || !first->wants_grad) return;
    for (int i = 0; i < n; i++) any = any || rest[i]->has_grad;
    for (int i = -1; i < n; i++) {
        fv_tensor *t = i < 0 ? first : rest[i];
        if (any && !t->has_grad)
            c->dev->backend->zero(&c->stream, t->grad,
                                  fv__tensor_bytes(fv__grad_dtype(t), fv_len(t)));
        t->has_grad = any || i >= 0;
    }
}

/* p = x w' + bias:  dx = dp w,  dw = dp' x,  dbias = the column sums of dp */
static void backward(fv_ctx *c, fv_node *node)
{
    linear *s = (linear *)node;
    fv_tensor *x = node->in[0], *w = node->in[1], *bias = node->in[2];
    const fv_kernels *k = fv_kernels_of(c, x->dtype);
    if (!fv_need(c, k && k->gemm, "gemm", x->dtype)) return;
    if (s->joined) {
        level_grads(c, w, node->in + 3, s->joined - 1);
        level_grads(c, bias, node->in + 2 + s->joined, s->joined - 1);
    }
    fv_sink dbias = fv_grad(c, bias);
    const void *dp = grad_before_act(c, k, s, &dbias);
    if (!dp) return;

    int64_t rows = fv_rows(x), cols = fv_cols(x), n = fv_cols(node->y);
    fv_factor p = {dp, false, 0}, turned_p = {dp, true, 0}, of_w = {w->data, s->in_out, 0};
    fv_factor of_x = {x->data, false, 0}, turned_x = {x->data, true, 0};
    fv_sink dw = fv_grad(c, w);
    void *wide = NULL;
    size_t wide_bytes = fv__tensor_bytes(x->dtype, n * cols);
    if (!fv__param_fetch(c, w)) return;
    if (fv__in_blocks(w)) {
        wide = fv__block_alloc(c, wide_bytes);
        fv__blocks_widen(c, wide, x->dtype, w, n, cols);
        if (fv__failed(c)) return;
        of_w = (fv_factor){wide, false, 0};
    }
    fv_gemm by_x = fv__product((fv_sink){.dtype = x->dtype}, p, of_w, rows, cols, n, x->dtype);
    fv_gemm by_w = s->in_out ? fv__product(dw, turned_x, p, cols, n, rows, x->dtype)
                             : fv__product(dw, turned_p, of_x, n, cols, rows, x->dtype);
    fv_stream *st = fv_ctx_stream(c);
    /* dp is in a cache still */
    if (dbias.data && fv_need(c, k->colsum, "colsum", x->dtype)) k->colsum(st, dbias, dp, rows, n);
    if (!grad_through_act(c, k, node, by_x)) {
        fv_sink dx = fv_grad(c, x);
        by_x.c = dx.data, by_x.ct = dx.dtype, by_x.add = dx.add;
        if (dx.data) k->gemm(st, &by_x);
    }
    fv__param_release(w);
    if (dw.data) k->gemm(st, &by_w);
    if (wide) fv__block_free(c, wide, wide_bytes);
    /* last: it may take the gradient's memory with it */
    if (s->residual) fv_grad_pass(c, s->residual, node);
}

/* For a norm behind this layer: its backward makes dy and can sum its columns in the same pass. */
fv_sink fv__linear_bias_sums(fv_ctx *c, fv_node *n, const fv_tensor *y)
{
    linear *s = (linear *)n;
    if (!n || n->backward != backward || n->y != y || s->act != FV_ACT_NONE || !n->in[2] ||
        s->joined)
        return (fv_sink){0};
    fv_sink to = fv_grad(c, n->in[2]);
    s->through = to.data != NULL;
    return to;
}

bool fv__linear_output_unused(const fv_node *n)
{
    return n->backward == backward && ((const linear *)n)->act == FV_ACT_NONE;
}

/* A packed weight has a dtype of its own and is always described as (N,K). */
static bool fit(fv_ctx *c, const fv_tensor *x, const fv_tensor *w, const fv_tensor *bias,
                bool in_out)
{
    if (!fv_same_dtype(c, "linear", x, bias ? bias : x)) return false;
    bool wide = fv__in_blocks(w); /* it is widened for the product */
    if (!w->packed && !wide && !fv_same_dtype(c, "linear", x, w)) return false;
    int64_t in = w->shape.d[!in_out], out = w->shape.d[in_out];
    bool ok = x->shape.n > 0 && w->shape.n == 2 && in == fv_cols(x) &&
              (!bias || (bias->shape.n == 1 && bias->shape.d[0] == out));
    if (!ok)
        fv_raise(c, FV_ESHAPE, "linear: x %s, w %s stored (%s), bias %s", fv_desc(x).s,
                 fv_desc(w).s, in_out ? "in,out" : "out,in", bias ? fv_desc(bias).s : "none");
    return ok;
}

/* With a weight that is not packed yet, part by part of its rows: that many columns of C each.
 * A fused q, k, v weight whose parts still lie in the file: three products into one C, ldc
 * unchanged. */
static void run_parts(fv_ctx *c, const fv_kernels *k, fv_gemm g, const fv_tensor *w)
{
    fv_tensor *const *part;
    bool in_out;
    int n = fv__weight_parts(w, &part, &in_out);
    size_t size = fv_dtype_size(k->dtype);
    g.packed = false;
    g.tb = !in_out;
    for (int i = 0; i < n; i++) {
        g.n = part[i]->shape.d[in_out];
        g.ldb = in_out ? g.n : g.k;
        g.b = part[i]->data;
        k->gemm(fv_ctx_stream(c), &g);
        g.c = (char *)g.c + (size_t)g.n * size;
        if (g.bias) g.bias = (const char *)g.bias + (size_t)g.n * size;
        if (g.plus) g.plus = (const char *)g.plus + (size_t)g.n * size;
    }
}

/* x (..,K), w (N,K) or, in_out, (K,N), bias (N) or NULL -> (..,N); residual (..,N) or NULL is
 * added. */
static fv_tensor *apply(fv_ctx *c, fv_tensor *x, fv_tensor *w, fv_tensor *bias, fv_act act,
                        bool in_out, fv_tensor *residual)
{
    in_out = in_out && !(w && w->packed);
    if (!x || !w || !fit(c, x, w, bias, in_out)) return NULL;
    fv_unary_op op;
    if (act && !fv__act_op(&op, act))
        return fv_raise(c, FV_EARG, "linear: no activation %d", (int)act);
    const fv_kernels *k = fv_kernels_of(c, x->dtype);
    if (!fv_need(c, k && k->gemm, "gemm", x->dtype)) return NULL;

    int64_t n = w->shape.d[in_out];
    fv_shape shape = x->shape;
    shape.d[shape.n - 1] = n;
    fv_tensor *y = fv_new(c, x->dtype, shape);
    if (!y || !fv__param_fetch(c, w)) return NULL;

    /* Recorded before it runs, because only a recorded product has to keep p. */
    fv_tensor *in[] = {x, w, bias, residual};
    linear *s = fv_record_n(c, "linear", sizeof *s, w->packed ? NULL : backward, y,
                            residual ? 4 : 3, in);
    if (s) {
        s->act = act;
        s->residual = residual;
        s->in_out = in_out;
        if (needs_pre(act)) keep(s, fv_scratch(c, y->dtype, fv_len(y)));
    }
    if (fv__failed(c)) return NULL;
    bool blocks = fv__in_blocks(w);
    fv_mark mark = fv_mark_here(c);
    void *wide = blocks ? fv_scratch(c, x->dtype, n * fv_cols(x)) : NULL;
    if (blocks) fv__blocks_widen(c, wide, x->dtype, w, n, fv_cols(x));
    if (fv__failed(c)) return NULL;
    fv_factor of_x = {x->data, false, 0},
              of_w = {w->packed ? fv__weight_data(c, w) : w->data, !in_out, 0};
    if (blocks) of_w = (fv_factor){wide, true, 0};
    fv_gemm g = fv__product(fv__out(y), of_x, of_w, fv_rows(x), n, fv_cols(x),
                            blocks ? x->dtype : w->dtype);
    g.packed = w->packed;
    g.bias = bias ? bias->data : NULL;
    g.act = act;
    g.plus = residual ? residual->data : NULL;
    g.pre = s ? s->pre : NULL;
    if (g.b)
        k->gemm(fv_ctx_stream(c), &g);
    else
        run_parts(c, k, g, w);
    fv__param_release(w);
    if (blocks) fv__arena_rewind(&c->data, mark);
    return y;
}

fv_tensor *fv__linear_plain(fv_ctx *c, fv_tensor *x, fv_tensor *w, fv_tensor *bias, bool in_out)
{
    return apply(c, x, w, bias, FV_ACT_NONE, in_out, NULL);
}

/* A weight whose inputs ranks share: the bias is added once, behind the sum. */
static fv_tensor *apply_rows(fv_ctx *c, fv_tensor *x, fv_tensor *w, fv_tensor *bias, fv_act act,
                             bool in_out)
{
    fv_tensor *y = fv__split_leave(c, apply(c, x, w, NULL, FV_ACT_NONE, in_out, NULL), w);
    return fv_activate(c, bias ? fv_add(c, y, bias) : y, act);
}

fv_tensor *fv_linear(fv_ctx *c, fv_tensor *x, fv_tensor *w, fv_tensor *bias, fv_act act)
{
    const fv_adapter *a = fv__param_adapter(w);
    if (fv__weight_split(w) == FV__ROWS) return apply_rows(c, x, w, bias, act, false);
    if (a) return fv_activate(c, fv__linear_adapted(c, a, x, w, bias, false), act);
    if (act <= FV_QUICK_GELU) return apply(c, x, w, bias, act, false, NULL);
    return fv_activate(c, apply(c, x, w, bias, FV_ACT_NONE, false, NULL), act);
}

fv_tensor *fv_linear_in_out(fv_ctx *c, fv_tensor *x, fv_tensor *w, fv_tensor *bias, fv_act act)
{
    const fv_adapter *a = fv__param_adapter(w);
    if (fv__weight_split(w) == FV__ROWS) return apply_rows(c, x, w, bias, act, true);
    if (a) return fv_activate(c, fv__linear_adapted(c, a, x, w, bias, true), act);
    if (act <= FV_QUICK_GELU) return apply(c, x, w, bias, act, true, NULL);
    return fv_activate(c, apply(c, x, w, bias, FV_ACT_NONE, true, NULL), act);
}

bool fv__linear_adds(const fv_ctx *c, const fv_tensor *x, const fv_tensor *w)
{
    const fv_kernels *k = x && (unsigned)x->dtype < FV_FLOATS ? c->dev->k[x->dtype] : NULL;
    return k && k->gemm_plus && w && w->dtype == x->dtype && !fv__param_adapter(w) &&
           fv__weight_split(w) != FV__ROWS;
}

/* y = residual + x w' + bias, in one product where the device can add a matrix (gemm_plus). */
fv_tensor *fv__linear_add(fv_ctx *c, fv_tensor *residual, fv_tensor *x, fv_tensor *w,
                          fv_tensor *bias, bool in_out)
{
    if (!residual || !x || !w) return NULL;
    fv_shape shape = x->shape;
    if (shape.n > 0 && w->shape.n == 2) shape.d[shape.n - 1] = w->shape.d[in_out && !w->packed];
    bool fits = residual != x && residual->dtype == x->dtype &&
                fv_shape_same(residual->shape, shape);
    if (fits && fv__linear_adds(c, x, w))
        return apply(c, x, w, bias, FV_ACT_NONE, in_out, residual);
    return fv_add(c, residual, (in_out ? fv_linear_in_out : fv_linear)(c, x, w, bias, FV_ACT_NONE));
}

/* b's numbers, and those of its gradient, come right behind a's. */
static bool follows(const fv_tensor *a, const fv_tensor *b)
{
    size_t bytes = fv__tensor_bytes(a->dtype, fv_len(a)),
           grad_bytes = fv__tensor_bytes(fv__grad_dtype(a), fv_len(a));
    return b->dtype == a->dtype && (const char *)b->data == (const char *)a->data + bytes &&
           b->wants_grad == a->wants_grad && !a->grad == !b->grad &&
           (!a->grad || (const char *)b->grad == (const char *)a->grad + grad_bytes);
}

#define MAX_JOINED 3

/* On a CPU a weight's panel is in a cache while x is read again: nothing is gained.  train, not
 * record: a layer that is computed again for its gradients must come to the same bits. */
bool fv__linear_joins(const fv_ctx *c, const fv_tensor *x, fv_tensor *const *w, fv_tensor *const *b,
                      int n)
{
    if (!x || !c->train || fv__device_is_host(c->dev) || n > MAX_JOINED) return false;
    for (int i = 0; i < n; i++) {
        const fv_tensor *t = w[i];
        if (!t || !t->is_param || t->packed || t->dtype != x->dtype || fv__param_adapter(t) ||
            fv__weight_split(t) || fv__in_blocks(t) || ((const fv_entry *)t)->store ||
            fv_cols(t) != fv_cols(x) || !b[i] != !b[0] || (b[i] && fv_len(b[i]) != fv_dim(t, 0)))
            return false;
        if (i && (!follows(w[i - 1], t) || (b[i] && !follows(b[i - 1], b[i])))) return false;
    }
    return true;
}

fv_tensor *fv__linear_joined(fv_ctx *c, fv_tensor *x, fv_tensor *const *w, fv_tensor *const *b,
                             int n)
{
    const fv_kernels *k = x ? fv_kernels_of(c, x->dtype) : NULL;
    if (!k || !fv_need(c, k->gemm, "gemm", x->dtype)) return NULL;
    fv_tensor *in[1 + 2 * MAX_JOINED] = {x, w[0], b[0]};
    fv_shape shape = x->shape;
    int64_t columns = fv_dim(w[0], 0);
    for (int i = 1; i < n; i++) {
        in[2 + i] = w[i];
        in[1 + n + i] = b[i];
        columns += fv_dim(w[i], 0);
    }
    shape.d[shape.n - 1] = columns;
    fv_tensor *y = fv_new(c, x->dtype, shape);
    if (!y) return NULL;
    linear *s = fv_record_n(c, "linear", sizeof *s, backward, y, b[0] ? 1 + 2 * n : 2 + n, in);
    if (s) s->joined = n;
    if (fv__failed(c)) return NULL;
    fv_gemm g = fv__product(fv__out(y), (fv_factor){x->data, false, 0},
                            (fv_factor){w[0]->data, true, 0}, fv_rows(x), columns, fv_cols(x),
                            x->dtype);
    g.bias = b[0] ? b[0]->data : NULL;
    k->gemm(fv_ctx_stream(c), &g);
    return y;
}

/* A linear map without activation does not look at its output backwards, so what an adapter adds to
 * it needs no memory of its own: of GPT-2's c_attn that is as much again as q, k and v. */
fv_tensor *fv__linear_onto(fv_ctx *c, fv_tensor *y, fv_tensor *x, fv_tensor *w)
{
    if (!y || !x || !w || !fit(c, x, w, NULL, false)) return NULL;
    const fv_kernels *k = fv_kernels_of(c, x->dtype);
    if (!fv_need(c, k && k->gemm, "gemm", x->dtype)) return NULL;
    fv_tensor *z = fv_alias(c, y, y->shape), *in[] = {x, w, NULL, y};
    linear *s = fv_record_n(c, "linear", sizeof *s, backward, z, 4, in);
    if (s) s->residual = y;
    if (fv__failed(c)) return NULL;
    fv_gemm g = fv__product((fv_sink){z->data, z->dtype, true}, (fv_factor){x->data, false, 0},
                            (fv_factor){w->data, true, 0}, fv_rows(x), w->shape.d[0], fv_cols(x),
                            w->dtype);
    k->gemm(fv_ctx_stream(c), &g);
    return z;
}

/* (N,K), or (K,N) if in_out -> a tensor described as (N,K) whose bytes only this device
 * understands. It has no gradient: packed weights are for inference. */
fv_tensor *fv_pack(fv_ctx *c, fv_tensor *w, fv_dtype dtype, bool in_out)
{
    if (!fv_same_dtype(c, "pack", w, w)) return NULL;
    if (w->shape.n != 2)
        return fv_raise(c, FV_ESHAPE, "pack: a weight has two axes, not %s", fv_desc(w).s);
    const fv_kernels *k = fv_kernels_of(c, w->dtype);
    if (!fv_need(c, k && k->pack && k->pack_bytes, "pack", w->dtype)) return NULL;
    int64_t n = w->shape.d[in_out], cols = w->shape.d[!in_out];
    size_t bytes = (unsigned)dtype < FV_DTYPES ? k->pack_bytes(n, cols, dtype) : 0;
    if (!bytes)
        return fv_raise(c, FV_EDTYPE, "pack: this device cannot pack %s as %s", fv_desc(w).s,
                        fv_dtype_name(dtype));

    fv_tensor *y = fv_new(c, FV_U8, FV_SHAPE((int64_t)bytes));
    if (!y) return NULL;
    y->dtype = dtype;
    y->shape = FV_SHAPE(n, cols);
    y->packed = true;
    fv_record(c, sizeof(fv_node), NULL, y, w);
    if (fv__failed(c)) return NULL;
    k->pack(fv_ctx_stream(c), y->data, dtype, w->data, w->dtype, n, cols, w->shape.d[1], !in_out);
    return y;
}
