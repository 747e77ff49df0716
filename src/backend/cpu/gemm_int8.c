/* gemm_int8.c - products with weights of 8 or 4 bits and activations of 8.
 *
 * For FV_Q8 and FV_Q4 both are cut into blocks of 32 along k with one f32 scale each (per row of A,
 * per column of B):
 *   A, FV_Q8:  scale = max|x| / 127,              q = round(x * (127 / max|x|)), -127..127
 *   FV_Q4:     scale = x / -8 for the x of largest magnitude (the first of equals),
 *                                               q = round(x / scale), -8..7
 * For FV_I8 a block is as long as a run: one scale for a row of up to ROW values, q as for FV_Q8.
 * That is twice as fast, and one large activation costs the rest of its row their digits.
 * Rounding is to nearest, ties to even; a block whose largest is below 2^-100 counts as zero, and
 * one with a NaN or an infinity has no finite product.  A is quantised as it is packed, row by row,
 * so a row means the same in any batch.  Blocks are added up in f32 in the order of k within runs
 * of RUN values, runs in order.  The layout of panels is in gemm_int8.h. */
#if defined(CPU_AMX)
#include "gemm_int8_amx.h"
#else
#include "gemm_int8_row.h"
#endif
#if defined(CPU_AVX512_VNNI)
#include "gemm_int8_avx512.h"
#endif

/* longer than in f32: a tile of bytes is done in no time, and C is touched once a run */
#define RUN 1024
#define ROW 4096 /* of FV_I8: its sums fit 32 bits, and its panels L1 */
#define A_UNIT (sizeof(a_head) + BLOCK * A_WIDTH * sizeof(a_value))
#define B_UNIT(q4) (NR * sizeof(float) + ((q4) ? 16 : 32) * NR)
#if !defined(CPU_AMX)
#define PLAIN_ROWS 0
#define BLOCKS_ENTER NULL
#define BLOCKS_LEAVE NULL
#endif

/* ---- the tile ---- */

ALWAYS_INLINE void multiply(const gemm_tile *t, const int rows, const int panels, const fv_dtype bt)
{
    vf s[SUMS];
#pragma GCC unroll 24
    for (int i = 0; i < SUMS; i++) s[i] = v_zero();
    if (bt == FV_I8)
        finish_sums(s, t, rows, panels);
    else
        run(s, t, B_UNIT(bt == FV_Q4), rows, panels, bt == FV_Q4);
    store_tile(t, s, rows, panels);
}

#include "gemm_tile_sizes.h"

ALWAYS_INLINE void tile(const gemm_tile *t, const fv_dtype bt)
{
#if defined(CPU_NEON_BF16)
    if (bt == FV_Q8 && t->rows > 6 && t->kc > 0) {
        smmla_tile(t);
        return;
    }
#elif defined(CPU_AMX)
    if (t->rows > PLAIN_ROWS) {
        amx_tile_blocks(t, bt == FV_Q4);
        return;
    }
    if (t->rows * t->panels > MR) { /* four rows and four panels: two at a time */
        gemm_tile half = *t;
        half.panels = t->panels / 2;
        multiply_sized(&half, bt);
        half.b = (const char *)t->b + (size_t)half.panels * t->b_next;
        half.c = t->c + half.panels * t->c_next;
        multiply_sized(&half, bt);
        return;
    }
#endif
    multiply_sized(t, bt);
}

static void tile_q8(const gemm_tile *t) { tile(t, FV_Q8); }
static void tile_q4(const gemm_tile *t) { tile(t, FV_Q4); }
#if !defined(CPU_AMX)
static void tile_i8(const gemm_tile *t)
{
#if I8_PANELS > 1 /* these sizes have more sums than MR, so gemm_tile_sizes.h lacks them */
    switch (t->rows * 8 + t->panels) {
    case 4 * 8 + 4: multiply(t, 4, 4, FV_I8); return;
    case 5 * 8 + 4: multiply(t, 5, 4, FV_I8); return;
    case 6 * 8 + 4: multiply(t, 6, 4, FV_I8); return;
    case 7 * 8 + 2: multiply(t, 7, 2, FV_I8); return;
    case 8 * 8 + 2: multiply(t, 8, 2, FV_I8); return;
    case 9 * 8 + 2: multiply(t, 9, 2, FV_I8); return;
    case 10 * 8 + 2: multiply(t, 10, 2, FV_I8); return;
    case 11 * 8 + 2: multiply(t, 11, 2, FV_I8); return;
    case 12 * 8 + 2: multiply(t, 12, 2, FV_I8); return;
    default: break;
    }
#endif
    tile(t, FV_I8);
}
#endif

/* ---- quantising ---- */

ALWAYS_INLINE float largest(const float *x)
{
    vf m = v_zero();
    for (int j = 0; j < BLOCK; j += VW) m = v_max_abs(m, v_load(x + j));
    return v_hmax_abs(m);
}

/* x times by, rounded to bytes
 * The product is within +-127 by construction, so nothing saturates and no clamp is needed. */
ALWAYS_INLINE void to_bytes(int8_t *restrict q, const float *restrict x, float by)
{
#if defined(CPU_NEON) || defined(CPU_NEON_BF16)
    /* Rounded by what is added: the last byte is the integer then.  A conversion would take four
     * times as long. */
    const float32x4_t magic = vdupq_n_f32(0x1.8p23f);
    for (int j = 0; j < BLOCK; j += 16) {
        uint8x16_t v[4];
#pragma GCC unroll 4
        for (int u = 0; u < 4; u++)
            v[u] = vreinterpretq_u8_f32(
                vaddq_f32(vmulq_n_f32(vld1q_f32(x + j + 4 * u), by), magic));
        v[0] = vuzp1q_u8(v[0], v[1]);
        v[2] = vuzp1q_u8(v[2], v[3]);
        vst1q_s8(q + j, vreinterpretq_s8_u8(vuzp1q_u8(v[0], v[2])));
    }
#elif defined(CPU_AVX512) || defined(CPU_AVX512_BF16)
    for (int j = 0; j < BLOCK; j += VW)
        _mm_storeu_si128((__m128i *)(q + j), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(
                                                 v_mul(v_load(x + j), v_set1(by)))));
#else
    for (int j = 0; j < BLOCK; j++) q[j] = (int8_t)rintf(x[j] * by);
#endif
}

/* Returns the scale. */
ALWAYS_INLINE float quantise(int8_t *restrict q, const float *restrict x)
{
    float most = largest(x);
    if (most < TINY) {
        memset(q, 0, BLOCK);
        return 0;
    }
    to_bytes(q, x, 127.0f / most);
    return most / 127.0f;
}

/* The scale has the sign of the largest value, so that it becomes exactly -8, the end of the
 * range of four bits that has no positive counterpart: 16 levels are used instead of 15. */
ALWAYS_INLINE float quantise4(int8_t *restrict q, const float *restrict x)
{
    float most = largest(x), signed_most = most;
    if (most < TINY) {
        memset(q, 0, BLOCK);
        return 0;
    }
    for (int j = BLOCK - 1; j >= 0; j--)
        if (fabsf(x[j]) >= most) signed_most = x[j];
    float inverse = -8.0f / signed_most;
    for (int j = 0; j < BLOCK; j++) q[j] = (int8_t)fminf(rintf(x[j] * inverse), 7.0f);
    return signed_most / -8.0f;
}

/* Values k..k+31 of row or column i of a strip, 0 beyond the end: in place if they are contiguous
 * f32, else in buf. */
ALWAYS_INLINE const float *fetch(float *buf, const gemm_src *s, int i, int64_t k, int64_t kc)
{
    int64_t n = kc - k < BLOCK ? kc - k : BLOCK;
    if (i >= s->n) n = 0;
    if (s->along_k && s->dtype == FV_F32 && n == BLOCK) return (const float *)s->p + i * s->ld + k;
    memset(buf, 0, BLOCK * sizeof *buf);
    for (int64_t j = 0; j < n; j += s->along_k ? VW : 1) {
        if (s->along_k && n - j >= VW)
            v_store(buf + j, v_load_as(s->p, i * s->ld + k + j, s->dtype));
        else if (s->along_k)
            v_store_n(buf + j, v_load_as_n(s->p, i * s->ld + k + j, n - j, s->dtype), n - j);
        else
            v_store_n(buf + j, v_load_as_n(s->p, (k + j) * s->ld + i, 1, s->dtype), 1);
    }
    return buf;
}

/* ---- panels ---- */

/* A block of row i of a strip of A; returns the sum of its values, where somebody asks for it.
 * Only vpdpbusd, which wants B unsigned, asks: a (b + 128) summed is the product plus 128 *
 * sum(a). */
ALWAYS_INLINE int store_a(a_value *to, const int8_t *q, int i)
{
    int sum = 0;
    for (int j = 0; j < BLOCK && B_BIAS; j++) sum += q[j];
    for (int t = 0; t < BLOCK; t += G) {
        a_value values[G];
        for (int j = 0; j < G; j++) values[j] = q[t + j];
        memcpy(to + A_GROUP(t / G, i), values, sizeof values);
    }
    return sum;
}

/* Activations are quantised here, once a product, not by a kernel of their own: the row is in
 * cache and its scale goes into the head of the block. */
static void pack_a(void *out, const gemm_src *a, int64_t kc)
{
    float buf[BLOCK];
    int8_t q[BLOCK];
    for (int64_t k = 0; k < kc; k += BLOCK) {
        a_head *head = (a_head *)((char *)out + (size_t)(k / BLOCK) * A_UNIT);
        a_value *to = (a_value *)(head + 1);
        for (int i = 0; i < A_WIDTH; i++) {
            if (i >= a->n) { /* nobody looks at these sums */
                set_head(head, i, 0, 0);
                continue;
            }
            float scale = quantise(q, fetch(buf, a, i, k, kc));
            set_head(head, i, scale, store_a(to, q, i));
        }
    }
}

/* Block k of column i of a weight that came quantised; returns its scale.  Bytes of FV_Q4 hold two
 * values. */
ALWAYS_INLINE float stored_block(int8_t *q, const gemm_src *b, int i, int64_t k)
{
    const bool q4 = b->dtype == FV_Q4;
    const char *p = (const char *)b->p + (size_t)(i * b->ld) + fv_dtype_row(b->dtype, k);
    float scale = 0;
    memset(q, 0, BLOCK);
    if (i >= b->n) return 0;
    memcpy(&scale, p, sizeof scale);
    memcpy(q, p + sizeof scale, q4 ? 16 : 32);
    for (int t = 15; t >= 0 && q4; t--) {
        q[t + 16] = (int8_t)(q[t] >> 4);
        q[t] = (int8_t)((int8_t)((uint8_t)q[t] << 4) >> 4);
    }
    return scale;
}

ALWAYS_INLINE void pack_b(void *out, const gemm_src *b, int64_t kc, const bool q4)
{
    float buf[BLOCK];
    int8_t q[BLOCK];
    const bool stored = b->dtype == FV_Q8 || b->dtype == FV_Q4;
    for (int64_t k = 0; k < kc; k += BLOCK) {
        float *scale = (float *)((char *)out + (size_t)(k / BLOCK) * B_UNIT(q4));
        uint8_t *to = (uint8_t *)(scale + NR);
        for (int i = 0; i < NR; i++) {
            const float *x = stored ? NULL : fetch(buf, b, i, k, kc);
            float s = stored ? stored_block(q, b, i, k) : q4 ? quantise4(q, x) : quantise(q, x);
            scale[i] = q4 ? s / 16 : s;
            for (int t = 0; t < (q4 ? 16 : 32); t++) {
                int low = q[t] + (q4 ? B_BIAS / 16 : B_BIAS),
                    high = q4 ? q[t + 16] + B_BIAS / 16 : 0;
                to[t / G * G * NR + i * G + t % G] = (uint8_t)(q4 ? (low & 15) | (high & 15) << 4
                                                                  : low);
            }
        }
    }
}
static void pack_q8(void *out, const gemm_src *b, int64_t kc) { pack_b(out, b, kc, false); }
static void pack_q4(void *out, const gemm_src *b, int64_t kc) { pack_b(out, b, kc, true); }

/* ---- panels with one scale for each row ---- */

/* The largest magnitude of row or column i over a run. */
ALWAYS_INLINE float largest_of_run(const gemm_src *s, int i, int64_t kc)
{
    float buf[BLOCK];
    vf most = v_zero();
    for (int64_t k = 0; k < kc; k += BLOCK) {
        const float *x = fetch(buf, s, i, k, kc);
        for (int j = 0; j < BLOCK; j += VW) most = v_max_abs(most, v_load(x + j));
    }
    return v_hmax_abs(most);
}

#if defined(CPU_AMX)
/* ---- the same for AMX: rows of 64 values, and fours of columns ---- */

/* Whole tiles of k: what is beyond kc is 0. */
ALWAYS_INLINE int64_t tiles_end(int64_t kc) { return (kc + I8_STEP - 1) / I8_STEP * I8_STEP; }

/* Bytes k..k+31 of row or column i, from values or as they were stored. */
ALWAYS_INLINE void run_bytes(int8_t *q, const gemm_src *s, int i, int64_t k, int64_t kc, float most)
{
    float buf[BLOCK];
    if (i >= s->n || k >= kc)
        memset(q, 0, BLOCK);
    else if (s->dtype == FV_I8)
        memcpy(q, (const char *)s->p + (size_t)(i * s->ld) + sizeof(float) + k, BLOCK);
    else if (most < TINY)
        memset(q, 0, BLOCK);
    else
        to_bytes(q, fetch(buf, s, i, k, kc), 127.0f / most);
}

/* The scale of row or column i over a run; *most: its largest magnitude, where that is computed. */
ALWAYS_INLINE float run_scale(const gemm_src *s, int i, int64_t kc, float *most)
{
    float scale = 0;
    *most = 0;
    if (i >= s->n) return 0;
    if (s->dtype == FV_I8) {
        memcpy(&scale, (const char *)s->p + (size_t)(i * s->ld), sizeof scale);
        return scale;
    }
    *most = largest_of_run(s, i, kc);
    return *most < TINY ? 0 : *most / 127.0f;
}

static void amx_pack_a(void *out, const gemm_src *a, int64_t kc)
{
    float *scale = out, most;
    int8_t *to = (int8_t *)out + I8_SCALES;
    for (int i = 0; i < I8_SIDE; i++, to += I8_STEP) {
        if (is_whole_row(a, i, kc)) {
            row_bytes row = start_row(a, i, kc);
            scale[i] = row.scale;
            for (int64_t k = 0; k < kc; k += I8_STEP)
                _mm512_storeu_si512(to + k * I8_SIDE, next_bytes(&row));
            continue;
        }
        scale[i] = run_scale(a, i, kc, &most);
        for (int64_t k = 0; k < tiles_end(kc); k += BLOCK)
            run_bytes(to + k / I8_STEP * I8_STEP * I8_SIDE + k % I8_STEP, a, i, k, kc, most);
    }
}

static void amx_pack_b(void *out, const gemm_src *b, int64_t kc)
{
    float *scale = out, most;
    int8_t *to = (int8_t *)out + I8_SCALES, q[BLOCK];
    for (int i = 0; i < I8_SIDE; i++) {
        scale[i] = run_scale(b, i, kc, &most);
        for (int64_t k = 0; k < tiles_end(kc); k += BLOCK) {
            run_bytes(q, b, i, k, kc, most);
            for (int u = 0; u < BLOCK; u += 4) memcpy(to + (k + u) * I8_SIDE + i * 4, q + u, 4);
        }
    }
}
#else

static void pack_a_row(void *out, const gemm_src *a, int64_t kc)
{
    a_head *head = out;
    float buf[BLOCK];
    int8_t q[BLOCK];
#if defined(CPU_AVX512_VNNI)
    if (is_whole_row(a, 0, kc)) {
        pack_whole_rows(head, a, kc);
        return;
    }
#endif
    for (int i = 0; i < MR; i++) {
        float most = i < a->n ? largest_of_run(a, i, kc) : 0;
        int sum = 0;
        for (int64_t k = 0; k < kc && i < a->n; k += BLOCK) {
            if (most < TINY)
                memset(q, 0, sizeof q);
            else
                to_bytes(q, fetch(buf, a, i, k, kc), 127.0f / most);
            sum += store_a((a_value *)(head + 1) + k * A_WIDTH, q, i);
        }
        set_head(head, i, most < TINY ? 0 : most / 127.0f, sum);
    }
}

/*    [ NR scales ][ k 0..31: NR * 32 bytes ][ k 32..63 ] ..      one head a run, not one a block */
static void pack_i8(void *out, const gemm_src *b, int64_t kc)
{
    float *scale = out, buf[BLOCK];
    int8_t q[BLOCK];
    for (int i = 0; i < NR; i++) {
        const bool stored = b->dtype == FV_I8;
        /* where stored: a scale, then the bytes */
        const char *row = (const char *)b->p + (size_t)(i * b->ld);
        float most = i < b->n && !stored ? largest_of_run(b, i, kc) : 0;
        scale[i] = most < TINY ? 0 : most / 127.0f;
        if (stored && i < b->n) memcpy(&scale[i], row, sizeof(float));
        for (int64_t k = 0; k < kc; k += BLOCK) {
            if (stored && i < b->n)
                memcpy(q, row + sizeof(float) + k, sizeof q);
            else if (most < TINY)
                memset(q, 0, sizeof q);
            else
                to_bytes(q, fetch(buf, b, i, k, kc), 127.0f / most);
            uint8_t *to = (uint8_t *)(scale + NR) + k * NR;
            for (int t = 0; t < BLOCK; t++)
                to[t / G * G * NR + i * G + t % G] = (uint8_t)(q[t] + B_BIAS);
        }
    }
}
#endif

/* Sums fit: 32 * 127 * 127 < 2^24 for a block, so its conversion to f32 is exact too; ROW * 127
 * * 127 < 2^31 for a run of FV_I8. */
const gemm_kind *NAME(gemm_int8)(fv_dtype bt)
{
    static const gemm_kind q8 = {.mr = A_WIDTH,
                                 .nr = NR,
                                 .run = RUN,
                                 .a_unit = A_UNIT,
                                 .b_unit = B_UNIT(false),
                                 .pack_a = pack_a,
                                 .pack_b = pack_q8,
                                 .plain_rows = PLAIN_ROWS,
                                 .enter = BLOCKS_ENTER,
                                 .leave = BLOCKS_LEAVE,
                                 .tile = tile_q8};
    static const gemm_kind q4 = {.mr = A_WIDTH,
                                 .nr = NR,
                                 .run = RUN,
                                 .a_unit = A_UNIT,
                                 .b_unit = B_UNIT(true),
                                 .pack_a = pack_a,
                                 .pack_b = pack_q4,
                                 .plain_rows = PLAIN_ROWS,
                                 .enter = BLOCKS_ENTER,
                                 .leave = BLOCKS_LEAVE,
                                 .tile = tile_q4};
#if defined(CPU_AMX)
    static const gemm_kind i8 = {.mr = I8_SIDE,
                                 .nr = I8_SIDE,
                                 .run = ROW,
                                 .a_unit = I8_UNIT,
                                 .b_unit = I8_UNIT,
                                 .a_head = I8_HEAD,
                                 .b_head = I8_HEAD,
                                 .pack_a = amx_pack_a,
                                 .pack_b = amx_pack_b,
                                 .enter = enter,
                                 .leave = leave,
                                 .tile = amx_tile_i8};
#else
    static const gemm_kind i8 = {.mr = MR,
                                 .nr = NR,
                                 .panels = I8_PANELS,
                                 .run = ROW,
                                 .a_unit = BLOCK * A_WIDTH * sizeof(a_value),
                                 .b_unit = BLOCK * NR,
                                 .a_head = sizeof(a_head),
                                 .b_head = NR * sizeof(float),
                                 .pack_a = pack_a_row,
                                 .pack_b = pack_i8,
                                 .tile = tile_i8};
#endif
    return bt == FV_Q4 ? &q4 : bt == FV_I8 ? &i8 : &q8;
}
