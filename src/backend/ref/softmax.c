/* softmax.c - y = exp(x - max) / sum exp(x - max) by rows, or its logarithm x - max - log sum.
 *
 * The maximum is taken off first, so the exponentials are at most 1 and their sum at least 1. */
#include "backend/ref/ref.h"

static void softmax(fv_stream *s, void *y, const void *x, int64_t rows, int64_t cols, bool as_log)
{
    (void)s;
    for (int64_t i = 0; i < rows * cols; i += cols) {
        acc max = -(acc)INFINITY, sum = 0;
        for (int64_t j = 0; j < cols; j++) max = ld(x, i + j) > max ? ld(x, i + j) : max;
        for (int64_t j = 0; j < cols; j++) sum += EXP(ld(x, i + j) - max);
        acc shift = LOG(sum);
        for (int64_t j = 0; j < cols; j++) {
            acc t = ld(x, i + j) - max;
            st(y, i + j, as_log ? t - shift : EXP(t) / sum);
        }
    }
}

/* dx = y (dy - sum dy y);  for the logarithm dx = dy - exp(y) sum dy */
static void softmax_bwd(fv_stream *s, fv_sink dx, const void *dy, const void *y, int64_t rows,
                        int64_t cols, bool as_log)
{
    (void)s;
    if (!dx.data) return;
    for (int64_t i = 0; i < rows * cols; i += cols) {
        acc sum = 0;
        for (int64_t j = 0; j < cols; j++) sum += ld(dy, i + j) * (as_log ? 1 : ld(y, i + j));
        for (int64_t j = 0; j < cols; j++) {
            acc g = ld(dy, i + j), p = ld(y, i + j);
            sink_store(dx, i + j, as_log ? g - EXP(p) * sum : p * (g - sum));
        }
    }
}

void REF(softmax)(fv_kernels *k);
void REF(softmax)(fv_kernels *k)
{
    k->softmax = softmax;
    k->softmax_bwd = softmax_bwd;
}
