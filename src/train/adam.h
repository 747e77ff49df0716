/* adam.h - an update in pieces, none of which waits for the device but the last. */
#ifndef FV_ADAM_H
#define FV_ADAM_H

#include "comm/nccl.h"
#include "core/core.h"
#include "fovea/train.h"
#include "train/shares.h"

#define FV__UPDATES 16 /* as many may go before what they came to is read */

struct fv_adam {
    fv_device *dev;
    fv_params *params;
    fv_stream stream;
    fv_comm *comm;
    fv__nccl *nccl;    /* carries parameters between GPUs; NULL: the host does */
    fv__shares shares; /* of the flat block, whose numbers below are this rank's */
    int64_t n;         /* numbers in the flat block */
    int64_t stored;    /* numbers of m, v, master and ema */
    fv_dtype dtype;
    float *m, *v, *master; /* device; master only where parameters are narrow */
    float *ema;            /* device, or NULL */
    bool swapped;   /* the parameters hold the average, and ema (where they are not narrow) them */
    fv_update *now; /* device: the numbers of the update */
    float *sum;     /* device: the gradient's sum of squares */
    float (*result)[2]; /* device: FV__UPDATES pairs of loss and norm */
    float *scale;       /* host: a factor of the learning rate for each parameter */
    size_t scale_bytes;
    int *order; /* host: parameters as they stand in the flat block, without frozen ones */
    int n_order;
    size_t order_bytes;
};

/* As fv_adam_new; of the optimiser's state each rank of c holds its share (ZeRO-1). */
fv_status fv__adam_new(fv_adam **out, fv_params *p, fv_device *d, const fv_train_opt *o, fv_comm *c,
                       fv_err *e);

void fv__adam_set_nccl(fv_adam *a, fv__nccl *n); /* which outlives a */
/* What differs from update to update: the learning rate and its like, for update `step`. */
void fv__adam_upload(fv_adam *a, const fv_train_opt *o, int64_t step);
/* The loss of the update, or more of it. */
void fv__adam_prepare_step(fv_adam *a, fv_stream *s, const void *loss, fv_dtype t, bool more);
float fv__adam_loss(fv_adam *a); /* what it came to; waits */
/* The step itself, with the gradients that the parameters have.  It may be captured and
 * replayed. */
void fv__adam_run(fv_adam *a, fv_stream *s, const fv_train_opt *o);
/* The same from an fv_update whose sum of squares is known: clipping, then this rank's share of the
 * parameters, then those of the others.  Waits. */
fv_status fv__adam_run_shared(fv_adam *a, fv_stream *s, const fv_train_opt *o, float loss,
                              float sumsq, fv_err *e);
/* The same with loss and sum of squares that the device has (fv__adam_results), of ranks that are
 * one.  Does not wait. */
fv_status fv__adam_run_alone(fv_adam *a, fv_stream *s, const fv_train_opt *o, fv_err *e);
void fv__adam_results(fv_adam *a, float **loss, float **sumsq);
/* Waits; loss and norm of n updates from number `from` on.  The first that is not finite is
 * FV_ENUMERIC. */
fv_status fv__adam_read(fv_adam *a, int64_t from, int64_t n, float (*out)[2], fv_err *e);

#endif
