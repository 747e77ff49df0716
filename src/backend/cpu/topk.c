/* topk.c - the k largest of each row, largest first, ties to the lower index.
 *
 * A sorted list of k is kept.  Nearly all of a long row is no larger than the list's last entry, so
 * a row is read in runs whose largest is found in vectors; only a run with a larger element is
 * searched element by element. */
#ifndef DTYPE
#include "stage.h"

#define RUN 64

/* NaN counts as the largest, so it is not lost. */
static inline bool larger(float a, float b) { return a > b || (a != a && b == b); }

/* Whether any of RUN elements is larger than `than`. */
static inline bool offers(const float *x, float than)
{
    vf top = v_load(x);
    vi nan = (vi)(top != top);
    for (int i = VW; i < RUN; i += VW) {
        vf a = v_load(x + i);
        top = v_max(top, a);
        nan |= (vi)(a != a);
    }
    bool any = v_hmax(top) > than;
    for (int j = 0; j < VW; j++) any = any || nan[j];
    return any;
}

#define BY_DTYPE "topk.c"
#include "by_dtype.h"

void NAME(topk)(fv_kernels *k);
void NAME(topk)(fv_kernels *k) { fill_by_dtype(k); }

#else /* the kernels of dtype DTYPE */

static float OF(at)(const void *x, int64_t i)
{
    float tmp[VW];
    return *fetch(tmp, x, i, 1, DTYPE);
}

/* Puts element j of the row at `first` where it belongs in the list, which holds the best of those
 * before it.
 * O(k) a candidate; of a random row of n there are about k (1 + ln(n / k)) of them. */
static void OF(offer)(int32_t *best, int64_t k, const void *x, int64_t first, int64_t j,
                      float value)
{
    int64_t p = least(j, k - 1);
    for (; p > 0 && larger(value, OF(at)(x, first + best[p - 1])); p--) best[p] = best[p - 1];
    best[p] = (int32_t)j;
}

static void OF(row)(int32_t *best, const void *x, int64_t first, int64_t cols, int64_t k)
{
    float tmp[RUN];
    for (int64_t i = 0; i < cols; i += RUN) {
        int64_t n = least(RUN, cols - i);
        const float *p = fetch(tmp, x, first + i, n, DTYPE);
        if (i >= k && n == RUN && !offers(p, OF(at)(x, first + best[k - 1]))) continue;
        for (int64_t j = i; j < i + n; j++)
            if (j < k || larger(p[j - i], OF(at)(x, first + best[k - 1])))
                OF(offer)(best, k, x, first, j, p[j - i]);
    }
}

typedef struct {
    void *values;
    int32_t *index;
    const void *x;
    int64_t cols, k;
} OF(topk_args);

static void OF(topk_part)(void *arg, int64_t lo, int64_t hi, int slot)
{
    const OF(topk_args) *l = arg;
    (void)slot;
    for (int64_t r = lo; r < hi; r++) {
        OF(row)(l->index + r * l->k, l->x, r * l->cols, l->cols, l->k);
        for (int64_t p = 0; p < l->k; p++)
            ((REAL *)l->values)[r * l->k + p] =
                ((const REAL *)l->x)[r * l->cols + l->index[r * l->k + p]];
    }
}

static void OF(topk)(fv_stream *s, void *values, int32_t *index, const void *x, int64_t rows,
                     int64_t cols, int64_t k)
{
    fv__cpu_parallel(s, threads_for_rows(s, rows, cols), rows, 0, OF(topk_part),
                     &(OF(topk_args)){values, index, x, cols, k});
}

static void OF(table)(fv_kernels *k) { k->topk = OF(topk); }
#endif
