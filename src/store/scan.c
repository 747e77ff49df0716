/* scan.c - the pull scanner. */
#include "scan.h"

bool fv__scan_fail(fv_scan *s, const char *what)
{
    if (!s->st)
        s->st = fv_fail(s->e, FV_EFORMAT, "%s: byte %zu: %s", s->path, (size_t)(s->at - s->start),
                        what);
    return false;
}

static void skip_space(fv_scan *s)
{
    while (s->at < s->end && (*s->at == ' ' || *s->at == '\n' || *s->at == '\t' || *s->at == '\r'))
        s->at++;
}

bool fv__scan_accept(fv_scan *s, char c)
{
    if (s->st) return false;
    skip_space(s);
    if (s->at < s->end && *s->at == c) {
        s->at++;
        return true;
    }
    char what[] = "expected ' '";
    what[sizeof what - 3] = c;
    return fv__scan_fail(s, what);
}

bool fv__scan_more(fv_scan *s, char close, bool first)
{
    if (s->st) return false;
    skip_space(s);
    if (s->at < s->end && *s->at == close) {
        s->at++;
        return false;
    }
    return first || fv__scan_accept(s, ',');
}

/* ---- strings ---- */

static int hex4(const char *s, const char *end)
{
    int v = 0;
    if (end - s < 4) return -1;
    for (int i = 0; i < 4; i++) {
        int c = s[i];
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0) return -1;
        v = v * 16 + digit;
    }
    return v;
}

static bool high(int u) { return u >= 0xD800 && u < 0xDC00; }
static bool low(int u) { return u >= 0xDC00 && u < 0xE000; }

/* Bytes of the escape at s (which is at its backslash), or 0 if it is none; *cp gets what it stands
 * for. */
static int escape(uint32_t *cp, const char *s, const char *end)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    if (end - s < 2) return 0;
    const char *plain = s[1] ? strchr(from, s[1]) : NULL;
    if (plain) {
        *cp = (unsigned char)to[plain - from];
        return 2;
    }
    int u = s[1] == 'u' ? hex4(s + 2, end) : -1;
    if (u <= 0 || low(u)) return 0;
    *cp = (uint32_t)u;
    if (!high(u)) return 6;
    int second = end - s >= 12 && s[6] == '\\' && s[7] == 'u' ? hex4(s + 8, end) : -1;
    if (!low(second)) return 0;
    *cp = 0x10000 + ((uint32_t)(u - 0xD800) << 10) + (uint32_t)(second - 0xDC00);
    return 12;
}

bool fv__scan_string(fv_scan *s, fv_raw *out)
{
    uint32_t cp;
    if (!fv__scan_accept(s, '"')) return false;
    *out = (fv_raw){.s = s->at};
    while (s->at < s->end && *s->at != '"') {
        bool escaped = *s->at == '\\';
        int n = escaped ? escape(&cp, s->at, s->end)
                        : fv__utf8_get(&cp, s->at, (size_t)(s->end - s->at));
        if (!n) return fv__scan_fail(s, escaped ? "a broken escape" : "not UTF-8");
        if (!escaped && cp < 0x20) return fv__scan_fail(s, "a control character inside a string");
        out->escaped |= escaped;
        s->at += n;
    }
    out->n = (size_t)(s->at - out->s);
    return fv__scan_accept(s, '"');
}

size_t fv__raw_decode(char *out, fv_raw r)
{
    size_t len = 0;
    uint32_t cp = 0;
    for (const char *p = r.s, *end = r.s + r.n; p < end;) {
        if (*p != '\\') {
            out[len++] = *p++;
            continue;
        }
        p += escape(&cp, p, end);
        len += (size_t)fv__utf8_put(out + len, cp);
    }
    out[len] = 0;
    return len;
}

bool fv__raw_is(fv_raw r, const char *word)
{
    char text[128];
    if (!r.escaped) return r.n == strlen(word) && !memcmp(r.s, word, r.n);
    if (r.n >= sizeof text) return false;
    fv__raw_decode(text, r);
    return !strcmp(text, word);
}

int fv__raw_cut(fv_raw r)
{
    size_t n = r.n < 120 ? r.n : 120;
    while (n && n < r.n && ((unsigned char)r.s[n] & 0xC0) == 0x80) n--;
    return (int)n;
}

/* ---- numbers ---- */

static bool is_digit(const fv_scan *s) { return s->at < s->end && *s->at >= '0' && *s->at <= '9'; }

bool fv__scan_u64(fv_scan *s, uint64_t *out)
{
    uint64_t v = 0;
    if (s->st) return false;
    skip_space(s);
    if (!is_digit(s)) return fv__scan_fail(s, "expected an integer that is not negative");
    bool zero = *s->at == '0';
    const char *from = s->at;
    for (; is_digit(s); s->at++)
        if (__builtin_mul_overflow(v, 10, &v) ||
            __builtin_add_overflow(v, (uint64_t)(*s->at - '0'), &v))
            return fv__scan_fail(s, "an integer beyond 64 bits");
    if (zero && s->at - from > 1) return fv__scan_fail(s, "an integer with a leading zero");
    if (s->at < s->end && (*s->at == '.' || *s->at == 'e' || *s->at == 'E'))
        return fv__scan_fail(s, "a fraction where an integer must stand");
    *out = v;
    return true;
}

static bool digits(fv_scan *s)
{
    if (!is_digit(s)) return fv__scan_fail(s, "a malformed number");
    while (is_digit(s)) s->at++;
    return true;
}

static bool number(fv_scan *s)
{
    if (*s->at == '-') s->at++;
    bool zero = s->at < s->end && *s->at == '0';
    const char *from = s->at;
    if (!digits(s)) return false;
    if (zero && s->at - from > 1) return fv__scan_fail(s, "a number with a leading zero");
    if (s->at < s->end && *s->at == '.') {
        s->at++;
        if (!digits(s)) return false;
    }
    if (s->at < s->end && (*s->at == 'e' || *s->at == 'E')) {
        s->at++;
        if (s->at < s->end && (*s->at == '+' || *s->at == '-')) s->at++;
        return digits(s);
    }
    return true;
}

/* ---- anything ---- */

static bool word(fv_scan *s, const char *w)
{
    size_t n = strlen(w);
    if ((size_t)(s->end - s->at) < n || memcmp(s->at, w, n))
        return fv__scan_fail(s, "expected a value");
    s->at += n;
    return true;
}

static bool members(fv_scan *s, char close, int depth)
{
    fv_raw key;
    s->at++;
    for (bool first = true; fv__scan_more(s, close, first); first = false) {
        if (close == '}' && !(fv__scan_string(s, &key) && fv__scan_accept(s, ':'))) return false;
        if (!fv__scan_skip(s, depth)) return false;
    }
    return !s->st;
}

bool fv__scan_skip(fv_scan *s, int depth)
{
    fv_raw text;
    if (s->st) return false;
    skip_space(s);
    if (s->at == s->end) return fv__scan_fail(s, "the text ends where a value must stand");
    switch (*s->at) {
    case '{':
    case '[':
        if (!depth) return fv__scan_fail(s, "nested too deep");
        return members(s, *s->at == '{' ? '}' : ']', depth - 1);
    case '"': return fv__scan_string(s, &text);
    case 't': return word(s, "true");
    case 'f': return word(s, "false");
    case 'n': return word(s, "null");
    default: return number(s);
    }
}

bool fv__scan_end(fv_scan *s)
{
    if (s->st) return false;
    skip_space(s);
    return s->at == s->end || fv__scan_fail(s, "text after the end");
}
