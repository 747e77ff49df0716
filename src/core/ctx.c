/* ctx.c - contexts: the sticky error, the lifetime of everything computed, marks and taps.
 *
 * Three lifetimes meet here.  A parameter lives as long as its model; what ops make lives until
 * fv_ctx_reset (a step); what lies behind a mark goes when fv_keep rewinds to it (a layer, while
 * serving).  Nobody frees a tensor, so there are no reference counts to get wrong.
 *
 * Errors stick: the first one is kept, every later op sees it and returns NULL, and NULL inputs
 * are passed on.  So model code has no checks, and the caller looks once, at the end of a step. */
#include <stdio.h>

#include "core.h"

/* One context per thread; the device below may be shared.  serial tells contexts apart in keys
 * of captured graphs, where an address could be that of an earlier context. */
fv_status fv_ctx_new(fv_ctx **out, fv_device *d, fv_ctx_opt opt, fv_err *e)
{
    *out = NULL;
    if ((unsigned)opt.dtype >= FV_FLOATS || !d->k[opt.dtype])
        return fv_fail(e, FV_EDTYPE, "context: %s does not compute in %s", fv_device_name(d),
                       fv_dtype_name(opt.dtype));
    fv_ctx *c = fv__alloc(&d->env, sizeof *c);
    if (!c) return fv_fail(e, FV_ENOMEM, "context: out of memory");
    *c = (fv_ctx){.dev = d,
                  .dtype = opt.dtype,
                  .record = opt.record,
                  .train = opt.train,
                  .recompute = opt.recompute,
                  .seed = opt.seed};
    c->serial = __atomic_add_fetch(&d->contexts, 1, __ATOMIC_RELAXED);
    c->host = (fv_arena){.env = &d->env};
    c->data = (fv_arena){.dev = d, .env = &d->env};
    fv_status st = fv__stream_open(&c->stream, d, opt.threads, e);
    if (!st && !(c->step = d->backend->alloc(d, sizeof *c->step)))
        st = fv_fail(e, FV_ENOMEM, "context: out of memory");
    if (st) {
        fv_ctx_free(c);
        return st;
    }
    fv_ctx_reset(c, 0);
    *out = c;
    return FV_OK;
}

void fv_ctx_free(fv_ctx *c)
{
    if (!c) return;
    fv_device *d = c->dev;
    fv__stream_close(&c->stream);
    if (c->step) d->backend->release(d, c->step, sizeof *c->step);
    for (fv_constant *k = c->constants, *next; k; k = next) {
        next = k->next;
        d->backend->release(d, k->t.data, k->bytes);
        fv__free(&d->env, k, k->all);
    }
    fv__arena_free(&c->host);
    fv__arena_free(&c->data);
    fv__free(&d->env, c->spare, c->spare_capacity);
    fv__free(&d->env, c, sizeof *c);
}

/* O(1): arenas are rewound, not freed.  site restarts at 0, so that the n-th random op of a step
 * draws the same numbers in every step that has the same (seed, step). */
void fv_ctx_reset(fv_ctx *c, uint64_t step)
{
    c->host.at = c->host.used = c->data.at = c->data.used = 0;
    c->tape = NULL;
    c->n_spare = 0;
    c->backward = false;
    c->aliased_grad = NULL;
    c->prompt = NULL;
    c->ends = NULL;
    c->site = 0;
    c->err = (fv_err){0};
    c->stream.err = (fv_err){0};
    fv__ctx_set_step(c, step);
}

/* In device memory, not an argument of kernels: a replayed graph has its arguments frozen, and
 * still must draw new numbers each step. */
void fv__ctx_set_step(fv_ctx *c, uint64_t step)
{
    if (c->step_known && c->step_value == step) return;
    c->dev->backend->upload(&c->stream, c->step, &step, sizeof step);
    c->step_value = step;
    c->step_known = true;
}

/* ---- errors ---- */

/* Returns NULL, so that an op fails in one statement.  The first error wins: later ones follow
 * from it. */
void *fv_raise(fv_ctx *c, fv_status code, const char *fmt, ...)
{
    if (c->err.code) return NULL;
    /* a device that is lost has no memory either: that is the reason */
    if (code == FV_ENOMEM && fv_ctx_status(c)) return NULL;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(c->err.text, sizeof c->err.text, fmt, ap);
    va_end(ap);
    c->err.code = code;
    return NULL;
}

bool fv__failed(fv_ctx *c)
{
    if (!c->err.code && c->stream.err.code) c->err = c->stream.err;
    return c->err.code != FV_OK;
}

/* Waits for the stream: faults of device kernels (an id out of range) are known only then. */
fv_status fv_ctx_status(fv_ctx *c)
{
    c->dev->backend->sync(&c->stream);
    fv__failed(c);
    return c->err.code;
}

const fv_err *fv_ctx_err(const fv_ctx *c) { return &c->err; }

/* ---- settings ---- */

void fv_ctx_set_train(fv_ctx *c, bool train) { c->train = train; }
void fv_ctx_set_record(fv_ctx *c, bool record) { c->record = record; }
bool fv_ctx_training(const fv_ctx *c) { return c->train; }
fv_device *fv_ctx_device(const fv_ctx *c) { return c->dev; }

size_t fv_ctx_bytes(const fv_ctx *c)
{
    size_t all = c->host.total + c->data.total + c->stream.scratch_bytes;
    for (const fv_constant *k = c->constants; k; k = k->next) all += k->bytes;
    return all;
}

fv_stream *fv_ctx_stream(fv_ctx *c) { return &c->stream; }

/* A site is the ordinal of a random op within a step; seed, site and step name a Philox
 * sequence. */
fv_rng fv_next_rng(fv_ctx *c)
{
    return (fv_rng){.seed = c->seed, .site = c->site++, .step = c->step};
}

/* ---- kernels ---- */

const fv_kernels *fv_kernels_of(fv_ctx *c, fv_dtype t)
{
    if ((unsigned)t < FV_FLOATS && c->dev->k[t]) return c->dev->k[t];
    return fv_raise(c, FV_EDTYPE, "%s does not compute in %s", fv_device_name(c->dev),
                    fv_dtype_name(t));
}

bool fv_need(fv_ctx *c, bool have, const char *kernel, fv_dtype t)
{
    if (!have)
        fv_raise(c, FV_EMISSING, "%s: %s has no kernel for %s", kernel, fv_device_name(c->dev),
                 fv_dtype_name(t));
    return have;
}

bool fv_same_dtype(fv_ctx *c, const char *op, const fv_tensor *a, const fv_tensor *b)
{
    if (!a || !b) return false;
    if (a->dtype == b->dtype && (unsigned)a->dtype < FV_FLOATS && !a->packed && !b->packed)
        return true;
    fv_raise(c, FV_EDTYPE, "%s: %s and %s are not of one float dtype", op, fv_desc(a).s,
             fv_desc(b).s);
    return false;
}

/* ---- constants ---- */

#define MAX_CONSTANTS 16
#define MAX_BYTES ((size_t)256 << 20) /* of them together */

/* Compared by key bytes, dtype and shape; a list of at most MAX_CONSTANTS, so a search is short.
 * When it is full the caller makes the tensor anew each step, which is slower and otherwise the
 * same. */
fv_tensor *fv__constant(fv_ctx *c, const void *key, size_t n, fv_dtype t, fv_shape s, bool *fresh)
{
    size_t have = 0, held = 0;
    *fresh = false;
    if (fv__failed(c)) return NULL;
    for (fv_constant *k = c->constants; k; held += k->bytes, have++, k = k->next)
        if (k->n == n && k->t.dtype == t && fv_shape_same(k->t.shape, s) && !memcmp(k->key, key, n))
            return &k->t;
    size_t all = sizeof(fv_constant) + n, bytes = fv__tensor_bytes(t, fv_shape_len(s));
    fv_constant *k = have < MAX_CONSTANTS && held + bytes <= MAX_BYTES
                         ? fv__alloc(&c->dev->env, all)
                         : NULL;
    void *data = k ? c->dev->backend->alloc(c->dev, bytes) : NULL;
    if (!data) {
        fv__free(&c->dev->env, k, all);
        return NULL;
    }
    *k = (fv_constant){.next = c->constants,
                       .t = {.data = data, .shape = s, .dtype = t},
                       .bytes = bytes,
                       .all = all,
                       .n = n};
    memcpy(k->key, key, n);
    c->constants = k;
    *fresh = true;
    return &k->t;
}

/* ---- marks ---- */

fv_mark fv_mark_here(fv_ctx *c) { return (fv_mark){c->data.at, c->data.used}; }

/*    before   [ .. | mark | temporaries of a layer | x ]
 *    after    [ .. | mark | x ]                            move copes with overlap */
fv_tensor *fv_keep(fv_ctx *c, fv_mark mark, fv_tensor *x)
{
    if (!x || c->record || fv__failed(c)) return x;
    if (x->packed)
        return fv_raise(c, FV_EARG, "keep: %s has no size of its own to be moved by", fv_desc(x).s);
    bool stays = fv__arena_before(&c->data, x->data, mark);
    fv__arena_rewind(&c->data, mark);
    if (stays) return x;
    size_t bytes = fv__tensor_bytes(x->dtype, fv_len(x));
    /* cannot fail: x itself is at or behind this position */
    void *to = fv__arena_alloc(&c->data, bytes);
    if (to != x->data) c->dev->backend->move(&c->stream, to, x->data, bytes);
    x->data = to;
    x->base = NULL;
    return x;
}

/* ---- taps ---- */

void fv_ctx_set_tap(fv_ctx *c, fv_tap_fn *fn, void *user)
{
    c->tap = fn;
    c->tap_user = user;
}

void fv_tap(fv_ctx *c, const char *site, const char *name, const void *what)
{
    if (c->tap && what && !fv__failed(c)) c->tap(c->tap_user, c, site, name, what);
}
