/* copy.h - what stands beside a model's weights, copied into another directory. */
#ifndef FV_MODEL_COPY_H
#define FV_MODEL_COPY_H

#include "fovea/env.h"
#include "fovea/error.h"

/* Tokenizer, generation_config.json, and whatever else is neither a weight, nor config.json, nor an
 * adapter; folders too, such as 1_Pooling. */
fv_status fv__copy_beside(const fv_env *env, const char *from, const char *to, fv_err *e);

#endif
