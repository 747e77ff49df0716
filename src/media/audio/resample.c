/* resample.c - a clip at another rate, by a windowed sinc.
 *
 *     y[n] = sum_k x[k] h(n M / L - k),   h(t) = c sinc(c t) kaiser(t / R),   out / in = L / M
 *
 * c is the cutoff in units of the input's Nyquist frequency: 0.945 of the lower of the two rates.
 * The window holds 64 zeros of the sinc at each side (R = 64 / c) with beta = 11.7.  Measured
 * (tests/data/test_audio.c): up to 0.88 of the lower Nyquist frequency the level is right within
 * 0.01 dB; what lies above it is at least 100 dB down.  That is more than 16 bits hold.
 *
 * Outputs n, n + L, n + 2L, ... lie at the same fraction of a sample, so each of the L sets of
 * weights is computed once, used for all its outputs, and forgotten: no table of L x 2R weights,
 * which odd rates would make huge.  A linear interpolation between rows of a smaller table is
 * faster still, and lost because its error is -80 dB at best. */
#include <math.h>

#include "base/base.h"
#include "fovea/author/audio.h"

#define PI 3.14159265358979323846
#define ZEROS 64
#define CUTOFF 0.945
#define BETA 11.7
#define MOST_RATIO 256 /* between the two rates: the window's length grows with it */

/* The modified Bessel function of order 0, by its series. */
static double bessel(double x)
{
    double sum = 1, term = 1, half = x * x / 4;
    for (int k = 1; term > sum * 1e-17; k++) {
        term *= half / ((double)k * k);
        sum += term;
    }
    return sum;
}

/* cutoff sinc(cutoff t) times Kaiser's window of radius `radius`; BETA sets stop band against
 * transition. */
static double weight(double t, double cutoff, double radius)
{
    double u = t / radius, x = PI * cutoff * t;
    if (u * u >= 1) return 0;
    double sinc = fabs(x) < 1e-9 ? 1 : sin(x) / x;
    return cutoff * sinc * bessel(BETA * sqrt(1 - u * u)); /* over bessel(BETA), the caller's */
}

static int gcd(int a, int b)
{
    while (b) {
        int r = a % b;
        a = b;
        b = r;
    }
    return a;
}

typedef struct phase {
    const fv_clip *in;
    double *w;     /* 2 * reach */
    int64_t reach; /* samples at each side */
} phase;

/* One output: w[k] belongs to the input sample first + k; outside of the clip is silence.  Eight
 * partial sums, so that additions do not wait for each other and a compiler can use vectors. */
static float convolve(const phase *p, int64_t first)
{
    int64_t from = first < 0 ? -first : 0, to = 2 * p->reach, k = from;
    if (first + to > p->in->n) to = p->in->n - first;
    const float *x = p->in->data + first;
    double s[8] = {0};
    for (; k + 8 <= to; k += 8)
        for (int j = 0; j < 8; j++) s[j] += (double)x[k + j] * p->w[k + j];
    for (; k < to; k++) s[0] += (double)x[k] * p->w[k];
    return (float)(((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7])));
}

/* Output n lies at input n M / L, whose fraction takes L values only: weights are computed once a
 * phase, not once a sample. */
static void convolve_all(fv_clip *out, const phase *p, int64_t L, int64_t M, double cutoff,
                         double radius)
{
    double top = bessel(BETA);
    for (int64_t phi = 0; phi < L && phi < out->n; phi++) {
        double fraction = (double)(phi * M % L) / (double)L;
        for (int64_t k = 0; k < 2 * p->reach; k++)
            p->w[k] = weight(fraction + (double)(p->reach - 1 - k), cutoff, radius) / top;
        for (int64_t n = phi; n < out->n; n += L)
            out->data[n] = convolve(p, n * M / L - p->reach + 1);
    }
}

/* Rates are reduced to L / M; going down, the cutoff falls with the new rate, so that nothing folds
 * back. As many samples as the same duration has, rounded up. */
fv_status fv_clip_resample(fv_clip *out, const fv_clip *in, int rate, fv_err *e)
{
    if (rate < 1 || rate > FV_CLIP_MOST_RATE)
        return fv_fail(e, FV_EARG, "%d samples a second: expected 1 to %d", rate,
                       FV_CLIP_MOST_RATE);
    if (rate / MOST_RATIO > in->rate || in->rate / MOST_RATIO > rate)
        return fv_fail(e, FV_EARG, "%d samples a second cannot become %d: more than %d times",
                       in->rate, rate, MOST_RATIO);
    int common = gcd(in->rate, rate);
    int64_t L = rate / common, M = in->rate / common, n = (in->n * L + M - 1) / M;
    double cutoff = CUTOFF * (L < M ? (double)L / (double)M : 1), radius = ZEROS / cutoff;
    if (n > FV_CLIP_MOST)
        return fv_fail(e, FV_EARG, "%lld samples at %d a second become %lld at %d: at most %lld",
                       (long long)in->n, in->rate, (long long)n, rate, (long long)FV_CLIP_MOST);
    fv_status st = fv_clip_new(out, in->env, rate, n, e);
    if (st) return st;
    if (L == M) {
        memcpy(out->data, in->data, (size_t)n * sizeof *out->data);
        return FV_OK;
    }
    phase p = {.in = in, .reach = (int64_t)ceil(radius) + 1};
    size_t bytes = (size_t)(2 * p.reach) * sizeof *p.w;
    p.w = fv__alloc(in->env, bytes);
    if (!p.w) return fv_fail(e, FV_ENOMEM, "resampling: out of memory");
    convolve_all(out, &p, L, M, cutoff, radius);
    fv__free(in->env, p.w, bytes);
    return FV_OK;
}
