/* params_pack.c - parameters that lie in a file, and weights laid out for products.
 *
 * A model that serves reads what it can where the file is mapped, in the dtype the file has.  What products need is laid
 * out once, piece by piece, and the mapping is told to forget what it gave: memory holds one copy of a weight, not two. */
#include "params.h"

/* ---- data of others ---- */

void fv__params_lend(fv_params *p, fv_tensor *t, const void *data, fv_dtype stored)
{
    (void)p;
    ((fv_entry *)t)->lent = true;
    ((fv_entry *)t)->stored = stored;
    t->data = (void *)(uintptr_t)data; /* never written: see writable */
}

void fv__params_lender(fv_params *p, fv_lender lender) { p->lender = lender; }

static void forget(const fv_params *p, const fv_tensor *t, size_t bytes)
{
    if (fv_params_lent(t) && p->lender.forget) p->lender.forget(p->lender.self, t->data, bytes);
}

static bool is_narrow(const fv_entry *t) { return t->stored && fv_dtype_size(t->stored); }

fv_dtype fv__params_stored(const fv_params *p)
{
    for (size_t i = 0; i < p->n; i++)
        if (is_narrow(p->list[i])) return p->list[i]->stored;
    return p->dtype;
}

bool fv__param_buffer(const fv_tensor *t) { return ((const fv_entry *)t)->init.buffer; }
void fv__param_table(fv_tensor *t) { ((fv_entry *)t)->table = true; }

bool fv__params_product(const fv_tensor *t, bool *kn)
{
    const fv_entry *w = (const fv_entry *)t;
    *kn = w->kn;
    return w->product && !w->table;
}

bool fv_params_lent(const fv_tensor *t) { return t->is_param && ((const fv_entry *)t)->lent; }

fv_status fv_params_status(const fv_params *p, fv_err *e)
{
    return p->err.code ? fv_fail(e, p->err.code, "%s", p->err.text) : FV_OK;
}

static const fv_kernels *kernels(const fv_params *p) { return p->dev->k[p->dtype]; }

bool fv_params_packs(const fv_params *p, fv_dtype dtype)
{
    return p->data && kernels(p)->pack && kernels(p)->pack_bytes && kernels(p)->pack_bytes(1, 1, dtype) > 0;
}

/* A tensor that lives as long as the parameters. */
static fv_tensor *added(fv_params *p, fv_dtype t, fv_shape shape, size_t bytes)
{
    fv_tensor *y = fv_params_take(p, sizeof *y);
    void *data = y ? fv__arena_take(&p->packed, bytes) : NULL;
    if (y && !data) fv_fail(&p->err, FV_ENOMEM, "parameters: out of memory for %zu bytes of weights", bytes);
    if (!data) return NULL;
    *y = (fv_tensor){.data = data, .shape = shape, .dtype = t};
    return y;
}

fv_status fv__params_widen(fv_params *p, fv_err *e)
{
    for (size_t i = 0; i < p->n && !p->err.code; i++) {
        fv_entry *t = p->list[i];
        if (!is_narrow(t) || t->product || t->table) continue;
        int64_t n = fv_len(&t->tensor);
        void *data = fv__arena_take(&p->packed, fv__tensor_bytes(p->dtype, n));
        if (!data) return fv_fail(e, FV_ENOMEM, "parameter %s: out of memory", t->name);
        p->dev->k[t->stored]->cast(&p->stream, (fv_sink){.data = data, .dtype = p->dtype}, t->tensor.data, n);
        forget(p, &t->tensor, fv__tensor_bytes(t->stored, n));
        t->tensor.data = data;
        t->tensor.dtype = p->dtype;
        t->stored = FV_F32;
    }
    return fv_params_status(p, e);
}

/* t[0], t[1], .. one behind the other; zeros for what is NULL, which has as many elements as the others. */
static void join(fv_params *p, void *out, fv_tensor *const *t, int n, size_t each)
{
    const fv_backend *b = p->dev->backend;
    for (int i = 0; i < n; i++) {
        if (t[i])
            b->move(&p->stream, (char *)out + (size_t)i * each, t[i]->data, each);
        else
            b->zero(&p->stream, (char *)out + (size_t)i * each, each);
    }
}

static bool alike(fv_params *p, fv_tensor *const *t, int n, int axes)
{
    const fv_tensor *first = NULL;
    for (int i = 0; i < n; i++) {
        if (!first) first = t[i];
        if (!t[i] || (t[i]->shape.n == axes && fv_shape_same(t[i]->shape, first->shape) && !t[i]->packed)) continue;
        fv_fail(&p->err, FV_ESHAPE, "parameters: %s and %s cannot be joined", fv_desc(first).s, fv_desc(t[i]).s);
        return false;
    }
    return first;
}

fv_tensor *fv_params_join(fv_params *p, fv_tensor *const *t, int n)
{
    if (p->err.code || !p->data || !alike(p, t, n, 1)) return NULL;
    int64_t len = 0;
    for (int i = 0; i < n; i++) len = t[i] ? fv_len(t[i]) : len;
    fv_tensor *y = added(p, p->dtype, FV_SHAPE(n * len), fv__tensor_bytes(p->dtype, n * len));
    if (y) join(p, y->data, t, n, fv__tensor_bytes(p->dtype, len));
    return y;
}

typedef struct layout {
    const void *from;
    fv_dtype dtype;
    int64_t rows, cols, ld;
    bool tb;
} layout;

#define PIECE (64 * FV_PACK_ROWS)

/* A weight that is mapped goes piece by piece, so that no more than a piece is in memory twice. */
static void lay_weight(fv_params *p, fv_tensor *y, const layout *w, const fv_tensor *lent)
{
    const fv_kernels *k = kernels(p);
    size_t row = (size_t)w->ld * (fv_dtype_size(w->dtype) ? fv_dtype_size(w->dtype) : 1);
    int64_t most = lent && fv_params_lent(lent) && w->tb ? PIECE : w->rows;
    for (int64_t i = 0; i < w->rows; i += most) {
        int64_t n = w->rows - i < most ? w->rows - i : most;
        const char *from = (const char *)w->from + (size_t)i * row;
        k->pack(&p->stream, (char *)y->data + k->pack_bytes(i, w->cols, y->dtype), y->dtype, from, w->dtype, n, w->cols, w->ld,
                w->tb);
        if (most < w->rows && p->lender.forget) p->lender.forget(p->lender.self, from, (size_t)n * row);
    }
}

fv_tensor *fv_params_pack(fv_params *p, fv_tensor *const *w, int n, fv_dtype dtype, bool kn)
{
    if (p->err.code || !p->data || n < 1 || !w[0] || !alike(p, w, n, 2)) return NULL;
    int64_t rows = w[0]->shape.d[kn], cols = w[0]->shape.d[!kn], ld = w[0]->shape.d[1];
    fv_dtype from_dtype = w[0]->dtype;
    size_t each = fv__tensor_bytes(from_dtype, rows * cols);
    bool stored = !fv_dtype_size(from_dtype);
    if (stored) {
        ld = (int64_t)fv_dtype_row(dtype, cols);
        each = (size_t)(rows * ld);
    }
    if (!fv_params_packs(p, dtype) || (n > 1 && kn && !stored) || (stored && from_dtype != dtype)) {
        fv_fail(&p->err, FV_EDTYPE, "parameter %s: %s cannot lay %d of them, stored as %s, out as %s", w[0]->name,
                fv_device_name(p->dev), n, fv_dtype_name(from_dtype), fv_dtype_name(dtype));
        return NULL;
    }
    fv_tensor *y = added(p, dtype, FV_SHAPE(n * rows, cols), kernels(p)->pack_bytes(n * rows, cols, dtype));
    void *from = n > 1 && y ? fv_stream_work(&p->stream, (size_t)n * each) : w[0]->data;
    if (!from) fv_fail(&p->err, FV_ENOMEM, "parameter %s: out of memory for its layout", w[0]->name);
    if (!y || !from) return NULL;
    if (n > 1) join(p, from, w, n, each);
    y->packed = true;
    layout how = {from, from_dtype, n * rows, cols, ld, !kn || stored};
    lay_weight(p, y, &how, n == 1 ? w[0] : NULL);
    for (int i = 0; i < n; i++) {
        if (w[i]->is_param) ((fv_entry *)w[i])->product = true, ((fv_entry *)w[i])->kn = kn;
        forget(p, w[i], each);
    }
    return y;
}
