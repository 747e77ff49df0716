/* comm.h - the inside of a communicator: the table that an engine fills.
 *
 *     engine    ranks                                  for
 *     self      one                                    every run without mpirun
 *     threads   threads of one process                 tests under TSan
 *     mpi       processes, OpenMPI opened at run time  machines
 *
 * An engine carries bytes; sums that must have one order are made above it (tree.c), so every
 * engine gives the same bits.  Calls return within the timeout whatever happens to other ranks. */
#ifndef FV_COMM_H
#define FV_COMM_H

#include "base/base.h"
#include "fovea/author/comm.h"

typedef struct fv__comm_table {
    const char *name;
    fv_status (*exchange)(fv_comm *c, const fv_comm_part *send, int n_send,
                          const fv_comm_part *recv, int n_recv, fv_err *e);
    fv_status (*broadcast)(fv_comm *c, void *data, size_t bytes, int root, fv_err *e);
    fv_status (*barrier)(fv_comm *c, fv_err *e);
    void (*stop)(fv_comm *c, const char *why);
    void (*close)(fv_comm *c);
    /* NULL: made of exchange */
    fv_status (*all_gather)(fv_comm *c, const fv_comm_part *part, fv_err *e);
    fv_status (*all_reduce)(fv_comm *c, float *data, int64_t n, fv_err *e);
    fv_status (*reduce_scatter)(fv_comm *c, float *data, const int64_t *from, const int64_t *n,
                                fv_err *e);
} fv__comm_table;

struct fv_comm {
    const fv__comm_table *table;
    fv_env env;
    int rank, size, local_rank, local_size;
    double timeout;        /* seconds */
    double seconds, bytes; /* spent in collectives, and sent */
    void *impl;
};

/* An empty communicator that an engine fills in; NULL: no memory. */
fv_comm *fv__comm_new(const fv_env *env, const fv__comm_table *table, double timeout);
void fv__comm_free(fv_comm *c);

/* What the environment says that this process is; size 0: nothing. */
typedef struct fv__comm_place {
    int rank, size, local_rank, local_size;
    bool mpi;       /* by a launcher that MPI can join */
    const char *by; /* "Open MPI", "Slurm", ... */
} fv__comm_place;
fv__comm_place fv__comm_place_of_env(void);

fv_status fv__comm_mpi(fv_comm **out, const fv_env *env, const fv_comm_opt *o, fv_err *e);

double fv__comm_now(void); /* seconds, monotonic */

/* ---- sums of one order (tree.c) ----
 * n leaves are the leaves of a binary tree: a node of `count` leaves from `first` on has as its
 * left child the largest power of two below count, the rest as its right one.  Leaves are owned
 * by ranks in contiguous ranges.  A rank adds up the largest nodes that lie within its range;
 * the rest is added where all of them meet, in the order of the tree. */
typedef struct fv__node {
    int64_t first, count;
} fv__node;
/* Whether the tree over n leaves has this node. */
bool fv__tree_has(int64_t n, fv__node x);
/* The largest nodes within leaves [lo, hi), from left to right; returns how many, at most `most`
 * are written. */
int fv__tree_nodes(int64_t n, int64_t lo, int64_t hi, fv__node *out, int most);
#define FV__TREE_NODES 128 /* of one rank, at most: two for each bit of a number of leaves */
/* The leaves of a rank. */
int64_t fv__tree_from(int64_t n, int rank, int ranks);

/* out[0..len) = the root's sum of the values of nodes that cover all n leaves, from left to right.
 * out may be one of the values. */
void fv__tree_sum(float *out, const float *const *value, const fv__node *node, int nodes, int64_t n,
                  int64_t len);

#endif
