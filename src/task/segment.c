/* segment.c - a label for each pixel: for each image what covers how much of it, and as a picture.
 *
 * The logits of a coarser grid are widened to the size of the image, as transformers'
 * post_process_semantic_segmentation does, and each pixel gets the label with the greatest.
 *
 *     plain   label share <tab> label share ...      of the labels that occur
 *     --json  {"image", "labels": [{"label", "share"}]} */
#include <stdio.h>

#include "fovea/author/ops.h"
#include "task_pipeline.h"

typedef struct segment_options {
    char draw[FV_PATH], masks[FV_PATH];
} segment_options;

static const fv_field options[] = {
    FV_TEXT(segment_options, draw, "",
            "DIR: where every image is written as PNG with its labels as colours over it"),
    FV_TEXT(segment_options, masks, "",
            "DIR: where the numbers of labels are written, as grey PNG of the image's size"),
    {0}};

/* ---- labels of pixels ---- */

/* Bilinear, corners not aligned, in the order of the loss: rows y of the target lie at
 * (y + 0.5) h / H - 0.5. */
static float widened(const float *x, int64_t h, int64_t w, double sy, double sx)
{
    if (sy < 0) sy = 0;
    if (sx < 0) sx = 0;
    int64_t y = (int64_t)sy, z = (int64_t)sx;
    int64_t y1 = y + 1 < h ? y + 1 : y, z1 = z + 1 < w ? z + 1 : z;
    float fy = (float)(sy - (double)y), fx = (float)(sx - (double)z);
    float top = x[y * w + z] * (1 - fx) + x[y * w + z1] * fx,
          low = x[y1 * w + z] * (1 - fx) + x[y1 * w + z1] * fx;
    return top * (1 - fy) + low * fy;
}

/* Logits are widened to the image before the greatest is taken, as SegFormer's authors do: labels
 * widened afterwards would have edges of steps. Pixel centres are aligned (half-pixel). */
void fv__label_pixels(uint8_t *out, const float *logits, int labels, int64_t h, int64_t w,
                      int height, int width)
{
#pragma omp parallel for schedule(static)
    for (int y = 0; y < height; y++)
        for (int x = 0; x < width; x++) {
            double sy = (y + 0.5) * (double)h / height - 0.5,
                   sx = (x + 0.5) * (double)w / width - 0.5;
            int best = 0;
            float most = widened(logits, h, w, sy, sx);
            for (int k = 1; k < labels; k++) {
                float v = widened(logits + k * h * w, h, w, sy, sx);
                if (v > most) most = v, best = k;
            }
            out[(size_t)y * (size_t)width + (size_t)x] = (uint8_t)best;
        }
}

/* ---- pictures ---- */

static const uint8_t colours[][3] = {{40, 60, 160},  {250, 200, 40}, {230, 60, 60},
                                     {60, 190, 90},  {190, 80, 210}, {40, 200, 210},
                                     {250, 130, 40}, {240, 120, 180}};

/* Named after the image, with .png behind its whole name: a.jpg and a.png must not meet. */
static fv_status save_in(const fv_pipeline *p, const fv_image *im, const char *dir,
                         const fv_text *x, fv_err *e)
{
    char path[FV_PATH];
    const char *name = x->s + x->n;
    while (name > x->s && name[-1] != '/') name--;
    snprintf(path, sizeof path, "%.2000s/%.*s.png", dir, (int)(x->s + x->n - name), name);
    fv_status st = fv__dir_make(&p->env, dir, e);
    return st ? st : fv_image_save(im, path, e);
}

/* Half of the image and half of the colour of its label. */
static fv_status draw(const fv_pipeline *p, fv_image *im, const uint8_t *label, const fv_text *x,
                      fv_err *e)
{
    const segment_options *o = p->options;
    fv_status st = fv_image_convert(im, 3, e);
    for (int64_t i = 0; !st && i < (int64_t)im->width * im->height; i++)
        for (int c = 0; c < 3; c++)
            im->data[3 * i + c] = (uint8_t)((im->data[3 * i + c] + colours[label[i] % 8][c]) / 2);
    return st ? st : save_in(p, im, o->draw, x, e);
}

/* ---- the task ---- */

typedef struct labelling {
    fv_pipeline *p;
    const fv_text *x;
    fv_image raw, mask;
} labelling;

/* A mask has a byte a pixel. */
static fv_status open_task(fv_pipeline *p, fv_err *e)
{
    fv_status st = fv__pipeline_self(p, sizeof(labelling), e);
    if (!st) st = fv__open_encoder(p, FV_JOB_SEGMENT, e);
    if (!st && p->task->labels > 256)
        st = fv_fail(e, FV_EARG, "%s: %d labels; at most 256 can be drawn", p->opt.model,
                     p->task->labels);
    return st;
}

static void close_task(fv_pipeline *p)
{
    labelling *l = p->self;
    if (!l) return;
    fv_image_free(&l->raw);
    fv_image_free(&l->mask);
}

static void put(fv_pipeline *p, const fv_text *x, const fv_image *mask)
{
    int64_t count[256] = {0}, pixels = (int64_t)mask->width * mask->height;
    fv_buf *b = &p->out;
    bool first = true;
    for (int64_t i = 0; i < pixels; i++) count[mask->data[i]]++;
    if (p->opt.json) {
        fv__json_begin(b, '{');
        fv__json_text_at(b, "image", x->s, x->n);
        fv__json_key(b, "labels");
        fv__json_begin(b, '[');
    }
    for (int k = 0; k < p->task->labels; k++) {
        const char *name = p->task->label[k];
        double share = (double)count[k] / (double)pixels;
        if (!count[k]) continue;
        if (p->opt.json) {
            fv__json_begin(b, '{');
            fv__json_text_at(b, "label", name, strlen(name));
            fv__json_number_at(b, "share", share);
            fv__json_end(b, '}');
        } else {
            fv__buf_fmt(b, "%s%s %.6f", first ? "" : "\t", name, share);
        }
        first = false;
    }
    if (p->opt.json) fv__buf_str(b, "]}");
    fv__buf_str(b, "\n");
}

static fv_status each(void *user, int64_t i, const fv_seq *s, const float *const out[2],
                      int64_t width, fv_err *e)
{
    labelling *l = user;
    fv_pipeline *p = l->p;
    const segment_options *o = p->options;
    (void)i;
    int64_t rows = s->n / p->task->labels;
    fv_status st = fv_image_new(&l->mask, &p->env, l->raw.width, l->raw.height, 1, e);
    if (st) return st;
    fv__label_pixels(l->mask.data, out[0], p->task->labels, rows, width, l->raw.height,
                     l->raw.width);
    put(p, l->x, &l->mask);
    if (*o->masks) st = save_in(p, &l->mask, o->masks, l->x, e);
    if (!st && *o->draw) st = draw(p, &l->raw, l->mask.data, l->x, e);
    return st;
}

static fv_status run(fv_pipeline *p, const fv_text *in, int64_t n, fv_err *e)
{
    labelling *l = p->self;
    fv_wanted w = {.names = {"logits"}, .fn = each, .user = l};
    char path[FV_PATH];
    fv_status st = FV_OK;
    l->p = p;
    for (int64_t i = 0; !st && i < n; i++) {
        l->x = &in[i];
        snprintf(path, sizeof path, "%.*s", (int)(in[i].n < 4000 ? in[i].n : 4000), in[i].s);
        fv__task_begin(p->task);
        st = fv_image_open(&l->raw, &p->env, path, e);
        if (!st) st = fv__task_run_image(p->task, &l->raw, &w, e);
        if (!st) st = fv__task_emit(p, e);
    }
    return st;
}

static const fv_task_example examples[] = {
    {"fovea segment -m segformer-b0-ade street.jpg", "the share of each label"},
    {"fovea segment -m runs/membrane/model --draw seen --masks masks slices/",
     "pictures with the labels as colours, and the labels themselves"},
    {0}};

const fv_task_kind fv__segment_task = {
    .name = "segment",
    .summary = "label each pixel of images",
    .about =
        "Reads images and prints which labels cover which share of each.  --draw writes the "
        "images with the labels as colours over them, --masks the numbers of the labels as grey "
        "PNG files of the image's size.",
    .examples = examples,
    .options = options,
    .size = sizeof(segment_options),
    FV__TASK_OF_IMAGES,
    .open = open_task,
    .run = run,
    .close = close_task,
    .eval = &fv__eval_segment};
