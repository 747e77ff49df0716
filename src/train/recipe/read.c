/* read.c - reading recipes: sections and keys, each checked against its table, and writing them out
 * again.
 *
 * Keys of [model] and those that an objective adds to [data] are kept as text until the family and
 * the objective are known, which may be the last line of the file or a --set. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include <ini.h>

#include "fovea/author/train.h"
#include "base/decimal.h"
#include "train/recipe/keys.h"

/* The options of a section inside the recipe. */
static void *part(const fv_recipe *r, const fv__section *s) { return (char *)r + s->offset; }

/* ---- setting ---- */

const char *fv__late_get(const fv__late_keys *k, const char *key)
{
    for (size_t i = 0; i < k->n; i++)
        if (!strcmp(k->at[i].key, key)) return k->at[i].value;
    return NULL;
}

bool fv__recipe_given(const fv_recipe *r, const char *section, const char *key)
{
    char word[200];
    snprintf(word, sizeof word, "\n%.60s.%.100s\n", section, key);
    return r->given.data && strstr(r->given.data, word);
}

/* Remembers that the key has a value of its own, which a default of the source must not replace. */
static fv_status note_given(fv_recipe *r, const char *section, const char *key, fv_err *e)
{
    if (fv__recipe_given(r, section, key)) return FV_OK;
    fv__buf_fmt(&r->given, "%s%.60s.%.100s\n", r->given.len ? "" : "\n", section, key);
    return r->given.failed ? fv_fail(e, FV_ENOMEM, "recipe: out of memory") : FV_OK;
}

/* Sets or replaces a key whose table is not known yet. */
static fv_status set_late(const fv_env *env, fv__late_keys *k, const char *section, const char *key,
                          const char *value, const char *location, fv_err *e)
{
    size_t i = 0;
    while (i < k->n && strcmp(k->at[i].key, key)) i++;
    void *p = k->at;
    if (!fv__grow(env, &p, &k->bytes, (k->n + 1) * sizeof *k->at))
        return fv_fail(e, FV_ENOMEM, "%s: out of memory", location);
    k->at = p;
    fv__late_key *m = &k->at[i];
    if (strlen(key) >= sizeof m->key || strlen(value) >= sizeof m->value)
        return fv_fail(e, FV_EARG, "%s: [%s] %.60s: too long", location, section, key);
    snprintf(m->key, sizeof m->key, "%s", key);
    snprintf(m->value, sizeof m->value, "%s", value);
    snprintf(m->location, sizeof m->location, "%s", location);
    k->n += i == k->n;
    return FV_OK;
}

/* Whether the value fits the key of an objective; its struct is thrown away. */
static fv_status try_own(const fv_recipe *r, const fv_objective *o, const char *key,
                         const char *value, fv_err *e)
{
    void *scratch = fv__alloc(r->env, o->options_size);
    if (!scratch) return fv_fail(e, FV_ENOMEM, "recipe: out of memory");
    fv_status st = fv_fields_set(scratch, o->keys, key, value, e);
    fv__free(r->env, scratch, o->options_size);
    return st;
}

/* Adds the names of a table to a list that ends in NULL. */
enum { MOST_NAMES = 128 };
static void add_names(const char *names[MOST_NAMES], int *n, const fv_field *table)
{
    for (const fv_field *f = table; f && f->name && *n < MOST_NAMES - 1; f++)
        names[(*n)++] = f->name;
    names[*n] = NULL;
}

/* Suggests the nearest of all keys of the section: its table's, those of files and, in [data],
 * those of objectives. */
static fv_status no_such_key(const fv__section *s, const char *key, const char *location, fv_err *e)
{
    const char *names[MOST_NAMES];
    const fv_objective *o;
    const fv__own_keys *k;
    int n = 0;
    add_names(names, &n, s->table);
    for (int i = 0; (k = fv__own_keys_at(i)); i++)
        if (!strcmp(k->section, s->name)) add_names(names, &n, k->table);
    for (int i = 0; s->table == fv_data_fields && (o = fv_objective_at(i)); i++)
        add_names(names, &n, o->keys);
    const char *suggestion = fv_closest(key, names);
    return fv_fail(e, FV_EARG, "%s: [%s] %.100s: no such key%s%s%s", location, s->name, key,
                   suggestion ? "; did you mean " : "", suggestion ? suggestion : "",
                   suggestion ? "?" : "");
}

/* A key of [data] that is not common to all: an objective's, whichever that will be. */
static fv_status set_own(fv_recipe *r, const fv_objective *o, const char *key, const char *value,
                         const char *location, fv_err *e)
{
    fv_err why;
    fv_status st = try_own(r, o, key, value, &why);
    if (st) return fv_fail(e, st, "%s: [data] %s", location, why.text);
    return set_late(r->env, &r->own, "data", key, value, location, e);
}

/* A key of a section with a table. */
static fv_status set_in(fv_recipe *r, const fv__section *s, const char *key, const char *value,
                        const char *location, fv_err *e)
{
    fv_err why;
    const fv__own_keys *of;
    const fv_objective *o = s->table == fv_data_fields ? fv__objective_with(key) : NULL;
    const fv_field *table = s->table;
    void *options = part(r, s);
    if (!fv__field_find(table, key)) {
        if (!fv__own_find(s->name, key, &of))
            return o ? set_own(r, o, key, value, location, e) : no_such_key(s, key, location, e);
        table = of->table;
        options = fv__own_part(r->files, of);
    }
    fv_status st = fv_fields_set(options, table, key, value, &why);
    return st ? fv_fail(e, st, "%s: [%s] %s", location, s->name, why.text) : FV_OK;
}

/* Whether a line of a recipe can hold the value: a semicolon at its begin or behind white space
 * begins a comment. */
static bool writable(const char *value)
{
    for (const char *c = value; *c; c++)
        if (*c == '\n' || *c == '\r' || (*c == ';' && (c == value || strchr(" \t\v\f", c[-1]))))
            return false;
    return true;
}

static fv_status set(fv_recipe *r, const char *name, const char *key, const char *value,
                     const char *location, fv_err *e)
{
    static const char *const names[] = {"model",   "data",      "tokenizer", "train", "generate",
                                        "adapter", "continual", "distill",   NULL};
    const fv__section *s = fv__sections;
    fv_status st;
    while (s->name && strcmp(s->name, name)) s++;
    if (!*name) return fv_fail(e, FV_EARG, "%s: %.60s stands before any section", location, key);
    if (!writable(value))
        return fv_fail(
            e, FV_EARG,
            "%s: [%.60s] %.60s: a recipe cannot hold \"%.80s\": a semicolon at the begin "
            "or behind a blank starts a comment, a line break ends the value",
            location, name, key, value);
    if (!strcmp(name, "model"))
        st = set_late(r->env, &r->model, "model", key, value, location, e);
    else if (s->name)
        st = set_in(r, s, key, value, location, e);
    else {
        const char *suggestion = fv_closest(name, names);
        return fv_fail(e, FV_EARG, "%s: there is no section [%.60s]%s%s%s", location, name,
                       suggestion ? "; did you mean [" : "", suggestion ? suggestion : "",
                       suggestion ? "]?" : "");
    }
    return st ? st : note_given(r, name, key, e);
}

fv_status fv_recipe_set(fv_recipe *r, const char *key, const char *value, fv_err *e)
{
    char name[64];
    const char *dot = strchr(key, '.');
    if (!dot || dot == key || !dot[1] || (size_t)(dot - key) >= sizeof name)
        return fv_fail(e, FV_EARG, "--set %.80s: expected section.key=value", key);
    snprintf(name, sizeof name, "%.*s", (int)(dot - key), key);
    return set(r, name, dot + 1, value, "--set", e);
}

/* ---- parsing ---- */

/* inih is handed one line after another, so that every complaint can name its line. */
typedef struct parsing {
    fv_recipe *r;
    const char *path;
    fv_file file;
    size_t at;
    int line;
    fv_status st;
    fv_err *e;
    fv_buf seen; /* "section.key\n" of all so far */
} parsing;

/* The first complaint about the file is its error. */
static fv_status complain(parsing *p, const char *what)
{
    if (!p->st) p->st = fv_fail(p->e, FV_EFORMAT, "%s:%d: %s", p->path, p->line, what);
    return p->st;
}

/* Gives inih one line at a time, so that the number of the line is known when it calls take. */
static char *next_line(char *out, int capacity, void *self)
{
    parsing *p = self;
    if (p->at >= p->file.size || p->st) return NULL;
    const char *from = p->file.data + p->at, *end = memchr(from, '\n', p->file.size - p->at);
    size_t n = end ? (size_t)(end - from) + 1 : p->file.size - p->at;
    p->line++;
    p->at += n;
    if (n + 1 > (size_t)capacity || memchr(from, 0, n) || fv__utf8_check(from, n) < n) {
        complain(p, n + 1 > (size_t)capacity ? "the line is too long" : "not UTF-8 text");
        return NULL;
    }
    memcpy(out, from, n);
    out[n] = 0;
    return out;
}

/* A key that stands twice in a file is a mistake.  inih passes an indented line as a continuation,
 * which looks the same and is refused, too. */
static bool first_time(parsing *p, const char *name, const char *key)
{
    char word[200];
    int n = snprintf(word, sizeof word, "\n%.60s.%.100s\n", name, key);
    bool there = p->seen.data && strstr(p->seen.data, word);
    fv__buf_add(&p->seen, p->seen.len ? word + 1 : word, (size_t)n - (p->seen.len ? 1 : 0));
    return !there;
}

/* inih's callback for each key = value. */
static int take(void *self, const char *name, const char *key, const char *value)
{
    parsing *p = self;
    char location[160];
    if (p->st) return 0;
    snprintf(location, sizeof location, "%.140s:%d", p->path, p->line);
    if (!first_time(p, name, key)) return complain(p, "the key stands twice"), 0;
    p->st = set(p->r, name, key, value, location, p->e);
    return p->st == FV_OK;
}

/* Returns the first problem of the file. */
static fv_status parse(fv_recipe *r, const char *path, fv_err *e)
{
    parsing p = {.r = r, .path = path, .e = e, .seen = {.env = r->env}};
    fv_status st = fv__file_open(&p.file, r->env, path, e);
    if (st) return st;
    int rc = ini_parse_stream(next_line, &p, take, &p);
    if (!p.st && rc > 0) {
        p.line = rc;
        complain(&p, "neither a [section] nor key = value");
    }
    if (!p.st && (rc < 0 || p.seen.failed)) p.st = fv_fail(e, FV_ENOMEM, "%s: out of memory", path);
    fv__file_close(&p.file);
    fv__buf_free(&p.seen);
    return p.st;
}

fv_status fv_recipe_open(fv_recipe **out, const fv_env *env, const char *path, fv_err *e)
{
    *out = NULL;
    fv_recipe *r = fv__alloc(env, sizeof *r);
    if (!r) return fv_fail(e, FV_ENOMEM, "%s: out of memory", path);
    r->env = r->text.env = r->given.env = env;
    size_t n = strlen(path), capacity = sizeof r->path - 1;
    snprintf(r->path, sizeof r->path, "%s", n > capacity ? path + (n - capacity) : path);
    for (const fv__section *x = fv__sections; x->name; x++)
        if (x->table) fv_fields_default(part(r, x), x->table);
    r->files = fv__alloc(env, fv__own_bytes());
    if (r->files) fv__own_default(r->files);
    r->train.own = r->files;
    fv_status st = r->files ? parse(r, path, e) : fv_fail(e, FV_ENOMEM, "%s: out of memory", path);
    if (st)
        fv_recipe_close(r);
    else
        *out = r;
    return st;
}

void fv_recipe_close(fv_recipe *r)
{
    if (!r) return;
    fv__buf_free(&r->text);
    fv__buf_free(&r->given);
    fv__free(r->env, r->model.at, r->model.bytes);
    fv__free(r->env, r->own.at, r->own.bytes);
    fv__free(r->env, r->files, fv__own_bytes());
    fv__free(r->env, r, sizeof *r);
}

const fv_train_opt *fv_recipe_options(const fv_recipe *r) { return &r->train; }

/* ---- writing ---- */

/* A default outside the range stands for "not given": it cannot be written as a value. */
static bool not_given(const void *obj, const fv_field *f)
{
    char value[64];
    bool number = f->type == FV_FIELD_INT || f->type == FV_FIELD_FLOAT;
    if (!number || (f->normal >= f->least && f->normal <= f->greatest)) return false;
    fv_field one[] = {*f, {0}};
    fv_fields_get(obj, one, f->name, value, sizeof value);
    return fv__strtod(value, NULL) == f->normal;
}

/* The keys of one table. */
static fv_status each_in(const void *options, const fv_field *table, const char *section,
                         unsigned without, fv__key_fn *each, void *user)
{
    for (const fv_field *f = table; f && f->name; f++) {
        char key[160], value[600];
        if (not_given(options, f) || (f->flags & without)) continue;
        fv_fields_get(options, table, f->name, value, sizeof value);
        snprintf(key, sizeof key, "%s.%s", section, f->name);
        each(user, key, value);
    }
    return FV_OK;
}

/* Every key with its value, section by section, but those with one of the flags. */
static fv_status each_key(const fv_recipe *r, unsigned without, fv__key_fn *each, void *user,
                          fv_err *e)
{
    const fv_objective *o = fv__recipe_objective(r);
    void *own = NULL;
    char key[80];
    fv_status st = fv__recipe_own(r, &own, e);
    for (size_t i = 0; !st && i < r->model.n; i++) {
        snprintf(key, sizeof key, "model.%s", r->model.at[i].key);
        each(user, key, r->model.at[i].value);
    }
    for (const fv__section *s = fv__sections; !st && s->name; s++) {
        st = each_in(part(r, s), s->table, s->name, without, each, user);
        const fv__own_keys *k;
        for (int i = 0; !st && (k = fv__own_keys_at(i)); i++)
            if (!strcmp(k->section, s->name))
                st = each_in(fv__own_part(r->files, k), k->table, s->name, without, each, user);
        if (!st && s->table == fv_data_fields)
            st = each_in(own, o->keys, s->name, without, each, user);
    }
    fv__free(r->env, own, o->options_size);
    return st;
}

fv_status fv__recipe_fixed(const fv_recipe *r, fv__key_fn *each, void *user, fv_err *e)
{
    return each_key(r, FV_ON_RESUME, each, user, e);
}

typedef struct writing {
    fv_buf *out;
    char section[32];
} writing;

/* Begins a section where the key is of another than the last. */
static void write_key(void *user, const char *key, const char *value)
{
    writing *w = user;
    const char *dot = strchr(key, '.');
    size_t n = (size_t)(dot - key);
    if (strncmp(w->section, key, n) || w->section[n]) {
        fv__buf_fmt(w->out, "%s[%.*s]\n", *w->section ? "\n" : "", (int)n, key);
        snprintf(w->section, sizeof w->section, "%.*s", (int)n, key);
    }
    fv__buf_fmt(w->out, "%s =%s%s\n", dot + 1, *value ? " " : "", value);
}

const char *fv_recipe_text(fv_recipe *r, fv_err *e)
{
    writing w = {.out = &r->text};
    r->text.len = 0;
    fv_status st = each_key(r, 0, write_key, &w, e);
    if (!st && r->text.failed) st = fv_fail(e, FV_ENOMEM, "recipe: out of memory");
    return st ? NULL : r->text.data;
}
