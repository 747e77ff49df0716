/* methods.c - methods of Python's strings, lists and dicts that templates call.
 *
 * Which methods exist decides what x.name means (eval.c), so the tables list every method that is
 * implemented and no other: of a dict, x.title is its entry "title". */
#include <ctype.h>

#include "gen/template/jinja.h"

static const char *const of_string[] = {"strip",   "lstrip",       "rstrip",       "split",
                                        "rsplit",  "splitlines",   "startswith",   "endswith",
                                        "upper",   "lower",        "title",        "capitalize",
                                        "replace", "join",         "find",         "rfind",
                                        "count",   "removeprefix", "removesuffix", "isdigit",
                                        "isalpha", "isspace",      "isalnum",      NULL};
static const char *const of_dict[] = {"get", "items", "keys", "values", NULL};
static const char *const of_list[] = {"index", "count", NULL};

static const jinja_value undefined = {.kind = JINJA_UNDEFINED};

bool fv__jinja_has_method(jinja_value self, jinja_text name)
{
    const char *const *list = self.kind == JINJA_STRING ? of_string
                              : self.kind == JINJA_DICT ? of_dict
                              : fv__jinja_is_list(self) ? of_list
                                                        : NULL;
    for (; list && *list; list++)
        if (fv__text_is(name, *list)) return true;
    return false;
}

/* An argument that must be a text. */
static jinja_text text_arg(jinja_run *r, const jinja_args *a, int i, const char *name)
{
    jinja_value v = fv__jinja_arg(a, i, name);
    if (v.kind == JINJA_STRING) return v.text;
    fv__jinja_fail(r->pool, FV_EARG, "expected a text as argument, not a %s",
                   fv__jinja_kind_name(v));
    return (jinja_text){"", 0};
}

/* ---- taking texts apart ---- */

static void add_part(jinja_run *r, jinja_value out, const char *s, const char *end)
{
    fv__jinja_append(r->pool, out.list, fv__jinja_string((jinja_text){s, (size_t)(end - s)}));
}

/* Without a separator: runs of blanks separate, and none stand at the sides. */
static jinja_value split_blanks(jinja_run *r, jinja_text t, int64_t most)
{
    jinja_value out = fv__jinja_new_list(r->pool, JINJA_LIST);
    t = fv__text_strip(t, NULL, true, true);
    while (t.n && !r->pool->st) {
        size_t n = 0;
        while (n < t.n && !isspace((unsigned char)t.s[n])) n++;
        if (!most--) n = t.n;
        add_part(r, out, t.s, t.s + n);
        t = fv__text_strip((jinja_text){t.s + n, t.n - n}, NULL, true, false);
    }
    return out;
}

/* split(sep, maxsplit): parts between separators, empty ones included. */
static jinja_value split(jinja_run *r, jinja_text t, const jinja_args *a)
{
    jinja_value by = fv__jinja_arg(a, 0, "sep"), limit = fv__jinja_arg(a, 1, "maxsplit");
    int64_t most = limit.kind == JINJA_INT ? limit.i : -1;
    if (by.kind != JINJA_STRING) return split_blanks(r, t, most);
    jinja_value out = fv__jinja_new_list(r->pool, JINJA_LIST);
    if (!by.text.n) fv__jinja_fail(r->pool, FV_EARG, "a split by nothing");
    for (const char *at;
         by.text.n && most && !r->pool->st && (at = memmem(t.s, t.n, by.text.s, by.text.n));
         most--) {
        add_part(r, out, t.s, at);
        t.n -= (size_t)(at - t.s) + by.text.n;
        t.s = at + by.text.n;
    }
    add_part(r, out, t.s, t.s + t.n);
    return out;
}

/* The last occurrence of a text, or NULL. */
static const char *find_last(jinja_text t, jinja_text what)
{
    for (size_t i = t.n + 1; i-- > 0;)
        if (i + what.n <= t.n && !memcmp(t.s + i, what.s, what.n)) return t.s + i;
    return NULL;
}

/* With a limit, from the right; without one it is split. */
static jinja_value rsplit(jinja_run *r, jinja_text t, const jinja_args *a)
{
    jinja_value by = fv__jinja_arg(a, 0, "sep"), limit = fv__jinja_arg(a, 1, "maxsplit");
    if (limit.kind != JINJA_INT || limit.i < 0) return split(r, t, a);
    jinja_value back = fv__jinja_new_list(r->pool, JINJA_LIST),
                out = fv__jinja_new_list(r->pool, JINJA_LIST);
    if (by.kind != JINJA_STRING || !by.text.n)
        fv__jinja_fail(r->pool, FV_EMISSING, "rsplit without a separator");
    for (int64_t i = 0; i < limit.i && !r->pool->st; i++) {
        const char *at = find_last(t, by.text);
        if (!at) break;
        add_part(r, back, at + by.text.n, t.s + t.n);
        t.n = (size_t)(at - t.s);
    }
    add_part(r, out, t.s, t.s + t.n);
    for (int64_t i = r->pool->st ? 0 : back.list->n; i-- > 0;)
        fv__jinja_append(r->pool, out.list, back.list->at[i]);
    return out;
}

/* At \n and \r\n; Python's rarer line ends are not looked for. */
static jinja_value split_lines(jinja_run *r, jinja_text t, const jinja_args *a)
{
    bool keep = fv__jinja_truth(fv__jinja_arg(a, 0, "keepends"));
    jinja_value out = fv__jinja_new_list(r->pool, JINJA_LIST);
    while (t.n && !r->pool->st) {
        const char *at = memchr(t.s, '\n', t.n), *end = at ? at : t.s + t.n;
        size_t n = (size_t)(end - t.s) + (at != NULL);
        const char *shown = at && end > t.s && end[-1] == '\r' ? end - 1 : end;
        add_part(r, out, t.s, keep ? t.s + n : shown);
        t = (jinja_text){t.s + n, t.n - n};
    }
    return out;
}

/* ---- asking texts ---- */

static bool begins(jinja_text t, jinja_text with, bool end)
{
    return with.n <= t.n && !memcmp(end ? t.s + t.n - with.n : t.s, with.s, with.n);
}

/* startswith and endswith: a text, or any of a tuple. */
static jinja_value begins_with(jinja_run *r, jinja_text t, const jinja_args *a, bool end)
{
    jinja_value with = fv__jinja_arg(a, 0, NULL);
    if (a->n > 1) fv__jinja_fail(r->pool, FV_EMISSING, "startswith or endswith from a position");
    if (with.kind != JINJA_TUPLE)
        return fv__jinja_bool(begins(t, text_arg(r, a, 0, NULL), end) && !r->pool->st);
    for (int64_t i = 0; i < with.list->n; i++)
        if (with.list->at[i].kind == JINJA_STRING && begins(t, with.list->at[i].text, end))
            return fv__jinja_bool(true);
    return fv__jinja_bool(false);
}

/* Of ASCII: isdigit and its like are false for an empty text, as in Python. */
static jinja_value all_are(jinja_text t, int (*is)(int))
{
    for (size_t i = 0; i < t.n; i++)
        if (!is((unsigned char)t.s[i])) return fv__jinja_bool(false);
    return fv__jinja_bool(t.n > 0);
}

/* An index counts characters; -1: it is not in there. */
static jinja_value find(jinja_run *r, jinja_text t, const jinja_args *a, bool last)
{
    jinja_text what = text_arg(r, a, 0, NULL);
    const char *at = last ? find_last(t, what) : what.n ? memmem(t.s, t.n, what.s, what.n) : t.s;
    if (!at) return fv__jinja_int(-1);
    return fv__jinja_int(fv__text_length((jinja_text){t.s, (size_t)(at - t.s)}));
}

/* Occurrences that do not overlap. */
static jinja_value count(jinja_run *r, jinja_text t, const jinja_args *a)
{
    jinja_text what = text_arg(r, a, 0, NULL);
    int64_t n = 0;
    for (const char *at; what.n && (at = memmem(t.s, t.n, what.s, what.n)); n++) {
        t.n -= (size_t)(at - t.s) + what.n;
        t.s = at + what.n;
    }
    return fv__jinja_int(n);
}

static jinja_value strip(jinja_run *r, jinja_text t, const jinja_args *a, bool left, bool right)
{
    jinja_value chars = fv__jinja_arg(a, 0, NULL);
    (void)r;
    return fv__jinja_string(
        fv__text_strip(t, chars.kind == JINJA_STRING ? &chars.text : NULL, left, right));
}

/* Those that are filters, too, are computed there. */
static jinja_value string_method(jinja_run *r, jinja_text t, jinja_text name, const jinja_args *a)
{
    static const jinja_text join = {"join", 4};
    if (fv__text_is(name, "strip")) return strip(r, t, a, true, true);
    if (fv__text_is(name, "lstrip")) return strip(r, t, a, true, false);
    if (fv__text_is(name, "rstrip")) return strip(r, t, a, false, true);
    if (fv__text_is(name, "split")) return split(r, t, a);
    if (fv__text_is(name, "rsplit")) return rsplit(r, t, a);
    if (fv__text_is(name, "splitlines")) return split_lines(r, t, a);
    if (fv__text_is(name, "startswith")) return begins_with(r, t, a, false);
    if (fv__text_is(name, "endswith")) return begins_with(r, t, a, true);
    if (fv__text_is(name, "find")) return find(r, t, a, false);
    if (fv__text_is(name, "rfind")) return find(r, t, a, true);
    if (fv__text_is(name, "count")) return count(r, t, a);
    if (fv__text_is(name, "isdigit")) return all_are(t, isdigit);
    if (fv__text_is(name, "isalpha")) return all_are(t, isalpha);
    if (fv__text_is(name, "isspace")) return all_are(t, isspace);
    if (fv__text_is(name, "isalnum")) return all_are(t, isalnum);
    if (fv__text_is(name, "join")) {
        jinja_args by = {.at = {fv__jinja_string(t)}, .n = 1, .unnamed = 1};
        return fv__jinja_filter(r, join, fv__jinja_arg(a, 0, NULL), &by);
    }
    if (fv__text_is(name, "removeprefix") || fv__text_is(name, "removesuffix")) {
        bool end = name.s[6] == 's';
        jinja_text what = text_arg(r, a, 0, NULL);
        if (!begins(t, what, end)) return fv__jinja_string(t);
        return fv__jinja_string((jinja_text){end ? t.s : t.s + what.n, t.n - what.n});
    }
    return fv__jinja_filter(r, name, fv__jinja_string(t), a); /* replace and cases */
}

/* ---- dicts and lists ---- */

/* get(key, default) and the three views. */
static jinja_value dict_method(jinja_run *r, jinja_value self, jinja_text name, const jinja_args *a)
{
    const jinja_dict *d = self.dict;
    if (fv__text_is(name, "items")) {
        jinja_value pairs = fv__jinja_filter(r, name, self, a);
        pairs.kind = r->pool->st ? JINJA_UNDEFINED : JINJA_VIEW;
        return pairs;
    }
    if (fv__text_is(name, "get")) {
        const jinja_value *at = fv__jinja_get(d, fv__jinja_arg(a, 0, NULL));
        jinja_value otherwise = fv__jinja_arg(a, 1, NULL);
        if (a->n < 2) otherwise.kind = JINJA_NONE;
        return at ? *at : otherwise;
    }
    jinja_value out = fv__jinja_new_list(r->pool, JINJA_VIEW);
    for (int64_t i = 0; i < d->n; i++)
        fv__jinja_append(r->pool, out.list, fv__text_is(name, "keys") ? d->key[i] : d->value[i]);
    return out;
}

jinja_value fv__jinja_method(jinja_run *r, jinja_value self, jinja_text name, const jinja_args *a)
{
    if (self.safe)
        fv__jinja_fail(r->pool, FV_EMISSING, "the method \"%.*s\" of a text marked safe",
                       (int)name.n, name.s);
    if (self.kind == JINJA_STRING) return string_method(r, self.text, name, a);
    if (self.kind == JINJA_DICT) return dict_method(r, self, name, a);
    jinja_value what = fv__jinja_arg(a, 0, NULL);
    int64_t n = 0;
    for (int64_t i = 0; i < self.list->n; i++) {
        bool same = fv__jinja_equal(self.list->at[i], what);
        if (same && fv__text_is(name, "index")) return fv__jinja_int(i);
        n += same;
    }
    if (fv__text_is(name, "count")) return fv__jinja_int(n);
    fv__jinja_fail(r->pool, FV_EARG, "index of a value that is not in the list");
    return undefined;
}
