/* lattice.h - what the losses over alignments share: frames and labels of a batch, checked.
 *
 * Both CTC and the transducer's loss sum over the paths of a lattice of T frames by U labels, given
 * in padded tensors with the lengths of each sequence beside them.  Lengths and labels come from
 * data, so they are checked where they are read. */
#ifndef FV_REF_LATTICE_H
#define FV_REF_LATTICE_H

#include "backend/ref/ref.h"

/* log(e^a + e^b) from the larger one: log1p keeps the digits of a small e^(low - top). */
static inline acc log_add(acc a, acc b)
{
    acc top = a > b ? a : b, low = a > b ? b : a;
    return low == -INFINITY ? top : top + LOG1P(EXP(low - top));
}

/* Sequence b of a loss named op: its frames and labels fit (T,U), and no label is the blank or
 * outside of the V classes.  false: the stream has failed with a sentence. */
static inline bool lattice_fits(fv_stream *s, const char *op, int64_t b, int32_t frames,
                                const int32_t *labels, int32_t n, int64_t T, int64_t U, int64_t V,
                                int32_t blank)
{
    if (frames < 1 || frames > T || n < 0 || n > U) {
        fv_stream_fail(
            s, FV_EARG,
            "%s: sequence %lld has %d frames and %d labels, the tensors hold %lld and %lld", op,
            (long long)b, frames, n, (long long)T, (long long)U);
        return false;
    }
    for (int64_t u = 0; u < n; u++) {
        if (labels[u] >= 0 && labels[u] < V && labels[u] != blank) continue;
        fv_stream_fail(s, FV_EARG, "%s: label %d of sequence %lld is the blank or outside 0..%lld",
                       op, labels[u], (long long)b, (long long)V - 1);
        return false;
    }
    return true;
}

#endif
