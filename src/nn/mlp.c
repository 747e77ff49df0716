/* mlp.c - the feed-forward part: wider, an activation or a gate, and back.
 *
 *     plain:  down(act(up x))        gated:  down(act(gate x) * up x)
 *
 * packed: gate and up are the two halves of one weight's rows, so that one product makes both. */
#include "nn/part.h"

#include "core/params.h"
#include "ops/split.h"

void fv_mlp_init(fv_params *p, fv_mlp *l, int64_t width, int64_t hidden, fv_mlp_opt opt,
                 const char *path, ...)
{
    va_list ap;
    va_start(ap, path);
    fv_path at = fv__path(path, ap);
    va_end(ap);
    const char *names = opt.names ? opt.names : "fc1 fc2";
    int gated = fv__names(names) == 3; /* the gate's name stands first */
    *l = (fv_mlp){.act = opt.act ? opt.act : FV_RELU, .packed = opt.packed};
    const int64_t piece[] = {hidden, hidden}; /* packed: gate and up */
    fv__lin_init_split(p, &l->up, width, opt.packed ? 2 * hidden : hidden, opt.lin, FV__COLUMNS,
                       piece, opt.packed ? 2 : 1, fv__named(&at, names, gated).s);
    if (gated)
        fv__lin_init_split(p, &l->gate, width, hidden, opt.lin, FV__COLUMNS, piece, 1,
                           fv__named(&at, names, 0).s);
    fv__lin_init_split(p, &l->down, hidden, width, opt.lin, FV__ROWS, piece, 1,
                       fv__named(&at, names, gated + 1).s);
    fv_param_mark_end(l->down.w, FV_ENDS_MLP);
}

fv_tensor *fv__mlp_hidden(fv_ctx *c, const fv_mlp *l, fv_tensor *x)
{
    fv_tensor *h, *half[2];
    x = fv__split_enter(c, x, l->up.w);
    if (l->packed)
        h = fv_split(c, half, fv_lin_fwd(c, &l->up, x), 2, -1)
                ? fv_mul(c, fv_activate(c, half[0], l->act), half[1])
                : NULL;
    else if (l->gate.w)
        h = fv_mul(c, fv_lin_act(c, &l->gate, x, l->act), fv_lin_fwd(c, &l->up, x));
    else
        h = fv_lin_act(c, &l->up, x, l->act);
    fv__split_masks(c, l->up.w);
    h = fv_dropout(c, h, l->dropout);
    fv__split_masks(c, l->up.w);
    return h;
}

fv_tensor *fv_mlp_fwd(fv_ctx *c, const fv_mlp *l, fv_tensor *x)
{
    return fv_lin_fwd(c, &l->down, fv__mlp_hidden(c, l, x));
}

bool fv__mlp_decode_supported(const fv_ctx *c, const fv_mlp *l, const fv_tensor *x)
{
    int64_t hidden = l->up.w ? fv_dim(l->up.w, 0) / (l->packed ? 2 : 1) : 0;
    if ((l->gate.w || l->packed) && !fv__fused_gate_supported(c, hidden, l->packed)) return false;
    if (l->gate.w && !fv__fused_linear_supported(c, x, l->gate.w)) return false;
    return l->act <= FV_QUICK_GELU && fv__fused_linear_supported(c, x, l->up.w) &&
           fv__fused_linear_supported(c, x, l->down.w);
}

/* h = act(up(norm x)), or act(gate n) * up(n) as one product of both weights. */
fv_tensor *fv__mlp_decode_hidden(fv_ctx *c, const fv_mlp *l, const fv_norm *norm, fv_tensor *x)
{
    fv_fused_linear_arg up = fv__norm_then_linear(norm, l->gate.w ? &l->gate : &l->up);
    if (l->gate.w) {
        up.up = l->up.w;
        up.up_b = l->up.b;
    }
    up.halves = l->packed;
    up.act = l->act;
    up.half = true;
    return fv__fused_linear(c, x, up);
}

fv_tensor *fv__mlp_decode(fv_ctx *c, const fv_mlp *l, fv_tensor *h, fv_residual onto)
{
    return fv__fused_linear(c, h, fv__linear_then_sum(&l->down, onto));
}

void fv_mlp_pack(fv_params *p, fv_mlp *l, fv_dtype dtype)
{
    if (l->gate.w) fv__params_side_by_side(p, l->gate.w, l->up.w, dtype);
    fv_lin_pack(p, &l->gate, dtype);
    fv_lin_pack(p, &l->up, dtype);
    fv_lin_pack(p, &l->down, dtype);
}
