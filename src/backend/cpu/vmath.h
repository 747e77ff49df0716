/* vmath.h - elementary functions on vectors.
 *
 * Every lane depends on its own input alone, so the result does not depend on an element's lane.
 * There are no branches and no tables.  NaN goes in and out, infinities give the limit.
 *
 * The coefficients are minimax fits made for this file: Lawson's reweighted least squares on 400 to
 * 1200 Chebyshev nodes against 40-digit values, the weight being the relative error of the finished
 * function; polynomials were rounded to f32 one coefficient after another, lowest first, refitting
 * the rest each time.  The errors given are the largest found by tests/ops/test_vmath.c against the
 * C library in f64, with fused multiply-add; without it (the generic level of some machines) some
 * are one or two ulp worse. */
#ifndef FV_VMATH_H
#define FV_VMATH_H

#include "simd.h"

/* ln 2 in two parts: n * LN2_HI is exact for |n| < 256 even without fma */
#define LN2_HI 0.693145751953125f
#define LN2_LO 1.42860682e-6f

/* e^x = 2 h (1 + e) with h = 2^(n-1) and e = e^r - 1, where x = n ln2 + r, |r| <= ln2/2; for x in
 * -87.3..89.  Half the power is returned because the whole one may not be a float. */
static inline vf v_exp_parts(vf x, vf *h)
{
    /* its last bits count in ones and carry the bias of the exponent */
    const vf magic = v_set1(0x1.8p23f + 126.0f);
    vf z = v_fma(x, v_set1(1.44269504f), magic);
    vf n = v_sub(z, magic);
    *h = (vf)((vu)z << 23);
    vf r = v_fnma(n, v_set1(LN2_LO), v_fnma(n, v_set1(LN2_HI), x));
    vf r2 = v_mul(r, r);
    vf q = v_fma(v_set1(1.3820138e-3f), r, v_set1(8.368686e-3f));
    q = v_fma(q, r2, v_fma(v_set1(4.1668274e-2f), r, v_set1(1.6666521e-1f)));
    q = v_fma(q, r, v_set1(4.9999994e-1f));
    return v_fma(q, r2, r);
}

/* e^x, 1.2 ulp, infinite above 88.72.  Below -86.99 it is 0: there n is -126, whose half power has
 * the bits of 0.
 * Clamping to 89 lets the sum y + y overflow to infinity by itself, without a test. */
static inline vf v_exp(vf x)
{
    vf h, e = v_exp_parts(v_min(v_set1(89.0f), v_max(v_set1(-87.3f), x)), &h), y = v_fma(h, e, h);
    return v_add(y, y);
}

/* log((1+t)/(1-t)) for |t| <= 1/3, that is log(1+u) for t = u / (2+u) */
static inline vf v_log_ratio(vf t)
{
    vf t2 = v_mul(t, t);
    vf q = v_fma(v_set1(2.8030488e-1f), t2, v_set1(2.7998048e-1f));
    q = v_fma(q, t2, v_set1(4.0021756e-1f));
    q = v_fma(q, t2, v_set1(6.666641e-1f));
    return v_fma(v_mul(q, t2), t, v_add(t, t));
}

/* Natural logarithm, 2 ulp, subnormals included: x = 2^e m with m in sqrt(1/2)..sqrt(2). */
static inline vf v_log(vf x)
{
    vm tiny = v_lt(x, v_set1(0x1p-126f));
    vi i = (vi)v_sel(tiny, v_mul(x, v_set1(0x1p23f)), x);
    vi e = (vi)((vu)i - 0x3f3504f3u) >> 23;
    vf n = v_sub(__builtin_convertvector(e, vf), v_sel(tiny, v_set1(23.0f), v_zero()));
    vf u = v_sub((vf)((vu)i - ((vu)e << 23)), v_set1(1.0f));
    vf y = v_log_ratio(v_div(u, v_add(u, v_set1(2.0f))));
    y = v_fma(n, v_set1(LN2_HI), v_fma(n, v_set1(LN2_LO), y));
    y = v_sel(v_lt(x, v_set1(INFINITY)), y, x);
    vf edge = v_sel(v_lt(x, v_zero()), v_set1(NAN), v_sub(x, v_set1(INFINITY)));
    return v_sel(v_lt(v_zero(), x), y, edge);
}

/* tanh, 3 ulp: with w = e^2|x| - 1, w / (w + 2). */
static inline vf v_tanh(vf x)
{
    vf a = v_min(v_set1(10.0f), v_abs(x));
    vf h, e = v_exp_parts(v_add(a, a), &h), s = v_add(h, h);
    vf w = v_fma(s, e, v_sub(s, v_set1(1.0f)));
    return v_copysign(v_div(w, v_add(w, v_set1(2.0f))), x);
}

/* erf, 6 ulp: x P(x^2) / Q(x^2) up to 3.925, where erf has reached 1.  All coefficients are
 * positive, so nothing cancels; the polynomials are taken in pairs, which shortens the chain. */
static inline vf v_erf(vf x)
{
    x = v_min(v_set1(3.925f), v_max(v_set1(-3.925f), x));
    vf z = v_mul(x, x), z2 = v_mul(z, z);
    vf p = v_fma(z2, v_fma(v_set1(2.0460257e-6f), z, v_set1(2.8484323e-4f)),
                 v_fma(v_set1(3.7725444e-3f), z, v_set1(5.2769277e-2f)));
    vf q = v_fma(z2, v_fma(v_set1(3.804774e-5f), z, v_set1(1.1638561e-3f)),
                 v_fma(v_set1(1.4983186e-2f), z, v_set1(1.1418267e-1f)));
    p = v_fma(p, z2, v_fma(v_set1(1.9059366e-1f), z, v_set1(1.1283791f)));
    q = v_fma(q, z2, v_fma(v_set1(5.0224197e-1f), z, v_set1(1.0f)));
    return v_min(v_set1(1.0f), v_max(v_set1(-1.0f), v_div(v_mul(x, p), q)));
}

/* 1 / (1 + e^-x), 3 ulp down to x = -86. */
static inline vf v_sigmoid(vf x)
{
    return v_div(v_set1(1.0f), v_add(v_set1(1.0f), v_exp(v_neg(x))));
}

/* log(1 + e^x), 3 ulp down to x = -86, 0 below: the larger of x and 0, plus log(1 + e^-|x|). */
static inline vf v_softplus(vf x)
{
    vf u = v_exp(v_neg(v_abs(x)));
    return v_add(v_max(v_zero(), x), v_log_ratio(v_div(u, v_add(u, v_set1(2.0f)))));
}

/* ---- activations ---- */

/* x sigmoid(x), 3 ulp down to x = -86. */
static inline vf v_silu(vf x) { return v_div(x, v_add(v_set1(1.0f), v_exp(v_neg(x)))); }

/* Phi(x) - 1/2, the normal distribution function from its middle: v_erf(x / sqrt 2) / 2 with both
 * factors put into the coefficients.  Not below -1/2, so that x Phi(x) does not change sign; at the
 * other end 1/2 may be passed by an ulp. */
static inline vf v_half_erf(vf x)
{
    x = v_min(v_set1(5.5507883f), v_max(v_set1(-5.5507883f), x));
    vf z = v_mul(x, x), z2 = v_mul(z, z);
    vf p = v_fma(z2, v_fma(v_set1(2.2605603e-8f), z, v_set1(6.294206e-6f)),
                 v_fma(v_set1(1.6672448e-4f), z, v_set1(4.664189e-3f)));
    vf q = v_fma(z2, v_fma(v_set1(1.1889919e-6f), z, v_set1(7.274101e-5f)),
                 v_fma(v_set1(1.8728982e-3f), z, v_set1(2.8545668e-2f)));
    p = v_fma(p, z2, v_fma(v_set1(3.3692516e-2f), z, v_set1(3.9894226e-1f)));
    q = v_fma(q, z2, v_fma(v_set1(2.5112098e-1f), z, v_set1(1.0f)));
    return v_max(v_set1(-0.5f), v_div(v_mul(x, p), q));
}

/* x Phi(x), within 2e-7 |x| (the sum cancels in the left tail, where the result is small). */
static inline vf v_gelu(vf x) { return v_fma(x, v_half_erf(x), v_mul(x, v_set1(0.5f))); }

/* Twice the argument of tanh in gelu_tanh, 2 sqrt(2/pi) (x + 0.044715 x^3): 1/2 (1 + tanh u) is
 * sigmoid(2u). */
static inline vf v_gelu_tanh_arg(vf x)
{
    return v_mul(x, v_fma(v_mul(x, x), v_set1(7.1354816e-2f), v_set1(1.5957691f)));
}

/* x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), within 2e-7 |x|. */
static inline vf v_gelu_tanh(vf x)
{
    return v_div(x, v_add(v_set1(1.0f), v_exp(v_neg(v_gelu_tanh_arg(x)))));
}

/* x / (1 + exp(-1.702 x)) */
static inline vf v_quick_gelu(vf x)
{
    return v_div(x, v_add(v_set1(1.0f), v_exp(v_mul(x, v_set1(-1.702f)))));
}

/* ---- circular functions ---- */

/* sin and cos within 2 ulp of the larger, for |x| < 1e8 (beyond that not even bounded): x = n pi/2
 * + r, reduced in f64. */
static inline void v_sincos(vf *sin, vf *cos, vf x)
{
    typedef double vd __attribute__((vector_size(8 * VW)));
    const double magic = 0x1.8p52;
    vd wide = __builtin_convertvector(x, vd);
    vd n = wide * 0.63661977236758134 + magic; /* rounds to an integer */
    vf r = __builtin_convertvector(wide - (n - magic) * 1.5707963267948966, vf);
    vu quarter = (vu) __builtin_convertvector(n - magic, vi);
    vf z = v_mul(r, r);
    vf s = v_fma(v_set1(-1.9517906e-4f), z, v_set1(8.3321873e-3f));
    s = v_fma(v_mul(v_fma(s, z, v_set1(-1.6666655e-1f)), z), r, r);
    vf c = v_fma(v_set1(2.4432327e-5f), z, v_set1(-1.3887309e-3f));
    c = v_fma(v_fma(c, z, v_set1(4.1666646e-2f)), v_mul(z, z),
              v_fma(v_set1(-0.5f), z, v_set1(1.0f)));
    vu swap = (vu)((quarter & 1) != 0), s_bits = (vu)s, c_bits = (vu)c;
    *sin = (vf)(((swap & c_bits) | (~swap & s_bits)) ^ (quarter & 2) << 30);
    *cos = (vf)(((swap & s_bits) | (~swap & c_bits)) ^ ((quarter + 1) & 2) << 30);
}

#endif
