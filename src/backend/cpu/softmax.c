/* softmax.c - y = exp(x - max) / sum exp(x - max) by rows, or its logarithm x - max - log sum. */
#ifndef DTYPE
#include "rows.h"

static inline vf times(vf x, vf by, vf q) { return (void)q, v_mul(x, by); }
static inline vf minus(vf x, vf max, vf log_sum) { return v_sub(v_sub(x, max), log_sum); }
static inline vf exp_times(vf x, vf shift, vf by) { return v_mul(v_exp(v_sub(x, shift)), by); }

/* dx = y (dy - sum dy y) */
static void grad(float *dx, const float *dy, const float *y, int64_t n, float sum)
{
    vf s = v_set1(sum);
    int64_t i = 0;
    for (; i + LINE <= n; i += LINE)
        for (int64_t j = i; j < i + LINE; j += VW)
            v_store(dx + j, v_mul(v_load(y + j), v_sub(v_load(dy + j), s)));
    for (; i < n; i += VW)
        v_store_n(dx + i, v_mul(v_load_n(y + i, n - i, 0), v_sub(v_load_n(dy + i, n - i, 0), s)),
                  n - i);
}

/* y = log softmax(x):  dx = dy - exp(y) sum dy */
static void log_grad(float *dx, const float *dy, const float *y, int64_t n, float sum)
{
    vf s = v_set1(sum);
    int64_t i = 0;
    for (; i + VW <= n; i += VW) v_store(dx + i, v_fnma(v_exp(v_load(y + i)), s, v_load(dy + i)));
    if (i < n)
        v_store_n(dx + i, v_fnma(v_exp(v_load_n(y + i, n - i, 0)), s, v_load_n(dy + i, n - i, 0)),
                  n - i);
}

#define BY_DTYPE "softmax.c"
#include "by_dtype.h"

void NAME(softmax)(fv_kernels *k);
void NAME(softmax)(fv_kernels *k) { fill_by_dtype(k); }

#else /* the kernels of dtype DTYPE */

/* In f32 the exponentials are kept in y; rounded ones would not do, so other dtypes compute them
 * again.
 * Three passes in pieces: maximum, sum, result.  Rows of attention never come here: attention.c
 * has its own, in the tile. */
static void OF(row)(void *y, const void *x, int64_t from, int64_t cols, bool as_log)
{
    float in[PIECE], out[PIECE], max = -INFINITY, sum = 0;
    bool keep = DTYPE == FV_F32 && !as_log;
    for (int64_t i = 0; i < cols; i += PIECE) {
        int64_t m = least(PIECE, cols - i);
        float top = max_of(fetch(in, x, from + i, m, DTYPE), m);
        max = top > max ? top : max;
    }
    for (int64_t i = 0; i < cols; i += PIECE) {
        int64_t m = least(PIECE, cols - i);
        const float *p = fetch(in, x, from + i, m, DTYPE);
        sum += keep ? exp_row((float *)y + from + i, p, m, max) : exp_sum_of(p, m, max);
    }
    vf shift = v_set1(max), log_sum = v_set1(logf(sum)), by = v_set1(1.0f / sum);
    for (int64_t i = 0; i < cols; i += PIECE) {
        int64_t m = least(PIECE, cols - i);
        float *to = sink_target(output(y, DTYPE), from + i, out);
        const float *p = keep ? to : fetch(in, x, from + i, m, DTYPE);
        if (as_log)
            map1(to, p, m, shift, log_sum, minus);
        else if (keep)
            map1(to, p, m, by, by, times);
        else
            map1(to, p, m, shift, by, exp_times);
        sink_store(output(y, DTYPE), from + i, to, m);
    }
}

typedef struct {
    void *y;
    const void *x;
    int64_t cols;
    bool as_log;
} OF(softmax_args);

static void OF(softmax_part)(void *arg, int64_t lo, int64_t hi, int slot)
{
    const OF(softmax_args) *l = arg;
    (void)slot;
    for (int64_t r = lo; r < hi; r++) OF(row)(l->y, l->x, r * l->cols, l->cols, l->as_log);
}

static void OF(softmax)(fv_stream *s, void *y, const void *x, int64_t rows, int64_t cols,
                        bool as_log)
{
    fv__cpu_parallel(s, threads_for_rows(s, rows, cols), rows, 0, OF(softmax_part),
                     &(OF(softmax_args)){y, x, cols, as_log});
}

typedef struct {
    fv_sink dx;
    const void *dy, *y;
    int64_t cols;
    bool as_log;
} OF(softmax_bwd_args);

static void OF(softmax_bwd_part)(void *arg, int64_t lo, int64_t hi, int slot)
{
    const OF(softmax_bwd_args) *l = arg;
    (void)slot;
    for (int64_t r = lo; r < hi; r++) {
        float td[PIECE], ty[PIECE], out[PIECE], sum = 0;
        for (int64_t i = 0; i < l->cols; i += PIECE) {
            int64_t at = r * l->cols + i, m = least(PIECE, l->cols - i);
            const float *d = fetch(td, l->dy, at, m, DTYPE);
            sum += l->as_log ? sum_of(d, m) : dot_of(d, fetch(ty, l->y, at, m, DTYPE), m);
        }
        for (int64_t i = 0; i < l->cols; i += PIECE) {
            int64_t at = r * l->cols + i, m = least(PIECE, l->cols - i);
            float *to = sink_target(l->dx, at, out);
            (l->as_log ? log_grad : grad)(to, fetch(td, l->dy, at, m, DTYPE),
                                          fetch(ty, l->y, at, m, DTYPE), m, sum);
            sink_store(l->dx, at, to, m);
        }
    }
}

static void OF(softmax_bwd)(fv_stream *s, fv_sink dx, const void *dy, const void *y, int64_t rows,
                            int64_t cols, bool as_log)
{
    if (!dx.data) return;
    fv__cpu_parallel(s, threads_for_rows(s, rows, cols), rows, 0, OF(softmax_bwd_part),
                     &(OF(softmax_bwd_args)){dx, dy, y, cols, as_log});
}

static void OF(table)(fv_kernels *k)
{
    k->softmax = OF(softmax);
    k->softmax_bwd = OF(softmax_bwd);
}
#endif
