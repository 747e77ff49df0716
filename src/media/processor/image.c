/* image.c - the processor of images: to the size and the scale of numbers that a model was trained
 * with.
 *
 * The steps are those of transformers' image processors (steps.c), on 8 bits until the last one:
 *
 *     channels -> resize -> crop -> y = (x * factor - mean) / deviation
 *
 * Eight bits have 256 values, so the last step is a table for each channel, computed with the
 * roundings of transformers: x * factor in double, rounded to float, the rest in float.
 *
 * The file is written back as it was read, with all that only other programs know.  A model that
 * also reads text has a tokenizer in its directory, which is opened and saved with it. */
#include <math.h>
#include <stdio.h>

#include "fovea/author/processor.h"
#include "base/base.h"
#include "media/preprocessor.h"
#include "media/steps.h"

typedef struct image {
    const fv_env *env;
    fv_json *config;
    bool shared; /* it came from processor_config.json */
    fv_image_steps steps;
    fv_processor *tok; /* NULL: none */
    float table[3][256];
} image;

const fv_processor_type fv__processor_image;

static const char *place(const fv_json *j)
{
    return fv_json_count(j, "image_processor") > 0 ? "image_processor" : "";
}

static bool recognise(const fv_env *env, const char *path, const fv_json *j)
{
    (void)env, (void)path;
    return j && (fv_json_has(j, "image_processor_type") || fv_json_has(j, "image_mean") ||
                 *place(j) != '\0');
}

/* The last steps for each of the 256 levels. */
static void fill_table(image *m)
{
    const fv_image_steps *s = &m->steps;
    for (int c = 0; c < s->channels; c++)
        for (int i = 0; i < 256; i++) {
            float x = (float)(s->rescale ? i * s->factor : i);
            if (s->normalise) x = (x - (float)s->mean[c]) / (float)s->deviation[c];
            m->table[c][i] = x;
        }
}

static fv_status open_image(void *self, const fv_env *env, const char *dir, fv_err *e)
{
    image *m = self;
    char path[FV_PATH];
    m->env = env;
    fv_status st = fv__preprocessor_open(&m->config, &m->shared, path, env, dir, e);
    if (!st) st = fv__steps_read(&m->steps, m->config, place(m->config), path, e);
    if (!st) fill_table(m);
    return st ? st : fv__preprocessor_tok(&m->tok, env, dir, e);
}

fv_status fv_processor_from_steps(fv_processor **out, const fv_env *env,
                                  const fv_image_steps *steps, fv_processor *tok, fv_err *e)
{
    fv_status st = fv__preprocessor_new(out, env, &fv__processor_image, tok, e);
    if (st) return st;
    image *m = fv_processor_self(*out, &fv__processor_image);
    m->env = env;
    m->tok = tok;
    m->steps = *steps;
    if (!m->steps.channels) m->steps.channels = 3;
    if (m->steps.factor == 0) m->steps.factor = 1 / 255.;
    for (int i = 0; i < 3; i++)
        if (!(m->steps.deviation[i] > 0)) m->steps.deviation[i] = 1;
    st = fv__steps_json(&m->config, env, &m->steps, e);
    if (st) {
        fv_processor_close(*out);
        *out = NULL;
        return st;
    }
    fill_table(m);
    return FV_OK;
}

static fv_status save(const void *self, const char *dir, fv_err *e)
{
    const image *m = self;
    return fv__preprocessor_save(m->config, m->shared, m->tok, dir, e);
}

static void close_image(void *self)
{
    image *m = self;
    fv_json_close(m->config);
    fv_processor_close(m->tok);
}

static const fv_processor *inside(const void *self) { return ((const image *)self)->tok; }

/* ---- using it ---- */

const fv_image_steps *fv_processor_steps(const fv_processor *p)
{
    const image *m = fv_processor_self(p, &fv__processor_image);
    return m ? &m->steps : NULL;
}

/* Both edges with the aspect ratio kept, as transformers computes them in Python: the shorter one
 * is `shortest`, or less where the longer one would be more than `longest`. */
static void keep_aspect(const fv_image_steps *s, int width, int height, int *w, int *h)
{
    double less = width < height ? width : height, more = width < height ? height : width;
    double size = s->shortest;
    int edge = s->shortest;
    if (s->longest && more / less * size > s->longest) {
        size = s->longest * less / more;
        edge = (int)nearbyint(size);
    }
    *w = *h = edge;
    if (width < height)
        *h = (int)(size * height / width);
    else
        *w = (int)(size * width / height);
    if (less == edge && s->longest) *w = width, *h = height;
}

/* Width and height behind the resize. */
static fv_status resized(const fv_image_steps *s, int width, int height, int *w, int *h, fv_err *e)
{
    *w = width, *h = height;
    if (s->resize && s->shortest)
        keep_aspect(s, width, height, w, h);
    else if (s->resize)
        *w = s->width, *h = s->height;
    if (s->multiple) *w -= *w % s->multiple, *h -= *h % s->multiple;
    if (*w < 1 || *h < 1 || (int64_t)*w * *h > FV_IMAGE_MOST_PIXELS)
        return fv_fail(e, FV_EARG, "an image of %d x %d pixels becomes one of %d x %d", width,
                       height, *w, *h);
    return FV_OK;
}

fv_status fv_processor_image_size(const fv_processor *p, int width, int height, int *out_width,
                                  int *out_height, fv_err *e)
{
    const fv_image_steps *s = fv_processor_steps(p);
    if (!s) return fv_fail(e, FV_EARG, "the model has no image processor");
    if (s->crop_height) {
        *out_width = s->crop_width, *out_height = s->crop_height;
        return FV_OK;
    }
    return resized(s, width, height, out_width, out_height, e);
}

static int floor_half(int x) { return x >= 0 ? x / 2 : -((1 - x) / 2); }

/* Of a resized image only what the crop keeps is computed, unless it reaches beyond the image. */
static fv_status resize_and_crop(const fv_image_steps *s, fv_image *out, const fv_image *in, int w,
                                 int h, fv_err *e)
{
    fv_window all = {0, 0, w, h}, crop = all;
    if (s->crop_height)
        crop = (fv_window){floor_half(w - s->crop_width), floor_half(h - s->crop_height),
                           s->crop_width, s->crop_height};
    if (crop.x >= 0 && crop.y >= 0 && crop.width <= w && crop.height <= h)
        return fv_image_resize(out, in, w, h, s->resample, crop, e);
    fv_image whole = {0};
    fv_status st = fv_image_resize(&whole, in, w, h, s->resample, all, e);
    if (!st) st = fv_image_crop(out, &whole, crop, e);
    fv_image_free(&whole);
    return st;
}

fv_status fv_processor_image_fit(const fv_processor *p, fv_image *out, fv_image *in, fv_err *e)
{
    const fv_image_steps *s = fv_processor_steps(p);
    int w, h;
    if (!s) return fv_fail(e, FV_EARG, "the model has no image processor");
    fv_status st = fv_image_convert(in, s->channels, e);
    if (!st) st = resized(s, in->width, in->height, &w, &h, e);
    return st ? st : resize_and_crop(s, out, in, w, h, e);
}

void fv_processor_image_floats(const fv_processor *p, const fv_image *im, float *out, int64_t row,
                               int64_t plane)
{
    const image *m = fv_processor_self(p, &fv__processor_image);
    int ch = im->channels, w = im->width;
    if (!row) row = w;
    if (!plane) plane = row * im->height;
    for (int c = 0; c < ch; c++) {
        const float *table = m->table[c];
        for (int y = 0; y < im->height; y++) {
            const uint8_t *x = im->data + (int64_t)y * w * ch + c;
            float *to = out + c * plane + y * row;
            for (int i = 0; i < w; i++) to[i] = table[x[(int64_t)i * ch]];
        }
    }
}

/* What was subtracted and divided by is undone; what lies outside 0..255 is cut. */
void fv_processor_image_levels(const fv_processor *p, const float *x, fv_image *out)
{
    const fv_image_steps *s = fv_processor_steps(p);
    int64_t plane = (int64_t)out->height * out->width;
    for (int64_t i = 0; i < plane; i++)
        for (int c = 0; c < out->channels; c++) {
            double y = (double)x[c * plane + i];
            if (s->normalise) y = y * s->deviation[c] + s->mean[c];
            if (s->rescale) y /= s->factor;
            y = y < 0 ? 0 : y;
            out->data[i * out->channels + c] = (uint8_t)(y > 254.5 ? 255 : y + 0.5);
        }
}

const fv_processor_type fv__processor_image = {
    .name = "image",
    .size = sizeof(image),
    .recognise = recognise,
    .open = open_image,
    .save = save,
    .close = close_image,
    .inside = inside,
};
