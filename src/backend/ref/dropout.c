/* dropout.c - y = x / (1 - p) where element i is kept, 0 elsewhere; word i%4 at position i/4 of the
 * Philox sequence decides. */
#include "backend/ref/ref.h"

static void dropout(fv_stream *s, fv_sink y, const void *x, int64_t n, float p, fv_rng rng)
{
    (void)s;
    uint32_t least = fv_drop_threshold(p), word[4] = {0};
    acc scale = 1 / (1 - (acc)p);
    if (!y.data) return;
    for (int64_t i = 0; i < n; i++) {
        if (i % 4 == 0) fv_philox(word, rng.seed, rng.site, *rng.step, (uint64_t)i / 4);
        sink_store(y, i, word[i % 4] >= least ? ld(x, i) * scale : 0);
    }
}

void REF(dropout)(fv_kernels *k);
void REF(dropout)(fv_kernels *k) { k->dropout = dropout; }
