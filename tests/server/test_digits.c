/* test_digits.c - digits of floats as printf writes them: of every exponent, at powers of two and
 * of ten, and what JSON has no number for. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "server/digits.h"

static void same(float x)
{
    char got[SV_DIGITS_BYTES + 1], want[64];
    int n = sv_put_float(got, x);
    assert_in_range(n, 1, SV_DIGITS_BYTES - 1);
    got[n] = 0;
    snprintf(want, sizeof want, "%.9g", (double)x);
    if (strcmp(got, want)) fail_msg("%a: %s instead of %s", (double)x, got, want);
}

/* A step that is prime reaches all exponents and ends of mantissas that differ. */
static void numbers_are_printfs(void **state)
{
    (void)state;
    for (uint64_t i = 0; i <= UINT32_MAX; i += 3571) {
        uint32_t bits = (uint32_t)i;
        float x;
        memcpy(&x, &bits, sizeof x);
        if (isfinite(x)) same(x);
    }
}

/* Where the number of digits changes, and what rounds to it. */
static void edges_are_printfs(void **state)
{
    (void)state;
    for (int p = -149; p <= 127; p++) {
        float x = ldexpf(1, p);
        same(x);
        same(nextafterf(x, 0));
        same(nextafterf(x, FLT_MAX));
    }
    for (int k = -45; k <= 38; k++) {
        float x = (float)pow(10, k);
        same(x);
        same(-nextafterf(x, 0));
        same(nextafterf(x, FLT_MAX));
        same(3 * x);
    }
    for (int i = 0; i <= 1024; i++) same((float)i / 1024); /* few digits: zeros are left out */
}

static void no_number_is_null(void **state)
{
    static const float none[] = {NAN, INFINITY, -INFINITY};
    char got[SV_DIGITS_BYTES];
    (void)state;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(sv_put_float(got, none[i]), 4);
        assert_memory_equal(got, "null", 4);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_are_printfs),
        cmocka_unit_test(edges_are_printfs),
        cmocka_unit_test(no_number_is_null),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
