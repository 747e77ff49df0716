/* idx.c - arrays in the IDX format: two zeros, the type (8: bytes), the number of axes, each axis
 * as four bytes with the highest first, and the numbers. */
#include "data/idx.h"

#include <stdio.h>

enum { UBYTE = 8, MOST_AXES = 4 };

/* MNIST's naming: "train-images-idx3-ubyte", the number being that of the axes, with or without
 * .gz. */
bool fv__idx_is(const char *path)
{
    const char *at = strstr(path, "-idx");
    return at && at[4] >= '1' && at[4] <= '4' && !strncmp(at + 5, "-ubyte", 6);
}

static uint32_t big_endian(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

/* The axes must account for every byte that follows them: a file that was cut is refused here, not
 * where an image is read. */
fv_status fv__idx_open(fv__idx *x, const fv_env *env, const char *path, fv_err *e)
{
    *x = (fv__idx){0};
    fv_status st = fv__plain_open(&x->file, env, path, e);
    if (st) return st;
    const uint8_t *p = (const uint8_t *)x->file.data;
    size_t n = x->file.size;
    if (n < 4 || p[0] || p[1] || p[2] != UBYTE || p[3] < 1 || p[3] > MOST_AXES ||
        n < 4 + 4 * (size_t)p[3])
        return fv_fail(e, FV_EFORMAT, "%s: no IDX file of bytes with 1 to %d axes", path,
                       MOST_AXES);
    int64_t count = 1;
    x->n = p[3];
    for (int i = 0; i < x->n; i++) {
        x->shape[i] = big_endian(p + 4 + 4 * i);
        if (!fv__mul_i64(&count, count, x->shape[i])) count = -1;
    }
    size_t head = 4 + 4 * (size_t)x->n;
    if (count < 1 || (uint64_t)count != n - head)
        return fv_fail(e, FV_EFORMAT, "%s: its axes need %lld bytes, but %zu follow them", path,
                       (long long)count, n - head);
    x->data = p + head;
    return FV_OK;
}

void fv__idx_close(fv__idx *x) { fv__plain_close(&x->file); }
