/* number.h - the element types found in files, and their way into and out of ours. */
#ifndef FV_STORE_NUMBER_H
#define FV_STORE_NUMBER_H

#include "base/base.h"
#include "base/decimal.h"
#include "fovea/device.h"

typedef enum fv_kind {
    FV_K_F32,
    FV_K_F64,
    FV_K_BF16,
    FV_K_F16,
    FV_K_F8_E4M3,
    FV_K_F8_E5M2, /* floats that are read */
    FV_K_BOOL,
    FV_K_U8,
    FV_K_I8,
    FV_K_U16,
    FV_K_I16,
    FV_K_U32,
    FV_K_I32,
    FV_K_U64,
    FV_K_I64, /* integers that are read */
    FV_K_F8_E4M3FNUZ,
    FV_K_F8_E5M2FNUZ,
    FV_K_F8_E8M0,
    FV_K_F6_E2M3,
    FV_K_F6_E3M2,
    FV_K_F4,
    FV_K_C64, /* only their size is known */
    FV_KINDS
} fv_kind;

typedef struct fv_kind_info {
    const char *name;  /* as safetensors writes it: "BF16" */
    const char *plain; /* as our messages write it: "bf16" */
    const char *npy;   /* as NumPy writes it: "<f4"; NULL where it has none */
    int bits;
} fv_kind_info;

extern const fv_kind_info fv__kinds[FV_KINDS];

static inline bool fv__kind_readable(fv_kind k) { return k <= FV_K_I64; }
static inline bool fv__kind_float(fv_kind k) { return k <= FV_K_F8_E5M2; }
/* The kind of that name, or FV_KINDS. */
fv_kind fv__kind_named(const char *s, size_t len);
fv_kind fv__kind_npy(const char *s, size_t len);

/* Bytes of n elements: false when it overflows or does not end at a byte. */
bool fv__kind_bytes(uint64_t *bytes, fv_kind k, uint64_t n);

/* Converts n elements at src (any alignment, little endian) to dst, which holds f32, f64, bf16,
 * f16, i32 or u8.  Returns n, or the index of the first that has no place there: a finite number
 * beyond the range, an integer that would be rounded.  NaN and infinity pass.  A float has no place
 * in i32 or u8.  k must be readable. */
int64_t fv__convert(void *dst, fv_dtype to, const void *src, fv_kind k, int64_t n);

#endif
