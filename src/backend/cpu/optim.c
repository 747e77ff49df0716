/* optim.c - AdamW over a flat block of parameters, and the sum of squares that clipping asks
 * for. */
#ifndef DTYPE
#include "stage.h"

#define BLOCK 16384 /* elements of one partial sum of squares */

/* m = beta1 m + (1-beta1) g;  v = beta2 v + (1-beta2) g^2;  w -= lr * (decay * w +
 * (m/bias_correction1) / (sqrt(v/bias_correction2) + eps)) with everything that is the same for all
 * elements computed beforehand: on one core the arithmetic, not memory, is what takes the time.
 * With s the scale of the gradient, a = (1-beta1) s, b = sqrt(1-beta2) s and c =
 * sqrt(1/bias_correction2)
 *   m = beta1 m + a g;  v = beta2 v + (b g)^2;  w = shrink w - rate m / (c sqrt(v) + eps) */
typedef struct {
    vf beta1, a, beta2, b, c, eps, shrink, rate;
} constants;

/* bias_correction1 and 2 are 1 - beta^t of this step; grad_scale is the factor that clipping
 * found. */
static constants prepare(const fv_adamw *o)
{
    const fv_update *u = o->now;
    double scale = u->grad_scale;
    float lr = o->lr * u->lr;
    return (constants){.beta1 = v_set1(o->beta1),
                       .a = v_set1((float)(scale * (1 - o->beta1))),
                       .beta2 = v_set1(o->beta2),
                       .b = v_set1((float)(scale * sqrt((double)(1 - o->beta2)))),
                       .c = v_set1((float)sqrt((double)(1 / u->bias_correction2))),
                       .eps = v_set1(o->eps),
                       .shrink = v_set1(1 - lr * o->decay),
                       .rate = v_set1(lr / u->bias_correction1)};
}

ALWAYS_INLINE vf step(vf w, vf *m, vf *v, vf grad, const constants *c)
{
    vf g = v_mul(grad, c->b);
    *m = v_fma(grad, c->a, v_mul(*m, c->beta1));
    *v = v_fma(g, g, v_mul(*v, c->beta2));
    vf root = v_fma(v_sqrt(*v), c->c, c->eps);
    return v_fnma(c->rate, v_div(*m, root), v_mul(w, c->shrink));
}

static void update(float *w, float *m, float *v, const float *grad, int64_t n, constants c)
{
    int64_t i = 0;
    /* two at a time: square roots and divisions have long latencies */
    for (; i + 2 * VW <= n; i += 2 * VW) {
        vf a = v_load(m + i), b = v_load(v + i), p = v_load(m + i + VW), q = v_load(v + i + VW);
        vf u = step(v_load(w + i), &a, &b, v_load(grad + i), &c),
           z = step(v_load(w + i + VW), &p, &q, v_load(grad + i + VW), &c);
        v_store(w + i, u);
        v_store(w + i + VW, z);
        v_store(m + i, a);
        v_store(m + i + VW, p);
        v_store(v + i, b);
        v_store(v + i + VW, q);
    }
    for (; i < n; i += VW) {
        vf a = v_load_n(m + i, n - i, 0), b = v_load_n(v + i, n - i, 0);
        v_store_n(w + i, step(v_load_n(w + i, n - i, 0), &a, &b, v_load_n(grad + i, n - i, 0), &c),
                  n - i);
        v_store_n(m + i, a, n - i);
        v_store_n(v + i, b, n - i);
    }
}

/* ema = keep ema + (1-keep) w */
static void update_ema(float *ema, const float *w, int64_t n, float keep)
{
    for (int64_t i = 0; i < n; i++) ema[i] = keep * ema[i] + (1 - keep) * w[i];
}

/* In eight lanes of f64, so that neither the square nor the sum leaves its range. */
static double squares(const float *x, int64_t n)
{
    double lane[8] = {0}, sum = 0;
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int j = 0; j < 8; j++) lane[j] += (double)x[i + j] * (double)x[i + j];
    for (; i < n; i++) lane[i % 8] += (double)x[i] * (double)x[i];
    for (int j = 0; j < 8; j++) sum += lane[j];
    return sum;
}

#define BY_DTYPE "optim.c"
#include "by_dtype.h"

void NAME(optim)(fv_kernels *k);
void NAME(optim)(fv_kernels *k) { fill_by_dtype(k); }

#else /* the kernels of dtype DTYPE */

typedef struct {
    float *w, *m, *v, *ema;
    void *copy;
    const float *grad;
    int64_t n;
    const fv_adamw *o;
    const constants *c;
} OF(adamw_args);

static void OF(adamw_part)(void *arg, int64_t lo, int64_t hi, int slot)
{
    const OF(adamw_args) *l = arg;
    (void)slot;
    for (int64_t k = lo; k < hi; k++) {
        int64_t i = k * PIECE;
        int64_t count = least(PIECE, l->n - i);
        update(l->w + i, l->m + i, l->v + i, l->grad + i, count, *l->c);
        if (l->ema) update_ema(l->ema + i, l->w + i, count, l->o->now->ema_decay);
        if (l->copy) narrow((char *)l->copy + i * bytes_of(DTYPE), l->w + i, count, DTYPE);
    }
}

static void OF(adamw)(fv_stream *s, float *w, float *m, float *v, float *ema, void *copy,
                      const float *grad, int64_t n, const fv_adamw *o)
{
    const constants ready = prepare(o), *c = &ready;
    if (o->now->nonfinite) return;
    fv__cpu_parallel(s, threads_for(s, n), pieces(n, PIECE), 0, OF(adamw_part),
                     &(OF(adamw_args)){w, m, v, ema, copy, grad, n, o, c});
}

typedef struct {
    double *part;
    const void *x;
    int64_t n;
} OF(sumsq_args);

static void OF(sumsq_part)(void *arg, int64_t lo, int64_t hi, int slot)
{
    const OF(sumsq_args) *l = arg;
    (void)slot;
    for (int64_t b = lo; b < hi; b++) {
        float tmp[PIECE];
        l->part[b] = 0;
        for (int64_t i = b * BLOCK; i < least(l->n, (b + 1) * BLOCK); i += PIECE) {
            int64_t m = least(PIECE, l->n - i);
            l->part[b] += squares(fetch(tmp, l->x, i, m, DTYPE), m);
        }
    }
}

static void OF(sumsq)(fv_stream *s, float *out, const void *x, int64_t n)
{
    int64_t blocks = pieces(n, BLOCK);
    double sum = 0, *part = fv_stream_scratch(s, (size_t)(blocks + 1) * sizeof *part);
    if (!part) return;
    fv__cpu_parallel(s, threads_for(s, n), blocks, 0, OF(sumsq_part),
                     &(OF(sumsq_args)){part, x, n});
    for (int64_t b = 0; b < blocks; b++) sum += part[b];
    *out = (float)sum;
}

static void OF(table)(fv_kernels *k)
{
    k->adamw = OF(adamw);
    k->sumsq = OF(sumsq);
}
#endif
