/* detect.c - the set loss of DETR: objects are matched to predictions, then each pair is compared.
 *
 *     cost[t,q] = a (-p_q(class t)) + b |box q - box t|_1 + g (-GIoU(box q, box t))
 *     loss      = CE(classes, "no object" for the unmatched, weighted) + b' L1 + g' (1 - GIoU)
 *
 * L1 and GIoU are summed over the pairs and divided by the number of objects; the cross entropy is
 * divided by the sum of its weights.  The matching is discrete and has no gradient: it is made by
 * the host from copies of what was predicted.  On a GPU that is one wait for each batch; an
 * assignment on the device would have to be solved by one block an image and gain little, as the
 * matrices have a hundred columns.
 *
 * That loss alone teaches little in the first thousands of updates: a token soon knows which part
 * of an image it answers for, and the objects it is matched to change with every image, so that its
 * best guess is a box in the middle of its part.  The dense loss asks each patch for the object
 * around it, through the same heads: from there what an object looks like and where it ends is
 * learned at once, and a token has only to attend to it (Zong et al. 2023, arXiv:2211.12860, add
 * detectors of anchors to DETR's encoder for the same end; sharing the heads needs no parameters
 * that the published model lacks). */
#include "model/detect.h"

#include <math.h>
#include <string.h>

#include "core/core.h"
#include "ops/stat.h"

/* ---- boxes on the host ---- */

typedef struct corners {
    double x0, y0, x1, y1;
} corners;

static corners corners_of(const float *box)
{
    double x = (double)box[0], y = (double)box[1], w = (double)box[2] / 2, h = (double)box[3] / 2;
    return (corners){x - w, y - h, x + w, y + h};
}

static double area_of(corners b) { return (b.x1 - b.x0) * (b.y1 - b.y0); }

/* intersection / union - (hull - union) / hull */
static double giou(corners a, corners b)
{
    double w = fmax(fmin(a.x1, b.x1) - fmax(a.x0, b.x0), 0),
           h = fmax(fmin(a.y1, b.y1) - fmax(a.y0, b.y0), 0);
    corners around = {fmin(a.x0, b.x0), fmin(a.y0, b.y0), fmax(a.x1, b.x1), fmax(a.y1, b.y1)};
    double both = w * h, all = area_of(a) + area_of(b) - both, hull = area_of(around);
    return both / all - (hull - all) / hull;
}

/* ---- matching ---- */

typedef struct matching {
    int64_t B, Q, classes, M; /* classes: with "no object" */
    float *logits, *boxes;    /* (B,Q,classes), (B,Q,4) */
    int32_t *labels;          /* (B,M) */
    float *targets;           /* (B,M,4) */
    int32_t *answers;         /* (B,Q): the class each prediction should have */
    float *weights;           /* (B,Q) */
    int32_t *rows;            /* of each pair the prediction, counted over the batch */
    float *pairs;             /* of each pair the object's box */
    int64_t n, objects;       /* pairs, and objects: more where an image has over Q */
} matching;

/* log sum exp of a prediction's logits */
static double log_sum(const float *logits, int64_t classes)
{
    double most = -INFINITY, sum = 0;
    for (int64_t i = 0; i < classes; i++)
        if ((double)logits[i] > most) most = (double)logits[i];
    for (int64_t i = 0; i < classes; i++) sum += exp((double)logits[i] - most);
    return most + log(sum);
}

/* sum: log_sum of prediction q */
static double pair_cost(const matching *m, int64_t b, int64_t q, int64_t t, double sum,
                        fv__detect_opt opt)
{
    const float *box = m->boxes + (b * m->Q + q) * 4, *target = m->targets + (b * m->M + t) * 4;
    double off = 0;
    for (int i = 0; i < 4; i++) off += fabs((double)box[i] - (double)target[i]);
    int32_t label = m->labels[b * m->M + t];
    double p = exp((double)m->logits[(b * m->Q + q) * m->classes + label] - sum);
    double cost = (double)opt.box_cost * off - (double)opt.class_cost * p -
                  (double)opt.giou_cost * giou(corners_of(box), corners_of(target));
    return isfinite(cost) ? cost : 1e30; /* taken where there is nothing else */
}

/* One image: fills answers, weights, rows and pairs.  NULL scratch: out of memory. */
static bool match_image(fv_ctx *c, matching *m, int64_t b, const int64_t *objects, int64_t n,
                        fv__detect_opt opt)
{
    int64_t Q = m->Q, rows = n < Q ? n : Q, cols = n < Q ? Q : n;
    double *cost = fv__step_memory(c, (size_t)(rows * cols) * sizeof *cost),
           *work = fv__step_memory(c, (size_t)FV__ASSIGN_WORK(rows, cols) * sizeof *work),
           *sums = fv__step_memory(c, (size_t)Q * sizeof *sums);
    int64_t *column = fv__step_memory(c, (size_t)rows * sizeof *column);
    if (!cost || !work || !sums || !column) return false;
    for (int64_t q = 0; q < Q; q++)
        sums[q] = log_sum(m->logits + (b * Q + q) * m->classes, m->classes);
    for (int64_t i = 0; i < rows * cols; i++) {
        int64_t r = i / cols, j = i % cols, q = n < Q ? j : r;
        cost[i] = pair_cost(m, b, q, objects[n < Q ? r : j], sums[q], opt);
    }
    fv__assign(cost, rows, cols, column, work);
    for (int64_t r = 0; r < rows; r++) {
        int64_t q = n < Q ? column[r] : r, t = objects[n < Q ? r : column[r]];
        m->answers[b * Q + q] = m->labels[b * m->M + t];
        m->weights[b * Q + q] = 1;
        m->rows[m->n] = (int32_t)(b * Q + q);
        memcpy(m->pairs + 4 * m->n++, m->targets + (b * m->M + t) * 4, 4 * sizeof(float));
    }
    return true;
}

static bool match(fv_ctx *c, matching *m, fv__detect_opt opt)
{
    int64_t *objects = fv__step_memory(c, (size_t)(m->M + 1) * sizeof *objects);
    if (!objects) return false;
    for (int64_t i = 0; i < m->B * m->Q; i++)
        m->answers[i] = (int32_t)(m->classes - 1), m->weights[i] = opt.no_object;
    for (int64_t b = 0; b < m->B; b++) {
        int64_t n = 0;
        for (int64_t t = 0; t < m->M; t++) {
            int32_t label = m->labels[b * m->M + t];
            if (label == -100) continue;
            if (label < 0 || label >= m->classes - 1)
                return fv_raise(c, FV_EARG, "class_labels: %d, of %lld classes", label,
                                (long long)(m->classes - 1)) != NULL;
            objects[n++] = t;
        }
        m->objects += n;
        if (n && !match_image(c, m, b, objects, n, opt)) return false;
    }
    return true;
}

/* What was predicted and the objects' boxes, one behind the other: each read waits for the device,
 * so there is one.  Nothing of it is recorded. */
static fv_tensor *pack_floats(fv_ctx *c, fv_tensor *logits, fv_tensor *boxes, fv_tensor *targets)
{
    fv_tensor *all[] = {logits, boxes, targets};
    bool record = c->record;
    c->record = false;
    for (int i = 0; i < 3; i++)
        all[i] = fv_cast(c, fv_reshape(c, all[i], FV_SHAPE(fv_len(all[i]))), c->dtype);
    fv_tensor *y = fv_concat(c, all, 3, 0);
    c->record = record;
    return y;
}

static bool read_all(fv_ctx *c, matching *m, fv_tensor *logits, fv_tensor *boxes, fv_tensor *labels,
                     fv_tensor *targets)
{
    int64_t predictions = m->B * m->Q, most = m->B * (m->M < m->Q ? m->M : m->Q);
    fv_tensor *floats = pack_floats(c, logits, boxes, targets);
    m->logits = floats ? fv__step_memory(c, (size_t)fv_len(floats) * sizeof(float)) : NULL;
    if (!m->logits) return false;
    m->boxes = m->logits + fv_len(logits);
    m->targets = m->boxes + fv_len(boxes);
    m->labels = fv__step_memory(c, (size_t)fv_len(labels) * sizeof(int32_t));
    m->answers = fv__step_memory(c, (size_t)predictions * sizeof(int32_t));
    m->weights = fv__step_memory(c, (size_t)predictions * sizeof(float));
    m->rows = fv__step_memory(c, (size_t)most * sizeof(int32_t));
    m->pairs = fv__step_memory(c, (size_t)most * 4 * sizeof(float));
    return m->pairs && !fv__failed(c) && !fv_read(c, floats, m->logits, fv_len(floats)) &&
           !fv_read_i32(c, labels, m->labels, fv_len(labels));
}

/* ---- losses ---- */

/* Host floats in the dtype that losses have. */
static fv_tensor *constants(fv_ctx *c, const float *host, fv_shape s)
{
    fv_tensor *t = fv_new(c, fv__stat_dtype(c->dtype), s);
    if (t) fv_write(c, t, host, fv_len(t));
    return t;
}

static fv_tensor *class_loss(fv_ctx *c, fv_tensor *logits, const matching *m)
{
    double sum = 0;
    for (int64_t i = 0; i < m->B * m->Q; i++) sum += (double)m->weights[i];
    fv_shape s = FV_SHAPE(m->B, m->Q);
    fv_tensor *each = fv_cross_entropy(c, logits, fv_ints(c, m->answers, s),
                                       (fv_ce_opt){.ignore = -100});
    each = fv_mul(c, each, constants(c, m->weights, s));
    return fv_scale(c, fv_sum_all(c, each), (float)(1 / sum));
}

/* Corner i of boxes (n,4): x0, y0, x1, y1, each (n,1). */
static fv_tensor *corner(fv_ctx *c, fv_tensor *boxes, int i)
{
    fv_tensor *centre = fv_slice(c, boxes, 1, i % 2, i % 2 + 1),
              *size = fv_slice(c, boxes, 1, 2 + i % 2, 3 + i % 2);
    return fv_add(c, centre, fv_scale(c, size, i < 2 ? -0.5f : 0.5f));
}

static fv_tensor *minimum(fv_ctx *c, fv_tensor *a, fv_tensor *b)
{
    return fv_scale(c, fv_maximum(c, fv_scale(c, a, -1), fv_scale(c, b, -1)), -1);
}

/* (x1 - x0) (y1 - y0), sides below 0 counting as 0 where clamped */
static fv_tensor *area(fv_ctx *c, fv_tensor *const *at, bool clamped)
{
    fv_tensor *w = fv_sub(c, at[2], at[0]), *h = fv_sub(c, at[3], at[1]);
    return clamped ? fv_mul(c, fv_relu(c, w), fv_relu(c, h)) : fv_mul(c, w, h);
}

/* The sum over pairs (n,4) of 1 - GIoU. */
static fv_tensor *giou_loss(fv_ctx *c, fv_tensor *boxes, fv_tensor *targets)
{
    fv_tensor *a[4], *b[4], *inner[4], *outer[4];
    for (int i = 0; i < 4; i++) {
        a[i] = corner(c, boxes, i);
        b[i] = corner(c, targets, i);
        fv_tensor *low = minimum(c, a[i], b[i]), *high = fv_maximum(c, a[i], b[i]);
        inner[i] = i < 2 ? high : low;
        outer[i] = i < 2 ? low : high;
    }
    fv_tensor *both = area(c, inner, true), *hull = area(c, outer, true),
              *all = fv_sub(c, fv_add(c, area(c, a, false), area(c, b, false)), both);
    fv_tensor *value = fv_sub(c, fv_div(c, both, all), fv_div(c, fv_sub(c, hull, all), hull));
    return fv_sum_all(c, fv_affine(c, value, -1, 1));
}

/* A sum over pairs, divided by the objects of the whole batch. */
static fv_tensor *per_object(fv_ctx *c, fv_tensor *sum, const matching *m, const fv_items *in)
{
    fv_items own = {.n_labels = m->objects ? (double)m->objects : 1};
    return fv__per_label(c, sum, in->n_labels > 0 || in->per_label ? in : &own);
}

/* Classes and boxes of one matching; the parts are put where `out` is given. */
static fv_tensor *matched_loss(fv_ctx *c, const fv_items *in, fv_items *out, fv_tensor *logits,
                               fv_tensor *boxes, const matching *m, fv__detect_opt opt)
{
    fv_tensor *loss = class_loss(c, logits, m);
    if (out) fv_items_put(out, "loss_dict.loss_ce", loss);
    if (!m->n) return loss;
    fv_tensor *mine = fv_gather(c, fv_reshape(c, boxes, FV_SHAPE(m->B * m->Q, 4)),
                                fv_ints(c, m->rows, FV_SHAPE(m->n)), -1),
              *theirs = constants(c, m->pairs, FV_SHAPE(m->n, 4));
    mine = fv_cast(c, mine, fv__stat_dtype(c->dtype));
    fv_tensor *l1 = per_object(c, fv_sum_all(c, fv_abs(c, fv_sub(c, mine, theirs))), m, in),
              *apart = per_object(c, giou_loss(c, mine, theirs), m, in);
    if (out) {
        fv_items_put(out, "loss_dict.loss_bbox", l1);
        fv_items_put(out, "loss_dict.loss_giou", apart);
    }
    return fv_add(c, loss,
                  fv_add(c, fv_scale(c, l1, opt.box_loss), fv_scale(c, apart, opt.giou_loss)));
}

/* Sizes of what is compared; false where class_labels or boxes do not fit or are not there. */
static bool sizes(fv_ctx *c, matching *m, fv_tensor *labels, fv_tensor *targets, fv_tensor *logits,
                  fv_tensor *boxes)
{
    if (!labels || !targets || !logits || !boxes) return false;
    *m = (matching){.B = fv_dim(logits, 0), .Q = fv_dim(logits, 1), .classes = fv_dim(logits, 2)};
    m->M = fv_dim(labels, 1);
    if (fv_shape_same(labels->shape, FV_SHAPE(m->B, m->M)) &&
        fv_shape_same(targets->shape, FV_SHAPE(m->B, m->M, 4)))
        return true;
    fv_raise(c, FV_ESHAPE, "class_labels %s and boxes %s for %lld images", fv_desc(labels).s,
             fv_desc(targets).s, (long long)m->B);
    return false;
}

fv_tensor *fv__detection_loss(fv_ctx *c, const fv_items *in, fv_items *out, fv_tensor *logits,
                              fv_tensor *boxes, fv__detect_opt opt)
{
    fv_tensor *labels = fv_items_get(in, "class_labels"), *targets = fv_items_get(in, "boxes");
    matching m;
    if (!sizes(c, &m, labels, targets, logits, boxes)) return NULL;
    if (!read_all(c, &m, logits, boxes, labels, targets) || !match(c, &m, opt)) return NULL;
    return matched_loss(c, in, out, logits, boxes, &m, opt);
}

/* ---- the dense loss ---- */

/* Where a patch lies in a box: 2 in its middle half (or within half a patch of its centre: small
 * objects have a patch, too), 1 elsewhere in it, 0 outside. */
static int lies(const float *box, double x, double y, double patch_w, double patch_h)
{
    double dx = fabs(x - (double)box[0]), dy = fabs(y - (double)box[1]), w = (double)box[2],
           h = (double)box[3];
    if (dx <= fmax(w / 4, patch_w / 2) && dy <= fmax(h / 4, patch_h / 2)) return 2;
    return dx <= w / 2 && dy <= h / 2;
}

/* Patch q of image b: the smallest object in whose middle it lies.  In an object but not in its
 * middle it counts for nothing: what it should say is not clear. */
static void match_patch(matching *m, int64_t b, int64_t q, int64_t rows, int64_t cols)
{
    double x = ((double)(q % cols) + 0.5) / (double)cols,
           y = ((double)(q / cols) + 0.5) / (double)rows, least = INFINITY;
    const float *best = NULL;
    for (int64_t t = 0; t < m->M; t++) {
        int32_t label = m->labels[b * m->M + t];
        const float *box = m->targets + (b * m->M + t) * 4;
        if (label < 0 || label >= m->classes - 1) continue;
        int how = lies(box, x, y, 1 / (double)cols, 1 / (double)rows);
        double size = (double)box[2] * (double)box[3];
        if (how && !best) m->weights[b * m->Q + q] = 0;
        if (how < 2 || size >= least) continue;
        least = size, best = box;
        m->answers[b * m->Q + q] = label;
    }
    if (!best) return;
    m->weights[b * m->Q + q] = 1;
    m->rows[m->n] = (int32_t)(b * m->Q + q);
    memcpy(m->pairs + 4 * m->n++, best, 4 * sizeof(float));
}

/* Labels and boxes are the caller's data: the read waits for nothing but their copy. */
static bool match_patches(fv_ctx *c, matching *m, fv_tensor *labels, fv_tensor *targets,
                          int64_t rows, int64_t cols, fv__detect_opt opt)
{
    int64_t all = m->B * m->Q;
    m->targets = fv__step_memory(c, (size_t)fv_len(targets) * sizeof(float));
    m->labels = fv__step_memory(c, (size_t)fv_len(labels) * sizeof(int32_t));
    m->answers = fv__step_memory(c, (size_t)all * sizeof(int32_t));
    m->weights = fv__step_memory(c, (size_t)all * sizeof(float));
    m->rows = fv__step_memory(c, (size_t)all * sizeof(int32_t));
    m->pairs = fv__step_memory(c, (size_t)all * 4 * sizeof(float));
    if (!m->pairs || fv__failed(c) || fv_read(c, targets, m->targets, fv_len(targets)) ||
        fv_read_i32(c, labels, m->labels, fv_len(labels)))
        return false;
    for (int64_t i = 0; i < all; i++)
        m->answers[i] = (int32_t)(m->classes - 1), m->weights[i] = opt.no_object;
    for (int64_t i = 0; i < all; i++) match_patch(m, i / m->Q, i % m->Q, rows, cols);
    m->objects = m->n;
    return true;
}

fv_tensor *fv__dense_detection_loss(fv_ctx *c, const fv_items *in, fv_items *out, fv_tensor *logits,
                                    fv_tensor *boxes, int64_t rows, int64_t cols,
                                    fv__detect_opt opt)
{
    fv_tensor *labels = fv_items_get(in, "class_labels"), *targets = fv_items_get(in, "boxes");
    matching m;
    if (!sizes(c, &m, labels, targets, logits, boxes)) return NULL;
    if (!match_patches(c, &m, labels, targets, rows, cols, opt)) return NULL;
    /* a sum over patches: the number of objects of an accumulated batch does not divide it */
    fv_items none = {0};
    fv_tensor *dense = matched_loss(c, &none, NULL, logits, boxes, &m, opt);
    fv_items_put(out, "loss_dict.loss_dense", dense);
    return fv_scale(c, dense, opt.dense);
}
