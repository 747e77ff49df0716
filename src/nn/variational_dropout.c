/* variational_dropout.c - one mask for all tokens of a sequence: y[t] = x[t] mask / (1 - p).
 *
 * A token's neighbours do not show what its own mask hides, so rates may be high.  Paper: Gal and
 * Ghahramani 2016 (arXiv:1512.05287). */
#include "nn/part.h"

fv_tensor *fv__variational_dropout(fv_ctx *c, fv_tensor *x, float p)
{
    if (!x || p == 0 || !fv_ctx_training(c)) return x;
    if (x->shape.n < 2)
        return fv_raise(c, FV_ESHAPE, "variational dropout: x %s has no tokens", fv_desc(x).s);
    fv_shape mask = x->shape;
    mask.d[mask.n - 2] = 1;
    return fv_mul(c, x, fv_dropout(c, fv_full(c, mask, 1), p));
}
