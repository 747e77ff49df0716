/* ranks.h - the gradients of an update from all ranks, added up in one order.
 *
 * An update has leaves: each of its batches is cut by rows into train.shards shards, whatever the
 * number of ranks, and every rank computes the gradients of a contiguous range of them.  Gradients
 * and losses are added along a binary tree over the leaves (comm/tree.c), so they have the same
 * bits for any number of ranks. */
#ifndef FV_RANKS_H
#define FV_RANKS_H

#include "comm/nccl.h"
#include "train/adam.h"
#include "train/trace.h"
#include "train/update.h"

typedef struct fv__ranks fv__ranks;

/* fast: sums in the order of the engine, without the promise.  s: a stream of the device. */
fv_status fv__ranks_new(fv__ranks **out, fv_params *p, fv_stream *s, fv_comm *c, bool fast,
                        fv_err *e);
fv__nccl *fv__ranks_nccl(const fv__ranks *r); /* NULL: GPUs are not spoken to directly */
void fv__ranks_set_trace(fv__ranks *r, fv__trace *t);
/* One rank with a device.  Then loss and sum of squares stay in its memory, at the two addresses
 * that must be set, and no call here waits for it: what it works on is as for more ranks, bit by
 * bit. */
bool fv__ranks_alone(const fv__ranks *r);
void fv__ranks_set_results(fv__ranks *r, float *loss, float *sumsq);
void fv__ranks_free(fv__ranks *r); /* NULL is allowed */
size_t fv__ranks_bytes(const fv__ranks *r);

/* The counts of all `leaves` leaves, of which this rank has those from `from` on, n of them; *stop
 * is set where any rank brings it set. */
fv_status fv__ranks_count(fv__ranks *r, fv__batch_counts *all, const fv_batch *const *leaf,
                          int64_t leaves, int64_t from, int64_t n, bool *stop, fv_err *e);

/* Blocks of gradients that a rank with n of so many leaves puts aside, beside the parameters'
 * own. */
int fv__ranks_aside(int64_t leaves, int64_t from, int64_t n);

/* An update begins, of so many leaves. */
void fv__ranks_begin(fv__ranks *r, int64_t step, int64_t leaves, int64_t from, int64_t n);
/* The next leaf begins in context c.  Where it is this rank's last, gradients are sent while
 * backward still runs. */
fv_status fv__ranks_last(fv__ranks *r, fv_ctx *c, fv_err *e);
/* The parameters hold the gradients of the next of this rank's leaves, whose loss this is (alone:
 * the device has it).  Whether the next leaf's gradients are to be added to them (the fast
 * order). */
fv_status fv__ranks_add(fv__ranks *r, fv_stream *s, float loss, fv_err *e);
bool fv__ranks_accumulates(const fv__ranks *r);
/* The gradients that this rank owns are in the parameters' gradients afterwards, the sum of squares
 * of all and the loss in *sumsq and *loss (alone: on the device).  Every rank gets the same. */
fv_status fv__ranks_reduce(fv__ranks *r, fv_stream *s, float *loss, float *sumsq, fv_err *e);

/* Seconds of communication so far: all, and those that this rank's computing did not hide. */
void fv__ranks_spent(const fv__ranks *r, double *all, double *exposed);

/* Stops, naming the rank, where ranks differ from rank 0 in any of these texts ("the data"). */
typedef struct fv__same {
    const char *what;
    uint64_t hash;
} fv__same;
fv_status fv__ranks_same(fv_comm *c, const fv__same *of, int n, fv_err *e);

#endif
