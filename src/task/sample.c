/* sample.c - the task of drawing images: a GAN's, as a grid and one by one, and how good they are.
 *
 * There are no records: the settings say all, and finish does the work.  Images come one at a time
 * (gan_draw.c) and are put into the grid or saved as they come, so a million of them need the
 * memory of the grid alone.  Judging draws its own images, of the same numbers (gan_judge.c). */
#include <stdio.h>

#include "fovea/author/gan.h"
#include "task_pipeline.h"

typedef struct sample_options {
    char output[FV_PATH], folder[FV_PATH], label[256], judge[FV_PATH], real[FV_PATH];
    int64_t n, columns, seed, size;
    double truncation;
} sample_options;

static const fv_field options[] = {
    FV_TEXT(sample_options, output, "", "FILE: a PNG file with all of them as a grid"),
    FV_TEXT(sample_options, folder, "", "DIR: also each image as a PNG file in DIR"),
    FV_TEXT(sample_options, label, "",
            "NAME: only of this class, by name; without it each column of the grid is a class"),
    FV_INT(sample_options, n, 1, 80, 1000000, "how many images"),
    FV_INT(sample_options, columns, 0, 0, 1000,
           "images in a row of the grid; 0: as many as there are classes, at most 16"),
    FV_INT(sample_options, size, 1, 2, 32, "pixels of the grid for one of an image"),
    FV_TEXT(sample_options, judge, "",
            "DIR: print how many of N images the classifier in DIR recognises as what they were "
            "drawn for"),
    FV_TEXT(sample_options, real, "",
            "FILE: and the Frechet distance of its features to those of real images: a folder, an "
            "archive or an IDX file"),
    FV_INT(sample_options, seed, 0, 1, 9e15, "the same seed draws the same images"),
    FV_FLOAT(sample_options, truncation, 0, 0, 100,
             "latents beyond X are drawn again: fewer different images that look better; 0: none"),
    {0}};

typedef struct work {
    fv_gan *gan;
    int32_t *label; /* (n) */
    int64_t columns;
    fv_image grid; /* white, until cells are put into it */
} work;

enum { GAP = 2 }; /* pixels around a cell of the grid */

/* The image into its cell of the grid, every pixel o->size times wide and high. */
static void put_cell(const fv_pipeline *p, int64_t i, const fv_image *im)
{
    const sample_options *o = p->options;
    const work *w = p->self;
    int64_t k = o->size, c = im->channels;
    int64_t x0 = GAP + i % w->columns * (im->width * k + GAP),
            y0 = GAP + i / w->columns * (im->height * k + GAP);
    for (int64_t y = 0; y < im->height * k; y++)
        for (int64_t x = 0; x < im->width * k; x++)
            memcpy(w->grid.data + ((y0 + y) * w->grid.width + x0 + x) * c,
                   im->data + (y / k * im->width + x / k) * c, (size_t)c);
}

/* The size of a cell is known with the first image. */
static fv_status open_grid(fv_pipeline *p, const fv_image *im, fv_err *e)
{
    const sample_options *o = p->options;
    work *w = p->self;
    int64_t rows = (o->n + w->columns - 1) / w->columns, k = o->size;
    int64_t width = w->columns * (im->width * k + GAP) + GAP,
            height = rows * (im->height * k + GAP) + GAP;
    if (width * height > FV_IMAGE_MOST_PIXELS)
        return fv_fail(e, FV_EARG, "a grid of %lld x %lld pixels is too large: fewer images",
                       (long long)width, (long long)height);
    fv_status st = fv_image_new(&w->grid, &p->env, (int)width, (int)height, im->channels, e);
    if (!st) memset(w->grid.data, 255, (size_t)(width * height * im->channels));
    return st;
}

/* {"file": .., "images": n, "label": ..}; label < 0: of all classes. */
static fv_status say_file(fv_pipeline *p, const char *path, int64_t n, int label, fv_err *e)
{
    const work *w = p->self;
    fv_buf *b = &p->out;
    fv__json_begin(b, '{');
    fv__json_text_at(b, "file", path, strlen(path));
    fv__json_int_at(b, "images", n);
    if (label >= 0) {
        const char *name = fv_gan_name(w->gan, label);
        fv__json_text_at(b, "label", name, strlen(name));
    }
    fv__json_end(b, '}');
    fv__buf_str(b, "\n");
    return fv__task_emit(p, e);
}

/* The grid is made when the first image says how large a cell is. */
static fv_status take(void *user, int64_t i, fv_image *im, fv_err *e)
{
    fv_pipeline *p = user;
    const sample_options *o = p->options;
    const work *w = p->self;
    fv_status st = FV_OK;
    if (o->output[0] && !w->grid.data) st = open_grid(p, im, e);
    if (!st && o->output[0]) put_cell(p, i, im);
    if (!st && o->folder[0]) {
        char path[FV_PATH + 300];
        snprintf(path, sizeof path, "%s/%06lld-%s.png", o->folder, (long long)i,
                 fv_gan_name(w->gan, w->label[i]));
        st = fv_image_save(im, path, e);
        if (!st && p->opt.json) st = say_file(p, path, 1, w->label[i], e);
    }
    return st;
}

/* All of one class, or one class after the other. */
static fv_status choose_labels(fv_pipeline *p, fv_err *e)
{
    const sample_options *o = p->options;
    work *w = p->self;
    int classes = fv_gan_classes(w->gan), one = -1;
    if (o->label[0] && (one = fv_gan_class(w->gan, o->label)) < 0)
        return fv_fail(e, FV_EARG, "--label %s: the model has no such class; the first is %s",
                       o->label, fv_gan_name(w->gan, 0));
    /* A square-like grid without classes; else a column for each, as long as they fit a screen. */
    w->columns = o->columns ? o->columns : classes < 2 ? 10 : classes < 16 ? classes : 16;
    if (w->columns > o->n) w->columns = o->n;
    w->label = fv__alloc(&p->env, (size_t)o->n * sizeof *w->label);
    if (!w->label) return fv_fail(e, FV_ENOMEM, "out of memory");
    for (int64_t i = 0; i < o->n; i++) w->label[i] = one >= 0 ? one : (int32_t)(i % classes);
    return FV_OK;
}

/* Before the model is opened: without a file or folder for them nothing would be drawn. */
static fv_status check(fv_pipeline *p, fv_err *e)
{
    const sample_options *o = p->options;
    if (!o->output[0] && !o->folder[0] && !o->judge[0])
        return fv_fail(e, FV_EUSAGE, "--output, --folder or --judge is missing");
    if (o->real[0] && !o->judge[0]) return fv_fail(e, FV_EUSAGE, "--real goes with --judge");
    return FV_OK;
}

static fv_status open_task(fv_pipeline *p, fv_err *e)
{
    fv_model_opt how = fv__pipeline_model_opt(p);
    how.serve = true;
    fv_status st = fv__pipeline_self(p, sizeof(work), e);
    if (!st) st = fv_gan_open(&((work *)p->self)->gan, p->dev, p->opt.model, how, e);
    return st ? st : choose_labels(p, e);
}

static void close_task(fv_pipeline *p)
{
    const sample_options *o = p->options;
    work *w = p->self;
    if (!w) return;
    fv_gan_close(w->gan);
    fv_image_free(&w->grid);
    fv__free(&p->env, w->label, (size_t)o->n * sizeof *w->label);
}

/* Without records there is nothing to run. */
static fv_status run(fv_pipeline *p, const fv_text *in, int64_t n, fv_err *e)
{
    (void)p, (void)in, (void)n;
    return fv_fail(e, FV_EUSAGE, "images are drawn from settings, not from records");
}

/* The judge sees images of the same seed and numbers, classes by turns, whatever --label says. */
static fv_status judge(fv_pipeline *p, fv_gan_opt how, fv_err *e)
{
    const sample_options *o = p->options;
    const work *w = p->self;
    fv_gan_scores s;
    fv_status st = fv_gan_judge(w->gan, p->dev, o->judge, o->real[0] ? o->real : NULL, o->n, how,
                                &s, e);
    if (st) return st;
    if (p->opt.json) {
        fv_buf *b = &p->out;
        fv__json_begin(b, '{');
        fv__json_int_at(b, "images", s.images);
        fv__json_number_at(b, "recognised", s.recognised);
        fv__json_int_at(b, "classes_covered", s.covered);
        fv__json_int_at(b, "classes", s.classes);
        if (s.frechet >= 0) fv__json_number_at(b, "frechet_distance", s.frechet);
        fv__json_end(b, '}');
        fv__buf_str(b, "\n");
        return fv__task_emit(p, e);
    }
    fv__buf_fmt(&p->out, "recognised         %6.2f  %% of %lld images\n", s.recognised,
                (long long)s.images);
    fv__buf_fmt(&p->out, "classes covered    %6d  of %d\n", s.covered, s.classes);
    if (s.frechet >= 0)
        fv__buf_fmt(&p->out, "Frechet distance   %6.3f  of the judge's features\n", s.frechet);
    return fv__task_emit(p, e);
}

static fv_status finish(fv_pipeline *p, fv_err *e)
{
    const sample_options *o = p->options;
    work *w = p->self;
    fv_gan_opt how = {.seed = (uint64_t)o->seed, .truncation = o->truncation};
    fv_status st = o->folder[0] ? fv__dir_make(&p->env, o->folder, e) : FV_OK;
    if (!st && (o->output[0] || o->folder[0]))
        st = fv_gan_draw(w->gan, w->label, 0, o->n, how, take, p, e);
    if (!st && o->output[0]) st = fv_image_save(&w->grid, o->output, e);
    if (!st && o->output[0] && p->opt.json)
        st = say_file(p, o->output, o->n, o->label[0] ? w->label[0] : -1, e);
    return st || !o->judge[0] ? st : judge(p, how, e);
}

static const fv_task_example examples[] = {
    {"fovea sample -m runs/fashion-mnist-sagan/model -o grid.png", "a column for each class"},
    {"fovea sample -m runs/cifar10-sagan/model --label horse --n 64 --columns 8 -o horses.png",
     "one class"},
    {"fovea sample -m runs/cifar10-sagan/model --n 1000 --folder drawn -o grid.png",
     "a thousand files beside the grid"},
    {"fovea sample -m runs/cifar10-sagan/model --n 5000 --judge runs/cifar10-vit/model --real "
     "test.tar.gz",
     "how many a classifier recognises, and how far its features are from real images'"},
    {0}};

const fv_task_kind fv__sample_task = {
    .name = "sample",
    .summary = "draw images with a GAN",
    .about = "Draws images with the generator of a GAN (SAGAN) and writes them as one grid, a "
             "column for each class, or as files.  An image depends on the seed and its number "
             "alone, whatever else is drawn.",
    .examples = examples,
    .options = options,
    .size = sizeof(sample_options),
    .no_records = true,
    .check = check,
    .open = open_task,
    .run = run,
    .finish = finish,
    .close = close_task,
};
