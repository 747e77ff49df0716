/* gemm_f32.c - products in f32: tiles of vectors that stay in registers for a whole run of k.
 *
 * Panels: A as [k][A_WIDTH], B as [k][NR], so a step of k loads NV vectors of B, broadcasts each value of A and does
 * MR * NV multiply-adds.  MR * NV accumulators and what feeds them fill the registers of the level: 24 of 32 on
 * NEON and 28 of 32 on AVX-512 (both want at least 16 in flight), 12 of 16 on AVX2.  Fewer rows take several
 * panels of B side by side instead: one row alone is a matter of memory, and memory wants four streams a core.
 *
 * B may also be held as bf16 or f16 and is widened on the way; then A is rounded to bf16 in the same way as
 * where there are instructions for bf16 products. */
#include "gemm.h"

#if defined(CPU_NEON) || defined(CPU_NEON_BF16)
#define MR 8
#define NV 3
#define A_WIDTH 8
#elif defined(CPU_AVX512) || defined(CPU_AVX512_BF16)
#define MR 14
#define NV 2
#define A_WIDTH 16
#elif defined(CPU_AVX2)
#define MR 6
#define NV 2
#define A_WIDTH 8
#else
#define MR 4
#define NV 2
#define A_WIDTH 4
#endif
#define NR (NV * VW)
#define STEPS 4 /* of k in one turn of the loop: 7 % over one */

/* The values of A for one k, ready to be broadcast.  NEON multiplies by a lane of a register, so the rows are
 * loaded as vectors; elsewhere a broadcast is a load of its own and costs nothing. */
#if defined(CPU_NEON) || defined(CPU_NEON_BF16)
typedef struct {
    vf v[A_WIDTH / VW];
} column;
INLINE column load_a(const float *a, const int rows)
{
    column c;
    c.v[0] = v_load(a);
    c.v[1] = rows > VW ? v_load(a + VW) : c.v[0];
    return c;
}
/* As volatile assembly because then they stay in the order written: the same accumulators in the same order at every
 * step, four to a cycle.  Left to gcc 12 the order differs from step to step, which costs Neoverse a fifth. */
INLINE vf fma_row(vf b, column a, const int row, vf sum)
{
    switch (row % VW) { /* a constant once the loops are unrolled */
    case 0: __asm__ volatile("fmla %0.4s, %1.4s, %2.s[0]" : "+w"(sum) : "w"(b), "w"(a.v[row / VW])); break;
    case 1: __asm__ volatile("fmla %0.4s, %1.4s, %2.s[1]" : "+w"(sum) : "w"(b), "w"(a.v[row / VW])); break;
    case 2: __asm__ volatile("fmla %0.4s, %1.4s, %2.s[2]" : "+w"(sum) : "w"(b), "w"(a.v[row / VW])); break;
    default: __asm__ volatile("fmla %0.4s, %1.4s, %2.s[3]" : "+w"(sum) : "w"(b), "w"(a.v[row / VW]));
    }
    return sum;
}
#else
typedef const float *column;
INLINE column load_a(const float *a, const int rows)
{
    (void)rows;
    return a;
}
INLINE vf fma_row(vf b, column a, const int row, vf sum) { return v_fma(v_set1(a[row]), b, sum); }
#endif

/* s += (column of A) (row of B) for one k.  s[] is only ever indexed by constants and so lives in registers. */
INLINE void step(vf *s, const float *a, const char *b, size_t b_next, const int rows, const int panels, const fv_dtype bt)
{
    column col = load_a(a, rows);
#pragma GCC unroll 4
    for (int p = 0; p < panels; p++) {
        vf w[NV];
#pragma GCC unroll 4
        for (int j = 0; j < NV; j++) w[j] = v_load_as(b + (size_t)p * b_next, j * VW, bt);
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
            for (int j = 0; j < NV; j++) s[(i * panels + p) * NV + j] = fma_row(w[j], col, i, s[(i * panels + p) * NV + j]);
    }
}

/* A tile of a size known to the compiler. */
INLINE void multiply(const gemm_tile *t, const int rows, const int panels, const fv_dtype bt)
{
    const int64_t b_step = NR * (bt == FV_F32 ? 4 : 2);
    const size_t b_next = t->b_next;
    const char *b = t->b;
    const float *a = t->a;
    vf s[MR * NV];
#pragma GCC unroll 64
    for (int i = 0; i < rows * panels * NV; i++) s[i] = v_zero();
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) __builtin_prefetch(t->c + i * t->ldc, 1);
    const char *ahead = t->ahead;
    int64_t k = t->kc;
    for (; k >= STEPS; k -= STEPS) {
        __builtin_prefetch(ahead);
        __builtin_prefetch(ahead + 64);
        ahead += t->ahead_step;
#pragma GCC unroll 4
        for (int i = 0; i < STEPS; i++) step(s, a + i * A_WIDTH, b + i * b_step, b_next, rows, panels, bt);
        a += STEPS * A_WIDTH;
        b += STEPS * b_step;
    }
    for (; k; k--, a += A_WIDTH, b += b_step) step(s, a, b, b_next, rows, panels, bt);
    vf alpha = v_set1(t->alpha);
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 16
        for (int j = 0; j < panels * NV; j++) {
            float *c = t->c + i * t->ldc + j * VW;
            v_store(c, v_fma(alpha, s[i * panels * NV + j], t->add ? v_load(c) : v_zero()));
        }
}

#if !defined(__OPTIMIZE__) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
/* One tile of any size: instrumented, the many below would take minutes to compile. */
static void tile(const gemm_tile *t, const fv_dtype bt) { multiply(t, t->rows, t->panels, bt); }
#else
INLINE void tile(const gemm_tile *t, const fv_dtype bt)
{
    switch (t->rows * 8 + t->panels) {
    case 1 * 8 + 1: multiply(t, 1, 1, bt); break;
    case 1 * 8 + 2: multiply(t, 1, 2, bt); break;
    case 1 * 8 + 4: multiply(t, 1, 4, bt); break;
    case 2 * 8 + 1: multiply(t, 2, 1, bt); break;
    case 2 * 8 + 2: multiply(t, 2, 2, bt); break;
    case 3 * 8 + 1: multiply(t, 3, 1, bt); break;
    case 4 * 8 + 1: multiply(t, 4, 1, bt); break;
#if MR > 4
    case 3 * 8 + 2: multiply(t, 3, 2, bt); break;
    case 5 * 8 + 1: multiply(t, 5, 1, bt); break;
    case 6 * 8 + 1: multiply(t, 6, 1, bt); break;
#endif
#if MR > 6
    case 2 * 8 + 4: multiply(t, 2, 4, bt); break;
    case 4 * 8 + 2: multiply(t, 4, 2, bt); break;
    case 7 * 8 + 1: multiply(t, 7, 1, bt); break;
    case 8 * 8 + 1: multiply(t, 8, 1, bt); break;
#endif
#if MR > 8
    case 3 * 8 + 4: multiply(t, 3, 4, bt); break;
    case 5 * 8 + 2: multiply(t, 5, 2, bt); break;
    case 6 * 8 + 2: multiply(t, 6, 2, bt); break;
    case 7 * 8 + 2: multiply(t, 7, 2, bt); break;
    case 9 * 8 + 1: multiply(t, 9, 1, bt); break;
    case 10 * 8 + 1: multiply(t, 10, 1, bt); break;
    case 11 * 8 + 1: multiply(t, 11, 1, bt); break;
    case 12 * 8 + 1: multiply(t, 12, 1, bt); break;
    case 13 * 8 + 1: multiply(t, 13, 1, bt); break;
    case 14 * 8 + 1: multiply(t, 14, 1, bt); break;
#endif
    default: break;
    }
}
#endif

static void tile_f32(const gemm_tile *t) { tile(t, FV_F32); }
static void tile_bf16(const gemm_tile *t) { tile(t, FV_BF16); }
static void tile_f16(const gemm_tile *t) { tile(t, FV_F16); }

/* ---- panels ---- */

static void pack_a(void *out, const gemm_src *a, int64_t kc) { NAME(gemm_pack)(out, A_WIDTH, a, kc, false); }
static void pack_a_bf16(void *out, const gemm_src *a, int64_t kc) { NAME(gemm_pack)(out, A_WIDTH, a, kc, true); }
static void pack_b(void *out, const gemm_src *b, int64_t kc) { NAME(gemm_pack)(out, NR, b, kc, false); }

/* Through a panel of f32: packing a weight into 16 bits happens once and need not be fast. */
static void pack_b_16(void *out, const gemm_src *b, int64_t kc, fv_dtype to)
{
    float panel[GEMM_UNIT * NR];
    gemm_src part = *b;
    for (int64_t k = 0; k < kc; k += GEMM_UNIT) {
        int64_t n = kc - k < GEMM_UNIT ? kc - k : GEMM_UNIT;
        part.p = (const char *)b->p + (size_t)(b->along_k ? k : k * b->ld) * fv_dtype_size(b->dtype);
        NAME(gemm_pack)(panel, NR, &part, n, false);
        for (int64_t i = 0; i < n * NR; i += VW) {
            uint16_t *to16 = (uint16_t *)out + k * NR + i;
            if (to == FV_BF16)
                v_store_bf16(to16, v_load(panel + i));
            else
                v_store_f16(to16, v_load(panel + i));
        }
    }
}
static void pack_b_bf16(void *out, const gemm_src *b, int64_t kc) { pack_b_16(out, b, kc, FV_BF16); }
static void pack_b_f16(void *out, const gemm_src *b, int64_t kc) { pack_b_16(out, b, kc, FV_F16); }

#define A_UNIT (GEMM_UNIT * A_WIDTH * 4)
#define B_UNIT(size) (GEMM_UNIT * NR * (size))

const gemm_kind *NAME(gemm_f32)(fv_dtype bt)
{
    static const gemm_kind f32 = {MR, NR, FV_GEMM_KC, A_UNIT, B_UNIT(4), 0, 0, pack_a, pack_b, tile_f32};
    static const gemm_kind bf16 = {MR, NR, FV_GEMM_KC, A_UNIT, B_UNIT(2), 0, 0, pack_a_bf16, pack_b_bf16, tile_bf16};
    static const gemm_kind f16 = {MR, NR, FV_GEMM_KC, A_UNIT, B_UNIT(2), 0, 0, pack_a, pack_b_f16, tile_f16};
    return bt == FV_BF16 ? &bf16 : bt == FV_F16 ? &f16 : &f32;
}
