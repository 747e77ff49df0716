/* attention.c - y = softmax(scale q k' + bias) v, heads side by side, without storing the weights.
 *
 * The kernel keeps one number a row, the log-sum-exp of its scores.  Backward and the exact weights
 * of any head and rows are computed again from it.  q, k and v may lie in one tensor: then the
 * kernel reads and writes with strides. */
#include <math.h>

#include "core/core.h"
#include "ops/attention.h"
#include "ops/stat.h"

enum { Q, K, V, BIAS, REL, INPUTS };

/* A view is what a tap gets: enough to recompute any rows of the weights while q, k and lse are
 * alive. It costs a struct, not a (B,H,Tq,Tk) tensor, so taps may stay on in production. */
struct fv_attn_view {
    fv_attn_args args;
    fv_dtype dtype;
    fv_attn_role role;
    fv_tensor *in[INPUTS]; /* those there are; K and V are NULL where Q holds all three */
};

typedef struct {
    fv_node node;
    const fv_attn_view *view;
} attention;

/* One part of a packed tensor's gradient. */
static fv_sink part(fv_sink s, int64_t from)
{
    if (s.data) s.data = (char *)s.data + (size_t)from * fv_dtype_size(s.dtype);
    return s;
}

/* The same tensor as two inputs: their gradients go to the same memory, one after the other.
 * The kernel writes dq, dk and dv at once; where two of them are one tensor the second must add
 * to the first, so the kernel runs once for each: more work, for a case that only tests and odd
 * models have. */
static bool shared(const fv_attn_view *v)
{
    for (int i = 0; i < INPUTS; i++)
        for (int j = 0; j < i; j++)
            if (v->in[i] && v->in[i] == v->in[j]) return true;
    return false;
}

/* y = softmax(scale q k' + bias) v:  dv = P' dy,  dP = dy v',  dS = P (dP - rowsum(dy y)), dq =
 * scale dS k,  dk = scale dS' q,  dbias = dS summed over the axes it was broadcast along. */
static void backward(fv_ctx *c, fv_node *n)
{
    const fv_attn_view *v = ((const attention *)n)->view;
    const fv_attn_args *a = &v->args;
    const fv_kernels *k = fv_kernels_of(c, v->dtype);
    if (!k || !fv_need(c, k->attention_bwd, "attention_bwd", v->dtype)) return;
    fv_attn_grads g = {.dy = n->y->grad};
    fv_sink *to[INPUTS] = {&g.dq, &g.dk, &g.dv, &g.dbias, &g.drel};
    bool apart = shared(v);
    for (int i = 0; i < INPUTS; i++) {
        *to[i] = fv_grad(c, v->in[i]);
        if (!apart || !to[i]->data) continue;
        k->attention_bwd(fv_ctx_stream(c), a, &g);
        *to[i] = (fv_sink){0};
    }
    if (apart) return;
    if (!v->in[K]) {
        g.dk = part(g.dq, a->H * a->Wk);
        g.dv = part(g.dq, (a->H + a->G) * a->Wk);
    }
    k->attention_bwd(fv_ctx_stream(c), a, &g);
}

/* ---- checks ---- */

/* Strides of a mask or bias of shape (B|1,H|1,Tq|1,Tk), leading axes may be missing; false if it is
 * none.
 *    (Tq,Tk)          strides 0, 0, Tk          one mask for all
 *    (B,1,1,Tk)       strides Tk, 0, 0          key padding
 *    (1,H,Tq,Tk)      strides 0, Tq*Tk, Tk      a bias by head, as ALiBi's */
static bool grid(int64_t s[3], const fv_tensor *t, const fv_attn_args *a)
{
    const int64_t want[3] = {a->B, a->H, a->Tq};
    int missing = 4 - t->shape.n;
    if (missing < 0 || t->shape.n < 1 || fv_cols(t) != a->Tk) return false;
    int64_t step = a->Tk;
    for (int i = 2; i >= 0; i--) {
        int64_t len = i < missing ? 1 : t->shape.d[i - missing];
        if (len != 1 && len != want[i]) return false;
        s[i] = len == 1 ? 0 : step;
        step *= len;
    }
    return true;
}

static bool is(const fv_tensor *t, fv_dtype type, fv_shape s)
{
    return !t || (t->dtype == type && fv_shape_same(t->shape, s));
}

static bool bad(fv_ctx *c, const char *what, const fv_tensor *t, const fv_attn_args *a)
{
    fv_raise(c, FV_ESHAPE, "attention: %s is %s, with B %lld, H %lld, Tq %lld, Tk %lld", what,
             fv_desc(t).s, (long long)a->B, (long long)a->H, (long long)a->Tq, (long long)a->Tk);
    return false;
}

/* The optional inputs. */
static bool extras(fv_ctx *c, fv_attn_args *a, fv_dtype t, const fv_attn *o)
{
    if (!is(o->lens, FV_I32, FV_SHAPE(a->B))) return bad(c, "lens", o->lens, a);
    if (!is(o->key_mask, FV_U8, FV_SHAPE(a->B, a->Tk))) return bad(c, "key_mask", o->key_mask, a);
    if (o->mask && (o->mask->dtype != FV_U8 || !grid(a->mask_s, o->mask, a)))
        return bad(c, "mask", o->mask, a);
    if (o->bias && (o->bias->dtype != t || !grid(a->bias_s, o->bias, a)))
        return bad(c, "bias", o->bias, a);
    if (o->rel && (o->rel->dtype != t || o->rel->shape.n != 2 || o->rel->shape.d[0] != a->H))
        return bad(c, "rel", o->rel, a);
    if (o->rel) a->rel_len = o->rel->shape.d[1];
    if (o->rel && (o->rel_zero < 0 || o->rel_zero >= a->rel_len))
        return bad(c, "rel, with rel_zero outside it,", o->rel, a);
    if (!(o->dropout >= 0 && o->dropout < 1) || o->window < 0 || !isfinite(o->scale)) {
        fv_raise(c, FV_EARG, "attention: dropout %g, window %lld, scale %g", (double)o->dropout,
                 (long long)o->window, (double)o->scale);
        return false;
    }
    a->lens = o->lens ? o->lens->data : NULL;
    a->key_mask = o->key_mask ? o->key_mask->data : NULL;
    a->mask = o->mask ? o->mask->data : NULL;
    a->bias = o->bias ? o->bias->data : NULL;
    a->rel = o->rel ? o->rel->data : NULL;
    a->rel_zero = o->rel_zero;
    a->causal = o->causal;
    /* one of all keys is none: kernels may count in 32 bits */
    a->window = o->window < a->Tk ? o->window : 0;
    a->scale = o->scale;
    return true;
}

/* ---- forward ---- */

/* lse takes two numbers a row, (max, sum), in the statistics' dtype: f32 for 16-bit models. */
static fv_tensor *run(fv_ctx *c, fv_attn_view *v, const fv_attn *o)
{
    fv_attn_args *a = &v->args;
    const fv_kernels *k = fv_kernels_of(c, v->dtype);
    if (!k || !fv_need(c, k->attention, "attention", v->dtype) || !extras(c, a, v->dtype, o))
        return NULL;
    if (o->dropout > 0 && fv_ctx_training(c)) {
        a->dropout = o->dropout;
        a->rng = fv_next_rng(c);
    }
    v->in[BIAS] = o->bias;
    v->in[REL] = o->rel;
    fv_tensor *y = fv_new(c, v->dtype, FV_SHAPE(a->B, a->Tq, a->H * a->Wv));
    a->lse = fv_scratch(c, fv__stat_dtype(v->dtype), 2 * a->B * a->H * a->Tq);
    if (!y || !a->lse) return NULL;
    a->y = y->data;
    k->attention(fv_ctx_stream(c), a);

    if (c->record) { /* the view outlives the call */
        fv_attn_view *kept = fv__arena_alloc(&c->host, sizeof *kept);
        if (!kept) return fv_raise(c, FV_ENOMEM, "attention: out of memory");
        *kept = *v;
        v = kept;
    }
    attention *s = fv_record_n(c, "attention", sizeof *s, backward, y, INPUTS, v->in);
    if (s) s->view = v;
    fv_tap(c, "attention", o->name, v);
    fv_tap(c, "attention_output", o->name, y);
    return y;
}

static bool heads(fv_ctx *c, fv_attn_args *a, const fv_attn *o)
{
    a->H = o->n_head;
    a->G = o->n_kv_head ? o->n_kv_head : o->n_head;
    if (a->H >= 1 && a->G >= 1 && a->H % a->G == 0) return true;
    fv_raise(c, FV_EARG, "attention: %lld heads cannot share %lld key heads", (long long)a->H,
             (long long)a->G);
    return false;
}

static fv_attn_role role_of(const fv_attn *o)
{
    return o->causal && o->role == FV_ATTN_SELF ? FV_ATTN_CAUSAL : o->role;
}

fv_tensor *fv_attention(fv_ctx *c, fv_tensor *q, fv_tensor *k, fv_tensor *v, fv_attn o)
{
    fv_attn_view view = {0};
    fv_attn_args *a = &view.args;
    if (!q || !k || !v || !heads(c, a, &o) || !fv_same_dtype(c, "attention", q, k) ||
        !fv_same_dtype(c, "attention", q, v))
        return NULL;
    bool three = q->shape.n == 3 && k->shape.n == 3 && v->shape.n == 3;
    if (!three || fv_dim(k, 0) != fv_dim(q, 0) || fv_dim(v, 0) != fv_dim(q, 0) ||
        fv_dim(k, 1) != fv_dim(v, 1) || fv_cols(q) % a->H || fv_cols(k) % a->G ||
        fv_cols(v) % a->G || fv_cols(q) / a->H != fv_cols(k) / a->G || !fv_cols(q) || !fv_cols(v))
        return fv_raise(c, FV_ESHAPE,
                        "attention: q %s, k %s, v %s with %lld heads and %lld key heads",
                        fv_desc(q).s, fv_desc(k).s, fv_desc(v).s, (long long)a->H, (long long)a->G);
    view.dtype = q->dtype;
    a->B = fv_dim(q, 0), a->Tq = fv_dim(q, 1), a->Tk = fv_dim(k, 1);
    a->Wk = fv_cols(q) / a->H, a->Wv = fv_cols(v) / a->G;
    a->q = q->data, a->k = k->data, a->v = v->data;
    a->q_row = fv_cols(q), a->k_row = fv__row_step(k), a->v_row = fv__row_step(v);
    a->q_batch = a->Tq * a->q_row;
    a->k_batch = fv__batch_step(k), a->v_batch = fv__batch_step(v);
    view.role = role_of(&o);
    view.in[Q] = q, view.in[K] = k, view.in[V] = v;
    return run(c, &view, &o);
}

/*    a row of qkv:  [ q of H heads | k of G heads | v of G heads ]   each head W wide
 *
 * What one fused projection gives; q, k and v are addresses and strides into it, nothing is
 * split. */
fv_tensor *fv_attention_packed(fv_ctx *c, fv_tensor *qkv, fv_attn o)
{
    fv_attn_view view = {0};
    fv_attn_args *a = &view.args;
    if (!qkv || !heads(c, a, &o) || !fv_same_dtype(c, "attention", qkv, qkv)) return NULL;
    int64_t parts = a->H + 2 * a->G;
    if (qkv->shape.n != 3 || fv_cols(qkv) % parts || !fv_cols(qkv))
        return fv_raise(c, FV_ESHAPE,
                        "attention: %s does not hold q of %lld heads, k and v of %lld",
                        fv_desc(qkv).s, (long long)a->H, (long long)a->G);
    view.dtype = qkv->dtype;
    a->B = fv_dim(qkv, 0), a->Tq = a->Tk = fv_dim(qkv, 1);
    a->Wk = a->Wv = fv_cols(qkv) / parts;
    size_t size = fv_dtype_size(qkv->dtype);
    a->q = qkv->data;
    a->k = (const char *)qkv->data + (size_t)(a->H * a->Wk) * size;
    a->v = (const char *)qkv->data + (size_t)((a->H + a->G) * a->Wk) * size;
    a->q_row = a->k_row = a->v_row = fv_cols(qkv);
    a->q_batch = a->k_batch = a->v_batch = a->Tq * fv_cols(qkv);
    view.role = role_of(&o);
    view.in[Q] = qkv;
    return run(c, &view, &o);
}

fv__attn_inputs fv__attn_view_inputs(fv_ctx *c, const fv_attn_view *v)
{
    const fv_attn_args *a = &v->args;
    fv__attn_inputs in = {v->in[Q], v->in[K], a->H, a->G, a->scale};
    if (in.scale == 0) in.scale = (float)(1 / sqrt((double)a->Wk));
    if (in.k) return in;
    in.q = fv_slice(c, v->in[Q], 2, 0, a->H * a->Wk);
    in.k = fv_slice(c, v->in[Q], 2, a->H * a->Wk, (a->H + a->G) * a->Wk);
    return in;
}

fv_tensor *fv__attn_view_values(fv_ctx *c, const fv_attn_view *v)
{
    int64_t from = (v->args.H + v->args.G) * v->args.Wk;
    return v->in[V] ? v->in[V] : fv_slice(c, v->in[Q], 2, from, fv_cols(v->in[Q]));
}

/* ---- exact weights ---- */

/* Backward gives memory back as it goes; what the weights are made of may be gone.
 * v is not asked for: weights need q, k, bias and lse only. */
static const fv_tensor *gone(const fv_attn_view *v)
{
    for (int i = 0; i < INPUTS; i++) {
        const fv_tensor *t = v->in[i];
        if (t && i != V && (t->released || (t->base && t->base->released))) return t;
    }
    return NULL;
}

fv_shape fv_attn_view_shape(const fv_attn_view *v)
{
    return FV_SHAPE(v->args.B, v->args.H, v->args.Tq, v->args.Tk);
}

fv_attn_role fv_attn_view_role(const fv_attn_view *v) { return v->role; }

/* Whether that can be asked of the view. */
static bool askable(fv_ctx *c, const fv_attn_view *v, fv_dtype t, int64_t b, int64_t head,
                    int64_t from, int64_t to)
{
    const fv_attn_args *a = &v->args;
    if (b < 0 || b >= a->B || head < 0 || head >= a->H || from < 0 || to < from || to > a->Tq)
        fv_raise(c, FV_EARG,
                 "attention weights: sequence %lld, head %lld, rows %lld to %lld of B %lld, H "
                 "%lld, Tq %lld",
                 (long long)b, (long long)head, (long long)from, (long long)to, (long long)a->B,
                 (long long)a->H, (long long)a->Tq);
    else if (t != v->dtype && t != fv__stat_dtype(v->dtype))
        fv_raise(c, FV_EDTYPE, "attention weights: %s where q, k and v are %s; expected that or %s",
                 fv_dtype_name(t), fv_dtype_name(v->dtype),
                 fv_dtype_name(fv__stat_dtype(v->dtype)));
    else if (gone(v))
        fv_raise(
            c, FV_ESTATE,
            "attention weights: backward has released %s; ask before it, or fv_hold that tensor",
            fv_desc(gone(v)).s);
    else
        return true;
    return false;
}

/* -> (to - from, Tk), of the context's step; NULL with the context's error where it cannot be
 * had. */
fv_tensor *fv_attn_view_map(fv_ctx *c, const fv_attn_view *v, fv_dtype t, int64_t b, int64_t head,
                            int64_t from, int64_t to)
{
    const fv_kernels *k = fv_kernels_of(c, v->dtype);
    if (!k || !fv_need(c, k->attention_weights, "attention_weights", v->dtype) ||
        !askable(c, v, t, b, head, from, to))
        return NULL;
    fv_tensor *w = fv_new(c, t, FV_SHAPE(to - from, v->args.Tk));
    if (w)
        k->attention_weights(fv_ctx_stream(c), (fv_sink){w->data, t, false}, &v->args, b, head,
                             from, to);
    return w;
}

void fv__attn_view_write(fv_ctx *c, const fv_attn_view *v, float *out, int64_t b, int64_t head,
                         int64_t from, int64_t to)
{
    const fv_kernels *k = fv_kernels_of(c, v->dtype);
    if (k && fv_need(c, k->attention_weights, "attention_weights", v->dtype) &&
        askable(c, v, FV_F32, b, head, from, to))
        k->attention_weights(fv_ctx_stream(c), (fv_sink){out, FV_F32, false}, &v->args, b, head,
                             from, to);
}

bool fv__attn_lists_rows(const fv_device *d, fv_dtype t)
{
    return (unsigned)t < FV_FLOATS && d->k[t] && d->k[t]->attention_rows;
}

void fv__attn_view_write_rows(fv_ctx *c, const fv_attn_view *v, float *out,
                              const fv_weights_job *jobs, int64_t n)
{
    const fv_kernels *k = fv_kernels_of(c, v->dtype);
    if (k && fv_need(c, k->attention_rows, "attention_rows", v->dtype))
        k->attention_rows(fv_ctx_stream(c), out, &v->args, jobs, n);
}

fv_status fv_attn_view_weights(fv_ctx *c, const fv_attn_view *v, int64_t b, int64_t head,
                               int64_t from, int64_t to, float *host)
{
    fv_mark mark = fv_mark_here(c);
    fv_tensor *w = fv_attn_view_map(c, v, fv__stat_dtype(v->dtype), b, head, from, to);
    if (!w) return fv_ctx_err(c)->code;
    fv_status st = fv_read(c, w, host, fv_len(w));
    fv__arena_rewind(&c->data, mark);
    return st;
}

/* n rows of width W that lie `row` elements apart. */
static bool read_rows(fv_ctx *c, const fv_attn_view *v, const void *data, int64_t at, int64_t row,
                      int64_t n, float *host)
{
    int64_t W = v->args.Wk;
    fv_tensor one = {.shape = FV_SHAPE(W), .dtype = v->dtype};
    for (int64_t i = 0; i < n; i++) {
        one.data = (char *)(uintptr_t)data + (size_t)(at + i * row) * fv_dtype_size(v->dtype);
        if (fv_read(c, &one, host + i * W, W)) return false;
    }
    return true;
}

int64_t fv__attn_view_vectors(fv_ctx *c, const fv_attn_view *v, int64_t b, int64_t head, float *q,
                              float *k, float *scale)
{
    const fv_attn_args *a = &v->args;
    int64_t W = a->Wk, key_head = head / (a->H / a->G);
    if (!askable(c, v, v->dtype, b, head, 0, a->Tq)) return 0;
    if (q && !read_rows(c, v, a->q, b * a->q_batch + head * W, a->q_row, a->Tq, q)) return 0;
    if (k && !read_rows(c, v, a->k, b * a->k_batch + key_head * W, a->k_row, a->Tk, k)) return 0;
    *scale = a->scale > 0 ? a->scale : (float)(1 / sqrt((double)W));
    return W;
}
