/* crf.c - Viterbi decoding of a linear-chain conditional random field.
 *
 *     v(1,k) = start(k) + x(1,k),   v(i,k) = x(i,k) + max_j v(i-1,j) + A(j,k)
 *
 * and back from the best v(n,k) + end(k).  It runs on the host: a chain is tens of positions of
 * tens of labels, and scores are read back anyhow. */
#include "model/crf.h"

#include <string.h>

size_t fv__crf_scratch(int64_t n, int64_t K)
{
    return (size_t)K * 2 * sizeof(double) + (size_t)(n * K) * sizeof(int32_t);
}

void fv__crf_decode(int32_t *best, const float *const *row, int64_t n, const float *transitions,
                    int64_t K, void *scratch)
{
    double *score = scratch, *next = score + K;
    int32_t *from = (int32_t *)(next + K); /* (n,K): the label before the best way to each */
    if (n < 1) return;
    for (int64_t k = 0; k < K; k++) score[k] = (double)transitions[K * K + k] + (double)row[0][k];
    for (int64_t i = 1; i < n; i++) {
        for (int64_t k = 0; k < K; k++) {
            int64_t top = 0;
            for (int64_t j = 1; j < K; j++)
                if (score[j] + (double)transitions[j * K + k] >
                    score[top] + (double)transitions[top * K + k])
                    top = j;
            from[i * K + k] = (int32_t)top;
            next[k] = score[top] + (double)transitions[top * K + k] + (double)row[i][k];
        }
        memcpy(score, next, (size_t)K * sizeof *score);
    }
    int64_t last = 0;
    for (int64_t k = 0; k < K; k++) score[k] += (double)transitions[(K + 1) * K + k];
    for (int64_t k = 1; k < K; k++) last = score[k] > score[last] ? k : last;
    for (int64_t i = n - 1; i >= 0; i--) {
        best[i] = (int32_t)last;
        if (i) last = from[i * K + last];
    }
}
