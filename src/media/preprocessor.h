/* preprocessor.h - the file of a processor of images or sounds. */
#ifndef FV_MEDIA_PREPROCESSOR_H
#define FV_MEDIA_PREPROCESSOR_H

#include "base/base.h"
#include "fovea/author/processor.h"
#include "store/json.h"

/* Reads it from dir: preprocessor_config.json or, where there is none and parts of the model share
 * one file, processor_config.json; path: the file, for messages. */
fv_status fv__preprocessor_open(fv_json **config, bool *shared, char path[FV_PATH],
                                const fv_env *env, const char *dir, fv_err *e);
/* The tokenizer in dir, beside it; NULL: there is none. */
fv_status fv__preprocessor_tok(fv_processor **tok, const fv_env *env, const char *dir, fv_err *e);
/* fv_processor_new for one that will own tok, which is closed on failure. */
fv_status fv__preprocessor_new(fv_processor **out, const fv_env *env, const fv_processor_type *type,
                               fv_processor *tok, fv_err *e);

/* Writes it below dir under the name it was read by, preprocessor_config.json or, shared with other
 * parts of the model, processor_config.json; and the files of the tokenizer beside it, NULL:
 * none. */
fv_status fv__preprocessor_save(const fv_json *config, bool shared, const fv_processor *tok,
                                const char *dir, fv_err *e);

/* Writes JSON that was printed into b, from a tree; frees both. */
fv_status fv__preprocessor_write(const fv_env *env, const char *path, fv_buf *b, fv__jtree *tree,
                                 fv_err *e);

#endif
