/* tree.c - sums over leaves that are spread among ranks, in an order that their number does not
 * change.
 *
 *     leaves     0   1   2   3   4   5   6        (0+1)+(2+3)  +  ((4+5)+6)
 *     3 ranks    [ rank 0 ] [ rank 1 ] [ r 2 ]    nodes {0,1} | {2,3} | {4,5} {6}
 *     2 ranks    [  rank 0  ] [    rank 1    ]    nodes {0,1} {2} | {3} {4,5,6}
 *
 * Floating-point addition is commutative but not associative: what has to be fixed is which sums
 * are added, not who adds them.  A chain ((0+1)+2)+... would also be one order, but then each
 * rank would have to wait for the rank before it.  Exact sums in whole numbers need no order at
 * all; they need a common unit for all leaves of each parameter, which is known only when the
 * last leaf is done. */
#include "comm/comm.h"

/* The size of the left child of a node with count > 1 leaves: the largest power of two below it. */
static int64_t left_count(int64_t count)
{
    int64_t p = 1;
    while (2 * p < count) p *= 2;
    return p;
}

bool fv__tree_has(int64_t n, fv__node x)
{
    fv__node at = {0, n};
    while (at.count > x.count) {
        int64_t left = left_count(at.count);
        if (x.first < at.first + left) {
            at.count = left;
        } else {
            at.first += left;
            at.count -= left;
        }
    }
    return at.first == x.first && at.count == x.count;
}

int fv__tree_nodes(int64_t n, int64_t lo, int64_t hi, fv__node *out, int most)
{
    int found = 0;
    for (int64_t at = lo; at < hi; found++) {
        /* from the root down, as long as the node that begins at or before `at` does not fit */
        fv__node x = {0, n};
        while (x.first != at || x.first + x.count > hi) {
            int64_t left = left_count(x.count);
            if (at < x.first + left) {
                x.count = left;
            } else {
                x.first += left;
                x.count -= left;
            }
        }
        if (found < most) out[found] = x;
        at += x.count;
    }
    return found;
}

int64_t fv__tree_from(int64_t n, int rank, int ranks) { return n * rank / ranks; }

/* ---- the sum where the nodes meet ---- */

typedef struct folding {
    const fv__node *node;
    int next;
    void (*add)(void *user, int i, int j);
    void *user;
} folding;

/* The number of the given node that holds the sum of x. */
static int fold(folding *f, fv__node x)
{
    const fv__node *given = &f->node[f->next];
    if (given->first == x.first && given->count == x.count) return f->next++;
    int64_t left = left_count(x.count);
    int a = fold(f, (fv__node){x.first, left});
    int b = fold(f, (fv__node){x.first + left, x.count - left});
    f->add(f->user, a, b);
    return a;
}

void fv__tree_fold(const fv__node *node, int64_t n, void (*add)(void *user, int i, int j),
                   void *user)
{
    folding f = {node, 0, add, user};
    fold(&f, (fv__node){0, n});
}

enum { RUN = 512, DEPTH = 64 }; /* floats added at a time; a tree of 2^64 leaves has this depth */

typedef struct meeting {
    const float *const *value;
    const fv__node *node;
    int nodes;
    int64_t at, len; /* the run of floats */
    float run[DEPTH][RUN];
} meeting;

/* The values of node x over the run: where they are, or computed into run[depth].  *k counts the
 * given nodes from left to right, which is the order in which they are met. */
static const float *evaluate(meeting *m, fv__node x, int depth, int *k)
{
    if (m->node[*k].first == x.first && m->node[*k].count == x.count)
        return m->value[(*k)++] + m->at;
    int64_t left = left_count(x.count);
    const float *a = evaluate(m, (fv__node){x.first, left}, depth, k);
    const float *b = evaluate(m, (fv__node){x.first + left, x.count - left}, depth + 1, k);
    float *y = m->run[depth];
    for (int64_t i = 0; i < m->len; i++) y[i] = a[i] + b[i];
    return y;
}

void fv__tree_sum(float *out, const float *const *value, const fv__node *node, int nodes, int64_t n,
                  int64_t len)
{
    meeting m;
    m.value = value;
    m.node = node;
    m.nodes = nodes;
    for (m.at = 0; m.at < len; m.at += RUN) {
        int k = 0;
        m.len = len - m.at < RUN ? len - m.at : RUN;
        const float *y = evaluate(&m, (fv__node){0, n}, 0, &k);
        if (y != out + m.at) memcpy(out + m.at, y, (size_t)m.len * sizeof *out);
    }
}
