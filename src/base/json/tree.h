/* tree.h - a JSON document as a tree of values, read by reader.h, changed and printed here.
 *
 * For configurations: small, looked at in any order, written back with what nobody knows in them.
 * All of a tree lies in one pool; what is replaced stays there until the tree is freed. */
#ifndef FV_BASE_JSON_TREE_H
#define FV_BASE_JSON_TREE_H

#include "base/pool.h"

typedef enum fv__jtype {
    FV__J_NULL,
    FV__J_FALSE,
    FV__J_TRUE,
    FV__J_INT,  /* fits int64_t */
    FV__J_REAL, /* any other number */
    FV__J_TEXT,
    FV__J_ARRAY,
    FV__J_OBJECT
} fv__jtype;

typedef struct fv__jnode {
    fv__jtype type;
    const char *key; /* in an object */
    const char *text;
    int64_t i;
    double x;                  /* of both kinds of numbers */
    struct fv__jnode **kid;    /* members, in the order of the document */
    struct fv__jnode **by_key; /* the same sorted, where there are many and none was set since */
    int n, cap;
} fv__jnode;

typedef struct fv__jtree {
    fv__pool pool;
    fv__jnode *root;
} fv__jtree;

/* Any value, nested at most `depth` deep; duplicate keys and \u0000 are refused.  Out of memory is
 * FV_ENOMEM.  The pool's env is set; free the tree whatever comes back. */
fv_status fv__jtree_parse(fv__jtree *t, const char *s, size_t n, const char *name, int depth,
                          fv_err *e);
void fv__jtree_free(fv__jtree *t);

static inline bool fv__jnode_is(const fv__jnode *v, fv__jtype type) { return v && v->type == type; }
static inline bool fv__jnode_bool(const fv__jnode *v)
{
    return v && (v->type == FV__J_TRUE || v->type == FV__J_FALSE);
}
static inline bool fv__jnode_number(const fv__jnode *v)
{
    return v && (v->type == FV__J_INT || v->type == FV__J_REAL);
}

/* The member of that name, or NULL. */
fv__jnode *fv__jnode_get(const fv__jnode *object, const char *key);
/* The same value, whatever the order of members; 1 is 1.0. */
bool fv__jnode_equal(const fv__jnode *a, const fv__jnode *b);

/* New values; NULL: out of memory. */
fv__jnode *fv__jnode_new(fv__jtree *t, fv__jtype type);
fv__jnode *fv__jnode_text(fv__jtree *t, const char *s, size_t n);
fv__jnode *fv__jnode_int(fv__jtree *t, int64_t i);
fv__jnode *fv__jnode_real(fv__jtree *t, double x);
/* Puts a value at a key of an object, or behind an array (key NULL).  false: out of memory, or v is
 * NULL. */
bool fv__jnode_put(fv__jtree *t, fv__jnode *to, const char *key, fv__jnode *v);

/* As JSON text, with numbers as short as they can be; level is the indentation it stands at, -1 for
 * one line. */
void fv__jnode_print(fv_buf *b, const fv__jnode *v, int level);

#endif
