/* nearest.c - the task of looking for images: of each text or image the nearest ones of a set, in
 * the one space into which a model puts both (CLIP, SigLIP).
 *
 * The set is embedded once, when the task is opened; vectors have length 1, so the dot product is
 * the cosine.  All of the set is compared with each record: a hundred thousand images of width 512
 * are 50 million products, less than the model needs for the record itself.
 *
 * An image that cannot be read is left out and the others go on; a note says how many.
 *
 * With a picture as result each record is a row of it, the nearest image first. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "task_pipeline.h"

enum { CELL = 64, GAP = 4, TOGETHER = 64, MOST = 100 };

typedef struct nearest_options {
    char among[FV_PATH], draw[FV_PATH];
    int top;
} nearest_options;

static const fv_field options[] = {
    FV_TEXT(nearest_options, among, "",
            "PATH: the images, as a folder, an archive of one, an IDX file or a table"),
    FV_INT(nearest_options, top, 1, 5, MOST, "how many are given"),
    FV_TEXT(nearest_options, draw, "", "FILE: also a PNG with a row of images for each line"),
    {0}};

typedef struct found {
    int64_t image;
    float similarity;
} found;

typedef struct nearest {
    fv_images *set;
    int64_t n, width, top;
    float *vector; /* (n,width); the first value of an unreadable image is NAN */
    size_t bytes;
    int64_t unread; /* images that could not be read, and why the first could not */
    fv_err why;
    fv_buf shown; /* int64_t, top of each record, where they are drawn */
} nearest;

/* ---- the set ---- */

static fv_status keep_row(void *user, int64_t i, const fv_seq *s, const float *const out[2],
                          int64_t width, fv_err *e)
{
    (void)s, (void)e;
    memcpy(*(float **)user + i * width, out[0], (size_t)width * sizeof(float));
    return FV_OK;
}

static fv_status embed_some(fv_pipeline *p, nearest *w, int64_t from, int64_t n, fv_err *e)
{
    float *to = w->vector + from * w->width;
    fv_wanted image = {.names = {"image_embeds"}, .fn = keep_row, .user = &to};
    fv__task_begin(p->task);
    return fv__task_run_set(p->task, w->set, from, n, &image, e);
}

/* Where one of a batch cannot be read, its images come one by one. */
static fv_status embed_each(fv_pipeline *p, nearest *w, int64_t from, int64_t n)
{
    for (int64_t i = from; i < from + n; i++) {
        fv_err why = {0};
        if (embed_some(p, w, i, 1, &why) == FV_OK) continue;
        if (why.code == FV_ENOMEM) return fv_fail(&w->why, why.code, "%s", why.text);
        w->vector[i * w->width] = NAN;
        if (!w->unread++) w->why = why;
    }
    return FV_OK;
}

static fv_status embed_set(fv_pipeline *p, nearest *w, fv_err *e)
{
    fv_status st = FV_OK;
    for (int64_t from = 0; !st && from < w->n; from += TOGETHER) {
        int64_t n = w->n - from < TOGETHER ? w->n - from : TOGETHER;
        if (embed_some(p, w, from, n, e)) st = embed_each(p, w, from, n);
    }
    if (!st && w->unread < w->n) return FV_OK;
    return fv_fail(e, w->why.code, "%s", w->why.text);
}

static fv_status open_task(fv_pipeline *p, fv_err *e)
{
    const nearest_options *o = p->options;
    fv_data_report report = {0};
    fv_status st = fv__pipeline_self(p, sizeof(nearest), e);
    if (st) return st;
    nearest *w = p->self;
    w->shown.env = &p->env;
    if (!*o->among) return fv_fail(e, FV_EUSAGE, "--among: the images to look among are needed");
    if (fv__head_job(p->opt.model, NULL, 0) != FV_HEAD_CONTRASTIVE)
        return fv_fail(e, FV_EARG,
                       "%s: a model that puts images and texts into one space is needed (CLIP, "
                       "SigLIP)",
                       p->opt.model);
    st = fv__open_encoder(p, FV_JOB_CONTRAST, e);
    fv_images_opt where = {.from = {.file = o->among}};
    if (!st) st = fv_images_open(&w->set, &p->env, &where, &report, e);
    if (st) return st;
    w->n = fv_images_count(w->set);
    w->width = fv_task_width(p->task);
    w->top = o->top < w->n ? o->top : w->n;
    w->bytes = (size_t)(w->n * w->width) * sizeof(float);
    w->vector = fv__alloc(&p->env, w->bytes);
    st = w->vector ? embed_set(p, w, e) : fv_fail(e, FV_ENOMEM, "out of memory for the vectors");
    if (w->top > w->n - w->unread) w->top = w->n - w->unread;
    return st;
}

static void close_task(fv_pipeline *p)
{
    nearest *w = p->self;
    if (!w) return;
    fv__free(&p->env, w->vector, w->bytes);
    fv__buf_free(&w->shown);
    fv_images_close(w->set);
}

/* ---- a record ---- */

static float dot(const float *a, const float *b, int64_t n)
{
    float sum = 0;
    for (int64_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

/* The top nearest in order; of equal ones the first in the set. */
static void search(const nearest *w, const float *query, found best[MOST])
{
    int64_t have = 0;
    for (int64_t i = 0; i < w->n; i++) {
        if (isnan(w->vector[i * w->width])) continue;
        found x = {i, dot(query, w->vector + i * w->width, w->width)};
        int64_t at = have;
        while (at > 0 && best[at - 1].similarity < x.similarity) at--;
        if (at >= w->top) continue;
        have = have < w->top ? have + 1 : have;
        memmove(best + at + 1, best + at, (size_t)(have - 1 - at) * sizeof *best);
        best[at] = x;
    }
}

static void put(fv_pipeline *p, const fv_text *query, const found *best)
{
    const nearest *w = p->self;
    fv_buf *b = &p->out;
    char name[512];
    bool json = p->opt.json;
    if (json) {
        fv__json_begin(b, '{');
        fv__json_text_at(b, fv__names_image(query) ? "image" : "text", query->s, query->n);
        fv__json_key(b, "nearest");
        fv__json_begin(b, '[');
    }
    for (int64_t i = 0; i < w->top; i++) {
        fv_images_name(w->set, best[i].image, name, sizeof name);
        if (!json) {
            fv__buf_fmt(b, "%s%s %.4f", i ? "\t" : "", name, (double)best[i].similarity);
            continue;
        }
        fv__json_begin(b, '{');
        fv__json_text_at(b, "file", name, strlen(name));
        fv__json_number_at(b, "similarity", (double)best[i].similarity);
        fv__json_end(b, '}');
    }
    fv__buf_str(b, json ? "]}\n" : "\n");
}

static fv_status run(fv_pipeline *p, const fv_text *in, int64_t n, fv_err *e)
{
    nearest *w = p->self;
    size_t bytes = (size_t)(n * w->width) * sizeof(float);
    float *x = fv__alloc(&p->env, bytes);
    fv_status st = x ? fv_task_embed(p->task, in, n, (fv_embed_opt){0}, x, e)
                     : fv_fail(e, FV_ENOMEM, "out of memory");
    for (int64_t i = 0; i < n && !st; i++) {
        found best[MOST + 1];
        search(w, x + i * w->width, best);
        for (int64_t k = 0; k < w->top; k++)
            fv__buf_add(&w->shown, &best[k].image, sizeof best[k].image);
        put(p, &in[i], best);
        if (w->unread)
            snprintf(p->note, sizeof p->note, "is compared without %lld of %lld images: %.90s",
                     (long long)w->unread, (long long)w->n, w->why.text);
        w->unread = 0; /* said once */
        st = fv__task_emit(p, e);
    }
    fv__free(&p->env, x, bytes);
    return st || !w->shown.failed ? st : fv_fail(e, FV_ENOMEM, "out of memory");
}

/* ---- the picture ---- */

/* The image in its cell, with its aspect ratio; small ones are not smoothed. */
static fv_status paste(fv_image *to, const fv_image *im, int64_t row, int64_t col, fv_image *fit,
                       fv_err *e)
{
    int most = im->width > im->height ? im->width : im->height;
    int wide = im->width * CELL / most, high = im->height * CELL / most;
    wide = wide < 1 ? 1 : wide;
    high = high < 1 ? 1 : high;
    fv_status st = fv_image_resize(fit, im, wide, high, most < CELL ? FV_NEAREST : FV_BILINEAR,
                                   (fv_window){0}, e);
    if (st) return st;
    int64_t x0 = GAP + col * (CELL + GAP) + (CELL - wide) / 2,
            y0 = GAP + row * (CELL + GAP) + (CELL - high) / 2;
    for (int y = 0; y < high; y++)
        memcpy(to->data + ((y0 + y) * to->width + x0) * 3, fit->data + (size_t)y * (size_t)wide * 3,
               (size_t)wide * 3);
    return FV_OK;
}

static fv_status draw(fv_pipeline *p, fv_err *e)
{
    const nearest_options *o = p->options;
    const nearest *w = p->self;
    const int64_t *at = (const int64_t *)(const void *)w->shown.data;
    int64_t n = (int64_t)(w->shown.len / sizeof *at);
    fv_image all = {0}, raw = {0}, fit = {0};
    if (!*o->draw || !n) return FV_OK;
    if (n / w->top > 1000) return fv_fail(e, FV_EARG, "--draw: more than 1,000 lines");
    fv_status st = fv_image_new(&all, &p->env, (int)(GAP + w->top * (CELL + GAP)),
                                (int)(GAP + n / w->top * (CELL + GAP)), 3, e);
    if (!st) memset(all.data, 255, (size_t)all.width * (size_t)all.height * 3);
    for (int64_t i = 0; !st && i < n; i++) {
        st = fv_images_get(w->set, at[i], &raw, e);
        if (!st) st = fv_image_convert(&raw, 3, e);
        if (!st) st = paste(&all, &raw, i / w->top, i % w->top, &fit, e);
    }
    if (!st) st = fv_image_save(&all, o->draw, e);
    fv_image_free(&all);
    fv_image_free(&raw);
    fv_image_free(&fit);
    return st;
}

static const fv_task_example examples[] = {
    {"fovea nearest -m clip-vit-base-patch32 --among photos/ --text 'a dog in the snow'",
     "the five nearest photographs, with their cosines"},
    {"fovea nearest -m clip-vit-base-patch32 --among photos/ --draw found.png queries.txt",
     "also a picture: a row for each line, which may be a text or the path of an image"},
    {0}};

const fv_task_kind fv__nearest_task = {
    .name = "nearest",
    .summary = "find the images that are nearest to a text or an image",
    .about = "Embeds the images of --among, then each line, a text or the path of an image, and "
             "gives the images with the greatest cosine.  The model must put images and texts "
             "into one space (CLIP, SigLIP).",
    .examples = examples,
    .options = options,
    .size = sizeof(nearest_options),
    .images = true,
    .aligned = true,
    .batch = 64,
    .open = open_task,
    .run = run,
    .finish = draw,
    .close = close_task};
