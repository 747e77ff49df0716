/* contrast.h - the parts that the objective `contrastive` adds to a family's loss. */
#ifndef FV_OBJECTIVE_CONTRAST_H
#define FV_OBJECTIVE_CONTRAST_H

#include "fovea/author/family.h"

/* CE(a b' / t) + CE(b a' / t), t = 0.07, right answers given by view_of (n).  other: the second
 * images (n,C,H,W), where a has the vectors (n,D) of the first; or both (2n,C,H,W), the first ones
 * first. */
fv_tensor *fv__view_loss(fv_ctx *c, const fv_model *m, fv_tensor *a, fv_tensor *other,
                         const fv_items *in);

/* SE(T) + SE(T'), SE(T) = -share . log softmax(T), by rows; logits (n,n) of texts against
 * images. */
fv_tensor *fv__overlap_loss(fv_ctx *c, fv_tensor *logits, fv_tensor *share, const fv_items *in);

#endif
