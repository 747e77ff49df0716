/* fft.h - the FFT of a build without kissfft. */
#ifndef FV_MEDIA_FFT_H
#define FV_MEDIA_FFT_H

#include <stddef.h>

typedef struct fv__complex {
    float re, im;
} fv__complex;

/* Bytes of a plan for n samples, n even; its contents.  The plan is read only when it is used. */
size_t fv__fft_bytes(int n);
void fv__fft_plan(void *plan, int n);
/* y[f] = sum_t x[t] e^(-2 pi i f t / n), f = 0 .. n / 2; x (n), y (n / 2 + 1), work
 * fv__fft_work(n). */
size_t fv__fft_work(int n);
void fv__fft_real(const void *plan, const float *x, fv__complex *y, void *work);

#endif
