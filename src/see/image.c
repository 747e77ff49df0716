/* image.c - the image that a model looks at, and which of its tokens stand for what: patches, the
 * class token in front of them, the objects of a detector behind them.
 *
 * What a token stands for is found from numbers alone (the size of the image in patches, how many
 * tokens there are in all, how many of them are for objects), so that a family of images is seen
 * without a line here.  A hook of every family that says it lost: it would say the same. */
#include <math.h>
#include <stdio.h>

#include "see.h"
#include "fovea/author/family.h"
#include "fovea/author/op.h"
#include "fovea/author/processor.h"
#include "fovea/author/tensor.h"

#define FOUND 0.5 /* probability from which an object counts as found, as in `fovea detect` */

/* ---- opening ---- */

/* Of a list the first number. */
int64_t fv__see_setting(const fv_dir *dir, const char *key)
{
    const fv_json *j = fv_dir_config(dir);
    static const char *const parts[] = {"", "vision_config.", "encoder."};
    double x;
    for (int i = 0; i < 6; i++) {
        char at[96];
        snprintf(at, sizeof at, "%s%s%s", parts[i % 3], key, i < 3 ? "" : ".0");
        if (fv_json_number(j, at, &x)) return (int64_t)x;
    }
    return 0;
}

static fv_status take_pixels(fv_see_image *im, const fv_processor *p, fv_err *e)
{
    const fv_image *fit = &im->shown;
    im->channels = fit->channels;
    im->bytes = (size_t)fit->channels * (size_t)fit->height * (size_t)fit->width * sizeof(float);
    im->pixels = fv__alloc(im->env, im->bytes);
    if (!im->pixels) return fv_fail(e, FV_ENOMEM, "%s: out of memory", im->name);
    fv_processor_image_floats(p, fit, im->pixels, 0, 0);
    return fv_image_convert(&im->shown, 3, e);
}

/* Reads and fits the file. */
static fv_status read_file(fv_see_image *im, const char *path, fv_err *e)
{
    fv_image raw = {0};
    fv_path_kind kind;
    const char *slash = strrchr(path, '/');
    snprintf(im->name, sizeof im->name, "%s", slash ? slash + 1 : path);
    if (fv__path_kind(&kind, im->env, path, NULL) == FV_OK && kind == FV_PATH_DIR)
        return fv_fail(
            e, FV_EARG,
            "%s: a folder; one image at a time is looked at: name a file of it (clips of "
            "video are not shown)",
            path);
    fv_status st = fv_image_open(&raw, im->env, path, e);
    if (!st) st = fv_processor_image_fit(im->processor, &im->shown, &raw, e);
    if (!st) st = take_pixels(im, im->processor, e);
    fv_image_free(&raw);
    im->patch = fv__see_setting(im->dir, "patch_size");
    im->objects = fv__see_setting(im->dir, "num_detection_tokens");
    return st;
}

fv_status fv__see_image_open(fv_see_image **out, const fv_env *env, const fv_model *m,
                             const fv_see_in *in, fv_err *e)
{
    const char *what = in->image ? in->image : "an image that is drawn";
    *out = NULL;
    if (!in->image && !in->drawn) return FV_OK;
    if (!in->dir) return fv_fail(e, FV_EARG, "%s: which directory has the processor for it?", what);
    fv_see_image *im = *out = fv__alloc(env, sizeof *im);
    if (!im) return fv_fail(e, FV_ENOMEM, "%s: out of memory", what);
    *im = (fv_see_image){.env = env};
    bool sound = in->image && fv__see_hears(m), series = in->image && fv__see_reads_series(m);
    fv_status st = fv_dir_open(&im->dir, env, in->dir, e);
    if (!st && sound) st = fv__see_sound_open(im, in->image, e);
    if (!st && series) st = fv__see_series_open(im, in->image, in->channel, e);
    if (!st && !sound && !series)
        st = fv_processor_open(&im->processor, env, "image", fv_dir_path(im->dir), e);
    if (!st && in->image && !sound && !series) st = read_file(im, in->image, e);
    if (!st && in->drawn) {
        im->latents = fv__see_setting(im->dir, "latent_size");
        if (!im->latents) im->latents = 128; /* the family's own default */
    }
    if (!st) return FV_OK;
    fv__see_image_free(im);
    *out = NULL;
    return st;
}

void fv__see_image_free(fv_see_image *im)
{
    if (!im) return;
    fv_processor_close(im->processor);
    fv_dir_close(im->dir);
    fv_image_free(&im->shown);
    fv__free(im->env, im->pixels, im->bytes);
    fv__free(im->env, im->date, (size_t)im->dates * sizeof *im->date);
    fv__free(im->env, im, sizeof *im);
}

void fv__see_put_image(fv_ctx *c, const fv_see_image *im, const fv_see_in *in, fv_items *items)
{
    if (im->seconds > 0) {
        (im->date ? fv__see_put_series : fv__see_put_sound)(c, im, items);
        return;
    }
    if (!im->latents) {
        fv_shape s = FV_SHAPE(1, im->channels, im->shown.height, im->shown.width);
        fv_items_put(items, "pixel_values", fv_floats(c, im->pixels, s));
        return;
    }
    size_t bytes = (size_t)im->latents * sizeof(float);
    float *z = fv__alloc(im->env, bytes);
    if (!z) {
        fv_raise(c, FV_ENOMEM, "latents: out of memory");
        return;
    }
    fv_latents_draw(z, im->latents, in->seed, in->number, 0);
    fv_items_put(items, "latents", fv_floats(c, z, FV_SHAPE(1, im->latents)));
    fv_items_put(items, "labels", fv_ints(c, &in->label, FV_SHAPE(1)));
    fv__free(im->env, z, bytes);
}

/* The map is square: as many tokens across as down. */
fv_status fv__see_take_drawn(fv_see *s, const fv_items *out, int64_t n, fv_err *e)
{
    fv_see_image *im = s->image;
    const fv_tensor *y = fv_items_get(out, "images");
    if (!y) return fv_fail(e, FV_EMISSING, "the model drew no image");
    im->bytes = (size_t)fv_len(y) * sizeof(float);
    im->pixels = fv__alloc(im->env, im->bytes);
    if (!im->pixels) return fv_fail(e, FV_ENOMEM, "image: out of memory");
    fv_status st = fv_read(s->ctx, y, im->pixels, fv_len(y));
    if (st) return fv_fail(e, st, "%s", fv_ctx_err(s->ctx)->text);
    im->channels = (int)fv_dim(y, 1);
    st = fv_image_new(&im->shown, im->env, (int)fv_dim(y, 3), (int)fv_dim(y, 2), im->channels, e);
    if (!st) fv_processor_image_levels(im->processor, im->pixels, &im->shown);
    int64_t side = (int64_t)(sqrt((double)n) + 0.5);
    if (side && side * side == n) im->patch = im->shown.width / side;
    return st ? st : fv_image_convert(&im->shown, 3, e);
}

/* ---- what tokens stand for ---- */

/* Tokens in front of the patches: one stands for all of the image, DeiT has one for its teacher. */
static void name_token(char out[48], const fv_see_grid *g, int64_t i)
{
    int64_t k = i - g->at;
    if (i < g->at)
        snprintf(out, 48,
                 i == 0       ? "class"
                 : g->at == 2 ? "distillation"
                              : "register %lld",
                 (long long)i);
    else if (k < g->high * g->wide)
        snprintf(out, 48, "%lld,%lld", (long long)(k / g->wide), (long long)(k % g->wide));
    else
        snprintf(out, 48, "object %lld", (long long)(k - g->high * g->wide));
}

/* Where the patches stand among n tokens; none where the numbers do not fit together. */
static fv_see_grid find_grid(const fv_see_image *im, int64_t n)
{
    if (im->date) return (fv_see_grid){n - im->dates, 1, im->dates}; /* behind a class token */
    if (im->seconds > 0) return fv__see_sound_grid(im, n);
    if (im->patch < 1) return (fv_see_grid){0};
    int64_t high = im->shown.height / im->patch, wide = im->shown.width / im->patch;
    int64_t front = n - high * wide - im->objects;
    if (front < 0 || !high || !wide) return (fv_see_grid){0};
    return (fv_see_grid){front, high, wide};
}

fv_status fv__see_axis_image(const fv_see *s, fv_see_axis *a, int64_t n, fv_err *e)
{
    fv_see_grid g = find_grid(s->image, n);
    *a = (fv_see_axis){.n = n, .grid = g};
    a->text = fv__alloc(s->env, (size_t)n * sizeof *a->text);
    bool ok = a->text != NULL;
    for (int64_t i = 0; ok && i < n; i++) {
        char name[48];
        int64_t at = i - g.at;
        if (s->image->date && at >= 0 && at < g.wide)
            snprintf(name, sizeof name, "%s", s->image->date[at]);
        else if (s->image->seconds > 0 && at >= 0 && at < g.wide)
            snprintf(name, sizeof name, "%.2f s", s->image->seconds * (double)at / (double)g.wide);
        else if (s->image->seconds > 0 && at < 0)
            snprintf(name, sizeof name, "class");
        else if (s->image->seconds > 0)
            snprintf(name, sizeof name, "padding");
        else if (s->guide && g.at && !i) /* what it attends to is weighed by the text */
            snprintf(name, sizeof name, "the text");
        else if (g.high)
            name_token(name, &g, i);
        else
            snprintf(name, sizeof name, "%lld", (long long)i);
        ok = (a->text[i] = fv__strdup(s->env, name)) != NULL;
    }
    return ok ? FV_OK : fv_fail(e, FV_ENOMEM, "labels: out of memory");
}

fv_status fv__see_patch(const fv_see *s, fv_see_kind k, const int64_t at[2], int64_t *row,
                        fv_err *e)
{
    const fv_see_grid *g = &s->map[k].row.grid;
    if (!g->high)
        return fv_fail(e, FV_EARG, "what looks in the %s attention are no patches of an image",
                       fv_see_kind_name(k));
    if (at[0] < 0 || at[1] < 0 || at[0] >= g->high || at[1] >= g->wide)
        return fv_fail(e, FV_EARG, "patch %lld,%lld: the image has %lld rows of %lld patches",
                       (long long)at[0], (long long)at[1], (long long)g->high, (long long)g->wide);
    *row = g->at + at[0] * g->wide + at[1];
    return FV_OK;
}

/* ---- objects ---- */

/* The likeliest class but the last, which stands for nothing, and its probability. */
static double best_class(const float *x, int64_t classes, int64_t *best)
{
    double most = (double)x[classes], sum = 0;
    *best = 0;
    for (int64_t k = 0; k < classes; k++) {
        if (x[k] > x[*best]) *best = k;
        most = fmax(most, (double)x[k]);
    }
    for (int64_t k = 0; k <= classes; k++) sum += exp((double)x[k] - most);
    return exp((double)x[*best] - most) / sum;
}

/* Object i was found: its token gets the name of its class, and its edges are kept. */
static bool keep_box(fv_see *s, fv_see_axis *a, int64_t row, int64_t class, double score,
                     const float *b)
{
    char key[48], name[96];
    snprintf(key, sizeof key, "id2label.%lld", (long long)class);
    const char *label = fv_json_text(fv_dir_config(s->image->dir), key);
    snprintf(name, sizeof name, "%.60s %.2f", label ? label : key, score);
    void *boxes = s->box;
    char *text = fv__strdup(s->env, name);
    if (!text) return false;
    fv__free(s->env, a->text[row], strlen(a->text[row]) + 1);
    a->text[row] = text;
    if (!fv__grow(s->env, &boxes, &s->box_bytes, (size_t)(s->boxes + 1) * sizeof *s->box))
        return false;
    s->box = boxes;
    s->box[s->boxes++] =
        (fv_see_box){row, {b[0] - b[2] / 2, b[1] - b[3] / 2, b[0] + b[2] / 2, b[1] + b[3] / 2}};
    return true;
}

fv_status fv__see_find_boxes(fv_see *s, fv_see_axis *a, const fv_items *out, fv_err *e)
{
    const fv_tensor *boxes = fv_items_get(out, "pred_boxes"), *logits = fv_items_get(out, "logits");
    if (!boxes || !logits || !a->grid.high) return FV_OK;
    int64_t n = fv_dim(boxes, 1), width = fv_cols(logits);
    size_t bytes = (size_t)(n * (width + 4)) * sizeof(float);
    float *x = fv__alloc(s->env, bytes), *b = x ? x + n * width : NULL;
    if (!x) return fv_fail(e, FV_ENOMEM, "objects: out of memory");
    fv_status st = fv_read(s->ctx, logits, x, n * width);
    if (!st) st = fv_read(s->ctx, boxes, b, n * 4);
    if (st) st = fv_fail(e, st, "%s", fv_ctx_err(s->ctx)->text);
    for (int64_t i = 0; !st && i < n && n == s->image->objects; i++) {
        int64_t best, row = a->grid.at + a->grid.high * a->grid.wide + i;
        double score = best_class(x + i * width, width - 1, &best);
        if (score >= FOUND && !keep_box(s, a, row, best, score, b + i * 4))
            st = fv_fail(e, FV_ENOMEM, "objects: out of memory");
    }
    fv__free(s->env, x, bytes);
    return st;
}
