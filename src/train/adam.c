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
#include "backend/backends.h"
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "core/adapter.h"
#include "train/adam.h"
#include "train/groups.h"
#include "train/sharded.h"
#include "fovea/author/train.h"

#define NOW ((int64_t)(sizeof(fv_update) / sizeof(float)))

/* A zeroed block of n floats on the device; NULL when memory is out. */
static float *block(fv_adam *a, int64_t n)
{
    size_t bytes = (size_t)n * sizeof(float);
    float *p = a->dev->backend->alloc(a->dev, bytes);
    if (p) a->dev->backend->zero(&a->stream, p, bytes);
    return p;
}

/* What this rank stores of the flat block, bucket by bucket: its numbers [*from, *to) are at *local
 * in m, v, master and ema. */
static bool next_share(const fv_adam *a, int64_t *bucket, int64_t *from, int64_t *to,
                       int64_t *local)
{
    if (*bucket >= a->shares.buckets) return false;
    *local = *bucket * a->shares.per_rank;
    fv__share(&a->shares, (*bucket)++, a->shares.rank, from, to);
    return true;
}

/* Master weights and moving average begin as the parameters are. */
static void copy_parameters(fv_adam *a, const char *data)
{
    for (int64_t b = 0, from, to, at; next_share(a, &b, &from, &to, &at);) {
        const char *w = data + (size_t)from * fv_dtype_size(a->dtype);
        float *const copies[] = {a->master, a->ema};
        for (int i = 0; i < 2; i++)
            if (copies[i])
                a->dev->k[a->dtype]->cast(&a->stream,
                                          (fv_sink){.data = copies[i] + at, .dtype = FV_F32}, w,
                                          to - from);
    }
}

/* Flat arrays as long as this rank's share of the parameters: moments, for 16-bit parameters an f32
 * master copy, and the moving average where one is asked for. */
static fv_status make_blocks(fv_adam *a, bool ema, fv_err *e)
{
    int64_t n;
    bool narrow = a->dtype != FV_F32;
    void *data = fv_params_data(a->params, &n);
    a->m = block(a, a->stored);
    a->v = block(a, a->stored);
    a->now = (void *)block(a, NOW);
    a->result = (void *)block(a, 2 * FV__UPDATES);
    a->sum = block(a, 1);
    if (narrow) a->master = block(a, a->stored);
    if (ema) a->ema = block(a, a->stored);
    if (!a->m || !a->v || !a->now || !a->result || !a->sum || (narrow && !a->master) ||
        (ema && !a->ema))
        return fv_fail(e, FV_ENOMEM, "adam: out of memory for the moments of %lld parameters%s",
                       (long long)a->n, fv__memory_left(a->dev).s);
    copy_parameters(a, data);
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
    return fv__adam_new(out, p, d, o, NULL, e);
}

/* c: ranks that share the state, each of which keeps a share (ZeRO-1); NULL: all of it is here. */
fv_status fv__adam_new(fv_adam **out, fv_params *p, fv_device *d, const fv_train_opt *o, fv_comm *c,
                       fv_err *e)
{
    *out = NULL;
    fv_adam *a = fv__alloc(&d->env, sizeof *a);
    if (!a) return fv_fail(e, FV_ENOMEM, "adam: out of memory");
    *a = (fv_adam){.dev = d, .params = p, .comm = c, .dtype = fv_params_at(p, 0)->dtype};
    fv_params_data(p, &a->n);
    a->shares = fv__shares_of(a->n, c);
    a->stored = fv__shares_stored(&a->shares);
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
    size_t bytes = (size_t)a->stored * sizeof(float);
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

/* Numbers [from, to) of the flat block, of parameters that take one learning rate and weight decay:
 * what this rank owns of them. */
static void update_run(fv_adam *a, fv_stream *s, const float *grad, fv_adamw o, int64_t from,
                       int64_t to)
{
    int64_t all;
    char *data = fv_params_data(a->params, &all);
    size_t size = fv_dtype_size(a->dtype);
    for (int64_t b = 0, lo, hi, at; next_share(a, &b, &lo, &hi, &at);) {
        int64_t i = from > lo ? from : lo, end = to < hi ? to : hi, k = at + i - lo;
        if (i >= end) continue;
        float *w = a->master ? a->master + k : (float *)(void *)data + i;
        a->dev->k[a->dtype]->adamw(s, w, a->m + k, a->v + k, a->ema ? a->ema + k : NULL,
                                   a->master ? data + (size_t)i * size : NULL, grad + i, end - i,
                                   &o);
    }
}

/* Runs of parameters with the same learning rate and weight decay take one kernel call; the padding
 * between them is zero and stays zero.  Vectors (norms, biases) are not decayed. */
static void update(fv_adam *a, fv_stream *s, const float *grad, fv_adamw o, float decay)
{
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
        update_run(a, s, grad, o, from, to);
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

/* The loss goes with the norm to where both are read together, so that an update costs one wait. */
void fv__adam_prepare_step(fv_adam *a, fv_stream *s, const void *loss, fv_dtype t, bool more)
{
    fv_sink to = {.data = (char *)a->now + offsetof(fv_update, loss), .dtype = FV_F32, .add = more};
    a->dev->k[t]->cast(s, to, loss, 1);
}

float fv__adam_loss(fv_adam *a)
{
    float loss;
    a->dev->backend->download(&a->stream, &loss, (char *)a->now + offsetof(fv_update, loss),
                              sizeof loss);
    return loss;
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

void fv__adam_set_nccl(fv_adam *a, fv__nccl *n) { a->nccl = n; }

/* The other ranks' shares of the parameters: by NCCL, or by host memory. */
static fv_status gather_parameters(fv_adam *a, fv_err *e)
{
    const fv_backend *b = a->dev->backend;
    int64_t n;
    void *data = fv_params_data(a->params, &n), *host = data;
    size_t size = fv_dtype_size(a->dtype), bytes = (size_t)n * size;
    if (a->nccl) {
        fv_status st = fv__shares_gather_gpu(&a->shares, a->nccl, fv__cuda_stream(&a->stream), data,
                                             size, e);
        b->sync(&a->stream);
        return st ? st : fv__nccl_check(a->nccl, e);
    }
    if (a->shares.ranks == 1) return FV_OK;
    b->sync(&a->stream);
    if (!fv__device_is_host(a->dev)) {
        host = fv__alloc_raw(&a->dev->env, bytes);
        if (!host) return fv_fail(e, FV_ENOMEM, "ranks: out of memory");
        b->download(&a->stream, host, data, bytes);
    }
    fv_status st = fv__sharded_gather(fv__sharded_of(a->params), &a->shares, a->comm, host, size,
                                      e);
    if (host == data) return st;
    if (!st) b->upload(&a->stream, data, host, bytes);
    b->sync(&a->stream);
    fv__free(&a->dev->env, host, bytes);
    return st;
}

void fv__adam_results(fv_adam *a, float **loss, float **sumsq)
{
    *loss = (float *)(void *)((char *)a->now + offsetof(fv_update, loss));
    *sumsq = a->sum;
}

fv_status fv__adam_run_alone(fv_adam *a, fv_stream *s, const fv_train_opt *o, fv_err *e)
{
    int64_t n;
    a->dev->k[FV_F32]->clip_norm(s, a->now, a->sum, o->clip, a->result);
    update(a, s, fv__params_grad_on(a->params, s),
           (fv_adamw){.beta1 = o->beta1, .beta2 = o->beta2, .eps = o->eps, .now = a->now},
           o->decay);
    if (!a->nccl) return FV_OK;
    void *data = fv_params_data(a->params, &n);
    fv_status st = fv__shares_gather_gpu(&a->shares, a->nccl, fv__cuda_stream(s), data,
                                         fv_dtype_size(a->dtype), e);
    return st ? st : fv__nccl_check(a->nccl, e);
}

/* The same with loss and norm of all ranks; afterwards every rank gets every share of the
 * parameters. */
fv_status fv__adam_run_shared(fv_adam *a, fv_stream *s, const fv_train_opt *o, float loss,
                              float sumsq, fv_err *e)
{
    const fv_backend *b = a->dev->backend;
    int64_t n;
    b->upload(s, (char *)a->now + offsetof(fv_update, loss), &loss, sizeof loss);
    b->upload(s, a->sum, &sumsq, sizeof sumsq);
    a->dev->k[FV_F32]->clip_norm(s, a->now, a->sum, o->clip, a->result);
    update(a, s, fv_params_grad(a->params, &n),
           (fv_adamw){.beta1 = o->beta1, .beta2 = o->beta2, .eps = o->eps, .now = a->now},
           o->decay);
    b->sync(s);
    return gather_parameters(a, e);
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

/* For programs that compute gradients themselves: update, then wait for the norm. */
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

/* Buffers (running statistics, singular vectors) are moved by the forward pass, not by the
 * optimiser: the average and the master weights get them as they are now, or a swap would bring
 * back those that the run began with.  [from,to): the share of all numbers that stands at `at` of
 * this rank's blocks. */
static void copy_buffers(fv_adam *a, int64_t from, int64_t to, int64_t at)
{
    int64_t all;
    const char *data = fv_params_data(a->params, &all);
    int64_t size = (int64_t)fv_dtype_size(a->dtype);
    float *const blocks[] = {a->ema, a->master};
    for (int i = 0; i < a->n_order; i++) {
        const fv_tensor *t = fv_params_at(a->params, a->order[i]);
        int64_t first = ((const char *)t->data - data) / size, last = first + fv_len(t);
        if (!fv__param_buffer(t)) continue;
        first = first > from ? first : from;
        last = last < to ? last : to;
        for (int k = 0; k < 2 && first < last; k++)
            if (blocks[k])
                a->dev->k[a->dtype]->cast(&a->stream,
                                          (fv_sink){.data = blocks[k] + at + first - from,
                                                    .dtype = FV_F32},
                                          data + first * size, last - first);
    }
}

/* Exchanges parameters and EMA.  Narrow parameters are rounded copies of the master weights:
 * they are rounded anew from either, and nothing is exchanged. */
fv_status fv_adam_swap(fv_adam *a, fv_err *e)
{
    if (!a->ema) return FV_OK;
    const fv_backend *b = a->dev->backend;
    int64_t n;
    char *data = fv_params_data(a->params, &n);
    size_t size = fv_dtype_size(a->dtype), bytes = (size_t)a->shares.per_rank * sizeof(float);
    void *hold = a->master ? NULL : fv_stream_scratch(&a->stream, bytes);
    if (!a->master && !hold) return fv_fail(e, FV_ENOMEM, "moving average: out of memory");
    a->swapped = !a->swapped;
    for (int64_t k = 0, from, to, at; next_share(a, &k, &from, &to, &at);) {
        char *w = data + (size_t)from * size;
        bytes = (size_t)(to - from) * sizeof(float);
        if (a->swapped) copy_buffers(a, from, to, at); /* the average comes in */
        if (a->master) { /* the parameters are copies, made anew from either */
            const float *x = (a->swapped ? a->ema : a->master) + at;
            a->dev->k[FV_F32]->cast(&a->stream, (fv_sink){.data = w, .dtype = a->dtype}, x,
                                    to - from);
            continue;
        }
        b->move(&a->stream, hold, w, bytes);
        b->move(&a->stream, w, a->ema + at, bytes);
        b->move(&a->stream, a->ema + at, hold, bytes);
    }
    fv_status st = finish(a, e);
    return st ? st : gather_parameters(a, e);
}
