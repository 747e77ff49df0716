/* sample.c - fovea sample: images that a GAN draws, as a grid and one by one. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli.h"
#include "fovea/author/gan.h"

typedef struct sample_values {
    cli_model model;
    const char *output, *folder, *label, *judge, *real;
    int64_t n, columns, seed, size;
    double truncation;
} sample_values;

static const cli_option options[] = {
    CLI_MODEL(sample_values),
    CLI_FILE(sample_values, output, 'o', "output", "FILE", "a PNG file with all of them as a grid"),
    CLI_TEXT(sample_values, folder, 0, "folder", "DIR", "also each image as a PNG file in DIR"),
    CLI_TEXT(sample_values, label, 0, "label", "NAME",
             "only of this class, by name; without it each column of the grid is a class"),
    CLI_INT(sample_values, n, 0, "n", "N", 1, 1000000, "how many images"),
    CLI_INT(sample_values, columns, 0, "columns", "N", 0, 1000,
            "images in a row of the grid; 0: as many as there are classes, at most 16"),
    CLI_INT(sample_values, size, 0, "size", "N", 1, 32, "pixels of the grid for one of an image"),
    CLI_DIR(
        sample_values, judge, 0, "judge", "DIR",
        "print how many of N images the classifier in DIR recognises as what they were drawn for"),
    CLI_FILE(sample_values, real, 0, "real", "FILE",
             "and the Frechet distance of its features to those of real images: a folder, an "
             "archive or an IDX file"),
    CLI_INT(sample_values, seed, 0, "seed", "N", 0, 9e15, "the same seed draws the same images"),
    CLI_REAL(sample_values, truncation, 0, "truncation", "X", 0, 100,
             "latents beyond X are drawn again: fewer different images that look better; 0: none"),
    {0},
};

static const sample_values defaults = {.n = 80, .seed = 1, .size = 2};

static const cli_example examples[] = {
    {"fovea sample -m runs/fashion-mnist-sagan/model -o grid.png", "a column for each class"},
    {"fovea sample -m runs/cifar10-sagan/model --label horse --n 64 --columns 8 -o horses.png",
     "one class"},
    {"fovea sample -m runs/cifar10-sagan/model --n 1000 --folder drawn -o grid.png",
     "a thousand files beside the grid"},
    {"fovea sample -m runs/cifar10-sagan/model --n 5000 --judge runs/cifar10-vit/model --real "
     "test.tar.gz",
     "how many a classifier recognises, and how far its features are from real images'"},
    {0},
};

typedef struct work {
    const sample_values *v;
    fv_gan *gan;
    int32_t *label;
    int64_t columns;
    fv_image grid;
    fv_gan_scores scores;
} work;

enum { GAP = 2 };

/* The image into its cell of the grid, every pixel v->size times wide and high. */
static void put_cell(work *w, int64_t i, const fv_image *im)
{
    int64_t k = w->v->size, c = im->channels;
    int64_t x0 = GAP + i % w->columns * (im->width * k + GAP),
            y0 = GAP + i / w->columns * (im->height * k + GAP);
    for (int64_t y = 0; y < im->height * k; y++)
        for (int64_t x = 0; x < im->width * k; x++)
            memcpy(w->grid.data + ((y0 + y) * w->grid.width + x0 + x) * c,
                   im->data + (y / k * im->width + x / k) * c, (size_t)c);
}

static fv_status open_grid(work *w, const fv_image *im, fv_err *e)
{
    int64_t rows = (w->v->n + w->columns - 1) / w->columns, k = w->v->size;
    int64_t width = w->columns * (im->width * k + GAP) + GAP,
            height = rows * (im->height * k + GAP) + GAP;
    if (width * height > FV_IMAGE_MOST_PIXELS)
        return fv_fail(e, FV_EARG, "a grid of %lld x %lld pixels is too large: fewer images",
                       (long long)width, (long long)height);
    fv_status st = fv_image_new(&w->grid, NULL, (int)width, (int)height, im->channels, e);
    if (!st) memset(w->grid.data, 255, (size_t)(width * height * im->channels));
    return st;
}

static fv_status take(void *user, int64_t i, fv_image *im, fv_err *e)
{
    work *w = user;
    fv_status st = FV_OK;
    if (w->v->output && !w->grid.data) st = open_grid(w, im, e);
    if (!st && w->v->output) put_cell(w, i, im);
    if (!st && w->v->folder) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%06lld-%s.png", w->v->folder, (long long)i,
                 fv_gan_name(w->gan, w->label[i]));
        st = fv_image_save(im, path, e);
    }
    return st;
}

/* All of one class, or one class after the other. */
static fv_status choose_labels(work *w, fv_err *e)
{
    int classes = fv_gan_classes(w->gan), one = -1;
    if (w->v->label && (one = fv_gan_class(w->gan, w->v->label)) < 0)
        return fv_fail(e, FV_EARG, "--label %s: the model has no such class; the first is %s",
                       w->v->label, fv_gan_name(w->gan, 0));
    w->columns = w->v->columns ? w->v->columns : classes < 2 ? 10 : classes < 16 ? classes : 16;
    if (w->columns > w->v->n) w->columns = w->v->n;
    w->label = malloc((size_t)w->v->n * sizeof *w->label);
    if (!w->label) return fv_fail(e, FV_ENOMEM, "out of memory");
    for (int64_t i = 0; i < w->v->n; i++) w->label[i] = one >= 0 ? one : (int32_t)(i % classes);
    return FV_OK;
}

static fv_status draw(work *w, fv_device *d, fv_model_opt how, fv_err *e)
{
    const sample_values *v = w->v;
    fv_gan_opt o = {.seed = (uint64_t)v->seed, .truncation = v->truncation};
    fv_status st = fv_gan_open(&w->gan, d, v->model.dir, how, e);
    if (!st) st = choose_labels(w, e);
    if (!st && v->folder && mkdir(v->folder, 0777)) {
        struct stat s;
        if (stat(v->folder, &s) || !S_ISDIR(s.st_mode))
            st = fv_fail(e, FV_EIO, "%s: cannot be made", v->folder);
    }
    if (!st && (v->output || v->folder)) st = fv_gan_draw(w->gan, w->label, 0, v->n, o, take, w, e);
    if (!st && v->output) st = fv_image_save(&w->grid, v->output, e);
    if (!st && v->judge) st = fv_gan_judge(w->gan, d, v->judge, v->real, v->n, o, &w->scores, e);
    return st;
}

static void print_scores(const fv_gan_scores *s)
{
    printf("recognised         %6.2f  %% of %lld images\n", s->recognised, (long long)s->images);
    printf("classes covered    %6d  of %d\n", s->covered, s->classes);
    if (s->frechet >= 0) printf("Frechet distance   %6.3f  of the judge's features\n", s->frechet);
}

static int run(const cli *c, const void *values, int n, char **operand)
{
    const sample_values *v = values;
    work w = {.v = v};
    fv_device *d;
    fv_err e;
    fv_model_opt how = {.serve = true};
    (void)n, (void)operand;
    if (!v->model.dir) return cli_usage(c, "--model is missing: the directory of a model");
    if (!v->output && !v->folder && !v->judge)
        return cli_usage(c, "--output, --folder or --judge is missing");
    if (v->real && !v->judge) return cli_usage(c, "--real goes with --judge");
    int code = cli_open_device(c, &d, v->model.device, v->model.threads);
    if (code != CLI_OK) return code;
    cli_choose_weights(v->model.dtype, &how.weights, &how.widen);
    if (draw(&w, d, how, &e))
        code = cli_error(c, &e);
    else if (v->judge)
        print_scores(&w.scores);
    fv_gan_close(w.gan);
    fv_image_free(&w.grid);
    free(w.label);
    fv_device_close(d);
    return code;
}

const cli_command sample_command = {
    .name = "sample",
    .summary = "draw images with a GAN",
    .about = "Draws images with the generator of a GAN (SAGAN) and writes them as one grid, a "
             "column for each class, or as files.  An image depends on the seed and its number "
             "alone, whatever else is drawn.",
    .options = options,
    .size = sizeof(sample_values),
    .defaults = &defaults,
    .examples = examples,
    .run = run,
};
