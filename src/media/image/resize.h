/* resize.h - the weights of one axis of a resize. */
#ifndef FV_MEDIA_RESIZE_H
#define FV_MEDIA_RESIZE_H

#include "base/base.h"
#include "fovea/author/image.h"

enum { FV__TAP_BITS = 22 }; /* after the binary point of a weight */

/* Output pixel i of the window is the sum of n[i] input pixels from from[i] on, times the weights
 * weight[i * most + k] / 2^22. */
typedef struct fv__taps {
    int out, most;
    int *from, *n;
    int32_t *weight;
    void *memory;
    size_t bytes;
} fv__taps;

/* Of an axis of `in` pixels that becomes one of `size`, for the outputs first .. first + out -
 * 1. */
fv_status fv__taps_make(fv__taps *t, const fv_env *env, int in, int size, int first, int out,
                        fv_resample how, fv_err *e);
void fv__taps_free(fv__taps *t, const fv_env *env);

#endif
