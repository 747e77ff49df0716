/* filters.c - filters on texts, numbers and single values; lists are in filters_list.c.
 *
 * A filter is refused by name when the template is read (fv__jinja_has_filter), so that nothing is
 * found missing in the middle of a conversation.  Changing the case of letters beyond ASCII is
 * refused when it happens: it would need Python's Unicode tables.
 *
 * Arguments come by position or by name (fv__jinja_arg); names are those of Jinja's
 * documentation. A filter either returns a new value or a view of the old text: texts never
 * change in place. */
#include <ctype.h>
#include <math.h>
#include <stdlib.h>

#include "gen/template/jinja.h"

static const char *const names[] = {"trim",   "tojson", "length", "count",      "default",
                                    "d",      "upper",  "lower",  "capitalize", "title",
                                    "string", "int",    "float",  "replace",    "abs",
                                    "round",  "safe",   "indent", "items",      NULL};

static bool listed(const char *const *list, jinja_text name)
{
    for (; *list; list++)
        if (fv__text_is(name, *list)) return true;
    return false;
}

bool fv__jinja_has_filter(jinja_text name)
{
    return listed(names, name) || listed(fv__jinja_list_filters, name);
}

/* ---- texts ---- */

/* Python's str.isspace for one character. */
static bool is_blank(const char *s, size_t n, size_t *len)
{
    uint32_t cp = 0;
    int got = fv__utf8_get(&cp, s, n);
    *len = got > 0 ? (size_t)got : 1;
    return (cp >= 9 && cp <= 13) || (cp >= 0x1c && cp <= 0x20) || cp == 0x85 || cp == 0xA0 ||
           cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200A) || cp == 0x2028 || cp == 0x2029 ||
           cp == 0x202F || cp == 0x205F || cp == 0x3000;
}

/* Characters to strip are a set, as in Python's strip(chars). */
static bool strips(const char *s, size_t n, const jinja_text *chars, size_t *len)
{
    bool blank = is_blank(s, n, len);
    return chars ? memmem(chars->s, chars->n, s, *len) != NULL : blank;
}

/* From the right by whole characters: continuation bytes of UTF-8 are skipped backwards. */
jinja_text fv__text_strip(jinja_text t, const jinja_text *chars, bool left, bool right)
{
    size_t len;
    while (left && t.n && strips(t.s, t.n, chars, &len)) t.s += len, t.n -= len;
    while (right && t.n) {
        size_t last = t.n - 1;
        while (last && ((unsigned char)t.s[last] & 0xC0) == 0x80) last--;
        if (!strips(t.s + last, t.n - last, chars, &len)) break;
        t.n = last;
    }
    return t;
}

jinja_value fv__jinja_replace(jinja_pool *p, jinja_text t, jinja_text from, jinja_text to,
                              int64_t most)
{
    fv_buf b = {.env = &p->env};
    /* Python puts the replacement between all characters then, which no template needs. */
    if (!from.n) fv__jinja_fail(p, FV_EMISSING, "replacing an empty text");
    for (const char *at; from.n && most && (at = memmem(t.s, t.n, from.s, from.n)); most--) {
        size_t n = (size_t)(at - t.s);
        fv__buf_add(&b, t.s, n);
        fv__buf_add(&b, to.s, to.n);
        t.s += n + from.n;
        t.n -= n + from.n;
        if (b.len > FV_JINJA_MAX_OUTPUT) fv__jinja_fail(p, FV_EARG, "a replacement too long");
        if (p->st) break;
    }
    fv__buf_add(&b, t.s, t.n);
    return fv__jinja_take(p, &b);
}

/* ASCII letters change; others would need Python's tables, and are refused where they have cases.
 */
static jinja_value change_case(jinja_run *r, jinja_text t, jinja_text how)
{
    char *out = fv__jinja_alloc(r->pool, t.n + 1);
    bool inside = false;
    for (size_t i = 0; out && i < t.n; i++) {
        unsigned char ch = (unsigned char)t.s[i];
        bool up = fv__text_is(how, "upper") || (!inside && !fv__text_is(how, "lower"));
        /* Lead bytes 0xC3 to 0xD6 are those of Latin, Greek, Cyrillic, Armenian and their
         * neighbours; scripts without cases pass. */
        if (ch >= 0xC3 && ch <= 0xD6)
            fv__jinja_fail(r->pool, FV_EMISSING, "the case of letters beyond ASCII");
        out[i] = (char)(up ? toupper(ch) : tolower(ch));
        /* capitalize raises the first character of the text only, title the first of every word;
         * an apostrophe does not end one. */
        inside = fv__text_is(how, "capitalize") || isalnum(ch) || ch >= 0x80 || ch == '\'';
    }
    return fv__jinja_string((jinja_text){out ? out : "", out ? t.n : 0});
}

/* Every line but the first (and, unless asked for, empty ones) begins with blanks. */
static jinja_value indent(jinja_run *r, jinja_text t, const jinja_args *a)
{
    jinja_value width = fv__jinja_arg(a, 0, "width"), first = fv__jinja_arg(a, 1, "first"),
                blank = fv__jinja_arg(a, 2, "blank");
    fv_buf b = {.env = &r->pool->env};
    int64_t n = width.kind == JINJA_INT ? width.i : 4;
    jinja_text by = width.kind == JINJA_STRING ? width.text : (jinja_text){" ", 1};
    if (width.kind == JINJA_STRING) n = 1;
    for (size_t i = 0; i < t.n; i++) {
        bool start = i ? t.s[i - 1] == '\n' : fv__jinja_truth(first);
        if (start && (t.s[i] != '\n' || fv__jinja_truth(blank)))
            /* 256 blanks at most for each line. */
            for (int64_t k = 0; k < n && k < 256; k++) fv__buf_add(&b, by.s, by.n);
        fv__buf_add(&b, &t.s[i], 1);
    }
    return fv__jinja_take(r->pool, &b);
}

/* ---- numbers ---- */

/* int and float: what cannot be read is the default, or 0. */
static jinja_value to_number(jinja_run *r, jinja_value v, const jinja_args *a, bool whole)
{
    double f = 0;
    jinja_value otherwise = fv__jinja_arg(a, 0, "default");
    bool ok = fv__jinja_number(v, &f);
    if (v.kind == JINJA_STRING) {
        char text[64], *end = text;
        jinja_text t = fv__text_strip(v.text, NULL, true, true);
        if (t.n && t.n < sizeof text && strspn(t.s, "+-0123456789.eE") >= t.n) {
            memcpy(text, t.s, t.n);
            text[t.n] = 0;
            f = strtod(text, &end);
        }
        ok = end > text && !*end;
    }
    (void)r;
    if (!ok && otherwise.kind != JINJA_UNDEFINED) return otherwise;
    /* Infinity and what exceeds 2^53 is no integer here: 0, as for text that is no number. */
    if (!ok || !isfinite(f) || fabs(f) > 9e15) f = ok && !whole ? f : 0;
    if (whole) return fv__jinja_int((int64_t)f);
    return (jinja_value){.kind = JINJA_FLOAT, .f = f};
}

/* To the nearest even digit, as Python rounds; the result is a float. */
static jinja_value rounded(jinja_run *r, jinja_value v, const jinja_args *a)
{
    jinja_value digits = fv__jinja_arg(a, 0, "precision");
    double f, scale;
    if (!fv__jinja_number(v, &f)) {
        fv__jinja_fail(r->pool, FV_EARG, "round of a %s", fv__jinja_kind_name(v));
        return v;
    }
    scale = pow(10, digits.kind == JINJA_INT ? (double)digits.i : 0);
    /* nearbyint rounds half to even in the default rounding mode. */
    return (jinja_value){.kind = JINJA_FLOAT, .f = nearbyint(f * scale) / scale};
}

/* ---- any value ---- */

/* transformers' tojson: json.dumps with its arguments, without HTML escapes. */
static jinja_value to_json(jinja_run *r, jinja_value v, const jinja_args *a)
{
    jinja_value ascii = fv__jinja_arg(a, 0, "ensure_ascii"),
                indent_by = fv__jinja_arg(a, 1, "indent"),
                separators = fv__jinja_arg(a, 2, "separators"),
                sort = fv__jinja_arg(a, 3, "sort_keys");
    fv_buf b = {.env = &r->pool->env};
    jinja_json_style style = {.indent = indent_by.kind == JINJA_INT ? indent_by.i : -1,
                              .ascii = fv__jinja_truth(ascii),
                              .sort = fv__jinja_truth(sort),
                              .item = indent_by.kind == JINJA_INT ? "," : ", ",
                              .key = ": "};
    char given[2][16];
    /* Separators of 15 bytes or more, or that are no texts, count as empty. */
    if (fv__jinja_is_list(separators) && separators.list->n == 2) {
        for (int i = 0; i < 2; i++) {
            jinja_value s = separators.list->at[i];
            size_t n = s.kind == JINJA_STRING && s.text.n < 15 ? s.text.n : 0;
            if (n) memcpy(given[i], s.text.s, n);
            given[i][n] = 0;
        }
        style.item = given[0];
        style.key = given[1];
    }
    fv__jinja_dump(r->pool, &b, v, &style, 0);
    return fv__jinja_take(r->pool, &b);
}

/* (key, value) tuples of a dict. */
static jinja_value pairs(jinja_run *r, jinja_value v)
{
    /* A generator in Jinja: it can be looped over, but has no length and is not printed. */
    jinja_value out = fv__jinja_new_list(r->pool, JINJA_GENERATOR);
    if (v.kind != JINJA_DICT) {
        if (v.kind != JINJA_UNDEFINED)
            fv__jinja_fail(r->pool, FV_EARG, "items of a %s", fv__jinja_kind_name(v));
        return out;
    }
    for (int64_t i = 0; i < v.dict->n && !r->pool->st; i++) {
        jinja_value pair = fv__jinja_new_list(r->pool, JINJA_TUPLE);
        fv__jinja_append(r->pool, pair.list, v.dict->key[i]);
        fv__jinja_append(r->pool, pair.list, v.dict->value[i]);
        fv__jinja_append(r->pool, out.list, pair);
    }
    return out;
}

/* default(x) replaces undefined values; default(x, true) also false ones. */
static jinja_value or_default(jinja_value v, const jinja_args *a)
{
    bool also_false = fv__jinja_truth(fv__jinja_arg(a, 1, "boolean"));
    jinja_value otherwise = fv__jinja_arg(a, 0, "default_value");
    if (v.kind != JINJA_UNDEFINED && !(also_false && !fv__jinja_truth(v))) return v;
    return otherwise.kind == JINJA_UNDEFINED ? fv__jinja_chars("") : otherwise;
}

static jinja_value length(jinja_run *r, jinja_value v)
{
    int64_t n = fv__jinja_length(v);
    if (n < 0) fv__jinja_fail(r->pool, FV_EARG, "the length of a %s", fv__jinja_kind_name(v));
    return fv__jinja_int(n);
}

static jinja_value text_filter(jinja_run *r, jinja_text name, jinja_text t, const jinja_args *a)
{
    if (fv__text_is(name, "trim")) {
        jinja_value chars = fv__jinja_arg(a, 0, "chars");
        bool given = chars.kind == JINJA_STRING;
        return fv__jinja_string(fv__text_strip(t, given ? &chars.text : NULL, true, true));
    }
    if (fv__text_is(name, "replace")) {
        jinja_value from = fv__jinja_str(r->pool, fv__jinja_arg(a, 0, "old")),
                    to = fv__jinja_str(r->pool, fv__jinja_arg(a, 1, "new")),
                    most = fv__jinja_arg(a, 2, "count");
        return fv__jinja_replace(r->pool, t, from.text, to.text,
                                 most.kind == JINJA_INT ? most.i : -1);
    }
    if (fv__text_is(name, "indent")) return indent(r, t, a);
    return change_case(r, t, name);
}

jinja_value fv__jinja_filter(jinja_run *r, jinja_text name, jinja_value v, const jinja_args *a)
{
    jinja_value out;
    if (fv__jinja_list_filter(r, name, v, a, &out)) return out;
    if (fv__text_is(name, "tojson")) return to_json(r, v, a);
    if (fv__text_is(name, "length") || fv__text_is(name, "count")) return length(r, v);
    if (fv__text_is(name, "default") || fv__text_is(name, "d")) return or_default(v, a);
    if (fv__text_is(name, "items")) return pairs(r, v);
    if (fv__text_is(name, "int")) return to_number(r, v, a, true);
    if (fv__text_is(name, "float")) return to_number(r, v, a, false);
    if (fv__text_is(name, "round")) return rounded(r, v, a);
    if (fv__text_is(name, "abs")) {
        if (v.kind == JINJA_INT) return fv__jinja_int(v.i < 0 ? -v.i : v.i);
        if (v.kind == JINJA_FLOAT) return (jinja_value){.kind = JINJA_FLOAT, .f = fabs(v.f)};
        fv__jinja_fail(r->pool, FV_EARG, "abs of a %s", fv__jinja_kind_name(v));
        return v;
    }
    jinja_value text = fv__jinja_str(r->pool, v);
    if (r->pool->st || fv__text_is(name, "string")) return text;
    if (fv__text_is(name, "safe")) {
        text.safe = true;
        return text;
    }
    /* MarkupSafe's own methods escape their arguments: not imitated, so refused. */
    if (text.safe && !fv__text_is(name, "trim"))
        fv__jinja_fail(r->pool, FV_EMISSING, "the filter \"%.*s\" of a text marked safe",
                       (int)name.n, name.s);
    jinja_value out_text = text_filter(r, name, text.text, a);
    out_text.safe = text.safe;
    return out_text;
}
