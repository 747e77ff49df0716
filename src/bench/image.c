/* image.c - bench image: an image file decoded, resized and normalised, on one core.
 *
 * What a picture costs before a model sees it: decoding JPEG or PNG, resizing, and the floats that
 * are normalised, each by itself and together. In training these run in the loader's threads beside
 * the model; this says how many of them one model needs. */
#include <stdlib.h>

#include "bench.h"
#include "fovea/author/processor.h"

typedef struct image_values {
    int64_t size;
    int resample; /* an index into filters */
} image_values;

static const char *const filters[] = {"bilinear", "bicubic", NULL};

static const fv_field options[] = {FV_INT(image_values, size, 1, 224, 4096,
                                          "pixels of a side afterwards"),
                                   FV_CHOICE(image_values, resample, 1, filters,
                                             "how it is resized"),
                                   {0}};

static const fv_task_example examples[] = {
    {"fovea bench image photo.jpg", "as ViT's processor prepares it"},
    {"fovea bench image --resample bilinear --json photo.jpg", "for a script"},
    {0},
};

typedef struct preparing {
    const char *bytes;
    size_t n;
    const char *path;
    fv_processor *p;
    fv_image raw, fit;
    float *out;
    fv_err err; /* the first failure */
} preparing;

/* One repetition: a file in memory to the floats that a model reads. The images are reused, so
 * that memory is allocated in the first one only. */
static void prepare(fv_ctx *c, void *what)
{
    preparing *x = what;
    (void)c;
    if (x->err.code) return;
    if (fv_image_decode(&x->raw, NULL, x->bytes, x->n, x->path, &x->err)) return;
    if (fv_processor_image_fit(x->p, &x->fit, &x->raw, &x->err)) return;
    fv_processor_image_floats(x->p, &x->fit, x->out, 0, 0);
}

/* As ViT's processor: resized to a square with antialiasing, scaled to -1..1. */
static fv_status measure(preparing *x, const bench_kind *k, const bench_opt *o,
                         const image_values *v, fv_err *e)
{
    bench b;
    int side = (int)v->size;
    fv_image_steps steps = {.channels = 3,
                            .resize = true,
                            .width = side,
                            .height = side,
                            .resample = v->resample ? FV_BICUBIC : FV_BILINEAR,
                            .rescale = true,
                            .normalise = true,
                            .mean = {0.5, 0.5, 0.5},
                            .deviation = {0.5, 0.5, 0.5}};
    x->out = malloc((size_t)side * (size_t)side * 3 * sizeof *x->out);
    if (!x->out) return fv_fail(e, FV_ENOMEM, "out of memory");
    fv_status st = fv_processor_from_steps(&x->p, NULL, &steps, NULL, e);
    if (st) return st;
    prepare(NULL, x); /* a first time, for the sizes and for what is wrong with the file */
    if (x->err.code) return fv_fail(e, x->err.code, "%s", x->err.text);
    bench_row r = {.name = k->name};
    bench_number(&r, "width", x->raw.width);
    bench_number(&r, "height", x->raw.height);
    bench_number(&r, "size", (double)side);
    bench_word(&r, "resample", filters[v->resample]);
    st = bench_open(&b, o, FV_F32, e);
    if (!st) st = bench_run(&b, &r, prepare, x, (bench_work){0}, e);
    bench_close(&b);
    return st;
}

/* The file is in memory before the clock runs: decoding is measured, not the disk. */
static fv_status run(const bench_kind *k, const bench_opt *o, const void *values, fv_err *e)
{
    preparing x = {.path = o->operand};
    char *bytes = bench_read_file(o->operand, (size_t)1 << 26, &x.n, e);
    if (!bytes) return FV_EIO;
    x.bytes = bytes;
    fv_status st = measure(&x, k, o, values, e);
    fv_processor_close(x.p);
    fv_image_free(&x.raw);
    fv_image_free(&x.fit);
    free(x.out);
    free(bytes);
    return st;
}

const bench_kind bench_image[] = {
    {.name = "image",
     .summary = "an image file decoded, resized and normalised",
     .about = "What a processor does before a model sees an image, on one core: PNG or JPEG to "
              "RGB, resized with antialiasing as Pillow does it, to floats.",
     .examples = examples,
     .options = options,
     .size = sizeof(image_values),
     .operand = "IMAGE",
     .run = run},
    {0}};
