/* ids.c - ids of tokens, rows of integers: moved along, counted, found.
 *
 * Device kernels, so that a decode step that is captured as a graph never waits for the host:
 *
 *    shift       y[t] = x[t + by], `edge` outside the row; then `from` becomes `to` (labels)
 *    positions   y counts tokens that are not `skip` (padding) from `first`, as RoBERTa does
 *    find_index  flat index of the first or last `id`, the last that is not `id`, or the largest id
 */
#include "backend/ref/ref.h"

static void shift(fv_stream *s, int32_t *y, const int32_t *x, int64_t rows, int64_t cols,
                  int64_t by, int32_t edge, int32_t from, int32_t to)
{
    (void)s;
    for (int64_t i = 0; i < rows * cols; i++) {
        int64_t t = i % cols + by;
        int32_t v = t >= 0 && t < cols ? x[i + by] : edge;
        y[i] = v == from ? to : v;
    }
}

static void positions(fv_stream *s, int32_t *y, const int32_t *x, int64_t rows, int64_t cols,
                      int32_t first, int32_t skip)
{
    (void)s;
    for (int64_t i = 0, n = 0; i < rows * cols; i++) {
        if (i % cols == 0) n = 0;
        y[i] = x && x[i] == skip ? skip : first + (int32_t)n++;
    }
}

static void find_index(fv_stream *s, int32_t *y, const int32_t *x, int64_t rows, int64_t cols,
                       int32_t id, fv_find what)
{
    (void)s;
    for (int64_t r = 0; r < rows; r++) {
        const int32_t *row = x + r * cols;
        int64_t found = 0;
        for (int64_t t = cols - 1; t >= 0; t--) {
            if (what == FV_FIND_LARGEST ? row[t] >= row[found]
                : what == FV_FIND_FIRST ? row[t] == id
                                        : !found && (row[t] == id) == (what == FV_FIND_LAST))
                found = t;
        }
        y[r] = (int32_t)(r * cols + found);
    }
}

void REF(ids)(fv_kernels *k);
void REF(ids)(fv_kernels *k)
{
    k->shift = shift;
    k->positions = positions;
    k->find_index = find_index;
}
