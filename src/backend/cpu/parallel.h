/* parallel.h - the loops of the kernels, on the threads of the stream's device.
 *
 * A kernel that has a loop worth sharing puts what the loop reads into a struct and its body into a
 * function of a range:
 *
 *    typedef struct scale_rows { float *y; const float *x; int64_t cols; } scale_rows;
 *    static void some_rows(void *arg, int64_t lo, int64_t hi, int slot)
 *    ...
 *    fv__cpu_parallel(s, threads, rows, 0, some_rows, &(scale_rows){y, x, cols});
 *
 * Iterations must not depend on each other, nor on how they are grouped: then results have the same
 * bits for any number of threads. */
#ifndef FV_CPU_PARALLEL_H
#define FV_CPU_PARALLEL_H

#include "base/thread_pool.h"
#include "fovea/author/backend.h"

/* fv__parallel_for on the device's pool.  grain: iterations handed out at a time, 0 to let it
 * choose. */
void fv__cpu_parallel(fv_stream *s, int threads, int64_t n, int64_t grain, fv__range_fn fn,
                      void *arg);

#endif
