/* detection.c - average precision of detected boxes, as COCO counts it.
 *
 * Detections of one label, most certain first over all images, each take the free object of their
 * image that they overlap most, if by at least `iou`.  With precision and recall after each,
 *
 *     AP = mean over r = 0, 0.01, .., 1 of the greatest precision at a recall of at least r
 *
 * An object that is to be ignored (difficult, crowds) is missed without harm, and a detection that
 * finds it counts neither way.  At most the 100 most certain of an image count. */
#include <math.h>
#include <stdlib.h>

#include "base/base.h"
#include "fovea/author/metric.h"

enum { MOST_OF_IMAGE = 100 };

double fv_box_iou(const float a[4], const float b[4])
{
    double x0 = fmax((double)a[0], (double)b[0]), y0 = fmax((double)a[1], (double)b[1]),
           x1 = fmin((double)a[2], (double)b[2]), y1 = fmin((double)a[3], (double)b[3]);
    double both = x1 > x0 && y1 > y0 ? (x1 - x0) * (y1 - y0) : 0;
    double all = ((double)a[2] - (double)a[0]) * ((double)a[3] - (double)a[1]) +
                 ((double)b[2] - (double)b[0]) * ((double)b[3] - (double)b[1]) - both;
    return all > 0 ? both / all : 0;
}

/* Detections of one label, most certain first. */
typedef struct ranked {
    const fv_detected *d;
    int64_t at;
    bool beyond; /* its image has MOST_OF_IMAGE that are more certain */
} ranked;

static int by_score(const void *a, const void *b)
{
    const ranked *x = a, *y = b;
    if (x->d->score != y->d->score) return x->d->score > y->d->score ? -1 : 1;
    return x->at < y->at ? -1 : 1;
}

static int by_image_then_score(const void *a, const void *b)
{
    const ranked *x = a, *y = b;
    if (x->d->image != y->d->image) return x->d->image < y->d->image ? -1 : 1;
    return by_score(a, b);
}

/* Objects of one label, those of an image together. */
typedef struct target {
    const fv_object *g;
    bool taken;
} target;

static int by_image(const void *a, const void *b)
{
    const target *x = a, *y = b;
    if (x->g->image != y->g->image) return x->g->image < y->g->image ? -1 : 1;
    return x->g < y->g ? -1 : 1;
}

/* What one detection came to. */
enum { WRONG, RIGHT, NEITHER };

/* The best free object of its image; one that is ignored only where no other fits.
 * Greedy in the order of scores, as COCO's evaluation is: not the best assignment overall. */
static int judge(const fv_detected *d, target *t, int64_t m, double iou)
{
    int64_t from = 0, to = m;
    while (from < to) {
        int64_t mid = (from + to) / 2;
        if (t[mid].g->image < d->image)
            from = mid + 1;
        else
            to = mid;
    }
    for (int pass = 0; pass < 2; pass++) {
        double best = iou;
        target *found = NULL;
        for (int64_t k = from; k < m && t[k].g->image == d->image; k++) {
            double overlap = fv_box_iou(d->box, t[k].g->box);
            if (t[k].taken || t[k].g->ignored != (pass == 1) || overlap < best) continue;
            best = overlap;
            found = &t[k];
        }
        if (!found) continue;
        found->taken = !pass;
        return pass ? NEITHER : RIGHT;
    }
    return WRONG;
}

/* precision[i] and recall[i] after the i-th that counts; returns how many do.  Precision is made to
 * fall, as each recall is worth the best precision at that or a greater one. */
static int64_t curve(const ranked *r, int64_t n, target *t, int64_t m, double iou, double objects,
                     double *precision, double *recall)
{
    int64_t right = 0, counted = 0;
    for (int64_t i = 0; i < n; i++) {
        int how = r[i].beyond ? NEITHER : judge(r[i].d, t, m, iou);
        if (how == NEITHER) continue;
        right += how == RIGHT;
        precision[counted] = (double)right / (double)(counted + 1);
        recall[counted++] = (double)right / objects;
    }
    for (int64_t i = counted - 1; i > 0; i--)
        if (precision[i - 1] < precision[i]) precision[i - 1] = precision[i];
    return counted;
}

/* Ranks those of the label; returns how many there are. */
static int64_t rank(ranked *r, const fv_detected *d, int64_t n, int32_t label)
{
    int64_t k = 0, of_image = 0;
    for (int64_t i = 0; i < n; i++)
        if (d[i].label == label) r[k++] = (ranked){.d = &d[i], .at = i};
    qsort(r, (size_t)k, sizeof *r, by_image_then_score);
    for (int64_t i = 0; i < k; i++) {
        of_image = i && r[i].d->image == r[i - 1].d->image ? of_image + 1 : 0;
        r[i].beyond = of_image >= MOST_OF_IMAGE;
    }
    qsort(r, (size_t)k, sizeof *r, by_score);
    return k;
}

fv_status fv_average_precision(double *ap, const fv_env *env, const fv_detected *d, int64_t n,
                               const fv_object *g, int64_t m, int32_t label, double iou, fv_err *e)
{
    double objects = 0, sum = 0;
    int64_t targets = 0, at = 0;
    *ap = (double)NAN;
    for (int64_t i = 0; i < m; i++) objects += g[i].label == label && !g[i].ignored;
    if (objects == 0) return FV_OK;
    size_t rank_bytes = (size_t)(n + 1) * sizeof(ranked), target_bytes = (size_t)m * sizeof(target),
           bytes = (size_t)(n + 1) * 2 * sizeof(double);
    ranked *r = fv__alloc(env, rank_bytes);
    target *t = fv__alloc(env, target_bytes);
    double *precision = fv__alloc(env, bytes), *recall = precision ? precision + n + 1 : NULL;
    bool ok = r && t && precision;
    if (ok) {
        for (int64_t i = 0; i < m; i++)
            if (g[i].label == label) t[targets++] = (target){.g = &g[i]};
        qsort(t, (size_t)targets, sizeof *t, by_image);
        int64_t k = rank(r, d, n, label),
                counted = curve(r, k, t, targets, iou, objects, precision, recall);
        for (int i = 0; i <= 100; i++) {
            while (at < counted && recall[at] < i / 100.) at++;
            sum += at < counted ? precision[at] : 0;
        }
        *ap = 100 * sum / 101;
    }
    fv__free(env, r, rank_bytes);
    fv__free(env, t, target_bytes);
    fv__free(env, precision, bytes);
    return ok ? FV_OK : fv_fail(e, FV_ENOMEM, "average precision: out of memory");
}
