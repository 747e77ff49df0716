/* rnnt.h - the transducer loss of log-probabilities, for those who make them themselves. */
#ifndef FV_OPS_RNNT_H
#define FV_OPS_RNNT_H

#include "fovea/author/op.h"

/* As fv_rnnt_loss, of log-probabilities lp (B,T,U+1,V) in f32 or f64: no softmax. */
fv_tensor *fv__rnnt_of(fv_ctx *c, fv_tensor *lp, fv_tensor *labels, fv_tensor *tlen,
                       fv_tensor *ulen, int32_t blank);

#endif
