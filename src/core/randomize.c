/* randomize.c - first values of parameters: drawn by index, so they depend neither on threads, nor
 * on the device, nor on the ranks that share a weight. */
#include <math.h>
#include <omp.h>

#include "params.h"

#define SAMPLES_PER_CALL 16384 /* worth a second thread */

/* Element i of one parameter: two words make one uniform or, by Box-Muller, one normal number.
 * By index, so that first values depend neither on threads nor on the device. */
static float sample_init(fv_init init, double bound, uint64_t seed, uint64_t site, uint64_t i)
{
    uint32_t w[4];
    fv_philox(w, seed, site, 0, i);
    double u = ((double)w[0] + 0.5) * 0x1p-32, v = ((double)w[1] + 0.5) * 0x1p-32;
    if (init.kind == FV_INIT_NORMAL)
        return (float)(bound * sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v));
    return (float)(bound * (2.0 * u - 1.0));
}

/* The half-width, or standard deviation, of what is drawn.  Xavier: rows are outputs, all other
 * axes inputs.
 * Glorot and Bengio, 2010: +-sqrt(6 / (in + out)). */
static double init_std(fv_init init, const fv_tensor *t)
{
    double scale = init.scale != 0 ? init.scale : 1.0;
    if (init.kind != FV_INIT_XAVIER) return scale;
    double out = t->shape.n ? (double)t->shape.d[0] : 1.0, in = (double)fv_len(t) / out;
    return scale * sqrt(6.0 / (in + out));
}

static void first_values(float *y, int64_t from, int64_t n, fv_init init, double bound,
                         uint64_t seed, uint64_t site, int threads)
{
    if (init.kind == FV_INIT_ZERO) return; /* as it is */
    if (n < SAMPLES_PER_CALL) threads = 1;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t i = 0; i < n; i++)
        y[i] = init.kind == FV_INIT_ONE
                   ? (float)bound
                   : sample_init(init, bound, seed, site, (uint64_t)(from + i));
}

/* One parameter at a time through host memory: the peak is the largest matrix, not the model. */
fv_status fv_params_randomize(fv_params *p, uint64_t seed, fv_err *e)
{
    if (!p->data) return fv_fail(e, FV_ESTATE, "parameters: not allocated");
    /* a GPU's host has its cores free */
    int threads = fv__device_is_host(p->dev) ? p->stream.threads : omp_get_max_threads();
    for (size_t i = 0; i < p->n; i++) {
        fv_entry *t = p->list[i];
        if (t->frozen) continue; /* a file gives them their values */
        int64_t n = fv_len(&t->tensor);
        size_t bytes = (size_t)n * sizeof(float);
        float *host = fv__alloc(&p->env, bytes);
        if (!host) return fv_fail(e, FV_ENOMEM, "parameter %s: out of memory", t->name);
        fv_tensor whole = {.shape = fv__split_whole(t)};
        double bound = init_std(t->init, &whole);
        if (!t->ranks) first_values(host, 0, n, t->init, bound, seed, i, threads);
        float *y = host; /* of a weight that ranks share, the elements that are this one's */
        for (int64_t run = 0, at, len; t->ranks && fv__split_run(t, run, &at, &len); run++) {
            first_values(y, at, len, t->init, bound, seed, i, threads);
            y += len;
        }
        fv_status st = fv_params_set(p, &t->tensor, host, n, e);
        fv__free(&p->env, host, bytes);
        if (st) return st;
    }
    return FV_OK;
}
