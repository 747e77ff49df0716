/* json.c - configurations: JSON objects that are opened, looked into by path, changed and saved.
 *
 * A path is keys and indices with dots between: "files.0.name".  Strings that are handed out live
 * as long as the document, or until their key is set again. */
#include "json.h"

#include <stdlib.h>

#define LARGEST (8u << 20)
#define DEEPEST 32

/* ---- in ---- */

/* A configuration is an object; depth and size are limited, so a hostile file costs little. */
static fv_status parse(fv_json *j, const char *text, size_t n, fv_err *e)
{
    if (n > LARGEST)
        return fv_fail(e, FV_EFORMAT, "%s: %zu bytes are too many for a configuration", j->name, n);
    j->tree.pool.env = j->env;
    fv_status st = fv__jtree_parse(&j->tree, text, n, j->name, DEEPEST, e);
    if (st) return st;
    return j->tree.root->type == FV__J_OBJECT
               ? FV_OK
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
    fv_status st = fv__file_read(&f, env, path, 2 * LARGEST, e);
    if (st) return st;
    st = make(out, env, f.data, f.size, path, e);
    fv__file_close(&f);
    return st;
}

void fv_json_close(fv_json *j)
{
    if (!j) return;
    fv__jtree_free(&j->tree);
    if (j->name) fv__free(j->env, j->name, strlen(j->name) + 1);
    fv__free(j->env, j, sizeof *j);
}

/* ---- looking ---- */

/* "a.b.0": members and elements by their names and numbers; "" is the whole. */
fv__jnode *fv__json_at(const fv_json *j, const char *at)
{
    fv__jnode *v = j->tree.root;
    while (v && *at) {
        char part[256];
        size_t n = strcspn(at, ".");
        if (n >= sizeof part) return NULL;
        memcpy(part, at, n);
        part[n] = 0;
        at += n + (at[n] == '.');
        if (v->type == FV__J_ARRAY) {
            unsigned long i = strtoul(part, NULL, 10);
            v = i < (unsigned long)v->n ? v->kid[i] : NULL;
        } else {
            v = fv__jnode_get(v, part);
        }
    }
    return v;
}

/* null counts as absent, as transformers takes it. */
bool fv_json_has(const fv_json *j, const char *at)
{
    const fv__jnode *v = fv__json_at(j, at);
    return v && v->type != FV__J_NULL;
}

const char *fv_json_text(const fv_json *j, const char *at)
{
    const fv__jnode *v = fv__json_at(j, at);
    return fv__jnode_is(v, FV__J_TEXT) ? v->text : NULL;
}

bool fv_json_number(const fv_json *j, const char *at, double *out)
{
    const fv__jnode *v = fv__json_at(j, at);
    if (!fv__jnode_number(v)) return false;
    *out = v->x;
    return true;
}

bool fv_json_bool(const fv_json *j, const char *at, bool *out)
{
    const fv__jnode *v = fv__json_at(j, at);
    if (!fv__jnode_bool(v)) return false;
    *out = v->type == FV__J_TRUE;
    return true;
}

int fv_json_count(const fv_json *j, const char *at)
{
    const fv__jnode *v = fv__json_at(j, at);
    return fv__jnode_is(v, FV__J_OBJECT) || fv__jnode_is(v, FV__J_ARRAY) ? v->n : -1;
}

const char *fv_json_key(const fv_json *j, const char *at, int i)
{
    const fv__jnode *v = fv__json_at(j, at);
    return fv__jnode_is(v, FV__J_OBJECT) && i >= 0 && i < v->n ? v->kid[i]->key : NULL;
}

/* ---- out ---- */

/* The value is parsed on its own, then a copy of it put into the document's pool. */
static fv__jnode *copy(fv__jtree *t, const fv__jnode *v)
{
    if (v->type == FV__J_TEXT) return fv__jnode_text(t, v->text, strlen(v->text));
    fv__jnode *out = fv__jnode_new(t, v->type);
    if (!out) return NULL;
    out->i = v->i;
    out->x = v->x;
    for (int i = 0; i < v->n; i++)
        if (!fv__jnode_put(t, out, v->kid[i]->key, copy(t, v->kid[i]))) return NULL;
    return out;
}

/* value is JSON text.  It replaces a member in its position or is added at the end: a file that
 * is read, changed and saved differs in that line alone. */
fv_status fv_json_set(fv_json *j, const char *key, const char *value, fv_err *e)
{
    fv__jtree t = {.pool = {.env = j->env}};
    fv_err why = {0};
    fv_status st = fv__jtree_parse(&t, value, strlen(value), key, DEEPEST, &why);
    if (st == FV_EFORMAT) st = fv_fail(e, FV_EARG, "%s: %s", j->name, why.text);
    if (!st && !fv__jnode_put(&j->tree, j->tree.root, key, copy(&j->tree, t.root))) st = FV_ENOMEM;
    if (st == FV_ENOMEM) fv_fail(e, st, "%s: %s: out of memory", j->name, key);
    fv__jtree_free(&t);
    return st;
}

fv_status fv_json_save(const fv_json *j, const char *path, fv_err *e)
{
    fv_buf b = {.env = j->env};
    fv__jnode_print(&b, j->tree.root, 0);
    fv__buf_str(&b, "\n");
    fv_status st = b.failed ? fv_fail(e, FV_ENOMEM, "%s: out of memory", path)
                            : fv__file_write(j->env, path, b.data, b.len, e);
    fv__buf_free(&b);
    return st;
}
