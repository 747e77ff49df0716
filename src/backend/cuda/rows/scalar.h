/* scalar.h - activation functions and their derivatives, for element-wise kernels and GEMM
 * epilogues.
 *
 * One definition for forward and backward, element-wise kernels and epilogues alike: a fused
 * layer and its separate ops agree.  The *_approx forms are for 16-bit results only, where their
 * error is below the rounding of the result. */
#ifndef FV_CUDA_SCALAR_H
#define FV_CUDA_SCALAR_H

#include "backend/cuda/device/cuda.h"

#define QUICK_GELU 1.702f
#define SQRT1_2F 0.70710678118654752440f
#define SQRT_2_OVER_PI 0.79788456080286535588f
#define ONE_OVER_SQRT_2PI 0.39894228040143267794f
#define GELU_CUBIC 0.044715f

/* exp of a non-positive argument only, so that it cannot overflow */
__device__ inline float sigmoid(float x)
{
    float e = expf(-fabsf(x));
    return (x >= 0 ? 1 : e) / (1 + e); /* one division, not two */
}

__device__ inline float normal_cdf(float x) { return 0.5f * (1 + erff(x * SQRT1_2F)); }

/* tanh(sqrt(2/pi) (x + 0.044715 x^3)), which approximates 2 Phi(x) - 1, and its derivative; t: the
 * value itself */
__device__ inline float gelu_tanh_inner(float x)
{
    return tanhf(SQRT_2_OVER_PI * (x + GELU_CUBIC * x * x * x));
}
__device__ inline float gelu_tanh_inner_grad(float x, float t)
{
    return (1 - t * t) * SQRT_2_OVER_PI * (1 + 3 * GELU_CUBIC * x * x);
}

/* y = f(x); p0 and p1 are the op's parameters (scale and shift, slope, bounds). */
__device__ inline float unary_value(fv_unary_op op, float x, float p0, float p1)
{
    switch (op) {
    case FV_U_SCALE: return p0 * x + p1;
    case FV_U_RELU: return x > 0 || x != x ? x : 0; /* NaN stays NaN */
    case FV_U_GELU: return x * normal_cdf(x);
    case FV_U_GELU_TANH: return 0.5f * x * (1 + gelu_tanh_inner(x));
    case FV_U_SILU: return x * sigmoid(x);
    case FV_U_TANH: return tanhf(x);
    case FV_U_SIGMOID: return sigmoid(x);
    case FV_U_EXP: return expf(x);
    case FV_U_LOG: return logf(x);
    case FV_U_SQRT: return sqrtf(x);
    case FV_U_RSQRT: return 1 / sqrtf(x);
    case FV_U_ABS: return fabsf(x);
    case FV_U_SQUARE: return x * x;
    case FV_U_SOFTPLUS: return (x > 0 ? x : 0) + log1pf(expf(-fabsf(x)));
    case FV_U_LEAKY_RELU: return x > 0 ? x : p0 * x;
    case FV_U_CLAMP: return x < p0 ? p0 : x > p1 ? p1 : x;
    case FV_U_QUICK_GELU: return x * sigmoid(QUICK_GELU * x);
    case FV_U_NORMAL_CDF: return normal_cdf(x);
    default: return 0;
    }
}

/* These derivatives are functions of y = f(x), all others of x: backward reads one of the two. */
__device__ inline bool grad_uses_y(fv_unary_op op)
{
    return op == FV_U_RELU || op == FV_U_TANH || op == FV_U_SIGMOID || op == FV_U_EXP ||
           op == FV_U_SQRT || op == FV_U_RSQRT;
}

/* f'(x), from x or y as grad_uses_y says; the other may be anything. */
__device__ inline float unary_grad(fv_unary_op op, float x, float y, float p0, float p1)
{
    float t;
    switch (op) {
    case FV_U_SCALE: return p0;
    case FV_U_RELU: return y > 0;
    case FV_U_GELU: return normal_cdf(x) + x * ONE_OVER_SQRT_2PI * expf(-0.5f * x * x);
    case FV_U_GELU_TANH:
        t = gelu_tanh_inner(x);
        return 0.5f * (1 + t + x * gelu_tanh_inner_grad(x, t));
    case FV_U_SILU: t = sigmoid(x); return t * (1 + x * (1 - t));
    case FV_U_TANH: return 1 - y * y;
    case FV_U_SIGMOID: return y * (1 - y);
    case FV_U_EXP: return y;
    case FV_U_LOG: return 1 / x;
    case FV_U_SQRT: return 0.5f / y;
    case FV_U_RSQRT: return -0.5f * y * y * y;
    case FV_U_ABS: return (float)((x > 0) - (x < 0));
    case FV_U_SQUARE: return 2 * x;
    case FV_U_SOFTPLUS: return sigmoid(x);
    case FV_U_LEAKY_RELU: return x > 0 ? 1 : p0;
    case FV_U_CLAMP: return x >= p0 && x <= p1;
    case FV_U_QUICK_GELU: t = sigmoid(QUICK_GELU * x); return t * (1 + QUICK_GELU * x * (1 - t));
    case FV_U_NORMAL_CDF: return ONE_OVER_SQRT_2PI * expf(-0.5f * x * x);
    default: return 0;
    }
}

/* Exact GELU for 16-bit results: x Phi(x) = x/2 (1 + tanh u) with u = log(Phi(x) / Phi(-x)) / 2,
 * which is x times a polynomial in x^2, fitted on 0 .. 4.  The argument is x / GELU_REACH, so
 * mul.sat clamps the square to 1 at no cost; beyond, tanh has saturated.  In a GEMM epilogue each
 * instruction shows in the kernel's time.  Error: at most 2e-5 besides rounding to bf16 (measured
 * on -12 .. 12). */
#define GELU_REACH 5.6f
__device__ inline float gelu_scaled(float y)
{
    float square, u, t;
    asm("mul.sat.f32 %0, %1, %1;" : "=f"(square) : "f"(y));
    u = y * fmaf(fmaf(square, -2.0812968f, 6.5142717f), square, 4.4676035f);
    asm("tanh.approx.f32 %0, %1;" : "=f"(t) : "f"(u));
    return y * fmaf(t, GELU_REACH / 2, GELU_REACH / 2);
}
__device__ inline float gelu_approx(float x) { return gelu_scaled(x * (1 / GELU_REACH)); }

/* Its derivative, Phi(x) + x phi(x), with the same polynomial: erff and expf are four times as many
 * instructions. */
__device__ inline float gelu_grad_approx(float x)
{
    const float log2e = 1.44269504f;
    float y = x * (1 / GELU_REACH), square, t, e;
    asm("mul.sat.f32 %0, %1, %1;" : "=f"(square) : "f"(y));
    float u = y * fmaf(fmaf(square, -2.0812968f, 6.5142717f), square, 4.4676035f);
    asm("tanh.approx.f32 %0, %1;" : "=f"(t) : "f"(u));
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(-0.5f * log2e * x * x));
    return fmaf(x * ONE_OVER_SQRT_2PI, e, fmaf(t, 0.5f, 0.5f));
}

/* tanh-GELU for 16-bit results: y = x s, s = 1 / (1 + exp(-2u)), u = c (x + a x^3);
 * y' = s + 2 x u' s (1 - s). */
__device__ inline float gelu_tanh_share(float x, float square)
{
    const float c = SQRT_2_OVER_PI, a = GELU_CUBIC, log2e = 1.44269504f;
    float e, s;
    asm("ex2.approx.ftz.f32 %0, %1;"
        : "=f"(e)
        : "f"(x * fmaf(-2 * c * a * log2e, square, -2 * c * log2e)));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(s) : "f"(1 + e));
    return s;
}
__device__ inline float gelu_tanh_approx(float x) { return x * gelu_tanh_share(x, x * x); }
__device__ inline float gelu_tanh_grad_approx(float x)
{
    const float c = SQRT_2_OVER_PI, a = GELU_CUBIC;
    float square = x * x, s = gelu_tanh_share(x, square);
    return fmaf(x * fmaf(6 * c * a, square, 2 * c), fmaf(-s, s, s), s);
}

/* (cos, sin) of the angle pos * freq, which is rounded to f32 as everybody does.  Reduced to
 * |r| <= pi / 4 in f64, then Taylor's series, off by at most 1e-7 up to angles of 1e6.  sincosf has
 * a path for large angles that gives every kernel a stack frame, and the decode kernels have no
 * registers for it. */
__device__ inline float2 rotation(int pos, float freq)
{
    double angle = (double)((float)pos * freq);
    int n = __double2int_rn(angle * 0.63661977236758134308); /* 2 / pi */
    float r = (float)fma((double)n, -1.57079632679489661923, angle), z = r * r;
    float s = r *
              fmaf(z, fmaf(z, fmaf(z, fmaf(z, 1.f / 362880, -1.f / 5040), 1.f / 120), -1.f / 6), 1);
    float c = fmaf(z, fmaf(z, fmaf(z, fmaf(z, 1.f / 40320, -1.f / 720), 1.f / 24), -.5f), 1);
    float2 v = n & 1 ? make_float2(-s, c) : make_float2(c, s);
    return n & 2 ? make_float2(-v.x, -v.y) : v;
}

/* The activation of a gated layer comes before the switch, whose jump through a table of addresses
 * takes some 250 cycles. */
__device__ inline float activate(fv_act act, float x)
{
    if (act == FV_SILU) return unary_value(FV_U_SILU, x, 0, 0);
    switch (act) {
    case FV_RELU: return unary_value(FV_U_RELU, x, 0, 0);
    case FV_GELU: return unary_value(FV_U_GELU, x, 0, 0);
    case FV_GELU_TANH: return unary_value(FV_U_GELU_TANH, x, 0, 0);
    case FV_TANH: return unary_value(FV_U_TANH, x, 0, 0);
    case FV_SIGMOID: return unary_value(FV_U_SIGMOID, x, 0, 0);
    case FV_QUICK_GELU: return unary_value(FV_U_QUICK_GELU, x, 0, 0);
    default: return x;
    }
}

/* Of two values with one branch, so that their latencies overlap; GPT-2's comes first. */
__device__ inline float2 activate(fv_act act, float2 v)
{
    auto both = [&](fv_unary_op op) {
        return make_float2(unary_value(op, v.x, 0, 0), unary_value(op, v.y, 0, 0));
    };
    if (act == FV_GELU_TANH) return both(FV_U_GELU_TANH);
    switch (act) {
    case FV_RELU: return both(FV_U_RELU);
    case FV_GELU: return both(FV_U_GELU);
    case FV_SILU: return both(FV_U_SILU);
    case FV_TANH: return both(FV_U_TANH);
    case FV_SIGMOID: return both(FV_U_SIGMOID);
    case FV_QUICK_GELU: return both(FV_U_QUICK_GELU);
    default: return v;
    }
}

#endif
