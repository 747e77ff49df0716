/* mega_plan.h - what the planner of the decode megakernel knows of the ops of a launch: what memory
 * each reads and writes, and which others have finished by then. */
#ifndef FV_CUDA_DECODE_MEGA_PLAN_H
#define FV_CUDA_DECODE_MEGA_PLAN_H

#include <bitset>

#include "mega.h"
#include "mega_region.h"

#define MAX_AFTER 32
#define MAX_OPS (int)(sizeof(mk_ops::op) / sizeof(mk_op))

typedef std::bitset<MAX_OPS> op_set;

/* Memory accesses and dependencies of an op.
 *    op        reads                 writes                 through flagged words
 *    qkv       x                     q, K cache, V cache    q (and this step's k, v)
 *    heads     q, k, v               likewise               likewise
 *    attention q, caches             y                      y
 *    out       y, x (residual)       x                      x */
struct op_access {
    /* writes: the result, which may also go to flagged words; caches and scratch, which do not */
    region y, other_writes[3];
    region read[3];    /* global memory not written in this launch */
    int64_t row_words; /* flagged words per row of the result; 0: none */
    /* ops that have finished when this one stores its first value; when it has stored all */
    op_set before, all_before;
    int onto;       /* the op that made a GEMM's residual, or -1 */
    op_set readers; /* of its flagged words */
    int area;       /* of its flagged words, or -1 */
};

struct megakernel {
    mk_ops p;
    int next_block; /* first block of the next GEMM: balances the tiles of successive ones */
    op_access access[MAX_OPS];
    int owner[FLAGGED_AREAS];      /* the last op that writes to an area, or -1 */
    int rounds[3];                 /* barriers so far: of a group, of two, of all */
    int met;                       /* the last op before which all groups met; 0: the first */
    weights_rows after[MAX_AFTER]; /* launched behind the ops */
    int n_after;
    size_t kept; /* bytes of the device's that hold queries for them */
};

/* mega_dataflow.cu.  Few rows: connects the op to those before it; false: it cannot join this
 * launch. */
bool fv_cuda_megakernel_connect(fv_stream *s, megakernel *g, mk_op *o);
/* Many rows: the barrier before the op, and whether all groups must meet there. */
void fv_cuda_megakernel_separate(megakernel *g, mk_op *o);

#endif
