/* gemm_f32.c - products in f32: tiles of vectors that stay in registers for a whole run of k.
 *
 * Panels: A as [k][A_WIDTH], B as [k][NR], so a step of k loads NV vectors of B, broadcasts each
 * value of A and does MR * NV multiply-adds.  MR * NV accumulators and what feeds them fill the
 * registers of the level: 24 of 32 on NEON and 28 of 32 on AVX-512 (both want at least 16 in
 * flight), 12 of 16 on AVX2.  Fewer rows take several panels of B side by side instead: a single
 * row is bound by memory, which needs four streams a core.
 *
 * B may also be held as bf16 or f16 and is widened on the way; then A is rounded to bf16 in the
 * same way as where there are instructions for bf16 products. */
#include "gemm.h"

#if defined(CPU_NEON) || defined(CPU_NEON_BF16)
#include "gemm_neon.h"
#define BY_LANE 1 /* multiplies by a lane of a register */
#define MR 8
#define NV NEON_NV
#define A_WIDTH NEON_A
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
/*    level     MR x NR   accumulators   registers left for
 *    neon       8 x 12      24 of 32    3 of B, 2 of A (and 3 of the next B)
 *    avx512    14 x 32      28 of 32    2 of B, 1 broadcast
 *    avx2       6 x 16      12 of 16    2 of B, 1 broadcast */
#define NR (NV * VW)
#define STEPS 4 /* of k in one turn of the loop, NEON_STEPS on NEON: 7 % over one */

/* The values of A for one k, ready to be broadcast.  NEON multiplies by a lane of a register, so
 * the rows are loaded as vectors; elsewhere a broadcast is a load of its own and costs nothing. */
#if defined(BY_LANE)
typedef neon_column column;
ALWAYS_INLINE column load_a(const float *a, const int rows)
{
    column c;
    c.v[0] = v_load(a);
    c.v[1] = rows > VW ? v_load(a + VW) : c.v[0];
    return c;
}
ALWAYS_INLINE vf fma_row(vf b, column a, const int row, vf sum)
{
    return neon_fma_row(b, a, row, sum);
}
#else
typedef const float *column;
ALWAYS_INLINE column load_a(const float *a, const int rows)
{
    (void)rows;
    return a;
}
ALWAYS_INLINE vf fma_row(vf b, column a, const int row, vf sum)
{
    return v_fma(v_set1(a[row]), b, sum);
}
#endif

/* s += (column of A) (row of B) for one k.  s[] is only ever indexed by constants and so lives in
 * registers. */
ALWAYS_INLINE void step(vf *s, const float *a, const char *b, size_t b_next, const int rows,
                        const int panels, const fv_dtype bt)
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
            for (int j = 0; j < NV; j++)
                s[(i * panels + p) * NV + j] = fma_row(w[j], col, i, s[(i * panels + p) * NV + j]);
    }
}

/* n times four steps. */
ALWAYS_INLINE void steps(vf *s, const gemm_tile *t, int64_t n, const int rows, const int panels,
                         const fv_dtype bt)
{
    const int64_t b_step = NR * (bt == FV_F32 ? 4 : 2);
    const float *a = t->a;
    const char *b = t->b, *ahead = t->ahead, *also = t->also;
    for (; n; n--) {
        __builtin_prefetch(ahead);
        __builtin_prefetch(ahead + 64);
        if (VW == 16) __builtin_prefetch(also, 0, 2); /* on Neoverse V1 it costs 2 % */
        ahead += t->ahead_step;
        also += t->also_step;
#pragma GCC unroll 4
        for (int i = 0; i < STEPS; i++)
            step(s, a + i * A_WIDTH, b + i * b_step, t->b_next, rows, panels, bt);
        a += STEPS * A_WIDTH;
        b += STEPS * b_step;
    }
}

/* c = alpha * s + (add ? c : 0)
 * alpha multiplies the sum of a run, not the operands: the products keep full precision, and
 * alpha = 1 is exact.  The first run of k overwrites C, later ones add to it, in order. */
ALWAYS_INLINE void store_tile(const vf *s, const gemm_tile *t, const int rows, const int panels,
                              const bool add)
{
    vf scale = v_set1(t->alpha);
    const int vectors = panels * NV;
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 16
        for (int j = 0; j < vectors; j++) {
            float *c = t->c + i * t->ldc + j / NV * t->c_next + j % NV * VW;
            v_store(c, v_fma(scale, s[i * vectors + j], add ? v_load(c) : v_zero()));
        }
}

/* A tile of a size known to the compiler.
 * C is prefetched before the loop over k: by the time the sums are complete its lines have
 * arrived. */
ALWAYS_INLINE void multiply(const gemm_tile *t, const int rows, const int panels, const fv_dtype bt)
{
    const int64_t b_step = NR * (bt == FV_F32 ? 4 : 2), n = t->kc / STEPS;
    vf s[MR * NV];
#pragma GCC unroll 64
    for (int i = 0; i < rows * panels * NV; i++) s[i] = v_zero();
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) __builtin_prefetch(t->c + i * t->ldc, 1);
#if defined(BY_LANE)
    if (bt == FV_F32 && panels == 1 && rows >= NEON_PACED && n)
        neon_paced(s, t->a, t->b, n, t->ahead, t->ahead_step, true, rows);
    else
#endif
        steps(s, t, n, rows, panels, bt);
    const float *a = (const float *)t->a + n * STEPS * A_WIDTH;
    const char *b = (const char *)t->b + n * STEPS * b_step;
    for (int64_t k = t->kc % STEPS; k; k--, a += A_WIDTH, b += b_step)
        step(s, a, b, t->b_next, rows, panels, bt);
    if (t->add)
        store_tile(s, t, rows, panels, true);
    else
        store_tile(s, t, rows, panels, false);
}

#if !defined(__OPTIMIZE__) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
/* One tile of any size: instrumented, the many below would take minutes to compile. */
static void tile(const gemm_tile *t, const fv_dtype bt) { multiply(t, t->rows, t->panels, bt); }
#else
#include "gemm_tile_sizes.h"
ALWAYS_INLINE void tile(const gemm_tile *t, const fv_dtype bt) { multiply_sized(t, bt); }
#endif

static void tile_f32(const gemm_tile *t) { tile(t, FV_F32); }
static void tile_bf16(const gemm_tile *t) { tile(t, FV_BF16); }
static void tile_f16(const gemm_tile *t) { tile(t, FV_F16); }

/* ---- panels ---- */

static void pack_a(void *out, const gemm_src *a, int64_t kc)
{
    NAME(gemm_pack)(out, A_WIDTH, a, kc, false);
}
static void pack_a_bf16(void *out, const gemm_src *a, int64_t kc)
{
    NAME(gemm_pack)(out, A_WIDTH, a, kc, true);
}
static void pack_b(void *out, const gemm_src *b, int64_t kc)
{
    NAME(gemm_pack)(out, NR, b, kc, false);
}

/* Through a panel of f32: packing a weight into 16 bits happens once and need not be fast. */
static void pack_b_16(void *out, const gemm_src *b, int64_t kc, fv_dtype to)
{
    float panel[GEMM_UNIT * NR];
    gemm_src part = *b;
    for (int64_t k = 0; k < kc; k += GEMM_UNIT) {
        int64_t n = kc - k < GEMM_UNIT ? kc - k : GEMM_UNIT;
        part.p = (const char *)b->p +
                 (size_t)(b->along_k ? k : k * b->ld) * fv_dtype_size(b->dtype);
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
static void pack_b_bf16(void *out, const gemm_src *b, int64_t kc)
{
    pack_b_16(out, b, kc, FV_BF16);
}
static void pack_b_f16(void *out, const gemm_src *b, int64_t kc) { pack_b_16(out, b, kc, FV_F16); }

#define A_UNIT (GEMM_UNIT * A_WIDTH * 4)
#define B_UNIT(size) (GEMM_UNIT * NR * (size))

const gemm_kind *NAME(gemm_f32)(fv_dtype bt)
{
    static const gemm_kind f32 = {.mr = MR,
                                  .nr = NR,
                                  .run = FV_GEMM_KC,
                                  .a_unit = A_UNIT,
                                  .b_unit = B_UNIT(4),
                                  .pack_a = pack_a,
                                  .pack_b = pack_b,
                                  .tile = tile_f32};
    static const gemm_kind bf16 = {.mr = MR,
                                   .nr = NR,
                                   .run = FV_GEMM_KC,
                                   .a_unit = A_UNIT,
                                   .b_unit = B_UNIT(2),
                                   .pack_a = pack_a_bf16,
                                   .pack_b = pack_b_bf16,
                                   .tile = tile_bf16};
    static const gemm_kind f16 = {.mr = MR,
                                  .nr = NR,
                                  .run = FV_GEMM_KC,
                                  .a_unit = A_UNIT,
                                  .b_unit = B_UNIT(2),
                                  .pack_a = pack_a,
                                  .pack_b = pack_b_f16,
                                  .tile = tile_f16};
    return bt == FV_BF16 ? &bf16 : bt == FV_F16 ? &f16 : &f32;
}
