/* ref.h - what a reference kernel is written in.
 *
 * The files of this folder are the readable twin of every kernel: plain loops, one row after
 * another.  Each is compiled once per float dtype (CMakeLists.txt defines REF_DTYPE and REF_F32 and
 * so on): `real` is what memory holds, `acc` is what arithmetic uses.  f64 is the yardstick that
 * values and gradients are checked in; the others make every table complete, and a backend
 * overrides what is worth it. */
#ifndef FV_REF_H
#define FV_REF_H

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "fovea/author/backend.h"

#define REF_JOIN_(a, b, c) a##b##_##c
#define REF_JOIN(a, b, c) REF_JOIN_(a, b, c)
/* fv__ref_norm_bf16: puts a file's kernels into a table */
#define REF(file) REF_JOIN(fv__ref_, file, REF_DTYPE)

/* ---- f32 <-> the 16-bit formats, round to nearest even ---- */

static inline float ref_from_bf16(uint16_t h)
{
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

static inline uint16_t ref_to_bf16(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(u >> 16 | 0x40); /* NaN stays NaN */
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1)) >> 16);
}

static inline float ref_from_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, mag = h & 0x7fffu, u;
    float f;
    if (mag >= 0x7c00) {
        u = sign | 0x7f800000u | (mag & 0x3ff) << 13;
    } else if (mag >= 0x400) {
        u = sign | ((mag << 13) + 0x38000000u);
    } else { /* subnormal: mag * 2^-24 */
        float t = (float)mag * 0x1p-24f;
        memcpy(&u, &t, 4);
        u |= sign;
    }
    memcpy(&f, &u, 4);
    return f;
}

static inline uint16_t ref_to_f16(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    uint32_t sign = u >> 16 & 0x8000u, mag = u & 0x7fffffffu;
    if (mag > 0x7f800000u) return (uint16_t)(sign | 0x7e00);
    /* 65520 and more rounds to infinity */
    if (mag >= 0x477ff000u) return (uint16_t)(sign | 0x7c00);
    if (mag < 0x38800000u) { /* below 2^-14: a multiple of 2^-24 */
        float a;
        memcpy(&a, &mag, 4);
        return (uint16_t)(sign | (uint32_t)lrintf(a * 0x1p24f));
    }
    return (uint16_t)(sign | ((mag - 0x38000000u + 0xfffu + (mag >> 13 & 1)) >> 13));
}

/* ---- the dtype this file is compiled for ---- */

#if defined(REF_F64)
typedef double real, acc, stat;
#define REF_TYPE FV_F64
#define EXP exp
#define EXP2 exp2
#define LOWEST (-DBL_MAX)
#define LOG log
#define LOG1P log1p
#define SQRT sqrt
#define TANH tanh
#define ERF erf
#define FABS fabs
#define FMA fma
static inline acc ld(const void *p, int64_t i) { return ((const double *)p)[i]; }
static inline void st(void *p, int64_t i, acc v) { ((double *)p)[i] = v; }
#else
typedef float acc, stat;
#define EXP expf
#define EXP2 exp2f
#define LOWEST (-FLT_MAX)
#define LOG logf
#define LOG1P log1pf
#define SQRT sqrtf
#define TANH tanhf
#define ERF erff
#define FABS fabsf
#define FMA fmaf
#if defined(REF_F32)
typedef float real;
#define REF_TYPE FV_F32
static inline acc ld(const void *p, int64_t i) { return ((const float *)p)[i]; }
static inline void st(void *p, int64_t i, acc v) { ((float *)p)[i] = v; }
#elif defined(REF_BF16)
typedef uint16_t real;
#define REF_TYPE FV_BF16
static inline acc ld(const void *p, int64_t i) { return ref_from_bf16(((const uint16_t *)p)[i]); }
static inline void st(void *p, int64_t i, acc v) { ((uint16_t *)p)[i] = ref_to_bf16(v); }
#elif defined(REF_F16)
typedef uint16_t real;
#define REF_TYPE FV_F16
static inline acc ld(const void *p, int64_t i) { return ref_from_f16(((const uint16_t *)p)[i]); }
static inline void st(void *p, int64_t i, acc v) { ((uint16_t *)p)[i] = ref_to_f16(v); }
#endif
#endif

/* Delivers v to element i of a gradient; the caller has checked that s.data is not NULL. */
static inline void sink_store(fv_sink s, int64_t i, acc v)
{
    if (s.dtype == FV_F32 && REF_TYPE != FV_F32) { /* a parameter of a narrower model */
        float *p = (float *)s.data + i;
        *p = (float)(s.add ? (acc)*p + v : v);
    } else {
        st(s.data, i, s.add ? ld(s.data, i) + v : v);
    }
}

/* Numbers kept beside the data. */
static inline acc lds(const fv_stat *p, int64_t i) { return ((const stat *)p)[i]; }
static inline void sts(fv_stat *p, int64_t i, acc v) { ((stat *)p)[i] = v; }

#endif
