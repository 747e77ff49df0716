/* shares.h - which numbers of the flat block each rank owns, and keeps the optimiser's state of.
 *
 *     bucket 0              bucket 1              bucket 2
 *     [ rank 0 | rank 1 ]   [ rank 0 | rank 1 ]   [ rank 0 | ran ]      per_rank numbers each
 *
 * Buckets, not one slice for each rank: a bucket whose gradients are known can be sent while others
 * are still computed.  A share is made of whole chunks.  The squares of a chunk are added up alone,
 * and chunks depend on the size of the block only, so the norm has one order whoever owns what. */
#ifndef FV_SHARES_H
#define FV_SHARES_H

#include "comm/nccl.h"

typedef struct fv__shares {
    int64_t n; /* numbers of the flat block */
    int rank, ranks;
    int64_t chunk, per_rank, buckets;
} fv__shares;

fv__shares fv__shares_of(int64_t n, const fv_comm *c);
fv__shares fv__shares_for(int64_t n, int rank, int ranks);
/* What rank owns of a bucket: [*from, *to), perhaps nothing. */
void fv__share(const fv__shares *s, int64_t bucket, int rank, int64_t *from, int64_t *to);
/* Numbers that a rank stores: its shares of all buckets, one behind the other. */
int64_t fv__shares_stored(const fv__shares *s);
int64_t fv__shares_chunks(const fv__shares *s);
int fv__chunk_owner(const fv__shares *s, int64_t chunk);

/* Every rank gets the others' shares of a block in host memory, numbers of `size` bytes. */
fv_status fv__shares_gather(const fv__shares *s, fv_comm *c, void *block, size_t size, fv_err *e);
fv_status fv__shares_gather_bucket(const fv__shares *s, fv_comm *c, int64_t bucket, void *block,
                                   size_t size, fv_err *e);
/* The same of a block in the memory of GPUs. */
fv_status fv__shares_gather_gpu(const fv__shares *s, fv__nccl *n, void *stream, void *block,
                                size_t size, fv_err *e);

#endif
