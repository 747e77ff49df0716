/* mpi.h - ranks by mpirun, for tests that start the program from outside. */
#ifndef HELPER_MPI_H
#define HELPER_MPI_H

#include <stdbool.h>
#include <stdlib.h>

/* Seconds for one job: a busy machine takes half a minute for a job of sanitized ranks, most of it
 * the search for leaks as each ends. */
#ifdef __SANITIZE_ADDRESS__
#define MPIRUN_SECONDS "400"
#else
#define MPIRUN_SECONDS "100"
#endif

/* As root, more ranks than cores, and no messages of mpirun's own between ours. */
#define MPIRUN                                                                                     \
    "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_WAIT_POLICY=passive "           \
    "timeout " MPIRUN_SECONDS " mpirun --oversubscribe --bind-to none "

/* Not built with MPI, or no mpirun here: such a test is skipped. */
static inline bool no_mpi(void)
{
    return !FOVEA_WITH_MPI || system("command -v mpirun > /dev/null");
}

#endif
