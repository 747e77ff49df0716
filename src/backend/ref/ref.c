/* ref.c - assembles the reference tables: every kernel file of this folder, once per float
 * dtype. */
#include "backend/ref/tables.h"

#define X(file)                                                                                    \
    void fv__ref_##file##_f32(fv_kernels *k);                                                      \
    void fv__ref_##file##_f64(fv_kernels *k);                                                      \
    void fv__ref_##file##_bf16(fv_kernels *k);                                                     \
    void fv__ref_##file##_f16(fv_kernels *k);
#include "ref_files.h"
#undef X

void fv__ref_fill(fv_kernels k[FV_FLOATS])
{
    for (int i = 0; i < FV_FLOATS; i++) k[i] = (fv_kernels){.dtype = (fv_dtype)i};
#define X(file)                                                                                    \
    fv__ref_##file##_f32(&k[FV_F32]);                                                              \
    fv__ref_##file##_f64(&k[FV_F64]);                                                              \
    fv__ref_##file##_bf16(&k[FV_BF16]);                                                            \
    fv__ref_##file##_f16(&k[FV_F16]);
#include "ref_files.h"
#undef X
}
