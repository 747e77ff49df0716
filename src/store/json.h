/* json.h - the inside of an fv_json: a jansson object and where it came from. */
#ifndef FV_STORE_JSON_H
#define FV_STORE_JSON_H

#include <jansson.h>

#include "base/base.h"
#include "fovea/store.h"

struct fv_json {
    const fv_env *env;
    json_t *root;
    char *name; /* of the file, for messages */
};

/* The value at a place, or NULL. */
json_t *fv__json_at(const fv_json *j, const char *at);

/* A value as JSON text, with numbers as short as they can be; level is the indentation it stands
 * at, -1 for one line. */
void fv__json_print(fv_buf *b, const json_t *v, int level);

#endif
