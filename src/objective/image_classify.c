/* image_classify.c - the objective of image classifiers: one label for each image.
 *
 * Images stand in a folder or an archive with a folder for each label, in an IDX file, or are named
 * by a table.  The metric is accuracy; `fovea eval` also has the top 5. */
#include "base/base.h"
#include "data/feed_parts.h"
#include "data/pixels.h"
#include "fovea/author/objective.h"

typedef struct options {
    fv__new_steps steps;
    fv__augment augment;
    int64_t cache;
    char images[512], where[200];
} options;

typedef struct labelled {
    fv__pixels pixels; /* first: fv__pixels_count */
    const fv_env *env;
} labelled;

/* Where the options say the images stand; labels as fv_images_opt has them. */
static fv_images_opt source(const options *o, const fv_records *from, fv_labels *labels)
{
    fv_images_opt s = fv__images_source(from, o->images, o->where);
    s.labels = labels;
    return s;
}

/* pixel_values (n,C,H,W), labels (n); of mixed images label_share and mixed_labels (n), too. */
static fv_status make(const void *self, fv_batch *out, const int32_t *rows, int64_t n,
                      fv_data_rng how, fv_err *e)
{
    const labelled *l = self;
    fv_status st = fv__pixels_put(&l->pixels, out, rows, n, how, e);
    if (st) return st;
    int32_t *label = fv_batch_put(out, "labels", FV_I32, FV_SHAPE(n));
    for (int64_t i = 0; label && i < n; i++) label[i] = fv_images_label(l->pixels.images, rows[i]);
    if (fv__pixels_mixed(&l->pixels, how)) {
        int32_t *other = fv_batch_put(out, "mixed_labels", FV_I32, FV_SHAPE(n));
        for (int64_t i = 0; other && i < n; i++)
            other[i] = fv_images_label(l->pixels.images, rows[n - 1 - i]);
    }
    if (out->err.code) return fv_fail(e, out->err.code, "%s", out->err.text);
    out->labels = (double)n;
    return FV_OK;
}

static void close_feed(void *self)
{
    labelled *l = self;
    const fv_env *env = l->env;
    fv__pixels_close(&l->pixels);
    fv__free(env, l, sizeof *l);
}

static const fv_feed feed = {.metric = "accuracy",
                             .count = fv__pixels_count,
                             .size = fv__size_alike,
                             .make = make,
                             .count_correct = fv__count_correct_labels,
                             .close = close_feed};

static fv_status make_processor(fv_processor **out, const fv_env *env, const void *own,
                                const fv_records *from, fv_processor *tok, fv_err *e)
{
    const options *o = own;
    fv_labels labels = {.env = env};
    fv_images_opt where = source(o, from, &labels);
    fv_status st = fv__pixels_processor_of(out, env, &o->steps, &where, tok, e);
    fv_labels_free(&labels);
    return st;
}

static fv_status open_feed(fv_feed *out, const fv_feed_opt *t, const fv_records *from,
                           fv_data_report *report, fv_err *e)
{
    const options *o = t->options;
    fv_images_opt where = source(o, from, t->labels);
    *out = (fv_feed){0};
    labelled *l = fv__alloc(t->env, sizeof *l);
    if (!l) return fv_fail(e, FV_ENOMEM, "%s: out of memory", from->file);
    l->env = t->env;
    fv_status st = fv__pixels_open_source(&l->pixels, t, &where, &o->augment, o->cache, report, e);
    report->tokens[0] = report->kept;
    return fv__feed_give(out, &feed, l, st);
}

static const fv_field keys[] = {
    FV__PIXELS_KEYS(options),
    FV__IMAGES_KEYS(options),
    {0},
};
static const char *const loss_inputs[] = {"pixel_values", "labels", NULL};

const fv_objective fv__objective_image_classify = {
    .name = "image_classify",
    .help = "a label for each image",
    .keys = keys,
    .options_size = sizeof(options),
    .processor = "image",
    .make_processor = make_processor,
    .head = FV_HEAD_CLASSIFY,
    .loss_inputs = loss_inputs,
    .names_labels = true,
    .open = open_feed,
};
