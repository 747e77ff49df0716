/* tensor.c - making tensors, and moving numbers between them and the host. */
#include <stdio.h>

#include "core.h"

/* ---- shape ---- */

int64_t fv_shape_len(fv_shape s)
{
    int64_t n = 1;
    for (int i = 0; i < s.n; i++) n *= s.d[i];
    return n;
}

bool fv_shape_same(fv_shape a, fv_shape b)
{
    if (a.n != b.n) return false;
    for (int i = 0; i < a.n; i++)
        if (a.d[i] != b.d[i]) return false;
    return true;
}

fv_shape fv_shape_of(const fv_tensor *t) { return t ? t->shape : (fv_shape){0}; }
int64_t fv_len(const fv_tensor *t) { return t ? fv_shape_len(t->shape) : 0; }
int64_t fv_cols(const fv_tensor *t) { return !t ? 0 : t->shape.n ? t->shape.d[t->shape.n - 1] : 1; }

int64_t fv_dim(const fv_tensor *t, int axis)
{
    int at = t && axis < 0 ? axis + t->shape.n : axis;
    return t && at >= 0 && at < t->shape.n ? t->shape.d[at] : 0;
}

int64_t fv_rows(const fv_tensor *t)
{
    int64_t n = 1;
    if (!t) return 0;
    for (int i = 0; i < t->shape.n - 1; i++) n *= t->shape.d[i];
    return n;
}

/* "f32(2,3)": a struct by value, so that several fit into one call of fv_raise without a buffer
 * each. */
fv_desc_text fv_desc(const fv_tensor *t)
{
    fv_desc_text out = {"nothing"};
    if (!t) return out;
    size_t capacity = sizeof out.s,
           n = (size_t)snprintf(out.s, capacity, "%s%s(", t->packed ? "packed " : "",
                                fv_dtype_name(t->dtype));
    for (int i = 0; i < t->shape.n && n < capacity; i++)
        n += (size_t)snprintf(out.s + n, capacity - n, "%s%lld", i ? "," : "",
                              (long long)t->shape.d[i]);
    if (n < capacity) snprintf(out.s + n, capacity - n, ")");
    return out;
}

size_t fv__tensor_bytes(fv_dtype t, int64_t n) { return (size_t)n * fv_dtype_size(t); }

/* ---- making ---- */

/* Shapes come from callers and files: sizes are checked here once, for every op.
 * SIZE_MAX / 4 leaves headroom for ops that compute with small multiples of a size. */
static bool shape_bytes(size_t *bytes, fv_dtype t, fv_shape s)
{
    *bytes = fv_dtype_size(t);
    if (s.n < 0 || s.n > FV_MAX_DIM || !*bytes) return false;
    for (int i = 0; i < s.n; i++)
        if (s.d[i] < 0 || !fv__mul_size(bytes, *bytes, (size_t)s.d[i])) return false;
    return *bytes <= SIZE_MAX / 4;
}

static fv_tensor *header(fv_ctx *c, fv_dtype t, fv_shape s, void *data)
{
    fv_tensor *x = fv__arena_alloc(&c->host, sizeof *x);
    if (!x) return fv_raise(c, FV_ENOMEM, "out of memory: a tensor");
    *x = (fv_tensor){.data = data, .shape = s, .dtype = t};
    return x;
}

/* Memory is not cleared.  Lives until the context is reset, or the mark before it is rewound to. */
fv_tensor *fv_new(fv_ctx *c, fv_dtype t, fv_shape s)
{
    size_t bytes;
    if (fv__failed(c)) return NULL;
    if (!shape_bytes(&bytes, t, s)) {
        fv_tensor bad = {.shape = s, .dtype = t};
        if (s.n < 0 || s.n > FV_MAX_DIM) bad.shape.n = 0;
        return fv_raise(c, FV_ESHAPE, "cannot make a tensor of %d axes, %s", s.n, fv_desc(&bad).s);
    }
    void *data = fv__block_alloc(c, bytes);
    if (!data)
        return fv_raise(c, FV_ENOMEM, "out of memory: %zu bytes for a tensor %s, %zu held%s", bytes,
                        fv_desc(&(fv_tensor){.shape = s, .dtype = t}).s, c->data.total,
                        fv__memory_left(c->dev).s);
    return header(c, t, s, data);
}

/* base is always the tensor that owns the memory, never another alias: chains have length one. */
fv_tensor *fv_alias(fv_ctx *c, fv_tensor *x, fv_shape s)
{
    if (!x || fv__failed(c)) return NULL;
    if (fv_shape_len(s) > fv_len(x))
        return fv_raise(c, FV_ESHAPE, "alias: %s is too small", fv_desc(x).s);
    fv_tensor *y = header(c, x->dtype, s, x->data);
    if (y) y->base = x->base ? x->base : x;
    return y;
}

void *fv_scratch(fv_ctx *c, fv_dtype t, int64_t n)
{
    if (fv__failed(c)) return NULL;
    size_t bytes = fv__tensor_bytes(t, n);
    void *p = fv__block_alloc(c, bytes);
    if (p) return p;
    return fv_raise(c, FV_ENOMEM, "out of memory: %zu bytes of scratch, %zu held%s", bytes,
                    c->data.total, fv__memory_left(c->dev).s);
}

static fv_tensor *upload(fv_ctx *c, fv_dtype t, const void *host, fv_shape s)
{
    fv_tensor *x = fv_new(c, t, s);
    if (x) c->dev->backend->upload(&c->stream, x->data, host, fv__tensor_bytes(t, fv_len(x)));
    return x;
}

/* Floats arrive in the caller's precision and are rounded on the device.  The kernel is called
 * here, not fv_cast: core stands below ops, and constants from the host need no gradient. */
static fv_tensor *upload_floats(fv_ctx *c, fv_dtype from, const void *host, fv_shape s)
{
    fv_tensor *x = upload(c, from, host, s);
    if (!x || from == c->dtype) return x;
    const fv_kernels *k = fv_kernels_of(c, from);
    if (!fv_need(c, k && k->cast, "cast", from)) return NULL;
    fv_tensor *y = fv_new(c, c->dtype, s);
    if (y) k->cast(&c->stream, (fv_sink){y->data, y->dtype, false}, x->data, fv_len(x));
    return y;
}

fv_tensor *fv_floats(fv_ctx *c, const float *host, fv_shape s)
{
    return upload_floats(c, FV_F32, host, s);
}
fv_tensor *fv_doubles(fv_ctx *c, const double *host, fv_shape s)
{
    return upload_floats(c, FV_F64, host, s);
}
fv_tensor *fv_ints(fv_ctx *c, const int32_t *host, fv_shape s)
{
    return upload(c, FV_I32, host, s);
}
fv_tensor *fv_bytes(fv_ctx *c, const uint8_t *host, fv_shape s)
{
    return upload(c, FV_U8, host, s);
}

fv_tensor *fv_full(fv_ctx *c, fv_shape s, float value)
{
    fv_tensor *x = fv_new(c, c->dtype, s);
    const fv_kernels *k = x ? fv_kernels_of(c, x->dtype) : NULL;
    if (!k || !fv_need(c, k->fill, "fill", x->dtype)) return NULL;
    k->fill(&c->stream, x->data, value, fv_len(x));
    return x;
}

fv_tensor *fv_zeros(fv_ctx *c, fv_shape s)
{
    fv_tensor *x = fv_new(c, c->dtype, s);
    if (x) c->dev->backend->zero(&c->stream, x->data, fv__tensor_bytes(x->dtype, fv_len(x)));
    return x;
}

fv_tensor *fv_watch(fv_ctx *c, fv_tensor *t)
{
    (void)c;
    if (t) t->wants_grad = true;
    return t;
}

fv_tensor *fv_hold(fv_ctx *c, fv_tensor *t)
{
    (void)c;
    if (t) t->held = true;
    if (t && t->base) t->base->held = true;
    return t;
}

/* An alias has no node, so the tape cannot reach past it. */
fv_tensor *fv_detach(fv_ctx *c, fv_tensor *t) { return t ? fv_alias(c, t, t->shape) : NULL; }

/* ---- reading and writing ---- */

/* Synchronises: whoever reads waits for the kernels, and gets their faults instead of stale
 * numbers. */
static bool readable(fv_ctx *c, const char *what, const fv_tensor *t, int64_t n)
{
    if (!t || fv_ctx_status(c)) return false;
    if (t->released || (t->base && t->base->released))
        fv_raise(c, FV_ESTATE, "%s: %s was released by fv_backward; fv_hold keeps it", what,
                 fv_desc(t).s);
    else if (n != fv_len(t))
        fv_raise(c, FV_ESHAPE, "%s: %lld numbers asked of %s", what, (long long)n, fv_desc(t).s);
    else if (t->packed)
        fv_raise(c, FV_EDTYPE, "%s: %s is in the device's own layout", what, fv_desc(t).s);
    return !c->err.code;
}

/* n floats of dtype `from` at device address src, delivered to the host as `to`.
 * Converted on the device: the host needs no code for bf16, and half as many bytes may cross the
 * bus. */
static fv_status download(fv_ctx *c, const void *src, fv_dtype from, void *host, fv_dtype to,
                          int64_t n)
{
    fv_mark mark = fv_mark_here(c);
    const void *p = src;
    if (from != to) {
        const fv_kernels *k = fv_kernels_of(c, from);
        void *t = k && fv_need(c, k->cast, "cast", from) ? fv_scratch(c, to, n) : NULL;
        if (!t) return c->err.code;
        k->cast(&c->stream, (fv_sink){.data = t, .dtype = to}, src, n);
        p = t;
    }
    c->dev->backend->download(&c->stream, host, p, fv__tensor_bytes(to, n));
    fv__arena_rewind(&c->data, mark);
    return fv_ctx_status(c);
}

fv_status fv_read(fv_ctx *c, const fv_tensor *t, float *host, int64_t n)
{
    return readable(c, "read", t, n) ? download(c, t->data, t->dtype, host, FV_F32, n)
                                     : c->err.code;
}

fv_status fv_read_f64(fv_ctx *c, const fv_tensor *t, double *host, int64_t n)
{
    return readable(c, "read", t, n) ? download(c, t->data, t->dtype, host, FV_F64, n)
                                     : c->err.code;
}

fv_status fv_read_i32(fv_ctx *c, const fv_tensor *t, int32_t *host, int64_t n)
{
    if (!readable(c, "read", t, n)) return c->err.code;
    if (t->dtype != FV_I32) {
        fv_raise(c, FV_EDTYPE, "read: %s holds no i32", fv_desc(t).s);
        return c->err.code;
    }
    c->dev->backend->download(&c->stream, host, t->data, fv__tensor_bytes(FV_I32, n));
    return fv_ctx_status(c);
}

fv_status fv_read_grad(fv_ctx *c, const fv_tensor *t, double *host, int64_t n)
{
    if (!readable(c, "read gradient", t, n)) return c->err.code;
    if (t->has_grad) return download(c, t->grad, fv__grad_dtype(t), host, FV_F64, n);
    memset(host, 0, (size_t)n * sizeof *host);
    return FV_OK;
}

/* Between marks: the upload in f32 is scratch and gone when this returns. */
fv_status fv_write(fv_ctx *c, fv_tensor *t, const float *host, int64_t n)
{
    if (!readable(c, "write", t, n)) return c->err.code;
    fv_mark mark = fv_mark_here(c);
    fv_tensor *x = upload(c, FV_F32, host, t->shape);
    const fv_kernels *k = x ? fv_kernels_of(c, FV_F32) : NULL;
    if (k && fv_need(c, k->cast, "cast", FV_F32))
        k->cast(&c->stream, (fv_sink){.data = t->data, .dtype = t->dtype}, x->data, n);
    fv__arena_rewind(&c->data, mark);
    return fv_ctx_status(c);
}
