/* joint.h - a transducer's joint network and its loss, without the logits of the whole grid. */
#ifndef FV_NN_JOINT_H
#define FV_NN_JOINT_H

#include "fovea/author/nn.h"

/* h (B,T,J), g (B,U+1,J), labels (B,U), tlen and ulen (B) -> (B): fv_rnnt_loss of the logits
 * out(tanh(h_t + g_u)), whose (B,T,U+1,V) numbers are there for `frames` frames at a time only, in
 * both directions.  Labels behind ulen must be ids too. */
fv_tensor *fv__joint_loss(fv_ctx *c, const fv_lin *out, fv_tensor *h, fv_tensor *g,
                          fv_tensor *labels, fv_tensor *tlen, fv_tensor *ulen, int32_t blank,
                          int64_t frames);

#endif
