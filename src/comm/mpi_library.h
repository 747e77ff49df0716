/* mpi_library.h - OpenMPI, opened at run time, so that a program without ranks needs none.
 *
 * Headers come from the machine that builds.  OpenMPI's handles are addresses of objects in its
 * library, which its macros (MPI_COMM_WORLD) name: they are looked up like the functions. */
#ifndef FV_COMM_MPI_LIBRARY_H
#define FV_COMM_MPI_LIBRARY_H

#include "comm/comm.h"

#if HAVE_MPI
#include <mpi.h>

/* clang-format off */
#define FV_MPI_FUNCTIONS \
    X(Init_thread) X(Initialized) X(Finalize) X(Comm_rank) X(Comm_size) X(Comm_dup) \
    X(Comm_free) X(Comm_split_type) X(Comm_set_errhandler) X(Isend) X(Irecv) X(Iprobe) X(Recv) \
    X(Testall) X(Test) X(Ibcast) X(Ibarrier) X(Iallreduce) X(Ireduce_scatter) X(Error_string)
/* clang-format on */

typedef struct fv__mpi_library {
    void *handle;
#define X(f) __typeof__(&MPI_##f) f;
    FV_MPI_FUNCTIONS
#undef X
    MPI_Comm world;
    MPI_Datatype byte, f32;
    MPI_Op sum;
    MPI_Errhandler errors_return;
    MPI_Info info_null;
} fv__mpi_library;

/* Fills the table; the library stays open to the end of the process, as MPI cannot be started
 * twice. */
fv_status fv__mpi_library_open(fv__mpi_library *m, fv_err *e);

/* A byte from every rank to every other.  OpenMPI connects two ranks when the first of them sends,
 * and then waits inside MPI for the other's answer, for ever where that one is just cut off: when
 * ranks join nobody counts on it yet, and whoever waits for them gives up in time.  An error of
 * MPI's, or 0. */
int fv__mpi_connect(const fv__mpi_library *m, MPI_Comm comm, const fv_comm *c, int tag);
#endif

#endif
