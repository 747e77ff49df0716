/* speak_alignment.h - the alignment of what was said as a picture. */
#ifndef FV_TASK_SPEAK_ALIGNMENT_H
#define FV_TASK_SPEAK_ALIGNMENT_H

#include "fovea/author/speak.h"
#include "fovea/tok.h"

/* The head of cross-attention that is nearest to a diagonal, under the spectrogram; ids: the text's
 * tokens.  Written to an SVG file. */
fv_status fv__save_alignment(const fv_env *env, const char *path, const fv_said *said,
                             const fv_tok *tok, const int32_t *ids, fv_err *e);

#endif
