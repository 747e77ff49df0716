/* entropy.c - cross-entropy of logits against labels, smoothed; only the log-sum-exp of a row is
 * kept.
 *
 * A row of logits may be far larger than L1, so it is read once: each piece gives its
 * maximum and its sum of exponentials, and the running sum is rescaled whenever the maximum
 * grows (online softmax). */
#ifndef DTYPE
#include "rows.h"

/* Running statistics of a row: its maximum, the sum of e^(x - top) and that of x - top. */
typedef struct {
    float top, total, below;
} row_sums;

static inline vf f_below(vf sum, vf x, vf b, vf top) { return (void)b, v_add(sum, v_sub(x, top)); }

/* `below` is the sum of x - top, needed for smoothing: from the maximum the terms are small and
 * of one sign, while the sum of raw logits would cancel. */
static void extend(row_sums *s, const float *x, int64_t n, int64_t before, bool smoothed)
{
    float m = max_of(x, n);
    if (m > s->top || m != m) {
        if (smoothed && before) s->below += (float)before * (s->top - m);
        s->total *= s->top == -INFINITY ? 0.0f : expf(s->top - m);
        s->top = m;
    }
    if (smoothed) s->below += fold2(x, x, n, s->top, v_set1(s->top), f_below);
    if (s->top > -INFINITY || s->top != s->top) s->total += exp_sum_of(x, n, s->top);
}

/* d e^(x - lse) - e */
static void grad(float *dx, const float *x, int64_t n, float lse, float d, float e)
{
    vf l = v_set1(lse), by = v_set1(d), less = v_set1(-e);
    int64_t i = 0;
    for (; i + VW <= n; i += VW) v_store(dx + i, v_fma(v_exp(v_sub(v_load(x + i), l)), by, less));
    if (i < n)
        v_store_n(dx + i, v_fma(v_exp(v_sub(v_load_n(x + i, n - i, 0), l)), by, less), n - i);
}

static bool valid(fv_stream *s, const int32_t *labels, int64_t rows, int64_t vocab, int32_t ignore)
{
    for (int64_t r = 0; r < rows; r++) {
        if (labels[r] == ignore || (labels[r] >= 0 && labels[r] < vocab)) continue;
        fv_stream_fail(s, FV_EARG, "cross_entropy: label %d of row %lld is outside 0..%lld",
                       labels[r], (long long)r, (long long)vocab - 1);
        return false;
    }
    return true;
}

#define BY_DTYPE "entropy.c"
#include "by_dtype.h"

void NAME(entropy)(fv_kernels *k);
void NAME(entropy)(fv_kernels *k) { fill_by_dtype(k); }

#else /* the kernels of dtype DTYPE */

typedef struct {
    fv_stat *loss, *lse;
    const void *x;
    const int32_t *labels;
    int64_t vocab;
    float smooth;
    int32_t ignore;
} OF(cross_entropy_args);

static void OF(cross_entropy_part)(void *arg, int64_t lo, int64_t hi, int slot)
{
    const OF(cross_entropy_args) *l = arg;
    (void)slot;
    for (int64_t r = lo; r < hi; r++) {
        float tmp[PIECE], at_label;
        ((float *)l->loss)[r] = ((float *)l->lse)[r] = 0;
        if (l->labels[r] == l->ignore) continue;
        row_sums sums = {-INFINITY, 0, 0};
        for (int64_t i = 0; i < l->vocab; i += PIECE) {
            int64_t m = least(PIECE, l->vocab - i);
            extend(&sums, fetch(tmp, l->x, r * l->vocab + i, m, DTYPE), m, i, l->smooth != 0);
        }
        widen(&at_label, element(l->x, r * l->vocab + l->labels[r], DTYPE), 1, DTYPE);
        float log_total = logf(sums.total);
        ((float *)l->lse)[r] = sums.top + log_total;
        ((float *)l->loss)[r] = log_total - (1 - l->smooth) * (at_label - sums.top) -
                                (l->smooth != 0 ? l->smooth * sums.below / (float)l->vocab : 0);
    }
}

static void OF(cross_entropy)(fv_stream *s, fv_stat *loss, fv_stat *lse, const void *x,
                              const int32_t *labels, int64_t rows, int64_t vocab, float smooth,
                              int32_t ignore)
{
    if (!valid(s, labels, rows, vocab, ignore)) return;
    fv__cpu_parallel(s, threads_for_rows(s, rows, vocab), rows, 0, OF(cross_entropy_part),
                     &(OF(cross_entropy_args)){loss, lse, x, labels, vocab, smooth, ignore});
}

typedef struct {
    fv_sink dx;
    const fv_stat *dloss, *lse;
    const void *x;
    const int32_t *labels;
    int64_t vocab, per_row;
    float smooth;
    int32_t ignore;
} OF(cross_entropy_bwd_args);

static void OF(cross_entropy_bwd_part)(void *arg, int64_t lo, int64_t hi, int slot)
{
    const OF(cross_entropy_bwd_args) *l = arg;
    (void)slot;
    for (int64_t k = lo; k < hi; k++) {
        float tmp[PIECE], out[PIECE];
        int64_t r = k / l->per_row, i = k % l->per_row * PIECE, at = r * l->vocab + i,
                m = least(PIECE, l->vocab - i), hit = l->labels[r] - i;
        float *to = sink_target(l->dx, at, out), d = ((const float *)l->dloss)[r];
        if (l->labels[r] == l->ignore) {
            memset(to, 0, (size_t)m * sizeof *to);
        } else {
            grad(to, fetch(tmp, l->x, at, m, DTYPE), m, ((const float *)l->lse)[r], d,
                 d * (l->smooth / (float)l->vocab));
            if (hit >= 0 && hit < m) to[hit] -= d * (1 - l->smooth);
        }
        sink_store(l->dx, at, to, m);
    }
}

/* dx = dloss * (softmax(x) - (1 - smooth) * [label] - smooth / vocab); dx may be x itself */
static void OF(cross_entropy_bwd)(fv_stream *s, fv_sink dx, const fv_stat *dloss,
                                  const fv_stat *lse, const void *x, const int32_t *labels,
                                  int64_t rows, int64_t vocab, float smooth, int32_t ignore)
{
    if (!dx.data) return;
    int64_t per_row = pieces(vocab, PIECE);
    fv__cpu_parallel(s, threads_for_rows(s, rows, vocab), rows * per_row, 0,
                     OF(cross_entropy_bwd_part),
                     &(OF(cross_entropy_bwd_args)){dx, dloss, lse, x, labels, vocab, per_row,
                                                   smooth, ignore});
}

static void OF(table)(fv_kernels *k)
{
    k->cross_entropy = OF(cross_entropy);
    k->cross_entropy_bwd = OF(cross_entropy_bwd);
}
#endif
