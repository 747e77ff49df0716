/* text.c - bytes that grow, and JSON written into them.
 *
 * Answers are written, not built as a tree: a map of attention weights has a million numbers, and
 * a tree of them would be ten times the text. */
#include "text.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Failure is sticky: writers go on, and whoever sends the text looks at `failed` once. */
static bool grow(sv_text *t, size_t more)
{
    if (t->failed || more > SIZE_MAX / 2 - t->n) return !(t->failed = true);
    if (t->n + more + 1 <= t->cap) return true;
    size_t cap = t->cap ? t->cap : 1024; /* an event with weights, without growing */
    while (cap < t->n + more + 1) cap *= 2;
    char *s = realloc(t->s, cap);
    if (!s) return !(t->failed = true);
    t->s = s;
    t->cap = cap;
    return true;
}

/* A failed allocation is remembered in `failed` and everything behind it ignored, so writers need
 * no checks; sv_answer makes a 500 of it. */
void sv_add(sv_text *t, const char *s, size_t n)
{
    if (!grow(t, n)) return;
    if (n) memcpy(t->s + t->n, s, n);
    t->n += n;
    t->s[t->n] = 0;
}

void sv_put(sv_text *t, const char *s) { sv_add(t, s, strlen(s)); }

void sv_fmt(sv_text *t, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    /* most of it fits what there is room for: then it is formatted once */
    size_t room = grow(t, 64) ? t->cap - t->n : 0;
    int n = room ? vsnprintf(t->s + t->n, room, fmt, ap) : -1;
    if (n >= 0 && (size_t)n >= room && grow(t, (size_t)n))
        vsnprintf(t->s + t->n, (size_t)n + 1, fmt, again);
    if (n >= 0 && !t->failed) t->n += (size_t)n;
    va_end(again);
    va_end(ap);
}

void sv_free(sv_text *t)
{
    free(t->s);
    *t = (sv_text){0};
}

/* ---- JSON ---- */

/* A comma where one is due: after a value, but not after what opens something or separates
 * already. */
static void separate(sv_text *t)
{
    char last = t->n ? t->s[t->n - 1] : 0;
    bool due = last && last != '{' && last != '[' && last != ':' && last != ',' && last != '\n' &&
               last != ' ';
    if (due) sv_add(t, ",", 1);
}

void sv_open(sv_text *t, char bracket)
{
    separate(t);
    sv_add(t, &bracket, 1);
}

void sv_close(sv_text *t, char bracket) { sv_add(t, &bracket, 1); }

/* Length of the UTF-8 character at s, of n bytes; 0: malformed. */
static size_t character(const unsigned char *s, size_t n)
{
    static const unsigned char least[] = {0, 0, 0xc2, 0xe0, 0xf0};
    size_t len = s[0] < 0x80 ? 1 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;
    if (s[0] < 0x80) return 1;
    if (s[0] < least[len] || s[0] > 0xf4 || len > n) return 0;
    for (size_t i = 1; i < len; i++)
        if ((s[i] & 0xc0) != 0x80) return 0;
    bool overlong = (s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xf0 && s[1] < 0x90);
    bool outside = (s[0] == 0xed && s[1] > 0x9f) || (s[0] == 0xf4 && s[1] > 0x8f);
    return overlong || outside ? 0 : len;
}

/* The seven short escapes of RFC 8259 and \u00XX for the other control characters. */
static void escape(sv_text *t, unsigned char c)
{
    static const char *const named[] = {
        ['\b'] = "\\b", ['\f'] = "\\f", ['\n'] = "\\n", ['\r'] = "\\r",
        ['\t'] = "\\t", ['"'] = "\\\"", ['\\'] = "\\\\"};
    if (c < sizeof named / sizeof *named && named[c])
        sv_put(t, named[c]);
    else
        sv_fmt(t, "\\u%04x", c);
}

/* Bytes from s on that stand in JSON as they are. */
static size_t plain(const char *s, size_t n)
{
    size_t i = 0;
    while (i < n && s[i] >= 0x20 && s[i] < 0x7f && s[i] != '"' && s[i] != '\\') i++;
    return i;
}

/* Bytes that are not UTF-8 become U+FFFD each: what is sent is always JSON. */
void sv_string(sv_text *t, const char *s, size_t n)
{
    separate(t);
    sv_add(t, "\"", 1);
    for (size_t i = 0, len; i < n; i += len) {
        unsigned char c = (unsigned char)s[i];
        len = plain(s + i, n - i);
        if (len) {
            sv_add(t, s + i, len);
            continue;
        }
        len = character((const unsigned char *)s + i, n - i);
        if (c < 0x20 || c == '"' || c == '\\')
            escape(t, c);
        else
            sv_add(t, len ? s + i : "\xef\xbf\xbd", len ? len : 3);
        if (!len) len = 1;
    }
    sv_add(t, "\"", 1);
}

void sv_key(sv_text *t, const char *key)
{
    sv_string(t, key, strlen(key));
    sv_add(t, ":", 1);
}

/* ---- numbers ----
 *
 * An answer with attention has thousands of them, and printf takes most of a microsecond for each.
 * A weight is m 2^e with a whole m of 24 bits; with k chosen so that the result has nine digits
 *
 *    x 10^k = m 5^k 2^(e+k)
 *
 * is exact in 128 bits for k up to 44, and rounding it half to even gives printf's digits. */

enum { DIGITS = 9, MOST_SHIFT = 44 };

/* m 2^e 10^k, rounded; 0: it does not fit.  e + k is negative. */
static uint64_t scale(uint64_t m, int e, int k)
{
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
    unsigned __int128 x = (unsigned __int128)m * five[k < 27 ? k : 27];
    if (k > 27) x *= five[k - 27];
    int down = -(e + k);
    if (down < 1 || down > 126) return 0;
    unsigned __int128 whole = x >> down, rest = x - (whole << down),
                      half = (unsigned __int128)1 << (down - 1);
    whole += rest > half || (rest == half && (whole & 1));
    return whole >> 64 ? 0 : (uint64_t)whole;
}

/* n digits of d, two at a time. */
static void put_digits(char *to, uint64_t d, int n)
{
    static const char pairs[] =
        "00010203040506070809101112131415161718192021222324252627282930313233"
        "34353637383940414243444546474849505152535455565758596061626364656667"
        "6869707172737475767778798081828384858687888990919293949596979899";
    uint32_t left = (uint32_t)d; /* nine digits are 30 bits */
    for (; n > 1; n -= 2, left /= 100) memcpy(to + n - 2, pairs + 2 * (left % 100), 2);
    if (n) *to = (char)('0' + left % 10);
}

/* Nine digits of a value of at most 24 bits between 1e-4 and 1, where %.9g writes no exponent; or,
 * down to 1e-30, with one.  Returns how many bytes of 48 that are; 0: another value, which printf
 * writes. */
static int put_fraction(char *buf, double x)
{
    static const uint64_t nine = 1000000000;
    uint64_t bits, d = 0;
    memcpy(&bits, &x, sizeof bits);
    if (!(x >= 1e-30 && x < 1) || bits & ((1u << 29) - 1)) return 0;
    /* x = m 2^e, 2^23 <= m < 2^24 */
    uint64_t m = (bits >> 29 & ((1u << 23) - 1)) | 1u << 23;
    int e = (int)(bits >> 52) - 1023 - 23, k;
    /* log10(x) is near (e + 24) log10(2); the first guess may be one too small */
    k = DIGITS + (int)((double)-(e + 24) * 0.30103);
    for (; k <= MOST_SHIFT && d < nine / 10; k++) d = scale(m, e, k);
    k--;
    if (d < nine / 10 || d > nine) return 0;
    if (d == nine) d /= 10, k--;
    int zeros = k - DIGITS, n = DIGITS, at = 0;
    while (n > 1 && d % 10 == 0) d /= 10, n--;
    if (zeros < 4) {
        memcpy(buf, "0.0000", 6);
        put_digits(buf + 2 + zeros, d, n);
        return 2 + zeros + n;
    }
    put_digits(buf + 1, d, n);
    buf[0] = buf[1]; /* the point comes behind the first digit */
    if (n > 1) buf[1] = '.';
    at = n > 1 ? n + 1 : 1;
    return at + snprintf(buf + at, 48 - (size_t)at, "e-%02d", zeros + 1);
}

/* Nine digits tell all f32 apart; JSON has no infinity. */
void sv_real(sv_text *t, double x)
{
    char buf[48];
    int n = put_fraction(buf, x);
    separate(t);
    if (n)
        sv_add(t, buf, (size_t)n);
    else if (x == 0 && !signbit(x))
        sv_add(t, "0", 1);
    else if (!isfinite(x))
        sv_put(t, "null");
    else
        sv_fmt(t, "%.9g", x);
}

/* Digits of many numbers are left to the thread that sends them: an engine's thread, which all
 * sequences wait for, only copies their bits.  No JSON has a NUL, since control characters are
 * escaped, so one begins a packed list:
 *
 *    [ NUL | n: 4 bytes | n floats ]          sv_unpack:  [0.25,0.5,0.25] */
void sv_packed_reals(sv_text *t, const float *x, int64_t n)
{
    uint32_t count = (uint32_t)n;
    sv_open(t, '[');
    sv_add(t, "", 1);
    sv_add(t, (const char *)&count, sizeof count);
    sv_add(t, (const char *)x, count * sizeof *x);
    sv_close(t, ']');
}

/* x0,x1,.. without a look at what stands before each: attention asks for millions a second. */
static void put_list(sv_text *t, const char *from, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        float x;
        memcpy(&x, from + i * sizeof x, sizeof x);
        if (!grow(t, 50)) return;
        char *to = t->s + t->n;
        int comma = i > 0;
        *to = ',';
        int digits = put_fraction(to + comma, (double)x);
        if (digits)
            t->n += (size_t)(comma + digits);
        else
            sv_real(t, (double)x);
    }
    t->s[t->n] = 0;
}

void sv_unpack(sv_text *t)
{
    const char *at = t->s, *end = at + t->n, *nul = t->n ? memchr(at, 0, t->n) : NULL;
    sv_text out = {.failed = t->failed};
    if (!nul) return;
    while (nul) {
        uint32_t n;
        sv_add(&out, at, (size_t)(nul - at));
        memcpy(&n, nul + 1, sizeof n);
        at = nul + 1 + sizeof n;
        put_list(&out, at, n);
        at += n * sizeof(float);
        nul = memchr(at, 0, (size_t)(end - at));
    }
    sv_add(&out, at, (size_t)(end - at));
    sv_free(t);
    *t = out;
}

void sv_int(sv_text *t, int64_t x)
{
    char buf[24];
    int at = sizeof buf;
    uint64_t left = x < 0 ? -(uint64_t)x : (uint64_t)x;
    do buf[--at] = (char)('0' + left % 10);
    while (left /= 10);
    if (x < 0) buf[--at] = '-';
    separate(t);
    sv_add(t, buf + at, sizeof buf - (size_t)at);
}

void sv_raw(sv_text *t, const char *json)
{
    separate(t);
    sv_put(t, json);
}

void sv_string_at(sv_text *t, const char *key, const char *s)
{
    sv_key(t, key);
    sv_string(t, s, strlen(s));
}

void sv_real_at(sv_text *t, const char *key, double x)
{
    sv_key(t, key);
    sv_real(t, x);
}

void sv_int_at(sv_text *t, const char *key, int64_t x)
{
    sv_key(t, key);
    sv_int(t, x);
}

void sv_raw_at(sv_text *t, const char *key, const char *json)
{
    sv_key(t, key);
    sv_raw(t, json);
}
