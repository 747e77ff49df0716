/* augment.h - images changed at random while a model is trained on them. */
#ifndef FV_DATA_AUGMENT_H
#define FV_DATA_AUGMENT_H

#include "data/dice.h"
#include "fovea/author/image.h"
#include "fovea/author/config.h"

typedef struct fv__augment {
    bool flip;
    int shift;
    int rand_augment, magnitude;
    float brightness, contrast, saturation, hue;
    float erase;
    float zoom; /* a key where nothing but the image changes with it (pixels.h) */
    float mixup, cutmix;
} fv__augment;

/* Their keys, for the table of an objective whose options have them as `augment`. */
#define FV__AUGMENT_KEYS(type_)                                                                    \
    FV_BOOL_KEY("flip", type_, augment.flip, false, "mirror half of the images"),                  \
        FV_INT_KEY("shift", type_, augment.shift, 0, 0, 1024,                                      \
                   "pixels by which an image is moved at most, each way"),                         \
        FV_INT_KEY("rand_augment", type_, augment.rand_augment, 0, 0, 16,                          \
                   "operations of RandAugment on each image"),                                     \
        FV_INT_KEY("magnitude", type_, augment.magnitude, 0, 9, 30, "their strength"),             \
        FV_FLOAT_KEY("brightness", type_, augment.brightness, 0, 0, 1,                             \
                     "colour jitter: factors 1 - this to 1 + this"),                               \
        FV_FLOAT_KEY("contrast", type_, augment.contrast, 0, 0, 1, "likewise"),                    \
        FV_FLOAT_KEY("saturation", type_, augment.saturation, 0, 0, 1, "likewise"),                \
        FV_FLOAT_KEY("hue", type_, augment.hue, 0, 0, 0.5,                                         \
                     "turns of the colour circle, each way"),                                      \
        FV_FLOAT_KEY("erase", type_, augment.erase, 0, 0, 1,                                       \
                     "share of images of which a rectangle is erased"),                            \
        FV_FLOAT_KEY("mixup", type_, augment.mixup, 0, 0, 8,                                       \
                     "alpha of the Beta by which two images are mixed; 0: they are not"),          \
        FV_FLOAT_KEY("cutmix", type_, augment.cutmix, 0, 0, 8,                                     \
                     "alpha by which a rectangle comes from another image; with both, by turns")

/* Changes an image of 1 or 3 channels in place; `other` is scratch whose memory is kept.  fill: the
 * level of each channel where there is nothing. */
fv_status fv__augment_image(const fv__augment *a, fv_image *im, fv_image *other,
                            const uint8_t fill[3], fv__dice *d, fv_err *e);

/* Mixes image i with image n - 1 - i of a batch x (n,C,H,W), in pairs; share[i] gets what is left
 * of image i itself.  rows: the examples, from which the random numbers come. */
void fv__augment_mix(const fv__augment *a, float *x, float *share, const int32_t *rows, int64_t n,
                     int64_t channels, int64_t height, int64_t width, fv_data_rng rng);

/* Makes of a pair of images (one thing in two styles) a pair of another thing: what is drawn once
 * happens to both alike.  Each change comes with the chance `share`: a rectangle comes from another
 * pair, channels are permuted, the image is turned by quarters and mirrored. */
typedef struct fv__joint {
    int x, y, width, height; /* the rectangle; width 0: none */
    int order[3];            /* the channel that each becomes */
    int turns;               /* quarters, counter-clockwise */
    bool mirror;
} fv__joint;
fv__joint fv__joint_of(double share, int width, int height, fv__dice *d);
/* im of the size above; part: the image of the other pair, of the same size, or NULL. */
fv_status fv__joint_apply(const fv__joint *j, fv_image *im, fv_image *other, const fv_image *part,
                          fv_err *e);

/* ---- augment_ops.c: one operation each, on all of an image ---- */

/* Pixel (x,y) becomes what was at (m0 x + m1 y + m2, m3 x + m4 y + m5), both measured from the
 * middle; between pixels bilinear, outside fill. */
void fv__image_affine(fv_image *to, const fv_image *from, const double m[6], const uint8_t fill[3]);
/* Blends with black, with its mean level, with its grey image, with a smoothed copy: factor 1
 * leaves it as it is. */
void fv__image_brightness(fv_image *im, double factor);
void fv__image_contrast(fv_image *im, double factor);
void fv__image_saturation(fv_image *im, double factor);
void fv__image_sharpness(fv_image *im, fv_image *other, double factor);
void fv__image_hue(fv_image *im, double turns);
void fv__image_posterize(fv_image *im, int bits);
void fv__image_solarize(fv_image *im, int threshold);
void fv__image_autocontrast(fv_image *im);
void fv__image_equalize(fv_image *im);

#endif
