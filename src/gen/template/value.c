/* value.c - memory of templates, and values: how they compare, print and iterate.
 *
 * Values are small structs passed by value; what they point to lives in the pool until the
 * rendering ends, so nothing is counted or freed on the way.  Lists and dicts do not change once
 * they are made (the sandbox of transformers forbids it), except namespaces.  Dicts search
 * linearly: those of messages and tools have a handful of keys.
 *
 * Comparison, truth and printing are Python's, str() and repr() included, since templates print
 * lists and dicts.
 *
 * Threads: a pool belongs to one rendering (or, for the parsed template, to the template, which
 * is only read afterwards), so values never cross threads while they are written.
 *
 * Limits are in jinja.h: a template comes from a model's files and must not be able to hang or
 * exhaust the program. p->limit bounds the memory, FV_JINJA_MAX_OUTPUT the text; the first
 * failure is sticky, and everything returns early from then on. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "gen/template/jinja.h"

/* ---- memory ---- */

#define CHUNK 16384

/* Stands at the start of its own memory; `used` counts from there, the head included. */
typedef struct jinja_chunk {
    struct jinja_chunk *next;
    size_t bytes, used;
} jinja_chunk;

/* Of a chunk's bytes those before its contents, so that these stay aligned. */
#define CHUNK_HEAD 64

/* Bump allocation from chunks; a large request gets a chunk of its own. */
void *fv__jinja_alloc(jinja_pool *p, size_t n)
{
    jinja_chunk *c = p->chunks;
    /* 16 bytes: what any value, double or pointer in the pool needs. */
    size_t want = (n + 15) / 16 * 16;
    if (p->st) return NULL;
    if (want > p->limit - p->used) {
        fv__jinja_fail(p, FV_EARG, "more than %zu bytes of memory", p->limit);
        return NULL;
    }
    if (!c || want > c->bytes - c->used) {
        size_t bytes = CHUNK_HEAD + (want > CHUNK ? want : CHUNK);
        c = fv__alloc(&p->env, bytes);
        if (!c) {
            fv__jinja_fail(p, FV_ENOMEM, "out of memory");
            return NULL;
        }
        *c = (jinja_chunk){.next = p->chunks, .bytes = bytes, .used = CHUNK_HEAD};
        p->chunks = c;
    }
    void *at = (char *)c + c->used;
    c->used += want;
    p->used += want;
    return at;
}

void fv__jinja_pool_free(jinja_pool *p)
{
    for (jinja_chunk *c = p->chunks, *next; c; c = next) {
        next = c->next;
        fv__free(&p->env, c, c->bytes);
    }
    p->chunks = NULL;
    p->used = 0;
}

/* Only the first failure is reported: those behind it are its consequences. */
void fv__jinja_fail(jinja_pool *p, fv_status st, const char *fmt, ...)
{
    char text[384];
    va_list args;
    if (p->st) return;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    p->st = fv_fail(p->e, st, "chat template, line %d: %s", p->line, text);
}

/* ---- making values ---- */

/* Of an empty text s may be NULL, which memcmp must not get. */
bool fv__text_same(jinja_text a, jinja_text b)
{
    return a.n == b.n && (!a.n || !memcmp(a.s, b.s, a.n));
}
bool fv__text_is(jinja_text t, const char *word)
{
    return t.n == strlen(word) && !memcmp(t.s, word, t.n);
}

jinja_value fv__jinja_string(jinja_text t)
{
    return (jinja_value){.kind = JINJA_STRING, .text = t};
}
jinja_value fv__jinja_chars(const char *s) { return fv__jinja_string((jinja_text){s, strlen(s)}); }
jinja_value fv__jinja_bool(bool b) { return (jinja_value){.kind = JINJA_BOOL, .b = b}; }
jinja_value fv__jinja_int(int64_t i) { return (jinja_value){.kind = JINJA_INT, .i = i}; }

/* Empties the buffer in every case: callers hand it over and never free it themselves. */
jinja_value fv__jinja_take(jinja_pool *p, fv_buf *b)
{
    char *copy = b->failed ? NULL : fv__jinja_alloc(p, b->len + 1);
    jinja_text t = {"", 0};
    if (b->failed) fv__jinja_fail(p, FV_ENOMEM, "out of memory");
    if (copy && b->len) t = (jinja_text){memcpy(copy, b->data, b->len), b->len};
    fv__buf_free(b);
    return fv__jinja_string(t);
}

/* Memory of the pool is zeroed, so a new list is an empty one. */
jinja_value fv__jinja_new_list(jinja_pool *p, jinja_kind kind)
{
    jinja_value v = {.kind = kind, .list = fv__jinja_alloc(p, sizeof(jinja_list))};
    return v.list ? v : (jinja_value){0};
}

jinja_value fv__jinja_new_dict(jinja_pool *p, jinja_kind kind)
{
    jinja_value v = {.kind = kind, .dict = fv__jinja_alloc(p, sizeof(jinja_dict))};
    return v.dict ? v : (jinja_value){0};
}

/* A list or half a dict with the capacity for one more.
 * The old array stays in the pool until the end: growing by doubling wastes at most as much
 * again. */
static jinja_value *grown(jinja_pool *p, jinja_value *at, int64_t n, int64_t cap)
{
    jinja_value *bigger = fv__jinja_alloc(p, (size_t)cap * sizeof *bigger);
    if (bigger && n) memcpy(bigger, at, (size_t)n * sizeof *bigger);
    return bigger;
}

void fv__jinja_append(jinja_pool *p, jinja_list *l, jinja_value v)
{
    if (p->st || !l) return;
    if (l->n == l->cap) {
        jinja_value *at = grown(p, l->at, l->n, 2 * l->cap + 4);
        if (!at) return;
        l->at = at;
        l->cap = 2 * l->cap + 4;
    }
    l->at[l->n++] = v;
}

/* Keys compare as values, not as texts: 1 and true are one key, as in Python. */
jinja_value *fv__jinja_get(const jinja_dict *d, jinja_value key)
{
    for (int64_t i = 0; i < d->n; i++)
        if (fv__jinja_equal(d->key[i], key)) return &d->value[i];
    return NULL;
}

/* Replaces the value of a key that is there, as Python does: its position stays. */
void fv__jinja_put(jinja_pool *p, jinja_dict *d, jinja_value key, jinja_value v)
{
    if (p->st || !d) return;
    jinja_value *there = fv__jinja_get(d, key);
    if (there) {
        *there = v;
        return;
    }
    if (d->n == d->cap) {
        jinja_value *keys = grown(p, d->key, d->n, 2 * d->cap + 4);
        jinja_value *values = grown(p, d->value, d->n, 2 * d->cap + 4);
        if (!keys || !values) return;
        d->key = keys;
        d->value = values;
        d->cap = 2 * d->cap + 4;
    }
    d->key[d->n] = key;
    d->value[d->n++] = v;
}

/* ---- asking them ---- */

bool fv__jinja_is_list(jinja_value v) { return v.kind == JINJA_LIST || v.kind == JINJA_TUPLE; }
bool fv__jinja_has_list(jinja_value v) { return v.kind >= JINJA_LIST && v.kind <= JINJA_GENERATOR; }

const char *fv__jinja_kind_name(jinja_value v)
{
    static const char *const names[] = {"undefined", "none",      "bool",     "int",
                                        "float",     "string",    "list",     "tuple",
                                        "view",      "generator", "dict",     "namespace",
                                        "loop",      "macro",     "function", "method"};
    return names[v.kind];
}

/* -1: this kind has no len(), generators included. */
int64_t fv__jinja_length(jinja_value v)
{
    switch (v.kind) {
    case JINJA_UNDEFINED: return 0;
    case JINJA_STRING: return fv__text_length(v.text);
    case JINJA_VIEW:
    case JINJA_LIST:
    case JINJA_TUPLE: return v.list->n;
    case JINJA_DICT: return v.dict->n;
    case JINJA_LOOP: return v.loop->items->n;
    default: return -1;
    }
}

/* Python's bool(): empty and zero are false; an undefined value, too. */
bool fv__jinja_truth(jinja_value v)
{
    switch (v.kind) {
    case JINJA_UNDEFINED:
    case JINJA_NONE: return false;
    case JINJA_BOOL: return v.b;
    case JINJA_INT: return v.i != 0;
    case JINJA_FLOAT: return v.f != 0;
    case JINJA_STRING: return v.text.n != 0;
    case JINJA_VIEW:
    case JINJA_LIST:
    case JINJA_TUPLE: return v.list->n != 0;
    case JINJA_DICT: return v.dict->n != 0;
    default: return true;
    }
}

/* bool is a number in Python: true + true is 2. */
bool fv__jinja_number(jinja_value v, double *out)
{
    if (v.kind == JINJA_INT) *out = (double)v.i;
    if (v.kind == JINJA_FLOAT) *out = v.f;
    if (v.kind == JINJA_BOOL) *out = v.b;
    return v.kind == JINJA_INT || v.kind == JINJA_FLOAT || v.kind == JINJA_BOOL;
}

/* Values nest no deeper than FV_JINJA_MAX_DEPTH by JSON and by literals, and a little more by +. */
bool fv__jinja_equal(jinja_value a, jinja_value b)
{
    double x, y;
    if (fv__jinja_number(a, &x) && fv__jinja_number(b, &y)) return x == y;
    /* A list never equals a tuple, nor None an undefined value. */
    if (a.kind != b.kind) return false;
    switch (a.kind) {
    case JINJA_STRING: return fv__text_same(a.text, b.text);
    case JINJA_LIST:
    case JINJA_TUPLE:
        if (a.list->n != b.list->n) return false;
        for (int64_t i = 0; i < a.list->n; i++)
            if (!fv__jinja_equal(a.list->at[i], b.list->at[i])) return false;
        return true;
    case JINJA_DICT:
        if (a.dict->n != b.dict->n) return false;
        for (int64_t i = 0; i < a.dict->n; i++) {
            const jinja_value *other = fv__jinja_get(b.dict, a.dict->key[i]);
            if (!other || !fv__jinja_equal(a.dict->value[i], *other)) return false;
        }
        return true;
    case JINJA_UNDEFINED:
    case JINJA_NONE: return true;
    /* Everything else by identity: the same namespace, macro or loop. */
    default: return a.dict == b.dict;
    }
}

/* Numbers, texts by code points (which UTF-8 bytes sort alike), and lists item by item. */
bool fv__jinja_order(jinja_value a, jinja_value b, int *out)
{
    double x, y;
    if (fv__jinja_number(a, &x) && fv__jinja_number(b, &y)) {
        *out = (x > y) - (x < y);
        return true;
    }
    if (a.kind == JINJA_STRING && b.kind == JINJA_STRING) {
        size_t n = a.text.n < b.text.n ? a.text.n : b.text.n;
        *out = memcmp(a.text.s, b.text.s, n);
        if (!*out) *out = (a.text.n > b.text.n) - (a.text.n < b.text.n);
        return true;
    }
    /* Orders of different kinds are a TypeError in Python; the caller names both types. */
    if (!fv__jinja_is_list(a) || a.kind != b.kind) return false;
    for (int64_t i = 0; i < a.list->n && i < b.list->n; i++) {
        if (fv__jinja_equal(a.list->at[i], b.list->at[i])) continue;
        return fv__jinja_order(a.list->at[i], b.list->at[i], out);
    }
    *out = (a.list->n > b.list->n) - (a.list->n < b.list->n);
    return true;
}

/* A dict yields its keys, a text its characters, an undefined value nothing. */
jinja_list *fv__jinja_items(jinja_pool *p, jinja_value v)
{
    if (fv__jinja_has_list(v)) return v.list;
    jinja_list *l = fv__jinja_alloc(p, sizeof *l);
    if (!l) return NULL;
    if (v.kind == JINJA_DICT) {
        for (int64_t i = 0; i < v.dict->n; i++) fv__jinja_append(p, l, v.dict->key[i]);
    } else if (v.kind == JINJA_STRING) {
        uint32_t cp;
        for (size_t i = 0, n; i < v.text.n; i += n) {
            int len = fv__utf8_get(&cp, v.text.s + i, v.text.n - i);
            /* A byte that is not UTF-8 is a character of its own, so that the loop always
             * advances. */
            n = len > 0 ? (size_t)len : 1;
            fv__jinja_append(p, l, fv__jinja_string((jinja_text){v.text.s + i, n}));
        }
    } else if (v.kind != JINJA_UNDEFINED) {
        fv__jinja_fail(p, FV_EARG, "a loop over a value of type %s", fv__jinja_kind_name(v));
        return NULL;
    }
    return l;
}

/* ---- text ---- */

/* Bytes that do not continue a character of UTF-8. */
int64_t fv__text_length(jinja_text t)
{
    int64_t n = 0;
    for (size_t i = 0; i < t.n; i++) n += ((unsigned char)t.s[i] & 0xC0) != 0x80;
    return n;
}

/* The byte where character i begins; O(n), since texts of templates are short. */
size_t fv__text_offset(jinja_text t, int64_t i)
{
    size_t at = 0;
    for (; at < t.n; at++)
        if (((unsigned char)t.s[at] & 0xC0) != 0x80 && i-- == 0) return at;
    return t.n;
}

/* repr() of a float: the shortest digits that read back, with an exponent where Python has one. */
static void write_float(fv_buf *out, double f)
{
    char text[40];
    int digits = 1;
    if (!isfinite(f)) {
        fv__buf_str(out, isnan(f) ? "nan" : f > 0 ? "inf" : "-inf");
        return;
    }
    for (; digits < 17; digits++) {
        snprintf(text, sizeof text, "%.*e", digits - 1, f);
        if (strtod(text, NULL) == f) break;
    }
    snprintf(text, sizeof text, "%.*e", digits - 1, f);
    /* Python writes 1e+16 and 1e-05, and plain digits between. */
    int exponent = atoi(strchr(text, 'e') + 1);
    if (exponent >= 16 || exponent < -4) {
        snprintf(text, sizeof text, "%.*g", digits, f);
        fv__buf_str(out, text);
        return;
    }
    /* At least one digit behind the point: a float prints as 1.0. */
    int behind = digits - 1 - exponent;
    fv__buf_fmt(out, "%.*f", behind > 0 ? behind : 1, f);
}

/* repr() of a string: single quotes, unless it has some and no double ones. */
static void write_quoted(fv_buf *out, jinja_text t)
{
    bool single = memchr(t.s, '\'', t.n), twice = memchr(t.s, '"', t.n);
    char quote = single && !twice ? '"' : '\'';
    fv__buf_add(out, &quote, 1);
    for (size_t i = 0; i < t.n; i++) {
        unsigned char ch = (unsigned char)t.s[i];
        if (ch == '\n')
            fv__buf_str(out, "\\n");
        else if (ch == '\t')
            fv__buf_str(out, "\\t");
        else if (ch == '\r')
            fv__buf_str(out, "\\r");
        else if (ch == (unsigned char)quote || ch == '\\')
            fv__buf_fmt(out, "\\%c", ch);
        else if (ch < 0x20 || ch == 0x7f)
            fv__buf_fmt(out, "\\x%02x", ch);
        else
            fv__buf_add(out, &t.s[i], 1);
    }
    fv__buf_add(out, &quote, 1);
}

static void write_inner(jinja_pool *p, fv_buf *out, jinja_value v)
{
    if (v.kind == JINJA_STRING)
        write_quoted(out, v.text);
    else
        fv__jinja_write(p, out, v);
}

/* repr() of the items between brackets. */
static void write_list(jinja_pool *p, fv_buf *out, jinja_value v)
{
    bool tuple = v.kind == JINJA_TUPLE;
    fv__buf_str(out, tuple ? "(" : "[");
    for (int64_t i = 0; i < v.list->n; i++) {
        if (i) fv__buf_str(out, ", ");
        write_inner(p, out, v.list->at[i]);
    }
    /* (x,): the comma makes it a tuple. */
    if (tuple && v.list->n == 1) fv__buf_str(out, ",");
    fv__buf_str(out, tuple ? ")" : "]");
}

/* The one place where text is produced, and so where the output limit is. */
bool fv__jinja_write(jinja_pool *p, fv_buf *out, jinja_value v)
{
    if (p->st) return false;
    if (out->len > FV_JINJA_MAX_OUTPUT)
        fv__jinja_fail(p, FV_EARG, "more than %d bytes of text", FV_JINJA_MAX_OUTPUT);
    switch (v.kind) {
    case JINJA_UNDEFINED: break;
    case JINJA_NONE: fv__buf_str(out, "None"); break;
    case JINJA_BOOL: fv__buf_str(out, v.b ? "True" : "False"); break;
    case JINJA_INT: fv__buf_fmt(out, "%lld", (long long)v.i); break;
    case JINJA_FLOAT: write_float(out, v.f); break;
    case JINJA_STRING: fv__buf_add(out, v.text.s, v.text.n); break;
    case JINJA_LIST:
    case JINJA_TUPLE: write_list(p, out, v); break;
    case JINJA_DICT:
        fv__buf_str(out, "{");
        for (int64_t i = 0; i < v.dict->n; i++) {
            if (i) fv__buf_str(out, ", ");
            write_inner(p, out, v.dict->key[i]);
            fv__buf_str(out, ": ");
            write_inner(p, out, v.dict->value[i]);
        }
        fv__buf_str(out, "}");
        break;
    default: fv__jinja_fail(p, FV_EMISSING, "a %s as text", fv__jinja_kind_name(v)); return false;
    }
    return !p->st;
}

/* str(v): a text is itself. */
jinja_value fv__jinja_str(jinja_pool *p, jinja_value v)
{
    if (v.kind == JINJA_STRING) return v;
    fv_buf b = {.env = &p->env};
    fv__jinja_write(p, &b, v);
    return fv__jinja_take(p, &b);
}
