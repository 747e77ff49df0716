/* decode.h - the decoders behind fv_image_decode. */
#ifndef FV_MEDIA_DECODE_H
#define FV_MEDIA_DECODE_H

#include "base/base.h"
#include "fovea/author/image.h"

/* One file in memory, and where its pixels go. */
typedef struct fv__coded {
    const fv_env *env;
    const uint8_t *bytes;
    size_t n;
    const char *name;
    int orientation; /* EXIF's, 1..8; 0: none is given */
    fv_image *out;
    fv_err *e;
} fv__coded;

fv_status fv__png_decode(fv__coded *f);
fv_status fv__jpeg_decode(fv__coded *f);

/* Room for what a header promises, unless that is more than an image may have, or more than so few
 * bytes can hold. */
fv_status fv__coded_alloc(const fv__coded *f, int64_t width, int64_t height, int channels,
                          int64_t most_pixels_per_byte);

/* Tag 0x0112 of the first directory of TIFF data, 1..8; 0: there is none that can be read. */
int fv__exif_orientation(const uint8_t *tiff, size_t n);
/* Turns the image upright. */
fv_status fv__exif_apply(fv_image *im, int orientation, fv_err *e);

#endif
