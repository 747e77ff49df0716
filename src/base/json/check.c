/* check.c - the grammar of a JSON document, its UTF-8 and its depth; messages with positions.
 *
 * One pass over the bytes with an explicit stack of at most FV__JSON_DEPTH brackets: no
 * recursion, so no input can overflow the C stack.  Afterwards everybody may walk the text
 * without checking grammar again.  Stricter than most readers: no duplicate keys (reader.c,
 * tree.c), no lone surrogates, no trailing text. */
#include <stdio.h>

#include "reader.h"
#include "text.h"

/* ---- messages ---- */

/* Lines and columns, which count bytes, begin at 1. */
fv_status fv__json_bad_at(fv__jval v, fv_err *e, const char *fmt, ...)
{
    char text[300];
    size_t line = 1, column = 1;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    for (size_t i = 0; i < v.at && i < v.j->n; i++) {
        column = v.j->s[i] == '\n' ? 1 : column + 1;
        line += v.j->s[i] == '\n';
    }
    return fv_fail(e, FV_EFORMAT, "%s: line %zu, column %zu: %s", v.j->file, line, column, text);
}

fv_status fv__json_bad(fv__jval v, fv_err *e, const char *fmt, ...)
{
    char text[300];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return fv_fail(e, FV_EFORMAT, "%s: %s%s%s", v.j->file, v.path, *v.path ? ": " : "", text);
}

/* ---- the check ---- */

typedef struct checker {
    fv__json *j;
    size_t at;
    const char *what; /* the first thing found wrong */
} checker;

static bool wrong(checker *c, const char *what)
{
    if (!c->what) c->what = what;
    return false;
}

static bool check_escape(checker *c)
{
    const fv__json *j = c->j;
    if (++c->at >= j->n) return wrong(c, "string not closed");
    char k = j->s[c->at++];
    if (k != 'u') return strchr("\"\\/bfnrt", k) && k ? true : wrong(c, "unknown escape");
    int v = j->n - c->at >= 4 ? fv__json_hex4(j->s + c->at) : -1;
    if (v < 0) return wrong(c, "\\u needs four hexadecimal digits");
    c->at += 4;
    if (v < 0xD800 || v > 0xDFFF) return true;
    if (v > 0xDBFF || j->n - c->at < 6 || j->s[c->at] != '\\' || j->s[c->at + 1] != 'u')
        return wrong(c, "half of a surrogate pair");
    v = fv__json_hex4(j->s + c->at + 2);
    if (v < 0xDC00 || v > 0xDFFF) return wrong(c, "half of a surrogate pair");
    c->at += 6;
    return true;
}

/* Most of a vocabulary: characters that need no look. */
static size_t skip_plain(const fv__json *j, size_t at)
{
    for (; at < j->n; at++) {
        unsigned char k = (unsigned char)j->s[at];
        if (k < 0x20 || k >= 0x80 || k == '"' || k == '\\') break;
    }
    return at;
}

static bool check_string(checker *c)
{
    const fv__json *j = c->j;
    uint32_t cp;
    c->at++;
    while ((c->at = skip_plain(j, c->at)) < j->n) {
        unsigned char k = (unsigned char)j->s[c->at];
        if (k == '"') {
            c->at++;
            return true;
        }
        if (k < 0x20) return wrong(c, "control character in a string");
        if (k == '\\') {
            if (!check_escape(c)) return false;
        } else {
            int len = fv__utf8_get(&cp, j->s + c->at, j->n - c->at);
            if (!len) return wrong(c, "malformed UTF-8");
            c->at += (size_t)len;
        }
    }
    return wrong(c, "string not closed");
}

static bool digits(checker *c)
{
    size_t from = c->at;
    while (c->at < c->j->n && c->j->s[c->at] >= '0' && c->j->s[c->at] <= '9') c->at++;
    return c->at > from;
}

static bool check_number(checker *c)
{
    const fv__json *j = c->j;
    if (j->s[c->at] == '-') c->at++;
    bool zero = c->at < j->n && j->s[c->at] == '0';
    size_t from = c->at;
    if (!digits(c) || (zero && c->at > from + 1)) return wrong(c, "bad number");
    if (c->at < j->n && j->s[c->at] == '.') {
        c->at++;
        if (!digits(c)) return wrong(c, "bad number");
    }
    if (c->at < j->n && (j->s[c->at] | 32) == 'e') {
        c->at++;
        if (c->at < j->n && (j->s[c->at] == '+' || j->s[c->at] == '-')) c->at++;
        if (!digits(c)) return wrong(c, "bad number");
    }
    return true;
}

static bool check_word(checker *c, const char *word)
{
    size_t n = strlen(word);
    if (c->j->n - c->at < n || memcmp(c->j->s + c->at, word, n))
        return wrong(c, "a value was expected");
    c->at += n;
    return true;
}

static bool check_scalar(checker *c)
{
    char k = c->j->s[c->at];
    if (k == '"') return check_string(c);
    if (k == 't') return check_word(c, "true");
    if (k == 'f') return check_word(c, "false");
    if (k == 'n') return check_word(c, "null");
    if (k == '-' || (k >= '0' && k <= '9')) return check_number(c);
    return wrong(c, "a value was expected");
}

static bool check_key(checker *c)
{
    const fv__json *j = c->j;
    if (c->at >= j->n || j->s[c->at] != '"') return wrong(c, "a key was expected");
    if (!check_string(c)) return false;
    c->at = fv__json_space(j, c->at);
    if (c->at >= j->n || j->s[c->at] != ':') return wrong(c, "':' was expected");
    c->at = fv__json_space(j, c->at + 1);
    return true;
}

/* Containers of 64 KB and more, a vocabulary or its merges, are noted with their end: skipping
 * one is then O(1) instead of another pass over megabytes. */
static void note_large(fv__json *j, size_t at, size_t end)
{
    if (end - at < 1 << 16 || j->n_large == FV__JSON_LARGE) return;
    j->large[j->n_large].at = at;
    j->large[j->n_large++].end = end;
}

/* One value, nested ones included; open holds the brackets that are open, from where they are.
 *    state: expecting a value        '{' '[' push;  a scalar falls through
 *    state: after a value            ',' next value;  '}' ']' pop and stay here;  depth 0: done */
static bool check_value(checker *c)
{
    fv__json *j = c->j;
    char open[FV__JSON_DEPTH];
    size_t from[FV__JSON_DEPTH];
    int depth = 0;
    for (;;) {
        if (c->at >= j->n) return wrong(c, "the document ends too early");
        char k = j->s[c->at];
        if (k == '{' || k == '[') {
            if (depth == FV__JSON_DEPTH) return wrong(c, "nested too deeply");
            from[depth] = c->at;
            open[depth++] = k;
            c->at = fv__json_space(j, c->at + 1);
            bool empty = c->at < j->n && j->s[c->at] == (k == '{' ? '}' : ']');
            if (!empty) {
                if (k == '{' && !check_key(c)) return false;
                continue;
            }
        } else if (!check_scalar(c)) {
            return false;
        }
        for (;;) { /* after a value: close what ends here, or go on to the next one */
            if (!depth) return true;
            c->at = fv__json_space(j, c->at);
            if (c->at >= j->n) return wrong(c, "the document ends too early");
            k = j->s[c->at];
            bool object = open[depth - 1] == '{';
            if (k == (object ? '}' : ']')) {
                c->at++;
                note_large(j, from[--depth], c->at);
                continue;
            }
            if (k != ',') return wrong(c, "',' or a closing bracket was expected");
            c->at = fv__json_space(j, c->at + 1);
            if (object && !check_key(c)) return false;
            break;
        }
    }
}

fv_status fv__json_open(fv__jval *root, fv__json *j, fv_err *e)
{
    checker c = {.j = j, .at = fv__json_space(j, 0)};
    *root = (fv__jval){.j = j, .at = c.at};
    bool ok = check_value(&c);
    if (ok) {
        c.at = fv__json_space(j, c.at);
        ok = c.at == j->n || wrong(&c, "something follows the document");
    }
    if (ok) return FV_OK;
    return fv__json_bad_at((fv__jval){.j = j, .at = c.at}, e, "%s", c.what);
}
