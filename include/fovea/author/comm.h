/* comm.h - for authors: collectives between ranks, and ranks that are threads of one process.
 *
 * Every rank calls the same collectives in the same order.  Memory is the host's.  All of them may
 * be called with NULL, a job of one rank. */
#ifndef FOVEA_AUTHOR_COMM_H
#define FOVEA_AUTHOR_COMM_H

#include "fovea/comm.h"

/* The rank and number of ranks on this machine. */
FV_API int fv_comm_local_rank(const fv_comm *c);
FV_API int fv_comm_local_size(const fv_comm *c);
FV_API const char *fv_comm_engine(const fv_comm *c); /* "self", "threads", "mpi", "tcp" */
/* This rank cannot go on: the others stop with "rank N: why". */
FV_API void fv_comm_abort(fv_comm *c, const char *why);

/* Bytes that go to a rank, or come from it. */
typedef struct fv_comm_part {
    int rank;
    void *data;
    size_t bytes;
} fv_comm_part;

/* n communicators, one for each of n threads of this process; each is closed by its thread. */
FV_API fv_status fv_comm_threads(fv_comm **out, int n, const fv_env *env, fv_err *e);

/* The ranks of c that give the same colour, in their order, as a communicator of its own; every
 * rank of c calls it.  *out is NULL where it is alone.  To be closed before c, whose failures are
 * its own; both are used by one thread. */
FV_API fv_status fv_comm_split(fv_comm **out, fv_comm *c, int colour, fv_err *e);

/* Sends and receives at once, in any pattern: the k-th part sent to a rank is the k-th it receives
 * from here, of the same size.  A rank may send to itself. */
FV_API fv_status fv_comm_exchange(fv_comm *c, const fv_comm_part *send, int n_send,
                                  const fv_comm_part *recv, int n_recv, fv_err *e);
/* part[r], r = 0 .. size-1: where the bytes of rank r stand here.  Each rank has filled its own. */
FV_API fv_status fv_comm_all_gather(fv_comm *c, const fv_comm_part *part, fv_err *e);
FV_API fv_status fv_comm_broadcast(fv_comm *c, void *data, size_t bytes, int root, fv_err *e);
/* Sums of floats in an order of the engine's choosing: fast, and not the same bits for another
 * number of ranks.  reduce_scatter: the sum over all ranks of data[from[r] .. from[r] + n[r]) is
 * left there at rank r. */
FV_API fv_status fv_comm_all_reduce(fv_comm *c, float *data, int64_t n, fv_err *e);
FV_API fv_status fv_comm_reduce_scatter(fv_comm *c, float *data, const int64_t *from,
                                        const int64_t *n, fv_err *e);
FV_API fv_status fv_comm_barrier(fv_comm *c, fv_err *e);
/* Texts of all ranks, at rank 0 in order of rank, to be freed by fv_comm_free_text with the same
 * env; other ranks get NULL. */
FV_API fv_status fv_comm_gather_text(fv_comm *c, const fv_env *env, const char *mine, size_t n,
                                     char **all, size_t *len, fv_err *e);
FV_API void fv_comm_free_text(const fv_env *env, char *all, size_t len); /* NULL is allowed */
/* Seconds that this rank has spent in collectives, and bytes it has sent to others. */
FV_API void fv_comm_spent(const fv_comm *c, double *seconds, double *bytes);

#endif
