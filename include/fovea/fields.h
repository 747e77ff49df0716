/* fields.h - option structs by name: a table of keys with ranges, defaults and help.
 *
 * One table reads configurations and recipes, writes them back, and prints the help; options that
 * have one (fv_gen_fields, fv_train_fields) can be set from a command line or a file by it.
 * author/config.h has the macros that write such tables. */
#ifndef FOVEA_FIELDS_H
#define FOVEA_FIELDS_H

#include "fovea/env.h"

typedef enum fv_field_type {
    FV_END = 0,
    FV_FIELD_INT,
    FV_FIELD_FLOAT,
    FV_FIELD_BOOL,
    FV_FIELD_TEXT,
    FV_FIELD_CHOICE,
    FV_FIELD_WORDS,
    FV_FIELD_INTS,
    FV_FIELD_NUMBERS
} fv_field_type;

#define FV_MAX_LIST 16
/* Of a field of integers. */
typedef struct fv_int_list {
    int n;
    int at[FV_MAX_LIST];
} fv_int_list;

typedef struct fv_field {
    const char *name; /* the key; "rope_scaling.factor" is a member of the object at rope_scaling */
    fv_field_type type;
    /* of the member: int or int64_t; float or double; bool; char[]; an enum; char[]; fv_int_list;
     * float[] */
    size_t offset, size;
    double least, normal, greatest;
    const char *text; /* what a text, or a list of integers, is by default */
    /* of a choice, ending in NULL; normal is the index of the default */
    const char *const *choices;
    const char *help;
    unsigned flags; /* of fv_field_flag; stands behind help, where the macros put it */
} fv_field;

typedef enum fv_field_flag {
    FV_ON_RESUME = 1 /* a key of a recipe that a resumed run may change */
} fv_field_flag;

FV_API void fv_fields_default(void *obj, const fv_field *table);
/* One field from text, as in key=value. */
FV_API fv_status fv_fields_set(void *obj, const fv_field *table, const char *key, const char *value,
                               fv_err *e);
/* Writes the value as fv_fields_set would read it; returns its length, as snprintf, or -1 for an
 * unknown key and for a list of floats, which only a file can give. */
FV_API int fv_fields_get(const void *obj, const fv_field *table, const char *key, char *out,
                         size_t n);

#endif
