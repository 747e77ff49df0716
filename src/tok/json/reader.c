/* reader.c - checking a JSON document and walking it in place; see reader.h. */
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "reader.h"

static bool space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

static size_t skip_space(const fv__json *j, size_t at)
{
    while (at < j->n && space(j->s[at])) at++;
    return at;
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

static int hex4(const char *s)
{
    int v = 0;
    for (int i = 0; i < 4; i++) {
        char c = s[i];
        int d = c >= '0' && c <= '9'   ? c - '0'
                : c >= 'a' && c <= 'f' ? c - 'a' + 10
                : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                       : -1;
        if (d < 0) return -1;
        v = v * 16 + d;
    }
    return v;
}

static bool check_escape(checker *c)
{
    const fv__json *j = c->j;
    if (++c->at >= j->n) return wrong(c, "string not closed");
    char k = j->s[c->at++];
    if (k != 'u') return strchr("\"\\/bfnrt", k) && k ? true : wrong(c, "unknown escape");
    int v = j->n - c->at >= 4 ? hex4(j->s + c->at) : -1;
    if (v < 0) return wrong(c, "\\u needs four hexadecimal digits");
    c->at += 4;
    if (v < 0xD800 || v > 0xDFFF) return true;
    if (v > 0xDBFF || j->n - c->at < 6 || j->s[c->at] != '\\' || j->s[c->at + 1] != 'u')
        return wrong(c, "half of a surrogate pair");
    v = hex4(j->s + c->at + 2);
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
    c->at = skip_space(j, c->at);
    if (c->at >= j->n || j->s[c->at] != ':') return wrong(c, "':' was expected");
    c->at = skip_space(j, c->at + 1);
    return true;
}

static void note_large(fv__json *j, size_t at, size_t end)
{
    if (end - at < 1 << 16 || j->n_large == FV__JSON_LARGE) return;
    j->large[j->n_large].at = at;
    j->large[j->n_large++].end = end;
}

/* One value, nested ones included; open holds the brackets that are open, from where they are. */
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
            c->at = skip_space(j, c->at + 1);
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
            c->at = skip_space(j, c->at);
            if (c->at >= j->n) return wrong(c, "the document ends too early");
            k = j->s[c->at];
            bool object = open[depth - 1] == '{';
            if (k == (object ? '}' : ']')) {
                c->at++;
                note_large(j, from[--depth], c->at);
                continue;
            }
            if (k != ',') return wrong(c, "',' or a closing bracket was expected");
            c->at = skip_space(j, c->at + 1);
            if (object && !check_key(c)) return false;
            break;
        }
    }
}

fv_status fv__json_open(fv__jval *root, fv__json *j, fv_err *e)
{
    checker c = {.j = j, .at = skip_space(j, 0)};
    *root = (fv__jval){.j = j, .at = c.at};
    bool ok = check_value(&c);
    if (ok) {
        c.at = skip_space(j, c.at);
        ok = c.at == j->n || wrong(&c, "something follows the document");
    }
    if (ok) return FV_OK;
    return fv_fail(e, FV_EFORMAT, "%s: byte %zu: %s", j->file, c.at, c.what);
}

/* ---- walking what was checked ---- */

static size_t skip_string(const fv__json *j, size_t at)
{
    for (at++; j->s[at] != '"'; at++)
        if (j->s[at] == '\\') at++;
    return at + 1;
}

/* Numbers and words end where punctuation, a string or space begins. */
static bool in_word(char c)
{
    return c == '+' || c == '-' || c == '.' || (c >= '0' && c <= '9') ||
           ((c | 32) >= 'a' && (c | 32) <= 'z');
}

static size_t skip_word(const fv__json *j, size_t at)
{
    while (at < j->n && in_word(j->s[at])) at++;
    return at;
}

static size_t skip_value(const fv__json *j, size_t at)
{
    int depth = 0;
    if (in_word(j->s[at])) return skip_word(j, at);
    for (int i = 0; i < j->n_large; i++)
        if (j->large[i].at == at) return j->large[i].end;
    do {
        char c = j->s[at];
        if (c == '"') {
            at = skip_string(j, at);
        } else if (in_word(c)) {
            at = skip_word(j, at);
        } else {
            depth += (c == '{' || c == '[') - (c == '}' || c == ']');
            at++;
        }
    } while (depth && at < j->n);
    return at;
}

char fv__json_kind(fv__jval v)
{
    char k = v.j->s[v.at];
    return k == '-' || (k >= '0' && k <= '9') ? '0' : k;
}

fv__jiter fv__json_iter(fv__jval v)
{
    char k = fv__json_kind(v);
    return (fv__jiter){.j = v.j,
                       .at = k == '{' || k == '[' ? v.at + 1 : v.j->n,
                       .object = k == '{',
                       .index = -1};
}

bool fv__json_next(fv__jiter *it)
{
    const fv__json *j = it->j;
    size_t at = it->index < 0 ? it->at : skip_value(j, it->value);
    at = skip_space(j, at);
    if (at >= j->n || j->s[at] == '}' || j->s[at] == ']') return false;
    if (j->s[at] == ',') at = skip_space(j, at + 1);
    if (it->object) {
        it->key = at + 1;
        at = skip_string(j, at);
        it->key_end = at - 1;
        at = skip_space(j, skip_space(j, at) + 1);
    }
    it->value = at;
    it->index++;
    return true;
}

int64_t fv__json_count(fv__jval v)
{
    int64_t n = 0;
    for (fv__jiter it = fv__json_iter(v); fv__json_next(&it);) n++;
    return n;
}

fv__jval fv__json_item(fv__jval parent, const fv__jiter *it)
{
    fv__jval v = {.j = it->j, .at = it->value};
    if (it->object)
        snprintf(v.path, sizeof v.path, "%.60s.%.*s", parent.path,
                 (int)(it->key_end - it->key < 30 ? it->key_end - it->key : 30),
                 it->j->s + it->key);
    else
        snprintf(v.path, sizeof v.path, "%.70s[%lld]", parent.path, (long long)it->index);
    return v;
}

size_t fv__json_size(fv__jval v) { return skip_value(v.j, v.at) - v.at; }

fv__str fv__json_raw(fv__jval v)
{
    size_t end = skip_string(v.j, v.at) - 1;
    return (fv__str){v.j->s + v.at + 1, end - v.at - 1};
}

size_t fv__json_unescape(char *dst, const char *raw, size_t n)
{
    char *out = dst;
    for (size_t i = 0; i < n;) {
        if (raw[i] != '\\') {
            *out++ = raw[i++];
            continue;
        }
        char k = raw[i + 1];
        i += 2;
        if (k != 'u') {
            *out++ = k == 'b'   ? '\b'
                     : k == 'f' ? '\f'
                     : k == 'n' ? '\n'
                     : k == 'r' ? '\r'
                     : k == 't' ? '\t'
                                : k;
            continue;
        }
        uint32_t cp = (uint32_t)hex4(raw + i);
        i += 4;
        if (cp >= 0xD800 && cp <= 0xDBFF) {
            cp = 0x10000 + ((cp - 0xD800) << 10) + ((uint32_t)hex4(raw + i + 2) - 0xDC00);
            i += 6;
        }
        out += fv__utf8_put(out, cp);
    }
    return (size_t)(out - dst);
}

/* ---- objects ---- */

fv_status fv__json_bad(fv__jval v, fv_err *e, const char *fmt, ...)
{
    char text[300];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return fv_fail(e, FV_EFORMAT, "%s: %s%s%s", v.j->file, v.path, *v.path ? ": " : "", text);
}

fv_status fv__json_object(fv__jobj *o, fv__jval v, fv_err *e)
{
    o->self = v;
    o->n = 0;
    if (fv__json_kind(v) != '{') return fv__json_bad(v, e, "an object was expected");
    for (fv__jiter it = fv__json_iter(v); fv__json_next(&it);) {
        size_t n = it.key_end - it.key;
        if (o->n == FV__JSON_MEMBERS)
            return fv__json_bad(v, e, "more than %d members", FV__JSON_MEMBERS);
        for (int i = 0; i < o->n; i++)
            if (o->m[i].key_end - o->m[i].key == n &&
                !memcmp(v.j->s + o->m[i].key, v.j->s + it.key, n))
                return fv__json_bad(v, e, "\"%.*s\" is there twice", (int)(n < 80 ? n : 80),
                                    v.j->s + it.key);
        o->m[o->n].key = it.key;
        o->m[o->n].key_end = it.key_end;
        o->m[o->n].value = it.value;
        o->m[o->n++].used = false;
    }
    return FV_OK;
}

bool fv__json_get(fv__jval *v, fv__jobj *o, const char *key)
{
    const fv__json *j = o->self.j;
    size_t n = strlen(key);
    for (int i = 0; i < o->n; i++) {
        if (o->m[i].key_end - o->m[i].key != n || memcmp(j->s + o->m[i].key, key, n)) continue;
        o->m[i].used = true;
        *v = (fv__jval){.j = j, .at = o->m[i].value};
        snprintf(v->path, sizeof v->path, "%.60s%s%.32s", o->self.path, *o->self.path ? "." : "",
                 key);
        return true;
    }
    return false;
}

fv_status fv__json_done(const fv__jobj *o, fv_err *e)
{
    for (int i = 0; i < o->n; i++) {
        if (o->m[i].used) continue;
        size_t n = o->m[i].key_end - o->m[i].key;
        return fv__json_bad(o->self, e, "\"%.*s\" is not known here", (int)(n < 80 ? n : 80),
                            o->self.j->s + o->m[i].key);
    }
    return FV_OK;
}

static fv_status missing(fv__jobj *o, const char *key, bool must, fv_err *e)
{
    return must ? fv__json_bad(o->self, e, "\"%s\" is missing", key) : FV_OK;
}

fv_status fv__json_bool(bool *out, fv__jobj *o, const char *key, bool must, fv_err *e)
{
    fv__jval v;
    if (!fv__json_get(&v, o, key) || fv__json_null(v)) return missing(o, key, must, e);
    char k = fv__json_kind(v);
    if (k != 't' && k != 'f') return fv__json_bad(v, e, "true or false was expected");
    *out = k == 't';
    return FV_OK;
}

fv_status fv__json_int(int64_t *out, fv__jobj *o, const char *key, int64_t least, int64_t most,
                       bool must, fv_err *e)
{
    fv__jval v;
    if (!fv__json_get(&v, o, key) || fv__json_null(v)) return missing(o, key, must, e);
    return fv__json_to_int(out, v, least, most, e);
}

fv_status fv__json_str(fv__str *out, fv__pool *p, fv__jobj *o, const char *key, bool must,
                       fv_err *e)
{
    fv__jval v;
    if (!fv__json_get(&v, o, key) || fv__json_null(v)) return missing(o, key, must, e);
    return fv__json_to_str(out, p, v, e);
}

/* ---- values ---- */

/* The number at a place, if it is a whole one. */
static bool whole(int64_t *out, const fv__json *j, size_t at)
{
    const char *s = j->s + at, *end = j->s + j->n;
    bool minus = *s == '-', ok = true;
    int64_t x = 0;
    for (s += minus; s < end && in_word(*s) && ok; s++) {
        bool digit = *s >= '0' && *s <= '9';
        ok = digit && !__builtin_mul_overflow(x, 10, &x) &&
             !__builtin_add_overflow(x, *s - '0', &x);
    }
    *out = minus ? -x : x;
    return ok;
}

int64_t fv__json_id(const fv__jiter *it)
{
    int64_t x;
    return whole(&x, it->j, it->value) && x >= 0 && x <= INT32_MAX / 4 ? x : -1;
}

fv_status fv__json_to_int(int64_t *out, fv__jval v, int64_t least, int64_t most, fv_err *e)
{
    int64_t x;
    if (fv__json_kind(v) != '0') return fv__json_bad(v, e, "a number was expected");
    if (!whole(&x, v.j, v.at))
        return fv__json_bad(v, e, "a whole number from %lld to %lld was expected", (long long)least,
                            (long long)most);
    if (x < least || x > most)
        return fv__json_bad(v, e, "%lld is not in %lld to %lld", (long long)x, (long long)least,
                            (long long)most);
    *out = x;
    return FV_OK;
}

/* Scores have up to 17 digits, and strtod alone rounds those right; but it obeys the locale, JSON
 * does not. */
fv_status fv__json_to_double(double *out, fv__jval v, fv_err *e)
{
    char buf[64];
    if (fv__json_kind(v) != '0') return fv__json_bad(v, e, "a number was expected");
    size_t n = fv__json_size(v);
    if (n >= sizeof buf) return fv__json_bad(v, e, "a number of %zu digits is too long", n);
    memcpy(buf, v.j->s + v.at, n);
    buf[n] = 0;
    char *dot = strchr(buf, '.');
    const char *point = localeconv()->decimal_point;
    if (dot && point[0] && !point[1]) *dot = point[0];
    *out = strtod(buf, NULL);
    return isfinite(*out) ? FV_OK : fv__json_bad(v, e, "the number is too large");
}

fv_status fv__json_to_str(fv__str *out, fv__pool *p, fv__jval v, fv_err *e)
{
    if (fv__json_kind(v) != '"') return fv__json_bad(v, e, "a string was expected");
    fv__str raw = fv__json_raw(v);
    char *s = fv__pool_alloc(p, raw.n + 1);
    if (!s) return fv_fail(e, FV_ENOMEM, "%s: out of memory", v.j->file);
    *out = (fv__str){s, fv__json_unescape(s, raw.s, raw.n)};
    return FV_OK;
}
