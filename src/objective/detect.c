/* detect.c - the objective of models that find objects: boxes and what is in them.
 *
 * Data are Pascal VOC's folders or COCO's files (author/data.h).  Boxes become (centre x,
 * centre y, width, height) in shares of the image, so that resizing does not change them.  In
 * training an image may be mirrored both ways, its colours changed, and cut down to a part
 * (zoom); boxes follow, and those whose middle is cut away are left out.  `fovea eval` has
 * average precision.
 *
 * Boxes leave here as DETR and YOLOS want them: (cx, cy, w, h), each in 0..1 of what is shown.
 * A batch holds M objects for every image, M that of the image with the most; the others are
 * padded with class -100 and empty boxes, which the Hungarian matching of the loss skips
 * (model/assign.c).
 *
 * Geometry (mirror, flip, zoom) is decided by one `view` and applied to pixels and boxes from
 * the same numbers. fv__augment's own geometric steps are switched off: they would move pixels
 * without boxes. */
#include <math.h>

#include "base/base.h"
#include "data/feed_parts.h"
#include "data/pixels.h"
#include "fovea/author/objective.h"

typedef struct options {
    fv__new_steps steps;
    /* zoom 0.5: the part that is shown has at least half of the sides */
    fv__augment augment;
    char split[200], valid_split[200];
    bool upside_down;
    float zoom;
    int64_t cache;
} options;

typedef struct boxed {
    const fv_env *env;
    const fv_processor *processor;
    options opt;
    fv_boxed *set;
    fv__decoded decoded;
    /* of the tensor, after the processor's resize */
    int width, height, channels;
} boxed;

/* Training and validation may be two splits of one folder. */
static fv_status open_set(fv_boxed **out, const fv_env *env, const options *o,
                          const fv_records *from, bool evaluation, fv_labels *labels, fv_err *e)
{
    const char *split = evaluation && *o->valid_split ? o->valid_split : o->split;
    fv_boxed_opt how = {.path = from->file,
                        .split = *split ? split : NULL,
                        .most = from->most,
                        .labels = labels};
    return fv_boxed_open(out, env, &how, e);
}

/* ---- one example ---- */

/* The part of an image that is shown, in pixels, and how it is turned. */
typedef struct view {
    fv_window window;
    bool mirrored, upside_down;
} view;

/* Draws come in a fixed order: in another one the same seed would give other
 * images, and a resumed run would not repeat its bits. */
static view choose(const options *o, const fv_image *im, fv__dice *d)
{
    view v = {.window = {0, 0, im->width, im->height}};
    v.mirrored = o->augment.flip && (fv__dice_word(d) & 1);
    v.upside_down = o->upside_down && (fv__dice_word(d) & 1);
    if (!(o->zoom > 0)) return v;
    /* sides shrink together, so the aspect ratio stays that of the image */
    double side = 1 - fv__dice_unit(d) * (double)o->zoom;
    v.window.width = (int)fmax(1, im->width * side);
    v.window.height = (int)fmax(1, im->height * side);
    v.window.x = fv__dice_below(d, im->width - v.window.width + 1);
    v.window.y = fv__dice_below(d, im->height - v.window.height + 1);
    return v;
}

static void turn_over(fv_image *im)
{
    size_t row = (size_t)im->width * (size_t)im->channels;
    for (int y = 0; y < im->height / 2; y++) {
        uint8_t *a = im->data + (size_t)y * row, *b = im->data + (size_t)(im->height - 1 - y) * row;
        for (size_t i = 0; i < row; i++) {
            uint8_t t = a[i];
            a[i] = b[i];
            b[i] = t;
        }
    }
}

static double within(double x, double most) { return fmin(fmax(x, 0), most); }

/* x0..y1 are pixels of the whole image. */
/* The box as the view shows it, as shares; false: its middle is not in it. */
static bool place(const fv_box *b, const view *v, float out[4])
{
    double w = v->window.width, h = v->window.height;
    double cx = ((double)b->x0 + (double)b->x1) / 2 - v->window.x,
           cy = ((double)b->y0 + (double)b->y1) / 2 - v->window.y;
    if (cx < 0 || cy < 0 || cx > w || cy > h) return false;
    double x0 = within((double)b->x0 - v->window.x, w), x1 = within((double)b->x1 - v->window.x, w),
           y0 = within((double)b->y0 - v->window.y, h), y1 = within((double)b->y1 - v->window.y, h);
    double x = (x0 + x1) / 2 / w, y = (y0 + y1) / 2 / h;
    out[0] = (float)(v->mirrored ? 1 - x : x);
    out[1] = (float)(v->upside_down ? 1 - y : y);
    out[2] = (float)((x1 - x0) / w);
    out[3] = (float)((y1 - y0) / h);
    return x1 > x0 && y1 > y0;
}

typedef struct scratch {
    fv_image raw, part, fit, other;
} scratch;

/* One image as training or evaluation sees it: evaluation (epoch below 0) sees all of it,
 * unchanged. */
static fv_status show(const boxed *b, int64_t i, fv_data_rng how, scratch *s, view *v, float *out,
                      fv_err *e)
{
    /* fills what an augmentation uncovers */
    const uint8_t grey[3] = {128, 128, 128};
    fv__dice d = fv__dice_of(how, FV__DICE_AUGMENT, i);
    const fv_image *raw = fv__decoded_at(&b->decoded, i);
    fv_status st = raw ? FV_OK : fv_boxed_get(b->set, i, &s->raw, e);
    if (st) return st;
    if (!raw) raw = &s->raw;
    *v = (view){.window = {0, 0, raw->width, raw->height}};
    bool whole = how.epoch < 0;
    if (!whole) *v = choose(&b->opt, raw, &d);
    st = fv_image_crop(&s->part, raw, v->window, e);
    if (!st) st = fv_processor_image_fit(b->processor, &s->fit, &s->part, e);
    if (st) return st;
    if (v->mirrored) fv_image_mirror(&s->fit);
    if (v->upside_down) turn_over(&s->fit);
    /* what moves pixels is done above, with the boxes */
    fv__augment colours = b->opt.augment;
    colours.flip = false;
    colours.shift = colours.rand_augment = 0;
    colours.erase = 0;
    if (!whole) st = fv__augment_image(&colours, &s->fit, &s->other, grey, &d, e);
    if (!st) fv_processor_image_floats(b->processor, &s->fit, out, 0, 0);
    return st;
}

/* ---- batches ---- */

/* Objects of the image with the most among the rows. */
static int64_t most_objects(const boxed *b, const int32_t *rows, int64_t n)
{
    int64_t most = 1, k;
    for (int64_t i = 0; i < n; i++) {
        fv_boxed_boxes(b->set, rows[i], &k);
        if (k > most) most = k;
    }
    return most;
}

/* pixel_values (n,C,H,W), class_labels (n,M) with -100 for none, boxes (n,M,4). */
static fv_status make(const void *self, fv_batch *out, const int32_t *rows, int64_t n,
                      fv_data_rng how, fv_err *e)
{
    const boxed *b = self;
    int64_t M = most_objects(b, rows, n), size = (int64_t)b->channels * b->height * b->width,
            objects = 0;
    float *x = fv_batch_put(out, "pixel_values", FV_F32,
                            FV_SHAPE(n, b->channels, b->height, b->width));
    int32_t *label = fv_batch_put(out, "class_labels", FV_I32, FV_SHAPE(n, M));
    float *box = fv_batch_put(out, "boxes", FV_F32, FV_SHAPE(n, M, 4));
    scratch s = {0};
    fv_status st = box ? FV_OK : fv_fail(e, out->err.code, "%s", out->err.text);
    for (int64_t i = 0; !st && i < n; i++) {
        view v;
        int64_t have, at = 0;
        st = show(b, rows[i], how, &s, &v, x + i * size, e);
        const fv_box *all = fv_boxed_boxes(b->set, rows[i], &have);
        for (int64_t k = 0; !st && k < have; k++)
            if (place(&all[k], &v, box + (i * M + at) * 4)) label[i * M + at++] = all[k].label;
        objects += at;
        for (; !st && at < M; at++) {
            label[i * M + at] = -100;
            memset(box + (i * M + at) * 4, 0, 4 * sizeof *box);
        }
    }
    fv_image_free(&s.raw);
    fv_image_free(&s.part);
    fv_image_free(&s.fit);
    fv_image_free(&s.other);
    /* the loss is divided by the number of boxes, at least 1, as in DETR */
    out->labels = (double)(objects ? objects : 1);
    out->tokens = (double)n;
    return st;
}

static int64_t count(const void *self, int64_t epoch)
{
    (void)epoch;
    return fv_boxed_count(((const boxed *)self)->set);
}

static void close_feed(void *self)
{
    boxed *b = self;
    const fv_env *env = b->env;
    fv__decoded_close(&b->decoded);
    fv_boxed_close(b->set);
    fv__free(env, b, sizeof *b);
}

static fv_status decode(const void *self, int64_t i, fv_image *out, fv_err *e)
{
    return fv_boxed_get(self, i, out, e);
}

static fv_status open_feed(fv_feed *out, const fv_feed_opt *t, const fv_records *from,
                           fv_data_report *report, fv_err *e)
{
    const options *o = t->options;
    const fv_image_steps *steps = fv_processor_steps(t->processor);
    fv_image first = {0};
    *out = (fv_feed){0};
    boxed *b = fv__alloc(t->env, sizeof *b);
    if (!b) return fv_fail(e, FV_ENOMEM, "%s: out of memory", from->file);
    *b = (boxed){.env = t->env, .processor = t->processor, .opt = *o};
    fv_status st = open_set(&b->set, t->env, o, from, t->evaluation, t->labels, e);
    if (!st) st = fv_boxed_get(b->set, 0, &first, e);
    if (!st)
        st = fv_processor_image_size(t->processor, first.width, first.height, &b->width, &b->height,
                                     e);
    /* with `shortest` the size depends on each image; a batch is one tensor */
    if (!st && steps->shortest && !steps->crop_height)
        st =
            fv_fail(e, FV_EARG,
                    "%s: the processor keeps the aspect ratio of images, and the images of a batch "
                    "need one size",
                    from->file);
    b->channels = steps ? steps->channels : 3;
    fv_image_free(&first);
    if (!st)
        st = fv__decoded_open(&b->decoded, t->env, fv_boxed_count(b->set), decode, b->set,
                              (size_t)o->cache << 20, e);
    if (st) {
        close_feed(b);
        return st;
    }
    report->records = report->kept = report->tokens[0] = fv_boxed_count(b->set);
    *out = (fv_feed){
        .self = b, .count = count, .size = fv__size_alike, .make = make, .close = close_feed};
    return FV_OK;
}

/* Levels are taken as they are usual for photographs: the objects are few. */
static fv_status make_processor(fv_processor **out, const fv_env *env, const void *own,
                                const fv_records *from, fv_processor *tok, fv_err *e)
{
    const options *o = own;
    fv_image_steps s = {.channels = o->steps.channels ? o->steps.channels : 3,
                        .resize = true,
                        .rescale = true,
                        .normalise = true,
                        .resample = (fv_resample)o->steps.resample,
                        .mean = {0.485, 0.456, 0.406},
                        .deviation = {0.229, 0.224, 0.225}};
    s.width = s.height = o->steps.image_size ? o->steps.image_size : 512;
    (void)from;
    return fv_processor_from_steps(out, env, &s, tok, e);
}

static const fv_field keys[] = {
    FV__STEPS_KEYS(options),
    FV__AUGMENT_KEYS(options),
    FV__CACHE_KEY(options),
    FV_TEXT(options, split, "", "VOC: the file of ImageSets/Main; COCO: the .json file"),
    FV_TEXT(options, valid_split, "", "the one that is evaluated on; empty: as split"),
    FV_BOOL(options, upside_down, false, "turn half of the images upside down"),
    FV_FLOAT(options, zoom, 0, 0, 0.9, "show a part of the image, by this share smaller at most"),
    {0},
};
static const char *const loss_inputs[] = {"pixel_values", "class_labels", "boxes", NULL};

const fv_objective fv__objective_detect = {
    .name = "detect",
    .help = "boxes around objects",
    .keys = keys,
    .options_size = sizeof(options),
    .processor = "image",
    .make_processor = make_processor,
    .head = FV_HEAD_DETECT,
    .loss_inputs = loss_inputs,
    .names_labels = true,
    .open = open_feed,
};
