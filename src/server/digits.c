/* digits.c - decimal digits of floats, as printf's %.9g writes them.
 *
 * Attention asks for millions of them a second, and printf takes most of a microsecond for each.
 * A float is m 2^e with a whole m of 24 bits; with k chosen so that the result has nine digits
 *
 *    x 10^k = m 5^k 2^(e+k)
 *
 * is exact: in 64 bits for k up to 17, where almost all weights lie, and in 128 bits for k up to
 * 44.  Rounded half to even it has printf's digits, bit for bit.  Shortest digits (Ryu and its
 * like) would be fewer bytes, but answers would no longer equal what `fovea forward` prints. */
#include "digits.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum {
    DIGITS = 9,
    LEAST_EXPONENT = -27,     /* of 2: from here to MOST_EXPONENT 64 bits are enough */
    MOST_EXPONENT = 16,       /* 65,536 and above are printf's */
    LEAST_WIDE_EXPONENT = -99 /* with 128 bits */
};

static const uint32_t nine_digits = 1000000000; /* the least number of ten */

static const uint64_t five[] = {/* 5^0 .. 5^27, the greatest of 64 bits */
                                1u,
                                5u,
                                25u,
                                125u,
                                625u,
                                3125u,
                                15625u,
                                78125u,
                                390625u,
                                1953125u,
                                9765625u,
                                48828125u,
                                244140625u,
                                1220703125u,
                                6103515625u,
                                30517578125u,
                                152587890625u,
                                762939453125u,
                                3814697265625u,
                                19073486328125u,
                                95367431640625u,
                                476837158203125u,
                                2384185791015625u,
                                11920928955078125u,
                                59604644775390625u,
                                298023223876953125u,
                                1490116119384765625u,
                                7450580596923828125u};

/* ---- nine digits and a power of ten ---- */

/* x = d 10^-k, 10^8 <= d < 10^9 */
typedef struct decimal {
    uint32_t d;
    int k;
} decimal;

/* Rounding may carry into a tenth digit, which is a zero then. */
static decimal carried(uint64_t d, int k)
{
    bool over = d == nine_digits;
    return (decimal){.d = (uint32_t)(over ? d / 10 : d), .k = over ? k - 1 : k};
}

/* m 2^(p-23), with 2^23 <= m < 2^24.  No branch depends on m: which of two k it is would be
 * guessed wrongly every other time. */
static decimal scale(uint64_t m, int p)
{
    /* the greatest k by which no number of this p has ten digits; log10(2) is near 1233/4096 */
    int k = p < 0 ? DIGITS - 1 + (-p * 1233 >> 12) : DIGITS - 2 - (p * 1233 >> 12);
    int down = 23 - p - k;
    uint64_t x = m * five[k];
    int less = x < (uint64_t)(nine_digits / 10) << down; /* eight digits: one more is wanted */
    x *= less ? 5 : 1;
    k += less;
    down -= less;
    uint64_t odd = x >> down & 1;
    return carried((x + ((uint64_t)1 << (down - 1)) - 1 + odd) >> down, k);
}

/* The same for p down to LEAST_WIDE_EXPONENT. */
static decimal scale_wide(uint64_t m, int p)
{
    int k = DIGITS - 1 + (int)((double)-p * 0.30103), down = 23 - p - k;
    unsigned __int128 x = (unsigned __int128)m * five[k < 27 ? k : 27];
    if (k > 27) x *= five[k - 27];
    if (x < (unsigned __int128)(nine_digits / 10) << down) x *= 5, k++, down--;
    unsigned __int128 whole = x >> down, rest = x - (whole << down),
                      half = (unsigned __int128)1 << (down - 1);
    whole += rest > half || (rest == half && (whole & 1));
    return carried((uint64_t)whole, k);
}

/* ---- as text ---- */

static void put_pair(char *to, uint32_t two)
{
    static const char pairs[] =
        "00010203040506070809101112131415161718192021222324252627282930313233"
        "34353637383940414243444546474849505152535455565758596061626364656667"
        "6869707172737475767778798081828384858687888990919293949596979899";
    memcpy(to, pairs + 2 * (size_t)two, 2);
}

static void put_nine(char *to, uint32_t d)
{
    uint32_t high = d / 10000, low = d % 10000, first = high / 10000;
    high %= 10000;
    *to = (char)('0' + first);
    put_pair(to + 1, high / 100);
    put_pair(to + 3, high % 100);
    put_pair(to + 5, low / 100);
    put_pair(to + 7, low % 100);
}

/* Of the bytes up to n those behind which only zeros stand. */
static int without_zeros(const char *s, int n)
{
    while (s[n - 1] == '0') n--;
    return n;
}

/* 0.000ddddddddd where at most four zeros stand before the first digit (one before the point). */
static int put_fraction(char *to, decimal x)
{
    int zeros = x.k - DIGITS;
    memcpy(to, "0.0000", 6);
    put_nine(to + 2 + zeros, x.d);
    return without_zeros(to, 2 + zeros + DIGITS);
}

/* d.dddddddde-XX */
static int put_exponent(char *to, decimal x)
{
    put_nine(to + 1, x.d);
    int n = without_zeros(to + 1, DIGITS);
    to[0] = to[1];
    to[1] = '.';
    n += n > 1; /* one digit has no point */
    to[n] = 'e';
    to[n + 1] = '-';
    put_pair(to + n + 2, (uint32_t)(x.k - DIGITS + 1));
    return n + 4;
}

/* dd.ddddddd */
static int put_whole(char *to, decimal x)
{
    int before = DIGITS - x.k;
    put_nine(to + 1, x.d);
    int n = without_zeros(to + 1, DIGITS);
    memmove(to, to + 1, (size_t)before);
    to[before] = '.';
    return n > before ? n + 1 : before;
}

/* JSON has no infinity.  Without the NUL that snprintf puts behind it. */
static int put_other(char *to, float x)
{
    if (!isfinite(x)) return (int)strlen(strcpy(to, "null"));
    return snprintf(to, SV_DIGITS_BYTES, "%.9g", (double)x);
}

int sv_put_float(char *to, float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    int p = (int)(bits >> 23 & 255) - 127, sign = (int)(bits >> 31);
    uint64_t m = (bits & ((1u << 23) - 1)) | 1u << 23;
    if (!bits) return *to = '0', 1;
    if (p < LEAST_WIDE_EXPONENT || p >= MOST_EXPONENT) return put_other(to, x);
    decimal d = p >= LEAST_EXPONENT ? scale(m, p) : scale_wide(m, p);
    *to = '-';
    to += sign;
    if (d.k < DIGITS) return sign + put_whole(to, d);
    return sign + (d.k < DIGITS + 4 ? put_fraction(to, d) : put_exponent(to, d));
}
