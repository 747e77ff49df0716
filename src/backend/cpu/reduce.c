/* reduce.c - along one axis: sums, means, largest, running sums; x is (outer,n,inner).
 *
 * A sum is taken in blocks of fixed size, each by one thread; the sums of the blocks are then added
 * first to last.  So the order depends on n alone. */
#ifndef DTYPE
#include "stage.h"

/*    x (outer, n, inner)        inner = 1: along a row, vectors run along the sum
 *                               inner > 1: down columns, vectors run across them,
 *                                          and no lane is ever added to another */
#define BLOCK_ROWS 256     /* of a sum over rows */
#define BLOCK_LENGTH 16384 /* of a sum along a row */
#define COLUMNS 256        /* one thread takes at a time */

/* sum[j] += x[0,j] + ... + x[n-1,j], eight rows at a time
 * Eight rows as a tree of depth three, then added to the running sum: a quarter of the loads and
 * stores of sum, and a shorter chain of roundings. */
static void add_rows(float *sum, const float *x, int64_t n, int64_t stride, int64_t m)
{
    int64_t r = 0;
    for (; r + 8 <= n; r += 8, x += 8 * stride) {
        int64_t j = 0;
        for (; j + VW <= m; j += VW) {
            const float *p = x + j;
            vf a = v_add(v_add(v_load(p), v_load(p + stride)),
                         v_add(v_load(p + 2 * stride), v_load(p + 3 * stride)));
            p += 4 * stride;
            vf b = v_add(v_add(v_load(p), v_load(p + stride)),
                         v_add(v_load(p + 2 * stride), v_load(p + 3 * stride)));
            v_store(sum + j, v_add(v_load(sum + j), v_add(a, b)));
        }
        for (; j < m; j++) {
            const float *p = x + j, *q = p + 4 * stride;
            float a = (p[0] + p[stride]) + (p[2 * stride] + p[3 * stride]),
                  b = (q[0] + q[stride]) + (q[2 * stride] + q[3 * stride]);
            sum[j] += a + b;
        }
    }
    for (; r < n; r++, x += stride)
        for (int64_t j = 0; j < m; j++) sum[j] += x[j];
}

/* NaN counts as the largest, so it is not lost. */
static inline bool larger(float a, float b) { return a > b || (a != a && b == b); }

/* Index of the first maximum of x.
 * The value in vectors, then its index by a second search that stops early: tracking indices in
 * lanes would cost a select in every step and break ties by lane instead of by index. */
static int64_t first_largest(const float *x, int64_t n)
{
    vf top = v_set1(-INFINITY);
    vi nan = {0};
    int64_t i = 0;
    for (; i + VW <= n; i += VW) {
        vf a = v_load(x + i);
        top = v_max(top, a);
        nan |= (vi)(a != a);
    }
    float best = v_hmax(top);
    for (int j = 0; j < VW; j++)
        if (nan[j]) best = NAN;
    for (; i < n; i++)
        if (larger(x[i], best)) best = x[i];
    for (i = 0; i < n - 1; i++)
        if (x[i] == best || (best != best && x[i] != x[i])) break;
    return i;
}

#define BY_DTYPE "reduce.c"
#include "by_dtype.h"

void NAME(reduce)(fv_kernels *k);
void NAME(reduce)(fv_kernels *k) { fill_by_dtype(k); }

#else /* the kernels of dtype DTYPE */

/* ---- sums ---- */

/* The sum over rows [from, from+n) of columns [col, col+m) of x, whose rows are `stride` apart. */
static void OF(block_of_rows)(float *sum, const void *x, int64_t from, int64_t n, int64_t stride,
                              int64_t m)
{
    float wide[8][COLUMNS];
    memset(sum, 0, (size_t)m * sizeof *sum);
    if (DTYPE == FV_F32) {
        add_rows(sum, (const float *)x + from, n, stride, m);
        return;
    }
    for (int64_t r = 0; r < n; r += 8) {
        int64_t rows = least(8, n - r);
        for (int64_t i = 0; i < rows; i++)
            widen(wide[i], element(x, from + (r + i) * stride, DTYPE), m, DTYPE);
        add_rows(sum, wide[0], rows, COLUMNS, m);
    }
}

typedef struct {
    fv_sink y;
    const void *x;
    float *part;
    int64_t n, inner, blocks, per_row, first;
    float by;
} OF(sum_rows_args);

static void OF(sum_rows_part)(void *arg, int64_t lo, int64_t hi, int slot)
{
    const OF(sum_rows_args) *l = arg;
    (void)slot;
    for (int64_t i = lo; i < hi; i++) {
        float tmp[COLUMNS];
        int64_t at = i % l->per_row * COLUMNS, b = i / l->per_row % l->blocks,
                k = l->first + i / l->per_row / l->blocks;
        int64_t m = least(COLUMNS, l->inner - at);
        float *sum = l->part ? l->part + b * l->inner + at : tmp;
        OF(block_of_rows)
        (sum, l->x, (k * l->n + b * BLOCK_ROWS) * l->inner + at,
         least(BLOCK_ROWS, l->n - b * BLOCK_ROWS), l->inner, m);
        for (int64_t j = 0; l->by != 1.0f && j < m; j++) sum[j] /= l->by;
        if (!l->part) sink_store(l->y, k * l->inner + at, sum, m);
    }
}

/* Over the middle axis, inner > 1: every block of rows and columns has its own partial sum.
 *    x (n, inner), n = 600:   block 0 = rows 0..255, block 1 = 256..511, block 2 = 512..599
 *    y = (block 0 + block 1) + block 2, in that order, whoever computed them */
static void OF(sum_rows)(fv_stream *s, fv_sink y, const void *x, int64_t outer, int64_t n,
                         int64_t inner, float by)
{
    int64_t blocks = n > BLOCK_ROWS ? pieces(n, BLOCK_ROWS) : 1, per_row = pieces(inner, COLUMNS);
    float *part = blocks > 1 ? fv_stream_scratch(s, (size_t)(blocks * inner) * sizeof *part) : NULL;
    if (blocks > 1 && !part) return;
    for (int64_t o = 0; o < (blocks > 1 ? outer : 1); o++) {
        /* with one block, all of outer at once */
        int64_t first = blocks > 1 ? o : 0, count = blocks > 1 ? 1 : outer;
        fv__cpu_parallel(s, threads_for_axes(s, count, n, inner), count * blocks * per_row, 0,
                         OF(sum_rows_part),
                         &(OF(sum_rows_args)){y, x, part, n, inner, blocks, per_row, first, by});
        if (part) {
            fv_sink row = y;
            row.data = (char *)y.data + o * inner * bytes_of(y.dtype);
            sum_parts(s, row, part, blocks, inner);
        }
    }
}

static float OF(block_of_row)(const void *x, int64_t from, int64_t n)
{
    float tmp[PIECE], sum = 0;
    if (DTYPE == FV_F32) return sum_of((const float *)x + from, n);
    for (int64_t i = 0; i < n; i += PIECE) {
        int64_t m = least(PIECE, n - i);
        sum += sum_of(fetch(tmp, x, from + i, m, DTYPE), m);
    }
    return sum;
}

typedef struct {
    float *part;
    const void *x;
    int64_t n, blocks;
} OF(sum_along_args);

static void OF(sum_along_part)(void *arg, int64_t lo, int64_t hi, int slot)
{
    const OF(sum_along_args) *l = arg;
    (void)slot;
    for (int64_t i = lo; i < hi; i++) {
        int64_t at = i % l->blocks * BLOCK_LENGTH;
        l->part[i] = OF(block_of_row)(l->x, i / l->blocks * l->n + at,
                                      least(BLOCK_LENGTH, l->n - at));
    }
}

/* Along rows, inner = 1. */
static void OF(sum_along)(fv_stream *s, void *y, const void *x, int64_t outer, int64_t n, float by)
{
    int64_t blocks = n > BLOCK_LENGTH ? pieces(n, BLOCK_LENGTH) : 1;
    float *part = fv_stream_scratch(s, (size_t)(outer * blocks + 1) * sizeof *part);
    if (!part) return;
    fv__cpu_parallel(s, threads_for_rows(s, outer, n), outer * blocks, 0, OF(sum_along_part),
                     &(OF(sum_along_args)){part, x, n, blocks});
    for (int64_t o = 0; o < outer; o++) {
        float sum = part[o * blocks];
        for (int64_t b = 1; b < blocks; b++) sum += part[o * blocks + b];
        part[o] = sum / by; /* entries up to o have been used */
    }
    narrow(y, part, outer, DTYPE);
}

static void OF(colsum)(fv_stream *s, fv_sink y, const void *x, int64_t rows, int64_t cols)
{
    if (y.data) OF(sum_rows)(s, y, x, 1, rows, cols, 1.0f);
}

/* ---- the largest ---- */

typedef struct {
    void *y;
    int32_t *arg;
    const void *x;
    float *wide;
    int64_t widened_floats, n;
} OF(max_along_args);

static void OF(max_along_part)(void *arg, int64_t lo, int64_t hi, int slot)
{
    const OF(max_along_args) *l = arg;
    for (int64_t o = lo; o < hi; o++) {
        const float *row = fetch(l->wide + slot * l->widened_floats, l->x, o * l->n, l->n, DTYPE);
        int64_t i = first_largest(row, l->n);
        narrow((char *)l->y + o * bytes_of(DTYPE), row + i, 1, DTYPE);
        if (l->arg) l->arg[o] = (int32_t)i;
    }
}

static void OF(max_along)(fv_stream *s, void *y, int32_t *arg, const void *x, int64_t outer,
                          int64_t n)
{
    int threads = threads_for(s, outer * n);
    int64_t widened_floats = DTYPE == FV_F32
                                 ? 0
                                 : n; /* for a row of f32, where x is not that already */
    float *wide = fv_stream_scratch(s, (size_t)(threads * widened_floats + 1) * sizeof *wide);
    if (!wide) return;
    fv__cpu_parallel(s, threads, outer, 0, OF(max_along_part),
                     &(OF(max_along_args)){y, arg, x, wide, widened_floats, n});
}

typedef struct {
    void *y;
    int32_t *arg;
    const void *x;
    int64_t n, inner, per_row;
} OF(max_rows_args);

static void OF(max_rows_part)(void *arg, int64_t lo, int64_t hi, int slot)
{
    const OF(max_rows_args) *l = arg;
    (void)slot;
    for (int64_t i = lo; i < hi; i++) {
        float best[COLUMNS], tmp[COLUMNS];
        int32_t arg_max[COLUMNS] = {0};
        int64_t o = i / l->per_row, at = i % l->per_row * COLUMNS,
                m = least(COLUMNS, l->inner - at);
        widen(best, element(l->x, o * l->n * l->inner + at, DTYPE), m, DTYPE);
        for (int64_t k = 1; k < l->n; k++) {
            const float *row = fetch(tmp, l->x, (o * l->n + k) * l->inner + at, m, DTYPE);
            for (int64_t j = 0; j < m; j++) {
                bool up = larger(row[j], best[j]);
                best[j] = up ? row[j] : best[j];
                arg_max[j] = up ? (int32_t)k : arg_max[j];
            }
        }
        narrow((char *)l->y + (o * l->inner + at) * bytes_of(DTYPE), best, m, DTYPE);
        if (l->arg) memcpy(l->arg + o * l->inner + at, arg_max, (size_t)m * sizeof *arg_max);
    }
}

static void OF(max_rows)(fv_stream *s, void *y, int32_t *arg, const void *x, int64_t outer,
                         int64_t n, int64_t inner)
{
    int64_t per_row = pieces(inner, COLUMNS);
    fv__cpu_parallel(s, threads_for_axes(s, outer, n, inner), outer * per_row, 0, OF(max_rows_part),
                     &(OF(max_rows_args)){y, arg, x, n, inner, per_row});
}

static void OF(reduce)(fv_stream *s, fv_reduce_op op, void *y, int32_t *arg, const void *x,
                       int64_t outer, int64_t n, int64_t inner)
{
    float by = op == FV_R_MEAN ? (float)n : 1.0f;
    if (op == FV_R_MAX && inner == 1)
        OF(max_along)(s, y, arg, x, outer, n);
    else if (op == FV_R_MAX)
        OF(max_rows)(s, y, arg, x, outer, n, inner);
    else if (inner == 1)
        OF(sum_along)(s, y, x, outer, n, by);
    else
        OF(sum_rows)(s, output(y, DTYPE), x, outer, n, inner, by);
}

typedef struct {
    fv_reduce_op op;
    fv_sink dx;
    const void *dy;
    const int32_t *arg;
    int64_t n, inner, run, per_run;
    float by;
} OF(reduce_bwd_args);

static void OF(reduce_bwd_part)(void *arg, int64_t lo, int64_t hi, int slot)
{
    const OF(reduce_bwd_args) *l = arg;
    (void)slot;
    for (int64_t k = lo; k < hi; k++) {
        float tmp[PIECE];
        int64_t r = k / l->per_run, at = k % l->per_run * PIECE, m = least(PIECE, l->run - at);
        int64_t from = l->inner == 1 ? r : r / l->n * l->inner + at;
        widen(tmp, element(l->dy, from, DTYPE), l->inner == 1 ? 1 : m, DTYPE);
        for (int64_t j = 0; l->by != 1.0f && j < (l->inner == 1 ? 1 : m); j++) tmp[j] /= l->by;
        for (int64_t j = 1; l->inner == 1 && j < m; j++) tmp[j] = tmp[0];
        if (l->op == FV_R_MAX && l->inner == 1) {
            for (int64_t j = 0; j < m; j++) tmp[j] = l->arg[r] == at + j ? tmp[j] : 0.0f;
        } else if (l->op == FV_R_MAX) {
            for (int64_t j = 0; j < m; j++) tmp[j] = l->arg[from + j] == r % l->n ? tmp[j] : 0.0f;
        }
        sink_store(l->dx, r * l->run + at, tmp, m);
    }
}

/* dx[o,i,r] = dy[o,r], divided by n for the mean, only where i is the index of the maximum
 * for max */
static void OF(reduce_bwd)(fv_stream *s, fv_reduce_op op, fv_sink dx, const void *dy,
                           const int32_t *arg, int64_t outer, int64_t n, int64_t inner)
{
    if (!dx.data) return;
    /* A long run of dx is one row of inner, or for inner = 1 part of the axis itself. */
    int64_t run = inner == 1 ? n : inner, runs = inner == 1 ? outer : outer * n,
            per_run = pieces(run, PIECE);
    float by = op == FV_R_MEAN ? (float)n : 1.0f;
    fv__cpu_parallel(s, threads_for_axes(s, outer, n, inner), runs * per_run, 0,
                     OF(reduce_bwd_part),
                     &(OF(reduce_bwd_args)){op, dx, dy, arg, n, inner, run, per_run, by});
}

/* ---- running sums ---- */

typedef struct {
    fv_sink y;
    const void *x;
    int64_t n, per_row;
    bool reverse;
} OF(cumsum_along_args);

static void OF(cumsum_along_part)(void *arg, int64_t lo, int64_t hi, int slot)
{
    const OF(cumsum_along_args) *l = arg;
    (void)slot;
    for (int64_t o = lo; o < hi; o++) {
        float tmp[PIECE], out[PIECE], sum = 0;
        for (int64_t p = 0; p < l->per_row; p++) {
            int64_t at = (l->reverse ? l->per_row - 1 - p : p) * PIECE, m = least(PIECE, l->n - at);
            const float *in = fetch(tmp, l->x, o * l->n + at, m, DTYPE);
            for (int64_t j = 0; j < m; j++) {
                int64_t i = l->reverse ? m - 1 - j : j;
                out[i] = sum += in[i];
            }
            sink_store(l->y, o * l->n + at, out, m);
        }
    }
}

/* A chain by nature: rows are divided among threads, a row never is. */
static void OF(cumsum_along)(fv_stream *s, fv_sink y, const void *x, int64_t outer, int64_t n,
                             bool reverse)
{
    int64_t per_row = pieces(n, PIECE);
    fv__cpu_parallel(s, threads_for_rows(s, outer, n), outer, 0, OF(cumsum_along_part),
                     &(OF(cumsum_along_args)){y, x, n, per_row, reverse});
}

typedef struct {
    fv_sink y;
    const void *x;
    int64_t n, inner, per_row;
    bool reverse;
} OF(cumsum_args);

static void OF(cumsum_part)(void *arg, int64_t lo, int64_t hi, int slot)
{
    const OF(cumsum_args) *l = arg;
    (void)slot;
    for (int64_t i = lo; i < hi; i++) {
        float tmp[COLUMNS], out[COLUMNS], sum[COLUMNS] = {0};
        int64_t o = i / l->per_row, at = i % l->per_row * COLUMNS,
                m = least(COLUMNS, l->inner - at);
        for (int64_t k = 0; k < l->n; k++) {
            int64_t to = (o * l->n + (l->reverse ? l->n - 1 - k : k)) * l->inner + at;
            const float *in = fetch(tmp, l->x, to, m, DTYPE);
            for (int64_t j = 0; j < m; j++) out[j] = sum[j] += in[j];
            sink_store(l->y, to, out, m);
        }
    }
}

static void OF(cumsum)(fv_stream *s, fv_sink y, const void *x, int64_t outer, int64_t n,
                       int64_t inner, bool reverse)
{
    if (!y.data) return;
    if (inner == 1) {
        OF(cumsum_along)(s, y, x, outer, n, reverse);
        return;
    }
    int64_t per_row = pieces(inner, COLUMNS);
    fv__cpu_parallel(s, threads_for_axes(s, outer, n, inner), outer * per_row, 0, OF(cumsum_part),
                     &(OF(cumsum_args)){y, x, n, inner, per_row, reverse});
}

static void OF(table)(fv_kernels *k)
{
    k->colsum = OF(colsum);
    k->reduce = OF(reduce);
    k->reduce_bwd = OF(reduce_bwd);
    k->cumsum = OF(cumsum);
}
#endif
