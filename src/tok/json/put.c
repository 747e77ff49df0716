/* put.c - values of a tokenizer.json as JSON text. */
#include <math.h>
#include <stdio.h>
#include "base/decimal.h"
#include "tok/json/load.h"
#include "tok/json/put.h"

void fv__put_str(fv_buf *b, fv__str s)
{
    fv__buf_str(b, "\"");
    size_t kept = 0;
    for (size_t i = 0; i < s.n; i++) {
        unsigned char c = (unsigned char)s.s[i];
        if (c >= 0x20 && c != '"' && c != '\\') continue;
        fv__buf_add(b, s.s + kept, i - kept);
        if (c == '\n')
            fv__buf_str(b, "\\n");
        else if (c < 0x20)
            fv__buf_fmt(b, "\\u%04x", c);
        else
            fv__buf_fmt(b, "\\%c", c);
        kept = i + 1;
    }
    fv__buf_add(b, s.s + kept, s.n - kept);
    fv__buf_str(b, "\"");
}

void fv__put_bool(fv_buf *b, const char *key, bool x)
{
    fv__buf_fmt(b, ",\"%s\":%s", key, x ? "true" : "false");
}

void fv__put_member(fv_buf *b, const char *key, fv__str s)
{
    fv__buf_fmt(b, ",\"%s\":", key);
    fv__put_str(b, s);
}

static bool reads_back(const char *text, double x)
{
    return fv__json_score(text, strlen(text)) == x;
}

/* The shortest decimal that reads back as the same number.  As serde_json does not round to the
 * nearest double, that of a neighbour may be the one it reads as x. */
void fv__put_double(fv_buf *b, double x)
{
    char text[40];
    bool found = false;
    for (int digits = 15; digits <= 17 && !found; digits++) {
        fv__format(text, sizeof text, "%.*g", digits, x);
        found = reads_back(text, x);
    }
    double below = x, above = x;
    for (int i = 0; i < 4 && !found; i++) {
        below = nextafter(below, -INFINITY);
        above = nextafter(above, INFINITY);
        for (int up = 0; up < 2 && !found; up++) {
            fv__format(text, sizeof text, "%.17g", up ? above : below);
            found = reads_back(text, x);
        }
    }
    fv__buf_str(b, text);
    if (!strpbrk(text, ".eE")) fv__buf_str(b, ".0");
}

void fv__put_base64(fv_buf *b, fv__str s)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < s.n; i += 3) {
        uint32_t x = 0;
        for (size_t k = 0; k < 3; k++) x = x << 8 | (i + k < s.n ? (unsigned char)s.s[i + k] : 0);
        char out[4] = {digits[x >> 18], digits[x >> 12 & 63],
                       i + 1 < s.n ? digits[x >> 6 & 63] : '=', i + 2 < s.n ? digits[x & 63] : '='};
        fv__buf_add(b, out, 4);
    }
}

void fv__put_pattern(fv_buf *b, const fv__pattern *p)
{
    fv__buf_fmt(b, ",\"pattern\":{\"%s\":", p->regex ? "Regex" : "String");
    fv__put_str(b, p->text);
    fv__buf_str(b, "}");
}
