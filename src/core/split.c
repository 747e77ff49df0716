/* split.c - weights that are divided among ranks: which elements this one holds.
 *
 * A weight of several pieces along the divided axis (q, k and v of one matrix) is cut in each of
 * them, so that a rank gets the same heads of all three.
 *
 *     axis 0, 2 ranks, pieces q k v:    rank 0  [q0 | k0 | v0],  rank 1  [q1 | k1 | v1] */
#include "core/collect.h"
#include "fovea/author/comm.h"

fv_shape fv__split_whole(const fv_entry *t)
{
    fv_shape s = t->tensor.shape;
    if (t->ranks) s.d[t->split.axis] = 0;
    for (int i = 0; t->ranks && i < t->split.pieces; i++) s.d[t->split.axis] += t->split.piece[i];
    return s;
}

void fv__param_split(fv_params *p, fv_tensor *t, const fv__split *s)
{
    fv_entry *entry = (fv_entry *)t;
    int ranks = fv_comm_size(p->ranks);
    int64_t mine = 0;
    if (!t || ranks < 2) return;
    for (int i = 0; i < s->pieces; i++) {
        mine += s->piece[i] / ranks;
        if (s->piece[i] % ranks && !p->err.code)
            fv_fail(&p->err, FV_EARG, "parameter %s: %lld cannot be divided evenly among %d ranks",
                    t->name, (long long)s->piece[i], ranks);
    }
    entry->split = *s;
    entry->ranks = p->ranks;
    t->shape.d[s->axis] = mine;
}

bool fv__split_run(const fv_entry *t, int64_t i, int64_t *at, int64_t *n)
{
    return fv__split_run_of(t, fv_comm_rank(t->ranks), i, at, n);
}

bool fv__split_run_of(const fv_entry *t, int rank, int64_t i, int64_t *at, int64_t *n)
{
    const fv__split *s = &t->split;
    fv_shape whole = fv__split_whole(t);
    int64_t inner = 1, outer = 1, before = 0, piece = i % s->pieces, row = i / s->pieces;
    for (int d = s->axis + 1; d < whole.n; d++) inner *= whole.d[d];
    for (int d = 0; d < s->axis; d++) outer *= whole.d[d];
    if (row >= outer) return false;
    for (int k = 0; k < piece; k++) before += s->piece[k];
    int64_t len = s->piece[piece] / fv_comm_size(t->ranks);
    *n = len * inner;
    *at = (row * whole.d[s->axis] + before + len * rank) * inner;
    return true;
}
