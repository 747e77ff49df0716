/* json.c - values as JSON and back: tojson, and messages and tools on their way in.
 *
 * Writing follows Python's json.dumps character for character, since models were trained on its
 * output: separators, indentation, escapes and the digits of floats.
 *
 * Surprises that are kept: without indent the item separator is ", " and with it ",", floats
 * print by repr() (1e-05, 1.0), NaN and Infinity are written although JSON has neither, and
 * non-ASCII text stays as it is, since transformers overrides Jinja's tojson, which would
 * escape <, > and &. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "gen/template/jinja.h"

/* ---- writing, as json.dumps does ---- */

/* \uXXXX, as a surrogate pair beyond the basic plane. */
static void dump_escaped(fv_buf *out, uint32_t cp)
{
    if (cp >= 0x10000)
        fv__buf_fmt(out, "\\u%04x\\u%04x", 0xD800 + ((cp - 0x10000) >> 10),
                    0xDC00 + ((cp - 0x10000) & 0x3FF));
    else
        fv__buf_fmt(out, "\\u%04x", cp);
}

/* Without ensure_ascii, text beyond ASCII stays as it is: transformers' tojson.
 * The same letters on both sides of the tables: index k of `from` is written as \ and index k of
 * `to`. */
static void dump_string(fv_buf *out, jinja_text t, bool ascii)
{
    static const char from[] = "\"\\\n\r\t\b\f", to[] = "\"\\nrtbf";
    uint32_t cp = 0;
    fv__buf_str(out, "\"");
    for (size_t i = 0, n; i < t.n; i += n) {
        const char *known = t.s[i] ? strchr(from, t.s[i]) : NULL;
        int len = fv__utf8_get(&cp, t.s + i, t.n - i);
        n = len > 0 ? (size_t)len : 1;
        if (known)
            fv__buf_fmt(out, "\\%c", to[known - from]);
        else if ((unsigned char)t.s[i] < 0x20 || (ascii && len > 1))
            dump_escaped(out, cp);
        else
            fv__buf_add(out, t.s + i, n);
    }
    fv__buf_str(out, "\"");
}

/* With indentation each item has its own line; json.dumps leaves empty lists on one. */
static void new_line(fv_buf *out, const jinja_json_style *style, int depth)
{
    if (style->indent < 0) return;
    fv__buf_str(out, "\n");
    /* At most 1024: a template that asks for an indent of a million gets no more. */
    for (int64_t i = 0; i < style->indent * depth && i < 1024; i++) fv__buf_str(out, " ");
}

static void dump_list(jinja_pool *p, fv_buf *out, jinja_value v, const jinja_json_style *style,
                      int depth)
{
    fv__buf_str(out, "[");
    for (int64_t i = 0; i < v.list->n && !p->st; i++) {
        if (i) fv__buf_str(out, style->item);
        new_line(out, style, depth + 1);
        fv__jinja_dump(p, out, v.list->at[i], style, depth + 1);
    }
    if (v.list->n) new_line(out, style, depth);
    fv__buf_str(out, "]");
}

/* With sort_keys by selection: dicts are small. */
static void dump_dict(jinja_pool *p, fv_buf *out, jinja_value v, const jinja_json_style *style,
                      int depth)
{
    const jinja_dict *d = v.dict;
    /* Zeroed by the pool: no key is used yet. */
    uint8_t *used = fv__jinja_alloc(p, (size_t)d->n + 1);
    fv__buf_str(out, "{");
    for (int64_t k = 0; used && k < d->n && !p->st; k++) {
        int64_t i = k;
        for (int64_t j = 0, order; style->sort && j < d->n; j++) {
            int sign = 0;
            if (!j) i = -1;
            if (used[j]) continue;
            order = i < 0 || (fv__jinja_order(d->key[j], d->key[i], &sign) && sign < 0);
            if (order) i = j;
        }
        used[i] = 1;
        if (k) fv__buf_str(out, style->item);
        new_line(out, style, depth + 1);
        /* Keys that are no texts are printed by str(). */
        jinja_value key = fv__jinja_str(p, d->key[i]);
        dump_string(out, key.text, style->ascii);
        fv__buf_str(out, style->key);
        fv__jinja_dump(p, out, d->value[i], style, depth + 1);
    }
    if (d->n) new_line(out, style, depth);
    fv__buf_str(out, "}");
}

void fv__jinja_dump(jinja_pool *p, fv_buf *out, jinja_value v, const jinja_json_style *style,
                    int depth)
{
    /* Twice the depth of what can be read: + and literals nest further. */
    if (depth > 2 * FV_JINJA_MAX_DEPTH)
        fv__jinja_fail(p, FV_EARG, "a value nested deeper than %d", 2 * FV_JINJA_MAX_DEPTH);
    if (p->st) return;
    switch (v.kind) {
    case JINJA_NONE: fv__buf_str(out, "null"); break;
    case JINJA_BOOL: fv__buf_str(out, v.b ? "true" : "false"); break;
    case JINJA_STRING: dump_string(out, v.text, style->ascii); break;
    case JINJA_INT: fv__jinja_write(p, out, v); break;
    case JINJA_FLOAT:
        if (isfinite(v.f))
            fv__jinja_write(p, out, v);
        else
            fv__buf_str(out, isnan(v.f) ? "NaN" : v.f > 0 ? "Infinity" : "-Infinity");
        break;
    case JINJA_LIST:
    case JINJA_TUPLE: dump_list(p, out, v, style, depth); break;
    case JINJA_DICT: dump_dict(p, out, v, style, depth); break;
    default: fv__jinja_fail(p, FV_EARG, "a value of type %s as JSON", fv__jinja_kind_name(v));
    }
}

/* ---- reading ---- */

typedef struct reader {
    jinja_pool *pool;
    const char *s;
    const char *what; /* in messages */
} reader;

/* Strict JSON.  The text is NUL-terminated, which ends every loop here. */
static jinja_value read_value(reader *r, int depth);

static jinja_value bad(reader *r, const char *why)
{
    fv__jinja_fail(r->pool, FV_EFORMAT, "%s is not JSON: %s at \"%.20s\"", r->what, why, r->s);
    return (jinja_value){0};
}

static void blanks(reader *r)
{
    while (*r->s && strchr(" \t\r\n", *r->s)) r->s++;
}

/* Reads a word, blanks before it aside. */
static bool accept(reader *r, const char *word)
{
    size_t n = strlen(word);
    blanks(r);
    if (strncmp(r->s, word, n) != 0) return false;
    r->s += n;
    return true;
}

static int hex4(const char *s, uint32_t *out)
{
    *out = 0;
    for (int i = 0; i < 4; i++) {
        const char *digits = "0123456789abcdef", *at = NULL;
        char ch = s[i];
        if (ch >= 'A' && ch <= 'F') ch = (char)(ch - 'A' + 'a');
        if (!ch || !(at = strchr(digits, ch))) return 0;
        *out = *out * 16 + (uint32_t)(at - digits);
    }
    return 4;
}

/* Behind \u: one code point, of two escapes where they are surrogates. */
static uint32_t read_code_point(reader *r)
{
    uint32_t cp = 0, low = 0;
    if (!hex4(r->s, &cp)) {
        bad(r, "an escape");
        return 0;
    }
    r->s += 4;
    if (cp >= 0xD800 && cp < 0xDC00 && r->s[0] == '\\' && r->s[1] == 'u' && hex4(r->s + 2, &low) &&
        low >= 0xDC00 && low < 0xE000) {
        r->s += 6;
        return 0x10000 + ((cp - 0xD800) << 10) + (low - 0xDC00);
    }
    /* Half a pair is no character: U+FFFD, so that the text stays UTF-8. */
    return cp >= 0xD800 && cp < 0xE000 ? 0xFFFD : cp;
}

/* Behind the opening quote. */
static jinja_value read_string(reader *r)
{
    static const char from[] = "\"\\/nrtbf", to[] = "\"\\/\n\r\t\b\f";
    fv_buf b = {.env = &r->pool->env};
    while (*r->s && *r->s != '"' && !r->pool->st) {
        const char *known;
        char utf8[4];
        if ((unsigned char)*r->s < 0x20) {
            bad(r, "a control character");
        } else if (*r->s != '\\') {
            fv__buf_add(&b, r->s++, 1);
        } else if (r->s[1] == 'u') {
            r->s += 2;
            int n = fv__utf8_put(utf8, read_code_point(r));
            fv__buf_add(&b, utf8, (size_t)n);
        } else if (r->s[1] && (known = strchr(from, r->s[1]))) {
            fv__buf_add(&b, &to[known - from], 1);
            r->s += 2;
        } else {
            bad(r, "an escape");
        }
    }
    if (*r->s == '"')
        r->s++;
    else
        bad(r, "a string that does not end");
    return fv__jinja_take(r->pool, &b);
}

/* Integers that a double cannot hold exactly become floats. */
static jinja_value read_number(reader *r)
{
    size_t n = strspn(r->s, "+-0123456789.eE");
    char text[64], *end;
    if (!n || n >= sizeof text) return bad(r, "a value");
    memcpy(text, r->s, n);
    text[n] = 0;
    bool real = strpbrk(text, ".eE");
    double f = strtod(text, &end);
    if (*end) return bad(r, "a number");
    r->s += n;
    /* 9e15 is below 2^53: every integer up to there is exact. */
    if (real || fabs(f) > 9e15) return (jinja_value){.kind = JINJA_FLOAT, .f = f};
    return fv__jinja_int((int64_t)f);
}

static jinja_value read_list(reader *r, int depth)
{
    jinja_value v = fv__jinja_new_list(r->pool, JINJA_LIST);
    if (accept(r, "]")) return v;
    while (!r->pool->st) {
        fv__jinja_append(r->pool, v.list, read_value(r, depth));
        if (accept(r, "]")) return v;
        if (!accept(r, ",")) return bad(r, "no comma");
    }
    return v;
}

static jinja_value read_dict(reader *r, int depth)
{
    jinja_value v = fv__jinja_new_dict(r->pool, JINJA_DICT);
    if (accept(r, "}")) return v;
    while (!r->pool->st) {
        if (!accept(r, "\"")) return bad(r, "no key");
        jinja_value key = read_string(r);
        if (!accept(r, ":")) return bad(r, "no colon");
        fv__jinja_put(r->pool, v.dict, key, read_value(r, depth));
        if (accept(r, "}")) return v;
        if (!accept(r, ",")) return bad(r, "no comma");
    }
    return v;
}

/* Strict JSON.  The text is NUL-terminated, which ends every loop here. */
static jinja_value read_value(reader *r, int depth)
{
    if (depth > FV_JINJA_MAX_DEPTH) return bad(r, "nested too deep");
    if (r->pool->st) return (jinja_value){0};
    if (accept(r, "[")) return read_list(r, depth + 1);
    if (accept(r, "{")) return read_dict(r, depth + 1);
    if (accept(r, "\"")) return read_string(r);
    if (accept(r, "true")) return fv__jinja_bool(true);
    if (accept(r, "false")) return fv__jinja_bool(false);
    if (accept(r, "null")) return (jinja_value){.kind = JINJA_NONE};
    return read_number(r);
}

jinja_value fv__jinja_load(jinja_pool *p, const char *text, const char *what)
{
    reader r = {.pool = p, .s = text, .what = what};
    jinja_value v = read_value(&r, 0);
    blanks(&r);
    if (*r.s) return bad(&r, "more behind it");
    return v;
}
