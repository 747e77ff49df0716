/* philox.h - fv_philox (fovea/author/backend.h) at many positions at once, with the same words.
 *
 * Philox4x32-10 (Salmon et al., 2011) is counter based: word j of step t needs nothing but its
 * index, so threads draw independently, backward regenerates what forward drew, and all backends
 * agree. */
#ifndef FV_PHILOX_H
#define FV_PHILOX_H

#include "simd.h"

/* Interleaved vectors: one alone is bound by the latency of its multiplications. */
#define PHILOX_SIDE 4
#define PHILOX_WORDS (4 * VW * PHILOX_SIDE)

/* PHILOX_WORDS words from position i on, in the order of elements: out[4*j + k] is word k at
 * position i + j.  No two of these positions may differ in their upper halves. */
static inline void v_philox(uint32_t out[PHILOX_WORDS], uint64_t seed, uint64_t site, uint64_t step,
                            uint64_t i)
{
    uint32_t lane[VW], k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (uint32_t j = 0; j < VW; j++) lane[j] = (uint32_t)i + j;
    vu zero = {0}, c0[PHILOX_SIDE], c1[PHILOX_SIDE], c2[PHILOX_SIDE], c3[PHILOX_SIDE];
#pragma GCC unroll 4
    for (uint32_t q = 0; q < PHILOX_SIDE; q++) {
        memcpy(&c0[q], lane, sizeof c0[q]);
        c0[q] += q * VW;
        c1[q] = zero + ((uint32_t)(i >> 32) ^ (uint32_t)(step >> 32));
        c2[q] = zero + (uint32_t)step;
        c3[q] = zero + (uint32_t)site;
    }
#pragma GCC unroll 10
    for (int r = 0; r < 10; r++) {
#pragma GCC unroll 4
        for (int q = 0; q < PHILOX_SIDE; q++) {
            vu h0, l0, h1, l1;
            v_mul_wide(&h0, &l0, c0[q], 0xD2511F53u);
            v_mul_wide(&h1, &l1, c2[q], 0xCD9E8D57u);
            c0[q] = h1 ^ c1[q] ^ k0;
            c2[q] = h0 ^ c3[q] ^ k1;
            c1[q] = l1;
            c3[q] = l0;
        }
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
#pragma GCC unroll 4
    for (int q = 0; q < PHILOX_SIDE; q++)
        v_store_mixed(out + 4 * VW * q, c0[q], c1[q], c2[q], c3[q]);
}

#endif
