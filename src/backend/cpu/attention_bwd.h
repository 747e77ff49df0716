/* attention_bwd.h - the arithmetic of the gradient of softmax on a tile of scores: w = softmax(s),
 * ds = w (dp - sum(dy y)). */
#ifndef FV_ATTENTION_BWD_H
#define FV_ATTENTION_BWD_H

#include "attention.h"
#if defined(CPU_NEON) || defined(CPU_NEON_BF16)
#include "attention_neon.h"
#endif

/* Scores and dp to weights and ds, for one vector of rows and n keys, a multiple of 4.  Four at a
 * time, all loaded before any is stored, so that the compiler can interleave four independent
 * chains: a single one would be bound by latency. */
#if defined(CPU_NEON) || defined(CPU_NEON_BF16)
NOINLINE void dscore_vector(float *s, float *ds, int64_t n, vf top, vf inv, vf dyy)
{
    neon_exp2 now;
    if (n > 0) neon_exp2_start(&now, s, top);
    for (int64_t j = 0; j < n; j += 4, s += 4 * LANES, ds += 4 * LANES) {
        vf w[4];
        neon_exp2_next(w, &now, j + 4 < n ? s + 4 * LANES : s);
#pragma GCC unroll 4
        for (int k = 0; k < 4; k++) {
            vf d = neon_sub(neon_load_here(ds + k * LANES), dyy);
            w[k] = neon_mul(w[k], inv);
            v_store(s + k * LANES, w[k]);
            v_store(ds + k * LANES, neon_mul(w[k], d));
        }
    }
}
#else
ALWAYS_INLINE void dscore_vector(float *s, float *ds, int64_t n, vf top, vf inv, vf dyy)
{
    for (int64_t j = 0; j < n; j += 4, s += 4 * LANES, ds += 4 * LANES) {
        vf w[4], d[4];
#pragma GCC unroll 4
        for (int k = 0; k < 4; k++) {
            w[k] = v_mul(attn_exp2(v_sub(v_load(s + k * LANES), top)), inv);
            d[k] = v_mul(w[k], v_sub(v_load(ds + k * LANES), dyy));
        }
#pragma GCC unroll 4
        for (int k = 0; k < 4; k++) {
            v_store(s + k * LANES, w[k]);
            v_store(ds + k * LANES, d[k]);
        }
    }
}
#endif

ALWAYS_INLINE void multiply(float *x, const float *by, int64_t n)
{
    for (int64_t i = 0; i < n; i += VW) v_store(x + i, v_mul(v_load(x + i), v_load(by + i)));
}

#endif
