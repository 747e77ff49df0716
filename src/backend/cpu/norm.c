/* norm.c - layer norm and RMS norm over the last axis, with the residual sum in the same pass.
 *
 * RMS norm is layer norm with a mean that is taken to be 0, so both run through the same code.  A
 * row fits L1: it is read from memory once, then three times from cache. */
#ifndef DTYPE
#include "norm.h"
#include "stage.h"

#define SIDE_BY_SIDE 4 /* rows whose gradient is taken together */
/* the gradients of gain and bias are summed in blocks of this many rows, then over the blocks */
#define BLOCK_ROWS 32

static inline vf plus(vf a, vf b) { return v_add(a, b); }
static inline vf f_square(vf sum, vf x, vf b, vf mean)
{
    (void)b;
    vf d = v_sub(x, mean);
    return v_fma(d, d, sum);
}

/* y = gain * (x - mean) * rstd + bias; gain and bias may be NULL
 * A cache line at a time, so that the loop over vectors inside unrolls to a constant at every
 * level. */
static void normalise(float *y, const float *x, const float *gain, const float *bias, int64_t n,
                      float mean, float rstd)
{
    vf m = v_set1(mean), r = v_set1(rstd);
    int64_t i = 0;
    for (; i + LINE <= n; i += LINE) {
        for (int64_t j = i; j < i + LINE; j += VW) {
            vf v = v_mul(v_sub(v_load(x + j), m), r);
            if (gain) v = v_mul(v, v_load(gain + j));
            if (bias) v = v_add(v, v_load(bias + j));
            v_store(y + j, v);
        }
    }
    for (; i < n; i += VW) {
        vf v = v_mul(v_sub(v_load_n(x + i, n - i, 0), m), r);
        if (gain) v = v_mul(v, v_load_n(gain + i, n - i, 0));
        if (bias) v = v_add(v, v_load_n(bias + i, n - i, 0));
        v_store_n(y + i, v, n - i);
    }
}

/* Mean (0 unless centred) and 1 / deviation of a row.
 * Two passes over a row in L1.  E[x^2] - mean^2 in one pass cancels where the mean is large.
 * Elements beyond n read as the mean, so that their deviation is 0. */
static void measure(float *mean, float *rstd, const float *x, int64_t n, bool centred, float eps)
{
    *mean = centred ? sum_of(x, n) / (float)n : 0.0f;
    *rstd = 1.0f / sqrtf(fold2(x, x, n, *mean, v_set1(*mean), f_square) / (float)n + eps);
}

void NAME(norm_row)(float *y, const float *x, const float *gain, const float *bias, int64_t n,
                    bool centred, float eps)
{
    float mean, rstd;
    measure(&mean, &rstd, x, n, centred, eps);
    normalise(y, x, gain, bias, n, mean, rstd);
}

/* ---- backward.  With g = dy * gain and n = (x - mean) * rstd:  dx = rstd * (g - mean(g) - n *
 * mean(g * n)) ---- */

/* mean(g) and mean(g n) are the two projections that the norm takes out of a gradient: a
 * constant shift of the row and a change of its length, neither of which changes y. */
typedef struct {
    float mean, rstd, g_mean, gn_mean;
} row_stats;

/* The two means over a row; that of g is 0 for RMS norm. */
static void row_means(row_stats *s, const float *dy, const float *x, const float *gain, int64_t n,
                      bool centred)
{
    vf m = v_set1(s->mean), g0 = v_zero(), g1 = g0, d0 = g0, d1 = g0;
    int64_t i = 0;
    for (; i + 2 * VW <= n; i += 2 * VW) {
        vf a = v_load(dy + i), b = v_load(dy + i + VW);
        if (gain) a = v_mul(a, v_load(gain + i)), b = v_mul(b, v_load(gain + i + VW));
        g0 = v_add(g0, a);
        g1 = v_add(g1, b);
        d0 = v_fma(a, v_sub(v_load(x + i), m), d0);
        d1 = v_fma(b, v_sub(v_load(x + i + VW), m), d1);
    }
    for (; i < n; i += VW) {
        vf a = v_load_n(dy + i, n - i, 0);
        if (gain) a = v_mul(a, v_load_n(gain + i, n - i, 0));
        g0 = v_add(g0, a);
        d0 = v_fma(a, v_sub(v_load_n(x + i, n - i, s->mean), m), d0);
    }
    s->g_mean = centred ? v_hsum(v_add(g0, g1)) / (float)n : 0.0f;
    s->gn_mean = v_hsum(v_add(d0, d1)) * s->rstd / (float)n;
}

typedef struct {
    const float *dy, *x;
    float *dx;
    row_stats s;
} grad_row;

/* One vector of one row: what it adds to dgain and dbias, and its dx.
 * dgain = sum over rows of dy n, dbias = sum of dy; rstd is multiplied into both corrections, so
 * that dx is one fma and one fnma. */
ALWAYS_INLINE vf grad_step(vf dy, vf x, vf gain, vf *dgain, vf *dbias, const row_stats *s)
{
    vf rstd = v_set1(s->rstd), n = v_mul(v_sub(x, v_set1(s->mean)), rstd);
    *dgain = v_fma(dy, n, *dgain);
    *dbias = v_add(*dbias, dy);
    vf rest = v_fnma(n, v_set1(s->rstd * s->gn_mean), v_set1(-s->rstd * s->g_mean));
    return v_fma(v_mul(dy, gain), rstd, rest);
}

/* `rows` rows side by side, so that the running sums of dgain and dbias are loaded and stored once
 * for all of them; each still takes its rows in order.  Pointers that are NULL are not wanted. */
ALWAYS_INLINE void grad_rows(const grad_row *r, int rows, float *dgain, float *dbias,
                             const float *gain, int64_t n)
{
    int64_t i = 0;
    vf one = v_set1(1.0f), zero = v_zero();
    for (; i + VW <= n; i += VW) {
        vf dg = dgain ? v_load(dgain + i) : zero, db = dbias ? v_load(dbias + i) : zero,
           g = gain ? v_load(gain + i) : one;
        for (int k = 0; k < rows; k++) {
            vf d = grad_step(v_load(r[k].dy + i), v_load(r[k].x + i), g, &dg, &db, &r[k].s);
            if (r[k].dx) v_store(r[k].dx + i, d);
        }
        if (dgain) v_store(dgain + i, dg);
        if (dbias) v_store(dbias + i, db);
    }
    if (i < n) {
        int64_t m = n - i;
        vf dg = dgain ? v_load_n(dgain + i, m, 0) : zero,
           db = dbias ? v_load_n(dbias + i, m, 0) : zero;
        vf g = gain ? v_load_n(gain + i, m, 0) : one;
        for (int k = 0; k < rows; k++) {
            vf d = grad_step(v_load_n(r[k].dy + i, m, 0), v_load_n(r[k].x + i, m, 0), g, &dg, &db,
                             &r[k].s);
            if (r[k].dx) v_store_n(r[k].dx + i, d, m);
        }
        if (dgain) v_store_n(dgain + i, dg, m);
        if (dbias) v_store_n(dbias + i, db, m);
    }
}

/* Converts a gain or bias to f32 once for all rows; *scratch advances past it. */
static const float *load_row(float **scratch, const void *p, int64_t n, fv_dtype t)
{
    if (!p || t == FV_F32) return p;
    float *wide = *scratch;
    widen(wide, p, n, t);
    *scratch += n;
    return wide;
}

#define BY_DTYPE "norm.c"
#include "by_dtype.h"

void NAME(norm)(fv_kernels *k);
void NAME(norm)(fv_kernels *k) { fill_by_dtype(k); }

#else /* the kernels of dtype DTYPE */

/* The row that is normalised: x, or x + a as it was rounded into sum.  tmp has its capacity. */
static const float *OF(residual)(float *tmp, float *other, void *sum, const void *x, const void *a,
                                 int64_t at, int64_t n)
{
    const float *row = fetch(tmp, x, at, n, DTYPE);
    if (!a) return row;
    float *to = sum ? sink_target(output(sum, DTYPE), at, tmp) : tmp;
    map2(to, row, fetch(other, a, at, n, DTYPE), n, plus);
    if (!sum || DTYPE == FV_F32) return to;
    sink_store(output(sum, DTYPE), at, to, n);
    return fetch(tmp, sum, at, n, DTYPE);
}

typedef struct {
    void *y;
    float *mean, *rstd;
    void *sum;
    const void *x, *a;
    const float *g, *b;
    float *scratch;
    int64_t cols;
    float eps;
} OF(norm_args);

static void OF(norm_part)(void *arg, int64_t lo, int64_t hi, int slot)
{
    const OF(norm_args) *l = arg;
    for (int64_t r = lo; r < hi; r++) {
        float *tmp = l->scratch + 2 * l->cols * slot,
              *out = sink_target(output(l->y, DTYPE), r * l->cols, tmp + l->cols);
        const float *row = OF(residual)(tmp, tmp + l->cols, l->sum, l->x, l->a, r * l->cols,
                                        l->cols);
        float m;
        measure(&m, &l->rstd[r], row, l->cols, l->mean, l->eps);
        if (l->mean) l->mean[r] = m;
        normalise(out, row, l->g, l->b, l->cols, m, l->rstd[r]);
        sink_store(output(l->y, DTYPE), r * l->cols, out, l->cols);
    }
}

/* mean is NULL for RMS norm.
 * x (rows,cols) -> y; with a: the residual sum x + a is written to sum and normalised, in one
 * pass. */
static void OF(norm)(fv_stream *s, void *y, float *mean, float *rstd, void *sum, const void *x,
                     const void *a, const void *gain, const void *bias, int64_t rows, int64_t cols,
                     float eps)
{
    int threads = threads_for(s, rows * cols);
    float *scratch = fv_stream_scratch(s, (size_t)(cols * (2 + 2 * threads)) * sizeof *scratch);
    if (!scratch) return;
    const float *g = load_row(&scratch, gain, cols, DTYPE),
                *b = load_row(&scratch, bias, cols, DTYPE);
    fv__cpu_parallel(s, threads, rows, 0, OF(norm_part),
                     &(OF(norm_args)){y, mean, rstd, sum, x, a, g, b, scratch, cols, eps});
}

/* Rows [r, r+count); tmp holds three times as many. */
static void OF(grad_group)(fv_sink dx, float *dgain, float *dbias, const void *dy, const void *x,
                           const float *gain, const float *mean, const float *rstd, int64_t r,
                           int count, int64_t cols, float *tmp)
{
    grad_row row[SIDE_BY_SIDE];
    for (int k = 0; k < count; k++, tmp += 3 * cols) {
        int64_t at = (r + k) * cols;
        row[k] = (grad_row){.dy = fetch(tmp, dy, at, cols, DTYPE),
                            .x = fetch(tmp + cols, x, at, cols, DTYPE),
                            .dx = dx.data ? sink_target(dx, at, tmp + 2 * cols) : NULL,
                            .s = {.mean = mean ? mean[r + k] : 0.0f, .rstd = rstd[r + k]}};
        if (dx.data) row_means(&row[k].s, row[k].dy, row[k].x, gain, cols, mean);
    }
    if (count == SIDE_BY_SIDE)
        grad_rows(row, SIDE_BY_SIDE, dgain, dbias, gain, cols);
    else
        grad_rows(row, 1, dgain, dbias, gain, cols);
    for (int k = 0; dx.data && k < count; k++) sink_store(dx, (r + k) * cols, row[k].dx, cols);
}

typedef struct {
    fv_sink dx;
    float *part_gain, *part_bias;
    const void *dy, *x;
    const float *g, *mean, *rstd;
    float *scratch;
    int64_t each, rows, cols;
} OF(norm_bwd_args);

static void OF(norm_bwd_part)(void *arg, int64_t lo, int64_t hi, int slot)
{
    const OF(norm_bwd_args) *l = arg;
    for (int64_t k = lo; k < hi; k++) {
        float *tmp = l->scratch + l->each * slot;
        float *dg = l->part_gain ? l->part_gain + k * l->cols : NULL,
              *db = l->part_bias ? l->part_bias + k * l->cols : NULL;
        int64_t end = least(l->rows, (k + 1) * BLOCK_ROWS);
        for (int64_t r = k * BLOCK_ROWS; r < end;) {
            int count = end - r < SIDE_BY_SIDE ? 1 : SIDE_BY_SIDE;
            OF(grad_group)
            (l->dx, dg, db, l->dy, l->x, l->g, l->mean, l->rstd, r, count, l->cols, tmp);
            r += count;
        }
    }
}

/* Blocks of BLOCK_ROWS rows have partial sums of their own, (blocks, cols) each of dgain and
 * dbias, which are then added first to last: the result is that of one thread, at any number of
 * them. */
static void OF(norm_bwd)(fv_stream *s, fv_sink dx, fv_sink dgain, fv_sink dbias, const void *dy,
                         const void *x, const void *gain, const float *mean, const float *rstd,
                         int64_t rows, int64_t cols)
{
    int threads = threads_for(s, rows * cols);
    int64_t blocks = pieces(rows, BLOCK_ROWS), kinds = !!dgain.data + !!dbias.data,
            each = 3 * SIDE_BY_SIDE * cols;
    float *scratch = fv_stream_scratch(s, (size_t)(cols * (1 + kinds * blocks) + each * threads) *
                                              sizeof *scratch);
    if (!scratch) return;
    const float *g = load_row(&scratch, gain, cols, DTYPE);
    float *part = scratch + each * threads, *part_gain = dgain.data ? part : NULL;
    float *part_bias = dbias.data ? part + (part_gain ? blocks * cols : 0) : NULL;
    memset(part, 0, (size_t)(kinds * blocks * cols) * sizeof *part);
    fv__cpu_parallel(s, threads, blocks, 1, OF(norm_bwd_part),
                     &(OF(norm_bwd_args)){dx, part_gain, part_bias, dy, x, g, mean, rstd, scratch,
                                          each, rows, cols});
    if (dgain.data) sum_parts(s, dgain, part_gain, blocks, cols);
    if (dbias.data) sum_parts(s, dbias, part_bias, blocks, cols);
}

static void OF(layernorm)(fv_stream *s, void *y, fv_stat *mean, fv_stat *rstd, void *sum,
                          const void *x, const void *a, const void *gain, const void *bias,
                          int64_t rows, int64_t cols, float eps)
{
    OF(norm)(s, y, mean, rstd, sum, x, a, gain, bias, rows, cols, eps);
}

static void OF(layernorm_bwd)(fv_stream *s, fv_sink dx, fv_sink dgain, fv_sink dbias,
                              const void *dy, const void *x, const void *gain, const fv_stat *mean,
                              const fv_stat *rstd, int64_t rows, int64_t cols)
{
    OF(norm_bwd)(s, dx, dgain, dbias, dy, x, gain, mean, rstd, rows, cols);
}

static void OF(rmsnorm)(fv_stream *s, void *y, fv_stat *rstd, void *sum, const void *x,
                        const void *a, const void *gain, int64_t rows, int64_t cols, float eps)
{
    OF(norm)(s, y, NULL, rstd, sum, x, a, gain, NULL, rows, cols, eps);
}

static void OF(rmsnorm_bwd)(fv_stream *s, fv_sink dx, fv_sink dgain, const void *dy, const void *x,
                            const void *gain, const fv_stat *rstd, int64_t rows, int64_t cols)
{
    OF(norm_bwd)(s, dx, dgain, (fv_sink){0}, dy, x, gain, NULL, rstd, rows, cols);
}

static void OF(table)(fv_kernels *k)
{
    k->layernorm = OF(layernorm);
    k->layernorm_bwd = OF(layernorm_bwd);
    k->rmsnorm = OF(rmsnorm);
    k->rmsnorm_bwd = OF(rmsnorm_bwd);
}
#endif
