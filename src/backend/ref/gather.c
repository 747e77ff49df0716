/* gather.c - rows of a table by id, and the sum of rows back into the table. */
#include "backend/ref/ref.h"
#include "backend/stream.h"

static acc load_as(fv_dtype t, const void *p, int64_t i)
{
    switch (t) {
    case FV_F64: return (acc)((const double *)p)[i];
    case FV_BF16: return ref_from_bf16(((const uint16_t *)p)[i]);
    case FV_F16: return ref_from_f16(((const uint16_t *)p)[i]);
    default: return ((const float *)p)[i];
    }
}

/* Ids are checked before anything is written: a bad one leaves y as it was and names its index. */
static void gather(fv_stream *s, void *y, const void *table, fv_dtype tt, const int32_t *ids,
                   int64_t n, int64_t vocab, int64_t d)
{
    if (!fv__ids_valid(s, "gather", ids, n, vocab)) return;
    for (int64_t i = 0; i < n; i++) {
        if (tt == REF_TYPE)
            memcpy((real *)y + i * d, (const real *)table + ids[i] * d, (size_t)d * sizeof(real));
        else
            for (int64_t j = 0; j < d; j++) st(y, i * d + j, load_as(tt, table, ids[i] * d + j));
    }
}

/* The positions of each id are chained in ascending order, then every table row is summed once
 * along its chain.  So a row is rounded once, and splitting the rows of the table among threads
 * would not change the order of addition. */
static void gather_bwd(fv_stream *s, fv_sink dtable, const void *dy, const int32_t *ids, int64_t n,
                       int64_t vocab, int64_t d, int32_t skip)
{
    if (!dtable.data || !fv__ids_valid(s, "gather_bwd", ids, n, vocab)) return;
    int64_t *first = fv_stream_scratch(s, (size_t)(vocab + n) * sizeof *first),
            *next = first + vocab;
    if (!first) return;
    for (int64_t v = 0; v < vocab; v++) first[v] = -1;
    for (int64_t i = n - 1; i >= 0; i--) {
        next[i] = first[ids[i]];
        first[ids[i]] = i;
    }
    for (int64_t v = 0; v < vocab; v++) {
        int64_t head = v == skip ? -1 : first[v];
        if (head < 0 && dtable.add) continue;
        for (int64_t j = 0; j < d; j++) {
            acc sum = 0;
            for (int64_t i = head; i >= 0; i = next[i]) sum += ld(dy, i * d + j);
            sink_store(dtable, v * d + j, sum);
        }
    }
}

void REF(gather)(fv_kernels *k);
void REF(gather)(fv_kernels *k)
{
    k->gather = gather;
    k->gather_bwd = gather_bwd;
}
