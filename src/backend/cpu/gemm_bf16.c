/* gemm_bf16.c - products of bf16, added up in f32, where the processor has instructions for them.
 *
 * NEON: bfmmla multiplies 2 rows of A by 2 columns of B over 4 values of k, so a panel is
 * [k/4][rows or columns][4] and an accumulator is a 2 x 2 block of C.  AVX-512: vdpbf16ps adds two
 * values of k to each lane, so a panel is [k/2][..][2] and the tile is that of f32.  A single row
 * costs as much as two on NEON, which memory hides.  AMX is in gemm_bf16_amx.h.
 *
 * Each of these instructions rounds each step in its own way, so sums differ in the last bits
 * from the widened products of the other levels; per element they are still a function of that
 * row and column alone. */
#if defined(CPU_AMX)
#include "gemm_bf16_amx.h"
#elif defined(CPU_AVX512_BF16)
#include "gemm_bf16_avx512.h"
#else
#include "gemm_transpose.h"
#endif

#if defined(CPU_NEON_BF16)

#define MR 8
#define NR 12
#define G 4 /* values of k side by side */

/* ---- the tile: s[pair of rows][pair of columns], each {00, 01, 10, 11} ---- */

/* In the order written, as in gemm_f32.c.
 * One instruction, a 2 x 2 block of C over 4 values of k:
 *
 *    a = { row i: k0 k1 k2 k3 | row i+1: k0 .. k3 }      s = { i,j  i,j+1  i+1,j  i+1,j+1 }
 *    b = { col j: k0 k1 k2 k3 | col j+1: k0 .. k3 } */
ALWAYS_INLINE float32x4_t mma(float32x4_t s, bfloat16x8_t a, bfloat16x8_t b)
{
    __asm__ volatile("bfmmla %0.4s, %1.8h, %2.8h" : "+w"(s) : "w"(a), "w"(b));
    return s;
}

ALWAYS_INLINE void step(float32x4_t *s, const bfloat16_t *a, const char *b, size_t b_next,
                        const int pairs, const int panels)
{
    bfloat16x8_t x[MR / 2];
#pragma GCC unroll 4
    for (int i = 0; i < pairs; i++) x[i] = vld1q_bf16(a + i * 2 * G);
#pragma GCC unroll 4
    for (int p = 0; p < panels; p++)
#pragma GCC unroll 6
        for (int j = 0; j < NR / 2; j++) {
            bfloat16x8_t w = vld1q_bf16((const bfloat16_t *)(b + (size_t)p * b_next) + j * 2 * G);
#pragma GCC unroll 4
            for (int i = 0; i < pairs; i++) {
                int at = (i * panels + p) * (NR / 2) + j;
                s[at] = mma(s[at], x[i], w);
            }
        }
}

ALWAYS_INLINE void multiply(const gemm_tile *t, const int pairs, const int panels)
{
    const bfloat16_t *a = t->a;
    const char *b = t->b;
    const size_t b_next = t->b_next;
    float32x4_t s[MR / 2 * NR / 2];
#pragma GCC unroll 32
    for (int i = 0; i < pairs * panels * (NR / 2); i++) s[i] = v_zero();
    for (int i = 0; i < t->rows; i++) __builtin_prefetch(t->c + i * t->ldc, 1);
    const char *ahead = t->ahead;
    int64_t k = t->kc;
    for (; k > G; k -= 2 * G) {
        __builtin_prefetch(ahead);
        __builtin_prefetch(ahead + 64);
        ahead += 2 * t->ahead_step;
        step(s, a, b, b_next, pairs, panels);
        step(s, a + MR * G, b + NR * G * 2, b_next, pairs, panels);
        a += 2 * MR * G;
        b += 2 * NR * G * 2;
    }
    if (k > 0) step(s, a, b, b_next, pairs, panels);
#pragma GCC unroll 4
    for (int i = 0; i < pairs; i++) store_row_pair(t, s + i * panels * (NR / 2), i, panels, NR);
}

static void tile(const gemm_tile *t)
{
    switch ((t->rows + 1) / 2 * 8 + t->panels) {
    case 1 * 8 + 1: multiply(t, 1, 1); break;
    case 1 * 8 + 2: multiply(t, 1, 2); break;
    case 1 * 8 + 4: multiply(t, 1, 4); break;
    case 2 * 8 + 1: multiply(t, 2, 1); break;
    case 2 * 8 + 2: multiply(t, 2, 2); break;
    case 3 * 8 + 1: multiply(t, 3, 1); break;
    case 4 * 8 + 1: multiply(t, 4, 1); break;
    default: break;
    }
}

/* ---- panels ---- */

/* to nearest even */
ALWAYS_INLINE void store(uint16_t *p, vf x) { vst1_bf16((bfloat16_t *)p, vcvt_bf16_f32(x)); }

/* bf16 operands are only copied, several rows or columns at a time, so that stores are
 * sequential. */
ALWAYS_INLINE void move_rows(uint16_t *out, const int width, const gemm_src *s, int64_t kc)
{
    const uint16_t *row[NR];
    for (int i = 0; i < width; i++)
        row[i] = (const uint16_t *)s->p + (i < s->n ? i : s->n - 1) * s->ld;
    int64_t k = 0;
    for (; k + 2 * G <= kc; k += 2 * G, out += 2 * G * width)
#pragma GCC unroll 6
        for (int i = 0; i < width; i += 2) {
            uint64x2_t x = vreinterpretq_u64_u16(vld1q_u16(row[i] + k)),
                       y = vreinterpretq_u64_u16(vld1q_u16(row[i + 1] + k));
            vst1q_u16(out + i * G, vreinterpretq_u16_u64(vzip1q_u64(x, y)));
            vst1q_u16(out + (width + i) * G, vreinterpretq_u16_u64(vzip2q_u64(x, y)));
        }
    for (; k < kc; k += G)
        for (int i = 0; i < width; i++, out += G) {
            memset(out, 0, G * sizeof *out);
            memcpy(out, row[i] + k, (size_t)(kc - k < G ? kc - k : G) * sizeof *out);
        }
}

/* Four values of k of eight columns, side by side for each column. */
ALWAYS_INLINE void transpose_eight(uint16_t *out, const uint16_t *from, int64_t ld)
{
    uint16x8_t x[G];
#pragma GCC unroll 4
    for (int j = 0; j < G; j++) x[j] = vld1q_u16(from + j * ld);
    uint32x4_t low = vreinterpretq_u32_u16(vzip1q_u16(x[0], x[1])),
               high = vreinterpretq_u32_u16(vzip1q_u16(x[2], x[3]));
    vst1q_u16(out, vreinterpretq_u16_u32(vzip1q_u32(low, high)));
    vst1q_u16(out + 2 * G, vreinterpretq_u16_u32(vzip2q_u32(low, high)));
    low = vreinterpretq_u32_u16(vzip2q_u16(x[0], x[1]));
    high = vreinterpretq_u32_u16(vzip2q_u16(x[2], x[3]));
    vst1q_u16(out + 4 * G, vreinterpretq_u16_u32(vzip1q_u32(low, high)));
    vst1q_u16(out + 6 * G, vreinterpretq_u16_u32(vzip2q_u32(low, high)));
}

ALWAYS_INLINE void transpose_some(uint16_t *out, const gemm_src *s, int64_t k, int64_t kc, int i)
{
    uint16x4_t x[G];
    for (int j = 0; j < G; j++) {
        const uint16_t *from = (const uint16_t *)s->p + (k + j) * s->ld + i;
        uint16_t some[VW] = {0};
        for (int c = 0; c < VW && i + c < s->n && k + j < kc && i + VW > s->n; c++)
            some[c] = from[c];
        x[j] = i + VW <= s->n && k + j < kc ? vld1_u16(from) : vld1_u16(some);
    }
    uint16x4x2_t low = vzip_u16(x[0], x[1]), high = vzip_u16(x[2], x[3]);
    for (int h = 0; h < 2; h++) {
        uint32x2x2_t both = vzip_u32(vreinterpret_u32_u16(low.val[h]),
                                     vreinterpret_u32_u16(high.val[h]));
        vst1_u16(out + 2 * h * G, vreinterpret_u16_u32(both.val[0]));
        vst1_u16(out + (2 * h + 1) * G, vreinterpret_u16_u32(both.val[1]));
    }
}

ALWAYS_INLINE void move_columns(uint16_t *out, const int width, const gemm_src *s, int64_t kc)
{
    for (int64_t k = 0; k < kc; k += G, out += width * G) {
        int i = 0;
        for (; i + 8 <= width && i + 8 <= s->n && k + G <= kc; i += 8)
            transpose_eight(out + i * G, (const uint16_t *)s->p + k * s->ld + i, s->ld);
        for (; i < width; i += VW) transpose_some(out + i * G, s, k, kc, i);
    }
}

ALWAYS_INLINE void along_k(uint16_t *out, const int width, const gemm_src *s, int64_t kc,
                           const fv_dtype t)
{
    for (int i = 0; i < width; i++) {
        int64_t at = (i < s->n ? i : s->n - 1) * s->ld, end = at + kc;
        uint16_t *to = out + i * G;
        for (; at + G <= end; at += G, to += width * G) store(to, v_load_as(s->p, at, t));
        if (at < end) store(to, v_load_as_n(s->p, at, end - at, t));
    }
}

ALWAYS_INLINE void across(uint16_t *out, const int width, const gemm_src *s, int64_t kc,
                          const fv_dtype t)
{
    for (int64_t k = 0; k < kc; k += G)
        for (int i = 0; i < width; i += VW) {
            vf x[G];
            int64_t n = s->n - i;
            for (int j = 0; j < G; j++) {
                int64_t from = (k + j) * s->ld + i;
                x[j] = k + j >= kc || n <= 0 ? v_zero()
                       : n >= VW             ? v_load_as(s->p, from, t)
                                             : v_load_as_n(s->p, from, n, t);
            }
            transpose(x);
            for (int j = 0; j < VW; j++) store(out + (k / G * width + i + j) * G, x[j]);
        }
}

/*      x (two rows)      k0 k1 k2 k3 k4 k5 k6 k7         of row i, then of row i+1
 *      panel, group 0    i: k0..k3   i+1: k0..k3   i+2: ...     [k/4][width][4]
 *      panel, group 1    i: k4..k7   i+1: k4..k7   ...
 *
 * k beyond kc is filled with zeros, which add nothing; rows beyond n repeat the last, and their
 * sums are not stored. */
ALWAYS_INLINE void pack(void *out, const int width, const gemm_src *s, int64_t kc)
{
    if (s->along_k && s->dtype == FV_BF16)
        move_rows(out, width, s, kc);
    else if (s->along_k && s->dtype == FV_F16)
        along_k(out, width, s, kc, FV_F16);
    else if (s->along_k)
        along_k(out, width, s, kc, FV_F32);
    else if (s->dtype == FV_BF16)
        move_columns(out, width, s, kc);
    else if (s->dtype == FV_F16)
        across(out, width, s, kc, FV_F16);
    else
        across(out, width, s, kc, FV_F32);
}

#define A_WIDTH MR
static void pack_a(void *out, const gemm_src *a, int64_t kc) { pack(out, A_WIDTH, a, kc); }
static void pack_b(void *out, const gemm_src *b, int64_t kc) { pack(out, NR, b, kc); }

#elif defined(CPU_AVX512_BF16) && !defined(CPU_AMX)

#define MR 14
#define NR (2 * VW)
#define A_WIDTH 16

/* ---- the tile: as in gemm_f32.c, two values of k at a time ---- */

ALWAYS_INLINE __m512bh pair(const void *a) /* two values of one row, for all lanes */
{
    int32_t bits;
    memcpy(&bits, a, sizeof bits);
    return (__m512bh)_mm512_set1_epi32(bits);
}

ALWAYS_INLINE void step(vf *s, const uint16_t *a, const char *b, size_t b_next, const int rows,
                        const int panels)
{
#pragma GCC unroll 4
    for (int p = 0; p < panels; p++) {
        const char *from = b + (size_t)p * b_next;
        __m512bh w0 = (__m512bh)_mm512_loadu_si512(from),
                 w1 = (__m512bh)_mm512_loadu_si512(from + 64);
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++) {
            vf *at = s + (i * panels + p) * 2;
            at[0] = _mm512_dpbf16_ps(at[0], pair(a + i * 2), w0);
            at[1] = _mm512_dpbf16_ps(at[1], pair(a + i * 2), w1);
        }
    }
}

ALWAYS_INLINE void multiply(const gemm_tile *t, const int rows, const int panels)
{
    const uint16_t *a = t->a;
    const char *b = t->b;
    vf s[MR * 2], alpha = v_set1(t->alpha);
#pragma GCC unroll 32
    for (int i = 0; i < rows * panels * 2; i++) s[i] = v_zero();
    const char *ahead = t->ahead;
    for (int64_t k = t->kc; k > 0; k -= 2, a += A_WIDTH * 2, b += NR * 4) {
        __builtin_prefetch(ahead);
        ahead += t->ahead_step / 2;
        step(s, a, b, t->b_next, rows, panels);
    }
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 8
        for (int j = 0; j < panels * 2; j++) {
            float *c = t->c + i * t->ldc + j / 2 * t->c_next + j % 2 * VW;
            v_store(c, v_fma(alpha, s[i * panels * 2 + j], t->add ? v_load(c) : v_zero()));
        }
}

static void tile(const gemm_tile *t)
{
    switch (t->rows * 8 + t->panels) {
    case 1 * 8 + 1: multiply(t, 1, 1); break;
    case 1 * 8 + 2: multiply(t, 1, 2); break;
    case 1 * 8 + 4: multiply(t, 1, 4); break;
    case 2 * 8 + 1: multiply(t, 2, 1); break;
    case 2 * 8 + 2: multiply(t, 2, 2); break;
    case 2 * 8 + 4: multiply(t, 2, 4); break;
    case 3 * 8 + 1: multiply(t, 3, 1); break;
    case 3 * 8 + 2: multiply(t, 3, 2); break;
    case 3 * 8 + 4: multiply(t, 3, 4); break;
    case 4 * 8 + 1: multiply(t, 4, 1); break;
    case 4 * 8 + 2: multiply(t, 4, 2); break;
    case 5 * 8 + 1: multiply(t, 5, 1); break;
    case 5 * 8 + 2: multiply(t, 5, 2); break;
    case 6 * 8 + 1: multiply(t, 6, 1); break;
    case 6 * 8 + 2: multiply(t, 6, 2); break;
    case 7 * 8 + 1: multiply(t, 7, 1); break;
    case 7 * 8 + 2: multiply(t, 7, 2); break;
    case 8 * 8 + 1: multiply(t, 8, 1); break;
    case 9 * 8 + 1: multiply(t, 9, 1); break;
    case 10 * 8 + 1: multiply(t, 10, 1); break;
    case 11 * 8 + 1: multiply(t, 11, 1); break;
    case 12 * 8 + 1: multiply(t, 12, 1); break;
    case 13 * 8 + 1: multiply(t, 13, 1); break;
    case 14 * 8 + 1: multiply(t, 14, 1); break;
    default: break;
    }
}

static void pack_a(void *out, const gemm_src *a, int64_t kc) { pack_pairs(out, A_WIDTH, a, kc); }
static void pack_b(void *out, const gemm_src *b, int64_t kc) { pack_pairs(out, NR, b, kc); }

#endif

/* On AMX the sums of C so far go on in the tiles, so that a run may have any length and no bit
 * changes: 16 KiB of a panel and 16 KiB of a strip stay in an L1 of 48 KiB (1.24 TFLOP/s a core
 * over 1,024 rows; 1.14 with 384, 1.21 with 192).  Many threads, which share both operands, wait
 * more for memory than for tiles: there sums that go to memory and back less often are worth more
 * (16 threads 1.13 to 1.19 times as fast). */
#if defined(CPU_AMX)
#define BF16_RUN 256
#define BF16_LONG_RUN 768
#define OF_TILES                                                                                   \
    , .continues = true, .in_place = true, .plain_rows = BF16_PLAIN_ROWS, .enter = enter,          \
      .leave = leave
#else
#define BF16_RUN FV_GEMM_KC
#define OF_TILES
#endif

#define KIND(length)                                                                               \
    {                                                                                              \
        .mr = MR, .nr = NR, .run = (length), .a_unit = GEMM_UNIT * A_WIDTH * 2,                    \
        .b_unit = GEMM_UNIT * NR * 2, .pack_a = pack_a, .pack_b = pack_b, .tile = tile OF_TILES    \
    }

#if defined(MR)
const gemm_kind *NAME(gemm_bf16)(void)
{
    static const gemm_kind kind = KIND(BF16_RUN);
    return &kind;
}
#else
const gemm_kind *NAME(gemm_bf16)(void) { return NULL; }
#endif

#if defined(CPU_AMX)
const gemm_kind *NAME(gemm_bf16_long)(void)
{
    static const gemm_kind kind = KIND(BF16_LONG_RUN);
    return &kind;
}
#else
const gemm_kind *NAME(gemm_bf16_long)(void) { return NULL; }
#endif
