/* builtins.c - tests ("x is defined") and global functions. */
#include <ctype.h>
#include <time.h>

#include "gen/template/jinja.h"

static const char *const tests[] = {"defined", "undefined",   "none",     "string",   "mapping",
                                    "number",  "integer",     "float",    "boolean",  "true",
                                    "false",   "iterable",    "sequence", "callable", "even",
                                    "odd",     "divisibleby", "in",       "eq",       "equalto",
                                    "ne",      "lt",          "le",       "gt",       "ge",
                                    "sameas",  "lower",       "upper",    "lessthan", "greaterthan",
                                    NULL};

static const char *const functions[] = {"range",           "namespace",    "dict",
                                        "raise_exception", "strftime_now", NULL};

static bool listed(const char *const *list, jinja_text name)
{
    for (; *list; list++)
        if (fv__text_is(name, *list)) return true;
    return false;
}

bool fv__jinja_has_test(jinja_text name) { return listed(tests, name); }
bool fv__jinja_has_function(jinja_text name) { return listed(functions, name); }

/* ---- tests ---- */

/* Those of a value's type; -1: it is another test. */
static int type_test(jinja_text name, jinja_value v)
{
    jinja_kind k = v.kind;
    bool sequence = fv__jinja_is_list(v) || k == JINJA_STRING || k == JINJA_DICT ||
                    k == JINJA_UNDEFINED;
    if (fv__text_is(name, "defined")) return k != JINJA_UNDEFINED;
    if (fv__text_is(name, "undefined")) return k == JINJA_UNDEFINED;
    if (fv__text_is(name, "none")) return k == JINJA_NONE;
    if (fv__text_is(name, "string")) return k == JINJA_STRING;
    if (fv__text_is(name, "mapping")) return k == JINJA_DICT;
    if (fv__text_is(name, "number")) return k == JINJA_INT || k == JINJA_FLOAT || k == JINJA_BOOL;
    if (fv__text_is(name, "integer")) return k == JINJA_INT;
    if (fv__text_is(name, "float")) return k == JINJA_FLOAT;
    if (fv__text_is(name, "boolean")) return k == JINJA_BOOL;
    if (fv__text_is(name, "true")) return k == JINJA_BOOL && v.b;
    if (fv__text_is(name, "false")) return k == JINJA_BOOL && !v.b;
    if (fv__text_is(name, "iterable")) return sequence || fv__jinja_has_list(v) || k == JINJA_LOOP;
    if (fv__text_is(name, "sequence")) return sequence;
    if (fv__text_is(name, "callable"))
        return k == JINJA_MACRO || k == JINJA_FUNCTION || k == JINJA_METHOD;
    return -1;
}

static bool is_cased(jinja_value v, bool upper)
{
    bool letters = false;
    for (size_t i = 0; v.kind == JINJA_STRING && i < v.text.n; i++) {
        unsigned char ch = (unsigned char)v.text.s[i];
        if (upper ? islower(ch) : isupper(ch)) return false;
        letters = letters || isalpha(ch);
    }
    return letters;
}

static bool number_test(jinja_run *r, jinja_text name, jinja_value v, jinja_value with)
{
    int64_t by = fv__text_is(name, "divisibleby") && with.kind == JINJA_INT ? with.i : 2;
    if (v.kind != JINJA_INT || !by) {
        fv__jinja_fail(r->pool, FV_EARG, "%.*s of a %s", (int)name.n, name.s,
                       fv__jinja_kind_name(v));
        return false;
    }
    return (v.i % by != 0) == fv__text_is(name, "odd");
}

bool fv__jinja_test(jinja_run *r, jinja_text name, jinja_value v, const jinja_args *a)
{
    jinja_value with = fv__jinja_arg(a, 0, NULL);
    int order = 0, typed = type_test(name, v);
    if (typed >= 0) return typed;
    if (fv__text_is(name, "even") || fv__text_is(name, "odd") || fv__text_is(name, "divisibleby"))
        return number_test(r, name, v, with);
    if (fv__text_is(name, "lower") || fv__text_is(name, "upper"))
        return is_cased(v, name.s[0] == 'u');
    if (fv__text_is(name, "eq") || fv__text_is(name, "equalto")) return fv__jinja_equal(v, with);
    if (fv__text_is(name, "ne")) return !fv__jinja_equal(v, with);
    if (fv__text_is(name, "sameas")) return v.kind == with.kind && fv__jinja_equal(v, with);
    if (fv__text_is(name, "in")) {
        jinja_list *in = fv__jinja_items(r->pool, with);
        if (with.kind == JINJA_STRING && v.kind == JINJA_STRING)
            return !v.text.n || memmem(with.text.s, with.text.n, v.text.s, v.text.n);
        for (int64_t i = 0; in && i < in->n; i++)
            if (fv__jinja_equal(in->at[i], v)) return true;
        return false;
    }
    if (!fv__jinja_order(v, with, &order)) {
        fv__jinja_fail(r->pool, FV_EARG, "comparing a %s and a %s", fv__jinja_kind_name(v),
                       fv__jinja_kind_name(with));
        return false;
    }
    bool or_equal = name.n == 2 && name.s[1] == 'e', less = name.s[0] == 'l';
    return (or_equal && !order) || (less ? order < 0 : order > 0);
}

/* ---- functions ---- */

static jinja_value range(jinja_run *r, const jinja_args *a)
{
    int64_t part[3] = {0, 0, 1};
    jinja_value out = fv__jinja_new_list(r->pool, JINJA_LIST);
    for (int i = 0; i < a->n && i < 3; i++) {
        if (a->at[i].kind != JINJA_INT)
            fv__jinja_fail(r->pool, FV_EARG, "a range of a %s", fv__jinja_kind_name(a->at[i]));
        part[a->n == 1 ? 1 : i] = a->at[i].i;
    }
    if (!part[2]) fv__jinja_fail(r->pool, FV_EARG, "a range with step 0");
    for (int64_t i = part[0]; !r->pool->st && (part[2] > 0 ? i < part[1] : i > part[1]);
         i += part[2]) {
        if (out.list->n >= 100000) /* the sandbox's limit */
            fv__jinja_fail(r->pool, FV_EARG, "a range of more than 100000");
        fv__jinja_append(r->pool, out.list, fv__jinja_int(i));
    }
    return out;
}

static jinja_value strftime_now(jinja_run *r, const jinja_args *a)
{
    jinja_value format = fv__jinja_arg(a, 0, "format");
    time_t now = r->now ? (time_t)r->now : time(NULL);
    char text[256], how[128];
    struct tm parts;
    bool ok = format.kind == JINJA_STRING && format.text.n < sizeof how &&
              localtime_r(&now, &parts);
    if (!ok) {
        fv__jinja_fail(r->pool, FV_EARG, "a date in a format that is no short text");
        return (jinja_value){0};
    }
    memcpy(how, format.text.s, format.text.n);
    how[format.text.n] = 0;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    size_t n = strftime(text, sizeof text, how, &parts); /* the format is the template's */
#pragma GCC diagnostic pop
    fv_buf b = {.env = &r->pool->env};
    fv__buf_add(&b, text, n);
    return fv__jinja_take(r->pool, &b);
}

jinja_value fv__jinja_function(jinja_run *r, jinja_text name, const jinja_args *a)
{
    jinja_value none = {0};
    if (fv__text_is(name, "range")) return range(r, a);
    if (fv__text_is(name, "strftime_now")) return strftime_now(r, a);
    if (fv__text_is(name, "raise_exception")) {
        jinja_value why = fv__jinja_str(r->pool, fv__jinja_arg(a, 0, "message"));
        fv__jinja_fail(r->pool, FV_EARG, "%.*s", why.text.n < 300 ? (int)why.text.n : 300,
                       why.text.n ? why.text.s : "");
        return none;
    }
    jinja_value out = fv__jinja_new_dict(r->pool, JINJA_DICT); /* dict(a=1, ..) */
    if (a->unnamed) fv__jinja_fail(r->pool, FV_EMISSING, "dict() of something");
    for (int i = 0; i < a->n && !r->pool->st; i++)
        fv__jinja_put(r->pool, out.dict, fv__jinja_string(a->name[i]), a->at[i]);
    return out;
}
