/* ragged.h - rows of different length, one after another in memory: the encoded examples of a
 * feed. */
#ifndef FV_RAGGED_H
#define FV_RAGGED_H

#include "base/base.h"
#include "fovea/author/data.h"

typedef struct fv__ragged {
    const fv_env *env;
    int32_t *ids;
    int64_t *at; /* where each row begins, and one more */
    size_t ids_bytes, at_bytes;
    int64_t n;
} fv__ragged;

/* One more row; false when memory is out. */
bool fv__ragged_add(fv__ragged *r, const int32_t *ids, int64_t n);
const int32_t *fv__ragged_row(const fv__ragged *r, int64_t i, int64_t *n);
int64_t fv__ragged_longest(const fv__ragged *r, const int32_t *rows, int64_t n);
void fv__ragged_free(fv__ragged *r);

/* input_ids and attention_mask (n,T), T the longest of the rows; returns T, or 0 when memory is
 * out. */
int64_t fv__ragged_put(const fv__ragged *r, fv_batch *out, const int32_t *rows, int64_t n,
                       int32_t pad);

#endif
