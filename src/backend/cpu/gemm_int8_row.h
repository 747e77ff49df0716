/* gemm_int8_row.h - a whole run of an integer product with one scale for each row, for each level's
 * instructions.
 *
 *     s[i][j] = (float)(sum_k a[i][k] b[k][j]) * (scale_a[i] * scale_b[j])
 *
 * The tiles and the order of bytes are those of gemm_int8.h; the head of A and the scales of B
 * stand once before the run instead of once in every block, so the sums stay integers to its end
 * and nothing interrupts the products. */
#ifndef FV_GEMM_INT8_ROW_H
#define FV_GEMM_INT8_ROW_H

#include "gemm_int8.h"

#if defined(CPU_NEON_BF16)

ALWAYS_INLINE void finish_sums(vf *s, const gemm_tile *t, const int rows, const int panels)
{
    const a_head *head = t->a;
    const int8_t *a = (const int8_t *)(head + 1), *b = (const int8_t *)((const float *)t->b + NR);
    const char *ahead = t->ahead;
    const int64_t step = t->ahead_step * (BLOCK / 4);
    const int pairs = (rows + 1) / 2;
    int32x4_t sum[SUMS];
#pragma GCC unroll 16
    for (int i = 0; i < pairs * panels * (NR / 2); i++) sum[i] = vdupq_n_s32(0);
    for (size_t units = gemm_units(t->kc); units; units--, ahead += step) {
        __builtin_prefetch(ahead);
        __builtin_prefetch(ahead + 64);
#pragma GCC unroll 4
        for (int u = 0; u < BLOCK / G; u++, a += A_WIDTH * G, b += NR * G) {
            int8x16_t x[MR / 2];
#pragma GCC unroll 4
            for (int i = 0; i < pairs; i++) x[i] = neon_load_bytes(a + 2 * i * G);
#pragma GCC unroll 4
            for (int p = 0; p < panels; p++)
#pragma GCC unroll 4
                for (int j = 0; j < NR / 2; j++) {
                    int8x16_t w = neon_load_bytes(b + (size_t)p * t->b_next + 2 * j * G);
#pragma GCC unroll 4
                    for (int i = 0; i < pairs; i++) {
                        int32x4_t *at = sum + (i * panels + p) * (NR / 2) + j;
                        *at = mma(*at, x[i], w);
                    }
                }
        }
    }
#pragma GCC unroll 4
    for (int p = 0; p < panels; p++)
#pragma GCC unroll 4
        for (int j = 0; j < NR / 2; j++) {
            vf scale = load_twice((const float *)((const char *)t->b + (size_t)p * t->b_next) +
                                  2 * j);
#pragma GCC unroll 4
            for (int i = 0; i < pairs; i++) {
                const int at = (i * panels + p) * (NR / 2) + j;
                s[at] = v_mul(vcvtq_f32_s32(sum[at]), v_mul(v_load(head->scale[i]), scale));
            }
        }
}

#else

/* One vector of integer sums, what it starts from, and one step of G values of k. */
#if defined(CPU_NEON_DOTPROD)
typedef int32x4_t sums;
ALWAYS_INLINE sums start(const a_head *h, int i)
{
    (void)h, (void)i;
    return vdupq_n_s32(0);
}
ALWAYS_INLINE sums columns_of(const uint8_t *b) { return vreinterpretq_s32_u8(vld1q_u8(b)); }
ALWAYS_INLINE vf floats(sums s) { return vcvtq_f32_s32(s); }
#elif defined(CPU_AVX512_VNNI) || defined(CPU_AVX512) || defined(CPU_AVX2)
typedef wide sums;
ALWAYS_INLINE sums start(const a_head *h, int i) { return first_sum(h, i); }
ALWAYS_INLINE sums columns_of(const uint8_t *b) { return load_group(b); }
ALWAYS_INLINE sums add(sums s, const a_value *a, sums w) { return add_group(s, a, w); }
ALWAYS_INLINE vf floats(sums s) { return to_float(s); }
#else
typedef struct {
    int32_t v[NR];
} sums;
ALWAYS_INLINE sums start(const a_head *h, int i)
{
    (void)h, (void)i;
    return (sums){{0}};
}
ALWAYS_INLINE sums columns_of(const uint8_t *b)
{
    sums w;
    for (int j = 0; j < NR; j++) w.v[j] = (int8_t)b[j];
    return w;
}
ALWAYS_INLINE sums add(sums s, const a_value *a, sums w)
{
    for (int j = 0; j < NR; j++) s.v[j] += *a * w.v[j];
    return s;
}
ALWAYS_INLINE vf floats(sums s)
{
    float f[NR];
    for (int j = 0; j < NR; j++) f[j] = (float)s.v[j];
    return v_load(f);
}
#endif

#if !defined(CPU_NEON_DOTPROD)
/* One row and all panels. */
ALWAYS_INLINE void add_row(sums *s, const a_value *a, const sums *w, const int panels)
{
#if defined(CPU_AVX512_VNNI)
    if (panels > 1) {
        sums x = broadcast(a);
#pragma GCC unroll 4
        for (int p = 0; p < panels; p++) s[p] = add_broadcast(s[p], x, w[p]);
        return;
    }
#endif
#pragma GCC unroll 4
    for (int p = 0; p < panels; p++) s[p] = add(s[p], a, w[p]);
}
#endif

/* The rows of C that the tile's sums will go to, for prefetching: one for each unit of k, since all
 * at once would fill the line-fill buffers. */
typedef struct result_rows {
    const char *p;
    int64_t stride, bytes;
    int left;
} result_rows;

ALWAYS_INLINE result_rows rows_of_result(const gemm_tile *t, const int panels)
{
    if (t->out) return (result_rows){t->out, t->out_stride, t->out_bytes, t->rows};
    const int64_t size = (int64_t)sizeof(float);
    return (result_rows){(const char *)t->c, t->ldc * size, panels * NR * size, t->rows};
}
ALWAYS_INLINE void prefetch_row(result_rows *r)
{
    if (r->left-- <= 0) return;
    for (int64_t j = 0; j < r->bytes; j += 64) __builtin_prefetch(r->p + j, 1);
    r->p += r->stride;
}

ALWAYS_INLINE void finish_sums(vf *s, const gemm_tile *t, const int rows, const int panels)
{
    const a_head *head = t->a;
    const a_value *a = (const a_value *)(head + 1);
    const uint8_t *b = (const uint8_t *)((const float *)t->b + NR);
    const char *ahead = t->ahead;
    const int64_t step = t->ahead_step * (BLOCK / 4);
    result_rows next = rows_of_result(t, panels);
    sums sum[SUMS];
#pragma GCC unroll 12
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int p = 0; p < panels; p++) sum[i * panels + p] = start(head, i);
    for (size_t units = gemm_units(t->kc); units; units--, ahead += step) {
        __builtin_prefetch(ahead);
        __builtin_prefetch(ahead + 64);
        prefetch_row(&next);
#pragma GCC unroll 4
        for (int u = 0; u < BLOCK / G; u++, a += A_WIDTH * G, b += NR * G) {
            sums w[GEMM_WALK];
#pragma GCC unroll 4
            for (int p = 0; p < panels; p++) w[p] = columns_of(b + (size_t)p * t->b_next);
#if I8_PANELS > 1 /* a strip and two panels do not fit 32 KiB of L1 */
            if (rows > 6)
#pragma GCC unroll 4
                for (int p = 0; p < panels; p++)
                    __builtin_prefetch(b + (size_t)p * t->b_next + 512);
#endif
#if defined(CPU_NEON_DOTPROD)
#pragma GCC unroll 4
            for (int p = 0; p < panels; p++)
                sdot_rows(sum + p, a, vreinterpretq_s8_s32(w[p]), rows, panels);
#else
#pragma GCC unroll 12
            for (int i = 0; i < rows; i++) add_row(sum + i * panels, a + i * G, w, panels);
#endif
        }
    }
#pragma GCC unroll 4
    for (int p = 0; p < panels; p++) {
        vf scale = v_load((const float *)((const char *)t->b + (size_t)p * t->b_next));
#pragma GCC unroll 12
        for (int i = 0; i < rows; i++)
            s[i * panels + p] = v_mul(floats(sum[i * panels + p]),
                                      v_mul(v_set1(head->scale[i]), scale));
    }
}

#endif
#endif
