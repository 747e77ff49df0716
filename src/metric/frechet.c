/* frechet.c - the Frechet distance of two sets of vectors, each taken for a normal distribution.
 *
 *     d = |m1 - m2|^2 + tr(C1 + C2 - 2 (C1 C2)^(1/2)),   means m and covariances C (divisor n - 1)
 *
 * tr (C1 C2)^(1/2) is the sum of the roots of the eigenvalues of C1^(1/2) C2 C1^(1/2), which is
 * symmetric: two decompositions by Jacobi's rotations are all that is needed, and no matrix root of
 * an unsymmetric product, which rounding makes complex.  What the distance is called by depends on
 * the vectors: only those of one published network make it an "FID". */
#include <math.h>

#include "base/base.h"
#include "fovea/author/metric.h"

enum { SWEEPS = 60 };

/* Rows and columns p and q of the symmetric a, turned so that a[p][q] becomes 0; v collects the
 * turns. */
static void rotate(double *a, double *v, int64_t n, int64_t p, int64_t q)
{
    double apq = a[p * n + q];
    if (fabs(apq) < 1e-300) return;
    double theta = (a[q * n + q] - a[p * n + p]) / (2 * apq);
    double t = (theta >= 0 ? 1 : -1) / (fabs(theta) + sqrt(theta * theta + 1));
    double c = 1 / sqrt(t * t + 1), s = t * c;
    for (int64_t k = 0; k < n; k++) {
        double x = a[k * n + p], y = a[k * n + q];
        a[k * n + p] = c * x - s * y;
        a[k * n + q] = s * x + c * y;
    }
    for (int64_t k = 0; k < n; k++) {
        double x = a[p * n + k], y = a[q * n + k];
        a[p * n + k] = c * x - s * y;
        a[q * n + k] = s * x + c * y;
        x = v[k * n + p], y = v[k * n + q];
        v[k * n + p] = c * x - s * y;
        v[k * n + q] = s * x + c * y;
    }
}

/* a = v diag(eigenvalues) v'; the eigenvalues end on a's diagonal. */
static void decompose(double *a, double *v, int64_t n)
{
    double all = 0;
    for (int64_t i = 0; i < n * n; i++) {
        v[i] = i % (n + 1) ? 0 : 1;
        all += a[i] * a[i];
    }
    for (int sweep = 0; sweep < SWEEPS; sweep++) {
        double off = 0;
        for (int64_t p = 0; p < n; p++)
            for (int64_t q = p + 1; q < n; q++) off += a[p * n + q] * a[p * n + q];
        if (off <= 1e-26 * all) return;
        for (int64_t p = 0; p < n; p++)
            for (int64_t q = p + 1; q < n; q++) rotate(a, v, n, p, q);
    }
}

/* Means (width) and covariances (width,width), in double and in one order. */
static void moments(double *mean, double *cov, const float *x, int64_t n, int64_t width)
{
    for (int64_t j = 0; j < width; j++) mean[j] = 0;
    for (int64_t i = 0; i < width * width; i++) cov[i] = 0;
    for (int64_t i = 0; i < n * width; i++) mean[i % width] += (double)x[i] / (double)n;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < width; j++) {
            double d = (double)x[i * width + j] - mean[j];
            for (int64_t k = 0; k <= j; k++)
                cov[j * width + k] += d * ((double)x[i * width + k] - mean[k]) / (double)(n - 1);
        }
    for (int64_t j = 0; j < width; j++)
        for (int64_t k = 0; k < j; k++) cov[k * width + j] = cov[j * width + k];
}

/* out = x y, (n,n) each. */
static void multiply(double *out, const double *x, const double *y, int64_t n)
{
    for (int64_t i = 0; i < n * n; i++) out[i] = 0;
    for (int64_t i = 0; i < n; i++)
        for (int64_t k = 0; k < n; k++)
            for (int64_t j = 0; j < n; j++) out[i * n + j] += x[i * n + k] * y[k * n + j];
}

/* The root of a positive symmetric matrix, in place; v and w are scratch. */
static void root(double *a, double *v, double *w, int64_t n)
{
    decompose(a, v, n);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) {
            double value = a[j * n + j];
            w[i * n + j] = v[i * n + j] * sqrt(value > 0 ? value : 0);
        }
    for (int64_t i = 0; i < n; i++) /* w v' */
        for (int64_t j = 0; j < n; j++) {
            double sum = 0;
            for (int64_t k = 0; k < n; k++) sum += w[i * n + k] * v[j * n + k];
            a[i * n + j] = sum;
        }
}

fv_status fv_frechet_score(double *out, const fv_env *env, const float *x, int64_t n,
                           const float *y, int64_t m, int64_t width, fv_err *e)
{
    size_t square = (size_t)(width * width),
           bytes = (4 * square + 2 * (size_t)width) * sizeof(double);
    if (n < 2 || m < 2)
        return fv_fail(e, FV_EARG, "a Frechet distance needs at least two vectors on each side");
    double *a = fv__alloc(env, bytes);
    if (!a) return fv_fail(e, FV_ENOMEM, "Frechet distance: out of memory");
    double *b = a + square, *v = b + square, *w = v + square, *ma = w + square, *mb = ma + width;
    moments(ma, a, x, n, width);
    moments(mb, b, y, m, width);
    double d = 0;
    for (int64_t i = 0; i < width; i++)
        d += (ma[i] - mb[i]) * (ma[i] - mb[i]) + a[i * width + i] + b[i * width + i];
    root(a, v, w, width);
    multiply(w, a, b, width);
    multiply(b, w, a, width);
    decompose(b, v, width);
    for (int64_t i = 0; i < width; i++)
        if (b[i * width + i] > 0) d -= 2 * sqrt(b[i * width + i]);
    *out = d > 0 ? d : 0;
    fv__free(env, a, bytes);
    return FV_OK;
}
