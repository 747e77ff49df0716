/* idx.h - arrays in the IDX format, as MNIST has them, plain or gzip. */
#ifndef FV_DATA_IDX_H
#define FV_DATA_IDX_H

#include "data/plain.h"

typedef struct fv__idx {
    fv__plain file;
    int n;            /* axes */
    int64_t shape[4]; /* of bytes; the first is the number of examples */
    const uint8_t *data;
} fv__idx;

bool fv__idx_is(const char *path); /* by its name: "...-idx3-ubyte", perhaps with .gz */
/* Close it whatever comes back. */
fv_status fv__idx_open(fv__idx *x, const fv_env *env, const char *path, fv_err *e);
void fv__idx_close(fv__idx *x);

#endif
