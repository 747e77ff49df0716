/* collect.h - whole weights of a model that ranks share (core/split.c), read by rank 0, which
 * writes files: the others serve it until it says that it has all.
 *
 *     rank 0    fv__collect ... fv__collect ... fv__collect_end
 *     others    fv__collect_serve
 *
 * One weight is on its way at a time, so rank 0 needs memory for the largest, not for the model.
 * Sending everything to rank 0 in an order that all know would need no questions; then a disk that
 * is full could not be told to those who go on sending. */
#ifndef FV_CORE_COLLECT_H
#define FV_CORE_COLLECT_H

#include "core/params.h"

typedef struct fv__collector {
    fv_params *params;
    size_t size; /* bytes of a number */
    /* This rank's part of t, as it lies there: of the parameters (NULL), or of another array of the
     * same layout, such as a moment, which kind tells. */
    fv_status (*read)(void *user, int kind, const fv_entry *t, void *host, fv_err *e);
    void *user;
    const fv_entry *held; /* what `whole` is */
    int held_kind;
    void *whole, *part;
    size_t whole_bytes, part_bytes;
} fv__collector;

/* Rank 0: numbers [at, at + n) of all of t.  Of one that is not divided nobody else is asked. */
fv_status fv__collect(fv__collector *x, int kind, const fv_tensor *t, int64_t at, int64_t n,
                      void *out, fv_err *e);
/* The others: gives what is asked for until rank 0 has all. */
fv_status fv__collect_serve(fv__collector *x, fv_err *e);
/* Rank 0: nothing more is wanted.  Also where it has failed. */
fv_status fv__collect_end(const fv_params *p, fv_err *e);
void fv__collect_free(fv__collector *x);

/* fv__split_run for the part of any rank. */
bool fv__split_run_of(const fv_entry *t, int rank, int64_t i, int64_t *at, int64_t *n);

#endif
