/* pixels.h - images as pixel_values of a batch: decoded, fitted, changed at random, normalised. */
#ifndef FV_DATA_PIXELS_H
#define FV_DATA_PIXELS_H

#include "data/augment.h"
#include "data/decoded.h"
#include "fovea/author/data.h"

typedef struct fv__pixels {
    const fv_env *env;
    const fv_processor *processor;
    fv_images *images; /* owned */
    fv__augment augment;
    uint8_t fill[3]; /* the mean, as levels */
    int width, height, channels;
    uint8_t *cache; /* all of them, (n,height,width,channels); NULL: they are decoded every time */
    size_t cache_bytes;
} fv__pixels;

/* Owns images from here on, also on failure.  Where all of them fit into `cache` bytes they are
 * decoded now, on all processors. */
fv_status fv__pixels_open(fv__pixels *p, const fv_env *env, const fv_processor *processor,
                          fv_images *images, const fv__augment *augment, size_t cache, fv_err *e);
void fv__pixels_close(fv__pixels *p);

/* Puts pixel_values (n,C,H,W) and, where images are mixed, label_share (n).  The batch of an
 * evaluation (epoch -1) is not changed at random. */
fv_status fv__pixels_put(const fv__pixels *p, fv_batch *out, const int32_t *rows, int64_t n,
                         fv_data_rng how, fv_err *e);
/* The same images, changed by other dice, as another part of the batch; they are not mixed. */
fv_status fv__pixels_put_view(const fv__pixels *p, fv_batch *out, const char *name,
                              const int32_t *rows, int64_t n, fv_data_rng how, fv_err *e);
/* Both images of each pair, (2n,C,H,W): first all first ones.  With the chance `share` both are
 * changed alike, also by a part of another pair (fv__joint), before each is changed by dice of its
 * own; example: whose dice the former are. */
typedef struct fv__pair {
    int32_t image[2], part[2];
    int32_t example;
} fv__pair;
fv_status fv__pixels_put_pairs(const fv__pixels *p, fv_batch *out, const char *name,
                               const fv__pair *pairs, int64_t n, float share, fv_data_rng how,
                               fv_err *e);
/* Whether batches have label_share, which the loss then reads. */
static inline bool fv__pixels_mixed(const fv__pixels *p, fv_data_rng how)
{
    return how.epoch >= 0 && (p->augment.mixup > 0 || p->augment.cutmix > 0);
}

/* The options of a new image processor, as keys of an objective whose options have them as
 * `steps`. */
typedef struct fv__new_steps {
    int image_size, channels;
    int resample; /* of fv__resample_words */
    char mean[64], std[64];
} fv__new_steps;
extern const char *const fv__resample_words[];

#define FV__STEPS_KEYS(type_)                                                                      \
    FV_INT_KEY("image_size", type_, steps.image_size, 0, 0, 4096,                                  \
               "pixels of a side, to which images are resized; 0: the first image's"),             \
        FV_INT_KEY("channels", type_, steps.channels, 0, 0, 3, "1: grey, 3: RGB; 0: the first's"), \
        FV_CHOICE_KEY("resample", type_, steps.resample, 2, fv__resample_words,                    \
                      "how images are resized"),                                                   \
        FV_TEXT_KEY("mean", type_, steps.mean, "",                                                 \
                    "of each channel in 0..1, to be subtracted; empty: that of the data"),         \
        FV_TEXT_KEY("std", type_, steps.std, "", "by which is divided; empty: that of the data")

/* The keys of an objective whose options have steps, augment and cache (MiB)... */
#define FV__PIXELS_KEYS(type_)                                                                     \
    FV__STEPS_KEYS(type_), FV__AUGMENT_KEYS(type_), FV__CACHE_KEY(type_),                          \
        FV_FLOAT_KEY("zoom", type_, augment.zoom, 0, 0, 0.9,                                       \
                     "show a part of the image, its sides by this share smaller at most")
/* ...and of one whose images a table may name, with the options images and where. */
#define FV__IMAGES_KEYS(type_)                                                                     \
    FV_TEXT(type_, images, "",                                                                     \
            "what a table's paths are looked up in: a folder, an archive, an IDX file"),           \
        FV_TEXT(type_, where, "", "only rows of a table with field=value")

/* Options of fv_images_open: an empty text is none. */
static inline fv_images_opt fv__images_source(const fv_records *from, const char *images,
                                              const char *where)
{
    return (fv_images_opt){.from = *from,
                           .images = *images ? images : NULL,
                           .where = *where ? where : NULL};
}

/* The images that an objective trains on: fv_images_open, then fv__pixels_open with a cache of that
 * many MiB. */
fv_status fv__pixels_open_source(fv__pixels *p, const fv_feed_opt *t, const fv_images_opt *source,
                                 const fv__augment *augment, int64_t cache, fv_data_report *report,
                                 fv_err *e);

/* Encodes nothing itself: calls each with the text of every image, in order, and an encoding to use
 * for it.  Images without texts are refused. */
typedef fv_status fv__pixels_text_fn(void *user, fv_encoding *enc, const char *text, int64_t i,
                                     fv_err *e);
fv_status fv__pixels_texts(const fv__pixels *p, const fv_tok *tok, fv__pixels_text_fn *each,
                           void *user, fv_err *e);

/* fv_feed.count of a feed that begins with its fv__pixels. */
int64_t fv__pixels_count(const void *self, int64_t epoch);

/* Calls each for the text of every image that has one. */
fv_status fv__images_texts(const fv_env *env, const fv_images_opt *source,
                           void (*each)(void *user, const char *text, size_t len), void *user,
                           fv_err *e);

/* A processor for the images of a data set; tok as in fv_processor_from_steps. */
fv_status fv__pixels_processor_of(fv_processor **out, const fv_env *env, const fv__new_steps *how,
                                  const fv_images_opt *source, fv_processor *tok, fv_err *e);

#endif
