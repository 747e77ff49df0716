/* image.h - pictures in memory: decoding, resizing as Pillow does it, cropping, writing PNG.
 *
 * An image is 8 bits a channel, row by row from the top, the channels of a pixel side by side: 1
 * for grey, 3 for RGB, 4 for RGBA.  Every function that makes one uses the memory of `out` again
 * where it suffices, so `out` is zeroed the first time, kept from image to image, and freed
 * once. */
#ifndef FOVEA_AUTHOR_IMAGE_H
#define FOVEA_AUTHOR_IMAGE_H

#include "fovea/env.h"

/* Pixels of the largest image that is decoded. */
#define FV_IMAGE_MOST_PIXELS ((int64_t)1 << 27)

typedef struct fv_image {
    const fv_env *env;
    int width, height, channels;
    uint8_t *data; /* (height,width,channels) */
    size_t bytes;  /* allocated */
} fv_image;

/* Room for an image of that size, whose pixels are undefined.  On failure `out` is as it was. */
FV_API fv_status fv_image_new(fv_image *out, const fv_env *env, int width, int height, int channels,
                              fv_err *e);
FV_API void fv_image_free(fv_image *im); /* a zeroed one is allowed */

/* PNG or JPEG, told apart by their first bytes, turned upright as EXIF says.  Palettes become RGB
 * (with transparency RGBA), grey with transparency RGBA; of 16 bits the upper 8 stay.  CMYK is
 * refused, and so is a header that promises more pixels than the file can hold or than
 * FV_IMAGE_MOST_PIXELS. name: for messages. */
FV_API fv_status fv_image_decode(fv_image *out, const fv_env *env, const void *bytes, size_t n,
                                 const char *name, fv_err *e);
FV_API fv_status fv_image_open(fv_image *out, const fv_env *env, const char *path, fv_err *e);
/* As PNG. */
FV_API fv_status fv_image_save(const fv_image *im, const char *path, fv_err *e);

/* To another number of channels, in place; alpha is dropped, not blended, as Pillow's
 * convert("RGB") does; grey is 0.299 R + 0.587 G + 0.114 B. */
FV_API fv_status fv_image_convert(fv_image *im, int channels, fv_err *e);

/* The numbers are PIL's, as preprocessor_config.json has them. */
typedef enum fv_resample {
    FV_NEAREST = 0,
    FV_LANCZOS,
    FV_BILINEAR,
    FV_BICUBIC,
    FV_BOX,
    FV_HAMMING
} fv_resample;

/* A rectangle of pixels. */
typedef struct fv_window {
    int x, y, width, height;
} fv_window;

/* The image at width x height, of which only `window` is computed ({0}: all of it): the same levels
 * as Pillow's resize, antialiased when it shrinks.  out must not be in. */
FV_API fv_status fv_image_resize(fv_image *out, const fv_image *in, int width, int height,
                                 fv_resample how, fv_window window, fv_err *e);
/* The part of an image in a window, 0 where the window lies outside of it.  out must not be in. */
FV_API fv_status fv_image_crop(fv_image *out, const fv_image *in, fv_window window, fv_err *e);
/* Left and right exchanged, in place. */
FV_API void fv_image_mirror(fv_image *im);

/* The n numbers that a generator makes image number `image` of a seed from: normal ones; those
 * beyond `truncation` are drawn again, unless it is 0. */
FV_API void fv_latents_draw(float *z, int64_t n, uint64_t seed, uint64_t image, double truncation);

#endif
