/* params_pack.c - parameters that are mapped from a file, and weights packed for products.
 *
 * A model that serves reads what it can where the file is mapped, in the dtype the file has.  What
 * products need is packed once, piece by piece, and the mapping drops the pages it was read from:
 * memory holds one copy of a weight, not two.
 *
 *    file (mapped)   bf16 rows, or rows of FV_Q8 / FV_Q4 blocks    read-only, shared by processes
 *    p->data         what is trained or small                      one flat block
 *    p->packed       weights in the panels of gemm                 the device's own layout
 *
 * A matrix that is both looked up and multiplied (tied embeddings) stays mapped and is packed as
 * well. */
#include "params.h"

/* ---- data of others ---- */

void fv__params_borrow(fv_params *p, fv_tensor *t, const void *data, fv_dtype stored)
{
    (void)p;
    ((fv_entry *)t)->borrowed = true;
    ((fv_entry *)t)->stored = stored;
    t->data = (void *)(uintptr_t)data; /* never written: see writable */
}

void fv__params_set_owner(fv_params *p, fv_data_owner owner) { p->owner = owner; }

/* Advice only: the pages are read from the file again if they are touched after all. */
static void forget(const fv_params *p, const fv_tensor *t, size_t bytes)
{
    if (fv_params_borrowed(t) && p->owner.advise_unused)
        p->owner.advise_unused(p->owner.self, t->data, bytes);
}

static bool is_narrow(const fv_entry *t) { return t->stored && fv_dtype_size(t->stored); }

fv_dtype fv__params_stored(const fv_params *p)
{
    if (!fv__device_is_host(p->dev)) return p->dtype;
    for (size_t i = 0; i < p->n; i++)
        if (is_narrow(p->list[i])) return p->list[i]->stored;
    return p->dtype;
}

bool fv__param_buffer(const fv_tensor *t) { return ((const fv_entry *)t)->init.buffer; }
void fv__param_table(fv_tensor *t) { ((fv_entry *)t)->table = true; }

bool fv__params_packed_only(const fv_tensor *t, bool *in_out)
{
    const fv_entry *w = (const fv_entry *)t;
    *in_out = w->in_out;
    return w->product && !w->table;
}

bool fv_params_borrowed(const fv_tensor *t)
{
    return t->is_param && ((const fv_entry *)t)->borrowed;
}

fv_status fv_params_status(const fv_params *p, fv_err *e)
{
    return p->err.code ? fv_fail(e, p->err.code, "%s", p->err.text) : FV_OK;
}

static const fv_kernels *kernels(const fv_params *p) { return p->dev->k[p->dtype]; }

bool fv_params_packs(const fv_params *p, fv_dtype dtype)
{
    return p->data && kernels(p)->pack && kernels(p)->pack_bytes &&
           kernels(p)->pack_bytes(1, 1, dtype) > 0;
}

/* Memory that lives as long as the parameters. */
static void *taken(fv_params *p, size_t bytes)
{
    void *data = fv__arena_alloc(&p->packed, bytes);
    if (!data)
        fv_fail(&p->err, FV_ENOMEM, "parameters: out of memory for %zu bytes of weights", bytes);
    return data;
}

/* A weight of products that is used as it is after all, from its file into the device's memory. */
static fv_status settle(fv_params *p, fv_entry *t, fv_err *e)
{
    int64_t n = fv_len(&t->tensor);
    size_t size = fv__tensor_bytes(t->tensor.dtype, n);
    void *data = fv__arena_alloc(&p->packed, fv__tensor_bytes(p->dtype, n)), *raw = data;
    if (data && t->tensor.dtype != p->dtype) raw = fv_stream_scratch(&p->stream, size);
    if (!data || !raw) return fv_fail(e, FV_ENOMEM, "parameter %s: out of memory", t->name);
    p->dev->backend->upload(&p->stream, raw, t->tensor.data, size);
    if (raw != data)
        p->dev->k[t->tensor.dtype]->cast(&p->stream, (fv_sink){.data = data, .dtype = p->dtype},
                                         raw, n);
    forget(p, &t->tensor, size);
    t->tensor.data = data;
    t->tensor.dtype = p->dtype;
    t->stored = FV_F32;
    t->borrowed = false;
    return FV_OK;
}

/* By one thread: it is little, and a second one that is started while others read a tokenizer has
 * nowhere to go. */
fv_status fv__params_widen(fv_params *p, fv_err *e)
{
    for (size_t i = 0; i < p->n && !fv__device_is_host(p->dev); i++) {
        fv_entry *t = p->list[i];
        fv_status st = t->borrowed && (!t->product || t->table) ? settle(p, t, e) : FV_OK;
        if (st) return st;
    }
    if (!fv__device_is_host(p->dev)) return fv_params_status(p, e);
    fv_stream alone = p->stream;
    alone.threads = 1;
    for (size_t i = 0; i < p->n && !p->err.code; i++) {
        fv_entry *t = p->list[i];
        if (!is_narrow(t) || t->product || t->table) continue;
        int64_t n = fv_len(&t->tensor);
        void *data = fv__arena_alloc(&p->packed, fv__tensor_bytes(p->dtype, n));
        if (!data) return fv_fail(e, FV_ENOMEM, "parameter %s: out of memory", t->name);
        p->dev->k[t->stored]->cast(&alone, (fv_sink){.data = data, .dtype = p->dtype},
                                   t->tensor.data, n);
        forget(p, &t->tensor, fv__tensor_bytes(t->stored, n));
        t->tensor.data = data;
        t->tensor.dtype = p->dtype;
        t->stored = FV_F32;
    }
    return fv_params_status(p, e);
}

/* Weights (all axes but `joined` as long) and vectors that can be joined; a vector that is NULL
 * counts as zeros, and then the others are as long as one another.
 * Grouped heads: k and v have fewer rows than q, so the joined axis may differ, all others must
 * not. */
static bool alike(fv_params *p, fv_tensor *const *t, int n, int axes, int joined)
{
    const fv_tensor *first = NULL;
    bool whole = true;
    for (int i = 0; i < n; i++) whole = whole && t[i];
    for (int i = 0; i < n; i++) {
        if (!first) first = t[i];
        if (!t[i] && axes == 1) continue;
        bool same = t[i] && t[i]->shape.n == axes && first->shape.n == axes && !t[i]->packed &&
                    t[i]->dtype == first->dtype;
        for (int d = 0; d < axes && same; d++)
            same = t[i]->shape.d[d] == first->shape.d[d] || (d == joined && whole);
        if (same) continue;
        fv_fail(&p->err, FV_ESHAPE, "parameters: %s and %s cannot be joined", fv_desc(first).s,
                t[i] ? fv_desc(t[i]).s : "nothing");
        return false;
    }
    return first;
}

/* For fused projections: the biases of q, k and v as one vector, zeros where a family has none. */
fv_tensor *fv_params_join(fv_params *p, fv_tensor *const *t, int n)
{
    if (p->err.code || !p->data || !alike(p, t, n, 1, 0)) return NULL;
    int64_t each = 0, len = 0;
    for (int i = 0; i < n; i++) each = t[i] ? fv_len(t[i]) : each;
    for (int i = 0; i < n; i++) len += t[i] ? fv_len(t[i]) : each;
    char *to = taken(p, fv__tensor_bytes(p->dtype, len));
    fv_tensor *y = to ? fv_params_scratch(p, sizeof *y) : NULL;
    if (!y) return NULL;
    *y = (fv_tensor){.data = to, .shape = FV_SHAPE(len), .dtype = p->dtype};
    for (int i = 0; i < n; i++) {
        size_t bytes = fv__tensor_bytes(p->dtype, t[i] ? fv_len(t[i]) : each);
        if (t[i])
            p->dev->backend->move(&p->stream, to, t[i]->data, bytes);
        else
            p->dev->backend->zero(&p->stream, to, bytes);
        to += bytes;
    }
    return y;
}

void fv__params_side_by_side(fv_params *p, const fv_tensor *a, const fv_tensor *b, fv_dtype dtype)
{
    if (fv__device_is_host(p->dev) || p->err.code || !fv_params_packs(p, dtype)) return;
    size_t bytes = kernels(p)->pack_bytes(fv_dim(a, 0) + fv_dim(b, 0), fv_dim(a, 1), dtype);
    fv__arena_reserve(&p->packed, bytes); /* else taking them says that there is no memory */
}

fv_tensor *fv__params_plus_one(fv_params *p, const fv_tensor *t)
{
    if (p->err.code || !p->data || t->dtype != p->dtype) return NULL;
    void *to = taken(p, fv__tensor_bytes(p->dtype, fv_len(t)));
    fv_tensor *y = to ? fv_params_scratch(p, sizeof *y) : NULL;
    if (!y) return NULL;
    *y = (fv_tensor){.data = to, .shape = t->shape, .dtype = p->dtype};
    kernels(p)->unary(&p->stream, FV_U_SCALE, to, t->data, fv_len(t), 1, 1);
    return y;
}

#define PIECE (64 * FV_PACK_ROWS)

/* A weight that is mapped goes piece by piece, so that no more than a piece is in memory twice; to
 * another device through its scratch.  pack_bytes(i) is where row i begins only at multiples of
 * FV_PACK_ROWS: pieces are cut there. */
static void pack_one(fv_params *p, fv_stream *s, fv_tensor *y, void *to, const void *from,
                     fv_dtype dtype, bool in_out, bool borrowed)
{
    const fv_kernels *k = kernels(p);
    int64_t rows = y->shape.d[0], cols = y->shape.d[1], ld = in_out ? rows : cols;
    if (!fv_dtype_size(dtype)) ld = (int64_t)fv_dtype_row(dtype, cols);
    size_t row = (size_t)ld * (fv_dtype_size(dtype) ? fv_dtype_size(dtype) : 1);
    int64_t most = borrowed && !in_out && rows > PIECE ? PIECE : rows;
    bool far = borrowed && !fv__device_is_host(p->dev);
    void *piece = far ? fv_stream_scratch(s, (size_t)(in_out ? cols : most) * row) : NULL;
    for (int64_t i = 0; i < rows && (piece || !far); i += most) {
        int64_t n = rows - i < most ? rows - i : most;
        const char *at = (const char *)from + (size_t)i * row;
        if (far) p->dev->backend->upload(s, piece, at, (size_t)(in_out ? cols : n) * row);
        k->pack(s, (char *)to + k->pack_bytes(i, cols, y->dtype), y->dtype, far ? piece : at, dtype,
                n, cols, ld, !in_out);
        if (most < rows && p->owner.advise_unused)
            p->owner.advise_unused(p->owner.self, at, (size_t)n * row);
    }
}

static size_t bytes_of(const fv_tensor *w, bool in_out)
{
    if (fv_dtype_size(w->dtype)) return fv__tensor_bytes(w->dtype, fv_len(w));
    return (size_t)w->shape.d[in_out] * fv_dtype_row(w->dtype, w->shape.d[!in_out]);
}

bool fv__params_pack_weight(fv_params *p, fv_stream *s, fv_tensor *y, void *to, fv_tensor *const *w,
                            int n, bool in_out)
{
    size_t all = 0;
    for (int i = 0; i < n; i++) all += bytes_of(w[i], in_out);
    char *from = n > 1 ? fv_stream_scratch(s, all) : w[0]->data, *to_part = from;
    if (!from) return false;
    for (int i = 0; n > 1 && i < n; i++) {
        if (fv_params_borrowed(w[i]))
            p->dev->backend->upload(s, to_part, w[i]->data, bytes_of(w[i], in_out));
        else
            p->dev->backend->move(s, to_part, w[i]->data, bytes_of(w[i], in_out));
        to_part += bytes_of(w[i], in_out);
    }
    pack_one(p, s, y, to, from, w[0]->dtype, in_out && fv_dtype_size(w[0]->dtype),
             n == 1 && fv_params_borrowed(w[0]));
    for (int i = 0; i < n; i++) forget(p, w[i], bytes_of(w[i], in_out));
    return true;
}

/* Floats that are wanted as they are can be multiplied as they are.
 * Only on the host, where the file's mapping is the device's memory. */
static bool can_wait(const fv_params *p, fv_tensor *const *w, int n, fv_dtype dtype)
{
    bool can = p->dtype == FV_F32 && w[0]->dtype == dtype && fv_dtype_size(dtype) &&
               fv__device_is_host(p->dev);
    for (int i = 0; i < n && can; i++) can = fv_params_borrowed(w[i]);
    return can;
}

/* n weights (rows_i, cols) -> one packed (sum of rows, cols).  The result belongs to the
 * parameters; errors stick to them and are seen by fv_params_status. */
fv_tensor *fv_params_pack(fv_params *p, fv_tensor *const *w, int n, fv_dtype dtype, bool in_out)
{
    if (p->err.code || !p->data || n < 1 || !w[0] || !alike(p, w, n, 2, in_out)) return NULL;
    bool stored = !fv_dtype_size(w[0]->dtype);
    if (!fv_params_packs(p, dtype) || (n > 1 && in_out && !stored) ||
        (stored && w[0]->dtype != dtype)) {
        fv_fail(&p->err, FV_EDTYPE, "parameter %s: %s cannot pack %d of them, stored as %s, as %s",
                w[0]->name, fv_device_name(p->dev), n, fv_dtype_name(w[0]->dtype),
                fv_dtype_name(dtype));
        return NULL;
    }
    int64_t rows = 0, cols = w[0]->shape.d[!in_out];
    for (int i = 0; i < n; i++) rows += w[i]->shape.d[in_out];
    void *data = taken(p, kernels(p)->pack_bytes(rows, cols, dtype));
    fv_weight *y = data ? fv_params_scratch(p, sizeof *y + (size_t)n * sizeof *w) : NULL;
    if (!y) return NULL;
    *y = (fv_weight){.tensor = {.shape = FV_SHAPE(rows, cols), .dtype = dtype, .packed = true},
                     .packed_data = data,
                     .params = p};
    y->n = n;
    y->in_out = in_out;
    memcpy(y->part, w, (size_t)n * sizeof *w);
    for (int i = 0; i < n; i++)
        if (w[i]->is_param) ((fv_entry *)w[i])->product = true, ((fv_entry *)w[i])->in_out = in_out;
    if (can_wait(p, w, n, dtype)) return &y->tensor;
    if (!fv__params_pack_weight(p, &p->stream, &y->tensor, data, w, n, in_out)) {
        fv_fail(&p->err, FV_ENOMEM, "parameter %s: out of memory for its layout", w[0]->name);
        return NULL;
    }
    y->tensor.data = data;
    return &y->tensor;
}
