/* comm.h - ranks: the processes of one job, on one machine or on many.
 *
 * `mpirun -np N fovea train ...` starts N processes that are ranks 0 to N-1 of one job.  A
 * communicator knows which one this is and carries data between them.  Wherever a `fv_comm *` is
 * taken, NULL means the only rank of a job of one.
 *
 * Failure is shared: a rank that dies, stalls or aborts makes every call of every other rank fail
 * within the timeout, with a sentence that names it.  Nothing can be sent afterwards. */
#ifndef FOVEA_COMM_H
#define FOVEA_COMM_H

#include "fovea/env.h"

typedef struct fv_comm fv_comm;

typedef struct fv_comm_opt {
    /* "self", "mpi", "tcp", or "auto": MPI where mpirun, srun or PMIx started this process, TCP
     * where torchrun did, else self.  NULL: $FOVEA_RANKS, else auto */
    const char *engine;
    /* seconds of silence after which a rank counts as lost; 0: $FOVEA_RANK_TIMEOUT, else 20 */
    double timeout;
} fv_comm_opt;

/* Joins the job that this process was started for; every rank calls it.  One of a process. */
FV_API fv_status fv_comm_open(fv_comm **out, const fv_env *env, fv_comm_opt opt, fv_err *e);
/* Waits for the others, unless the job has failed.  NULL is allowed. */
FV_API void fv_comm_close(fv_comm *c);

FV_API int fv_comm_rank(const fv_comm *c); /* from 0 */
FV_API int fv_comm_size(const fv_comm *c); /* ranks of the job */

/* Every rank brings its own status (with *e filled where it is a failure) and leaves with that of
 * the first rank that failed: "rank 2: its sentence".  FV_OK where all are. */
FV_API fv_status fv_comm_agree(fv_comm *c, fv_status mine, fv_err *e);

/* What stands before each of the records that a rank has: its number and the bytes of its text,
 * which follow.  A rank's own are in order; a number may come several times. */
typedef struct fv_comm_record {
    int64_t number;
    uint64_t n;
} fv_comm_record;
typedef void fv_comm_record_fn(void *user, const char *text, size_t n);
/* Every rank brings its records, n bytes of them.  At rank 0 each is called for the texts of all
 * ranks in order of their numbers; at others it is not. */
FV_API fv_status fv_comm_gather_records(fv_comm *c, const char *mine, size_t n,
                                        fv_comm_record_fn *each, void *user, fv_err *e);

#endif
