/* rows.h - what softmax and cross-entropy share: the largest of a row and sums of exponentials.
 *
 * Exponentials are taken of x - max, so the largest is e^0 = 1: the sum is between 1 and n, and
 * nothing overflows.  `fill` of -inf stands for absent elements: e^-inf is an exact 0. */
#ifndef FV_ROWS_H
#define FV_ROWS_H

#include "stage.h"
#include "vmath.h"

/* The largest of n; -inf for none.  A NaN may be lost, but not in the exponentials that follow. */
static inline float max_of(const float *x, int64_t n)
{
    vf m0 = v_set1(-INFINITY), m1 = m0, m2 = m0, m3 = m0;
    int64_t i = 0;
    for (; i + 4 * VW <= n; i += 4 * VW) {
        m0 = v_max(m0, v_load(x + i));
        m1 = v_max(m1, v_load(x + i + VW));
        m2 = v_max(m2, v_load(x + i + 2 * VW));
        m3 = v_max(m3, v_load(x + i + 3 * VW));
    }
    for (; i + VW <= n; i += VW) m0 = v_max(m0, v_load(x + i));
    if (i < n) m1 = v_max(m1, v_load_n(x + i, n - i, -INFINITY));
    return v_hmax(v_max(v_max(m0, m1), v_max(m2, m3)));
}

static inline vf f_exp_sum(vf sum, vf x, vf b, vf shift)
{
    return (void)b, v_add(sum, v_exp(v_sub(x, shift)));
}

/* The sum of e^(x - shift). */
static inline float exp_sum_of(const float *x, int64_t n, float shift)
{
    return fold2(x, x, n, -INFINITY, v_set1(shift), f_exp_sum);
}

/* y = e^(x - shift), returning the sum. */
static inline float exp_row(float *y, const float *x, int64_t n, float shift)
{
    vf s0 = v_zero(), s1 = s0, t = v_set1(shift);
    int64_t i = 0;
    for (; i + 2 * VW <= n; i += 2 * VW) {
        vf a = v_exp(v_sub(v_load(x + i), t)), b = v_exp(v_sub(v_load(x + i + VW), t));
        v_store(y + i, a);
        v_store(y + i + VW, b);
        s0 = v_add(s0, a);
        s1 = v_add(s1, b);
    }
    for (; i < n; i += VW) {
        vf a = v_exp(v_sub(v_load_n(x + i, n - i, -INFINITY), t));
        v_store_n(y + i, a, n - i);
        s0 = v_add(s0, a);
    }
    return v_hsum(v_add(s0, s1));
}

#endif
