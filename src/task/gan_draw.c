/* gan_draw.c - images of a generator: latents from a seed, a batch through the model, levels of 0
 * to 255.
 *
 * Image i of a seed is the same whatever the batch or the order: its latents are drawn by (seed,
 * number). Classes go along as labels
 * (a class-conditional generator); a model without classes has one.
 *
 * A generator writes (B,C,H,W) in the range of its processor's normalisation;
 * fv_processor_image_levels undoes that to bytes. */
#include <stdio.h>

#include "fovea/author/gan.h"
#include "task_pipeline.h"

/* Images in one forward pass: bounds the memory of activations. */
enum { TOGETHER = 64 };

/* One for each thread: context, latents and the image are scratch of a call. */
struct fv_gan {
    fv_env env;
    fv_model *model;
    fv_processor *processor;
    fv_dir *dir;
    fv_ctx *ctx;
    int classes, latent_size;
    /* id2label's, or the number as text. */
    char (*name)[64];
    float *z; /* (TOGETHER,latent_size) */
    float *x; /* images of a batch */
    size_t x_bytes;
    fv_image image;
};

/* ---- opening ---- */

static int setting(const fv_gan *g, const char *key, int fallback)
{
    double x;
    return fv_json_number(fv_dir_config(g->dir), key, &x) ? (int)x : fallback;
}

static fv_status read_names(fv_gan *g, fv_err *e)
{
    char key[40];
    const fv_json *j = fv_dir_config(g->dir);
    /* Keys are counted until one is missing: id2label has no holes. */
    for (snprintf(key, sizeof key, "id2label.0"); fv_json_has(j, key);)
        snprintf(key, sizeof key, "id2label.%d", ++g->classes);
    if (!g->classes) g->classes = setting(g, "num_labels", 1);
    g->name = fv__alloc(&g->env, (size_t)g->classes * sizeof *g->name);
    if (!g->name) return fv_fail(e, FV_ENOMEM, "out of memory");
    for (int i = 0; i < g->classes; i++) {
        snprintf(key, sizeof key, "id2label.%d", i);
        const char *name = fv_json_text(j, key);
        snprintf(key, sizeof key, "%d", i);
        snprintf(g->name[i], sizeof *g->name, "%s", name ? name : key);
    }
    return FV_OK;
}

/* The processor is needed backwards: it says which levels the generator's range stands for. */
static fv_status open_all(fv_gan *g, fv_device *d, const char *dir, fv_model_opt opt, fv_err *e)
{
    fv_status st = fv_dir_open(&g->dir, &g->env, dir, e);
    if (!st) st = fv_model_open(&g->model, d, dir, opt, e);
    if (!st && fv_model_job(g->model) != FV_HEAD_GAN)
        st = fv_fail(e, FV_EARG, "%s: %s draws no images", dir, fv_model_head(g->model));
    if (!st) st = fv_processor_open(&g->processor, &g->env, "image", fv_dir_path(g->dir), e);
    if (!st) st = fv_ctx_new(&g->ctx, d, (fv_ctx_opt){0}, e);
    if (!st) st = read_names(g, e);
    if (st) return st;
    g->latent_size = setting(g, "latent_size", 128);
    g->z = fv__alloc(&g->env, (size_t)(TOGETHER * g->latent_size) * sizeof *g->z);
    return g->z ? FV_OK : fv_fail(e, FV_ENOMEM, "out of memory");
}

fv_status fv_gan_open(fv_gan **out, fv_device *d, const char *dir, fv_model_opt opt, fv_err *e)
{
    fv_env env = *fv_device_env(d);
    fv_gan *g = *out = fv__alloc(&env, sizeof *g);
    if (!g) return fv_fail(e, FV_ENOMEM, "out of memory");
    *g = (fv_gan){.env = env};
    fv_status st = open_all(g, d, dir, opt, e);
    if (!st) return FV_OK;
    fv_gan_close(g);
    *out = NULL;
    return st;
}

void fv_gan_close(fv_gan *g)
{
    if (!g) return;
    fv_env env = g->env;
    fv_image_free(&g->image);
    fv__free(&env, g->x, g->x_bytes);
    fv__free(&env, g->z, (size_t)(TOGETHER * g->latent_size) * sizeof *g->z);
    fv__free(&env, g->name, (size_t)g->classes * sizeof *g->name);
    if (g->ctx) fv_ctx_free(g->ctx);
    fv_processor_close(g->processor);
    fv_model_free(g->model);
    fv_dir_close(g->dir);
    fv__free(&env, g, sizeof *g);
}

int fv_gan_classes(const fv_gan *g) { return g->classes; }
const char *fv_gan_name(const fv_gan *g, int label) { return g->name[label]; }

int fv_gan_class(const fv_gan *g, const char *name)
{
    for (int i = 0; i < g->classes; i++)
        if (!strcmp(g->name[i], name)) return i;
    return -1;
}

/* ---- drawing ---- */

static fv_status to_image(fv_gan *g, const float *x, int channels, int height, int width, fv_err *e)
{
    fv_status st = fv_image_new(&g->image, &g->env, width, height, channels == 1 ? 1 : 3, e);
    if (!st) fv_processor_image_levels(g->processor, x, &g->image);
    return st;
}

/* n images of one forward pass into g->x, on the host. */
static fv_status run(fv_gan *g, const int32_t *label, int64_t n, fv_shape *shape, fv_err *e)
{
    fv_items in = {0}, out = {0};
    fv_ctx_reset(g->ctx, 0);
    fv_items_put(&in, "latents", fv_floats(g->ctx, g->z, FV_SHAPE(n, g->latent_size)));
    fv_items_put(&in, "labels", fv_ints(g->ctx, label, FV_SHAPE(n)));
    fv_model_forward(g->ctx, g->model, &in, &out);
    const fv_tensor *y = fv_items_get(&out, "images");
    void *x = g->x;
    fv_status st = fv_ctx_status(g->ctx);
    if (!st && !fv__grow(&g->env, &x, &g->x_bytes, (size_t)fv_len(y) * sizeof *g->x))
        return fv_fail(e, FV_ENOMEM, "out of memory for %lld images", (long long)n);
    g->x = x;
    if (!st) st = fv_read(g->ctx, y, g->x, fv_len(y));
    if (st) return fv_fail(e, st, "%s", fv_ctx_err(g->ctx)->text);
    *shape = y->shape;
    return FV_OK;
}

/* fn sees an image that is overwritten by the next one; it returns an error to stop. */
fv_status fv_gan_draw(fv_gan *g, const int32_t *label, int64_t first, int64_t n, fv_gan_opt opt,
                      fv_gan_fn *fn, void *user, fv_err *e)
{
    fv_status st = FV_OK;
    for (int64_t i = 0; i < n; i++)
        if (label[i] < 0 || label[i] >= g->classes)
            return fv_fail(e, FV_EARG, "class %d: the model has classes 0 to %d", label[i],
                           g->classes - 1);
    for (int64_t at = 0, some; !st && at < n; at += some) {
        fv_shape s = {0};
        some = n - at < TOGETHER ? n - at : TOGETHER;
        for (int64_t i = 0; i < some; i++)
            fv_latents_draw(g->z + i * g->latent_size, g->latent_size, opt.seed,
                            (uint64_t)(first + at + i), opt.truncation);
        st = run(g, label + at, some, &s, e);
        for (int64_t i = 0; !st && i < some; i++) {
            st = to_image(g, g->x + i * s.d[1] * s.d[2] * s.d[3], (int)s.d[1], (int)s.d[2],
                          (int)s.d[3], e);
            if (!st) st = fn(user, at + i, &g->image, e);
        }
    }
    return st;
}
