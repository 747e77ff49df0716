/* eval_segment.c - labels of pixels: accuracy and intersection over union, beside two answers that
 * need no model: one label everywhere and, where there are two labels, a threshold on the grey
 * level, the one that gets the most of these very pixels right.
 *
 * A table of pixels, right label by given label, is all that is counted; accuracy and intersection
 * over union follow from it. */
#include "data/masked_images.h"
#include "task_pipeline.h"

typedef struct work {
    fv_eval_run *r;
    fv_task *task;
    fv__masked set;
    fv_labels labels; /* of the data */
    int of[256];      /* which of the model's each is */
    fv_image raw, mask, given;
    /* Pixels: (labels,labels), which was to be given, which was; behind it, of the first two
     * labels, those of each grey level.  `one` counts those of the image that is looked at. */
    int64_t *table, (*levels)[256], *one, (*one_levels)[256];
    size_t counts; /* numbers of all of that */
} work;

/* Accuracy and mean IoU of an answer, in per cent. */
typedef struct scores {
    double accuracy, iou;
} scores;

/* Levels of the masks are the model's labels by name: "0", "255". */
static fv_status match_labels(work *w, fv_err *e)
{
    for (int32_t i = 0; i < w->labels.n; i++) {
        int k = 0;
        while (k < w->task->labels && strcmp(w->task->label[k], w->labels.name[i])) k++;
        if (k == w->task->labels)
            return fv_fail(e, FV_EFORMAT, "%s: the level %s is none of the model's %d labels",
                           w->r->opt->file, w->labels.name[i], k);
        w->of[i] = k;
    }
    return FV_OK;
}

/* Masks are of the size of the image before the processor changed it. */
static fv_status each(void *user, int64_t i, const fv_seq *s, const float *const out[2],
                      int64_t width, fv_err *e)
{
    work *w = user;
    int labels = w->task->labels;
    (void)i;
    fv_status st = fv_image_new(&w->given, &w->r->env, w->mask.width, w->mask.height, 1, e);
    if (st) return st;
    fv__label_pixels(w->given.data, out[0], labels, s->n / labels, width, w->mask.height,
                     w->mask.width);
    for (int64_t k = 0; k < (int64_t)w->mask.width * w->mask.height; k++) {
        int32_t gold = w->set.of_level[w->mask.data[k]];
        if (gold >= 0) w->one[w->of[gold] * labels + w->given.data[k]]++;
    }
    return FV_OK;
}

/* Before the model sees the image: it may be converted then. */
static void count_levels(work *w)
{
    const fv_image *im = &w->raw;
    for (int64_t k = 0; k < (int64_t)im->width * im->height; k++) {
        const uint8_t *p = im->data + k * im->channels;
        int32_t gold = w->set.of_level[w->mask.data[k]];
        int grey = im->channels < 3 ? p[0] : (299 * p[0] + 587 * p[1] + 114 * p[2] + 500) / 1000;
        if (gold == 0 || gold == 1) w->one_levels[gold][grey]++;
    }
}

/* One image at a time: sizes differ, and pixels are counted at the size of the mask. */
static fv_status label_slice(void *user, int64_t from, int64_t n, fv_buf *out, fv_err *e)
{
    work *w = user;
    fv_wanted wanted = {.names = {"logits"}, .fn = each, .user = w};
    fv_status st = FV_OK;
    for (int64_t i = from; !st && i < from + n; i++) {
        memset(w->one, 0, w->counts * sizeof *w->one);
        fv__task_begin(w->task);
        st = fv__masked_get(&w->set, i, &w->raw, &w->mask, e);
        if (!st) count_levels(w);
        if (!st) st = fv__task_run_image(w->task, &w->raw, &wanted, e);
        fv__eval_give(out, w->one, w->counts * sizeof *w->one);
    }
    return st;
}

static fv_status add_pixels(void *user, int64_t i, const void *result, size_t n, fv_err *e)
{
    work *w = user;
    const int64_t *one = result;
    (void)i, (void)n, (void)e;
    for (size_t k = 0; k < w->counts; k++) w->table[k] += one[k];
    return FV_OK;
}

/* Memory for the counts of all images and of one. */
static fv_status make_counts(work *w, fv_err *e)
{
    size_t labels = (size_t)w->task->labels;
    w->counts = labels * labels + 2 * 256;
    w->table = fv__alloc(&w->r->env, 2 * w->counts * sizeof *w->table);
    if (!w->table) return fv_fail(e, FV_ENOMEM, "out of memory");
    w->one = w->table + w->counts;
    w->levels = (int64_t(*)[256])(w->table + labels * labels);
    w->one_levels = (int64_t(*)[256])(w->one + labels * labels);
    return FV_OK;
}

/* ---- the report ---- */

/* What lies in both, over what lies in either, in per cent; -1: the label occurs nowhere. */
static double iou_of(const work *w, int label)
{
    int64_t n = w->task->labels, both = w->table[label * n + label], gold = 0, given = 0;
    for (int64_t k = 0; k < n; k++) {
        gold += w->table[label * n + k];
        given += w->table[k * n + label];
    }
    int64_t either = gold + given - both;
    return either ? 100.0 * (double)both / (double)either : -1;
}

/* Over the labels that the masks or the model have; one that neither has would count as a perfect
 * or a failed one, depending on taste. */
static double mean_iou(const work *w)
{
    double sum = 0;
    int n = 0;
    for (int k = 0; k < w->task->labels; k++)
        if (iou_of(w, k) >= 0) sum += iou_of(w, k), n++;
    return n ? sum / n : 0;
}

/* Of a model that gives every pixel the most frequent label: accuracy, and mean IoU over the labels
 * that occur. */
static scores constant(const work *w)
{
    int64_t n = w->task->labels, most = 0, all = 0;
    int occur = 0;
    for (int64_t k = 0; k < n; k++) {
        int64_t gold = 0;
        for (int64_t j = 0; j < n; j++) gold += w->table[k * n + j];
        most = gold > most ? gold : most;
        all += gold;
        occur += gold > 0;
    }
    double accuracy = all ? 100.0 * (double)most / (double)all : 0;
    return (scores){accuracy, occur ? accuracy / occur : 0};
}

/* Where right[k] of the total[k] pixels of label k are found. */
static scores two_labels(const int64_t right[2], const int64_t total[2])
{
    scores s = {0};
    for (int k = 0; k < 2; k++) {
        int64_t either = total[k] + total[1 - k] - right[1 - k];
        s.iou += either ? 50.0 * (double)right[k] / (double)either : 0;
    }
    s.accuracy = 100.0 * (double)(right[0] + right[1]) / (double)(total[0] + total[1]);
    return s;
}

/* The threshold with the most pixels right, whichever label is the dark one. */
static scores threshold(const work *w)
{
    int64_t total[2] = {0}, below[2] = {0};
    scores best = {0};
    for (int g = 0; g < 256; g++)
        for (int k = 0; k < 2; k++) total[k] += w->levels[k][g];
    if (!total[0] || !total[1]) return best;
    for (int g = 0; g < 256; g++) {
        below[0] += w->levels[0][g];
        below[1] += w->levels[1][g];
        for (int low = 0; low < 2; low++) {
            int64_t right[2];
            right[low] = below[low];
            right[1 - low] = total[1 - low] - below[1 - low];
            scores s = two_labels(right, total);
            if (s.accuracy > best.accuracy) best = s;
        }
    }
    return best;
}

/* Beside what one label everywhere would score: on masks that are mostly background a high accuracy
 * says little. */
static void put(const work *w)
{
    fv_buf *b = &w->r->out;
    double accuracy = fv_accuracy(w->table, w->task->labels);
    scores same = constant(w), split = threshold(w);
    bool two = w->labels.n == 2;
    if (!w->r->opt->json) {
        fv__buf_fmt(b, "%-16s %9s %18s%s\n", "", "model", "one label",
                    two ? "  best threshold" : "");
        fv__buf_fmt(b, "%-16s %9.2f %18.2f", "pixel accuracy", accuracy, same.accuracy);
        if (two) fv__buf_fmt(b, " %15.2f", split.accuracy);
        fv__buf_fmt(b, "  of %lld images\n%-16s %9.2f %18.2f", (long long)w->set.n, "mean IoU",
                    mean_iou(w), same.iou);
        if (two) fv__buf_fmt(b, " %15.2f", split.iou);
        fv__buf_str(b, "\n");
        for (int k = 0; k < w->task->labels; k++)
            if (iou_of(w, k) >= 0)
                fv__buf_fmt(b, "IoU of %-9s %9.2f\n", w->task->label[k], iou_of(w, k));
        return;
    }
    fv__json_begin(b, '{');
    fv__json_text_at(b, "task", "segment", 7);
    fv__json_int_at(b, "images", w->set.n);
    fv__json_number_at(b, "pixel_accuracy", accuracy);
    fv__json_number_at(b, "mean_iou", mean_iou(w));
    fv__json_number_at(b, "constant_accuracy", same.accuracy);
    fv__json_number_at(b, "constant_iou", same.iou);
    if (two) fv__json_number_at(b, "threshold_accuracy", split.accuracy);
    if (two) fv__json_number_at(b, "threshold_iou", split.iou);
    fv__buf_str(b, "}\n");
}

static fv_status run(fv_eval_run *r, fv_err *e)
{
    work w = {.r = r, .labels = {.env = &r->env}};
    if (!r->opt->file) return fv_fail(e, FV_EUSAGE, "a folder or archive of images is needed");
    fv__masked_opt how = {.path = r->opt->file,
                          .images = "image",
                          .masks = "label",
                          .names = r->opt->split ? r->opt->split : "",
                          .labels = &w.labels};
    fv_status st = fv__eval_encoder(r, &w.task, FV_JOB_SEGMENT, e);
    if (!st) st = fv__masked_open(&w.set, &r->env, &how, e);
    if (!st) st = match_labels(&w, e);
    if (!st) st = make_counts(&w, e);
    if (!st) st = fv__eval_slices(r, w.set.n, &(fv_slices){label_slice, add_pixels, 0}, &w, e);
    if (!st) put(&w);
    fv_image *all[] = {&w.raw, &w.mask, &w.given};
    for (int i = 0; i < 3; i++) fv_image_free(all[i]);
    fv__free(&r->env, w.table, 2 * w.counts * sizeof *w.table);
    fv__masked_close(&w.set);
    fv_labels_free(&w.labels);
    fv_task_close(w.task);
    return st;
}

static const fv_head_job heads[] = {FV_HEAD_SEGMENT, FV_HEAD_BASE};
const fv_task_eval fv__eval_segment = {.name = "segment",
                                       .heads = heads,
                                       .no_predictions = true,
                                       .run = run};
