/* processor.h - for authors of processors: a kind is one file of src/media/processor.
 *
 * x.c defines `const fv_processor_type fv__processor_x`; the build lists the folder. */
#ifndef FOVEA_AUTHOR_PROCESSOR_H
#define FOVEA_AUTHOR_PROCESSOR_H

#include "fovea/author/image.h"
#include "fovea/processor.h"
#include "fovea/author/config.h"

typedef struct fv_processor_type {
    const char *name; /* "tokenizer" */
    size_t size;      /* of its own struct, zeroed before open */
    /* Whether the files at path are of this kind.  preprocessor: preprocessor_config.json of the
     * directory, NULL where there is none. */
    bool (*recognise)(const fv_env *env, const char *path, const fv_json *preprocessor);
    fv_status (*open)(void *self, const fv_env *env, const char *path, fv_err *e);
    fv_status (*save)(const void *self, const char *dir, fv_err *e);
    void (*close)(void *self); /* also after an open that failed */
    /* A processor inside it (the tokenizer beside an image processor); NULL: it never has one. */
    const struct fv_processor *(*inside)(const void *self);
} fv_processor_type;

/* A processor of a type with its struct zeroed, for a file that makes one from something else than
 * a directory; fv_processor_self is that struct, or that of the processor inside p where that one
 * is of the type. */
FV_API fv_status fv_processor_new(fv_processor **out, const fv_env *env,
                                  const fv_processor_type *type, fv_err *e);
FV_API void *fv_processor_self(const fv_processor *p, const fv_processor_type *type);

/* ---- tokenizers ---- */

typedef struct fv_special_ids {
    int32_t pad, bos, eos, cls, sep, mask, unk; /* -1: there is none */
} fv_special_ids;
/* Ids of the special tokens: those that tokenizer_config.json names, else those of the usual names.
 * All -1 where it is no tokenizer. */
FV_API fv_special_ids fv_processor_ids(const fv_processor *p);

/* ---- tables of numbers ---- */

/* Measures the mean and standard deviation of n named columns; x has rows x n numbers, row by
 * row. */
FV_API fv_status fv_processor_fit_table(fv_processor **out, const fv_env *env,
                                        const char *const *column, int n, const float *x,
                                        int64_t rows, fv_err *e);
/* The columns it was fitted to; 0 and NULL where it is no table. */
FV_API int fv_processor_columns(const fv_processor *p);
FV_API const char *fv_processor_column(const fv_processor *p, int i);
/* Normalises rows of numbers in place, (x - mean) / deviation column by column, and back. */
FV_API void fv_processor_normalise(const fv_processor *p, float *x, int64_t rows);
FV_API void fv_processor_restore(const fv_processor *p, float *x, int64_t rows);

/* ---- images ---- */

/* The steps from a decoded image to pixel_values, in this order.  Sizes of 0 are not given. */
typedef struct fv_image_steps {
    int channels; /* 1: grey, 3: RGB; what an image has otherwise is converted */
    bool resize;
    /* to exactly height x width; or, where shortest is given, keeping the aspect ratio: the shorter
     * edge to shortest unless that makes the longer one more than longest (0: no limit) */
    int height, width, shortest, longest;
    int multiple; /* both edges are cut down to multiples of it; 0: not */
    fv_resample resample;
    int crop_height,
        crop_width;          /* the middle, with zeros around it where there is less; 0: no crop */
    bool rescale, normalise; /* x * factor; (x - mean) / deviation, each channel for itself */
    double factor, mean[3], deviation[3];
    bool pad; /* images of a batch may differ in size: zeros at the right and below */
} fv_image_steps;

/* A new one, as preprocessor_config.json of a ViTImageProcessor.  Zeros in `steps` mean: 3
 * channels, no step.  tok: NULL, or the tokenizer of a model that also reads text, owned from here
 * on. */
FV_API fv_status fv_processor_from_steps(fv_processor **out, const fv_env *env,
                                         const fv_image_steps *steps, fv_processor *tok, fv_err *e);
/* NULL where it is no image processor. */
FV_API const fv_image_steps *fv_processor_steps(const fv_processor *p);
/* What an image of width x height becomes. */
FV_API fv_status fv_processor_image_size(const fv_processor *p, int width, int height,
                                         int *out_width, int *out_height, fv_err *e);
/* The steps up to the crop: channels, size, crop, in 8 bits; out must not be in, whose channels may
 * be converted in place.  Then the rest, to floats: out (channels,height,width), with `row` floats
 * from a row to the next and `plane` from a channel to the next (0: without gaps). */
FV_API fv_status fv_processor_image_fit(const fv_processor *p, fv_image *out, fv_image *in,
                                        fv_err *e);
FV_API void fv_processor_image_floats(const fv_processor *p, const fv_image *im, float *out,
                                      int64_t row, int64_t plane);
/* The way back, of an image of that size: x (channels,height,width) to levels. */
FV_API void fv_processor_image_levels(const fv_processor *p, const float *x, fv_image *out);

/* "tokenizer", "image", "table", ... */
FV_API const char *fv_processor_kind(const fv_processor *p);

/* A processor of a tokenizer: owns tok from here on, also on failure.  max_len: what
 * model_max_length says; 0: nothing. */
FV_API fv_status fv_processor_from_tok(fv_processor **out, const fv_env *env, fv_tok *tok,
                                       int64_t max_len, fv_err *e);

#endif
