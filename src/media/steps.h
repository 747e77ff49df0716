/* steps.h - the steps of an image processor, read from preprocessor_config.json. */
#ifndef FV_MEDIA_STEPS_H
#define FV_MEDIA_STEPS_H

#include "fovea/author/processor.h"
#include "fovea/author/config.h"

/* at: where they stand in j: "" or "image_processor".  path: for messages. */
fv_status fv__steps_read(fv_image_steps *out, const fv_json *j, const char *at, const char *path,
                         fv_err *e);
/* The file of a new processor. */
fv_status fv__steps_json(fv_json **out, const fv_env *env, const fv_image_steps *s, fv_err *e);

#endif
