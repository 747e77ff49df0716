/* scaling.h - for authors: how long an update takes, and how much memory a rank needs, on machines
 * that are not there.  A recipe is measured on one rank; formulas say what N ranks on a network
 * come to.  docs/scale.md shows how well they fit. */
#ifndef FOVEA_AUTHOR_SCALING_H
#define FOVEA_AUTHOR_SCALING_H

#include "fovea/train.h"

/* What one rank was measured to need for an update; times in seconds. */
typedef struct fv_scaling {
    int64_t numbers;                /* trained */
    double number_bytes;            /* of a parameter */
    double state_bytes;             /* of its moments, master weight and moving average */
    double tokens, rows;            /* of an update; tokens are the memory's too */
    double leaf, token;             /* forward and backward: of each leaf, and of each token */
    double block;                   /* to put a block of gradients aside and to add it */
    double optimiser;               /* of all numbers */
    double leaf_bytes, token_bytes; /* activations: of any leaf, and of each token */
    double kept_leaf_bytes, kept_token_bytes; /* the same with train.recompute */
} fv_scaling;

/* What is planned for: ranks with a link of their own each. */
typedef struct fv_scaling_net {
    double bandwidth;  /* bytes a second, each way at once */
    double latency;    /* seconds from rank to rank */
    double efficiency; /* of the bandwidth, what arrives; 0: as measured with TCP */
    double overhead;   /* seconds of software for an exchange; 0: as measured with MPI */
    double speed;      /* devices compute so many times as fast as the one measured; 0: 1 */
    double tokens;     /* of an update; 0: as many as were measured */
} fv_scaling_net;

typedef struct fv_scaling_layout {
    int ranks;
    int64_t shards;                 /* train.shards */
    bool recompute;                 /* train.recompute */
    double compute, reduce, gather; /* seconds of an update, in sequence they would take */
    double exposed;                 /* of the communication, what computing does not hide */
    double seconds;                 /* an update */
    int64_t buckets;                /* of gradients, each an exchange */
    double sent;                    /* bytes that one rank sends: gradients, parameters */
    double bytes;                   /* of memory of a rank */
    double tokens;                  /* a second */
} fv_scaling_layout;

/* Trains a few updates of the job, several times, without writing anything; the model is not of use
 * afterwards.  job->comm must be NULL. */
FV_API fv_status fv_scaling_measure(fv_scaling *out, const fv_train_job *job, fv_err *e);

/* One layout: shards is at least ranks and at most what an update has rows for. */
FV_API fv_scaling_layout fv_scaling_predict(const fv_scaling *s, fv_scaling_net net, int ranks,
                                            int64_t shards, bool recompute);
/* The fastest layout of so many ranks whose memory fits (0: any); false: there is none, as where an
 * update has fewer rows than there are ranks. */
FV_API bool fv_scaling_best(fv_scaling_layout *out, const fv_scaling *s, fv_scaling_net net,
                            int ranks, double memory);

#endif
