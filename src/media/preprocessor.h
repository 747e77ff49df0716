/* preprocessor.h - the file of a processor of images or sounds. */
#ifndef FV_MEDIA_PREPROCESSOR_H
#define FV_MEDIA_PREPROCESSOR_H

#include "fovea/author/processor.h"

/* Writes it below dir under the name it was read by, preprocessor_config.json or, shared with other
 * parts of the model, processor_config.json; and the files of the tokenizer beside it, NULL:
 * none. */
fv_status fv__preprocessor_save(const fv_json *config, bool shared, const fv_processor *tok,
                                const char *dir, fv_err *e);

#endif
