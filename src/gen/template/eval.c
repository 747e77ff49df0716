/* eval.c - the value of an expression.
 *
 * Semantics are Python's and Jinja's: `and` and `or` give one of their operands; attribute access
 * prefers methods and item access prefers entries; an entry that is missing is undefined, an
 * entry of undefined is a failure; + does not convert, ~ does.  Types that Python would refuse
 * are refused here with both types named, and so is what this file does not implement: never a
 * guess.
 *
 * Every evaluation counts as a step and a level: fv__jinja_eval is the one place where time and
 * recursion are bounded.
 *
 * The tree is walked anew for each evaluation: templates run once a request and for some
 * hundred nodes, so a compiler to byte code would not be seen in any measurement. After a
 * failure every function returns undefined and nothing is written; callers look at pool->st
 * only where they would use a value. */
#include <math.h>

#include "gen/template/jinja.h"

static const jinja_value undefined = {.kind = JINJA_UNDEFINED};

/* ---- names and attributes ---- */

/* The innermost variable of that name, else a global function.
 * O(variables) by comparing texts: templates have a few dozen. */
static jinja_value lookup(const jinja_run *r, jinja_text name)
{
    for (const jinja_frame *f = r->frame; f; f = f->above)
        for (int i = f->n - 1; i >= 0; i--)
            if (fv__text_same(f->name[i], name)) return f->value[i];
    if (fv__jinja_has_function(name)) return (jinja_value){.kind = JINJA_FUNCTION, .text = name};
    return undefined;
}

/* loop.index and its siblings. */
static jinja_value loop_attribute(const jinja_loop *l, jinja_text name)
{
    int64_t i = l->index, n = l->items->n;
    if (fv__text_is(name, "index")) return fv__jinja_int(i + 1);
    if (fv__text_is(name, "index0")) return fv__jinja_int(i);
    if (fv__text_is(name, "revindex")) return fv__jinja_int(n - i);
    if (fv__text_is(name, "revindex0")) return fv__jinja_int(n - i - 1);
    if (fv__text_is(name, "first")) return fv__jinja_bool(i == 0);
    if (fv__text_is(name, "last")) return fv__jinja_bool(i == n - 1);
    if (fv__text_is(name, "length")) return fv__jinja_int(n);
    if (fv__text_is(name, "depth")) return fv__jinja_int(l->depth + 1);
    if (fv__text_is(name, "depth0")) return fv__jinja_int(l->depth);
    if (fv__text_is(name, "previtem")) return i ? l->items->at[i - 1] : undefined;
    if (fv__text_is(name, "nextitem")) return i + 1 < n ? l->items->at[i + 1] : undefined;
    return undefined;
}

/* A method that is named and not called yet: "x.items", "x.strip". */
static jinja_value bind_method(jinja_run *r, jinja_value self, jinja_text name)
{
    jinja_method *m = fv__jinja_alloc(r->pool, sizeof *m);
    if (!m) return undefined;
    *m = (jinja_method){.self = self, .name = name};
    return (jinja_value){.kind = JINJA_METHOD, .method = m};
}

/* The entry of a dict; `missing` of none and undefined is a failure, as in Python. */
static jinja_value entry(jinja_run *r, jinja_value v, jinja_value key)
{
    const jinja_value *at = NULL;
    if (v.kind == JINJA_DICT || v.kind == JINJA_NAMESPACE) at = fv__jinja_get(v.dict, key);
    if (v.kind == JINJA_LOOP && key.kind == JINJA_STRING) return loop_attribute(v.loop, key.text);
    if (v.kind == JINJA_UNDEFINED)
        fv__jinja_fail(r->pool, FV_EARG, "an entry of a value that is not defined");
    return at ? *at : undefined;
}

/* v.name: a method comes before an entry of that name. */
jinja_value fv__jinja_attribute(jinja_run *r, jinja_value v, jinja_text name)
{
    if (fv__jinja_has_method(v, name)) return bind_method(r, v, name);
    return entry(r, v, fv__jinja_string(name));
}

/* v[key]: an entry comes before a method. */
static jinja_value subscript(jinja_run *r, jinja_value v, jinja_value key)
{
    if (key.kind == JINJA_INT && (fv__jinja_is_list(v) || v.kind == JINJA_STRING)) {
        /* Negative indices count from the end; beyond either end the result is undefined, where
         * Python raises: Jinja catches the error. */
        int64_t n = fv__jinja_length(v), i = key.i < 0 ? key.i + n : key.i;
        if (i < 0 || i >= n) return undefined;
        if (v.kind != JINJA_STRING) return v.list->at[i];
        size_t from = fv__text_offset(v.text, i), to = fv__text_offset(v.text, i + 1);
        return fv__jinja_string((jinja_text){v.text.s + from, to - from});
    }
    jinja_value found = entry(r, v, key);
    if (found.kind == JINJA_UNDEFINED && key.kind == JINJA_STRING && !r->pool->st &&
        fv__jinja_has_method(v, key.text) &&
        /* An entry whose value is itself undefined is still an entry: no method hides it. */
        !((v.kind == JINJA_DICT) && fv__jinja_get(v.dict, key)))
        return bind_method(r, v, key.text);
    return found;
}

/* One end of a slice: Python's clamping. */
static int64_t slice_end(jinja_run *r, const jinja_node *n, int64_t len, int64_t step,
                         int64_t otherwise)
{
    if (!n) return otherwise;
    jinja_value v = fv__jinja_eval(r, n);
    if (v.kind == JINJA_NONE) return otherwise;
    if (v.kind != JINJA_INT) {
        fv__jinja_fail(r->pool, FV_EARG, "a slice by a value of type %s", fv__jinja_kind_name(v));
        return otherwise;
    }
    /* With a negative step the walk ends before index 0, at -1. */
    int64_t least = step < 0 ? -1 : 0, most = step < 0 ? len - 1 : len;
    int64_t i = v.i < 0 ? v.i + len : v.i;
    return i < least ? least : i > most ? most : i;
}

/* a[b:c:d] of lists, tuples and texts; of texts by code points, without a copy where step is 1. */
static jinja_value slice(jinja_run *r, const jinja_node *n)
{
    jinja_value v = fv__jinja_eval(r, n->a), by = n->d ? fv__jinja_eval(r, n->d) : undefined;
    int64_t len = fv__jinja_length(v), step = by.kind == JINJA_INT ? by.i : 1;
    bool text = v.kind == JINJA_STRING;
    if (r->pool->st) return undefined;
    if ((!text && !fv__jinja_is_list(v)) || !step) {
        fv__jinja_fail(r->pool, FV_EARG, "a slice of a value of type %s", fv__jinja_kind_name(v));
        return undefined;
    }
    int64_t from = slice_end(r, n->b, len, step, step < 0 ? len - 1 : 0);
    int64_t to = slice_end(r, n->c, len, step, step < 0 ? -1 : len);
    if (text && step == 1) {
        size_t at = fv__text_offset(v.text, from), end = fv__text_offset(v.text, to);
        return fv__jinja_string((jinja_text){v.text.s + at, end > at ? end - at : 0});
    }
    /* By code points: a text is taken apart into a list of characters, stepped through and
     * joined again. */
    jinja_list *items = fv__jinja_items(r->pool, v);
    jinja_value out = fv__jinja_new_list(r->pool, text ? JINJA_LIST : v.kind);
    for (int64_t i = from; !r->pool->st && (step < 0 ? i > to : i < to); i += step)
        fv__jinja_append(r->pool, out.list, items->at[i]);
    if (!text || r->pool->st) return out;
    fv_buf b = {.env = &r->pool->env};
    for (int64_t i = 0; i < out.list->n; i++)
        fv__buf_add(&b, out.list->at[i].text.s, out.list->at[i].text.n);
    return fv__jinja_take(r->pool, &b);
}

/* ---- operators ---- */

/* An operator on types that it does not take. */
static jinja_value refuse(jinja_run *r, jinja_text name, jinja_value a, jinja_value b)
{
    fv__jinja_fail(r->pool, FV_EARG, "%s %.*s %s", fv__jinja_kind_name(a), (int)name.n, name.s,
                   fv__jinja_kind_name(b));
    return undefined;
}

/* As MarkupSafe adds: beside a safe text, one that is not gets HTML escapes. */
static void write_part(jinja_run *r, fv_buf *out, jinja_value v, bool escape)
{
    /* The five characters that HTML needs escaped, as MarkupSafe spells them. */
    static const char *const from = "&<>'\"";
    static const char *const to[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    if (!escape || v.safe) {
        fv__jinja_write(r->pool, out, v);
        return;
    }
    jinja_text t = fv__jinja_str(r->pool, v).text;
    for (size_t i = 0; i < t.n; i++) {
        const char *known = t.s[i] ? strchr(from, t.s[i]) : NULL;
        if (known)
            fv__buf_str(out, to[known - from]);
        else
            fv__buf_add(out, &t.s[i], 1);
    }
}

static jinja_value concatenate(jinja_run *r, jinja_value a, jinja_value b, bool plus)
{
    fv_buf out = {.env = &r->pool->env};
    bool safe = plus && (a.safe || b.safe); /* ~ joins texts as they are */
    write_part(r, &out, a, safe);
    write_part(r, &out, b, safe);
    jinja_value v = fv__jinja_take(r->pool, &out);
    v.safe = safe;
    return v;
}

static jinja_value join_lists(jinja_run *r, jinja_value a, jinja_value b)
{
    jinja_value out = fv__jinja_new_list(r->pool, a.kind);
    for (int64_t i = 0; i < a.list->n; i++) fv__jinja_append(r->pool, out.list, a.list->at[i]);
    for (int64_t i = 0; i < b.list->n; i++) fv__jinja_append(r->pool, out.list, b.list->at[i]);
    return out;
}

/* text * n, bounded by the output limit.  What is there is copied behind itself, twice as much each
 * time: a number of the template's own choice costs no loop over its units. */
static jinja_value repeat(jinja_run *r, jinja_value v, int64_t n)
{
    size_t unit = v.text.n;
    if (n <= 0 || !unit) return fv__jinja_chars("");
    if (unit > FV_JINJA_MAX_OUTPUT || n > FV_JINJA_MAX_OUTPUT / (int64_t)unit) {
        fv__jinja_fail(r->pool, FV_EARG, "more than %d bytes of text", FV_JINJA_MAX_OUTPUT);
        return (jinja_value){0};
    }
    size_t all = unit * (size_t)n;
    char *out = fv__jinja_alloc(r->pool, all + 1);
    if (!out) return (jinja_value){0};
    memcpy(out, v.text.s, unit);
    for (size_t done = unit; done < all; done *= 2)
        memcpy(out + done, out, done < all - done ? done : all - done);
    return fv__jinja_string((jinja_text){out, all});
}

/* Whole numbers; the sign of // and % is Python's. */
static jinja_value integers(jinja_run *r, jinja_text name, int64_t a, int64_t b)
{
    int64_t out = 0;
    bool over = false;
    char op = name.s[0];
    if (name.n == 2 || op == '%') {
        /* INT64_MIN / -1 overflows, so -1 is apart; integers() keeps to 62 bits, hence -a
         * cannot. */
        if (!b || b == -1) {
            if (!b) fv__jinja_fail(r->pool, FV_EARG, "a division by 0");
            return fv__jinja_int(op == '%' || !b ? 0 : -a);
        }
        /* C truncates towards zero, Python floors: one less where signs differ and there is a
         * remainder. */
        int64_t q = a / b - (a % b != 0 && (a < 0) != (b < 0));
        return fv__jinja_int(op == '%' ? a - q * b : q);
    }
    if (op == '+') over = __builtin_add_overflow(a, b, &out);
    if (op == '-') over = __builtin_sub_overflow(a, b, &out);
    if (op == '*') over = __builtin_mul_overflow(a, b, &out);
    /* Python's integers have no end; here a result that might not fit is refused instead of
     * wrapping. */
    if (over || out > INT64_MAX / 2 || out < -(INT64_MAX / 2))
        fv__jinja_fail(r->pool, FV_EMISSING, "an integer of more than 62 bits");
    return fv__jinja_int(out);
}

/* Floats: / always, the others when an operand is one. */
static jinja_value reals(jinja_run *r, jinja_text name, double a, double b)
{
    char op = name.s[0];
    double out = op == '+' ? a + b : op == '-' ? a - b : a * b;
    if (fv__text_is(name, "**")) out = pow(a, b);
    if (op == '/' || op == '%') {
        if (b == 0) fv__jinja_fail(r->pool, FV_EARG, "a division by 0");
        if (b == 0) return undefined;
        out = op == '%' ? a - floor(a / b) * b : a / b;
        if (name.n == 2) out = floor(a / b);
    }
    return (jinja_value){.kind = JINJA_FLOAT, .f = out};
}

/* Both operands are evaluated before types are looked at, as in Python. */
static jinja_value binary(jinja_run *r, const jinja_node *n)
{
    jinja_value a = fv__jinja_eval(r, n->a), b = fv__jinja_eval(r, n->b);
    double x, y;
    char op = n->name.s[0];
    if (r->pool->st) return undefined;
    r->pool->line = n->line;
    if (op == '~') return concatenate(r, a, b, false);
    if (op == '+' && a.kind == JINJA_STRING && b.kind == JINJA_STRING)
        return concatenate(r, a, b, true);
    if (op == '+' && fv__jinja_is_list(a) && a.kind == b.kind) return join_lists(r, a, b);
    if (fv__text_is(n->name, "*") && a.kind == JINJA_STRING && b.kind == JINJA_INT)
        return repeat(r, a, b.i);
    if (!fv__jinja_number(a, &x) || !fv__jinja_number(b, &y)) return refuse(r, n->name, a, b);
    bool whole = a.kind != JINJA_FLOAT && b.kind != JINJA_FLOAT;
    if (fv__text_is(n->name, "**") && whole && y >= 0) {
        jinja_value power = fv__jinja_int((int64_t)pow(x, y));
        /* Beyond 2^53 a double is not exact, and pow would give a number that Python does not. */
        if (fabs(pow(x, y)) > 9e15) return refuse(r, n->name, a, b);
        return power;
    }
    if (whole && !fv__text_is(n->name, "/") && !fv__text_is(n->name, "**"))
        /* Numbers went through a double: exact up to 2^53, which lengths and counts never reach. */
        return integers(r, n->name, (int64_t)x, (int64_t)y);
    return reals(r, n->name, x, y);
}

/* "in": a part of a text, a key of a dict, an item of a list. */
static bool contains(jinja_run *r, jinja_value in, jinja_value v)
{
    if (in.kind == JINJA_STRING && v.kind == JINJA_STRING)
        return !v.text.n || memmem(in.text.s, in.text.n, v.text.s, v.text.n);
    if (in.kind == JINJA_DICT || in.kind == JINJA_NAMESPACE) return fv__jinja_get(in.dict, v);
    if (in.kind == JINJA_UNDEFINED) return false;
    if (!fv__jinja_has_list(in)) {
        refuse(r, (jinja_text){"in", 2}, v, in);
        return false;
    }
    for (int64_t i = 0; i < in.list->n; i++)
        if (fv__jinja_equal(in.list->at[i], v)) return true;
    return false;
}

static bool compare(jinja_run *r, jinja_text name, jinja_value a, jinja_value b)
{
    int order = 0;
    if (fv__text_is(name, "==")) return fv__jinja_equal(a, b);
    if (fv__text_is(name, "!=")) return !fv__jinja_equal(a, b);
    if (fv__text_is(name, "in")) return contains(r, b, a);
    if (fv__text_is(name, "not in")) return !contains(r, b, a);
    if (!fv__jinja_order(a, b, &order)) {
        refuse(r, name, a, b);
        return false;
    }
    if (fv__text_is(name, "<")) return order < 0;
    if (fv__text_is(name, "<=")) return order <= 0;
    return fv__text_is(name, ">") ? order > 0 : order >= 0;
}

/* a < b < c: each holds. */
static jinja_value comparisons(jinja_run *r, const jinja_node *n)
{
    jinja_value a = fv__jinja_eval(r, n->a);
    /* Each operand is evaluated once, and none behind the first comparison that fails. */
    for (const jinja_node *i = n->items; i && !r->pool->st; i = i->next) {
        jinja_value b = fv__jinja_eval(r, i->a);
        r->pool->line = n->line;
        if (!compare(r, i->name, a, b)) return fv__jinja_bool(false);
        a = b;
    }
    return fv__jinja_bool(true);
}

static jinja_value signed_value(jinja_run *r, const jinja_node *n)
{
    jinja_value v = fv__jinja_eval(r, n->a);
    bool minus = n->name.s[0] == '-';
    if (v.kind == JINJA_INT) return fv__jinja_int(minus ? -v.i : v.i);
    if (v.kind == JINJA_FLOAT) return (jinja_value){.kind = JINJA_FLOAT, .f = minus ? -v.f : v.f};
    return refuse(r, n->name, undefined, v);
}

/* ---- calls ---- */

/* By position, else by name: the order of parameters is that of Jinja's documentation. */
jinja_value fv__jinja_arg(const jinja_args *a, int i, const char *name)
{
    if (i < a->unnamed) return a->at[i];
    for (int k = a->unnamed; k < a->n; k++)
        if (name && fv__text_is(a->name[k], name)) return a->at[k];
    return undefined;
}

/* From left to right. */
jinja_args fv__jinja_eval_args(jinja_run *r, const jinja_node *items)
{
    jinja_args a = {0};
    for (const jinja_node *i = items; i && !r->pool->st; i = i->next) {
        if (a.n == (int)(sizeof a.at / sizeof *a.at)) {
            fv__jinja_fail(r->pool, FV_EMISSING, "calls with more than %d arguments", a.n);
            break;
        }
        a.at[a.n] = fv__jinja_eval(r, i->a);
        a.name[a.n++] = i->name;
        /* Arguments with a name come behind the others, so this is the number of those without. */
        if (!i->name.n) a.unnamed = a.n;
    }
    return a;
}

/* namespace() is apart: it may have more entries than a call has arguments here. */
static jinja_value call(jinja_run *r, const jinja_node *n)
{
    jinja_value f = fv__jinja_eval(r, n->a);
    if (r->pool->st) return undefined;
    if (f.kind == JINJA_FUNCTION && fv__text_is(f.text, "namespace")) { /* any number of entries */
        jinja_value out = fv__jinja_new_dict(r->pool, JINJA_NAMESPACE);
        for (const jinja_node *i = n->items; i && !r->pool->st; i = i->next)
            if (i->name.n)
                fv__jinja_put(r->pool, out.dict, fv__jinja_string(i->name),
                              fv__jinja_eval(r, i->a));
            else
                fv__jinja_fail(r->pool, FV_EARG, "namespace() takes name=value only");
        return out;
    }
    jinja_args a = fv__jinja_eval_args(r, n->items);
    r->pool->line = n->line;
    if (r->pool->st) return undefined;
    if (f.kind == JINJA_MACRO) return fv__jinja_call_macro(r, f.macro, &a);
    if (f.kind == JINJA_FUNCTION) return fv__jinja_function(r, f.text, &a);
    if (f.kind == JINJA_METHOD) return fv__jinja_method(r, f.method->self, f.method->name, &a);
    jinja_text name = n->a->name;
    fv__jinja_fail(r->pool, FV_EMISSING,
                   "\"%.*s\" is called, but is no function, macro or method here", (int)name.n,
                   name.n ? name.s : "");
    return undefined;
}

static jinja_value filtered(jinja_run *r, const jinja_node *n)
{
    jinja_value v = fv__jinja_eval(r, n->a);
    jinja_args a = fv__jinja_eval_args(r, n->items);
    r->pool->line = n->line;
    return r->pool->st ? undefined : fv__jinja_filter(r, n->name, v, &a);
}

static jinja_value tested(jinja_run *r, const jinja_node *n)
{
    jinja_value v = fv__jinja_eval(r, n->a);
    jinja_args a = fv__jinja_eval_args(r, n->items);
    r->pool->line = n->line;
    return r->pool->st ? undefined : fv__jinja_bool(fv__jinja_test(r, n->name, v, &a));
}

/* A list, tuple or dict literal. */
static jinja_value collect(jinja_run *r, const jinja_node *n)
{
    bool dict = n->kind == NODE_DICT;
    jinja_value out = dict ? fv__jinja_new_dict(r->pool, JINJA_DICT)
                           : fv__jinja_new_list(r->pool,
                                                n->kind == NODE_LIST ? JINJA_LIST : JINJA_TUPLE);
    for (const jinja_node *i = n->items; i && !r->pool->st; i = i->next) {
        jinja_value v = fv__jinja_eval(r, i);
        if (!dict) {
            fv__jinja_append(r->pool, out.list, v);
            continue;
        }
        /* Keys and values take turns in the list of a dict literal. */
        i = i->next;
        fv__jinja_put(r->pool, out.dict, v, fv__jinja_eval(r, i));
    }
    return out;
}

static jinja_value eval(jinja_run *r, const jinja_node *n)
{
    switch (n->kind) {
    case NODE_CONST: return n->value;
    case NODE_NAME: return lookup(r, n->name);
    case NODE_LIST:
    case NODE_TUPLE:
    case NODE_DICT: return collect(r, n);
    case NODE_ATTR: {
        jinja_value v = fv__jinja_eval(r, n->a);
        r->pool->line = n->line;
        return r->pool->st ? undefined : fv__jinja_attribute(r, v, n->name);
    }
    case NODE_ITEM: {
        jinja_value v = fv__jinja_eval(r, n->a), key = fv__jinja_eval(r, n->b);
        r->pool->line = n->line;
        return r->pool->st ? undefined : subscript(r, v, key);
    }
    case NODE_SLICE: return slice(r, n);
    case NODE_CALL: return call(r, n);
    case NODE_FILTER: return filtered(r, n);
    case NODE_TEST: return tested(r, n);
    case NODE_NOT: return fv__jinja_bool(!fv__jinja_truth(fv__jinja_eval(r, n->a)));
    case NODE_SIGN: return signed_value(r, n);
    case NODE_AND:
    case NODE_OR: {
        jinja_value v = fv__jinja_eval(r, n->a);
        /* The operand itself is the result, not its truth: "x or 'none'" is common in templates. */
        return fv__jinja_truth(v) == (n->kind == NODE_OR) ? v : fv__jinja_eval(r, n->b);
    }
    case NODE_BINARY: return binary(r, n);
    case NODE_COMPARE: return comparisons(r, n);
    case NODE_IF_ELSE:
        if (fv__jinja_truth(fv__jinja_eval(r, n->a))) return fv__jinja_eval(r, n->b);
        return n->c ? fv__jinja_eval(r, n->c) : undefined;
    default: return undefined;
    }
}

/* Every node costs a step and nesting is bounded: a template that loops ends with a sentence. */
jinja_value fv__jinja_eval(jinja_run *r, const jinja_node *n)
{
    if (++r->steps > FV_JINJA_MAX_STEPS)
        fv__jinja_fail(r->pool, FV_EARG, "more than %d steps", FV_JINJA_MAX_STEPS);
    if (r->depth >= FV_JINJA_MAX_CALLS)
        fv__jinja_fail(r->pool, FV_EARG, "evaluations nested deeper than %d", FV_JINJA_MAX_CALLS);
    /* An expression that was left out (n is NULL) is undefined. */
    if (r->pool->st || !n) return undefined;
    r->depth++;
    jinja_value v = eval(r, n);
    r->depth--;
    return v;
}
