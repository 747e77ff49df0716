/* json.h - the inside of an fv_json: a tree and where it came from. */
#ifndef FV_STORE_JSON_H
#define FV_STORE_JSON_H

#include "base/json/tree.h"
#include "fovea/store.h"
#include "fovea/author/config.h"

struct fv_json {
    const fv_env *env;
    fv__jtree tree; /* its root is an object */
    char *name;     /* of the file, for messages */
};

/* The value at a path of keys and indices joined by dots, or NULL. */
fv__jnode *fv__json_at(const fv_json *j, const char *at);

/* How a key that is in no table is taken: object is what holds it, v its value. */
typedef enum fv__verdict { FV__KEY_REFUSED, FV__KEY_HARMLESS, FV__KEY_IGNORED } fv__verdict;
fv__verdict fv__key_judge(const fv_key_rule *const *rules, const fv__jnode *object, const char *key,
                          const fv__jnode *v);

/* Fields of integers (fields_list.c): from text with blanks or commas between, from and to JSON.
 * False leaves the list in any state. */
bool fv__list_parse(fv_int_list *out, const fv_field *f, const char *text);
bool fv__list_read(fv_int_list *out, const fv_field *f, const fv__jnode *v);
bool fv__list_same(const fv_int_list *list, const fv_field *f, const fv__jnode *v);
fv__jnode *fv__list_node(fv__jtree *t, const fv_int_list *list, const fv_field *f);
int fv__list_print(const fv_int_list *list, char *out, size_t n);

/* Fields of floats (fields_numbers.c): how many the member has; from and to JSON. */
int fv__numbers_count(const void *obj, const fv_field *f);
bool fv__numbers_read(void *obj, const fv_field *f, const fv__jnode *v);
bool fv__numbers_same(const void *obj, const fv_field *f, const fv__jnode *v);
fv__jnode *fv__numbers_node(fv__jtree *t, const void *obj, const fv_field *f);

#endif
