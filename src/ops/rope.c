/* rope.c - rotary positions: pairs of each head are rotated by pos * freq; the gradient rotates
 * back. */
#include "fovea/author/op.h"

typedef struct {
    fv_node node;
    fv_rope_opt opt;
} rope;

static void apply_rotation(fv_ctx *c, fv_sink y, const fv_tensor *x, const void *from,
                           const fv_tensor *pos, const fv_tensor *freq, fv_rope_opt opt, bool back)
{
    const fv_kernels *k = fv_kernels_of(c, x->dtype);
    if (!y.data) return;
    k->rope(fv_ctx_stream(c), y, from, pos->data, freq->data, x->shape.d[0], x->shape.d[1],
            opt.n_head, fv_cols(x) / opt.n_head, fv_len(freq), opt.adjacent, back);
}

static void backward(fv_ctx *c, fv_node *n)
{
    apply_rotation(c, fv_grad(c, n->in[0]), n->in[0], n->y->grad, n->in[1], n->in[2],
                   ((rope *)n)->opt, true);
}

fv_tensor *fv_rope(fv_ctx *c, fv_tensor *x, fv_tensor *pos, fv_tensor *freq, fv_rope_opt opt)
{
    if (!x || !pos || !freq) return NULL;
    if (pos->dtype != FV_I32 || freq->dtype != FV_F32)
        return fv_raise(c, FV_EDTYPE, "rope: positions %s and frequencies %s must be i32 and f32",
                        fv_desc(pos).s, fv_desc(freq).s);
    bool fits = x->shape.n == 3 && fv_len(pos) == fv_rows(x) && opt.n_head > 0 &&
                fv_cols(x) % opt.n_head == 0;
    if (!fits || 2 * fv_len(freq) > fv_cols(x) / opt.n_head)
        return fv_raise(c, FV_ESHAPE, "rope: x %s, positions %s, frequencies %s, %lld heads",
                        fv_desc(x).s, fv_desc(pos).s, fv_desc(freq).s, (long long)opt.n_head);
    const fv_kernels *k = fv_kernels_of(c, x->dtype);
    if (!k || !fv_need(c, k->rope, "rope", x->dtype)) return NULL;

    fv_tensor *y = fv_new(c, x->dtype, x->shape);
    if (!y) return NULL;
    apply_rotation(c, (fv_sink){y->data, y->dtype, false}, x, x->data, pos, freq, opt, false);
    rope *s = fv_record(c, sizeof *s, backward, y, x, pos, freq);
    if (s) s->opt = opt;
    return y;
}
