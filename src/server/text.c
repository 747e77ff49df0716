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

#include "digits.h"

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

/* One that a large answer has grown is given back: streams live long. */
void sv_empty(sv_text *t)
{
    enum { KEPT = 1 << 15 };
    if (t->cap > KEPT) sv_free(t);
    t->n = 0;
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

/* ---- numbers ---- */

/* Nine digits tell all f32 apart; what is no f32 is printf's. */
void sv_real(sv_text *t, double x)
{
    char buf[SV_DIGITS_BYTES];
    bool f32 = !isfinite(x) || (fabs(x) < 1e30 && x == (double)(float)x);
    separate(t);
    if (f32)
        sv_add(t, buf, (size_t)sv_put_float(buf, (float)x));
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
    enum { BLOCK = 64, EACH = SV_DIGITS_BYTES + 1 };
    for (uint32_t i = 0; i < n; i++) {
        float x;
        uint32_t block = n - i < BLOCK ? n - i : BLOCK;
        if (i % BLOCK == 0 && !grow(t, (size_t)block * EACH)) return;
        memcpy(&x, from + i * sizeof x, sizeof x);
        char *to = t->s + t->n;
        int comma = i > 0;
        *to = ',';
        t->n += (size_t)(comma + sv_put_float(to + comma, x));
    }
}

void sv_unpack(sv_text *to, const sv_text *from)
{
    const char *at = from->s, *end = at + from->n;
    to->failed |= from->failed;
    for (const char *nul; at < end && (nul = memchr(at, 0, (size_t)(end - at)));) {
        uint32_t n;
        sv_add(to, at, (size_t)(nul - at));
        memcpy(&n, nul + 1, sizeof n);
        at = nul + 1 + sizeof n;
        put_list(to, at, n);
        at += n * sizeof(float);
    }
    sv_add(to, at, (size_t)(end - at));
}

bool sv_is_packed(const sv_text *t) { return t->n && memchr(t->s, 0, t->n); }

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
