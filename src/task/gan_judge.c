/* gan_judge.c - how good the images of a GAN are, by a classifier that was trained on real ones.
 *
 * Classes take turns.  An image is recognised where the judge sees the class that it was drawn for,
 * a class is covered where that happens in half of its images.  The Frechet distance compares the
 * judge's features (the class token behind the last layer) of drawn and of real images; it depends
 * on the judge and on the numbers of images, and is comparable only where these are the same. */
#include "fovea/author/gan.h"
#include "task_pipeline.h"

typedef struct judging {
    const fv_env *env;
    fv_gan *gan;
    fv_task *names, *sees; /* the judge, with its head and without */
    uint8_t *images;       /* all that were drawn */
    size_t image_bytes, each;
    int width, height, channels;
    int64_t n, of_real, features;
    float *drawn, *real; /* (n,features), (of_real,features) */
    int32_t *label, *said;
} judging;

/* ---- drawing ---- */

/* All images are kept, because two models look at them: the classifier, and its body for features.
 */
static fv_status keep_image(void *user, int64_t i, fv_image *im, fv_err *e)
{
    judging *j = user;
    if (!j->images) {
        j->width = im->width, j->height = im->height, j->channels = im->channels;
        j->each = (size_t)im->width * (size_t)im->height * (size_t)im->channels;
        j->image_bytes = j->each * (size_t)j->n;
        j->images = fv__alloc(j->env, j->image_bytes);
        if (!j->images) return fv_fail(e, FV_ENOMEM, "out of memory for the images");
    }
    memcpy(j->images + (size_t)i * j->each, im->data, j->each);
    return FV_OK;
}

static fv_status get_image(void *user, int64_t i, fv_image *raw, fv_err *e)
{
    const judging *j = user;
    fv_status st = fv_image_new(raw, j->env, j->width, j->height, j->channels, e);
    if (!st) memcpy(raw->data, j->images + (size_t)i * j->each, j->each);
    return st;
}

/* ---- judging ---- */

static fv_status take_class(void *user, int64_t i, const fv_seq *s, const float *const out[2],
                            int64_t width, fv_err *e)
{
    judging *j = user;
    (void)s, (void)e;
    j->said[i] = 0;
    for (int64_t k = 1; k < width; k++)
        if (out[0][k] > out[0][j->said[i]]) j->said[i] = (int32_t)k;
    return FV_OK;
}

/* The first row: the class token. */
static fv_status take_features(void *user, int64_t i, const fv_seq *s, const float *const out[2],
                               int64_t width, fv_err *e)
{
    float *to = *(float **)user + i * width;
    (void)s, (void)e;
    memcpy(to, out[0], (size_t)width * sizeof *to);
    return FV_OK;
}

/* Two passes over the images: logits for the classes, hidden states for the distance. */
static fv_status run_drawn(judging *j, fv_err *e)
{
    fv_wanted name = {.names = {"logits"}, .fn = take_class, .user = j},
              feature = {.names = {"last_hidden_state"}, .fn = take_features, .user = &j->drawn};
    fv__task_begin(j->names);
    fv_status st = fv__task_run_got(j->names, get_image, j, j->n, &name, e);
    if (st || !j->drawn) return st;
    fv__task_begin(j->sees);
    return fv__task_run_got(j->sees, get_image, j, j->n, &feature, e);
}

/* As many as were drawn: the Frechet distance depends on the number of samples, so both sides have
 * the same. */
static fv_status run_real(judging *j, const char *file, fv_err *e)
{
    fv_images *set;
    fv_data_report unread = {0};
    fv_images_opt where = {.from = {.file = file, .most = j->n}};
    fv_status st = fv_images_open(&set, j->env, &where, &unread, e);
    if (st) return st;
    j->of_real = fv_images_count(set);
    j->real = fv__alloc(j->env, (size_t)(j->of_real * j->features) * sizeof *j->real);
    if (!j->real) st = fv_fail(e, FV_ENOMEM, "out of memory for the features");
    fv_wanted feature = {.names = {"last_hidden_state"}, .fn = take_features, .user = &j->real};
    fv__task_begin(j->sees);
    if (!st) st = fv__task_run_set(j->sees, set, 0, j->of_real, &feature, e);
    fv_images_close(set);
    return st;
}

/* ---- scores ---- */

/* Classes are matched by name: the judge may have numbered them otherwise. */
static void count(const judging *j, fv_gan_scores *out)
{
    int classes = fv_gan_classes(j->gan), covered = 0;
    int64_t right = 0;
    for (int c = 0; c < classes; c++) {
        int64_t of = 0, mine = 0;
        for (int64_t i = c; i < j->n; i += classes, of++)
            mine += !strcmp(j->names->label[j->said[i]], fv_gan_name(j->gan, c));
        right += mine;
        covered += of && 2 * mine >= of;
    }
    out->recognised = 100 * (double)right / (double)j->n;
    out->covered = covered;
}

/* The Frechet distance of features is FID with the judge instead of Inception: comparable
 * between generators judged by one model, not with published FIDs. */
static fv_status judge(judging *j, const char *dir, const char *real, fv_device *d, fv_gan_opt o,
                       fv_gan_scores *out, fv_err *e)
{
    fv_status st = fv_task_open(&j->names, d, dir, FV_JOB_CLASSIFY, (fv_model_opt){0}, e);
    if (!st && real) st = fv_task_open(&j->sees, d, dir, FV_JOB_EMBED, (fv_model_opt){0}, e);
    if (st) return st;
    j->features = real ? fv_task_width(j->sees) : 0;
    if (real && j->features < 1)
        return fv_fail(e, FV_EARG,
                       "%s: no class token, whose features would be compared with those of real "
                       "images; it counts what it recognises without these",
                       dir);
    size_t bytes = (size_t)j->n * sizeof(int32_t);
    j->label = fv__alloc(j->env, bytes);
    j->said = fv__alloc(j->env, bytes);
    if (real) j->drawn = fv__alloc(j->env, (size_t)(j->n * j->features) * sizeof *j->drawn);
    if (!j->label || !j->said || (real && !j->drawn)) return fv_fail(e, FV_ENOMEM, "out of memory");
    for (int64_t i = 0; i < j->n; i++) j->label[i] = (int32_t)(i % fv_gan_classes(j->gan));
    st = fv_gan_draw(j->gan, j->label, 0, j->n, o, keep_image, j, e);
    if (!st) st = run_drawn(j, e);
    if (st) return st;
    count(j, out);
    if (!real) return FV_OK;
    st = run_real(j, real, e);
    return st ? st
              : fv_frechet_score(&out->frechet, j->env, j->drawn, j->n, j->real, j->of_real,
                                 j->features, e);
}

fv_status fv_gan_judge(fv_gan *g, fv_device *d, const char *dir, const char *real, int64_t n,
                       fv_gan_opt opt, fv_gan_scores *out, fv_err *e)
{
    judging j = {.env = fv_device_env(d), .gan = g, .n = n};
    *out = (fv_gan_scores){.images = n, .classes = fv_gan_classes(g), .frechet = -1};
    fv_status st = judge(&j, dir, real, d, opt, out, e);
    fv__free(j.env, j.images, j.image_bytes);
    fv__free(j.env, j.drawn, (size_t)(j.n * j.features) * sizeof *j.drawn);
    fv__free(j.env, j.real, (size_t)(j.of_real * j.features) * sizeof *j.real);
    fv__free(j.env, j.label, (size_t)n * sizeof(int32_t));
    fv__free(j.env, j.said, (size_t)n * sizeof(int32_t));
    fv_task_close(j.names);
    fv_task_close(j.sees);
    return st;
}
