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
    /* "self", "mpi", "tcp", or "auto": MPI where mpirun, srun or PMIx started this process, TCP where
     * torchrun did, else self.  NULL: $FOVEA_RANKS, else auto */
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
/* Texts of all ranks, at rank 0 in order of rank, to be freed by fv_comm_free_text with the same
 * env; other ranks get NULL. */
FV_API fv_status fv_comm_gather_text(fv_comm *c, const fv_env *env, const char *mine, size_t n,
                                     char **all, size_t *len, fv_err *e);
FV_API void fv_comm_free_text(const fv_env *env, char *all, size_t len); /* NULL is allowed */

#endif
