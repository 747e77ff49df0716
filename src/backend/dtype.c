/* dtype.c - names and sizes of dtypes.
 *
 * They stand below core because kernels ask for them too.  A quantised dtype has no size of one
 * element: its rows are made of blocks (docs/formats.md), so its size is 0 and fv_dtype_row
 * counts. */
#include <string.h>

#include "fovea/device.h"
#include "fovea/author/backend.h"

static const struct {
    const char *name;
    size_t size;
} dtypes[FV_DTYPES] = {
    [FV_F32] = {"f32", 4}, [FV_F64] = {"f64", 8}, [FV_BF16] = {"bf16", 2},
    [FV_F16] = {"f16", 2}, [FV_I32] = {"i32", 4}, [FV_U8] = {"u8", 1},
    [FV_Q8] = {"q8", 0},   [FV_Q4] = {"q4", 0},   [FV_I8] = {"int8", 0},
};

const char *fv_dtype_name(fv_dtype t) { return (unsigned)t < FV_DTYPES ? dtypes[t].name : "?"; }

size_t fv_dtype_size(fv_dtype t) { return (unsigned)t < FV_DTYPES ? dtypes[t].size : 0; }

/* Bytes of n values from the start of a row; n of a whole block or run gives the offset of the
 * next. */
size_t fv_dtype_row(fv_dtype t, int64_t n)
{
    size_t blocks = (size_t)((n + 31) / 32), runs = (size_t)((n + 4095) / 4096);
    switch (t) {
    case FV_Q8: return blocks * (sizeof(float) + 32);
    case FV_Q4: return blocks * (sizeof(float) + 16);
    case FV_I8: return blocks * 32 + runs * sizeof(float);
    default: return (size_t)n * fv_dtype_size(t);
    }
}

bool fv_dtype_parse(fv_dtype *out, const char *name)
{
    for (int i = 0; i < FV_DTYPES; i++)
        if (!strcmp(dtypes[i].name, name)) {
            *out = (fv_dtype)i;
            return true;
        }
    return false;
}
