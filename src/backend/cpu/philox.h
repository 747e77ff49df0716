/* philox.h - fv_philox (fovea/op.h) at many positions at once, with the same words. */
#ifndef FV_PHILOX_H
#define FV_PHILOX_H

#include "simd.h"

/* The words at positions i .. i+VW-1, in the order of elements: out[4*j + k] is word k at position i + j.  i must be a
 * multiple of VW, so that all lanes share the upper half of their position. */
static inline void v_philox(uint32_t out[4 * VW], uint64_t seed, uint64_t site, uint64_t step, uint64_t i)
{
    uint32_t lane[VW], k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (uint32_t j = 0; j < VW; j++) lane[j] = (uint32_t)i + j;
    vu zero = {0}, c0, c1 = zero + ((uint32_t)(i >> 32) ^ (uint32_t)(step >> 32)), c2 = zero + (uint32_t)step;
    vu c3 = zero + (uint32_t)site;
    memcpy(&c0, lane, sizeof c0);
    for (int r = 0; r < 10; r++) {
        vu h0, l0, h1, l1;
        v_mul_wide(&h0, &l0, c0, 0xD2511F53u);
        v_mul_wide(&h1, &l1, c2, 0xCD9E8D57u);
        c0 = h1 ^ c1 ^ k0;
        c2 = h0 ^ c3 ^ k1;
        c1 = l1;
        c3 = l0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    v_store_mixed(out, c0, c1, c2, c3);
}

#endif
