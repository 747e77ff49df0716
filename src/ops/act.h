/* act.h - the element-wise op that an activation is. */
#ifndef FV_ACT_H
#define FV_ACT_H

#include "fovea/author/op.h"

/* False for FV_ACT_NONE, which is none, for those that are made of several ops, and for a number
 * that names no activation. */
static inline bool fv__act_op(fv_unary_op *op, fv_act act)
{
    static const fv_unary_op ops[] = {[FV_RELU] = FV_U_RELU,
                                      [FV_GELU] = FV_U_GELU,
                                      [FV_GELU_TANH] = FV_U_GELU_TANH,
                                      [FV_SILU] = FV_U_SILU,
                                      [FV_TANH] = FV_U_TANH,
                                      [FV_SIGMOID] = FV_U_SIGMOID,
                                      [FV_QUICK_GELU] = FV_U_QUICK_GELU};
    if (act == FV_ACT_NONE || (unsigned)act >= sizeof ops / sizeof *ops) return false;
    *op = ops[act];
    return true;
}

#endif
