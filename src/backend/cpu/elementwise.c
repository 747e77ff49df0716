/* elementwise.c - y = f(x) and its gradient, for every function of fv_unary_op.
 *
 * A function is three lines here: f on a vector, f' on a vector, and a case in each switch.  map1
 * and map2 are always inlined with the function as a constant, so each case is a loop of its own
 * and no call is made per vector.  The polynomials are in vmath.h.
 *
 *    y              dy/dx, of x or of y where that is cheaper
 *    relu           x > 0
 *    gelu           P(x) + x p(x)                P, p: normal distribution and its density
 *    gelu_tanh      (1 + t)/2 + x (1 - t^2) u'/2   t = tanh(u), u = sqrt(2/pi)(x + 0.044715 x^3)
 *    silu           s + x s (1 - s)              s = sigmoid(x)
 *    quick_gelu     s + 1.702 x s (1 - s)        s = sigmoid(1.702 x)
 *    tanh, sigmoid  1 - y^2, y (1 - y)
 *    exp, log       y, 1/x
 *    sqrt, rsqrt    1/(2 y), -y^3/2
 *    softplus       sigmoid(x)
 *    abs            the sign of x, 0 at 0
 *
 * Five of them are told by y, which the forward pass has in memory anyway: x need not be kept. */
#ifndef DTYPE
#include "stage.h"
#include "vmath.h"

/* ---- forward: f(x, p0, p1) ---- */

#define UNUSED2(p, q) (void)(p), (void)(q)

static inline vf scale(vf x, vf p, vf q) { return v_fma(x, p, q); }
static inline vf relu(vf x, vf p, vf q) { return UNUSED2(p, q), v_max(v_zero(), x); }
static inline vf gelu(vf x, vf p, vf q) { return UNUSED2(p, q), v_gelu(x); }
static inline vf gelu_tanh(vf x, vf p, vf q) { return UNUSED2(p, q), v_gelu_tanh(x); }
static inline vf silu(vf x, vf p, vf q) { return UNUSED2(p, q), v_silu(x); }
static inline vf tanh_(vf x, vf p, vf q) { return UNUSED2(p, q), v_tanh(x); }
static inline vf sigmoid(vf x, vf p, vf q) { return UNUSED2(p, q), v_sigmoid(x); }
static inline vf exp_(vf x, vf p, vf q) { return UNUSED2(p, q), v_exp(x); }
static inline vf log_(vf x, vf p, vf q) { return UNUSED2(p, q), v_log(x); }
static inline vf sqrt_(vf x, vf p, vf q) { return UNUSED2(p, q), v_sqrt(x); }
static inline vf rsqrt(vf x, vf p, vf q) { return UNUSED2(p, q), v_div(v_set1(1.0f), v_sqrt(x)); }
static inline vf abs_(vf x, vf p, vf q) { return UNUSED2(p, q), v_abs(x); }
static inline vf square(vf x, vf p, vf q) { return UNUSED2(p, q), v_mul(x, x); }
static inline vf softplus(vf x, vf p, vf q) { return UNUSED2(p, q), v_softplus(x); }
static inline vf leaky_relu(vf x, vf p, vf q)
{
    return (void)q, v_sel(v_lt(x, v_zero()), v_mul(x, p), x);
}
static inline vf quick_gelu(vf x, vf p, vf q) { return UNUSED2(p, q), v_quick_gelu(x); }
static inline vf normal_cdf(vf x, vf p, vf q)
{
    return UNUSED2(p, q), v_add(v_half_erf(x), v_set1(0.5f));
}
static inline vf clamp(vf x, vf p, vf q) { return v_min(q, v_max(p, x)); }

/* Not inlined into `forward`: beside the loops of all the other functions gcc 12 copies registers
 * in this one, whose sixteen constants and two vectors fill them, and it takes 9 % longer. */
NOINLINE void forward_gelu(float *y, const float *x, int64_t n)
{
    map1(y, x, n, v_zero(), v_zero(), gelu);
}

static void forward(fv_unary_op op, float *y, const float *x, int64_t n, float p0, float p1)
{
    vf p = v_set1(p0), q = v_set1(p1);
    switch (op) {
    case FV_U_SCALE: map1(y, x, n, p, q, scale); break;
    case FV_U_RELU: map1(y, x, n, p, q, relu); break;
    case FV_U_GELU: forward_gelu(y, x, n); break;
    case FV_U_GELU_TANH: map1(y, x, n, p, q, gelu_tanh); break;
    case FV_U_SILU: map1(y, x, n, p, q, silu); break;
    case FV_U_TANH: map1(y, x, n, p, q, tanh_); break;
    case FV_U_SIGMOID: map1(y, x, n, p, q, sigmoid); break;
    case FV_U_EXP: map1(y, x, n, p, q, exp_); break;
    case FV_U_LOG: map1(y, x, n, p, q, log_); break;
    case FV_U_SQRT: map1(y, x, n, p, q, sqrt_); break;
    case FV_U_RSQRT: map1(y, x, n, p, q, rsqrt); break;
    case FV_U_ABS: map1(y, x, n, p, q, abs_); break;
    case FV_U_SQUARE: map1(y, x, n, p, q, square); break;
    case FV_U_SOFTPLUS: map1(y, x, n, p, q, softplus); break;
    case FV_U_LEAKY_RELU: map1(y, x, n, p, q, leaky_relu); break;
    case FV_U_CLAMP: map1(y, x, n, p, q, clamp); break;
    case FV_U_QUICK_GELU: map1(y, x, n, p, q, quick_gelu); break;
    case FV_U_NORMAL_CDF: map1(y, x, n, p, q, normal_cdf); break;
    case FV_U_COUNT: break;
    }
}

/* ---- backward: dx from dy and one of x and y ---- */

/* phi(x) = Phi'(x) */
static inline vf density(vf x)
{
    return v_mul(v_set1(0.39894228f), v_exp(v_mul(v_mul(x, x), v_set1(-0.5f))));
}

static inline vf d_normal_cdf(vf dy, vf x) { return v_mul(dy, density(x)); }

/* gelu' = Phi(x) + x phi(x) */
static inline vf d_gelu(vf dy, vf x)
{
    vf cdf = v_add(v_half_erf(x), v_set1(0.5f));
    return v_mul(dy, v_fma(x, density(x), cdf));
}

/* y = x s(2u):  s + x s (1 - s) (2u)' with 2u = x (c1 + c3 x^2) */
static inline vf d_gelu_tanh(vf dy, vf x)
{
    vf s = v_sigmoid(v_gelu_tanh_arg(x));
    vf slope = v_fma(v_mul(x, x), v_set1(3 * 7.1354816e-2f), v_set1(1.5957691f));
    vf bend = v_mul(v_mul(x, slope), v_fnma(s, s, s));
    return v_mul(dy, v_add(s, bend));
}

static inline vf d_silu(vf dy, vf x)
{
    vf s = v_sigmoid(x);
    return v_mul(dy, v_fma(x, v_fnma(s, s, s), s));
}

/* y = x s(1.702 x):  s + 1.702 x s (1 - s) */
static inline vf d_quick_gelu(vf dy, vf x)
{
    vf z = v_mul(x, v_set1(1.702f)), s = v_sigmoid(z);
    return v_mul(dy, v_fma(z, v_fnma(s, s, s), s));
}

static inline vf d_relu(vf dy, vf x) { return v_sel(v_lt(v_zero(), x), dy, v_zero()); }
static inline vf d_tanh(vf dy, vf y) { return v_mul(dy, v_fnma(y, y, v_set1(1.0f))); }
static inline vf d_sigmoid(vf dy, vf y) { return v_mul(dy, v_fnma(y, y, y)); }
static inline vf d_exp(vf dy, vf y) { return v_mul(dy, y); }
static inline vf d_log(vf dy, vf x) { return v_div(dy, x); }
static inline vf d_sqrt(vf dy, vf y) { return v_div(v_mul(dy, v_set1(0.5f)), y); }
static inline vf d_rsqrt(vf dy, vf y)
{
    return v_mul(v_mul(dy, v_set1(-0.5f)), v_mul(v_mul(y, y), y));
}
static inline vf d_square(vf dy, vf x) { return v_mul(v_add(dy, dy), x); }
static inline vf d_softplus(vf dy, vf x) { return v_mul(dy, v_sigmoid(x)); }
static inline vf d_abs(vf dy, vf x)
{
    return v_sel(v_lt(v_zero(), x), dy, v_sel(v_lt(x, v_zero()), v_neg(dy), v_zero()));
}

/* These two need a parameter, so they are loops of their own. */
static void leaky_relu_bwd(float *dx, const float *dy, const float *x, int64_t n, float slope)
{
    for (int64_t i = 0; i < n; i++) dx[i] = dy[i] * (x[i] > 0 ? 1.0f : slope);
}

static void clamp_bwd(float *dx, const float *dy, const float *x, int64_t n, float low, float high)
{
    for (int64_t i = 0; i < n; i++) dx[i] = x[i] >= low && x[i] <= high ? dy[i] : 0.0f;
}

/* tanh' = 1 - y^2, sigmoid' = y (1 - y), exp' = y, sqrt' = 1 / 2y, rsqrt' = -y^3 / 2: cheaper in
 * y. */
static bool reads_y(fv_unary_op op)
{
    return op == FV_U_TANH || op == FV_U_SIGMOID || op == FV_U_EXP || op == FV_U_SQRT ||
           op == FV_U_RSQRT;
}

static void backward(fv_unary_op op, float *dx, const float *dy, const float *z, int64_t n,
                     float p0, float p1)
{
    switch (op) {
    case FV_U_SCALE: map1(dx, dy, n, v_set1(p0), v_zero(), scale); break;
    case FV_U_RELU: map2(dx, dy, z, n, d_relu); break;
    case FV_U_GELU: map2(dx, dy, z, n, d_gelu); break;
    case FV_U_GELU_TANH: map2(dx, dy, z, n, d_gelu_tanh); break;
    case FV_U_SILU: map2(dx, dy, z, n, d_silu); break;
    case FV_U_TANH: map2(dx, dy, z, n, d_tanh); break;
    case FV_U_SIGMOID: map2(dx, dy, z, n, d_sigmoid); break;
    case FV_U_EXP: map2(dx, dy, z, n, d_exp); break;
    case FV_U_LOG: map2(dx, dy, z, n, d_log); break;
    case FV_U_SQRT: map2(dx, dy, z, n, d_sqrt); break;
    case FV_U_RSQRT: map2(dx, dy, z, n, d_rsqrt); break;
    case FV_U_ABS: map2(dx, dy, z, n, d_abs); break;
    case FV_U_SQUARE: map2(dx, dy, z, n, d_square); break;
    case FV_U_SOFTPLUS: map2(dx, dy, z, n, d_softplus); break;
    case FV_U_LEAKY_RELU: leaky_relu_bwd(dx, dy, z, n, p0); break;
    case FV_U_CLAMP: clamp_bwd(dx, dy, z, n, p0, p1); break;
    case FV_U_QUICK_GELU: map2(dx, dy, z, n, d_quick_gelu); break;
    case FV_U_NORMAL_CDF: map2(dx, dy, z, n, d_normal_cdf); break;
    case FV_U_COUNT: break;
    }
}

#define BY_DTYPE "elementwise.c"
#include "by_dtype.h"

void NAME(elementwise)(fv_kernels *k);
void NAME(elementwise)(fv_kernels *k) { fill_by_dtype(k); }

#else /* the kernels of dtype DTYPE */

typedef struct {
    fv_unary_op op;
    void *y;
    const void *x;
    int64_t n;
    float p0, p1;
} OF(unary_args);

static void OF(unary_part)(void *arg, int64_t lo, int64_t hi, int slot)
{
    const OF(unary_args) *l = arg;
    (void)slot;
    for (int64_t k = lo; k < hi; k++) {
        int64_t i = k * PIECE;
        float in[PIECE], out[PIECE];
        int64_t m = least(PIECE, l->n - i);
        float *to = sink_target(output(l->y, DTYPE), i, out);
        forward(l->op, to, fetch(in, l->x, i, m, DTYPE), m, l->p0, l->p1);
        sink_store(output(l->y, DTYPE), i, to, m);
    }
}

/* y and x may be the same memory. */
static void OF(unary)(fv_stream *s, fv_unary_op op, void *y, const void *x, int64_t n, float p0,
                      float p1)
{
    fv__cpu_parallel(s, threads_for(s, n), pieces(n, PIECE), 0, OF(unary_part),
                     &(OF(unary_args)){op, y, x, n, p0, p1});
}

typedef struct {
    fv_unary_op op;
    fv_sink dx;
    const void *dy, *z;
    int64_t n;
    float p0, p1;
} OF(unary_bwd_args);

static void OF(unary_bwd_part)(void *arg, int64_t lo, int64_t hi, int slot)
{
    const OF(unary_bwd_args) *l = arg;
    (void)slot;
    for (int64_t k = lo; k < hi; k++) {
        int64_t i = k * PIECE;
        float in[PIECE], at[PIECE], out[PIECE];
        int64_t m = least(PIECE, l->n - i);
        float *to = sink_target(l->dx, i, out);
        const float *d = fetch(in, l->dy, i, m, DTYPE);
        backward(l->op, to, d, l->op == FV_U_SCALE ? d : fetch(at, l->z, i, m, DTYPE), m, l->p0,
                 l->p1);
        sink_store(l->dx, i, to, m);
    }
}

/* Of x and y only the one that f' reads is fetched. */
static void OF(unary_bwd)(fv_stream *s, fv_unary_op op, fv_sink dx, const void *dy, const void *x,
                          const void *y, int64_t n, float p0, float p1)
{
    if (!dx.data) return;
    const void *z = reads_y(op) ? y : x;
    fv__cpu_parallel(s, threads_for(s, n), pieces(n, PIECE), 0, OF(unary_bwd_part),
                     &(OF(unary_bwd_args)){op, dx, dy, z, n, p0, p1});
}

static void OF(table)(fv_kernels *k)
{
    k->unary = OF(unary);
    k->unary_bwd = OF(unary_bwd);
}
#endif
