/* fft.c - the FFT of a build without kissfft: any length, by decimation in time over its prime
 * factors.
 *
 *     Y[k + q m] = sum_{r<p} w^(r (k + q m)) Y_r[k],   n = p m,   Y_r: the FFT of x[r], x[r+p], ..
 *
 * A length of small factors (512, 400) costs n times their sum; a prime one is the plain sum.
 * Samples are real, so only the first half of the result is kept; computing two real frames as one
 * complex one would halve the time, and is left out because this path only serves machines
 * without the library. */
#include "media/audio/fft.h"

#include <math.h>
#include <stdint.h>

#define PI 3.14159265358979323846

typedef struct plan {
    int n;
    fv__complex w[]; /* e^(-2 pi i k / n) */
} plan;

size_t fv__fft_bytes(int n) { return sizeof(plan) + (size_t)n * sizeof(fv__complex); }
size_t fv__fft_work(int n) { return 2 * (size_t)n * sizeof(fv__complex); }

/* w[k] = exp(-2 pi i k / n), in f64 before it is rounded: a recurrence would lose digits. */
void fv__fft_plan(void *memory, int n)
{
    plan *p = memory;
    p->n = n;
    for (int k = 0; k < n; k++)
        p->w[k] = (fv__complex){(float)cos(2 * PI * k / n), (float)-sin(2 * PI * k / n)};
}

/* Any length is allowed (400 of Whisper is 2^4 5^2); a prime is transformed in O(n^2), which is
 * rare and right. */
static int smallest_factor(int n)
{
    for (int p = 2; p * p <= n; p++)
        if (n % p == 0) return p;
    return n;
}

static fv__complex add_product(fv__complex sum, fv__complex a, fv__complex b)
{
    sum.re += a.re * b.re - a.im * b.im;
    sum.im += a.re * b.im + a.im * b.re;
    return sum;
}

/* Two halves: Y[k] = A[k] + w^k B[k], Y[k + m] = A[k] - w^k B[k], in place. */
static void combine_pairs(const plan *p, int m, fv__complex *y)
{
    int turn = p->n / (2 * m);
    for (int k = 0; k < m; k++) {
        fv__complex a = y[k], none = {0, 0}, b = add_product(none, y[m + k], p->w[k * turn]);
        y[k] = (fv__complex){a.re + b.re, a.im + b.im};
        y[m + k] = (fv__complex){a.re - b.re, a.im - b.im};
    }
}

/* f parts of m. */
static void combine(const plan *p, int f, int m, fv__complex *y, fv__complex *work)
{
    int n = f * m, turn = p->n / n;
    for (int k = 0; k < n; k++) {
        fv__complex sum = {0, 0};
        for (int r = 0, at = 0, from = k % m; r < f; r++, from += m) {
            sum = add_product(sum, y[from], p->w[at * turn]);
            at += k; /* r k, modulo n: k < n */
            if (at >= n) at -= n;
        }
        work[k] = sum;
    }
    for (int k = 0; k < n; k++) y[k] = work[k];
}

/* out (n): the FFT of x[0], x[step], ..; work (n) is overwritten. */
static void transform(const plan *p, int n, const float *x, int step, fv__complex *out,
                      fv__complex *work)
{
    if (n == 1) {
        out[0] = (fv__complex){x[0], 0};
        return;
    }
    int f = smallest_factor(n), m = n / f;
    for (int r = 0; r < f; r++) transform(p, m, x + (int64_t)r * step, step * f, out + r * m, work);
    if (f == 2)
        combine_pairs(p, m, out);
    else
        combine(p, f, m, out, work);
}

/* Through the complex transform: twice the work of a real one, in the build without kissfft only.
 */
void fv__fft_real(const void *memory, const float *x, fv__complex *y, void *work)
{
    const plan *p = memory;
    fv__complex *out = work;
    transform(p, p->n, x, 1, out, out + p->n);
    for (int k = 0; k <= p->n / 2; k++) y[k] = out[k];
}
