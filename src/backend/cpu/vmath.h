/* vmath.h - elementary functions on vectors. */
#ifndef FV_VMATH_H
#define FV_VMATH_H

#include "simd.h"

/* e^x within 1 ulp or so: x = n ln2 + r, |r| <= ln2/2, degree-6 polynomial, times 2^n.  Below -87.3 it gives
 * 0 (so e^-inf is 0), above 88.3 it stays at e^88.3; NaN is not preserved. */
static inline vf v_exp(vf x)
{
    vm tiny = v_lt(x, v_set1(-87.3f));
    x = v_min(v_max(x, v_set1(-87.3f)), v_set1(88.3f));
    vf n = v_round(v_mul(x, v_set1(1.44269504f)));
    vf r = v_fnma(n, v_set1(0.693359375f), x);
    r = v_fnma(n, v_set1(-2.12194440e-4f), r);
    vf p = v_set1(1.9875691500e-4f);
    p = v_fma(p, r, v_set1(1.3981999507e-3f));
    p = v_fma(p, r, v_set1(8.3334519073e-3f));
    p = v_fma(p, r, v_set1(4.1665795894e-2f));
    p = v_fma(p, r, v_set1(1.6666665459e-1f));
    p = v_fma(p, r, v_set1(5.0000001201e-1f));
    p = v_fma(p, v_mul(r, r), v_add(r, v_set1(1.0f)));
    return v_sel(tiny, v_zero(), v_ldexp(p, n));
}

#endif
