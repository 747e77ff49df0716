/* comm.h - the inside of a communicator: the table that an engine fills.
 *
 *     engine    ranks                                  for
 *     self      one                                    every run without mpirun
 *     threads   threads of one process                 tests under TSan
 *     mpi       processes, OpenMPI opened at run time  machines
 *     tcp       processes, through rank 0              what NCCL needs beside it, without MPI
 *
 * An engine carries bytes; sums that must have one order are made above it (tree.c), so every
 * engine gives the same bits.  Calls return within the timeout whatever happens to other ranks. */
#ifndef FV_COMM_H
#define FV_COMM_H

#include <pthread.h>

#include "base/base.h"
#include "base/launcher.h"
#include "fovea/author/comm.h"

typedef struct fv__comm_table {
    const char *name;
    fv_status (*exchange)(fv_comm *c, const fv_comm_part *send, int n_send,
                          const fv_comm_part *recv, int n_recv, fv_err *e);
    void (*stop)(fv_comm *c, const char *why);
    void (*close)(fv_comm *c);
    /* Completes out, whose ranks are these of c (split.c).  NULL: ranks can exchange parts while
     * others do something else. */
    fv_status (*split)(fv_comm *out, fv_comm *c, const int *member, int n, fv_err *e);
    /* NULL: made of exchange (collectives.c) */
    fv_status (*broadcast)(fv_comm *c, void *data, size_t bytes, int root, fv_err *e);
    fv_status (*barrier)(fv_comm *c, fv_err *e);
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
    /* NCCL's kernels wait for a lost rank where no heartbeat is seen: whoever is to be told */
    pthread_mutex_t lost_lock;
    void (*on_lost)(void *user);
    void *lost_user;
};

/* An empty communicator that an engine fills in; NULL: no memory. */
fv_comm *fv__comm_new(const fv_env *env, const fv__comm_table *table, double timeout);
void fv__comm_free(fv_comm *c);

/* fn is called, once and by a thread of the engine, when the job has failed; NULL: no longer. */
void fv__comm_on_lost(fv_comm *c, void (*fn)(void *user), void *user);
void fv__comm_tell_lost(fv_comm *c); /* for engines */

fv_status fv__comm_mpi(fv_comm **out, const fv_env *env, const fv_comm_opt *o, fv_err *e);
fv_status fv__comm_tcp(fv_comm **out, const fv_env *env, const fv_comm_opt *o, fv_err *e);

/* ---- made of exchange ---- */
void fv__comm_copy_own(const fv_comm *c, const fv_comm_part *send, int n_send,
                       const fv_comm_part *recv, int n_recv);
fv_status fv__exchange_gather(fv_comm *c, const fv_comm_part *part, double *sent, fv_err *e);
fv_status fv__exchange_broadcast(fv_comm *c, void *data, size_t bytes, int root, fv_err *e);
fv_status fv__exchange_barrier(fv_comm *c, fv_err *e);
fv_status fv__exchange_all_reduce(fv_comm *c, float *data, int64_t n, fv_err *e);
fv_status fv__exchange_reduce_scatter(fv_comm *c, float *data, const int64_t *from,
                                      const int64_t *n, fv_err *e);

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

/* The same where the engine's caller adds: add(user, i, j) is asked to add the value of node j to
 * that of node i, in the order of the tree; the sum of all is then the value of node 0. */
void fv__tree_fold(const fv__node *node, int64_t n, void (*add)(void *user, int i, int j),
                   void *user);

/* out[0..len) = the root's sum of the values of nodes that cover all n leaves, from left to right.
 * out may be one of the values. */
void fv__tree_sum(float *out, const float *const *value, const fv__node *node, int nodes, int64_t n,
                  int64_t len);

#endif
