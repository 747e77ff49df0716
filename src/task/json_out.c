/* json_out.c - JSON of results: compact, floats with nine digits (enough for f32), null where JSON
 * has no number.
 *
 * The buffer itself says whether a comma is due: what stands last in it. So there is no state
 * beside it, and a task may write parts by hand. */
#include <math.h>
#include <stdio.h>

#include "task_pipeline.h"

/* A comma, unless this is the first of its object or array or stands behind a key. */
static void separate(fv_buf *b)
{
    if (b->len && !strchr("{[: \n", b->data[b->len - 1])) fv__buf_add(b, ",", 1);
}

void fv__json_begin(fv_buf *b, char bracket)
{
    separate(b);
    fv__buf_add(b, &bracket, 1);
}

void fv__json_end(fv_buf *b, char bracket) { fv__buf_add(b, &bracket, 1); }

/* Bytes that are not UTF-8 become U+FFFD: what is printed is always JSON. */
static void put_quoted(fv_buf *b, const char *s, size_t n)
{
    static const char plain[] = "\"\\\b\f\n\r\t", *const escaped = "\"\\bfnrt";
    fv__buf_add(b, "\"", 1);
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        int len = fv__utf8_get(&cp, s + i, n - i);
        const char *at = s[i] ? strchr(plain, s[i]) : NULL;
        if (len < 1)
            fv__buf_str(b, "\xEF\xBF\xBD");
        else if (at)
            fv__buf_fmt(b, "\\%c", escaped[at - plain]);
        else if (cp < 0x20)
            fv__buf_fmt(b, "\\u%04X", (unsigned)cp);
        else
            fv__buf_add(b, s + i, (size_t)len);
        i += len < 1 ? 1 : (size_t)len;
    }
    fv__buf_add(b, "\"", 1);
}

void fv__json_key(fv_buf *b, const char *key)
{
    separate(b);
    put_quoted(b, key, strlen(key));
    fv__buf_add(b, ":", 1);
}

void fv__json_put_text(fv_buf *b, const char *s, size_t n)
{
    separate(b);
    put_quoted(b, s, n);
}

void fv__json_put_int(fv_buf *b, int64_t x)
{
    separate(b);
    fv__buf_fmt(b, "%lld", (long long)x);
}

/* %.9g with a point or an exponent, and the exponent without + and leading zeros. */
void fv__json_put_number(fv_buf *b, double x)
{
    char text[40], *exponent;
    separate(b);
    if (!isfinite(x)) {
        fv__buf_str(b, "null");
        return;
    }
    snprintf(text, sizeof text, "%.9g", x);
    for (char *p = text; *p; p++) *p = *p == ',' ? '.' : *p; /* a host's decimal comma */
    exponent = strchr(text, 'e');
    if (!exponent) {
        fv__buf_fmt(b, "%s%s", text, strchr(text, '.') ? "" : ".0");
        return;
    }
    const char *digits = exponent + 2 + strspn(exponent + 2, "0");
    fv__buf_fmt(b, "%.*se%s%s", (int)(exponent - text), text, exponent[1] == '-' ? "-" : "",
                digits);
}

void fv__json_text_at(fv_buf *b, const char *key, const char *s, size_t n)
{
    fv__json_key(b, key);
    fv__json_put_text(b, s, n);
}

void fv__json_int_at(fv_buf *b, const char *key, int64_t x)
{
    fv__json_key(b, key);
    fv__json_put_int(b, x);
}

void fv__json_number_at(fv_buf *b, const char *key, double x)
{
    fv__json_key(b, key);
    fv__json_put_number(b, x);
}

/* ---- plain text ---- */

/* Plain results have one line a record, whatever the text holds. */
void fv__put_flat(fv_buf *b, const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        bool blank = s[i] == '\n' || s[i] == '\r' || s[i] == '\t';
        fv__buf_add(b, blank ? " " : s + i, 1);
    }
}

/* Shells pass a backslash and an n where a line end is meant. */
void fv__put_template(fv_buf *b, const char *how, const char *s, size_t n)
{
    for (; *how; how++) {
        if (how[0] == '{' && how[1] == '}')
            fv__buf_add(b, s, n), how++;
        else if (how[0] == '\\' && how[1] == 'n')
            fv__buf_add(b, "\n", 1), how++;
        else
            fv__buf_add(b, how, 1);
    }
}
