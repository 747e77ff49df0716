/* tensor.h - training of a model that ranks share (tensor parallel): train.tensor_parallel = N.
 *
 *     6 ranks, N = 2      group 0   group 1   group 2
 *     first half          rank 0    rank 2    rank 4      `copies`: the same part of the model
 *     second half         rank 1    rank 3    rank 5
 *
 * A group has the model together: its ranks read the same batches and make the same calls, and sums
 * inside the layers (ops/split.c) keep them in step.  Groups share batches, gradients and moments
 * as single ranks do otherwise (ranks.h), each rank with those of other groups that have its
 * part. */
#ifndef FV_TENSOR_H
#define FV_TENSOR_H

#include "core/core.h"
#include "fovea/author/train.h"
#include "train/shares.h"

/* The communicators of a run; all NULL: the model is whole on every rank. */
typedef struct fv__tensor {
    fv_comm *model;  /* the ranks that share this one's model */
    fv_comm *copies; /* those with the same part of it; NULL: this one alone */
    bool own_model;  /* model is not the job's communicator itself */
} fv__tensor;

/* As the recipe says, of the ranks c of a job; every rank calls it. */
fv_status fv__tensor_open(fv__tensor *out, const fv_train_opt *o, fv_comm *c, fv_err *e);
void fv__tensor_close(fv__tensor *t);

/* Ranks that share the model of a job; NULL: it is whole. */
fv_comm *fv__tensor_ranks(const fv_params *p);
/* A hash of the size of all parameters, and of the numbers that every rank has. */
uint64_t fv__tensor_hash(const fv_params *p);
/* Ranks that share the batches: all, or those with the same part of the model. */
fv_comm *fv__data_ranks(const fv_train_job *j);
/* What cannot be trained so. */
fv_status fv__check_tensor(const fv_train_job *j, fv_err *e);

/* The sum of squares of all gradients, of which this rank has its shares of its part in grad, and
 * whether any rank wants to stop.  What every rank of a group has is counted once.  Every rank gets
 * the same. */
typedef struct fv__tensor_sum {
    fv_params *params;
    const fv__shares *shares;
    fv_comm *copies;
    fv_stream *stream;
} fv__tensor_sum;
fv_status fv__tensor_squares(const fv__tensor_sum *x, const float *grad, float *sumsq, bool *stop,
                             fv_err *e);

#endif
