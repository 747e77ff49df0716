/* entropy.c - cross-entropy of logits against labels, smoothed; only the log-sum-exp of a row is
 * kept. */
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

void REF(entropy)(fv_kernels *k);
void REF(entropy)(fv_kernels *k)
{
    k->cross_entropy = cross_entropy;
    k->cross_entropy_bwd = cross_entropy_bwd;
}
