/* rel_shift.c - Transformer-XL's relative shift: y[i,j] = x[i, j + T-1-i] where that exists, 0
 * elsewhere.
 *
 * Row i moves left by T-1-i.  With T-1 zeros behind every row, element (i, j + T-1-i) of the wider
 * z lies at (T-1) + i (L+T-2) + j: a copy whose rows are one element shorter, and the zeros come by
 * themselves.  The usual trick of padding one column and reshaping leaves other rows' values where
 * the zeros belong. */
#include "core/core.h"
#include "ops/rel_shift.h"
#include "ops/walk.h"
#include "fovea/author/ops.h"

typedef struct {
    int64_t lead, T, L, wide;
} sizes;

static sizes sizes_of(const fv_tensor *x)
{
    int64_t T = x->shape.d[x->shape.n - 2], L = fv_cols(x);
    return (sizes){T ? fv_rows(x) / T : 0, T, L, L + T - 1};
}

/* Rows of x and of z. */
static fv_walk rows_walk(sizes s)
{
    return (fv_walk){.n = 2, .shape = {s.lead * s.T, s.L}, .y = {s.wide, 1}, .a = {s.L, 1}};
}

/* Rows of y and the slanted rows of z, which begin at its element T-1.
 *    T = 3, L = 3:   z rows of 5      [ a b c 0 0 ]      y = [ c 0 0 ]    starts at element 2,
 *                                     [ d e f 0 0 ]          [ e f 0 ]    and each row one element
 *                                     [ g h i 0 0 ]          [ g h i ]    earlier in its own */
static fv_walk slant_walk(sizes s)
{
    return (fv_walk){.n = 3,
                     .shape = {s.lead, s.T, s.L},
                     .y = {s.T * s.L, s.L, 1},
                     .a = {s.T * s.wide, s.wide - 1, 1}};
}

static fv_walk exchanged(fv_walk w)
{
    fv_walk back = w;
    memcpy(back.y, w.a, sizeof back.y);
    memcpy(back.a, w.y, sizeof back.a);
    return back;
}

/* from -> z -> to.  z is given back at once: what follows on the stream may overwrite it. */
static void through(fv_ctx *c, fv_sink to, const void *from, sizes s, fv_dtype t, bool back)
{
    const fv_kernels *k = fv_kernels_of(c, t);
    fv_mark mark = fv_mark_here(c);
    int64_t n = s.lead * s.T * s.wide;
    char *z = to.data && fv_need(c, k && k->copy, "copy", t) ? fv_scratch(c, t, n) : NULL;
    if (!z) return;
    size_t first = (size_t)(s.T - 1) * fv_dtype_size(t);
    fv_walk in = back ? exchanged(slant_walk(s)) : rows_walk(s),
            out = back ? exchanged(rows_walk(s)) : slant_walk(s);
    fv__walk_join(&in);
    fv__walk_join(&out);
    fv__clear(c, (fv_sink){z, t, false}, n);
    k->copy(fv_ctx_stream(c), (fv_sink){back ? z + first : z, t, false}, from, &in);
    k->copy(fv_ctx_stream(c), to, back ? z : z + first, &out);
    fv__arena_rewind(&c->data, mark);
}

static void backward(fv_ctx *c, fv_node *n)
{
    fv_tensor *x = n->in[0];
    through(c, fv_grad(c, x), n->y->grad, sizes_of(x), x->dtype, true);
}

fv_tensor *fv_rel_shift(fv_ctx *c, fv_tensor *x)
{
    if (!fv_same_dtype(c, "rel_shift", x, x)) return NULL;
    if (x->shape.n < 2)
        return fv_raise(c, FV_ESHAPE, "rel_shift: %s has fewer than two axes", fv_desc(x).s);
    fv_tensor *y = fv_new(c, x->dtype, x->shape);
    if (!y) return NULL;
    through(c, fv__out(y), x->data, sizes_of(x), x->dtype, false);
    fv_record(c, sizeof(fv_node), backward, y, x);
    return y;
}

/* ---- scores that are wide enough already ---- */

/* Slanted rows of x (H,B,T,wide), which begin at its element T-1, as rows of (B,H,T,L). */
static fv_walk bias_walk(fv_shape x, int64_t L)
{
    int64_t H = x.d[0], B = x.d[1], T = x.d[2], wide = x.d[3];
    return (fv_walk){.n = 4,
                     .shape = {B, H, T, L},
                     .y = {H * T * L, T * L, L, 1},
                     .a = {T * wide, B * T * wide, wide - 1, 1}};
}

/* Elements of x that no y reads get the gradient 0. */
static void bias_backward(fv_ctx *c, fv_node *n)
{
    fv_tensor *x = n->in[0];
    const fv_kernels *k = fv_kernels_of(c, x->dtype);
    fv_sink to = fv_grad(c, x);
    if (!to.data || !fv_need(c, k && k->copy, "copy", x->dtype)) return;
    fv_walk back = exchanged(bias_walk(x->shape, fv_cols(n->y)));
    fv__walk_join(&back);
    if (!to.add) fv__clear(c, to, fv_len(x));
    to.data = (char *)to.data + (size_t)(x->shape.d[2] - 1) * fv_dtype_size(to.dtype);
    k->copy(fv_ctx_stream(c), to, n->y->grad, &back);
}

fv_tensor *fv__rel_bias(fv_ctx *c, fv_tensor *x)
{
    if (!fv_same_dtype(c, "rel_bias", x, x)) return NULL;
    if (x->shape.n != 4 || x->shape.d[3] <= x->shape.d[2] || !x->shape.d[2])
        return fv_raise(c, FV_ESHAPE, "rel_bias: %s, expected (H,B,T,L+T)", fv_desc(x).s);
    const fv_kernels *k = fv_kernels_of(c, x->dtype);
    int64_t H = x->shape.d[0], B = x->shape.d[1], T = x->shape.d[2], L = fv_cols(x) - T;
    if (!fv_need(c, k && k->copy, "copy", x->dtype)) return NULL;
    fv_tensor *y = fv_new(c, x->dtype, FV_SHAPE(B, H, T, L));
    if (!y) return NULL;
    fv_walk out = bias_walk(x->shape, L);
    fv__walk_join(&out);
    const char *first = (const char *)x->data + (size_t)(T - 1) * fv_dtype_size(x->dtype);
    k->copy(fv_ctx_stream(c), fv__out(y), first, &out);
    fv_record(c, sizeof(fv_node), bias_backward, y, x);
    return y;
}
