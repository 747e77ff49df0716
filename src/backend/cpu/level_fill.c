/* level_fill.c - puts the fast kernels of one instruction level over the reference ones. */
#include "simd.h"

#define X(file) void NAME(file)(fv_kernels * k);
#include "cpu_files.h"
#undef X

void NAME(level)(fv_kernels *k); /* fv__cpu_level_avx2 */

void NAME(level)(fv_kernels *k)
{
#define X(file) NAME(file)(k);
#include "cpu_files.h"
#undef X
}
