/* stage.h - arrays of f32, bf16 and f16 seen as f32, a piece at a time; and how many threads a
 * piece of work is worth.
 *
 * A kernel computes on pieces that stay in L1.  Where memory holds f32 a piece is used in place;
 * otherwise it is converted into a buffer, and results are rounded when they are stored.  So every
 * kernel is written once, in f32, and an f32 table pays nothing for it. */
#ifndef FV_STAGE_H
#define FV_STAGE_H

#include "parallel.h"
#include "simd.h"

#define PIECE 1024           /* elements: 4 KiB of f32 */
#define LINE 16              /* elements: a cache line of f32, and no less than a vector */
#define WORTH_A_THREAD 16384 /* elements */

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t pieces(int64_t n, int64_t size) { return (n + size - 1) / size; }

/* Threads for work on n elements: little work is done before a second thread has woken up.
 * Threads never change results: work is cut into PIECEs or blocks of fixed size, and each has
 * one owner. */
static inline int threads_for(const fv_stream *s, int64_t n)
{
    int64_t useful = n / WORTH_A_THREAD;
    return useful < 2 ? 1 : useful < s->threads ? (int)useful : s->threads;
}
static inline int threads_for_rows(const fv_stream *s, int64_t rows, int64_t cols)
{
    return threads_for(s, rows * cols);
}
static inline int threads_for_axes(const fv_stream *s, int64_t a, int64_t b, int64_t c)
{
    return threads_for(s, a * b * c);
}

static inline int64_t bytes_of(fv_dtype t) { return t == FV_F32 ? 4 : 2; }
static inline const void *element(const void *p, int64_t i, fv_dtype t)
{
    return (const char *)p + i * bytes_of(t);
}

/* ---- one vector of any of the three dtypes ---- */

ALWAYS_INLINE vf load_as(const void *p, int64_t i, fv_dtype t)
{
    if (t == FV_F32) return v_load((const float *)p + i);
    return t == FV_BF16 ? v_load_bf16((const uint16_t *)p + i)
                        : v_load_f16((const uint16_t *)p + i);
}

ALWAYS_INLINE void store_as(void *p, int64_t i, vf a, fv_dtype t)
{
    if (t == FV_F32)
        v_store((float *)p + i, a);
    else if (t == FV_BF16)
        v_store_bf16((uint16_t *)p + i, a);
    else
        v_store_f16((uint16_t *)p + i, a);
}

/* ---- widening and rounding of n elements ---- */

ALWAYS_INLINE void widen_as(float *y, const void *x, int64_t n, fv_dtype t)
{
    int64_t i = 0;
    for (; i + VW <= n; i += VW) v_store(y + i, load_as(x, i, t));
    if (i < n) {
        uint16_t last[VW] = {0};
        memcpy(last, (const uint16_t *)x + i, (size_t)(n - i) * 2);
        v_store_n(y + i, load_as(last, 0, t), n - i);
    }
}

ALWAYS_INLINE void narrow_as(void *y, const float *x, int64_t n, fv_dtype t)
{
    int64_t i = 0;
    for (; i + VW <= n; i += VW) store_as(y, i, v_load(x + i), t);
    if (i < n) {
        uint16_t last[VW];
        store_as(last, 0, v_load_n(x + i, n - i, 0), t);
        memcpy((uint16_t *)y + i, last, (size_t)(n - i) * 2);
    }
}

static inline void widen(float *y, const void *x, int64_t n, fv_dtype t)
{
    if (t == FV_F32)
        memcpy(y, x, (size_t)n * sizeof *y);
    else if (t == FV_BF16)
        widen_as(y, x, n, FV_BF16);
    else
        widen_as(y, x, n, FV_F16);
}

static inline void narrow(void *y, const float *x, int64_t n, fv_dtype t)
{
    if (t == FV_F32)
        memcpy(y, x, (size_t)n * sizeof *x);
    else if (t == FV_BF16)
        narrow_as(y, x, n, FV_BF16);
    else
        narrow_as(y, x, n, FV_F16);
}

/* ---- pieces ---- */

/* Elements [at, at+n) of p as f32: where they lie, or in tmp. */
static inline const float *fetch(float *tmp, const void *p, int64_t at, int64_t n, fv_dtype t)
{
    if (t == FV_F32) return (const float *)p + at;
    widen(tmp, element(p, at, t), n, t);
    return tmp;
}

static inline fv_sink output(void *p, fv_dtype t) { return (fv_sink){p, t, false}; }

/* Where to compute what goes to element at of the sink: in place, or tmp.  deliver then
 * finishes the job.
 * The pair for outputs, so that an f32 kernel writes its result once and in place:
 *
 *    float *to = sink_target(y, at, tmp);   compute into to;   sink_store(y, at, to, n);
 *
 * sink_store does nothing where `to` is the destination itself; else it adds or rounds. */
static inline float *sink_target(fv_sink s, int64_t at, float *tmp)
{
    return s.dtype == FV_F32 && !s.add ? (float *)s.data + at : tmp;
}

static inline void sink_store(fv_sink s, int64_t at, float *p, int64_t n)
{
    char *to = (char *)s.data + at * bytes_of(s.dtype);
    if (to == (char *)p) return;
    if (s.add && s.dtype == FV_F32) {
        float *f = (float *)to;
        int64_t i = 0;
        for (; i + VW <= n; i += VW) v_store(f + i, v_add(v_load(f + i), v_load(p + i)));
        for (; i < n; i++) f[i] += p[i];
        return;
    }
    for (int64_t i = 0; s.add && i < n; i += 64) { /* 16-bit: widen what is there, add */
        float old[64];
        int64_t m = least(64, n - i);
        widen(old, to + 2 * i, m, s.dtype);
        for (int64_t j = 0; j < m; j++) p[i + j] += old[j];
    }
    narrow(to, p, n, s.dtype);
}

/* ---- loops over one piece: two vectors at a time; f sees the last elements padded to a whole
 * vector ---- */

ALWAYS_INLINE void map1(float *y, const float *x, int64_t n, vf p, vf q, vf (*f)(vf, vf, vf))
{
    int64_t i = 0;
    for (; i + 2 * VW <= n; i += 2 * VW) {
        vf u = f(v_load(x + i), p, q), v = f(v_load(x + i + VW), p, q);
        v_store(y + i, u);
        v_store(y + i + VW, v);
    }
    for (; i < n; i += VW) v_store_n(y + i, f(v_load_n(x + i, n - i, 0), p, q), n - i);
}

ALWAYS_INLINE void map2(float *y, const float *a, const float *b, int64_t n, vf (*f)(vf, vf))
{
    int64_t i = 0;
    for (; i + 2 * VW <= n; i += 2 * VW) {
        vf u = f(v_load(a + i), v_load(b + i)), v = f(v_load(a + i + VW), v_load(b + i + VW));
        v_store(y + i, u);
        v_store(y + i + VW, v);
    }
    for (; i < n; i += VW)
        v_store_n(y + i, f(v_load_n(a + i, n - i, 0), v_load_n(b + i, n - i, 0)), n - i);
}

ALWAYS_INLINE void map3(float *y, const float *a, const float *b, const float *c, int64_t n,
                        vf (*f)(vf, vf, vf))
{
    int64_t i = 0;
    for (; i + VW <= n; i += VW) v_store(y + i, f(v_load(a + i), v_load(b + i), v_load(c + i)));
    if (i < n)
        v_store_n(y + i,
                  f(v_load_n(a + i, n - i, 0), v_load_n(b + i, n - i, 0),
                    v_load_n(c + i, n - i, 0)),
                  n - i);
}

/* ---- sums in one fixed order: four vectors in turn, then their lanes ---- */

/* Adds up what f makes of a[i] and b[i]; `fill` replaces elements beyond the end and must
 * contribute nothing.
 * Four accumulators, since one alone would wait for the latency of its own additions; the order
 * depends on n alone, so a row has the same sum wherever it starts and whoever adds it. */
ALWAYS_INLINE float fold2(const float *a, const float *b, int64_t n, float fill, vf p,
                          vf (*f)(vf sum, vf a, vf b, vf p))
{
    vf s0 = v_zero(), s1 = s0, s2 = s0, s3 = s0;
    int64_t i = 0;
    for (; i + 4 * VW <= n; i += 4 * VW) {
        s0 = f(s0, v_load(a + i), v_load(b + i), p);
        s1 = f(s1, v_load(a + i + VW), v_load(b + i + VW), p);
        s2 = f(s2, v_load(a + i + 2 * VW), v_load(b + i + 2 * VW), p);
        s3 = f(s3, v_load(a + i + 3 * VW), v_load(b + i + 3 * VW), p);
    }
    for (; i + VW <= n; i += VW) s0 = f(s0, v_load(a + i), v_load(b + i), p);
    if (i < n) s1 = f(s1, v_load_n(a + i, n - i, fill), v_load_n(b + i, n - i, fill), p);
    return v_hsum(v_add(v_add(s0, s1), v_add(s2, s3)));
}

static inline vf f_sum(vf sum, vf a, vf b, vf p) { return (void)b, (void)p, v_add(sum, a); }
static inline vf f_dot(vf sum, vf a, vf b, vf p) { return (void)p, v_fma(a, b, sum); }

typedef struct {
    fv_sink y;
    const float *part;
    int64_t n, cols;
} sum_parts_args;

static inline void sum_parts_part(void *arg, int64_t from, int64_t to, int slot)
{
    const sum_parts_args *l = arg;
    (void)slot;
    for (int64_t k = from; k < to; k++) {
        float sum[PIECE / 4];
        int64_t j = k * (PIECE / 4), m = least(PIECE / 4, l->cols - j);
        memcpy(sum, l->part + j, (size_t)m * sizeof *sum);
        for (int64_t r = 1; r < l->n; r++)
            for (int64_t i = 0; i < m; i++) sum[i] += l->part[r * l->cols + j + i];
        sink_store(l->y, j, sum, m);
    }
}

/* y (cols) receives the sum of n rows of partial results, first to last. */
static inline void sum_parts(fv_stream *s, fv_sink y, const float *part, int64_t n, int64_t cols)
{
    fv__cpu_parallel(s, threads_for_rows(s, n, cols), pieces(cols, PIECE / 4), 0, sum_parts_part,
                     &(sum_parts_args){y, part, n, cols});
}

static inline float sum_of(const float *x, int64_t n) { return fold2(x, x, n, 0, v_zero(), f_sum); }
static inline float dot_of(const float *a, const float *b, int64_t n)
{
    return fold2(a, b, n, 0, v_zero(), f_dot);
}

#endif
