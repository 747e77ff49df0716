/* ragged.c - rows of different length, one after another in memory, with an index of where each
 * begins: two allocations for millions of rows. */
#include "data/ragged.h"

/* Rows of different lengths in one array: row i is ids[at[i]] .. ids[at[i + 1]]. false: no memory;
 * what was there stays good. */
bool fv__ragged_add(fv__ragged *r, const int32_t *ids, int64_t n)
{
    void *a = r->ids, *b = r->at;
    int64_t have = r->n ? r->at[r->n] : 0;
    bool ok = fv__grow(r->env, &a, &r->ids_bytes, (size_t)(have + n + 1) * sizeof *r->ids);
    r->ids = a;
    ok = fv__grow(r->env, &b, &r->at_bytes, (size_t)(r->n + 2) * sizeof *r->at) && ok;
    r->at = b;
    if (!ok) return false;
    if (!r->n) r->at[0] = 0;
    memcpy(r->ids + have, ids, (size_t)n * sizeof *ids);
    r->at[++r->n] = have + n;
    return true;
}

const int32_t *fv__ragged_row(const fv__ragged *r, int64_t i, int64_t *n)
{
    *n = r->at[i + 1] - r->at[i];
    return r->ids + r->at[i];
}

int64_t fv__ragged_longest(const fv__ragged *r, const int32_t *rows, int64_t n)
{
    int64_t most = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t len = r->at[rows[i] + 1] - r->at[rows[i]];
        if (len > most) most = len;
    }
    return most;
}

void fv__ragged_free(fv__ragged *r)
{
    fv__free(r->env, r->ids, r->ids_bytes);
    fv__free(r->env, r->at, r->at_bytes);
}

/* attention_mask is 1 for tokens and 0 for padding. */
int64_t fv__ragged_put(const fv__ragged *r, fv_batch *out, const int32_t *rows, int64_t n,
                       int32_t pad)
{
    int64_t T = fv__ragged_longest(r, rows, n);
    int32_t *ids = fv_batch_put(out, "input_ids", FV_I32, FV_SHAPE(n, T));
    uint8_t *mask = fv_batch_put(out, "attention_mask", FV_U8, FV_SHAPE(n, T));
    if (!mask) return 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t len;
        const int32_t *row = fv__ragged_row(r, rows[i], &len);
        out->tokens += (double)len;
        for (int64_t t = 0; t < T; t++) {
            ids[i * T + t] = t < len ? row[t] : pad;
            mask[i * T + t] = t < len;
        }
    }
    return T;
}
