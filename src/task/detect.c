/* detect.c - boxes around objects: for each image what was found, where, and how sure the model is.
 *
 * As transformers' post_process_object_detection: the softmax over classes without the last, which
 * stands for nothing; boxes from shares of the image to pixels of the file.
 *
 * Boxes come from the model as centre and size, relative to what it saw; they are turned to corners
 * and scaled to the pixels of the file. The class "no object" is the last logit and never printed.
 * Boxes that overlap stay: a set loss has taught the model to give each object once.  Where it has
 * not learnt that well, --nms keeps the surest of those that overlap. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "task_pipeline.h"

typedef struct detect_options {
    double threshold, nms;
    char draw[FV_PATH];
} detect_options;

static const fv_field options[] = {
    FV_FLOAT(detect_options, threshold, 0, 0.5, 1, "objects of at least this probability"),
    FV_FLOAT(detect_options, nms, 0, 0, 1,
             "leave out boxes whose IoU with a surer one of their label is above this, 0.5 say; "
             "0: none, as transformers"),
    FV_TEXT(detect_options, draw, "",
            "DIR: where every image is written as PNG with the boxes drawn"),
    {0}};

/* What was found in one image: the rows of logits and boxes, and the size of the image. */
typedef struct finding {
    fv_pipeline *p;
    const fv_text *in;
    fv__found found; /* of the image under way */
} finding;

static int by_score(const void *a, const void *b)
{
    const fv__found_box *x = a, *y = b;
    return (x->score < y->score) - (x->score > y->score);
}

/* Of the greatest of n. */
static int best_of(const float *x, int n)
{
    int best = 0;
    for (int k = 1; k < n; k++)
        if (x[k] > x[best]) best = k;
    return best;
}

/* The last label is "no object". Boxes are relative to the image and come out in pixels of the
 * file. */
fv_status fv__find_boxes(fv_task *t, const float *logits, const float *boxes, int64_t queries,
                         int width, int height, double threshold, fv__found *out, fv_err *e)
{
    int classes = t->labels;
    void *p = out->box;
    out->n = 0;
    if (!fv__grow(&t->env, &p, &out->bytes, (size_t)queries * sizeof *out->box))
        return fv_fail(e, FV_ENOMEM, "out of memory");
    out->box = p;
    for (int64_t q = 0; q < queries; q++) {
        const float *x = logits + q * (classes + 1), *b = boxes + q * 4;
        double most = (double)x[best_of(x, classes + 1)], sum = 0;
        int best = best_of(x, classes);
        for (int k = 0; k <= classes; k++) sum += exp((double)x[k] - most);
        double score = exp((double)x[best] - most) / sum;
        if (score < threshold) continue;
        fv__found_box *to = &out->box[out->n++];
        to->label = best;
        to->score = (float)score;
        to->box[0] = (b[0] - b[2] / 2) * (float)width;
        to->box[1] = (b[1] - b[3] / 2) * (float)height;
        to->box[2] = (b[0] + b[2] / 2) * (float)width;
        to->box[3] = (b[1] + b[3] / 2) * (float)height;
    }
    qsort(out->box, (size_t)out->n, sizeof *out->box, by_score);
    return FV_OK;
}

/* Greedy non-maximum suppression, label by label; boxes come most certain first and stay so. */
static void suppress(fv__found *f, double most)
{
    int64_t kept = 0;
    for (int64_t i = 0; i < f->n; i++) {
        int64_t k = 0;
        while (k < kept && (f->box[k].label != f->box[i].label ||
                            fv_box_iou(f->box[k].box, f->box[i].box) <= most))
            k++;
        if (k == kept) f->box[kept++] = f->box[i];
    }
    f->n = kept;
}

/* ---- results ---- */

/* transformers' names of the edges; pixels of the file, not of what the model saw. */
static void put_json(fv_pipeline *p, const fv_text *x, const fv__found *f)
{
    fv_buf *b = &p->out;
    fv__json_begin(b, '{');
    fv__json_text_at(b, "image", x->s, x->n);
    fv__json_key(b, "objects");
    fv__json_begin(b, '[');
    for (int64_t i = 0; i < f->n; i++) {
        static const char *const edges[] = {"xmin", "ymin", "xmax", "ymax"};
        const char *name = p->task->label[f->box[i].label];
        fv__json_begin(b, '{');
        fv__json_text_at(b, "label", name, strlen(name));
        fv__json_number_at(b, "score", (double)f->box[i].score);
        fv__json_key(b, "box");
        fv__json_begin(b, '{');
        for (int k = 0; k < 4; k++) fv__json_number_at(b, edges[k], (double)f->box[i].box[k]);
        fv__json_end(b, '}');
        fv__json_end(b, '}');
    }
    fv__json_end(b, ']');
    fv__json_end(b, '}');
    fv__buf_str(b, "\n");
}

static void put_plain(fv_pipeline *p, const fv__found *f)
{
    for (int64_t i = 0; i < f->n; i++)
        fv__buf_fmt(&p->out, "%s%s %.4f %.0f,%.0f,%.0f,%.0f", i ? "\t" : "",
                    p->task->label[f->box[i].label], (double)f->box[i].score,
                    (double)f->box[i].box[0], (double)f->box[i].box[1], (double)f->box[i].box[2],
                    (double)f->box[i].box[3]);
    fv__buf_str(&p->out, "\n");
}

/* ---- drawing ---- */

/* Colours that are told apart on a photograph, by label. */
static void colour_of(int label, uint8_t out[3])
{
    static const uint8_t colours[][3] = {{230, 60, 60},  {60, 120, 230}, {250, 200, 40},
                                         {60, 190, 90},  {190, 80, 210}, {40, 200, 210},
                                         {250, 130, 40}, {240, 120, 180}};
    memcpy(out, colours[label % 8], 3);
}

static void paint(fv_image *im, int x, int y, const uint8_t c[3])
{
    if (x < 0 || y < 0 || x >= im->width || y >= im->height) return;
    memcpy(im->data + ((size_t)y * (size_t)im->width + (size_t)x) * 3, c, 3);
}

/* Lines grow with the picture, so that they can be seen in a large one. */
static void draw_box(fv_image *im, const fv__found_box *b)
{
    uint8_t c[3];
    int x0 = (int)b->box[0], y0 = (int)b->box[1], x1 = (int)b->box[2], y1 = (int)b->box[3],
        thick = 1 + (im->width + im->height) / 800;
    colour_of(b->label, c);
    for (int t = 0; t < thick; t++) {
        for (int x = x0; x <= x1; x++) paint(im, x, y0 + t, c), paint(im, x, y1 - t, c);
        for (int y = y0; y <= y1; y++) paint(im, x0 + t, y, c), paint(im, x1 - t, y, c);
    }
}

/* The picture goes into the folder under the name of its image. */
static fv_status draw(fv_pipeline *p, const fv_text *x, const fv__found *f, fv_err *e)
{
    const detect_options *o = p->options;
    char path[FV_PATH];
    const char *name = x->s + x->n;
    while (name > x->s && name[-1] != '/') name--;
    fv_image im = {0};
    snprintf(path, sizeof path, "%.*s", (int)(x->n < 2000 ? x->n : 2000), x->s);
    fv_status st = fv_image_open(&im, &p->env, path, e);
    if (!st) st = fv_image_convert(&im, 3, e);
    for (int64_t i = f->n; !st && i-- > 0;) draw_box(&im, &f->box[i]);
    if (!st) st = fv__dir_make(&p->env, o->draw, e);
    snprintf(path, sizeof path, "%.2000s/%.*s.png", o->draw, (int)(x->s + x->n - name), name);
    if (!st) st = fv_image_save(&im, path, e);
    fv_image_free(&im);
    return st;
}

/* ---- the task ---- */

static fv_status open_task(fv_pipeline *p, fv_err *e)
{
    fv_status st = fv__pipeline_self(p, sizeof(finding), e);
    return st ? st : fv__open_encoder(p, FV_JOB_DETECT, e);
}

static void close_task(fv_pipeline *p)
{
    finding *f = p->self;
    if (f) fv__free(&p->env, f->found.box, f->found.bytes);
}

static fv_status each(void *user, int64_t i, const fv_seq *s, const float *const out[2],
                      int64_t width, fv_err *e)
{
    finding *f = user;
    fv_pipeline *p = f->p;
    const detect_options *o = p->options;
    int w, h;
    (void)s, (void)width;
    fv__task_image_size(p->task, &w, &h);
    fv_status st = fv__find_boxes(p->task, out[0], out[1],
                                  fv__task_setting(p->task, "num_detection_tokens"), w, h,
                                  o->threshold, &f->found, e);
    if (!st && o->nms > 0) suppress(&f->found, o->nms);
    if (!st && *o->draw) st = draw(p, &f->in[i], &f->found, e);
    if (st) return st;
    if (p->opt.json)
        put_json(p, &f->in[i], &f->found);
    else
        put_plain(p, &f->found);
    return fv__task_emit(p, e);
}

static fv_status run(fv_pipeline *p, const fv_text *in, int64_t n, fv_err *e)
{
    finding *f = p->self;
    f->p = p;
    f->in = in;
    fv_wanted w = {.names = {"logits", "pred_boxes"}, .fn = each, .user = f};
    fv_status st = FV_OK;
    /* one by one: a box needs the size of its own image */
    for (int64_t i = 0; !st && i < n; i++, f->in++) {
        fv__task_begin(p->task);
        st = fv__task_run_images(p->task, in + i, 1, &w, e);
    }
    return st;
}

static const fv_task_example examples[] = {
    {"fovea detect -m yolos-tiny street.jpg", "label, probability, box; tab between objects"},
    {"fovea detect -m runs/bccd-yolos/model --json --threshold 0.3 slides/", "all of a folder"},
    {"fovea detect -m runs/bccd-yolos/model --nms 0.5 slides/", "cells that are found twice once"},
    {"fovea detect -m yolos-tiny --draw seen photos/",
     "also images with the boxes drawn, in seen/"},
    {0}};

const fv_task_kind fv__detect_task = {
    .name = "detect",
    .summary = "find objects in images and their boxes",
    .about = "Reads images and prints what is seen in each: label, probability, and the box in "
             "pixels of the file, left, top, right, bottom.",
    .examples = examples,
    .options = options,
    .size = sizeof(detect_options),
    FV__TASK_OF_IMAGES,
    .open = open_task,
    .run = run,
    .close = close_task,
    .eval = &fv__eval_detect};
