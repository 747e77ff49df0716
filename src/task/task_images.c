/* task_images.c - image files through a model: decoded, fitted, stacked into batches, and each
 * one's outputs handed back.
 *
 * To a model that takes pixel_values a text is the path of an image.  So whatever reads texts
 * (lines of a file, arguments, tables with labels) also reads images, and tasks need not know
 * which. */
#include <strings.h>

#include "fovea/author/family.h"
#include "task.h"

enum { TOGETHER = 32 }; /* images of one batch */

bool fv__task_sees(const fv_task *t)
{
    return t->processor && !strcmp(fv_processor_kind(t->processor), "image");
}

fv_status fv__task_open_processor(fv_task *t, fv_err *e)
{
    if (fv__family_hears(fv_model_family(t->model)))
        return fv_processor_open(&t->processor, &t->env, "audio", fv_dir_path(t->dir), e);
    if (fv__task_reads_series(t))
        return fv_processor_open(&t->processor, &t->env, "table", fv_dir_path(t->dir), e);
    if (!fv_family_takes(fv_model_family(t->model), "pixel_values")) return FV_OK;
    return fv_processor_open(&t->processor, &t->env, "image", fv_dir_path(t->dir), e);
}

bool fv__names_image(const fv_text *x)
{
    static const char *const endings[] = {".png", ".jpg", ".jpeg"};
    for (int i = 0; i < 3; i++) {
        size_t n = strlen(endings[i]);
        if (x->n > n && !strncasecmp(x->s + x->n - n, endings[i], n)) return true;
    }
    return false;
}

void fv__task_image_size(const fv_task *t, int *width, int *height)
{
    *width = t->seen_width;
    *height = t->seen_height;
}

/* ---- one image ---- */

static fv_status fit_image(fv_task *t, fv_image *raw, fv_image *fit, fv_err *e)
{
    t->seen_width = raw->width;
    t->seen_height = raw->height;
    return fv_processor_image_fit(t->processor, fit, raw, e);
}

static fv_status load(fv_task *t, const fv_text *x, fv_image *raw, fv_image *fit, fv_err *e)
{
    char path[FV_PATH];
    fv_path_kind kind = FV_PATH_FILE;
    if (x->n >= sizeof path || memchr(x->s, 0, x->n))
        return fv_fail(e, FV_EARG, "no path of an image");
    memcpy(path, x->s, x->n);
    path[x->n] = 0;
    if (fv__path_kind(&kind, &t->env, path, NULL) == FV_OK && kind == FV_PATH_DIR)
        return fv_fail(e, FV_EARG,
                       "a folder inside a folder; this model looks at single images: name the "
                       "folder that they are in");
    fv_status st = fv_image_open(raw, &t->env, path, e);
    return st ? st : fit_image(t, raw, fit, e);
}

/* ---- batches ---- */

/* Images of one size that wait for the model: those from `first` on. */
typedef struct stack {
    float *x; /* (rows,C,H,W) */
    int64_t rows, first;
    int channels, height, width;
} stack;

static fv_status failed(const fv_task *t, fv_err *e)
{
    return fv_fail(e, fv_ctx_err(t->ctx)->code, "%s", fv_ctx_err(t->ctx)->text);
}

fv_status fv__task_hand_back(fv_task *t, const fv_items *out, int64_t first, int64_t n,
                             const fv_wanted *w, fv_err *e)
{
    float *host[2] = {NULL, NULL};
    int64_t each[2] = {0, 0}, width = 0;
    fv_status st = FV_OK;
    for (int k = 0; k < 2 && w->names[k]; k++) {
        const fv_tensor *y = fv_items_get(out, w->names[k]);
        if (!y) return fv_fail(e, FV_EARG, "%s gives no %s", fv_model_head(t->model), w->names[k]);
        host[k] = fv__task_claim(t, (size_t)fv_len(y) * sizeof(float), e);
        if (!host[k]) return FV_ENOMEM;
        if (fv_read(t->ctx, y, host[k], fv_len(y))) return failed(t, e);
        each[k] = fv_len(y) / n;
        width = fv_cols(y);
    }
    for (int64_t b = 0; b < n && !st; b++) {
        const float *mine[2] = {host[0] + b * each[0], host[1] ? host[1] + b * each[1] : NULL};
        const fv_seq rows = {.n = width ? each[0] / width : 0};
        st = w->fn(w->user, first + b, &rows, mine, width, e);
    }
    return st;
}

/* Runs what is stacked; the stack is empty afterwards. */
static fv_status flush(fv_task *t, stack *s, const fv_wanted *w, fv_err *e)
{
    fv_items in = {0}, out = {0};
    if (!s->rows) return FV_OK;
    fv_ctx_reset(t->ctx, 0);
    fv_items_put(&in, "pixel_values",
                 fv_floats(t->ctx, s->x, FV_SHAPE(s->rows, s->channels, s->height, s->width)));
    if (w->more && w->more(w->user, t->ctx, &in)) return failed(t, e);
    fv_model_forward(t->ctx, t->model, &in, &out);
    fv_status st = fv_ctx_status(t->ctx) ? failed(t, e)
                                         : fv__task_hand_back(t, &out, s->first, s->rows, w, e);
    s->first += s->rows;
    s->rows = 0;
    return st;
}

/* Puts an image on the stack; one of another size waits for the next. */
static fv_status push(fv_task *t, stack *s, const fv_image *fit, const fv_wanted *w, fv_err *e)
{
    bool same = s->height == fit->height && s->width == fit->width;
    fv_status st = !same || s->rows == TOGETHER ? flush(t, s, w, e) : FV_OK;
    if (st) return st;
    size_t size = (size_t)fit->channels * (size_t)fit->height * (size_t)fit->width;
    if (!same || !s->x) {
        s->x = fv__task_claim(t, TOGETHER * size * sizeof *s->x, e);
        if (!s->x) return FV_ENOMEM;
        s->channels = fit->channels, s->height = fit->height, s->width = fit->width;
    }
    fv_processor_image_floats(t->processor, fit, s->x + (size_t)s->rows++ * size, 0, 0);
    return FV_OK;
}

/* Images of like size are stacked into batches; fn gets each image's rows in the order of the
 * paths. A model of video takes folders of frames instead. */
fv_status fv__task_run_images(fv_task *t, const fv_text *paths, int64_t n, const fv_wanted *w,
                              fv_err *e)
{
    fv_image raw = {0}, fit = {0};
    stack s = {0};
    fv_status st = FV_OK;
    if (fv__task_frames(t)) return fv__task_run_clips(t, paths, n, w, e);
    for (int64_t i = 0; !st && i < n; i++) {
        st = load(t, &paths[i], &raw, &fit, e);
        if (!st) st = push(t, &s, &fit, w, e);
    }
    if (!st) st = flush(t, &s, w, e);
    fv_image_free(&raw);
    fv_image_free(&fit);
    return st;
}

/* The same for images that come from anywhere: get decodes image i into raw, whose memory is
 * reused. */
fv_status fv__task_run_got(fv_task *t,
                           fv_status (*get)(void *user, int64_t i, fv_image *raw, fv_err *e),
                           void *user, int64_t n, const fv_wanted *w, fv_err *e)
{
    fv_image raw = {0}, fit = {0};
    stack s = {0};
    fv_status st = FV_OK;
    for (int64_t i = 0; !st && i < n; i++) {
        st = get(user, i, &raw, e);
        if (!st) st = fit_image(t, &raw, &fit, e);
        if (!st) st = push(t, &s, &fit, w, e);
    }
    if (!st) st = flush(t, &s, w, e);
    fv_image_free(&raw);
    fv_image_free(&fit);
    return st;
}

typedef struct part {
    const fv_images *set;
    int64_t from;
} part;

static fv_status get_of_set(void *user, int64_t i, fv_image *raw, fv_err *e)
{
    const part *p = user;
    return fv_images_get(p->set, p->from + i, raw, e);
}

fv_status fv__task_run_set(fv_task *t, const fv_images *set, int64_t from, int64_t n,
                           const fv_wanted *w, fv_err *e)
{
    part p = {set, from};
    return fv__task_run_got(t, get_of_set, &p, n, w, e);
}

/* raw may be changed: fitting works in place where it can. */
fv_status fv__task_run_image(fv_task *t, fv_image *raw, const fv_wanted *w, fv_err *e)
{
    fv_image fit = {0};
    stack s = {0};
    fv_status st = fit_image(t, raw, &fit, e);
    if (!st) st = push(t, &s, &fit, w, e);
    if (!st) st = flush(t, &s, w, e);
    fv_image_free(&fit);
    return st;
}
