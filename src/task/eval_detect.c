/* eval_detect.c - average precision of detected boxes, on images of Pascal VOC or COCO.
 *
 *     AP     area under the precision-recall curve of one label at one IoU threshold
 *
 *     ap50   mean over labels at 0.5;  ap  mean over labels and thresholds 0.50 .. 0.95 (COCO)
 *
 * All detections of all images are kept (no score threshold: the curve needs the weak ones
 * too), then judged label by label by fv_average_precision. Objects that VOC marks difficult
 * are neither missed nor found. */
#include <math.h>
#include <stdlib.h>

#include "task_pipeline.h"

enum { THRESHOLDS = 10 }; /* 0.50, 0.55, .., 0.95 */

/* Everything belongs to run(), which frees it whether or not it failed. */
typedef struct work {
    fv_eval_run *r;
    fv_task *task;
    fv_boxed *set;
    /* The data number their labels in the order of appearance, the model in that of id2label. */
    fv_labels labels; /* the data's, and to which of the model's each belongs */
    int32_t *of;
    size_t of_bytes;
    fv_buf found, objects; /* of fv_detected, fv_object */
    fv__found now;
    fv_buf boxes; /* of the image that is looked at, fv_detected */
    int64_t image;
    double (*ap)[THRESHOLDS]; /* of each of the model's labels */
    size_t ap_bytes;
} work;

static int64_t count_of(const fv_buf *b, size_t size) { return (int64_t)(b->len / size); }

/* Every label of the data must be one of the model's. */
static fv_status match_labels(work *w, fv_err *e)
{
    w->of_bytes = (size_t)w->labels.n * sizeof *w->of;
    w->of = fv__alloc(&w->r->env, w->of_bytes);
    if (!w->of) return fv_fail(e, FV_ENOMEM, "out of memory");
    for (int32_t i = 0; i < w->labels.n; i++) {
        int k = 0;
        while (k < w->task->labels && strcmp(w->task->label[k], w->labels.name[i])) k++;
        if (k == w->task->labels)
            return fv_fail(e, FV_EFORMAT,
                           "%s: the label \"%s\" is none of the model's %d, the first of which is "
                           "\"%s\"",
                           w->r->opt->file, w->labels.name[i], w->task->labels, w->task->label[0]);
        w->of[i] = k;
    }
    return FV_OK;
}

/* "difficult" objects are neither found nor missed, as VOC's rules have it. */
static void add_objects(work *w, int64_t i)
{
    int64_t n;
    const fv_box *all = fv_boxed_boxes(w->set, i, &n);
    for (int64_t k = 0; k < n; k++) {
        fv_object o = {.image = i,
                       /* Labels in the model's numbering, boxes in pixels of the image as it was
                        * read. */
                       .label = w->of[all[k].label],
                       .ignored = all[k].difficult,
                       .box = {all[k].x0, all[k].y0, all[k].x1, all[k].y1}};
        fv__buf_add(&w->objects, &o, sizeof o);
    }
}

static fv_status each(void *user, int64_t at, const fv_seq *s, const float *const out[2],
                      int64_t width, fv_err *e)
{
    work *w = user;
    int iw, ih;
    (void)at, (void)s, (void)width;
    fv__task_image_size(w->task, &iw, &ih);
    fv_status st = fv__find_boxes(w->task, out[0], out[1],
                                  /* Boxes come back in the image's own pixels, not in those of
                                   * the resized input; 0: no threshold. */
                                  fv__task_setting(w->task, "num_detection_tokens"), iw, ih, 0,
                                  &w->now, e);
    for (int64_t k = 0; !st && k < w->now.n; k++) {
        const fv__found_box *b = &w->now.box[k];
        fv_detected d = {.image = w->image, .label = b->label, .score = b->score};
        memcpy(d.box, b->box, sizeof d.box);
        fv__buf_add(&w->boxes, &d, sizeof d);
    }
    return st;
}

/* One image at a time: sizes differ, and the task's scratch is reset for each. */
static fv_status detect_slice(void *user, int64_t from, int64_t n, fv_buf *out, fv_err *e)
{
    work *w = user;
    fv_wanted wanted = {.names = {"logits", "pred_boxes"}, .fn = each, .user = w};
    fv_image raw = {0};
    fv_status st = FV_OK;
    for (w->image = from; !st && w->image < from + n; w->image++) {
        w->boxes.len = 0;
        fv__task_begin(w->task);
        st = fv_boxed_get(w->set, w->image, &raw, e);
        if (!st) st = fv__task_run_image(w->task, &raw, &wanted, e);
        if (!st && w->boxes.failed) st = fv_fail(e, FV_ENOMEM, "out of memory");
        if (!st) fv__eval_give(out, w->boxes.data, w->boxes.len);
    }
    fv_image_free(&raw);
    return st;
}

static fv_status keep_boxes(void *user, int64_t i, const void *result, size_t n, fv_err *e)
{
    work *w = user;
    fv__buf_add(&w->found, result, n);
    add_objects(w, i);
    return w->found.failed || w->objects.failed ? fv_fail(e, FV_ENOMEM, "out of memory") : FV_OK;
}

/* Average precision of each label at the ten thresholds of overlap from 0.5 to 0.95; COCO's AP is
 * their mean, VOC's is the first. */
static fv_status score(work *w, fv_err *e)
{
    w->ap_bytes = (size_t)w->task->labels * sizeof *w->ap;
    w->ap = fv__alloc(&w->r->env, w->ap_bytes);
    if (!w->ap) return fv_fail(e, FV_ENOMEM, "out of memory");
    fv_status st = FV_OK;
    for (int k = 0; !st && k < w->task->labels; k++)
        for (int t = 0; !st && t < THRESHOLDS; t++)
            st = fv_average_precision(&w->ap[k][t], &w->r->env,
                                      (const fv_detected *)(void *)w->found.data,
                                      count_of(&w->found, sizeof(fv_detected)),
                                      (const fv_object *)(void *)w->objects.data,
                                      count_of(&w->objects, sizeof(fv_object)), k, 0.5 + 0.05 * t,
                                      e);
    return st;
}

/* The mean over thresholds; of one label, or of those that occur. */
static double mean_ap(const work *w, int label, int thresholds)
{
    double sum = 0, n = 0;
    for (int k = 0; k < w->task->labels; k++)
        for (int t = 0; (label < 0 || k == label) && t < thresholds; t++)
            /* NaN: the label has no object in these data, and does not take part in the mean. */
            if (!isnan(w->ap[k][t])) sum += w->ap[k][t], n++;
    return n > 0 ? sum / n : 0;
}

/* A label of which the set has no object has no precision and is left out, also of the mean. */
static void put_json(const work *w)
{
    fv_buf *b = &w->r->out;
    fv__json_begin(b, '{');
    fv__json_text_at(b, "task", "detect", 6);
    fv__json_int_at(b, "images", fv_boxed_count(w->set));
    fv__json_int_at(b, "objects", count_of(&w->objects, sizeof(fv_object)));
    fv__json_number_at(b, "ap50", mean_ap(w, -1, 1));
    fv__json_number_at(b, "ap", mean_ap(w, -1, THRESHOLDS));
    fv__json_key(b, "labels");
    fv__json_begin(b, '[');
    for (int k = 0; k < w->task->labels; k++) {
        if (isnan(w->ap[k][0])) continue;
        fv__json_begin(b, '{');
        fv__json_text_at(b, "label", w->task->label[k], strlen(w->task->label[k]));
        fv__json_number_at(b, "ap50", w->ap[k][0]);
        fv__json_number_at(b, "ap", mean_ap(w, k, THRESHOLDS));
        fv__json_end(b, '}');
    }
    fv__json_end(b, ']');
    fv__buf_str(b, "}\n");
}

static void put_plain(const work *w)
{
    fv_buf *b = &w->r->out;
    fv__buf_fmt(b, "%-20s %9s %12s\n", "", "AP 0.5", "AP 0.5:0.95");
    for (int k = 0; k < w->task->labels; k++)
        if (!isnan(w->ap[k][0]))
            fv__buf_fmt(b, "%-20s %9.2f %12.2f\n", w->task->label[k], w->ap[k][0],
                        mean_ap(w, k, THRESHOLDS));
    fv__buf_fmt(b, "%-20s %9.2f %12.2f  of %lld objects in %lld images\n", "mean",
                mean_ap(w, -1, 1), mean_ap(w, -1, THRESHOLDS),
                (long long)count_of(&w->objects, sizeof(fv_object)),
                (long long)fv_boxed_count(w->set));
}

static fv_status run(fv_eval_run *r, fv_err *e)
{
    work w = {.r = r,
              .labels = {.env = &r->env},
              .found = {.env = &r->env},
              .boxes = {.env = &r->env},
              .objects = {.env = &r->env}};
    if (!r->opt->file) return fv_fail(e, FV_EUSAGE, "a folder or archive of images is needed");
    fv_boxed_opt how = {.path = r->opt->file, .split = r->opt->split, .labels = &w.labels};
    fv_status st = fv__eval_encoder(r, &w.task, FV_JOB_DETECT, e);
    if (!st) st = fv_boxed_open(&w.set, &r->env, &how, e);
    if (!st) st = match_labels(&w, e);
    int64_t n = st ? 0 : fv_boxed_count(w.set);
    if (!st) st = fv__eval_slices(r, n, &(fv_slices){detect_slice, keep_boxes, 0}, &w, e);
    if (!st) st = score(&w, e);
    if (!st && r->opt->json)
        put_json(&w);
    else if (!st)
        put_plain(&w);
    fv__free(&r->env, w.of, w.of_bytes);
    fv__free(&r->env, w.ap, w.ap_bytes);
    if (w.task) fv__free(&w.task->env, w.now.box, w.now.bytes);
    fv__buf_free(&w.found);
    fv__buf_free(&w.boxes);
    fv__buf_free(&w.objects);
    fv_boxed_close(w.set);
    fv_labels_free(&w.labels);
    fv_task_close(w.task);
    return st;
}

static const fv_head_job heads[] = {FV_HEAD_DETECT, FV_HEAD_BASE};
const fv_task_eval fv__eval_detect = {.name = "detect",
                                      .heads = heads,
                                      .no_predictions = true,
                                      .run = run};
