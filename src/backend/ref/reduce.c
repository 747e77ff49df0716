/* reduce.c - along one axis: sum, mean, maximum, the k largest, running sums; and masked
 * filling. */
#include "backend/ref/ref.h"
#include "backend/ref/ref_walk.h"

/* x[at] + x[at + step] + ..., n of them, by halves: the error grows with log n, and the order
 * depends on n alone. */
static acc sum(const void *x, int64_t at, int64_t step, int64_t n)
{
    acc s = 0;
    if (n > 32) return sum(x, at, step, n / 2) + sum(x, at + n / 2 * step, step, n - n / 2);
    for (int64_t i = 0; i < n; i++) s += ld(x, at + i * step);
    return s;
}

static void colsum(fv_stream *s, fv_sink y, const void *x, int64_t rows, int64_t cols)
{
    (void)s;
    if (!y.data) return;
    for (int64_t j = 0; j < cols; j++) sink_store(y, j, sum(x, j, cols, rows));
}

/* ---- reduce: x (outer,n,inner) -> y (outer,inner) ---- */

/* The order of max and topk: NaN counts as the largest, so it is not lost. */
static bool larger(acc a, acc b) { return a > b || (a != a && b == b); }

/* The first of equals, which is also where backward sends all of the gradient. */
static int64_t largest(const void *x, int64_t at, int64_t step, int64_t n)
{
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++)
        if (larger(ld(x, at + i * step), ld(x, at + best * step))) best = i;
    return best;
}

static void reduce(fv_stream *s, fv_reduce_op op, void *y, int32_t *arg, const void *x,
                   int64_t outer, int64_t n, int64_t inner)
{
    (void)s;
    for (int64_t o = 0; o < outer; o++)
        for (int64_t r = 0; r < inner; r++) {
            int64_t to = o * inner + r, from = o * n * inner + r;
            if (op == FV_R_MAX) {
                int64_t i = largest(x, from, inner, n);
                st(y, to, ld(x, from + i * inner));
                arg[to] = (int32_t)i;
            } else {
                acc t = sum(x, from, inner, n);
                st(y, to, op == FV_R_MEAN ? t / (acc)n : t);
            }
        }
}

/* y = sum: dx = dy;  y = mean: dx = dy / n;  y = max: dx = dy at arg, 0 elsewhere */
static void reduce_bwd(fv_stream *s, fv_reduce_op op, fv_sink dx, const void *dy,
                       const int32_t *arg, int64_t outer, int64_t n, int64_t inner)
{
    (void)s;
    if (!dx.data) return;
    for (int64_t o = 0; o < outer; o++)
        for (int64_t i = 0; i < n; i++)
            for (int64_t r = 0; r < inner; r++) {
                acc g = ld(dy, o * inner + r);
                if (op == FV_R_MEAN) g /= (acc)n;
                if (op == FV_R_MAX && arg[o * inner + r] != i) g = 0;
                sink_store(dx, (o * n + i) * inner + r, g);
            }
}

/* ---- topk ---- */

/* Insertion into a sorted list of k: most elements only meet its last entry. */
static void topk(fv_stream *s, void *values, int32_t *index, const void *x, int64_t rows,
                 int64_t cols, int64_t k)
{
    (void)s;
    for (int64_t row = 0; row < rows; row++) {
        int32_t *best = index + row * k;
        const int64_t first = row * cols;
        for (int64_t j = 0; j < cols; j++) {
            int64_t p = j < k ? j : k;
            acc v = ld(x, first + j);
            if (p == k && !larger(v, ld(x, first + best[k - 1]))) continue;
            if (p == k) p = k - 1;
            for (; p > 0 && larger(v, ld(x, first + best[p - 1])); p--) best[p] = best[p - 1];
            best[p] = (int32_t)j;
        }
        for (int64_t p = 0; p < k; p++) st(values, row * k + p, ld(x, first + best[p]));
    }
}

/* Indices of a row differ, so no two stores meet; the zeros come first unless dx is added to. */
static void topk_bwd(fv_stream *s, fv_sink dx, const void *dy, const int32_t *index, int64_t rows,
                     int64_t cols, int64_t k)
{
    (void)s;
    if (!dx.data) return;
    if (!dx.add)
        for (int64_t i = 0; i < rows * cols; i++) sink_store(dx, i, 0);
    for (int64_t row = 0; row < rows; row++)
        for (int64_t p = 0; p < k; p++)
            sink_store(dx, row * cols + index[row * k + p], ld(dy, row * k + p));
}

/* ---- cumsum ---- */

/* The gradient of a running sum is the running sum from the other end: reverse. */
static void cumsum(fv_stream *s, fv_sink y, const void *x, int64_t outer, int64_t n, int64_t inner,
                   bool reverse)
{
    (void)s;
    if (!y.data) return;
    for (int64_t o = 0; o < outer; o++)
        for (int64_t r = 0; r < inner; r++) {
            acc t = 0;
            for (int64_t i = 0; i < n; i++) {
                int64_t at = (o * n + (reverse ? n - 1 - i : i)) * inner + r;
                t += ld(x, at);
                sink_store(y, at, t);
            }
        }
}

/* ---- masked fill ---- */

static void masked_fill(fv_stream *s, fv_sink y, const void *x, const uint8_t *mask, float value,
                        const fv_walk *w)
{
    (void)s;
    if (!y.data) return;
    for (walker at = walk_start(w); at.more; walk_next(&at, w))
        sink_store(y, at.y, mask[at.b] ? ld(x, at.a) : (acc)value);
}

void REF(reduce)(fv_kernels *k);
void REF(reduce)(fv_kernels *k)
{
    k->colsum = colsum;
    k->reduce = reduce;
    k->reduce_bwd = reduce_bwd;
    k->topk = topk;
    k->topk_bwd = topk_bwd;
    k->cumsum = cumsum;
    k->masked_fill = masked_fill;
}
