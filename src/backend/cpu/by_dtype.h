/* by_dtype.h - includes the file BY_DTYPE once for each dtype that is staged through f32 (stage.h).
 *
 * A kernel is a plain function pointer without a dtype argument, so a file of kernels is included
 * once for each: then DTYPE is the dtype, REAL what memory holds, OF(name) a name of its own, and
 * OF(table) puts them into a table.  f64 stays with the reference kernels.  (A wrapper for each
 * kernel and dtype was the alternative: eighty functions that say nothing.) */
#define DTYPE FV_F32
#define REAL float
#define OF(name) name##_f32
#include BY_DTYPE /* NOLINT(bugprone-suspicious-include) */
#undef DTYPE
#undef REAL
#undef OF

#define DTYPE FV_BF16
#define REAL uint16_t
#define OF(name) name##_bf16
#include BY_DTYPE /* NOLINT(bugprone-suspicious-include) */
#undef DTYPE
#undef REAL
#undef OF

#define DTYPE FV_F16
#define REAL uint16_t
#define OF(name) name##_f16
#include BY_DTYPE /* NOLINT(bugprone-suspicious-include) */
#undef DTYPE
#undef REAL
#undef OF

static void fill_by_dtype(fv_kernels *k)
{
    if (k->dtype == FV_F32) table_f32(k);
    if (k->dtype == FV_BF16) table_bf16(k);
    if (k->dtype == FV_F16) table_f16(k);
}
