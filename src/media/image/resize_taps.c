/* resize_taps.c - which input pixels an output pixel is made of, and their weights.
 *
 * Output pixel i lies at c = (i + 0.5) * in / size.  When an image shrinks, the filter is stretched
 * by s = in / size, so that every input pixel counts (antialiasing); when it grows, s = 1:
 *
 *     w_k = f((k + 0.5 - c) / s) / sum_k f(..),   |k + 0.5 - c| < support * s
 *
 * computed in double and rounded to 22 bits, in Pillow's order of operations: the levels that come
 * out are Pillow's. */
#include <math.h>

#include "media/image/resize.h"

static double box(double x) { return x > -0.5 && x <= 0.5 ? 1 : 0; }

static double triangle(double x)
{
    x = fabs(x);
    return x < 1 ? 1 - x : 0;
}

static double hamming(double x)
{
    x = fabs(x);
    if (x == 0) return 1;
    if (x >= 1) return 0;
    x *= M_PI;
    return sin(x) / x * (0.54 + 0.46 * cos(x));
}

/* Keys's cubic with a = -0.5. */
static double cubic(double x)
{
    const double a = -0.5;
    x = fabs(x);
    if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
    return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0;
}

static double sinc(double x)
{
    if (x == 0) return 1;
    x *= M_PI;
    return sin(x) / x;
}

static double lanczos(double x) { return x >= -3 && x < 3 ? sinc(x) * sinc(x / 3) : 0; }

typedef struct filter {
    double (*value)(double x);
    double support;
} filter;

static filter filter_of(fv_resample how)
{
    switch (how) {
    case FV_LANCZOS: return (filter){lanczos, 3};
    case FV_BICUBIC: return (filter){cubic, 2};
    case FV_BOX: return (filter){box, 0.5};
    case FV_HAMMING: return (filter){hamming, 1};
    case FV_NEAREST:
    case FV_BILINEAR: break;
    }
    return (filter){triangle, 1};
}

/* from, n and the weights of output pixel i; w is scratch for them as doubles. */
static void one_pixel(fv__taps *t, int i, double centre, double stretch, filter f, int in,
                      double *w)
{
    double support = f.support * stretch, sum = 0, inverse = 1 / stretch;
    int from = (int)(centre - support + 0.5), to = (int)(centre + support + 0.5);
    if (from < 0) from = 0;
    if (to > in) to = in;
    for (int k = 0; k < to - from; k++) {
        w[k] = f.value((k + from - centre + 0.5) * inverse);
        sum += w[k];
    }
    t->from[i] = from;
    t->n[i] = to - from;
    int32_t *weight = t->weight + (size_t)i * (size_t)t->most;
    for (int k = 0; k < to - from; k++) {
        double x = sum != 0 ? w[k] / sum : w[k];
        x *= 1 << FV__TAP_BITS;
        weight[k] = (int32_t)(x < 0 ? x - 0.5 : x + 0.5);
    }
}

/* The nearest pixel alone, with weight 1. */
static void nearest_pixel(fv__taps *t, int i, double centre, int in)
{
    int from = (int)centre;
    t->from[i] = from < in ? from : in - 1;
    t->n[i] = 1;
    t->weight[(size_t)i * (size_t)t->most] = 1 << FV__TAP_BITS;
}

fv_status fv__taps_make(fv__taps *t, const fv_env *env, int in, int size, int first, int out,
                        fv_resample how, fv_err *e)
{
    filter f = filter_of(how);
    double scale = (double)in / size, stretch = scale < 1 ? 1 : scale;
    *t = (fv__taps){.out = out};
    t->most = how == FV_NEAREST ? 1 : (int)ceil(f.support * stretch) * 2 + 1;
    size_t weights, n = (size_t)out, scratch = (size_t)t->most * sizeof(double);
    if (!fv__mul_size(&weights, n * sizeof(int32_t), (size_t)t->most) ||
        !(t->memory = fv__alloc_raw(env, t->bytes = scratch + 2 * n * sizeof(int) + weights)))
        return fv_fail(e, FV_ENOMEM, "out of memory to resize %d pixels to %d", in, size);
    double *w = t->memory;
    t->from = (int *)(w + t->most);
    t->n = t->from + n;
    t->weight = (int32_t *)(t->n + n);
    for (int i = 0; i < out; i++) {
        double centre = (first + i + 0.5) * scale;
        if (how == FV_NEAREST)
            nearest_pixel(t, i, centre, in);
        else
            one_pixel(t, i, centre, stretch, f, in, w);
    }
    return FV_OK;
}

void fv__taps_free(fv__taps *t, const fv_env *env)
{
    fv__free(env, t->memory, t->bytes);
    *t = (fv__taps){0};
}
