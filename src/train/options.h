/* options.h - keys of a recipe that one file declares, checks and reads.
 *
 * fv_train_opt has the options that programs set by name of member.  A key that a single file of
 * src/train reads needs no place there: the file has a struct of its own, the table of its fields
 * (range, default, help, whether a resumed run may change it) and one line,
 *
 *     const fv__own_keys fv__own_trainer = {"train", fields, sizeof(options)};
 *
 * named after the file.  The build lists the files that have such a line; a recipe reads, writes,
 * compares and explains their keys as those of the section's own table.  All the structs of a
 * recipe lie in one block, fv_train_opt.own; a program without a recipe has no block, and gets the
 * defaults.  (An X-macro that makes member and entry from one line was the alternative: its list
 * and the code that uses the key are two files again.) */
#ifndef FV_TRAIN_OPTIONS_H
#define FV_TRAIN_OPTIONS_H

#include "fovea/author/config.h"
#include "fovea/train.h"

typedef struct fv__own_keys {
    const char *section;
    const fv_field *table;
    size_t size; /* of the struct */
} fv__own_keys;

const fv__own_keys *fv__own_keys_at(int i); /* NULL behind the last */
/* The entry of a key of this section, and whose it is; NULL: no file has it. */
const fv_field *fv__own_find(const char *section, const char *key, const fv__own_keys **of);

/* A block with all structs, filled with their defaults, and the struct of one file in it. */
size_t fv__own_bytes(void);
void fv__own_default(void *block);
void *fv__own_part(const void *block, const fv__own_keys *k);

/* Copies a file's options out of a block; the defaults where that is NULL. */
void fv__own_get(void *out, const fv__own_keys *k, const void *block);

#endif
