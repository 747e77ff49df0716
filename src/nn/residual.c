/* residual.c - what a layer adds to the stream that runs past it, with the norm beside each sum.
 *
 *   pre-norm:   x + drop(f(norm(x)))      the sum and the next part's norm are one pass
 *   post-norm:  norm(x + drop(f(x)))      the sum and its own norm are one pass
 *   parallel:   x + f(norm(x)) + g(norm'(x))
 *
 * Each function here is two or three ops that a family could call itself; which of the equal ways
 * is the fastest is the ops' knowledge: whether a product can add what it makes (fv__linear_adds),
 * and whether a step of one token has fused kernels (fv__fused_linear_supported).  The alternative
 * that lost is one generic layer with an option for each family: it grew to forty of them, and no
 * family could be read alone. */
#include "core/core.h"
#include "nn/part.h"
#include "ops/product.h"

static bool drops(const fv_ctx *c, float dropout) { return c->train && dropout > 0; }

/* l(x) can be added in the product itself.  A packed weight adds too, but there the sum and the
 * norm behind it are faster together. */
static bool adds(const fv_ctx *c, const fv_lin *l, const fv_tensor *x, float dropout)
{
    return fv__linear_adds(c, x, l->w) && !l->w->packed && !drops(c, dropout);
}

fv_tensor *fv_mha_add_norm(fv_ctx *c, const fv_mha *l, fv_tensor **x, fv_tensor *h, fv_mha_arg arg,
                           float dropout, const fv_norm *norm)
{
    if (adds(c, &l->out, *x, dropout)) {
        *x = fv__lin_add(c, &l->out, *x, fv__mha_heads(c, l, h, arg));
        return fv_norm_fwd(c, norm, *x);
    }
    return fv_norm_add(c, norm, x, *x, fv_dropout(c, fv_mha_fwd(c, l, h, arg), dropout));
}

fv_tensor *fv_mlp_add(fv_ctx *c, const fv_mlp *l, fv_tensor *x, fv_tensor *h, float dropout)
{
    if (adds(c, &l->down, x, dropout)) return fv__lin_add(c, &l->down, x, fv__mlp_hidden(c, l, h));
    return fv_add(c, x, fv_dropout(c, fv_mlp_fwd(c, l, h), dropout));
}

/* In post-norm layers only the long sum of the last product hides that x is read, so the norm
 * behind it is faster alone; what is recorded would keep one tensor more. */
fv_tensor *fv_mlp_norm(fv_ctx *c, const fv_mlp *l, fv_tensor *x, float dropout, const fv_norm *norm)
{
    if (!c->record && !c->train && fv__linear_adds(c, x, l->down.w))
        return fv_norm_fwd(c, norm, fv__lin_add(c, &l->down, x, fv__mlp_hidden(c, l, x)));
    return fv_norm_add(c, norm, NULL, x, fv_dropout(c, fv_mlp_fwd(c, l, x), dropout));
}

/* One token of each sequence, by the device's fused kernels, which know no gain of 1 + w. */
static bool decodes(const fv_ctx *c, const fv_norm *attn_norm, const fv_mha *attn,
                    const fv_norm *mlp_norm, const fv_mlp *mlp, const fv_tensor *x,
                    const fv_mha_arg *arg)
{
    return !attn_norm->plus_one && !mlp_norm->plus_one &&
           fv__mha_decode_supported(c, attn, x, arg) && fv__mlp_decode_supported(c, mlp, x);
}

/* x += attn(norm x);  x += mlp(norm x) */
fv_tensor *fv_pre_norm(fv_ctx *c, const fv_norm *attn_norm, const fv_mha *attn,
                       const fv_norm *mlp_norm, const fv_mlp *mlp, fv_tensor *x, fv_mha_arg arg,
                       float dropout)
{
    if (decodes(c, attn_norm, attn, mlp_norm, mlp, x, &arg)) {
        x = fv__mha_decode(c, attn, attn_norm, x, arg, (fv_residual){.x = x});
        return fv__mlp_decode(c, mlp, fv__mlp_decode_hidden(c, mlp, mlp_norm, x),
                              (fv_residual){.x = x});
    }
    fv_tensor *h = fv_norm_fwd(c, attn_norm, x);
    h = fv_mha_add_norm(c, attn, &x, h, arg, dropout, mlp_norm);
    return fv_mlp_add(c, mlp, x, h, dropout);
}

/* x += attn(norm x);  x += cross(norm x, memory);  x += mlp(norm x) */
fv_tensor *fv_pre_norm_cross(fv_ctx *c, const fv_norm *attn_norm, const fv_mha *attn,
                             const fv_norm *cross_norm, const fv_mha *cross,
                             const fv_norm *mlp_norm, const fv_mlp *mlp, fv_tensor *x,
                             fv_mha_arg arg, fv_mha_arg cross_arg, float dropout)
{
    if (decodes(c, attn_norm, attn, mlp_norm, mlp, x, &arg) && !cross_norm->plus_one &&
        fv__mha_decode_supported(c, cross, x, &cross_arg)) {
        x = fv__mha_decode(c, attn, attn_norm, x, arg, (fv_residual){.x = x});
        x = fv__mha_decode(c, cross, cross_norm, x, cross_arg, (fv_residual){.x = x});
        return fv__mlp_decode(c, mlp, fv__mlp_decode_hidden(c, mlp, mlp_norm, x),
                              (fv_residual){.x = x});
    }
    fv_tensor *h = fv_norm_fwd(c, attn_norm, x);
    h = fv_mha_add_norm(c, attn, &x, h, arg, dropout, cross_norm);
    h = fv_mha_add_norm(c, cross, &x, h, cross_arg, dropout, mlp_norm);
    return fv_mlp_add(c, mlp, x, h, dropout);
}

bool fv__post_norm_decodes(const fv_ctx *c, const fv_mha *attn, const fv_mha *cross,
                           const fv_mlp *mlp, const fv_tensor *x, const fv_mha_arg *arg,
                           const fv_mha_arg *cross_arg)
{
    return fv__mha_decode_supported(c, attn, x, arg) &&
           fv__mha_decode_supported(c, cross, x, cross_arg) && fv__mlp_decode_supported(c, mlp, x);
}

/* A norm is computed twice, by the product that reads the sum and by the one that is added to it:
 * each has other work to wait for, and as a kernel of its own the norm would be waited for. */
fv_tensor *fv__post_norm_decode(fv_ctx *c, const fv_mha *attn, const fv_norm *attn_norm,
                                const fv_mha *cross, const fv_norm *cross_norm, const fv_mlp *mlp,
                                fv_residual x, fv_mha_arg arg, fv_mha_arg cross_arg)
{
    x = (fv_residual){fv__mha_decode(c, attn, x.norm, x.x, arg, x), attn_norm};
    x = (fv_residual){fv__mha_decode(c, cross, x.norm, x.x, cross_arg, x), cross_norm};
    return fv__mlp_decode(c, mlp, fv__mlp_decode_hidden(c, mlp, x.norm, x.x), x);
}

/* x += attn(norm x) + mlp(norm' x) */
fv_tensor *fv_parallel(fv_ctx *c, const fv_norm *attn_norm, const fv_mha *attn,
                       const fv_norm *mlp_norm, const fv_mlp *mlp, fv_tensor *x, fv_mha_arg arg,
                       float dropout)
{
    if (decodes(c, attn_norm, attn, mlp_norm, mlp, x, &arg)) {
        fv_tensor *h = fv__mlp_decode_hidden(c, mlp, mlp_norm, x); /* before x changes */
        x = fv__mha_decode(c, attn, attn_norm, x, arg, (fv_residual){.x = x});
        return fv__mlp_decode(c, mlp, h, (fv_residual){.x = x});
    }
    fv_tensor *h = fv_norm_fwd(c, attn_norm, x), *n = fv_norm_fwd(c, mlp_norm, x);
    x = fv_add(c, x, fv_dropout(c, fv_mha_fwd(c, attn, h, arg), dropout));
    return fv_mlp_add(c, mlp, x, n, dropout);
}

fv_tensor *fv_drop_path(fv_ctx *c, fv_tensor *x, float p)
{
    if (!x || !drops(c, p)) return x;
    fv_shape one = {.n = x->shape.n};
    for (int i = 0; i < one.n; i++) one.d[i] = i ? 1 : x->shape.d[0];
    return fv_mul(c, x, fv_dropout(c, fv_cast(c, fv_full(c, one, 1), x->dtype), p));
}

/* ---- a block that is computed twice, where the context asks for it ---- */

typedef struct again {
    fv_layer_fn *fn;
    const void *block;
    fv_mha_arg self, cross;
} again;

static fv_tensor *run_again(fv_ctx *c, void *user, fv_tensor *x)
{
    const again *a = user;
    return a->fn(c, a->block, x, a->self, a->cross);
}

fv_tensor *fv_layer_run(fv_ctx *c, fv_layer_fn *fn, const void *block, fv_tensor *x,
                        fv_mha_arg self, fv_mha_arg cross)
{
    if (!c->recompute || !c->record || self.kv) return fn(c, block, x, self, cross);
    again *a = fv__arena_alloc(&c->host, sizeof *a); /* it lives until backward */
    if (!a) return fv_raise(c, FV_ENOMEM, "block: out of memory");
    *a = (again){fn, block, self, cross};
    return fv_checkpoint(c, run_again, a, x);
}
