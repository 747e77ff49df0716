/* griffin_lim.h - samples whose mel spectrogram is a given one. */
#ifndef FV_MEDIA_GRIFFIN_LIM_H
#define FV_MEDIA_GRIFFIN_LIM_H

#include "fovea/author/audio.h"
#include "media/audio/spectrum.h"

/* mel (frames,mels): magnitudes through the filters of s, whose frames are centred.  out gets
 * (frames - 1) * hop samples at the spectrum's rate. */
fv_status fv__griffin_lim(const fv__spectrum *s, fv_clip *out, const float *mel, int64_t frames,
                          int rounds, uint64_t seed, fv_err *e);

#endif
