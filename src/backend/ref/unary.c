/* unary.c - y = f(x) element by element, and dx = f'(x) dy.
 *
 * Value and derivative of every function of fv_unary_op, in acc; the derivative is a function of
 * x or of y, whichever is cheaper, and says which by the argument it reads. */
#include "backend/ref/ref.h"

#define SQRT1_2 0.70710678118654752440
#define SQRT_2_OVER_PI 0.79788456080286535588
#define ONE_OVER_SQRT_2PI 0.39894228040143267794
#define GELU_CUBIC 0.044715
#define QUICK_GELU 1.702

/* exp only of what is not positive, so that nothing overflows */
static acc sigmoid(acc x)
{
    acc e = EXP(-FABS(x));
    return x >= 0 ? 1 / (1 + e) : e / (1 + e);
}

/* Phi, the normal distribution function */
static acc normal_cdf(acc x) { return (acc)0.5 * (1 + ERF(x * (acc)SQRT1_2)); }

/* the tanh that stands for 2 Phi - 1 in the approximate gelu, and its derivative */
static acc gelu_tanh_inner(acc x)
{
    return TANH((acc)SQRT_2_OVER_PI * (x + (acc)GELU_CUBIC * x * x * x));
}
static acc gelu_tanh_inner_grad(acc x, acc t)
{
    return (1 - t * t) * (acc)SQRT_2_OVER_PI * (1 + 3 * (acc)GELU_CUBIC * x * x);
}

static acc value(fv_unary_op op, acc x, acc p0, acc p1)
{
    switch (op) {
    case FV_U_SCALE: return p0 * x + p1;
    case FV_U_RELU: return x > 0 || x != x ? x : 0; /* NaN stays NaN */
    case FV_U_GELU: return x * normal_cdf(x);
    case FV_U_GELU_TANH: return (acc)0.5 * x * (1 + gelu_tanh_inner(x));
    case FV_U_SILU: return x * sigmoid(x);
    case FV_U_TANH: return TANH(x);
    case FV_U_SIGMOID: return sigmoid(x);
    case FV_U_EXP: return EXP(x);
    case FV_U_LOG: return LOG(x);
    case FV_U_SQRT: return SQRT(x);
    case FV_U_RSQRT: return 1 / SQRT(x);
    case FV_U_ABS: return FABS(x);
    case FV_U_SQUARE: return x * x;
    case FV_U_SOFTPLUS: return (x > 0 ? x : 0) + LOG1P(EXP(-FABS(x)));
    case FV_U_LEAKY_RELU: return x > 0 ? x : p0 * x;
    case FV_U_CLAMP: return x < p0 ? p0 : x > p1 ? p1 : x;
    case FV_U_QUICK_GELU: return x * sigmoid((acc)QUICK_GELU * x);
    case FV_U_NORMAL_CDF: return normal_cdf(x);
    case FV_U_COUNT: break;
    }
    return 0;
}

/* relu, tanh, sigmoid, exp and the roots are written in y: a caller that has no x may pass y for
 * it. */
static acc unary_grad(fv_unary_op op, acc x, acc y, acc p0, acc p1)
{
    switch (op) {
    case FV_U_SCALE: return p0;
    case FV_U_RELU: return y > 0;
    case FV_U_GELU: return normal_cdf(x) + x * (acc)ONE_OVER_SQRT_2PI * EXP((acc)-0.5 * x * x);
    case FV_U_GELU_TANH: {
        acc t = gelu_tanh_inner(x);
        return (acc)0.5 * (1 + t + x * gelu_tanh_inner_grad(x, t));
    }
    case FV_U_SILU: {
        acc s = sigmoid(x);
        return s * (1 + x * (1 - s));
    }
    case FV_U_TANH: return 1 - y * y;
    case FV_U_SIGMOID: return y * (1 - y);
    case FV_U_EXP: return y;
    case FV_U_LOG: return 1 / x;
    case FV_U_SQRT: return (acc)0.5 / y;
    case FV_U_RSQRT: return (acc)-0.5 * y * y * y;
    case FV_U_ABS: return (acc)((x > 0) - (x < 0));
    case FV_U_SQUARE: return 2 * x;
    case FV_U_SOFTPLUS: return sigmoid(x);
    case FV_U_LEAKY_RELU: return x > 0 ? 1 : p0;
    case FV_U_CLAMP: return x >= p0 && x <= p1;
    case FV_U_QUICK_GELU: {
        acc s = sigmoid((acc)QUICK_GELU * x);
        return s * (1 + (acc)QUICK_GELU * x * (1 - s));
    }
    case FV_U_NORMAL_CDF: return (acc)ONE_OVER_SQRT_2PI * EXP((acc)-0.5 * x * x);
    case FV_U_COUNT: break;
    }
    return 0;
}

static void unary(fv_stream *s, fv_unary_op op, void *y, const void *x, int64_t n, float p0,
                  float p1)
{
    (void)s;
    for (int64_t i = 0; i < n; i++) st(y, i, value(op, ld(x, i), p0, p1));
}

static void unary_bwd(fv_stream *s, fv_unary_op op, fv_sink dx, const void *dy, const void *x,
                      const void *y, int64_t n, float p0, float p1)
{
    (void)s;
    if (!dx.data) return;
    for (int64_t i = 0; i < n; i++)
        sink_store(dx, i, unary_grad(op, ld(x, i), ld(y, i), p0, p1) * ld(dy, i));
}

void REF(unary)(fv_kernels *k);
void REF(unary)(fv_kernels *k)
{
    k->unary = unary;
    k->unary_bwd = unary_bwd;
}
