/* attention_neon.h - powers of 2 of scores on NEON, four vectors at a time, in the order written.
 *
 * attn_exp2 is a chain of nine dependent instructions.  gcc puts those of one vector close
 * together, where they wait for each other longer than the queues of Neoverse V1 can look past
 * them: 7.0 cycles a vector of online_softmax.  Here the range reduction of the next four vectors
 * stands between the steps of the polynomial of these four: 5.7.  Operations and bits are
 * attn_exp2's. */
#ifndef FV_ATTENTION_NEON_H
#define FV_ATTENTION_NEON_H

#include "attention.h"
#include "gemm_neon.h"

NEON_BINARY(neon_add, "fadd")
NEON_BINARY(neon_sub, "fsub")
NEON_BINARY(neon_max, "fmax")
/* The integer in the low bits of z, moved to the exponent, and added to that of p. */
ALWAYS_INLINE vf neon_exponent(vf z)
{
    vf y;
    __asm__ volatile("shl %0.4s, %1.4s, 23" : "=w"(y) : "w"(z));
    return y;
}
NEON_BINARY(neon_add_bits, "add")

/* Addends of the polynomial come from memory, straight into the register that is added to: there
 * are not enough of them to keep copies. */
static const float neon_exp2_addends[3][VW] = {{0x1.3cea88p-7f, 0x1.3cea88p-7f, 0x1.3cea88p-7f,
                                                0x1.3cea88p-7f},
                                               {0x1.ebf9bcp-3f, 0x1.ebf9bcp-3f, 0x1.ebf9bcp-3f,
                                                0x1.ebf9bcp-3f},
                                               {1.0f, 1.0f, 1.0f, 1.0f}};

/* factor * x + addend; the factor is a lane.  Load and multiply-add are one piece of assembly, or
 * gcc loads into one register and moves it to another. */
ALWAYS_INLINE vf neon_linear(const float *addend, vf x, neon_column factors, const int lane)
{
    vf y;
    switch (lane) {
    case 0:
        __asm__ volatile("ldr %q0, %3\n\tfmla %0.4s, %1.4s, %2.s[0]"
                         : "=&w"(y)
                         : "w"(x), "w"(factors.v[0]), "m"(*(const float(*)[VW])addend));
        break;
    case 1:
        __asm__ volatile("ldr %q0, %3\n\tfmla %0.4s, %1.4s, %2.s[1]"
                         : "=&w"(y)
                         : "w"(x), "w"(factors.v[0]), "m"(*(const float(*)[VW])addend));
        break;
    default:
        __asm__ volatile("ldr %q0, %3\n\tfmla %0.4s, %1.4s, %2.s[2]"
                         : "=&w"(y)
                         : "w"(x), "w"(factors.v[0]), "m"(*(const float(*)[VW])addend));
    }
    return y;
}

/* Scores less `top`, of which four vectors are reduced: t = n + x, n in the low bits of z. */
typedef struct neon_exp2 {
    vf top, low, magic;
    neon_column factors;
    vf x[4], z[4];
} neon_exp2;

/* Four vectors of scores, a row of LANES apart. */
ALWAYS_INLINE void neon_exp2_start(neon_exp2 *e, const float *s, vf top)
{
    e->top = top;
    e->low = v_set1(-127.0f);
    e->magic = v_set1(12582912.0f);
    e->factors.v[0] = (vf){0x1.5bba14p-10f, 0x1.c6b752p-5f, 0x1.62e42ap-1f, 0};
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++) {
        vf t = neon_max(neon_sub(neon_load_here(s + k * LANES), top), e->low);
        e->z[k] = neon_add(t, e->magic);
        e->x[k] = neon_sub(t, neon_sub(e->z[k], e->magic));
    }
}

/* y: of the vectors that were reduced; and those at `next` are reduced. */
ALWAYS_INLINE void neon_exp2_next(vf y[4], neon_exp2 *e, const float *next)
{
    vf p[4], q[4], x2[4], t[4], n[4];
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++) q[k] = neon_linear(neon_exp2_addends[0], e->x[k], e->factors, 0);
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++) x2[k] = neon_mul(e->x[k], e->x[k]);
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++) p[k] = neon_linear(neon_exp2_addends[1], e->x[k], e->factors, 1);
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++) y[k] = neon_linear(neon_exp2_addends[2], e->x[k], e->factors, 2);
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++) t[k] = neon_sub(neon_load_here(next + k * LANES), e->top);
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++) p[k] = neon_fma(q[k], x2[k], p[k]);
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++) t[k] = neon_max(t[k], e->low);
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++) n[k] = neon_exponent(e->z[k]);
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++) e->z[k] = neon_add(t[k], e->magic);
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++) y[k] = neon_fma(p[k], x2[k], y[k]);
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++) e->x[k] = neon_sub(e->z[k], e->magic);
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++) e->x[k] = neon_sub(t[k], e->x[k]);
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++) y[k] = neon_add_bits(y[k], n[k]);
}

#endif
