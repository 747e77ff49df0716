/* gan.c - the objective of a generative adversarial network: a generator whose images a
 * discriminator cannot tell from those of the data.
 *
 * A batch has images in -1..1, their labels, and as many latents, which are drawn anew for every
 * image and epoch.  The losses of both players are the family's and come from one pass; two
 * learning rates are factors by name (train.lr_scale).  The sum of both says little, so what is
 * kept in the end is the last state, or the moving average of the weights (train.ema), by which
 * images are drawn; `fovea sample --judge` measures them. */
#include <math.h>

#include "base/base.h"
#include "data/dice.h"
#include "data/feed_parts.h"
#include "data/labels.h"
#include "data/pixels.h"
#include "fovea/author/objective.h"

enum { DICE_LATENTS = 21 }; /* a stream of its own beside those of dice.h */

typedef struct options {
    fv__new_steps steps;
    fv__augment augment;
    int64_t cache;
    int latent_size;
} options;

typedef struct drawn {
    fv__pixels pixels; /* first: fv__pixels_count */
    const fv_env *env;
    int latent_size;
} drawn;

/* Two normal numbers at a time (Box and Muller). */
static void put_latents(float *z, int64_t n, fv_data_rng how, int32_t row)
{
    fv__dice d = fv__dice_of(how, DICE_LATENTS, row);
    for (int64_t i = 0; i < n; i += 2) {
        double r = sqrt(-2 * log(1 - fv__dice_unit(&d))), a = 6.283185307179586 * fv__dice_unit(&d);
        z[i] = (float)(r * cos(a));
        if (i + 1 < n) z[i + 1] = (float)(r * sin(a));
    }
}

/* pixel_values (n,C,H,W), labels (n), latents (n,latent_size). */
static fv_status make(const void *self, fv_batch *out, const int32_t *rows, int64_t n,
                      fv_data_rng how, fv_err *e)
{
    const drawn *g = self;
    fv_status st = fv__pixels_put(&g->pixels, out, rows, n, how, e);
    if (st) return st;
    int32_t *label = fv_batch_put(out, "labels", FV_I32, FV_SHAPE(n));
    float *z = fv_batch_put(out, "latents", FV_F32, FV_SHAPE(n, g->latent_size));
    if (!z) return fv_fail(e, out->err.code, "%s", out->err.text);
    for (int64_t i = 0; i < n; i++) {
        label[i] = fv_images_label(g->pixels.images, rows[i]);
        put_latents(z + i * g->latent_size, g->latent_size, how, rows[i]);
    }
    out->labels = (double)n;
    return FV_OK;
}

static void close_feed(void *self)
{
    drawn *g = self;
    const fv_env *env = g->env;
    fv__pixels_close(&g->pixels);
    fv__free(env, g, sizeof *g);
}

static const fv_feed feed = {.count = fv__pixels_count,
                             .size = fv__size_alike,
                             .make = make,
                             .close = close_feed};

static fv_status open_feed(fv_feed *out, const fv_feed_opt *t, const fv_records *from,
                           fv_data_report *report, fv_err *e)
{
    const options *o = t->options;
    *out = (fv_feed){0};
    if (o->augment.mixup > 0 || o->augment.cutmix > 0)
        return fv_fail(e, FV_EARG, "%s: mixup and cutmix mix labels, which a GAN cannot use",
                       from->file);
    drawn *g = fv__alloc(t->env, sizeof *g);
    if (!g) return fv_fail(e, FV_ENOMEM, "%s: out of memory", from->file);
    *g = (drawn){.env = t->env, .latent_size = o->latent_size};
    fv_images_opt where = {.from = *from, .labels = t->labels};
    fv_status st = fv__pixels_open_source(&g->pixels, t, &where, &o->augment, o->cache, report, e);
    report->tokens[0] = report->kept;
    return fv__feed_give(out, &feed, g, st);
}

/* Images in -1..1, which is what the generator's tanh reaches, unless the recipe says otherwise. */
static fv_status make_processor(fv_processor **out, const fv_env *env, const void *own,
                                const fv_records *from, fv_processor *tok, fv_err *e)
{
    fv__new_steps steps = ((const options *)own)->steps;
    fv_labels labels = {.env = env};
    fv_images_opt where = {.from = *from, .labels = &labels};
    if (!*steps.mean) strcpy(steps.mean, "0.5");
    if (!*steps.std) strcpy(steps.std, "0.5");
    fv_status st = fv__pixels_processor_of(out, env, &steps, &where, tok, e);
    fv_labels_free(&labels);
    return st;
}

static int64_t config_value(const void *own, const fv_processor *p, const char *key)
{
    (void)p;
    return strcmp(key, "latent_size") ? -1 : ((const options *)own)->latent_size;
}

static const fv_field keys[] = {
    FV__PIXELS_KEYS(options),
    FV_INT(options, latent_size, 1, 128, 1 << 12, "numbers that an image is made from"),
    {0},
};
static const char *const loss_inputs[] = {"latents", "pixel_values", "labels", NULL};

const fv_objective fv__objective_gan = {
    .name = "gan",
    .help = "images that cannot be told from those of the data",
    .keys = keys,
    .options_size = sizeof(options),
    .processor = "image",
    .make_processor = make_processor,
    .config_value = config_value,
    .head = FV_HEAD_GAN,
    .loss_inputs = loss_inputs,
    .names_labels = true,
    .open = open_feed,
};
