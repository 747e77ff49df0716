/* copy.h - a model's directory, or what stands beside its weights, copied into another. */
#ifndef FV_MODEL_COPY_H
#define FV_MODEL_COPY_H

#include "fovea/env.h"
#include "fovea/error.h"

/* Tokenizer, generation_config.json, and whatever else is neither a weight, nor config.json, nor an
 * adapter; folders too, such as 1_Pooling. */
fv_status fv__copy_beside(const fv_env *env, const char *from, const char *to, fv_err *e);

/* All files and folders, into a new directory. */
fv_status fv__copy_dir(const fv_env *env, const char *from, const char *to, fv_err *e);

#endif
