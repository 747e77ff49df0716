/* processor.h - what turns the raw inputs of a model into its numbers, and is saved beside it.
 *
 * A processor is of one kind: a tokenizer for text, the size and scale of images (with a tokenizer
 * inside it where the model also reads text), the means and deviations of a table's columns, or
 * none where the data are a model's inputs already.  It is read from and written to the files that
 * Hugging Face puts beside a model: tokenizer.json, tokenizer_config.json and chat templates,
 * preprocessor_config.json, processor_config.json.  Each kind is one file of src/media/processor
 * (author/processor.h). */
#ifndef FOVEA_PROCESSOR_H
#define FOVEA_PROCESSOR_H

#include "fovea/image.h"
#include "fovea/tok.h"

typedef struct fv_processor fv_processor;

/* The processor in a directory.  kind: the one that is expected ("tokenizer", "image", "table",
 * "none"); NULL: what the files say, "none" where there are none of any kind. */
FV_API fv_status fv_processor_open(fv_processor **out, const fv_env *env, const char *kind,
                                   const char *path, fv_err *e);
FV_API void fv_processor_close(fv_processor *p); /* NULL is allowed */
/* Writes its files into a directory that exists. */
FV_API fv_status fv_processor_save(const fv_processor *p, const char *dir, fv_err *e);
FV_API const char *fv_processor_kind(const fv_processor *p);

/* ---- tokenizers ---- */

/* Owns tok from here on, also on failure.  max_len: what model_max_length says; 0: nothing. */
FV_API fv_status fv_processor_from_tok(fv_processor **out, const fv_env *env, fv_tok *tok,
                                       int64_t max_len, fv_err *e);
/* NULL where it is no tokenizer and has none inside it. */
FV_API const fv_tok *fv_processor_tok(const fv_processor *p);

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

#endif
