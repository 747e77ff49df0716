/* adam.c - AdamW over the flat block of parameters, with clipping by the norm of the gradient
 * and an exponential moving average (EMA) of the parameters.
 *
 *     m = beta1 m + (1 - beta1) g            v = beta2 v + (1 - beta2) g^2
 *     w = w - lr (m / c1 / (sqrt(v / c2) + eps) + decay w)       c = 1 - beta^step
 *
 * All parameters lie in one block, so a step takes a handful of kernel calls.  Whatever differs
 * between updates (learning rate, bias corrections, the factor of clipping) is in device memory,
 * in an fv_update: a step can be captured as a graph and replayed.  Where parameters are bf16 an
 * f32 master copy is updated and rounded into them. */
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "core/adapter.h"
#include "train/adam.h"
#include "train/groups.h"
#include "fovea/author/train.h"
#include "fovea/store.h"

struct fv_adam {
    fv_device *dev;
    fv_params *params;
    fv_stream stream;
    int64_t n; /* numbers in the flat block */
    fv_dtype dtype;
    float *m, *v, *master; /* device; master only where parameters are narrow */
    float *ema;            /* device, or NULL */
    bool swapped;   /* the parameters hold the average, and ema (where they are not narrow) them */
    fv_update *now; /* device: the numbers of the update */
    float *sum;     /* device: the gradient's sum of squares */
    float (*result)[2]; /* device: FV__UPDATES pairs of loss and norm */
    float *scale;       /* host: a factor of the learning rate for each parameter */
    size_t scale_bytes;
    int *order; /* host: parameters as they stand in the flat block, without frozen ones */
    int n_order;
    size_t order_bytes;
};

#define NOW ((int64_t)(sizeof(fv_update) / sizeof(float)))

/* A zeroed block of n floats on the device; NULL when memory is out. */
static float *block(fv_adam *a, int64_t n)
{
    size_t bytes = (size_t)n * sizeof(float);
    float *p = a->dev->backend->alloc(a->dev, bytes);
    if (p) a->dev->backend->zero(&a->stream, p, bytes);
    return p;
}

/* The parameters in f32, on the device. */
static float *weights(const fv_adam *a)
{
    int64_t n;
    return a->master ? a->master : fv_params_data(a->params, &n);
}

static fv_status make_blocks(fv_adam *a, bool ema, fv_err *e)
{
    int64_t n;
    bool narrow = a->dtype != FV_F32;
    void *data = fv_params_data(a->params, &n);
    a->m = block(a, a->n);
    a->v = block(a, a->n);
    a->now = (void *)block(a, NOW);
    a->result = (void *)block(a, 2 * FV__UPDATES);
    a->sum = block(a, 1);
    if (narrow) a->master = block(a, a->n);
    if (ema) a->ema = block(a, a->n);
    if (!a->m || !a->v || !a->now || !a->result || !a->sum || (narrow && !a->master) ||
        (ema && !a->ema))
        return fv_fail(e, FV_ENOMEM, "adam: out of memory for the moments of %lld parameters%s",
                       (long long)a->n, fv__memory_left(a->dev).s);
    if (narrow)
        a->dev->k[a->dtype]->cast(&a->stream, (fv_sink){.data = a->master, .dtype = FV_F32}, data,
                                  a->n);
    if (ema) a->dev->backend->move(&a->stream, a->ema, weights(a), (size_t)a->n * sizeof(float));
    return FV_OK;
}

/* The parameters sorted by address, by insertion: there are only hundreds of them. */
static fv_status in_order(fv_adam *a, fv_err *e)
{
    int n = fv_params_count(a->params);
    a->order_bytes = (size_t)n * sizeof *a->order;
    a->order = fv__alloc(&a->dev->env, a->order_bytes);
    if (!a->order) return fv_fail(e, FV_ENOMEM, "adam: out of memory");
    for (int i = 0; i < n; i++) {
        if (fv__param_frozen(fv_params_at(a->params, i))) continue;
        int at = a->n_order++;
        const char *data = fv_params_at(a->params, i)->data;
        for (; at > 0 && (const char *)fv_params_at(a->params, a->order[at - 1])->data > data; at--)
            a->order[at] = a->order[at - 1];
        a->order[at] = i;
    }
    return FV_OK;
}

fv_status fv_adam_new(fv_adam **out, fv_params *p, fv_device *d, const fv_train_opt *o, fv_err *e)
{
    *out = NULL;
    fv_adam *a = fv__alloc(&d->env, sizeof *a);
    if (!a) return fv_fail(e, FV_ENOMEM, "adam: out of memory");
    *a = (fv_adam){.dev = d, .params = p, .dtype = fv_params_at(p, 0)->dtype};
    fv_params_data(p, &a->n);
    a->scale_bytes = (size_t)fv_params_count(p) * sizeof *a->scale;
    a->scale = fv__alloc(&d->env, a->scale_bytes);
    fv_status st = a->scale ? fv__groups(a->scale, p, o, e)
                            : fv_fail(e, FV_ENOMEM, "adam: out of memory");
    if (!st) st = in_order(a, e);
    if (!st) st = fv__stream_open(&a->stream, d, 0, e);
    if (!st) st = make_blocks(a, o && o->ema > 0, e);
    if (st)
        fv_adam_free(a);
    else
        *out = a;
    return st;
}

void fv_adam_free(fv_adam *a)
{
    if (!a) return;
    fv_env env = a->dev->env;
    size_t bytes = (size_t)a->n * sizeof(float);
    float *const blocks[] = {a->m, a->v, a->master, a->ema};
    for (int i = 0; i < 4; i++)
        if (blocks[i]) a->dev->backend->release(a->dev, blocks[i], bytes);
    if (a->now) a->dev->backend->release(a->dev, a->now, NOW * sizeof(float));
    if (a->result) a->dev->backend->release(a->dev, a->result, FV__UPDATES * sizeof *a->result);
    if (a->sum) a->dev->backend->release(a->dev, a->sum, sizeof(float));
    if (a->stream.dev) fv__stream_close(&a->stream);
    fv__free(&env, a->scale, a->scale_bytes);
    fv__free(&env, a->order, a->order_bytes);
    fv__free(&env, a, sizeof *a);
}

/* ---- a step ---- */

/* Whether two parameters take the same learning rate and weight decay. */
static bool alike(const fv_adam *a, int i, int j)
{
    const fv_tensor *s = fv_params_at(a->params, i), *t = fv_params_at(a->params, j);
    return s->wants_grad == t->wants_grad && (s->shape.n < 2) == (t->shape.n < 2) &&
           a->scale[i] == a->scale[j];
}

/* Runs of parameters with the same learning rate and weight decay take one kernel call; the padding
 * between them is zero and stays zero.  Vectors (norms, biases) are not decayed. */
static void update(fv_adam *a, fv_stream *s, const float *grad, fv_adamw o, float decay)
{
    const fv_kernels *k = a->dev->k[a->dtype];
    int64_t all;
    char *data = fv_params_data(a->params, &all);
    size_t size = fv_dtype_size(a->dtype);
    for (int i = 0, n = a->n_order; i < n;) {
        int lead = a->order[i++];
        const fv_tensor *first = fv_params_at(a->params, lead);
        while (i < n && alike(a, lead, a->order[i])) i++;
        int64_t from = (int64_t)((size_t)((char *)first->data - data) / size), to = all;
        if (i < n)
            to = (int64_t)((size_t)((char *)fv_params_at(a->params, a->order[i])->data - data) /
                           size);
        if (!first->wants_grad) continue;
        o.decay = first->shape.n < 2 ? 0 : decay;
        o.lr = a->scale[lead];
        float *w = a->master ? a->master + from : (float *)(void *)data + from,
              *ema = a->ema ? a->ema + from : NULL;
        k->adamw(s, w, a->m + from, a->v + from, ema, a->master ? data + (size_t)from * size : NULL,
                 grad + from, to - from, &o);
    }
}

/* Waits for the device; an error that a kernel met becomes the result. */
static fv_status finish(fv_adam *a, fv_err *e)
{
    a->dev->backend->sync(&a->stream);
    return a->stream.err.code ? fv_fail(e, a->stream.err.code, "%s", a->stream.err.text) : FV_OK;
}

/* The decay of the EMA grows with the step, min(ema, (1 + step) / (10 + step)): with the full decay
 * from the start it would hold on to the random initial values for long. */
void fv__adam_upload(fv_adam *a, const fv_train_opt *o, int64_t step)
{
    double early = (1.0 + (double)step) / (10.0 + (double)step),
           keep = (double)o->ema < early ? (double)o->ema : early;
    fv_update u = {.lr = (float)fv_learning_rate(o, step),
                   .bias_correction1 = (float)(1 - pow((double)o->beta1, (double)step)),
                   .bias_correction2 = (float)(1 - pow((double)o->beta2, (double)step)),
                   .ema_decay = (float)keep,
                   .result_index = (int32_t)(step % FV__UPDATES)};
    a->dev->backend->upload(&a->stream, a->now, &u, offsetof(fv_update, loss));
}

void fv__adam_prepare_step(fv_adam *a, fv_stream *s, const void *loss, fv_dtype t, bool more)
{
    fv_sink to = {.data = (char *)a->now + offsetof(fv_update, loss), .dtype = FV_F32, .add = more};
    a->dev->k[t]->cast(s, to, loss, 1);
}

/* The norm is taken over all gradients, frozen parameters included (theirs are zero).  clip_norm
 * writes the factor; at a norm or loss that is not finite it sets a flag that stays set: this step
 * and those behind it change nothing. */
void fv__adam_run(fv_adam *a, fv_stream *s, const fv_train_opt *o)
{
    const float *grad = fv__params_grad_on(a->params, s);
    const fv_kernels *k = a->dev->k[FV_F32];
    k->sumsq(s, a->sum, grad, a->n);
    k->clip_norm(s, a->now, a->sum, o->clip, a->result);
    update(a, s, grad,
           (fv_adamw){.beta1 = o->beta1, .beta2 = o->beta2, .eps = o->eps, .now = a->now},
           o->decay);
}

/* Results lie in a ring of FV__UPDATES entries by the number of the update. */
fv_status fv__adam_read(fv_adam *a, int64_t from, int64_t n, float (*out)[2], fv_err *e)
{
    float all[FV__UPDATES][2];
    a->dev->backend->download(&a->stream, all, a->result, sizeof all);
    for (int64_t i = 0; i < n; i++) memcpy(out[i], all[(from + i) % FV__UPDATES], sizeof *out);
    fv_status st = finish(a, e);
    for (int64_t i = 0; !st && i < n; i++) {
        const char *what = isfinite(out[i][0]) ? isfinite(out[i][1]) ? NULL : "gradient" : "loss";
        if (what)
            st = fv_fail(e, FV_ENUMERIC, "update %lld: the %s is not finite", (long long)(from + i),
                         what);
    }
    return st;
}

fv_status fv_adam_step(fv_adam *a, const fv_train_opt *o, int64_t step, double *norm, fv_err *e)
{
    int64_t n;
    float result[1][2];
    const fv_update fresh = {0};
    if (!fv_params_grad(a->params, &n))
        return fv_fail(e, FV_ESTATE, "adam: the parameters have no gradients");
    a->dev->backend->upload(&a->stream, a->now, &fresh, sizeof fresh);
    fv__adam_upload(a, o, step);
    fv__adam_run(a, &a->stream, o);
    fv_status st = fv__adam_read(a, step, 1, result, e);
    *norm = (double)result[0][1];
    return st;
}

/* Exchanges parameters and EMA.  Narrow parameters are rounded copies of the master weights:
 * they are rounded anew from either, and nothing is exchanged. */
fv_status fv_adam_swap(fv_adam *a, fv_err *e)
{
    if (!a->ema) return FV_OK;
    const fv_backend *b = a->dev->backend;
    int64_t n;
    void *data = fv_params_data(a->params, &n);
    a->swapped = !a->swapped;
    if (a->master) { /* the parameters are copies, made anew from either */
        const float *from = a->swapped ? a->ema : a->master;
        a->dev->k[FV_F32]->cast(&a->stream, (fv_sink){.data = data, .dtype = a->dtype}, from, a->n);
        return finish(a, e);
    }
    size_t bytes = (size_t)a->n * sizeof(float);
    void *hold = fv_stream_scratch(&a->stream, bytes);
    if (!hold) return fv_fail(e, FV_ENOMEM, "moving average: out of memory");
    b->move(&a->stream, hold, data, bytes);
    b->move(&a->stream, data, a->ema, bytes);
    b->move(&a->stream, a->ema, hold, bytes);
    return finish(a, e);
}

/* ---- on disk, as f32: m, v, master and ema of each parameter, by its name, so that a file does
 * not hang on how they lie in memory ---- */

#define LONGEST_NAME 256 /* of an array in the file */

static const char *const kinds[] = {"m", "v", "master", "ema"};
enum { KINDS = (int)(sizeof kinds / sizeof *kinds) };

static float *block_of(const fv_adam *a, int kind)
{
    float *const all[KINDS] = {a->m, a->v, a->master, a->ema};
    return all[kind];
}

/* Where parameter t begins in every block. */
static int64_t offset(const fv_adam *a, const fv_tensor *t)
{
    int64_t n;
    const char *first = fv_params_data(a->params, &n);
    return ((const char *)t->data - first) / (int64_t)fv_dtype_size(a->dtype);
}

/* Gives fv_st_save a piece of an array: the name says which block and which parameter. */
static fv_status fetch(void *user, const fv_st_item *item, int64_t at, int64_t n, void *out,
                       fv_err *e)
{
    fv_adam *a = user;
    for (int kind = 0; kind < KINDS; kind++) {
        size_t len = strlen(kinds[kind]);
        if (strncmp(item->name, kinds[kind], len) || item->name[len] != '.') continue;
        const float *from = block_of(a, kind) +
                            offset(a, fv_params_find(a->params, item->name + len + 1));
        a->dev->backend->download(&a->stream, out, from + at, (size_t)n * sizeof(float));
        return FV_OK;
    }
    return fv_fail(e, FV_EARG, "moments: no array \"%s\"", item->name);
}

static fv_status name_in_file(char *out, int kind, const fv_tensor *t, fv_err *e)
{
    int n = snprintf(out, LONGEST_NAME, "%s.%s", kinds[kind], t->name);
    return n < LONGEST_NAME ? FV_OK
                            : fv_fail(e, FV_EARG, "moments: the name \"%s\" is too long", t->name);
}

fv_status fv_adam_save(fv_adam *a, const fv_env *env, const char *path, fv_err *e)
{
    int params = a->n_order, n = 0;
    size_t items_bytes = (size_t)params * KINDS * sizeof(fv_st_item),
           names_bytes = (size_t)params * KINDS * LONGEST_NAME;
    fv_st_item *items = fv__alloc(env, items_bytes);
    char(*names)[LONGEST_NAME] = fv__alloc(env, names_bytes);
    fv_status st = items && names ? FV_OK : fv_fail(e, FV_ENOMEM, "%s: out of memory", path);
    for (int kind = 0; kind < KINDS; kind++)
        for (int i = 0; !st && block_of(a, kind) && i < params; i++, n++) {
            const fv_tensor *t = fv_params_at(a->params, a->order[i]);
            st = name_in_file(names[n], kind, t, e);
            items[n] = (fv_st_item){names[n], FV_F32, t->shape, FV_F32, NULL};
        }
    if (!st) st = fv_st_save(env, path, items, n, (fv_st_save_opt){.fetch = fetch, .user = a}, e);
    fv__free(env, items, items_bytes);
    fv__free(env, names, names_bytes);
    return st;
}

/* One array of the file into its block.  host has space for the largest parameter. */
static fv_status restore(fv_adam *a, const fv_st *file, int kind, const fv_tensor *t, float *host,
                         fv_err *e)
{
    char name[LONGEST_NAME];
    fv_st_info info;
    fv_status st = name_in_file(name, kind, t, e);
    if (!st) st = fv_st_find(file, name, &info, e);
    if (st) return st;
    if (info.count != fv_len(t))
        return fv_fail(e, FV_EFORMAT, "moments \"%s\": %lld numbers, expected %lld", name,
                       (long long)info.count, (long long)fv_len(t));
    st = fv_st_read(file, &info, host, FV_F32, info.count, e);
    if (st) return st;
    a->dev->backend->upload(&a->stream, block_of(a, kind) + offset(a, t), host,
                            (size_t)info.count * sizeof(float));
    a->dev->backend->sync(&a->stream);
    return FV_OK;
}

fv_status fv_adam_load(fv_adam *a, const fv_env *env, const char *path, fv_err *e)
{
    fv_st *file;
    size_t bytes = (size_t)a->n * sizeof(float);
    fv_status st = fv_st_open(&file, env, path, e);
    if (st) return st;
    float *host = fv__alloc(env, bytes);
    if (!host) st = fv_fail(e, FV_ENOMEM, "%s: out of memory", path);
    for (int kind = 0; kind < KINDS; kind++)
        for (int i = 0; !st && block_of(a, kind) && i < a->n_order; i++)
            st = restore(a, file, kind, fv_params_at(a->params, a->order[i]), host, e);
    fv__free(env, host, bytes);
    fv_st_close(file);
    return st;
}
