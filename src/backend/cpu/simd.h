/* simd.h - one vector type for all instruction levels.
 *
 * Kernels in this folder are written once against these few functions and compiled once per level
 * with other flags (see CMakeLists.txt); each file exports NAME(file), which puts its kernels into
 * a table.  VW is the number of f32 lanes.  The alternative, one file of intrinsics per kernel and
 * level, was five times the code and let the levels drift apart.
 *
 * What every level must provide, and what kernels may rely on:
 *    v_fma      one rounding (generic: two, where the target has no fused multiply-add)
 *    v_max      if b is NaN the result is NaN; a NaN in a may be lost, so write v_max(acc, x)
 *    v_max_abs  max(a, |b|) for a >= 0; a NaN in either is kept
 *    v_hmax_abs the largest lane of what v_max_abs gave, NaN if there is one
 *    v_hsum     one order per level: bits are the same for any thread count, not for any level
 *    v_ldexp    the result must be normal
 *    v_load_n   tails, on most levels through a small array: only for the last vector of a row
 *
 * Masks (vm) differ most: a register of lanes on NEON and AVX2, a 16-bit mask on AVX-512.  They
 * are only ever made by v_lt and used by v_sel. */
#ifndef FV_SIMD_H
#define FV_SIMD_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "fovea/author/backend.h"

#define JOIN_(a, b, c) a##b##_##c
#define JOIN(a, b, c) JOIN_(a, b, c)
#define NAME(file) JOIN(fv__cpu_, file, CPU_LEVEL) /* fv__cpu_gemm_avx2 */
/* For a function in a file that levels with a base do not compile anew. */
#if defined(CPU_BASE)
#define BASE_NAME(file) JOIN(fv__cpu_, file, CPU_BASE)
#else
#define BASE_NAME(file) NAME(file)
#endif

/* Functions that are given sizes as constants, so that their loops unroll. */
#define ALWAYS_INLINE static inline __attribute__((always_inline))
/* Functions that must not be inlined: they would spill the caller's registers or repeat code. */
#define NOINLINE static __attribute__((noinline))

#if defined(CPU_NEON) || defined(CPU_NEON_BF16)
#include <arm_neon.h>
#define VW 4
typedef float32x4_t vf;
typedef uint32x4_t vu;
typedef uint32x4_t vm; /* a mask: all ones or all zeros in each lane */
static inline vf v_load(const float *p) { return vld1q_f32(p); }
static inline void v_store(float *p, vf a) { vst1q_f32(p, a); }
static inline vf v_set1(float a) { return vdupq_n_f32(a); }
static inline vf v_add(vf a, vf b) { return vaddq_f32(a, b); }
static inline vf v_sub(vf a, vf b) { return vsubq_f32(a, b); }
static inline vf v_mul(vf a, vf b) { return vmulq_f32(a, b); }
static inline vf v_div(vf a, vf b) { return vdivq_f32(a, b); }
static inline vf v_max(vf a, vf b) { return vmaxq_f32(a, b); }
static inline vf v_min(vf a, vf b) { return vminq_f32(a, b); }
static inline vf v_sqrt(vf a) { return vsqrtq_f32(a); }
static inline vf v_abs(vf a) { return vabsq_f32(a); }
static inline vf v_fma(vf a, vf b, vf c) { return vfmaq_f32(c, a, b); }  /* a*b + c */
static inline vf v_fnma(vf a, vf b, vf c) { return vfmsq_f32(c, a, b); } /* c - a*b */
static inline vf v_round(vf a) { return vrndnq_f32(a); }
static inline vm v_lt(vf a, vf b) { return vcltq_f32(a, b); }
static inline vf v_sel(vm m, vf a, vf b) { return vbslq_f32(m, a, b); } /* m ? a : b */
static inline float v_hsum(vf a) { return vaddvq_f32(a); }
static inline float v_hmax(vf a) { return vmaxvq_f32(a); }
static inline vf v_max_abs(vf a, vf b) { return vmaxq_f32(a, vabsq_f32(b)); }
static inline float v_hmax_abs(vf a) { return vmaxvq_f32(a); }
/* a * 2^n, n integral and a * 2^n normal */
static inline vf v_ldexp(vf a, vf n)
{
    return vreinterpretq_f32_s32(
        vaddq_s32(vreinterpretq_s32_f32(a), vshlq_n_s32(vcvtq_s32_f32(n), 23)));
}
static inline vf v_load_bf16(const uint16_t *p)
{
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16));
}
static inline vf v_load_f16(const uint16_t *p)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}
static inline void v_store_f16(uint16_t *p, vf a)
{
    vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(a)));
}
/* low halves of the lanes */
static inline void v_store_low16(uint16_t *p, vu a) { vst1_u16(p, vmovn_u32(a)); }
/* *hi:*lo = a * b, lane by lane */
static inline void v_mul_wide(vu *hi, vu *lo, vu a, uint32_t b)
{
    vu p = vreinterpretq_u32_u64(vmull_n_u32(vget_low_u32(a), b));
    vu q = vreinterpretq_u32_u64(vmull_n_u32(vget_high_u32(a), b));
    *lo = vuzp1q_u32(p, q);
    *hi = vuzp2q_u32(p, q);
}
/* p[4*i+j] = lane i of the j-th */
static inline void v_store_mixed(uint32_t *p, vu a, vu b, vu c, vu d)
{
    uint32x4x4_t all = {{a, b, c, d}};
    vst4q_u32(p, all);
}

#elif defined(CPU_AVX512) || defined(CPU_AVX512_BF16)
#include <immintrin.h>
#define VW 16
typedef __m512 vf;
typedef __mmask16 vm;
static inline vf v_load(const float *p) { return _mm512_loadu_ps(p); }
static inline void v_store(float *p, vf a) { _mm512_storeu_ps(p, a); }
static inline vf v_set1(float a) { return _mm512_set1_ps(a); }
static inline vf v_add(vf a, vf b) { return _mm512_add_ps(a, b); }
static inline vf v_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
static inline vf v_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
static inline vf v_div(vf a, vf b) { return _mm512_div_ps(a, b); }
static inline vf v_max(vf a, vf b) { return _mm512_max_ps(a, b); }
static inline vf v_min(vf a, vf b) { return _mm512_min_ps(a, b); }
static inline vf v_sqrt(vf a) { return _mm512_sqrt_ps(a); }
static inline vf v_abs(vf a) { return _mm512_abs_ps(a); }
static inline vf v_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
static inline vf v_fnma(vf a, vf b, vf c) { return _mm512_fnmadd_ps(a, b, c); }
static inline vf v_round(vf a) { return _mm512_roundscale_ps(a, 8); }
static inline vm v_lt(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
static inline vf v_sel(vm m, vf a, vf b) { return _mm512_mask_blend_ps(m, b, a); }
static inline float v_hsum(vf a) { return _mm512_reduce_add_ps(a); }
static inline float v_hmax(vf a) { return _mm512_reduce_max_ps(a); }
static inline vf v_max_abs(vf a, vf b) /* as integers, so that NaN > inf */
{
    return (vf)_mm512_max_epi32((__m512i)a, (__m512i)_mm512_abs_ps(b));
}
static inline float v_hmax_abs(vf a)
{
    int32_t most = _mm512_reduce_max_epi32((__m512i)a);
    float x;
    memcpy(&x, &most, sizeof x);
    return x;
}
static inline vf v_ldexp(vf a, vf n) { return _mm512_scalef_ps(a, n); }
static inline vf v_load_bf16(const uint16_t *p)
{
    return _mm512_castsi512_ps(
        _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
}
static inline vf v_load_f16(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
static inline void v_store_f16(uint16_t *p, vf a)
{
    _mm256_storeu_si256((__m256i *)p,
                        _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
typedef uint32_t vu __attribute__((vector_size(64)));
static inline void v_store_low16(uint16_t *p, vu a)
{
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16((__m512i)a));
}
static inline void v_mul_wide(vu *hi, vu *lo, vu a, uint32_t b)
{
    __m512i m = _mm512_set1_epi32((int)b), x = (__m512i)a;
    __m512i even = _mm512_mul_epu32(x, m), odd = _mm512_mul_epu32(_mm512_srli_epi64(x, 32), m);
    *lo = (vu)_mm512_mask_blend_epi32(0xaaaa, even, _mm512_slli_epi64(odd, 32));
    *hi = (vu)_mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(even, 32), odd);
}
static inline void v_store_mixed(uint32_t *p, vu a, vu b, vu c, vu d)
{
    __m512i ab0 = _mm512_unpacklo_epi32((__m512i)a, (__m512i)b),
            ab1 = _mm512_unpackhi_epi32((__m512i)a, (__m512i)b);
    __m512i cd0 = _mm512_unpacklo_epi32((__m512i)c, (__m512i)d),
            cd1 = _mm512_unpackhi_epi32((__m512i)c, (__m512i)d);
    __m512i t[4] = {_mm512_unpacklo_epi64(ab0, cd0), _mm512_unpackhi_epi64(ab0, cd0),
                    _mm512_unpacklo_epi64(ab1, cd1),
                    _mm512_unpackhi_epi64(ab1, cd1)}; /* quarter q of t[j] is lane 4q+j */
    for (int j = 0; j < 4; j++) {
        _mm_storeu_si128((__m128i *)(p + 4 * j), _mm512_castsi512_si128(t[j]));
        _mm_storeu_si128((__m128i *)(p + 16 + 4 * j), _mm512_extracti32x4_epi32(t[j], 1));
        _mm_storeu_si128((__m128i *)(p + 32 + 4 * j), _mm512_extracti32x4_epi32(t[j], 2));
        _mm_storeu_si128((__m128i *)(p + 48 + 4 * j), _mm512_extracti32x4_epi32(t[j], 3));
    }
}

#elif defined(CPU_AVX2)
#include <immintrin.h>
#define VW 8
typedef __m256 vf;
typedef __m256 vm;
static inline vf v_load(const float *p) { return _mm256_loadu_ps(p); }
static inline void v_store(float *p, vf a) { _mm256_storeu_ps(p, a); }
static inline vf v_set1(float a) { return _mm256_set1_ps(a); }
static inline vf v_add(vf a, vf b) { return _mm256_add_ps(a, b); }
static inline vf v_sub(vf a, vf b) { return _mm256_sub_ps(a, b); }
static inline vf v_mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
static inline vf v_div(vf a, vf b) { return _mm256_div_ps(a, b); }
static inline vf v_max(vf a, vf b) { return _mm256_max_ps(a, b); }
static inline vf v_min(vf a, vf b) { return _mm256_min_ps(a, b); }
static inline vf v_sqrt(vf a) { return _mm256_sqrt_ps(a); }
static inline vf v_abs(vf a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
static inline vf v_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
static inline vf v_fnma(vf a, vf b, vf c) { return _mm256_fnmadd_ps(a, b, c); }
static inline vf v_round(vf a)
{
    return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
static inline vm v_lt(vf a, vf b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
static inline vf v_sel(vm m, vf a, vf b) { return _mm256_blendv_ps(b, a, m); }
static inline float v_hsum(vf a)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
static inline float v_hmax(vf a)
{
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}
static inline vf v_max_abs(vf a, vf b) /* as integers, so that NaN > inf */
{
    return (vf)_mm256_max_epi32((__m256i)a, (__m256i)v_abs(b));
}
static inline float v_hmax_abs(vf a)
{
    __m128i s = _mm_max_epi32(_mm256_castsi256_si128((__m256i)a),
                              _mm256_extracti128_si256((__m256i)a, 1));
    s = _mm_max_epi32(s, _mm_unpackhi_epi64(s, s));
    s = _mm_max_epi32(s, _mm_shuffle_epi32(s, 1));
    return _mm_cvtss_f32((__m128)s);
}
static inline vf v_ldexp(vf a, vf n)
{
    return _mm256_castsi256_ps(
        _mm256_add_epi32(_mm256_castps_si256(a), _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23)));
}
static inline vf v_load_bf16(const uint16_t *p)
{
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
}
static inline vf v_load_f16(const uint16_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}
static inline void v_store_f16(uint16_t *p, vf a)
{
    _mm_storeu_si128((__m128i *)p,
                     _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
typedef uint32_t vu __attribute__((vector_size(32)));
static inline void v_store_low16(uint16_t *p, vu a)
{
    __m256i m = _mm256_and_si256((__m256i)a, _mm256_set1_epi32(0xffff));
    _mm_storeu_si128((__m128i *)p,
                     _mm_packus_epi32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1)));
}
static inline void v_mul_wide(vu *hi, vu *lo, vu a, uint32_t b)
{
    __m256i m = _mm256_set1_epi32((int)b), x = (__m256i)a;
    __m256i even = _mm256_mul_epu32(x, m), odd = _mm256_mul_epu32(_mm256_srli_epi64(x, 32), m);
    *lo = (vu)_mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
    *hi = (vu)_mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
}
static inline void v_store_mixed(uint32_t *p, vu a, vu b, vu c, vu d)
{
    __m256i ab0 = _mm256_unpacklo_epi32((__m256i)a, (__m256i)b),
            ab1 = _mm256_unpackhi_epi32((__m256i)a, (__m256i)b);
    __m256i cd0 = _mm256_unpacklo_epi32((__m256i)c, (__m256i)d),
            cd1 = _mm256_unpackhi_epi32((__m256i)c, (__m256i)d);
    __m256i t[4] = {_mm256_unpacklo_epi64(ab0, cd0), _mm256_unpackhi_epi64(ab0, cd0),
                    _mm256_unpacklo_epi64(ab1, cd1),
                    _mm256_unpackhi_epi64(ab1, cd1)}; /* half h of t[j] is lane 4h+j */
    for (int j = 0; j < 4; j++) {
        _mm_storeu_si128((__m128i *)(p + 4 * j), _mm256_castsi256_si128(t[j]));
        _mm_storeu_si128((__m128i *)(p + 16 + 4 * j), _mm256_extracti128_si256(t[j], 1));
    }
}

#else /* generic: the compiler's own vectors, whatever it makes of them */
#define VW 4
typedef float vf __attribute__((vector_size(16)));
typedef int32_t vm __attribute__((vector_size(16)));
static inline vf v_load(const float *p)
{
    vf a;
    memcpy(&a, p, sizeof a);
    return a;
}
static inline void v_store(float *p, vf a) { memcpy(p, &a, sizeof a); }
static inline vf v_set1(float a) { return (vf){a, a, a, a}; }
static inline vf v_add(vf a, vf b) { return a + b; }
static inline vf v_sub(vf a, vf b) { return a - b; }
static inline vf v_mul(vf a, vf b) { return a * b; }
static inline vf v_div(vf a, vf b) { return a / b; }
static inline vf v_sel(vm m, vf a, vf b) { return (vf)((m & (vm)a) | (~m & (vm)b)); }
static inline vm v_lt(vf a, vf b) { return a < b; }
/* a NaN in b is kept, as everywhere */
static inline vf v_max(vf a, vf b) { return v_sel(b < a, a, b); }
static inline vf v_min(vf a, vf b) { return v_sel(a < b, a, b); }
static inline vf v_sqrt(vf a) { return (vf){sqrtf(a[0]), sqrtf(a[1]), sqrtf(a[2]), sqrtf(a[3])}; }
static inline vf v_abs(vf a) { return (vf)((vm)a & 0x7fffffff); }
#if defined(__FP_FAST_FMAF)
static inline vf v_fma(vf a, vf b, vf c)
{
    for (int i = 0; i < 4; i++) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return c;
}
static inline vf v_fnma(vf a, vf b, vf c) { return v_fma(-a, b, c); }
#else
static inline vf v_fma(vf a, vf b, vf c) { return a * b + c; }
static inline vf v_fnma(vf a, vf b, vf c) { return c - a * b; }
#endif
static inline vf v_round(vf a) { return (a + 12582912.0f) - 12582912.0f; } /* |a| < 2^22 */
static inline float v_hsum(vf a) { return (a[0] + a[2]) + (a[1] + a[3]); }
static inline float v_hmax(vf a) { return fmaxf(fmaxf(a[0], a[2]), fmaxf(a[1], a[3])); }
static inline vf v_max_abs(vf a, vf b) /* as integers, so that NaN > inf */
{
    vf x = v_abs(b);
    return v_sel((vm)a > (vm)x, a, x);
}
static inline float v_hmax_abs(vf a)
{
    vf most = v_max_abs(a, (vf){a[2], a[3], a[0], a[1]});
    return v_max_abs(most, v_set1(most[1]))[0];
}
static inline vf v_ldexp(vf a, vf n)
{
    vm i = {(int32_t)n[0], (int32_t)n[1], (int32_t)n[2], (int32_t)n[3]};
    return (vf)((vm)a + (i << 23));
}
static inline vf v_load_bf16(const uint16_t *p)
{
    vm i = {p[0], p[1], p[2], p[3]};
    return (vf)(i << 16);
}
typedef uint32_t vu __attribute__((vector_size(16)));
static inline vf v_load_f16(const uint16_t *p)
{
    vu h = {p[0], p[1], p[2], p[3]}, mag = h & 0x7fff;
    /* a power of two moves the exponent and renormalises subnormals */
    vu wide = (vu)((vf)(mag << 13) * 0x1p112f);
    vu special = (vu)(mag >= 0x7c00); /* infinities and NaNs: the largest exponent of f32 */
    return (vf)((special & (mag << 13 | 0x7f800000)) | (~special & wide) | (h & 0x8000) << 16);
}
static inline void v_store_f16(uint16_t *p, vf a)
{
    vu u = (vu)a, mag = u & 0x7fffffff;
    vu normal = (mag - 0x38000000 + 0xfff + (mag >> 13 & 1)) >> 13;
    /* below 2^-14: the addition rounds to multiples of 2^-24 */
    vu small = (vu)((vf)mag + 0.5f) - 0x3f000000;
    vu is_small = (vu)(mag < 0x38800000), is_big = (vu)(mag >= 0x477ff000),
       is_nan = (vu)(mag > 0x7f800000);
    vu r = (is_small & small) | (~is_small & normal);
    r = (is_big & 0x7c00) | (~is_big & r);
    r |= (is_nan & 0x0200) | (u >> 16 & 0x8000);
    for (int i = 0; i < 4; i++) p[i] = (uint16_t)r[i];
}
static inline void v_store_low16(uint16_t *p, vu a)
{
    for (int i = 0; i < 4; i++) p[i] = (uint16_t)a[i];
}
static inline void v_mul_wide(vu *hi, vu *lo, vu a, uint32_t b)
{
    for (int i = 0; i < 4; i++) {
        uint64_t w = (uint64_t)a[i] * b;
        (*hi)[i] = (uint32_t)(w >> 32);
        (*lo)[i] = (uint32_t)w;
    }
}
static inline void v_store_mixed(uint32_t *p, vu a, vu b, vu c, vu d)
{
    for (int i = 0; i < 4; i++)
        p[4 * i] = a[i], p[4 * i + 1] = b[i], p[4 * i + 2] = c[i], p[4 * i + 3] = d[i];
}
#endif

/* Integer lanes beside the float ones, on the compiler's own operators; (vi)a takes the bits of
 * a. */
typedef int32_t vi __attribute__((vector_size(4 * VW)));

/* Lanes of a and b, numbered through, as m says.  gcc has this as one operation; for clang it is
 * spelt out. */
#if defined(__clang__)
#define v_shuffle(a, b, m)                                                                         \
    ({                                                                                             \
        __typeof__(a) a_ = (a), b_ = (b), y_;                                                      \
        __typeof__(m) m_ = (m);                                                                    \
        const int n_ = (int)(sizeof y_ / sizeof y_[0]);                                            \
        for (int i_ = 0; i_ < n_; i_++) y_[i_] = m_[i_] < n_ ? a_[m_[i_]] : b_[m_[i_] - n_];       \
        y_;                                                                                        \
    })
#else
#define v_shuffle __builtin_shuffle
#endif

static inline vf v_zero(void) { return v_set1(0.0f); }
static inline vf v_neg(vf a) { return v_sub(v_set1(-0.0f), a); }
static inline vf v_copysign(vf a, vf sign)
{
    return (vf)(((vi)a & 0x7fffffff) | ((vi)sign & (int32_t)0x80000000));
}

/* Rounds to nearest even; a NaN stays one. */
static inline void v_round_bf16(uint16_t *p, vf a)
{
    vu u = (vu)a, nan = (vu)((u & 0x7fffffff) > 0x7f800000);
    vu r = u + 0x7fff + (u >> 16 & 1);
    v_store_low16(p, ((nan & (u | 0x400000)) | (~nan & r)) >> 16);
}
#if defined(CPU_NEON_BF16)
static inline void v_store_bf16(uint16_t *p, vf a) { vst1_bf16((bfloat16_t *)p, vcvt_bf16_f32(a)); }
#elif defined(CPU_AVX512_BF16)
/* The instruction takes subnormals for zeros: the same bits as elsewhere without them. */
static inline void v_store_bf16(uint16_t *p, vf a)
{
    const int subnormal = 0x20;
    if (__builtin_expect(_mm512_fpclass_ps_mask(a, subnormal), 0))
        v_round_bf16(p, a);
    else
        _mm256_storeu_si256((__m256i *)p, (__m256i)_mm512_cvtneps_pbh(a));
}
#else
static inline void v_store_bf16(uint16_t *p, vf a) { v_round_bf16(p, a); }
#endif

/* The first n < VW lanes; the others read as `fill` and are not written. */
#if defined(CPU_AVX512) || defined(CPU_AVX512_BF16)
static inline __mmask16 first_lanes(int64_t n)
{
    if (n >= VW) return 0xffff;
    return n > 0 ? (__mmask16)((1u << n) - 1) : 0;
}
static inline vf v_load_n(const float *p, int64_t n, float fill)
{
    return _mm512_mask_loadu_ps(v_set1(fill), first_lanes(n), p);
}
static inline void v_store_n(float *p, vf a, int64_t n)
{
    _mm512_mask_storeu_ps(p, first_lanes(n), a);
}
#else
static inline vf v_load_n(const float *p, int64_t n, float fill)
{
    float t[VW];
    for (int i = 0; i < VW; i++) t[i] = i < n ? p[i] : fill;
    return v_load(t);
}
static inline void v_store_n(float *p, vf a, int64_t n)
{
    float t[VW];
    v_store(t, a);
    for (int i = 0; i < n && i < VW; i++) p[i] = t[i];
}
#endif

#endif
