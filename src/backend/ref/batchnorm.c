/* batchnorm.c - statistics of a channel over the batch, and the norm made from them; x is
 * (outer,channels,inner).
 *
 * Channel ch owns elements (o * channels + ch) * inner + i.  The variance is the biased one, as
 * for the normalisation itself; the running estimate is the op's business. */
#include "backend/ref/ref.h"

static void batchnorm_stats(fv_stream *s, fv_stat *mean, fv_stat *var, const void *x, int64_t outer,
                            int64_t channels, int64_t inner)
{
    (void)s;
    for (int64_t ch = 0; ch < channels; ch++) {
        acc count = (acc)(outer * inner), m = 0, v = 0;
        for (int64_t o = 0; o < outer; o++)
            for (int64_t i = 0; i < inner; i++) m += ld(x, (o * channels + ch) * inner + i);
        m /= count;
        for (int64_t o = 0; o < outer; o++)
            for (int64_t i = 0; i < inner; i++) {
                acc d = ld(x, (o * channels + ch) * inner + i) - m;
                v += d * d;
            }
        sts(mean, ch, m);
        sts(var, ch, v / count);
    }
}

/* y = gain * (x - mean) / sqrt(var + eps) + bias */
static void batchnorm(fv_stream *s, void *y, const void *x, const fv_stat *mean, const fv_stat *var,
                      const void *gain, const void *bias, int64_t outer, int64_t channels,
                      int64_t inner, float eps)
{
    (void)s;
    for (int64_t o = 0; o < outer; o++)
        for (int64_t ch = 0; ch < channels; ch++) {
            int64_t from = (o * channels + ch) * inner;
            acc m = lds(mean, ch),
                scale = (gain ? ld(gain, ch) : 1) / SQRT(lds(var, ch) + (acc)eps);
            acc shift = bias ? ld(bias, ch) : 0;
            for (int64_t i = from; i < from + inner; i++) st(y, i, (ld(x, i) - m) * scale + shift);
        }
}

/* With n = (x - mean) * rstd, and sums over a channel:  dgain = sum(dy * n), dbias = sum(dy),
 * dx = gain * rstd * (dy - mean(dy) - n * mean(dy * n)); the means drop out when the statistics are
 * constants. */
static void batchnorm_bwd(fv_stream *s, fv_sink dx, fv_sink dgain, fv_sink dbias, const void *dy,
                          const void *x, const fv_stat *mean, const fv_stat *var, const void *gain,
                          int64_t outer, int64_t channels, int64_t inner, float eps, bool batch)
{
    (void)s;
    for (int64_t ch = 0; ch < channels; ch++) {
        acc m = lds(mean, ch), rstd = 1 / SQRT(lds(var, ch) + (acc)eps), dg = 0, db = 0;
        for (int64_t o = 0; o < outer; o++)
            for (int64_t i = 0; i < inner; i++) {
                int64_t at = (o * channels + ch) * inner + i;
                dg += ld(dy, at) * (ld(x, at) - m) * rstd;
                db += ld(dy, at);
            }
        if (dgain.data) sink_store(dgain, ch, dg);
        if (dbias.data) sink_store(dbias, ch, db);
        if (!dx.data) continue;

        acc scale = (gain ? ld(gain, ch) : 1) * rstd, count = (acc)(outer * inner);
        acc d_mean = batch ? db / count : 0, dn_mean = batch ? dg / count : 0;
        for (int64_t o = 0; o < outer; o++)
            for (int64_t i = 0; i < inner; i++) {
                int64_t at = (o * channels + ch) * inner + i;
                sink_store(dx, at,
                           scale * (ld(dy, at) - d_mean - (ld(x, at) - m) * rstd * dn_mean));
            }
    }
}

void REF(batchnorm)(fv_kernels *k);
void REF(batchnorm)(fv_kernels *k)
{
    k->batchnorm_stats = batchnorm_stats;
    k->batchnorm = batchnorm;
    k->batchnorm_bwd = batchnorm_bwd;
}
