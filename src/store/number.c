/* number.c - element types of files and their conversion, in blocks that compilers vectorise. */
#include "number.h"

#include <math.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "files are little endian, and so must the machine be");

const fv_kind_info fv__kinds[FV_KINDS] = {
    [FV_K_F32] = {"F32", "f32", "<f4", 32},
    [FV_K_F64] = {"F64", "f64", "<f8", 64},
    [FV_K_BF16] = {"BF16", "bf16", NULL, 16},
    [FV_K_F16] = {"F16", "f16", "<f2", 16},
    [FV_K_F8_E4M3] = {"F8_E4M3", "f8_e4m3", NULL, 8},
    [FV_K_F8_E5M2] = {"F8_E5M2", "f8_e5m2", NULL, 8},
    [FV_K_BOOL] = {"BOOL", "bool", "|b1", 8},
    [FV_K_U8] = {"U8", "u8", "|u1", 8},
    [FV_K_I8] = {"I8", "i8", "|i1", 8},
    [FV_K_U16] = {"U16", "u16", "<u2", 16},
    [FV_K_I16] = {"I16", "i16", "<i2", 16},
    [FV_K_U32] = {"U32", "u32", "<u4", 32},
    [FV_K_I32] = {"I32", "i32", "<i4", 32},
    [FV_K_U64] = {"U64", "u64", "<u8", 64},
    [FV_K_I64] = {"I64", "i64", "<i8", 64},
    [FV_K_F8_E4M3FNUZ] = {"F8_E4M3FNUZ", "f8_e4m3fnuz", NULL, 8},
    [FV_K_F8_E5M2FNUZ] = {"F8_E5M2FNUZ", "f8_e5m2fnuz", NULL, 8},
    [FV_K_F8_E8M0] = {"F8_E8M0", "f8_e8m0", NULL, 8},
    [FV_K_F6_E2M3] = {"F6_E2M3", "f6_e2m3", NULL, 6},
    [FV_K_F6_E3M2] = {"F6_E3M2", "f6_e3m2", NULL, 6},
    [FV_K_F4] = {"F4", "f4", NULL, 4},
    [FV_K_C64] = {"C64", "c64", "<c8", 64},
};

/* s is a piece of a header and does not end in 0. */
static bool equal(const char *word, const char *s, size_t len)
{
    return word && strlen(word) == len && !memcmp(word, s, len);
}

fv_kind fv__kind_named(const char *s, size_t len)
{
    int k = 0;
    while (k < FV_KINDS && !equal(fv__kinds[k].name, s, len)) k++;
    return (fv_kind)k;
}

fv_kind fv__kind_npy(const char *s, size_t len)
{
    int k = 0;
    while (k < FV_KINDS && !equal(fv__kinds[k].npy, s, len)) k++;
    return (fv_kind)k;
}

/* false: the product overflows, or numbers of less than a byte do not fill their last one. */
bool fv__kind_bytes(uint64_t *bytes, fv_kind k, uint64_t n)
{
    uint64_t bits;
    if (__builtin_mul_overflow(n, (uint64_t)fv__kinds[k].bits, &bits) || bits % 8) return false;
    *bytes = bits / 8;
    return true;
}

/* ---- single numbers ---- */

static inline float as_float(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static inline uint32_t as_bits(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

/* Moving the exponent and fraction into f32's fields leaves the value 2^112 too small, for
 * subnormals too.
 * One multiplication handles normals and subnormals without a branch, so the loop vectorises. */
static inline float from_f16(uint16_t h)
{
    uint32_t rest = (uint32_t)(h & 0x7FFF) << 13, sign = (uint32_t)(h & 0x8000) << 16;
    uint32_t finite = as_bits(as_float(rest) * 0x1p112f);
    return as_float(sign | ((h & 0x7C00) == 0x7C00 ? rest | 0x7F800000u : finite));
}

static inline float from_e4m3(uint8_t b) /* no infinity; NaN is all ones */
{
    uint32_t rest = (uint32_t)(b & 0x7F) << 20, sign = (uint32_t)(b & 0x80) << 24;
    uint32_t finite = as_bits(as_float(rest) * 0x1p120f);
    return as_float(sign | ((b & 0x7F) == 0x7F ? 0x7FC00000u : finite));
}

/* Adding 0x7FFF plus the last kept bit rounds to nearest even by carry; a NaN keeps a set bit. */
static inline uint16_t to_bf16(float f)
{
    uint32_t u = as_bits(f), rounded = u + 0x7FFF + (u >> 16 & 1);
    return (uint16_t)((u & 0x7FFFFFFF) > 0x7F800000u ? u >> 16 | 0x40 : rounded >> 16);
}

/* Nearest, ties to even.  Below 2^-14 the addition of 0.5 lines the fraction up with f16's last
 * place and rounds it. */
static inline uint16_t to_f16(float f)
{
    uint32_t u = as_bits(f), a = u & 0x7FFFFFFF, sign = u >> 16 & 0x8000;
    uint32_t small = as_bits(as_float(a < 0x38800000u ? a : 0) + 0.5f) - 0x3F000000u;
    uint32_t normal = (a + 0xC8000FFFu + (a >> 13 & 1)) >> 13;
    uint32_t large = a > 0x7F800000u ? (a >> 13 & 0x3FF) | 0x7E00 : 0x7C00;
    return (uint16_t)(sign | (a < 0x38800000u ? small : a < 0x47800000u ? normal : large));
}

/* ---- blocks: file -> float, double or integer -> ours ---- */

#define BLOCK 512

/* Little-endian and perhaps unaligned. */
static inline uint16_t at16(const void *p, int64_t i)
{
    uint16_t x;
    memcpy(&x, (const char *)p + 2 * i, sizeof x);
    return x;
}

static inline uint32_t at32(const void *p, int64_t i)
{
    uint32_t x;
    memcpy(&x, (const char *)p + 4 * i, sizeof x);
    return x;
}

static inline uint64_t at64(const void *p, int64_t i)
{
    uint64_t x;
    memcpy(&x, (const char *)p + 8 * i, sizeof x);
    return x;
}

/* By memcpy, element by element: tensors of a file need not be aligned to their size. */
static void load_floats(float *x, const void *p, fv_kind k, int64_t n)
{
    const uint8_t *b = p;
    switch (k) {
    case FV_K_F32: memcpy(x, p, (size_t)n * sizeof *x); break;
    case FV_K_BF16:
        for (int64_t i = 0; i < n; i++) x[i] = as_float((uint32_t)at16(p, i) << 16);
        break;
    case FV_K_F16:
        for (int64_t i = 0; i < n; i++) x[i] = from_f16(at16(p, i));
        break;
    case FV_K_F8_E4M3:
        for (int64_t i = 0; i < n; i++) x[i] = from_e4m3(b[i]);
        break;
    default: /* F8_E5M2, the upper half of an f16 */
        for (int64_t i = 0; i < n; i++) x[i] = from_f16((uint16_t)(b[i] << 8));
        break;
    }
}

/* An unsigned number beyond int64 comes out negative. */
static void load_integers(int64_t *x, const void *p, fv_kind k, int64_t n)
{
    const uint8_t *b = p;
    switch (k) {
    case FV_K_U16:
        for (int64_t i = 0; i < n; i++) x[i] = at16(p, i);
        break;
    case FV_K_I16:
        for (int64_t i = 0; i < n; i++) x[i] = (int16_t)at16(p, i);
        break;
    case FV_K_U32:
        for (int64_t i = 0; i < n; i++) x[i] = at32(p, i);
        break;
    case FV_K_I32:
        for (int64_t i = 0; i < n; i++) x[i] = (int32_t)at32(p, i);
        break;
    case FV_K_I64:
    case FV_K_U64:
        for (int64_t i = 0; i < n; i++) x[i] = (int64_t)at64(p, i);
        break;
    case FV_K_I8:
        for (int64_t i = 0; i < n; i++) x[i] = (int8_t)b[i];
        break;
    default:
        for (int64_t i = 0; i < n; i++) x[i] = b[i];
        break;
    }
}

/* The greatest finite number of a format. */
static float largest(fv_dtype t)
{
    return t == FV_F16 ? 65504.0f : t == FV_BF16 ? 0x1.FEp127f : 0x1.FFFFFEp127f;
}

/* The destination is chosen outside the loop, so that each loop is one that compilers vectorise. */
static void put_floats(void *dst, fv_dtype to, const float *x, int64_t n)
{
    uint16_t *half = dst;
    double *d = dst;
    switch (to) {
    case FV_F64:
        for (int64_t i = 0; i < n; i++) d[i] = x[i];
        break;
    case FV_BF16:
        for (int64_t i = 0; i < n; i++) half[i] = to_bf16(x[i]);
        break;
    case FV_F16:
        for (int64_t i = 0; i < n; i++) half[i] = to_f16(x[i]);
        break;
    default: memcpy(dst, x, (size_t)n * sizeof *x); break;
    }
}

static inline bool is_finite(float f) { return (as_bits(f) & 0x7F800000u) != 0x7F800000u; }

/* Narrowing overflows exactly where a finite number became infinite.
 * A pass without branches first, which nearly always says no; the search for the index comes
 * after. */
static int64_t first_overflow(fv_dtype to, const float *x, int64_t n)
{
    if (to != FV_F16 && to != FV_BF16) return n;
    uint32_t over = 0, limit = as_bits(largest(to)), half_step = to == FV_F16 ? 0x1000 : 0x8000;
    for (int64_t i = 0; i < n; i++) {
        uint32_t a = as_bits(x[i]) & 0x7FFFFFFF;
        over |= a >= limit + half_step && a < 0x7F800000u;
    }
    for (int64_t i = 0; over && i < n; i++) {
        uint32_t a = as_bits(x[i]) & 0x7FFFFFFF;
        if (a >= limit + half_step && a < 0x7F800000u) return i;
    }
    return n;
}

/* Index of the first number that does not fit, or n. */
static int64_t floats(void *dst, fv_dtype to, const void *src, fv_kind k, int64_t n)
{
    float x[BLOCK];
    load_floats(x, src, k, n);
    put_floats(dst, to, x, n);
    return first_overflow(to, x, n);
}

/* From the end, so that the first number that does not fit is the one reported. */
static int64_t doubles(void *dst, fv_dtype to, const void *src, int64_t n)
{
    if (to == FV_F64) {
        memcpy(dst, src, (size_t)n * sizeof(double));
        return n;
    }
    float x[BLOCK];
    int64_t bad = n;
    for (int64_t i = n - 1; i >= 0; i--) {
        double d;
        memcpy(&d, (const char *)src + i * (int64_t)sizeof d, sizeof d);
        x[i] = (float)d;
        if (!is_finite(x[i]) && isfinite(d)) bad = i;
    }
    put_floats(dst, to, x, n);
    int64_t narrow = first_overflow(to, x, n);
    return bad < narrow ? bad : narrow;
}

/* Integers of magnitude 2^bits and below are exact in a float with that many bits of precision;
 * larger ones by chance.
 * Bits from the highest one to the lowest one: what a significand has to hold. */
static bool exact(fv_dtype to, int64_t v)
{
    int bits = to == FV_F64 ? 53 : to == FV_F32 ? 24 : to == FV_F16 ? 11 : 8;
    uint64_t a = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
    if (to == FV_F16 && a > 65504) return false;
    return !a || 64 - __builtin_clzll(a) - __builtin_ctzll(a) <= bits;
}

/* An integer that f32 cannot hold exactly is refused: ids would change in silence. */
static int64_t integers(void *dst, fv_dtype to, const void *src, fv_kind k, int64_t n)
{
    int64_t v[BLOCK];
    float x[BLOCK];
    load_integers(v, src, k, n);
    for (int64_t i = 0; i < n; i++) {
        bool fits = k == FV_K_BOOL ? v[i] <= 1 : k != FV_K_U64 || v[i] >= 0;
        if (to == FV_I32)
            fits = fits && v[i] >= INT32_MIN && v[i] <= INT32_MAX,
            ((int32_t *)dst)[i] = (int32_t)v[i];
        else if (to == FV_U8)
            fits = fits && v[i] >= 0 && v[i] <= UINT8_MAX, ((uint8_t *)dst)[i] = (uint8_t)v[i];
        else if (to == FV_F64)
            fits = fits && exact(to, v[i]), ((double *)dst)[i] = (double)v[i];
        else
            fits = fits && exact(to, v[i]), x[i] = (float)v[i];
        if (!fits) return i;
    }
    if (to != FV_I32 && to != FV_U8 && to != FV_F64) put_floats(dst, to, x, n);
    return n;
}

/* Elements converted before the first that does not fit; n if all do.  Rounding to the nearest
 * float is no failure, overflow to infinity and an inexact integer are. */
int64_t fv__convert(void *dst, fv_dtype to, const void *src, fv_kind k, int64_t n)
{
    size_t from_size = (size_t)fv__kinds[k].bits / 8;
    size_t to_size = to == FV_F64 ? 8 : to == FV_F32 || to == FV_I32 ? 4 : to == FV_U8 ? 1 : 2;
    if (fv__kind_float(k) && (to == FV_I32 || to == FV_U8)) return 0;
    for (int64_t i = 0; i < n; i += BLOCK) {
        int64_t m = n - i < BLOCK ? n - i : BLOCK;
        const char *from = (const char *)src + (size_t)i * from_size;
        char *into = (char *)dst + (size_t)i * to_size;
        int64_t done = k == FV_K_F64       ? doubles(into, to, from, m)
                       : fv__kind_float(k) ? floats(into, to, from, k, m)
                                           : integers(into, to, from, k, m);
        if (done < m) return i + done;
    }
    return n;
}
