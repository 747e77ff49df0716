/* entropy.c - cross-entropy of logits against labels, smoothed, and the divergence of two rows of
 * logits; only the log-sum-exp of a row is kept. */
#include "backend/ref/ref.h"

/* loss = (1 - smooth) * (lse - x[label]) + smooth * (lse - mean(x)) */
static void cross_entropy(fv_stream *s, fv_stat *loss, fv_stat *lse, const void *x,
                          const int32_t *labels, int64_t rows, int64_t vocab, float smooth,
                          int32_t ignore)
{
    for (int64_t r = 0; r < rows; r++) {
        int64_t o = r * vocab;
        sts(loss, r, 0);
        sts(lse, r, 0);
        if (labels[r] == ignore) continue;
        if (labels[r] < 0 || labels[r] >= vocab) {
            fv_stream_fail(s, FV_EARG, "cross_entropy: label %d of row %lld is outside 0..%lld",
                           labels[r], (long long)r, (long long)vocab - 1);
            return;
        }
        acc top = ld(x, o), total = 0, mean = 0;
        for (int64_t j = 1; j < vocab; j++) top = ld(x, o + j) > top ? ld(x, o + j) : top;
        for (int64_t j = 0; j < vocab; j++) {
            total += EXP(ld(x, o + j) - top);
            mean += ld(x, o + j) - top; /* from the largest, where the numbers are small */
        }
        acc log_total = LOG(total), q = (acc)smooth;
        sts(lse, r, top + log_total);
        sts(loss, r, log_total - (1 - q) * (ld(x, o + labels[r]) - top) - q * mean / (acc)vocab);
    }
}

/* dx = dloss * (softmax(x) - (1 - smooth) * [label] - smooth / vocab); dx may be x itself
 * softmax(x) = exp(x - lse): no second pass for the sum, and nothing of size (rows, vocab) was
 * kept. */
static void cross_entropy_bwd(fv_stream *s, fv_sink dx, const fv_stat *dloss, const fv_stat *lse,
                              const void *x, const int32_t *labels, int64_t rows, int64_t vocab,
                              float smooth, int32_t ignore)
{
    (void)s;
    if (!dx.data) return;
    for (int64_t r = 0; r < rows; r++) {
        acc d = labels[r] == ignore ? 0 : lds(dloss, r), even = (acc)smooth / (acc)vocab;
        for (int64_t j = 0; j < vocab; j++) {
            int64_t i = r * vocab + j;
            acc target = even + (j == labels[r] ? 1 - (acc)smooth : 0);
            sink_store(dx, i, labels[r] == ignore ? 0 : d * (EXP(ld(x, i) - lds(lse, r)) - target));
        }
    }
}

static acc log_sum_exp(const void *x, int64_t o, int64_t n)
{
    acc top = ld(x, o), total = 0;
    for (int64_t j = 1; j < n; j++) top = ld(x, o + j) > top ? ld(x, o + j) : top;
    for (int64_t j = 0; j < n; j++) total += EXP(ld(x, o + j) - top);
    return top + LOG(total);
}

/* KL(p||q) = sum p (log p - log q), and the other way round */
static void symmetric_kl(fv_stream *s, fv_stat *y, fv_stat *kept, const void *x, int64_t rows,
                         int64_t vocab)
{
    (void)s;
    for (int64_t r = 0; r < rows; r++) {
        int64_t at_p = r * vocab, at_q = (rows + r) * vocab;
        acc lse_p = log_sum_exp(x, at_p, vocab), lse_q = log_sum_exp(x, at_q, vocab), pq = 0,
            qp = 0;
        for (int64_t j = 0; j < vocab; j++) {
            acc log_p = ld(x, at_p + j) - lse_p, log_q = ld(x, at_q + j) - lse_q;
            pq += EXP(log_p) * (log_p - log_q);
            qp += EXP(log_q) * (log_q - log_p);
        }
        sts(kept, r, lse_p);
        sts(kept, rows + r, lse_q);
        sts(kept, 2 * rows + r, pq);
        sts(kept, 3 * rows + r, qp);
        sts(y, r, pq + qp);
    }
}

/* d KL(p||q) / dx = p (log p - log q - KL(p||q)) and d KL(q||p) / dx = p - q, x the logits of p;
 * those of q likewise.  0 where dy is, whatever the row holds. */
static void symmetric_kl_bwd(fv_stream *s, fv_sink dx, const fv_stat *dy, const fv_stat *kept,
                             const void *x, int64_t rows, int64_t vocab)
{
    (void)s;
    if (!dx.data) return;
    for (int64_t r = 0; r < rows; r++) {
        acc d = lds(dy, r), pq = lds(kept, 2 * rows + r), qp = lds(kept, 3 * rows + r);
        for (int64_t j = 0; j < vocab; j++) {
            int64_t at_p = r * vocab + j, at_q = (rows + r) * vocab + j;
            acc log_p = ld(x, at_p) - lds(kept, r), log_q = ld(x, at_q) - lds(kept, rows + r);
            acc p = EXP(log_p), q = EXP(log_q), apart = log_p - log_q;
            sink_store(dx, at_p, d == 0 ? 0 : d * (p * (apart - pq) + (p - q)));
            sink_store(dx, at_q, d == 0 ? 0 : d * (q * (-apart - qp) + (q - p)));
        }
    }
}

void REF(entropy)(fv_kernels *k);
void REF(entropy)(fv_kernels *k)
{
    k->cross_entropy = cross_entropy;
    k->cross_entropy_bwd = cross_entropy_bwd;
    k->symmetric_kl = symmetric_kl;
    k->symmetric_kl_bwd = symmetric_kl_bwd;
}
