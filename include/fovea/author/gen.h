/* gen.h - for authors of tasks: scores of continuations, what a scheduler and a translator hold. */
#ifndef FOVEA_AUTHOR_GEN_H
#define FOVEA_AUTHOR_GEN_H

#include "fovea/chat.h"
#include "fovea/translate.h"

/* ---- scores, the scheduler ---- */

/* out[i] = log p(continuation i | the source or prompt), for n continuations of one: labels by
 * their likelihood. */
FV_API fv_status fv_score_continuations(double *out, fv_device *d, const fv_model *m,
                                        const int32_t *prompt, int64_t prompt_len,
                                        const int32_t *const *continuation, const int64_t *len,
                                        int64_t n, int32_t start, fv_err *e);

/* Tokens that went through a scheduler's model, prompts included. */
FV_API int64_t fv_scheduler_processed(const fv_scheduler *s);

/* ---- translators ---- */

/* Owned by the translator. */
FV_API const fv_tok *fv_translator_tok(const fv_translator *t);
FV_API const fv_model *fv_translator_model(const fv_translator *t);

#endif
