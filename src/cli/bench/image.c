/* image.c - fovea bench image: an image file decoded, resized and normalised, on one core. */
#include <stdio.h>
#include <stdlib.h>

#include "bench.h"
#include "fovea/author/processor.h"

typedef struct image_values {
    bench_values common;
    int64_t size;
    int resample;
} image_values;

static const image_values defaults = {.common = BENCH_DEFAULTS, .size = 224, .resample = 1};
static const char *const filters[] = {"bilinear", "bicubic", NULL};

static const cli_option options[] = {
    CLI_INT(image_values, size, 0, "size", "N", 1, 4096, "pixels of a side afterwards"),
    CLI_CHOICE(image_values, resample, 0, "resample", filters, "how it is resized"),
    BENCH_OPTIONS(image_values),
    {0},
};

static const cli_example examples[] = {
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

static void prepare(fv_ctx *c, void *what)
{
    preparing *x = what;
    (void)c;
    if (x->err.code) return;
    if (fv_image_decode(&x->raw, NULL, x->bytes, x->n, x->path, &x->err)) return;
    if (fv_processor_image_fit(x->p, &x->fit, &x->raw, &x->err)) return;
    fv_processor_image_floats(x->p, &x->fit, x->out, 0, 0);
}

static char *read_bytes(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    char *s = f ? malloc((size_t)1 << 26) : NULL;
    *n = s ? fread(s, 1, (size_t)1 << 26, f) : 0;
    if (f) fclose(f);
    return s;
}

static int run(const cli *c, const void *values, int n, char **operand)
{
    const image_values *v = values;
    bench b;
    if (!n) return cli_usage(c, "an image is needed");
    preparing x = {.path = operand[0]};
    char *bytes = read_bytes(operand[0], &x.n);
    if (!bytes) return cli_fail(c, "%s: cannot be read", operand[0]);
    x.bytes = bytes;
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
    x.out = malloc((size_t)side * (size_t)side * 3 * sizeof *x.out);
    int code = bench_open(&b, c, v->common, FV_F32, false);
    if (!code && (!x.out || fv_processor_from_steps(&x.p, NULL, &steps, NULL, &x.err)))
        code = cli_fail(c, "out of memory");
    if (!code) prepare(NULL, &x);
    if (!code && x.err.code) code = cli_error(c, &x.err);
    if (!code) {
        bench_parameters of = {0};
        bench_number(&of, "width", x.raw.width);
        bench_number(&of, "height", x.raw.height);
        bench_number(&of, "size", (double)side);
        bench_word(&of, "resample", filters[v->resample]);
        code = bench_run(&b, "image", &of, prepare, &x, (bench_work){0});
    }
    bench_close(&b);
    fv_processor_close(x.p);
    fv_image_free(&x.raw);
    fv_image_free(&x.fit);
    free(x.out);
    free(bytes);
    return code;
}

const cli_command bench_image_command = {
    .name = "image",
    .summary = "an image file decoded, resized and normalised",
    .about = "What a processor does before a model sees an image, on one core: PNG or JPEG to RGB, "
             "resized with antialiasing as Pillow does it, to floats.",
    .options = options,
    .defaults = &defaults,
    .size = sizeof(image_values),
    .operands = "IMAGE",
    .max_operands = 1,
    .examples = examples,
    .run = run,
};
