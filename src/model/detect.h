/* detect.h - boxes: which prediction answers for which object, and the loss of both together. */
#ifndef FV_MODEL_DETECT_H
#define FV_MODEL_DETECT_H

#include "model/part.h"

/* The assignment of n rows to different columns of m, n <= m, whose costs (n,m) add up to the
 * least: column[i] for row i.  work: FV__ASSIGN_WORK doubles. */
#define FV__ASSIGN_WORK(n, m) ((n) + 5 * (m) + 8)
void fv__assign(const double *cost, int64_t n, int64_t m, int64_t *column, double *work);

typedef struct fv__detect_opt {
    float class_cost, box_cost, giou_cost; /* of the matching */
    float box_loss, giou_loss;             /* factors of the loss; that of the classes is 1 */
    float no_object;                       /* weight of predictions that answer for nothing */
    float dense;                           /* factor of the loss of the patches, below */
} fv__detect_opt;

/* The loss; puts its parts "loss_dict.loss_ce", "loss_dict.loss_bbox", "loss_dict.loss_giou".  Of
 * logits (B,Q,C+1), whose last class is "no object", and boxes (B,Q,4) under class_labels I32
 * (B,M), padded with -100, and boxes (B,M,4) of `in`.  A box is (centre x, centre y, width,
 * height) in shares of the image.  It waits for the device: the matching is made by the host.
 * NULL where `in` has no objects. */
fv_tensor *fv__detection_loss(fv_ctx *c, const fv_items *in, fv_items *out, fv_tensor *logits,
                              fv_tensor *boxes, fv__detect_opt opt);

/* The same three losses of the patches, times opt.dense; puts "loss_dict.loss_dense" before that.
 * Of logits (B,rows*cols,C+1) and boxes (B,rows*cols,4).  Which object a patch answers for follows
 * from where both lie: nothing is matched. */
fv_tensor *fv__dense_detection_loss(fv_ctx *c, const fv_items *in, fv_items *out, fv_tensor *logits,
                                    fv_tensor *boxes, int64_t rows, int64_t cols,
                                    fv__detect_opt opt);

#endif
