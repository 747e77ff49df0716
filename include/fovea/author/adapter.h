/* adapter.h - for those who train adapters: what a directory or a model says of one. */
#ifndef FOVEA_AUTHOR_ADAPTER_H
#define FOVEA_AUTHOR_ADAPTER_H

#include "fovea/model.h"

/* Reads adapter_config.json of a directory.  What PEFT has and this build does not is refused by
 * name. */
FV_API fv_status fv_adapter_read(fv_adapter_opt *out, const fv_env *env, const char *dir,
                                 fv_err *e);

/* The settings of the adapter that is trained on m; NULL: there is none. */
FV_API const fv_adapter_opt *fv_model_adapter(const fv_model *m);

#endif
