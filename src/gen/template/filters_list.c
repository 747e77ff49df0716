/* filters_list.c - filters on lists and dicts: choosing, mapping, sorting, joining. */
#include "gen/template/jinja.h"

const char *const fv__jinja_list_filters[] = {"join",    "list",       "first",      "last",
                                              "reverse", "sort",       "unique",     "map",
                                              "select",  "reject",     "sum",        "min",
                                              "max",     "selectattr", "rejectattr", "dictsort",
                                              NULL};

static const jinja_value undefined = {.kind = JINJA_UNDEFINED};

/* "a.b.0" of an item: attributes one after the other. */
static jinja_value path(jinja_run *r, jinja_value v, jinja_value name)
{
    if (name.kind == JINJA_INT && fv__jinja_is_list(v))
        return name.i >= 0 && name.i < v.list->n ? v.list->at[name.i] : undefined;
    if (name.kind != JINJA_STRING) return v;
    jinja_text rest = name.text;
    while (rest.n && !r->pool->st) {
        const char *dot = memchr(rest.s, '.', rest.n);
        size_t n = dot ? (size_t)(dot - rest.s) : rest.n;
        if (v.kind == JINJA_UNDEFINED) return v;
        v = v.kind == JINJA_DICT || v.kind == JINJA_NAMESPACE || v.kind == JINJA_LOOP
                ? fv__jinja_attribute(r, v, (jinja_text){rest.s, n})
                : undefined;
        rest = (jinja_text){rest.s + n + (dot != NULL), rest.n - n - (dot != NULL)};
    }
    return v;
}

/* The arguments from i on, as those of a test or filter. */
static jinja_args behind(const jinja_args *a, int i)
{
    jinja_args out = {0};
    for (; i < a->n; i++) {
        out.at[out.n] = a->at[i];
        out.name[out.n++] = a->name[i];
        if (!a->name[i].n) out.unnamed = out.n;
    }
    return out;
}

/* select(test), selectattr(attribute, test) and their opposites. */
static jinja_value choose(jinja_run *r, jinja_text name, const jinja_list *in, const jinja_args *a)
{
    bool by_attribute = memmem(name.s, name.n, "attr", 4), wanted = name.s[0] == 's';
    jinja_value attribute = by_attribute ? fv__jinja_arg(a, 0, NULL) : undefined;
    jinja_value test = fv__jinja_arg(a, by_attribute, NULL);
    jinja_value out = fv__jinja_new_list(r->pool, JINJA_GENERATOR);
    jinja_args rest = behind(a, by_attribute + 1);
    if (test.kind == JINJA_STRING && !fv__jinja_has_test(test.text))
        fv__jinja_fail(r->pool, FV_EMISSING, "the test \"%.*s\" is not implemented",
                       (int)test.text.n, test.text.s);
    for (int64_t i = 0; i < in->n && !r->pool->st; i++) {
        jinja_value v = path(r, in->at[i], attribute);
        bool yes = test.kind == JINJA_STRING ? fv__jinja_test(r, test.text, v, &rest)
                                             : fv__jinja_truth(v);
        if (yes == wanted) fv__jinja_append(r->pool, out.list, in->at[i]);
    }
    return out;
}

static jinja_value map(jinja_run *r, const jinja_list *in, const jinja_args *a)
{
    jinja_value attribute = fv__jinja_arg(a, 8, "attribute"), filter = fv__jinja_arg(a, 0, NULL),
                otherwise = fv__jinja_arg(a, 8, "default");
    jinja_value out = fv__jinja_new_list(r->pool, JINJA_GENERATOR);
    jinja_args rest = behind(a, 1);
    bool by_attribute = attribute.kind != JINJA_UNDEFINED;
    if (!by_attribute && (filter.kind != JINJA_STRING || !fv__jinja_has_filter(filter.text)))
        fv__jinja_fail(r->pool, FV_EMISSING, "map by something that is no known filter");
    for (int64_t i = 0; i < in->n && !r->pool->st; i++) {
        jinja_value v = by_attribute ? path(r, in->at[i], attribute)
                                     : fv__jinja_filter(r, filter.text, in->at[i], &rest);
        if (v.kind == JINJA_UNDEFINED) v = otherwise;
        fv__jinja_append(r->pool, out.list, v);
    }
    return out;
}

static jinja_value join(jinja_run *r, const jinja_list *in, const jinja_args *a)
{
    jinja_value by = fv__jinja_arg(a, 0, "d"), attribute = fv__jinja_arg(a, 1, "attribute");
    fv_buf b = {.env = &r->pool->env};
    for (int64_t i = 0; i < in->n && !r->pool->st; i++) {
        if (i && by.kind != JINJA_UNDEFINED) fv__jinja_write(r->pool, &b, by);
        fv__jinja_write(r->pool, &b, path(r, in->at[i], attribute));
    }
    return fv__jinja_take(r->pool, &b);
}

/* ---- order ---- */

/* Texts in lower case, unless case counts: Jinja's sorting ignores it. */
static jinja_value sort_key(jinja_run *r, jinja_value v, bool cased)
{
    if (v.kind != JINJA_STRING || cased) return v;
    return fv__jinja_filter(r, (jinja_text){"lower", 5}, v, &(jinja_args){0});
}

/* By insertion, which is stable; keys are compared, items move. */
static jinja_value sorted(jinja_run *r, const jinja_list *in, jinja_value attribute, bool cased,
                          bool down)
{
    jinja_value out = fv__jinja_new_list(r->pool, JINJA_LIST),
                keys = fv__jinja_new_list(r->pool, JINJA_LIST);
    for (int64_t i = 0; i < in->n && !r->pool->st; i++) {
        jinja_value key = sort_key(r, path(r, in->at[i], attribute), cased);
        fv__jinja_append(r->pool, out.list, in->at[i]);
        fv__jinja_append(r->pool, keys.list, key);
        for (int64_t k = i; k > 0 && !r->pool->st; k--) {
            int order = 0;
            r->steps++;
            if (!fv__jinja_order(keys.list->at[k - 1], key, &order))
                fv__jinja_fail(r->pool, FV_EARG, "sorting values of different types");
            if (down ? order >= 0 : order <= 0) break;
            jinja_value item = out.list->at[k];
            out.list->at[k] = out.list->at[k - 1];
            keys.list->at[k] = keys.list->at[k - 1];
            out.list->at[k - 1] = item;
            keys.list->at[k - 1] = key;
        }
    }
    return out;
}

static jinja_value sort_list(jinja_run *r, const jinja_list *in, const jinja_args *a)
{
    return sorted(r, in, fv__jinja_arg(a, 2, "attribute"),
                  fv__jinja_truth(fv__jinja_arg(a, 1, "case_sensitive")),
                  fv__jinja_truth(fv__jinja_arg(a, 0, "reverse")));
}

static jinja_value sort_dict(jinja_run *r, jinja_value v, const jinja_args *a)
{
    static const jinja_text items = {"items", 5};
    jinja_value by = fv__jinja_arg(a, 1, "by");
    bool value = by.kind == JINJA_STRING && fv__text_is(by.text, "value");
    jinja_value pairs = fv__jinja_filter(r, items, v, &(jinja_args){0});
    if (r->pool->st) return undefined;
    return sorted(r, pairs.list, fv__jinja_int(value),
                  fv__jinja_truth(fv__jinja_arg(a, 0, "case_sensitive")),
                  fv__jinja_truth(fv__jinja_arg(a, 2, "reverse")));
}

static jinja_value unique(jinja_run *r, const jinja_list *in)
{
    jinja_value out = fv__jinja_new_list(r->pool, JINJA_GENERATOR);
    for (int64_t i = 0; i < in->n && !r->pool->st; i++) {
        bool seen = false;
        jinja_value key = sort_key(r, in->at[i], false);
        for (int64_t k = 0; k < i && !seen; k++, r->steps++)
            seen = fv__jinja_equal(sort_key(r, in->at[k], false), key);
        if (!seen) fv__jinja_append(r->pool, out.list, in->at[i]);
    }
    return out;
}

static jinja_value reversed(jinja_run *r, jinja_value v, const jinja_list *in)
{
    jinja_value out = fv__jinja_new_list(r->pool, JINJA_GENERATOR);
    fv_buf b = {.env = &r->pool->env};
    for (int64_t i = in->n - 1; i >= 0; i--) fv__jinja_append(r->pool, out.list, in->at[i]);
    if (v.kind != JINJA_STRING || r->pool->st) return out;
    for (int64_t i = 0; i < out.list->n; i++) fv__jinja_write(r->pool, &b, out.list->at[i]);
    return fv__jinja_take(r->pool, &b);
}

/* sum, min, max */
static jinja_value reduce(jinja_run *r, jinja_text name, const jinja_list *in, const jinja_args *a)
{
    jinja_value attribute = fv__jinja_arg(a, 0, "attribute"), best = undefined;
    double sum = 0, f = 0;
    bool whole = true, add = fv__text_is(name, "sum");
    for (int64_t i = 0; i < in->n && !r->pool->st; i++) {
        jinja_value v = path(r, in->at[i], add ? attribute : undefined);
        int order = 0;
        if (add && !fv__jinja_number(v, &f))
            fv__jinja_fail(r->pool, FV_EARG, "the sum of a %s", fv__jinja_kind_name(v));
        sum += f;
        whole = whole && v.kind != JINJA_FLOAT;
        if (!add && i && !fv__jinja_order(v, best, &order))
            fv__jinja_fail(r->pool, FV_EARG, "comparing values of different types");
        if (!i || (fv__text_is(name, "min") ? order < 0 : order > 0)) best = v;
    }
    if (!add) return best;
    return whole ? fv__jinja_int((int64_t)sum) : (jinja_value){.kind = JINJA_FLOAT, .f = sum};
}

bool fv__jinja_list_filter(jinja_run *r, jinja_text name, jinja_value v, const jinja_args *a,
                           jinja_value *out)
{
    bool known = false;
    for (int i = 0; fv__jinja_list_filters[i] && !known; i++)
        known = fv__text_is(name, fv__jinja_list_filters[i]);
    *out = undefined;
    if (!known) return false;
    if (fv__text_is(name, "dictsort")) {
        *out = sort_dict(r, v, a);
        return true;
    }
    /* map and select begin with "if value:", so that none has no items */
    bool lazy = fv__text_is(name, "map") || !memcmp(name.s, "sel", 3) || !memcmp(name.s, "rej", 3);
    jinja_list *in = fv__jinja_items(r->pool, lazy && !fv__jinja_truth(v) ? undefined : v);
    if (!in) return true;
    if (fv__text_is(name, "join")) *out = join(r, in, a);
    if (fv__text_is(name, "list")) {
        *out = fv__jinja_new_list(r->pool, JINJA_LIST);
        for (int64_t i = 0; i < in->n; i++) fv__jinja_append(r->pool, out->list, in->at[i]);
    }
    if (fv__text_is(name, "first") && in->n) *out = in->at[0];
    if (fv__text_is(name, "last") && in->n) *out = in->at[in->n - 1];
    if (fv__text_is(name, "reverse")) *out = reversed(r, v, in);
    if (fv__text_is(name, "sort")) *out = sort_list(r, in, a);
    if (fv__text_is(name, "unique")) *out = unique(r, in);
    if (fv__text_is(name, "map")) *out = map(r, in, a);
    if (name.n >= 6 && (!memcmp(name.s, "select", 6) || !memcmp(name.s, "reject", 6)))
        *out = choose(r, name, in, a);
    if (name.n == 3 && name.s[0] != 'm') *out = reduce(r, name, in, a);
    if (fv__text_is(name, "min") || fv__text_is(name, "max")) *out = reduce(r, name, in, a);
    return true;
}
