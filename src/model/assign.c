/* assign.c - the assignment problem, solved exactly by shortest augmenting paths.
 *
 * Rows are assigned one by one.  Potentials u, v keep every reduced cost c[i,j] - u[i] - v[j] at
 * least 0, and 0 where i has j; for each new row the cheapest path to a free column is grown as in
 * Dijkstra's algorithm, and the columns on it change hands.  O(n^2 m), in double; of equal costs
 * the lower column is taken first, so the result depends on nothing else. */
#include <float.h>

#include "model/detect.h"

typedef struct search {
    const double *cost;
    int64_t m;
    double *u, *v;    /* potentials of rows 1..n and columns 1..m; 0 stands for "none" */
    double *distance; /* from the new row to each column */
    double *row_of;   /* of each column, the row that has it; numbers of rows fit doubles */
    double *before;   /* of each column, the one before it on its path */
} search;

/* Grows paths from row `row` until a free column is reached: that column. */
static int64_t reach(search *s, int64_t row, bool *done)
{
    int64_t at = 0;
    s->row_of[0] = (double)row;
    for (int64_t j = 0; j <= s->m; j++) s->distance[j] = DBL_MAX, done[j] = false;
    do {
        done[at] = true;
        int64_t i = (int64_t)s->row_of[at], next = 0;
        double least = DBL_MAX;
        for (int64_t j = 1; j <= s->m; j++) {
            if (done[j]) continue;
            double d = s->cost[(i - 1) * s->m + j - 1] - s->u[i] - s->v[j];
            if (d < s->distance[j]) s->distance[j] = d, s->before[j] = (double)at;
            if (s->distance[j] < least || !next) least = s->distance[j], next = j;
        }
        for (int64_t j = 0; j <= s->m; j++) {
            if (done[j])
                s->u[(int64_t)s->row_of[j]] += least, s->v[j] -= least;
            else
                s->distance[j] -= least;
        }
        at = next;
    } while (s->row_of[at] != 0);
    return at;
}

void fv__assign(const double *cost, int64_t n, int64_t m, int64_t *column, double *work)
{
    search s = {.cost = cost, .m = m, .u = work, .v = work + n + 1};
    s.distance = s.v + m + 1;
    s.row_of = s.distance + m + 1;
    s.before = s.row_of + m + 1;
    bool *done = (bool *)(s.before + m + 1);
    for (double *p = work; p < s.before; p++) *p = 0;
    for (int64_t row = 1; row <= n; row++)
        for (int64_t at = reach(&s, row, done); at; at = (int64_t)s.before[at])
            s.row_of[at] = s.row_of[(int64_t)s.before[at]];
    for (int64_t j = 1; j <= m; j++)
        if (s.row_of[j] != 0) column[(int64_t)s.row_of[j] - 1] = j - 1;
}
