/* sharded.h - parameters that ranks share (FSDP, ZeRO-3): of each large weight a rank keeps its
 * share, and all of it only while a product reads it.
 *
 *     forward    gather w, y = x w', let go of w
 *     backward   gather w, dx = dy w, let go; dw is sent to its owners as soon as it is final
 *     update     each owner its share; nothing is gathered behind it
 *
 * All ranks must read the same weights in the same order, so each has as many leaves of an update
 * as any other. */
#ifndef FV_SHARDED_H
#define FV_SHARDED_H

#include "core/core.h"
#include "fovea/author/train.h"
#include "train/shares.h"

typedef struct fv__sharded fv__sharded;

/* Whether train.shard_parameters asks for it; with one rank it means nothing. */
bool fv__sharded_wanted(const fv_train_opt *o, const fv_comm *c);
/* Why this job's batches cannot be cut for its ranks, or its parameters not be shared. */
fv_status fv__check_shards(const fv_train_job *j, fv_err *e);

/* Divides the weights of p among the ranks of c; those of other ranks are forgotten. */
fv_status fv__sharded_new(fv__sharded **out, fv_params *p, fv_device *d, fv_comm *c, fv_err *e);
/* whole: every rank gets all of them back, and calls it.  Else they are parted for good, and what
 * reads them is refused.  NULL is allowed. */
fv_status fv__sharded_whole(fv__sharded *s, fv_err *e);
void fv__sharded_free(fv__sharded *s);
/* Each rank is on its own from now on: whole, it will load all parameters itself; else they are
 * parted. */
void fv__sharded_leave(fv__sharded *s, bool whole);
fv__sharded *fv__sharded_of(const fv_params *p); /* NULL: p is whole */

/* What was loaded into all of them is forgotten again, but for this rank's share. */
void fv__sharded_forget(fv__sharded *s);
/* The parameters that are not divided, after their owners changed them, and buckets that hold both.
 * s NULL: all. */
fv_status fv__sharded_gather(fv__sharded *s, const fv__shares *h, fv_comm *c, void *block,
                             size_t size, fv_err *e);

/* Rank 0 alone reads parameters (to save or to generate) between drive and done; the other ranks
 * are in serve meanwhile.  NULL, parameters that are whole, is allowed everywhere: nothing is
 * done. */
void fv__sharded_drive(fv__sharded *s);
fv_status fv__sharded_done(fv__sharded *s, fv_err *e);
fv_status fv__sharded_serve(fv__sharded *s, fv_err *e);

/* j->score by rank 0, served by the others where they share the parameters. */
fv_status fv__sharded_score(const fv_train_job *j, double *metric, fv_err *e);

/* Of p, divided among so many ranks: numbers that one keeps, and those of the largest weights that
 * are gathered at a time. */
int64_t fv__sharded_numbers(const fv_params *p, const fv__shares *h);

#endif
