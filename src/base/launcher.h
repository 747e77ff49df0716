/* launcher.h - which of the processes of a job this one is, as its launcher says.
 *
 * Needed from the ground up: a rank takes its share of the cores (cores.c) and its own GPU before
 * anybody has opened a communicator. */
#ifndef FV_LAUNCHER_H
#define FV_LAUNCHER_H

#include "base.h"

typedef struct fv__launch {
    int rank, size;             /* of the job; size 0: no launcher has started this process */
    int local_rank, local_size; /* on this machine */
    bool mpi;                   /* by a launcher that MPI can join */
    const char *by;             /* "Open MPI", "Slurm", ... */
} fv__launch;

fv__launch fv__launch_of_env(void);

/* A number of the environment, 0 to 2^24; -1: not there, or not such a number. */
int fv__env_int(const char *name);
/* The entry of a Slurm list like "2(x3),1" that belongs to a node; -1: it has none. */
int fv__slurm_entry(const char *list, int node);

/* This process's share of the cores it may use (fv__cores), where a launcher has started several
 * ranks on this machine; of n cores, the share of one of so many ranks. */
int fv__cores_of_rank(const fv_env *env);
int fv__cores_share(int n, int rank, int ranks);

#endif
