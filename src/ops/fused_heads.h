/* fused_heads.h - q, k and v of one token of each sequence from a product to attention, where the
 * device has it. */
#ifndef FV_OPS_FUSED_HEADS_H
#define FV_OPS_FUSED_HEADS_H

#include "fovea/author/op.h"

/* Of x (B,1,(H+2G)*W), one product's q, k and v, by_head: all three of a head side by side, the
 * keys and values go to row pos of their caches (B,cap,G*W), q (B,1,H*W) is returned in the caches'
 * dtype.  Before that heads of q and k are divided by the root of their mean square, with gains (W)
 * if there are any, and rotated; what is rotated is multiplied by factor.  No gradient. */
typedef struct fv_fused_heads_arg {
    int64_t n_head, n_kv_head, head; /* H, G, W */
    bool by_head;
    const fv_tensor *q_gain, *k_gain; /* both or neither */
    float eps, factor;
    const fv_tensor *rope_pos, *rope_freq; /* (B), (half) or (B,half); NULL: no rotation */
    bool adjacent;                         /* pairs (2i,2i+1), else (i,i+half) */
    const fv_tensor *k, *v, *pos;
} fv_fused_heads_arg;

/* Whether fv__fused_heads takes heads of that width, rotated by freq (or NULL). */
bool fv__fused_heads_supported(const fv_ctx *c, int64_t head, const fv_tensor *freq);
fv_tensor *fv__fused_heads(fv_ctx *c, fv_tensor *x, fv_fused_heads_arg a);

#endif
