/* batchnorm.c - y = gain * (x - mean) / sqrt(var + eps) + bias for each channel of x (B,C,..).
 *
 * While training the statistics are those of the batch, and the running ones move towards them
 * (variance unbiased, as PyTorch keeps it); otherwise the running ones are used and count as
 * constants. */
#include "fovea/author/op.h"
#include "ops/stat.h"
#include "ops/walk.h"

typedef struct {
    fv_node node;
    const fv_stat *mean, *var;
    int64_t outer, channels, inner;
    float eps;
    bool batch;
} batchnorm;

/* y = gain * (x - mean) * rstd + bias; with batch statistics mean and rstd depend on x and take
 * part. */
static void backward(fv_ctx *c, fv_node *n)
{
    const batchnorm *s = (batchnorm *)n;
    fv_tensor *x = n->in[0], *gain = n->in[1], *bias = n->in[2];
    const fv_kernels *k = fv_kernels_of(c, x->dtype);
    if (!fv_need(c, k->batchnorm_bwd, "batchnorm_bwd", x->dtype)) return;
    fv_sink dx = fv_grad(c, x), dgain = fv_grad(c, gain), dbias = fv_grad(c, bias);
    k->batchnorm_bwd(fv_ctx_stream(c), dx, dgain, dbias, n->y->grad, x->data, s->mean, s->var,
                     gain ? gain->data : NULL, s->outer, s->channels, s->inner, s->eps, s->batch);
}

static bool check(fv_ctx *c, const fv_tensor *x, const fv_tensor *of_channel, const char *what)
{
    if (!of_channel) return true;
    bool fits = fv_len(of_channel) == x->shape.d[1] && (unsigned)of_channel->dtype < FV_FLOATS;
    if (!fits)
        fv_raise(c, FV_ESHAPE, "batchnorm: x %s, %s %s", fv_desc(x).s, what, fv_desc(of_channel).s);
    return fits;
}

/* running = (1 - momentum) * running + momentum * factor * batch */
static void move(fv_ctx *c, fv_tensor *running, const fv_stat *batch, fv_dtype st, float momentum,
                 double factor)
{
    const fv_kernels *k = fv_kernels_of(c, running->dtype), *ks = fv_kernels_of(c, st);
    int64_t n = fv_len(running);
    void *part = fv_scratch(c, st, n);
    if (!part || !k || !ks ||
        !fv_need(c, k->unary && ks->unary && ks->cast, "unary", running->dtype))
        return;
    k->unary(fv_ctx_stream(c), FV_U_SCALE, running->data, running->data, n, 1 - momentum, 0);
    ks->unary(fv_ctx_stream(c), FV_U_SCALE, part, batch, n, (float)((double)momentum * factor), 0);
    ks->cast(fv_ctx_stream(c), (fv_sink){running->data, running->dtype, true}, part, n);
}

/* Running statistics as the kernel wants them. */
static const fv_stat *as_stat(fv_ctx *c, const fv_tensor *running, fv_dtype st)
{
    if (running->dtype == st) return running->data;
    const fv_kernels *k = fv_kernels_of(c, running->dtype);
    void *p = k && fv_need(c, k->cast, "cast", running->dtype) ? fv_scratch(c, st, fv_len(running))
                                                               : NULL;
    if (p) k->cast(fv_ctx_stream(c), (fv_sink){p, st, false}, running->data, fv_len(running));
    return p;
}

fv_tensor *fv_batchnorm(fv_ctx *c, fv_tensor *x, fv_tensor *gain, fv_tensor *bias, fv_tensor *mean,
                        fv_tensor *var, float momentum, float eps)
{
    if (!x || !mean || !var) return NULL;
    if (x->shape.n < 2)
        return fv_raise(c, FV_ESHAPE, "batchnorm: x %s has no channels", fv_desc(x).s);
    if (!check(c, x, gain, "gain") || !check(c, x, bias, "bias")) return NULL;
    if (!check(c, x, mean, "mean") || !check(c, x, var, "var")) return NULL;
    if (gain && !fv_same_dtype(c, "batchnorm", x, gain)) return NULL;
    if (bias && !fv_same_dtype(c, "batchnorm", x, bias)) return NULL;
    const fv_kernels *k = fv_kernels_of(c, x->dtype);
    if (!k || !fv_need(c, k->batchnorm_stats && k->batchnorm, "batchnorm", x->dtype)) return NULL;

    fv_axes a = fv__axes(x->shape, 1);
    batchnorm b = {.outer = a.outer,
                   .channels = a.n,
                   .inner = a.inner,
                   .eps = eps,
                   .batch = fv_ctx_training(c)};
    int64_t count = b.outer * b.inner;
    fv_dtype st = fv__stat_dtype(x->dtype);
    if (b.batch && count < 2)
        return fv_raise(c, FV_ESHAPE,
                        "batchnorm: x %s has one value a channel, which has no variance",
                        fv_desc(x).s);

    fv_tensor *y = fv_new(c, x->dtype, x->shape);
    if (b.batch) {
        fv_stat *m = fv_scratch(c, st, b.channels), *v = fv_scratch(c, st, b.channels);
        if (!m || !v) return NULL;
        k->batchnorm_stats(fv_ctx_stream(c), m, v, x->data, b.outer, b.channels, b.inner);
        move(c, mean, m, st, momentum, 1);
        move(c, var, v, st, momentum, (double)count / (double)(count - 1));
        b.mean = m;
        b.var = v;
    } else {
        b.mean = as_stat(c, mean, st);
        b.var = as_stat(c, var, st);
    }
    if (!y || !b.mean || !b.var) return NULL;
    k->batchnorm(fv_ctx_stream(c), y->data, x->data, b.mean, b.var, gain ? gain->data : NULL,
                 bias ? bias->data : NULL, b.outer, b.channels, b.inner, eps);

    batchnorm *s = fv_record(c, sizeof *s, backward, y, x, gain, bias);
    if (s) {
        b.node = s->node;
        *s = b;
    }
    return y;
}
