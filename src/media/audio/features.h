/* features.h - what an audio processor makes of samples at the model's rate. */
#ifndef FV_MEDIA_FEATURES_H
#define FV_MEDIA_FEATURES_H

#include "fovea/author/audio.h"
#include "media/audio/spectrum.h"

/* The spectrum that a kind of processor is made of; none for FV_SOUND_RAW. */
fv__spectrum_opt fv__sound_spectrum(const fv_sound_steps *s);
/* The shape of what n samples become. */
fv_status fv__sound_shape(const fv_sound_steps *s, int64_t n, fv_shape *out, const char *name,
                          fv_err *e);
/* Mean 0 and variance 1, in place, where the steps say so: of what was recorded, before silence is
 * appended. */
void fv__sound_normalise(const fv_sound_steps *s, float *x, int64_t n);
/* out has room for that shape. */
fv_status fv__sound_features(const fv_sound_steps *s, const fv__spectrum *spectrum, float *out,
                             fv_shape shape, const float *x, int64_t n, fv_err *e);
/* Samples that are read of n: fewer where the rest is cut off, more where silence is appended. */
int64_t fv__sound_samples(const fv_sound_steps *s, int64_t n);

#endif
