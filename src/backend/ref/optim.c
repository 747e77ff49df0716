/* optim.c - AdamW over a flat block of parameters, and the sum of squares that clipping asks for. */
#include "backend/ref/ref.h"

/* m = beta1 m + (1-beta1) g;  v = beta2 v + (1-beta2) g^2;  w -= lr * (decay * w + (m/correct1) / (sqrt(v/correct2) + eps)) */
static void adamw(fv_stream *s, float *w, float *m, float *v, void *copy, const float *grad, int64_t n, const fv_adamw *o)
{
    (void)s;
    float scale = o->grad_scale ? *o->grad_scale : 1.0f;
    for (int64_t i = 0; i < n; i++) {
        float g = grad[i] * scale;
        m[i] = o->beta1 * m[i] + (1 - o->beta1) * g;
        v[i] = o->beta2 * v[i] + (1 - o->beta2) * g * g;
        w[i] -= o->lr * (o->decay * w[i] + m[i] / o->correct1 / (sqrtf(v[i] / o->correct2) + o->eps));
        if (copy) st(copy, i, w[i]);
    }
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
}
