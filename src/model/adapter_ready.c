/* adapter_ready.c - first values of an adapter that depend on the base, once that is loaded. */
#include <math.h>

#include "core/core.h"
#include "fovea/author/params.h"
#include "model/adapter.h"

/* |row| of a weight for each of its outputs. */
static fv_status row_norms(fv_params *p, const fv_env *env, const fv_tensor *w, bool in_out,
                           float *norm, fv_err *e)
{
    int64_t n = fv_len(w), out = w->shape.d[in_out], in = w->shape.d[!in_out];
    size_t bytes = (size_t)n * sizeof(float);
    float *x = fv__alloc(env, bytes);
    fv_status st = x ? fv_params_get(p, w, x, n, e) : fv_fail(e, FV_ENOMEM, "out of memory");
    for (int64_t o = 0; !st && o < out; o++) {
        double sum = 0;
        for (int64_t i = 0; i < in; i++) {
            double v = (double)x[in_out ? i * out + o : o * in + i];
            sum += v * v;
        }
        norm[o] = (float)sqrt(sum);
    }
    fv__free(env, x, bytes);
    return st;
}

/* DoRA's magnitudes begin as the lengths of the base's rows, which are known once it is loaded:
 * then the model computes what it did before. */
fv_status fv__adapter_ready(fv_params *p, const fv_env *env, fv_err *e)
{
    fv_status st = FV_OK;
    for (int i = 0; !st && i < fv_params_count(p); i++) {
        const fv_tensor *w = fv_params_at(p, i);
        const fv_adapter *a = fv__param_adapter(w);
        if (!a || !a->magnitude) continue;
        int64_t out = fv_len(a->magnitude);
        size_t bytes = (size_t)out * sizeof(float);
        float *norm = fv__alloc(env, bytes);
        st = norm ? row_norms(p, env, w, fv__param_linear(w) == FV_LINEAR_IN_OUT, norm, e)
                  : fv_fail(e, FV_ENOMEM, "adapter: out of memory");
        if (!st) st = fv_params_set(p, a->magnitude, norm, out, e);
        fv__free(env, norm, bytes);
    }
    return st;
}
