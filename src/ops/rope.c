/* rope.c - rotary positions: pairs of each head are rotated by pos * freq; the gradient rotates
 * back. */
#include "fovea/author/op.h"
#include "fovea/author/ops.h"

typedef struct {
    fv_node node;
    fv_rope_opt opt;
} rope;

static void apply_rotation(fv_ctx *c, fv_sink y, const fv_tensor *x, const void *from,
                           const fv_tensor *pos, const fv_tensor *freq, fv_rope_opt opt, bool back)
{
    const fv_kernels *k = fv_kernels_of(c, x->dtype);
    if (!y.data) return;
    /* One call where all sequences share the frequencies, else one for each: the kernel knows one
     * vector of them. */
    int64_t calls = freq->shape.n == 2 ? fv_dim(freq, 0) : 1, each = fv_dim(x, 0) / calls,
            T = fv_dim(x, 1), n = each * T * fv_cols(x);
    size_t y_size = fv_dtype_size(y.dtype), x_size = fv_dtype_size(x->dtype);
    for (int64_t i = 0; i < calls; i++) {
        fv_sink to = {(char *)y.data + (size_t)(i * n) * y_size, y.dtype, y.add};
        k->rope(fv_ctx_stream(c), to, (const char *)from + (size_t)(i * n) * x_size,
                (const int32_t *)pos->data + i * each * T,
                (const float *)freq->data + i * fv_cols(freq), each, T, opt.n_head,
                fv_cols(x) / opt.n_head, fv_cols(freq), opt.adjacent, back);
    }
}

/* y = R x with R a rotation:  dx = R' dy, the rotation by the opposite angle. */
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
                fv_cols(x) % opt.n_head == 0 && fv_len(freq) > 0 &&
                (freq->shape.n == 1 || (freq->shape.n == 2 && fv_dim(freq, 0) == fv_dim(x, 0)));
    if (!fits || 2 * fv_cols(freq) > fv_cols(x) / opt.n_head)
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
