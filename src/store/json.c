/* json.c - JSON documents.
 *
 * jansson keeps the tree.  Our scanner looks first: it bounds the depth before anything is built,
 * and its messages have the place.  Written by ourselves: jansson prints 1e-12 as
 * 9.9999999999999998e-13, and nobody wants that in a config.json. */
#include "json.h"

#include <stdlib.h>

#include "number.h"
#include "scan.h"

#define LARGEST (8u << 20)
#define DEEPEST 32

/* ---- in ---- */

static fv_status parse(fv_json *j, const char *text, size_t n, fv_err *e)
{
    if (n > LARGEST)
        return fv_fail(e, FV_EFORMAT, "%s: %zu bytes are too many for a configuration", j->name, n);
    fv_scan s = {.start = text, .at = text, .end = text + n, .path = j->name, .e = e};
    if (!fv__scan_skip(&s, DEEPEST) || !fv__scan_end(&s)) return s.st;
    json_error_t why;
    j->root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &why);
    if (!j->root) return fv_fail(e, FV_EFORMAT, "%s: line %d: %s", j->name, why.line, why.text);
    return json_is_object(j->root) ? FV_OK
                                   : fv_fail(e, FV_EFORMAT, "%s: not a JSON object", j->name);
}

static fv_status make(fv_json **out, const fv_env *env, const char *text, size_t n,
                      const char *name, fv_err *e)
{
    fv_json *j = fv__alloc(env, sizeof *j);
    *out = NULL;
    if (j) j->name = fv__strdup(env, name);
    if (j) j->env = env;
    fv_status st = j && j->name ? parse(j, text, n, e)
                                : fv_fail(e, FV_ENOMEM, "%s: out of memory", name);
    if (st)
        fv_json_close(j);
    else
        *out = j;
    return st;
}

fv_status fv_json_parse(fv_json **out, const fv_env *env, const char *text, const char *name,
                        fv_err *e)
{
    return make(out, env, text, strlen(text), name, e);
}

fv_status fv_json_open(fv_json **out, const fv_env *env, const char *path, fv_err *e)
{
    fv_file f;
    *out = NULL;
    fv_status st = fv__file_open(&f, env, path, e);
    if (st) return st;
    st = make(out, env, f.data, f.size, path, e);
    fv__file_close(&f);
    return st;
}

void fv_json_close(fv_json *j)
{
    if (!j) return;
    json_decref(j->root);
    if (j->name) fv__free(j->env, j->name, strlen(j->name) + 1);
    fv__free(j->env, j, sizeof *j);
}

/* ---- looking ---- */

json_t *fv__json_at(const fv_json *j, const char *at)
{
    json_t *v = j->root;
    while (v && *at) {
        char part[256];
        size_t n = strcspn(at, ".");
        if (n >= sizeof part) return NULL;
        memcpy(part, at, n);
        part[n] = 0;
        at += n + (at[n] == '.');
        v = json_is_array(v) ? json_array_get(v, strtoul(part, NULL, 10))
                             : json_object_get(v, part);
    }
    return v;
}

bool fv_json_has(const fv_json *j, const char *at)
{
    const json_t *v = fv__json_at(j, at);
    return v && !json_is_null(v);
}

const char *fv_json_text(const fv_json *j, const char *at)
{
    return json_string_value(fv__json_at(j, at));
}

bool fv_json_number(const fv_json *j, const char *at, double *out)
{
    const json_t *v = fv__json_at(j, at);
    if (!json_is_number(v)) return false;
    *out = json_number_value(v);
    return true;
}

bool fv_json_bool(const fv_json *j, const char *at, bool *out)
{
    const json_t *v = fv__json_at(j, at);
    if (!json_is_boolean(v)) return false;
    *out = json_is_true(v);
    return true;
}

int fv_json_count(const fv_json *j, const char *at)
{
    const json_t *v = fv__json_at(j, at);
    return json_is_object(v)  ? (int)json_object_size(v)
           : json_is_array(v) ? (int)json_array_size(v)
                              : -1;
}

const char *fv_json_key(const fv_json *j, const char *at, int i)
{
    json_t *v = fv__json_at(j, at);
    void *it = json_object_iter(v);
    while (it && i-- > 0) it = json_object_iter_next(v, it);
    return it ? json_object_iter_key(it) : NULL;
}

/* ---- out ---- */

static void print_text(fv_buf *b, const char *s)
{
    static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";
    fv__buf_str(b, "\"");
    for (; *s; s++) {
        const char *plain = strchr(from, *s);
        if (plain)
            fv__buf_fmt(b, "\\%c", to[plain - from]);
        else if ((unsigned char)*s < 0x20)
            fv__buf_fmt(b, "\\u%04x", (unsigned)*s);
        else
            fv__buf_add(b, s, 1);
    }
    fv__buf_str(b, "\"");
}

/* A real stays one: 1.0 is not 1. */
static void print_real(fv_buf *b, double x)
{
    fv_digits d = fv__digits(x, false);
    fv__buf_str(b, d.s);
    if (!strpbrk(d.s, ".en")) fv__buf_str(b, ".0");
}

static void newline(fv_buf *b, int level)
{
    if (level < 0) return;
    fv__buf_str(b, "\n");
    for (int i = 0; i < level; i++) fv__buf_str(b, "  ");
}

static void print_members(fv_buf *b, const json_t *v, int level)
{
    const bool object = json_is_object(v);
    const int inner = level < 0 ? level : level + 1;
    const char *key;
    json_t *item;
    size_t i, n = object ? json_object_size(v) : json_array_size(v);
    fv__buf_str(b, object ? "{" : "[");
    if (object) {
        i = 0;
        json_object_foreach((json_t *)(uintptr_t)v, key, item)
        {
            newline(b, inner);
            print_text(b, key);
            fv__buf_str(b, ": ");
            fv__json_print(b, item, inner);
            if (++i < n) fv__buf_str(b, level < 0 ? ", " : ",");
        }
    } else {
        json_array_foreach(v, i, item)
        {
            newline(b, inner);
            fv__json_print(b, item, inner);
            if (i + 1 < n) fv__buf_str(b, level < 0 ? ", " : ",");
        }
    }
    if (n) newline(b, level);
    fv__buf_str(b, object ? "}" : "]");
}

void fv__json_print(fv_buf *b, const json_t *v, int level)
{
    switch (json_typeof(v)) {
    case JSON_STRING: print_text(b, json_string_value(v)); break;
    case JSON_INTEGER: fv__buf_fmt(b, "%lld", (long long)json_integer_value(v)); break;
    case JSON_REAL: print_real(b, json_real_value(v)); break;
    case JSON_TRUE: fv__buf_str(b, "true"); break;
    case JSON_FALSE: fv__buf_str(b, "false"); break;
    case JSON_NULL: fv__buf_str(b, "null"); break;
    default: print_members(b, v, level); break;
    }
}

fv_status fv_json_set(fv_json *j, const char *key, const char *value, fv_err *e)
{
    json_error_t why;
    json_t *v = json_loads(value, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &why);
    if (!v) return fv_fail(e, FV_EARG, "%s: %s: %s", j->name, key, why.text);
    return json_object_set_new(j->root, key, v)
               ? fv_fail(e, FV_ENOMEM, "%s: %s: out of memory", j->name, key)
               : FV_OK;
}

fv_status fv_json_save(const fv_json *j, const char *path, fv_err *e)
{
    fv_buf b = {.env = j->env};
    fv__json_print(&b, j->root, 0);
    fv__buf_str(&b, "\n");
    fv_status st = b.failed ? fv_fail(e, FV_ENOMEM, "%s: out of memory", path)
                            : fv__file_write(j->env, path, b.data, b.len, e);
    fv__buf_free(&b);
    return st;
}
