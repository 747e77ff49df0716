/* score.c - numbers of a tokenizer.json, rounded as the reference rounds them.
 *
 * tokenizers reads its files with serde_json, which takes the digits as a 64-bit integer, that as a
 * double, and multiplies or divides it once by a power of ten.  The result is an ulp off in a
 * quarter of T5's scores; as paths of equal probability are common in Unigram ("-------" cut from
 * the left or from the right), that last bit decides which one wins.  A number read exactly would
 * give other ids. */
#include <math.h>
#include <stdio.h>

#include "base/decimal.h"
#include "load.h"

static double power_of_ten(int k)
{
    static const double small[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                                   1e8,  1e9,  1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
                                   1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
    char text[16];
    if (k < (int)(sizeof small / sizeof *small)) return small[k];
    snprintf(text, sizeof text, "1e%d", k);
    return fv__strtod(text, NULL);
}

/* digits * 10^exponent; powers beyond 10^308 are taken in steps. */
static double scaled(uint64_t digits, int64_t exponent)
{
    double x = (double)digits;
    while (exponent < -308 && x != 0) {
        x /= 1e308;
        exponent += 308;
    }
    if (x == 0) return 0;
    if (exponent > 308) return INFINITY;
    return exponent < 0 ? x / power_of_ten((int)-exponent) : x * power_of_ten((int)exponent);
}

typedef struct digits {
    uint64_t value;
    int64_t exponent;
    bool full; /* 64 bits are used up: what follows is dropped */
} digits;

static void take(digits *d, char c, bool fraction)
{
    uint64_t x;
    d->full = d->full || __builtin_mul_overflow(d->value, 10, &x) ||
              __builtin_add_overflow(x, (uint64_t)(c - '0'), &x);
    if (!d->full) d->value = x;
    d->exponent += fraction ? -!d->full : d->full;
}

static bool is_digit(const char *s, const char *end) { return s < end && *s >= '0' && *s <= '9'; }

double fv__json_score(const char *s, size_t n)
{
    const char *end = s + n;
    bool minus = n && *s == '-';
    digits d = {0};
    for (s += minus; is_digit(s, end); s++) take(&d, *s, false);
    if (s < end && *s == '.')
        for (s++; is_digit(s, end); s++) take(&d, *s, true);
    if (s < end && (*s | 32) == 'e') {
        bool down = ++s < end && *s == '-';
        int64_t e = 0;
        for (s += s < end && (*s == '-' || *s == '+'); is_digit(s, end); s++)
            if (e < 100000) e = e * 10 + (*s - '0');
        d.exponent += down ? -e : e;
    }
    double x = scaled(d.value, d.exponent);
    return minus ? -x : x;
}
