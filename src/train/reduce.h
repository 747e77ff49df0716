/* reduce.h - the inside of fv__ranks, for the files that add up gradients: ranks.c those of this
 * rank's leaves, reduce.c those of all ranks, overlap.c the same while backward still runs. */
#ifndef FV_REDUCE_H
#define FV_REDUCE_H

#include "train/ranks.h"

typedef struct fv__stacked {
    fv__node node;
    float loss;
    float *grad; /* of the newest entry the parameters' own, or a copy of theirs on the host */
} fv__stacked;

struct fv__ranks {
    fv_params *params;
    fv_device *dev;
    fv_comm *comm;
    fv__shares shares;
    fv__trace *trace;
    fv_stream *stream; /* of the device, all of whose contexts share one */
    fv__nccl *nccl;    /* gradients of a GPU are sent as they are; NULL: by host memory */
    bool fast, on_host;
    bool direct; /* added up where backward writes them: memory of the host, of GPUs by NCCL */
    bool alone;  /* one rank with a device: it is never waited for, and all below is its memory */
    float *loss; /* then: of the leaf at hand, and of the update in the end */
    float *sumsq;
    float *kept_losses; /* FV__TREE_NODES: of the stack */
    float *device_sums; /* of each chunk */
    int64_t step;
    int64_t leaves, from, mine, done; /* of the update: all, and this rank's */
    fv__stacked stack[FV__TREE_NODES];
    int depth;
    float
        *merged[FV__TREE_NODES]; /* nodes that the newest one still has to be added to, in order */
    int n_merged;
    float losses[FV__TREE_NODES]; /* likewise, of the leaf that is computed now */
    int n_losses;
    float *block[FV__TREE_NODES]; /* memory of the stack */
    float *staging;               /* the gradients of a device, in host memory, unless direct */
    float *received;              /* of other ranks' nodes, for a share */
    size_t received_bytes;
    fv__node *nodes; /* of all ranks, from left to right */
    size_t nodes_bytes;
    int n_nodes, first_own; /* of them: all, and where this rank's begin */
    double *counts;
    size_t counts_bytes;
    float *sums;
    size_t sums_bytes;
    struct fv__overlap *overlap; /* NULL: buckets are reduced when backward is done */
    double hidden;               /* seconds of communication behind which backward ran */
};

/* Memory of the blocks that are put aside and of what is received. */
void *fv__ranks_alloc(const fv__ranks *r, size_t bytes);
void fv__ranks_release(const fv__ranks *r, void *p, size_t bytes); /* NULL is allowed */
/* y += x, n numbers, where the blocks are. */
void fv__ranks_sum(const fv__ranks *r, float *y, const float *x, int64_t n);
/* Grows *p (a pointer to a pointer) to at least `want` bytes, whose contents may go. */
bool fv__ranks_grow(const fv__ranks *r, void *p, size_t *have, size_t want);

/* What is sent to and received from others for one bucket. */
typedef struct fv__mail {
    fv_comm_part *send, *recv;
    float **value; /* of each node, over this rank's share */
    int n_send, n_recv;
    size_t bytes;
    void *memory;
} fv__mail;
/* The nodes of all ranks, and memory for what one bucket takes. */
fv_status fv__mail_new(fv__mail *m, fv__ranks *r, fv_err *e);
void fv__mail_free(fv__mail *m, const fv__ranks *r);
/* One bucket, whose gradients of this rank are final: this rank's share of it is summed in grad. */
fv_status fv__reduce_bucket(fv__ranks *r, fv__mail *m, float *grad, int64_t bucket, fv_err *e);

/* ---- overlap.c ---- */

typedef struct fv__overlap fv__overlap;
#define FV__UNDER_WAY 4 /* buckets that are final and not yet sent, at most, where that can be */
fv_status fv__overlap_new(fv__overlap **out, fv__ranks *r, fv_err *e);
void fv__overlap_free(fv__overlap *o); /* NULL is allowed */
/* The last leaf of this rank begins, in context c: from now on buckets are reduced by a thread of
 * their own as they become final. */
fv_status fv__overlap_begin(fv__overlap *o, fv_ctx *c, fv_err *e);
/* All are final; waits until they are reduced. */
fv_status fv__overlap_end(fv__overlap *o, fv_err *e);

#endif
