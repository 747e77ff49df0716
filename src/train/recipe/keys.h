/* keys.h - the tables of a recipe's keys, by section. */
#ifndef FV_RECIPE_KEYS_H
#define FV_RECIPE_KEYS_H

#include <stddef.h>

#include "train/recipe/recipe.h"

/* Besides the table a section has the keys that files of src/train declare for it
 * (train/options.h), and [data] those of the objective. */
typedef struct fv__section {
    const char *name;
    const fv_field *table; /* NULL: it has no others */
    size_t offset;         /* of its options in an fv_recipe */
} fv__section;
extern const fv__section fv__sections[]; /* ends in {0}; [model] has no table of its own */

/* The entry of a key; NULL where the table is NULL or has none. */
const fv_field *fv__field_find(const fv_field *table, const char *key);
/* The first objective that has a key of its own of this name, or NULL. */
const fv_objective *fv__objective_with(const char *key);

#endif
