/* norm.c - layer norm and RMS norm over the last axis, with the residual sum in the same pass. */
#include "backend/ref/ref.h"

/* Where the row that is normalised stands: x, or sum = x + a once it was written.
 * The sum is rounded to the model's dtype before it is normalised, since later layers read that. */
static const void *residual(void *sum, const void *x, const void *a, int64_t from, int64_t cols)
{
    if (!a) return x;
    for (int64_t i = from; i < from + cols; i++) st(sum, i, ld(x, i) + ld(a, i));
    return sum;
}

/* y = gain * (x - mean) * rstd + bias,  rstd = 1 / sqrt(var + eps) */
static void layernorm(fv_stream *s, void *y, fv_stat *mean, fv_stat *rstd, void *sum, const void *x,
                      const void *a, const void *gain, const void *bias, int64_t rows, int64_t cols,
                      float eps)
{
    (void)s;
    for (int64_t r = 0; r < rows; r++) {
        int64_t o = r * cols;
        const void *in = residual(sum, x, a, o, cols);
        acc m = 0, var = 0;
        for (int64_t j = 0; j < cols; j++) m += ld(in, o + j);
        m /= (acc)cols;
        for (int64_t j = 0; j < cols; j++) {
            acc d = ld(in, o + j) - m;
            var += d * d;
        }
        acc scale = 1 / SQRT(var / (acc)cols + (acc)eps);
        sts(mean, r, m);
        sts(rstd, r, scale);
        for (int64_t j = 0; j < cols; j++) {
            acc v = (ld(in, o + j) - m) * scale;
            if (gain) v *= ld(gain, j);
            if (bias) v += ld(bias, j);
            st(y, o + j, v);
        }
    }
}

/* With g = dy * gain and n = (x - mean) * rstd:  dx = rstd * (g - mean(g) - n * mean(g * n)). */
static void layernorm_dx(fv_sink dx, const void *dy, const void *x, const void *gain,
                         const fv_stat *mean, const fv_stat *rstd, int64_t rows, int64_t cols)
{
    for (int64_t r = 0; r < rows; r++) {
        int64_t o = r * cols;
        acc m = lds(mean, r), scale = lds(rstd, r), g_mean = 0, gn_mean = 0;
        for (int64_t j = 0; j < cols; j++) {
            acc g = ld(dy, o + j) * (gain ? ld(gain, j) : 1);
            g_mean += g;
            gn_mean += g * (ld(x, o + j) - m) * scale;
        }
        g_mean /= (acc)cols;
        gn_mean /= (acc)cols;
        for (int64_t j = 0; j < cols; j++) {
            acc g = ld(dy, o + j) * (gain ? ld(gain, j) : 1), n = (ld(x, o + j) - m) * scale;
            sink_store(dx, o + j, scale * (g - g_mean - n * gn_mean));
        }
    }
}

/* y = gain n + bias:  dgain_j = sum over rows of dy n, dbias_j = sum of dy */
static void layernorm_bwd(fv_stream *s, fv_sink dx, fv_sink dgain, fv_sink dbias, const void *dy,
                          const void *x, const void *gain, const fv_stat *mean, const fv_stat *rstd,
                          int64_t rows, int64_t cols)
{
    (void)s;
    if (dx.data) layernorm_dx(dx, dy, x, gain, mean, rstd, rows, cols);
    if (!dgain.data && !dbias.data) return;
    for (int64_t j = 0; j < cols; j++) {
        acc dg = 0, db = 0;
        for (int64_t r = 0; r < rows; r++) {
            acc d = ld(dy, r * cols + j);
            dg += d * (ld(x, r * cols + j) - lds(mean, r)) * lds(rstd, r);
            db += d;
        }
        if (dgain.data) sink_store(dgain, j, dg);
        if (dbias.data) sink_store(dbias, j, db);
    }
}

/* y = gain * x * rstd,  rstd = 1 / sqrt(mean(x^2) + eps) */
static void rmsnorm(fv_stream *s, void *y, fv_stat *rstd, void *sum, const void *x, const void *a,
                    const void *gain, int64_t rows, int64_t cols, float eps)
{
    (void)s;
    for (int64_t r = 0; r < rows; r++) {
        int64_t o = r * cols;
        const void *in = residual(sum, x, a, o, cols);
        acc square = 0;
        for (int64_t j = 0; j < cols; j++) square += ld(in, o + j) * ld(in, o + j);
        acc scale = 1 / SQRT(square / (acc)cols + (acc)eps);
        sts(rstd, r, scale);
        for (int64_t j = 0; j < cols; j++)
            st(y, o + j, ld(in, o + j) * scale * (gain ? ld(gain, j) : 1));
    }
}

/* With g = dy * gain and n = x * rstd:  dx = rstd * (g - n * mean(g * n)). */
static void rmsnorm_dx(fv_sink dx, const void *dy, const void *x, const void *gain,
                       const fv_stat *rstd, int64_t rows, int64_t cols)
{
    for (int64_t r = 0; r < rows; r++) {
        int64_t o = r * cols;
        acc scale = lds(rstd, r), gn_mean = 0;
        for (int64_t j = 0; j < cols; j++)
            gn_mean += ld(dy, o + j) * (gain ? ld(gain, j) : 1) * ld(x, o + j) * scale;
        gn_mean /= (acc)cols;
        for (int64_t j = 0; j < cols; j++) {
            acc g = ld(dy, o + j) * (gain ? ld(gain, j) : 1);
            sink_store(dx, o + j, scale * (g - ld(x, o + j) * scale * gn_mean));
        }
    }
}

/* y = gain x rstd:  dgain_j = sum over rows of dy x rstd */
static void rmsnorm_bwd(fv_stream *s, fv_sink dx, fv_sink dgain, const void *dy, const void *x,
                        const void *gain, const fv_stat *rstd, int64_t rows, int64_t cols)
{
    (void)s;
    if (dx.data) rmsnorm_dx(dx, dy, x, gain, rstd, rows, cols);
    if (!dgain.data) return;
    for (int64_t j = 0; j < cols; j++) {
        acc dg = 0;
        for (int64_t r = 0; r < rows; r++)
            dg += ld(dy, r * cols + j) * ld(x, r * cols + j) * lds(rstd, r);
        sink_store(dgain, j, dg);
    }
}

void REF(norm)(fv_kernels *k);
void REF(norm)(fv_kernels *k)
{
    k->layernorm = layernorm;
    k->layernorm_bwd = layernorm_bwd;
    k->rmsnorm = rmsnorm;
    k->rmsnorm_bwd = rmsnorm_bwd;
}
