/* optim.c - AdamW over a flat block of parameters, the sum of squares that clipping asks for, and
 * the clipping. */
#include "backend/ref/ref.h"

/* m = beta1 m + (1-beta1) g;  v = beta2 v + (1-beta2) g^2;  w -= lr * (decay * w +
 * (m/bias_correction1) / (sqrt(v/bias_correction2) + eps)) */
static void adamw(fv_stream *s, float *w, float *m, float *v, float *ema, void *copy,
                  const float *grad, int64_t n, const fv_adamw *o)
{
    (void)s;
    const fv_update *u = o->now;
    float lr = o->lr * u->lr;
    if (u->nonfinite) return;
    for (int64_t i = 0; i < n; i++) {
        float g = grad[i] * u->grad_scale;
        m[i] = o->beta1 * m[i] + (1 - o->beta1) * g;
        v[i] = o->beta2 * v[i] + (1 - o->beta2) * g * g;
        w[i] -= lr * (o->decay * w[i] +
                      m[i] / u->bias_correction1 / (sqrtf(v[i] / u->bias_correction2) + o->eps));
        if (ema) ema[i] = u->ema_decay * ema[i] + (1 - u->ema_decay) * w[i];
        if (copy) st(copy, i, w[i]);
    }
}

/* On the device, so that a captured step decides by itself: a loss or norm that is not finite
 * sets `nonfinite`, and adamw leaves the weights alone. */
static void clip_norm(fv_stream *s, fv_update *u, const float *sumsq, float most,
                      float (*result)[2])
{
    (void)s;
    double norm = sqrt((double)*sumsq);
    if (!isfinite(norm) || !isfinite(u->loss)) u->nonfinite = 1;
    u->grad_scale = most > 0 && norm > (double)most ? (float)((double)most / norm) : 1;
    result[u->result_index][0] = u->loss;
    result[u->result_index][1] = (float)norm;
}

/* Lanes of fixed stride are added first, then the lanes: an order a wide kernel can keep. */
#define LANES 8
static void sumsq(fv_stream *s, float *out, const void *x, int64_t n)
{
    (void)s;
    double lane[LANES] = {0}, sum = 0;
    for (int64_t i = 0; i < n; i++) lane[i % LANES] += (double)ld(x, i) * (double)ld(x, i);
    for (int i = 0; i < LANES; i++) sum += lane[i];
    *out = (float)sum;
}

void REF(optim)(fv_kernels *k);
void REF(optim)(fv_kernels *k)
{
    k->adamw = adamw;
    k->sumsq = sumsq;
    k->clip_norm = clip_norm;
}
