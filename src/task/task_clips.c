/* task_clips.c - clips through a model of video: a clip is a folder of frames, in order of their
 * names.
 *
 * Of a longer clip as many frames as the model takes are chosen at even steps, the first and the
 * last among them (numpy's linspace, cut to integers, as transformers' examples choose them); a
 * shorter one shows frames twice.  Frames are fitted and normalised one by one as images are. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "fovea/author/family.h"
#include "task.h"

int64_t fv__task_frames(const fv_task *t) { return fv__task_setting(t, "num_frames"); }

/* ---- the frames of a folder ---- */

typedef struct folder {
    const fv_env *env;
    fv_buf names; /* each ending in NUL */
    const char **at;
    size_t at_bytes;
    int64_t n;
} folder;

static void add_name(void *user, const char *name)
{
    folder *f = user;
    if (!fv__names_image(&(fv_text){.s = name, .n = strlen(name)})) return;
    fv__buf_add(&f->names, name, strlen(name) + 1);
    f->n++;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static void close_folder(folder *f)
{
    fv__free(f->env, f->at, f->at_bytes);
    fv__buf_free(&f->names);
}

/* Frames in order of their names: whoever cut a film numbered them. */
static fv_status open_folder(folder *f, const char *path, fv_err *e)
{
    const fv_io *io = fv__io(f->env);
    int rc = io->list ? io->list(io->self, path, add_name, f) : -ENOENT;
    if (rc) return fv_fail(e, FV_EFORMAT, "%s: is no folder of frames: %s", path, strerror(-rc));
    if (!f->n) return fv_fail(e, FV_EFORMAT, "%s: there is no frame (.png, .jpg) in it", path);
    f->at_bytes = (size_t)f->n * sizeof *f->at;
    f->at = fv__alloc(f->env, f->at_bytes);
    if (!f->at || f->names.failed) return fv_fail(e, FV_ENOMEM, "%s: out of memory", path);
    const char *name = f->names.data;
    for (int64_t i = 0; i < f->n; i++, name += strlen(name) + 1) f->at[i] = name;
    qsort(f->at, (size_t)f->n, sizeof *f->at, by_name);
    return FV_OK;
}

/* ---- a clip ---- */

typedef struct clip {
    float *x; /* (frames,C,H,W) */
    int channels, height, width;
} clip;

/* (frames,channels,height,width), the layout of VideoMAE's pixel_values. */
static fv_status add_frame(fv_task *t, clip *c, const fv_image *fit, int64_t i, const char *name,
                           fv_err *e)
{
    size_t each = (size_t)fit->channels * (size_t)fit->height * (size_t)fit->width;
    if (!c->x) {
        c->x = fv__task_claim(t, (size_t)fv__task_frames(t) * each * sizeof *c->x, e);
        if (!c->x) return FV_ENOMEM;
        c->channels = fit->channels, c->height = fit->height, c->width = fit->width;
    }
    if (fit->height != c->height || fit->width != c->width)
        return fv_fail(e, FV_ESHAPE, "%s: is of another size than the frames before it", name);
    fv_processor_image_floats(t->processor, fit, c->x + (size_t)i * each, 0, 0);
    return FV_OK;
}

/* As many frames as the model takes, evenly spaced from the first to the last; a clip of fewer
 * repeats some. */
static fv_status load(fv_task *t, clip *c, const char *path, fv_err *e)
{
    folder f = {.env = &t->env, .names = {.env = &t->env}};
    fv_image raw = {0}, fit = {0};
    int64_t frames = fv__task_frames(t);
    fv_status st = open_folder(&f, path, e);
    for (int64_t i = 0; !st && i < frames; i++) {
        char name[FV_PATH];
        int64_t k = frames > 1 ? i * (f.n - 1) / (frames - 1) : 0;
        snprintf(name, sizeof name, "%.2000s/%.2000s", path, f.at[k]);
        st = fv_image_open(&raw, &t->env, name, e);
        if (!st) st = fv_processor_image_fit(t->processor, &fit, &raw, e);
        if (!st) st = add_frame(t, c, &fit, i, name, e);
    }
    fv_image_free(&raw);
    fv_image_free(&fit);
    close_folder(&f);
    return st;
}

/* One after the other: a clip is a batch of frames already. */
fv_status fv__task_run_clips(fv_task *t, const fv_text *paths, int64_t n, const fv_wanted *w,
                             fv_err *e)
{
    fv_status st = FV_OK;
    for (int64_t i = 0; !st && i < n; i++) {
        char path[FV_PATH];
        clip c = {0};
        fv_items in = {0}, out = {0};
        if (!paths[i].n || paths[i].n >= sizeof path || memchr(paths[i].s, 0, paths[i].n))
            return fv_fail(e, FV_EARG, "no path of a folder of frames");
        memcpy(path, paths[i].s, paths[i].n);
        path[paths[i].n] = 0;
        st = load(t, &c, path, e);
        if (st) return st;
        fv_ctx_reset(t->ctx, 0);
        fv_items_put(&in, "pixel_values",
                     fv_floats(t->ctx, c.x,
                               FV_SHAPE(1, fv__task_frames(t), c.channels, c.height, c.width)));
        fv_model_forward(t->ctx, t->model, &in, &out);
        if (fv_ctx_status(t->ctx))
            return fv_fail(e, fv_ctx_err(t->ctx)->code, "%s", fv_ctx_err(t->ctx)->text);
        st = fv__task_hand_back(t, &out, i, 1, w, e);
    }
    return st;
}
