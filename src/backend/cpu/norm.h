/* norm.h - the norm of one row, for kernels that fuse it. */
#ifndef FV_NORM_H
#define FV_NORM_H

#include "simd.h"

/* y = gain * (x - mean) * rstd + bias over n values, mean taken as 0 unless centred; gain and bias
 * may be NULL.  The same bits as the kernels of norm.c. */
void BASE_NAME(norm_row)(float *y, const float *x, const float *gain, const float *bias, int64_t n,
                         bool centred, float eps);

#endif
