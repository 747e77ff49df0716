/* segment.c - the objective of models that label pixels.
 *
 * Data are pairs of files, an image and a mask whose levels stand for labels.  In training a part
 * of the image is shown (crop), mirrored both ways, its colours changed; the mask follows.  The
 * metric is the share of pixels that are right; `fovea eval` has intersection over union.
 *
 * pixel_values are (B,C,H,W), labels (B,H,W) at full resolution.  The model's logits are
 * (B,L,H/4,W/4) for SegFormer; loss and metric both upsample them bilinearly to (H,W), as the
 * published training code does, instead of shrinking the mask, which would lose thin
 * structures.
 *
 * Image and mask go through the same geometry: the processor's resize, one crop window, the
 * same flips.  The mask is always resized with the nearest neighbour, since a level is an id and
 * a mean of two ids is a third class.  Levels of the mask that have no label become 255, which
 * the loss ignores. */
#include "base/base.h"
#include "data/feed_parts.h"
#include "data/masked_images.h"
#include "data/pixels.h"
#include "fovea/author/objective.h"
#include "fovea/author/ops.h"

enum { NO_LABEL = 255 }; /* SegFormer's semantic_loss_ignore_index */

typedef struct options {
    fv__new_steps steps;
    fv__augment augment;
    /* folders and ranges of file numbers; lengths are those of the recipe's fields */
    char images[100], masks[100], names[100], valid_names[100];
    int crop;
    bool upside_down;
    int64_t cache;
} options;

typedef struct masked {
    const fv_env *env;
    const fv_processor *processor;
    options opt;
    fv__masked set;
    fv__decoded decoded; /* image i at 2 i, its mask behind it */
    /* of the tensor: the crop's in training, the fitted image's in evaluation */
    int width, height, channels;
    bool evaluation;
} masked;

static fv__masked_opt source(const options *o, const fv_records *from, bool evaluation,
                             fv_labels *labels)
{
    return (fv__masked_opt){.path = from->file,
                            .images = o->images,
                            .masks = o->masks,
                            .names = evaluation ? o->valid_names : o->names,
                            .labels = labels};
}

/* ---- one example ---- */

typedef struct scratch {
    /* reused from image to image of a batch; `wide` is the resized mask first, later a buffer */
    fv_image image, mask, fit, wide, part, part_mask;
} scratch;

static void scratch_free(scratch *s)
{
    fv_image *all[] = {&s->image, &s->mask, &s->fit, &s->wide, &s->part, &s->part_mask};
    for (int i = 0; i < 6; i++) fv_image_free(all[i]);
}

static void turn_over(fv_image *im)
{
    size_t row = (size_t)im->width * (size_t)im->channels;
    for (int y = 0; y < im->height / 2; y++)
        for (size_t i = 0; i < row; i++) {
            uint8_t *a = im->data + (size_t)y * row + i,
                    *b = im->data + (size_t)(im->height - 1 - y) * row + i, t = *a;
            *a = *b;
            *b = t;
        }
}

/* The image as the processor fits it and its mask at the same size, then the part that is
 * shown. */
static fv_status show(const masked *m, int64_t i, fv_data_rng how, scratch *s, fv_err *e)
{
    const uint8_t grey[3] = {128, 128, 128};
    fv__dice d = fv__dice_of(how, FV__DICE_AUGMENT, i);
    const fv_image *image = fv__decoded_at(&m->decoded, 2 * i),
                   *mask = fv__decoded_at(&m->decoded, 2 * i + 1);
    /* fitting may convert its input in place, so the kept image is copied */
    fv_status st = image ? fv_image_crop(&s->image, image,
                                         (fv_window){0, 0, image->width, image->height}, e)
                         : fv__masked_get(&m->set, i, &s->image, &s->mask, e);
    if (!mask) mask = &s->mask;
    if (!st) st = fv_processor_image_fit(m->processor, &s->fit, &s->image, e);
    if (!st)
        st = fv_image_resize(&s->wide, mask, s->fit.width, s->fit.height, FV_NEAREST,
                             (fv_window){0}, e);
    if (st) return st;
    fv_window part = {0, 0, m->width, m->height};
    /* evaluation (epoch -1) shows the whole image, and draws nothing */
    bool random = how.epoch >= 0;
    if (random) part.x = fv__dice_below(&d, s->fit.width - m->width + 1);
    if (random) part.y = fv__dice_below(&d, s->fit.height - m->height + 1);
    st = fv_image_crop(&s->part, &s->fit, part, e);
    if (!st) st = fv_image_crop(&s->part_mask, &s->wide, part, e);
    if (st || !random) return st;
    if (m->opt.augment.flip && (fv__dice_word(&d) & 1))
        fv_image_mirror(&s->part), fv_image_mirror(&s->part_mask);
    if (m->opt.upside_down && (fv__dice_word(&d) & 1))
        turn_over(&s->part), turn_over(&s->part_mask);
    /* colours may change alone; whatever moves pixels was applied to both above */
    fv__augment colours = m->opt.augment;
    colours.flip = false;
    colours.shift = colours.rand_augment = 0;
    colours.erase = 0;
    return fv__augment_image(&colours, &s->part, &s->wide, grey, &d, e);
}

/* ---- batches ---- */

/* pixel_values (n,C,H,W), labels (n,H,W). */
static fv_status make(const void *self, fv_batch *out, const int32_t *rows, int64_t n,
                      fv_data_rng how, fv_err *e)
{
    const masked *m = self;
    int64_t pixels = (int64_t)m->width * m->height;
    float *x = fv_batch_put(out, "pixel_values", FV_F32,
                            FV_SHAPE(n, m->channels, m->height, m->width));
    int32_t *label = fv_batch_put(out, "labels", FV_I32, FV_SHAPE(n, m->height, m->width));
    scratch s = {0};
    fv_status st = label ? FV_OK : fv_fail(e, out->err.code, "%s", out->err.text);
    for (int64_t i = 0; !st && i < n; i++) {
        st = show(m, rows[i], how, &s, e);
        if (st) break;
        fv_processor_image_floats(m->processor, &s.part, x + i * m->channels * pixels, 0, 0);
        for (int64_t k = 0; k < pixels; k++) {
            /* of_level maps the 256 grey levels to label ids, -1 for none */
            int32_t id = m->set.of_level[s.part_mask.data[k]];
            label[i * pixels + k] = id < 0 ? NO_LABEL : id;
        }
    }
    scratch_free(&s);
    /* all pixels are counted, those without a label too: the denominator is the same for every
     * batch */
    out->labels = (double)(n * pixels);
    out->tokens = (double)n;
    return st;
}

/* Logits are of a coarser grid: they are widened as the loss widens them. */
static fv_status count_correct(const void *self, fv_ctx *c, const fv_batch *b, const fv_items *out,
                               double *hits, double *of)
{
    const masked *m = self;
    fv_tensor *logits = fv_items_get(out, "logits");
    const int32_t *label = fv_batch_get(b, "labels")->data;
    int64_t pixels = (int64_t)m->width * m->height, n = b->part[0].shape.d[0];
    fv_tensor *wide = fv_upsample_bilinear(c, logits, m->height, m->width);
    if (!wide) return fv_ctx_status(c) ? fv_ctx_status(c) : FV_EARG;
    /* L classes stand in planes: a class is `pixels` floats away from the next */
    int64_t L = fv_dim(wide, 1);
    size_t bytes = (size_t)fv_len(wide) * sizeof(float);
    float *x = fv__alloc(m->env, bytes);
    fv_status st = x ? fv_read(c, wide, x, fv_len(wide)) : FV_ENOMEM;
    for (int64_t i = 0; !st && i < n * pixels; i++) {
        const float *at = x + (i / pixels) * L * pixels + i % pixels;
        int32_t best = 0;
        for (int32_t k = 1; k < L; k++)
            if (at[k * pixels] > at[best * pixels]) best = k;
        if (label[i] == NO_LABEL) continue;
        *hits += best == label[i];
        *of += 1;
    }
    fv__free(m->env, x, bytes);
    return st;
}

static int64_t count(const void *self, int64_t epoch)
{
    (void)epoch;
    return ((const masked *)self)->set.n;
}

static void close_feed(void *self)
{
    masked *m = self;
    const fv_env *env = m->env;
    fv__decoded_close(&m->decoded);
    fv__masked_close(&m->set);
    fv__free(env, m, sizeof *m);
}

/* Evaluation sees whole images, training parts of `crop` pixels. */
static fv_status find_size(masked *m, fv_err *e)
{
    scratch s = {0};
    const fv_image_steps *steps = fv_processor_steps(m->processor);
    if (!steps) return fv_fail(e, FV_EARG, "the model has no image processor");
    m->channels = steps->channels;
    fv_status st = fv__masked_get(&m->set, 0, &s.image, &s.mask, e);
    if (!st)
        st = fv_processor_image_size(m->processor, s.image.width, s.image.height, &m->width,
                                     &m->height, e);
    int crop = m->evaluation ? 0 : m->opt.crop;
    if (!st && crop && (crop > m->width || crop > m->height))
        st = fv_fail(e, FV_EARG, "crop = %d: images are %d x %d", crop, m->width, m->height);
    if (crop) m->width = m->height = crop;
    scratch_free(&s);
    return st;
}

/* Of each pair one file: where either is bad, fv__masked_get says so. */
static fv_status decode(const void *self, int64_t i, fv_image *out, fv_err *e)
{
    fv_image other = {0};
    fv_status st = i % 2 ? fv__masked_get(self, i / 2, &other, out, e)
                         : fv__masked_get(self, i / 2, out, &other, e);
    fv_image_free(&other);
    return st;
}

/* Where the images do not fit the cache they are read when a batch is made. */
static fv_status open_feed(fv_feed *out, const fv_feed_opt *t, const fv_records *from,
                           fv_data_report *report, fv_err *e)
{
    *out = (fv_feed){0};
    masked *m = fv__alloc(t->env, sizeof *m);
    if (!m) return fv_fail(e, FV_ENOMEM, "%s: out of memory", from->file);
    *m = (masked){.env = t->env,
                  .processor = t->processor,
                  .opt = *(const options *)t->options,
                  .evaluation = t->evaluation};
    fv__masked_opt where = source(&m->opt, from, t->evaluation, t->labels);
    fv_status st = fv__masked_open(&m->set, t->env, &where, e);
    if (!st) st = find_size(m, e);
    if (!st)
        st = fv__decoded_open(&m->decoded, t->env, 2 * m->set.n, decode, &m->set,
                              (size_t)m->opt.cache << 20, e);
    if (st) {
        close_feed(m);
        return st;
    }
    report->records = report->kept = report->tokens[0] = m->set.n;
    *out = (fv_feed){.self = m,
                     .metric = "pixel accuracy",
                     .count = count,
                     .size = fv__size_alike,
                     .make = make,
                     .count_correct = count_correct,
                     .close = close_feed};
    return FV_OK;
}

/* The size of the first image, unless image_size says another; levels to -1..1. */
static fv_status make_processor(fv_processor **out, const fv_env *env, const void *own,
                                const fv_records *from, fv_processor *tok, fv_err *e)
{
    const options *o = own;
    fv_labels labels = {.env = env};
    fv__masked set;
    scratch s = {0};
    fv__masked_opt where = source(o, from, false, &labels);
    fv_status st = fv__masked_open(&set, env, &where, e);
    if (!st) st = fv__masked_get(&set, 0, &s.image, &s.mask, e);
    fv_image_steps steps = {.channels = o->steps.channels ? o->steps.channels : 3,
                            .resize = true,
                            .rescale = true,
                            .normalise = true,
                            .resample = (fv_resample)o->steps.resample,
                            .mean = {0.5, 0.5, 0.5},
                            .deviation = {0.5, 0.5, 0.5}};
    steps.width = o->steps.image_size ? o->steps.image_size : s.image.width;
    steps.height = o->steps.image_size ? o->steps.image_size : s.image.height;
    if (st)
        fv_processor_close(tok);
    else
        st = fv_processor_from_steps(out, env, &steps, tok, e);
    scratch_free(&s);
    fv__masked_close(&set);
    fv_labels_free(&labels);
    return st;
}

static const fv_field keys[] = {
    FV__STEPS_KEYS(options),
    FV__AUGMENT_KEYS(options),
    FV__CACHE_KEY(options),
    FV_TEXT_KEY("image_folder", options, images, "image", "folder with the images"),
    FV_TEXT_KEY("mask_folder", options, masks, "label", "folder with masks of the same names"),
    FV_TEXT(options, names, "", "FROM-TO: only files that are named by such numbers"),
    FV_TEXT(options, valid_names, "", "those that are evaluated on"),
    FV_INT(options, crop, 0, 0, 4096, "pixels of the part of an image that is shown; 0: all of it"),
    FV_BOOL(options, upside_down, false, "turn half of the images upside down"),
    {0},
};
static const char *const loss_inputs[] = {"pixel_values", "labels", NULL};

const fv_objective fv__objective_segment = {
    .name = "segment",
    .help = "a label for each pixel",
    .keys = keys,
    .options_size = sizeof(options),
    .processor = "image",
    .make_processor = make_processor,
    .head = FV_HEAD_SEGMENT,
    .loss_inputs = loss_inputs,
    .names_labels = true,
    .open = open_feed,
};
