/* wav.h - WAV files of plain samples, read without a library. */
#ifndef FV_MEDIA_WAV_H
#define FV_MEDIA_WAV_H

#include "fovea/author/audio.h"

/* Where the samples of a file are, and how they are written. */
typedef struct fv__wav {
    const uint8_t *data;
    int64_t frames;
    int channels, bits, rate;
    bool is_float;
} fv__wav;

/* Whether the file is RIFF/WAVE with samples of 8, 16, 24 or 32 bits or floats of 32 or 64.  What
 * is compressed, or has no samples, is not. */
bool fv__wav_find(fv__wav *out, const void *bytes, size_t n);
/* The mean of the channels; samples that are not finite are refused. */
fv_status fv__wav_read(fv_clip *out, const fv_env *env, const fv__wav *w, const char *name,
                       fv_err *e);

#endif
