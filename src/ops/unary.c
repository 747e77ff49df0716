/* unary.c - y = f(x), element by element: activations, roots, logarithms, and by * x + plus. */
#include "ops/act.h"
#include "fovea/author/ops.h"

typedef struct {
    fv_node node;
    fv_unary_op op;
    float p0, p1;
} unary;

/* dx = f'(x) dy; each f' is written in x or in y, whichever is cheaper */
static void backward(fv_ctx *c, fv_node *n)
{
    const unary *u = (const unary *)n;
    fv_tensor *x = n->in[0];
    const fv_kernels *k = fv_kernels_of(c, x->dtype);
    if (!fv_need(c, k && k->unary_bwd, "unary_bwd", x->dtype)) return;
    k->unary_bwd(fv_ctx_stream(c), u->op, fv_grad(c, x), n->y->grad, x->data, n->y->data, fv_len(x),
                 u->p0, u->p1);
}

/* Any shape in, the same shape out.  x stays alive until backward wherever f' is written in x. */
static fv_tensor *apply(fv_ctx *c, const char *name, fv_unary_op op, fv_tensor *x, float p0,
                        float p1)
{
    if (!fv_same_dtype(c, name, x, x)) return NULL;
    const fv_kernels *k = fv_kernels_of(c, x->dtype);
    if (!fv_need(c, k && k->unary, "unary", x->dtype)) return NULL;

    fv_tensor *y = fv_new(c, x->dtype, x->shape);
    if (!y) return NULL;
    k->unary(fv_ctx_stream(c), op, y->data, x->data, fv_len(x), p0, p1);

    unary *u = fv_record(c, sizeof *u, backward, y, x);
    if (u) u->op = op, u->p0 = p0, u->p1 = p1;
    return y;
}

fv_tensor *fv_scale(fv_ctx *c, fv_tensor *x, float by)
{
    return apply(c, "scale", FV_U_SCALE, x, by, 0);
}
fv_tensor *fv_affine(fv_ctx *c, fv_tensor *x, float by, float plus)
{
    return apply(c, "affine", FV_U_SCALE, x, by, plus);
}
fv_tensor *fv_relu(fv_ctx *c, fv_tensor *x) { return apply(c, "relu", FV_U_RELU, x, 0, 0); }
fv_tensor *fv_leaky_relu(fv_ctx *c, fv_tensor *x, float slope)
{
    return apply(c, "leaky_relu", FV_U_LEAKY_RELU, x, slope, 0);
}
fv_tensor *fv_gelu(fv_ctx *c, fv_tensor *x) { return apply(c, "gelu", FV_U_GELU, x, 0, 0); }
fv_tensor *fv_gelu_tanh(fv_ctx *c, fv_tensor *x)
{
    return apply(c, "gelu_tanh", FV_U_GELU_TANH, x, 0, 0);
}
fv_tensor *fv_silu(fv_ctx *c, fv_tensor *x) { return apply(c, "silu", FV_U_SILU, x, 0, 0); }
fv_tensor *fv_tanh(fv_ctx *c, fv_tensor *x) { return apply(c, "tanh", FV_U_TANH, x, 0, 0); }
fv_tensor *fv_sigmoid(fv_ctx *c, fv_tensor *x)
{
    return apply(c, "sigmoid", FV_U_SIGMOID, x, 0, 0);
}
fv_tensor *fv_exp(fv_ctx *c, fv_tensor *x) { return apply(c, "exp", FV_U_EXP, x, 0, 0); }
fv_tensor *fv_log(fv_ctx *c, fv_tensor *x) { return apply(c, "log", FV_U_LOG, x, 0, 0); }
fv_tensor *fv_sqrt(fv_ctx *c, fv_tensor *x) { return apply(c, "sqrt", FV_U_SQRT, x, 0, 0); }
fv_tensor *fv_rsqrt(fv_ctx *c, fv_tensor *x) { return apply(c, "rsqrt", FV_U_RSQRT, x, 0, 0); }
fv_tensor *fv_abs(fv_ctx *c, fv_tensor *x) { return apply(c, "abs", FV_U_ABS, x, 0, 0); }
fv_tensor *fv_square(fv_ctx *c, fv_tensor *x) { return apply(c, "square", FV_U_SQUARE, x, 0, 0); }
fv_tensor *fv_softplus(fv_ctx *c, fv_tensor *x)
{
    return apply(c, "softplus", FV_U_SOFTPLUS, x, 0, 0);
}

fv_tensor *fv_clamp(fv_ctx *c, fv_tensor *x, float low, float high)
{
    if (!(low <= high))
        return fv_raise(c, FV_EARG, "clamp: bounds %g and %g are in the wrong order", (double)low,
                        (double)high);
    return apply(c, "clamp", FV_U_CLAMP, x, low, high);
}

/* ---- activations ---- */

/* relu6(x + 3) / 6, the piecewise linear sigmoid */
static fv_tensor *hard_sigmoid(fv_ctx *c, fv_tensor *x)
{
    return fv_scale(c, fv_clamp(c, fv_affine(c, x, 1, 3), 0, 6), 1.0f / 6);
}

/* Those that few models have are made of ops: they cost a pass or two more, and need no kernel in
 * any backend. */
static fv_tensor *composed(fv_ctx *c, fv_tensor *x, fv_act act)
{
    static const double mu = 0.707107, sigma = 0.282095; /* as transformers rounds them */
    switch (act) {
    case FV_IDENTITY: return x;
    case FV_LEAKY_RELU: return fv_leaky_relu(c, x, 0.01f);
    case FV_RELU6: return fv_clamp(c, x, 0, 6);
    case FV_RELU2: return fv_square(c, fv_relu(c, x));
    case FV_HARDSWISH: return fv_mul(c, x, hard_sigmoid(c, x));
    case FV_MISH: return fv_mul(c, x, fv_tanh(c, fv_softplus(c, x)));
    case FV_SQRT_SOFTPLUS: return fv_sqrt(c, fv_softplus(c, x));
    case FV_GELU_10: return fv_clamp(c, fv_gelu(c, x), -10, 10);
    case FV_LAPLACE:
        x = fv_affine(c, x, (float)(1 / sigma), (float)(-mu / sigma));
        return apply(c, "laplace", FV_U_NORMAL_CDF, x, 0, 0);
    default: return fv_raise(c, FV_EARG, "activate: no activation %d", (int)act);
    }
}

fv_tensor *fv_activate(fv_ctx *c, fv_tensor *x, fv_act act)
{
    fv_unary_op op;
    if (act == FV_ACT_NONE) return x;
    return fv__act_op(&op, act) ? apply(c, "activate", op, x, 0, 0) : composed(c, x, act);
}
