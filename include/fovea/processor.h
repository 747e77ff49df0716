/* processor.h - what turns the raw inputs of a model into its numbers, and is saved beside it.
 *
 * A processor is of one kind: a tokenizer for text, the size and scale of images (with a tokenizer
 * inside it where the model also reads text), the means and deviations of a table's columns, or
 * none where the data are a model's inputs already.  It is read from and written to the files that
 * Hugging Face puts beside a model: tokenizer.json, tokenizer_config.json and chat templates,
 * preprocessor_config.json, processor_config.json.  Each kind is one file of src/media/processor
 * (author/processor.h). */
#ifndef FOVEA_PROCESSOR_H
#define FOVEA_PROCESSOR_H

#include "fovea/tok.h"

typedef struct fv_processor fv_processor;

/* The processor in a directory.  kind: the one that is expected ("tokenizer", "image", "table",
 * "none"); NULL: what the files say, "none" where there are none of any kind. */
FV_API fv_status fv_processor_open(fv_processor **out, const fv_env *env, const char *kind,
                                   const char *path, fv_err *e);
FV_API void fv_processor_close(fv_processor *p); /* NULL is allowed */
/* Writes its files into a directory that exists. */
FV_API fv_status fv_processor_save(const fv_processor *p, const char *dir, fv_err *e);

/* ---- tokenizers ---- */

/* NULL where it is no tokenizer and has none inside it. */
FV_API const fv_tok *fv_processor_tok(const fv_processor *p);

#endif
