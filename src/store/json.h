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

#endif
