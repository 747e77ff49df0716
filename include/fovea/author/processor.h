/* processor.h - for authors of processors: a kind is one file of src/media/processor.
 *
 * x.c defines `const fv_processor_type fv__processor_x`; the build lists the folder. */
#ifndef FOVEA_AUTHOR_PROCESSOR_H
#define FOVEA_AUTHOR_PROCESSOR_H

#include "fovea/processor.h"
#include "fovea/store.h"

typedef struct fv_processor_type {
    const char *name; /* "tokenizer" */
    size_t size;      /* of its own struct, zeroed before open */
    /* Whether the files at path are of this kind.  preprocessor: preprocessor_config.json of the
     * directory, NULL where there is none. */
    bool (*recognise)(const fv_env *env, const char *path, const fv_json *preprocessor);
    fv_status (*open)(void *self, const fv_env *env, const char *path, fv_err *e);
    fv_status (*save)(const void *self, const char *dir, fv_err *e);
    void (*close)(void *self); /* also after an open that failed */
} fv_processor_type;

/* A processor of a type with its struct zeroed, for a file that makes one from something else than
 * a directory; fv_processor_self is that struct. */
FV_API fv_status fv_processor_new(fv_processor **out, const fv_env *env,
                                  const fv_processor_type *type, fv_err *e);
FV_API void *fv_processor_self(const fv_processor *p, const fv_processor_type *type);

#endif
