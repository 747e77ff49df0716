/* params.c - named parameters in one flat block, their gradients in a second.
 *
 * Declared first (names, shapes), given memory once: optimisers, checkpoints and all-reduce then
 * see one array.  Frozen parameters (the base model below an adapter) stand in a block of their
 * own: neither gradients nor moments are kept for them, and the optimiser never sees them.
 * Clearing gradients only marks them: the next backward writes where it would have added, and
 * whoever reads the flat block finds zeros where nothing arrived. */
#include <stdio.h>

#include "params.h"

/*    data:  [ matrix | matrix | .. | vector | vector | .. ]     one array, each padded to 64
 *    grad:  [ the same offsets, f32 (f64 for f64) ] */
#define ALIGN_ELEMENTS 64 /* each parameter starts at a multiple of this many elements */

static int64_t round_up(int64_t n)
{
    return (n + ALIGN_ELEMENTS - 1) / ALIGN_ELEMENTS * ALIGN_ELEMENTS;
}
/* Gradients of bf16 and f16 parameters are f32: they add up over micro-batches. */
static fv_dtype grad_type(const fv_params *p) { return p->dtype == FV_F64 ? FV_F64 : FV_F32; }
static bool begins(const char *s, const char *prefix)
{
    return !strncmp(s, prefix, strlen(prefix));
}

fv_status fv_params_new(fv_params **out, const fv_env *env, fv_err *e)
{
    fv_params *p = fv__alloc(env, sizeof *p);
    *out = p;
    if (!p) return fv_fail(e, FV_ENOMEM, "parameters: out of memory");
    if (env) p->env = *env;
    p->layers.env = &p->env;
    return FV_OK;
}

void fv_params_free(fv_params *p)
{
    if (!p) return;
    fv_env env = p->env;
    for (size_t i = 0; i < p->n; i++)
        fv__free(&env, p->list[i], sizeof(fv_entry) + strlen(p->list[i]->name) + 1);
    fv__free(&env, p->list, p->capacity);
    fv__arena_free(&p->layers);
    if (p->packed.dev) fv__arena_free(&p->packed);
    if (p->owner.release_data) p->owner.release_data(p->owner.self);
    if (p->dev) {
        fv__stream_close(&p->stream);
        const fv_backend *b = p->dev->backend;
        if (p->data) b->release(p->dev, p->data, fv__tensor_bytes(p->dtype, p->elements));
        if (p->grad) b->release(p->dev, p->grad, fv__tensor_bytes(grad_type(p), p->elements));
        if (p->rows) b->release(p->dev, p->rows, p->rows_bytes);
        if (p->frozen)
            b->release(p->dev, p->frozen, fv__tensor_bytes(p->dtype, p->frozen_elements));
    }
    fv__free(&env, p, sizeof *p);
}

/* ---- declaring ---- */

static bool shape_ok(fv_shape s)
{
    int64_t n = 1;
    if (s.n < 0 || s.n > FV_MAX_DIM) return false;
    for (int i = 0; i < s.n; i++)
        if (s.d[i] < 1 || !fv__mul_i64(&n, n, s.d[i])) return false;
    return n < INT64_MAX / 16;
}

void fv__params_scope(fv_params *p, const char *scope)
{
    snprintf(p->scope, sizeof p->scope, "%s", scope);
}

void fv__params_fail(fv_params *p, const fv_err *e)
{
    if (!p->err.code) p->err = *e;
}

/* The tensor's address is final here, its data comes with fv_params_alloc: layers keep the
 * pointer. */
fv_tensor *fv_param(fv_params *p, fv_init init, fv_shape s, const char *fmt, ...)
{
    char name[256];
    va_list ap;
    va_start(ap, fmt);
    int scope = snprintf(name, sizeof name, "%s", p->scope);
    int len = vsnprintf(name + scope, sizeof name - (size_t)scope, fmt, ap);
    va_end(ap);
    len = len < 1 ? len : len + scope;
    if (p->err.code) return NULL;

    fv_tensor bad = {.shape = s};
    if (p->data)
        fv_fail(&p->err, FV_ESTATE, "parameter %s: declared after fv_params_alloc", name);
    else if (len < 1 || (size_t)len >= sizeof name)
        fv_fail(&p->err, FV_EARG, "parameter %.60s...: the name has %d bytes, expected 1 to %zu",
                name, len, sizeof name - 1);
    else if (!shape_ok(s))
        fv_fail(&p->err, FV_ESHAPE, "parameter %s: cannot have the shape %s", name,
                s.n <= FV_MAX_DIM ? fv_desc(&bad).s : "(too many axes)");
    else if (fv_params_find(p, name))
        fv_fail(&p->err, FV_ESTATE, "parameter %s: declared twice", name);
    if (p->err.code) return NULL;

    void *list = p->list;
    fv_entry *t = fv__alloc(&p->env, sizeof *t + (size_t)len + 1);
    if (!t || !fv__grow(&p->env, &list, &p->capacity, (p->n + 1) * sizeof *p->list)) {
        fv__free(&p->env, t, sizeof *t + (size_t)len + 1);
        fv_fail(&p->err, FV_ENOMEM, "parameter %s: out of memory", name);
        return NULL;
    }
    memcpy(t->name, name, (size_t)len + 1);
    t->tensor = (fv_tensor){.shape = s, .is_param = true, .held = true, .name = t->name};
    t->init = init;
    p->list = list;
    p->list[p->n++] = t;
    return &t->tensor;
}

void *fv_params_scratch(fv_params *p, size_t bytes)
{
    if (p->err.code) return NULL;
    void *at = fv__arena_alloc(&p->layers, bytes);
    if (!at)
        fv_fail(&p->err, FV_ENOMEM, "parameters: out of memory for %zu bytes of layers", bytes);
    else
        memset(at, 0, bytes);
    return at;
}

static void *flat(fv_params *p, fv_dtype t, int64_t elements)
{
    size_t bytes = fv__tensor_bytes(t, elements);
    void *data = p->dev->backend->alloc(p->dev, bytes);
    if (data) p->dev->backend->zero(&p->stream, data, bytes);
    return data;
}

/* Of one that is held as blocks: (out, in), whatever its shape's order. */
static size_t rows_bytes(const fv_entry *t)
{
    bool in_out = t->linear == FV_LINEAR_IN_OUT;
    int64_t out = t->tensor.shape.d[in_out], in = t->tensor.shape.d[!in_out];
    return (size_t)out * fv_dtype_row(t->rows, in);
}

/* Where each parameter stands in its block: matrices first, then vectors, as declared, without
 * those that are borrowed.  An optimiser treats the two kinds differently, and so has two long runs
 * instead of hundreds of short ones.
 * Weight decay applies to matrices and not to vectors: two ranges of one array, not a flag for
 * each. */
static void set_layout(fv_params *p)
{
    p->elements = p->frozen_elements = 0;
    p->rows_bytes = 0;
    for (int vectors = 0; vectors < 2; vectors++)
        for (size_t i = 0; i < p->n; i++) {
            fv_entry *t = p->list[i];
            int64_t *end = t->frozen ? &p->frozen_elements : &p->elements;
            if ((t->tensor.shape.n < 2) != vectors) continue;
            t->offset = *end;
            if (t->rows) {
                t->offset = (int64_t)p->rows_bytes;
                p->rows_bytes += rows_bytes(t);
            } else if (!t->borrowed)
                *end += round_up(fv_len(&t->tensor));
        }
    if (!p->elements) p->elements = ALIGN_ELEMENTS;
}

fv_status fv_params_alloc(fv_params *p, fv_device *d, fv_dtype dtype, bool train, fv_err *e)
{
    if (p->err.code) return fv_fail(e, p->err.code, "%s", p->err.text);
    if (p->data) return fv_fail(e, FV_ESTATE, "parameters: allocated twice");
    if (!p->n) return fv_fail(e, FV_ESTATE, "parameters: none declared");
    if ((unsigned)dtype >= FV_FLOATS || !d->k[dtype])
        return fv_fail(e, FV_EDTYPE, "parameters: %s does not compute in %s", fv_device_name(d),
                       fv_dtype_name(dtype));
    fv_status st = fv__stream_open(&p->stream, d, 0, e);
    if (st) return st;
    p->dev = d;
    p->dtype = dtype;
    p->packed = (fv_arena){.dev = d, .env = &p->env};
    set_layout(p);
    p->data = flat(p, dtype, p->elements);
    if (p->data && p->frozen_elements) p->frozen = flat(p, dtype, p->frozen_elements);
    if (p->data && p->rows_bytes) p->rows = d->backend->alloc(d, p->rows_bytes);
    if (train && p->data) p->grad = flat(p, grad_type(p), p->elements);
    if (!p->data || (p->rows_bytes && !p->rows) || (train && !p->grad) ||
        (p->frozen_elements && !p->frozen))
        return fv_fail(e, FV_ENOMEM, "parameters: out of memory for %lld numbers of %s%s",
                       (long long)(p->elements + p->frozen_elements), fv_dtype_name(dtype),
                       fv__memory_left(d).s);
    for (size_t i = 0; i < p->n; i++) {
        fv_entry *t = p->list[i];
        t->tensor.dtype = t->stored ? t->stored : dtype;
        if (t->borrowed) continue;
        if (t->rows) {
            t->tensor.dtype = t->rows;
            t->tensor.data = (char *)p->rows + t->offset;
            continue;
        }
        t->tensor.data = (char *)(t->frozen ? p->frozen : p->data) +
                         fv__tensor_bytes(dtype, t->offset);
        if (t->frozen) continue;
        if (p->grad) t->tensor.grad = (char *)p->grad + fv__tensor_bytes(grad_type(p), t->offset);
        t->tensor.wants_grad = train && !t->init.buffer;
    }
    return FV_OK;
}

/* ---- finding ---- */

int fv_params_count(const fv_params *p) { return (int)p->n; }

fv_tensor *fv_params_at(const fv_params *p, int i)
{
    return i >= 0 && (size_t)i < p->n ? &p->list[i]->tensor : NULL;
}

/* Linear: called while loading, once a name in a file, for a few hundred to a few thousand
 * names. */
fv_tensor *fv_params_find(const fv_params *p, const char *name)
{
    for (size_t i = 0; i < p->n; i++)
        if (!strcmp(p->list[i]->name, name)) return &p->list[i]->tensor;
    return NULL;
}

int64_t fv_params_elements(const fv_params *p, const char *prefix)
{
    int64_t n = 0;
    for (size_t i = 0; i < p->n; i++)
        if (begins(p->list[i]->name, prefix)) n += fv_len(&p->list[i]->tensor);
    return n;
}

/* Returns how many names begin so, for the caller to refuse a prefix that fits none. */
int fv_params_train(fv_params *p, const char *prefix, bool on)
{
    int n = 0;
    for (size_t i = 0; i < p->n; i++) {
        fv_entry *t = p->list[i];
        if (!begins(t->name, prefix)) continue;
        t->tensor.wants_grad = on && p->grad && !t->init.buffer && !t->frozen;
        n++;
    }
    return n;
}

/* ---- base models and adapters ---- */

void fv__param_freeze(fv_tensor *t) { ((fv_entry *)t)->frozen = true; }
bool fv__param_frozen(const fv_tensor *t) { return ((const fv_entry *)t)->frozen; }
void fv__param_mark_added(fv_tensor *t) { ((fv_entry *)t)->added = true; }
bool fv__param_added(const fv_tensor *t) { return ((const fv_entry *)t)->added; }
void fv__param_mark_linear(fv_tensor *t, fv_linear_kind kind)
{
    if (t) ((fv_entry *)t)->linear = kind;
}
fv_linear_kind fv__param_linear(const fv_tensor *t) { return ((const fv_entry *)t)->linear; }
void fv_param_mark_end(fv_tensor *t, fv_part_end end)
{
    if (t) ((fv_entry *)t)->end = end;
}
fv_part_end fv__param_end(const fv_tensor *t) { return ((const fv_entry *)t)->end; }
void fv__param_adapt(fv_tensor *t, fv_adapter *a) { ((fv_entry *)t)->adapter = a; }
static fv_adapter *adapter_of(const fv_tensor *t, bool table)
{
    fv_adapter *a = t && t->is_param ? ((const fv_entry *)t)->adapter : NULL;
    return a && a->table == table ? a : NULL;
}
fv_adapter *fv__param_adapter(const fv_tensor *t) { return adapter_of(t, false); }
fv_adapter *fv__param_table_adapter(const fv_tensor *t) { return adapter_of(t, true); }
bool fv__param_is_table(const fv_tensor *t) { return ((const fv_entry *)t)->table; }
size_t fv__params_frozen_bytes(const fv_params *p)
{
    size_t numbers = p->frozen ? fv__tensor_bytes(p->dtype, p->frozen_elements) : 0;
    return numbers + p->rows_bytes;
}

/* ---- values ---- */

static fv_status same_size(const fv_tensor *t, int64_t n, fv_err *e)
{
    if (n == fv_len(t)) return FV_OK;
    return fv_fail(e, FV_ESHAPE, "parameter %s: %lld numbers for %s", t->name, (long long)n,
                   fv_desc(t).s);
}

static fv_status writable(const fv_params *p, const fv_tensor *t, fv_err *e)
{
    if (!p->data) return fv_fail(e, FV_ESTATE, "parameters: not allocated");
    if (!((const fv_entry *)t)->borrowed) return FV_OK;
    return fv_fail(e, FV_ESTATE,
                   "parameter %s: read where its file is mapped, so it cannot be changed", t->name);
}

static fv_status finish(fv_params *p, fv_err *e)
{
    p->dev->backend->sync(&p->stream);
    fv_err err = p->stream.err;
    p->stream.err = (fv_err){0};
    return err.code ? fv_fail(e, err.code, "%s", err.text) : FV_OK;
}

/* host f32 (n) -> the parameter's dtype, on the device.  Refused for a parameter that is
 * borrowed from a mapped file. */
fv_status fv_params_set(fv_params *p, fv_tensor *t, const float *host, int64_t n, fv_err *e)
{
    fv_status st = writable(p, t, e);
    if (!st) st = same_size(t, n, e);
    if (st) return st;
    const fv_backend *b = p->dev->backend;
    if (p->dtype == FV_F32) {
        b->upload(&p->stream, t->data, host, fv__tensor_bytes(FV_F32, n));
    } else {
        float *tmp = fv_stream_scratch(&p->stream, fv__tensor_bytes(FV_F32, n));
        if (!tmp) return finish(p, e);
        b->upload(&p->stream, tmp, host, fv__tensor_bytes(FV_F32, n));
        p->dev->k[FV_F32]->cast(&p->stream, (fv_sink){.data = t->data, .dtype = p->dtype}, tmp, n);
    }
    return finish(p, e);
}

static fv_status get(fv_params *p, const void *src, fv_dtype from, float *host, int64_t n,
                     fv_err *e)
{
    const void *at = src;
    if (from != FV_F32) {
        float *tmp = fv_stream_scratch(&p->stream, fv__tensor_bytes(FV_F32, n));
        if (!tmp) return finish(p, e);
        p->dev->k[from]->cast(&p->stream, (fv_sink){.data = tmp, .dtype = FV_F32}, src, n);
        at = tmp;
    }
    p->dev->backend->download(&p->stream, host, at, fv__tensor_bytes(FV_F32, n));
    return finish(p, e);
}

/* Its data is where its file is mapped, which the device cannot read. */
static bool is_elsewhere(const fv_params *p, const fv_tensor *t)
{
    return fv_params_borrowed(t) && !fv__device_is_host(p->dev);
}

static fv_status get_mapped(fv_params *p, const fv_tensor *t, float *host, int64_t n, fv_err *e)
{
    size_t size = fv__tensor_bytes(t->dtype, n);
    if (t->dtype == FV_F32) {
        memcpy(host, t->data, size);
        return FV_OK;
    }
    size_t floats = fv__tensor_bytes(FV_F32, n);
    float *tmp = fv_stream_scratch(&p->stream, floats + size);
    if (!tmp) return finish(p, e);
    p->dev->backend->upload(&p->stream, (char *)tmp + floats, t->data, size);
    p->dev->k[t->dtype]->cast(&p->stream, (fv_sink){.data = tmp, .dtype = FV_F32},
                              (char *)tmp + floats, n);
    p->dev->backend->download(&p->stream, host, tmp, floats);
    return finish(p, e);
}

fv_status fv__params_upload(fv_params *p, void *to, const void *host, size_t bytes, fv_err *e)
{
    p->dev->backend->upload(&p->stream, to, host, bytes);
    return finish(p, e);
}

fv_status fv_params_get(fv_params *p, const fv_tensor *t, float *host, int64_t n, fv_err *e)
{
    fv_status st = p->data ? same_size(t, n, e)
                           : fv_fail(e, FV_ESTATE, "parameters: not allocated");
    if (!st && !fv_dtype_size(t->dtype))
        st = fv_fail(e, FV_EDTYPE,
                     "parameter %s: stored as %s, which is not turned back into numbers", t->name,
                     fv_dtype_name(t->dtype));
    if (!st) st = fv__param_fetch_now(t, e);
    if (st) return st;
    st = is_elsewhere(p, t) ? get_mapped(p, t, host, n, e) : get(p, t->data, t->dtype, host, n, e);
    fv__param_release(t);
    return st;
}

fv_status fv_params_get_grad(fv_params *p, const fv_tensor *t, float *host, int64_t n, fv_err *e)
{
    fv_status st = p->grad ? same_size(t, n, e)
                           : fv_fail(e, FV_ESTATE, "parameters: allocated without gradients");
    if (st) return st;
    if (t->has_grad) return get(p, t->grad, grad_type(p), host, n, e);
    memset(host, 0, (size_t)n * sizeof *host);
    return FV_OK;
}

fv_status fv__params_write(fv_params *p, fv_tensor *t, int64_t at, const void *host, int64_t n,
                           fv_err *e)
{
    fv_status st = writable(p, t, e);
    if (st) return st;
    p->dev->backend->upload(&p->stream, (char *)t->data + fv__tensor_bytes(p->dtype, at), host,
                            fv__tensor_bytes(p->dtype, n));
    return finish(p, e);
}

fv_status fv__params_read(fv_params *p, const fv_tensor *t, int64_t at, void *host, int64_t n,
                          fv_err *e)
{
    if (!p->data) return fv_fail(e, FV_ESTATE, "parameters: not allocated");
    fv_status st = fv__param_fetch_now(t, e);
    if (st) return st;
    if (is_elsewhere(p, t)) {
        memcpy(host, (const char *)t->data + fv__tensor_bytes(t->dtype, at),
               fv__tensor_bytes(t->dtype, n));
        return FV_OK;
    }
    p->dev->backend->download(&p->stream, host,
                              (const char *)t->data + fv__tensor_bytes(t->dtype, at),
                              fv__tensor_bytes(t->dtype, n));
    fv__param_release(t);
    return finish(p, e);
}

/* ---- gradients and flat blocks ---- */

void fv_params_zero_grad(fv_params *p)
{
    for (size_t i = 0; i < p->n; i++) p->list[i]->tensor.has_grad = false;
}

void *fv_params_data(const fv_params *p, int64_t *n)
{
    *n = p->elements;
    return p->data;
}

/* After this the flat gradient can be read as one array: what no backward has reached is zeroed. */
void *fv__params_grad_on(fv_params *p, fv_stream *s)
{
    for (size_t i = 0; p->grad && i < p->n; i++) {
        fv_tensor *t = &p->list[i]->tensor;
        if (!t->grad) continue;
        if (!t->has_grad)
            p->dev->backend->zero(s, t->grad, fv__tensor_bytes(grad_type(p), fv_len(t)));
        t->has_grad = true;
    }
    return p->grad;
}

void fv__params_have_grad(fv_params *p)
{
    for (size_t i = 0; i < p->n; i++)
        if (p->list[i]->tensor.grad) p->list[i]->tensor.has_grad = true;
}

void *fv_params_grad(fv_params *p, int64_t *n)
{
    *n = p->elements;
    if (fv__params_grad_on(p, &p->stream)) p->dev->backend->sync(&p->stream);
    return p->grad;
}
