/* adam.c - AdamW over the flat block of parameters, with the norm of the gradient and its limit. */
#include <math.h>

#include "core/core.h"
#include "fovea/train.h"

struct fv_adam {
    fv_device *dev;
    fv_params *params;
    fv_stream stream;
    int64_t n; /* numbers in the flat block */
    fv_dtype dtype;
    float *m, *v, *master; /* device; master only where parameters are narrow */
    float *scratch;        /* device: the sum of squares, the scale */
};

static float *block(fv_adam *a, int64_t n)
{
    size_t bytes = (size_t)n * sizeof(float);
    float *p = a->dev->backend->alloc(a->dev, bytes);
    if (p) a->dev->backend->zero(&a->stream, p, bytes);
    return p;
}

fv_status fv_adam_new(fv_adam **out, fv_params *p, fv_device *d, fv_err *e)
{
    fv_adam *a = *out = fv__alloc(&d->env, sizeof *a);
    if (!a) return fv_fail(e, FV_ENOMEM, "adam: out of memory");
    *a = (fv_adam){.dev = d, .params = p, .dtype = fv_params_at(p, 0)->dtype};
    fv_status st = fv__stream_open(&a->stream, d, 0, e);
    void *data = fv_params_data(p, &a->n);
    bool narrow = a->dtype != FV_F32;
    if (!st) {
        a->m = block(a, a->n);
        a->v = block(a, a->n);
        a->scratch = block(a, 2);
        if (narrow) a->master = block(a, a->n);
        if (!a->m || !a->v || !a->scratch || (narrow && !a->master))
            st = fv_fail(e, FV_ENOMEM, "adam: out of memory for the moments of %lld parameters", (long long)a->n);
    }
    if (!st && narrow) d->k[a->dtype]->cast(&a->stream, (fv_sink){.data = a->master, .dtype = FV_F32}, data, a->n);
    if (st) {
        fv_adam_free(a);
        *out = NULL;
    }
    return st;
}

void fv_adam_free(fv_adam *a)
{
    if (!a) return;
    fv_env env = a->dev->env;
    const fv_backend *b = a->dev->backend;
    size_t bytes = (size_t)a->n * sizeof(float);
    fv__stream_close(&a->stream);
    if (a->m) b->release(a->dev, a->m, bytes);
    if (a->v) b->release(a->dev, a->v, bytes);
    if (a->master) b->release(a->dev, a->master, bytes);
    if (a->scratch) b->release(a->dev, a->scratch, 2 * sizeof(float));
    fv__free(&env, a, sizeof *a);
}

/* ---- a step ---- */

static double gradient_norm(fv_adam *a, const void *grad)
{
    float sum;
    a->dev->k[FV_F32]->sumsq(&a->stream, a->scratch, grad, a->n);
    a->dev->backend->download(&a->stream, &sum, a->scratch, sizeof sum);
    return sqrt((double)sum);
}

/* Neighbours in the flat block that are treated alike take one call; the padding between them is zero and stays so. */
static void update(fv_adam *a, const float *grad, fv_adamw o, float decay)
{
    const fv_kernels *k = a->dev->k[a->dtype];
    int64_t all;
    char *data = fv_params_data(a->params, &all);
    size_t size = fv_dtype_size(a->dtype);
    for (int i = 0, n = fv_params_count(a->params); i < n;) {
        const fv_tensor *first = fv_params_at(a->params, i);
        bool vector = first->shape.n < 2;
        int64_t from = (int64_t)((size_t)((char *)first->data - data) / size), to = all;
        for (i++; i < n; i++) {
            const fv_tensor *t = fv_params_at(a->params, i);
            if (t->wants_grad == first->wants_grad && (t->shape.n < 2) == vector) continue;
            to = (int64_t)((size_t)((char *)t->data - data) / size);
            break;
        }
        if (!first->wants_grad) continue;
        o.decay = vector ? 0 : decay;
        float *w = a->master ? a->master + from : (float *)(void *)data + from;
        k->adamw(&a->stream, w, a->m + from, a->v + from, a->master ? data + (size_t)from * size : NULL, grad + from, to - from,
                 &o);
    }
}

fv_status fv_adam_step(fv_adam *a, const fv_train_opt *o, int64_t step, double *norm, fv_err *e)
{
    int64_t n;
    const float *grad = fv_params_grad(a->params, &n);
    if (!grad) return fv_fail(e, FV_ESTATE, "adam: the parameters have no gradients");
    *norm = gradient_norm(a, grad);
    if (!isfinite(*norm)) return fv_fail(e, FV_ENUMERIC, "update %lld: the gradient is not finite", (long long)step);
    float scale = o->clip > 0 && *norm > (double)o->clip ? (float)((double)o->clip / *norm) : 1;
    a->dev->backend->upload(&a->stream, a->scratch + 1, &scale, sizeof scale);
    fv_adamw how = {.lr = (float)fv_learning_rate(o, step),
                    .beta1 = o->beta1,
                    .beta2 = o->beta2,
                    .eps = o->eps,
                    .correct1 = (float)(1 - pow((double)o->beta1, (double)step)),
                    .correct2 = (float)(1 - pow((double)o->beta2, (double)step)),
                    .grad_scale = a->scratch + 1};
    update(a, grad, how, o->decay);
    a->dev->backend->sync(&a->stream);
    return a->stream.err.code ? fv_fail(e, a->stream.err.code, "%s", a->stream.err.text) : FV_OK;
}

/* ---- on disk: "m", "v" and "master" as f32 ---- */

static fv_status fetch(void *user, const fv_st_item *item, int64_t at, int64_t n, void *out, fv_err *e)
{
    (void)e;
    fv_adam *a = user;
    const float *from = item->name[0] == 'v' ? a->v : item->name[1] == 'a' ? a->master : a->m;
    a->dev->backend->download(&a->stream, out, from + at, (size_t)n * sizeof(float));
    return FV_OK;
}

fv_status fv_adam_save(fv_adam *a, const fv_env *env, const char *path, fv_err *e)
{
    fv_shape s = FV_SHAPE(a->n);
    const fv_st_item items[] = {
        {"m", FV_F32, s, FV_F32, NULL}, {"v", FV_F32, s, FV_F32, NULL}, {"master", FV_F32, s, FV_F32, NULL}};
    return fv_st_save(env, path, items, a->master ? 3 : 2, (fv_st_save_opt){.fetch = fetch, .user = a}, e);
}

static fv_status restore(fv_adam *a, const fv_st *file, const char *name, float *to, fv_err *e)
{
    fv_st_info info;
    fv_status st = fv_st_find(file, name, &info, e);
    if (st) return st;
    if (info.count != a->n)
        return fv_fail(e, FV_EFORMAT, "moments \"%s\": %lld numbers, expected %lld", name, (long long)info.count,
                       (long long)a->n);
    size_t bytes = (size_t)a->n * sizeof(float);
    float *host = fv__alloc(&a->dev->env, bytes);
    if (!host) return fv_fail(e, FV_ENOMEM, "moments \"%s\": out of memory", name);
    st = fv_st_read(file, &info, host, FV_F32, a->n, e);
    if (!st) a->dev->backend->upload(&a->stream, to, host, bytes);
    a->dev->backend->sync(&a->stream);
    fv__free(&a->dev->env, host, bytes);
    return st;
}

fv_status fv_adam_load(fv_adam *a, const fv_env *env, const char *path, fv_err *e)
{
    fv_st *file;
    fv_status st = fv_st_open(&file, env, path, e);
    if (st) return st;
    st = restore(a, file, "m", a->m, e);
    if (!st) st = restore(a, file, "v", a->v, e);
    if (!st && a->master) st = restore(a, file, "master", a->master, e);
    fv_st_close(file);
    return st;
}
