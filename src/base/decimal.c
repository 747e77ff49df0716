/* decimal.c - numbers as text, with '.' whatever the locale. */
#include "decimal.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

/* The C locale is a static object of the C library: nothing is allocated, and 0 would leave the
 * locale as it is. */
locale_t fv__c_numbers(void)
{
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    return c ? uselocale(c) : (locale_t)0;
}

void fv__c_numbers_end(locale_t before)
{
    if (before) uselocale(before);
}

/* uselocale changes this thread only; setlocale would change the program's. */
double fv__strtod(const char *s, char **end)
{
    locale_t before = fv__c_numbers();
    double x = strtod(s, end);
    fv__c_numbers_end(before);
    return x;
}

float fv__strtof(const char *s, char **end)
{
    locale_t before = fv__c_numbers();
    float x = strtof(s, end);
    fv__c_numbers_end(before);
    return x;
}

int fv__format(char *out, size_t n, const char *fmt, ...)
{
    va_list ap;
    locale_t before = fv__c_numbers();
    va_start(ap, fmt);
    int len = vsnprintf(out, n, fmt, ap);
    va_end(ap);
    fv__c_numbers_end(before);
    return len;
}

fv_digits fv__digits(double x, bool single)
{
    fv_digits d;
    int most = single ? 9 : 17;
    if (!isfinite(x)) {
        snprintf(d.s, sizeof d.s, "%s", isnan(x) ? "nan" : x > 0 ? "inf" : "-inf");
        return d;
    }
    locale_t before = fv__c_numbers();
    for (int p = single ? 6 : 15; p <= most; p++) {
        snprintf(d.s, sizeof d.s, "%.*g", p, x);
        if (single ? strtof(d.s, NULL) == (float)x : strtod(d.s, NULL) == x) break;
    }
    fv__c_numbers_end(before);
    return d;
}
