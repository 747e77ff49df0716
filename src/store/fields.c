/* fields.c - field tables: members of a struct by key, with range and default.
 *
 * Everything goes through text or JSON on one side and get_number/put_number on the other, so that
 * each type is known in one place.  Reading a configuration goes on after a problem: all of them
 * are told at once. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/decimal.h"
#include "json.h"

/* ---- members ---- */

static void put_number(void *obj, const fv_field *f, double x)
{
    void *at = (char *)obj + f->offset;
    if (f->type == FV_FIELD_FLOAT)
        f->size == sizeof(float) ? (void)(*(float *)at = (float)x) : (void)(*(double *)at = x);
    else if (f->type == FV_FIELD_BOOL)
        *(bool *)at = x != 0;
    else
        f->size == sizeof(int64_t) ? (void)(*(int64_t *)at = (int64_t)x)
                                   : (void)(*(int32_t *)at = (int32_t)x);
}

static double get_number(const void *obj, const fv_field *f)
{
    const void *at = (const char *)obj + f->offset;
    if (f->type == FV_FIELD_FLOAT)
        return f->size == sizeof(float) ? (double)*(const float *)at : *(const double *)at;
    if (f->type == FV_FIELD_BOOL) return *(const bool *)at;
    return f->size == sizeof(int64_t) ? (double)*(const int64_t *)at : (double)*(const int32_t *)at;
}

static bool is_text(const fv_field *f)
{
    return f->type == FV_FIELD_TEXT || f->type == FV_FIELD_WORDS;
}
static fv_int_list *list_of(const void *obj, const fv_field *f)
{
    return (fv_int_list *)(uintptr_t)((const char *)obj + f->offset);
}
static const char *text_of(const void *obj, const fv_field *f)
{
    return (const char *)obj + f->offset;
}

static bool put_text(void *obj, const fv_field *f, const char *s)
{
    size_t n = strlen(s);
    if (n >= f->size) return false;
    memcpy((char *)obj + f->offset, s, n + 1);
    return true;
}

static bool put_choice(void *obj, const fv_field *f, const char *s)
{
    int i = 0;
    while (f->choices[i] && strcmp(f->choices[i], s)) i++;
    if (!f->choices[i]) return false;
    put_number(obj, f, i);
    return true;
}

static bool in_range(const fv_field *f, double x)
{
    double most = f->type == FV_FIELD_INT ? (f->size == sizeof(int64_t) ? 0x1p53 : INT32_MAX)
                                          : DBL_MAX;
    return x >= f->least && x <= f->greatest && x >= -most && x <= most;
}

void fv_fields_default(void *obj, const fv_field *table)
{
    for (const fv_field *f = table; f->name; f++)
        if (f->type == FV_FIELD_INTS)
            fv__list_parse(list_of(obj, f), f, f->text);
        else if (is_text(f))
            put_text(obj, f, f->text ? f->text : "");
        else if (f->type == FV_FIELD_NUMBERS)
            memset((char *)obj + f->offset, 0, f->size);
        else
            put_number(obj, f, f->normal);
}

static const fv_field *find(const fv_field *table, const char *key)
{
    while (table->name && strcmp(table->name, key)) table++;
    return table->name ? table : NULL;
}

/* ---- what a field wants, in words ---- */

/* "12", "1e-05": as short as the member's own precision allows.  A limit nobody can reach is not a
 * limit. */
static fv_digits digits(const fv_field *f, double x)
{
    return fv__digits(x, f->type == FV_FIELD_FLOAT && f->size == sizeof(float));
}

static void add_range(fv_buf *b, const fv_field *f)
{
    bool low = f->least > -(double)FLT_MAX, high = f->greatest < (double)FLT_MAX;
    if (low && high)
        fv__buf_fmt(b, " from %s to %s", digits(f, f->least).s, digits(f, f->greatest).s);
    else if (low)
        fv__buf_fmt(b, " of at least %s", digits(f, f->least).s);
    else if (high)
        fv__buf_fmt(b, " of at most %s", digits(f, f->greatest).s);
}

/* "an integer from 1 to 96": what every message about a key says. */
static void add_wanted(fv_buf *b, const fv_field *f)
{
    switch (f->type) {
    case FV_FIELD_INT:
        fv__buf_str(b, "an integer");
        add_range(b, f);
        break;
    case FV_FIELD_FLOAT:
        fv__buf_str(b, "a number");
        add_range(b, f);
        break;
    case FV_FIELD_INTS:
        fv__buf_fmt(b, "one to %d integers", FV_MAX_LIST);
        add_range(b, f);
        break;
    case FV_FIELD_NUMBERS:
        fv__buf_fmt(b, "a list of at most %zu numbers", f->size / sizeof(float));
        add_range(b, f);
        break;
    case FV_FIELD_BOOL: fv__buf_str(b, "true or false"); break;
    case FV_FIELD_CHOICE:
        fv__buf_str(b, "one of");
        for (int i = 0; f->choices[i]; i++) fv__buf_fmt(b, "%s %s", i ? "," : "", f->choices[i]);
        break;
    case FV_FIELD_WORDS:
        fv__buf_fmt(b, "words of at most %zu bytes, the blanks between them included", f->size - 1);
        break;
    default: fv__buf_fmt(b, "a text of at most %zu bytes", f->size - 1); break;
    }
}

static const char *nearest(const fv_field *table, const char *key)
{
    const char *best = NULL;
    for (; table->name; table++) {
        const char *list[] = {best ? best : table->name, table->name, NULL};
        best = fv__closest(key, best ? list : list + 1);
    }
    return best;
}

/* ---- from text ---- */

/* Only plain decimal numbers: no hexadecimal, no infinity, no white space, in every locale. */
static bool parse_number(const fv_field *f, const char *s, double *x)
{
    char *end;
    if (f->type == FV_FIELD_BOOL) {
        bool yes = !strcmp(s, "true") || !strcmp(s, "1"),
             no = !strcmp(s, "false") || !strcmp(s, "0");
        *x = yes;
        return yes || no;
    }
    if (!*s || strspn(s, "+-.0123456789eE") != strlen(s)) return false;
    *x = fv__strtod(s, &end);
    return !*end && isfinite(*x) && (f->type == FV_FIELD_FLOAT || *x == floor(*x)) &&
           in_range(f, *x);
}

static bool set_text(void *obj, const fv_field *f, const char *value)
{
    double x;
    if (f->type == FV_FIELD_INTS) return fv__list_parse(list_of(obj, f), f, value);
    if (is_text(f)) return put_text(obj, f, value);
    if (f->type == FV_FIELD_CHOICE) return put_choice(obj, f, value);
    if (f->type == FV_FIELD_NUMBERS) return false; /* a file alone can give them */
    if (!parse_number(f, value, &x)) return false;
    put_number(obj, f, x);
    return true;
}

fv_status fv_fields_set(void *obj, const fv_field *table, const char *key, const char *value,
                        fv_err *e)
{
    const fv_field *f = find(table, key);
    if (!f) {
        const char *suggestion = nearest(table, key);
        return suggestion
                   ? fv_fail(e, FV_EARG, "%.100s: no such key; did you mean %s?", key, suggestion)
                   : fv_fail(e, FV_EARG, "%.100s: no such key", key);
    }
    if (set_text(obj, f, value)) return FV_OK;
    fv_buf wanted = {0};
    add_wanted(&wanted, f);
    fv_status st = fv_fail(e, FV_EARG, "%s: expected %s, found \"%.80s\"", key,
                           wanted.data ? wanted.data : "something else", value);
    fv__buf_free(&wanted);
    return st;
}

int fv_fields_get(const void *obj, const fv_field *table, const char *key, char *out, size_t n)
{
    const fv_field *f = find(table, key);
    if (!f || f->type == FV_FIELD_NUMBERS) return -1;
    double x = is_text(f) || f->type == FV_FIELD_INTS ? 0 : get_number(obj, f);
    switch (f->type) {
    case FV_FIELD_INTS: return fv__list_print(list_of(obj, f), out, n);
    case FV_FIELD_TEXT:
    case FV_FIELD_WORDS: return snprintf(out, n, "%s", text_of(obj, f));
    case FV_FIELD_CHOICE: return snprintf(out, n, "%s", f->choices[(int)x]);
    case FV_FIELD_BOOL: return snprintf(out, n, "%s", x != 0 ? "true" : "false");
    case FV_FIELD_INT: return snprintf(out, n, "%lld", (long long)x);
    default: return snprintf(out, n, "%s", digits(f, x).s);
    }
}

/* ---- from JSON ---- */

typedef struct reading {
    const fv_json *j;
    fv_buf said;
    int problems;
} reading;

/* All problems of a file in one message, the first few spelt out: one does not want to find them
 * one by one. */
static void problem(reading *r, const char *key, const fv__jnode *found, const fv_field *wanted,
                    const char *more)
{
    if (r->problems++ > 4) return; /* the first few are enough to act on */
    fv__buf_fmt(&r->said, "%s%s: ", r->problems > 1 ? "; " : "", key);
    if (wanted) {
        fv__buf_str(&r->said, "expected ");
        add_wanted(&r->said, wanted);
        fv__buf_str(&r->said, ", found ");
    }
    fv_buf text = {.env = r->said.env};
    if (found) fv__jnode_print(&text, found, -1);
    if (text.len > 60) memcpy(text.data + 57, "...", 4);
    fv__buf_fmt(&r->said, "%s%s", text.data ? text.data : "", more);
    fv__buf_free(&text);
}

static bool join_words(char *out, size_t capacity, const fv__jnode *list)
{
    size_t at = 0;
    *out = 0;
    for (int i = 0; i < list->n; i++) {
        const char *s = list->kid[i]->text;
        int n = s && *s && !strchr(s, ' ')
                    ? snprintf(out + at, capacity - at, "%s%s", i ? " " : "", s)
                    : -1;
        if (n < 0 || (size_t)n >= capacity - at) return false;
        at += (size_t)n;
    }
    return true;
}

/* JSON has its own types; a number where a text belongs is as wrong as the other way round. */
static bool read_value(void *obj, const fv_field *f, const fv__jnode *v)
{
    const char *s = v->text;
    if (f->type == FV_FIELD_INTS) return fv__list_read(list_of(obj, f), f, v);
    if (f->type == FV_FIELD_NUMBERS) return fv__numbers_read(obj, f, v);
    if (f->type == FV_FIELD_WORDS) /* a text in place of a list ("c2p|p2c") is kept as it is */
        return s ? put_text(obj, f, s)
                 : v->type == FV__J_ARRAY && join_words((char *)obj + f->offset, f->size, v);
    if (f->type == FV_FIELD_TEXT) return s && put_text(obj, f, s);
    if (f->type == FV_FIELD_CHOICE && fv__jnode_bool(v))
        s = v->type == FV__J_TRUE ? "true" : "false";
    if (f->type == FV_FIELD_CHOICE) return s && put_choice(obj, f, s);
    if (f->type == FV_FIELD_BOOL  ? !fv__jnode_bool(v)
        : f->type == FV_FIELD_INT ? v->type != FV__J_INT
                                  : !fv__jnode_number(v))
        return false;
    double x = f->type == FV_FIELD_BOOL ? v->type == FV__J_TRUE : v->x;
    if (!in_range(f, x)) return false;
    put_number(obj, f, x);
    return true;
}

/* A key in no table: was it meant as one of ours, or is it something we do not have? */
static void unknown(reading *r, const fv_field *table, const char *key, const fv__jnode *v)
{
    char more[160];
    const char *suggestion = nearest(table, key);
    if (suggestion)
        snprintf(more, sizeof more, " is not implemented (the nearest key that is: %s)",
                 suggestion);
    else
        snprintf(more, sizeof more, " is not implemented");
    problem(r, key, v, NULL, more);
}

static fv_status report(reading *r, fv_err *e)
{
    fv_status st = FV_OK;
    if (r->problems > 5)
        st = fv_fail(e, FV_EFORMAT, "%s: %.400s; and %d more", r->j->name,
                     r->said.data ? r->said.data : "", r->problems - 5);
    else if (r->problems)
        st = fv_fail(e, FV_EFORMAT, "%s: %s", r->j->name, r->said.data ? r->said.data : "");
    fv__buf_free(&r->said);
    return st;
}

/* Whether the table has members of an object: "rope_scaling.factor" for "rope_scaling". */
static bool has_below(const fv_field *table, const char *key)
{
    size_t n = strlen(key);
    for (; table->name; table++)
        if (!strncmp(table->name, key, n) && table->name[n] == '.') return true;
    return false;
}

/* A key is ours, or an object whose members may be ours ("rope_scaling.factor"), or the rules say
 * what becomes of it. */
static void read_key(reading *r, void *obj, const fv_field *table, const fv_key_rule *const *rules,
                     const fv__jnode *object, const char *key, const fv__jnode *v)
{
    const fv_field *f = find(table, key);
    if (f && v->type != FV__J_NULL && !read_value(obj, f, v)) problem(r, key, v, f, "");
    if (f) return;
    if (v->type != FV__J_OBJECT || !has_below(table, key)) {
        if (fv__key_judge(rules, object, key, v) == FV__KEY_REFUSED) unknown(r, table, key, v);
        return;
    }
    for (int i = 0; i < v->n; i++) {
        const fv__jnode *member = v->kid[i];
        char key_path[256];
        if (snprintf(key_path, sizeof key_path, "%s.%s", key, member->key) < (int)sizeof key_path)
            read_key(r, obj, table, rules, v, key_path, member);
        else
            problem(r, key, member, NULL, " has too long a key");
    }
}

fv_status fv_fields_read(void *obj, const fv_field *table, const fv_json *j, const char *at,
                         const fv_key_rule *const *rules, fv_err *e)
{
    reading r = {.j = j, .said = {.env = j->env}};
    const fv__jnode *object = fv__json_at(j, at);
    fv_fields_default(obj, table);
    if (!fv__jnode_is(object, FV__J_OBJECT))
        return fv_fail(e, FV_EFORMAT, "%s: %s: not an object", j->name, at);
    for (int i = 0; i < object->n; i++)
        read_key(&r, obj, table, rules, object, object->kid[i]->key, object->kid[i]);
    return report(&r, e);
}

void fv_fields_ignored(const fv_field *table, const fv_json *j, const char *at,
                       const fv_key_rule *const *rules, void (*each)(void *user, const char *key),
                       void *user)
{
    const fv__jnode *object = fv__json_at(j, at);
    for (int i = 0; fv__jnode_is(object, FV__J_OBJECT) && i < object->n; i++) {
        const fv__jnode *v = object->kid[i];
        bool ours = find(table, v->key) || (v->type == FV__J_OBJECT && has_below(table, v->key));
        if (!ours && fv__key_judge(rules, object, v->key, v) == FV__KEY_IGNORED) each(user, v->key);
    }
}

/* ---- to JSON ---- */

/* The shortest double that reads back as this float: 0.1f is written as 0.1. */
static double tidy(const fv_field *f, double x)
{
    return fv__strtod(fv__digits(x, f->size == sizeof(float)).s, NULL);
}

static fv__jnode *split_words(fv__jtree *t, const char *s)
{
    fv__jnode *list = fv__jnode_new(t, FV__J_ARRAY);
    for (size_t n; s += strspn(s, " "), (n = strcspn(s, " ")) > 0; s += n)
        if (!fv__jnode_put(t, list, NULL, fv__jnode_text(t, s, n))) return NULL;
    return list;
}

/* NULL: out of memory. */
static fv__jnode *value_of(fv__jtree *t, const void *obj, const fv_field *f)
{
    if (f->type == FV_FIELD_TEXT)
        return fv__jnode_text(t, text_of(obj, f), strlen(text_of(obj, f)));
    if (f->type == FV_FIELD_WORDS) return split_words(t, text_of(obj, f));
    if (f->type == FV_FIELD_INTS) return fv__list_node(t, list_of(obj, f), f);
    if (f->type == FV_FIELD_NUMBERS) return fv__numbers_node(t, obj, f);
    double x = get_number(obj, f);
    if (f->type == FV_FIELD_INT) return fv__jnode_int(t, (int64_t)x);
    if (f->type == FV_FIELD_FLOAT) return fv__jnode_real(t, tidy(f, x));
    const char *word = f->type == FV_FIELD_BOOL ? (x != 0 ? "true" : "false") : f->choices[(int)x];
    if (!strcmp(word, "true")) return fv__jnode_new(t, FV__J_TRUE);
    if (!strcmp(word, "false")) return fv__jnode_new(t, FV__J_FALSE);
    return fv__jnode_text(t, word, strlen(word));
}

/* The words of a list are those of the field. */
static bool same_words(const char *s, const fv__jnode *list)
{
    int i = 0;
    for (size_t n; s += strspn(s, " "), (n = strcspn(s, " ")) > 0; s += n, i++) {
        const char *word = i < list->n ? list->kid[i]->text : NULL;
        if (!word || strlen(word) != n || memcmp(word, s, n)) return false;
    }
    return list->type == FV__J_ARRAY && i == list->n;
}

/* What stands there already reads as this value: 1 for 1.0, or null for the default. */
static bool says_the_same(const void *obj, const fv_field *f, const fv__jnode *old)
{
    bool null = old->type == FV__J_NULL;
    const char *flag = old->type == FV__J_TRUE ? "true" : "false";
    if (f->type == FV_FIELD_INTS) return fv__list_same(list_of(obj, f), f, old);
    if (f->type == FV_FIELD_NUMBERS)
        return null ? !fv__numbers_count(obj, f) : fv__numbers_same(obj, f, old);
    if (f->type == FV_FIELD_WORDS && old->text) return !strcmp(old->text, text_of(obj, f));
    if (f->type == FV_FIELD_WORDS)
        return null ? !*text_of(obj, f) : same_words(text_of(obj, f), old);
    if (f->type == FV_FIELD_TEXT || f->type == FV_FIELD_CHOICE) {
        const char *now = f->type == FV_FIELD_TEXT ? text_of(obj, f)
                                                   : f->choices[(int)get_number(obj, f)];
        const char *normal = f->type == FV_FIELD_TEXT ? (f->text ? f->text : "")
                                                      : f->choices[(int)f->normal];
        if (fv__jnode_bool(old)) return !strcmp(now, flag);
        return null ? !strcmp(now, normal) : old->text && !strcmp(now, old->text);
    }
    double x = null ? f->normal : fv__jnode_bool(old) ? old->type == FV__J_TRUE : old->x;
    bool single = f->type == FV_FIELD_FLOAT && f->size == sizeof(float);
    return (single ? (double)(float)x : x) == get_number(obj, f);
}

/* A default that no file can hold, an empty word or a number out of range, says that the key was
 * not given. */
static bool not_given(const void *obj, const fv_field *f)
{
    if (f->type == FV_FIELD_INTS) return !list_of(obj, f)->n;
    if (f->type == FV_FIELD_NUMBERS) return !fv__numbers_count(obj, f);
    if (is_text(f)) return f->type == FV_FIELD_WORDS && !*text_of(obj, f);
    double x = get_number(obj, f);
    if (f->type == FV_FIELD_CHOICE) return !*f->choices[(int)x];
    return x == f->normal && !in_range(f, x);
}

/* The same member has come by another key: "rope_parameters.rope_theta" for "rope_theta". */
static bool given_elsewhere(const fv_field *table, const fv_field *f, const fv_json *j)
{
    for (; table->name; table++)
        if (table != f && table->offset == f->offset && fv__json_at(j, table->name)) return true;
    return false;
}

/* Members of an object are changed, never added: only a file that has the object knows what its
 * members mean together. */
static bool stays_absent(const void *obj, const fv_field *table, const fv_field *f,
                         const fv_json *j)
{
    return not_given(obj, f) || strchr(f->name, '.') || given_elsewhere(table, f, j);
}

/* What says the same already stays as it is written, so that a saved config.json differs from its
 * source only where something changed. */
fv_status fv_fields_write(const void *obj, const fv_field *table, fv_json *j, fv_err *e)
{
    for (const fv_field *f = table; f->name; f++) {
        const fv__jnode *old = fv__json_at(j, f->name);
        if (old ? says_the_same(obj, f, old) : stays_absent(obj, table, f, j)) continue;
        const char *dot = strrchr(f->name, '.');
        char above[256] = "";
        if (dot) snprintf(above, sizeof above, "%.*s", (int)(dot - f->name), f->name);
        if (!fv__jnode_put(&j->tree, fv__json_at(j, above), dot ? dot + 1 : f->name,
                           value_of(&j->tree, obj, f)))
            return fv_fail(e, FV_ENOMEM, "%s: %s: out of memory", j->name, f->name);
    }
    return FV_OK;
}

/* ---- help ---- */

void fv_fields_help(const fv_field *table, void (*line)(void *user, const char *text), void *user)
{
    for (const fv_field *f = table; f->name; f++) {
        fv_buf b = {0};
        fv__buf_fmt(&b, "%-24s %s; ", f->name, f->help);
        add_wanted(&b, f);
        if (is_text(f) || f->type == FV_FIELD_INTS)
            fv__buf_fmt(&b, " [%s]", f->text ? f->text : "");
        else if (f->type == FV_FIELD_CHOICE)
            fv__buf_fmt(&b, " [%s]", f->choices[(int)f->normal]);
        else
            fv__buf_fmt(&b, " [%s]",
                        f->type == FV_FIELD_BOOL ? (f->normal != 0 ? "true" : "false")
                        : in_range(f, f->normal) ? digits(f, f->normal).s
                                                 : "none");
        if (f->flags & FV_ON_RESUME) fv__buf_str(&b, ", may change on --resume");
        if (b.data) line(user, b.data);
        fv__buf_free(&b);
    }
}
