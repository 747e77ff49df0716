/* pixels.c - images as pixel_values of a batch.
 *
 * Small data sets are decoded and fitted once, in 8 bits, when they are opened: CIFAR-10 takes 150
 * MB. What is left for each batch is to change and normalise copies.  Larger ones are decoded each
 * time, by the loader's workers. */
#include "data/pixels.h"

#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/base.h"
#include "base/decimal.h"

const char *const fv__resample_words[] = {"nearest", "lanczos", "bilinear", "bicubic",
                                          "box",     "hamming", NULL};

/* ---- decoding ---- */

/* The memory of one thread. */
typedef struct scratch {
    fv_image raw, fit, other, part;
} scratch;

static void scratch_free(scratch *s)
{
    fv_image_free(&s->raw);
    fv_image_free(&s->fit);
    fv_image_free(&s->other);
    fv_image_free(&s->part);
}

static size_t image_bytes(const fv__pixels *p)
{
    return (size_t)p->width * (size_t)p->height * (size_t)p->channels;
}

/* Image i into s->fit. */
static fv_status get(const fv__pixels *p, int64_t i, scratch *s, fv_err *e)
{
    fv_status st = FV_OK;
    if (p->cache) {
        st = fv_image_new(&s->fit, p->env, p->width, p->height, p->channels, e);
        if (!st) memcpy(s->fit.data, p->cache + (size_t)i * image_bytes(p), image_bytes(p));
        return st;
    }
    st = fv_images_get(p->images, i, &s->raw, e);
    if (!st) st = fv_processor_image_fit(p->processor, &s->fit, &s->raw, e);
    if (!st && (s->fit.width != p->width || s->fit.height != p->height))
        st = fv_fail(e, FV_ESHAPE,
                     "an image becomes %d x %d pixels, another %d x %d: the images of a batch need "
                     "one size",
                     s->fit.width, s->fit.height, p->width, p->height);
    return st;
}

/* Images after resizing and before augmentation, as bytes: a quarter of their floats, and
 * augmentation still differs by epoch. */
static fv_status fill_cache(fv__pixels *p, uint8_t *cache, fv_err *e)
{
    int64_t n = fv_images_count(p->images);
    fv_status first = FV_OK;
    int64_t at = n; /* of the first failure, whatever the order in which threads find some */
#pragma omp parallel
    {
        scratch s = {0};
        fv_err why;
#pragma omp for schedule(static)
        for (int64_t i = 0; i < n; i++) {
            fv_status st = get(p, i, &s, &why);
            if (!st) {
                memcpy(cache + (size_t)i * image_bytes(p), s.fit.data, image_bytes(p));
                continue;
            }
#pragma omp critical /* unnamed: a name would be an exported symbol */
            if (i < at) {
                at = i;
                first = fv_fail(e, st, "%s", why.text);
            }
        }
        scratch_free(&s);
    }
    return first;
}

/* The size that the first image gets is that of all. */
static fv_status measure_size(fv__pixels *p, fv_err *e)
{
    fv_image im = {0};
    fv_status st = fv_images_get(p->images, 0, &im, e);
    if (!st)
        st = fv_processor_image_size(p->processor, im.width, im.height, &p->width, &p->height, e);
    fv_image_free(&im);
    return st;
}

/* fill is the processor's mean as a level: what augmentation uncovers becomes 0 after
 * normalisation. Without a cache, or with too little memory for it, images are decoded each time.
 */
fv_status fv__pixels_open(fv__pixels *p, const fv_env *env, const fv_processor *processor,
                          fv_images *images, const fv__augment *augment, size_t cache, fv_err *e)
{
    const fv_image_steps *s = fv_processor_steps(processor);
    *p = (fv__pixels){.env = env, .processor = processor, .images = images, .augment = *augment};
    if (!s) return fv_fail(e, FV_EARG, "the model has no image processor");
    p->channels = s->channels;
    for (int c = 0; c < s->channels; c++)
        p->fill[c] = (uint8_t)fmin(255, fmax(0, s->mean[c] / s->factor + 0.5));
    fv_status st = measure_size(p, e);
    size_t n = (size_t)fv_images_count(images), bytes;
    if (st || !fv__mul_size(&bytes, n, image_bytes(p)) || bytes > cache) return st;
    uint8_t *all = fv__alloc_raw(env, bytes);
    if (!all) return FV_OK; /* then they are decoded each time */
    st = fill_cache(p, all, e);
    p->cache = all;
    p->cache_bytes = bytes;
    return st;
}

void fv__pixels_close(fv__pixels *p)
{
    fv_images_close(p->images);
    fv__free(p->env, p->cache, p->cache_bytes);
    *p = (fv__pixels){0};
}

/* ---- batches ---- */

/* Dice are those of (seed, epoch, image), so an image is augmented the same whatever batch it is
 * in; an evaluation (epoch < 0) augments nothing. */
static fv_status put(const fv__pixels *p, fv_batch *out, const char *name, const int32_t *rows,
                     int64_t n, fv_data_rng how, float **at, fv_err *e)
{
    int64_t size = (int64_t)image_bytes(p);
    float *x = *at = fv_batch_put(out, name, FV_F32, FV_SHAPE(n, p->channels, p->height, p->width));
    scratch s = {0};
    fv_status st = x ? FV_OK : fv_fail(e, out->err.code, "%s", out->err.text);
    for (int64_t i = 0; !st && i < n; i++) {
        fv__dice d = fv__dice_of(how, FV__DICE_AUGMENT, rows[i]);
        st = get(p, rows[i], &s, e);
        if (!st && how.epoch >= 0)
            st = fv__augment_image(&p->augment, &s.fit, &s.other, p->fill, &d, e);
        if (!st) fv_processor_image_floats(p->processor, &s.fit, x + i * size, 0, 0);
    }
    scratch_free(&s);
    return st;
}

fv_status fv__pixels_put_view(const fv__pixels *p, fv_batch *out, const char *name,
                              const int32_t *rows, int64_t n, fv_data_rng how, fv_err *e)
{
    float *x;
    how.seed = ~how.seed; /* a key of Philox that no run has beside its own */
    return put(p, out, name, rows, n, how, &x, e);
}

/* Image k of a pair, into s->fit. */
static fv_status get_of_pair(const fv__pixels *p, const fv__pair *pair, int k, double share,
                             fv_data_rng how, scratch *s, fv_err *e)
{
    fv__dice d = fv__dice_of(how, FV__DICE_JOINT, pair->example);
    fv__joint j = fv__joint_of(share, p->width, p->height, &d);
    fv_status st = FV_OK;
    if (j.width) {
        st = get(p, pair->part[k], s, e);
        fv_image part = s->part;
        s->part = s->fit;
        s->fit = part;
    }
    if (!st) st = get(p, pair->image[k], s, e);
    return st ? st : fv__joint_apply(&j, &s->fit, &s->other, j.width ? &s->part : NULL, e);
}

fv_status fv__pixels_put_pairs(const fv__pixels *p, fv_batch *out, const char *name,
                               const fv__pair *pairs, int64_t n, float share, fv_data_rng how,
                               fv_err *e)
{
    int64_t size = (int64_t)image_bytes(p);
    fv_shape shape = FV_SHAPE(2 * n, p->channels, p->height, p->width);
    float *x = fv_batch_put(out, name, FV_F32, shape);
    scratch s = {0};
    fv_status st = x ? FV_OK : fv_fail(e, out->err.code, "%s", out->err.text);
    how.seed = ~how.seed; /* as in fv__pixels_put_view */
    for (int64_t i = 0; !st && i < 2 * n; i++) {
        const fv__pair *pair = &pairs[i % n];
        int k = i >= n;
        /* a pair may be one image twice */
        fv__dice d = fv__dice_of(how, k ? FV__DICE_AUGMENT : FV__DICE_VIEW, pair->image[k]);
        st = get_of_pair(p, pair, k, (double)share, how, &s, e);
        if (!st) st = fv__augment_image(&p->augment, &s.fit, &s.other, p->fill, &d, e);
        if (!st) fv_processor_image_floats(p->processor, &s.fit, x + i * size, 0, 0);
    }
    scratch_free(&s);
    return st;
}

fv_status fv__pixels_put(const fv__pixels *p, fv_batch *out, const int32_t *rows, int64_t n,
                         fv_data_rng how, fv_err *e)
{
    float *x;
    fv_status st = put(p, out, "pixel_values", rows, n, how, &x, e);
    if (st || !fv__pixels_mixed(p, how)) return st;
    float *share = fv_batch_put(out, "label_share", FV_F32, FV_SHAPE(n));
    if (!share) return fv_fail(e, out->err.code, "%s", out->err.text);
    fv__augment_mix(&p->augment, x, share, rows, n, p->channels, p->height, p->width, how);
    return FV_OK;
}

/* ---- a new processor ---- */

enum { MEASURED = 2000 }; /* images whose levels give mean and deviation */

/* Sums in 64-bit integers: exact, whatever the order. */
static fv_status measure_levels(fv_image_steps *s, const fv_images *images, fv_err *e)
{
    int64_t n = fv_images_count(images), of = n < MEASURED ? n : MEASURED;
    uint64_t sum[3] = {0}, squares[3] = {0}, count = 0;
    fv_image im = {0};
    fv_status st = FV_OK;
    for (int64_t i = 0; !st && i < of; i++) {
        st = fv_images_get(images, i * n / of, &im, e);
        if (!st) st = fv_image_convert(&im, s->channels, e);
        if (st) break;
        size_t pixels = (size_t)im.width * (size_t)im.height;
        count += pixels;
        for (size_t k = 0; k < pixels * (size_t)s->channels; k++) {
            uint64_t v = im.data[k];
            sum[k % (size_t)s->channels] += v;
            squares[k % (size_t)s->channels] += v * v;
        }
    }
    fv_image_free(&im);
    for (int c = 0; !st && c < s->channels; c++) {
        double mean = (double)sum[c] / (double)count;
        double var = (double)squares[c] / (double)count - mean * mean;
        s->mean[c] = floor(mean / 255 * 1e4 + 0.5) / 1e4;
        s->deviation[c] = floor(sqrt(var > 1 ? var : 1) / 255 * 1e4 + 0.5) / 1e4;
    }
    return st;
}

/* Numbers with blanks between them: as many as channels, or one for all. */
static fv_status parse_numbers(double *out, int n, const char *text, const char *key, fv_err *e)
{
    int found = 0;
    for (const char *at = text; *at; found++) {
        char *end;
        double x = fv__strtod(at, &end);
        if (end == at || found >= n || !isfinite(x))
            return fv_fail(e, FV_EARG, "%s \"%s\": expected one number, or %d", key, text, n);
        out[found] = x;
        for (at = end; *at == ' ' || *at == ','; at++) continue;
    }
    for (int i = 1; found == 1 && i < n; i++) out[i] = out[0];
    if (found == 1 || found == n) return FV_OK;
    return fv_fail(e, FV_EARG, "%s \"%s\": expected one number, or %d", key, text, n);
}

/* For a model that is trained from scratch: size and channels of the first image unless given, mean
 * and deviation of the data unless given. Takes tok over, also where it fails. */
static fv_status new_processor(fv_processor **out, const fv_env *env, const fv__new_steps *how,
                               const fv_images *images, fv_processor *tok, fv_err *e)
{
    fv_image first = {0};
    fv_status st = fv_images_get(images, 0, &first, e);
    fv_image_steps s = {.resize = true,
                        .rescale = true,
                        .normalise = true,
                        .factor = 1 / 255.,
                        .resample = (fv_resample)how->resample};
    s.channels = how->channels ? how->channels : first.channels;
    if (s.channels != 1) s.channels = 3;
    s.width = how->image_size ? how->image_size : first.width;
    s.height = how->image_size ? how->image_size : first.height;
    fv_image_free(&first);
    if (!st && (!*how->mean || !*how->std)) st = measure_levels(&s, images, e);
    if (!st && *how->mean) st = parse_numbers(s.mean, s.channels, how->mean, "mean", e);
    if (!st && *how->std) st = parse_numbers(s.deviation, s.channels, how->std, "std", e);
    for (int c = 0; !st && c < s.channels; c++)
        if (!(s.deviation[c] > 0)) st = fv_fail(e, FV_EARG, "std: must be above 0");
    if (!st) return fv_processor_from_steps(out, env, &s, tok, e);
    fv_processor_close(tok);
    return st;
}

/* ---- for objectives ---- */

fv_status fv__pixels_processor_of(fv_processor **out, const fv_env *env, const fv__new_steps *how,
                                  const fv_images_opt *source, fv_processor *tok, fv_err *e)
{
    fv_data_report unread = {0};
    fv_images *images;
    fv_status st = fv_images_open(&images, env, source, &unread, e);
    if (st)
        fv_processor_close(tok);
    else
        st = new_processor(out, env, how, images, tok, e);
    fv_images_close(images);
    return st;
}

fv_status fv__pixels_open_source(fv__pixels *p, const fv_feed_opt *t, const fv_images_opt *source,
                                 const fv__augment *augment, int64_t cache, fv_data_report *report,
                                 fv_err *e)
{
    fv_images *images;
    fv_status st = fv_images_open(&images, t->env, source, report, e);
    return st ? st
              : fv__pixels_open(p, t->env, t->processor, images, augment, (size_t)cache << 20, e);
}

int64_t fv__pixels_count(const void *self, int64_t epoch)
{
    (void)epoch;
    return fv_images_count(((const fv__pixels *)self)->images);
}

fv_status fv__images_texts(const fv_env *env, const fv_images_opt *source,
                           void (*each)(void *user, const char *text, size_t len), void *user,
                           fv_err *e)
{
    fv_data_report unread = {0};
    fv_images *images;
    fv_status st = fv_images_open(&images, env, source, &unread, e);
    for (int64_t i = 0; !st && i < fv_images_count(images); i++) {
        const char *s = fv_images_text(images, i);
        if (s) each(user, s, strlen(s));
    }
    fv_images_close(images);
    return st;
}

fv_status fv__pixels_texts(const fv__pixels *p, const fv_tok *tok, fv__pixels_text_fn *each,
                           void *user, fv_err *e)
{
    fv_encoding *enc;
    fv_status st = fv_encoding_new(&enc, tok, e);
    for (int64_t i = 0; !st && i < fv_images_count(p->images); i++) {
        const char *text = fv_images_text(p->images, i);
        st = text ? each(user, enc, text, i, e)
                  : fv_fail(e, FV_EFORMAT, "the images have no texts: a table must name both");
    }
    fv_encoding_free(enc);
    return st;
}
