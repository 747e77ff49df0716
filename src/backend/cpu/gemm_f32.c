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
#define BY_LANE 1 /* multiplies by a lane of a register */
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
/*    level     MR x NR   accumulators   registers left for
 *    neon       8 x 12      24 of 32    3 of B, 2 of A (and 3 of the next B)
 *    avx512    14 x 32      28 of 32    2 of B, 1 broadcast
 *    avx2       6 x 16      12 of 16    2 of B, 1 broadcast */
#define NR (NV * VW)
#define STEPS 4 /* of k in one turn of the loop: 7 % over one */

/* The values of A for one k, ready to be broadcast.  NEON multiplies by a lane of a register, so
 * the rows are loaded as vectors; elsewhere a broadcast is a load of its own and costs nothing. */
#if defined(BY_LANE)
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
/* As volatile assembly because then they stay in the order written: the same accumulators in the
 * same order at every step, four to a cycle.  Left to gcc 12 the order differs from step to step,
 * which costs Neoverse a fifth. */
INLINE vf fma_row(vf b, column a, const int row, vf sum)
{
    switch (row % VW) { /* a constant once the loops are unrolled */
    case 0:
        __asm__ volatile("fmla %0.4s, %1.4s, %2.s[0]" : "+w"(sum) : "w"(b), "w"(a.v[row / VW]));
        break;
    case 1:
        __asm__ volatile("fmla %0.4s, %1.4s, %2.s[1]" : "+w"(sum) : "w"(b), "w"(a.v[row / VW]));
        break;
    case 2:
        __asm__ volatile("fmla %0.4s, %1.4s, %2.s[2]" : "+w"(sum) : "w"(b), "w"(a.v[row / VW]));
        break;
    default:
        __asm__ volatile("fmla %0.4s, %1.4s, %2.s[3]" : "+w"(sum) : "w"(b), "w"(a.v[row / VW]));
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

/* s += (column of A) (row of B) for one k.  s[] is only ever indexed by constants and so lives in
 * registers. */
INLINE void step(vf *s, const float *a, const char *b, size_t b_next, const int rows,
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
INLINE void steps(vf *s, const gemm_tile *t, int64_t n, const int rows, const int panels,
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

#if defined(BY_LANE)
/* Four steps of k, where the operands of each are loaded during the one before, one behind each row
 * of multiply-adds: so the pipes get four in every cycle (82 of 83 GFLOP/s on Neoverse V1 from the
 * first cache).  Left to gcc the loads of a step stand together, in pairs, and the multiply-adds
 * wait for them (78).  w and col come in loaded; last: nothing comes after. */
INLINE vf load_here(const float *p)
{
    vf x;
    __asm__ volatile("ldr %q0, %1" : "=w"(x) : "m"(*(const float(*)[VW])p));
    return x;
}
INLINE void paced(vf *s, vf *w, column *col, const float *a, const float *b, const char *ahead,
                  const int rows, const bool last)
{
#pragma GCC unroll 4
    for (int k = 1; k <= STEPS; k++) {
        const bool load = !last || k < STEPS;
        vf next[NV];
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++) {
#pragma GCC unroll 4
            for (int j = 0; j < NV; j++) s[i * NV + j] = fma_row(w[j], *col, i, s[i * NV + j]);
            if (load && i < NV) next[i] = load_here(b + k * NR + i * VW);
            if (load && i == VW - 1) col->v[0] = load_here(a + k * A_WIDTH);
            if (k == 1 && (i == VW || i == VW + 1)) __builtin_prefetch(ahead + (i - VW) * 64);
        }
        if (!load) return;
        col->v[1] = load_here(a + k * A_WIDTH + VW);
#pragma GCC unroll 4
        for (int j = 0; j < NV; j++) w[j] = next[j];
    }
}

/* n > 0 times four steps, of a tile that has rows enough for all those loads. */
#define ROWS_TO_PACE 6
INLINE void paced_steps(vf *s, const gemm_tile *t, int64_t n, const int rows)
{
    const float *a = t->a, *b = t->b;
    const char *ahead = t->ahead;
    vf w[NV];
    column col = {{load_here(a), load_here(a + VW)}};
#pragma GCC unroll 4
    for (int j = 0; j < NV; j++) w[j] = load_here(b + j * VW);
    while (--n) {
        paced(s, w, &col, a, b, ahead, rows, false);
        a += STEPS * A_WIDTH;
        b += STEPS * NR;
        ahead += t->ahead_step;
    }
    paced(s, w, &col, a, b, ahead, rows, true);
}
#endif

/* c = alpha * s + (add ? c : 0)
 * alpha multiplies the sum of a run, not the operands: the products keep full precision, and
 * alpha = 1 is exact.  The first run of k overwrites C, later ones add to it, in order. */
INLINE void store_tile(const vf *s, const gemm_tile *t, const int rows, const int panels,
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
INLINE void multiply(const gemm_tile *t, const int rows, const int panels, const fv_dtype bt)
{
    const int64_t b_step = NR * (bt == FV_F32 ? 4 : 2), n = t->kc / STEPS;
    vf s[MR * NV];
#pragma GCC unroll 64
    for (int i = 0; i < rows * panels * NV; i++) s[i] = v_zero();
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) __builtin_prefetch(t->c + i * t->ldc, 1);
#if defined(BY_LANE)
    if (bt == FV_F32 && panels == 1 && rows >= ROWS_TO_PACE && n)
        paced_steps(s, t, n, rows);
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
INLINE void tile(const gemm_tile *t, const fv_dtype bt) { multiply_sized(t, bt); }
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
