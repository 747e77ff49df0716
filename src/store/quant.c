/* quant.c - rows of weights in 8 or 4 bits, as files hold them.
 *
 * The numbers are those that the matrix product makes of a weight when it packs it
 * (backend/cpu/gemm_int8.c), so a model stored so gives the same bits as one that is quantised
 * while it is opened. */
#include <math.h>

#include "store.h"
#include "fovea/author/backend.h"

#define BLOCK 32
#define ROW 4096
#define TINY 0x1p-100f

/* The value of largest magnitude, the first of equals; a NaN if there is one, so that the scale,
 * and with it every product, shows it. */
static float largest(const float *x, int64_t n)
{
    float most = 0;
    for (int64_t i = 0; i < n && !isnan(most); i++)
        if (!(fabsf(x[i]) <= fabsf(most))) most = x[i];
    return most;
}

/* A NaN here means a scale that is not finite: the byte does not matter, but converting a NaN to an
 * integer is undefined. */
static float rounded(float x) { return isnan(x) ? 0 : rintf(x); }
static uint8_t byte(float x) { return (uint8_t)(int8_t)rounded(x); }
static uint8_t half(float x) { return (uint8_t)((int)fminf(rounded(x), 7.0f) & 15); }

/* n values as 8 bits behind their scale, zeros up to `block_len`.
 *    FV_Q8, 32 values:   [ f32 scale ][ 32 x int8 ]            36 bytes
 *    FV_Q4, 32 values:   [ f32 scale ][ 16 bytes: (k, k+16) ]  20 bytes, 5 bits a value
 *    FV_I8, <= 4096:     [ f32 scale ][ int8 .. ]              8 bits a value */
static void eight(uint8_t *out, const float *x, int64_t n, int64_t block_len)
{
    float most = fabsf(largest(x, n)), scale = most < TINY ? 0 : most / 127.0f,
          by = most < TINY ? 0 : 127.0f / most;
    memcpy(out, &scale, sizeof scale);
    for (int64_t i = 0; i < block_len; i++)
        out[sizeof scale + (size_t)i] = i < n ? byte(x[i] * by) : 0;
}

static void four(uint8_t *out, const float *x, int64_t n)
{
    float most = largest(x, n), scale = fabsf(most) < TINY ? 0 : most / -8.0f,
          by = fabsf(most) < TINY ? 0 : -8.0f / most;
    memcpy(out, &scale, sizeof scale);
    for (int i = 0; i < BLOCK / 2; i++) {
        uint8_t low = i < n ? half(x[i] * by) : 0, high = i + 16 < n ? half(x[i + 16] * by) : 0;
        out[sizeof scale + (size_t)i] = (uint8_t)(low | high << 4);
    }
}

void fv__quantise_row(void *out, fv_dtype t, const float *x, int64_t n)
{
    int64_t step = t == FV_I8 ? ROW : BLOCK;
    for (int64_t i = 0; i < n; i += step) {
        uint8_t *to = (uint8_t *)out + fv_dtype_row(t, i);
        int64_t m = n - i < step ? n - i : step;
        if (t == FV_Q4)
            four(to, x + i, m);
        else
            eight(to, x + i, m, (m + BLOCK - 1) / BLOCK * BLOCK);
    }
}
