/* crf.c - linear-chain conditional random field: minus the log-probability of the right labels.
 *
 * Of the positions with a label (>= 0), t_1 .. t_n with labels y_1 .. y_n:
 *
 *     score(y) = start(y_1) + sum_i x(t_i,y_i) + sum_i A(y_(i-1),y_i) + end(y_n)
 *     alpha(1,k) = x(t_1,k) + start(k)
 *     alpha(i,k) = x(t_i,k) + log sum_j exp(alpha(i-1,j) + A(j,k))
 *     loss = log sum_k exp(alpha(n,k) + end(k)) - score(y)
 *
 * A sequence without labels has loss 0.  alpha is kept where x is, at the position. */
#include "backend/ref/ref.h"

/* The log-sum-exp of n numbers a(i) + b(i stride). */
static acc log_sum(const acc *v, int64_t n)
{
    acc top = -INFINITY, sum = 0;
    for (int64_t i = 0; i < n; i++) top = v[i] > top ? v[i] : top;
    if (top == -INFINITY) return top;
    for (int64_t i = 0; i < n; i++) sum += EXP(v[i] - top);
    return top + LOG(sum);
}

static int64_t before(const int32_t *labels, int64_t t)
{
    while (t >= 0 && labels[t] < 0) t--;
    return t;
}

static bool labels_fit(fv_stream *s, const fv_crf *a)
{
    for (int64_t i = 0; i < a->B * a->T; i++)
        if (a->labels[i] >= a->K) {
            fv_stream_fail(s, FV_EARG, "crf: label %d of row %lld is outside 0..%lld", a->labels[i],
                           (long long)i, (long long)a->K - 1);
            return false;
        }
    return true;
}

/* The forward recursion of one sequence; x and alpha begin at `at`.  row: scratch (K). */
static acc sequence(const fv_crf *a, int64_t b, fv_stat *alpha, acc *row)
{
    int64_t K = a->K, at = b * a->T * K;
    const int32_t *labels = a->labels + b * a->T;
    int64_t was = -1;
    acc score = 0;
    for (int64_t t = 0; t < a->T; t++) {
        if (labels[t] < 0) continue;
        for (int64_t k = 0; k < K; k++) {
            for (int64_t j = 0; was >= 0 && j < K; j++)
                row[j] = lds(alpha, at + was * K + j) + ld(a->trans, j * K + k);
            acc sum = was < 0 ? ld(a->trans, K * K + k) : log_sum(row, K);
            sts(alpha, at + t * K + k, sum + ld(a->x, at + t * K + k));
        }
        int64_t from = was < 0 ? K : labels[was];
        score += ld(a->trans, from * K + labels[t]) + ld(a->x, at + t * K + labels[t]);
        was = t;
    }
    if (was < 0) return 0;
    for (int64_t k = 0; k < K; k++)
        row[k] = lds(alpha, at + was * K + k) + ld(a->trans, (K + 1) * K + k);
    return log_sum(row, K) - score - ld(a->trans, (K + 1) * K + labels[was]);
}

static void crf(fv_stream *s, fv_stat *loss, fv_stat *alpha, const fv_crf *a)
{
    acc *row = fv_stream_scratch(s, (size_t)a->K * sizeof *row);
    if (!row || !labels_fit(s, a)) return;
    for (int64_t b = 0; b < a->B; b++) sts(loss, b, sequence(a, b, alpha, row));
}

/* One sequence backwards.  beta(i,k) = log sum over all endings behind label k at position i:
 *
 *     beta(n,k) = end(k),   beta(i-1,j) = log sum_k exp(A(j,k) + x(t_i,k) + beta(i,k))
 *     dx(t_i,k) = d (exp(alpha + beta - log Z) - [k = y_i])
 *     dA(j,k) += d (exp(alpha(i-1,j) + A(j,k) + x(t_i,k) + beta(i,k) - log Z)
 *                   - [j,k = y_(i-1),y_i]) */
static void sequence_bwd(const fv_crf *a, int64_t b, acc d, fv_sink dx, const fv_stat *alpha,
                         acc *dtrans, acc *beta)
{
    int64_t K = a->K, at = b * a->T * K;
    const int32_t *labels = a->labels + b * a->T;
    acc *next = beta + K, *row = next + K, *end = dtrans + (K + 1) * K;
    int64_t last = before(labels, a->T - 1);
    if (last < 0) return;
    for (int64_t k = 0; k < K; k++) {
        beta[k] = ld(a->trans, (K + 1) * K + k);
        row[k] = lds(alpha, at + last * K + k) + beta[k];
    }
    acc all = log_sum(row, K);
    for (int64_t t = last, was; t >= 0; t = was) {
        was = before(labels, t - 1);
        for (int64_t k = 0; k < K; k++) {
            acc g = EXP(lds(alpha, at + t * K + k) + beta[k] - all) - (k == labels[t]);
            if (dx.data) sink_store(dx, at + t * K + k, d * g);
            if (t == last) end[k] += d * g;
            if (was < 0) dtrans[K * K + k] += d * g;
        }
        for (int64_t j = 0; was >= 0 && j < K; j++) {
            acc from = lds(alpha, at + was * K + j);
            for (int64_t k = 0; k < K; k++) {
                row[k] = ld(a->trans, j * K + k) + ld(a->x, at + t * K + k) + beta[k];
                bool right = j == labels[was] && k == labels[t];
                dtrans[j * K + k] += d * (EXP(from + row[k] - all) - right);
            }
            next[j] = log_sum(row, K);
        }
        if (was >= 0) memcpy(beta, next, (size_t)K * sizeof *beta);
    }
}

static void crf_bwd(fv_stream *s, fv_sink dx, fv_sink dtrans, const fv_stat *dloss,
                    const fv_stat *alpha, fv_stat *pairs, const fv_crf *a)
{
    (void)pairs; /* sequences are added in order here as they come */
    int64_t K = a->K, n = (K + 2) * K;
    acc *sum = fv_stream_scratch(s, (size_t)(n + 3 * K) * sizeof *sum);
    if (!sum) return;
    for (int64_t i = 0; i < n; i++) sum[i] = 0;
    for (int64_t b = 0; b < a->B; b++) {
        for (int64_t t = 0; dx.data && !dx.add && t < a->T; t++)
            for (int64_t k = 0; a->labels[b * a->T + t] < 0 && k < K; k++)
                sink_store(dx, (b * a->T + t) * K + k, 0);
        sequence_bwd(a, b, lds(dloss, b), dx, alpha, sum, sum + n);
    }
    for (int64_t i = 0; dtrans.data && i < n; i++) sink_store(dtrans, i, sum[i]);
}

void REF(crf)(fv_kernels *k);
void REF(crf)(fv_kernels *k)
{
    k->crf = crf;
    k->crf_bwd = crf_bwd;
}
