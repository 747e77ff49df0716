/* tree.c - trees of JSON values: built from a checked document, looked into, changed.
 *
 * All nodes come from one pool, children in arrays of pointers, in the order of the file, which
 * is kept when it is written again.  From MANY members on a sorted copy of the array serves
 * look-ups. */
#include "tree.h"

#include <math.h>
#include <stdlib.h>

#include "reader.h"

#define MANY 16 /* members from which keys are sorted */

/* ---- values ---- */

fv__jnode *fv__jnode_new(fv__jtree *t, fv__jtype type)
{
    fv__jnode *v = fv__pool_alloc(&t->pool, sizeof *v);
    if (v) v->type = type;
    return v;
}

fv__jnode *fv__jnode_text(fv__jtree *t, const char *s, size_t n)
{
    fv__str copy;
    fv__jnode *v = fv__jnode_new(t, FV__J_TEXT);
    if (!v || !fv__pool_str(&t->pool, &copy, s, n)) return NULL;
    v->text = copy.s;
    return v;
}

fv__jnode *fv__jnode_int(fv__jtree *t, int64_t i)
{
    fv__jnode *v = fv__jnode_new(t, FV__J_INT);
    if (v) v->i = i, v->x = (double)i;
    return v;
}

fv__jnode *fv__jnode_real(fv__jtree *t, double x)
{
    fv__jnode *v = fv__jnode_new(t, FV__J_REAL);
    if (v) v->x = x;
    return v;
}

/* ---- looking ---- */

static int by_key(const void *a, const void *b)
{
    return strcmp((*(fv__jnode *const *)a)->key, (*(fv__jnode *const *)b)->key);
}

fv__jnode *fv__jnode_get(const fv__jnode *object, const char *key)
{
    if (!fv__jnode_is(object, FV__J_OBJECT)) return NULL;
    for (int i = 0; !object->by_key && i < object->n; i++)
        if (!strcmp(object->kid[i]->key, key)) return object->kid[i];
    if (!object->by_key) return NULL;
    fv__jnode wanted = {.key = key}, *p = &wanted,
              **hit = bsearch(&p, object->by_key, (size_t)object->n, sizeof p, by_key);
    return hit ? *hit : NULL;
}

/* 1 and 1.0 are equal; members may come in any order; integers are compared as integers, since a
 * double would make 2^53 and 2^53 + 1 the same. */
bool fv__jnode_equal(const fv__jnode *a, const fv__jnode *b)
{
    if (fv__jnode_number(a) && fv__jnode_number(b))
        return a->type == FV__J_INT && b->type == FV__J_INT ? a->i == b->i : a->x == b->x;
    if (!a || !b || a->type != b->type || a->n != b->n) return false;
    if (a->type == FV__J_TEXT) return !strcmp(a->text, b->text);
    for (int i = 0; i < a->n; i++) {
        const fv__jnode *other = a->type == FV__J_ARRAY ? b->kid[i]
                                                        : fv__jnode_get(b, a->kid[i]->key);
        if (!fv__jnode_equal(a->kid[i], other)) return false;
    }
    return true;
}

/* ---- changing ---- */

static bool reserve(fv__jtree *t, fv__jnode *v, int n)
{
    if (n <= v->cap) return true;
    int cap = n > 2 * v->cap ? n : 2 * v->cap;
    fv__jnode **kid = fv__pool_array(&t->pool, (size_t)cap, sizeof *kid);
    if (!kid) return false;
    if (v->n) memcpy(kid, v->kid, (size_t)v->n * sizeof *kid);
    v->kid = kid;
    v->cap = cap;
    return true;
}

bool fv__jnode_put(fv__jtree *t, fv__jnode *to, const char *key, fv__jnode *v)
{
    fv__str copy = {NULL, 0};
    fv__jnode *old = key ? fv__jnode_get(to, key) : NULL;
    if (!to || !v) return false;
    if (old) { /* in its place, where every pointer to it sees the new value */
        key = old->key;
        *old = *v;
        old->key = key;
        return true;
    }
    if ((key && !fv__pool_str(&t->pool, &copy, key, strlen(key))) || !reserve(t, to, to->n + 1))
        return false;
    v->key = copy.s;
    to->kid[to->n++] = v;
    to->by_key = NULL;
    return true;
}

/* ---- building ---- */

typedef struct builder {
    fv__jtree *t;
    int depth;
    fv_err *e;
    fv_status st;
} builder;

static fv__jnode *fail(builder *b, fv_status st)
{
    if (!b->st) b->st = st;
    return NULL;
}

static fv__jnode *no_memory(builder *b, fv__jval v)
{
    return fail(b, fv_fail(b->e, FV_ENOMEM, "%s: out of memory", v.j->file));
}

/* Texts are C strings, so a NUL inside would cut them short. */
static const char *build_text(builder *b, fv__jval v, fv__str raw)
{
    char *s = fv__pool_alloc(&b->t->pool, raw.n + 1);
    if (!s) return no_memory(b, v), NULL;
    size_t n = fv__json_unescape(s, raw.s, raw.n);
    s[n] = 0;
    if (!memchr(s, 0, n)) return s;
    return fail(b, fv__json_bad_at(v, b->e, "a string with \\u0000 in it")), NULL;
}

static fv__jnode *build_number(builder *b, fv__jval v)
{
    int64_t i;
    double x;
    if (fv__json_whole(&i, v)) {
        fv__jnode *out = fv__jnode_int(b->t, i);
        return out ? out : no_memory(b, v);
    }
    if (!fv__json_real(&x, v)) return fail(b, fv__json_bad_at(v, b->e, "a number too large"));
    fv__jnode *out = fv__jnode_real(b->t, x);
    return out ? out : no_memory(b, v);
}

/* Duplicates lie beside each other in the sorted list.
 * O(n log n) by sorting; comparing all pairs would let a file of 100,000 keys take minutes. */
static bool check_keys(builder *b, fv__jval v, fv__jnode *object)
{
    size_t n = (size_t)object->n;
    fv__jnode **list = fv__pool_array(&b->t->pool, n + 1, sizeof *list);
    if (!list) return no_memory(b, v), false;
    if (n) memcpy(list, object->kid, n * sizeof *list);
    if (n) qsort(list, n, sizeof *list, by_key);
    for (size_t i = 1; i < n; i++)
        if (!strcmp(list[i - 1]->key, list[i]->key)) {
            fail(b, fv__json_bad_at(v, b->e, "the key \"%.100s\" is there twice", list[i]->key));
            return false;
        }
    if (n >= MANY) object->by_key = list;
    return true;
}

static fv__jnode *build(builder *b, fv__jval v, int depth);

/* The one recursion of the reader, at most `depth` levels. */
static fv__jnode *build_members(builder *b, fv__jval v, fv__jtype type, int depth)
{
    fv__jnode *out = fv__jnode_new(b->t, type);
    int64_t n = fv__json_count(v);
    if (!depth) return fail(b, fv__json_bad_at(v, b->e, "nested too deep"));
    if (n > INT32_MAX / 2 || !out || !reserve(b->t, out, (int)n)) return no_memory(b, v);
    for (fv__jiter it = fv__json_iter(v); fv__json_next(&it);) {
        fv__jval item = {.j = v.j, .at = it.value};
        fv__jnode *kid = build(b, item, depth - 1);
        if (!kid) return NULL;
        if (it.object) {
            fv__str raw = {v.j->s + it.key, it.key_end - it.key};
            if (!(kid->key = build_text(b, item, raw))) return NULL;
        }
        out->kid[out->n++] = kid;
    }
    return type == FV__J_ARRAY || check_keys(b, v, out) ? out : NULL;
}

static fv__jnode *build(builder *b, fv__jval v, int depth)
{
    char kind = fv__json_kind(v);
    fv__jnode *out;
    if (kind == '{') return build_members(b, v, FV__J_OBJECT, depth);
    if (kind == '[') return build_members(b, v, FV__J_ARRAY, depth);
    if (kind == '0') return build_number(b, v);
    out = fv__jnode_new(b->t, kind == '"'   ? FV__J_TEXT
                              : kind == 't' ? FV__J_TRUE
                              : kind == 'f' ? FV__J_FALSE
                                            : FV__J_NULL);
    if (!out) return no_memory(b, v);
    if (kind == '"' && !(out->text = build_text(b, v, fv__json_raw(v)))) return NULL;
    return out;
}

fv_status fv__jtree_parse(fv__jtree *t, const char *s, size_t n, const char *name, int depth,
                          fv_err *e)
{
    fv__json j = {.s = s, .n = n, .file = name};
    fv__jval root;
    builder b = {.t = t, .e = e};
    fv_status st = fv__json_open(&root, &j, e);
    if (!st) t->root = build(&b, root, depth);
    return st ? st : b.st;
}

void fv__jtree_free(fv__jtree *t)
{
    fv__pool_free(&t->pool);
    t->root = NULL;
}
