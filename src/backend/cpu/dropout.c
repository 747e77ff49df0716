/* dropout.c - y = x / (1 - p) where element i is kept, 0 elsewhere; word i%4 at counter i/4 of the
 * Philox sequence decides. */
#ifndef DTYPE
#include "fovea/author/backend.h"
#include "philox.h"
#include "stage.h"

/* y[j] = scale * x[j] where word[j] is at least `from`
 * The backward pass is this function again, on dy: the mask is regenerated, never stored. */
static void keep_some(float *y, const float *x, const uint32_t *word, int64_t n, uint32_t from,
                      float scale)
{
    for (int64_t j = 0; j < n; j++) y[j] = word[j] >= from ? x[j] * scale : 0.0f;
}

#define BY_DTYPE "dropout.c"
#include "by_dtype.h"

void NAME(dropout)(fv_kernels *k);
void NAME(dropout)(fv_kernels *k) { fill_by_dtype(k); }

#else /* the kernel of dtype DTYPE */

typedef struct {
    fv_sink y;
    const void *x;
    int64_t n;
    uint32_t from_word;
    float scale;
    fv_rng rng;
} OF(dropout_args);

static void OF(dropout_part)(void *arg, int64_t lo, int64_t hi, int slot)
{
    const OF(dropout_args) *l = arg;
    (void)slot;
    for (int64_t k = lo; k < hi; k++) {
        int64_t i = k * PIECE;
        float in[PIECE], out[PIECE];
        uint32_t word[PIECE];
        int64_t m = least(PIECE, l->n - i);
        for (int64_t j = 0; j < m; j += PHILOX_WORDS)
            v_philox(word + j, l->rng.seed, l->rng.site, *l->rng.step, (uint64_t)(i + j) / 4);
        float *to = sink_target(l->y, i, out);
        keep_some(to, fetch(in, l->x, i, m, DTYPE), word, m, l->from_word, l->scale);
        sink_store(l->y, i, to, m);
    }
}

static void OF(dropout)(fv_stream *s, fv_sink y, const void *x, int64_t n, float p, fv_rng rng)
{
    if (!y.data) return;
    uint32_t from_word = fv_drop_threshold(p);
    float scale = 1 / (1 - p);
    fv__cpu_parallel(s, threads_for(s, n), pieces(n, PIECE), 0, OF(dropout_part),
                     &(OF(dropout_args)){y, x, n, from_word, scale, rng});
}

static void OF(table)(fv_kernels *k) { k->dropout = OF(dropout); }
#endif
