/* test_crf.c - the labels that score highest together, against every sequence of labels. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "model/crf.h"

enum { K = 3, N = 5 };

static double score(const float *x, const float *steps, int way)
{
    double sum = 0;
    int before = K;
    for (int i = 0; i < N; i++, way /= K) {
        int label = way % K;
        sum += (double)steps[before * K + label] + (double)x[i * K + label];
        before = label;
    }
    return sum + (double)steps[(K + 1) * K + before];
}

static void the_best_of_all_sequences_is_found(void **state)
{
    (void)state;
    float x[N * K], steps[(K + 2) * K];
    const float *row[N];
    int32_t best[N];
    uint32_t seed = 1;
    void *scratch = malloc(fv__crf_scratch(N, K));
    assert_non_null(scratch);
    for (int i = 0; i < N; i++) row[i] = x + i * K;
    for (int round = 0; round < 200; round++) {
        for (int i = 0; i < N * K; i++) x[i] = (float)((seed = seed * 1664525 + 1013904223) >> 20);
        for (int i = 0; i < (K + 2) * K; i++)
            steps[i] = (float)((seed = seed * 1664525 + 1013904223) >> 20);
        double top = -INFINITY, got;
        int way = 0, ways = 243, at = 1;
        for (int w = 0; w < ways; w++) top = fmax(top, score(x, steps, w));
        fv__crf_decode(best, row, N, steps, K, scratch);
        for (int i = 0; i < N; i++, at *= K) way += at * best[i];
        got = score(x, steps, way);
        assert_true(got == top);
    }
    fv__crf_decode(best, row, 0, steps, K, scratch); /* nothing to label */
    free(scratch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_best_of_all_sequences_is_found)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
