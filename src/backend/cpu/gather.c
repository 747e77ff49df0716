/* gather.c - rows of a table by id, and the sum of rows back into the table. */
#ifndef DTYPE
#include "stage.h"
#include "backend/stream.h"

/* of a table: threads process blocks round-robin, because frequent ids are neighbours */
#define BLOCK_ROWS 32

/* n elements of any float dtype as f32 */
static void widen_any(float *y, const void *x, int64_t at, int64_t n, fv_dtype t)
{
    if (t != FV_F64)
        widen(y, element(x, at, t), n, t);
    else
        for (int64_t i = 0; i < n; i++) y[i] = (float)((const double *)x)[at + i];
}

/* The positions of each id in ascending order: first[id] starts a chain through next, -1 ends
 * it.
 * O(vocab + n) instead of a sort; built from the end, so that chains run forwards.  The
 * alternative, atomic additions by position, would give other bits in every run. */
static void chain(int64_t *first, int64_t *next, const int32_t *ids, int64_t n, int64_t vocab)
{
    for (int64_t v = 0; v < vocab; v++) first[v] = -1;
    for (int64_t i = n - 1; i >= 0; i--) {
        next[i] = first[ids[i]];
        first[ids[i]] = i;
    }
}

#define BY_DTYPE "gather.c"
#include "by_dtype.h"

void NAME(gather)(fv_kernels *k);
void NAME(gather)(fv_kernels *k) { fill_by_dtype(k); }

#else /* the kernels of dtype DTYPE */

typedef struct {
    void *y;
    const void *table;
    fv_dtype tt;
    const int32_t *ids;
    int64_t d;
} OF(gather_args);

static void OF(gather_part)(void *arg, int64_t lo, int64_t hi, int slot)
{
    const OF(gather_args) *l = arg;
    (void)slot;
    for (int64_t i = lo; i < hi; i++) {
        if (l->tt == DTYPE) {
            memcpy((char *)l->y + i * l->d * bytes_of(DTYPE),
                   element(l->table, l->ids[i] * l->d, DTYPE), (size_t)(l->d * bytes_of(DTYPE)));
            continue;
        }
        for (int64_t j = 0; j < l->d; j += PIECE) {
            float tmp[PIECE];
            int64_t m = least(PIECE, l->d - j);
            widen_any(tmp, l->table, l->ids[i] * l->d + j, m, l->tt);
            narrow((char *)l->y + (i * l->d + j) * bytes_of(DTYPE), tmp, m, DTYPE);
        }
    }
}

static void OF(gather)(fv_stream *s, void *y, const void *table, fv_dtype tt, const int32_t *ids,
                       int64_t n, int64_t vocab, int64_t d)
{
    if (!fv__ids_valid(s, "gather", ids, n, vocab)) return;
    fv__cpu_parallel(s, threads_for_rows(s, n, d), n, 0, OF(gather_part),
                     &(OF(gather_args)){y, table, tt, ids, d});
}

/* One row of the table: the sum along a chain of rows of dy, rounded once. */
static void OF(sum_chain)(fv_sink dtable, int64_t row, const void *dy, int64_t head,
                          const int64_t *next, int64_t d)
{
    for (int64_t j = 0; j < d; j += PIECE) {
        float out[PIECE], tmp[PIECE];
        int64_t at = row * d + j, m = least(PIECE, d - j);
        float *sum = sink_target(dtable, at, out);
        if (head < 0)
            memset(sum, 0, (size_t)m * sizeof *sum);
        else
            widen(sum, element(dy, head * d + j, DTYPE), m, DTYPE);
        for (int64_t i = head < 0 ? -1 : next[head]; i >= 0; i = next[i]) {
            const float *p = fetch(tmp, dy, i * d + j, m, DTYPE);
            for (int64_t k = 0; k < m; k++) sum[k] += p[k];
        }
        sink_store(dtable, at, sum, m);
    }
}

typedef struct {
    fv_sink dtable;
    const void *dy;
    int32_t skip;
    const int64_t *first, *next;
    int64_t vocab, d;
} OF(gather_bwd_args);

static void OF(gather_bwd_part)(void *arg, int64_t lo, int64_t hi, int slot)
{
    const OF(gather_bwd_args) *l = arg;
    (void)slot;
    for (int64_t k = lo; k < hi; k++) {
        int64_t b = k * BLOCK_ROWS;
        for (int64_t v = b; v < least(l->vocab, b + BLOCK_ROWS); v++) {
            int64_t head = v == l->skip ? -1 : l->first[v];
            if (head >= 0 || !l->dtable.add)
                OF(sum_chain)(l->dtable, v, l->dy, head, l->next, l->d);
        }
    }
}

/* Each row of the table belongs to one thread and is summed in the order of positions, so
 * the bits do not depend on the number of threads. */
static void OF(gather_bwd)(fv_stream *s, fv_sink dtable, const void *dy, const int32_t *ids,
                           int64_t n, int64_t vocab, int64_t d, int32_t skip)
{
    if (!dtable.data || !fv__ids_valid(s, "gather_bwd", ids, n, vocab)) return;
    int64_t *first = fv_stream_scratch(s, (size_t)(vocab + n) * sizeof *first),
            *next = first + vocab;
    if (!first) return;
    chain(first, next, ids, n, vocab);
    fv__cpu_parallel(s, threads_for_rows(s, dtable.add ? n : vocab, d), pieces(vocab, BLOCK_ROWS),
                     1, OF(gather_bwd_part),
                     &(OF(gather_bwd_args)){dtable, dy, skip, first, next, vocab, d});
}

static void OF(table)(fv_kernels *k)
{
    k->gather = OF(gather);
    k->gather_bwd = OF(gather_bwd);
}
#endif
