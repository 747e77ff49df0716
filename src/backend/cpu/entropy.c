/* entropy.c - cross-entropy of logits against labels, smoothed, and the divergence of two rows of
 * logits; only the log-sum-exp of a row is kept.
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

/* Two rows of logits, p's and q's, less their log-sum-exp: log p and log q. */
typedef struct {
    vf p, q;
} log_pair;

ALWAYS_INLINE log_pair load_logs(const float *x, const float *z, int64_t n, vf lse_p, vf lse_q)
{
    const float none = -1e30f; /* e^none is 0, and none - none, unlike that of -inf, too */
    if (n >= VW) return (log_pair){v_sub(v_load(x), lse_p), v_sub(v_load(z), lse_q)};
    return (log_pair){v_sub(v_load_n(x, n, none), lse_p), v_sub(v_load_n(z, n, none), lse_q)};
}

/* *pq += sum p (log p - log q), *qp += sum q (log q - log p) */
static void add_kl(float *pq, float *qp, const float *x, const float *z, int64_t n, float lse_p,
                   float lse_q)
{
    vf lp = v_set1(lse_p), lq = v_set1(lse_q), by_p = v_zero(), by_q = by_p;
    for (int64_t i = 0; i < n; i += VW) {
        log_pair l = load_logs(x + i, z + i, n - i, lp, lq);
        by_p = v_fma(v_exp(l.p), v_sub(l.p, l.q), by_p);
        by_q = v_fma(v_exp(l.q), v_sub(l.q, l.p), by_q);
    }
    *pq += v_hsum(by_p);
    *qp += v_hsum(by_q);
}

/* What the gradient needs of a pair of rows. */
typedef struct {
    float lse_p, lse_q, pq, qp;
} pair_stats;

/* dx = d (p (log p - log q - pq) + p - q), dz = d (q (log q - log p - qp) + q - p) */
static void kl_grad(float *dx, float *dz, const float *x, const float *z, int64_t n, pair_stats s,
                    float d)
{
    vf lp = v_set1(s.lse_p), lq = v_set1(s.lse_q), by = v_set1(d), pq = v_set1(s.pq),
       qp = v_set1(s.qp);
    for (int64_t i = 0; i < n; i += VW) {
        log_pair l = load_logs(x + i, z + i, n - i, lp, lq);
        vf p = v_exp(l.p), q = v_exp(l.q), apart = v_sub(l.p, l.q), more = v_sub(p, q);
        vf of_p = v_mul(by, v_fma(p, v_sub(apart, pq), more)),
           of_q = v_mul(by, v_sub(v_mul(q, v_sub(v_sub(v_zero(), apart), qp)), more));
        if (n - i >= VW) {
            v_store(dx + i, of_p);
            v_store(dz + i, of_q);
        } else {
            v_store_n(dx + i, of_p, n - i);
            v_store_n(dz + i, of_q, n - i);
        }
    }
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

typedef struct {
    fv_stat *y, *kept;
    const void *x;
    int64_t rows, vocab;
} OF(symmetric_kl_args);

static float OF(log_sum_exp)(const void *x, int64_t at, int64_t n)
{
    float tmp[PIECE];
    row_sums sums = {-INFINITY, 0, 0};
    for (int64_t i = 0; i < n; i += PIECE) {
        int64_t m = least(PIECE, n - i);
        extend(&sums, fetch(tmp, x, at + i, m, DTYPE), m, i, false);
    }
    return sums.top + logf(sums.total);
}

static void OF(symmetric_kl_part)(void *arg, int64_t lo, int64_t hi, int slot)
{
    const OF(symmetric_kl_args) *l = arg;
    float *kept = (float *)l->kept;
    (void)slot;
    for (int64_t r = lo; r < hi; r++) {
        float tmp[2][PIECE], pq = 0, qp = 0;
        int64_t at_p = r * l->vocab, at_q = (l->rows + r) * l->vocab;
        float lse_p = OF(log_sum_exp)(l->x, at_p, l->vocab),
              lse_q = OF(log_sum_exp)(l->x, at_q, l->vocab);
        for (int64_t i = 0; i < l->vocab; i += PIECE) {
            int64_t m = least(PIECE, l->vocab - i);
            add_kl(&pq, &qp, fetch(tmp[0], l->x, at_p + i, m, DTYPE),
                   fetch(tmp[1], l->x, at_q + i, m, DTYPE), m, lse_p, lse_q);
        }
        kept[r] = lse_p;
        kept[l->rows + r] = lse_q;
        kept[2 * l->rows + r] = pq;
        kept[3 * l->rows + r] = qp;
        ((float *)l->y)[r] = pq + qp;
    }
}

static void OF(symmetric_kl)(fv_stream *s, fv_stat *y, fv_stat *kept, const void *x, int64_t rows,
                             int64_t vocab)
{
    fv__cpu_parallel(s, threads_for_rows(s, 2 * rows, vocab), rows, 0, OF(symmetric_kl_part),
                     &(OF(symmetric_kl_args)){y, kept, x, rows, vocab});
}

typedef struct {
    fv_sink dx;
    const fv_stat *dy, *kept;
    const void *x;
    int64_t rows, vocab, per_row;
} OF(symmetric_kl_bwd_args);

static void OF(symmetric_kl_bwd_part)(void *arg, int64_t lo, int64_t hi, int slot)
{
    const OF(symmetric_kl_bwd_args) *l = arg;
    const float *kept = (const float *)l->kept;
    (void)slot;
    for (int64_t k = lo; k < hi; k++) {
        float tmp[2][PIECE], out[2][PIECE];
        int64_t r = k / l->per_row, i = k % l->per_row * PIECE, m = least(PIECE, l->vocab - i),
                at_p = r * l->vocab + i, at_q = (l->rows + r) * l->vocab + i;
        pair_stats stats = {kept[r], kept[l->rows + r], kept[2 * l->rows + r],
                            kept[3 * l->rows + r]};
        float *dp = sink_target(l->dx, at_p, out[0]), *dq = sink_target(l->dx, at_q, out[1]),
              d = ((const float *)l->dy)[r];
        if (d == 0) {
            memset(dp, 0, (size_t)m * sizeof *dp);
            memset(dq, 0, (size_t)m * sizeof *dq);
        } else {
            kl_grad(dp, dq, fetch(tmp[0], l->x, at_p, m, DTYPE),
                    fetch(tmp[1], l->x, at_q, m, DTYPE), m, stats, d);
        }
        sink_store(l->dx, at_p, dp, m);
        sink_store(l->dx, at_q, dq, m);
    }
}

static void OF(symmetric_kl_bwd)(fv_stream *s, fv_sink dx, const fv_stat *dy, const fv_stat *kept,
                                 const void *x, int64_t rows, int64_t vocab)
{
    if (!dx.data) return;
    int64_t per_row = pieces(vocab, PIECE);
    fv__cpu_parallel(s, threads_for_rows(s, 2 * rows, vocab), rows * per_row, 0,
                     OF(symmetric_kl_bwd_part),
                     &(OF(symmetric_kl_bwd_args)){dx, dy, kept, x, rows, vocab, per_row});
}

static void OF(table)(fv_kernels *k)
{
    k->symmetric_kl = OF(symmetric_kl);
    k->symmetric_kl_bwd = OF(symmetric_kl_bwd);
    k->cross_entropy = OF(cross_entropy);
    k->cross_entropy_bwd = OF(cross_entropy_bwd);
}
#endif
