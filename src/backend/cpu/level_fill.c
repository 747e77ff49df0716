/* level_fill.c - puts the fast kernels of one instruction level over the reference ones.
 *
 * A level with a base (CMakeLists.txt) compiles a few files anew and has all others from its base:
 * CPU_FILES lists its own. */
#include "simd.h"

#if !defined(CPU_FILES)
#define CPU_FILES "cpu_files.h"
#endif

#define X(file) void NAME(file)(fv_kernels * k);
#include CPU_FILES
#undef X

void NAME(level)(fv_kernels *k); /* fv__cpu_level_avx2 */
void BASE_NAME(level)(fv_kernels *k);

void NAME(level)(fv_kernels *k)
{
#if defined(CPU_BASE)
    BASE_NAME(level)(k);
#endif
#define X(file) NAME(file)(k);
#include CPU_FILES
#undef X
}
